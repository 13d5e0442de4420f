//! What a tenant writes a Pinion function with.

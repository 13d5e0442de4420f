//! Sample.

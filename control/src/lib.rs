//! Desired state, its durable store, and the gRPC API pinion.v1 with its client.

//! Tests of the control plane as its clients see it, over its sockets.

#![forbid(unsafe_code)]

mod remote;
mod support;
#[path = "support/tls.rs"]
mod tls;

mod authority;
mod changes;
mod labels;
mod objects;
mod quarantine;
mod revisions;
mod server;
mod tenants;
mod tls_client;
mod uploads;

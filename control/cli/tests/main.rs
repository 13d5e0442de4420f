//! Tests of `pinion` as it is typed, against a control plane in the same process.

#![forbid(unsafe_code)]

#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/support/tls.rs"]
mod tls;

mod cert;
mod commands;
mod contexts;
mod conventions;
mod editing;
mod functions;
mod get;
mod labels;
mod objects;
mod revisions;
mod store;
mod tenants;

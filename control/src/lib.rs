//! Desired state, its durable store, and the gRPC API `pinion.v1` with its client.
//!
//! This crate keeps the desired state of a node and hands it to the data plane through [`node::Node`]. It knows nothing
//! of packets, memory or Wasm engines. A change takes this path:
//!
//! ```text
//!   pinion apply -f demo.toml
//!     manifest   reads and checks the files
//!     client     uploads modules, keys and models, sends one change
//!        |
//!        |  gRPC pinion.v1 on a Unix socket, or on TCP with mutual TLS
//!        v
//!     socket     who calls, and how much
//!     access     may they?
//!     api        messages -> checked values (wire); errors -> status codes
//!     control    one change at a time, except while templates are built:
//!        model      compute the next state; is it consistent?             pure
//!        node       check: can the data plane follow?                    changes nothing
//!        node       build what is missing, then once more from the beginning
//!        store      commit                                               durable from here on
//!        node       follow: apply it
//!        |
//!        v
//!     answer: created, configured, unchanged, deleted, pruned
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`model`] | modules, keys, models, chains, rules and the pure step from one desired state to the next |
//! | [`node`] | the trait that a data plane implements, and what it reports |
//! | [`store`] | the database file that keeps the desired state across restarts |
//! | [`disk`] | what an error of the state directory's file system means |
//! | [`journal`] | the log lines of functions |
//! | [`pem`] | the text of private keys on their way to the node |
//! | [`metrics`] | counters and gauges of functions |
//! | [`control`] | the order of a change; restoring at start |
//! | [`proto`], [`wire`] | the generated messages; messages to values and back |
//! | [`api`] | the gRPC service |
//! | [`access`] | who may call which method, and what of it is a tenant's own |
//! | [`socket`] | the Unix socket, mutual TLS, limits of callers, health and reflection, shutdown |
//! | [`client`] | the other end of the socket, for the `pinion` command and tests |
//! | [`manifest`] | TOML manifests |
//! | [`causes`] | formats an error and its causes as one sentence |
//! | [`document`] | reads TOML documents; reports errors by line and key |

#![forbid(unsafe_code)]

pub mod access;
pub mod api;
pub mod causes;
pub mod client;
pub mod control;
pub mod disk;
pub mod document;
pub mod journal;
pub mod manifest;
pub mod metrics;
pub mod model;
pub mod node;
pub mod pem;
pub mod proto;
pub mod socket;
pub mod store;
pub mod wire;

pub use client::Client;
pub use control::Control;
pub use socket::Server;
pub use store::Store;

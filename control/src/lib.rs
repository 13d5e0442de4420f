//! Desired state, its durable store, and the gRPC API `pinion.v1` with its client.
//!
//! What a node ought to do is held here and handed to whatever implements [`node::Node`]; this crate knows nothing
//! of packets, memory or Wasm engines. A change goes this way:
//!
//! ```text
//!   pinion apply -f demo.toml
//!     manifest   reads and checks the files
//!     client     uploads modules, sends one change
//!        |
//!        |  gRPC pinion.v1 on a Unix socket (server)
//!        v
//!     api        messages -> checked values (wire); errors -> status codes
//!     control    one change at a time:
//!        model      what would the desired state be? is it consistent?    pure
//!        node       check: could the data plane follow?                   changes nothing
//!        store      durable                                               from here on it holds
//!        node       follow: do it
//!        |
//!        v
//!     answer: created, configured, unchanged, deleted
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`model`] | modules, chains, rules and the pure step from one desired state to the next |
//! | [`node`] | the trait that a data plane implements, and what it reports |
//! | [`store`] | the file that outlives the process |
//! | [`journal`] | what functions have said, for whoever asks |
//! | [`metrics`] | counters and gauges that functions have |
//! | [`control`] | the order of a change; restoring at start |
//! | [`proto`], [`wire`] | the generated messages; messages to values and back |
//! | [`api`] | the gRPC service |
//! | [`server`] | the Unix socket, health and reflection, shutting down |
//! | [`client`] | the other end of the socket, for the `pinion` command and tests |
//! | [`manifest`] | TOML manifests |

#![forbid(unsafe_code)]

pub mod api;
pub mod client;
pub mod control;
pub mod journal;
pub mod manifest;
pub mod metrics;
pub mod model;
pub mod node;
pub mod proto;
pub mod server;
pub mod store;
pub mod wire;

pub use client::Client;
pub use control::Control;
pub use server::Server;
pub use store::Store;

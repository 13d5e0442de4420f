//! Sockets for functions in C: the library behind `pinion/net.h`.
//!
//! It is an ordinary [`Server`](pinion_sdk::net::Server) or [`Program`](pinion_sdk::net::Program) of the SDK for Rust, whose callbacks are
//! those of the C function. So the SDK for Rust owns pool, rings and turns of such a module, and no byte is copied that it does not copy
//! for functions in Rust.
//!
//! ```text
//!   the node --> guest-sdk/c/src/net/entry.c    the module's exports
//!                  |
//!                boundary.rs --> service.rs | program.rs   the two forms, as the SDK for Rust has them
//!                  |                  |
//!                  |             boundary/callbacks.rs     the C function's callbacks
//!                  |                  |
//!                boundary/current.rs  what the callback that runs may use: call.rs
//!                  ^                  |
//!                boundary/calls.rs <--/ pinion/net.h       the calls that C makes meanwhile
//! ```
//!
//! `frames.rs` keeps packets that are not for a socket while C has them; `guest-sdk/c/src/net/frames.c` has C's records of them. `types.rs` has
//! the header's structs, and `results.rs` its results.
//!
//! Only `boundary` has `unsafe` code. Everything that C passes is checked as far as that is possible: addresses against the size of the
//! module's memory, numbers against what there is, structs field by field. What C may do wrong beyond that, it does to its own memory.

mod boundary;
mod call;
mod frames;
mod program;
mod results;
mod service;
mod types;

pub use boundary::callbacks::{Module, ProgramCallbacks, ServiceCallbacks, install};
pub use program::Guest as ProgramGuest;
pub use results::{Close, Outcome};
pub use service::Guest as ServiceGuest;
pub use types::{Address, Datagram, Settings, UdpPeer, Via};

//! The memory movement accelerator (EdgeOS, sections 3 and 4.2): packets get from one pool into another by copy, and
//! only this crate copies them.
//!
//! ```text
//!   Net-In --Inbound--> [ingress ring] --> MMA --copy--> slot of the FWP's pool
//!                                           |               | [deliver ring] --> worker --> guest's receive ring
//!                                           |               |
//!                                           |<--[transmit ring] <-- worker <-- guest's transmit ring
//!                                           |--copy--> next pool, or a buffer of the gateway's --> Net-Out
//! ```
//!
//! Three parties use this crate, each by a module of its own:
//! * the gateway holds a [`link::GatewayLink`]: frames in, frames out, buffers back;
//! * a worker holds a [`guest::mailbox::Mailbox`] per FWP: what the guest may see and what it asks for;
//! * the MMA thread holds a [`mover::Mma`]: every [`wiring::Endpoint`] and the edges between them.
//!
//! [`accounts::shares`] divides what tenants share, here and in the other crates.
//!
//! This crate depends on neither wasmtime nor DPDK. All communication between the parties is bounded and lock-free.
//! Once an FWP is made, it allocates nothing.

pub mod accounts;
pub mod buffer;
pub mod fwp;
pub mod guest;
pub mod id;
pub mod link;
pub mod mover;
pub mod notify;
pub mod rings;
pub mod stopwatch;
mod sync;
pub mod tuning;
pub mod ways;
pub mod wiring;

//! The memory movement accelerator (EdgeOS, sections 3 and 4.2): packets cross from one pool to another by copy,
//! and only here.
//!
//! ```text
//!   Net-In --Inbound--> [ingress ring] --> MMA --copy--> slot of the FWP's pool
//!                                           |               | [deliver ring] --> worker --> guest's receive ring
//!                                           |               |
//!                                           |<--[transmit ring] <-- worker <-- guest's transmit ring
//!                                           |--copy--> next pool, or a buffer of the gateway's --> Net-Out
//! ```
//!
//! Three parties meet here and each has a room of its own:
//! * the gateway holds a [`link::GatewayLink`]: frames in, frames out, buffers back;
//! * a worker holds a [`mailbox::Mailbox`] per FWP: what the guest may see and what it asks for;
//! * the MMA thread holds a [`mover::Mma`]: every [`wiring::Endpoint`] and the edges between them.
//!
//! This crate knows neither wasmtime nor DPDK. Everything between the parties is bounded, lock-free and, after an
//! FWP is made, allocation-free.

pub mod buffer;
mod copy;
pub mod counters;
mod dock;
pub mod doorbell;
pub mod fwp;
pub mod heading;
pub mod id;
pub mod link;
pub mod mailbox;
pub mod mover;
pub mod next_up;
pub mod notify;
mod phased;
pub mod pool;
pub mod prefetch;
mod slots;
pub mod spsc;
pub mod stopwatch;
mod sync;
pub mod wiring;

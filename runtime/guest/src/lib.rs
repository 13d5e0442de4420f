//! What builder and node must agree on about guests: the builder compiles and initialises code that the node runs.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | engine settings that determine compiled code |
//! | [`calls`] | what a guest may call, and how each call is bounded |
//! | [`files`] | the files that a guest finds, and how it may change them |
//! | [`fault`] | traps as text, made printable |
//! | `memory` | a guest's memory, as its calls see it |
//!
//! This crate depends neither on the compiler nor on packets.
pub mod calls;
pub mod fault;
pub mod files;
mod memory;
pub mod settings;

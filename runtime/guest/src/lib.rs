//! What builder and node must agree on about guests: code that one compiles and initialises runs in the other.
//!
//! | module | room |
//! |---|---|
//! | [`settings`] | what compiled code looks like |
//! | [`calls`] | what a guest may call, and how each call is bounded |
//! | [`files`] | the files it finds there, and what it may make of them |
//! | [`fault`] | how a trap reads, in text that is a tenant's |
//!
//! Knows neither compiler nor packets.
#![forbid(unsafe_code)]

pub mod calls;
pub mod fault;
pub mod files;
pub mod settings;

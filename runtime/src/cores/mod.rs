//! Cores and the threads on them: which role runs where, and how one thread sends commands to another.

pub mod command_sender;
pub mod plan;

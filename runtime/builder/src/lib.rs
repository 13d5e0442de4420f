//! From a tenant's module to native code, in a process of its own (`pinion-builder`).
//!
//! The node never parses a tenant's bytes and has no compiler in use: it starts the builder with the module on standard
//! input and takes the compiled artifact from standard output. The builder gives up rights and time first
//! ([`limits`]), then judges the module ([`admission`]), then compiles it with the [`settings`] that the node's
//! engines share. What it refuses it says in one sentence on standard error.
//!
//! The node itself uses [`settings`] and the constants here, nothing else.
#![forbid(unsafe_code)]

pub mod admission;
pub mod limits;
pub mod settings;

/// Largest module that is taken, in bytes.
pub const MODULE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Exit status of a builder that refuses the module; standard error holds the reason.
pub const EXIT_REFUSED: i32 = 2;

//! From a tenant's module to a template, in a process of its own (`pinion-builder`).
//!
//! ```text
//!   check   module ---------------------------> admission                                     yes, or a sentence
//!   check-files   archive of files ----------> read as the node will                                        yes, or a sentence
//!   build   module, configuration, files, limits ----> admission -> interruptible -> initialise -> compile -> facts and native code
//! ```
//!
//! The node never parses a tenant's bytes and has no compiler in use: it starts the builder with the module on standard
//! input and takes the template from standard output. The builder gives up rights and time first ([`limits`]), then judges
//! the module ([`admission`]), makes all of its code interruptible ([`interruptible`]), runs its initialisation once and
//! takes a snapshot of it ([`initialise`]), and compiles that ([`build`]) with the settings that the node's engines share. What it says meanwhile, and
//! what it refuses, it says on standard error ([`pinion_builder_client::protocol`]).
//!
//! The node itself uses [`pinion_builder_client`] and the constants here, nothing else.
#![forbid(unsafe_code)]

pub mod admission;
pub mod build;
pub mod initialise;
pub mod interruptible;
pub mod limits;
pub mod refused;
mod stack;

/// Largest module that is taken, in bytes.
pub const MODULE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest archive of files that is taken, in bytes.
pub const FILES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest code of one function that is taken, in bytes: a compiler's time and memory grow faster than that.
pub const FUNCTION_BYTES_MAX: usize = 128 * 1024;

/// Names what templates are like besides the engine's settings. To be raised whenever those made before are no longer to be
/// used.
pub const TEMPLATE_FORM: u32 = 5;

//! Makes a template from a tenant's module, in a process of its own (`pinion-builder`).
//!
//! ```text
//!   check   module ---------------------------> admission                                     yes, or a sentence
//!   check-files   archive of files ----------> read as the node will                                        yes, or a sentence
//!   build   module, configuration, files, limits ----> admission -> interruptible -> initialise -> compile -> facts and native code
//! ```
//!
//! The node never parses a tenant's bytes and runs no compiler: it starts the builder with the module on standard input and reads the
//! template from standard output. The builder first limits its own rights and resources ([`limits`]). Then it checks the module
//! ([`admission`]) and makes all of its code interruptible ([`interruptible`]). It runs the module's initialisation once and takes a
//! snapshot ([`initialise`]), and compiles that ([`build`]) with the settings that the node's engines share. It reports progress and
//! refusals on standard error ([`pinion_builder_client::protocol`]).
//!
//! The node itself uses [`pinion_builder_client`] and the constants here, nothing else.
#![forbid(unsafe_code)]

pub mod admission;
pub mod build;
pub mod confinement;
mod counts;
pub mod features;
pub mod initialise;
pub mod interruptible;
pub mod limits;
pub mod model;
pub mod progress;
pub mod refused;
mod stack;
pub mod watch;

/// The largest module, in bytes.
pub const MODULE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest archive of files, in bytes.
pub const FILES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The longest configuration, in bytes.
pub const CONFIG_BYTES_MAX: usize = 64 * 1024;

/// The longest code of one function, in bytes. A compiler's time and memory grow faster than a function's length.
pub const FUNCTION_BYTES_MAX: usize = 128 * 1024;

/// Version of the form of templates, besides the engine's settings. To be raised whenever templates made before must not be used any more.
pub const TEMPLATE_FORM: u32 = 7;

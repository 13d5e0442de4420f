//! What a process of Pinion gives up before it meets foreign bytes, so that a broken sandbox finds little: capabilities, privileges that
//! programs give, system calls and files.
//!
//! ```text
//!   system_calls  lists of system calls  -> Filter (seccomp)      files  directories -> FileRules (Landlock)
//!                         \                                         /
//!   every_thread           Rights, entered by every thread of the process, whoever started it
//!   refused                counts what a filter refused, by kind of thread, and lets the call fail with EPERM
//!   threads                what the kernel says of each thread afterwards
//!   isolated               a program as another user in namespaces of its own
//! ```
//!
//! Used by the node for itself, by its supervisor for the builder, and by the builder for itself. After Firecracker's jailer and its filters
//! for each thread.

pub mod every_thread;
pub mod files;
pub mod isolated;
pub mod refused;
pub mod system_calls;
pub mod threads;

/// The kinds of threads that [`every_thread`] tells apart: numbers below this.
pub const THREAD_KINDS_MAX: usize = 16;

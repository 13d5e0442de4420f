//! The file system that a guest sees: the files deployed with its stage, and those that it has written itself.
//!
//! ```text
//!   Bundle   read once, shared read-only by all instances of a template
//!      ^
//!   Tree     of one instance: what it has created, changed and removed; charged like its memory
//!      ^
//!   Files    of one instance: its open files, by their descriptors
//!      ^
//!   calls    WASI preview 1
//! ```
//!
//! Everything is in memory: no call reaches a file of the machine, blocks, or takes a lock. What an instance has written ends with it.
//! There are no links, owners or permissions, and all times are zero.
//!
//! Each operation takes a bounded time. A path has at most [`PATH_BYTES_MAX`] bytes and [`PATH_NAMES_MAX`] names. An instance has at most
//! [`OPEN_FILES_MAX`] open files and [`NODES_MAX`] files and directories of its own. Pages of removed files are not freed one by one but
//! reused (`pages.rs`).

mod bundle;
mod descriptors;
mod errno;
mod listing;
mod pages;
mod path;
mod tree;

pub use bundle::{BadBundle, Bundle, ENTRIES_MAX};
pub use descriptors::{Files, Flags, OPEN_FILES_MAX, Open, Opening, ROOT_DESCRIPTOR, Status, Stream, Whence};
pub use errno::FileError;
pub use path::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_NAMES_MAX};
pub use tree::{FILE_BYTES_MAX, FileKind, NODES_MAX, Stat};

/// The account to which an instance's changes are charged.
pub trait Space {
    /// Sets the charge to `bytes` in total. Returns false, and changes nothing, if that exceeds a limit.
    fn resize(&mut self, bytes: u64) -> bool;
}

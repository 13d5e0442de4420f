//! The file system that a guest sees: what was deployed with its stage, and what it has written itself.
//!
//! ```text
//!   Bundle   read once, shared read-only by all instances of a template
//!      ^
//!   Tree     of one instance: what it has made, changed and removed; charged as its memory is
//!      ^
//!   Files    of one instance: its open files, by their descriptors
//!      ^
//!   calls    WASI preview 1
//! ```
//!
//! Everything lies in memory: no call reaches a file of the machine's, waits, or takes a lock. What an instance has written goes with it.
//! There are no links, no owners, no rights and no times, which are all zero.
//!
//! Each operation takes a bounded time: paths have [`PATH_BYTES_MAX`] bytes and [`PATH_NAMES_MAX`] names, instances have so many
//! open files ([`OPEN_FILES_MAX`]) and things of their own making ([`NODES_MAX`]), and what is removed is not given back piece by piece
//! but used again (`pages.rs`).

mod bundle;
mod descriptors;
mod errno;
mod listing;
mod pages;
mod path;
mod tree;

pub use bundle::{BadBundle, Bundle, ENTRIES_MAX};
pub use descriptors::{Files, OPEN_FILES_MAX, Opening, ROOT_DESCRIPTOR, Status, Whence};
pub use errno::FileError;
pub use path::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_NAMES_MAX};
pub use tree::{FILE_BYTES_MAX, FileKind, NODES_MAX, Stat};

/// What an instance's changes are charged to.
pub trait Space {
    /// Charges for as many bytes in all, instead of those so far; false, and nothing has changed, if that is not to be had.
    fn resize(&mut self, bytes: u64) -> bool;
}

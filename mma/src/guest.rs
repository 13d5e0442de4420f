//! The boundary with guest memory: what a worker and the MMA may touch of it, and how.

mod checksums;
mod entries;
mod guest_rings;
pub mod mailbox;
mod memcpy;
pub mod pool;
pub(crate) mod provision;

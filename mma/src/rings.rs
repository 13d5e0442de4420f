//! Rings between exactly two threads: one whose sides publish their indices, and one for thousands of rings, whose entries carry a phase.

pub(crate) mod phased;
pub mod spsc;

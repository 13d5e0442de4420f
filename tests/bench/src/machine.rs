//! The machine on which it is measured.

pub(crate) mod core_distance;
pub(crate) mod huge_pages;
pub(crate) mod others;

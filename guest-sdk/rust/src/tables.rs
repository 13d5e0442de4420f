//! Tables with a bounded number of entries, for what a function keeps about flows.

pub mod fragments;
pub mod lru;
pub mod table;

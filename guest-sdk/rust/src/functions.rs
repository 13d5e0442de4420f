//! The forms of a function, and how a node's calls reach it.

pub(crate) mod function;
pub(crate) mod guest;
pub(crate) mod looping;

//! Where C and Rust meet: the only `unsafe` code of this crate.
//!
//! `callbacks.rs` calls C, and `calls.rs` is called by C. In between, [`current`] is what C's calls may use, and `memory.rs` makes slices
//! of what C passes.
#![allow(unsafe_code)] // calls C, and is called by it

pub(crate) mod callbacks;
mod calls;
pub(crate) mod current;
mod memory;
#[cfg(target_family = "wasm")]
mod module;

//! The function as hosts see it: frames in, frames out.

#![cfg(not(target_family = "wasm"))]

mod connections;
mod errors;
mod fragments;
mod model;
mod support;
mod tcp;
mod translation;

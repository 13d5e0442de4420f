//! What is under test, used as its users do: programs, guests, manifests, commands, nodes.

pub mod build;
pub mod cli;
pub mod manifest;
pub mod node;
pub mod tenant;
pub mod tour;
pub mod tuning;

//! Networks on one machine, with a node in each: of a switch and clients, of two hosts, of two networks.

pub mod bed;
pub mod border;
pub mod inline;
pub mod namespace;
pub mod tagged_cable;

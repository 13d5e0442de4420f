//! Networks on one machine, with a node in each: of a switch and clients, of two hosts, of two networks.

pub mod bad_cable;
pub mod bed;
pub mod border;
pub mod inline;
pub mod namespace;
pub mod tagged_cable;
pub mod too_big;
pub mod weather;

//! What one tenant or its clients do to the parts of a node that all tenants share, and what the others are left with.
//!
//! | file | shared part |
//! |---|---|
//! | `builds.rs` | builds of templates, and the lock that changes take |
//! | `calls.rs` | calls by name that are under way |
//! | `copying.rs` | the MMA |
//! | `frames.rs` | the ports and all behind them, by what machines in the network send |
//! | `fwps.rs` | the node's FWPs: active and cached instances |
//! | `guests.rs` | the cores and all else, by what functions do |
//! | `jobs.rs` | the threads that sign and that run models |
//! | `pending.rs` | frames that wait for an instance |
//! | `sources.rs` | a tenant's FWPs, between its own clients |
//! | `starts.rs` | the launcher's time |
//! | `taken_over.rs` | private keys, tickets and memory, by a function in its client's hands |
//! | `users.rs` | the control API |
//!
//! Each test is an attack, beside which another tenant, or another client of the tenant, gets its guaranteed share. In `frames.rs`,
//! `guests.rs` and `users.rs`, a hundred neighbours (`neighbours.rs`) also tell whether they see a foreign byte or wait for longer than
//! otherwise.
#![forbid(unsafe_code)]

mod builds;
mod calls;
mod clients;
mod copying;
mod frames;
mod fwps;
mod guests;
mod jobs;
mod neighbours;
mod pending;
mod puppets;
mod sources;
mod starts;
mod taken_over;
mod users;

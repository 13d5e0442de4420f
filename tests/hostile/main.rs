//! What one tenant or its clients do to the parts of a node that all tenants share, and what the others are left with.
//!
//! | file | shared part |
//! |---|---|
//! | `builds.rs` | builds of templates, and the lock that changes take |
//! | `calls.rs` | calls by name that are under way |
//! | `copying.rs` | the MMA |
//! | `fwps.rs` | the node's FWPs: active and cached instances |
//! | `pending.rs` | frames that wait for an instance |
//! | `sources.rs` | a tenant's FWPs, between its own clients |
//! | `starts.rs` | the launcher's time |
//!
//! Each test is an attack, beside which another tenant, or another client of the tenant, gets its guaranteed share.
#![forbid(unsafe_code)]

mod builds;
mod calls;
mod clients;
mod copying;
mod fwps;
mod pending;
mod sources;
mod starts;

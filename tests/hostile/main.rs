//! What one tenant or its clients do to the parts of a node that all tenants share, and what the others are left with.
//!
//! | file | shared part |
//! |---|---|
//! | `fwps.rs` | the node's FWPs: active and cached instances |
//!
//! Each test is an attack, beside which another tenant gets its guaranteed share.
#![forbid(unsafe_code)]

mod fwps;

//! Firewall, translator and router in one chain between two networks, as in `docs/src/middlebox.md`: `traceroute`, path
//! MTU discovery and fragments, packet by packet.

#![cfg(not(target_family = "wasm"))]

#[allow(dead_code)] // each test uses a part
#[path = "../frames/support.rs"]
mod support;

mod border;
mod ipv4;
mod ipv6;

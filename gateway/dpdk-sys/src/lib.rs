//! Thin FFI to the system's DPDK: declarations generated from its headers, and a C shim for functions that DPDK has
//! only as inline code.
//!
//! Everything here is unsafe to call, and unchecked. Only `pinion_gateway::port::dpdk` may use this crate; all other
//! code uses the safe types there. This crate contains no logic, and no types of its own except [`pinion_frame`].
#![allow(unsafe_code)] // Foreign functions.
#![allow(missing_docs)] // DPDK documents its own interface: https://doc.dpdk.org/api-22.11/.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub, unnecessary_transmutes)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)] // Generated.

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

//! Thin FFI to the DPDK of the system: declarations generated from its headers, and one C shim for the functions that
//! DPDK has only as inline code.
//!
//! Everything here is unsafe to call, and unchecked. Only `pinion_gateway::port::dpdk` may use this crate; all else
//! goes through the safe types there. There is no logic here and there are no types of our own but
//! [`pinion_frame`].
#![allow(unsafe_code)] // Foreign functions.
#![allow(missing_docs)] // DPDK documents its own interface: https://doc.dpdk.org/api-22.11/.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub, unnecessary_transmutes)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)] // Generated.

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

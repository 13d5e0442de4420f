//! Thin FFI to the DPDK of the system.

//! Tests of ports, shared by two processes that differ in the memory DPDK lies in.

mod errors;
mod kernel;
mod lab;
mod virtual_devices;

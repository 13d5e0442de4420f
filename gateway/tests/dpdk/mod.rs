//! Tests of ports, shared by two processes that differ in the memory DPDK lies in.

mod alarms;
mod errors;
mod kernel;
mod lab;
mod queues;
mod virtual_devices;

//! Tests of ports, shared by two processes that differ in the memory that DPDK uses.

mod alarms;
mod devices;
mod errors;
mod kernel;
mod lab;
mod queues;
mod virtual_devices;
mod whole_frames;

//! The tests of `dpdk_ports` as on a machine without huge pages.

mod dpdk;

const HUGE_PAGES: pinion_gateway::port::dpdk::HugePages = pinion_gateway::port::dpdk::HugePages::Never;

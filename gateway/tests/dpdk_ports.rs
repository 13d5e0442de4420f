//! Every kind of DPDK device that Pinion promises, with real frames, in whatever memory the machine offers.

mod dpdk;

const HUGE_PAGES: pinion_gateway::port::dpdk::HugePages = pinion_gateway::port::dpdk::HugePages::IfFree;

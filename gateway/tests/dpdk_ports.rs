//! Every kind of DPDK device that Pinion supports, with real frames, in huge pages if the machine has enough of them.

mod dpdk;

const HUGE_PAGES: pinion_gateway::port::dpdk::HugePages = pinion_gateway::port::dpdk::HugePages::IfFree;

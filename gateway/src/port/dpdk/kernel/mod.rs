//! What the kernel is asked beside DPDK: for virtual devices, it stands behind them.

pub(super) mod interface;
pub(super) mod namespace;
pub(super) mod ring_overflows;
pub(super) mod send_room;
pub(super) mod signals;
pub(super) mod vlan_tags;

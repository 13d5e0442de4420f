//! Virtual devices of a node that also has a card: DPDK then lays out the buffers for it.

use pinion_gateway::port::dpdk::{self, DpdkError, DpdkPool, Eal, EalConfig, HugePages, PortConfig};

/// No machine has this one.
const CARD: &str = "ffff:ff:1f.7";

#[test]
fn af_xdp_is_refused_where_its_driver_would_lose_frames() {
    let device = "net_af_xdp0,iface=lo".to_owned();
    let devices = vec![CARD.to_owned(), device.clone()];
    let eal = Eal::start(&EalConfig { devices, buffers: 4095, huge_pages: HugePages::Never, core: None }).unwrap();
    let pool = DpdkPool::new(&eal, 4095).unwrap();
    let error = dpdk::open(&PortConfig::new("port", &device), &pool).err().unwrap();
    assert!(matches!(error, DpdkError::PoolWithGaps { .. }), "{error}");
    assert!(error.to_string().contains("`net_af_xdp0,iface=lo` takes packet buffers without gaps"), "{error}");
}

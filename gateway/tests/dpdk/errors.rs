//! Devices that cannot be opened: the error names the device and the remedy.

use std::time::Duration;

use pinion_gateway::port::dpdk::{self, DpdkError, PortConfig};

use crate::dpdk::lab::{Lab, Veth, ip, unique};

fn refusal(lab: &Lab, config: &PortConfig) -> String {
    let error = dpdk::open(config, &lab.pool).err().expect("the port is refused");
    let sentence = error.to_string();
    assert!(matches!(error, DpdkError::Namespace { .. }) || sentence.contains(&config.device), "{sentence}");
    sentence
}

#[test]
fn an_unknown_driver_is_named() {
    let lab = Lab::enter();
    let sentence = refusal(&lab, &PortConfig::new("port", "net_nonsense0,iface=lo"));
    assert!(sentence.contains("no driver answers to the device `net_nonsense0,iface=lo`"), "{sentence}");
}

#[test]
fn a_missing_interface_is_named() {
    let lab = Lab::enter();
    for driver in ["net_af_packet0", "net_af_xdp0"] {
        let sentence = refusal(&lab, &PortConfig::new("port", &format!("{driver},iface=nowhere0")));
        assert!(sentence.contains("the interface `nowhere0`, which does not exist"), "{sentence}");
    }
}

#[test]
fn a_misspelt_argument_is_refused_and_the_device_can_be_opened_afterwards() {
    let lab = Lab::enter();
    let veth = Veth::new("a");
    veth.set_up();
    let sentence = refusal(&lab, &PortConfig::new("port", &format!("net_tap0,ifcae={}", unique("a"))));
    assert!(sentence.contains("has the argument `ifcae`"), "{sentence}");
    let sentence = refusal(&lab, &PortConfig::new("port", &format!("net_af_packet0,iface={},qapirs=1", veth.near)));
    assert!(sentence.contains("has the argument `qapirs`"), "{sentence}");
    drop(lab.open(&format!("net_af_packet0,iface={}", veth.near)));
}

#[test]
fn one_device_gets_one_port() {
    let lab = Lab::enter();
    let first = lab.open("net_ring0");
    let sentence = refusal(&lab, &PortConfig::new("port", "net_ring0"));
    assert!(sentence.contains("in use by another port"), "{sentence}");
    drop(first);
    drop(lab.open("net_ring0"));
}

#[test]
fn a_missing_file_is_refused() {
    let lab = Lab::enter();
    let sentence = refusal(&lab, &PortConfig::new("port", "net_pcap0,rx_pcap=/nowhere/in.pcap,tx_pcap=/nowhere/out"));
    assert!(sentence.contains("Couldn't open /nowhere/in.pcap"), "{sentence}");
}

#[test]
fn an_mtu_beyond_device_or_buffers_is_refused_with_the_range() {
    let lab = Lab::enter();
    let tap = format!("net_tap0,iface={}", unique("m"));
    for (device, mtu, mtu_max) in [(tap.as_str(), 9000, 1504), ("net_ring0", 9000, 2030), ("net_ring0", 60, 2030)] {
        let sentence = refusal(&lab, &PortConfig { mtu, ..PortConfig::new("port", device) });
        assert!(sentence.contains(&format!("refuses an MTU of {mtu}")), "{sentence}");
        assert!(sentence.contains(&format!("between 68 and {mtu_max}")), "{sentence}");
    }
}

#[test]
fn an_mtu_takes_the_room_into_account_that_af_xdp_keeps_for_itself() {
    let lab = Lab::enter();
    let veth = Veth::new("u");
    veth.set_up();
    let device = format!("net_af_xdp0,iface={}", veth.near);
    let sentence = refusal(&lab, &PortConfig { mtu: 1800, ..PortConfig::new("port", &device) });
    assert!(sentence.contains("between 68 and 1774"), "{sentence}");
}

#[test]
fn an_interface_that_is_down_is_named_with_the_remedy() {
    let lab = Lab::enter();
    let veth = Veth::new("d");
    let device = format!("net_af_packet0,iface={}", veth.near);
    let config = PortConfig { link_timeout: Duration::from_millis(50), ..PortConfig::new("port", &device) };
    let sentence = refusal(&lab, &config);
    assert!(sentence.contains(&format!("`ip link set {} up`", veth.near)), "{sentence}");
    ip(&format!("link set {} up", veth.near));
    let sentence = refusal(&lab, &config);
    assert!(sentence.contains("has no carrier; set its far end up"), "{sentence}");
    veth.set_up();
    drop(lab.open(&device));
}

#[test]
fn a_tap_over_an_existing_interface_is_refused() {
    let lab = Lab::enter();
    let veth = Veth::new("e");
    let sentence = refusal(&lab, &PortConfig::new("port", &format!("net_tap0,iface={}", veth.near)));
    assert!(sentence.contains(&format!("`ip link delete {}`", veth.near)), "{sentence}");
}

#[test]
fn a_pci_address_without_a_device_is_refused() {
    let lab = Lab::enter();
    let sentence = refusal(&lab, &PortConfig::new("port", "0000:ff:1f.7"));
    assert!(sentence.contains("the PCI device `0000:ff:1f.7` was not found"), "{sentence}");
}

#[test]
fn a_missing_namespace_is_named() {
    let lab = Lab::enter();
    let config =
        PortConfig { network_namespace: Some("/run/netns/nowhere".into()), ..PortConfig::new("port", "net_ring0") };
    let sentence = refusal(&lab, &config);
    assert!(sentence.contains("`/run/netns/nowhere` cannot be entered"), "{sentence}");
}

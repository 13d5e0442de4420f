//! Devices that are deleted under their port, and made again.

use std::time::{Duration, Instant};

use pinion_gateway::port::dpdk::{self, PortConfig};
use pinion_gateway::port::{LinkState, Port};

use crate::dpdk::lab::{Lab, NetworkNamespace, Veth, ip, ip_succeeds, unique};

const SOON: Duration = Duration::from_secs(20);

/// Has the port look after its device until its link is in this state.
fn tend_until(port: &mut Box<dyn Port>, state: LinkState) {
    let started = Instant::now();
    loop {
        port.tend();
        if port.facts().link == state {
            return;
        }
        assert!(started.elapsed() < SOON, "the link is {:?}", port.facts().link);
    }
}

/// Sends frames, which must all be dropped for the reason that the link is down.
fn nothing_leaves(lab: &mut Lab, port: &mut Box<dyn Port>) {
    let before = (lab.pool.available(), port.counters().sent.dropped_link_down.value());
    let mut frames = lab.frames(&vec![vec![0xff; 60]; 100]);
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), 0);
    assert_eq!(port.counters().sent.dropped_link_down.value() - before.1, 100);
    assert_eq!(lab.pool.available(), before.0);
}

fn pings_pass(lab: &mut Lab, port: &mut Box<dyn Port>, namespace: &NetworkNamespace) {
    let pinger = namespace.ping(20, 56);
    assert!(lab.answer_pings(port, pinger), "{:?}", port.counters());
}

fn an_af_packet_port_outlives_its_interface(queues: u16) {
    let mut lab = Lab::enter();
    let veth = Veth::new("v");
    veth.set_up();
    let config = PortConfig { queues, ..PortConfig::new("port", &format!("net_af_packet0,iface={}", veth.near)) };
    let mut port = dpdk::open(&config, &lab.pool).unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..3 {
        let mac = port.facts().mac;
        veth.namespace.address(&veth.far);
        pings_pass(&mut lab, &mut port, &veth.namespace);
        let missed = port.facts().missed;
        ip(&format!("link del {}", veth.near));
        // Also before it has been looked after.
        nothing_leaves(&mut lab, &mut port);
        tend_until(&mut port, LinkState::Gone);
        nothing_leaves(&mut lab, &mut port);
        assert!(lab.receive_all(&mut port).is_empty());
        veth.make();
        veth.set_up();
        tend_until(&mut port, LinkState::Up);
        assert_ne!(port.facts().mac, mac, "the new interface has an address of its own");
        assert_eq!((port.facts().mtu, port.facts().missed), (1500, missed));
    }
    veth.namespace.address(&veth.far);
    pings_pass(&mut lab, &mut port, &veth.namespace);
    assert_eq!(port.counters().sent.dropped_full.value(), 0);
}

#[test]
fn an_af_packet_port_works_again_with_the_interface_that_is_made_in_place_of_a_deleted_one() {
    an_af_packet_port_outlives_its_interface(1);
}

#[test]
fn an_af_packet_port_with_several_queues_works_again_with_a_new_interface() {
    an_af_packet_port_outlives_its_interface(2);
}

#[test]
fn an_af_packet_port_outlives_the_namespace_of_its_far_end() {
    let mut lab = Lab::enter();
    let mut veth = Veth::new("s");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    veth.namespace.delete();
    tend_until(&mut port, LinkState::Gone);
    nothing_leaves(&mut lab, &mut port);
    veth.namespace = NetworkNamespace::new("s");
    veth.make();
    veth.set_up();
    tend_until(&mut port, LinkState::Up);
    veth.namespace.address(&veth.far);
    pings_pass(&mut lab, &mut port, &veth.namespace);
}

#[test]
fn an_interface_that_is_only_down_keeps_its_port_which_sends_again_at_once() {
    let mut lab = Lab::enter();
    let veth = Veth::new("w");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    ip(&format!("link set {} down", veth.near));
    nothing_leaves(&mut lab, &mut port);
    tend_until(&mut port, LinkState::Down);
    nothing_leaves(&mut lab, &mut port);
    veth.set_up();
    veth.namespace.address(&veth.far);
    let before = veth.namespace.received_by(&veth.far);
    // What comes in shows that the link is up, before the port is looked after.
    pings_pass(&mut lab, &mut port, &veth.namespace);
    // The echoes, and an answer to who asked for the address, or was slow to hear it.
    let received = veth.namespace.received_by(&veth.far) - before;
    assert!((21..=23).contains(&received), "{received} frames: some were sent late");
}

#[test]
fn a_tap_that_was_deleted_is_made_again_with_its_address() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("g"), unique("g"));
    for queues in [1, 2] {
        let config = PortConfig {
            queues,
            network_namespace: Some(namespace.path()),
            mtu: 1400,
            ..PortConfig::new("port", &format!("net_tap0,iface={interface}"))
        };
        let mut port = dpdk::open(&config, &lab.pool).unwrap_or_else(|error| panic!("{error}"));
        let mac = port.facts().mac;
        namespace.address(&interface);
        pings_pass(&mut lab, &mut port, &namespace);
        ip(&format!("-n {} link del {interface}", namespace.name));
        nothing_leaves(&mut lab, &mut port);
        port.tend();
        assert_eq!(port.facts().link, LinkState::Gone);
        assert!(port.descriptors().is_empty(), "it ends no sleep");
        nothing_leaves(&mut lab, &mut port);
        tend_until(&mut port, LinkState::Up);
        assert_eq!((port.facts().mac, port.facts().mtu), (mac, 1400));
        namespace.address(&interface);
        pings_pass(&mut lab, &mut port, &namespace);
        drop(port);
        assert!(!ip_succeeds(&format!("-n {} link show {interface}", namespace.name)));
    }
}

#[test]
fn a_tap_that_an_operator_has_made_again_is_taken_as_it_is() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("k"), unique("k"));
    let config = PortConfig {
        network_namespace: Some(namespace.path()),
        ..PortConfig::new("port", &format!("net_tap0,iface={interface}"))
    };
    let mut port = dpdk::open(&config, &lab.pool).unwrap_or_else(|error| panic!("{error}"));
    for kind in ["", "multi_queue"] {
        ip(&format!("-n {} link del {interface}", namespace.name));
        port.tend();
        assert_eq!(port.facts().link, LinkState::Gone);
        ip(&format!("-n {} tuntap add dev {interface} mode tap {kind}", namespace.name));
        ip(&format!("-n {} link set {interface} address 02:00:00:00:00:20 up", namespace.name));
        tend_until(&mut port, LinkState::Up);
        assert_eq!(port.facts().mac, [2, 0, 0, 0, 0, 0x21]);
        namespace.address(&interface);
        pings_pass(&mut lab, &mut port, &namespace);
    }
}

#[test]
fn an_af_xdp_port_whose_interface_was_deleted_continues_on_packet_sockets() {
    let mut lab = Lab::enter();
    let veth = Veth::new("b");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_xdp0,iface={}", veth.near));
    veth.namespace.address(&veth.far);
    pings_pass(&mut lab, &mut port, &veth.namespace);
    for _ in 0..2 {
        let before = (port.facts().mac, port.counters().received.frames.value());
        ip(&format!("link del {}", veth.near));
        tend_until(&mut port, LinkState::Gone);
        assert_eq!(port.facts().mac, before.0, "until there is another interface");
        nothing_leaves(&mut lab, &mut port);
        assert!(lab.receive_all(&mut port).is_empty());
        veth.make();
        veth.set_up();
        tend_until(&mut port, LinkState::Up);
        assert_ne!(port.facts().mac, before.0, "the new interface has an address of its own");
        veth.namespace.address(&veth.far);
        pings_pass(&mut lab, &mut port, &veth.namespace);
        assert!(port.counters().received.frames.value() >= before.1 + 20, "the counts go on");
    }
}

//! Ports with several queues: the device spreads flows over them, and the port polls all queues.

use std::collections::BTreeMap;

use pinion_gateway::port::Port;
use pinion_gateway::port::dpdk::{self, PortConfig};

use crate::dpdk::lab::{Lab, NetworkNamespace, Veth, unique};

const FLOWS: u16 = 64;
const FRAMES_PER_FLOW: u8 = 10;
/// The UDP port of the first flow, and the offsets of the port and of the payload in a frame.
const FIRST_FLOW: u16 = 9000;
const UDP_PORT_AT: usize = 36;
const PAYLOAD_AT: usize = 42;

fn open(lab: &Lab, device: &str, queues: u16) -> Box<dyn Port> {
    let config = PortConfig { queues, ..PortConfig::new("port", device) };
    dpdk::open(&config, &lab.pool).unwrap_or_else(|error| panic!("{error}"))
}

/// Sends numbered frames of many flows and checks that all arrive, in order within each flow.
fn all_flows_arrive_in_order(lab: &mut Lab, port: &mut Box<dyn Port>, namespace: &NetworkNamespace) {
    namespace.send_datagrams(FIRST_FLOW..FIRST_FLOW + FLOWS, FRAMES_PER_FLOW);
    let mut flows = BTreeMap::<u16, Vec<u8>>::new();
    for frame in lab.receive(port, usize::from(FLOWS) * usize::from(FRAMES_PER_FLOW)) {
        let to_port = u16::from_be_bytes([frame[UDP_PORT_AT], frame[UDP_PORT_AT + 1]]);
        flows.entry(to_port).or_default().push(frame[PAYLOAD_AT]);
    }
    let in_order: Vec<u8> = (b'a'..).take(FRAMES_PER_FLOW.into()).collect();
    assert_eq!(flows.len(), usize::from(FLOWS));
    assert!(flows.values().all(|frames| *frames == in_order), "{flows:?}");
    let pinger = namespace.ping(50, 1000);
    assert!(lab.answer_pings(port, pinger));
}

#[test]
fn af_packet_has_the_kernel_spread_flows_over_two_queues() {
    let mut lab = Lab::enter();
    let veth = Veth::new("q");
    veth.set_up();
    let mut port = open(&lab, &format!("net_af_packet0,iface={}", veth.near), 2);
    assert!(port.descriptors().len() >= 2);
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    all_flows_arrive_in_order(&mut lab, &mut port, &veth.namespace);
}

#[test]
fn a_tap_has_two_queues_if_wanted() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("q"), unique("q"));
    let config = PortConfig {
        queues: 2,
        network_namespace: Some(namespace.path()),
        ..PortConfig::new("port", &format!("net_tap0,iface={interface}"))
    };
    let mut port = dpdk::open(&config, &lab.pool).unwrap();
    lab.introduce(&mut port, &namespace, &interface);
    all_flows_arrive_in_order(&mut lab, &mut port, &namespace);
}

#[test]
fn more_queues_than_a_device_has_are_refused_with_the_number_it_has() {
    let lab = Lab::enter();
    let veth = Veth::new("q");
    veth.set_up();
    let tap = format!("net_tap0,iface={}", unique("q"));
    let packet = format!("net_af_packet0,iface={},qpairs=4", veth.near);
    let xdp = format!("net_af_xdp0,iface={}", veth.near);
    let cases = [
        (tap.as_str(), 17, "cannot have 17 queues: it has at most 16"),
        ("net_ring0", 17, "cannot have 17 queues: it has at most 16"),
        (&packet, 2, "has qpairs=4, but its port has queues = 2"),
        (&xdp, 2, "Specified queue count 2 is larger than combined queue count 1"),
    ];
    for (device, queues, expected) in cases {
        let config = PortConfig { queues, ..PortConfig::new("port", device) };
        let sentence = dpdk::open(&config, &lab.pool).err().expect("the port is refused").to_string();
        assert!(sentence.contains(device) && sentence.contains(expected), "{sentence}");
    }
}

//! Frames as they were sent: with the tags that a kernel took out, and the checksums that it left to hardware.

use pinion_gateway::port::Port;
use pinion_gateway::port::dpdk::{self, PortConfig};
use smoltcp::wire::{EthernetFrame, IpProtocol, Ipv4Packet, UdpPacket};

use crate::dpdk::lab::{Lab, NetworkNamespace, Veth, unique};

/// A broadcast frame with these tags, of a type that no kernel answers.
fn tagged(tags: &[u8]) -> Vec<u8> {
    [[0xff; 6].as_slice(), &[2, 0, 0, 0, 0, 9], tags, &[0x88, 0xb6], &[7; 60]].concat()
}

const TAGS: [&[u8]; 4] =
    [&[], &[0x81, 0x00, 0x60, 0x05], &[0x88, 0xa8, 0x00, 0x07], &[0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x00, 0x05]];

fn tags_arrive_both_ways(lab: &mut Lab, port: &mut Box<dyn Port>, far: &NetworkNamespace, interface: &str) {
    let frames: Vec<_> = TAGS.map(tagged).into();
    lab.send_from(far, interface, &frames);
    let received = lab.receive(port, frames.len());
    assert_eq!(received, frames);
    let mut sent = lab.frames(&frames);
    let heard = far.capture(interface, frames.len(), || assert_eq!(port.transmit(&mut sent, &mut lab.pool), 4));
    assert_eq!(heard, frames);
}

#[test]
fn on_af_packet_tags_arrive_as_they_were_sent_both_ways() {
    let mut lab = Lab::enter();
    let veth = Veth::new("t");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    tags_arrive_both_ways(&mut lab, &mut port, &veth.namespace, &veth.far);
}

#[test]
fn on_af_xdp_tags_arrive_as_they_were_sent_both_ways() {
    let mut lab = Lab::enter();
    let veth = Veth::new("y");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_xdp0,iface={}", veth.near));
    tags_arrive_both_ways(&mut lab, &mut port, &veth.namespace, &veth.far);
}

#[test]
fn on_a_tap_tags_arrive_as_they_were_sent_both_ways() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("z"), unique("z"));
    let mut port = tap(&lab, &namespace, &interface);
    namespace.address(&interface);
    lab.receive_all(&mut port);
    tags_arrive_both_ways(&mut lab, &mut port, &namespace, &interface);
}

fn tap(lab: &Lab, namespace: &NetworkNamespace, interface: &str) -> Box<dyn Port> {
    let config = PortConfig {
        network_namespace: Some(namespace.path()),
        ..PortConfig::new("port", &format!("net_tap0,iface={interface}"))
    };
    dpdk::open(&config, &lab.pool).unwrap_or_else(|error| panic!("{error}"))
}

/// A kernel that forwards a frame takes its tag out, and lets it travel beside the frame, unless `far_end` keeps it there.
fn the_tag_of_a_forwarded_frame_arrives(driver: &str, far_end: &[&str]) {
    let mut lab = Lab::enter();
    let veth = Veth::new("l");
    veth.set_up();
    if !far_end.is_empty() {
        veth.namespace.exec(&format!("ethtool -K {} {}", veth.far, far_end.join(" ")));
    }
    assert!(takes_tags_out(&veth.near));
    let mut port = lab.open(&format!("{driver},iface={}", veth.near));
    assert_eq!(takes_tags_out(&veth.near), driver == "net_af_packet0", "only where it would lose tags");
    let entry = veth.namespace.bridge(&veth.far);
    let frames: Vec<_> = TAGS.map(tagged).into();
    lab.send_from(&veth.namespace, &entry, &frames);
    assert_eq!(lab.receive(&mut port, frames.len()), frames);
}

#[test]
fn on_af_packet_the_tag_of_a_forwarded_frame_is_put_back() {
    the_tag_of_a_forwarded_frame_arrives("net_af_packet0", &[]);
}

#[test]
fn on_af_xdp_the_tag_of_a_forwarded_frame_stays_in_it_if_the_far_end_is_told_so() {
    the_tag_of_a_forwarded_frame_arrives("net_af_xdp0", &["txvlan off", "tx-vlan-stag-hw-insert off"]);
}

/// Returns whether an interface takes tags out of the frames that it receives.
fn takes_tags_out(interface: &str) -> bool {
    let shown = std::process::Command::new("ethtool").args(["-k", interface]).output().expect("it is installed");
    String::from_utf8(shown.stdout).expect("it writes text").contains("rx-vlan-offload: on")
}

/// Returns whether the UDP checksum of a frame is there and right.
fn has_right_checksum(frame: &[u8]) -> bool {
    let packet = Ipv4Packet::new_checked(EthernetFrame::new_checked(frame).unwrap().payload()).unwrap();
    assert_eq!(packet.next_header(), IpProtocol::Udp);
    let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
    datagram.checksum() != 0 && datagram.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into())
}

#[test]
fn checksums_that_a_kernel_left_to_hardware_are_completed_and_wrong_ones_stay_wrong() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("c"), unique("c"));
    let veths = [Veth::new("c"), Veth::new("d")];
    veths.iter().for_each(Veth::set_up);
    let [packet, xdp] = &veths;
    let ports = [
        (lab.open(&format!("net_af_packet0,iface={}", packet.near)), &packet.namespace, &packet.far, 64),
        (lab.open(&format!("net_af_xdp0,iface={}", xdp.near)), &xdp.namespace, &xdp.far, 64),
        // The kernel completes what it sends by a tap.
        (tap(&lab, &namespace, &interface), &namespace, &interface, 0),
    ];
    for (mut port, namespace, interface, completed) in ports {
        lab.introduce(&mut port, namespace, interface);
        namespace.send_datagrams(9000..9064, 1);
        for frame in lab.receive(&mut port, 64) {
            assert!(has_right_checksum(&frame), "{} {frame:02x?}", port.device());
        }
        assert_eq!(port.counters().received.completed_checksums.value(), completed, "{}", port.device());
        namespace.send_wrong_datagram();
        assert!(!has_right_checksum(&lab.receive(&mut port, 1)[0]));
    }
}

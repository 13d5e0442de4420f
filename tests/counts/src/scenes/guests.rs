//! The guest code of each sample, for a fixed set of packets: of what a turn costs, the instructions that are the guest's. Samples whose work
//! depends on how much time has passed (`delay`, `policer`) are left out, as time passes differently in each simulation.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::Path;

use pinion_mma::wiring::Edge;

use super::data_path::Rig;
use super::frames::{Bytes, datagram, echo_request, syn};
use super::{GUEST, Scene};

/// The packets of a turn, of one client.
fn packets() -> [Bytes; 3] {
    let client = Ipv4Addr::new(10, 100, 0, 1);
    [datagram(client, 4000, 53), echo_request(client), syn(client, 4000)]
}

macro_rules! scenes {
    ($($name:literal $function:literal),* $(,)?) => {
        &[$(Scene {
            name: $name,
            part: GUEST,
            what: "a packet, of a turn with a datagram, an echo request and a SYN",
            repetitions: 200,
            steps: 3,
            run: |templates, scene| turn(templates, scene, $function),
        }),*]
    };
}

pub(super) const SCENES: &[Scene] = scenes![
    "guest_balancer" "balancer",
    "guest_firewall" "firewall",
    "guest_http_server" "http_server",
    "guest_icmp_echo" "icmp_echo",
    "guest_lpm_router" "lpm_router",
    "guest_macswap" "macswap",
    "guest_monitor" "monitor",
    "guest_nat" "nat",
    "guest_packet_filter" "packet_filter",
    "guest_tcp_echo" "tcp_echo",
    "guest_udp_echo" "udp_echo",
];

fn turn(templates: &Path, scene: &Scene, function: &str) {
    let rig = RefCell::new(Rig::new(templates, function, 1, |_| Edge::EgressWhereItCame));
    scene.repeat(
        |_| {
            let mut rig = rig.borrow_mut();
            rig.inject(packets());
            rig.run_mma();
        },
        |()| rig.borrow_mut().run_worker(),
        |()| _ = rig.borrow_mut().finish(),
    );
    std::mem::forget(rig);
}

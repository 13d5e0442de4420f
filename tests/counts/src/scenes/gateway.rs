//! Net-In alone: a frame of a known flow, and a new client's first frame.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::Path;

use pinion_gateway::rules::Policy;
use pinion_mma::id::FwpId;
use pinion_mma::link::MmaLink;

use super::Scene;
use super::frames::datagram;
use super::net_in::{BURST, NetIn};

const FLOWS: u64 = 64;
const CLIENTS: u64 = 2_000;
const POLL_NS: u64 = 10_000;

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "flow_hit",
        part: "gateway",
        what: "a frame of one of 64 known flows, in bursts of 32",
        repetitions: 500,
        steps: BURST,
        run: known_flows,
    },
    Scene {
        name: "flow_miss",
        part: "gateway",
        what: "a new client's first frame, which gets an instance",
        repetitions: 1_000,
        steps: 1,
        run: new_clients,
    },
];

/// A gateway and its neighbours.
struct Rig {
    net_in: NetIn,
    mma: MmaLink,
}

impl Rig {
    fn new(policy: Policy, instances_max: usize) -> Self {
        let (net_in, mma) = NetIn::new(policy, instances_max);
        Self { net_in, mma }
    }

    fn ready(&mut self, instance: u64) {
        self.net_in.ready(instance, FwpId { index: instance as u32, generation: 1 });
        self.clear();
    }

    fn poll(&mut self) {
        self.net_in.poll();
    }

    /// Takes what the gateway has handed over, as the MMA and the launcher would; how many frames.
    fn clear(&mut self) -> usize {
        self.net_in.now_ns += POLL_NS;
        self.net_in.events.try_iter().for_each(drop);
        let mut count = 0;
        while let Some(inbound) = self.mma.inbound.pop() {
            assert!(self.mma.spent.push(inbound.frame.into_buffer()).is_ok(), "the link has room");
            count += 1;
        }
        self.mma.spent.publish();
        count
    }
}

fn known_flows(_: &Path, scene: &Scene) {
    let rig = RefCell::new(Rig::new(Policy::Shared, 4));
    rig.borrow_mut().ready(1);
    scene.repeat(
        |number| {
            let client = |frame: u64| Ipv4Addr::new(10, 77, 1, ((number * BURST + frame) % FLOWS) as u8);
            rig.borrow().net_in.arrive((0..BURST).map(|frame| datagram(client(frame), 4000, 7)));
        },
        |()| rig.borrow_mut().poll(),
        |()| assert_eq!(rig.borrow_mut().clear(), BURST as usize, "all are handed over"),
    );
}

fn new_clients(_: &Path, scene: &Scene) {
    let rig = RefCell::new(Rig::new(Policy::PerClient, CLIENTS as usize));
    scene.repeat(
        |number| {
            let mut rig = rig.borrow_mut();
            rig.ready(number);
            let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 1, 0)) + number as u32);
            rig.net_in.arrive([datagram(client, 4000, 7)]);
        },
        |()| rig.borrow_mut().poll(),
        |()| assert_eq!(rig.borrow_mut().clear(), 1, "it is handed over"),
    );
}

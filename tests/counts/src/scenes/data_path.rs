//! From the gateway's link through MMA, worker and guest, and back.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use pinion_gateway::port::BufferPool;
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::rules::{BranchConditions, Match};
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::FwpId;
use pinion_mma::link::{GatewayLink, Inbound, link};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::wiring::branch::{Branch, Conditions};
use pinion_mma::wiring::{Edge, Wiring};

use super::Scene;
use super::frames::{Bytes, FRAME_BYTES, datagram};
use super::movers::Movers;
use crate::node::House;

/// FWPs that are met one after another, so that none finds in the first-level cache what it left there.
const FWPS: u32 = 64;
const BUFFERS: usize = 512;
/// Empty buffers that the gateway has lent.
const EMPTIES: usize = 16;
const BUFFER_BYTES: u16 = 2176;

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "deliver", part: "mma", what: "a packet into a slot", repetitions: 2_000, steps: 1, run: deliver },
    Scene {
        name: "turn_1",
        part: "worker",
        what: "a turn with 1 packet",
        repetitions: 2_000,
        steps: 1,
        run: |folder, scene| turn(folder, scene, 1),
    },
    Scene {
        name: "turn_64",
        part: "worker",
        what: "a turn with 64 packets",
        repetitions: 500,
        steps: 1,
        run: |folder, scene| turn(folder, scene, 64),
    },
    Scene { name: "egress", part: "mma", what: "a packet out of a slot", repetitions: 2_000, steps: 1, run: egress },
    Scene {
        name: "forward",
        part: "mma",
        what: "a packet to the next stage",
        repetitions: 2_000,
        steps: 1,
        run: forward,
    },
    Scene {
        name: "branch",
        part: "mma",
        what: "a packet to the next stage by its headers",
        repetitions: 2_000,
        steps: 1,
        run: branch,
    },
];

/// A datagram that the packet filter lets pass.
fn passing() -> Bytes {
    datagram(Ipv4Addr::new(10, 100, 0, 1), 4000, 53)
}

/// MMA and worker with FWPs. Every second one is the stage after the one before it, if they are chained.
pub(super) struct Rig {
    movers: Movers,
    gateway: GatewayLink,
    buffers: Vec<Buffer>,
    fwps: u32,
    next: u32,
    step: u32,
}

impl Rig {
    fn chained(templates: &Path, is_chained: bool) -> Self {
        let edge = |index: u32| {
            let next = FwpId { index: index + 1, generation: 0 };
            if is_chained && index.is_multiple_of(2) { Edge::Fwp(next) } else { Edge::EgressWhereItCame }
        };
        let rig = Self::new(templates, "packet_filter", FWPS, edge);
        rig.warm(1 + u32::from(is_chained))
    }

    /// Makes it with pairs of FWPs, of which the first leads to the second by the third match of a branch.
    fn branching(templates: &Path) -> Self {
        let to_port = |protocol, port| Match {
            protocol: Some(protocol),
            destination_ports: Some(port..=port),
            ..Match::default()
        };
        let conditions: Arc<dyn Conditions> =
            Arc::new(BranchConditions::new(&[to_port(6, 80), to_port(17, 123), to_port(17, 53)]));
        let out = Edge::EgressWhereItCame;
        let wiring = |index: u32| {
            let next = Edge::Fwp(FwpId { index: index + 1, generation: 0 });
            let branch = Branch::new(Arc::clone(&conditions), vec![out, out, next], out);
            if index.is_multiple_of(2) {
                Wiring::to(Edge::Branch(0)).with_branches(vec![branch])
            } else {
                Wiring::to(out)
            }
        };
        Self::wired(templates, "packet_filter", FWPS, wiring).warm(2)
    }

    /// Gives each FWP a packet once. From then on every `step`th one gets them from the gateway.
    fn warm(mut self, step: u32) -> Self {
        self.step = step;
        for _ in 0..FWPS / step {
            self.inject([passing()]);
            self.finish();
        }
        self
    }

    /// Makes it with so many FWPs of a function, each with this way out.
    pub(super) fn new(templates: &Path, function: &str, fwps: u32, edge: impl Fn(u32) -> Edge) -> Self {
        Self::wired(templates, function, fwps, |index| Wiring::to(edge(index)))
    }

    fn wired(templates: &Path, function: &str, fwps: u32, wiring: impl Fn(u32) -> Wiring) -> Self {
        let mut house = House::new(templates, function, fwps);
        let prepared: Vec<_> = (0..fwps).map(|index| house.prepare(index, wiring(index))).collect();
        let (mut gateway, mma_link) = link(BUFFERS, Doorbell::default(), Doorbell::default());
        let movers = Movers::new(&mut house, fwps, mma_link);
        prepared.into_iter().for_each(|prepared| movers.add(prepared));
        let mut buffers = Vec::new();
        HeapPool::new(BUFFERS, BUFFER_BYTES).take(&mut buffers, BUFFERS / 2);
        // So that the only tenant may send as many frames as a turn has.
        for buffer in buffers.drain(..EMPTIES) {
            assert!(gateway.empty.push(buffer).is_ok(), "the link has room");
        }
        Self { movers, gateway, buffers, fwps, next: 0, step: 1 }
    }

    /// Puts frames for the next FWP into the gateway's link.
    pub(super) fn inject(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        let target = FwpId { index: self.next, generation: 0 };
        self.next = (self.next + self.step) % self.fwps;
        for bytes in frames {
            let mut buffer = self.buffers.pop().expect("more buffers than frames under way");
            buffer.bytes_mut(FRAME_BYTES as u32).copy_from_slice(&bytes);
            let inbound = Inbound { frame: Frame::new(buffer, FRAME_BYTES as u32), target };
            assert!(self.gateway.inbound.stage(inbound).is_ok(), "the link has room");
        }
        self.gateway.inbound.publish();
    }

    pub(super) fn run_mma(&mut self) {
        self.movers.mma.poll();
    }

    pub(super) fn run_worker(&mut self) {
        while self.movers.worker.poll() > 0 {}
    }

    /// Lets all go on until nothing is under way, and takes the frames back. How many came out.
    pub(super) fn finish(&mut self) -> usize {
        self.movers.settle();
        let buffers = &mut self.buffers;
        self.gateway.spent.pop_batch(usize::MAX, |buffer| buffers.push(buffer));
        self.gateway.outbound.pop_batch(usize::MAX, |out| buffers.push(out.frame.into_buffer()))
    }
}

/// Counts one step; the steps before it and after it are not counted. As many frames come out as went in.
fn step(scene: &Scene, rig: Rig, frames: usize, before: fn(&mut Rig), work: fn(&mut Rig)) {
    let rig = RefCell::new(rig);
    scene.repeat(
        |_| {
            let mut rig = rig.borrow_mut();
            rig.inject((0..frames).map(|_| passing()));
            before(&mut rig);
        },
        |()| work(&mut rig.borrow_mut()),
        |()| assert_eq!(rig.borrow_mut().finish(), frames, "every frame comes out again"),
    );
    // The memory of FWPs is never unmapped while something may copy into it: that is the launcher's business.
    std::mem::forget(rig);
}

fn deliver(templates: &Path, scene: &Scene) {
    step(scene, Rig::chained(templates, false), 1, |_| (), Rig::run_mma);
}

fn turn(templates: &Path, scene: &Scene, frames: usize) {
    let turn = |rig: &mut Rig| _ = rig.movers.worker.poll();
    step(scene, Rig::chained(templates, false), frames, Rig::run_mma, turn);
}

fn until_the_turn_is_over(rig: &mut Rig) {
    rig.run_mma();
    rig.run_worker();
}

fn egress(templates: &Path, scene: &Scene) {
    step(scene, Rig::chained(templates, false), 1, until_the_turn_is_over, Rig::run_mma);
}

fn branch(templates: &Path, scene: &Scene) {
    step(scene, Rig::branching(templates), 1, until_the_turn_is_over, Rig::run_mma);
}

fn forward(templates: &Path, scene: &Scene) {
    step(scene, Rig::chained(templates, true), 1, until_the_turn_is_over, Rig::run_mma);
}

//! From the gateway's link through MMA, worker and guest, and back.

use std::cell::RefCell;
use std::path::Path;

use pinion_gateway::port::BufferPool;
use pinion_gateway::port::heap::HeapPool;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::doorbell::Doorbell;
use pinion_mma::id::FwpId;
use pinion_mma::link::{GatewayLink, Inbound, link};
use pinion_mma::mover::{Mma, MmaCommand};
use pinion_mma::notify::ReadyQueue;
use pinion_mma::wiring::{Edge, Wiring};
use pinion_runtime::worker::{Worker, WorkerCommand};

use super::Scene;
use crate::node::House;

/// FWPs that are met one after another, so that none finds in the first-level cache what it left there.
const FWPS: u32 = 64;
const BUFFERS: usize = 512;
const BUFFER_BYTES: u16 = 2176;

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "MMA: a packet into a slot", repetitions: 2_000, run: into_a_slot },
    Scene { name: "worker: a turn of 1 packet", repetitions: 2_000, run: |folder, scene| turn(folder, scene, 1) },
    Scene { name: "worker: a turn of 64 packets", repetitions: 500, run: |folder, scene| turn(folder, scene, 64) },
    Scene { name: "MMA: a packet out of a slot", repetitions: 2_000, run: out_of_a_slot },
    Scene { name: "MMA: a packet to the next stage", repetitions: 2_000, run: to_the_next_stage },
];

/// A frame that the packet filter lets pass.
fn frame() -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..14].copy_from_slice(&[0x08, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 100, 0, 1, 10, 200, 0, 1]);
    frame[34..40].copy_from_slice(&[0x0f, 0xa0, 0x12, 0xb5, 0, 30]);
    frame
}

/// MMA and worker with FWPs. Every second one is the stage after the one before it, if they are chained.
struct Rig {
    mma: Mma,
    worker: Worker,
    gateway: GatewayLink,
    buffers: Vec<Buffer>,
    next: u32,
    step: u32,
    _senders: (crossbeam_channel::Sender<MmaCommand>, crossbeam_channel::Sender<WorkerCommand>),
}

impl Rig {
    fn new(templates: &Path, is_chained: bool) -> Self {
        let mut house = House::new(templates, "packet_filter", FWPS);
        let prepared: Vec<_> = (0..FWPS)
            .map(|index| {
                let next = FwpId { index: index + 1, generation: 0 };
                let edge = if is_chained && index % 2 == 0 { Edge::Fwp(next) } else { Edge::EgressWhereItCame };
                house.prepare(index, Wiring::to(edge))
            })
            .collect();
        let [mut inputs, mut outputs] = [(); 2].map(|()| ReadyQueue::new(FWPS as usize, Doorbell::default()));
        let (to_worker, to_mma) = (inputs.notifier_of_oneself(), outputs.notifier_of_oneself());
        let (gateway, mma_link) = link(BUFFERS, Doorbell::default(), Doorbell::default());
        let (attach, mma_commands) = crossbeam_channel::unbounded();
        let (adopt, worker_commands) = crossbeam_channel::unbounded();
        let (mma_events, _) = crossbeam_channel::unbounded();
        let (worker_events, _) = crossbeam_channel::unbounded();
        let mma = Mma::new(FWPS as usize, outputs, vec![to_worker], mma_link, mma_commands, mma_events);
        let slot = house.worker_slot();
        let worker = Worker::new(FWPS as usize, inputs, vec![to_mma], worker_commands, worker_events, slot);
        for (fwp, endpoint) in prepared {
            adopt.send(WorkerCommand::Adopt(Box::new(fwp))).expect("the worker is there");
            attach.send(MmaCommand::Attach(endpoint)).expect("the MMA is there");
        }
        let mut buffers = Vec::new();
        HeapPool::new(BUFFERS, BUFFER_BYTES).take(&mut buffers, BUFFERS / 2);
        let step = if is_chained { 2 } else { 1 };
        let mut rig = Self { mma, worker, gateway, buffers, next: 0, step, _senders: (attach, adopt) };
        // Each has had a packet once.
        for _ in 0..FWPS / step {
            rig.inject(1);
            rig.finish();
        }
        rig
    }

    /// Puts frames for the next FWP into the gateway's link.
    fn inject(&mut self, count: usize) {
        let target = FwpId { index: self.next, generation: 0 };
        self.next = (self.next + self.step) % FWPS;
        for _ in 0..count {
            let mut buffer = self.buffers.pop().expect("more buffers than frames under way");
            buffer.bytes_mut(64).copy_from_slice(&frame());
            let inbound = Inbound { frame: Frame::new(buffer, 64), target };
            assert!(self.gateway.inbound.stage(inbound).is_ok(), "the link has room");
        }
        self.gateway.inbound.publish();
    }

    fn run_worker(&mut self) {
        while self.worker.poll() > 0 {}
    }

    /// Lets all go on until nothing is under way, and takes the frames back.
    fn finish(&mut self) -> usize {
        for _ in 0..4 {
            self.mma.poll();
            self.run_worker();
        }
        let buffers = &mut self.buffers;
        self.gateway.spent.pop_batch(usize::MAX, |buffer| buffers.push(buffer));
        self.gateway.outbound.pop_batch(usize::MAX, |out| buffers.push(out.into_buffer()))
    }
}

/// Counts one step; the steps before it and after it are not counted. As many frames come out as went in.
fn step(scene: &Scene, rig: Rig, frames: usize, before: fn(&mut Rig), work: fn(&mut Rig)) {
    let rig = RefCell::new(rig);
    scene.repeat(
        |_| {
            let mut rig = rig.borrow_mut();
            rig.inject(frames);
            before(&mut rig);
        },
        |()| work(&mut rig.borrow_mut()),
        |()| assert_eq!(rig.borrow_mut().finish(), frames, "every frame comes out again"),
    );
    // The memory of FWPs is never unmapped while something may copy into it: that is the launcher's business.
    std::mem::forget(rig);
}

fn into_a_slot(templates: &Path, scene: &Scene) {
    step(scene, Rig::new(templates, false), 1, |_| (), |rig| _ = rig.mma.poll());
}

fn turn(templates: &Path, scene: &Scene, frames: usize) {
    step(scene, Rig::new(templates, false), frames, |rig| _ = rig.mma.poll(), |rig| _ = rig.worker.poll());
}

fn out_of_a_slot(templates: &Path, scene: &Scene) {
    let before = |rig: &mut Rig| {
        rig.mma.poll();
        rig.run_worker();
    };
    step(scene, Rig::new(templates, false), 1, before, |rig| _ = rig.mma.poll());
}

fn to_the_next_stage(templates: &Path, scene: &Scene) {
    let before = |rig: &mut Rig| {
        rig.mma.poll();
        rig.run_worker();
    };
    step(scene, Rig::new(templates, true), 1, before, |rig| _ = rig.mma.poll());
}

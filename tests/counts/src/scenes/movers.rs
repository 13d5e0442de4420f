//! An MMA and a worker, with the FWPs that they are given.

use crossbeam_channel::{Sender, unbounded};
use pinion_mma::link::MmaLink;
use pinion_mma::mover::{Mma, MmaCommand};
use pinion_mma::notify::ReadyQueue;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_runtime::clock::stopwatch;
use pinion_runtime::worker::{Worker, WorkerCommand};

use crate::node::{House, Prepared};

pub(super) struct Movers {
    pub(super) mma: Mma,
    pub(super) worker: Worker,
    attach: Sender<MmaCommand>,
    adopt: Sender<WorkerCommand>,
}

impl Movers {
    pub(super) fn new(house: &mut House, fwps_max: u32, link: MmaLink) -> Self {
        let fwps_max = fwps_max as usize;
        let [mut inputs, mut outputs] = [(); 2].map(|()| ReadyQueue::new(fwps_max, Doorbell::default()));
        let (to_worker, to_mma) = (inputs.notifier_of_oneself(), outputs.notifier_of_oneself());
        let (attach, mma_commands) = unbounded();
        let (adopt, worker_commands) = unbounded();
        let (mma_events, _) = unbounded();
        let (worker_events, _) = unbounded();
        let mma = Mma::new(fwps_max, outputs, vec![to_worker], link, mma_commands, mma_events, stopwatch());
        let worker = Worker::new(fwps_max, inputs, vec![to_mma], worker_commands, worker_events, house.worker_slot());
        Self { mma, worker, attach, adopt }
    }

    pub(super) fn add(&self, (fwp, endpoint): Prepared) {
        self.adopt.send(WorkerCommand::Adopt(fwp)).expect("the worker is there");
        self.attach.send(MmaCommand::Attach(endpoint)).expect("the MMA is there");
    }

    /// Lets both go on until nothing is under way.
    pub(super) fn settle(&mut self) {
        for _ in 0..4 {
            self.mma.poll();
            while self.worker.poll() > 0 {}
        }
    }
}

//! A node's gateway, MMA, worker and guest one after another, as they are on one thread: what a client's first packet costs until it is
//! served, and a call there and back.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use pinion_gateway::id::{ChainGeneration, ChainIndex};
use pinion_gateway::invoke::FunctionRef;
use pinion_gateway::rules::Policy;
use pinion_mma::id::FwpId;
use pinion_mma::wiring::{Edge, Wiring};
use pinion_runtime::instruments::activation::{Activations, EntryStage, InstanceActivation};

use super::Scene;
use super::frames::datagram;
use super::movers::Movers;
use super::net_in::NetIn;
use crate::node::House;

/// Instances, each for one client.
const FWPS: u32 = 64;
const FUNCTION: FunctionRef = FunctionRef { chain: ChainIndex(0), generation: ChainGeneration(0) };
const MESSAGE: &[u8] = b"message of 16 by";
/// The longest time for an answer, which it never takes.
const TIMEOUT_NS: u64 = 1 << 40;

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "activate",
        part: "node",
        what: "a new client's first packet, from the flow miss to the end of the guest's first turn",
        repetitions: 40,
        steps: 1,
        run: activate,
    },
    Scene {
        name: "invoke",
        part: "node",
        what: "a call of a function, from the caller and back",
        repetitions: 1_000,
        steps: 1,
        run: invoke,
    },
];

struct Rig {
    house: House,
    net_in: NetIn,
    movers: Movers,
    activations: Arc<Activations>,
}

impl Rig {
    fn new(templates: &Path, policy: Policy) -> Self {
        let mut house = House::new(templates, "macswap", FWPS);
        let (net_in, mma_link) = NetIn::new(policy, FWPS as usize);
        let movers = Movers::new(&mut house, FWPS, mma_link);
        let activations = Arc::new(Activations::new(Arc::clone(net_in.gateway.observer().flow_misses())));
        Self { house, net_in, movers, activations }
    }

    /// Adds an instance that waits for a client.
    fn add(&mut self, index: u32) {
        let id = FwpId { index, generation: 0 };
        let activation = InstanceActivation::new(&self.activations, id, 1, EntryStage::EitherEnd).of_stage(0);
        let prepared = self.house.prepare_timed(index, Wiring::to(Edge::EgressWhereItCame), activation);
        self.movers.add(prepared);
        self.movers.settle();
        self.net_in.ready(index.into(), id);
        self.settle();
    }

    fn receive(&mut self) {
        self.net_in.poll();
        self.movers.mma.poll();
        self.movers.worker.poll();
    }

    fn send(&mut self) {
        self.movers.mma.poll();
        self.net_in.poll();
    }

    fn settle(&mut self) {
        for _ in 0..4 {
            self.net_in.poll();
            self.movers.settle();
        }
        self.net_in.poll();
        self.net_in.events.try_iter().for_each(drop);
    }
}

fn activate(templates: &Path, scene: &Scene) {
    let rig = RefCell::new(Rig::new(templates, Policy::PerClient));
    scene.repeat(
        |number| {
            let mut rig = rig.borrow_mut();
            rig.add(number as u32);
            rig.net_in.arrive([datagram(Ipv4Addr::new(10, 77, 1, number as u8), 4000, 7)]);
        },
        |()| rig.borrow_mut().receive(),
        |()| {
            let mut rig = rig.borrow_mut();
            rig.settle();
            assert_eq!(rig.net_in.take_left(), 1, "the client is served");
        },
    );
    // As in the other scenes, memory of FWPs is not unmapped.
    std::mem::forget(rig);
}

fn invoke(templates: &Path, scene: &Scene) {
    let rig = RefCell::new(Rig::new(templates, Policy::Shared));
    rig.borrow_mut().add(0);
    scene.repeat(
        |_| 0,
        |answers| {
            let mut rig = rig.borrow_mut();
            rig.net_in.dispatcher.stage(FUNCTION, 1, TIMEOUT_NS, MESSAGE).expect("room for a call");
            rig.net_in.dispatcher.submit();
            rig.receive();
            rig.send();
            *answers = rig.net_in.dispatcher.poll(|_, answer| assert_eq!(answer, Ok(MESSAGE)));
        },
        |answers| assert_eq!(answers, 1, "the call is answered"),
    );
    std::mem::forget(rig);
}

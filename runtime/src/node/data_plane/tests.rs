//! A whole node with two workers, one of which panics under traffic: what ends, what is served on, and what becomes of calls.
//!
//! Panics are planned in the meters of a chain ([`ChainMeter::panics_planned`](crate::tenants::meters::ChainMeter)), in this crate's tests
//! only. All chains have the same function, which sends every packet back.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_control::model::{Change, Match, Module, Policy, Stage, Tenant};
use pinion_control::node::{ChainStatus, FwpState, InvokeError};
use pinion_gateway::port::Port;
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::memory::{MemoryPeer, MemoryPort, MemoryPortConfig};
use tempfile::TempDir;

use super::*;
use crate::cores::plan::{CoreId, available_cores};
use crate::fwp::end_reason::EndReason;
use crate::node::assembly::{Assembled, assemble_with};
use crate::node::config::NodeConfig;
use crate::node::ports::{GatewayThread, Opened};
use crate::templates::artifacts::Artifacts;
use crate::templates::derived::Derived;
use crate::templates::engine::{self, Reset};

const ECHO: &str = include_str!("../../../tests/support/echo.wat");
/// The chains, each of a tenant of its own, and of the clients in 10.0.N.0/24, where N is the position here plus one.
const CHAINS: [&str; 4] = [HOG, CALM, ONCE, AGAIN];
const HOG: &str = "hog";
const CALM: &str = "calm";
const ONCE: &str = "once";
/// It is idempotent.
const AGAIN: &str = "again";
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of a chain, by its number.
type Client = (&'static str, u8);

struct House {
    node: Assembled,
    state: DesiredState,
    peer: MemoryPeer,
    mac: [u8; 6],
    /// The number of the next frame.
    next: u16,
    _folder: TempDir,
}

impl House {
    fn new() -> Self {
        let cores = available_cores().unwrap();
        let [CoreId(first), CoreId(second), ..] = cores[..] else { panic!("two workers need two cores") };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("piniond.toml");
        let text = format!(
            "state_dir = {:?}\nbuilder = \"/bin/sh\"\ncores = {{ gateway = {first}, mmas = [{first}], workers = [{first}, {second}] }}\n\
             limits = {{ fwps_max = 256 }}\n[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n",
            folder.path()
        );
        std::fs::write(&path, text).unwrap();
        let pool = HeapPool::new(8192, 2048);
        let (port, peer) = MemoryPort::pair(MemoryPortConfig::named("lan"), pool.clone());
        let mac = port.facts().mac;
        let opened = Opened { ports: vec![Box::new(port)], pool: Box::new(pool), thread: GatewayThread::default() };
        let state = state();
        keep_templates(folder.path(), &state);
        let node = assemble_with(&NodeConfig::read(&path).unwrap(), |_| Ok(opened)).unwrap();
        node.data_plane.follow(Arc::new(state.clone()), &|| false);
        Self { node, state, peer, mac, next: 0, _folder: folder }
    }

    fn status(&self) -> NodeStatus {
        self.node.data_plane.status()
    }

    fn chain_status(&self, chain: &str) -> ChainStatus {
        self.status().chains.into_iter().find(|status| status.chain.as_str() == chain).unwrap()
    }

    fn instances(&self, chain: &str) -> Vec<ChainInstanceStatus> {
        let all = self.node.data_plane.chain_instances(None).flatten();
        all.filter(|instance| instance.chain.as_str() == chain).collect()
    }

    /// Returns the instances of the chain that serve clients.
    fn serving(&self, chain: &str) -> Vec<ChainInstanceStatus> {
        let serves = |instance: &ChainInstanceStatus| matches!(instance.state, FwpState::Active | FwpState::Blocked);
        self.instances(chain).into_iter().filter(serves).collect()
    }

    /// Returns the only instance of the chain that serves clients. The launcher learns of it a little after the client.
    #[track_caller]
    fn only_serving(&self, chain: &str) -> ChainInstanceStatus {
        until("one instance that serves", || {
            let [instance] = &self.serving(chain)[..] else { return None };
            Some(instance.clone())
        })
    }

    /// Plans that the worker on this core panics in the next turn of the chain.
    fn plan_panic(&self, chain: &str, core: u32) {
        let parts = &self.node.data_plane.parts;
        let worker = parts.plan.workers.iter().position(|worker| u32::from(worker.0) == core).unwrap();
        let chain = self.state.chain(&tenant(chain), &chain.parse().unwrap()).unwrap();
        parts.meters.open(chain).on_worker(worker).panics_planned.fetch_add(1, Ordering::SeqCst);
    }

    /// Sends a frame of a client. Returns it.
    fn send(&mut self, client: Client) -> Vec<u8> {
        let frame = frame(self.mac, client, self.next);
        self.next += 1;
        self.peer.send(&frame).unwrap();
        frame
    }

    /// Sends a frame of each client, and waits until all of them have come back.
    #[track_caller]
    fn exchange(&mut self, clients: &[Client]) {
        let mut awaited: HashSet<_> = clients.iter().map(|client| self.send(*client)).collect();
        until("all frames", || {
            std::iter::from_fn(|| self.peer.receive()).for_each(|frame| _ = awaited.remove(&frame));
            awaited.is_empty().then_some(())
        });
    }

    /// Sends frames of a client, one every 50 ms, until one comes back.
    #[track_caller]
    fn reach(&mut self, client: Client) {
        let (mut sent, mut at) = (HashSet::new(), None);
        until("an answer", || {
            if at.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(50)) {
                sent.insert(self.send(client));
                at = Some(Instant::now());
            }
            std::iter::from_fn(|| self.peer.receive()).any(|frame| sent.contains(&frame)).then_some(())
        });
    }

    /// Lets the worker that serves the chain's only client panic in the chain's next turn.
    #[track_caller]
    fn panic_in_turn_of(&mut self, client: Client, panics: u64) {
        self.reach(client);
        self.plan_panic(client.0, self.only_serving(client.0).worker_core);
        self.send(client);
        until("a panic", || (self.status().worker_panics == panics).then_some(()));
    }

    fn call(&self, chain: &str) -> Result<Vec<u8>, InvokeError> {
        let payload = chain.as_bytes().to_vec();
        let (tenant, chain) = (tenant(chain), chain.parse().unwrap());
        self.node.data_plane.invoke_and_wait(Call { tenant, chain, payload, timeout: PATIENCE })
    }

    /// Calls a chain once, and lets the worker that serves its callers panic in its next turn.
    fn call_before_panic(&self, chain: &str) {
        assert_eq!(self.call(chain), Ok(chain.as_bytes().to_vec()));
        self.plan_panic(chain, self.only_serving(chain).worker_core);
    }
}

fn tenant(chain: &str) -> TenantName {
    format!("of-{chain}").parse().unwrap()
}

fn state() -> DesiredState {
    let mut change = Change::default();
    for (number, chain) in CHAINS.into_iter().enumerate() {
        let (tenant, module) = (tenant(chain), "echo".parse().unwrap());
        let stages = vec![Stage::new(module, Vec::new())];
        let source = Some(format!("10.0.{}.0/24", number + 1).parse().unwrap());
        let name: ChainName = chain.parse().unwrap();
        // The guest sends frames back as they are.
        change.tenants.push(Tenant { transparent_forwarding: true, ..Tenant::new(tenant.clone()) });
        change.rules.push(Rule {
            tenant: tenant.clone(),
            name: chain.parse().unwrap(),
            priority: 0,
            matcher: Match { source, ..Match::default() },
            policy: Policy::PerClient,
            chain: name.clone(),
        });
        let idempotent = chain == AGAIN;
        change.chains.push(Chain { cache_min: 2, idempotent, ..Chain::new(tenant.clone(), name, stages) });
        let digest = Digest::of(ECHO.as_bytes());
        change.modules.push(Module { tenant, name: "echo".parse().unwrap(), digest, size_bytes: 1 });
    }
    DesiredState::default().apply(&change).unwrap().state
}

/// Stores the templates of all chains, as if the node had built them.
fn keep_templates(state_dir: &Path, state: &DesiredState) {
    let engine = engine::engine(1, Reset::Unmap).unwrap();
    let derived = Arc::new(Derived::new(state_dir));
    let artifacts = Artifacts::open(state_dir.join("templates"), &engine, derived).unwrap();
    let (wasm, memory_bytes_max) = (wat::parse_str(ECHO).unwrap(), u64::from(Chain::MEMORY_LIMIT_KIB) << 10);
    let wishes = Wishes {
        config: Arc::new([]),
        files: None,
        memory_bytes_max,
        fields: Arc::new([]),
        keys: Arc::new([]),
        models: Arc::new([]),
    };
    let Built { facts, artifact } = build(&wasm, &wishes, |_| ()).unwrap();
    for key in state.chains().values().flat_map(|chain| launcher::keys(state, chain).unwrap()) {
        artifacts.keep(&key, &facts, &artifact).unwrap();
    }
}

/// Returns a UDP datagram of a client of a chain, unlike all others of this test.
fn frame(mac: [u8; 6], (chain, client): Client, number: u16) -> Vec<u8> {
    let network = 1 + CHAINS.iter().position(|it| *it == chain).unwrap() as u8;
    let mut ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, network, client, 10, 9, 9, 9];
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    // Without a checksum of its own, which UDP allows.
    let udp = [4, 0, 0, 7, 0, 26, 0, 0];
    let [high, low] = number.to_be_bytes();
    let from = [2, 0, 0, 0, network, client, 8, 0];
    let mut frame = [&mac[..], &from, &ip, &udp, &[high, low]].concat();
    frame.resize(60, 0);
    frame
}

/// Waits until `done` returns something.
#[track_caller]
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(it) = done() {
            return it;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within {PATIENCE:?}");
}

/// Returns why an instance has ended, if it has.
fn end_of(instances: &[ChainInstanceStatus], id: u64) -> Option<String> {
    instances.iter().find(|instance| instance.id == id).and_then(|instance| instance.ended_because.clone())
}

#[test]
fn a_worker_that_panics_loses_its_own_instances_and_another_worker_neither_an_instance_nor_a_packet() {
    let mut house = House::new();
    house.exchange(&[(HOG, 1)]);
    let hog = house.only_serving(HOG);
    // Each client's address, and the instance that serves it.
    let mut clients: Vec<(Client, ChainInstanceStatus)> = Vec::new();
    let are_spread = |clients: &[(Client, ChainInstanceStatus)]| {
        let near = clients.iter().filter(|(_, instance)| instance.worker_core == hog.worker_core).count();
        near >= 2 && clients.len() - near >= 2
    };
    for client in 1..64 {
        if are_spread(&clients) {
            break;
        }
        house.exchange(&[(CALM, client)]);
        let is_new = |it: &ChainInstanceStatus| clients.iter().all(|(_, instance)| instance.id != it.id);
        let instance = until("an instance", || house.serving(CALM).into_iter().find(is_new));
        clients.push(((CALM, client), instance));
    }
    assert!(are_spread(&clients), "{clients:?}");
    let (near, far): (Vec<_>, Vec<_>) =
        clients.into_iter().partition(|(_, instance)| instance.worker_core == hog.worker_core);
    let far_clients: Vec<Client> = far.iter().map(|(client, _)| *client).collect();
    house.plan_panic(HOG, hog.worker_core);
    for round in 0..200 {
        if round == 20 {
            house.send((HOG, 1));
        }
        house.exchange(&far_clients);
    }
    until("the ends of its instances", || {
        let instances = house.instances(CALM);
        near.iter().all(|(_, instance)| end_of(&instances, instance.id).is_some()).then_some(())
    });
    let status = house.status();
    let panics = status.cores.iter().map(|core| (core.core, core.worker_panics)).filter(|(_, panics)| *panics > 0);
    assert_eq!((panics.collect::<Vec<_>>(), status.worker_panics), (vec![(hog.worker_core, 1)], 1));
    assert!(status.warnings.iter().any(|warning| warning.contains("workers have panicked 1 times")), "{status:?}");
    assert_eq!(end_of(&house.instances(HOG), hog.id), Some(EndReason::WorkerPanicked.to_string()));
    let instances = house.instances(CALM);
    for (client, instance) in near {
        assert_eq!(end_of(&instances, instance.id), Some(EndReason::WorkerRestarted.to_string()));
        house.reach(client);
    }
    assert!(far.iter().all(|(_, instance)| house.serving(CALM).iter().any(|it| it.id == instance.id)));
    assert_eq!(house.chain_status(CALM).failures, 0, "it was others' doing");
    house.reach((HOG, 1));
}

#[test]
fn a_chain_in_whose_turns_workers_panic_twice_is_banned_and_a_change_of_it_does_not_lift_the_ban() {
    let mut house = House::new();
    house.exchange(&[(CALM, 1)]);
    house.panic_in_turn_of((HOG, 1), 1);
    house.panic_in_turn_of((HOG, 1), 2);
    let is_banned =
        |warning: &String| warning.contains("workers panicked in turns of chain of-hog/hog again and again");
    until("a ban", || house.status().warnings.iter().any(is_banned).then_some(()));
    let hog = house.chain_status(HOG);
    let why = hog.last_failure.unwrap_or_default();
    assert!(why.contains("it serves no new clients for 10 s"), "{why}");
    assert_eq!((hog.ready, hog.active), (0, 0), "all of its instances end");
    let spec = house.state.chain(&tenant(HOG), &HOG.parse().unwrap()).unwrap();
    let change = Change { chains: vec![Chain { hold_frames: 1, ..(**spec).clone() }], ..Change::default() };
    house.state = house.state.apply(&change).unwrap().state;
    house.node.data_plane.follow(Arc::new(house.state.clone()), &|| false);
    let Err(InvokeError::NoInstance(why)) = house.call(HOG) else { panic!("it serves a new client") };
    assert!(why.contains("it serves no new clients for 10 s"), "{why}");
    house.reach((CALM, 1));
}

#[test]
fn a_call_under_way_on_a_worker_that_panics_fails_as_ended_and_one_of_an_idempotent_chain_is_answered_by_another_instance()
 {
    let house = House::new();
    house.call_before_panic(ONCE);
    let Err(InvokeError::Ended(why)) = house.call(ONCE) else { panic!("it was answered") };
    assert!(why.contains("of-once/once ended before it answered: its worker panicked in its turn"), "{why}");
    house.call_before_panic(AGAIN);
    assert_eq!(house.call(AGAIN), Ok(AGAIN.as_bytes().to_vec()));
    let status = house.status();
    assert_eq!((status.worker_panics, status.calls_redelivered), (2, 1));
    assert!(house.call(ONCE).is_ok(), "the next call meets another instance");
}

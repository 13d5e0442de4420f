//! A fake data plane for tests of the layers above it: it moves no packet, and records its calls.

#![allow(dead_code, unreachable_pub)] // each test program uses a part of it

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinion_control::control::NamedUpload;
use pinion_control::journal::Journal;
use pinion_control::metrics::{MetricFilter, MetricStatus, MetricValue};
use pinion_control::model::{
    Chain, ChainKey, DesiredState, Digest, Ingredients, Match, ObjectRef, Policy, Rule, Stage, TenantName,
};
use pinion_control::node::{
    Answered, BuildPhase, BuildStatus, Call, CallHandle, ChainDrop, ChainInstanceStatus, ChainStatus, CoreStatus,
    DropCount, FwpCounters, FwpState, FwpStatus, Hold, InvokeError, JobStatus, LatencyStatus, MeterStatus, Node,
    NodeStatus, Pages, PortStatus, Refusal, ResourceUse, StateFieldStatus, TenantStatus, UploadedBytes,
};
use pinion_control::store::StoreError;
use pinion_control::{Control, Server, Store};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The only port of the test node.
pub const PORT: &str = "lan";
/// A configuration that every function refuses.
pub const REFUSED_CONFIG: &[u8] = b"refuse me";

/// A node with one port. It admits bytes that begin like a Wasm module, models that begin with `onnx`, and reports a template and one FWP for each
/// stage of each chain.
#[derive(Default)]
pub struct TestNode {
    /// The recorded calls, such as `admit`, `check 3`, `build 3`, `follow 3`.
    pub calls: Mutex<Vec<String>>,
    /// Makes it refuse to build any chain.
    pub refuses_chains: AtomicBool,
    /// Makes it report that a template is missing.
    pub lacks: AtomicBool,
    /// The damage that it reports.
    pub damaged: watch::Sender<u64>,
    /// A chain that it holds back.
    pub holds_back: Mutex<Option<ObjectRef>>,
    /// Makes the node panic when it follows a state.
    pub panics: AtomicBool,
    /// Makes the next state that it follows take until others wait for that.
    pub takes_long: AtomicBool,
    /// Makes chains have no instance ready.
    pub has_no_instances: AtomicBool,
    /// How many handles of calls were dropped.
    pub calls_given_up: Arc<AtomicUsize>,
    /// How long a build takes.
    pub build_time: Mutex<Duration>,
    building: Mutex<Vec<(TenantName, Instant)>>,
    /// Whether it has built a template that was missing since it was asked last.
    has_built: AtomicBool,
    /// What it has built.
    built: Mutex<BTreeMap<ChainKey, Ingredients>>,
    /// Whether builds were stopped.
    pub is_stopped: AtomicBool,
    /// The log lines of its functions.
    pub journal: Arc<Journal>,
    state: Mutex<Arc<DesiredState>>,
}

impl TestNode {
    /// Returns the calls recorded since the last call of this.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Waits until it was called this often since the last call of [`TestNode::take_calls`], and returns the calls.
    pub async fn wait_for_calls(&self, count: usize) -> Vec<String> {
        let began = Instant::now();
        while self.calls.lock().unwrap().len() < count {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", self.calls.lock().unwrap());
            tokio::task::yield_now().await;
        }
        self.take_calls()
    }

    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    fn refusal_to_build(&self, state: &DesiredState, chain: &Chain, uploads: &dyn UploadedBytes) -> Option<Refusal> {
        let Chain { tenant, name, .. } = chain;
        for stage in &chain.stages {
            let wasm = state.module(tenant, &stage.module).map(|module| uploads.wasm(module));
            if !wasm.is_some_and(|wasm| wasm.is_ok_and(|wasm| wasm.starts_with(b"\0asm"))) {
                return Some(Refusal::Failed(format!("chain {tenant}/{name}: {} has no bytes", stage.module)));
            }
            if stage.files.is_some_and(|files| !uploads.files(&files).is_ok_and(|archive| is_archive(&archive))) {
                return Some(Refusal::Failed(format!("chain {tenant}/{name}: its files have no bytes")));
            }
            let keys = stage.keys.iter().filter_map(|name| state.key(tenant, name));
            let mut keys = keys.map(|key| (key, uploads.key(key)));
            match keys.find(|(key, found)| !found.as_ref().is_ok_and(|it| it.public_digest() == *key.digest.as_bytes()))
            {
                Some((_, Err(sentence))) => {
                    return Some(Refusal::Failed(format!("chain {tenant}/{name}: {sentence}")));
                }
                Some((key, Ok(_))) => panic!("the node is given another key as {key:?}"),
                None => {}
            }
            let mut models = stage.models.iter().filter_map(|name| state.model(tenant, name));
            if models.any(|model| !uploads.model(model).is_ok_and(|onnx| onnx.starts_with(b"onnx"))) {
                return Some(Refusal::Failed(format!("chain {tenant}/{name}: a model has no bytes")));
            }
            if self.refuses_chains.load(Ordering::Relaxed) || stage.config == REFUSED_CONFIG {
                return Some(Refusal::Invalid(format!("chain {tenant}/{name}: this node does not accept it any more")));
            }
        }
        None
    }

    fn chains(&self) -> Vec<Arc<Chain>> {
        self.state.lock().unwrap().chains().values().cloned().collect()
    }
}

/// Returns the tenant of most tests.
pub fn demo() -> TenantName {
    "demo".parse().unwrap()
}

/// Names uploaded bytes as a module of that tenant.
pub fn named(name: &str, digest: Digest) -> NamedUpload {
    NamedUpload { tenant: demo(), name: name.parse().unwrap(), digest }
}

/// Returns what belongs to the tenant, or all, each on a page of its own, with an empty page before.
fn pages<T: Send + 'static>(all: Vec<T>, of: Option<TenantName>, tenant: fn(&T) -> &TenantName) -> Pages<T> {
    let is_meant = move |it: &T| of.as_ref().is_none_or(|of| of == tenant(it));
    Box::new(all.into_iter().filter(is_meant).flat_map(|it| [Vec::new(), vec![it]]))
}

/// Returns whether the bytes end like an archive.
fn is_archive(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0; 1024])
}

impl Node for TestNode {
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.note("admit");
        if !wasm.starts_with(b"\0asm") {
            return Err(Refusal::Invalid("this is not a WebAssembly module: it does not begin with \\0asm".into()));
        }
        Ok(())
    }

    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.note("admit files");
        if is_archive(archive) { Ok(()) } else { Err(Refusal::Invalid("these files are no archive".into())) }
    }

    fn admit_model(&self, onnx: &[u8]) -> Result<(), Refusal> {
        self.note("admit model");
        if onnx.starts_with(b"onnx") { Ok(()) } else { Err(Refusal::Invalid("this is no model".into())) }
    }

    fn check(&self, _before: &DesiredState, state: &DesiredState) -> Result<(), Refusal> {
        self.note(format!("check {}", state.version()));
        for chain in state.chains().values() {
            if let Some(port) = chain.egress.iter().chain(chain.ports_of_edges()).find(|port| port.as_str() != PORT) {
                let (tenant, name) = (&chain.tenant, &chain.name);
                return Err(Refusal::Unfit(format!("chain {tenant}/{name}: this node has no port {port}")));
            }
        }
        Ok(())
    }

    fn build(
        &self,
        state: &DesiredState,
        chains: &BTreeSet<ChainKey>,
        uploads: &dyn UploadedBytes,
    ) -> Vec<(ObjectRef, Refusal)> {
        self.note(format!("build {}", state.version()));
        let began = Instant::now();
        *self.building.lock().unwrap() = chains.iter().map(|(tenant, _)| (tenant.clone(), began)).collect();
        while began.elapsed() < *self.build_time.lock().unwrap() && !self.is_stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.building.lock().unwrap().clear();
        self.has_built.fetch_or(self.lacks.swap(false, Ordering::Relaxed), Ordering::Relaxed);
        let is_stopped = self.is_stopped.load(Ordering::Relaxed);
        let refused = |(key, chain): (&ChainKey, &Arc<Chain>)| {
            let refusal =
                if is_stopped { Some(Refusal::Stopping) } else { self.refusal_to_build(state, chain, uploads) };
            let Some(refusal) = refusal else {
                self.built.lock().unwrap().insert(key.clone(), state.ingredients(chain));
                return None;
            };
            Some((ObjectRef::Chain { tenant: chain.tenant.clone(), name: chain.name.clone() }, refusal))
        };
        chains.iter().filter_map(|key| state.chains().get_key_value(key)).filter_map(refused).collect()
    }

    fn unfit(&self, _: &DesiredState, _: &BTreeSet<ChainKey>) -> Vec<(ObjectRef, Refusal)> {
        Vec::new()
    }

    fn hold(&self, _: &DesiredState, _: &BTreeSet<ChainKey>) -> Hold {
        Hold::default()
    }

    fn clear_up(&self, _: &DesiredState) {}

    fn lacks(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> bool {
        let built = self.built.lock().unwrap();
        let ingredients = |key| state.chains().get(key).map(|chain| state.ingredients(chain));
        let mut chains = chains.iter();
        chains.any(|key| self.lacks.load(Ordering::Relaxed) || built.get(key) != ingredients(key).as_ref())
    }

    fn stop_builds(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn damaged(&self) -> watch::Receiver<u64> {
        self.damaged.subscribe()
    }

    fn retry(&self, _: &DesiredState, objects: &[&ObjectRef]) -> bool {
        let held = self.holds_back.lock().unwrap().take_if(|held| objects.contains(&&*held)).is_some();
        held || self.has_built.swap(false, Ordering::Relaxed)
    }

    fn follow(&self, state: Arc<DesiredState>, is_waited_for: &dyn Fn() -> bool) {
        assert!(!self.panics.load(Ordering::Relaxed), "the test node fails as it is told to");
        self.note(format!("follow {}", state.version()));
        if self.takes_long.swap(false, Ordering::Relaxed) {
            let began = Instant::now();
            while !is_waited_for() {
                assert!(began.elapsed() < Duration::from_secs(30), "no other change waits");
                std::thread::yield_now();
            }
        }
        *self.state.lock().unwrap() = state;
    }

    /// Answers with the payload and the chain's name, or too late if the payload asks for that.
    fn invoke(&self, call: Call, answered: Answered) -> CallHandle {
        self.note(format!("invoke {}/{}", call.tenant, call.chain));
        match &call.payload[..] {
            b"be late" => drop(std::thread::spawn(move || {
                std::thread::sleep(call.timeout + Duration::from_secs(5));
                answered(Ok(Vec::new()));
            })),
            b"end" => answered(Err(InvokeError::Ended("it has ended".into()))),
            payload => answered(Ok([payload, b" for ", call.chain.as_str().as_bytes()].concat())),
        }
        let given_up = Arc::clone(&self.calls_given_up);
        CallHandle::new(move || _ = given_up.fetch_add(1, Ordering::SeqCst))
    }

    fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        let chains = self.chains().into_iter().filter(|chain| filter.passes(&chain.tenant, &chain.name));
        let metric = |chain: &Arc<Chain>, name: &str, value| MetricStatus {
            tenant: chain.tenant.clone(),
            chain: chain.name.clone(),
            stage: 0,
            module: chain.stages[0].module.clone(),
            name: name.into(),
            help: "What it counts.".into(),
            labels: vec![("way".into(), "in".into())],
            value,
        };
        let metrics = |chain| {
            [metric(&chain, "hits", MetricValue::Counter(u64::MAX)), metric(&chain, "depth", MetricValue::Gauge(-7))]
        };
        chains.flat_map(metrics).collect()
    }

    fn chain_instances(&self, of: Option<&TenantName>) -> Pages<ChainInstanceStatus> {
        let instance = |(id, chain): (usize, Arc<Chain>)| ChainInstanceStatus {
            id: id as u64,
            tenant: chain.tenant.clone(),
            chain: chain.name.clone(),
            state: FwpState::Active,
            client: Some("10.77.0.101".into()),
            fwp_ids: (0..chain.stages.len()).map(|stage| format!("{id}.{stage}")).collect(),
            worker_core: 1,
            age_ms: 65_000,
            ended_because: None,
        };
        let instances: Vec<_> = self.chains().into_iter().enumerate().map(instance).collect();
        pages(instances, of.cloned(), |instance| &instance.tenant)
    }

    fn fwps(&self, of: Option<&TenantName>) -> Pages<FwpStatus> {
        let mut fwps = Vec::new();
        for (id, chain) in self.chains().into_iter().enumerate() {
            for (at, stage) in chain.stages.iter().enumerate() {
                fwps.push(FwpStatus {
                    id: format!("{}/{}/{at}", chain.tenant, chain.name),
                    tenant: chain.tenant.clone(),
                    chain: chain.name.clone(),
                    module: stage.module.clone(),
                    stage: at as u32,
                    chain_instance: 0,
                    client: None,
                    state: FwpState::Template,
                    worker_core: 0,
                    memory_kib: 0,
                    age_ms: 65_000,
                    counters: FwpCounters::default(),
                    run_queue_wait: LatencyStatus::default(),
                });
                fwps.push(FwpStatus {
                    id: format!("{id}.{at}"),
                    tenant: chain.tenant.clone(),
                    chain: chain.name.clone(),
                    module: stage.module.clone(),
                    stage: at as u32,
                    chain_instance: id as u64,
                    client: Some("10.77.0.101".into()),
                    state: FwpState::Active,
                    worker_core: 1,
                    memory_kib: 1088,
                    age_ms: 65_000,
                    counters: FwpCounters { received: 7, sent: 5, dropped_by_guest: 2, ..FwpCounters::default() },
                    run_queue_wait: LatencyStatus::default(),
                });
            }
        }
        pages(fwps, of.cloned(), |fwp| &fwp.tenant)
    }

    fn resources(&self, tenant: &TenantName) -> Vec<ResourceUse> {
        if tenant.as_str() != "demo" {
            return Vec::new();
        }
        vec![
            ResourceUse { guaranteed: Some(16), refused: Some(2), ..ResourceUse::of("fwps", 4) },
            ResourceUse { limit: Some(8192), ..ResourceUse::of("memory_kib", 4300) },
            ResourceUse { limit: Some(100_000), ..ResourceUse::of("cpu_us", 1_500_000) },
        ]
    }

    fn status(&self) -> NodeStatus {
        let run_queue_wait =
            LatencyStatus { count: 9, p50_ns: 1_100, p90_ns: 2_000, p99_ns: 44_000, max_ns: 2_000_000 };
        let chain_status = |chain: Arc<Chain>| ChainStatus {
            tenant: chain.tenant.clone(),
            chain: chain.name.clone(),
            ready: if self.has_no_instances.load(Ordering::Relaxed) { 0 } else { chain.cache_min },
            active: 1,
            failures: 0,
            last_failure: None,
            drops: vec![
                ChainDrop { place: "gateway".into(), reason: "no-instance".into(), count: 3 },
                ChainDrop { place: format!("0/{}", chain.stages[0].module), reason: "no-slot".into(), count: 4 },
            ],
            memory_kib: 4352,
            memory_limit_kib: chain.memory_total_kib.map(u64::from),
            meter: MeterStatus { cpu_us: 5_400, activations: 5, dropped: 7, run_queue_wait, ..MeterStatus::default() },
        };
        let tenant_status = |chain: Arc<Chain>| TenantStatus {
            tenant: chain.tenant.clone(),
            memory_kib: 4352,
            memory_limit_kib: Some(8192),
            fwps: 1,
            fwps_guaranteed: 2048,
            fwps_refused: 3,
            meter: MeterStatus {
                cpu_us: 6_000,
                preemptions: 6,
                copied_bytes: 7,
                dropped: 8,
                inferences: JobStatus { waiting: 1, done: 9, refused_memory: 2, spent_us: 500, ..JobStatus::default() },
                ..MeterStatus::default()
            },
            state: vec![StateFieldStatus {
                name: "sessions".parse().unwrap(),
                entries: 21,
                entries_max: 1000,
                memory_kib: 301,
                hits: 22,
                misses: 23,
                writes: 24,
                denied: 25,
                full: 26,
                evicted: 27,
            }],
            state_limit_kib: 16_384,
        };
        let build = |(tenant, began): &(TenantName, Instant)| BuildStatus {
            tenant: tenant.clone(),
            module: "echo/0 icmp-echo".into(),
            phase: BuildPhase::Compiling,
            age_ms: began.elapsed().as_millis() as u64,
        };
        let followed_version = self.state.lock().unwrap().version();
        NodeStatus {
            version: "0.0.0-test".into(),
            uptime_ms: 1500,
            followed_version,
            cores: vec![CoreStatus { core: 1, roles: vec!["gateway".into(), "worker".into()], worker_panics: 0 }],
            ports: vec![PortStatus {
                name: PORT.parse().unwrap(),
                device: "net_tap0".into(),
                mac: "02:00:00:00:00:01".into(),
                mtu: 1500,
                link_up: true,
                received: 12,
                sent: 10,
                made_by_node: 3,
                drops: vec![DropCount { reason: "bad-checksum".into(), count: 2 }],
            }],
            chains: self.chains().into_iter().map(chain_status).collect(),
            warnings: Vec::new(),
            copied_bytes: 4096,
            dropped_instance_ended: 1,
            tenants: self.chains().into_iter().map(tenant_status).collect(),
            builds: self.building.lock().unwrap().iter().map(build).collect(),
            activation: LatencyStatus { count: 7, p50_ns: 900, p90_ns: 1_200, p99_ns: 4_000, max_ns: 1_500_000 },
            ..NodeStatus::default()
        }
    }
}

/// A running control plane in a folder of its own.
pub struct Served {
    /// Its data plane.
    pub node: Arc<TestNode>,
    /// Its socket.
    pub socket: PathBuf,
    /// The folder for files of the test, which also holds the store and the socket.
    pub folder: tempfile::TempDir,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Served {
    /// Starts with an empty folder.
    pub async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    /// Starts with an empty folder and a server that is changed before.
    pub async fn start_with(change: impl FnOnce(Server) -> Server) -> Self {
        Self::start_so(tempfile::tempdir().unwrap(), change).await
    }

    /// Starts with the folder of a previous one.
    pub async fn start_in(folder: tempfile::TempDir) -> Self {
        Self::start_so(folder, |server| server).await
    }

    /// Starts with a folder and a server that is changed before.
    pub async fn start_in_with(folder: tempfile::TempDir, change: impl FnOnce(Server) -> Server) -> Self {
        Self::start_so(folder, change).await
    }

    async fn start_so(folder: tempfile::TempDir, change: impl FnOnce(Server) -> Server) -> Self {
        let node = Arc::new(TestNode::default());
        let store = Arc::new(Self::opened(&folder.path().join("store")).await);
        let control = Arc::new(Control::open(store, node.clone()).unwrap());
        let socket = folder.path().join("pinion.sock");
        let server = change(Server::bind(&socket).unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let shutdown = async move { drop(stopped.await) };
            server.serve(control, shutdown).await.unwrap();
        });
        Self { node, socket, folder, stop, serving }
    }

    /// Opens the store once the server before has given it free: garbage may still be collected after its last answer.
    async fn opened(path: &Path) -> Store {
        loop {
            match Store::open(path) {
                Err(StoreError::InUse { .. }) => tokio::task::yield_now().await,
                opened => return opened.unwrap(),
            }
        }
    }

    /// Shuts down and returns the folder.
    pub async fn stop(self) -> tempfile::TempDir {
        drop(self.stop);
        self.serving.await.unwrap();
        self.folder
    }
}

/// Returns bytes that the test node admits.
pub fn wasm(name: &str) -> Vec<u8> {
    format!("\0asm {name}").into_bytes()
}

/// Returns a chain `demo/echo` of one stage with this module.
pub fn echo_chain(module: &str) -> Chain {
    let stage = Stage::new(module.parse().unwrap(), b"hello".to_vec());
    Chain::new("demo".parse().unwrap(), "echo".parse().unwrap(), vec![stage])
}

/// Returns a rule of tenant `demo` that sends packets to the address to the chain `echo`.
pub fn rule_to_echo(name: &str, destination: &str) -> Rule {
    Rule {
        tenant: "demo".parse().unwrap(),
        name: name.parse().unwrap(),
        priority: 100,
        matcher: Match { destination: Some(destination.parse().unwrap()), ..Match::default() },
        policy: Policy::PerClient,
        chain: "echo".parse().unwrap(),
    }
}

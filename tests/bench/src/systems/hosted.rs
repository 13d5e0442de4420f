//! A complete node in this process, whose only port is the figure's own. The product's threads, roles, launcher, control API and builder
//! are put together by the product's own code, from a configuration in the operator's format.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinion_control::model::{CACHE_INSTANCES_MAX, Class};
use pinion_control::node::{ChainStatus, Node as _, TenantStatus};
use pinion_control::{Control, Server, Store};
use pinion_gateway::port::Port;
use pinion_gateway::port::heap::HeapPool;
use pinion_runtime::cores::plan::stay_on;
use pinion_runtime::node::assembly::{Assembled, assemble_with, control_cores};
use pinion_runtime::node::config::NodeConfig;
use pinion_runtime::node::data_plane::{DataPlane, NodeLatencies};
use pinion_runtime::node::ports::{GatewayThread, Opened};
use pinion_tests::product::build::program;
use pinion_tests::product::cli::Cli;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::tuning::tuning;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::clients::newcomers::{Answer, NODE_ADDRESS, PORT, Pace, Rounds, SERVICE_PORT, Tally, newcomers};
use crate::measurement::run::Cores;

/// An operator's setting for fast answers to new clients: data-plane threads never sleep. All other settings are the defaults.
pub(crate) const IDLE: &str = "busy";
/// The tenant of the service.
pub(crate) const TENANT: &str = "bench";
const BUFFERS: usize = 8192;
const BUFFER_BYTES: u16 = 2048;
/// The number of control threads, as in `piniond`.
const CONTROL_THREADS: usize = 2;

/// The longest wait until a cache is full, or instances have ended.
const REST_MAX: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long after the last preparation or end of an instance its after-effects may take.
const SETTLING: Duration = Duration::from_millis(50);

/// The service that new clients use.
pub(crate) struct Service<'a> {
    /// Every stage's module.
    pub(crate) module: PathBuf,
    pub(crate) config: &'a str,
    pub(crate) stages: usize,
    /// The rule's policy.
    pub(crate) policy: &'static str,
    pub(crate) class: Class,
    pub(crate) cache: u32,
    pub(crate) answer: Answer,
}

/// Additions to a node.
#[derive(Default)]
pub(crate) struct Beside {
    /// The quantum; the product's default if none.
    pub(crate) quantum_us: Option<u32>,
    /// `[[tenant]]` tables of its configuration.
    pub(crate) tenants: String,
    /// Other tenants' manifests.
    pub(crate) manifests: Vec<Manifest>,
    /// A second port, by its name, which uses the node's buffers.
    pub(crate) port: Option<(&'static str, PortOf)>,
}

/// Makes a port that takes its buffers from a pool.
pub(crate) type PortOf = Box<dyn FnOnce(HeapPool) -> Box<dyn Port>>;

impl Service<'_> {
    /// Makes a manifest of a chain, and of a rule that gives every client an instance of it.
    fn manifest(&self) -> Manifest {
        let stage = match self.config {
            "" => "{ module = \"function\" }".to_owned(),
            config => format!("{{ module = \"function\", config = \"{config}\" }}"),
        };
        let stages = vec![stage; self.stages].join(", ");
        Manifest::of(TENANT)
            .module("function", &self.module)
            .with(format_args!(
                "[[chain]]\nname = \"service\"\nstage = [{stages}]\ncache_min = {}\nclass = \"{}\"\n",
                self.cache, self.class
            ))
            .with(format_args!(
                "[[rule]]\nname = \"clients\"\npolicy = \"{}\"\nchain = \"service\"\n\
                 match = {{ destination = \"{NODE_ADDRESS}\", protocol = \"udp\", destination_ports = \"{SERVICE_PORT}\" }}\n",
                self.policy
            ))
    }
}

/// A node with a port of the figure's own. When dropped, it stops as `piniond` does.
pub(crate) struct Host {
    config: NodeConfig,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    threads: Option<Runtime>,
    node: Assembled,
    /// Dropped last.
    _folder: TempDir,
}

impl Host {
    /// Starts a node with room for so many FWPs, the port that is made with its buffers, and the additions.
    pub(crate) fn start(
        cores: Cores,
        fwps_max: usize,
        beside: Beside,
        port: impl FnOnce(HeapPool) -> Box<dyn Port>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("pinion-bench-").tempdir().context("a folder for the node")?;
        let config = Self::config(&folder, cores, fwps_max, &beside)?;
        fs::create_dir(&config.state_dir).with_context(|| config.state_dir.display().to_string())?;
        let pool = HeapPool::new(BUFFERS, BUFFER_BYTES);
        let mut ports = vec![port(pool.clone())];
        ports.extend(beside.port.map(|(_, make)| make(pool.clone())));
        let opened = Opened { ports, pool: Box::new(pool), thread: GatewayThread::default() };
        // As in `piniond`.
        let cores = control_cores(&config)?;
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(CONTROL_THREADS).on_thread_start(move || stay_on(&cores)).enable_all();
        let threads = threads.build()?;
        let server = Server::bind(&config.socket)?;
        let store = Arc::new(Store::open(&config.state_dir.join("pinion.redb"))?);
        let node = assemble_with(&config, |_| Ok(opened))?;
        let control = Arc::new(Control::open(store, Arc::clone(&node.data_plane) as _)?);
        let (stop, stopped) = oneshot::channel();
        let served = threads.spawn(async move {
            let stopped = async { _ = stopped.await };
            // The figure detects this, as its rounds fail.
            let _ = server.serve(control, stopped).await;
        });
        let (stop, served, threads) = (Some(stop), Some(served), Some(threads));
        let host = Self { config, stop, served, threads, node, _folder: folder };
        beside.manifests.iter().try_for_each(|manifest| host.apply(manifest))?;
        Ok(host)
    }

    /// Returns the node's data plane.
    pub(crate) fn data_plane(&self) -> &DataPlane {
        &self.node.data_plane
    }

    /// Returns the folder of its templates, where the figure also keeps files.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.config.state_dir
    }

    fn config(folder: &TempDir, cores: Cores, fwps_max: usize, beside: &Beside) -> anyhow::Result<NodeConfig> {
        let path = |name: &str| folder.path().join(name);
        let quantum = beside.quantum_us.map_or(String::new(), |us| format!("quantum_us = {us}\n"));
        let second = beside.port.as_ref();
        let second =
            second.map_or(String::new(), |(name, _)| format!("[[port]]\nname = \"{name}\"\ndevice = \"{name}\"\n"));
        let tenants = &beside.tenants;
        let text = format!(
            "state_dir = {:?}\nsocket = {:?}\nbuilder = {:?}\ntuning = {:?}\nidle = \"{IDLE}\"\n{quantum}{}[limits]\nfwps_max = {fwps_max}\nbuffers = {BUFFERS}\n\
             [[port]]\nname = \"{PORT}\"\ndevice = \"{PORT}\"\naddresses = [\"{NODE_ADDRESS}/24\"]\n{second}{tenants}",
            path("state"),
            path("pinion.sock"),
            program("pinion-builder"),
            tuning(),
            cores.node_config()
        );
        fs::write(path("piniond.toml"), text).context("the node's configuration")?;
        Ok(NodeConfig::read(&path("piniond.toml"))?)
    }

    /// Applies a manifest.
    pub(crate) fn apply(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let path = self.config.state_dir.join("manifest.toml");
        fs::write(&path, manifest.text()).with_context(|| path.display().to_string())?;
        Cli::new(&self.config.socket).apply(&path);
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let (Some(threads), Some(served)) = (self.threads.take(), self.served.take()) {
            let _ = threads.block_on(served);
            // A change in progress must end first, as it needs the node.
            drop(threads);
        }
    }
}

/// A node with a port for new clients.
pub(crate) struct HostedNode {
    rounds: Rounds,
    answer: Answer,
    cache: u32,
    host: Host,
}

impl HostedNode {
    /// Starts a node with room for so many FWPs, its service in force and its cache full.
    pub(crate) fn start(cores: Cores, fwps_max: usize, service: &Service<'_>) -> anyhow::Result<Self> {
        Self::start_beside(cores, fwps_max, service, Beside::default())
    }

    /// As [`Self::start`], with additions.
    pub(crate) fn start_beside(
        cores: Cores,
        fwps_max: usize,
        service: &Service<'_>,
        beside: Beside,
    ) -> anyhow::Result<Self> {
        let mut rounds = None;
        let host = Host::start(cores, fwps_max, beside, |pool| {
            let (port, theirs) = newcomers(pool);
            rounds = Some(theirs);
            Box::new(port)
        })?;
        let rounds = rounds.context("the node has opened its port")?;
        let hosted = Self { rounds, answer: service.answer, cache: service.cache, host };
        hosted.host.apply(&service.manifest())?;
        hosted.await_rest(0)?;
        Ok(hosted)
    }

    /// Sends so many new clients' frames, each for an instance of its own, and fails unless each got one, and its reply.
    pub(crate) fn serve(&mut self, clients: usize, pace: Pace) -> anyhow::Result<Tally> {
        let tally = self.offer(clients, pace)?;
        tally.check()?;
        Ok(tally)
    }

    /// As [`Self::serve`], but clients may be lost. Each client with a reply must have had an instance of its own.
    pub(crate) fn offer(&mut self, clients: usize, pace: Pace) -> anyhow::Result<Tally> {
        let before = self.latencies();
        let tally = self.rounds.run(clients, pace, self.answer)?;
        let activated = self.latencies().chain_activation.since(&before.chain_activation).count();
        ensure!(
            activated >= tally.times.count(),
            "{} clients were answered by {activated} instances: some shared one",
            tally.times.count()
        );
        Ok(tally)
    }

    /// Sends so many clients' frames; some clients may share an instance.
    pub(crate) fn ask(&mut self, clients: usize, pace: Pace) -> anyhow::Result<Tally> {
        let tally = self.rounds.run(clients, pace, self.answer)?;
        tally.check()?;
        Ok(tally)
    }

    /// Returns the status of its tenants.
    pub(crate) fn tenants(&self) -> Vec<TenantStatus> {
        self.host.data_plane().status().tenants
    }

    /// Returns what the node itself has measured.
    pub(crate) fn latencies(&self) -> NodeLatencies {
        self.host.data_plane().latencies()
    }

    /// Returns the status of its chain.
    pub(crate) fn chain(&self) -> anyhow::Result<ChainStatus> {
        let status = self.host.data_plane().status();
        if let Some(warning) = status.warnings.iter().find(|warning| !warning.contains("max_map_count")) {
            anyhow::bail!("the node warns: {warning}");
        }
        let of_service = |chain: &ChainStatus| chain.tenant.as_str() == TENANT;
        status.chains.into_iter().find(of_service).context("the node has no chain")
    }

    /// Waits until the cache is full and at most so many instances serve clients.
    pub(crate) fn await_rest(&self, serving_max: u32) -> anyhow::Result<()> {
        let deadline = Instant::now() + REST_MAX;
        loop {
            let chain = self.chain()?;
            if chain.ready >= self.cache && chain.active <= serving_max {
                thread::sleep(SETTLING);
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "after {REST_MAX:?} {} of {} instances are ready, and {} serve clients; the last failure: {:?}",
                chain.ready,
                self.cache,
                chain.active,
                chain.last_failure
            );
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// The most instances that a chain may keep ready.
pub(crate) const CACHE_MAX: u32 = CACHE_INSTANCES_MAX;

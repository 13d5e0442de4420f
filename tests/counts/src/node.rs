//! Parts of a node on one thread: engines, templates, FWPs, MMA and worker, put together as the runtime does, with small reservations.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use pinion_builder::build::{Built, build_with};
use pinion_builder::initialise::Wishes;
use pinion_guest::settings;
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::wiring::{Endpoint, Wiring};
use pinion_runtime::fwp::granted::Granted;
use pinion_runtime::fwp::imports;
use pinion_runtime::fwp::template::{Loaded, Template};
use pinion_runtime::fwp::{Fwp, NewFwpSite, Preparation};
use pinion_runtime::instruments::activation::Activation;
use pinion_runtime::instruments::log::{LogHub, Origin, hub};
use pinion_runtime::memory::spare_pages::SparePages;
use pinion_runtime::preemption::{Clock, RunSlot, TickUrgency};
use pinion_runtime::state::Grants;
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::templates::native_code;
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::scheduling_params::SchedulingParams;
use wasmtime::{Config, Engine, InstanceAllocationStrategy};

/// Address space for each linear memory, and what a guest may have of it.
const MEMORY_BYTES_MAX: usize = 4 << 20;
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// No turn is preempted in a scene: what would be counted then depends on the time.
const QUANTUM: Duration = Duration::from_secs(3600);

/// The functions that scenes run, with their configurations.
const FUNCTIONS: [(&str, &str); 11] = [
    (
        "packet_filter",
        "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\nallow udp 4789 to 10.200.0.0/16\ndefault deny",
    ),
    ("macswap", ""),
    ("balancer", "backend a 02:00:00:00:00:0a\nbackend b 02:00:00:00:00:0b\nplaces 997\nconnections 1000\n"),
    ("firewall", "inside = [\"10.0.0.0/8\"]\nconnections_max = 1024\n[[rule]]\naction = \"allow\"\n"),
    ("http_server", "page / hello"),
    ("icmp_echo", ""),
    (
        "lpm_router",
        "mac = \"02:00:00:00:00:01\"\naddresses = [\"192.0.2.1\"]\nroutes = \"\"\"\n10.0.0.0/8 lan\n\"\"\"\n\
         [[next_hop]]\nname = \"lan\"\nmac = \"02:00:00:00:00:02\"\n",
    ),
    ("monitor", "every 10s top 5"),
    ("nat", "inside = [\"10.0.0.0/8\"]\noutside = [\"203.0.113.1\"]\nmappings_max = 1024\n"),
    ("tcp_echo", ""),
    ("udp_echo", ""),
];

fn config() -> anyhow::Result<Config> {
    let mut config = settings::config();
    config.memory_reservation(MEMORY_BYTES_MAX as u64).memory_guard_size(64 << 10);
    config.target(TARGET).map_err(|error| anyhow!("{error:#}"))?;
    Ok(config)
}

fn engine(fwps_max: u32) -> Engine {
    let mut pool = settings::pool(fwps_max);
    pool.max_memory_size(MEMORY_BYTES_MAX).max_unused_warm_slots(64).async_stack_keep_resident(8 << 10);
    let mut config = config().expect("settings that the builder took");
    config
        .enable_compiler(false)
        .async_stack_zeroing(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config).expect("room for small reservations")
}

fn files_of(folder: &Path, function: &str) -> [PathBuf; 2] {
    ["facts", "native"].map(|kind| folder.join(format!("{function}.{kind}")))
}

/// Builds a template of each function into a folder.
pub(crate) fn build_templates(folder: &Path) -> anyhow::Result<()> {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/wasm32-wasip1/guest");
    for (function, configuration) in FUNCTIONS {
        let path = guests.join(format!("{function}.wasm"));
        let module = fs::read(&path).with_context(|| format!("{}: `make guests` builds it", path.display()))?;
        let wishes = Wishes {
            config: configuration.as_bytes().into(),
            files: None,
            memory_bytes_max: MEMORY_BYTES_MAX as u64,
            fields: Arc::new([]),
            keys: Arc::new([]),
            models: Arc::new([]),
        };
        let Built { facts, artifact } = build_with(config()?, &module, &wishes, |_| ())?;
        let [facts_path, native_path] = files_of(folder, function);
        fs::write(facts_path, serde_json::to_vec(&facts)?)?;
        fs::write(native_path, artifact)?;
    }
    Ok(())
}

/// An engine, its clock, and the template of one function.
pub(crate) struct House {
    template: Arc<Template>,
    engine: Engine,
    clock: Clock,
    /// Where instances are prepared: a thread of its own on a node, this one here.
    launchers: RunSlot,
    log: LogHub,
    spare: SparePages,
}

/// An FWP at its first wait, and what the MMA knows it by.
pub(crate) type Prepared = (Box<Fwp>, Box<Endpoint>);

impl House {
    pub(crate) fn new(folder: &Path, function: &str, fwps_max: u32) -> Self {
        let engine = engine(fwps_max);
        let [facts, native] = files_of(folder, function);
        let facts = serde_json::from_slice(&fs::read(facts).expect("facts")).expect("facts that were written");
        let module =
            native_code::load(&engine, File::open(native).expect("native code")).expect("code for this engine");
        let linker = imports::linker(&engine).expect("the node's imports");
        let (_, configuration) =
            FUNCTIONS.into_iter().find(|(name, _)| *name == function).expect("a function of these");
        let loaded = Loaded::new((module, facts));
        let template = Template::new(&linker, &loaded, configuration.as_bytes().into(), None, MEMORY_BYTES_MAX);
        let template = template.expect("a template that fits");
        let mut clock = Clock::new(QUANTUM);
        let launchers = clock.slot(&engine, TickUrgency::None);
        let (log, _) = hub(Arc::default());
        Self { template, engine, clock, launchers, log, spare: SparePages::new(Reset::Unmap) }
    }

    /// The clock's slot of a worker's thread.
    pub(crate) fn worker_slot(&mut self) -> RunSlot {
        self.clock.slot(&self.engine, TickUrgency::Others)
    }

    pub(crate) fn prepare(&mut self, index: u32, wiring: Wiring) -> Prepared {
        self.prepare_timed(index, wiring, None)
    }

    /// As [`Self::prepare`], of an instance that records when it first serves a client.
    pub(crate) fn prepare_timed(&mut self, index: u32, wiring: Wiring, activation: Option<Activation>) -> Prepared {
        let log = self.log.log(origin());
        let site = NewFwpSite {
            id: FwpId { index, generation: 0 },
            worker: WorkerIndex(0),
            wiring,
            clock: self.launchers.clone(),
            memory: MemoryAccounts::default(),
            activation,
            terms: SchedulingParams::default(),
            state: Grants::default(),
            granted: Granted::default(),
            keep_alives: None,
            spare: self.spare.clone(),
        };
        Preparation::begin(&self.template, site, log).finish().expect("a function that comes to its first wait")
    }

    pub(crate) fn take_apart(&mut self, (fwp, endpoint): Prepared) {
        self.spare.left(fwp.dismantle(endpoint));
    }
}

fn origin() -> Origin {
    let (tenant, chain, module) =
        ("count".parse().expect("a name"), "count".parse().expect("a name"), "count".parse().expect("a name"));
    Origin { tenant, chain, stage: 0, module, fwp: "count".to_owned() }
}

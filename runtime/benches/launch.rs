//! Cost of preparing an FWP up to its first wait, and of dismantling it, in nanoseconds: `cargo bench -p pinion-runtime --bench launch --
//! 64 2000` for that many FWPs alive at once.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::wiring::{Edge, Endpoint, Wiring};
use pinion_runtime::fwp::granted::Granted;
use pinion_runtime::fwp::imports;
use pinion_runtime::fwp::template::{Loaded, Template};
use pinion_runtime::fwp::{Fwp, NewFwpSite, Preparation};
use pinion_runtime::instruments::log::{LogHub, Origin, hub};
use pinion_runtime::memory::spare_pages::SparePages;
use pinion_runtime::preemption::{Clock, RunSlot, TickUrgency};
use pinion_runtime::state::Grants;
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::templates::{engine, native_code};
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::scheduling_params::SchedulingParams;
use wasmtime::Engine;

const MEMORY_BYTES_MAX: usize = 16 << 20;
const POLICY: &str = "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\n\
                      allow udp 4789 to 10.200.0.0/16\ndefault deny";
const ROUNDS: usize = 20_000;

fn template(engine: &Engine, module: &str) -> Arc<Template> {
    let bytes = std::fs::read(module).unwrap_or_else(|error| panic!("{module}: {error}; `make guests` builds it"));
    let config: Arc<[u8]> = POLICY.as_bytes().into();
    let wishes = Wishes {
        config: Arc::clone(&config),
        files: None,
        memory_bytes_max: MEMORY_BYTES_MAX as u64,
        fields: Arc::new([]),
        keys: Arc::new([]),
        models: Arc::new([]),
    };
    let Built { facts, artifact } = build(&bytes, &wishes, |_| ()).expect("a module that is taken");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), artifact).expect("room for the artifact");
    let module = native_code::load(engine, File::open(file.path()).expect("just written")).expect("just compiled");
    let linker = imports::linker(engine).expect("the node's imports");
    Template::new(&linker, &Loaded::new((module, facts)), config, None, MEMORY_BYTES_MAX).expect("a template that fits")
}

struct Launchpad<'a> {
    template: &'a Arc<Template>,
    clock: &'a RunSlot,
    log: LogHub,
    spare: SparePages,
}

impl Launchpad<'_> {
    fn launch(&mut self, index: u32) -> (Box<Fwp>, Box<Endpoint>) {
        let log = self.log.log(origin());
        let wiring = Wiring::to(Edge::EgressWhereItCame);
        let (id, memory) = (FwpId { index, generation: 0 }, MemoryAccounts::default());
        let site = NewFwpSite {
            id,
            worker: WorkerIndex(0),
            wiring,
            clock: self.clock.clone(),
            memory,
            activation: None,
            terms: SchedulingParams::default(),
            state: Grants::default(),
            granted: Granted::default(),
            keep_alives: None,
            spare: self.spare.clone(),
        };
        Preparation::begin(self.template, site, log).finish().expect("a function that comes to its first wait")
    }

    fn land(&mut self, (fwp, endpoint): (Box<Fwp>, Box<Endpoint>)) {
        self.spare.left(fwp.dismantle(endpoint));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/wasm32-wasip1/guest/packet_filter.wasm");
    let module = words.iter().position(|word| word == "--module").and_then(|at| words.get(at + 1));
    let module = module.map_or(beside, String::as_str);
    println!("{:>6} {:>9} {:>9}", "FWPs", "prepare", "dismantle");
    for fwps in if numbers.is_empty() { vec![1, 64, 2000] } else { numbers } {
        let engine = engine::engine(fwps + 1, Reset::Overwrite).expect("address space for the FWPs");
        let template = template(&engine, module);
        let mut clock = Clock::new(Duration::from_micros(100));
        let slot = clock.slot(&engine, TickUrgency::Others);
        let (log, _drain) = hub(Arc::default());
        let spare = SparePages::new(Reset::Overwrite);
        let mut pad = Launchpad { template: &template, clock: &slot, log, spare };
        let mut alive: Vec<_> = (0..fwps as u32).map(|index| Some(pad.launch(index))).collect();
        let (mut prepare, mut dismantle) = (Duration::ZERO, Duration::ZERO);
        for round in 0..ROUNDS {
            let place = round % fwps;
            let started = Instant::now();
            pad.land(alive[place].take().expect("all alive"));
            let between = Instant::now();
            alive[place] = Some(pad.launch(place as u32));
            prepare += between.elapsed();
            dismantle += between - started;
        }
        let ns = |time: Duration| time.as_nanos() as f64 / ROUNDS as f64;
        println!("{fwps:>6} {:>9.0} {:>9.0}", ns(prepare), ns(dismantle));
        alive.into_iter().flatten().for_each(|launched| pad.land(launched));
    }
}

fn origin() -> Origin {
    let (tenant, chain, module) = ("test".parse().unwrap(), "test".parse().unwrap(), "test".parse().unwrap());
    Origin { tenant, chain, stage: 0, module, fwp: "test".to_owned() }
}

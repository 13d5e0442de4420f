//! Cost of a packet for MMA and worker when each packet is for another FWP, by the number of FWPs, in nanoseconds, on one core: `cargo
//! bench -p pinion-runtime --bench turns -- 1 64 2000`. The module is the sample packet-filter, or the file named by `--module`. The
//! gateway is simulated, and not counted. See docs/performance.md, "Where the nanoseconds go".
#![allow(unsafe_code)] // Simulates the gateway; its buffers are memory of its own.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::link::{GatewayLink, Inbound, link};
use pinion_mma::mover::{Mma, MmaCommand};
use pinion_mma::notify::ReadyQueue;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::wiring::{Edge, Wiring};
use pinion_runtime::clock::stopwatch;
use pinion_runtime::fwp::granted::Granted;
use pinion_runtime::fwp::imports;
use pinion_runtime::fwp::template::{Loaded, Template};
use pinion_runtime::fwp::{Fwp, NewFwpSite, Preparation};
use pinion_runtime::instruments::log::{Origin, hub};
use pinion_runtime::memory::spare_pages::SparePages;
use pinion_runtime::preemption::{Clock, RunSlot, TickUrgency};
use pinion_runtime::state::Grants;
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::templates::{engine, native_code};
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::scheduling_params::SchedulingParams;
use pinion_runtime::worker::{Worker, WorkerCommand};
use wasmtime::Engine;

/// Frames under way at once, as many as a gateway's polls pass on.
const BURST: usize = 64;
const BUFFERS: usize = 1024;
const BUFFER_BYTES: usize = 2176;
const PACKETS: usize = 1_000_000;
const MEMORY_BYTES_MAX: usize = 16 << 20;
const POLICY: &str = "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\n\
                      allow udp 4789 to 10.200.0.0/16\ndefault deny";

/// Returns a frame that the policy accepts.
fn frame() -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..14].copy_from_slice(&[0x08, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 100, 0, 1, 10, 200, 0, 1]);
    frame[34..40].copy_from_slice(&[0x0f, 0xa0, 0x12, 0xb5, 0, 30]);
    frame
}

/// MMA and worker with their FWPs, on the calling thread.
struct House {
    mma: Mma,
    worker: Worker,
    gateway: GatewayLink,
    spare: Vec<Buffer>,
}

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

fn buffer() -> Buffer {
    let bytes = Box::leak(vec![0_u8; BUFFER_BYTES].into_boxed_slice());
    // SAFETY: leaked, and not used elsewhere.
    unsafe { Buffer::from_raw_parts(NonNull::from(&mut bytes[0]), BUFFER_BYTES as u16, NonNull::dangling()) }
}

impl House {
    fn new(fwps: usize, module: &str) -> Self {
        let engine = engine::engine(fwps, Reset::Overwrite).expect("address space for the FWPs");
        let template = Arc::new(template(&engine, module));
        let mut clock = Clock::new(Duration::from_micros(100));
        let (slot, launchers) = (clock.slot(&engine, TickUrgency::Others), clock.slot(&engine, TickUrgency::None));
        let [mut inputs, mut outputs] = [(); 2].map(|()| ReadyQueue::new(fwps, Doorbell::default()));
        let (to_worker_queue, to_mma_queue) = (inputs.notifier_of_oneself(), outputs.notifier_of_oneself());
        let (gateway, mma_link) = link(BUFFERS, Doorbell::default(), Doorbell::default());
        let (attach, to_mma) = crossbeam_channel::unbounded();
        let (adopt, to_worker) = crossbeam_channel::unbounded();
        let (from_mma, _) = crossbeam_channel::unbounded();
        let (from_worker, _) = crossbeam_channel::unbounded();
        let mma = Mma::new(fwps, outputs, vec![to_worker_queue], mma_link, to_mma, from_mma, stopwatch());
        let worker = Worker::new(fwps, inputs, vec![to_mma_queue], to_worker, from_worker, slot);
        // By another thread, as in a node.
        let launch = move || launch(fwps, &template, &launchers);
        for (fwp, endpoint) in std::thread::spawn(launch).join().expect("FWPs that come to their first wait") {
            adopt.send(WorkerCommand::Adopt(fwp)).expect("the worker is there");
            attach.send(MmaCommand::Attach(endpoint)).expect("the MMA is there");
        }
        Self { mma, worker, gateway, spare: (0..BUFFERS / 2).map(|_| buffer()).collect() }
    }

    fn inject(&mut self, target: usize) {
        let mut buffer = self.spare.pop().expect("more buffers than frames under way");
        let frame = frame();
        buffer.bytes_mut(frame.len() as u32).copy_from_slice(&frame);
        let target = FwpId { index: target as u32, generation: 0 };
        let inbound = Inbound { frame: Frame::new(buffer, frame.len() as u32), target };
        assert!(self.gateway.inbound.stage(inbound).is_ok(), "the link has room");
    }

    /// Takes back the frames that came out; returns their number.
    fn take_back(&mut self) -> usize {
        let spare = &mut self.spare;
        self.gateway.spent.pop_batch(usize::MAX, |buffer| spare.push(buffer));
        self.gateway.outbound.pop_batch(usize::MAX, |out| spare.push(out.frame.into_buffer()))
    }
}

type Launched = (Box<Fwp>, Box<pinion_mma::wiring::Endpoint>);

fn launch(fwps: usize, template: &Arc<Template>, clock: &RunSlot) -> Vec<Launched> {
    let (log, _) = hub(Arc::default());
    let spare = SparePages::new(Reset::Overwrite);
    let prepare = |index| {
        let log = log.log(origin());
        let wiring = Wiring::to(Edge::EgressWhereItCame);
        let memory = MemoryAccounts::default();
        let site = NewFwpSite {
            id: FwpId { index, generation: 0 },
            worker: WorkerIndex(0),
            wiring,
            clock: clock.clone(),
            memory,
            activation: None,
            terms: SchedulingParams::default(),
            state: Grants::default(),
            granted: Granted::default(),
            keep_alives: None,
            spare: spare.clone(),
        };
        Preparation::begin(template, site, log).finish().expect("a function that comes to its first wait")
    };
    (0..fwps as u32).map(prepare).collect()
}

/// Time spent, by stage.
#[derive(Default)]
struct Spent {
    deliver: Duration,
    turns: Duration,
    leave: Duration,
}

fn timed<R>(sum: &mut Duration, work: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = work();
    *sum += started.elapsed();
    result
}

/// Sends packets through the FWPs in turn, a burst at a time.
fn measure(house: &mut House, fwps: usize, packets: usize) -> Spent {
    let mut spent = Spent::default();
    let mut next = 0;
    for _ in 0..packets / BURST.min(fwps) {
        let burst = BURST.min(fwps);
        for _ in 0..burst {
            house.inject(next);
            next = (next + 1) % fwps;
        }
        house.gateway.inbound.publish();
        timed(&mut spent.deliver, || house.mma.poll());
        timed(&mut spent.turns, || while house.worker.poll() > 0 {});
        timed(&mut spent.leave, || house.mma.poll());
        assert_eq!(house.take_back(), burst, "every frame comes out again");
    }
    spent
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/wasm32-wasip1/guest/packet_filter.wasm");
    let module = words.iter().position(|word| word == "--module").and_then(|at| words.get(at + 1));
    let module = module.map_or(beside, String::as_str);
    println!("{:>6} {:>9} {:>9} {:>9} {:>9}", "FWPs", "deliver", "turn", "leave", "all");
    for fwps in if numbers.is_empty() { vec![1, 64, 2000] } else { numbers } {
        let mut house = House::new(fwps, module);
        measure(&mut house, fwps, PACKETS / 4);
        let Spent { deliver, turns, leave } = measure(&mut house, fwps, PACKETS);
        let ns = |time: Duration| time.as_nanos() as f64 / PACKETS as f64;
        let all = ns(deliver + turns + leave);
        println!("{fwps:>6} {:>9.1} {:>9.1} {:>9.1} {all:>9.1}", ns(deliver), ns(turns), ns(leave));
        // Its memory is never unmapped here: that is the launcher's task.
        std::mem::forget(house);
    }
}

fn origin() -> Origin {
    let (tenant, chain, module) = ("test".parse().unwrap(), "test".parse().unwrap(), "test".parse().unwrap());
    Origin { tenant, chain, stage: 0, module, fwp: "test".to_owned() }
}

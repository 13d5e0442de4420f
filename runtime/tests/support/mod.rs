//! One FWP, its worker's half and a real MMA, without gateway, threads or control plane.

#![allow(dead_code)] // Each test binary uses a part of it.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_control::journal::{Journal, LogFilter, LogLine, Reader};
use pinion_gateway::fwp_times::KeepAlives;
use pinion_guest::files::Bundle;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::link::{GatewayLink, Inbound, link};
use pinion_mma::mover::{Mma, MmaCommand, MmaEvent};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::notify::{Notifier, ReadyQueue};
use pinion_mma::wiring::{Edge, Wiring};
use pinion_runtime::clock::stopwatch;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::granted::Granted;
use pinion_runtime::fwp::imports;
use pinion_runtime::fwp::inference::ModelGrants;
use pinion_runtime::fwp::keys::KeyGrants;
use pinion_runtime::fwp::template::{Loaded, Template};
use pinion_runtime::fwp::{Fwp, FwpContext, NewFwpSite, Preparation, Turn};
use pinion_runtime::instruments::activation::Activation;
use pinion_runtime::instruments::log::{LogDrain, LogHub, Origin, hub};
use pinion_runtime::memory::spare_pages::SparePages;
use pinion_runtime::offload::OffloadPort;
use pinion_runtime::preemption::{Clock, RunSlot, TickUrgency, TickerCore};
use pinion_runtime::state::Grants;
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::templates::{engine, native_code};
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::scheduling_params::SchedulingParams;
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use wasmtime::{Engine, Linker};

pub(crate) const QUANTUM: Duration = Duration::from_micros(100);
pub(crate) const ID: FwpId = FwpId { index: 0, generation: 0 };

/// See the module.
pub(crate) struct Bench {
    engine: Engine,
    /// The imports of templates to be made.
    pub(crate) linker: Linker<FwpContext>,
    /// The MMA's notifications, until a worker takes them over.
    inputs: Option<ReadyQueue>,
    outputs: RefCell<Notifier>,
    /// The worker's notifications to the MMA, until there is a worker.
    workers: Option<Notifier>,
    pub(crate) clock: RunSlot,
    /// For the next FWP to be launched.
    pub(crate) activation: Option<Activation>,
    /// For FWPs to be launched.
    pub(crate) terms: SchedulingParams,
    /// State that FWPs to be launched may use, by these names.
    pub(crate) state: Grants,
    /// Models that FWPs to be launched may run, and their names.
    pub(crate) models: ModelGrants,
    pub(crate) model_names: Arc<[String]>,
    /// Private keys that FWPs to be launched may use, and their names.
    pub(crate) keys: KeyGrants,
    pub(crate) key_names: Arc<[String]>,
    /// What they submit jobs by.
    pub(crate) offload: Option<OffloadPort>,
    /// Where FWPs set until when they stay alive.
    pub(crate) keep_alives: Option<Arc<KeepAlives>>,
    spare: SparePages,
    pub(crate) fields: Arc<[String]>,
    pub(crate) mma: Mma,
    pub(crate) gateway: GatewayLink,
    commands: Sender<MmaCommand>,
    events: Receiver<MmaEvent>,
    log: LogHub,
    logged: Option<(LogDrain, Arc<Journal>)>,
    stop: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
    ticker_bell: Doorbell,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_reset(Reset::Overwrite)
    }

    /// Returns a bench with an engine that resets memory in this way.
    pub(crate) fn with_reset(reset: Reset) -> Self {
        let engine = engine::engine(4, reset).unwrap();
        let mut clock = Clock::new(QUANTUM);
        let (slot, ticker_bell) = (clock.slot(&engine, TickUrgency::Others), clock.bell());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let ticker = std::thread::spawn(move || clock.wind_up().run(TickerCore::Shared, &stopped));
        let [mut inputs, mut outputs] = [(); 2].map(|()| ReadyQueue::new(4, Doorbell::default()));
        let (of_bench, of_worker) = (outputs.notifier(), outputs.notifier());
        let (gateway, mma_link) = link(8, Doorbell::default(), Doorbell::default());
        let (commands, reads) = crossbeam_channel::bounded(8);
        let (reports, events) = crossbeam_channel::bounded(8);
        let mma = Mma::new(4, outputs, vec![inputs.notifier()], mma_link, reads, reports, stopwatch());
        let (clock, ticker) = (slot, Some(ticker));
        let journal = Arc::<Journal>::default();
        let (log, drain) = hub(Arc::clone(&journal));
        let linker = imports::linker(&engine).unwrap();
        Self {
            engine,
            linker,
            inputs: Some(inputs),
            outputs: RefCell::new(of_bench),
            workers: Some(of_worker),
            clock,
            activation: None,
            terms: SchedulingParams::default(),
            state: Grants::default(),
            models: ModelGrants::default(),
            model_names: Arc::new([]),
            keys: KeyGrants::default(),
            key_names: Arc::new([]),
            offload: None,
            keep_alives: None,
            spare: SparePages::new(reset),
            fields: Arc::new([]),
            mma,
            gateway,
            commands,
            events,
            log,
            logged: Some((drain, journal)),
            stop,
            ticker,
            ticker_bell,
        }
    }

    /// Launches an FWP of a module in text form, attached to the MMA.
    pub(crate) fn launch(&mut self, wat: &str, memory_bytes_max: usize) -> Result<Fwp, EndReason> {
        self.launch_under(wat, memory_bytes_max, MemoryAccounts::default())
    }

    /// The same, with its memory charged to these accounts.
    pub(crate) fn launch_under(
        &mut self,
        wat: &str,
        memory_bytes_max: usize,
        memory: MemoryAccounts,
    ) -> Result<Fwp, EndReason> {
        let template = self.template(wat, memory_bytes_max)?;
        self.launch_from(&template, memory)
    }

    /// The same, from a template.
    pub(crate) fn launch_from(&mut self, template: &Arc<Template>, memory: MemoryAccounts) -> Result<Fwp, EndReason> {
        let (fwp, endpoint) = self.preparation(template, memory).finish()?;
        self.commands.send(MmaCommand::Attach(endpoint)).unwrap();
        self.mma.poll();
        Ok(*fwp)
    }

    /// Begins to prepare an FWP.
    pub(crate) fn preparation(&mut self, template: &Arc<Template>, memory: MemoryAccounts) -> Preparation {
        let wiring = Wiring::to(Edge::EgressWhereItCame);
        let activation = self.activation.take();
        let site = NewFwpSite {
            id: ID,
            worker: WorkerIndex(0),
            wiring,
            clock: self.clock.clone(),
            memory,
            activation,
            terms: self.terms.clone(),
            state: self.state.clone(),
            granted: Granted::new(&self.keys, &self.models, self.offload.as_ref(), (ID, &self.terms)),
            keep_alives: self.keep_alives.clone(),
            spare: self.spare.clone(),
        };
        Preparation::begin(template, site, self.log.log(origin()))
    }

    /// Builds a template of a module in text form.
    pub(crate) fn template(&self, wat: &str, memory_bytes_max: usize) -> Result<Arc<Template>, EndReason> {
        self.template_with(wat, None, memory_bytes_max)
    }

    /// The same, with files.
    pub(crate) fn template_with(
        &self,
        wat: &str,
        files: Option<Arc<Bundle>>,
        memory_bytes_max: usize,
    ) -> Result<Arc<Template>, EndReason> {
        let wishes = Wishes {
            config: Arc::new([]),
            files: files.clone(),
            memory_bytes_max: memory_bytes_max as u64,
            fields: Arc::clone(&self.fields),
            keys: Arc::clone(&self.key_names),
            models: Arc::clone(&self.model_names),
        };
        let built = build(&wat::parse_str(wat).unwrap(), &wishes, |_| ());
        let Built { facts, artifact } = built.map_err(|refused| EndReason::NotInstantiated(refused.to_string()))?;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), artifact).unwrap();
        let module = native_code::load(&self.engine, std::fs::File::open(file.path()).unwrap()).unwrap();
        Ok(Template::new(&self.linker, &Loaded::new((module, facts)), Arc::new([]), files, memory_bytes_max).unwrap())
    }

    /// Ends an FWP as the launcher does: only when the MMA has released it.
    pub(crate) fn dismantle(&mut self, fwp: Fwp) {
        self.commands.send(MmaCommand::Detach(ID)).unwrap();
        self.mma.poll();
        let MmaEvent::Detached(endpoint) = self.events.try_recv().unwrap();
        fwp.dismantle(endpoint);
    }

    /// Gives the FWP a turn, as its worker does.
    pub(crate) fn resume(&self, fwp: &mut Fwp) -> Turn {
        let started_ns = self.clock.begin();
        let (turn, _) = fwp.resume(&self.clock, started_ns);
        self.clock.end();
        let has_news = fwp.take_providing().is_some_and(|providing| providing.is_news);
        if has_news || matches!(turn, Turn::Waiting { sent: 1.. } | Turn::Ended(_)) {
            self.outputs.borrow_mut().raise(ID);
        }
        turn
    }

    /// Lets an FWP run until it ends, in as many turns as that takes.
    #[track_caller]
    pub(crate) fn resume_to_end(&self, fwp: &mut Fwp) -> EndReason {
        loop {
            match self.resume(fwp) {
                Turn::Ended(reason) => return reason,
                Turn::Preempted => {}
                Turn::Waiting { .. } => panic!("it waits"),
            }
        }
    }

    /// Ends the bench, and returns what its FWPs have logged.
    pub(crate) fn logged(mut self) -> Vec<LogLine> {
        let (drain, journal) = self.logged.take().expect("a bench is ended once");
        self.log.end();
        drain.run();
        Reader::new(journal, LogFilter::default()).read()
    }

    /// Returns a worker without a thread, its commands, and its events.
    pub(crate) fn worker(&mut self) -> (Worker, Sender<WorkerCommand>, Receiver<WorkerEvent>) {
        let (commands, reads) = crossbeam_channel::bounded(8);
        let (reports, events) = crossbeam_channel::bounded(8);
        let inputs = self.inputs.take().expect("a bench has one worker");
        let mmas = self.workers.take().into_iter().collect();
        let worker = Worker::new(4, inputs, mmas, reads, reports, self.clock.clone());
        (worker, commands, events)
    }

    /// Passes the MMA a frame for the FWP.
    pub(crate) fn send(&mut self, buffer: Buffer, len: u32) {
        self.gateway.inbound.push(Inbound { frame: Frame::new(buffer, len), target: ID }).unwrap();
        self.mma.poll();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.ticker_bell.ring();
        if let Some(ticker) = self.ticker.take() {
            ticker.join().unwrap();
        }
    }
}

/// Makes a worker panic: there is no FWP of this index.
pub(crate) const UNKNOWN: WorkerCommand = WorkerCommand::Release(FwpId { index: u32::MAX, generation: 0 });

/// Returns a separate buffer, for a test that ends before the process does.
#[allow(unsafe_code)]
pub(crate) fn buffer() -> Buffer {
    let bytes = Box::leak(vec![0_u8; 2048].into_boxed_slice());
    // SAFETY: leaked, and not used elsewhere.
    unsafe { Buffer::from_raw_parts(NonNull::from(&mut bytes[0]), 2048, NonNull::dangling()) }
}

fn origin() -> Origin {
    let (tenant, chain, module) = ("test".parse().unwrap(), "test".parse().unwrap(), "test".parse().unwrap());
    Origin { tenant, chain, stage: 0, module, fwp: "test".to_owned() }
}

//! Which functions are ended for exceeding their budget, and which are not. The functions run on a real worker and are judged by their
//! measured CPU time, so that delays by the machine count on both sides.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use pinion_control::model::Scheduling;
use pinion_mma::accounts::counters::FwpCounters;
use pinion_mma::buffer::Buffer;
use pinion_mma::link::Outbound;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::template::Template;
use pinion_runtime::scheduler::Overrun;
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::meters::ChainMeters;
use pinion_runtime::tenants::scheduling_params::{CpuGrants, Tenants};
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use support::{Bench, ID, QUANTUM, buffer};

const ECHO: &str = include_str!("support/echo.wat");
const MEMORY_BYTES_MAX: usize = 1 << 20;
/// The limit of a batch: some quanta, and a part of one.
const LIMIT_US: u32 = 1_250;
const LIMIT_NS: u64 = LIMIT_US as u64 * 1_000;
const KILLS: usize = 60;
const BATCHES: usize = 300;

/// Returns a guest that is busy for this long, by its clock, with each batch before it sends the packets back.
fn busy_for(ns: u64) -> String {
    let wait = r#"(import "pinion" "wait" (func $wait (result i32)))"#;
    let taken = "(local.set $left (call $wait))";
    let busy = format!(
        r#"{wait} (import "pinion" "clock" (func $clock (result i64)))
           (func $work (local $start i64)
             (local.set $start (call $clock))
             (loop $on (br_if $on (i64.lt_s (i64.sub (call $clock) (local.get $start)) (i64.const {ns})))))"#
    );
    ECHO.replace(wait, &busy).replace(taken, &format!("{taken} (if (local.get $left) (then (call $work)))"))
}

/// A worker with one FWP that has a limit, and is made again when it has been ended.
struct House {
    bench: Bench,
    template: Arc<Template>,
    worker: Worker,
    commands: Sender<WorkerCommand>,
    events: Receiver<WorkerEvent>,
    counters: Arc<FwpCounters>,
    spare: Vec<Buffer>,
}

/// The outcome of a batch.
enum Batch {
    /// The batch was sent back, after this CPU time.
    Answered(u64),
    /// Its FWP was ended.
    Ended(End),
}

struct End {
    reason: EndReason,
    /// CPU time of the batch before its last turn, and after it.
    before_ns: u64,
    after_ns: u64,
}

impl House {
    fn new(wat: &str) -> Self {
        let mut bench = Bench::new();
        let scheduling = Scheduling { cpu_per_batch_us: Some(LIMIT_US), ..Scheduling::default() };
        let terms =
            Tenants::new(CpuGrants::default()).terms(&"t".parse().unwrap(), &scheduling, Arc::new(ChainMeters::new(1)));
        bench.terms = terms.unwrap();
        let template = bench.template(wat, MEMORY_BYTES_MAX).unwrap();
        let (worker, commands, events) = bench.worker();
        let mut house = Self { bench, template, worker, commands, events, counters: Arc::default(), spare: Vec::new() };
        house.launch();
        house
    }

    fn launch(&mut self) {
        let fwp = self.bench.launch_from(&self.template, MemoryAccounts::default()).unwrap();
        self.counters = Arc::clone(fwp.counters());
        self.commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        self.worker.poll();
    }

    fn take_back(&mut self) {
        self.commands.send(WorkerCommand::Release(ID)).unwrap();
        self.worker.poll();
        let Ok(WorkerEvent::Released(fwp)) = self.events.try_recv() else { panic!("it was not released") };
        self.bench.dismantle(*fwp);
    }

    fn cpu_ns(&self) -> u64 {
        self.counters.guest.cpu_ns.value()
    }

    /// Gives the FWP a packet, and turns until it has ended, or has answered and waits. If it was preempted between its answer and its
    /// wait, the batch still goes on.
    fn batch(&mut self) -> Batch {
        let (given_ns, start) = (self.cpu_ns(), Instant::now());
        self.spare.extend(self.bench.gateway.spent.pop());
        let frame = self.spare.pop().unwrap_or_else(buffer);
        self.bench.send(frame, 60);
        let mut has_answered = false;
        loop {
            let before_ns = self.cpu_ns() - given_ns;
            let turns = self.worker.poll();
            let after_ns = self.cpu_ns() - given_ns;
            if let Ok(WorkerEvent::Ended { reason, .. }) = self.events.try_recv() {
                return Batch::Ended(End { reason, before_ns, after_ns });
            }
            self.bench.mma.poll();
            if let Some(Outbound { frame, .. }) = self.bench.gateway.outbound.pop() {
                self.spare.push(frame.into_buffer());
                has_answered = true;
            }
            if has_answered && turns == 0 {
                return Batch::Answered(after_ns);
            }
            assert!(start.elapsed() < Duration::from_secs(10), "nothing comes of a batch");
        }
    }
}

#[track_caller]
fn assert_is_due(End { reason, before_ns, after_ns }: &End) {
    assert_eq!(*reason, EndReason::Overrun(Overrun::Batch { limit_ns: LIMIT_NS }));
    let turns = format!("{before_ns} ns, and {after_ns} with its last turn, of {LIMIT_NS}");
    assert!(*before_ns <= LIMIT_NS, "it had its last turn too late, after {turns}");
    assert!(*after_ns > LIMIT_NS, "it was ended too early, after {turns}");
}

#[test]
fn a_function_that_does_not_finish_a_batch_is_ended_in_the_turn_that_exceeds_its_budget() {
    let mut house = House::new(&busy_for(3_600_000_000_000));
    for _ in 0..KILLS {
        match house.batch() {
            Batch::Ended(end) => assert_is_due(&end),
            Batch::Answered(ns) => panic!("it came to an end after {ns} ns"),
        }
        assert_eq!(house.worker.poll(), 0, "it goes on");
        house.take_back();
        house.launch();
    }
    house.take_back();
}

#[test]
fn batches_within_their_budget_end_no_function_however_many_there_are() {
    // All but the quantum in which it might be ended.
    let mut house = House::new(&busy_for(LIMIT_NS - QUANTUM.as_nanos() as u64));
    let (mut answered, mut had_ns) = (0, 0);
    while answered < BATCHES {
        match house.batch() {
            // Some took more than their budget, if the machine took the core from them in their last turn.
            Batch::Answered(ns) => (answered, had_ns) = (answered + 1, had_ns + ns),
            // The machine took the core from it meanwhile, which counts as its own time.
            Batch::Ended(end) => {
                assert_is_due(&end);
                house.take_back();
                house.launch();
            }
        }
    }
    assert!(had_ns > BATCHES as u64 / 2 * LIMIT_NS, "{had_ns} ns in {BATCHES} batches");
    house.take_back();
}

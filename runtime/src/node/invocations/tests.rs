//! Callers on one side, and on the other a gateway that the test polls. The test acts as launcher and as functions.

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use pinion_abi::{MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_BYTES_MAX};
use pinion_gateway::flows::sources::SourceLimit;
use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::id::{ChainGeneration, ChainIndex, InstanceId};
use pinion_gateway::invoke::{FunctionRef, InvokePort};
use pinion_gateway::messages::{Command, Event};
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::memory::{MemoryPort, MemoryPortConfig};
use pinion_gateway::rules::{ChainSettings, Redelivery, RuleSet};
use pinion_mma::buffer::Frame;
use pinion_mma::id::{self, FwpId, PortIndex, TenantIndex};
use pinion_mma::link::{Inbound, MmaLink, Outbound, link};
use pinion_mma::ways::direction::PortSet;

use super::*;

const CALLS_MAX: usize = 4;
/// The timeout of all waits, far longer than any operation here takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// A chain that exists, with an instance, and one that does not.
const FUNCTION: Callable = callable(0, TenantIndex(0));
const UNKNOWN: Callable = callable(1, TenantIndex(0));

const fn callable(chain: u32, tenant: TenantIndex) -> Callable {
    Callable { function: FunctionRef { chain: ChainIndex(chain), generation: ChainGeneration(0) }, tenant }
}

/// The index of the port of calls, after the only other port.
const CALLS_PORT: PortIndex = PortIndex(1);

type Outcome = Result<Vec<u8>, NoAnswer>;

struct House {
    invocations: Arc<Invocations>,
    thread: Option<JoinHandle<()>>,
    gateway: Gateway,
    mma: MmaLink,
    /// Messages that functions received and did not answer yet, the oldest first.
    messages: Vec<Vec<u8>>,
    _commands: Sender<Command>,
    _events: crossbeam_channel::Receiver<Event>,
}

impl House {
    fn new() -> Self {
        let (pool, bell) = (HeapPool::new(256, 2048), Doorbell::default());
        let (port, _) = MemoryPort::pair(MemoryPortConfig::named("lan"), pool.clone());
        let (invoke, mut dispatchers) = InvokePort::new(1, CALLS_MAX, &bell);
        let (gateway_link, mma) = link(64, bell, Doorbell::default());
        let (commands, commanded) = crossbeam_channel::bounded(8);
        let (events, heard) = crossbeam_channel::bounded(64);
        let settings = ChainSettings {
            chain: FUNCTION.function.chain,
            generation: FUNCTION.function.generation,
            idle_timeout_ns: u64::MAX,
            back: PortSet::EMPTY,
            tenant: TenantIndex(0),
            weight: 1,
            fwps: 1,
            redelivery: Redelivery::Never,
            may_send: pinion_gateway::leaving::MaySend::default(),
        };
        let rules = RuleSet::new(Vec::new(), &[settings]).unwrap();
        let entry = FwpId { index: 0, generation: 0 };
        commands.send(Command::SetRules(Arc::new(rules))).unwrap();
        commands
            .send(Command::Ready {
                chain: FUNCTION.function.chain,
                instance: InstanceId(1),
                entrance: entry.into(),
                limit: SourceLimit::NONE,
            })
            .unwrap();
        let mut gateway = Gateway::new(GatewayConfig {
            ports: vec![PortSetup {
                port: Box::new(port),
                networks: Vec::new(),
                reverse_path: pinion_gateway::neighbors::reverse_path::ReversePath::Off,
            }],
            invoke: Some(invoke),
            pool: Box::new(pool),
            flows_max: 16,
            instances_max: 4,
            pending_max: 16,
            burst: 16,
            empties_max: 16,
            links: vec![gateway_link],
            commands: commanded,
            events,
        })
        .unwrap();
        gateway.poll();
        let invocations = Arc::new(Invocations::new(dispatchers.remove(0)));
        let thread = std::thread::spawn({
            let invocations = Arc::clone(&invocations);
            move || invocations.run()
        });
        let (thread, messages) = (Some(thread), Vec::new());
        Self { invocations, thread, gateway, mma, messages, _commands: commands, _events: heard }
    }

    /// Calls a function. Returns the channel on which the answer arrives.
    fn call(&self, function: Callable, payload: &[u8]) -> Receiver<Outcome> {
        let (answer, answered) = channel();
        self.invocations.invoke(function, payload, PATIENCE, Box::new(move |outcome| answer.send(outcome).unwrap()));
        answered
    }

    /// Delivers the calls so far to the functions.
    fn deliver(&mut self) {
        self.gateway.poll();
        while let Some(Inbound { frame, .. }) = self.mma.inbound.pop() {
            self.messages.push(frame.bytes().to_vec());
            self.mma.spent.push(frame.into_buffer()).unwrap();
        }
    }

    /// Answers this message as the function, with its payload repeated twice.
    fn answer(&mut self, message: usize) {
        let mut message = self.messages.remove(message);
        message.extend_from_within(MESSAGE_HEADER_BYTES..);
        let mut buffer = self.mma.empty.pop().unwrap();
        buffer.bytes_mut(message.len() as u32).copy_from_slice(&message);
        let frame = Frame::new(buffer, message.len() as u32).of_port(CALLS_PORT);
        self.mma.outbound.push(Outbound { frame, sender: id::Sender::of(TenantIndex(0)) }).unwrap();
        self.gateway.poll();
    }

    fn stop(&mut self) {
        self.invocations.stop();
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop();
    }
}

#[track_caller]
fn outcome(answered: &Receiver<Outcome>) -> Outcome {
    answered.recv_timeout(PATIENCE).expect("each call is answered")
}

fn refused(outcome: Outcome) -> Option<Refused> {
    match outcome {
        Err(NoAnswer::Refused(refused)) => Some(refused),
        _ => None,
    }
}

#[test]
fn each_caller_gets_the_answer_to_its_own_call_in_whatever_order_answers_come() {
    let mut house = House::new();
    for round in 0..200_u8 {
        let calls = [1, 2, 3].map(|call| (call, house.call(FUNCTION, &[call, round])));
        house.deliver();
        assert_eq!(house.messages.len(), 3);
        // The thread sleeps in between, and is woken for each answer.
        for message in [1, 1, 0] {
            house.answer(message);
        }
        for (call, answered) in &calls {
            assert_eq!(outcome(answered), Ok(vec![*call, round, *call, round]));
            assert!(answered.try_recv().is_err(), "a call was answered twice");
        }
    }
}

#[test]
fn a_refused_call_is_answered_at_once_and_affects_no_other() {
    let mut house = House::new();
    let too_long = house.call(FUNCTION, &[0; MESSAGE_PAYLOAD_BYTES_MAX + 1]);
    let bytes = MESSAGE_PAYLOAD_BYTES_MAX + 1;
    assert_eq!(refused(too_long.try_recv().unwrap()), Some(Refused::TooLong { bytes }));
    let calls = [0; CALLS_MAX].map(|_| house.call(FUNCTION, b"x"));
    let one_more = house.call(FUNCTION, b"x");
    let share = Share { used: CALLS_MAX as u32, guaranteed: 0 };
    assert_eq!(one_more.try_recv().unwrap(), Err(NoAnswer::ShareUsed(share)));
    house.deliver();
    (0..CALLS_MAX).for_each(|_| house.answer(0));
    assert!(calls.iter().all(|answered| outcome(answered) == Ok(b"xx".to_vec())));
    // There is room again.
    let again = house.call(FUNCTION, b"y");
    house.deliver();
    house.answer(0);
    assert_eq!(outcome(&again), Ok(b"yy".to_vec()));
}

#[test]
fn a_call_that_fails_says_why() {
    let mut house = House::new();
    let answered = house.call(UNKNOWN, b"x");
    house.deliver();
    assert_eq!(outcome(&answered), Err(NoAnswer::Failed(Failure::ChainUnavailable)));
}

#[test]
fn a_tenant_with_calls_that_are_not_answered_leaves_another_its_share_of_the_calls() {
    let mut house = House::new();
    let other = callable(0, TenantIndex(1));
    house.invocations.divide(&[(TenantIndex(0), 1), (other.tenant, 1)].into());
    let calls = [0; CALLS_MAX].map(|_| house.call(FUNCTION, b"x"));
    let share = Share { used: 3, guaranteed: 1 };
    assert_eq!(calls[CALLS_MAX - 1].try_recv().unwrap(), Err(NoAnswer::ShareUsed(share)));
    let answered = house.call(other, b"y");
    house.deliver();
    house.answer(CALLS_MAX - 1);
    assert_eq!(outcome(&answered), Ok(b"yy".to_vec()));
    (1..CALLS_MAX).for_each(|_| house.answer(0));
    assert!(calls[1..CALLS_MAX - 1].iter().all(|answered| outcome(answered) == Ok(b"xx".to_vec())));
}

#[test]
fn a_call_that_its_caller_gives_up_frees_its_place_and_is_not_answered() {
    let mut house = House::new();
    let (answer, answered) = channel::<Outcome>();
    let answer = move |outcome| answer.send(outcome).unwrap();
    let ticket = house.invocations.invoke(FUNCTION, b"x", PATIENCE, Box::new(answer)).unwrap();
    let others = [0; CALLS_MAX - 1].map(|_| house.call(FUNCTION, b"x"));
    house.deliver();
    house.invocations.cancel(ticket);
    assert!(answered.recv().is_err(), "the callback is dropped");
    let start = std::time::Instant::now();
    let again = loop {
        house.deliver();
        let again = house.call(FUNCTION, b"y");
        match again.try_recv() {
            Ok(Err(NoAnswer::ShareUsed(_))) => assert!(start.elapsed() < PATIENCE, "the place is not given back"),
            early => break (early, again),
        }
    };
    house.deliver();
    // A late answer to the call that was given up is nothing to the later one.
    (0..=CALLS_MAX).for_each(|_| house.answer(0));
    assert_eq!(outcome(&again.1), Ok(b"yy".to_vec()));
    assert!(others.iter().all(|answered| outcome(answered) == Ok(b"xx".to_vec())));
}

#[test]
fn a_callback_may_make_another_call() {
    let mut house = House::new();
    let (answer, answered) = channel();
    let invocations = Arc::clone(&house.invocations);
    let again = move |first: Outcome| {
        let (refused, last) = (answer.clone(), answer.clone());
        answer.send(first).unwrap();
        let nested = Arc::clone(&invocations);
        let when_refused = move |outcome| {
            refused.send(outcome).unwrap();
            nested.invoke(FUNCTION, b"b", PATIENCE, Box::new(move |outcome| last.send(outcome).unwrap()));
        };
        invocations.invoke(FUNCTION, &[0; MESSAGE_PAYLOAD_BYTES_MAX + 1], PATIENCE, Box::new(when_refused));
    };
    house.invocations.invoke(FUNCTION, b"a", PATIENCE, Box::new(again));
    house.deliver();
    house.answer(0);
    assert_eq!(outcome(&answered), Ok(b"aa".to_vec()));
    assert!(refused(outcome(&answered)).is_some());
    let start = std::time::Instant::now();
    while house.messages.is_empty() {
        house.deliver();
        assert!(start.elapsed() < PATIENCE, "the second call does not come");
    }
    house.answer(0);
    assert_eq!(outcome(&answered), Ok(b"bb".to_vec()));
}

#[test]
fn calls_under_way_at_the_stop_and_calls_after_it_fail_as_ended() {
    let mut house = House::new();
    let waiting = [FUNCTION, FUNCTION].map(|function| house.call(function, b"x"));
    house.deliver();
    house.stop();
    let ended = Err(NoAnswer::Failed(Failure::Ended));
    assert_eq!(waiting.each_ref().map(outcome), [ended.clone(), ended.clone()]);
    assert_eq!(outcome(&house.call(FUNCTION, b"x")), ended);
}

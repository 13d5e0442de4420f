//! Tests of messages to chains, and of which call gets which answer.

use super::*;
use crate::id::FunctionRef;
use crate::invoke::{Failure, Refused};
use pinion_abi::{MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_BYTES_MAX, MESSAGE_TOKEN_AT};
use pinion_mma::id::TenantIndex;
use pinion_mma::ways::direction::PortSet;

const TIMEOUT_NS: u64 = 3_600_000_000_000;
/// Longer than a call may wait after its instance was forgotten, plus the time between checks.
const ABANDONED_NS: u64 = 60_000_000;

type Answers = Vec<(u64, Result<Vec<u8>, Failure>)>;

fn function(chain: u32) -> FunctionRef {
    FunctionRef { chain: ChainIndex(chain), generation: ChainGeneration(0) }
}

fn taken_for_all(instance: u64) -> Event {
    taken(instance, ClientLabel::All)
}

impl Rig {
    /// Makes a gateway with room for `calls` calls on each of two lines, and two chains without rules.
    fn invokable(calls: usize) -> Self {
        let mut rig = Self::with(1, Sizes { calls: Some(calls), ..AMPLE });
        rig.set_rules(Vec::new());
        rig
    }

    fn invoke(&mut self, line: usize, chain: u32, ticket: u64, payload: &[u8]) {
        let dispatcher = &mut self.dispatchers[line];
        dispatcher.stage(function(chain), ticket, TIMEOUT_NS, payload).unwrap();
        dispatcher.submit();
        self.poll();
    }

    fn answers(&mut self, line: usize) -> Answers {
        let mut answers = Vec::new();
        self.dispatchers[line].poll(|ticket, outcome| answers.push((ticket, outcome.map(<[u8]>::to_vec))));
        answers
    }

    /// Sends a frame from a function to the port that messages come from.
    fn answer(&mut self, frame: &[u8]) {
        let port = self.gateway.invoke.as_ref().unwrap().index();
        let mut buffer = self.mmas[0].empty.pop().unwrap();
        buffer.bytes_mut(frame.len() as u32).copy_from_slice(frame);
        self.mmas[0].outbound.push(leaving(Frame::new(buffer, frame.len() as u32).of_port(port))).unwrap();
        self.poll();
    }

    fn message(&mut self) -> Vec<u8> {
        let mut delivered = self.delivered();
        assert_eq!(delivered.len(), 1);
        delivered.remove(0).2
    }

    fn unasked(&self) -> (u64, u64) {
        let counters = self.gateway.invoke.as_ref().unwrap().counters();
        (counters.late.value(), counters.unknown.value())
    }
}

#[test]
fn a_message_goes_to_the_chain_that_its_caller_names_and_the_answer_comes_back() {
    let mut rig = Rig::invokable(4);
    rig.ready(1, 10);
    rig.invoke(0, 1, 77, b"ping");
    assert_eq!(
        rig.events(),
        [Event::Taken { chain: ChainIndex(1), instance: InstanceId(10), client: ClientLabel::All }]
    );
    let delivered = rig.delivered();
    let (target, port, message) = &delivered[0];
    assert_eq!((*target, *port, &message[MESSAGE_HEADER_BYTES..]), (entry(10), PortIndex(1), &b"ping"[..]));
    assert_eq!(rig.answers(0), []);
    rig.answer(&[&message[..MESSAGE_HEADER_BYTES], b"a longer answer"].concat());
    assert_eq!(rig.answers(1), [], "another line's");
    assert_eq!(rig.answers(0), [(77, Ok(b"a longer answer".to_vec()))]);
    assert_eq!(rig.dispatchers[0].under_way(), 0);
    rig.assert_no_buffer_leaked();
}

#[test]
fn all_calls_of_a_chain_meet_the_same_instance_and_so_does_a_shared_rule() {
    let mut rig = Rig::invokable(8);
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    rig.ready(0, 11);
    rig.send_and_poll(&[datagram(1, 1000, 0)]);
    rig.invoke(0, 0, 1, b"");
    rig.invoke(1, 0, 2, b"");
    assert_eq!(rig.targets(), [11, 11, 11]);
    assert_eq!(rig.events(), [taken_for_all(11)]);
}

#[test]
fn only_the_answer_with_the_calls_own_token_counts_and_only_once() {
    let mut rig = Rig::invokable(4);
    rig.ready(0, 10);
    rig.invoke(0, 0, 1, b"one");
    let first = rig.message();
    rig.invoke(0, 0, 2, b"two");
    let second = rig.message();
    // The place of another call with the own token, no token, one bit wrong.
    let mut mixed = first.clone();
    mixed[24..28].copy_from_slice(&second[24..28]);
    let mut without = second.clone();
    without[MESSAGE_TOKEN_AT..MESSAGE_TOKEN_AT + 8].fill(0);
    let mut altered = second.clone();
    altered[MESSAGE_TOKEN_AT] ^= 1;
    let mut beyond = second.clone();
    beyond[24..28].fill(0xff);
    for forged in [&mixed[..], &without, &altered, &beyond, &[0; 20], &[]] {
        rig.answer(forged);
    }
    assert_eq!((rig.answers(0), rig.unasked()), (Vec::new(), (0, 6)));
    rig.answer(&second);
    rig.answer(&second);
    assert_eq!((rig.answers(0), rig.unasked()), (vec![(2, Ok(b"two".to_vec()))], (1, 6)));
}

#[test]
fn tokens_are_unlike_each_other_in_all_their_parts() {
    let mut rig = Rig::invokable(64);
    rig.ready(0, 10);
    let mut tokens = Vec::new();
    for ticket in 0..64 {
        rig.invoke(0, 0, ticket, b"");
        tokens.extend(rig.delivered().into_iter().map(|(.., message)| message[MESSAGE_TOKEN_AT..][..8].to_vec()));
    }
    for part in [0..4, 4..8] {
        let mut parts: Vec<_> = tokens.iter().map(|token| &token[part.clone()]).collect();
        parts.sort();
        parts.dedup();
        assert!(parts.len() >= 63, "{parts:?}");
    }
}

#[test]
fn calls_of_a_chain_without_an_instance_wait_for_it_together_and_ask_for_it_once() {
    let mut rig = Rig::invokable(16);
    for ticket in 0..6 {
        rig.invoke(0, 0, ticket, &[ticket as u8]);
    }
    assert_eq!((rig.events(), rig.targets()), (vec![Event::Wanted { chain: ChainIndex(0) }], vec![]));
    // New rules: the launcher may have forgotten its requests.
    rig.command(Command::SetRules(Arc::new(
        RuleSet::new(
            Vec::new(),
            &[ChainSettings {
                chain: ChainIndex(0),
                generation: ChainGeneration(0),
                idle_timeout_ns: 1 << 40,
                back: PortSet::EMPTY,
                tenant: TenantIndex(0),
                weight: 1,
                fwps: 1,
                redelivery: Redelivery::Never,
                may_send: crate::leaving::MaySend::default(),
            }],
        )
        .unwrap(),
    )));
    assert!(rig.events().contains(&Event::Wanted { chain: ChainIndex(0) }));
    rig.ready(0, 10);
    assert_eq!((rig.events(), rig.targets()), (vec![taken_for_all(10)], vec![10; 6]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_call_without_an_instance_fails_after_a_second_and_one_without_an_answer_with_its_deadline() {
    let mut rig = Rig::invokable(4);
    rig.ready(1, 10);
    rig.invoke(0, 0, 1, b"no instance");
    rig.invoke(0, 1, 2, b"no answer");
    let message = rig.message();
    rig.now_ns += PENDING_TIMEOUT_NS + 1;
    rig.poll();
    assert_eq!(rig.answers(0), [(1, Err(Failure::NoInstance))]);
    assert_eq!(rig.chain_drops(0), [(DropReason::NoInstance, 1)]);
    rig.now_ns += 2 * TIMEOUT_NS;
    rig.poll();
    assert_eq!(rig.answers(0), [(2, Err(Failure::Deadline))]);
    rig.answer(&message);
    assert_eq!((rig.answers(0), rig.unasked()), (Vec::new(), (1, 0)));
}

#[test]
fn a_chain_that_does_not_exist_or_whose_index_was_reused_is_not_invoked() {
    let mut rig = Rig::invokable(4);
    rig.ready(0, 10);
    rig.invoke(0, 2, 1, b"");
    let former = FunctionRef { generation: ChainGeneration(9), ..function(0) };
    rig.dispatchers[0].stage(former, 2, TIMEOUT_NS, b"").unwrap();
    rig.dispatchers[0].submit();
    rig.poll();
    assert_eq!(rig.answers(0), [(1, Err(Failure::ChainUnavailable)), (2, Err(Failure::ChainUnavailable))]);
    assert_eq!(rig.targets(), []);
}

#[test]
fn calls_whose_instance_ended_fail_soon_unless_the_answer_was_on_its_way() {
    let mut rig = Rig::invokable(4);
    rig.ready(0, 10);
    rig.invoke(0, 0, 1, b"answered");
    let answered = rig.message();
    rig.invoke(0, 0, 2, b"lost");
    rig.command(Command::Unbind { instance: InstanceId(10) });
    rig.answer(&answered);
    assert_eq!(rig.answers(0), [(1, Ok(b"answered".to_vec()))]);
    // A call that comes now goes to the next instance and is not affected.
    rig.ready(0, 11);
    rig.delivered();
    rig.invoke(0, 0, 3, b"later");
    rig.now_ns += ABANDONED_NS;
    rig.poll();
    assert_eq!(rig.answers(0), [(2, Err(Failure::Ended))]);
    assert_eq!(rig.targets(), [11]);
}

/// Ends an instance whose callers have got no answer, and lets the time pass in which one might still come.
fn end(rig: &mut Rig, instance: u64) {
    rig.command(Command::Unbind { instance: InstanceId(instance) });
    rig.now_ns += ABANDONED_NS;
    // What the first poll delivers again is handed to the MMA by the second one.
    rig.poll();
    rig.poll();
}

#[test]
fn a_call_of_an_idempotent_chain_whose_instance_ended_is_answered_by_another_one() {
    let mut rig = Rig::invokable(4);
    rig.ready(REPEATED, 10);
    rig.invoke(0, REPEATED, 1, b"again");
    let first = rig.message();
    rig.ready(REPEATED, 11);
    end(&mut rig, 10);
    let delivered = rig.delivered();
    let (target, _, message) = &delivered[0];
    assert_eq!((*target, delivered.len()), (entry(11), 1));
    assert_eq!((message, rig.answers(0)), (&first, vec![]), "the same message, and no failure");
    rig.answer(message);
    assert_eq!(rig.answers(0), [(1, Ok(b"again".to_vec()))]);
    assert_eq!(rig.gateway.invoke.as_ref().unwrap().counters().redelivered.value(), 1);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_call_that_is_delivered_again_waits_for_an_instance_and_fails_as_ended_if_none_comes() {
    let mut rig = Rig::invokable(4);
    rig.ready(REPEATED, 10);
    for ticket in [1, 2] {
        rig.invoke(0, REPEATED, ticket, b"");
    }
    rig.delivered();
    rig.events();
    end(&mut rig, 10);
    assert!(rig.events().contains(&Event::Wanted { chain: ChainIndex(REPEATED) }));
    rig.ready(REPEATED, 11);
    assert_eq!(rig.targets(), [11, 11]);
    end(&mut rig, 11);
    rig.now_ns += PENDING_TIMEOUT_NS + 1;
    rig.poll();
    let ended = Err(Failure::Ended);
    assert_eq!(rig.answers(0), [(1, ended.clone()), (2, ended)], "an instance may have carried them out");
}

#[test]
fn a_call_that_ends_each_instance_is_delivered_again_three_times_and_not_longer_than_its_caller_waits() {
    let mut rig = Rig::invokable(4);
    rig.ready(REPEATED, 10);
    rig.invoke(0, REPEATED, 1, b"poison");
    for instance in 10..14 {
        assert_eq!((rig.targets(), rig.answers(0)), (vec![instance], vec![]));
        rig.ready(REPEATED, instance as u64 + 1);
        end(&mut rig, instance as u64);
    }
    assert_eq!((rig.targets(), rig.answers(0)), (vec![], vec![(1, Err(Failure::EndedEachTime))]));
    // The timeout of this one is shorter than it takes to know that no answer comes.
    rig.dispatchers[0].stage(function(REPEATED), 2, ABANDONED_NS / 10, b"").unwrap();
    rig.dispatchers[0].submit();
    rig.poll();
    rig.delivered();
    let timed = rig.dispatchers[0].under_way();
    end(&mut rig, 14);
    assert_eq!((timed, rig.answers(0), rig.targets()), (1, vec![(2, Err(Failure::Deadline))], vec![]));
}

#[test]
fn a_payload_too_long_or_one_call_too_many_is_refused_at_once() {
    let mut rig = Rig::invokable(2);
    rig.ready(0, 10);
    let too_long = [0; MESSAGE_PAYLOAD_BYTES_MAX + 1];
    let dispatcher = &mut rig.dispatchers[0];
    let refused = dispatcher.stage(function(0), 1, TIMEOUT_NS, &too_long).unwrap_err();
    assert_eq!(refused.to_string(), "a payload of 1487 bytes: a message holds at most 1486");
    assert_eq!(dispatcher.stage(function(0), 1, TIMEOUT_NS, &too_long[1..]), Ok(()));
    assert_eq!(dispatcher.stage(function(0), 2, TIMEOUT_NS, b""), Ok(()));
    assert_eq!(dispatcher.stage(function(0), 3, TIMEOUT_NS, b""), Err(Refused::Full { calls: 2 }));
    dispatcher.submit();
    rig.poll();
    assert_eq!(rig.delivered()[0].2.len(), 1518);
    rig.assert_no_buffer_leaked();
}

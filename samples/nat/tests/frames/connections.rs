//! TCP through the translator, compared with a model: a list of connections, each with its own state.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::support::*;
use nat::Nat;
use pinion_sdk::testing::{Harness, Outcome, advance_clock_ns};
use proptest::prelude::*;
use proptest::sample::select;

const CONFIG: &str = "inside = [\"10.0.0.0/8\"]\noutside = [\"203.0.113.1\"]\n";
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const FLAGS: [u8; 8] = [SYN, SYN | ACK, ACK, ACK, FIN | ACK, RST, RST | ACK, SYN | RST];
const TRANSITORY_S: u64 = 240;
const ESTABLISHED_S: u64 = 7440;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Opening,
    Established,
    Closing,
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    state: State,
    answered: bool,
    fins: [bool; 2],
    /// Whether the RST that made it closing came from inside.
    reset_by: Option<bool>,
    used_s: u64,
}

impl Connection {
    fn is_over(&self, now_s: u64) -> bool {
        now_s >= self.used_s + if self.state == State::Established { ESTABLISHED_S } else { TRANSITORY_S }
    }

    fn learn(&mut self, from_inside: bool, flags: u8, now_s: u64) {
        let (has, before) = (|flag| flags & flag != 0, self.state);
        if from_inside && self.state == State::Closing && has(SYN) && !has(RST) {
            *self = Self { used_s: now_s, ..Self::default() };
            return;
        }
        if self.state == State::Closing && self.reset_by == Some(from_inside) && !has(RST) && !has(SYN) {
            (self.state, self.reset_by) = (State::Established, None);
        }
        if from_inside && self.state == State::Opening && self.answered && has(ACK) && !has(RST) {
            self.state = State::Established;
        }
        self.answered |= !from_inside && has(ACK) && !has(RST);
        self.fins[usize::from(!from_inside)] |= has(FIN);
        if self.state == State::Established && (has(RST) || self.fins == [true; 2]) {
            (self.state, self.reset_by) = (State::Closing, has(RST).then_some(from_inside));
        }
        if from_inside || self.state != before {
            self.used_s = now_s;
        }
    }
}

#[derive(Default)]
struct Model {
    /// By inside port and peer port.
    connections: HashMap<(u16, u16), Connection>,
    /// Outside ports, by inside port.
    mappings: HashMap<u16, u16>,
    now_s: u64,
}

impl Model {
    /// Returns the outcome of a segment from inside.
    fn sent(&mut self, inside: u16, peer: u16, flags: u8) -> Outcome {
        let (now_s, is_mapped) = (self.now_s, self.mappings.contains_key(&inside));
        if let Some(connection) = self.connections.get_mut(&(inside, peer)) {
            connection.learn(true, flags, now_s);
            return Outcome::Sent;
        }
        let begins = flags == SYN || (flags == SYN | ACK && is_mapped);
        if begins {
            self.connections.insert((inside, peer), Connection { used_s: now_s, ..Connection::default() });
        }
        if begins || is_mapped { Outcome::Sent } else { Outcome::Dropped }
    }

    fn received(&mut self, inside: u16, peer: u16, flags: u8) {
        let now_s = self.now_s;
        if let Some(connection) = self.connections.get_mut(&(inside, peer)) {
            connection.learn(false, flags, now_s);
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now_s += seconds;
        let now_s = self.now_s;
        self.connections.retain(|_, connection| !connection.is_over(now_s));
        self.mappings.retain(|inside, _| self.connections.keys().any(|(port, _)| port == inside));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Out { inside: u16, peer: u16, flags: u8 },
    In { inside: u16, peer: u16, flags: u8 },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let ends = || (1..3_u16, 1..4_u16, select(&FLAGS[..]));
    prop_oneof![
        6 => ends().prop_map(|(inside, peer, flags)| Step::Out { inside, peer, flags }),
        6 => ends().prop_map(|(inside, peer, flags)| Step::In { inside, peer, flags }),
        1 => select(&[1_u64, 100, 239, 240, 7000, 7439, 7440][..]).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn each_connection_has_the_state_that_its_own_segments_give_it(steps in proptest::collection::vec(step(), 0..80)) {
        let host = |port| (Ipv4Addr::new(10, 0, 0, 7), port);
        let server = |port| (Ipv4Addr::new(198, 51, 100, 9), port);
        let (mut nat, mut model) = (Harness::<Nat>::new(CONFIG.as_bytes()).unwrap(), Model::default());
        for step in steps {
            match step {
                Step::Out { inside, peer, flags } => {
                    let verdict = nat.deliver(&[&tcp(host(inside), server(peer), flags, b"").bytes()]).remove(0);
                    prop_assert_eq!(verdict.outcome, model.sent(inside, peer, flags), "{:?}", step);
                    if verdict.outcome == Outcome::Sent {
                        let port = ends(&verdict.bytes).0.1;
                        prop_assert_eq!(*model.mappings.entry(inside).or_insert(port), port, "{:?}", step);
                    }
                }
                Step::In { inside, peer, flags } => {
                    // Without a mapping, a port that was never used.
                    let port = model.mappings.get(&inside).copied();
                    let segment = tcp(server(peer), (OUTSIDE, port.unwrap_or(1)), flags, b"");
                    let verdict = nat.deliver(&[&segment.bytes()]).remove(0);
                    prop_assert_eq!(verdict.outcome == Outcome::SentTo(1), port.is_some(), "{:?}", step);
                    model.received(inside, peer, flags);
                }
                Step::Wait { seconds } => {
                    advance_clock_ns(seconds * 1_000_000_000);
                    model.wait(seconds);
                    // Timeouts are noticed with the next packet.
                    let _ = nat.deliver(&[&[0; 60]]);
                }
            }
            let counts = (nat.function().connection_count(), nat.function().mapping_count());
            prop_assert_eq!(counts, (model.connections.len(), model.mappings.len()), "{:?}", step);
        }
    }
}

//! The translator compared with a model: a list of mappings that is searched, and frames that are built anew.

use std::net::Ipv4Addr;

use crate::support::*;
use nat::Nat;
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns};
use proptest::prelude::*;

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const PORT_MIN: u16 = 3000;
const PORTS: usize = 5;
const TABLE: usize = 8;
const UDP_S: u64 = 300;
const ICMP_S: u64 = 60;

/// A mapping in the model.
#[derive(Clone, Debug)]
struct Mapping {
    is_echo: bool,
    inside: End,
    port: u16,
    is_answered: bool,
    used_s: u64,
}

impl Mapping {
    fn is_over(&self, now_s: u64) -> bool {
        now_s >= self.used_s + if self.is_echo { ICMP_S } else { UDP_S }
    }
}

#[derive(Default)]
struct Model {
    /// In the order of their use.
    mappings: Vec<Mapping>,
    now_s: u64,
}

impl Model {
    /// Evicts mappings without an answer, if there is no room for one more; returns whether there is room then.
    fn make_room(&mut self, is_echo: bool) -> bool {
        loop {
            let mappings = self.mappings.iter().enumerate();
            let mut unanswered = { mappings }.filter(|(_, mapping)| !mapping.is_answered);
            let evicted = if self.mappings.len() == TABLE {
                unanswered.min_by_key(|(_, mapping)| (mapping.used_s, mapping.is_echo))
            } else if self.mappings.iter().filter(|it| it.is_echo == is_echo).count() == PORTS {
                unanswered.find(|(_, mapping)| mapping.is_echo == is_echo)
            } else {
                return true;
            };
            let Some((at, _)) = evicted else { return false };
            self.mappings.remove(at);
        }
    }

    /// Checks the outcome of a packet from inside, and learns its outside port.
    fn sent(&mut self, is_echo: bool, inside: End, outcome: Outcome, bytes: &[u8], payload: &[u8]) {
        let there = self.mappings.iter().position(|it| it.is_echo == is_echo && it.inside == inside);
        if there.is_none() && !self.make_room(is_echo) {
            assert_eq!(outcome, Outcome::Dropped, "there is no room");
            return;
        }
        assert_eq!(outcome, Outcome::Sent);
        let ((_, port), _) = ends(bytes);
        let used_s = self.now_s;
        match there {
            Some(at) => {
                assert_eq!(port, self.mappings[at].port);
                let mapping = self.mappings.remove(at);
                self.mappings.push(Mapping { used_s, ..mapping });
            }
            None => {
                let is_used = self.mappings.iter().any(|it| it.is_echo == is_echo && it.port == port);
                assert!((PORT_MIN..PORT_MIN + PORTS as u16).contains(&port) && !is_used, "port {port}");
                self.mappings.push(Mapping { is_echo, inside, port, is_answered: false, used_s });
            }
        }
        assert_eq!(bytes, out(is_echo, (OUTSIDE, port), payload).bytes());
    }

    /// Checks the outcome of a packet from outside.
    fn received(&mut self, is_echo: bool, port: u16, outcome: Outcome, bytes: &[u8], payload: &[u8]) {
        match self.mappings.iter().position(|it| it.is_echo == is_echo && it.port == port) {
            None => assert_eq!(outcome, Outcome::Dropped),
            Some(at) => {
                assert_eq!(outcome, Outcome::SentTo(1));
                assert_eq!(bytes, back(is_echo, self.mappings[at].inside, payload).bytes());
                if !self.mappings[at].is_answered {
                    let mapping = self.mappings.remove(at);
                    self.mappings.push(Mapping { is_answered: true, used_s: self.now_s, ..mapping });
                }
            }
        }
    }
}

fn out(is_echo: bool, from: End, payload: &[u8]) -> Frame {
    if is_echo { request(from.0, PEER, from.1, payload) } else { udp(from, (PEER, 53), payload) }
}

fn back(is_echo: bool, to: End, payload: &[u8]) -> Frame {
    if is_echo { reply(PEER, to.0, to.1, payload) } else { udp((PEER, 53), to, payload) }
}

#[derive(Clone, Debug)]
enum Step {
    Out { is_echo: bool, host: u8, port: u16 },
    In { is_echo: bool, port: u16 },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 1..4_u8, 1..4_u16).prop_map(|(is_echo, host, port)| Step::Out { is_echo, host, port }),
        4 => (any::<bool>(), PORT_MIN - 1..=PORT_MIN + PORTS as u16)
            .prop_map(|(is_echo, port)| Step::In { is_echo, port }),
        1 => (1..200_u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #[test]
    fn it_does_what_a_list_of_mappings_does(
        steps in proptest::collection::vec(step(), 0..120), payload in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let config = format!(
            "inside = [\"10.0.0.0/8\"]\noutside = [\"{OUTSIDE}\"]\nport_min = {PORT_MIN}\nport_max = {}\nmappings_max = {TABLE}",
            PORT_MIN + PORTS as u16 - 1
        );
        let mut nat = Harness::<Nat>::new(config.as_bytes()).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Out { is_echo, host, port } => {
                    let inside = (Ipv4Addr::new(10, 0, 0, host), port);
                    let verdict = nat.deliver(&[&out(is_echo, inside, &payload).bytes()]).remove(0);
                    model.sent(is_echo, inside, verdict.outcome, &verdict.bytes, &payload);
                }
                Step::In { is_echo, port } => {
                    let verdict = nat.deliver(&[&back(is_echo, (OUTSIDE, port), &payload).bytes()]).remove(0);
                    model.received(is_echo, port, verdict.outcome, &verdict.bytes, &payload);
                }
                Step::Wait { seconds } => {
                    advance_clock_ns(seconds * 1_000_000_000);
                    model.now_s += seconds;
                    let now_s = model.now_s;
                    model.mappings.retain(|mapping| !mapping.is_over(now_s));
                }
            }
        }
    }
}

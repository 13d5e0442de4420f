//! The firewall compared with the simplest model: rules as a list to scan, flows in a map that is never cleaned up.

#![cfg(not(target_family = "wasm"))]

mod network;

use std::collections::HashMap;

use firewall::Firewall;
use network::{ACK, FIN, RST, SYN, reply, request, tcp, udp};
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns};
use proptest::prelude::*;
use proptest::sample::select;

const HOSTS: [[&str; 4]; 2] =
    [["10.0.0.1", "10.0.0.2", "192.0.2.1", "198.51.100.1"], ["fd00::1", "fd00::2", "2001:db8::1", "2001:db9::1"]];
/// Networks, and the text with which each address in them begins.
const NETWORKS: [(&str, &str); 5] = [
    ("10.0.0.0/8", "10."),
    ("10.0.0.2", "10.0.0.2"),
    ("192.0.2.0/24", "192.0.2."),
    ("fd00::/8", "fd"),
    ("2001:db8::/32", "2001:db8:"),
];
const PORTS: [u16; 3] = [53, 80, 5000];
const FLAGS: [u8; 7] = [SYN, SYN | ACK, ACK, FIN | ACK, RST, ACK, SYN];

#[derive(Clone, Debug)]
struct Rule {
    allow: bool,
    out: Option<bool>,
    kind: Option<Kind>,
    from: Option<(&'static str, &'static str)>,
    to: Option<(&'static str, &'static str)>,
    ports: Option<(u16, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Tcp,
    Udp,
    Icmp,
}

/// A packet to send.
#[derive(Clone, Debug)]
struct Step {
    pause_s: u64,
    kind: Kind,
    from: &'static str,
    from_port: u16,
    to: &'static str,
    to_port: u16,
    flags: u8,
    is_request: bool,
}

impl Rule {
    fn toml(&self) -> String {
        let mut text = format!("[[rule]]\naction = \"{}\"\n", if self.allow { "allow" } else { "deny" });
        if let Some(out) = self.out {
            text += &format!("direction = \"{}\"\n", if out { "out" } else { "in" });
        }
        if let Some(kind) = self.kind {
            text += &format!("protocol = \"{}\"\n", format!("{kind:?}").to_lowercase());
        }
        for (key, network) in [("from", self.from), ("to", self.to)] {
            if let Some((network, _)) = network {
                text += &format!("{key} = [\"{network}\"]\n");
            }
        }
        if let Some((first, last)) = self.ports() {
            text += &format!("ports = [\"{first}-{last}\"]\n");
        }
        text
    }

    /// Returns the ports, if the protocol has ports.
    fn ports(&self) -> Option<(u16, u16)> {
        self.ports.filter(|_| matches!(self.kind, Some(Kind::Tcp | Kind::Udp)))
    }

    fn fits(&self, step: &Step) -> bool {
        let is_out = step.from.starts_with("10.") || step.from.starts_with("fd");
        self.out.is_none_or(|out| out == is_out)
            && self.kind.is_none_or(|kind| kind == step.kind)
            && self.from.is_none_or(|(_, start)| step.from.starts_with(start))
            && self.to.is_none_or(|(_, start)| step.to.starts_with(start))
            && self.ports().is_none_or(|(first, last)| first <= step.to_port && step.to_port <= last)
    }
}

impl Step {
    fn frame(&self) -> Frame {
        match self.kind {
            Kind::Tcp => tcp(self.from, self.from_port, self.to, self.to_port, self.flags),
            Kind::Udp => udp(self.from, self.from_port, self.to, self.to_port),
            Kind::Icmp if self.is_request => request(self.from, self.to, self.from_port),
            Kind::Icmp => reply(self.from, self.to, self.from_port),
        }
    }
}

/// A flow by its first packet: protocol, then address and port of both ends.
type Began = (Kind, &'static str, u16, &'static str, u16);

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// When it expires unless a packet comes.
    until_s: u64,
    answered: bool,
    /// TCP: the originator has acknowledged the answer.
    established: bool,
    closing: bool,
    /// Whether the RST that made it closing came from the originator.
    reset_by: Option<bool>,
    fins: (bool, bool),
}

#[derive(Default)]
struct Model {
    rules: Vec<Rule>,
    flows: HashMap<Began, Flow>,
}

impl Model {
    fn passes(&mut self, step: &Step, now_s: u64) -> bool {
        let (from_port, to_port) = match step.kind {
            Kind::Icmp => (step.from_port, step.from_port),
            _ => (step.from_port, step.to_port),
        };
        let there = (step.kind, step.from, from_port, step.to, to_port);
        let back = (step.kind, step.to, to_port, step.from, from_port);
        let goes_on = |began: &Began| self.flows.get(began).filter(|flow| now_s < flow.until_s).map(|_| *began);
        let found = match (step.kind, step.is_request) {
            (Kind::Icmp, true) => goes_on(&there),
            (Kind::Icmp, false) => goes_on(&back),
            _ => goes_on(&there).or_else(|| goes_on(&back)),
        };
        let may_begin = match step.kind {
            Kind::Tcp => step.flags == SYN,
            Kind::Udp => true,
            Kind::Icmp => step.is_request,
        };
        let Some(began) = found.filter(|began| !(self.flows[began].closing && may_begin)) else {
            let passes = may_begin && self.rules.iter().find(|rule| rule.fits(step)).is_some_and(|rule| rule.allow);
            if passes {
                let fins = (false, false);
                let until_s = now_s + 30;
                let flow = Flow { until_s, answered: false, established: false, closing: false, reset_by: None, fins };
                self.flows.insert(there, flow);
                self.flows.remove(&back).filter(|_| step.kind == Kind::Icmp).map(|flow| self.flows.insert(back, flow));
            }
            return passes;
        };
        let flow = self.flows.get_mut(&began).unwrap();
        let goes_on_anyway = step.flags & (RST | SYN) == 0 && flow.reset_by == Some(began == there);
        if goes_on_anyway {
            (flow.closing, flow.reset_by) = (false, None);
        }
        let until_s = flow.until_s;
        if flow.closing {
            let fin = step.flags & FIN != 0;
            flow.fins = (flow.fins.0 || (fin && began == there), flow.fins.1 || (fin && began != there));
        } else {
            flow.meet(step, began == there, now_s);
        }
        if goes_on_anyway && flow.closing {
            flow.until_s = until_s;
        }
        true
    }
}

impl Flow {
    fn meet(&mut self, step: &Step, by_beginner: bool, now_s: u64) {
        if step.kind == Kind::Tcp {
            let has = |flag| step.flags & flag != 0;
            self.established |= self.answered && by_beginner && has(ACK) && !has(RST);
            self.answered |= !by_beginner && has(SYN);
            // Of a side that has not begun, no sequence number is right.
            let closes = has(FIN) && (by_beginner || self.answered);
            self.fins = (self.fins.0 || (closes && by_beginner), self.fins.1 || (closes && !by_beginner));
            self.closing = self.established && (has(RST) || self.fins == (true, true));
            self.reset_by = (self.closing && has(RST)).then_some(by_beginner);
        } else {
            self.answered |= !by_beginner;
        }
        self.until_s = now_s
            + match (self.closing, self.established, self.answered, step.kind) {
                (true, ..) => 240,
                (false, true, ..) => 7_440,
                (false, false, _, Kind::Tcp) | (false, false, false, _) => 30,
                (false, false, true, _) => 120,
            };
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    select(&[Kind::Tcp, Kind::Tcp, Kind::Udp, Kind::Icmp][..])
}

fn rules() -> impl Strategy<Value = Rule> {
    let network = || proptest::option::weighted(0.15, select(&NETWORKS[..]));
    let ports = proptest::option::of((select(&PORTS[..]), 0_u16..100))
        .prop_map(|ports| ports.map(|(at, more)| (at, at + more)));
    (
        proptest::bool::weighted(0.8),
        proptest::option::weighted(0.4, any::<bool>()),
        proptest::option::weighted(0.4, kinds()),
        network(),
        network(),
        ports,
    )
        .prop_map(|(allow, out, kind, from, to, ports)| Rule { allow, out, kind, from, to, ports })
}

fn steps() -> impl Strategy<Value = Step> {
    let pauses = select(&[0_u64, 0, 0, 0, 0, 1, 1, 5, 29, 30, 119, 120, 239, 240, 7_439, 7_440][..]);
    let hosts = (any::<bool>(), 0_usize..4, 1_usize..4).prop_map(|(v6, from, further)| {
        let hosts = HOSTS[usize::from(v6)];
        (hosts[from], hosts[(from + further) % 4])
    });
    (pauses, kinds(), hosts, select(&PORTS[..]), select(&PORTS[..]), select(&FLAGS[..]), any::<bool>()).prop_map(
        |(pause_s, kind, (from, to), from_port, to_port, flags, is_request)| Step {
            pause_s,
            kind,
            from,
            from_port,
            to,
            to_port,
            flags,
            is_request,
        },
    )
}

/// Draws packets many of which go back and forth; otherwise hardly any would be an answer.
fn conversation() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((steps(), proptest::option::weighted(0.9, (0_usize..3, any::<bool>()))), 1..150).prop_map(
        |drawn| {
            let mut steps: Vec<Step> = Vec::new();
            for (step, like) in drawn {
                let step = match like.and_then(|(back, turned)| Some((steps.iter().rev().nth(back)?, turned))) {
                    None => step,
                    Some((earlier, false)) => Step { flags: step.flags, pause_s: step.pause_s, ..earlier.clone() },
                    Some((earlier, true)) => Step {
                        from: earlier.to,
                        from_port: if earlier.kind == Kind::Icmp { earlier.from_port } else { earlier.to_port },
                        to: earlier.from,
                        to_port: earlier.from_port,
                        is_request: !earlier.is_request,
                        kind: earlier.kind,
                        ..step
                    },
                };
                steps.push(step);
            }
            steps
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn it_lets_the_same_packets_pass(rules in proptest::collection::vec(rules(), 0..5), steps in conversation()) {
        let policy: String = rules.iter().map(Rule::toml).collect();
        let policy = format!("inside = [\"10.0.0.0/8\", \"fd00::/8\"]\n{policy}");
        let mut harness = Harness::<Firewall>::new(policy.as_bytes()).unwrap();
        let mut model = Model { rules, ..Model::default() };
        let mut now_s = 0;
        for step in steps {
            now_s += step.pause_s;
            advance_clock_ns(step.pause_s * 1_000_000_000);
            let outcome = harness.deliver(&[&step.frame().bytes()]).remove(0).outcome;
            prop_assert_eq!(outcome == Outcome::Sent, model.passes(&step, now_s), "{:?}", step);
        }
    }

    #[test]
    fn no_bytes_panic(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..8)) {
        let mut harness = Harness::<Firewall>::new(b"inside = [\"0.0.0.0/0\"]\n[[rule]]\naction = \"allow\"").unwrap();
        for (start, frame) in [&[0x08, 0, 0x45][..], &[0x86, 0xdd, 0x60], &[]].into_iter().cycle().zip(frames) {
            let _ = harness.deliver(&[&[&[2; 12][..], start, &frame].concat()]);
        }
    }
}

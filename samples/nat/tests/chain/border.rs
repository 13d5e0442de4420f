//! A chain with a way back: frames from inside pass it forwards, those from outside backwards.
//!
//! ```text
//!   inside  <-->  firewall  <-->  nat, for IPv4  <-->  router  <-->  outside
//! ```

use firewall::Firewall;
use lpm_router::Router;
use nat::Nat;
use pinion_sdk::Direction;
use pinion_sdk::testing::{Harness, Outcome, Verdict};

const FIREWALL: &str = r#"
inside = ["10.0.0.0/8", "fd00::/8"]

[[rule]]
action = "allow"
direction = "out"
"#;

const NAT: &str = r#"
inside = ["10.0.0.0/8"]
outside = ["203.0.113.1"]

[to_inside]
output = 0
"#;

/// Outside the way carries 1400 bytes, inside 1300.
const ROUTER: &str = r#"
mac = "02:00:00:00:00:01"
addresses = ["203.0.113.254", "2001:db8:ff::fe"]
errors_per_second = 1000
routes = """
203.0.113.1/32  inside
fd00::/8        inside
0.0.0.0/0       outside
::/0            outside
"""

[[next_hop]]
name = "inside"
mac = "02:00:00:00:00:21"
mtu = 1300

[[next_hop]]
name = "outside"
mac = "02:00:00:00:00:22"
mtu = 1400
"#;

/// Where a frame leaves the chain; its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Inside(Vec<u8>),
    Outside(Vec<u8>),
}

/// The chain.
pub(crate) struct Border {
    pub(crate) firewall: Harness<Firewall>,
    pub(crate) nat: Harness<Nat>,
    router: Harness<Router>,
}

/// How a frame comes to a stage.
#[derive(Clone, Copy)]
enum Comes {
    Forwards,
    Backwards,
    /// Backwards, as a reply of a later stage.
    AsReply,
}

impl Border {
    pub(crate) fn new() -> Self {
        Self {
            firewall: Harness::new(FIREWALL.as_bytes()).unwrap(),
            nat: Harness::new(NAT.as_bytes()).unwrap(),
            router: Harness::new(ROUTER.as_bytes()).unwrap(),
        }
    }

    /// Sends a datagram from inside.
    pub(crate) fn send_from_inside(&mut self, datagram: &[u8]) -> Vec<Left> {
        let passed = deliver(&mut self.firewall, Comes::Forwards, &[frame(datagram)]);
        let passed = passed.into_iter().map(sent).collect::<Vec<_>>();
        let passed = match is_v4(datagram) {
            true => deliver(&mut self.nat, Comes::Forwards, &passed).into_iter().map(sent).collect(),
            false => passed,
        };
        let routed = deliver(&mut self.router, Comes::Forwards, &passed);
        let mut left = Vec::new();
        for Verdict { outcome, bytes, .. } in routed {
            match outcome {
                Outcome::Sent => left.push(Left::Outside(bytes[14..].to_vec())),
                Outcome::Replied => left.extend(self.pass_inside(Comes::AsReply, &[bytes])),
                other => panic!("the router: {other:?}"),
            }
        }
        left
    }

    /// Sends a datagram from outside.
    pub(crate) fn send_from_outside(&mut self, datagram: &[u8]) -> Vec<Left> {
        let routed = deliver(&mut self.router, Comes::Backwards, &[frame(datagram)]);
        let mut left = Vec::new();
        for Verdict { outcome, bytes, .. } in routed {
            match outcome {
                Outcome::Sent => left.extend(self.pass_inside(Comes::Backwards, &[bytes])),
                Outcome::Replied => left.push(Left::Outside(bytes[14..].to_vec())),
                other => panic!("the router: {other:?}"),
            }
        }
        left
    }

    fn pass_inside(&mut self, comes: Comes, frames: &[Vec<u8>]) -> Vec<Left> {
        let passed: Vec<_> = match is_v4(&frames[0][14..]) {
            true => deliver(&mut self.nat, comes, frames).into_iter().map(sent).collect(),
            false => frames.to_vec(),
        };
        let passed = deliver(&mut self.firewall, comes, &passed);
        passed.into_iter().map(|verdict| Left::Inside(sent(verdict)[14..].to_vec())).collect()
    }
}

/// Delivers frames to a stage; returns those that it did not drop.
fn deliver<F: pinion_sdk::Function>(stage: &mut Harness<F>, comes: Comes, frames: &[Vec<u8>]) -> Vec<Verdict> {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let verdicts = match comes {
        Comes::Forwards => stage.deliver_direction(Direction::Forward, 0, &frames),
        Comes::Backwards => stage.deliver_direction(Direction::Backward, 1, &frames),
        Comes::AsReply => stage.deliver_reply(Direction::Backward, 0, &frames),
    };
    verdicts.into_iter().filter(|verdict| verdict.outcome != Outcome::Dropped).collect()
}

fn sent(verdict: Verdict) -> Vec<u8> {
    assert_eq!(verdict.outcome, Outcome::Sent);
    verdict.bytes
}

fn is_v4(datagram: &[u8]) -> bool {
    datagram[0] >> 4 == 4
}

fn frame(datagram: &[u8]) -> Vec<u8> {
    let ethertype = if is_v4(datagram) { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&crate::support::MACS[..], &ethertype, datagram].concat()
}

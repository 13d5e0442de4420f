//! A chain with a way back: frames from inside pass it forwards, those from outside backwards.
//!
//! ```text
//!   inside  <-->  firewall  <-->  nat, for IPv4  <-->  router  <-->  outside
//! ```

use firewall::Firewall;
use lpm_router::Router;
use nat::Nat;
use pinion_sdk::testing::{Chain, Departure, Exit, Frame};

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

const INSIDE: u16 = 0;
const OUTSIDE: u16 = 1;

/// The chain.
pub(crate) struct Border {
    pub(crate) v4: Chain,
    /// Without the translator, which is for IPv4 only.
    v6: Chain,
}

impl Border {
    pub(crate) fn new() -> Self {
        let chain = || Chain::new().egress(OUTSIDE).reverse(&[OUTSIDE], INSIDE).stage::<Firewall>(FIREWALL.as_bytes());
        let routed = |chain: Chain| chain.stage::<Router>(ROUTER.as_bytes()).unwrap();
        let translated = chain().and_then(|chain| chain.stage::<Nat>(NAT.as_bytes())).unwrap();
        Self { v4: routed(translated), v6: routed(chain().unwrap()) }
    }

    pub(crate) fn send_from_inside(&mut self, frame: &Frame) -> Vec<Left> {
        self.send(INSIDE, frame)
    }

    pub(crate) fn send_from_outside(&mut self, frame: &Frame) -> Vec<Left> {
        self.send(OUTSIDE, frame)
    }

    fn send(&mut self, port: u16, frame: &Frame) -> Vec<Left> {
        let frame = frame.bytes();
        let is_v4 = frame[12..14] == [0x08, 0x00];
        let chain = if is_v4 { &mut self.v4 } else { &mut self.v6 };
        let departures = chain.deliver_from(port, &[&frame]).into_iter();
        let left = departures.filter_map(|Departure { exit, bytes, .. }| match exit {
            Exit::Port(INSIDE) => Some(Left::Inside(bytes[14..].to_vec())),
            Exit::Port(OUTSIDE) => Some(Left::Outside(bytes[14..].to_vec())),
            Exit::Dropped => None,
            other => panic!("{other:?}"),
        });
        left.collect()
    }
}

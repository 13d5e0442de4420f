//! A stateless firewall: packets that its policy allows are forwarded along the chain, all others are dropped.
//!
//! ```text
//!   configuration --policy.rs--> Policy: a list of rules for IPv4, one for IPv6    once, when the chain is made
//!   frame --the SDK--> Headers --Policy::verdict--> send or drop                   for each packet
//! ```
//!
//! Its only state is a count of denied packets, so its costs per packet are bounded.

#![forbid(unsafe_code)]

pub mod policy;

use pinion_sdk::headers::Headers;
use pinion_sdk::{Batch, Function, InitError, clock, info};
use policy::{Policy, Verdict};

/// Time between two log lines about denied packets.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct PacketFilter {
    policy: Policy,
    denied: u64,
    reported_ns: Option<u64>,
}

impl Function for PacketFilter {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).map_err(|error| InitError::new(format!("the policy is no text: {error}")))?;
        let policy = Policy::parse(text).map_err(InitError::new)?;
        Ok(Self { policy, denied: 0, reported_ns: None })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let denied_before = self.denied;
        for packet in batch {
            match Headers::of(packet.data()).map(|headers| self.policy.verdict(&headers)) {
                Ok(Verdict::Allow) => packet.send(),
                Ok(Verdict::Deny) | Err(_) => {
                    self.denied += 1;
                    packet.discard();
                }
            }
        }
        if self.denied > denied_before {
            self.report();
        }
    }
}

impl PacketFilter {
    /// Logs the count, at most every ten seconds: a flood of denied packets must not fill the log.
    #[cold]
    fn report(&mut self) {
        let now_ns = clock::now_ns();
        if self.reported_ns.is_none_or(|reported_ns| now_ns - reported_ns >= REPORT_INTERVAL_NS) {
            self.reported_ns = Some(now_ns);
            info!("{} packets denied so far", self.denied);
        }
    }
}

pinion_sdk::export!(PacketFilter);

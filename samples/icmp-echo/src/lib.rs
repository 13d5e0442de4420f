//! Answers ICMP echo requests, as `ping` sends them, over IPv4 and IPv6, for every destination address.
//!
//! [`reply::turn`] turns a request into its reply, in place; this file is the function around it.

#![forbid(unsafe_code)]

pub mod reply;

use pinion_sdk::{Batch, Function, InitError, clock, debug};
use reply::Ignored;

/// Time between two log lines about bad checksums.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug, Default)]
pub struct IcmpEcho {
    bad_checksums: u64,
    reported_ns: Option<u64>,
}

impl Function for IcmpEcho {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if !config.is_empty() {
            return Err(InitError::new(format!(
                "icmp-echo has no configuration, but was given {} bytes",
                config.len()
            )));
        }
        Ok(Self::default())
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            match reply::turn(packet.data_mut()) {
                Ok(()) => packet.reply(),
                Err(Ignored::BadChecksum) => self.count_bad_checksum(),
                Err(_) => packet.discard(),
            }
        }
    }
}

impl IcmpEcho {
    /// Counts the message, and logs the count at most every ten seconds: a faulty link or a hostile client must not
    /// fill the log.
    fn count_bad_checksum(&mut self) {
        self.bad_checksums += 1;
        let now_ns = clock::now_ns();
        if self.reported_ns.is_none_or(|reported_ns| now_ns - reported_ns >= REPORT_INTERVAL_NS) {
            self.reported_ns = Some(now_ns);
            debug!("{} messages with a bad checksum dropped so far", self.bad_checksums);
        }
    }
}

pinion_sdk::export!(IcmpEcho);

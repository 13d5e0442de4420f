//! The UDP echo service (RFC 862), over IPv4 and IPv6, for every destination address and port. It answers all
//! datagrams, or one and then finishes.
//!
//! [`answer::turn`] turns a datagram into its answer, in place; this file is the function around it.

#![forbid(unsafe_code)]

pub mod answer;

use answer::Ignored;
use pinion_sdk::{Batch, Function, InitError, clock, debug, finish};

/// Time between two log lines about bad checksums.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// Most bytes of a refused configuration that the refusal quotes.
const SHOWN_BYTES_MAX: usize = 64;

/// How many datagrams an instance answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// All datagrams.
    Endless,
    /// One datagram, after which it finishes.
    Once,
}

/// The function.
#[derive(Debug)]
pub struct UdpEcho {
    patience: Patience,
    bad_checksums: u64,
    reported_ns: Option<u64>,
}

impl Function for UdpEcho {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let patience = match config.trim_ascii() {
            b"" => Patience::Endless,
            b"once" => Patience::Once,
            other => {
                let shown = other[..other.len().min(SHOWN_BYTES_MAX)].escape_ascii();
                return Err(InitError::new(format!(
                    "udp-echo takes no configuration but `once`, and was given `{shown}`"
                )));
            }
        };
        Ok(Self { patience, bad_checksums: 0, reported_ns: None })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            let found = packet.l4_checksum();
            match answer::turn(packet.data_mut(), found) {
                Ok(()) => {
                    packet.reply();
                    if self.patience == Patience::Once {
                        return finish();
                    }
                }
                Err(Ignored::BadChecksum) => self.count_bad_checksum(),
                Err(_) => packet.discard(),
            }
        }
    }
}

impl UdpEcho {
    /// Counts the datagram, and logs the count at most every ten seconds: a faulty link or a hostile client must not
    /// fill the log.
    fn count_bad_checksum(&mut self) {
        self.bad_checksums += 1;
        let now_ns = clock::now_ns();
        if self.reported_ns.is_none_or(|reported_ns| now_ns - reported_ns >= REPORT_INTERVAL_NS) {
            self.reported_ns = Some(now_ns);
            debug!("{} datagrams with a bad checksum dropped so far", self.bad_checksums);
        }
    }
}

pinion_sdk::export!(UdpEcho);

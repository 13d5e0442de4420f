//! A router for IPv4 and IPv6: forwards each packet to the next hop of the longest prefix that matches its destination.
//!
//! ```text
//!   configuration --config.rs--> Routes: next hops, and a table.rs per version of IP       once, when the chain is made
//!   frame --datagram.rs--> Ip --Routes--> an output, or an error made by icmp.rs           for each packet
//!                                  split.rs: two fragments, if it is too long
//! ```
//!
//! The tables are part of the snapshot from which instances start, so instances share their memory and build none.

#![forbid(unsafe_code)]

pub mod config;
pub mod datagram;
pub mod icmp;
pub mod limiter;
pub mod split;
pub mod table;

use config::{Action, Config, Routes};
use datagram::Unroutable;
use icmp::{Problem, Sender};
use limiter::Limiter;
use pinion_sdk::headers::{Addresses, CannotRewrite, Ip, Mac, Pair, set_macs};
use pinion_sdk::{Batch, Checksum, Function, InitError, Packet, clock, info};
use split::{may_be_split, split};

/// Time between two log lines.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// Routes that were compiled into the module.
const BUILT_IN: &str = include_str!(concat!(env!("OUT_DIR"), "/routes.txt"));

/// Counts of packets that were not forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Neither IPv4 nor IPv6, truncated, or with a wrong checksum.
    pub malformed: u64,
    /// From or to addresses that no router forwards: groups, the link, this host.
    pub out_of_scope: u64,
    /// With a used-up hop limit.
    pub expired: u64,
    /// Without a route.
    pub unreachable: u64,
    /// With a route to the black hole.
    pub blackholed: u64,
    /// Longer than their next hop's MTU, and not fragmented.
    pub too_long: u64,
    /// ICMP errors that were sent for them.
    pub errors: u64,
}

/// The function.
#[derive(Debug)]
pub struct Router {
    routes: Routes,
    sender: Sender,
    limiter: Limiter,
    counters: Counters,
    reported: (u64, Counters),
}

impl Function for Router {
    /// For second fragments: half of the slots, so a batch may have as many packets that are too long as there are others.
    const OWN_SLOTS: u16 = 128;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        let routes = Routes::new(&config, BUILT_IN)?;
        Ok(Self {
            routes,
            sender: Sender::new(config.mac.map(|mac| mac.0), &config.addresses)?,
            limiter: Limiter::new(config.errors_per_second),
            counters: Counters::default(),
            reported: (0, Counters::default()),
        })
    }

    fn start(&mut self) {
        self.limiter.rekey();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            self.route(packet);
        }
        if self.counters != self.reported.1 {
            self.report();
        }
    }
}

impl Router {
    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn route(&mut self, mut packet: Packet<'_>) {
        let is_summed = packet.ip_checksum() == Checksum::Good;
        let datagram = match datagram::read(packet.data(), is_summed) {
            Ok(datagram) => datagram,
            Err(Unroutable::Malformed) => return self.counters.malformed += 1,
            Err(Unroutable::OutOfScope) => return self.counters.out_of_scope += 1,
        };
        if self.sender.is_own(&datagram) {
            return self.counters.out_of_scope += 1;
        }
        if datagram.hop_limit(packet.data()).is_none_or(|hop_limit| hop_limit <= 1) {
            self.counters.expired += 1;
            return self.refuse(packet, &datagram, Problem::TimeExceeded);
        }
        let action = match datagram.addresses {
            Addresses::V4(pair) => self.routes.for_v4(pair.destination),
            Addresses::V6(pair) => self.routes.for_v6(pair.destination),
        };
        match action {
            Action::Forward { output, macs, mtu } if datagram.len <= mtu.into() => {
                if pass(packet.data_mut(), &datagram, macs).is_ok() {
                    packet.send_to(output);
                }
            }
            Action::Forward { output, macs, mtu } => self.shorten(packet, &datagram, output, macs, mtu),
            Action::Blackhole => self.counters.blackholed += 1,
            Action::Unreachable => {
                self.counters.unreachable += 1;
                self.refuse(packet, &datagram, Problem::NoRoute);
            }
        }
    }

    /// Forwards a packet that is longer than its next hop's MTU in two fragments. If it may not be fragmented, tells its
    /// sender the MTU.
    #[cold]
    fn shorten(&mut self, mut packet: Packet<'_>, datagram: &Ip, output: u16, macs: Pair<Mac>, mtu: u16) {
        if !may_be_split(packet.data(), datagram) {
            self.counters.too_long += 1;
            return self.refuse(packet, datagram, Problem::TooBig { mtu });
        }
        if pass(packet.data_mut(), datagram, macs).is_err() {
            return;
        }
        match split(&mut packet, datagram, mtu.into()) {
            Some(rest) => {
                packet.send_to(output);
                rest.send_to(output);
            }
            None => self.counters.too_long += 1,
        }
    }

    /// Sends the packet's sender an ICMP error, if one may be sent.
    #[cold]
    fn refuse(&mut self, mut packet: Packet<'_>, datagram: &Ip, problem: Problem) {
        let may_be_told = self.sender.has_address_for(datagram) && icmp::may_be_told(packet.data(), datagram, problem);
        if !may_be_told || !self.limiter.allows(datagram.addresses.source(), clock::now_ns()) {
            return;
        }
        if self.sender.turn(&mut packet, datagram, problem).is_ok() {
            self.counters.errors += 1;
            packet.reply();
        }
    }

    #[cold]
    fn report(&mut self) {
        let now_ns = clock::now_ns();
        if self.reported.1 == Counters::default() || now_ns - self.reported.0 >= REPORT_INTERVAL_NS {
            let Counters { malformed, out_of_scope, expired, unreachable, blackholed, too_long, errors } =
                self.counters;
            info!(
                "not forwarded so far: {unreachable} without a route, {expired} expired, {blackholed} to a black hole, \
                 {out_of_scope} out of scope, {malformed} malformed, {too_long} too long; {errors} errors sent"
            );
            self.reported = (now_ns, self.counters);
        }
    }
}

/// Takes a hop from a datagram's limit, which has one left, and addresses its frame to the next hop.
#[inline]
fn pass(frame: &mut [u8], datagram: &Ip, macs: Pair<Mac>) -> Result<(), CannotRewrite> {
    datagram.decrement_hop_limit(frame)?;
    set_macs(frame, macs)
}

pinion_sdk::export!(Router);

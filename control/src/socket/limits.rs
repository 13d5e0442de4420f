//! Limits of what callers may take of the node: connections, requests, and time.

use std::num::NonZeroU32;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// Most connections on the Unix socket, if the process may have as many files; each call of a function by `pinion invoke`
/// takes one.
const UNIX_CONNECTIONS_MAX: usize = 1280;
/// Most connections on TCP, if the process may have as many files.
const TCP_CONNECTIONS_MAX: usize = 1024;
/// Fewest of either.
const CONNECTIONS_MIN: usize = 16;

/// What callers may take. The defaults are those of a node; tests choose shorter times.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections on the Unix socket. They have places of their own, so that the operator is never locked out.
    pub unix_connections_max: usize,
    /// Connections on TCP whose handshake is complete.
    pub connections_max: usize,
    /// Connections on TCP whose handshake is not, so that strangers take no places of those that have an identity.
    pub handshakes_max: usize,
    /// The same, from one address, or from one network of 64 bits for IPv6, so that few strangers take no places of all others;
    /// four times as many from one network of 48.
    pub handshakes_per_address_max: usize,
    /// Connections on TCP from one address, or from one network of 64 bits for IPv6; four times as many from one of 48.
    pub connections_per_address_max: usize,
    /// Connections on TCP of one tenant, or of all operators' certificates together.
    pub connections_per_identity_max: usize,
    /// Requests in progress of one tenant, or of all operators' certificates together.
    pub requests_at_once: usize,
    /// Requests of one tenant in a second; for a moment it may make twice as many.
    pub requests_per_second: NonZeroU32,
    /// Memory of requests until their calls have ended, of one tenant, or of all operators' certificates together: their
    /// encoded bytes, and what the elements of their lists take once they are decoded. Enough for one change of the
    /// largest size, and some small ones.
    pub request_bytes_at_once: u64,
    /// The same, of all tenants together. Requests that take at most 64 KiB do not count. While more than three quarters are
    /// taken, no tenant gets more than a sixteenth.
    pub request_bytes_of_all: u64,
    /// How long a handshake may take.
    pub handshake_time: Duration,
    /// How long a connection on TCP may take until its first request has begun.
    pub first_request_time: Duration,
    /// How long a connection on TCP may be without a request.
    pub idle_time: Duration,
    /// How long nothing of a request may arrive until it is given up; its pauses together may be four times as long.
    pub request_stall: Duration,
    /// How long a client on TCP may take nothing of a response that is ready.
    pub response_stall: Duration,
    /// How often the peer of a call that waits or is in progress is checked.
    pub check_interval: Duration,
    /// The least time between two looks at the files of certificates.
    pub look_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
        // At most three quarters of the files that this process may have.
        let connections_max = (files / 4).clamp(CONNECTIONS_MIN, TCP_CONNECTIONS_MAX);
        Self {
            unix_connections_max: (files / 2).clamp(CONNECTIONS_MIN, UNIX_CONNECTIONS_MAX),
            connections_max,
            handshakes_max: (connections_max / 4).clamp(CONNECTIONS_MIN, 128),
            handshakes_per_address_max: 8,
            connections_per_address_max: 64,
            connections_per_identity_max: 32,
            requests_at_once: 64,
            requests_per_second: const { NonZeroU32::new(200).unwrap() },
            request_bytes_at_once: 128 << 20,
            request_bytes_of_all: 512 << 20,
            handshake_time: Duration::from_secs(10),
            first_request_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(300),
            request_stall: Duration::from_secs(30),
            response_stall: Duration::from_secs(60),
            check_interval: Duration::from_secs(5),
            look_interval: Duration::from_secs(1),
        }
    }
}

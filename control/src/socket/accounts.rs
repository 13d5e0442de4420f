//! Accounts of identities: what each has under way of connections, requests and bytes, and how fast it asks.
//!
//! All certificates of a tenant share one account, as they could be made at will; so do all of operators.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::limits::Limits;
use crate::access::Caller;
use crate::api::mark_retryable;
use crate::model::{TenantName, leaves_room};

/// Accounts that are kept without a connection, so that a tenant's rate outlives its connections.
const ACCOUNTS_KEPT_MAX: usize = 4096;

/// The largest message that always finds room among those of all tenants: these are bounded by requests at once.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// All accounts, by tenant; that of operators has none.
pub(super) struct Accounts {
    limits: Limits,
    /// Of all tenants.
    bytes_of_all: Arc<Room>,
    by_tenant: Mutex<BTreeMap<Option<TenantName>, Arc<Account>>>,
}

impl Accounts {
    pub(super) fn new(limits: Limits) -> Self {
        let bytes_of_all = Arc::new(Room::new(limits.request_bytes_of_all));
        Self { limits, bytes_of_all, by_tenant: Mutex::default() }
    }

    pub(super) fn of(&self, caller: &Caller) -> Arc<Account> {
        let mut by_tenant = lock(&self.by_tenant);
        if by_tenant.len() >= ACCOUNTS_KEPT_MAX {
            by_tenant.retain(|_, account| Arc::strong_count(account) > 1);
        }
        let tenant = caller.tenant().cloned();
        let account = || Arc::new(Account::new(&self.limits, tenant.as_ref(), &self.bytes_of_all));
        Arc::clone(by_tenant.entry(tenant.clone()).or_insert_with(account))
    }
}

/// What one identity has under way.
pub(super) struct Account {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    requests_max: usize,
    /// Of tenants only.
    rate: Option<(DefaultDirectRateLimiter, NonZeroU32)>,
    bytes: Room,
    /// What tenants share. Operators have none of it, so that tenants cannot use up theirs.
    of_all: Option<PartOfAll>,
}

/// A tenant's part of the room of all tenants.
struct PartOfAll {
    room: Arc<Room>,
    used: AtomicU64,
}

impl PartOfAll {
    /// Takes room, if there is as much, and if it leaves the last quarter to tenants that have little.
    fn take(&self, bytes: u64) -> bool {
        // Requests of the tenant at the same time each see what the others take.
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_taken = self.room.take_if(bytes, |total, max| bytes == 0 || leaves_room(used, 0, total, max));
        if !is_taken {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    fn give_back(&self, bytes: u64) {
        self.room.give_back(bytes);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Room for bytes.
struct Room {
    used: AtomicU64,
    max: u64,
}

impl Room {
    fn new(max: u64) -> Self {
        Self { used: AtomicU64::new(0), max }
    }

    /// Takes room, if there is as much.
    fn take(&self, bytes: u64) -> bool {
        self.take_if(bytes, |_, _| true)
    }

    /// As [`Self::take`], if that may be: asked with how much is taken then, and of how much.
    fn take_if(&self, bytes: u64, may_be: impl Fn(u64, u64) -> bool) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.max && may_be(*sum, self.max));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Account {
    fn new(limits: &Limits, tenant: Option<&TenantName>, bytes_of_all: &Arc<Room>) -> Self {
        let per_second = limits.requests_per_second;
        let quota =
            Quota::per_second(per_second).allow_burst(per_second.saturating_mul(const { NonZeroU32::new(2).unwrap() }));
        Self {
            connections: Arc::new(Semaphore::new(limits.connections_per_identity_max)),
            requests: Arc::new(Semaphore::new(limits.requests_at_once)),
            requests_max: limits.requests_at_once,
            rate: tenant.map(|_| (RateLimiter::direct(quota), per_second)),
            bytes: Room::new(limits.request_bytes_at_once),
            of_all: tenant.map(|_| PartOfAll { room: Arc::clone(bytes_of_all), used: AtomicU64::new(0) }),
        }
    }

    /// Takes a place for a connection; none if there is none.
    pub(super) fn connection(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// Takes a place for a request, unless the identity has too many under way or asks too fast.
    pub(super) fn request(&self) -> Result<OwnedSemaphorePermit, Status> {
        if let Some((rate, per_second)) = &self.rate
            && let Err(not_until) = rate.check()
        {
            let wait_ms = not_until.wait_time_from(DefaultClock::default().now()).as_millis() + 1;
            return Err(not_now(format!(
                "a tenant may make {per_second} requests in a second, and this is one too many: try again in {wait_ms} ms"
            )));
        }
        let max = self.requests_max;
        let full = |_| {
            not_now(format!(
                "{max} requests of this identity are in progress, and no more may be at once: wait until one has ended"
            ))
        };
        Arc::clone(&self.requests).try_acquire_owned().map_err(full)
    }

    /// Takes room for more bytes of a message that has taken so many already.
    fn take(&self, taken: &mut Taken, more: u64) -> Result<(), Status> {
        let (max, bytes) = (self.bytes.max, taken.bytes.saturating_add(more));
        if !self.bytes.take(more) {
            let message = format!(
                "this message takes {bytes} bytes of memory, and with the others of this identity there would be more than {max}: \
                 send less at once, or send it when their calls have ended"
            );
            return Err(if bytes > max { Status::resource_exhausted(message) } else { not_now(message) });
        }
        let of_all = if bytes > SMALL_BYTES_MAX { bytes } else { 0 };
        if !self.of_all.as_ref().is_none_or(|part| part.take(of_all - taken.of_all)) {
            self.bytes.give_back(more);
            return Err(not_now(format!(
                "this message takes {bytes} bytes of memory, and the node has no room for it at the moment: send it again in some seconds"
            )));
        }
        *taken = Taken { bytes, of_all };
        Ok(())
    }

    fn give_back(&self, taken: &mut Taken) {
        let Taken { bytes, of_all } = std::mem::take(taken);
        self.bytes.give_back(bytes);
        if let Some(part) = &self.of_all {
            part.give_back(of_all);
        }
    }
}

/// The memory that the message of a request takes, or of several the last, until this is dropped: its bytes as they
/// arrive, and its elements.
pub(super) struct RequestBytes {
    account: Arc<Account>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    bytes: u64,
    /// Those that count among the bytes of all tenants.
    of_all: u64,
}

impl RequestBytes {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Self { account, taken: Mutex::default() }
    }

    /// Gives back what the message before took, and takes room for the bytes of the next one.
    pub(super) fn begin(&self, bytes: u64) -> Result<(), Status> {
        let mut taken = lock(&self.taken);
        self.account.give_back(&mut taken);
        self.account.take(&mut taken, bytes)
    }

    /// Takes more room for the message.
    pub(super) fn grow(&self, more: u64) -> Result<(), Status> {
        self.account.take(&mut lock(&self.taken), more)
    }
}

impl Drop for RequestBytes {
    fn drop(&mut self) {
        self.account.give_back(&mut lock(&self.taken));
    }
}

/// How many of its IPv6 networks of 64 bits a network of 48 may fill: what one customer of a provider has.
const NETWORKS_OF_SITE: usize = 4;

/// Connections by the networks that they come from.
#[derive(Default)]
pub(super) struct Addresses(Arc<Mutex<BTreeMap<Network, usize>>>);

impl Addresses {
    /// Takes a place of an address; none if its network has `max` already, or the larger network around that four times as many.
    pub(super) fn take(&self, address: IpAddr, max: usize) -> Option<AddressPlace> {
        let networks = networks(address);
        let mut counts = lock(&self.0);
        let bounds = networks.iter().zip([max, max.saturating_mul(NETWORKS_OF_SITE)]);
        if bounds.into_iter().any(|(network, max)| counts.get(network).is_some_and(|count| *count >= max)) {
            return None;
        }
        for network in &networks {
            *counts.entry(*network).or_default() += 1;
        }
        Some(AddressPlace { counts: Arc::clone(&self.0), networks })
    }
}

/// A place of an address, until this is dropped.
pub(super) struct AddressPlace {
    counts: Arc<Mutex<BTreeMap<Network, usize>>>,
    networks: Vec<Network>,
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        for network in &self.networks {
            let Some(count) = counts.get_mut(network) else { continue };
            *count -= 1;
            if *count == 0 {
                counts.remove(network);
            }
        }
    }
}

/// A network, by its length in bits and its first address.
type Network = (u32, IpAddr);

/// Returns the networks from which one station can choose addresses: all 32 bits of IPv4, and of IPv6 the first 64, and the first 48.
fn networks(address: IpAddr) -> Vec<Network> {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            [64, 48].map(|bits| (bits, IpAddr::V6((u128::from(address) >> (128 - bits) << (128 - bits)).into()))).into()
        }
        address => vec![(32, address)],
    }
}

/// Returns the status of a request that finds room later.
fn not_now(message: String) -> Status {
    let mut status = Status::resource_exhausted(message);
    mark_retryable(&mut status);
    status
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::access::Certificate;
    use crate::client::ClientError;

    #[test]
    fn addresses_of_one_ipv6_network_share_places_and_nothing_is_kept_of_those_that_left() {
        let addresses = Addresses::default();
        let places: Vec<_> = ["2001:db8::1", "2001:db8::2:3", "10.0.0.1", "::ffff:10.0.0.1"]
            .map(|address| addresses.take(address.parse().unwrap(), 2).unwrap())
            .into();
        assert!(addresses.take("2001:db8::9".parse().unwrap(), 2).is_none());
        assert!(addresses.take("10.0.0.1".parse().unwrap(), 2).is_none());
        assert!(addresses.take("10.0.0.2".parse().unwrap(), 2).is_some());
        drop(places);
        assert!(lock(&addresses.0).is_empty());
    }

    #[test]
    fn networks_of_one_site_share_places_and_leave_other_sites_theirs() {
        let addresses = Addresses::default();
        let take = |address: String| addresses.take(address.parse().unwrap(), 2);
        let places: Vec<_> = (0..8).map(|at| take(format!("2001:db8:1:{}::1", at / 2)).unwrap()).collect();
        assert!(take("2001:db8:1:9::1".to_owned()).is_none());
        let other = take("2001:db8:2::1".to_owned());
        assert!(other.is_some());
        drop(places);
        assert!(take("2001:db8:1:9::1".to_owned()).is_some());
        drop(other);
        assert!(lock(&addresses.0).is_empty());
    }

    #[test]
    fn tenants_with_large_messages_leave_room_to_those_with_small_ones_and_to_operators() {
        let max = 64 * (SMALL_BYTES_MAX + 1);
        let limits = Limits { request_bytes_at_once: max, request_bytes_of_all: max, ..Limits::default() };
        let accounts = Accounts::new(limits);
        let account = |tenant: &str| {
            let certificate = Certificate { serial: String::new(), expires: SystemTime::now() };
            accounts.of(&Caller::of_uri(&format!("pinion://tenant/{tenant}/admin"), None, certificate).unwrap())
        };
        let begin = |account: Arc<Account>, bytes| {
            let request = RequestBytes::new(account);
            request.begin(bytes).map(|()| request)
        };
        let large = [begin(account("a"), max / 2).unwrap(), begin(account("b"), max / 4).unwrap()];
        assert!(begin(account("a"), max / 8).is_err(), "it has much already");
        assert!(begin(account("c"), max / 8).is_err(), "that is much at once");
        let little = begin(account("c"), max / 16).unwrap();
        assert!(little.grow(SMALL_BYTES_MAX + 1).is_err());
        drop(begin(account("d"), max / 16).unwrap());
        drop(begin(accounts.of(&Caller::of_uid(0)), max).unwrap());
        drop((large, little));
        begin(account("c"), max / 4 * 3).unwrap();
    }

    #[test]
    fn what_is_too_much_at_the_moment_may_be_tried_again_and_what_never_finds_room_may_not() {
        let limits = Limits {
            request_bytes_at_once: 100,
            requests_at_once: 1,
            requests_per_second: NonZeroU32::new(1).unwrap(),
            ..Limits::default()
        };
        let of_all = Arc::new(Room::new(limits.request_bytes_of_all));
        let account = Arc::new(Account::new(&limits, Some(&"demo".parse().unwrap()), &of_all));
        let is_retryable = |status: Status| ClientError::from(status).is_retryable();
        let _place = account.request().unwrap();
        assert!(is_retryable(account.request().unwrap_err()), "another request is in progress");
        assert!(is_retryable(account.request().unwrap_err()), "it is the third within a second");
        let message = RequestBytes::new(Arc::clone(&account));
        message.begin(60).unwrap();
        let begin = |bytes| RequestBytes::new(Arc::clone(&account)).begin(bytes).unwrap_err();
        assert!(is_retryable(begin(60)), "there is room when the other has ended");
        assert!(!is_retryable(begin(101)), "there is never room for it");
    }

    #[test]
    fn messages_that_arrive_together_have_a_bound_that_each_gives_back() {
        let large = SMALL_BYTES_MAX + 1;
        let limits = Limits { request_bytes_at_once: 2 * large, request_bytes_of_all: 4 * large, ..Limits::default() };
        let of_all = Arc::new(Room::new(limits.request_bytes_of_all));
        let [one, other] =
            ["one", "other"].map(|name| Arc::new(Account::new(&limits, Some(&name.parse().unwrap()), &of_all)));
        let begin = |account: &Arc<Account>, bytes| {
            let request = RequestBytes::new(Arc::clone(account));
            request.begin(bytes).map(|()| request)
        };
        let refused = |account, bytes| begin(account, bytes).err().map(|status| status.message().to_owned());
        let taken = [begin(&one, large).unwrap(), begin(&one, large).unwrap()];
        let of_identity = refused(&one, 1).unwrap();
        assert!(of_identity.contains("takes 1 bytes") && of_identity.contains(&format!("more than {}", 2 * large)));
        let last = begin(&other, SMALL_BYTES_MAX).unwrap();
        last.grow(1).unwrap();
        assert!(refused(&other, large).unwrap().contains("no room for it at the moment"));
        assert_eq!(refused(&other, SMALL_BYTES_MAX), None, "small messages find room");
        let grown = begin(&other, SMALL_BYTES_MAX).unwrap();
        assert!(grown.grow(1).unwrap_err().message().contains(&format!("takes {large} bytes")));
        drop((taken, grown));
        assert_eq!(refused(&other, large), None);
        last.begin(0).unwrap();
        assert_eq!([&one.bytes, &other.bytes, &of_all].map(|room| room.used.load(Ordering::Relaxed)), [0; 3]);
    }
}

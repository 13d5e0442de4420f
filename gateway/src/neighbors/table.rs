//! Which station has which address, as far as the node has asked: the neighbour cache (RFC 1122, section 2.3.2; RFC
//! 4861, section 7.3).
//!
//! ```text
//!   nothing --a frame leaves--> Asking --answer--> Known --30 s--> Checking --answer--> Known
//!                                 | three times              (on use) | three times
//!                                 v                                   v
//!                               Failed  <--3 s, then nothing        Asking, as before the first frame
//! ```
//!
//! An entry is made only where a frame of an FWP is to leave; what neighbours say of themselves changes entries and makes
//! none. So a flood of forged messages fills no table. What one tenant's frames ask for in vain is bounded, so that a
//! tenant that sends to addresses that nobody has neither fills the table nor floods the network with questions.
//!
//! Allocates nothing after it was made. A look-up searches one bucket of `WAYS` entries. In a full one a new entry
//! replaces one of the tenant that has most there, so that a tenant that sends to many costs others none of theirs.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use pinion_mma::id::{TENANTS_MAX, TenantIndex};
use smoltcp::wire::EthernetAddress;

use super::answer_rate::{Bucket, Rate};
use super::messages::{How, Told};
use super::view::NeighborView;

/// Neighbours that are known at a time, in all networks of all ports.
pub const NEIGHBORS_MAX: usize = 4096;
const WAYS: usize = 8;
/// Neighbours that one tenant, and all tenants together, may ask for without an answer.
pub const ASKING_OF_TENANT_MAX: u16 = 64;
const ASKING_MAX: usize = NEIGHBORS_MAX / 4;
/// How many neighbours one tenant may begin to ask for, however fast they answer.
const BEGUN_OF_TENANT: Rate = Rate { per_second: 256, burst: 512 };

const SECOND_NS: u64 = 1_000_000_000;
/// How long an answer is relied on (RFC 4861: `REACHABLE_TIME`).
pub(crate) const REACHABLE_NS: u64 = 30 * SECOND_NS;
/// The time between two questions (RFC 4861: `RETRANS_TIMER`), and how often is asked.
pub(crate) const ASK_INTERVAL_NS: u64 = SECOND_NS;
pub(crate) const ASKED_MAX: u8 = 3;
/// For so long after it was asked for in vain, a neighbour is not asked for again.
pub(crate) const FAILED_NS: u64 = 3 * SECOND_NS;
/// An entry that no frame used for so long is forgotten.
pub(crate) const UNUSED_NS: u64 = 600 * SECOND_NS;

/// A network by its number among those of all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetworkIndex(pub u16);

/// An entry's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeighborIndex(pub(crate) u16);

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborState {
    /// It was asked for and has not answered yet.
    Asking,
    /// It has answered.
    Known,
    /// It has answered a while ago, and is asked whether it is still there.
    Checking,
    /// It was asked for in vain.
    Failed,
}

/// A neighbour, as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// The network that it is in.
    pub network: NetworkIndex,
    /// Its address.
    pub address: IpAddr,
    /// Its station, if it has one.
    pub station: Option<EthernetAddress>,
    /// What is known of it.
    pub state: NeighborState,
}

#[derive(Clone, Copy)]
struct Entry {
    network: NetworkIndex,
    address: IpAddr,
    /// Valid in [`NeighborState::Known`] and [`NeighborState::Checking`].
    station: EthernetAddress,
    state: NeighborState,
    /// When it answered last, or was asked for in vain.
    since_ns: u64,
    /// When it is asked for next.
    ask_ns: u64,
    asked: u8,
    used_ns: u64,
    /// The tenant whose frame it was asked for.
    tenant: TenantIndex,
    /// Frames of other tenants use it too, such as a router: it then counts for none.
    is_shared: bool,
}

impl Entry {
    fn neighbor(&self) -> Neighbor {
        let has_station = matches!(self.state, NeighborState::Known | NeighborState::Checking);
        Neighbor {
            network: self.network,
            address: self.address,
            station: has_station.then_some(self.station),
            state: self.state,
        }
    }

    /// Returns the tenant that it counts for.
    fn owner(&self) -> Option<TenantIndex> {
        (!self.is_shared).then_some(self.tenant)
    }
}

/// Where a frame for a neighbour goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// To this station.
    Station(EthernetAddress),
    /// It waits until the neighbour has answered.
    Wait(NeighborIndex),
    /// Nowhere: the neighbour does not answer, or too many are asked for.
    Unresolved,
}

/// What is due for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It is to be asked for, from the station that had it or from all.
    Ask { network: NetworkIndex, address: IpAddr, had: Option<EthernetAddress> },
    /// It does not answer: frames that wait for it are dropped.
    GiveUp(NeighborIndex),
}

/// See the module.
pub(crate) struct NeighborTable {
    hasher: RandomState,
    entries: Box<[Option<Entry>]>,
    /// By tenant: neighbours that were asked for without an answer yet.
    asking_of: Box<[u16]>,
    asking: usize,
    /// By tenant: how many more may be asked for.
    rates: Box<[Bucket]>,
    /// Where the next round over the entries goes on.
    next: usize,
    /// Changes with each change of a station.
    version: u32,
}

impl NeighborTable {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            entries: vec![None; NEIGHBORS_MAX].into(),
            asking_of: vec![0; TENANTS_MAX].into(),
            asking: 0,
            rates: vec![Bucket::full(BEGUN_OF_TENANT); TENANTS_MAX].into(),
            next: 0,
            version: 0,
        }
    }

    /// Returns a number that changes whenever a neighbour gets a station or loses it, or a link goes down.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Returns where a frame of this tenant goes whose next hop is `address`.
    pub(crate) fn look_up(
        &mut self,
        network: NetworkIndex,
        address: IpAddr,
        tenant: TenantIndex,
        now_ns: u64,
    ) -> Lookup {
        let bucket = self.bucket(network, address);
        let found = bucket.clone().find(|at| self.is(*at, network, address));
        match found {
            Some(at) => self.found(at, tenant, now_ns),
            None => self.ask_for(bucket, network, address, tenant, now_ns),
        }
    }

    fn found(&mut self, at: usize, tenant: TenantIndex, now_ns: u64) -> Lookup {
        let Some(entry) = &mut self.entries[at] else { return Lookup::Unresolved };
        entry.used_ns = now_ns;
        entry.is_shared |= entry.tenant != tenant;
        match entry.state {
            NeighborState::Known if now_ns.saturating_sub(entry.since_ns) >= REACHABLE_NS => {
                (entry.state, entry.asked, entry.ask_ns) = (NeighborState::Checking, 0, now_ns);
                Lookup::Station(entry.station)
            }
            NeighborState::Known | NeighborState::Checking => Lookup::Station(entry.station),
            NeighborState::Asking => Lookup::Wait(NeighborIndex(at as u16)),
            NeighborState::Failed if now_ns.saturating_sub(entry.since_ns) < FAILED_NS => Lookup::Unresolved,
            NeighborState::Failed => {
                let (network, address) = (entry.network, entry.address);
                self.begin(at, network, address, tenant, now_ns)
            }
        }
    }

    /// Makes an entry in place of a free one, of one that failed, or of one of the tenant that has most in the bucket, its
    /// own among equals, the one unused for longest; but of none that is asked for.
    fn ask_for(
        &mut self,
        bucket: std::ops::Range<usize>,
        network: NetworkIndex,
        address: IpAddr,
        tenant: TenantIndex,
        now_ns: u64,
    ) -> Lookup {
        let entries = &self.entries[bucket.clone()];
        let of_owner = |owner| entries.iter().flatten().filter(|entry| entry.owner() == owner).count();
        // The least is replaced.
        let worth = |entry: &Option<Entry>| match entry {
            None => Some((0, 0, false, 0)),
            Some(entry) => match entry.state {
                NeighborState::Failed => Some((1, 0, false, entry.since_ns)),
                NeighborState::Asking => None,
                NeighborState::Known | NeighborState::Checking => {
                    let owner = entry.owner();
                    Some((2, WAYS - of_owner(owner), owner != Some(tenant), entry.used_ns))
                }
            },
        };
        let place = bucket.filter_map(|at| Some((worth(&self.entries[at])?, at))).min();
        match place {
            Some((_, at)) => self.begin(at, network, address, tenant, now_ns),
            None => Lookup::Unresolved,
        }
    }

    fn begin(&mut self, at: usize, network: NetworkIndex, address: IpAddr, tenant: TenantIndex, now_ns: u64) -> Lookup {
        let of_tenant = &mut self.asking_of[usize::from(tenant.0)];
        let rate = &mut self.rates[usize::from(tenant.0)];
        if *of_tenant >= ASKING_OF_TENANT_MAX || self.asking >= ASKING_MAX || !rate.take(BEGUN_OF_TENANT, now_ns) {
            return Lookup::Unresolved;
        }
        (*of_tenant, self.asking) = (*of_tenant + 1, self.asking + 1);
        self.version = self.version.wrapping_add(1);
        self.entries[at] = Some(Entry {
            network,
            address,
            station: EthernetAddress::default(),
            state: NeighborState::Asking,
            since_ns: now_ns,
            ask_ns: now_ns,
            asked: 0,
            used_ns: now_ns,
            tenant,
            is_shared: false,
        });
        Lookup::Wait(NeighborIndex(at as u16))
    }

    /// Notes what a neighbour says. Returns the entry that it concerns, if there is one. Frames that wait for it may leave
    /// now.
    pub(crate) fn note(&mut self, network: NetworkIndex, told: Told, now_ns: u64) -> Option<NeighborIndex> {
        let at = self.bucket(network, told.address).find(|at| self.is(*at, network, told.address))?;
        let entry = self.entries[at].as_mut()?;
        let had = matches!(entry.state, NeighborState::Known | NeighborState::Checking).then_some(entry.station);
        let was_asking = entry.state == NeighborState::Asking;
        match (told.how, had) {
            // Another station for one that is known: it is checked before it is forgotten. One that is being checked is
            // not asked more often for it, so that it can be given up (RFC 4861, section 7.2.5).
            (How::AnswerUnlessKnown | How::UnaskedUnlessKnown, Some(had)) if had != told.station => {
                if entry.state == NeighborState::Known {
                    (entry.state, entry.asked, entry.ask_ns) = (NeighborState::Checking, 0, now_ns);
                }
                return Some(NeighborIndex(at as u16));
            }
            // Nobody was asked: it is not known that the node's frames reach it.
            (How::Unasked | How::UnaskedUnlessKnown, Some(had)) => {
                entry.station = told.station;
                if had != told.station {
                    (entry.state, entry.asked, entry.ask_ns) = (NeighborState::Checking, 0, now_ns);
                }
            }
            _ => {
                (entry.station, entry.state, entry.since_ns, entry.asked) =
                    (told.station, NeighborState::Known, now_ns, 0)
            }
        }
        let tenant = entry.tenant;
        if was_asking {
            self.no_longer_asking(tenant);
        }
        if had != Some(told.station) {
            self.version = self.version.wrapping_add(1);
        }
        Some(NeighborIndex(at as u16))
    }

    /// Forgets all neighbours in these networks, whose link is down: none answers there. Passes on those that frames may
    /// wait for.
    pub(crate) fn forget_all(&mut self, networks: std::ops::Range<u16>, mut asked_for: impl FnMut(NeighborIndex)) {
        for at in 0..self.entries.len() {
            let Some(entry) = self.entries[at].filter(|entry| networks.contains(&entry.network.0)) else { continue };
            if entry.state == NeighborState::Asking {
                self.no_longer_asking(entry.tenant);
                asked_for(NeighborIndex(at as u16));
            }
            self.forget(at);
        }
        // Also if none was known: ways that need no neighbour lead nowhere now.
        self.version = self.version.wrapping_add(1);
    }

    /// Forgets the stations of these networks, and who did not answer there: their link came up or has another device, and
    /// others may be there. Those that are asked for are asked anew.
    pub(crate) fn forget_stations(&mut self, networks: std::ops::Range<u16>) {
        for at in 0..self.entries.len() {
            match &mut self.entries[at] {
                Some(entry) if !networks.contains(&entry.network.0) => {}
                Some(entry) if entry.state == NeighborState::Asking => (entry.asked, entry.ask_ns) = (0, 0),
                Some(_) => self.forget(at),
                None => {}
            }
        }
    }

    /// Returns the station of an entry, if it has one.
    pub(crate) fn station(&self, neighbor: NeighborIndex) -> Option<EthernetAddress> {
        self.entries[usize::from(neighbor.0)].as_ref()?.neighbor().station
    }

    /// Looks at the next `count` entries, passes on what is due for them, and writes what is known of them to `view`.
    pub(crate) fn go_round(&mut self, count: usize, now_ns: u64, view: &NeighborView, mut due: impl FnMut(Due)) {
        for _ in 0..count.min(self.entries.len()) {
            let at = self.next;
            self.next = (self.next + 1) % self.entries.len();
            if self.entries[at].is_some() {
                self.look_at(at, now_ns, &mut due);
            }
            view.set(at, self.entries[at].as_ref().map(Entry::neighbor));
        }
    }

    /// Does what is due for an entry that was just asked for, at once.
    pub(crate) fn look_at_one(&mut self, neighbor: NeighborIndex, now_ns: u64, due: impl FnMut(Due)) {
        self.look_at(neighbor.0.into(), now_ns, due);
    }

    fn look_at(&mut self, at: usize, now_ns: u64, mut due: impl FnMut(Due)) {
        let Some(entry) = &mut self.entries[at] else { return };
        let is_asked_for = matches!(entry.state, NeighborState::Asking | NeighborState::Checking);
        if is_asked_for && now_ns >= entry.ask_ns {
            let (state, tenant) = (entry.state, entry.tenant);
            if entry.asked < ASKED_MAX {
                (entry.asked, entry.ask_ns) = (entry.asked + 1, now_ns + ASK_INTERVAL_NS);
                let had = (state == NeighborState::Checking).then_some(entry.station);
                due(Due::Ask { network: entry.network, address: entry.address, had });
            } else if state == NeighborState::Asking {
                (entry.state, entry.since_ns) = (NeighborState::Failed, now_ns);
                self.no_longer_asking(tenant);
                due(Due::GiveUp(NeighborIndex(at as u16)));
            } else {
                self.forget(at);
            }
        } else if !is_asked_for && now_ns.saturating_sub(entry.used_ns) >= UNUSED_NS {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: usize) {
        self.entries[at] = None;
        self.version = self.version.wrapping_add(1);
    }

    fn no_longer_asking(&mut self, tenant: TenantIndex) {
        self.asking -= 1;
        self.asking_of[usize::from(tenant.0)] -= 1;
    }

    fn bucket(&self, network: NetworkIndex, address: IpAddr) -> std::ops::Range<usize> {
        let bucket = self.hasher.hash_one((network, address)) as usize % (NEIGHBORS_MAX / WAYS);
        bucket * WAYS..(bucket + 1) * WAYS
    }

    fn is(&self, at: usize, network: NetworkIndex, address: IpAddr) -> bool {
        self.entries[at].is_some_and(|entry| entry.network == network && entry.address == address)
    }
}

#[cfg(test)]
mod tests;

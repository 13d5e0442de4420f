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
//! Allocates nothing after it was made. A look-up searches one bucket of `WAYS` entries.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use pinion_mma::id::{TENANTS_MAX, TenantIndex};
use smoltcp::wire::EthernetAddress;

use super::messages::{How, Told};
use super::view::NeighborView;

/// Neighbours that are known at a time, in all networks of all ports.
pub const NEIGHBORS_MAX: usize = 4096;
const WAYS: usize = 8;
/// Neighbours that one tenant, and all tenants together, may ask for without an answer.
pub const ASKING_OF_TENANT_MAX: u16 = 64;
const ASKING_MAX: usize = NEIGHBORS_MAX / 4;

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
            next: 0,
            version: 0,
        }
    }

    /// Returns a number that changes whenever a neighbour gets a station or loses it.
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

    /// Makes an entry in place of a free one, of one that failed, or of the one unused for longest, but of none that is
    /// asked for.
    fn ask_for(
        &mut self,
        bucket: std::ops::Range<usize>,
        network: NetworkIndex,
        address: IpAddr,
        tenant: TenantIndex,
        now_ns: u64,
    ) -> Lookup {
        let worth = |at: &usize| match &self.entries[*at] {
            None => Some((0, 0)),
            Some(entry) if entry.state == NeighborState::Failed => Some((1, entry.since_ns)),
            Some(entry) if entry.state == NeighborState::Asking => None,
            Some(entry) => Some((2, entry.used_ns)),
        };
        let place = bucket.filter_map(|at| Some((worth(&at)?, at))).min();
        match place {
            Some((_, at)) => self.begin(at, network, address, tenant, now_ns),
            None => Lookup::Unresolved,
        }
    }

    fn begin(&mut self, at: usize, network: NetworkIndex, address: IpAddr, tenant: TenantIndex, now_ns: u64) -> Lookup {
        let of_tenant = &mut self.asking_of[usize::from(tenant.0)];
        if *of_tenant >= ASKING_OF_TENANT_MAX || self.asking >= ASKING_MAX {
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
            // Another station for one that is known: it is checked before it is forgotten.
            (How::UnlessKnown, Some(had)) if had != told.station => {
                (entry.state, entry.asked, entry.ask_ns) = (NeighborState::Checking, 0, now_ns);
                return Some(NeighborIndex(at as u16));
            }
            // Nobody was asked: it is not known that the node's frames reach it.
            (How::Unasked, Some(had)) => {
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

    /// Forgets the stations of these networks, and who did not answer there: their link went down or came up, and others
    /// may be there. Those that are asked for are asked anew.
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
mod tests {
    use super::*;

    const LAN: NetworkIndex = NetworkIndex(0);
    const US: TenantIndex = TenantIndex(1);
    const OTHERS: TenantIndex = TenantIndex(2);
    const PEER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
    const OTHER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 10]);

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    fn told(number: u32, station: EthernetAddress, how: How) -> Told {
        Told { address: address(number), station, how }
    }

    /// Returns what is due for all entries.
    fn due(table: &mut NeighborTable, now_ns: u64) -> Vec<Due> {
        let mut all = Vec::new();
        table.go_round(NEIGHBORS_MAX, now_ns, &NeighborView::default(), |due| all.push(due));
        all
    }

    /// Returns how many neighbours there are.
    fn known_to(table: &mut NeighborTable) -> usize {
        table.entries.iter().flatten().count()
    }

    fn ask(number: u32, had: Option<EthernetAddress>) -> Due {
        Due::Ask { network: LAN, address: address(number), had }
    }

    fn known() -> NeighborTable {
        let mut table = NeighborTable::new();
        table.look_up(LAN, address(1), US, 0);
        table.note(LAN, told(1, PEER, How::Answer), 0).expect("it was asked for");
        table
    }

    #[test]
    fn a_neighbour_is_asked_for_until_it_answers() {
        let mut table = NeighborTable::new();
        let Lookup::Wait(neighbor) = table.look_up(LAN, address(1), US, 0) else { panic!("it is not known") };
        assert_eq!(due(&mut table, 0), [ask(1, None)]);
        assert_eq!(due(&mut table, ASK_INTERVAL_NS - 1), []);
        assert_eq!(due(&mut table, ASK_INTERVAL_NS), [ask(1, None)]);
        assert_eq!(table.note(LAN, told(1, PEER, How::Answer), ASK_INTERVAL_NS), Some(neighbor));
        assert_eq!(table.look_up(LAN, address(1), US, ASK_INTERVAL_NS), Lookup::Station(PEER));
        assert_eq!(due(&mut table, 2 * ASK_INTERVAL_NS), []);
    }

    #[test]
    fn one_that_does_not_answer_is_given_up_and_asked_for_again_after_a_while() {
        let mut table = NeighborTable::new();
        let Lookup::Wait(neighbor) = table.look_up(LAN, address(1), US, 0) else { panic!("it is not known") };
        let over: Vec<_> = (0..=3).flat_map(|second| due(&mut table, second * ASK_INTERVAL_NS)).collect();
        assert_eq!(over, [ask(1, None), ask(1, None), ask(1, None), Due::GiveUp(neighbor)]);
        let failed_ns = 3 * ASK_INTERVAL_NS;
        assert_eq!(table.look_up(LAN, address(1), US, failed_ns + FAILED_NS - 1), Lookup::Unresolved);
        assert_eq!(table.look_up(LAN, address(1), US, failed_ns + FAILED_NS), Lookup::Wait(neighbor));
    }

    #[test]
    fn one_that_is_known_is_checked_on_use_and_meanwhile_used() {
        let mut table = known();
        assert_eq!(table.look_up(LAN, address(1), US, REACHABLE_NS - 1), Lookup::Station(PEER));
        assert_eq!(due(&mut table, REACHABLE_NS), [], "nobody uses it");
        assert_eq!(table.look_up(LAN, address(1), US, REACHABLE_NS), Lookup::Station(PEER));
        assert_eq!(due(&mut table, REACHABLE_NS), [ask(1, Some(PEER))]);
        table.note(LAN, told(1, PEER, How::Answer), REACHABLE_NS);
        assert_eq!(due(&mut table, 2 * REACHABLE_NS - 1), []);
        assert_eq!(table.look_up(LAN, address(1), US, 2 * REACHABLE_NS), Lookup::Station(PEER));
        let over: Vec<_> =
            (0..=3).flat_map(|second| due(&mut table, 2 * REACHABLE_NS + second * ASK_INTERVAL_NS)).collect();
        assert_eq!(over, [ask(1, Some(PEER)); 3]);
        let last_ns = 2 * REACHABLE_NS + 3 * ASK_INTERVAL_NS;
        assert!(matches!(table.look_up(LAN, address(1), US, last_ns), Lookup::Wait(_)), "it is gone");
        assert_eq!(due(&mut table, last_ns), [ask(1, None)], "all are asked");
    }

    #[test]
    fn the_stations_of_a_link_that_goes_down_are_forgotten_and_no_others() {
        let mut table = known();
        table.look_up(NetworkIndex(3), address(1), US, 0);
        table.note(NetworkIndex(3), told(1, PEER, How::Answer), 0);
        table.look_up(LAN, address(2), US, 0);
        let version = table.version();
        table.forget_stations(0..3);
        assert!(table.version() != version);
        assert!(matches!(table.look_up(LAN, address(1), US, 0), Lookup::Wait(_)));
        assert!(matches!(table.look_up(LAN, address(2), US, 0), Lookup::Wait(_)), "it is asked for still");
        assert_eq!(table.look_up(NetworkIndex(3), address(1), US, 0), Lookup::Station(PEER));
    }

    #[test]
    fn who_did_not_answer_on_a_link_is_asked_for_again_at_once_when_it_comes_up() {
        let mut table = NeighborTable::new();
        table.look_up(LAN, address(1), US, 0);
        let given_up =
            |table: &mut NeighborTable, now_ns| due(table, now_ns).iter().any(|it| matches!(it, Due::GiveUp(_)));
        let failed_ns = (0..).step_by(ASK_INTERVAL_NS as usize).find(|now_ns| given_up(&mut table, *now_ns)).unwrap();
        assert_eq!(table.look_up(LAN, address(1), US, failed_ns), Lookup::Unresolved);
        table.forget_stations(0..1);
        assert!(matches!(table.look_up(LAN, address(1), US, failed_ns), Lookup::Wait(_)));
        // One that was asked for while nothing could answer has all its questions anew.
        due(&mut table, failed_ns);
        table.forget_stations(0..1);
        let over: Vec<_> = (0..3).flat_map(|second| due(&mut table, failed_ns + second * ASK_INTERVAL_NS)).collect();
        assert_eq!(over, [ask(1, None); 3]);
    }

    #[test]
    fn what_nobody_has_asked_for_makes_no_entry() {
        let mut table = NeighborTable::new();
        for how in [How::Answer, How::Unasked, How::UnlessKnown] {
            assert_eq!(table.note(LAN, told(1, PEER, how), 0), None);
        }
        assert_eq!(known_to(&mut table), 0);
    }

    #[test]
    fn an_address_that_moves_to_another_station_is_followed_and_checked() {
        let mut table = known();
        table.note(LAN, told(1, OTHER, How::Unasked), 5);
        assert_eq!(table.look_up(LAN, address(1), US, 5), Lookup::Station(OTHER));
        assert_eq!(due(&mut table, 5), [ask(1, Some(OTHER))]);
    }

    #[test]
    fn an_advertisement_without_override_moves_nothing_but_is_checked() {
        let mut table = known();
        table.note(LAN, told(1, OTHER, How::UnlessKnown), 5);
        assert_eq!(table.look_up(LAN, address(1), US, 5), Lookup::Station(PEER));
        assert_eq!(due(&mut table, 5), [ask(1, Some(PEER))]);
        let mut new = NeighborTable::new();
        new.look_up(LAN, address(1), US, 0);
        new.note(LAN, told(1, OTHER, How::UnlessKnown), 0);
        assert_eq!(new.look_up(LAN, address(1), US, 0), Lookup::Station(OTHER));
    }

    #[test]
    fn a_tenant_that_asks_for_nobody_leaves_room_for_others() {
        let mut table = NeighborTable::new();
        let waits = |lookup: &Lookup| matches!(lookup, Lookup::Wait(_));
        let asked = (0..10_000).map(|number| table.look_up(LAN, address(number), US, 0)).filter(waits).count();
        assert_eq!(asked, usize::from(ASKING_OF_TENANT_MAX));
        assert!(waits(&table.look_up(LAN, address(20_000), OTHERS, 0)));
        for second in 0..=3 {
            due(&mut table, second * ASK_INTERVAL_NS);
        }
        assert!(waits(&table.look_up(LAN, address(30_000), US, 4 * ASK_INTERVAL_NS)), "what failed counts no longer");
    }

    #[test]
    fn the_same_address_in_another_network_is_another_neighbour() {
        let mut table = known();
        assert!(matches!(table.look_up(NetworkIndex(1), address(1), US, 0), Lookup::Wait(_)));
        assert_eq!(table.note(NetworkIndex(2), told(1, PEER, How::Answer), 0), None);
    }

    #[test]
    fn one_that_is_not_used_any_more_is_forgotten() {
        let mut table = known();
        due(&mut table, UNUSED_NS - 1);
        assert_eq!(known_to(&mut table), 1);
        due(&mut table, UNUSED_NS);
        assert_eq!(known_to(&mut table), 0);
    }

    #[test]
    fn the_version_tells_of_each_change_of_a_station() {
        let mut table = known();
        let mut version = table.version();
        let mut changed = |table: &NeighborTable| std::mem::replace(&mut version, table.version()) != table.version();
        table.note(LAN, told(1, PEER, How::Answer), 5);
        assert!(!changed(&table));
        table.note(LAN, told(1, OTHER, How::Unasked), 6);
        assert!(changed(&table));
        due(&mut table, 6 + UNUSED_NS);
        (0..4).for_each(|second| _ = due(&mut table, 6 + UNUSED_NS + second * ASK_INTERVAL_NS));
        assert!(changed(&table), "it was forgotten");
    }
}

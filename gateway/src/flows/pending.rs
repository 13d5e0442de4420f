//! Frames that wait for a chain instance: the first frames of clients for which none was ready.
//!
//! Frames with the same key wait in one queue, so that a flow keeps its order. Keys of the same chain are served in the
//! order of their first frames. Tenants share the places for frames ([`Shares`]). How long a key waits, counted from
//! its first frame, is the caller's choice ([`Pending::expire`]). Owned by the gateway's thread; allocates nothing after it was made.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pinion_mma::accounts::shares::Shares;
use pinion_mma::buffer::Frame;
use pinion_mma::id::TenantIndex;

use crate::flows::InstanceKey;
use crate::flows::index::{HashIndex, List, ListLinks};
use crate::flows::sources::SourceShare;
use crate::flows::waiting_frames::WaitingFrames;
use crate::id::{CHAINS_MAX, ChainIndex};

/// Frames that may wait with one key: a client's first packet, and what it sends before it gets an answer.
pub(crate) const FRAMES_PER_KEY: usize = 4;

/// One key and its frames.
struct Waiter {
    key: Option<InstanceKey>,
    /// The tenant that its frames are charged to.
    tenant: TenantIndex,
    since_ns: u64,
    /// What it has of its source prefix's share.
    source: SourceShare,
    /// In order of arrival, from the start.
    frames: [Option<Frame>; FRAMES_PER_KEY],
}

pub(crate) struct Pending {
    hasher: RandomState,
    waiters: Box<[Waiter]>,
    by_key: HashIndex,
    /// Links of the list of free places, and of the chains' lists of waiters.
    links: ListLinks,
    free: List,
    chains: Box<[List]>,
    /// Links of the list of all waiters.
    order_links: ListLinks,
    order: List,
    /// Tenants' shares of the frames that may wait.
    shares: Shares,
    observed: Arc<WaitingFrames>,
    frames: usize,
}

impl Pending {
    /// Makes room for `frames_max` frames.
    pub(crate) fn new(frames_max: usize) -> Self {
        let mut links = ListLinks::new(frames_max);
        let free = List::all(&mut links);
        let unused = || Waiter {
            key: None,
            tenant: TenantIndex(0),
            since_ns: 0,
            source: SourceShare::NONE,
            frames: [const { None }; FRAMES_PER_KEY],
        };
        Self {
            hasher: RandomState::new(),
            waiters: (0..frames_max).map(|_| unused()).collect(),
            by_key: HashIndex::new(frames_max.max(1)),
            links,
            free,
            chains: vec![List::new(); CHAINS_MAX as usize].into(),
            order_links: ListLinks::new(frames_max),
            order: List::new(),
            shares: Shares::new(frames_max as u32),
            observed: Arc::default(),
            frames: 0,
        }
    }

    /// Returns the number of frames that wait.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Returns what tenants have of the frames that may wait, for other threads.
    pub(crate) fn observed(&self) -> &Arc<WaitingFrames> {
        &self.observed
    }

    /// Divides the frames that may wait among the tenants, by weight.
    pub(crate) fn divide(&mut self, weights: &[(TenantIndex, u32)]) {
        self.shares.divide(weights);
        self.observed.divide(&self.shares, weights);
    }

    /// Holds a frame for a tenant's chain until there is an instance. Returns the frame if too many of the tenant's
    /// wait. If no frame with this key waits yet, `share` returns what the client has of its prefix's share by waiting.
    pub(crate) fn hold(
        &mut self,
        key: &InstanceKey,
        tenant: TenantIndex,
        frame: Frame,
        now_ns: u64,
        share: impl FnOnce() -> SourceShare,
    ) -> Result<(), Frame> {
        if !self.shares.has_room(tenant, 1) {
            self.observed.count_refused(tenant);
            return Err(frame);
        }
        let hash = self.hasher.hash_one(key);
        let waiter = match self.waiter(key, hash) {
            Some(waiter) => waiter,
            None => {
                let Some(waiter) = self.begin(key, tenant, hash, now_ns) else { return Err(frame) };
                self.waiters[waiter as usize].source = share();
                waiter
            }
        };
        let waiter = &mut self.waiters[waiter as usize];
        match waiter.frames.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(frame),
            None => return Err(frame),
        }
        // The chain's index may have passed to another tenant since the first frame came.
        self.shares.take(waiter.tenant, 1);
        self.observed.set_used(waiter.tenant, &self.shares);
        self.frames += 1;
        Ok(())
    }

    /// Returns whether frames with this key wait.
    pub(crate) fn has(&self, key: &InstanceKey) -> bool {
        self.waiter(key, self.hasher.hash_one(key)).is_some()
    }

    fn waiter(&self, key: &InstanceKey, hash: u64) -> Option<u32> {
        self.by_key.find(hash, |waiter| self.waiters[waiter as usize].key.as_ref() == Some(key))
    }

    /// Returns the key that has waited longest for an instance of the chain.
    pub(crate) fn next_key(&self, chain: ChainIndex) -> Option<InstanceKey> {
        let waiter = self.chains.get(chain.0 as usize)?.first()?;
        self.waiters[waiter as usize].key
    }

    /// Returns since when that key has waited.
    pub(crate) fn next_since_ns(&self, chain: ChainIndex) -> Option<u64> {
        let waiter = self.chains.get(chain.0 as usize)?.first()?;
        Some(self.waiters[waiter as usize].since_ns)
    }

    /// Releases the frames of the key that [`Pending::next_key`] returns, in order. Returns what its client has of its
    /// prefix's share.
    pub(crate) fn release_next(&mut self, chain: ChainIndex, deliver: impl FnMut(Frame)) -> SourceShare {
        match self.chains.get(chain.0 as usize).and_then(List::first) {
            Some(waiter) => self.end(waiter, deliver),
            None => SourceShare::NONE,
        }
    }

    /// Returns the chain of the key that has waited longest of all.
    pub(crate) fn oldest_chain(&self) -> Option<ChainIndex> {
        let waiter = self.order.first()?;
        self.waiters[waiter as usize].key.map(|key| key.chain)
    }

    /// Ends the wait of the key that has waited longest of all, if it has waited since `until_ns` or longer, and
    /// releases its frames. Returns what its client has of its prefix's share, `None` if there was no such key.
    pub(crate) fn expire(&mut self, until_ns: u64, give_up: impl FnMut(Frame)) -> Option<SourceShare> {
        let waiter = self.order.first()?;
        (self.waiters[waiter as usize].since_ns <= until_ns).then(|| self.end(waiter, give_up))
    }

    fn begin(&mut self, key: &InstanceKey, tenant: TenantIndex, hash: u64, now_ns: u64) -> Option<u32> {
        let chain = self.chains.get_mut(key.chain.0 as usize)?;
        let waiter = self.free.pop_front(&mut self.links)?;
        chain.push_back(&mut self.links, waiter);
        self.order.push_back(&mut self.order_links, waiter);
        self.by_key.insert(hash, waiter);
        let place = &mut self.waiters[waiter as usize];
        (place.key, place.tenant, place.since_ns) = (Some(*key), tenant, now_ns);
        Some(waiter)
    }

    fn end(&mut self, waiter: u32, mut hand_out: impl FnMut(Frame)) -> SourceShare {
        let place = &mut self.waiters[waiter as usize];
        let key = place.key.take().expect("a waiter in a list has a key");
        for frame in place.frames.iter_mut().map_while(Option::take) {
            self.frames -= 1;
            self.shares.give_back(place.tenant, 1);
            hand_out(frame);
        }
        self.observed.set_used(place.tenant, &self.shares);
        let share = std::mem::replace(&mut place.source, SourceShare::NONE);
        self.by_key.remove(self.hasher.hash_one(key), waiter);
        self.order.remove(&mut self.order_links, waiter);
        self.chains[key.chain.0 as usize].remove(&mut self.links, waiter);
        self.free.push_back(&mut self.links, waiter);
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::ClientLabel;
    use crate::flows::waiting_frames::WaitingAccount;
    use crate::headers::Vlan;
    use crate::port::BufferPool;
    use crate::port::heap::HeapPool;
    use pinion_mma::accounts::shares::Share;
    use std::net::Ipv4Addr;

    const TENANT: TenantIndex = TenantIndex(0);

    fn key(chain: u32, client: u32) -> InstanceKey {
        let client = ClientLabel::Address { address: Ipv4Addr::from(client).into(), vlan: Vlan::UNTAGGED };
        InstanceKey { chain: ChainIndex(chain), client }
    }

    fn held(pool: &mut HeapPool, mark: u32) -> Frame {
        let mut buffers = Vec::new();
        assert_eq!(pool.take(&mut buffers, 1), 1);
        Frame::new(buffers.pop().unwrap(), mark)
    }

    fn give(pool: &mut HeapPool, held: Frame) -> u32 {
        let mark = held.len();
        pool.give(&mut vec![held.into_buffer()]);
        mark
    }

    #[test]
    fn frames_of_a_key_come_out_in_order_and_keys_in_the_order_of_their_first() {
        let (mut pool, mut pending) = (HeapPool::new(16, 64), Pending::new(8));
        for (client, mark) in [(1, 10), (2, 20), (1, 11), (2, 21), (1, 12)] {
            let held = held(&mut pool, mark);
            assert!(pending.hold(&key(0, client), TENANT, held, 0, || SourceShare::NONE).is_ok());
        }
        let mut out = Vec::new();
        while let Some(key) = pending.next_key(ChainIndex(0)) {
            pending.release_next(ChainIndex(0), |held| out.push((key, give(&mut pool, held))));
        }
        let (one, two) = (key(0, 1), key(0, 2));
        assert_eq!(out, [(one, 10), (one, 11), (one, 12), (two, 20), (two, 21)]);
        assert_eq!((pending.frames(), pool.available()), (0, 16));
    }

    #[test]
    fn no_key_has_more_than_its_share_and_all_together_no_more_than_there_is_room_for() {
        let (mut pool, mut pending) = (HeapPool::new(64, 64), Pending::new(10));
        let mut taken = Vec::new();
        for client in 0..4 {
            for _ in 0..FRAMES_PER_KEY + 2 {
                let held = held(&mut pool, client);
                match pending.hold(&key(0, client), TENANT, held, 0, || SourceShare::NONE) {
                    Ok(()) => taken.push(client),
                    Err(held) => {
                        give(&mut pool, held);
                    }
                }
            }
        }
        assert_eq!(taken, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        while pending.expire(0, |held| _ = give(&mut pool, held)).is_some() {}
        assert_eq!((pending.frames(), pool.available()), (0, 64));
    }

    #[test]
    fn a_tenant_with_many_clients_that_wait_leaves_another_its_share_of_the_places() {
        let (mut pool, mut pending) = (HeapPool::new(64, 64), Pending::new(16));
        pending.divide(&[(TENANT, 1), (TenantIndex(1), 1)]);
        let mut hold = |tenant: u16| {
            let mut client = u32::from(tenant) * 20;
            let mut next = || {
                client += 1;
                let held = held(&mut pool, client);
                pending
                    .hold(&key(u32::from(tenant), client), TenantIndex(tenant), held, 0, || SourceShare::NONE)
                    .map_err(|held| _ = give(&mut pool, held))
                    .ok()
            };
            std::iter::from_fn(&mut next).count()
        };
        assert_eq!([hold(0), hold(1)], [12, 4]);
        let accounts = [0, 1].map(|tenant| pending.observed().of(TenantIndex(tenant)));
        let account = |used| WaitingAccount { share: Share { used, guaranteed: 4 }, refused: 1 };
        assert_eq!(accounts, [account(12), account(4)]);
        // One with so little weight that nothing is guaranteed to it is there all the same; one that has left is not.
        pending.divide(&[(TENANT, 1), (TenantIndex(2), 1_000)]);
        let refused = [0, 1].map(|tenant| pending.observed().of(TenantIndex(tenant)).refused);
        assert_eq!((refused, pending.observed().of(TENANT).share.guaranteed), ([1, 0], 0));
        while pending.expire(0, |held| _ = give(&mut pool, held)).is_some() {}
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn the_longest_waiting_key_of_all_chains_expires_first_and_only_when_it_is_time() {
        let (mut pool, mut pending) = (HeapPool::new(16, 64), Pending::new(8));
        for (chain, since_ns) in [(3, 100), (1, 200), (3, 300)] {
            let held = held(&mut pool, chain);
            assert!(
                pending.hold(&key(chain, since_ns), TENANT, held, u64::from(since_ns), || SourceShare::NONE).is_ok()
            );
        }
        let mut expired = Vec::new();
        while pending.expire(200, |held| expired.push(give(&mut pool, held))).is_some() {}
        assert_eq!(expired, [3, 1]);
        assert_eq!(pending.next_key(ChainIndex(3)), Some(key(3, 300)));
        assert_eq!(pending.next_since_ns(ChainIndex(3)), Some(300));
        assert_eq!(pending.next_key(ChainIndex(1)), None);
        pending.release_next(ChainIndex(3), |held| _ = give(&mut pool, held));
        assert_eq!(pool.available(), 16);
    }
}

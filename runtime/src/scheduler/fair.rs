//! Weighted fair sharing of a core by time: start-time fair queueing.
//!
//! Each tenant has a virtual time, which moves on by the time that it had the core, divided by its weight; whoever is furthest behind is
//! next. Who was not runnable for a while comes back no further behind than a quantum: time that was not wanted is not saved up, and
//! what was had too much stays counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One of those who share: a tenant, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lot(pub(super) u32);

#[derive(Debug, Clone, Copy)]
struct Account {
    virtual_ns: u64,
    /// What the last division left.
    rest_ns: u64,
    weight: u64,
    queued: bool,
}

/// Whoever comes first is as far as everybody then, but for the credit.
const NEWCOMER: Account = Account { virtual_ns: 0, rest_ns: 0, weight: 1, queued: false };

/// See the module.
#[derive(Debug)]
pub(super) struct Fair {
    accounts: Box<[Account]>,
    /// Who is runnable, by virtual time. Each is in it once at most, so it never grows beyond what it was made for.
    queue: BinaryHeap<Reverse<(u64, Lot)>>,
    /// The virtual time of whoever was next last.
    virtual_ns: u64,
    credit_ns: u64,
}

impl Fair {
    /// For lots below `count`, of weight 1 until it is said otherwise. Who comes back is at most `credit_ns` behind.
    pub(super) fn new(count: usize, credit_ns: u64) -> Self {
        Self {
            accounts: vec![NEWCOMER; count].into(),
            queue: BinaryHeap::with_capacity(count),
            virtual_ns: 0,
            credit_ns,
        }
    }

    pub(super) fn set_weight(&mut self, lot: Lot, weight: u32) {
        self.accounts[lot.0 as usize].weight = u64::from(weight.max(1));
    }

    /// Makes a lot one that has never had anything, and is not runnable.
    pub(super) fn clear(&mut self, lot: Lot) {
        if std::mem::replace(&mut self.accounts[lot.0 as usize], NEWCOMER).queued {
            self.queue.retain(|Reverse((_, queued))| *queued != lot);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Notes that a lot is runnable, unless that is known.
    #[inline]
    pub(super) fn push(&mut self, lot: Lot) {
        let account = &mut self.accounts[lot.0 as usize];
        if !std::mem::replace(&mut account.queued, true) {
            account.virtual_ns = account.virtual_ns.max(self.virtual_ns.saturating_sub(self.credit_ns));
            self.queue.push(Reverse((account.virtual_ns, lot)));
        }
    }

    /// Takes whoever is furthest behind.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Lot> {
        let Reverse((virtual_ns, lot)) = self.queue.pop()?;
        self.virtual_ns = self.virtual_ns.max(virtual_ns);
        self.accounts[lot.0 as usize].queued = false;
        Some(lot)
    }

    /// Notes that a lot has had the core, while it was not queued.
    #[inline]
    pub(super) fn charge(&mut self, lot: Lot, cpu_ns: u64) {
        let account = &mut self.accounts[lot.0 as usize];
        let due_ns = account.rest_ns + cpu_ns;
        account.virtual_ns += due_ns / account.weight;
        account.rest_ns = due_ns % account.weight;
    }

    /// Who is next, and who may be after that.
    #[inline]
    pub(super) fn upcoming(&self) -> impl Iterator<Item = Lot> {
        self.queue.as_slice().iter().map(|Reverse((_, lot))| *lot)
    }
}

//! Weighted fair sharing of a core by time: start-time fair queueing.
//!
//! Each tenant has a virtual time, which advances by the time that the tenant had the core, divided by its weight. The tenant with the
//! least virtual time is next. A tenant that was not runnable for a while returns at most one quantum behind the others. So unused time is
//! not saved up, and excess use stays counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One of the tenants that share the core, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sharer(pub(super) u32);

#[derive(Debug, Clone, Copy)]
struct Account {
    virtual_ns: u64,
    /// The remainder of the last division.
    rest_ns: u64,
    weight: u64,
    queued: bool,
}

/// A new tenant starts at the others' virtual time, less the credit.
const NEWCOMER: Account = Account { virtual_ns: 0, rest_ns: 0, weight: 1, queued: false };

/// See the module.
#[derive(Debug)]
pub(super) struct Fair {
    accounts: Box<[Account]>,
    /// Runnable tenants, by virtual time. Each is in the queue at most once, so it never grows beyond its capacity.
    queue: BinaryHeap<Reverse<(u64, Sharer)>>,
    /// The highest virtual time of a tenant that was taken from the queue.
    virtual_ns: u64,
    credit_ns: u64,
}

impl Fair {
    /// Creates accounts for tenants below `count`, with weight 1 until it is set. A tenant that returns is at most `credit_ns` behind.
    pub(super) fn new(count: usize, credit_ns: u64) -> Self {
        Self {
            accounts: vec![NEWCOMER; count].into(),
            queue: BinaryHeap::with_capacity(count),
            virtual_ns: 0,
            credit_ns,
        }
    }

    pub(super) fn set_weight(&mut self, sharer: Sharer, weight: u32) {
        self.accounts[sharer.0 as usize].weight = u64::from(weight.max(1));
    }

    /// Resets a tenant to one that has used nothing and is not runnable.
    pub(super) fn clear(&mut self, sharer: Sharer) {
        if std::mem::replace(&mut self.accounts[sharer.0 as usize], NEWCOMER).queued {
            self.queue.retain(|Reverse((_, queued))| *queued != sharer);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a tenant that is runnable, unless it is queued already.
    #[inline]
    pub(super) fn push(&mut self, sharer: Sharer) {
        let account = &mut self.accounts[sharer.0 as usize];
        if !std::mem::replace(&mut account.queued, true) {
            account.virtual_ns = account.virtual_ns.max(self.virtual_ns.saturating_sub(self.credit_ns));
            self.queue.push(Reverse((account.virtual_ns, sharer)));
        }
    }

    /// Takes the tenant with the least virtual time.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Sharer> {
        let Reverse((virtual_ns, sharer)) = self.queue.pop()?;
        if self.accounts[sharer.0 as usize].virtual_ns != virtual_ns {
            return self.pop_after(sharer);
        }
        self.virtual_ns = self.virtual_ns.max(virtual_ns);
        self.accounts[sharer.0 as usize].queued = false;
        Some(sharer)
    }

    /// Queues a tenant again that was charged while it was queued, and all such before the next one that was not. Takes that one.
    #[cold]
    #[inline(never)]
    fn pop_after(&mut self, charged: Sharer) -> Option<Sharer> {
        self.queue.push(Reverse((self.accounts[charged.0 as usize].virtual_ns, charged)));
        while let Some(mut first) = self.queue.peek_mut() {
            let Reverse((virtual_ns, sharer)) = *first;
            let charged_ns = self.accounts[sharer.0 as usize].virtual_ns;
            if charged_ns == virtual_ns {
                break;
            }
            *first = Reverse((charged_ns, sharer));
        }
        self.pop()
    }

    /// Accounts time for which a tenant has had the core, or another core that works for it.
    #[inline]
    pub(super) fn charge(&mut self, sharer: Sharer, cpu_ns: u64) {
        let account = &mut self.accounts[sharer.0 as usize];
        let due_ns = account.rest_ns + cpu_ns;
        account.virtual_ns += due_ns / account.weight;
        account.rest_ns = due_ns % account.weight;
    }

    /// Returns the tenant that is next, and then those that may come after it.
    #[inline]
    pub(super) fn upcoming(&self) -> impl Iterator<Item = Sharer> {
        self.queue.as_slice().iter().map(|Reverse((_, sharer))| *sharer)
    }
}

//! The lock that changes take, and uploads another one. Parties take turns at it: for each of its turns a party waits for the one under way,
//! and for one of each other party at most, however many changes these have. Parties are tenants, the operator for each tenant whose objects
//! it changes, and the node itself.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::lock;
use crate::model::TenantName;

/// Which party takes the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The node.
    Node,
    /// A tenant, for what its own callers ask for.
    Tenant(TenantName),
    /// The operator, for this tenant's objects, or for tenants themselves. So it does not wait for all that the tenant has asked for.
    Operator(Option<TenantName>),
}

impl Party {
    /// Returns the party of a caller of a tenant, or else of the operator, that changes objects of `changed`.
    pub(super) fn of(caller: Option<&TenantName>, changed: Option<&TenantName>) -> Self {
        match caller {
            Some(tenant) => Party::Tenant(tenant.clone()),
            None => Party::Operator(changed.cloned()),
        }
    }
}

/// The lock. It guards no data that a panic could leave half changed, so it is still usable after one.
#[derive(Default)]
pub(super) struct TurnLock {
    queue: Mutex<Queue>,
    passed_on: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The party that has the lock, and its threads that wait: for a turn after those of all that come meanwhile.
    holder: Option<(Party, VecDeque<u64>)>,
    /// The waiting thread that has the lock by now.
    granted: Option<u64>,
    next_ticket: u64,
    /// The other parties that wait, in the order of their turns, each with its threads in the order in which they came.
    waiting: VecDeque<(Party, VecDeque<u64>)>,
}

impl Queue {
    fn enter(&mut self, party: Party) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let holder = self.holder.as_mut().filter(|(holder, _)| *holder == party);
        match holder.or_else(|| self.waiting.iter_mut().find(|(waiting, _)| *waiting == party)) {
            Some((_, tickets)) => tickets.push_back(ticket),
            None => self.waiting.push_back((party, VecDeque::from([ticket]))),
        }
        ticket
    }

    /// Gives the lock to the thread that is next, if one waits. It stays held then, so that none that comes now is before
    /// those that wait.
    fn pass_on(&mut self) {
        self.waiting.extend(self.holder.take().filter(|(_, tickets)| !tickets.is_empty()));
        if let Some((party, mut tickets)) = self.waiting.pop_front() {
            self.granted = tickets.pop_front();
            self.holder = Some((party, tickets));
        }
    }

    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.holder.iter().chain(&self.waiting).map(|(_, tickets)| tickets.len()).sum()
    }
}

impl TurnLock {
    /// Takes the lock in the turn of this party.
    pub(super) fn lock(&self, party: &Party) -> Turn<'_> {
        let mut queue = self.queue();
        if queue.holder.is_none() {
            queue.holder = Some((party.clone(), VecDeque::new()));
            return Turn(self);
        }
        let ticket = queue.enter(party.clone());
        while queue.granted != Some(ticket) {
            queue = self.passed_on.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.granted = None;
        Turn(self)
    }

    /// Returns whether a tenant's or the operator's change waits for the lock. What the node waits for may take its time. Asked by the holder.
    pub(super) fn is_waited_for(&self) -> bool {
        let queue = self.queue();
        let mut parties = queue.holder.iter().chain(&queue.waiting);
        parties.any(|(party, tickets)| *party != Party::Node && !tickets.is_empty())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn unlock(&self) {
        self.queue().pass_on();
        self.passed_on.notify_all();
    }
}

/// The lock is held as long as this exists.
pub(super) struct Turn<'a>(&'a TurnLock);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    /// Returns a tenant of this name, the operator for the tenant after a slash, or the node.
    fn party(name: &str) -> Party {
        match name.split_once('/') {
            None if name.is_empty() => Party::Node,
            None => Party::Tenant(name.parse().unwrap()),
            Some((_, tenant)) => Party::of(None, (!tenant.is_empty()).then(|| tenant.parse().unwrap()).as_ref()),
        }
    }

    /// Lets these parties come one after the other while the lock is held, and returns in which order they have it then.
    fn order_of(parties: &'static [&'static str]) -> Vec<&'static str> {
        let (changes, order) = (TurnLock::default(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            let held = changes.lock(&party("a"));
            for (before, name) in parties.iter().enumerate() {
                let (changes, order) = (&changes, &order);
                scope.spawn(move || {
                    let _changing = changes.lock(&party(name));
                    lock(order).push(*name);
                });
                while changes.queue().waiting() == before {
                    thread::yield_now();
                }
            }
            drop(held);
        });
        assert!(changes.queue().holder.is_none() && !changes.is_waited_for());
        order.into_inner().unwrap()
    }

    #[test]
    fn a_tenants_many_changes_delay_anothers_by_one_each() {
        assert_eq!(order_of(&["a", "a", "a", "b", "c", "b"]), ["b", "c", "a", "b", "a", "a"]);
    }

    #[test]
    fn the_operators_changes_of_a_tenants_objects_do_not_wait_for_all_of_that_tenants_own() {
        assert_eq!(order_of(&["a", "a", "a", "/a", "/a", "/"]), ["/a", "/", "a", "/a", "a", "a"]);
    }

    #[test]
    fn a_holder_is_told_of_tenants_and_the_operator_that_wait_and_not_of_the_node() {
        let changes = TurnLock::default();
        let told = |name: &'static str| {
            thread::scope(|scope| {
                let held = changes.lock(&party("a"));
                scope.spawn(|| drop(changes.lock(&party(name))));
                while changes.queue().waiting() == 0 {
                    thread::yield_now();
                }
                let is_waited_for = changes.is_waited_for();
                drop(held);
                is_waited_for
            })
        };
        assert_eq!(["a", "b", "/a", "/", ""].map(told), [true, true, true, true, false]);
    }

    #[test]
    fn the_node_has_its_turn_too() {
        assert_eq!(order_of(&["a", "a", "", "a"]), ["", "a", "a", "a"]);
    }

    #[test]
    fn a_change_that_panics_lets_the_next_one_in() {
        let changes = TurnLock::default();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _changing = changes.lock(&Party::Node);
            panic!("as the node might");
        }));
        assert!(panicked.is_err());
        drop(changes.lock(&Party::Node));
    }
}

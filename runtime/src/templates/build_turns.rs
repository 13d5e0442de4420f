//! Whose template is built next: builders are few, and tenants take turns at them.
//!
//! A tenant that asks for many builds gets as many builders as are free, and one builder more is there for a tenant that has none. Of the
//! tenants that wait, the one with the fewest builds under way is next, and of several the one whose last build began longest ago.
//!
//! Used by threads that may block.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pinion_control::model::TenantName;

/// See the module.
pub struct BuildTurns {
    /// Most builders at a time, but for one more.
    places: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Tenants that build or wait.
    tenants: BTreeMap<TenantName, Turns>,
    /// Builds under way, of all tenants.
    under_way: usize,
    /// Builds that have begun.
    begun: u64,
}

#[derive(Default)]
struct Turns {
    under_way: usize,
    waiting: usize,
    /// The number of its last build, among those that have begun.
    last: u64,
}

impl BuildTurns {
    /// Creates turns at this many builders, and one more.
    #[must_use]
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places: places.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits until it is the tenant's turn. The turn lasts until the returned value is dropped.
    pub fn wait(self: &Arc<Self>, tenant: &TenantName) -> BuildTurn {
        let mut state = self.state();
        // A tenant that comes has its turn after all that wait: it is as if its last build had begun just now.
        let begun = state.begun;
        state.tenants.entry(tenant.clone()).or_insert(Turns { last: begun, ..Turns::default() }).waiting += 1;
        while state.next(self.places) != Some(tenant) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.begin(tenant);
        drop(state);
        // Another builder may be free.
        self.changed.notify_all();
        BuildTurn { turns: Arc::clone(self), tenant: tenant.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the tenant whose build begins next, if there is a builder for it.
    fn next(&self, places: usize) -> Option<&TenantName> {
        let waiting = self.tenants.iter().filter(|(_, turns)| turns.waiting > 0);
        let (tenant, turns) = waiting.min_by_key(|(_, turns)| (turns.under_way, turns.last))?;
        let places = places + usize::from(turns.under_way == 0);
        (self.under_way < places).then_some(tenant)
    }

    fn begin(&mut self, tenant: &TenantName) {
        self.begun += 1;
        self.under_way += 1;
        let begun = self.begun;
        let turns = self.tenants.entry(tenant.clone()).or_default();
        *turns = Turns { under_way: turns.under_way + 1, waiting: turns.waiting.saturating_sub(1), last: begun };
    }

    fn end(&mut self, tenant: &TenantName) {
        self.under_way -= 1;
        if let Some(turns) = self.tenants.get_mut(tenant) {
            turns.under_way -= 1;
            if turns.under_way == 0 && turns.waiting == 0 {
                self.tenants.remove(tenant);
            }
        }
    }
}

/// A tenant's turn at a builder.
#[must_use = "the turn ends when this is dropped"]
pub struct BuildTurn {
    turns: Arc<BuildTurns>,
    tenant: TenantName,
}

impl Drop for BuildTurn {
    fn drop(&mut self) {
        self.turns.state().end(&self.tenant);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets these tenants wait, in this order, and returns in which order they are served while each build ends before the next begins.
    fn served(places: usize, under_way: &[&str], waiting: &[&str]) -> Vec<String> {
        let mut state = State::default();
        for tenant in under_way {
            state.begin(&tenant.parse().unwrap());
        }
        for tenant in waiting {
            state.tenants.entry(tenant.parse().unwrap()).or_default().waiting += 1;
        }
        let mut order = Vec::new();
        while let Some(tenant) = state.next(places).cloned() {
            state.begin(&tenant);
            state.end(&tenant);
            order.push(tenant.to_string());
        }
        order
    }

    #[test]
    fn tenants_take_turns_however_many_builds_each_asks_for() {
        assert_eq!(served(2, &[], &["a", "a", "a", "a", "b", "b", "c"]), ["a", "b", "c", "a", "b", "a", "a"]);
    }

    #[test]
    fn a_tenant_without_a_build_finds_a_builder_beside_one_that_has_taken_all() {
        assert_eq!(served(2, &["a", "a"], &["a", "b", "a"])[0], "b");
        assert_eq!(served(2, &["a", "a"], &["a", "a"]), Vec::<String>::new(), "no more than there are");
        assert_eq!(served(1, &["a", "b"], &["c"]), Vec::<String>::new(), "one more than there are, not several");
    }

    #[test]
    fn tenants_that_come_again_and_again_keep_none_from_its_turn() {
        let turns = BuildTurns::new(1);
        let [a, z]: [TenantName; 2] = ["a", "z"].map(|name| name.parse().unwrap());
        let others = [turns.wait(&a), turns.wait(&"b".parse().unwrap())];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(turns.wait(&z)));
            while turns.state().tenants.get(&z).is_none_or(|turns| turns.waiting == 0) {
                std::thread::yield_now();
            }
            drop(others);
            for _ in 0..3 {
                drop(turns.wait(&a));
            }
            waiting.join().unwrap();
        });
        let mut state = State { begun: 7, ..State::default() };
        state.tenants.insert(z.clone(), Turns { waiting: 1, last: 6, under_way: 0 });
        state.tenants.insert(a, Turns { waiting: 1, last: 7, under_way: 0 });
        assert_eq!(state.next(1), Some(&z), "it came first");
    }

    #[test]
    fn a_turn_that_ends_lets_the_next_begin() {
        let turns = BuildTurns::new(1);
        let [a, b]: [TenantName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let (first, second) = (turns.wait(&a), turns.wait(&b));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| drop(turns.wait(&a)));
            drop(second);
            drop(first);
            third.join().unwrap();
        });
        assert!(turns.state().tenants.is_empty(), "nothing is left of tenants that neither build nor wait");
    }
}

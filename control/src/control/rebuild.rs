//! Builds of stored chains that no change asks for: when the node starts, and when it has found damage.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::turn_lock::Party;
use super::{Control, lock};
use crate::model::{ChainKey, DesiredState, Ingredients, ObjectRef, TenantName};
use crate::node::{Hold, Refusal};

/// Chains that are built at a time. The node limits the builds themselves.
const CHAINS_AT_ONCE: usize = 5;
/// How long what is built waits at most until it serves, while more is being built.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Why a stored chain has no templates.
pub(super) struct NotBuilt {
    pub(super) refusal: Refusal,
    /// What could not be built.
    pub(super) ingredients: Ingredients,
    /// When the build failed, for the status.
    pub(super) when: BuildTime,
}

/// When stored chains are built that no change asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildTime {
    /// After the node has started.
    Start,
    /// After a template was found damaged.
    Damage,
}

impl fmt::Display for BuildTime {
    /// Formats it as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BuildTime::Start => "when the node started",
            BuildTime::Damage => "again after its template was damaged",
        })
    }
}

impl Control {
    /// Builds the templates that the durable state needs and that are missing or damaged, and activates their chains as
    /// they are built. Tenants take turns, a chain each. A failure becomes a warning in the status. May take long, and
    /// lets changes pass meanwhile.
    pub fn build_missing(&self, when: BuildTime) {
        let whole = self.desired().with_chains_of(&lock(&self.invoked_modules));
        let chains = Mutex::new(in_turns(&whole));
        let next = || lock(&chains).pop_front();
        let followed = Mutex::new(Instant::now());
        // What is built stays loaded until it is followed.
        let holds = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..CHAINS_AT_ONCE.min(whole.chains().len()) {
                scope.spawn(|| {
                    for chain in std::iter::from_fn(next) {
                        let (refusal, hold) = self.build_chain(&whole, &chain);
                        lock(&holds).push(hold);
                        if refusal == Some(Refusal::Stopping) {
                            lock(&chains).clear();
                            break;
                        }
                        self.note(&whole, chain, refusal, when);
                        self.follow_now_and_then(&whole, &followed, &holds);
                    }
                });
            }
        });
        let _changing = self.changing.lock(&Party::Node);
        if self.node.retry(&whole, &[]) || when == BuildTime::Damage {
            self.follow(&self.desired());
        }
    }

    /// Ends builds, as the node is to stop. Changes that wait for one are refused.
    pub fn stop_builds(&self) {
        self.node.stop_builds();
    }

    /// Builds a chain. Returns why, if that failed, and what holds its templates.
    fn build_chain(&self, whole: &DesiredState, chain: &ChainKey) -> (Option<Refusal>, Hold) {
        let chains = BTreeSet::from([chain.clone()]);
        let hold = {
            let _changing = self.changing.lock(&Party::Tenant(chain.0.clone()));
            self.node.hold(whole, &chains)
        };
        let refused = self.node.build(whole, &chains, &self.uploads()).pop();
        let refused = refused.or_else(|| self.node.unfit(whole, &chains).pop());
        (refused.map(|(_, refusal)| refusal), hold)
    }

    /// Activates what is built, if the last time was a while ago.
    fn follow_now_and_then(&self, whole: &DesiredState, followed: &Mutex<Instant>, holds: &Mutex<Vec<Hold>>) {
        let Ok(mut followed) = followed.try_lock() else { return };
        if followed.elapsed() < FOLLOW_INTERVAL {
            return;
        }
        let _changing = self.changing.lock(&Party::Node);
        let _held = std::mem::take(&mut *lock(holds));
        if self.node.retry(whole, &[]) {
            self.follow(&self.desired());
        }
        *followed = Instant::now();
    }

    /// Notes, for the status, what has come of a chain's build, unless the chain was changed or built meanwhile.
    fn note(&self, whole: &DesiredState, chain: ChainKey, refusal: Option<Refusal>, when: BuildTime) {
        let _changing = self.changing.lock(&Party::Tenant(chain.0.clone()));
        let object = ObjectRef::Chain { tenant: chain.0.clone(), name: chain.1.clone() };
        // Most chains are built, and were: then nothing is copied for them.
        if refusal.is_none() && !lock(&self.not_built).contains_key(&object) {
            return;
        }
        let now = self.desired().with_chains_of(&lock(&self.invoked_modules));
        let ingredients = |state: &DesiredState| state.chains().get(&chain).map(|chain| state.ingredients(chain));
        let Some(ingredients) = ingredients(whole).filter(|was| ingredients(&now).as_ref() == Some(was)) else {
            return;
        };
        let chains = BTreeSet::from([chain.clone()]);
        let Some(refusal) =
            refusal.filter(|_| self.node.lacks(&now, &chains) || !self.node.unfit(&now, &chains).is_empty())
        else {
            lock(&self.not_built).remove(&object);
            return;
        };
        let mut not_built = lock(&self.not_built);
        if not_built.get(&object).is_none_or(|before| before.refusal != refusal || before.ingredients != ingredients) {
            tracing::error!(%object, "a stored chain has no templates: {refusal}");
            not_built.insert(object, NotBuilt { refusal, ingredients, when });
        }
    }
}

/// Returns the chains in the order in which they are built: the first of each tenant, the second of each, and so on.
fn in_turns(state: &DesiredState) -> VecDeque<ChainKey> {
    let mut tenants: BTreeMap<&TenantName, usize> = BTreeMap::new();
    let mut chains: Vec<(usize, &ChainKey)> = Vec::new();
    for key in state.chains().keys() {
        let count = tenants.entry(&key.0).or_default();
        chains.push((*count, key));
        *count += 1;
    }
    chains.sort();
    chains.into_iter().map(|(_, key)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Chain, Change, Digest, Module, Stage};

    #[test]
    fn stored_chains_are_built_in_turns_of_their_tenants() {
        let mut change = Change::default();
        for (tenant, chains) in [("a", 3), ("b", 1), ("c", 2)] {
            let tenant: TenantName = tenant.parse().unwrap();
            let module =
                Module { tenant: tenant.clone(), name: "m".parse().unwrap(), digest: Digest::of(b""), size_bytes: 1 };
            change.modules.push(module);
            let chain = |number| {
                let stage = Stage::new("m".parse().unwrap(), Vec::new());
                Chain::new(tenant.clone(), format!("c{number}").parse().unwrap(), vec![stage])
            };
            change.chains.extend((0..chains).map(chain));
        }
        let state = DesiredState::default().apply(&change).unwrap().state;
        let order: Vec<String> = in_turns(&state).iter().map(|(tenant, name)| format!("{tenant}/{name}")).collect();
        assert_eq!(order, ["a/c0", "b/c0", "c/c0", "a/c1", "c/c1", "a/c2"]);
    }
}

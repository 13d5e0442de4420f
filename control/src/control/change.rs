//! Changes of the desired state, and builds of what they need.
//!
//! Templates are built while no lock is held, as that takes long. So after a build the change is judged anew on what the
//! desired state is then. What was built for it is held meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use super::{ApplyRequest, BuildTime, Changed, Control, ControlError, NotBuilt, lock};
use crate::model::{
    Applied, CHAINS_MAX, ChainKey, ChainName, Change, DesiredState, Ingredients, Invalid, ModuleName, ObjectRef,
    TenantName,
};
use crate::node::{Hold, Refusal};

/// What an attempt at a change led to.
enum Attempt<T> {
    /// It is made.
    Made(T),
    /// Chains of the state that it leads to have to be built first.
    Lacks(Missing),
}

/// What has to be built before a change can be made.
struct Missing {
    /// The state that the change leads to, with the chains of modules that were invoked by name.
    state: DesiredState,
    /// The chains whose templates are missing.
    chains: BTreeSet<ChainKey>,
    /// Those of them that are there only because a module was invoked by name before. If they cannot be built, the
    /// change is made without them.
    optional: BTreeSet<ChainKey>,
}

/// The builds for one change, whose templates are held until the change is made or given up.
#[derive(Default)]
struct Builds {
    tried: BTreeMap<ChainKey, Ingredients>,
    holds: Vec<Hold>,
}

impl Builds {
    /// Returns which of these chains no build was tried for, as they are in this state.
    fn untried(&self, state: &DesiredState, chains: BTreeSet<ChainKey>) -> BTreeSet<ChainKey> {
        let is_untried = |key: &ChainKey| {
            let ingredients = state.chains().get(key).map(|chain| state.ingredients(chain));
            self.tried.get(key) != ingredients.as_ref()
        };
        chains.into_iter().filter(is_untried).collect()
    }

    fn note(&mut self, missing: &Missing, hold: Hold) {
        let Missing { state, chains, .. } = missing;
        self.holds.push(hold);
        let ingredients = |key: &ChainKey| Some((key.clone(), state.ingredients(state.chains().get(key)?)));
        self.tried.extend(chains.iter().filter_map(ingredients));
    }
}

impl Control {
    /// Creates or updates the objects as given: all of them or none.
    pub fn apply(&self, request: ApplyRequest) -> Result<Changed, ControlError> {
        let ApplyRequest { modules, chains, rules } = request;
        self.change(|| {
            let modules = modules.iter().map(|named| self.module(named.clone())).collect::<Result<_, _>>()?;
            let chains = chains.iter().map(|chain| self.chain(chain.clone())).collect::<Result<_, _>>()?;
            Ok(Change { modules, chains, rules: rules.clone(), delete: Vec::new() })
        })
    }

    /// Deletes the objects: all of them or none.
    pub fn delete(&self, objects: Vec<ObjectRef>) -> Result<Changed, ControlError> {
        self.change(|| Ok(Change { delete: objects.clone(), ..Change::default() }))
    }

    /// Makes the change: the only way from one desired state to the next. It is asked for again after each build, as
    /// uploads may have come and gone.
    fn change(&self, change: impl Fn() -> Result<Change, ControlError>) -> Result<Changed, ControlError> {
        self.built(|builds| self.attempt(builds, &change))
    }

    /// Repeats the attempt, which holds the lock itself, until nothing has to be built for it any more.
    fn built<T>(&self, attempt: impl Fn(&Builds) -> Result<Attempt<T>, ControlError>) -> Result<T, ControlError> {
        let mut builds = Builds::default();
        loop {
            match attempt(&builds)? {
                Attempt::Made(made) => return Ok(made),
                Attempt::Lacks(missing) => {
                    builds.note(&missing, self.node.hold(&missing.state, &missing.chains));
                    self.build(&missing)?;
                }
            }
        }
    }

    fn attempt(
        &self,
        builds: &Builds,
        change: &impl Fn() -> Result<Change, ControlError>,
    ) -> Result<Attempt<Changed>, ControlError> {
        let _changing = lock(&self.changing);
        self.settle()?;
        let before = self.desired();
        let applied = before.apply(&change()?)?;
        let invoked = lock(&self.invoked_modules).clone();
        let whole = applied.state.with_chains_of(&invoked);
        if applied.changed() {
            self.node.check(&before, &applied.state)?;
        }
        let objects: BTreeSet<&ObjectRef> = applied.outcomes.iter().map(|outcome| &outcome.object).collect();
        let chains = whole.touched(&before.with_chains_of(&invoked), &objects);
        let chains = builds.untried(&whole, chains);
        if self.node.lacks(&whole, &chains) {
            let is_optional = |key: &&ChainKey| !applied.state.chains().contains_key(*key);
            let optional = chains.iter().filter(is_optional).cloned().collect();
            return Ok(Attempt::Lacks(Missing { state: whole, chains, optional }));
        }
        self.make(applied, &whole).map(Attempt::Made)
    }

    /// Makes the change durable and has the node follow. Called with the lock held.
    fn make(&self, applied: Applied, whole: &DesiredState) -> Result<Changed, ControlError> {
        let changed = applied.changed();
        if changed {
            self.commit(&applied)?;
        }
        let Applied { state, outcomes } = applied;
        // A chain that a request names again gets another try.
        let objects: Vec<&ObjectRef> = outcomes.iter().map(|outcome| &outcome.object).collect();
        let is_retried = self.node.retry(whole, &objects);
        let version = state.version();
        if changed {
            lock(&self.not_built).retain(|object, _| is_chain_of(&state, object));
            *self.desired.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        }
        if changed || is_retried {
            self.follow_durable(&self.desired())?;
        }
        if changed {
            tracing::info!(version, objects = outcomes.len(), "desired state changed");
        }
        Ok(Changed { version, outcomes })
    }

    /// Makes a chain of the module of this name. It lasts as long as the node runs, and is not durable. May take
    /// seconds.
    pub fn make_chain_of_module(&self, tenant: &TenantName, name: &ChainName) -> Result<(), ControlError> {
        self.built(|builds| self.attempt_chain_of_module(builds, tenant, name))
    }

    fn attempt_chain_of_module(
        &self,
        builds: &Builds,
        tenant: &TenantName,
        name: &ChainName,
    ) -> Result<Attempt<()>, ControlError> {
        let _changing = lock(&self.changing);
        if self.has_chain(tenant, name) {
            return Ok(Attempt::Made(()));
        }
        let desired = self.desired();
        let module = ModuleName::new(name.as_str()).ok().filter(|module| desired.module(tenant, module).is_some());
        let Some(module) = module else {
            return Err(ControlError::NoFunction { tenant: tenant.clone(), name: name.clone() });
        };
        let mut invoked = lock(&self.invoked_modules).clone();
        invoked.insert((tenant.clone(), module));
        let whole = desired.with_chains_of(&invoked);
        if whole.chain(tenant, name).is_none() {
            return Err(Invalid::TooMany { kind: "chains", count: CHAINS_MAX + 1, max: CHAINS_MAX }.into());
        }
        self.node.check(&desired, &whole)?;
        let chains = builds.untried(&whole, BTreeSet::from([(tenant.clone(), name.clone())]));
        if self.node.lacks(&whole, &chains) {
            return Ok(Attempt::Lacks(Missing { state: whole, chains, optional: BTreeSet::new() }));
        }
        *lock(&self.invoked_modules) = invoked;
        self.follow(&desired);
        Ok(Attempt::Made(()))
    }

    /// Builds what is missing. A chain that already failed in the same way without a change is not this change's fault.
    fn build(&self, missing: &Missing) -> Result<(), ControlError> {
        let Missing { state, chains, optional } = missing;
        let refused = self.node.build(state, chains, &*self.store);
        let (without, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(object, _)| is_one_of(optional, object));
        // The next call by such a name makes the chain again, and tells its caller why it cannot be built.
        lock(&self.invoked_modules).retain(|(tenant, module)| {
            let chain = ObjectRef::Chain { tenant: tenant.clone(), name: ChainName::of_module(module) };
            without.iter().all(|(object, _)| *object != chain)
        });
        let mut known = lock(&self.not_built);
        let is_new = |(object, refusal): &&(ObjectRef, Refusal)| {
            known.get(object).is_none_or(|not_built| not_built.refusal != *refusal)
        };
        if let Some((_, refusal)) = refused.iter().find(is_new) {
            return Err(refusal.clone().into());
        }
        known.retain(|object, _| !is_one_of(chains, object) || refused.iter().any(|(other, _)| other == object));
        Ok(())
    }

    /// Builds the templates that the durable state needs and that are missing or damaged, then activates their chains.
    /// A failure becomes a warning in the status. May take long, and lets changes pass meanwhile.
    pub fn build_missing(&self, when: BuildTime) {
        let whole = self.desired().with_chains_of(&lock(&self.invoked_modules));
        let chains: BTreeSet<ChainKey> = whole.chains().keys().cloned().collect();
        if chains.is_empty() {
            return;
        }
        let _hold = self.node.hold(&whole, &chains);
        let refused = self.node.build(&whole, &chains, &*self.store);
        let _changing = lock(&self.changing);
        let desired = self.desired();
        let mut not_built = lock(&self.not_built);
        let mut known = std::mem::take(&mut *not_built);
        for (object, refusal) in refused.into_iter().filter(|(object, _)| is_same_chain(&whole, &desired, object)) {
            let before = known.remove(&object).filter(|before| before.refusal == refusal);
            if before.is_none() {
                tracing::error!(%object, "a stored chain has no templates: {refusal}");
            }
            not_built.insert(object, before.unwrap_or(NotBuilt { refusal, when }));
        }
        drop(not_built);
        if self.node.retry(&whole, &[]) || when == BuildTime::Damage {
            self.follow(&desired);
        }
    }

    /// Ends builds, as the node is to stop. Changes that wait for one are refused.
    pub fn stop_builds(&self) {
        self.node.stop_builds();
    }
}

/// Returns whether the object is a chain that needs the same templates in both states.
fn is_same_chain(one: &DesiredState, other: &DesiredState, object: &ObjectRef) -> bool {
    let ObjectRef::Chain { tenant, name } = object else { return false };
    let ingredients = |state: &DesiredState| state.chain(tenant, name).map(|chain| state.ingredients(chain));
    ingredients(one).is_some_and(|one| ingredients(other) == Some(one))
}

fn is_chain_of(state: &DesiredState, object: &ObjectRef) -> bool {
    matches!(object, ObjectRef::Chain { tenant, name } if state.chain(tenant, name).is_some())
}

fn is_one_of(chains: &BTreeSet<ChainKey>, object: &ObjectRef) -> bool {
    matches!(object, ObjectRef::Chain { tenant, name } if chains.contains(&(tenant.clone(), name.clone())))
}

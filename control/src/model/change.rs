//! One change of the desired state, and the effect that it has on each object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{Chain, DesiredState, Invalid, Key, Label, Model, Module, ObjectRef, Rule, Tenant};

/// A change of the desired state, made completely or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Tenants to create or update.
    pub tenants: Vec<Tenant>,
    /// Modules to create or update.
    pub modules: Vec<Module>,
    /// Keys to create or update.
    pub keys: Vec<Key>,
    /// Models to create or update.
    pub models: Vec<Model>,
    /// Chains to create or update.
    pub chains: Vec<Chain>,
    /// Rules to create or update.
    pub rules: Vec<Rule>,
    /// The labels of objects to create or update. Those that are not here have none afterwards; see
    /// [`DesiredState::labelled`].
    pub labels: BTreeMap<ObjectRef, Label>,
    /// Objects to delete.
    pub delete: Vec<ObjectRef>,
    /// Objects to delete because the manifests that they were applied from have them no more.
    pub prune: Vec<ObjectRef>,
}

impl Change {
    /// Returns the objects that it creates or updates.
    pub(crate) fn sets(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        let tenants = self.tenants.iter().map(ObjectRef::from);
        let modules = self.modules.iter().map(ObjectRef::from);
        let keys = self.keys.iter().map(ObjectRef::from);
        let models = self.models.iter().map(ObjectRef::from);
        let chains = self.chains.iter().map(ObjectRef::from);
        let rules = self.rules.iter().map(ObjectRef::from);
        tenants.chain(modules).chain(keys).chain(models).chain(chains).chain(rules)
    }

    /// Refuses a change that names an object twice.
    pub(crate) fn check_named_once(&self) -> Result<(), Invalid> {
        let mut seen = BTreeSet::new();
        let removed = self.delete.iter().chain(&self.prune);
        match self.sets().chain(removed.cloned()).find(|object| !seen.insert(object.clone())) {
            Some(object) => Err(Invalid::Twice(object)),
            None => Ok(()),
        }
    }
}

/// The effect of a change on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It did not exist before.
    Created,
    /// It existed and has changed.
    Configured,
    /// It existed and was identical.
    Unchanged,
    /// It was deleted.
    Deleted,
    /// It was deleted, as the manifests with its label have it no more.
    Pruned,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Created => "created",
            Effect::Configured => "configured",
            Effect::Unchanged => "unchanged",
            Effect::Deleted => "deleted",
            Effect::Pruned => "pruned",
        })
    }
}

/// One object of a change, and the effect on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The object.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The effect.
    pub effect: Effect,
}

/// The state after a change, and the effects of the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The state after the change. Its version is the old one if nothing changed, otherwise the next.
    pub state: DesiredState,
    /// One outcome for each object that the change names, in its order: tenants, modules, keys, models, chains, rules,
    /// deletes, what is pruned.
    pub outcomes: Vec<Outcome>,
}

impl Applied {
    /// Returns whether the new state differs from the old.
    pub fn changed(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.effect != Effect::Unchanged)
    }
}

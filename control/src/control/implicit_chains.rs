//! Chains that calls of modules have made: listed and deleted as others are, but no part of the desired state.
//!
//! A call of a module by its name makes a chain of it ([`Control::make_chain_of_module`]). It is not durable and no revision
//! tells of it; it ends with the node, with its module, when a chain gets its name, or when it is deleted. The next call of the
//! module makes it again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Changed, Control, ControlError, lock};
use crate::model::{
    Chain, ChainKey, ChainName, Change, DesiredState, Effect, ModuleName, ObjectRef, Outcome, TenantName,
};

/// The chains of modules that a change deletes, each with its place among the change's outcomes.
pub(super) struct EndedChains(Vec<(usize, ChainKey)>);

impl EndedChains {
    /// Returns the chains.
    pub(super) fn chains(&self) -> impl Iterator<Item = &ChainKey> {
        self.0.iter().map(|(_, chain)| chain)
    }

    /// Returns what the change did, with these chains where it names them.
    pub(super) fn among(self, mut changed: Changed) -> Changed {
        for (at, (tenant, name)) in self.0 {
            let object = ObjectRef::Chain { tenant, name };
            changed.outcomes.insert(at, Outcome { object, effect: Effect::Deleted });
        }
        changed
    }
}

impl Control {
    /// Returns whether there is a chain of this name, including one made of a module.
    pub fn has_chain(&self, tenant: &TenantName, name: &ChainName) -> bool {
        self.desired().chain(tenant, name).is_some() || is_of_module(&lock(&self.invoked_modules), tenant, name)
    }

    /// Returns the chains that calls of modules have made, beside those of this state.
    pub fn implicit_chains(&self, desired: &DesiredState) -> Vec<Arc<Chain>> {
        desired.chains_of(&lock(&self.invoked_modules)).map(Arc::new).collect()
    }

    /// Takes those chains out of what a change deletes that calls of modules have made. Called with the lock held.
    pub(super) fn take_implicit(
        &self,
        before: &DesiredState,
        change: &mut Change,
    ) -> Result<EndedChains, ControlError> {
        change.check_named_once()?;
        let invoked = lock(&self.invoked_modules);
        let is_implicit =
            |(tenant, name): &ChainKey| before.chain(tenant, name).is_none() && is_of_module(&invoked, tenant, name);
        let (mut at, mut ended) = (change.sets().count(), Vec::new());
        change.delete.retain(|object| {
            let place = at;
            at += 1;
            let ObjectRef::Chain { tenant, name } = object else { return true };
            let key = (tenant.clone(), name.clone());
            let is_kept = !is_implicit(&key);
            if !is_kept {
                ended.push((place, key));
            }
            is_kept
        });
        Ok(EndedChains(ended))
    }

    /// Forgets the modules of these chains. Returns whether there were any.
    pub(super) fn forget_implicit(&self, chains: &BTreeSet<ChainKey>) -> bool {
        let mut invoked = lock(&self.invoked_modules);
        let count = invoked.len();
        invoked.retain(|(tenant, module)| !chains.contains(&(tenant.clone(), ChainName::of_module(module))));
        invoked.len() < count
    }
}

/// Returns whether a chain of this name is that of one of these modules.
fn is_of_module(modules: &BTreeSet<(TenantName, ModuleName)>, tenant: &TenantName, name: &ChainName) -> bool {
    ModuleName::new(name.as_str()).is_ok_and(|module| modules.contains(&(tenant.clone(), module)))
}

//! Which chains a change touches, and what their templates are made of.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Chain, ChainName, DesiredState, Digest, ObjectRef, TenantName};

/// The name of a chain, with its tenant's.
pub type ChainKey = (TenantName, ChainName);

/// What a chain's templates are made of: equal ingredients need the same templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingredients {
    chain: Arc<Chain>,
    /// The digest of each stage's module, as far as the module exists.
    modules: Vec<Option<Digest>>,
}

impl DesiredState {
    /// Returns the ingredients of this chain.
    pub fn ingredients(&self, chain: &Arc<Chain>) -> Ingredients {
        let digest = |name| self.module(&chain.tenant, name).map(|module| module.digest);
        Ingredients {
            chain: Arc::clone(chain),
            modules: chain.stages.iter().map(|stage| digest(&stage.module)).collect(),
        }
    }

    /// Returns the chains of this state that differ from those of an earlier one, and those that the objects name, be it
    /// by the name of a module.
    pub fn touched(&self, before: &Self, objects: &BTreeSet<&ObjectRef>) -> BTreeSet<ChainKey> {
        let (mut chains, mut modules) = (BTreeSet::new(), BTreeSet::new());
        for object in objects {
            match object {
                ObjectRef::Module { tenant, name } => _ = modules.insert((tenant, name)),
                ObjectRef::Chain { tenant, name } => _ = chains.insert((tenant, name)),
                ObjectRef::Tenant { .. } | ObjectRef::Rule { .. } => {}
            }
        }
        let runs_named =
            |chain: &Chain| chain.stages.iter().any(|stage| modules.contains(&(&chain.tenant, &stage.module)));
        let differs = |key: &ChainKey, chain: &Arc<Chain>| {
            let digest = |state: &Self, name| state.module(&chain.tenant, name).map(|module| module.digest);
            before.chains().get(key) != Some(chain)
                || chain.stages.iter().any(|stage| digest(before, &stage.module) != digest(self, &stage.module))
        };
        let is_touched = |key: &ChainKey, chain: &Arc<Chain>| {
            chains.contains(&(&key.0, &key.1)) || runs_named(chain) || differs(key, chain)
        };
        let touched = self.chains().iter().filter(|(key, chain)| is_touched(key, chain));
        touched.map(|(key, _)| key.clone()).collect()
    }
}

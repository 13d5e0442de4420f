//! Which chains a change touches, and what their instances are made of.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Chain, ChainName, DesiredState, Digest, ObjectRef, Stage, TenantName};

/// The name of a chain, with its tenant's.
pub type ChainKey = (TenantName, ChainName);

/// What a chain's instances are made of: equal ingredients need the same templates, keys and models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingredients {
    chain: Arc<Chain>,
    /// The digests of each stage's module, keys and models, as far as they exist.
    digests: Vec<Vec<Option<Digest>>>,
}

impl DesiredState {
    /// Returns the ingredients of this chain.
    pub fn ingredients(&self, chain: &Arc<Chain>) -> Ingredients {
        let digests = chain.stages.iter().map(|stage| self.digests(&chain.tenant, stage)).collect();
        Ingredients { chain: Arc::clone(chain), digests }
    }

    /// Returns the digests of a stage's module, keys and models, in this order, as far as they exist.
    fn digests(&self, tenant: &TenantName, stage: &Stage) -> Vec<Option<Digest>> {
        let module = self.module(tenant, &stage.module).map(|module| module.digest);
        let keys = stage.keys.iter().map(|name| self.key(tenant, name).map(|key| key.digest));
        let models = stage.models.iter().map(|name| self.model(tenant, name).map(|model| model.digest));
        [module].into_iter().chain(keys).chain(models).collect()
    }

    /// Returns the chains of this state that differ from those of an earlier one, and those that the objects name, be it
    /// by the name of a module, a key or a model.
    pub fn touched(&self, before: &Self, objects: &BTreeSet<&ObjectRef>) -> BTreeSet<ChainKey> {
        let (mut chains, mut modules) = (BTreeSet::new(), BTreeSet::new());
        let (mut keys, mut models) = (BTreeSet::new(), BTreeSet::new());
        for object in objects {
            match object {
                ObjectRef::Module { tenant, name } => _ = modules.insert((tenant, name)),
                ObjectRef::Key { tenant, name } => _ = keys.insert((tenant, name)),
                ObjectRef::Model { tenant, name } => _ = models.insert((tenant, name)),
                ObjectRef::Chain { tenant, name } => _ = chains.insert((tenant, name)),
                ObjectRef::Tenant { .. } | ObjectRef::Rule { .. } => {}
            }
        }
        let uses_named = |tenant: &TenantName, stage: &Stage| {
            modules.contains(&(tenant, &stage.module))
                || stage.keys.iter().any(|name| keys.contains(&(tenant, name)))
                || stage.models.iter().any(|name| models.contains(&(tenant, name)))
        };
        let differs = |key: &ChainKey, chain: &Arc<Chain>| {
            let is_other = |stage: &Stage| before.digests(&key.0, stage) != self.digests(&key.0, stage);
            before.chains().get(key) != Some(chain) || chain.stages.iter().any(is_other)
        };
        let is_touched = |key: &ChainKey, chain: &Arc<Chain>| {
            chains.contains(&(&key.0, &key.1))
                || chain.stages.iter().any(|stage| uses_named(&key.0, stage))
                || differs(key, chain)
        };
        let touched = self.chains().iter().filter(|(key, chain)| is_touched(key, chain));
        touched.map(|(key, _)| key.clone()).collect()
    }
}

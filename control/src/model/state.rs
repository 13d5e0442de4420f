//! The desired state of a node, and how one change produces the next state.

mod sound;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

pub use self::sound::LeftOut;
use super::{
    Applied, CASES_TOTAL_MAX, Chain, ChainName, Change, Effect, Field, FieldName, Files, Invalid, Key, KeyName, Label,
    Match, Model, ModelName, Module, ModuleName, NotGranted, Outcome, Rule, RuleName, Stage, Tenant, TenantName,
    quotas,
};

/// The maximum number of tenants with terms of their own of a node.
pub const TENANTS_MAX: usize = 4096;
/// The maximum number of modules of a node.
pub const MODULES_MAX: usize = 8192;
/// The maximum number of keys of a node.
pub const KEYS_MAX: usize = 4096;
/// The maximum number of models of a node.
pub const MODELS_MAX: usize = 1024;
/// The maximum number of chains of a node.
pub const CHAINS_MAX: usize = 8192;
/// The maximum number of rules of a node.
pub const RULES_MAX: usize = 16384;
/// The maximum stage configuration of a node, all chains together, in bytes.
pub const CONFIG_BYTES_TOTAL_MAX: usize = 64 << 20;

/// The maximum size of all stages' files of a node, each archive counted once for each tenant. The node keeps them in memory.
pub const FILES_BYTES_TOTAL_MAX: u64 = 256 << 20;

/// The maximum size of all models of a node, each counted once for each tenant, in bytes. The node keeps those in use in memory.
pub const MODEL_BYTES_TOTAL_MAX: u64 = 1 << 30;

/// The name of one object of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ObjectRef {
    /// A tenant.
    Tenant {
        /// Its name.
        name: TenantName,
    },
    /// A module.
    Module {
        /// The tenant that owns it.
        tenant: TenantName,
        /// Its name within the tenant.
        name: ModuleName,
    },
    /// A key.
    Key {
        /// The tenant that owns it.
        tenant: TenantName,
        /// Its name within the tenant.
        name: KeyName,
    },
    /// A model.
    Model {
        /// The tenant that owns it.
        tenant: TenantName,
        /// Its name within the tenant.
        name: ModelName,
    },
    /// A chain.
    Chain {
        /// The tenant that owns it.
        tenant: TenantName,
        /// Its name within the tenant.
        name: ChainName,
    },
    /// A rule.
    Rule {
        /// The tenant that owns it.
        tenant: TenantName,
        /// Its name within the tenant.
        name: RuleName,
    },
}

impl ObjectRef {
    /// Returns `tenant`, `module`, `key`, `model`, `chain` or `rule`.
    pub fn kind(&self) -> &'static str {
        match self {
            ObjectRef::Tenant { .. } => "tenant",
            ObjectRef::Module { .. } => "module",
            ObjectRef::Key { .. } => "key",
            ObjectRef::Model { .. } => "model",
            ObjectRef::Chain { .. } => "chain",
            ObjectRef::Rule { .. } => "rule",
        }
    }

    /// Returns the name within the tenant, or that of the tenant.
    pub fn name(&self) -> &str {
        match self {
            ObjectRef::Tenant { name } => name.as_str(),
            ObjectRef::Module { name, .. } => name.as_str(),
            ObjectRef::Key { name, .. } => name.as_str(),
            ObjectRef::Model { name, .. } => name.as_str(),
            ObjectRef::Chain { name, .. } => name.as_str(),
            ObjectRef::Rule { name, .. } => name.as_str(),
        }
    }

    /// Returns the tenant that owns it, or that it is.
    pub fn tenant(&self) -> &TenantName {
        match self {
            ObjectRef::Tenant { name: tenant }
            | ObjectRef::Module { tenant, .. }
            | ObjectRef::Key { tenant, .. }
            | ObjectRef::Model { tenant, .. }
            | ObjectRef::Chain { tenant, .. }
            | ObjectRef::Rule { tenant, .. } => tenant,
        }
    }
}

impl fmt::Display for ObjectRef {
    /// Formats it as `chain demo/echo`, or `tenant demo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ObjectRef::Tenant { name } = self {
            return write!(f, "tenant {name}");
        }
        write!(f, "{} {}/{}", self.kind(), self.tenant(), self.name())
    }
}

impl From<&Tenant> for ObjectRef {
    fn from(tenant: &Tenant) -> Self {
        ObjectRef::Tenant { name: tenant.name.clone() }
    }
}

impl From<&Module> for ObjectRef {
    fn from(module: &Module) -> Self {
        ObjectRef::Module { tenant: module.tenant.clone(), name: module.name.clone() }
    }
}

impl From<&Key> for ObjectRef {
    fn from(key: &Key) -> Self {
        ObjectRef::Key { tenant: key.tenant.clone(), name: key.name.clone() }
    }
}

impl From<&Model> for ObjectRef {
    fn from(model: &Model) -> Self {
        ObjectRef::Model { tenant: model.tenant.clone(), name: model.name.clone() }
    }
}

impl From<&Chain> for ObjectRef {
    fn from(chain: &Chain) -> Self {
        ObjectRef::Chain { tenant: chain.tenant.clone(), name: chain.name.clone() }
    }
}

impl From<&Rule> for ObjectRef {
    fn from(rule: &Rule) -> Self {
        ObjectRef::Rule { tenant: rule.tenant.clone(), name: rule.name.clone() }
    }
}

/// All tenants, modules, keys, models, chains and rules that the node ought to have. Always consistent. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    version: u64,
    tenants: BTreeMap<TenantName, Arc<Tenant>>,
    modules: BTreeMap<(TenantName, ModuleName), Arc<Module>>,
    keys: BTreeMap<(TenantName, KeyName), Arc<Key>>,
    models: BTreeMap<(TenantName, ModelName), Arc<Model>>,
    chains: BTreeMap<(TenantName, ChainName), Arc<Chain>>,
    rules: BTreeMap<(TenantName, RuleName), Arc<Rule>>,
    /// The labels of those objects that have one.
    labels: BTreeMap<ObjectRef, Label>,
}

impl DesiredState {
    /// Creates the state with this version and exactly these objects, checked as any change is, but for what each tenant
    /// may have: they have it already.
    pub fn restore(version: u64, objects: Change) -> Result<Self, Invalid> {
        let applied = Self::default().applied(&objects)?;
        Ok(Self { version, ..applied.state })
    }

    /// Returns the number of changes since the store was created.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns all tenants with terms of their own, by name.
    pub fn tenants(&self) -> &BTreeMap<TenantName, Arc<Tenant>> {
        &self.tenants
    }

    /// Returns all modules, by tenant and name.
    pub fn modules(&self) -> &BTreeMap<(TenantName, ModuleName), Arc<Module>> {
        &self.modules
    }

    /// Returns all keys, by tenant and name.
    pub fn keys(&self) -> &BTreeMap<(TenantName, KeyName), Arc<Key>> {
        &self.keys
    }

    /// Returns all models, by tenant and name.
    pub fn models(&self) -> &BTreeMap<(TenantName, ModelName), Arc<Model>> {
        &self.models
    }

    /// Returns all chains, by tenant and name.
    pub fn chains(&self) -> &BTreeMap<(TenantName, ChainName), Arc<Chain>> {
        &self.chains
    }

    /// Returns all rules, by tenant and name.
    pub fn rules(&self) -> &BTreeMap<(TenantName, RuleName), Arc<Rule>> {
        &self.rules
    }

    /// Returns the labels of those objects that have one.
    pub fn labels(&self) -> &BTreeMap<ObjectRef, Label> {
        &self.labels
    }

    /// Returns the terms of this tenant; none if it has those of the node's defaults.
    pub fn tenant(&self, name: &TenantName) -> Option<&Arc<Tenant>> {
        self.tenants.get(name)
    }

    /// Returns the module of this tenant and name.
    pub fn module(&self, tenant: &TenantName, name: &ModuleName) -> Option<&Arc<Module>> {
        self.modules.get(&(tenant.clone(), name.clone()))
    }

    /// Returns the key of this tenant and name.
    pub fn key(&self, tenant: &TenantName, name: &KeyName) -> Option<&Arc<Key>> {
        self.keys.get(&(tenant.clone(), name.clone()))
    }

    /// Returns the model of this tenant and name.
    pub fn model(&self, tenant: &TenantName, name: &ModelName) -> Option<&Arc<Model>> {
        self.models.get(&(tenant.clone(), name.clone()))
    }

    /// Returns the chain of this tenant and name.
    pub fn chain(&self, tenant: &TenantName, name: &ChainName) -> Option<&Arc<Chain>> {
        self.chains.get(&(tenant.clone(), name.clone()))
    }

    /// Returns the files of all stages, with the tenants that own them.
    pub fn files(&self) -> impl Iterator<Item = (&TenantName, &Files)> {
        self.chains
            .values()
            .flat_map(|chain| chain.stages.iter().filter_map(|stage| Some((&chain.tenant, stage.files.as_ref()?))))
    }

    /// Returns this state with the chains that these modules get.
    #[must_use]
    pub fn with_chains_of(&self, modules: &BTreeSet<(TenantName, ModuleName)>) -> Self {
        let mut state = self.clone();
        let chains = self.chains_of(modules);
        state.chains.extend(chains.map(|chain| ((chain.tenant.clone(), chain.name.clone()), Arc::new(chain))));
        state
    }

    /// Returns the chains that these modules get, as far as they exist. The chain has the module's name, the module alone,
    /// and the defaults, and no instances of it are kept ready. A module gets no such chain if a chain of that name exists,
    /// or if there is no room for another chain.
    pub fn chains_of<'s>(
        &'s self,
        modules: &'s BTreeSet<(TenantName, ModuleName)>,
    ) -> impl Iterator<Item = Chain> + use<'s> {
        let has_none = |(tenant, module): &&(TenantName, ModuleName)| {
            !self.chains.contains_key(&(tenant.clone(), ChainName::of_module(module)))
        };
        let existing = modules.iter().filter(|key| self.modules.contains_key(*key));
        let made = existing.filter(has_none).map(|(tenant, module)| Chain::of_module(tenant.clone(), module));
        made.take(CHAINS_MAX.saturating_sub(self.chains.len()))
    }

    /// Returns the state after the change, or why it can't be made. Does not modify this state.
    pub fn apply(&self, change: &Change) -> Result<Applied, Invalid> {
        let applied = self.applied(change)?;
        applied.state.check_quotas(self)?;
        Ok(applied)
    }

    /// Refuses this state if a tenant has more of something in it than it may, and more than it had `before`.
    pub(crate) fn check_quotas(&self, before: &Self) -> Result<(), Invalid> {
        quotas::check(before, self)
    }

    fn applied(&self, change: &Change) -> Result<Applied, Invalid> {
        change.check_named_once()?;
        let mut state = self.clone();
        let mut outcomes = state.set_all(change);
        let deleted = change.delete.iter().map(|object| (object, Effect::Deleted));
        let pruned = change.prune.iter().map(|object| (object, Effect::Pruned));
        for (object, effect) in deleted.chain(pruned) {
            if !state.remove(object) {
                return Err(Invalid::NoSuch(object.clone()));
            }
            outcomes.push(Outcome { object: object.clone(), effect });
        }
        state.check(&[&change.delete[..], &change.prune[..]].concat())?;
        let mut applied = Applied { state, outcomes };
        applied.state.version += u64::from(applied.changed());
        Ok(applied)
    }

    /// Creates or updates the objects of a change with their labels, without any check.
    fn set_all(&mut self, change: &Change) -> Vec<Outcome> {
        let mut outcomes = self.set_objects(change);
        for Outcome { object, effect } in &mut outcomes {
            if self.set_label(object, change.labels.get(object)) && *effect == Effect::Unchanged {
                *effect = Effect::Configured;
            }
        }
        outcomes
    }

    /// Gives an object this label, or none. Returns whether it had another one.
    fn set_label(&mut self, object: &ObjectRef, label: Option<&Label>) -> bool {
        let before = match label {
            Some(label) => self.labels.insert(object.clone(), label.clone()),
            None => self.labels.remove(object),
        };
        before.as_ref() != label
    }

    fn set_objects(&mut self, change: &Change) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for tenant in &change.tenants {
            let effect = set(&mut self.tenants, tenant.name.clone(), tenant);
            outcomes.push(Outcome { object: tenant.into(), effect });
        }
        for module in &change.modules {
            let key = (module.tenant.clone(), module.name.clone());
            outcomes.push(Outcome { object: module.into(), effect: set(&mut self.modules, key, module) });
        }
        for key in &change.keys {
            let name = (key.tenant.clone(), key.name.clone());
            outcomes.push(Outcome { object: key.into(), effect: set(&mut self.keys, name, key) });
        }
        for model in &change.models {
            let key = (model.tenant.clone(), model.name.clone());
            outcomes.push(Outcome { object: model.into(), effect: set(&mut self.models, key, model) });
        }
        for chain in &change.chains {
            let key = (chain.tenant.clone(), chain.name.clone());
            outcomes.push(Outcome { object: chain.into(), effect: set(&mut self.chains, key, chain) });
        }
        for rule in &change.rules {
            let key = (rule.tenant.clone(), rule.name.clone());
            outcomes.push(Outcome { object: rule.into(), effect: set(&mut self.rules, key, rule) });
        }
        outcomes
    }

    fn remove(&mut self, object: &ObjectRef) -> bool {
        self.labels.remove(object);
        match object.clone() {
            ObjectRef::Tenant { name } => self.tenants.remove(&name).is_some(),
            ObjectRef::Module { tenant, name } => self.modules.remove(&(tenant, name)).is_some(),
            ObjectRef::Key { tenant, name } => self.keys.remove(&(tenant, name)).is_some(),
            ObjectRef::Model { tenant, name } => self.models.remove(&(tenant, name)).is_some(),
            ObjectRef::Chain { tenant, name } => self.chains.remove(&(tenant, name)).is_some(),
            ObjectRef::Rule { tenant, name } => self.rules.remove(&(tenant, name)).is_some(),
        }
    }

    /// Checks that the state is consistent. `deleted` tells a deleted object from one that never existed.
    fn check(&self, deleted: &[ObjectRef]) -> Result<(), Invalid> {
        self.check_sizes()?;
        self.check_tenants(deleted)?;
        self.chains.values().try_for_each(|chain| self.check_chain(chain, deleted))?;
        self.rules.values().try_for_each(|rule| self.check_rule(rule, deleted))?;
        self.check_fields()?;
        self.check_alike()
    }

    /// Returns the size of all stages' files, each archive counted once, as the node keeps it. Changes may count more: see
    /// [`quotas::check`].
    fn files_bytes(&self) -> u64 {
        let archives: BTreeMap<_, _> = self.files().map(|(_, files)| (files.digest, files.size_bytes)).collect();
        archives.into_values().sum()
    }

    fn check_sizes(&self) -> Result<(), Invalid> {
        for (kind, count, max) in [
            ("tenants", self.tenants.len(), TENANTS_MAX),
            ("modules", self.modules.len(), MODULES_MAX),
            ("keys", self.keys.len(), KEYS_MAX),
            ("models", self.models.len(), MODELS_MAX),
            ("chains", self.chains.len(), CHAINS_MAX),
            ("rules", self.rules.len(), RULES_MAX),
            ("matches of branches", self.chains.values().map(|chain| chain.case_count()).sum(), CASES_TOTAL_MAX),
        ] {
            if count > max {
                return Err(Invalid::TooMany { kind, count, max });
            }
        }
        let config_bytes: usize = self.chains.values().flat_map(|c| &c.stages).map(|stage| stage.config.len()).sum();
        if config_bytes > CONFIG_BYTES_TOTAL_MAX {
            return Err(Invalid::TooMuchConfig {
                kib: config_bytes.div_ceil(1024),
                max_kib: CONFIG_BYTES_TOTAL_MAX >> 10,
            });
        }
        let files_bytes = self.files_bytes();
        if files_bytes > FILES_BYTES_TOTAL_MAX {
            return Err(Invalid::TooManyFiles {
                kib: files_bytes.div_ceil(1024),
                max_kib: FILES_BYTES_TOTAL_MAX >> 10,
            });
        }
        Ok(())
    }

    /// Checks all tenants' terms, and that no deleted tenant leaves objects behind, which would have other terms then.
    fn check_tenants(&self, deleted: &[ObjectRef]) -> Result<(), Invalid> {
        for tenant in self.tenants.values() {
            tenant.check().map_err(|problem| Invalid::Tenant { tenant: (&**tenant).into(), problem })?;
        }
        for object in deleted {
            let ObjectRef::Tenant { name } = object else { continue };
            let objects = [
                ("module", self.modules.keys().filter(|(tenant, _)| tenant == name).count()),
                ("key", self.keys.keys().filter(|(tenant, _)| tenant == name).count()),
                ("model", self.models.keys().filter(|(tenant, _)| tenant == name).count()),
                ("chain", self.chains.keys().filter(|(tenant, _)| tenant == name).count()),
                ("rule", self.rules.keys().filter(|(tenant, _)| tenant == name).count()),
            ];
            if objects.iter().any(|(_, count)| *count > 0) {
                return Err(Invalid::TenantInUse { tenant: name.clone(), objects: objects.into() });
            }
        }
        Ok(())
    }

    fn check_chain(&self, chain: &Chain, deleted: &[ObjectRef]) -> Result<(), Invalid> {
        chain.check().map_err(|problem| Invalid::Chain { chain: chain.into(), problem })?;
        let not_granted = |problem| Invalid::NotGranted { object: chain.into(), problem };
        match self.tenant(&chain.tenant) {
            Some(tenant) => tenant.check_chain(chain).map_err(not_granted)?,
            None if !chain.outbound.is_empty() => return Err(not_granted(NotGranted::OutboundFlows)),
            None => {}
        }
        for (at, stage) in chain.stages.iter().enumerate() {
            self.check_granted(chain, at + 1, stage, deleted)?;
            if self.module(&chain.tenant, &stage.module).is_none() {
                let object = ObjectRef::Module { tenant: chain.tenant.clone(), name: stage.module.clone() };
                return Err(match deleted.contains(&object) {
                    true => Invalid::InUse { object, user: chain.into() },
                    false => {
                        Invalid::UnknownModule { chain: chain.into(), stage: at + 1, module: stage.module.clone() }
                    }
                });
            }
        }
        Ok(())
    }

    /// Checks that a chain's tenant has the keys and the models that a stage is granted.
    fn check_granted(&self, chain: &Chain, stage: usize, spec: &Stage, deleted: &[ObjectRef]) -> Result<(), Invalid> {
        let tenant = &chain.tenant;
        let keys = spec.keys.iter().filter(|name| self.key(tenant, name).is_none());
        let mut keys = keys.map(|name| ObjectRef::Key { tenant: tenant.clone(), name: name.clone() });
        let models = spec.models.iter().filter(|name| self.model(tenant, name).is_none());
        let mut models = models.map(|name| ObjectRef::Model { tenant: tenant.clone(), name: name.clone() });
        match keys.next().or_else(|| models.next()) {
            Some(object) if deleted.contains(&object) => Err(Invalid::InUse { object, user: chain.into() }),
            Some(object) => Err(Invalid::UnknownGranted { chain: chain.into(), stage, object }),
            None => Ok(()),
        }
    }

    fn check_rule(&self, rule: &Rule, deleted: &[ObjectRef]) -> Result<(), Invalid> {
        rule.matcher.check().map_err(|problem| Invalid::Rule { rule: rule.into(), problem })?;
        if let Some(tenant) = self.tenant(&rule.tenant) {
            tenant.check_rule(rule).map_err(|problem| Invalid::NotGranted { object: rule.into(), problem })?;
        }
        if self.chain(&rule.tenant, &rule.chain).is_some() {
            return Ok(());
        }
        let object = ObjectRef::Chain { tenant: rule.tenant.clone(), name: rule.chain.clone() };
        Err(match deleted.contains(&object) {
            true => Invalid::InUse { object, user: rule.into() },
            false => Invalid::UnknownChain { rule: rule.into(), chain: object },
        })
    }

    /// Checks that chains which share a field declare it identically.
    fn check_fields(&self) -> Result<(), Invalid> {
        let mut seen: HashMap<(&TenantName, &FieldName), (&Chain, &Field)> = HashMap::new();
        for chain in self.chains.values() {
            for field in &chain.fields {
                let (first, declared) = *seen.entry((&chain.tenant, &field.name)).or_insert((chain, field));
                if declared != field {
                    let (first, second) = (first.into(), (&**chain).into());
                    return Err(Invalid::FieldsDiffer { first, second, field: field.name.clone() });
                }
            }
        }
        Ok(())
    }

    /// Checks that no two rules of a tenant are alike. Those of different tenants may be: to refuse one would tell its tenant
    /// what the other has.
    fn check_alike(&self) -> Result<(), Invalid> {
        let mut seen: HashMap<(&TenantName, u32, &Match), &Rule> = HashMap::with_capacity(self.rules.len());
        for rule in self.rules.values() {
            if let Some(first) = seen.insert((&rule.tenant, rule.priority, &rule.matcher), rule) {
                return Err(Invalid::Alike {
                    first: first.into(),
                    second: (&**rule).into(),
                    what: rule.matcher.to_string(),
                    priority: rule.priority,
                });
            }
        }
        Ok(())
    }

    /// Returns the rules that never apply, as another tenant has one of the same match and priority: each with the one that
    /// applies, which is that of the tenant whose name sorts first.
    pub fn shadowed_rules(&self) -> Vec<(&Rule, &Rule)> {
        let mut first: HashMap<(u32, &Match), &Rule> = HashMap::with_capacity(self.rules.len());
        let mut shadowed = Vec::new();
        for rule in self.rules.values() {
            let applies = *first.entry((rule.priority, &rule.matcher)).or_insert(rule);
            if applies.tenant != rule.tenant {
                shadowed.push((applies, &**rule));
            }
        }
        shadowed
    }
}

fn set<K: Ord, V: Clone + PartialEq>(objects: &mut BTreeMap<K, Arc<V>>, key: K, value: &V) -> Effect {
    match objects.get_mut(&key) {
        Some(there) if **there == *value => Effect::Unchanged,
        Some(there) => {
            *there = Arc::new(value.clone());
            Effect::Configured
        }
        None => {
            objects.insert(key, Arc::new(value.clone()));
            Effect::Created
        }
    }
}

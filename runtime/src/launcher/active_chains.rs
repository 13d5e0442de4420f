//! The chains in force, with the templates from which their instances are made, and the rules in the form that the gateway uses.
//!
//! [`ActiveChains`] belongs to the launcher's thread.

mod entry;
mod graph;
mod node_ports;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{self, ChainName, DesiredState, KeyName, ModelName, TenantName};
use pinion_gateway::id::{CHAINS_MAX, ChainGeneration, ChainIndex, FunctionRef};
use pinion_gateway::rules::{ChainSettings, Policy, Redelivery, Rule, RuleSet};
use pinion_mma::id::{PortIndex, TENANTS_MAX, TenantIndex};
use pinion_mma::ways::direction::PortSet;

use self::entry::new_cache;
pub(super) use self::entry::{ChainEntry, Edition};
use self::graph::Graph;
use self::node_ports::NodePorts;
use self::sources::SourcesOfTenants;
use super::granted_objects::{GrantedObjects, StageGrants};
use super::loaded_templates::{LoadedTemplates, Unavailable};
use super::preparation_queue::{NoRoom, PreparationQueue};
use crate::ids::ChainKey;
use crate::memory::pressure::Level;
use crate::reports::status_table::Callable;
use crate::scheduler::TenantShare;
use crate::state::StateStore;
use crate::templates::artifacts::{TemplateKey, Wishes};
use crate::templates::trials::Trials;
use crate::tenants::accounts::Accounts;
use crate::tenants::meters::Meters;
use crate::tenants::scheduling_params::Tenants;

/// The chains in force; see the module.
pub struct ActiveChains {
    loaded: Arc<LoadedTemplates>,
    records: ChainRecords,
    ports: NodePorts,
    chains: BTreeMap<ChainIndex, ChainEntry>,
    /// Chains that lack an instance, except for those of `touched`.
    queue: PreparationQueue,
    /// Chains that may have changed since they were put into the queue.
    touched: BTreeSet<ChainIndex>,
    /// A superset of the chains with a cache above its minimum.
    grown: BTreeSet<ChainIndex>,
    next_index: u32,
    next_edition: u64,
    next_tenure: u32,
}

/// Records of chains and tenants that outlive their instances.
pub struct ChainRecords {
    /// The accounts to which memory is charged.
    pub accounts: Arc<Accounts>,
    /// The numbers by which workers know tenants, and what tenants are granted.
    pub tenants: Tenants,
    /// Processor time used.
    pub meters: Arc<Meters>,
    /// The functions' state.
    pub state: Arc<StateStore>,
    /// What functions use and never read.
    pub granted: Arc<GrantedObjects>,
    /// The trials of templates, and which are withheld.
    pub trials: Arc<Trials>,
}

/// The result of applying a state.
pub struct Followed {
    /// Chains that are no longer in force; their instances must end.
    pub retired: Vec<ChainIndex>,
    /// Chains with a new edition; instances of older editions must be replaced.
    pub changed: Vec<ChainIndex>,
    /// Tenants with another weight or rate than before.
    pub regranted: Vec<TenantShare>,
    /// The rules of the state.
    pub rules: Arc<RuleSet>,
    /// What of the state could not be applied, a sentence each.
    pub warnings: Vec<String>,
}

impl ActiveChains {
    /// Creates an empty set of chains. `ports` are the gateway's ports by name.
    #[must_use]
    pub fn new(loaded: Arc<LoadedTemplates>, records: ChainRecords, ports: BTreeMap<String, PortIndex>) -> Self {
        Self {
            loaded,
            records,
            ports: NodePorts::new(ports),
            chains: BTreeMap::new(),
            queue: PreparationQueue::default(),
            touched: BTreeSet::new(),
            grown: BTreeSet::new(),
            next_index: 0,
            next_edition: 0,
            next_tenure: 0,
        }
    }

    /// Returns the chain of this index, if it is in force.
    #[must_use]
    pub fn chain(&self, index: ChainIndex) -> Option<&ChainEntry> {
        self.chains.get(&index)
    }

    /// Returns the chain of this index for changes, if it is in force.
    pub fn chain_mut(&mut self, index: ChainIndex) -> Option<&mut ChainEntry> {
        let entry = self.chains.get_mut(&index)?;
        self.touched.insert(index);
        self.grown.insert(index);
        Some(entry)
    }

    /// Returns the chain of which an instance should be prepared next (see `preparation_queue.rs`), of those for which there is room.
    pub fn next_lacking(&mut self, now: Instant, has_room: impl Fn(TenantIndex, u32) -> bool) -> Option<ChainIndex> {
        self.update_queue(now);
        self.queue.next(has_room)
    }

    /// Returns whether this edition of a chain is in force, lacks an instance, and does not rest after a failure.
    #[must_use]
    pub(super) fn still_lacks(&self, index: ChainIndex, edition: Edition, now: Instant) -> bool {
        self.chains.get(&index).is_some_and(|chain| {
            chain.edition == edition && chain.lacks_instance() && chain.resume_at.is_none_or(|at| at <= now)
        })
    }

    /// Returns the chains that lack an instance and for which there is no room.
    pub(super) fn without_room(&self, has_room: impl Fn(TenantIndex, u32) -> bool) -> Vec<NoRoom> {
        self.queue.without_room(has_room)
    }

    /// Puts chains that may have changed, or whose rest is over, where they belong in the queue.
    fn update_queue(&mut self, now: Instant) {
        let Self { queue, touched, chains, .. } = self;
        while let Some(chain) = queue.pop_rested(now) {
            touched.insert(chain);
        }
        while let Some(index) = touched.pop_first() {
            match chains.get(&index) {
                Some(chain) => queue.put(index, chain.owner(), chain.need(now)),
                None => queue.remove(index),
            }
        }
    }

    /// Charges the time that the preparation of an instance took to the chain's tenant, which is returned.
    pub fn charge(&mut self, index: ChainIndex, taken: Duration) -> Option<&TenantName> {
        let chain = self.chains.get(&index)?;
        self.queue.charge(chain.owner().tenant, taken);
        Some(&chain.spec.tenant)
    }

    /// Returns the weights of the tenants with chains in force.
    #[must_use]
    pub fn weights(&self) -> Vec<(TenantIndex, u32)> {
        let owners = self.chains.values().map(|chain| chain.owner());
        owners.map(|owner| (owner.tenant, owner.weight)).collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// Returns when the next chain that lacks an instance may be tried again.
    #[must_use]
    pub fn next_resumption(&self) -> Option<Instant> {
        self.queue.next_rested()
    }

    /// Returns all chains in force.
    pub fn chains(&self) -> impl Iterator<Item = (ChainIndex, &ChainEntry)> {
        self.chains.iter().map(|(index, entry)| (*index, entry))
    }

    /// Returns the reference by which each chain is invoked.
    #[must_use]
    pub fn functions(&self) -> HashMap<ChainKey, Callable> {
        let function = |(index, entry): (&ChainIndex, &ChainEntry)| {
            let key = (entry.spec.tenant.clone(), entry.spec.name.clone());
            let function = FunctionRef { chain: *index, generation: entry.generation };
            (key, Callable { function, tenant: entry.owner().tenant })
        };
        self.chains.iter().map(function).collect()
    }

    /// Lets all caches shrink as time passes. Returns the chains with far more ready instances than needed, and how many are to stay.
    pub fn review(&mut self, now: Instant) -> Vec<(ChainIndex, u32)> {
        let Self { grown, touched, chains, .. } = self;
        let mut surplus = Vec::new();
        grown.retain(|index| {
            let Some(entry) = chains.get_mut(index) else { return false };
            touched.insert(*index);
            surplus.extend(entry.review(now).map(|keep| (*index, keep)));
            entry.ready > entry.ready_wanted || !entry.cache.is_least(now)
        });
        surplus
    }

    /// Returns the FWPs of all instances that chains keep ready at least (`cache_min`).
    #[must_use]
    pub fn fwps_wanted(&self) -> usize {
        self.chains.values().map(|chain| chain.spec.cache_min as usize * chain.spec.stages.len()).sum()
    }

    /// Brings the chains to the desired state. A chain that changed, or has changed modules, keys or models, keeps its index and gets a new
    /// edition; so does one whose class or clock is another by its tenant's terms.
    pub fn follow(&mut self, state: &DesiredState) -> Followed {
        let regranted = self.records.tenants.follow(state);
        let (mut warnings, mut changed, mut kept) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut old = std::mem::take(&mut self.chains);
        let old_by_name: HashMap<(TenantName, ChainName), ChainIndex> =
            old.iter().map(|(index, entry)| ((entry.spec.tenant.clone(), entry.spec.name.clone()), *index)).collect();
        let mut by_name: BTreeMap<(&TenantName, &ChainName), ChainIndex> = BTreeMap::new();
        for (key @ (tenant, name), spec) in state.chains() {
            let (keys, granted) = (keys(state, spec), self.records.granted.of_chain(state, spec));
            let found = old_by_name.get(key).and_then(|index| old.remove_entry(index));
            let entered = match found {
                Some((index, mut entry))
                    if entry.is_made_like(spec, keys.as_ref(), granted.as_ref().ok())
                        && entry.terms.have_terms_of(self.records.tenants.grant(tenant), &spec.scheduling) =>
                {
                    entry.adjust(spec, self.records.accounts.open(spec));
                    Ok((index, entry))
                }
                Some((index, entry)) => match self.enter(spec, keys, granted) {
                    Ok(new) => {
                        changed.push(index);
                        Ok((index, ChainEntry { generation: entry.generation, wanted: entry.wanted, ..new }))
                    }
                    Err(reason) => {
                        old.insert(index, entry);
                        Err(reason)
                    }
                },
                None => self
                    .free_index(&old, &kept)
                    .ok_or_else(|| format!("the node has {CHAINS_MAX} chains already"))
                    .and_then(|index| Ok((index, self.enter(spec, keys, granted)?))),
            };
            match entered {
                Ok((index, entry)) => {
                    warnings.extend(self.class_warning(spec));
                    by_name.insert((tenant, name), index);
                    kept.insert(index, entry);
                }
                Err(reason) => warnings.push(format!("chain {tenant}/{name} is unavailable: {reason}")),
            }
        }
        self.chains = kept;
        self.touched.extend(old.keys());
        self.records.accounts.close_unused();
        self.records.meters.retain(state);
        self.look_at_all();
        let rules = self.rule_set(state, &by_name, &mut warnings);
        Followed { retired: old.into_keys().collect(), changed, regranted, rules, warnings }
    }

    /// Returns a warning if a chain asks for a higher class than its tenant is granted, as when the grant was lowered after the chain was
    /// applied. The chain then has the highest granted class.
    fn class_warning(&self, spec: &model::Chain) -> Option<String> {
        let (model::Chain { tenant, name, .. }, class) = (spec, spec.scheduling.class);
        let class_max = self.records.tenants.grant(tenant).class_max;
        (class < class_max).then(|| {
            format!(
                "chain {tenant}/{name} has the class {class_max} and not {class}, which its tenant is not granted: grant it \
                 (pinion apply, class_max of a [[tenant]] named {tenant}), or change the chain's class"
            )
        })
    }

    /// Creates the entry of a chain, in a new edition.
    fn enter(
        &mut self,
        spec: &Arc<model::Chain>,
        keys: Option<Vec<TemplateKey>>,
        granted: Result<Vec<StageGrants>, String>,
    ) -> Result<ChainEntry, String> {
        let keys = keys.ok_or("it names a module that is not there")?;
        let granted = granted?;
        for (stage, key) in spec.stages.iter().zip(&keys) {
            if let Some(reason) = self.records.trials.held(key) {
                return Err(format!("module {}: {reason}", stage.module));
            }
        }
        let graph = Graph::new(spec, &self.ports)?;
        let (templates, loaded) = match self.loaded.of_chain(spec, &keys) {
            Ok(both) => both,
            // It is in force, and its templates are loaded as soon as its tenant has room for them.
            Err(Unavailable { over_limit: Some(_), .. }) => (Vec::new(), Vec::new()),
            Err(Unavailable { sentence, .. }) => return Err(sentence),
        };
        let state = self.records.state.open(spec)?;
        let spec = Arc::clone(spec);
        let memory = self.records.accounts.open(&spec);
        let meters = self.records.meters.open(&spec);
        let terms = self.records.tenants.terms(&spec.tenant, &spec.scheduling, meters);
        let terms = terms.ok_or_else(|| format!("the node has chains of {TENANTS_MAX} tenants already"))?;
        let (cache, ready_wanted) = new_cache(&spec);
        let (edition, generation) = (Edition(self.next_edition), ChainGeneration(self.next_tenure));
        (self.next_edition, self.next_tenure) = (self.next_edition + 1, self.next_tenure.wrapping_add(1));
        Ok(ChainEntry {
            edition,
            generation,
            spec,
            cache,
            ready_wanted,
            keys,
            templates,
            loaded,
            graph,
            memory,
            terms,
            state,
            granted,
            ready: 0,
            wanted: false,
            ready_max: u32::MAX,
            failures_in_a_row: 0,
            resume_at: None,
            slow_until: None,
        })
    }

    /// Sets the most instances of each chain to keep ready, by the level of memory pressure.
    pub fn set_ready_max(&mut self, level: Level) {
        for entry in self.chains.values_mut() {
            entry.ready_max = level.ready_max(&entry.spec);
        }
        self.look_at_all();
    }

    fn look_at_all(&mut self) {
        self.touched.extend(self.chains.keys());
        self.grown.extend(self.chains.keys());
    }

    /// Unloads a chain's templates. They are loaded again from their artifacts when an instance is wanted.
    pub fn unload(&mut self, index: ChainIndex) {
        if let Some(entry) = self.chains.get_mut(&index) {
            (entry.templates, entry.loaded) = (Vec::new(), Vec::new());
        }
    }

    /// Loads a chain's templates if they were unloaded. Returns whether they were.
    ///
    /// # Errors
    /// Returns why they cannot be loaded.
    pub(super) fn reload(&mut self, index: ChainIndex) -> Result<bool, Unavailable> {
        let Some(entry) = self.chains.get(&index).filter(|entry| entry.templates.is_empty()) else { return Ok(false) };
        let (spec, keys) = (Arc::clone(&entry.spec), entry.keys.clone());
        let (templates, loaded) = self.loaded.of_chain(&spec, &keys)?;
        if let Some(entry) = self.chains.get_mut(&index) {
            (entry.templates, entry.loaded) = (templates, loaded);
        }
        Ok(true)
    }

    /// Returns the next free index in a cycle through all, so that instances of the chain that last had it have ended long ago.
    fn free_index(
        &mut self,
        old: &BTreeMap<ChainIndex, ChainEntry>,
        kept: &BTreeMap<ChainIndex, ChainEntry>,
    ) -> Option<ChainIndex> {
        let candidates = (0..CHAINS_MAX).map(|step| ChainIndex((self.next_index + step) % CHAINS_MAX));
        let index = candidates.into_iter().find(|index| !old.contains_key(index) && !kept.contains_key(index))?;
        self.next_index = (index.0 + 1) % CHAINS_MAX;
        Some(index)
    }

    fn rule_set(
        &self,
        state: &DesiredState,
        by_name: &BTreeMap<(&TenantName, &ChainName), ChainIndex>,
        warnings: &mut Vec<String>,
    ) -> Arc<RuleSet> {
        let mut rules = Vec::new();
        for ((tenant, name), rule) in state.rules() {
            // A rule without a chain in force drops what it matches; the chain's warning gives the reason.
            match self.rule(rule, by_name.get(&(tenant, &rule.chain)).copied()) {
                Ok(rule) => rules.push(rule),
                Err(reason) => warnings.push(format!("rule {tenant}/{name} is unavailable: {reason}")),
            }
        }
        let sources = SourcesOfTenants::of(state, self.ports.by_name());
        let settings = |(index, entry): (&ChainIndex, &ChainEntry)| ChainSettings {
            chain: *index,
            generation: entry.generation,
            tenant: entry.owner().tenant,
            weight: entry.owner().weight,
            fwps: entry.spec.stages.len() as u32,
            idle_timeout_ns: entry.spec.idle_timeout_ms.saturating_mul(1_000_000),
            back: entry.graph.back().unwrap_or(PortSet::EMPTY),
            redelivery: if entry.spec.idempotent { Redelivery::Idempotent } else { Redelivery::Never },
            may_send: sources.may_send(&entry.spec),
        };
        let chains: Vec<ChainSettings> = self.chains.iter().map(settings).collect();
        match RuleSet::new(rules, &chains) {
            Ok(rules) => Arc::new(rules),
            Err(error) => {
                warnings.push(format!("no rule is in force: {error}"));
                Arc::default()
            }
        }
    }

    fn rule(&self, rule: &model::Rule, chain: Option<ChainIndex>) -> Result<Rule, String> {
        let matches = self.ports.compiled(&rule.matcher)?;
        let policy = match rule.policy {
            model::Policy::Shared => Policy::Shared,
            model::Policy::PerClient => Policy::PerClient,
            model::Policy::PerFlow => Policy::PerFlow,
        };
        Ok(Rule { matches, policy, chain, priority: rule.priority })
    }
}

/// Returns what the template of a chain's stage is built with.
pub fn wishes(chain: &model::Chain, stage: usize) -> Wishes<'_> {
    let spec = &chain.stages[stage];
    Wishes {
        tenant: chain.tenant.as_str(),
        config: &spec.config,
        files: spec.files.as_ref(),
        memory_bytes_max: u64::from(chain.memory_limit_kib) * 1024,
        fields: spec.state.iter().map(|grant| grant.field.as_str()).collect(),
        keys: spec.keys.iter().map(KeyName::as_str).collect(),
        models: spec.models.iter().map(ModelName::as_str).collect(),
    }
}

/// Returns the keys of a chain's templates, by stage; none if it names a module that does not exist.
pub fn keys(state: &DesiredState, chain: &model::Chain) -> Option<Vec<TemplateKey>> {
    let key = |(at, stage): (usize, &model::Stage)| {
        let module = state.module(&chain.tenant, &stage.module)?;
        Some(TemplateKey::new(module.digest, &wishes(chain, at)))
    };
    chain.stages.iter().enumerate().map(key).collect()
}

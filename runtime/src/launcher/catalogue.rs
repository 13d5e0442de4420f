//! The catalogue: every chain that is in force, with the templates its instances are made from, and the rules as the gateway
//! wants them.

mod entry;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use pinion_control::model::{self, ChainName, DesiredState, Output, PortName, TenantName};
use pinion_gateway::headers::Vlan;
use pinion_gateway::id::{CHAINS_MAX, ChainIndex, FunctionRef, Tenure};
use pinion_gateway::rules::{ChainSettings, Match, Policy, Rule, RuleSet};
use pinion_mma::heading::{PortSet, Sides};
use pinion_mma::id::PortIndex;
use pinion_mma::wiring::Edge;
use wasmtime::Linker;

use self::entry::WayBack;
use self::entry::new_cache;
pub(super) use self::entry::{ChainEntry, Edition, Hop};
use crate::accounts::Accounts;
use crate::artifacts::{ArtifactError, Artifacts, TemplateKey, Wishes};
use crate::bundles::Bundles;
use crate::drops::ChainKey;
use crate::fwp::FwpContext;
use crate::meters::Meters;
use crate::pressure::Level;
use crate::scheduler::TENANTS_MAX;
use crate::state::StateStore;
use crate::template::{Loaded, Template};
use crate::terms::Tenants;

/// An engine and what is loaded into it.
pub struct Shelf {
    linker: Linker<FwpContext>,
    loaded: HashMap<TemplateKey, Loaded>,
}

impl Shelf {
    /// A shelf for the engine of this linker.
    #[must_use]
    pub fn new(linker: Linker<FwpContext>) -> Self {
        Self { linker, loaded: HashMap::new() }
    }

    fn load(&mut self, artifacts: &Artifacts, key: &TemplateKey) -> Result<&Loaded, ArtifactError> {
        match self.loaded.entry(*key) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(Loaded::new(artifacts.load(self.linker.engine(), key)?))),
        }
    }

    fn template(
        &mut self,
        artifacts: &Artifacts,
        bundles: &Bundles,
        key: &TemplateKey,
        wishes: Wishes<'_>,
    ) -> Result<Template, String> {
        self.load(artifacts, key).map_err(|error| error.to_string())?;
        let loaded = &self.loaded[key];
        let Wishes { config, files, memory_bytes_max, .. } = wishes;
        let files = files.map(|files| bundles.load(&files.digest)).transpose().map_err(|error| error.to_string())?;
        Template::new(&self.linker, loaded, config.into(), files, memory_bytes_max as usize)
            .map_err(|error| error.to_string())
    }
}

/// See the module.
pub struct Catalogue {
    artifacts: Arc<Artifacts>,
    bundles: Arc<Bundles>,
    books: Books,
    ports: BTreeMap<String, PortIndex>,
    shelves: Vec<Shelf>,
    chains: BTreeMap<ChainIndex, ChainEntry>,
    /// All chains that may lack an instance are among these. With thousands of chains it takes too long to ask all for each instance.
    lacking: BTreeSet<ChainIndex>,
    /// All chains whose cache may be larger than it is at the least are among these.
    grown: BTreeSet<ChainIndex>,
    next_index: u32,
    next_edition: u64,
    next_tenure: u32,
}

/// What is kept of chains and tenants, whatever becomes of instances.
pub struct Books {
    /// What their memory is charged to.
    pub accounts: Arc<Accounts>,
    /// By which numbers workers know tenants, and what they are granted.
    pub tenants: Tenants,
    /// What they have had.
    pub meters: Arc<Meters>,
    /// Their functions' state.
    pub state: Arc<StateStore>,
}

/// What following a state came to.
pub struct Followed {
    /// Chains that are no longer in force; their instances are to end.
    pub retired: Vec<ChainIndex>,
    /// Chains of which there is another version now: instances of older ones are to be replaced.
    pub changed: Vec<ChainIndex>,
    /// The rules now.
    pub rules: Arc<RuleSet>,
    /// What could not be followed.
    pub warnings: Vec<String>,
}

impl Catalogue {
    /// An empty catalogue; a shelf per worker, and the names of the gateway's ports.
    #[must_use]
    pub fn new(
        artifacts: Arc<Artifacts>,
        bundles: Arc<Bundles>,
        books: Books,
        ports: BTreeMap<String, PortIndex>,
        shelves: Vec<Shelf>,
    ) -> Self {
        Self {
            artifacts,
            bundles,
            books,
            ports,
            shelves,
            chains: BTreeMap::new(),
            lacking: BTreeSet::new(),
            grown: BTreeSet::new(),
            next_index: 0,
            next_edition: 0,
            next_tenure: 0,
        }
    }

    /// The chain of this index, if it is in force.
    #[must_use]
    pub fn chain(&self, index: ChainIndex) -> Option<&ChainEntry> {
        self.chains.get(&index)
    }

    /// The same, to be changed.
    pub fn chain_mut(&mut self, index: ChainIndex) -> Option<&mut ChainEntry> {
        let entry = self.chains.get_mut(&index)?;
        self.lacking.insert(index);
        self.grown.insert(index);
        Some(entry)
    }

    /// The chain of which an instance should be prepared next.
    pub fn next_lacking(&mut self, now: Instant, places_freed: u64) -> Option<ChainIndex> {
        let Self { lacking, chains, .. } = self;
        lacking.retain(|index| chains.get(index).is_some_and(ChainEntry::lacks_instance));
        let found = lacking.iter().filter_map(|index| Some((*index, chains.get(index)?)));
        let found = found.filter(|(_, chain)| chain.wants_instance(now, places_freed));
        found.max_by_key(|(_, chain)| (chain.wanted, Reverse(chain.ready))).map(|(index, _)| index)
    }

    /// When the next chain that lacks an instance may be tried again.
    #[must_use]
    pub fn next_resumption(&self, now: Instant) -> Option<Instant> {
        let tried_at = |index: &ChainIndex| self.chains.get(index)?.next_try().filter(|at| *at > now);
        self.lacking.iter().filter_map(tried_at).min()
    }

    /// All chains in force.
    pub fn chains(&self) -> impl Iterator<Item = (ChainIndex, &ChainEntry)> {
        self.chains.iter().map(|(index, entry)| (*index, entry))
    }

    /// The same, to be changed.
    pub fn chains_mut(&mut self) -> impl Iterator<Item = (ChainIndex, &mut ChainEntry)> {
        self.chains.iter_mut().map(|(index, entry)| (*index, entry))
    }

    /// How each chain is invoked.
    #[must_use]
    pub fn functions(&self) -> HashMap<ChainKey, FunctionRef> {
        let function = |(index, entry): (&ChainIndex, &ChainEntry)| {
            let key = (entry.spec.tenant.clone(), entry.spec.name.clone());
            (key, FunctionRef { chain: *index, tenure: entry.tenure })
        };
        self.chains.iter().map(function).collect()
    }

    /// Lets all caches come down as time passes: chains with far more instances ready than are needed, and how many are to
    /// stay.
    pub fn review(&mut self, now: Instant) -> Vec<(ChainIndex, u32)> {
        let Self { grown, chains, .. } = self;
        let mut surplus = Vec::new();
        grown.retain(|index| {
            let Some(entry) = chains.get_mut(index) else { return false };
            surplus.extend(entry.review(now).map(|keep| (*index, keep)));
            entry.ready > entry.ready_wanted || !entry.cache.is_least(now)
        });
        surplus
    }

    /// FWPs of instances that chains want to have ready, all together.
    #[must_use]
    pub fn fwps_wanted(&self) -> usize {
        self.chains.values().map(|chain| chain.spec.cache_min as usize * chain.spec.stages.len()).sum()
    }

    /// Brings the chains to the desired state. A chain that has changed, or whose modules have, keeps its index, and has another edition.
    pub fn follow(&mut self, state: &DesiredState) -> Followed {
        let (mut warnings, mut changed, mut kept) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut old = std::mem::take(&mut self.chains);
        let old_by_name: HashMap<(TenantName, ChainName), ChainIndex> =
            old.iter().map(|(index, entry)| ((entry.spec.tenant.clone(), entry.spec.name.clone()), *index)).collect();
        let mut by_name: BTreeMap<(&TenantName, &ChainName), ChainIndex> = BTreeMap::new();
        for (key @ (tenant, name), spec) in state.chains() {
            let keys = keys(state, spec);
            let found = old_by_name.get(key).and_then(|index| old.remove_entry(index));
            let entered = match found {
                Some((index, mut entry)) if entry.is_made_like(spec, keys.as_ref()) => {
                    entry.adjust(spec, self.books.accounts.open(spec));
                    Ok((index, entry))
                }
                Some((index, entry)) => match self.enter(spec, keys) {
                    Ok(new) => {
                        changed.push(index);
                        Ok((index, ChainEntry { tenure: entry.tenure, ..new }))
                    }
                    Err(reason) => {
                        old.insert(index, entry);
                        Err(reason)
                    }
                },
                None => self
                    .free_index(&old, &kept)
                    .ok_or_else(|| format!("the node has {CHAINS_MAX} chains already"))
                    .and_then(|index| Ok((index, self.enter(spec, keys)?))),
            };
            match entered {
                Ok((index, entry)) => {
                    by_name.insert((tenant, name), index);
                    kept.insert(index, entry);
                }
                Err(reason) => warnings.push(format!("chain {tenant}/{name} is not in force: {reason}")),
            }
        }
        self.chains = kept;
        self.books.accounts.close_unused();
        self.books.meters.retain(state);
        self.look_at_all();
        self.release_spare();
        let rules = self.rule_set(state, &by_name, &mut warnings);
        Followed { retired: old.into_keys().collect(), changed, rules, warnings }
    }

    /// Another version of a chain, or its first.
    fn enter(&mut self, spec: &Arc<model::Chain>, keys: Option<Vec<TemplateKey>>) -> Result<ChainEntry, String> {
        let keys = keys.ok_or("it names a module that is not there")?;
        let outputs = self.outputs(spec)?;
        let way_back = spec.reverse.as_ref().map(|reverse| self.way_back(reverse, &outputs)).transpose()?;
        let templates = self.templates(spec, &keys)?;
        let state = self.books.state.open(spec)?;
        let spec = Arc::clone(spec);
        let memory = self.books.accounts.open(&spec);
        let meters = self.books.meters.open(&spec);
        let terms = self.books.tenants.terms(&spec.tenant, &spec.scheduling, meters);
        let terms = terms.ok_or_else(|| format!("the node has chains of {TENANTS_MAX} tenants already"))?;
        let (cache, ready_wanted) = new_cache(&spec);
        let (edition, tenure) = (Edition(self.next_edition), Tenure(self.next_tenure));
        (self.next_edition, self.next_tenure) = (self.next_edition + 1, self.next_tenure.wrapping_add(1));
        Ok(ChainEntry {
            edition,
            tenure,
            spec,
            cache,
            ready_wanted,
            keys,
            templates,
            outputs,
            way_back,
            memory,
            terms,
            state,
            ready: 0,
            wanted: false,
            ready_max: u32::MAX,
            failures_in_a_row: 0,
            resume_at: None,
            no_place_since: None,
        })
    }

    fn templates(&mut self, spec: &model::Chain, keys: &[TemplateKey]) -> Result<Vec<Vec<Template>>, String> {
        let mut templates = Vec::new();
        for shelf in &mut self.shelves {
            let mut stages = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let template = shelf.template(&self.artifacts, &self.bundles, key, wishes(spec, at));
                stages.push(template.map_err(|error| format!("stage {at} ({}): {error}", spec.stages[at].module))?);
            }
            templates.push(stages);
        }
        Ok(templates)
    }

    /// Sets how many instances of each chain to keep ready at most.
    pub fn set_ready_max(&mut self, level: Level) {
        for entry in self.chains.values_mut() {
            entry.ready_max = level.ready_max(&entry.spec);
        }
        self.look_at_all();
    }

    fn look_at_all(&mut self) {
        self.lacking.extend(self.chains.keys());
        self.grown.extend(self.chains.keys());
    }

    /// Lets go of a chain's templates; they are loaded again, from their artifacts, when an instance is wanted.
    pub fn unload(&mut self, index: ChainIndex) {
        if let Some(entry) = self.chains.get_mut(&index) {
            entry.templates.clear();
        }
    }

    /// Brings a chain's templates back if they were let go; whether they had been.
    ///
    /// # Errors
    /// Why they can't be had: a sentence for the chain's tenant.
    pub fn reload(&mut self, index: ChainIndex) -> Result<bool, String> {
        let Some(entry) = self.chains.get(&index).filter(|entry| entry.templates.is_empty()) else { return Ok(false) };
        let (spec, keys) = (Arc::clone(&entry.spec), entry.keys.clone());
        let templates = self.templates(&spec, &keys)?;
        if let Some(entry) = self.chains.get_mut(&index) {
            entry.templates = templates;
        }
        Ok(true)
    }

    /// Gives back memory that is kept for no instance: modules of which no template is there.
    pub fn release_spare(&mut self) {
        let loaded = self.chains.values().filter(|entry| !entry.templates.is_empty());
        let in_use: HashSet<&TemplateKey> = loaded.flat_map(|entry| &entry.keys).collect();
        for shelf in &mut self.shelves {
            shelf.loaded.retain(|key, _| in_use.contains(key));
        }
    }

    fn outputs(&self, spec: &model::Chain) -> Result<Vec<Vec<Hop>>, String> {
        let exit = |port: &PortName| self.port(port.as_str()).map(|port| Hop::Exit(Edge::Egress(port)));
        let hop = |output: &Output| match output {
            Output::Stage(stage) => Ok(Hop::Stage(*stage)),
            Output::Egress => spec.egress.as_ref().map_or(Ok(Hop::Exit(Edge::EgressWhereItCame)), exit),
            Output::Port(port) => exit(port),
        };
        spec.stages.iter().map(|stage| stage.outputs.iter().map(hop).collect()).collect()
    }

    /// On the way back the first output of a stage leads to the one before, and the others where they lead forth: out of the node.
    fn way_back(&self, reverse: &model::Reverse, outputs: &[Vec<Hop>]) -> Result<WayBack, String> {
        let egress = Hop::Exit(Edge::Egress(self.port(reverse.egress.as_str())?));
        let before = |stage: usize| stage.checked_sub(1).map_or(egress, Hop::Stage);
        let stage = |(stage, hops): (usize, &Vec<Hop>)| {
            std::iter::once(before(stage)).chain(hops.iter().skip(1).copied()).collect()
        };
        let back = reverse.from.iter().map(|port| self.port(port.as_str())).collect::<Result<Vec<_>, _>>()?;
        let forth = self.ports.values().copied().filter(|port| !back.contains(port)).collect::<Vec<_>>();
        let set = |ports: Vec<PortIndex>| {
            PortSet::of(ports).ok_or_else(|| format!("a reverse needs a node of at most {} ports", PortSet::PORTS_MAX))
        };
        Ok(WayBack {
            outputs: outputs.iter().enumerate().map(stage).collect(),
            sides: Sides { forth: set(forth)?, back: set(back)? },
        })
    }

    /// The index that was free for longest: instances of the chain that last had it have ended long since.
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
            // What a rule matches whose chain is not in force is dropped; the chain's warning says why.
            match self.rule(rule, by_name.get(&(tenant, &rule.chain)).copied()) {
                Ok(rule) => rules.push(rule),
                Err(reason) => warnings.push(format!("rule {tenant}/{name} is not in force: {reason}")),
            }
        }
        let settings = |(index, entry): (&ChainIndex, &ChainEntry)| ChainSettings {
            chain: *index,
            tenure: entry.tenure,
            idle_timeout_ns: entry.spec.idle_timeout_ms.saturating_mul(1_000_000),
            back: entry.way_back().map_or(PortSet::EMPTY, |way_back| way_back.sides.back),
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
        let wanted = &rule.matcher;
        let ports = |range: model::PortRange| range.first()..=range.last();
        let vlan_id = |id: Option<model::VlanId>| id.map_or(0, model::VlanId::number);
        let matches = Match {
            port: wanted.port.as_ref().map(|port| self.port(port.as_str())).transpose()?,
            vlan: Vlan { id: vlan_id(wanted.vlan), inner_id: vlan_id(wanted.inner_vlan) },
            source: wanted.source.map(model::Prefix::net),
            destination: wanted.destination.map(model::Prefix::net),
            protocol: wanted.protocol.map(|protocol| protocol.0),
            icmp_type: wanted.icmp_type,
            source_ports: wanted.source_ports.map(ports),
            destination_ports: wanted.destination_ports.map(ports),
        };
        let policy = match rule.policy {
            model::Policy::Shared => Policy::Shared,
            model::Policy::PerClient => Policy::PerClient,
            model::Policy::PerFlow => Policy::PerFlow,
        };
        Ok(Rule { matches, policy, chain, priority: rule.priority })
    }

    fn port(&self, name: &str) -> Result<PortIndex, String> {
        self.ports.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.ports.keys().map(String::as_str).collect();
            format!("this node has no port {name}; it has {}", known.join(", "))
        })
    }
}

/// What the template of a chain's stage is built with.
pub fn wishes(chain: &model::Chain, stage: usize) -> Wishes<'_> {
    let spec = &chain.stages[stage];
    Wishes {
        config: &spec.config,
        files: spec.files.as_ref(),
        memory_bytes_max: u64::from(chain.memory_limit_kib) * 1024,
        fields: spec.state.iter().map(|grant| grant.field.as_str()).collect(),
    }
}

/// The templates that a chain is made of; none, if it names a module that is not there.
pub fn keys(state: &DesiredState, chain: &model::Chain) -> Option<Vec<TemplateKey>> {
    let key = |(at, stage): (usize, &model::Stage)| {
        let module = state.module(&chain.tenant, &stage.module)?;
        Some(TemplateKey::new(module.digest, &wishes(chain, at)))
    };
    chain.stages.iter().enumerate().map(key).collect()
}

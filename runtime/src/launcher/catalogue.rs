//! The catalogue: every chain that is in force, with the templates its instances are made from, and the rules as the gateway
//! wants them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{self, ChainName, DesiredState, Digest, ModuleName, Output, PortName, TenantName};
use pinion_gateway::headers::Vlan;
use pinion_gateway::id::{CHAINS_MAX, ChainIndex};
use pinion_gateway::rules::{ChainSettings, Match, Policy, Rule, RuleSet};
use pinion_mma::id::PortIndex;
use pinion_mma::wiring::{Backpressure, Edge};
use wasmtime::{Linker, Module};

use super::places::WorkerIndex;
use crate::artifacts::{ArtifactError, Artifacts};
use crate::fwp::FwpContext;
use crate::template::Template;

/// How long a chain whose instances fail is left alone: after the first failure, and at most.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// An instance that takes longer than this to prepare is slow, and its chain then rests this many times as long.
const SLOW: Duration = Duration::from_millis(20);
const SLOW_REST_FACTOR: u32 = 4;

/// Where an output of a stage leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// To another stage of the same instance.
    Stage(usize),
    /// Out of the node, along this edge.
    Exit(Edge),
}

/// A chain in force.
pub struct ChainEntry {
    /// What was asked for.
    pub spec: Arc<model::Chain>,
    /// The modules of its stages at the time.
    digests: Vec<Digest>,
    /// By worker, then by stage.
    templates: Vec<Vec<Template>>,
    /// By stage: where its outputs lead.
    outputs: Vec<Vec<Hop>>,
    /// Instances that wait for a client.
    pub ready: u32,
    /// A client waits for an instance.
    pub wanted: bool,
    failures_in_a_row: u32,
    resume_at: Option<Instant>,
}

impl ChainEntry {
    /// The templates of its stages for one worker.
    #[must_use]
    pub fn templates(&self, worker: WorkerIndex) -> &[Template] {
        &self.templates[worker.0]
    }

    /// The module of a stage.
    #[must_use]
    pub fn module(&self, stage: usize) -> &ModuleName {
        &self.spec.stages[stage].module
    }

    /// Where the outputs of a stage lead.
    #[must_use]
    pub fn outputs(&self, stage: usize) -> &[Hop] {
        &self.outputs[stage]
    }

    /// What becomes of frames for a stage that has no slot free. Only the first stage's come from the gateway, so only it
    /// has any to hold; those of the others wait in the stage before.
    #[must_use]
    pub fn backpressure(&self, stage: usize) -> Backpressure {
        match self.spec.hold_frames {
            0 => Backpressure::Drop,
            frames => Backpressure::Hold { frames_max: if stage == 0 { frames as usize } else { 0 } },
        }
    }

    /// Whether another instance should be prepared now.
    #[must_use]
    pub fn wants_instance(&self, now: Instant) -> bool {
        let rested = self.resume_at.is_none_or(|at| now >= at);
        rested && (self.ready < self.spec.cache_min || (self.wanted && self.ready == 0))
    }

    /// When it may be tried again, if it is resting.
    #[must_use]
    pub fn resume_at(&self) -> Option<Instant> {
        self.resume_at
    }

    /// Notes a failure; each in a row doubles the rest before the next try.
    pub fn failed(&mut self, now: Instant) {
        let rest = BACK_OFF_MIN.saturating_mul(1 << self.failures_in_a_row.min(16)).min(BACK_OFF_MAX);
        self.failures_in_a_row += 1;
        self.resume_at = Some(now + rest);
    }

    /// Notes that an instance was prepared, which took from `since` until `now`: the launcher is everybody's, so a chain that
    /// takes long rests in proportion.
    pub fn prepared(&mut self, since: Instant, now: Instant) {
        self.failures_in_a_row = 0;
        let taken = now.duration_since(since);
        self.resume_at = (taken > SLOW).then(|| now + taken * SLOW_REST_FACTOR);
    }

    /// Leaves the chain alone until then.
    pub fn rest_until(&mut self, then: Instant) {
        self.resume_at = Some(then);
    }
}

/// An engine and what is loaded into it.
pub struct Shelf {
    linker: Linker<FwpContext>,
    modules: HashMap<Digest, Module>,
}

impl Shelf {
    /// A shelf for the engine of this linker.
    #[must_use]
    pub fn new(linker: Linker<FwpContext>) -> Self {
        Self { linker, modules: HashMap::new() }
    }

    fn module(&mut self, artifacts: &Artifacts, digest: &Digest) -> Result<Module, ArtifactError> {
        if let Some(module) = self.modules.get(digest) {
            return Ok(module.clone());
        }
        let module = artifacts.load(self.linker.engine(), digest)?;
        self.modules.insert(*digest, module.clone());
        Ok(module)
    }
}

/// See the module.
pub struct Catalogue {
    artifacts: Arc<Artifacts>,
    ports: BTreeMap<String, PortIndex>,
    shelves: Vec<Shelf>,
    chains: BTreeMap<ChainIndex, ChainEntry>,
    next_index: u32,
}

/// What following a state came to.
pub struct Followed {
    /// Chains that are no longer in force; their instances are to end.
    pub retired: Vec<ChainIndex>,
    /// The rules now.
    pub rules: Arc<RuleSet>,
    /// What could not be followed.
    pub warnings: Vec<String>,
}

impl Catalogue {
    /// An empty catalogue; a shelf per worker, and the names of the gateway's ports.
    #[must_use]
    pub fn new(artifacts: Arc<Artifacts>, ports: BTreeMap<String, PortIndex>, shelves: Vec<Shelf>) -> Self {
        Self { artifacts, ports, shelves, chains: BTreeMap::new(), next_index: 0 }
    }

    /// The chain of this index, if it is in force.
    pub fn chain_mut(&mut self, index: ChainIndex) -> Option<&mut ChainEntry> {
        self.chains.get_mut(&index)
    }

    /// All chains in force.
    pub fn chains(&self) -> impl Iterator<Item = (ChainIndex, &ChainEntry)> {
        self.chains.iter().map(|(index, entry)| (*index, entry))
    }

    /// FWPs of instances that chains want to have ready, all together.
    #[must_use]
    pub fn fwps_wanted(&self) -> usize {
        self.chains.values().map(|chain| chain.spec.cache_min as usize * chain.spec.stages.len()).sum()
    }

    /// Brings the chains to the desired state. A chain that has changed, or whose modules have, is a new one.
    pub fn follow(&mut self, state: &DesiredState) -> Followed {
        let (mut warnings, mut kept) = (Vec::new(), BTreeMap::new());
        let mut old = std::mem::take(&mut self.chains);
        let old_by_name: HashMap<(TenantName, ChainName), ChainIndex> =
            old.iter().map(|(index, entry)| ((entry.spec.tenant.clone(), entry.spec.name.clone()), *index)).collect();
        let mut by_name: BTreeMap<(&TenantName, &ChainName), ChainIndex> = BTreeMap::new();
        for (key @ (tenant, name), spec) in state.chains() {
            let digests = digests(state, spec);
            let same = |entry: &ChainEntry| *entry.spec == **spec && Some(&entry.digests) == digests.as_ref();
            let found = old_by_name.get(key).copied().filter(|index| old.get(index).is_some_and(same));
            let entry = match found.and_then(|index| old.remove_entry(&index)) {
                Some(entry) => Ok(entry),
                None => self.enter(spec, digests, &old, &kept),
            };
            match entry {
                Ok((index, entry)) => {
                    by_name.insert((tenant, name), index);
                    kept.insert(index, entry);
                }
                Err(reason) => warnings.push(format!("chain {tenant}/{name} is not in force: {reason}")),
            }
        }
        self.chains = kept;
        let in_use: HashSet<&Digest> = self.chains.values().flat_map(|entry| &entry.digests).collect();
        for shelf in &mut self.shelves {
            shelf.modules.retain(|digest, _| in_use.contains(&digest));
        }
        let rules = self.rule_set(state, &by_name, &mut warnings);
        Followed { retired: old.into_keys().collect(), rules, warnings }
    }

    fn enter(
        &mut self,
        spec: &Arc<model::Chain>,
        digests: Option<Vec<Digest>>,
        old: &BTreeMap<ChainIndex, ChainEntry>,
        kept: &BTreeMap<ChainIndex, ChainEntry>,
    ) -> Result<(ChainIndex, ChainEntry), String> {
        let digests = digests.ok_or("it names a module that is not there")?;
        let outputs = self.outputs(spec)?;
        let mut templates = Vec::new();
        for shelf in &mut self.shelves {
            let mut stages = Vec::new();
            for (stage, digest) in spec.stages.iter().zip(&digests) {
                let module = shelf.module(&self.artifacts, digest).map_err(|error| error.to_string())?;
                let memory_bytes_max = spec.memory_limit_kib as usize * 1024;
                let template = Template::new(&shelf.linker, &module, stage.config.as_slice().into(), memory_bytes_max)
                    .map_err(|error| format!("{error:#}"))?;
                stages.push(template);
            }
            templates.push(stages);
        }
        let index = self.free_index(old, kept).ok_or_else(|| format!("the node has {CHAINS_MAX} chains already"))?;
        let spec = Arc::clone(spec);
        let entry = ChainEntry {
            spec,
            digests,
            templates,
            outputs,
            ready: 0,
            wanted: false,
            failures_in_a_row: 0,
            resume_at: None,
        };
        Ok((index, entry))
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
            idle_timeout_ns: entry.spec.idle_timeout_ms.saturating_mul(1_000_000),
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

fn digests(state: &DesiredState, chain: &model::Chain) -> Option<Vec<Digest>> {
    let digest = |stage: &model::Stage| Some(state.module(&chain.tenant, &stage.module)?.digest);
    chain.stages.iter().map(digest).collect()
}

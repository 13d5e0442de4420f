//! A chain in force: what its instances are made of, how many are to be ready, and until when it rests after failures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{self, ModuleName};
use pinion_gateway::id::ChainGeneration;
use pinion_mma::id::WorkerIndex;
use pinion_mma::wiring::Backpressure;

use crate::fwp::instance_states::TemplateLife;
use crate::fwp::template::Template;
use crate::launcher::active_chains::graph::Graph;
use crate::launcher::cache::CacheSize;
use crate::launcher::granted_objects::StageGrants;
use crate::launcher::loaded_templates::{ChainTemplates, LoadedTemplate};
use crate::launcher::preparation_queue::{Need, Owner};
use crate::scheduler::CpuShare;
use crate::state::Grants;
use crate::templates::artifacts::TemplateKey;
use crate::tenants::accounts::MemoryAccounts;
use crate::tenants::scheduling_params::SchedulingParams;

/// How long a chain rests after a failure: after the first one, and at most.
pub(super) const BACK_OFF_MIN: Duration = Duration::from_millis(100);
pub(super) const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// An instance that takes longer than `SLOW` to prepare is slow. Its chain then lets others go first for `SLOW_REST_FACTOR` times as long as
/// that took.
pub(super) const SLOW: Duration = Duration::from_millis(20);
pub(super) const SLOW_REST_FACTOR: u32 = 4;
/// A cache may exceed its wanted size by one part in so many.
const SURPLUS_SHARE: u32 = 4;

/// The number of a chain's version, unique among all chains. A later version has a greater number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edition(pub(super) u64);

/// A chain in force.
pub struct ChainEntry {
    /// The chain as it was applied.
    pub spec: Arc<model::Chain>,
    /// The edition of its instances. Instances of older editions may still serve.
    pub edition: Edition,
    /// The generation of its index; it does not change with the edition.
    pub(super) generation: ChainGeneration,
    /// The keys of its stages' templates, with the modules as they were when the chain was entered.
    pub(super) keys: Vec<TemplateKey>,
    /// By worker, then by stage; empty while they are unloaded.
    pub(super) templates: ChainTemplates,
    /// What keeps them loaded.
    pub(super) loaded: Vec<Arc<LoadedTemplate>>,
    /// Where its entrances and the outputs of its stages lead.
    pub(in crate::launcher) graph: Graph,
    /// The accounts to which the memory of its FWPs is charged.
    pub memory: MemoryAccounts,
    /// The scheduling parameters of its FWPs.
    pub terms: SchedulingParams,
    /// By stage: what state its FWPs may use.
    pub(super) state: Vec<Grants>,
    /// By stage: what else its FWPs may use.
    pub(super) granted: Vec<StageGrants>,
    pub(super) cache: CacheSize,
    /// How many instances are to be ready, by the cache's size.
    pub(super) ready_wanted: u32,
    /// Instances that wait for a client.
    pub ready: u32,
    /// Whether a client waits for an instance.
    pub wanted: bool,
    /// The most instances to keep ready while memory is short.
    pub(super) ready_max: u32,
    pub(super) failures_in_a_row: u32,
    pub(super) resume_at: Option<Instant>,
    /// Until when it lets others go first, as its last instance was slow; but for a client that waits.
    pub(super) slow_until: Option<Instant>,
}

impl ChainEntry {
    /// Returns the templates of its stages for one worker.
    #[must_use]
    pub fn templates(&self, worker: WorkerIndex) -> &[Arc<Template>] {
        &self.templates[worker.0]
    }

    /// Returns the key of a stage's template.
    #[must_use]
    pub fn key(&self, stage: usize) -> &TemplateKey {
        &self.keys[stage]
    }

    /// Returns the module of a stage.
    #[must_use]
    pub fn module(&self, stage: usize) -> &ModuleName {
        &self.spec.stages[stage].module
    }

    /// Returns whether its templates are loaded.
    #[must_use]
    pub fn template_life(&self) -> TemplateLife {
        if self.templates.is_empty() { TemplateLife::Object } else { TemplateLife::Template }
    }

    /// Returns what state the FWPs of a stage may use.
    #[must_use]
    pub fn state(&self, stage: usize) -> &Grants {
        &self.state[stage]
    }

    /// Returns what else the FWPs of a stage may use.
    #[must_use]
    pub fn granted(&self, stage: usize) -> &StageGrants {
        &self.granted[stage]
    }

    /// Returns what happens to frames for a stage without a free slot. Only stages by which frames enter get some from the gateway, so only
    /// these hold any; frames for the others wait in the stage before.
    #[must_use]
    pub fn backpressure(&self, stage: usize) -> Backpressure {
        match self.spec.hold_frames {
            0 => Backpressure::Drop,
            frames => {
                Backpressure::Hold { frames_max: if self.spec.is_entered_by(stage) { frames as usize } else { 0 } }
            }
        }
    }

    /// Returns whether and when another instance should be prepared.
    #[must_use]
    pub(in crate::launcher) fn need(&self, now: Instant) -> Need {
        match self.next_try() {
            _ if !self.lacks_instance() => Need::None,
            Some(at) if now < at => Need::At(at),
            _ => Need::Now { wanted: self.wanted, ready: self.ready },
        }
    }

    /// Returns what its preparations depend on besides its need.
    pub(in crate::launcher) fn owner(&self) -> Owner {
        let CpuShare { tenant, weight, .. } = self.terms.current_share();
        Owner { tenant, weight, stages: self.spec.stages.len() as u32 }
    }

    /// Returns when a missing instance may be prepared, if not at once.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let slow_until = self.slow_until.filter(|_| !self.wanted || self.ready > 0);
        self.resume_at.max(slow_until).max(self.cache.refilled_at(self.ready, self.instances_wanted()))
    }

    fn instances_wanted(&self) -> u32 {
        self.ready_wanted.min(self.ready_max)
    }

    /// Returns whether there are fewer ready instances than there should be, whether or not one can be prepared now.
    pub(super) fn lacks_instance(&self) -> bool {
        self.ready < self.instances_wanted() || (self.wanted && self.ready == 0)
    }

    /// Returns whether the chain may take effect: an instance is ready, or none is wanted, or the chain rests.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.ready > 0 || self.instances_wanted() == 0 || self.resume_at.is_some() || self.slow_until.is_some()
    }

    /// Returns whether instances of this chain equal instances of `spec` made of the templates `keys`, with these grants. All other settings of a chain can
    /// change while its instances serve.
    pub(super) fn is_made_like(
        &self,
        spec: &model::Chain,
        keys: Option<&Vec<TemplateKey>>,
        granted: Option<&Vec<StageGrants>>,
    ) -> bool {
        let model::Chain {
            memory_total_kib,
            idle_timeout_ms,
            drain_timeout_ms,
            cache_min,
            cache_max,
            idempotent,
            routed,
            ..
        } = *self.spec;
        let of_ours = model::Chain {
            memory_total_kib,
            idle_timeout_ms,
            drain_timeout_ms,
            cache_min,
            cache_max,
            idempotent,
            routed,
            outbound: self.spec.outbound.clone(),
            ..spec.clone()
        };
        of_ours == *self.spec && Some(&self.keys) == keys && Some(&self.granted) == granted
    }

    /// Applies the settings that can change while instances serve.
    pub(super) fn adjust(&mut self, spec: &Arc<model::Chain>, memory: MemoryAccounts) {
        if (spec.cache_min, spec.cache_max) != (self.spec.cache_min, self.spec.cache_max) {
            (self.cache, self.ready_wanted) = new_cache(spec);
        }
        (self.spec, self.memory) = (Arc::clone(spec), memory);
    }

    /// Notes that an instance is no longer ready.
    pub fn left_cache(&mut self, edition: Edition) {
        if edition == self.edition {
            self.ready = self.ready.saturating_sub(1);
        }
    }

    /// Notes that a client got an instance.
    pub fn client_came(&mut self, now: Instant) {
        self.cache.client_came(now);
        self.ready_wanted = self.cache.size(now);
    }

    /// Lets the cache shrink as time passes. Returns how many instances are to stay ready, if far more are.
    pub fn review(&mut self, now: Instant) -> Option<u32> {
        self.ready_wanted = self.cache.size(now);
        let bearable = self.ready_wanted + self.ready_wanted / SURPLUS_SHARE + 1;
        (self.ready > bearable).then_some(self.ready_wanted)
    }

    /// Notes a failure. Each further one in a row doubles the rest before the next attempt.
    pub fn failed(&mut self, now: Instant) {
        let rest = BACK_OFF_MIN.saturating_mul(1 << self.failures_in_a_row.min(16)).min(BACK_OFF_MAX);
        self.failures_in_a_row += 1;
        self.rest_until(now + rest);
    }

    /// Notes that an instance was prepared, which has taken so much of the launcher's time. All chains share the launcher, so a chain with
    /// instances that take long rests in proportion, unless a client waits and none is ready: then its tenant is charged for it, and others have
    /// their turns. On a busy machine any preparation may seem to take long.
    pub fn prepared(&mut self, taken: Duration, now: Instant) {
        (self.failures_in_a_row, self.resume_at) = (0, None);
        self.slow_until = (taken > SLOW).then(|| now + taken * SLOW_REST_FACTOR);
    }

    /// Lets the chain rest until `then`, or until a later time that was set before.
    pub fn rest_until(&mut self, then: Instant) {
        self.resume_at = self.resume_at.max(Some(then));
    }
}

pub(super) fn new_cache(spec: &model::Chain) -> (CacheSize, u32) {
    (CacheSize::new(spec.cache_min, spec.cache_max, Instant::now()), spec.cache_min)
}

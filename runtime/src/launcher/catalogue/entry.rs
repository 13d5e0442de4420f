//! A chain in force: what its instances are made of, how many are to be ready, and when it rests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{self, ModuleName};
use pinion_gateway::id::Tenure;
use pinion_mma::heading::Sides;
use pinion_mma::id::WorkerIndex;
use pinion_mma::wiring::{Backpressure, Edge};

use crate::accounts::MemoryAccounts;
use crate::artifacts::TemplateKey;
use crate::launcher::cache::CacheSize;
use crate::lifecycle::TemplateLife;
use crate::state::Grants;
use crate::template::Template;
use crate::terms::Terms;

/// How long a chain whose instances fail is left alone: after the first failure, and at most.
pub(super) const BACK_OFF_MIN: Duration = Duration::from_millis(100);
pub(super) const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// An instance that takes longer than this to prepare is slow, and its chain then rests this many times as long.
pub(super) const SLOW: Duration = Duration::from_millis(20);
pub(super) const SLOW_REST_FACTOR: u32 = 4;
/// A cache may be larger than it needs to be by this part of what it needs.
const SURPLUS_SHARE: u32 = 4;

/// Where an output of a stage leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// To another stage of the same instance.
    Stage(usize),
    /// Out of the node, along this edge.
    Exit(Edge),
}

/// The way back through a chain.
pub struct WayBack {
    /// By stage: where its outputs lead packets that go back.
    pub outputs: Vec<Vec<Hop>>,
    /// Which ports' packets do.
    pub sides: Sides,
}

/// Which of the versions of all chains something is made of; a later one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edition(pub(super) u64);

/// A chain in force.
pub struct ChainEntry {
    /// What was asked for.
    pub spec: Arc<model::Chain>,
    /// Its instances are of this one, but for those of older versions that still serve.
    pub edition: Edition,
    /// Its time at its index, whatever its version.
    pub(super) tenure: Tenure,
    /// Of the templates of its stages: with the modules as they were at the time.
    pub(super) keys: Vec<TemplateKey>,
    /// By worker, then by stage; empty while they are reclaimed.
    pub(super) templates: Vec<Vec<Template>>,
    /// By stage: where its outputs lead.
    pub(super) outputs: Vec<Vec<Hop>>,
    pub(super) way_back: Option<WayBack>,
    /// What the memory of its FWPs is charged to.
    pub memory: MemoryAccounts,
    /// How its FWPs have their core.
    pub terms: Terms,
    /// By stage: what state its FWPs may use.
    pub(super) state: Vec<Grants>,
    pub(super) cache: CacheSize,
    /// How many instances are to be ready, by the cache.
    pub(super) ready_wanted: u32,
    /// Instances that wait for a client.
    pub ready: u32,
    /// A client waits for an instance.
    pub wanted: bool,
    /// The most instances to keep ready as long as memory is short.
    pub(super) ready_max: u32,
    pub(super) failures_in_a_row: u32,
    pub(super) resume_at: Option<Instant>,
    /// There was no place for it when so many had become free.
    pub(super) no_place_since: Option<u64>,
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

    /// Whether its templates are there.
    #[must_use]
    pub fn template_life(&self) -> TemplateLife {
        if self.templates.is_empty() { TemplateLife::Object } else { TemplateLife::Template }
    }

    /// Where the outputs of a stage lead.
    #[must_use]
    pub fn outputs(&self, stage: usize) -> &[Hop] {
        &self.outputs[stage]
    }

    /// How packets go through it backwards, if any do.
    #[must_use]
    pub fn way_back(&self) -> Option<&WayBack> {
        self.way_back.as_ref()
    }

    /// What state the FWPs of a stage may use.
    #[must_use]
    pub fn state(&self, stage: usize) -> &Grants {
        &self.state[stage]
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
    pub fn wants_instance(&self, now: Instant, places_freed: u64) -> bool {
        let rested = self.next_try().is_none_or(|at| now >= at) && self.no_place_since != Some(places_freed);
        rested && self.lacks_instance()
    }

    /// When an instance that it lacks may be prepared, if not at once.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.resume_at.max(self.cache.refilled_at(self.ready, self.instances_wanted()))
    }

    fn instances_wanted(&self) -> u32 {
        self.ready_wanted.min(self.ready_max)
    }

    /// Whether there are fewer instances than there should be, whether or not one can be had.
    pub(super) fn lacks_instance(&self) -> bool {
        self.ready < self.instances_wanted() || (self.wanted && self.ready == 0)
    }

    /// Whether new clients can be its: an instance is ready, or there is none to be had for now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.ready > 0 || self.instances_wanted() == 0 || self.resume_at.is_some() || self.no_place_since.is_some()
    }

    /// Whether instances of this are as those of that chain would be, made of these templates: what else a chain says can change while
    /// they go on.
    pub(super) fn is_made_like(&self, spec: &model::Chain, keys: Option<&Vec<TemplateKey>>) -> bool {
        let model::Chain { memory_total_kib, idle_timeout_ms, drain_timeout_ms, cache_min, cache_max, .. } = *self.spec;
        let of_ours =
            model::Chain { memory_total_kib, idle_timeout_ms, drain_timeout_ms, cache_min, cache_max, ..spec.clone() };
        of_ours == *self.spec && Some(&self.keys) == keys
    }

    /// Follows what can change while instances go on.
    pub(super) fn adjust(&mut self, spec: &Arc<model::Chain>, memory: MemoryAccounts) {
        if (spec.cache_min, spec.cache_max) != (self.spec.cache_min, self.spec.cache_max) {
            (self.cache, self.ready_wanted) = new_cache(spec);
        }
        (self.spec, self.memory) = (Arc::clone(spec), memory);
    }

    /// Notes that an instance that was ready is not any more.
    pub fn left_cache(&mut self, edition: Edition) {
        if edition == self.edition {
            self.ready = self.ready.saturating_sub(1);
        }
    }

    /// Notes that a client has been given an instance.
    pub fn client_came(&mut self, now: Instant) {
        self.cache.client_came(now);
        self.ready_wanted = self.cache.size(now);
    }

    /// Lets the cache come down as time passes; how many instances are to stay ready, if there are far more.
    pub fn review(&mut self, now: Instant) -> Option<u32> {
        self.ready_wanted = self.cache.size(now);
        let bearable = self.ready_wanted + self.ready_wanted / SURPLUS_SHARE + 1;
        (self.ready > bearable).then_some(self.ready_wanted)
    }

    /// Notes a failure; each in a row doubles the rest before the next try.
    pub fn failed(&mut self, now: Instant) {
        let rest = BACK_OFF_MIN.saturating_mul(1 << self.failures_in_a_row.min(16)).min(BACK_OFF_MAX);
        self.failures_in_a_row += 1;
        self.rest_until(now + rest);
    }

    /// Notes that an instance was prepared, which took from `since` until `now`: the launcher is everybody's, so a chain that
    /// takes long rests in proportion.
    pub fn prepared(&mut self, since: Instant, now: Instant) {
        self.failures_in_a_row = 0;
        let taken = now.duration_since(since);
        self.resume_at = (taken > SLOW).then(|| now + taken * SLOW_REST_FACTOR);
    }

    /// Leaves the chain alone until places are free that were not when so many had become free.
    pub fn found_no_place(&mut self, places_freed: u64) {
        self.no_place_since = Some(places_freed);
    }

    /// Leaves the chain alone until then, or for longer if that was said before.
    pub fn rest_until(&mut self, then: Instant) {
        self.resume_at = self.resume_at.max(Some(then));
    }
}

pub(super) fn new_cache(spec: &model::Chain) -> (CacheSize, u32) {
    (CacheSize::new(spec.cache_min, spec.cache_max, Instant::now()), spec.cache_min)
}

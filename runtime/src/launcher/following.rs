//! How the launcher applies desired states, one after the other. Each is sent to the gateway once the chains that it changes are up, or it is
//! hurried, and is in effect when the gateway uses its rules.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use pinion_control::model::DesiredState;
use pinion_gateway::id::ChainIndex;
use pinion_gateway::rules::RuleSet;

use super::Launcher;
use super::active_chains::{ChainEntry, Edition, Followed};
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::TemplateLife;
use crate::ids::ChainKey;
use crate::reports::status_table::Callable;

/// A state that takes effect once the gateway has its rules.
pub(super) struct Following {
    version: u64,
    /// The references by which its chains are invoked.
    functions: HashMap<ChainKey, Callable>,
    /// What of the state is not in effect.
    warnings: Vec<String>,
    done: Sender<()>,
}

/// What a state changes when it takes effect.
pub(super) struct Change {
    following: Following,
    changed: Vec<ChainIndex>,
    retired: Vec<ChainIndex>,
    rules: Arc<RuleSet>,
}

/// Instances of editions of a chain older than `edition` may serve until `until`.
pub(super) struct Draining {
    chain: ChainIndex,
    edition: Edition,
    pub(super) until: Instant,
}

impl Launcher {
    /// Applies states one after the other. Each takes effect once the chains that it changes are up.
    pub(super) fn take_effect(&mut self) {
        loop {
            let can_go_on = |chain: &ChainEntry| self.instances.can_go_on(chain.owner().tenant, chain.owner().stages);
            let is_up = |chain: &ChainEntry| chain.is_up() || !can_go_on(chain);
            let is_up = |chain: &ChainIndex| self.catalogue.chain(*chain).is_none_or(is_up);
            if let Some(change) = self.change.take_if(|change| change.changed.iter().all(is_up)) {
                self.make(change);
            }
            if self.change.is_some() {
                return;
            }
            let Some((state, done)) = self.ordered.pop_front() else { return };
            let following =
                Following { version: state.version(), functions: HashMap::new(), warnings: Vec::new(), done };
            self.change = Some(self.follow(&state, following));
        }
    }

    /// Lets the change under way take effect. New clients of its chains that are not up wait for an instance.
    pub(super) fn hurry(&mut self) {
        if let Some(change) = self.change.take() {
            self.make(change);
        }
    }

    fn make(&mut self, Change { following, changed, retired, rules }: Change) {
        let now = Instant::now();
        for chain in changed {
            let Some(entry) = self.catalogue.chain(chain) else { continue };
            let until = now + Duration::from_millis(entry.spec.drain_timeout_ms);
            self.instances.supersede(chain, entry.edition);
            self.draining.push(Draining { chain, edition: entry.edition, until });
        }
        self.instances.set_rules(rules);
        self.following.push_back(following);
        for chain in retired {
            self.instances.end_chain(chain, &EndReason::Withdrawn);
        }
    }

    /// Replaces instances of older editions after their chain's drain timeout, and ends those that have been replaced.
    pub(super) fn drain(&mut self) {
        let now = Instant::now();
        for Draining { chain, edition, .. } in self.draining.extract_if(.., |draining| draining.until <= now) {
            self.instances.replace_older(chain, edition);
        }
        self.instances.end_lingering(now);
    }

    fn follow(&mut self, state: &DesiredState, following: Following) -> Change {
        let mut followed = self.catalogue.follow(state);
        self.instances.regrant(&followed.regranted);
        self.abandon_stale(Instant::now());
        let now = Instant::now();
        self.bans.retain(|(tenant, module)| state.module(tenant, module).is_some(), now);
        self.chain_bans.retain(|(tenant, chain)| state.chain(tenant, chain).is_some(), now);
        self.keep_bans(now);
        let (wanted, room) = (self.catalogue.fwps_wanted(), self.instances.fwps_max());
        if wanted > room {
            followed.warnings.push(format!(
                "the chains' cache_min asks for {wanted} FWPs to be ready, but limits.fwps_max is {room}: some will not be"
            ));
        }
        for warning in &followed.warnings {
            tracing::warn!("{warning}");
        }
        let mut status_table = self.status_table.entries();
        status_table.follow(state.chains().values().map(|spec| &**spec));
        for (index, chain) in self.catalogue.chains() {
            status_table.set_index(index, &chain.spec);
        }
        let mut in_force: HashMap<_, _> =
            self.catalogue.chains().map(|(_, chain)| ((&chain.spec.tenant, &chain.spec.name), chain)).collect();
        for (key, spec) in state.chains() {
            let life = in_force.remove(&(&key.0, &key.1)).map_or(TemplateLife::Object, ChainEntry::template_life);
            status_table.set_template(spec, life);
        }
        // What is mended is so only when the gateway has the rules.
        let known: HashSet<&String> = followed.warnings.iter().collect();
        status_table.warnings.retain(|warning| !known.contains(warning));
        status_table.warnings.extend(followed.warnings.iter().cloned());
        drop(status_table);
        self.catalogue.set_ready_max(self.level);
        self.divide_fwps();
        let Followed { changed, retired, rules, warnings, .. } = followed;
        let following = Following { functions: self.catalogue.functions(), warnings, ..following };
        Change { following, changed, retired, rules }
    }

    /// Divides the FWPs that are guaranteed among the tenants with chains.
    fn divide_fwps(&mut self) {
        let weights = self.catalogue.weights();
        self.instances.divide(&weights);
        let share = |(_, chain): (ChainIndex, &ChainEntry)| {
            (chain.spec.tenant.clone(), u64::from(self.instances.guaranteed(chain.owner().tenant)))
        };
        let guaranteed = self.catalogue.chains().map(share).collect();
        let mut status_table = self.status_table.entries();
        status_table.fwp_shares.divide(guaranteed);
        status_table.weights = weights.into();
    }

    /// Marks the oldest state on its way to the gateway as in effect: the gateway now uses its rules.
    pub(super) fn followed(&mut self) {
        let Some(Following { version, functions, warnings, done }) = self.following.pop_front() else { return };
        // Those of later states are told already.
        let later = self.following.iter().chain(self.change.iter().map(|change| &change.following));
        let all = later.flat_map(|following| &following.warnings).chain(&warnings);
        let mut known = HashSet::new();
        let told: Vec<String> = all.filter(|warning| known.insert(*warning)).cloned().collect();
        let mut status_table = self.status_table.entries();
        (status_table.followed_version, status_table.functions, status_table.warnings) = (version, functions, told);
        drop(status_table);
        // The caller may have stopped waiting. That is no error.
        let _ = done.send(());
    }
}

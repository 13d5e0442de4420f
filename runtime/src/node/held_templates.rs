//! Templates, files, keys and models that changes under way hold, so that nothing removes or unloads them before the changes are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinion_control::model::{Chain, ChainKey, DesiredState, Digest};
use pinion_control::node::Hold;

use crate::launcher::{self, GrantNeeds, LoadedTemplate};
use crate::templates::artifacts::TemplateKey;

/// What chains need of what the node derives from uploads, or loads of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub(super) keys: BTreeSet<TemplateKey>,
    /// Archives of stages' files.
    pub(super) files: BTreeSet<Digest>,
    /// Keys and models.
    pub(super) granted: GrantNeeds,
}

impl Needs {
    /// Returns what those of these chains need that the state has.
    pub(super) fn of(state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Self {
        Self::of_chains(state, chains.iter().filter_map(|key| state.chains().get(key)))
    }

    pub(super) fn of_chains<'s>(state: &DesiredState, chains: impl Iterator<Item = &'s Arc<Chain>>) -> Self {
        let mut needs = Self::default();
        for chain in chains {
            needs.keys.extend(launcher::keys(state, chain).into_iter().flatten());
            needs.files.extend(chain.stages.iter().filter_map(|stage| Some(stage.files.as_ref()?.digest)));
            needs.granted.add_chain(state, chain);
        }
        needs
    }
}

/// What is held; see the module.
#[derive(Default)]
pub(super) struct HeldTemplates(Mutex<Holds>);

#[derive(Default)]
struct Holds {
    begun: u64,
    needs: BTreeMap<u64, Held>,
    /// Something was built for a change that does not hold it any more.
    has_left: bool,
}

/// What one change holds.
struct Held {
    needs: Needs,
    loaded: Vec<Arc<LoadedTemplate>>,
    /// Some of it was built meanwhile, or loaded without being kept by `loaded`.
    has_built: bool,
}

impl HeldTemplates {
    /// Holds what is needed until the returned value is dropped, and with it what of that is loaded.
    pub(super) fn hold(self: &Arc<Self>, needs: Needs, loaded: Vec<Arc<LoadedTemplate>>) -> Hold {
        let mut holds = self.holds();
        let number = holds.begun;
        holds.begun += 1;
        holds.needs.insert(number, Held { needs, loaded, has_built: false });
        drop(holds);
        let held = Arc::clone(self);
        Hold::new(move || {
            let mut holds = held.holds();
            let ended = holds.needs.remove(&number);
            holds.has_left |= ended.as_ref().is_some_and(|ended| ended.has_built);
            drop(holds);
            // Without the lock: it may be the last that has a template loaded.
            drop(ended);
        })
    }

    /// Keeps a template loaded for all that need it.
    pub(super) fn keep_loaded(&self, key: &TemplateKey, template: &Arc<LoadedTemplate>) {
        for Held { needs, loaded, .. } in self.holds().needs.values_mut() {
            let has = || loaded.iter().any(|other| Arc::ptr_eq(other, template));
            if needs.keys.contains(key) && !has() {
                loaded.push(Arc::clone(template));
            }
        }
    }

    /// Adds all that is held.
    pub(super) fn add_to(&self, needs: &mut Needs) {
        for held in self.holds().needs.values() {
            needs.keys.extend(&held.needs.keys);
            needs.files.extend(&held.needs.files);
            needs.granted.add(&held.needs.granted);
        }
    }

    /// Notes that a template is built, for all that need it.
    pub(super) fn note_built(&self, key: &TemplateKey) {
        let mut holds = self.holds();
        holds.needs.values_mut().filter(|held| held.needs.keys.contains(key)).for_each(|held| held.has_built = true);
    }

    /// Notes that keys and models are loaded, for all that need some of them.
    pub(super) fn note_loaded(&self, granted: &GrantNeeds) {
        let mut holds = self.holds();
        let concerned = holds.needs.values_mut().filter(|held| held.needs.granted.shares_some(granted));
        concerned.for_each(|held| held.has_built = true);
    }

    /// Returns whether something was built or loaded, since the last call, for a change that does not hold it any more.
    pub(super) fn take_left(&self) -> bool {
        std::mem::take(&mut self.holds().has_left)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_changes_hold_is_kept_until_the_last_lets_go() {
        let held = Arc::new(HeldTemplates::default());
        let files = |texts: &[&str]| texts.iter().map(|text| Digest::of(text.as_bytes())).collect::<BTreeSet<_>>();
        let kept = || {
            let mut needs = Needs::default();
            held.add_to(&mut needs);
            needs.files
        };
        let first = held.hold(Needs { files: files(&["a", "b"]), ..Needs::default() }, Vec::new());
        let second = held.hold(Needs { files: files(&["b", "c"]), ..Needs::default() }, Vec::new());
        assert_eq!(kept(), files(&["a", "b", "c"]));
        drop(first);
        assert_eq!(kept(), files(&["b", "c"]));
        drop(second);
        assert_eq!(kept(), files(&[]));
    }
}

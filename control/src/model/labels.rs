//! Labels: which objects came from manifests of which label, and what an apply of such manifests takes over or prunes.
//!
//! A manifest may have a label. Objects that are applied from it get the label, and the next apply can delete those that have the
//! label and that the manifest has no more. An object has one label at most, so it belongs to manifests of one label only:
//!
//! ```text
//!   an object has    the manifest's label is    then it has
//!   none             web                        web
//!   web              web                        web
//!   db               web                        db, and the apply is refused; with `take_over` web
//!   db               none                       db; with `take_over` none
//! ```
//!
//! Labels lie beside the objects, so another label is no other version of a chain. Terms of tenants have none: they are the
//! operator's, and bound all objects of their tenant, whichever label these have.

use std::collections::BTreeSet;
use std::ops::Deref;

use serde::Serialize;

use super::{Change, DesiredState, Invalid, Label, ObjectRef, TenantName};

/// What an apply says of labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labelling {
    /// The label of its manifests. None: objects keep the labels that they have.
    pub label: Option<Label>,
    /// Objects with another label get this one, or none. Otherwise an apply with a label is refused if it names such objects.
    pub take_over: bool,
    /// The tenants whose objects are deleted if they have the label and the apply does not name them.
    pub prune: BTreeSet<TenantName>,
}

/// An object with its label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Labelled<T> {
    /// The object.
    #[serde(flatten)]
    pub object: T,
    /// The label of the manifests that it was applied from, if these have one.
    pub label: Option<Label>,
}

impl<T> Labelled<T> {
    /// Returns what this makes of the object, with the same label.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Labelled<U> {
        Labelled { object: make(self.object), label: self.label }
    }
}

impl<T> Deref for Labelled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl DesiredState {
    /// Returns the change with the labels of the objects that it creates or updates, and with those that are to be pruned.
    ///
    /// # Errors
    /// It names an object of another label without taking it over, or is to prune without a label.
    pub fn labelled(&self, mut change: Change, labelling: &Labelling) -> Result<Change, Invalid> {
        let set: Vec<ObjectRef> = change.sets().collect();
        let named: BTreeSet<ObjectRef> = set.iter().chain(&change.delete).cloned().collect();
        for object in set.into_iter().filter(has_label) {
            if let Some(label) = self.next_label(&object, labelling)? {
                change.labels.insert(object, label);
            }
        }
        if labelling.prune.is_empty() {
            return Ok(change);
        }
        let label = labelling.label.as_ref().ok_or(Invalid::PruneWithoutLabel)?;
        let of_label =
            self.labels().iter().filter(|(object, of)| *of == label && labelling.prune.contains(object.tenant()));
        change.prune.extend(of_label.map(|(object, _)| object).filter(|object| !named.contains(object)).cloned());
        Ok(change)
    }

    /// Returns the label that an object gets.
    fn next_label(&self, object: &ObjectRef, labelling: &Labelling) -> Result<Option<Label>, Invalid> {
        let Labelling { label, take_over, .. } = labelling;
        match (self.labels().get(object), label) {
            (Some(present), Some(label)) if present != label && !take_over => {
                Err(Invalid::OtherLabel { object: object.clone(), present: present.clone(), label: label.clone() })
            }
            (Some(present), None) if !take_over => Ok(Some(present.clone())),
            (_, label) => Ok(label.clone()),
        }
    }
}

/// Returns whether objects of this kind have labels.
fn has_label(object: &ObjectRef) -> bool {
    !matches!(object, ObjectRef::Tenant { .. })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::{Applied, Chain, Digest, Effect, Module, Stage, Tenant};

    fn module(tenant: &str, name: &str) -> Module {
        let digest = Digest::of(name.as_bytes());
        Module { tenant: tenant.parse().unwrap(), name: name.parse().unwrap(), digest, size_bytes: 1 }
    }

    fn modules(tenant: &str, names: &[&str]) -> Change {
        Change { modules: names.iter().map(|name| module(tenant, name)).collect(), ..Change::default() }
    }

    fn label(name: &str) -> Labelling {
        Labelling { label: Some(name.parse().unwrap()), ..Labelling::default() }
    }

    fn pruning(name: &str, tenants: &[&str]) -> Labelling {
        Labelling { prune: tenants.iter().map(|tenant| tenant.parse().unwrap()).collect(), ..label(name) }
    }

    fn taking_over(labelling: Labelling) -> Labelling {
        Labelling { take_over: true, ..labelling }
    }

    fn try_to_apply(state: &DesiredState, change: Change, labelling: &Labelling) -> Result<Applied, String> {
        let applied = state.labelled(change, labelling).and_then(|change| state.apply(&change));
        applied.map_err(|invalid| invalid.to_string())
    }

    #[track_caller]
    fn applied(state: &DesiredState, change: Change, labelling: &Labelling) -> DesiredState {
        try_to_apply(state, change, labelling).unwrap().state
    }

    /// Returns what has labels, as `t/m web`.
    fn labels(state: &DesiredState) -> Vec<String> {
        let text = |(object, label): (&ObjectRef, &Label)| format!("{}/{} {label}", object.tenant(), object.name());
        state.labels().iter().map(text).collect()
    }

    fn effects(applied: &Applied) -> Vec<String> {
        applied.outcomes.iter().map(|outcome| format!("{} {}", outcome.object, outcome.effect)).collect()
    }

    #[test]
    fn an_object_gets_a_manifests_label_and_keeps_it_in_manifests_without_one() {
        let state = applied(&DesiredState::default(), modules("t", &["m"]), &Labelling::default());
        assert_eq!(labels(&state), [""; 0]);
        let state = applied(&state, modules("t", &["m"]), &label("web"));
        assert_eq!(labels(&state), ["t/m web"]);
        let again = try_to_apply(&state, modules("t", &["m"]), &Labelling::default()).unwrap();
        assert_eq!((effects(&again), again.changed()), (vec!["module t/m unchanged".to_owned()], false));
        let deleted = Change { delete: vec![ObjectRef::from(&module("t", "m"))], ..Change::default() };
        assert_eq!(labels(&applied(&state, deleted, &Labelling::default())), [""; 0]);
    }

    #[test]
    fn an_object_of_another_label_is_refused_unless_it_is_taken_over() {
        let state = applied(&DesiredState::default(), modules("t", &["m"]), &label("web"));
        assert_eq!(
            try_to_apply(&state, modules("t", &["m", "n"]), &label("db")).unwrap_err(),
            "module t/m belongs to the manifests with label web, and this one has label db: leave it to those, or take it over \
             (--take-over)"
        );
        let taken = applied(&state, modules("t", &["m", "n"]), &taking_over(label("db")));
        assert_eq!(labels(&taken), ["t/m db", "t/n db"]);
        let freed = applied(&taken, modules("t", &["m"]), &taking_over(Labelling::default()));
        assert_eq!(labels(&freed), ["t/n db"]);
    }

    #[test]
    fn another_label_is_a_change_of_the_object_and_no_other_version_of_a_chain() {
        let stage = Stage::new("m".parse().unwrap(), Vec::new());
        let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![stage]);
        let change = || Change { chains: vec![chain.clone()], ..modules("t", &["m"]) };
        let state = applied(&DesiredState::default(), change(), &Labelling::default());
        let labelled = try_to_apply(&state, change(), &label("web")).unwrap();
        assert_eq!(effects(&labelled), ["module t/m configured", "chain t/c configured"]);
        assert_eq!(labelled.state.version(), state.version() + 1);
        assert!(labelled.state.touched(&state, &BTreeSet::new()).is_empty());
    }

    #[test]
    fn what_has_the_label_and_is_not_named_is_pruned_of_the_named_tenants_only() {
        let mut state = applied(&DesiredState::default(), modules("t", &["a", "b", "c"]), &label("web"));
        state = applied(&state, modules("t", &["of-db"]), &label("db"));
        state = applied(&state, modules("t", &["of-none"]), &Labelling::default());
        state = applied(&state, modules("other", &["a"]), &label("web"));
        let change = Change { delete: vec![ObjectRef::from(&module("t", "b"))], ..modules("t", &["a"]) };
        let pruned = try_to_apply(&state, change, &pruning("web", &["t"])).unwrap();
        assert_eq!(effects(&pruned), ["module t/a unchanged", "module t/b deleted", "module t/c pruned"]);
        assert_eq!(pruned.state.version(), state.version() + 1);
        assert_eq!(labels(&pruned.state), ["other/a web", "t/a web", "t/of-db db"]);
        assert_eq!(pruned.state.modules().len(), 4);
        let nothing = try_to_apply(&state, Change::default(), &pruning("nothing", &["t"])).unwrap();
        assert!(!nothing.changed());
    }

    #[test]
    fn what_others_use_is_not_pruned_and_nothing_else_is_changed_then() {
        let state = applied(&DesiredState::default(), modules("t", &["m", "n"]), &label("web"));
        let stage = Stage::new("m".parse().unwrap(), Vec::new());
        let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![stage]);
        let state = applied(&state, Change { chains: vec![chain], ..Change::default() }, &Labelling::default());
        let refused = try_to_apply(&state, modules("t", &["n", "o"]), &pruning("web", &["t"])).unwrap_err();
        assert!(refused.starts_with("module t/m is in use by chain t/c"), "{refused}");
    }

    #[test]
    fn terms_of_tenants_have_no_label_and_are_not_pruned() {
        let terms = Change { tenants: vec![Tenant::new("t".parse().unwrap())], ..modules("t", &["m"]) };
        let state = applied(&DesiredState::default(), terms, &label("web"));
        assert_eq!(labels(&state), ["t/m web"]);
        let pruned = try_to_apply(&state, Change::default(), &pruning("web", &["t"])).unwrap();
        assert_eq!(effects(&pruned), ["module t/m pruned"]);
        assert!(pruned.outcomes.iter().all(|outcome| outcome.effect == Effect::Pruned));
    }

    #[test]
    fn nothing_is_pruned_without_a_label() {
        let state = applied(&DesiredState::default(), modules("t", &["m"]), &label("web"));
        let without = Labelling { label: None, ..pruning("web", &["t"]) };
        let refused = try_to_apply(&state, modules("t", &["n"]), &without).unwrap_err();
        assert!(refused.ends_with("give the manifest a label (label = \"NAME\")"), "{refused}");
    }
}

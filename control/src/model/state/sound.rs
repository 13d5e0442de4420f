//! Which stored objects can stand: the state of those that are valid, and why the others are left out.
//!
//! An object depends only on objects of kinds before its own: tenants, then modules, keys and models, then chains, then rules.
//! So one pass in this order leaves out all that depends on something that is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Change, DesiredState, Invalid, ObjectRef, Outcome, TenantName};

/// Why an object is left out whose tenant's terms are gone.
const UNBOUNDED: &str = "the terms of its tenant are gone, and nothing else bounds what it may use";

/// A stored object that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The object.
    pub object: ObjectRef,
    /// Why, as the end of a sentence.
    pub reason: String,
}

impl DesiredState {
    /// Creates the state with this version and those of the objects that are valid. Returns the others too. Of tenants in
    /// `unbounded`, whose terms are gone, everything is left out. What each tenant may have is not checked: they have it already.
    ///
    /// # Errors
    /// The objects are too many or too large together, so that it is not one of them that is wrong.
    pub fn restore_sound(
        version: u64,
        objects: &Change,
        unbounded: &BTreeSet<TenantName>,
    ) -> Result<(Self, Vec<LeftOut>), Invalid> {
        let mut state = Self { version, ..Self::default() };
        let stored: Vec<ObjectRef> = state.set_all(objects).into_iter().map(|Outcome { object, .. }| object).collect();
        let mut left_out = state.without_unfit_tenants();
        let mut unbounded = unbounded.clone();
        unbounded.extend(left_out.iter().map(|unfit| unfit.object.tenant().clone()));
        for object in stored.into_iter().filter(|object| unbounded.contains(object.tenant())) {
            if state.remove(&object) {
                left_out.push(LeftOut { object, reason: UNBOUNDED.to_owned() });
            }
        }
        left_out.extend(state.without_unfit_chains());
        left_out.extend(state.without_unfit_rules());
        state.check(&[])?;
        Ok((state, left_out))
    }

    fn without_unfit_tenants(&mut self) -> Vec<LeftOut> {
        let unfit = self.tenants.values().filter_map(|tenant| {
            let problem = tenant.check().err()?;
            Some(LeftOut { object: ObjectRef::from(&**tenant), reason: problem.to_string() })
        });
        let unfit = unfit.collect();
        self.without(unfit)
    }

    fn without_unfit_chains(&mut self) -> Vec<LeftOut> {
        let chains = self.chains.values().map(Arc::clone);
        let unfit =
            chains.filter_map(|chain| left_out(ObjectRef::from(&*chain), self.check_chain(&chain, &[]))).collect();
        let mut unfit = self.without(unfit);
        while let Err(Invalid::FieldsDiffer { first, second, field }) = self.check_fields() {
            let reason = Invalid::FieldsDiffer { first, second: second.clone(), field }.to_string();
            unfit.extend(self.without(vec![LeftOut { object: second, reason }]));
        }
        unfit
    }

    fn without_unfit_rules(&mut self) -> Vec<LeftOut> {
        let rules = self.rules.values().map(Arc::clone);
        let unfit = rules.filter_map(|rule| left_out(ObjectRef::from(&*rule), self.check_rule(&rule, &[]))).collect();
        let mut unfit = self.without(unfit);
        while let Err(Invalid::Alike { first, second, what, priority }) = self.check_alike() {
            let reason = Invalid::Alike { first, second: second.clone(), what, priority }.to_string();
            unfit.extend(self.without(vec![LeftOut { object: second, reason }]));
        }
        unfit
    }

    /// Removes these objects, and returns them.
    fn without(&mut self, unfit: Vec<LeftOut>) -> Vec<LeftOut> {
        for LeftOut { object, .. } in &unfit {
            self.remove(object);
        }
        unfit
    }
}

fn left_out(object: ObjectRef, checked: Result<(), Invalid>) -> Option<LeftOut> {
    checked.err().map(|invalid| LeftOut { object, reason: invalid.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Chain, Digest, Match, Module, Policy, Rule, Stage, Tenant};

    fn tenant(name: &str) -> TenantName {
        name.parse().unwrap()
    }

    fn module(tenant: &TenantName, name: &str) -> Module {
        Module {
            tenant: tenant.clone(),
            name: name.parse().unwrap(),
            digest: Digest::of(name.as_bytes()),
            size_bytes: 1,
        }
    }

    fn chain(tenant: &TenantName, name: &str, module: &str) -> Chain {
        Chain::new(tenant.clone(), name.parse().unwrap(), vec![Stage::new(module.parse().unwrap(), Vec::new())])
    }

    fn rule(tenant: &TenantName, name: &str, chain: &str, priority: u32) -> Rule {
        Rule {
            tenant: tenant.clone(),
            name: name.parse().unwrap(),
            priority,
            matcher: Match { destination: Some("10.77.0.2".parse().unwrap()), ..Match::default() },
            policy: Policy::PerClient,
            chain: chain.parse().unwrap(),
        }
    }

    /// Restores the objects, and returns the names of those that are left out.
    fn left_out_of(objects: &Change, unbounded: &[TenantName]) -> Vec<String> {
        let unbounded = unbounded.iter().cloned().collect();
        let (state, left_out) = DesiredState::restore_sound(7, objects, &unbounded).unwrap();
        assert_eq!(state.version(), 7);
        let all = objects.sets().filter(|object| state.object(object).is_none());
        let mut names: Vec<String> = left_out.iter().map(|it| it.object.to_string()).collect();
        assert_eq!(all.count(), names.len(), "what is left out is what the state lacks");
        names.sort();
        names
    }

    #[test]
    fn what_is_valid_is_restored_whole() {
        let demo = tenant("demo");
        let objects = Change {
            tenants: vec![Tenant::new(demo.clone())],
            modules: vec![module(&demo, "m")],
            chains: vec![chain(&demo, "echo", "m")],
            rules: vec![rule(&demo, "ping", "echo", 1)],
            ..Change::default()
        };
        assert!(left_out_of(&objects, &[]).is_empty());
    }

    #[test]
    fn chains_of_a_module_that_is_gone_and_their_rules_are_left_out_and_others_stay() {
        let demo = tenant("demo");
        let objects = Change {
            modules: vec![module(&demo, "there")],
            chains: vec![chain(&demo, "echo", "gone"), chain(&demo, "whole", "there")],
            rules: vec![rule(&demo, "ping", "echo", 1), rule(&demo, "pong", "whole", 2)],
            ..Change::default()
        };
        assert_eq!(left_out_of(&objects, &[]), ["chain demo/echo", "rule demo/ping"]);
    }

    #[test]
    fn nothing_of_a_tenant_whose_terms_are_gone_stays() {
        let (demo, other) = (tenant("demo"), tenant("other"));
        let objects = Change {
            modules: vec![module(&demo, "m"), module(&other, "m")],
            chains: vec![chain(&demo, "echo", "m"), chain(&other, "echo", "m")],
            ..Change::default()
        };
        assert_eq!(left_out_of(&objects, &[demo]), ["chain demo/echo", "module demo/m"]);
    }

    #[test]
    fn a_tenant_with_invalid_terms_goes_with_its_objects() {
        let demo = tenant("demo");
        let terms = Tenant { weight: 0, ..Tenant::new(demo.clone()) };
        let objects = Change { tenants: vec![terms], modules: vec![module(&demo, "m")], ..Change::default() };
        assert_eq!(left_out_of(&objects, &[]), ["module demo/m", "tenant demo"]);
    }

    #[test]
    fn of_rules_that_are_alike_the_first_by_name_stays() {
        let demo = tenant("demo");
        let objects = Change {
            modules: vec![module(&demo, "m")],
            chains: vec![chain(&demo, "echo", "m")],
            rules: vec![rule(&demo, "a", "echo", 1), rule(&demo, "b", "echo", 1), rule(&demo, "c", "echo", 1)],
            ..Change::default()
        };
        assert_eq!(left_out_of(&objects, &[]), ["rule demo/b", "rule demo/c"]);
    }
}

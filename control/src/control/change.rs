//! Changes of the desired state, and the builds that they need.
//!
//! Templates are built while no lock is held, as that takes long. So after a build the change is judged anew on what the
//! desired state is then. What it needs is held from the first attempt on, so that it is not removed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use super::turn_lock::Party;
use super::{ApplyRequest, ChangeOptions, Changed, Control, ControlError, lock};
use crate::model::{
    Applied, Author, CHAINS_MAX, ChainKey, ChainName, Change, DesiredState, Ingredients, Invalid, ModuleName,
    ObjectRef, TenantName,
};
use crate::node::{Hold, Refusal};

/// How often is built for one change at most. Once is enough unless files get lost meanwhile, or what the change depends
/// on changes.
const ROUNDS_MAX: usize = 8;

/// What an attempt at a change led to.
enum Attempt<T> {
    /// It is made.
    Made(T),
    /// Chains of the state that it leads to have to be built first.
    Lacks(Box<Missing>),
}

/// What has to be built before a change can be made.
struct Missing {
    /// The state that the change leads to, with the chains of modules that were invoked by name.
    state: DesiredState,
    /// The chains whose templates are missing.
    chains: BTreeSet<ChainKey>,
    /// Those of them that are there only because a module was invoked by name before. If they cannot be built, the
    /// change is made without them.
    optional: BTreeSet<ChainKey>,
    /// Keeps what the chains need.
    hold: Hold,
}

/// What a change is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A request names what is to be.
    Request,
    /// An earlier revision is returned to.
    Return,
}

/// Who makes a change, and on what terms.
pub(super) struct Terms<'a> {
    pub(super) author: &'a Author,
    pub(super) reason: Reason,
    /// The tenants whose objects it names.
    pub(super) tenants: BTreeSet<TenantName>,
    pub(super) options: ChangeOptions,
}

/// What was built for one change, and what could not be and does not prevent it.
#[derive(Default)]
struct Builds {
    holds: Vec<Hold>,
    /// Chains that already could not be built before, for the same reason.
    tolerated: BTreeMap<ChainKey, Ingredients>,
    /// Chains of invoked modules that the change is made without.
    without: BTreeSet<ChainKey>,
}

impl Builds {
    /// Returns which of these chains are to be built, if their templates are missing.
    fn wanted(&self, state: &DesiredState, mut chains: BTreeSet<ChainKey>) -> BTreeSet<ChainKey> {
        chains.retain(|key| {
            let ingredients = state.chains().get(key).map(|chain| state.ingredients(chain));
            self.tolerated.get(key).is_none_or(|tolerated| Some(tolerated) != ingredients.as_ref())
        });
        chains
    }
}

impl Control {
    /// Creates or updates the objects as given, for the operator: all of them or none.
    pub fn apply(&self, request: ApplyRequest) -> Result<Changed, ControlError> {
        self.apply_as(&Author::operator("the operator"), request)
    }

    /// As [`Control::apply`], for this caller.
    pub fn apply_as(&self, author: &Author, request: ApplyRequest) -> Result<Changed, ControlError> {
        let party = Party::of(author.tenant.as_ref(), request.tenant());
        let (tenants, options) = (request.tenants(), request.options);
        let terms = Terms { author, reason: Reason::Request, tenants, options };
        self.change(&party, &terms, |now| Ok(now.labelled(self.change_of(&request)?, &request.labelling)?))
    }

    /// Deletes the objects, for the operator: all of them or none.
    pub fn delete(&self, objects: Vec<ObjectRef>) -> Result<Changed, ControlError> {
        self.delete_as(&Author::operator("the operator"), objects, ChangeOptions::default())
    }

    /// As [`Control::delete`], for this caller.
    pub fn delete_as(
        &self,
        author: &Author,
        objects: Vec<ObjectRef>,
        options: ChangeOptions,
    ) -> Result<Changed, ControlError> {
        self.apply_as(author, ApplyRequest { deletes: objects, options, ..ApplyRequest::default() })
    }

    /// Returns the change that a request asks for, with what the store knows of the uploads that it names, but without labels.
    pub(super) fn change_of(&self, request: &ApplyRequest) -> Result<Change, ControlError> {
        let ApplyRequest { tenants, modules, keys, models, chains, rules, deletes, labelling: _, options: _ } = request;
        Ok(Change {
            tenants: tenants.clone(),
            modules: modules.iter().map(|named| self.module(named.clone())).collect::<Result<_, _>>()?,
            keys: keys.iter().map(|named| self.key(named.clone())).collect::<Result<_, _>>()?,
            models: models.iter().map(|named| self.model(named.clone())).collect::<Result<_, _>>()?,
            chains: chains.iter().map(|chain| self.chain(chain.clone())).collect::<Result<_, _>>()?,
            rules: rules.clone(),
            delete: deletes.clone(),
            ..Change::default()
        })
    }

    /// Makes the change: the only way from one desired state to the next. It is asked for again after each build, with the
    /// state that it is to change, as uploads and revisions may have come and gone.
    pub(super) fn change(
        &self,
        party: &Party,
        terms: &Terms<'_>,
        change: impl Fn(&DesiredState) -> Result<Change, ControlError>,
    ) -> Result<Changed, ControlError> {
        let mut builds = Builds::default();
        let made = self.built_in_rounds(&mut builds, |builds| self.attempt(party, terms, builds, &change));
        if made.is_err() || terms.options.dry_run {
            self.clear_up(party, builds, made.as_ref().err());
        }
        made.inspect_err(|error| self.refused_quotas.note(error, &self.desired()))
    }

    /// Removes what was built for something that is not made.
    fn clear_up(&self, party: &Party, mut builds: Builds, refused: Option<&ControlError>) {
        let is_stopping = matches!(refused, Some(ControlError::Refused(Refusal::Stopping)));
        if std::mem::take(&mut builds.holds).is_empty() || is_stopping {
            return;
        }
        let _changing = self.changing.lock(party);
        // The change may be durable although the store could not tell. Its caller is told of its own error all the same.
        if self.settle().is_ok() {
            let whole = self.desired().with_chains_of(&lock(&self.invoked_modules));
            self.node.clear_up(&whole);
        }
    }

    /// Repeats the attempt, which takes the lock itself, until nothing has to be built for it any more.
    fn built_in_rounds<T>(
        &self,
        builds: &mut Builds,
        attempt: impl Fn(&Builds) -> Result<Attempt<T>, ControlError>,
    ) -> Result<T, ControlError> {
        for _ in 0..ROUNDS_MAX {
            match attempt(builds)? {
                Attempt::Made(made) => return Ok(made),
                Attempt::Lacks(missing) => self.build(*missing, builds)?,
            }
        }
        let sentence = "templates that were built for the change are gone each time: see the node's log";
        Err(Refusal::Failed(sentence.to_owned()).into())
    }

    fn attempt(
        &self,
        party: &Party,
        terms: &Terms<'_>,
        builds: &Builds,
        change: &impl Fn(&DesiredState) -> Result<Change, ControlError>,
    ) -> Result<Attempt<Changed>, ControlError> {
        let _changing = self.changing.lock(party);
        self.settle()?;
        self.check_party(party)?;
        self.check_expected(terms)?;
        let before = self.desired();
        let mut change = change(&before)?;
        let ended = self.take_implicit(&before, &mut change)?;
        let applied = before.apply(&change)?;
        if applied.changed() {
            self.node.check(&before, &applied.state)?;
        }
        let mut invoked = lock(&self.invoked_modules).clone();
        let whole_before = before.with_chains_of(&invoked);
        let without: BTreeSet<ChainKey> = builds.without.iter().chain(ended.chains()).cloned().collect();
        invoked.retain(|(tenant, module)| !without.contains(&(tenant.clone(), ChainName::of_module(module))));
        let whole = applied.state.with_chains_of(&invoked);
        let objects: BTreeSet<&ObjectRef> = applied.outcomes.iter().map(|outcome| &outcome.object).collect();
        let touched = whole.touched(&whole_before, &objects);
        let chains = builds.wanted(&whole, touched.clone());
        let hold = self.node.hold(&whole, &chains);
        if self.node.lacks(&whole, &chains) {
            let is_optional = |key: &&ChainKey| !applied.state.chains().contains_key(*key);
            let optional = chains.iter().filter(is_optional).cloned().collect();
            return Ok(Attempt::Lacks(Box::new(Missing { state: whole, chains, optional, hold })));
        }
        let unfit = self.node.unfit(&whole, &chains);
        let mut not_built: BTreeSet<ObjectRef> = self.tolerable(&whole, unfit)?.into_iter().collect();
        not_built.extend(builds.tolerated.keys().map(object_of));
        if terms.options.dry_run {
            let Applied { state, outcomes } = applied;
            return Ok(Attempt::Made(ended.among(Changed { version: state.version(), outcomes })));
        }
        let changed = ended.among(self.make(applied, terms, &whole, &without)?);
        // Of the chains that the change touches, the others are built now.
        lock(&self.not_built).retain(|object, _| !is_one_of(&touched, object) || not_built.contains(object));
        Ok(Attempt::Made(changed))
    }

    /// Makes the change durable and has the node follow. Called with the lock held.
    fn make(
        &self,
        applied: Applied,
        terms: &Terms<'_>,
        whole: &DesiredState,
        without: &BTreeSet<ChainKey>,
    ) -> Result<Changed, ControlError> {
        let changed = applied.changed();
        if changed {
            self.commit(&applied, terms.author, terms.reason)?;
        }
        let Applied { state, outcomes } = applied;
        // The next call by such a name makes the chain again, and tells its caller if it cannot be built.
        let has_ended = self.forget_implicit(without);
        // A chain that a request names again gets another try.
        let objects: Vec<&ObjectRef> = outcomes.iter().map(|outcome| &outcome.object).collect();
        let is_retried = self.node.retry(whole, &objects);
        let version = state.version();
        if changed || has_ended {
            lock(&self.not_built).retain(|object, _| is_chain_of(&state, object));
        }
        if changed {
            *self.desired.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        }
        if changed || is_retried || has_ended {
            self.follow_durable(&self.desired())?;
        }
        if changed {
            tracing::info!(version, objects = outcomes.len(), "desired state changed");
        }
        Ok(Changed { version, outcomes })
    }

    /// Makes a chain of the module of this name, for a caller of this tenant, or else the operator. It lasts as long as
    /// the node runs, and is not durable. May take seconds.
    pub fn make_chain_of_module(
        &self,
        caller: Option<&TenantName>,
        tenant: &TenantName,
        name: &ChainName,
    ) -> Result<(), ControlError> {
        let party = Party::of(caller, Some(tenant));
        let mut builds = Builds::default();
        let made =
            self.built_in_rounds(&mut builds, |builds| self.attempt_chain_of_module(builds, &party, tenant, name));
        made.inspect_err(|error| {
            self.clear_up(&party, builds, Some(error));
            self.refused_quotas.note(error, &self.desired());
        })
    }

    /// Refuses a tenant that does not exist. Called with a lock held, as it may have been deleted since its caller asked.
    pub(super) fn check_party(&self, party: &Party) -> Result<(), ControlError> {
        match party {
            Party::Tenant(tenant) => self.check_known(tenant),
            Party::Operator(_) | Party::Node => Ok(()),
        }
    }

    fn attempt_chain_of_module(
        &self,
        builds: &Builds,
        party: &Party,
        tenant: &TenantName,
        name: &ChainName,
    ) -> Result<Attempt<()>, ControlError> {
        let _changing = self.changing.lock(party);
        self.settle()?;
        if self.has_chain(tenant, name) {
            return Ok(Attempt::Made(()));
        }
        self.check_party(party)?;
        let desired = self.desired();
        let module = ModuleName::new(name.as_str()).ok().filter(|module| desired.module(tenant, module).is_some());
        let Some(module) = module else {
            return Err(ControlError::NoFunction { tenant: tenant.clone(), name: name.clone() });
        };
        let invoked = (tenant.clone(), module);
        let mut all_invoked = lock(&self.invoked_modules).clone();
        let whole_before = desired.with_chains_of(&all_invoked);
        all_invoked.insert(invoked.clone());
        let whole = desired.with_chains_of(&all_invoked);
        if whole.chain(tenant, name).is_none() {
            return Err(Invalid::TooMany { kind: "chains", count: CHAINS_MAX + 1, max: CHAINS_MAX }.into());
        }
        whole.check_quotas(&whole_before)?;
        self.node.check(&desired, &whole)?;
        let chains = builds.wanted(&whole, BTreeSet::from([(tenant.clone(), name.clone())]));
        let hold = self.node.hold(&whole, &chains);
        if self.node.lacks(&whole, &chains) {
            let optional = BTreeSet::new();
            return Ok(Attempt::Lacks(Box::new(Missing { state: whole, chains, optional, hold })));
        }
        lock(&self.invoked_modules).insert(invoked);
        self.follow(&desired);
        Ok(Attempt::Made(()))
    }

    /// Builds what is missing.
    fn build(&self, missing: Missing, builds: &mut Builds) -> Result<(), ControlError> {
        let Missing { state, chains, optional, hold } = missing;
        builds.holds.push(hold);
        let refused = self.node.build(&state, &chains, &self.uploads());
        let (without, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(object, _)| is_one_of(&optional, object));
        builds.without.extend(without.iter().filter_map(|(object, _)| key_of(object)));
        let tolerated = self.tolerable(&state, refused)?;
        let ingredients = |key: ChainKey| Some((key.clone(), state.ingredients(state.chains().get(&key)?)));
        builds.tolerated.extend(tolerated.iter().filter_map(key_of).filter_map(ingredients));
        Ok(())
    }

    /// Returns the chains that are refused, if each of them already was for the same reason and is unchanged since: then
    /// that is not this change's fault.
    fn tolerable(
        &self,
        state: &DesiredState,
        refused: Vec<(ObjectRef, Refusal)>,
    ) -> Result<Vec<ObjectRef>, ControlError> {
        let known = lock(&self.not_built);
        let is_known = |object: &ObjectRef, refusal: &Refusal| {
            let chain = key_of(object).and_then(|key| state.chains().get(&key));
            let ingredients = chain.map(|chain| state.ingredients(chain));
            known
                .get(object)
                .is_some_and(|known| known.refusal == *refusal && Some(&known.ingredients) == ingredients.as_ref())
        };
        let mut tolerated = Vec::new();
        for (object, refusal) in refused {
            if refusal == Refusal::Stopping || !is_known(&object, &refusal) {
                return Err(refusal.into());
            }
            tolerated.push(object);
        }
        Ok(tolerated)
    }
}

/// Returns the key of a chain.
fn key_of(object: &ObjectRef) -> Option<ChainKey> {
    match object {
        ObjectRef::Chain { tenant, name } => Some((tenant.clone(), name.clone())),
        ObjectRef::Tenant { .. }
        | ObjectRef::Module { .. }
        | ObjectRef::Key { .. }
        | ObjectRef::Model { .. }
        | ObjectRef::Rule { .. } => None,
    }
}

fn object_of((tenant, name): &ChainKey) -> ObjectRef {
    ObjectRef::Chain { tenant: tenant.clone(), name: name.clone() }
}

fn is_chain_of(state: &DesiredState, object: &ObjectRef) -> bool {
    key_of(object).is_some_and(|key| state.chains().contains_key(&key))
}

fn is_one_of(chains: &BTreeSet<ChainKey>, object: &ObjectRef) -> bool {
    key_of(object).is_some_and(|key| chains.contains(&key))
}

//! Revisions: reads them, compares the one that a request expects with the latest, and returns to earlier ones.
//!
//! A return to a revision is a change like any other, and a revision of its own. It is judged anew, as what was valid then may
//! not be any more. It is of one tenant's objects. An operator's includes the tenant's terms.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::change::{Reason, Terms};
use super::turn_lock::Party;
use super::{ApplyRequest, ChangeOptions, Changed, Control, ControlError, NamedUpload};
use crate::model::{
    Author, Change, DesiredState, Digest, Label, Labelled, Object, ObjectRef, Outcome, RevisionFilter, TenantName,
};
use crate::store::{LastChange, NotKept, PAGE_OBJECTS, PastContents, Reader, RevisionPage, ToUndo};

/// What a return to a revision led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The version of the desired state after the change.
    pub version: u64,
    /// The revision that was returned to.
    pub restored: u64,
    /// One outcome for each object that differed.
    pub outcomes: Vec<Outcome>,
}

/// What a tenant had after a revision, while it is read page by page.
#[derive(Clone, Debug)]
pub struct Past {
    tenant: TenantName,
    number: u64,
    /// What was not read yet.
    rest: Vec<Digest>,
}

impl Control {
    /// Returns the latest revisions that pass the filter, for a caller of this tenant, or else the operator.
    pub fn revision_page(
        &self,
        caller: Option<&TenantName>,
        filter: &RevisionFilter,
    ) -> Result<RevisionPage, ControlError> {
        let reader = if caller.is_some() { Reader::Tenant } else { Reader::Operator };
        Ok(self.store.revision_page(reader, filter)?)
    }

    /// Returns a tenant's objects and its terms as they were after a revision, for the operator; none: as they are.
    pub fn objects_at(&self, tenant: &TenantName, number: Option<u64>) -> Result<Vec<Labelled<Object>>, ControlError> {
        self.all_objects(self.past(None, tenant, number)?)
    }

    /// Returns what there was of a tenant after a revision, to be read by [`Control::next_objects`]; none: what there is. A caller
    /// of that tenant asks, or else the operator, who has to name a tenant that is known.
    pub fn past(
        &self,
        caller: Option<&TenantName>,
        tenant: &TenantName,
        number: Option<u64>,
    ) -> Result<Past, ControlError> {
        if caller.is_none() && number.is_some() && matches!(self.store.last_change(tenant)?, LastChange::UpTo(_)) {
            return Err(ControlError::NoTenant(tenant.clone()));
        }
        let known = self.store.contents_at(tenant, number)?;
        let PastContents { number, mut contents } = known.map_err(|not_kept| unknown(tenant, number, not_kept))?;
        contents.reverse();
        Ok(Past { tenant: tenant.clone(), number, rest: contents })
    }

    /// Returns some more of the objects; none are left if there are none.
    ///
    /// # Errors
    /// The revision was forgotten meanwhile.
    pub fn next_objects(&self, past: &mut Past) -> Result<Vec<Labelled<Object>>, ControlError> {
        let next: Vec<Digest> = past.rest.iter().rev().take(PAGE_OBJECTS).copied().collect();
        let objects = self.store.objects(&next)?;
        if objects.is_empty() && !next.is_empty() {
            let from = self.store.earliest_known(&past.tenant)?;
            return Err(unknown(&past.tenant, Some(past.number), NotKept::Forgotten(from)));
        }
        past.rest.truncate(past.rest.len() - objects.len());
        Ok(objects)
    }

    fn all_objects(&self, mut past: Past) -> Result<Vec<Labelled<Object>>, ControlError> {
        let mut all = Vec::new();
        loop {
            match self.next_objects(&mut past)? {
                next if next.is_empty() => return Ok(all),
                next => all.extend(next),
            }
        }
    }

    /// Makes a tenant's objects what they were after a revision: all of them or none. Without a number, undoes the tenant's
    /// latest revision. Of an operator, the tenant's terms are among them.
    pub fn roll_back(
        &self,
        author: &Author,
        tenant: &TenantName,
        to: Option<u64>,
        options: ChangeOptions,
    ) -> Result<Restored, ControlError> {
        let party = Party::of(author.tenant.as_ref(), Some(tenant));
        let is_meant = |object: &ObjectRef| author.tenant.is_none() || !matches!(object, ObjectRef::Tenant { .. });
        let (number, latest) = match to {
            Some(number) => (number, None),
            None => {
                let to_undo = self.store.to_undo(tenant, is_meant)?;
                let ToUndo { number, latest } = to_undo.ok_or_else(|| ControlError::NothingToUndo(tenant.clone()))?;
                (number - 1, Some(latest))
            }
        };
        // A revision that comes meanwhile is not undone with the one that was meant.
        let expected_revision = options.expected_revision.or(latest);
        let terms = Terms {
            author,
            reason: Reason::Return,
            tenants: [tenant.clone()].into(),
            options: ChangeOptions { expected_revision, ..options },
        };
        // What there was does not change any more. To find out may take long, and takes no lock that others wait for.
        let past = self.past(author.tenant.as_ref(), tenant, Some(number))?;
        let changed = self.change(&party, &terms, |now| {
            let mut wanted = self.all_objects(past.clone())?;
            let mut objects = now.objects_of(tenant);
            wanted.retain(|object| is_meant(&object.name()));
            objects.retain(|object| is_meant(&object.name()));
            let (request, labels) = differences(now, &objects, wanted);
            Ok(Change { labels, ..self.change_of(&request)? })
        });
        let Changed { version, outcomes } = changed.map_err(|error| match error {
            ControlError::Outdated { present, .. } if options.expected_revision.is_none() => {
                ControlError::ChangedMeanwhile { tenant: tenant.clone(), present }
            }
            error => error,
        })?;
        Ok(Restored { version, restored: number, outcomes })
    }

    /// Refuses a change if a later revision than it expects touched one of its tenants. Called with the lock held.
    pub(super) fn check_expected(&self, terms: &Terms<'_>) -> Result<(), ControlError> {
        let Some(expected) = terms.options.expected_revision else { return Ok(()) };
        let latest = self.desired().version();
        if expected > latest {
            return Err(ControlError::NoRevision { number: expected, latest });
        }
        for tenant in &terms.tenants {
            let tenant = tenant.clone();
            match self.store.last_change(&tenant)? {
                LastChange::In(present) if present > expected => {
                    return Err(ControlError::Outdated { expected, present, tenant });
                }
                LastChange::UpTo(present) if present > expected => {
                    return Err(ControlError::NotRecorded { expected, present, tenant });
                }
                LastChange::In(_) | LastChange::UpTo(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns the error for a revision that is not known.
fn unknown(tenant: &TenantName, number: Option<u64>, not_kept: NotKept) -> ControlError {
    match not_kept {
        NotKept::NotYet(latest) => ControlError::NoRevision { number: number.unwrap_or(latest), latest },
        NotKept::Forgotten(from) => {
            ControlError::RevisionForgotten { tenant: tenant.clone(), number: number.unwrap_or(from), from }
        }
    }
}

/// Returns the request that makes of the objects of a tenant, which are there now, those that are wanted, and their labels.
fn differences(
    now: &DesiredState,
    objects: &[Labelled<Object>],
    wanted: Vec<Labelled<Object>>,
) -> (ApplyRequest, BTreeMap<ObjectRef, Label>) {
    let (mut request, mut labels) = (ApplyRequest::default(), BTreeMap::new());
    let names: BTreeSet<ObjectRef> = wanted.iter().map(|object| object.name()).collect();
    // Terms can't go while there are objects. If these are older than the terms, the terms stay.
    let may_go = |name: &ObjectRef| names.is_empty() || !matches!(name, ObjectRef::Tenant { .. });
    let gone = objects.iter().map(|object| object.name()).filter(|name| !names.contains(name) && may_go(name));
    request.deletes = gone.collect();
    for labelled in wanted.into_iter().filter(|wanted| now.object(&wanted.name()).as_ref() != Some(wanted)) {
        labels.extend(labelled.label.clone().map(|label| (labelled.name(), label)));
        match labelled.object {
            Object::Tenant(tenant) => request.tenants.push((*tenant).clone()),
            Object::Module(module) => {
                let (tenant, name) = (module.tenant.clone(), module.name.clone());
                request.modules.push(NamedUpload { tenant, name, digest: module.digest });
            }
            Object::Key(key) => {
                let (tenant, name) = (key.tenant.clone(), key.name.clone());
                request.keys.push(NamedUpload { tenant, name, digest: key.digest });
            }
            Object::Model(model) => {
                let (tenant, name) = (model.tenant.clone(), model.name.clone());
                request.models.push(NamedUpload { tenant, name, digest: model.digest });
            }
            Object::Chain(chain) => request.chains.push((*chain).clone()),
            Object::Rule(rule) => request.rules.push((*rule).clone()),
        }
    }
    (request, labels)
}

//! Revisions: what each change of the desired state did, by whom and when. A revision's number is the version of the state that it made.

use serde::Serialize;

use super::{Digest, Effect, ObjectRef, TenantName};

/// Who makes a change, in words for people, and the tenant that it is confined to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Author {
    /// Such as `alice (tenant admin of demo)` or `uid 0 (operator)`.
    pub name: String,
    /// None: the operator, or the node itself.
    pub tenant: Option<TenantName>,
}

impl Author {
    /// Returns the operator, known by this name.
    #[must_use]
    pub fn operator(name: impl Into<String>) -> Self {
        Self { name: name.into(), tenant: None }
    }
}

/// What a revision did to one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectChange {
    /// The object.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The digest of the object as the store has it, before the revision; none if it did not exist.
    pub before: Option<Digest>,
    /// The same, after the revision; none if it was deleted.
    pub after: Option<Digest>,
}

impl ObjectChange {
    /// Returns what the revision did to it.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match (self.before, self.after) {
            (None, _) => Effect::Created,
            (Some(_), Some(_)) => Effect::Configured,
            (Some(_), None) => Effect::Deleted,
        }
    }
}

/// A change that was made, as far as it touched the objects that were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// The version of the desired state that it made.
    pub number: u64,
    /// Who made it. Tenants are not told which operator it was.
    pub author: String,
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// How many objects it created, configured and deleted.
    pub counts: ChangeCounts,
    /// What it did to each object, at most [`Revision::CHANGES_LISTED_MAX`].
    pub changes: Vec<ObjectChange>,
}

impl Revision {
    /// The most changes that a list has of one revision. The counts are of all.
    pub const CHANGES_LISTED_MAX: usize = 64;
}

/// How many objects a revision touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangeCounts {
    /// Those that it created.
    pub created: u64,
    /// Those that it changed.
    pub configured: u64,
    /// Those that it deleted.
    pub deleted: u64,
}

impl ChangeCounts {
    /// Counts these changes.
    pub fn of<'c>(changes: impl IntoIterator<Item = &'c ObjectChange>) -> Self {
        let mut counts = Self::default();
        for change in changes {
            match change.effect() {
                Effect::Created => counts.created += 1,
                Effect::Configured => counts.configured += 1,
                Effect::Deleted | Effect::Pruned => counts.deleted += 1,
                Effect::Unchanged => {}
            }
        }
        counts
    }

    /// Returns how many there are of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.created + self.configured + self.deleted
    }
}

/// Which revisions to list, latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevisionFilter {
    /// Only what touched this tenant, and only that part; none for all.
    pub tenant: Option<TenantName>,
    /// Only what touched objects of this kind: `chain`, for example.
    pub kind: Option<&'static str>,
    /// Only what touched objects of this name.
    pub name: Option<String>,
    /// Only those with a smaller number.
    pub before: Option<u64>,
    /// How many at most.
    pub limit: usize,
}

impl RevisionFilter {
    /// The most revisions of one answer.
    pub const LIMIT_MAX: usize = 1000;
    /// How many an answer has by default.
    pub const LIMIT: usize = 50;

    /// Returns whether an object is of the kind and the name.
    #[must_use]
    pub fn is_meant(&self, object: &ObjectRef) -> bool {
        self.kind.is_none_or(|kind| kind == object.kind())
            && self.name.as_ref().is_none_or(|name| name == object.name())
    }
}

/// How many revisions a node keeps of all tenants together. The oldest go first; each tenant is sure of an equal share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// The most revisions, each counted once for each tenant that it touched.
    pub revisions: u64,
    /// The most bytes of revisions, and of the objects and uploads that they replaced or deleted.
    pub bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { revisions: 1000, bytes: 512 << 20 }
    }
}

//! Reads the kept revisions, page by page where there may be many.

use std::collections::BTreeMap;

use redb::{ReadTransaction, ReadableTable};

use super::contents::{CONTENTS, OBJECTS, REFERENCES, decoded, objects_of};
use super::history::{FORGOTTEN, HISTORY, ORDER, SHARES, Share, StoredPart};
use super::{META, Store, StoreError};
use crate::model::{
    ChangeCounts, Digest, HistoryLimits, Labelled, Object, ObjectChange, ObjectRef, Revision, RevisionFilter,
    TenantName,
};

/// How a tenant's callers are told of all operators.
const THE_OPERATOR: &str = "the operator";

/// The most revisions of a page.
pub const PAGE_REVISIONS: usize = 16;
/// A page of revisions ends once so many changes were looked at, whether or not they pass the filter.
const PAGE_CHANGES: usize = 16_384;
/// The most objects of a page.
pub const PAGE_OBJECTS: usize = 64;
/// A page of objects ends once their contents have so many bytes.
pub const PAGE_BYTES: usize = 256 << 10;

/// Who reads revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The operator, who reads other operators' names.
    Operator,
    /// A tenant's caller.
    Tenant,
}

/// Why a tenant's objects at a revision are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// The latest revision has this number.
    NotYet(u64),
    /// Something after it was forgotten: only revisions from this number on are known.
    Forgotten(u64),
}

/// Some of the revisions that pass a filter, latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionPage {
    /// The revisions.
    pub revisions: Vec<Revision>,
    /// The next page has revisions with smaller numbers than this. None: there is no other page.
    pub before: Option<u64>,
}

/// What a tenant had after a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastContents {
    /// The number of the revision.
    pub number: u64,
    /// The contents of the objects, in the order of kinds and names.
    pub contents: Vec<Digest>,
}

/// What is kept of a tenant's revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryUse {
    /// How many revisions.
    pub revisions: u64,
    /// Their bytes, with those of objects and uploads that they have replaced.
    pub bytes: u64,
    /// What the tenant is sure of, of both.
    pub guaranteed: HistoryLimits,
    /// What all tenants together may have.
    pub limits: HistoryLimits,
}

/// When a tenant was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// In the revision with this number.
    In(u64),
    /// It has no object and no revision. What it may have had was changed in no later revision than this; 0: in none.
    UpTo(u64),
}

/// A revision to undo, as long as no later one touches its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToUndo {
    /// Its number.
    pub number: u64,
    /// The number of the latest revision that touched the tenant.
    pub latest: u64,
}

impl Store {
    /// Returns the latest revisions that pass the filter: at most [`PAGE_REVISIONS`], and fewer if many others lie between.
    pub fn revision_page(&self, reader: Reader, filter: &RevisionFilter) -> Result<RevisionPage, StoreError> {
        self.opened.read(|read| {
            let parts = read.open_table(HISTORY).map_err(|e| self.failed(e))?;
            let order = read.open_table(ORDER).map_err(|e| self.failed(e))?;
            let end = filter.before.unwrap_or(u64::MAX);
            let mut page = Page::new(reader, filter);
            match &filter.tenant {
                Some(tenant) => {
                    let tenant = tenant.as_str();
                    for entry in parts.range((tenant, 0)..(tenant, end)).map_err(|e| self.failed(e))?.rev() {
                        let (key, bytes) = entry.map_err(|e| self.failed(e))?;
                        if !page.has_room_for(key.value().1) {
                            break;
                        }
                        page.add(self, key.value(), bytes.value())?;
                    }
                }
                None => {
                    for entry in order.range(..(end, "")).map_err(|e| self.failed(e))?.rev() {
                        let (key, _) = entry.map_err(|e| self.failed(e))?;
                        let (number, tenant) = key.value();
                        if !page.has_room_for(number) {
                            break;
                        }
                        let bytes = parts.get((tenant, number)).map_err(|e| self.failed(e))?;
                        let bytes = bytes.ok_or_else(|| self.damaged("a revision is missing"))?;
                        page.add(self, (tenant, number), bytes.value())?;
                    }
                }
            }
            Ok(RevisionPage { revisions: page.found, before: page.before })
        })
    }

    /// Returns what is kept of a tenant's revisions.
    pub fn history_use(&self, tenant: &TenantName) -> Result<HistoryUse, StoreError> {
        self.opened.read(|read| {
            let shares = read.open_table(SHARES).map_err(|e| self.failed(e))?;
            let (mut own, mut tenants) = (Share::default(), 0);
            for entry in shares.iter().map_err(|e| self.failed(e))? {
                let (name, row) = entry.map_err(|e| self.failed(e))?;
                let share = Share::of(row.value());
                let is_own = name.value() == tenant.as_str();
                tenants += u64::from(share.parts > 0 && !is_own);
                if is_own {
                    own = share;
                }
            }
            // With one of its own, if it has none yet.
            let HistoryLimits { revisions, bytes } = self.history;
            let guaranteed = HistoryLimits { revisions: revisions / (tenants + 1), bytes: bytes / (tenants + 1) };
            Ok(HistoryUse { revisions: own.parts, bytes: own.bytes, guaranteed, limits: self.history })
        })
    }

    /// Returns what is known of when a tenant was last changed.
    pub fn last_change(&self, tenant: &TenantName) -> Result<LastChange, StoreError> {
        self.opened.read(|read| {
            let parts = read.open_table(HISTORY).map_err(|e| self.failed(e))?;
            let name = tenant.as_str();
            let mut own = parts.range((name, 0)..=(name, u64::MAX)).map_err(|e| self.failed(e))?;
            if let Some(last) = own.next_back() {
                return Ok(LastChange::In(last.map_err(|e| self.failed(e))?.0.value().1));
            }
            let shares = read.open_table(SHARES).map_err(|e| self.failed(e))?;
            let forgotten = self.known_from(read, tenant)?;
            // What was forgotten last was the last that there was.
            Ok(match shares.get(name).map_err(|e| self.failed(e))? {
                Some(_) => LastChange::In(forgotten),
                None => LastChange::UpTo(forgotten),
            })
        })
    }

    /// Returns the tenant's latest revision that touched an object for which this holds.
    pub fn to_undo(
        &self,
        tenant: &TenantName,
        is_meant: impl Fn(&ObjectRef) -> bool,
    ) -> Result<Option<ToUndo>, StoreError> {
        self.opened.read(|read| {
            let mut latest = None;
            for part in self.last_parts(read, tenant)? {
                let (number, changes) = part?;
                let latest = *latest.get_or_insert(number);
                if changes.iter().any(|change| is_meant(&change.object)) {
                    return Ok(Some(ToUndo { number, latest }));
                }
            }
            Ok(None)
        })
    }

    /// Returns what there was of a tenant after a revision, to be read by [`Store::objects`]; none: what there is.
    pub fn contents_at(
        &self,
        tenant: &TenantName,
        number: Option<u64>,
    ) -> Result<Result<PastContents, NotKept>, StoreError> {
        self.opened.read(|read| self.past_contents(read, tenant, number))
    }

    /// Returns the objects of the first of these contents: at most [`PAGE_OBJECTS`], and no more after [`PAGE_BYTES`]. Ends before a
    /// content that was forgotten meanwhile.
    pub fn objects(&self, digests: &[Digest]) -> Result<Vec<Labelled<Object>>, StoreError> {
        self.opened.read(|read| {
            let contents = read.open_table(CONTENTS).map_err(|e| self.failed(e))?;
            let references = read.open_table(REFERENCES).map_err(|e| self.failed(e))?;
            let (mut objects, mut bytes) = (Vec::new(), 0);
            for digest in digests.iter().take(PAGE_OBJECTS) {
                if bytes >= PAGE_BYTES || references.get(digest.as_bytes()).map_err(|e| self.failed(e))?.is_none() {
                    break;
                }
                let content = contents.get(digest.as_bytes()).map_err(|e| self.failed(e))?;
                bytes += content.map_or(0, |content| content.value().len());
                objects.push(decoded(self, &contents, digest)?);
            }
            Ok(objects)
        })
    }

    /// Returns the earliest revision after which everything that touched the tenant is kept.
    pub fn earliest_known(&self, tenant: &TenantName) -> Result<u64, StoreError> {
        self.opened.read(|read| self.known_from(read, tenant))
    }

    fn past_contents(
        &self,
        read: &ReadTransaction,
        tenant: &TenantName,
        number: Option<u64>,
    ) -> Result<Result<PastContents, NotKept>, StoreError> {
        let meta = read.open_table(META).map_err(|e| self.failed(e))?;
        let version = meta.get("version").map_err(|e| self.failed(e))?.map_or(0, |version| version.value());
        let number = number.unwrap_or(version);
        let from = self.known_from(read, tenant)?;
        if number > version {
            return Ok(Err(NotKept::NotYet(version)));
        }
        if number < from {
            return Ok(Err(NotKept::Forgotten(from)));
        }
        let mut objects = self.objects_now(read, tenant)?;
        for part in self.last_parts(read, tenant)? {
            let (later, changes) = part?;
            if later <= number {
                break;
            }
            for ObjectChange { object, before, .. } in changes {
                match before {
                    Some(digest) => objects.insert(object, digest),
                    None => objects.remove(&object),
                };
            }
        }
        Ok(Ok(PastContents { number, contents: objects.into_values().collect() }))
    }

    /// Returns the first number after which everything that touched the tenant is kept.
    fn known_from(&self, read: &ReadTransaction, tenant: &TenantName) -> Result<u64, StoreError> {
        let shares = read.open_table(SHARES).map_err(|e| self.failed(e))?;
        if let Some(share) = shares.get(tenant.as_str()).map_err(|e| self.failed(e))? {
            return Ok(Share::of(share.value()).forgotten);
        }
        let meta = read.open_table(META).map_err(|e| self.failed(e))?;
        Ok(meta.get(FORGOTTEN).map_err(|e| self.failed(e))?.map_or(0, |number| number.value()))
    }

    fn objects_now(
        &self,
        read: &ReadTransaction,
        tenant: &TenantName,
    ) -> Result<BTreeMap<ObjectRef, Digest>, StoreError> {
        let table = read.open_table(OBJECTS).map_err(|e| self.failed(e))?;
        let mut objects = BTreeMap::new();
        for (kind, name, digest) in objects_of(self, &table, tenant.as_str())? {
            let object = crate::wire::object_ref(kind.into(), tenant.as_str(), &name);
            objects.insert(object.map_err(|bad| self.damaged(bad))?, digest);
        }
        Ok(objects)
    }

    /// Returns a tenant's revisions with what they did, latest first.
    fn last_parts<'s>(
        &'s self,
        read: &ReadTransaction,
        tenant: &'s TenantName,
    ) -> Result<impl Iterator<Item = Result<(u64, Vec<ObjectChange>), StoreError>> + use<'s>, StoreError> {
        let parts = read.open_table(HISTORY).map_err(|e| self.failed(e))?;
        let all = parts.range((tenant.as_str(), 0)..=(tenant.as_str(), u64::MAX)).map_err(|e| self.failed(e))?;
        Ok(all.rev().map(move |entry| {
            let (key, bytes) = entry.map_err(|e| self.failed(e))?;
            let mut part = StoredPart::decoded(self, bytes.value())?;
            Ok((key.value().1, part.take_changes(self, tenant.as_str())?))
        }))
    }
}

/// A page while it is filled.
struct Page<'f> {
    reader: Reader,
    filter: &'f RevisionFilter,
    found: Vec<Revision>,
    /// The number of the revision whose parts are being added.
    current: Option<u64>,
    /// How many changes were looked at.
    looked_at: usize,
    before: Option<u64>,
}

impl<'f> Page<'f> {
    fn new(reader: Reader, filter: &'f RevisionFilter) -> Self {
        Self { reader, filter, found: Vec::new(), current: None, looked_at: 0, before: None }
    }

    /// Returns whether a part of this revision can be added. All parts of a revision are on one page.
    fn has_room_for(&mut self, number: u64) -> bool {
        let is_full = self.found.len() >= self.filter.limit.min(PAGE_REVISIONS) || self.looked_at >= PAGE_CHANGES;
        if self.current.is_some_and(|current| current != number) && is_full {
            self.before = Some(number + 1);
            return false;
        }
        self.current = Some(number);
        true
    }

    fn add(&mut self, store: &Store, (tenant, number): (&str, u64), bytes: &[u8]) -> Result<(), StoreError> {
        let mut part = StoredPart::decoded(store, bytes)?;
        self.looked_at += part.changes.len();
        let mut changes = part.take_changes(store, tenant)?;
        changes.retain(|change| self.filter.is_meant(&change.object));
        match self.found.last_mut() {
            _ if changes.is_empty() => {}
            Some(last) if last.number == number => merge(last, changes),
            _ => self.found.push(revision(self.reader, number, part, changes)),
        }
        Ok(())
    }
}

fn revision(reader: Reader, number: u64, part: StoredPart, changes: Vec<ObjectChange>) -> Revision {
    let is_hidden = reader == Reader::Tenant && part.author_tenant.is_none();
    let author = if is_hidden { THE_OPERATOR.to_owned() } else { part.author };
    let mut revision = Revision {
        number,
        author,
        time_unix_ms: part.time_unix_ms,
        counts: ChangeCounts::default(),
        changes: Vec::new(),
    };
    merge(&mut revision, changes);
    revision
}

/// Adds changes to a revision, as many as it may list.
fn merge(revision: &mut Revision, changes: Vec<ObjectChange>) {
    let counts = ChangeCounts::of(&changes);
    revision.counts.created += counts.created;
    revision.counts.configured += counts.configured;
    revision.counts.deleted += counts.deleted;
    let room = Revision::CHANGES_LISTED_MAX.saturating_sub(revision.changes.len());
    revision.changes.extend(changes.into_iter().take(room));
}

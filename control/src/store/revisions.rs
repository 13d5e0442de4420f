//! Reads the kept revisions, and makes room for uploads by forgetting some.

use std::collections::BTreeMap;
use std::time::SystemTime;

use redb::ReadTransaction;

use super::contents::{CONTENTS, Contents, KINDS, NEEDS, OBJECTS, REFERENCES, decoded, read_object};
use super::garbage::spared_from;
use super::history::{FORGOTTEN, HISTORY, History, ORDER, SHARES, StoredPart};
use super::{META, SEALED, Store, StoreError, UPLOADS};
use crate::model::{
    ChangeCounts, Digest, Object, ObjectChange, ObjectRef, Revision, RevisionFilter, StoredUpload, TenantName,
};

/// How a tenant's callers are told of all operators.
const THE_OPERATOR: &str = "the operator";

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

impl Store {
    /// Returns the revisions that pass the filter, latest first.
    pub fn revisions(&self, reader: Reader, filter: &RevisionFilter) -> Result<Vec<Revision>, StoreError> {
        self.opened.read(|read| {
            let parts = read.open_table(HISTORY).map_err(|e| self.failed(e))?;
            let order = read.open_table(ORDER).map_err(|e| self.failed(e))?;
            let end = filter.before.unwrap_or(u64::MAX);
            let mut found: Vec<Revision> = Vec::new();
            let mut add = |tenant: &str, number: u64, bytes: &[u8]| {
                let mut part = StoredPart::decoded(self, bytes)?;
                let mut changes = part.take_changes(self, tenant)?;
                changes.retain(|change| filter.is_meant(&change.object));
                if changes.is_empty() {
                    return Ok(true);
                }
                let is_full = found.len() == filter.limit;
                match found.last_mut() {
                    Some(last) if last.number == number => merge(last, changes),
                    _ if is_full => return Ok(false),
                    _ => found.push(revision(reader, number, part, changes)),
                }
                Ok::<_, StoreError>(true)
            };
            match &filter.tenant {
                Some(tenant) => {
                    let tenant = tenant.as_str();
                    for entry in parts.range((tenant, 0)..(tenant, end)).map_err(|e| self.failed(e))?.rev() {
                        let (key, bytes) = entry.map_err(|e| self.failed(e))?;
                        if !add(tenant, key.value().1, bytes.value())? {
                            break;
                        }
                    }
                }
                None => {
                    for entry in order.range(..(end, "")).map_err(|e| self.failed(e))?.rev() {
                        let (key, _) = entry.map_err(|e| self.failed(e))?;
                        let (number, tenant) = key.value();
                        let bytes = parts.get((tenant, number)).map_err(|e| self.failed(e))?;
                        let bytes = bytes.ok_or_else(|| self.damaged("a revision is missing"))?;
                        if !add(tenant, number, bytes.value())? {
                            break;
                        }
                    }
                }
            }
            Ok(found)
        })
    }

    /// Returns the number of the latest revision that touched one of these tenants. If it was forgotten, a later number that
    /// is no later than the latest of all; 0 if there was none.
    pub fn latest_of<'t>(&self, tenants: impl IntoIterator<Item = &'t TenantName> + Clone) -> Result<u64, StoreError> {
        self.opened.read(|read| {
            let mut latest = 0;
            for tenant in tenants.clone() {
                let own = match self.last_parts(read, tenant)?.next() {
                    Some(part) => part?.0,
                    None => self.known_from(read, tenant)?,
                };
                latest = latest.max(own);
            }
            Ok(latest)
        })
    }

    /// Returns the number of the tenant's latest revision that touched an object for which this holds.
    pub fn latest_that(
        &self,
        tenant: &TenantName,
        is_meant: impl Fn(&ObjectRef) -> bool,
    ) -> Result<Option<u64>, StoreError> {
        self.opened.read(|read| {
            for part in self.last_parts(read, tenant)? {
                let (number, changes) = part?;
                if changes.iter().any(|change| is_meant(&change.object)) {
                    return Ok(Some(number));
                }
            }
            Ok(None)
        })
    }

    /// Returns a tenant's objects and its terms as they were after a revision; none: as they are.
    pub fn objects_at(
        &self,
        tenant: &TenantName,
        number: Option<u64>,
    ) -> Result<Result<Vec<Object>, NotKept>, StoreError> {
        self.opened.read(|read| {
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
            let contents = read.open_table(CONTENTS).map_err(|e| self.failed(e))?;
            let objects = objects.values().map(|digest| decoded(self, &contents, digest));
            objects.collect::<Result<_, _>>().map(Ok)
        })
    }

    /// Forgets as many of a tenant's oldest revisions as it takes until its uploads fit, and removes garbage. Forgets none,
    /// and returns false, if that does not help.
    pub fn forget_until(
        &self,
        tenant: &TenantName,
        now: SystemTime,
        fits: impl Fn(&[StoredUpload]) -> bool,
    ) -> Result<bool, StoreError> {
        let Some(count) = self.count_to_forget(tenant, now, fits)? else { return Ok(false) };
        self.opened.write(0, |write| {
            let mut contents = Contents::open(self, write)?;
            let mut history = History::open(self, write)?;
            for _ in 0..count {
                history.forget_oldest(&mut contents, tenant.as_str(), u64::MAX)?;
            }
            drop((contents, history));
            self.remove_garbage(write, now)
        })?;
        Ok(true)
    }

    /// Returns how many revisions it would take, with uploads of the last hour kept.
    fn count_to_forget(
        &self,
        tenant: &TenantName,
        now: SystemTime,
        fits: impl Fn(&[StoredUpload]) -> bool,
    ) -> Result<Option<usize>, StoreError> {
        let uploads = self.uploads()?;
        self.opened.read(|read| {
            let mut uploads = uploads.clone();
            let young = self.young_uploads(read, tenant, now)?;
            let parts = read.open_table(HISTORY).map_err(|e| self.failed(e))?;
            let contents = read.open_table(CONTENTS).map_err(|e| self.failed(e))?;
            let references = read.open_table(REFERENCES).map_err(|e| self.failed(e))?;
            let needs = read.open_table(NEEDS).map_err(|e| self.failed(e))?;
            let (mut released, mut needed) = (BTreeMap::<Digest, u64>::new(), BTreeMap::<Digest, u64>::new());
            let all = parts.range((tenant.as_str(), 0)..=(tenant.as_str(), u64::MAX)).map_err(|e| self.failed(e))?;
            for (at, entry) in all.enumerate() {
                let (_, bytes) = entry.map_err(|e| self.failed(e))?;
                let changes = StoredPart::decoded(self, bytes.value())?.take_changes(self, tenant.as_str())?;
                let mut is_freed = false;
                for digest in changes.iter().flat_map(|change| [change.before, change.after]).flatten() {
                    let held =
                        references.get(digest.as_bytes()).map_err(|e| self.failed(e))?.map_or(0, |it| it.value());
                    let gone = released.entry(digest).or_default();
                    *gone += 1;
                    if *gone < held {
                        continue;
                    }
                    let uploads_of =
                        read_object(self, &contents, &digest)?.map_or_else(|_| Vec::new(), |it| it.uploads());
                    for (upload, _) in uploads_of {
                        let key = (tenant.as_str(), upload.as_bytes());
                        let wanted = needs.get(key).map_err(|e| self.failed(e))?.map_or(0, |it| it.value());
                        let gone = needed.entry(upload).or_default();
                        *gone += 1;
                        if *gone == wanted && !young.contains(&upload) {
                            uploads.retain(|it| it.tenant != *tenant || it.digest != upload);
                            is_freed = true;
                        }
                    }
                }
                if is_freed && fits(&uploads) {
                    return Ok(Some(at + 1));
                }
            }
            Ok(None)
        })
    }

    /// Returns the uploads of a tenant that are too young to be removed.
    fn young_uploads(
        &self,
        read: &ReadTransaction,
        tenant: &TenantName,
        now: SystemTime,
    ) -> Result<Vec<Digest>, StoreError> {
        let (first, last) = ((tenant.as_str(), &[0_u8; 32]), (tenant.as_str(), &[0xff_u8; 32]));
        let mut young = Vec::new();
        let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        for entry in uploads.range(first..=last).map_err(|e| self.failed(e))? {
            let (key, value) = entry.map_err(|e| self.failed(e))?;
            if value.value().0 > spared_from(now) {
                young.push(Digest::from_bytes(*key.value().1));
            }
        }
        let keys = read.open_table(SEALED).map_err(|e| self.failed(e))?;
        for entry in keys.range(first..=last).map_err(|e| self.failed(e))? {
            let (key, value) = entry.map_err(|e| self.failed(e))?;
            if value.value().0 > spared_from(now) {
                young.push(Digest::from_bytes(*key.value().1));
            }
        }
        Ok(young)
    }

    /// Returns the first number after which everything that touched the tenant is kept.
    fn known_from(&self, read: &ReadTransaction, tenant: &TenantName) -> Result<u64, StoreError> {
        let shares = read.open_table(SHARES).map_err(|e| self.failed(e))?;
        if let Some(share) = shares.get(tenant.as_str()).map_err(|e| self.failed(e))? {
            return Ok(share.value().3);
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
        for kind in KINDS {
            // No name is longer than this one, or sorts after it.
            let (first, last) = ((kind, tenant.as_str(), ""), (kind, tenant.as_str(), "\u{10ffff}"));
            for entry in table.range(first..=last).map_err(|e| self.failed(e))? {
                let (key, digest) = entry.map_err(|e| self.failed(e))?;
                let object = crate::wire::object_ref(kind.into(), tenant.as_str(), key.value().2);
                let object = object.map_err(|bad| self.damaged(bad))?;
                objects.insert(object, Digest::from_bytes(*digest.value()));
            }
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

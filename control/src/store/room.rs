//! Room for uploads: which revisions have to be forgotten for one, so that uploads which only they need can go.
//!
//! Forgetting is tried on what a read transaction sees, and done in the transaction that stores the upload. So an upload that is
//! not stored has cost no revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, WriteTransaction};

use super::contents::{CONTENTS, Contents, NEEDS, REFERENCES, UploadKey, read_object};
use super::garbage::spared_from;
use super::history::{HISTORY, History, PartKey, StoredPart};
use super::{SEALED, Store, StoreError, UPLOADS};
use crate::model::{Digest, StoredUpload, TenantName};

/// How many of its oldest revisions each of these tenants has to give up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToForget(BTreeMap<TenantName, usize>);

impl Store {
    /// Returns which revisions have to be forgotten until uploads of this tenant fit. None: that does not help.
    pub fn to_forget(
        &self,
        tenant: &TenantName,
        now: SystemTime,
        fits: impl Fn(&[StoredUpload]) -> bool,
    ) -> Result<Option<ToForget>, StoreError> {
        let uploads = self.uploads()?;
        self.opened.read(|read| {
            let mut trial = Trial::new(self, read, uploads.clone(), now)?;
            while let Some(freed) = trial.forget_oldest(tenant)? {
                if freed > 0 && fits(&trial.uploads) {
                    return Ok(Some(ToForget(trial.forgotten)));
                }
            }
            Ok(None)
        })
    }

    /// Forgets these revisions, and removes what nothing needs then.
    pub(super) fn forget(
        &self,
        write: &WriteTransaction,
        ToForget(counts): &ToForget,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        if counts.is_empty() {
            return Ok(());
        }
        let mut contents = Contents::open(self, write)?;
        let mut history = History::open(self, write)?;
        for (tenant, count) in counts {
            for _ in 0..*count {
                history.forget_oldest(&mut contents, tenant.as_str(), u64::MAX)?;
            }
        }
        drop((contents, history));
        self.remove_garbage(write, now).map(drop)
    }
}

/// Revisions that are forgotten on trial.
struct Trial<'s> {
    store: &'s Store,
    parts: ReadOnlyTable<PartKey, &'static [u8]>,
    contents: ReadOnlyTable<&'static [u8; 32], &'static [u8]>,
    references: ReadOnlyTable<&'static [u8; 32], u64>,
    needs: ReadOnlyTable<UploadKey, u64>,
    /// What is too young to be removed.
    young: BTreeSet<(TenantName, Digest)>,
    /// What would be left.
    uploads: Vec<StoredUpload>,
    /// How many parts of each tenant were forgotten.
    forgotten: BTreeMap<TenantName, usize>,
    /// Where the rest of each tenant's parts begins.
    rest: BTreeMap<TenantName, u64>,
    /// How many references to each content were released.
    released: BTreeMap<Digest, u64>,
    /// How many contents that needed an upload are gone.
    gone: BTreeMap<(TenantName, Digest), u64>,
}

impl<'s> Trial<'s> {
    fn new(
        store: &'s Store,
        read: &ReadTransaction,
        uploads: Vec<StoredUpload>,
        now: SystemTime,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            parts: read.open_table(HISTORY).map_err(|e| store.failed(e))?,
            contents: read.open_table(CONTENTS).map_err(|e| store.failed(e))?,
            references: read.open_table(REFERENCES).map_err(|e| store.failed(e))?,
            needs: read.open_table(NEEDS).map_err(|e| store.failed(e))?,
            young: young_uploads(store, read, now)?,
            uploads,
            forgotten: BTreeMap::new(),
            rest: BTreeMap::new(),
            released: BTreeMap::new(),
            gone: BTreeMap::new(),
        })
    }

    /// Forgets the tenant's oldest part that is left. Returns how many uploads that frees; none if it has no part.
    fn forget_oldest(&mut self, tenant: &TenantName) -> Result<Option<usize>, StoreError> {
        let name = tenant.as_str();
        let from = self.rest.get(tenant).copied().unwrap_or(0);
        let mut parts = self.parts.range((name, from)..=(name, u64::MAX)).map_err(|e| self.store.failed(e))?;
        let Some(entry) = parts.next() else { return Ok(None) };
        let (key, bytes) = entry.map_err(|e| self.store.failed(e))?;
        self.rest.insert(tenant.clone(), key.value().1 + 1);
        *self.forgotten.entry(tenant.clone()).or_default() += 1;
        let changes = StoredPart::decoded(self.store, bytes.value())?.take_changes(self.store, name)?;
        let mut freed = 0;
        for digest in changes.iter().flat_map(|change| [change.before, change.after]).flatten() {
            if !self.release(&digest)? {
                continue;
            }
            let object = read_object(self.store, &self.contents, &digest)?;
            for (upload, _) in object.map_or_else(|_| Vec::new(), |object| object.uploads()) {
                if self.needs_no_more(tenant, upload)? {
                    self.uploads.retain(|it| it.tenant != *tenant || it.digest != upload);
                    freed += 1;
                }
            }
        }
        Ok(Some(freed))
    }

    /// Releases a reference. Returns whether it was the last one to the content.
    fn release(&mut self, digest: &Digest) -> Result<bool, StoreError> {
        let held = self.references.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        let released = self.released.entry(*digest).or_default();
        *released += 1;
        Ok(held.is_some_and(|held| held.value() == *released))
    }

    /// Notes that a content that needs an upload is gone. Returns whether the upload can go, too.
    fn needs_no_more(&mut self, tenant: &TenantName, upload: Digest) -> Result<bool, StoreError> {
        let needed = self.needs.get((tenant.as_str(), upload.as_bytes())).map_err(|e| self.store.failed(e))?;
        let of = (tenant.clone(), upload);
        let is_young = self.young.contains(&of);
        let gone = self.gone.entry(of).or_default();
        *gone += 1;
        Ok(!is_young && needed.is_some_and(|needed| needed.value() == *gone))
    }
}

/// Returns the uploads that are too young to be removed.
fn young_uploads(
    store: &Store,
    read: &ReadTransaction,
    now: SystemTime,
) -> Result<BTreeSet<(TenantName, Digest)>, StoreError> {
    let mut young = BTreeSet::new();
    let mut note = |(tenant, digest): (&str, &[u8; 32]), when| {
        if when > spared_from(now) {
            let tenant = TenantName::new(tenant).map_err(|bad| store.damaged(bad))?;
            young.insert((tenant, Digest::from_bytes(*digest)));
        }
        Ok::<_, StoreError>(())
    };
    for entry in read.open_table(UPLOADS).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
        let (key, value) = entry.map_err(|e| store.failed(e))?;
        note(key.value(), value.value().0)?;
    }
    for entry in read.open_table(SEALED).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
        let (key, value) = entry.map_err(|e| store.failed(e))?;
        note(key.value(), value.value().0)?;
    }
    Ok(young)
}

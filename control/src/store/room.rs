//! Room for uploads: which revisions have to be forgotten for one, so that uploads which only they need can go.
//!
//! The tenant's own oldest revisions give way first. If they are not enough, those of other tenants do: of the tenant that has most
//! uploads which only revisions need, as long as that is more than the little of which each tenant is sure.
//!
//! Forgetting is tried on what a read transaction sees, and done in the transaction that stores the upload. So an upload that is
//! not stored has cost no revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, WriteTransaction};

use super::contents::{CONTENTS, Contents, NEEDS, REFERENCES, UploadKey, read_needs};
use super::garbage::spared_from;
use super::history::{HISTORY, History, PartKey, StoredPart};
use super::{SEALED, Store, StoreError, UPLOADS};
use crate::model::{Digest, StoredUpload, TenantName, UploadShortage};

/// How many of its oldest revisions each of these tenants has to give up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToForget(pub(super) BTreeMap<TenantName, usize>);

impl Store {
    /// Returns which revisions have to be forgotten until `check` has no objection to an upload of this tenant. Objects of the
    /// desired state need the uploads `named`. None: that does not help.
    pub fn to_forget(
        &self,
        tenant: &TenantName,
        named: &BTreeSet<(TenantName, Digest)>,
        now: SystemTime,
        check: impl Fn(&[StoredUpload]) -> Result<(), Box<UploadShortage>>,
    ) -> Result<Option<ToForget>, StoreError> {
        let uploads = self.uploads()?;
        let Err(shortage) = check(&uploads) else { return Ok(Some(ToForget::default())) };
        self.opened.read(|read| {
            let begin = || Trial::new(self, read, uploads.clone(), now);
            let fits = |uploads: &[StoredUpload]| check(uploads).is_ok();
            let mut own = begin()?;
            if own.forget_own(tenant, &fits)? {
                return Ok(Some(ToForget(own.forgotten)));
            }
            if !shortage.is_others_doing() {
                return Ok(None);
            }
            // Without the tenant's own, if that is enough.
            for mut trial in [begin()?, own] {
                if trial.forget_others(tenant, named, &shortage, &fits)? {
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

    /// Forgets the tenant's parts, the oldest first, until the uploads fit. Returns whether they do.
    fn forget_own(&mut self, tenant: &TenantName, fits: &impl Fn(&[StoredUpload]) -> bool) -> Result<bool, StoreError> {
        while let Some(freed) = self.forget_oldest(tenant)? {
            if !freed.is_empty() && fits(&self.uploads) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Forgets parts of other tenants until the uploads fit: each time the oldest one of the tenant that has most of what is short, as
    /// far as only revisions need it. Returns whether they fit.
    fn forget_others(
        &mut self,
        tenant: &TenantName,
        named: &BTreeSet<(TenantName, Digest)>,
        shortage: &UploadShortage,
        fits: &impl Fn(&[StoredUpload]) -> bool,
    ) -> Result<bool, StoreError> {
        let mut kept = self.kept_by_revisions(named, shortage)?;
        kept.remove(tenant);
        loop {
            let most =
                kept.iter().max_by_key(|(_, amount)| **amount).filter(|(_, amount)| **amount > shortage.little());
            let Some(tenant) = most.map(|(tenant, _)| tenant.clone()) else { return Ok(false) };
            let Some(freed) = self.forget_oldest(&tenant)? else {
                kept.remove(&tenant);
                continue;
            };
            if !freed.is_empty() && fits(&self.uploads) {
                return Ok(true);
            }
            let gone: u64 = freed.iter().map(|upload| shortage.amount(upload)).sum();
            kept.entry(tenant).and_modify(|amount| *amount = amount.saturating_sub(gone));
        }
    }

    /// Returns how much of what is short each tenant has in uploads that revisions need and objects do not.
    fn kept_by_revisions(
        &self,
        named: &BTreeSet<(TenantName, Digest)>,
        shortage: &UploadShortage,
    ) -> Result<BTreeMap<TenantName, u64>, StoreError> {
        let mut kept = BTreeMap::new();
        for upload in &self.uploads {
            let of = (upload.tenant.clone(), upload.digest);
            if named.contains(&of) || self.young.contains(&of) {
                continue;
            }
            let needed = self.needs.get((upload.tenant.as_str(), upload.digest.as_bytes()));
            if needed.map_err(|e| self.store.failed(e))?.is_some() {
                *kept.entry(of.0).or_default() += shortage.amount(upload);
            }
        }
        Ok(kept)
    }

    /// Forgets the tenant's oldest part that is left. Returns the uploads that this frees; none if there is no part.
    fn forget_oldest(&mut self, tenant: &TenantName) -> Result<Option<Vec<StoredUpload>>, StoreError> {
        let name = tenant.as_str();
        let from = self.rest.get(tenant).copied().unwrap_or(0);
        let mut parts = self.parts.range((name, from)..=(name, u64::MAX)).map_err(|e| self.store.failed(e))?;
        let Some(entry) = parts.next() else { return Ok(None) };
        let (key, bytes) = entry.map_err(|e| self.store.failed(e))?;
        self.rest.insert(tenant.clone(), key.value().1 + 1);
        *self.forgotten.entry(tenant.clone()).or_default() += 1;
        let mut freed = BTreeSet::new();
        for digest in StoredPart::decoded(self.store, bytes.value())?.digests() {
            if !self.release(&digest)? {
                continue;
            }
            for upload in read_needs(self.store, &self.contents, &digest)?.uploads.into_keys() {
                if self.needs_no_more(tenant, upload)? {
                    freed.insert(upload);
                }
            }
        }
        let is_freed = |upload: &mut StoredUpload| upload.tenant == *tenant && freed.contains(&upload.digest);
        Ok(Some(self.uploads.extract_if(.., is_freed).collect()))
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

//! What the store counts beside objects and revisions: references, needs, and the totals of revisions. All of it follows from
//! objects and revisions, so it can be checked, and written anew.

use std::collections::{BTreeMap, BTreeSet};

use redb::{ReadTransaction, ReadableTable, WriteTransaction};

use super::contents::{CONTENTS, NEEDS, OBJECTS, ObjectKey, REFERENCES, read_needs};
use super::history::{FORGOTTEN, HISTORY, ORDER, PART_BYTES, PARTS, PartKey, SHARES, Share, StoredPart};
use super::needs::Needs;
use super::{META, Store, StoreError};
use crate::model::{Digest, ObjectChange};
use crate::proto;

/// The counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The contents that are stored, or have to be.
    pub(super) contents: BTreeSet<Digest>,
    /// How many objects and revisions refer to a content.
    pub(super) references: BTreeMap<Digest, u64>,
    /// How many contents need an upload of a tenant, or objects a key.
    pub(super) needs: BTreeMap<(String, Digest), u64>,
    /// The parts of revisions, by number.
    pub(super) order: BTreeSet<(u64, String)>,
    /// Of each tenant that has a part or an object: parts, bytes, the oldest part.
    pub(super) shares: BTreeMap<String, (u64, u64, u64)>,
    /// Parts and bytes of all tenants.
    pub(super) totals: (u64, u64),
    /// The last part of each tenant that cannot be read. None is kept.
    pub(super) torn: BTreeMap<String, u64>,
}

impl Counts {
    /// Returns what the counts have to be. Parts of revisions that cannot be read, and those before them, are not counted:
    /// nothing can be returned to beyond them.
    pub(super) fn expected(store: &Store, read: &ReadTransaction) -> Result<Self, StoreError> {
        Self::of(
            store,
            &read.open_table(OBJECTS).map_err(|e| store.failed(e))?,
            &read.open_table(HISTORY).map_err(|e| store.failed(e))?,
            &read.open_table(CONTENTS).map_err(|e| store.failed(e))?,
        )
    }

    fn of(
        store: &Store,
        objects: &impl ReadableTable<ObjectKey, &'static [u8; 32]>,
        parts: &impl ReadableTable<PartKey, &'static [u8]>,
        contents: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    ) -> Result<Self, StoreError> {
        let (mut counts, mut keys) = (Self::default(), BTreeMap::<Digest, u64>::new());
        for entry in objects.iter().map_err(|e| store.failed(e))? {
            let (key, digest) = entry.map_err(|e| store.failed(e))?;
            counts.shares.entry(key.value().1.to_owned()).or_default();
            let (kind, digest) = (key.value().0, Digest::from_bytes(*digest.value()));
            *counts.references.entry(digest).or_default() += 1;
            if i32::from(kind) == proto::Kind::Key as i32 {
                *keys.entry(digest).or_default() += 1;
            }
        }
        for entry in parts.iter().map_err(|e| store.failed(e))?.rev() {
            let (key, bytes) = entry.map_err(|e| store.failed(e))?;
            counts.add_part(store, key.value(), bytes.value());
        }
        for digest in counts.references.keys() {
            if contents.get(digest.as_bytes()).map_err(|e| store.failed(e))?.is_some() {
                counts.contents.insert(*digest);
            }
            let Needs { tenant, uploads, key } = read_needs(store, contents, digest)?;
            for upload in uploads.into_keys() {
                *counts.needs.entry((tenant.clone(), upload)).or_default() += 1;
            }
            if let Some((key, count)) = key.zip(keys.get(digest)) {
                *counts.needs.entry((tenant, key)).or_default() += count;
            }
        }
        Ok(counts)
    }

    /// Adds a part. Each tenant's are added latest first.
    fn add_part(&mut self, store: &Store, (tenant, number): (&str, u64), bytes: &[u8]) {
        if self.torn.contains_key(tenant) {
            return;
        }
        let Ok((part_bytes, changes)) = read_part(store, tenant, bytes) else {
            self.torn.insert(tenant.to_owned(), number);
            return;
        };
        for digest in changes.iter().flat_map(|change| [change.before, change.after]).flatten() {
            *self.references.entry(digest).or_default() += 1;
        }
        self.order.insert((number, tenant.to_owned()));
        let (parts, bytes, oldest) = self.shares.entry(tenant.to_owned()).or_default();
        (*parts, *bytes, *oldest) = (*parts + 1, *bytes + part_bytes, number);
        self.totals = (self.totals.0 + 1, self.totals.1 + part_bytes);
    }

    /// Returns the counts that are stored.
    pub(super) fn stored(store: &Store, read: &ReadTransaction) -> Result<Self, StoreError> {
        let mut counts = Self::default();
        for entry in read.open_table(CONTENTS).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
            counts.contents.insert(Digest::from_bytes(*entry.map_err(|e| store.failed(e))?.0.value()));
        }
        for entry in read.open_table(REFERENCES).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
            let (digest, count) = entry.map_err(|e| store.failed(e))?;
            counts.references.insert(Digest::from_bytes(*digest.value()), count.value());
        }
        for entry in read.open_table(NEEDS).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
            let (key, count) = entry.map_err(|e| store.failed(e))?;
            let (tenant, digest) = key.value();
            counts.needs.insert((tenant.to_owned(), Digest::from_bytes(*digest)), count.value());
        }
        for entry in read.open_table(ORDER).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
            let (key, _) = entry.map_err(|e| store.failed(e))?;
            let (number, tenant) = key.value();
            counts.order.insert((number, tenant.to_owned()));
        }
        for entry in read.open_table(SHARES).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
            let (tenant, row) = entry.map_err(|e| store.failed(e))?;
            let Share { parts, bytes, oldest, .. } = Share::of(row.value());
            counts.shares.insert(tenant.value().to_owned(), (parts, bytes, oldest));
        }
        let meta = read.open_table(META).map_err(|e| store.failed(e))?;
        let total =
            |name| Ok::<u64, StoreError>(meta.get(name).map_err(|e| store.failed(e))?.map_or(0, |total| total.value()));
        counts.totals = (total(PARTS)?, total(PART_BYTES)?);
        Ok(counts)
    }

    /// Forgets the parts of revisions that cannot be read, with those before them, and writes all counts anew.
    pub(super) fn mend(store: &Store, write: &WriteTransaction) -> Result<(), StoreError> {
        let counts = {
            let objects = write.open_table(OBJECTS).map_err(|e| store.failed(e))?;
            let parts = write.open_table(HISTORY).map_err(|e| store.failed(e))?;
            let contents = write.open_table(CONTENTS).map_err(|e| store.failed(e))?;
            Self::of(store, &objects, &parts, &contents)?
        };
        counts.write_contents(store, write)?;
        counts.write_revisions(store, write)
    }

    fn write_contents(&self, store: &Store, write: &WriteTransaction) -> Result<(), StoreError> {
        let mut contents = write.open_table(CONTENTS).map_err(|e| store.failed(e))?;
        let is_used = |digest: &[u8; 32]| self.contents.contains(&Digest::from_bytes(*digest));
        contents.retain(|digest, _| is_used(digest)).map_err(|e| store.failed(e))?;
        let mut references = write.open_table(REFERENCES).map_err(|e| store.failed(e))?;
        references.retain(|_, _| false).map_err(|e| store.failed(e))?;
        for (digest, count) in &self.references {
            references.insert(digest.as_bytes(), count).map_err(|e| store.failed(e))?;
        }
        let mut needs = write.open_table(NEEDS).map_err(|e| store.failed(e))?;
        needs.retain(|_, _| false).map_err(|e| store.failed(e))?;
        for ((tenant, digest), count) in &self.needs {
            needs.insert((&**tenant, digest.as_bytes()), count).map_err(|e| store.failed(e))?;
        }
        Ok(())
    }

    fn write_revisions(&self, store: &Store, write: &WriteTransaction) -> Result<(), StoreError> {
        let mut parts = write.open_table(HISTORY).map_err(|e| store.failed(e))?;
        let is_torn = |tenant: &str, number| self.torn.get(tenant).is_some_and(|torn| number <= *torn);
        parts.retain(|(tenant, number), _| !is_torn(tenant, number)).map_err(|e| store.failed(e))?;
        let mut order = write.open_table(ORDER).map_err(|e| store.failed(e))?;
        order.retain(|_, ()| false).map_err(|e| store.failed(e))?;
        for (number, tenant) in &self.order {
            order.insert((*number, &**tenant), ()).map_err(|e| store.failed(e))?;
        }
        let mut meta = write.open_table(META).map_err(|e| store.failed(e))?;
        let gone = self.torn.iter().filter(|(tenant, _)| !self.shares.contains_key(*tenant)).map(|(_, number)| *number);
        let forgotten = meta.get(FORGOTTEN).map_err(|e| store.failed(e))?.map_or(0, |number| number.value());
        let forgotten = forgotten.max(gone.max().unwrap_or(0));
        for (name, value) in [(PARTS, self.totals.0), (PART_BYTES, self.totals.1), (FORGOTTEN, forgotten)] {
            meta.insert(name, value).map_err(|e| store.failed(e))?;
        }
        let mut shares = write.open_table(SHARES).map_err(|e| store.failed(e))?;
        shares.retain(|tenant, _| self.shares.contains_key(tenant)).map_err(|e| store.failed(e))?;
        for (tenant, (count, bytes, oldest)) in &self.shares {
            // Without a record of what was forgotten, nothing before the oldest part counts as known.
            let unrecorded = forgotten.max(oldest.saturating_sub(1));
            let recorded = shares.get(&**tenant).map_err(|e| store.failed(e))?.map(|row| Share::of(row.value()));
            let forgotten = recorded.map_or(unrecorded, |share| share.forgotten);
            let forgotten = forgotten.max(self.torn.get(tenant).copied().unwrap_or(0));
            let share = Share { parts: *count, bytes: *bytes, oldest: *oldest, forgotten };
            shares.insert(&**tenant, share.stored()).map_err(|e| store.failed(e))?;
        }
        Ok(())
    }
}

fn read_part(store: &Store, tenant: &str, bytes: &[u8]) -> Result<(u64, Vec<ObjectChange>), StoreError> {
    let mut part = StoredPart::decoded(store, bytes)?;
    Ok((part.bytes, part.take_changes(store, tenant)?))
}

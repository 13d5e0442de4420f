//! The kept revisions: what each change did to each tenant's objects, written in the transaction of the change itself.
//!
//! ```text
//!   history  (tenant, number) -> who, when, and of each object the digests before and after
//!   order    (number, tenant)                                           the same parts, by number
//!   share    tenant -> parts, bytes, the oldest part, the last number that was forgotten
//! ```
//!
//! A tenant has a share as long as it has a part or an object.
//!
//! A revision is stored in parts, one for each tenant that it touched, so each tenant has a history of its own. Its oldest parts
//! are forgotten once there are more than may be kept ([`trim`]).

mod trim;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::contents::{Contents, OBJECTS, ObjectKey, has_objects, kind_number};
use super::{META, Store, StoreError};
use crate::model::{Author, Digest, HistoryLimits, ObjectChange, TenantName};
use crate::wire::object_ref;

/// The tenant, and the number of the revision.
pub(super) type PartKey = (&'static str, u64);
/// A [`Share`] as it is stored: its fields in their order.
type StoredShare = (u64, u64, u64, u64);

pub(super) const HISTORY: TableDefinition<PartKey, &[u8]> = TableDefinition::new("history");
pub(super) const ORDER: TableDefinition<(u64, &str), ()> = TableDefinition::new("order");
pub(super) const SHARES: TableDefinition<&str, StoredShare> = TableDefinition::new("share");

/// The number of parts of all tenants, in META.
pub(super) const PARTS: &str = "history_parts";
/// Their bytes, in META.
pub(super) const PART_BYTES: &str = "history_bytes";
/// The last number of which a part was forgotten whose tenant has nothing left, in META.
pub(super) const FORGOTTEN: &str = "history_forgotten";

/// What is kept of a tenant's revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// How many parts.
    pub(super) parts: u64,
    /// What is charged for them, in bytes.
    pub(super) bytes: u64,
    /// The number of the oldest one; 0 if there is none.
    pub(super) oldest: u64,
    /// The last number that was forgotten.
    pub(super) forgotten: u64,
}

impl Share {
    pub(super) fn of((parts, bytes, oldest, forgotten): StoredShare) -> Self {
        Self { parts, bytes, oldest, forgotten }
    }

    pub(super) fn stored(self) -> StoredShare {
        (self.parts, self.bytes, self.oldest, self.forgotten)
    }

    /// Returns whether there is a part before this number.
    fn has_before(&self, number: u64) -> bool {
        self.parts > 0 && self.oldest < number
    }
}

/// Who made a change, and when.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Who.
    pub author: Author,
    /// When.
    pub time: SystemTime,
}

/// A part as it is stored.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StoredPart {
    #[prost(string, tag = "1")]
    pub(super) author: String,
    /// The tenant that its author is confined to; none for operators and the node.
    #[prost(string, optional, tag = "2")]
    pub(super) author_tenant: Option<String>,
    #[prost(uint64, tag = "3")]
    pub(super) time_unix_ms: u64,
    /// What the tenant's share is charged for it.
    #[prost(uint64, tag = "4")]
    pub(super) bytes: u64,
    #[prost(message, repeated, tag = "5")]
    pub(super) changes: Vec<StoredChange>,
}

/// What a revision did to one object, as it is stored.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StoredChange {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(super) before: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    after: Option<Vec<u8>>,
}

impl From<&ObjectChange> for StoredChange {
    fn from(change: &ObjectChange) -> Self {
        let bytes = |digest: Option<Digest>| digest.map(|digest| digest.as_bytes().to_vec());
        Self {
            kind: kind_number(&change.object).into(),
            name: change.object.name().to_owned(),
            before: bytes(change.before),
            after: bytes(change.after),
        }
    }
}

impl StoredChange {
    fn change(self, store: &Store, tenant: &str) -> Result<ObjectChange, StoreError> {
        let digest = |bytes: Option<Vec<u8>>| {
            let bytes: Option<Result<[u8; 32], _>> = bytes.map(TryInto::try_into);
            let digest = bytes.transpose().map_err(|_| store.damaged("a revision has no digest where one should be"));
            digest.map(|bytes| bytes.map(Digest::from_bytes))
        };
        let object = object_ref(self.kind, tenant, &self.name).map_err(|bad| store.damaged(bad))?;
        Ok(ObjectChange { object, before: digest(self.before)?, after: digest(self.after)? })
    }
}

impl StoredPart {
    pub(super) fn decoded(store: &Store, bytes: &[u8]) -> Result<Self, StoreError> {
        Self::decode(bytes).map_err(|error| store.damaged(error))
    }

    /// Returns the contents that it refers to, once for each reference.
    pub(super) fn digests(&self) -> impl Iterator<Item = Digest> {
        let digests = self.changes.iter().flat_map(|change| [&change.before, &change.after]).flatten();
        digests.filter_map(|bytes| Some(Digest::from_bytes(bytes.as_slice().try_into().ok()?)))
    }

    /// Returns its changes, of which this tenant's objects are the subject.
    pub(super) fn take_changes(&mut self, store: &Store, tenant: &str) -> Result<Vec<ObjectChange>, StoreError> {
        std::mem::take(&mut self.changes).into_iter().map(|change| change.change(store, tenant)).collect()
    }
}

/// Returns the bytes of contents, and of their uploads, that changes have replaced. An upload that one of the new contents needs is
/// charged to the revision that replaces that.
fn replaced_bytes(contents: &Contents<'_>, changes: &[&ObjectChange]) -> Result<u64, StoreError> {
    let (mut bytes, mut replaced) = (0, BTreeMap::new());
    for before in changes.iter().filter_map(|change| change.before) {
        bytes += contents.bytes(&before)?.len() as u64;
        replaced.extend(contents.needs(&before)?.uploads);
    }
    for after in changes.iter().filter_map(|change| change.after) {
        if replaced.is_empty() {
            break;
        }
        contents.needs(&after)?.uploads.keys().for_each(|upload| _ = replaced.remove(upload));
    }
    Ok(bytes + replaced.values().sum::<u64>())
}

/// The tables of revisions in a write transaction.
pub(super) struct History<'t> {
    store: &'t Store,
    limits: HistoryLimits,
    meta: Table<'t, &'static str, u64>,
    parts: Table<'t, PartKey, &'static [u8]>,
    order: Table<'t, (u64, &'static str), ()>,
    shares: Table<'t, &'static str, StoredShare>,
    objects: Table<'t, ObjectKey, &'static [u8; 32]>,
}

impl<'t> History<'t> {
    /// Opens them. The table of objects is read only, and is as the change leaves it.
    pub(super) fn open(store: &'t Store, write: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            limits: store.history,
            meta: write.open_table(META).map_err(|e| store.failed(e))?,
            parts: write.open_table(HISTORY).map_err(|e| store.failed(e))?,
            order: write.open_table(ORDER).map_err(|e| store.failed(e))?,
            shares: write.open_table(SHARES).map_err(|e| store.failed(e))?,
            objects: write.open_table(OBJECTS).map_err(|e| store.failed(e))?,
        })
    }

    /// Sets the version of the desired state, and adds its revision. Its changes hold their contents already.
    pub(super) fn add(
        &mut self,
        contents: &mut Contents<'_>,
        number: u64,
        signature: &Signature,
        changes: &[ObjectChange],
    ) -> Result<(), StoreError> {
        self.meta.insert("version", number).map_err(|e| self.store.failed(e))?;
        let mut by_tenant: BTreeMap<&TenantName, Vec<&ObjectChange>> = BTreeMap::new();
        for change in changes {
            by_tenant.entry(change.object.tenant()).or_default().push(change);
        }
        for (tenant, changes) in &by_tenant {
            self.add_part(contents, tenant, number, signature, changes)?;
        }
        let changed: Vec<&str> = by_tenant.keys().map(|tenant| tenant.as_str()).collect();
        self.trim(contents, &changed, number).map(drop)
    }

    fn add_part(
        &mut self,
        contents: &Contents<'_>,
        tenant: &TenantName,
        number: u64,
        Signature { author, time }: &Signature,
        changes: &[&ObjectChange],
    ) -> Result<(), StoreError> {
        let mut part = StoredPart {
            author: author.name.clone(),
            author_tenant: author.tenant.as_ref().map(TenantName::to_string),
            time_unix_ms: time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            bytes: 0,
            changes: changes.iter().map(|change| StoredChange::from(*change)).collect(),
        };
        part.bytes = part.encoded_len() as u64;
        part.bytes += replaced_bytes(contents, changes)?;
        let (name, bytes) = (tenant.as_str(), part.encode_to_vec());
        self.parts.insert((name, number), bytes.as_slice()).map_err(|e| self.store.failed(e))?;
        self.order.insert((number, name), ()).map_err(|e| self.store.failed(e))?;
        let had = match self.share(name)? {
            Some(share) => share,
            None => Share { forgotten: self.total(FORGOTTEN)?, ..Share::default() },
        };
        let oldest = if had.parts == 0 { number } else { had.oldest };
        let share = Share { parts: had.parts + 1, bytes: had.bytes + part.bytes, oldest, forgotten: had.forgotten };
        self.set_share(name, share)?;
        self.set_total(PARTS, self.total(PARTS)? + 1)?;
        self.set_total(PART_BYTES, self.total(PART_BYTES)? + part.bytes)
    }

    /// Forgets a tenant's oldest part. Returns whether there was one before the revision with this number.
    pub(super) fn forget_oldest(
        &mut self,
        contents: &mut Contents<'_>,
        tenant: &str,
        number: u64,
    ) -> Result<bool, StoreError> {
        let Some(share) = self.share(tenant)?.filter(|share| share.has_before(number)) else { return Ok(false) };
        let oldest = share.oldest;
        let removed = self.parts.remove((tenant, oldest)).map_err(|e| self.store.failed(e))?;
        let removed = removed.map(|bytes| StoredPart::decoded(self.store, bytes.value())).transpose()?;
        let part = removed.ok_or_else(|| self.store.damaged("a revision is missing"))?;
        self.order.remove((oldest, tenant)).map_err(|e| self.store.failed(e))?;
        for digest in part.digests() {
            contents.release(&digest)?;
        }
        match self.first_after(tenant, oldest)? {
            Some(next) => {
                let bytes = share.bytes.saturating_sub(part.bytes);
                self.set_share(tenant, Share { parts: share.parts - 1, bytes, oldest: next, forgotten: oldest })?;
            }
            None if has_objects(self.store, &self.objects, tenant)? => {
                self.set_share(tenant, Share { forgotten: oldest, ..Share::default() })?;
            }
            None => {
                self.shares.remove(tenant).map_err(|e| self.store.failed(e))?;
                self.set_total(FORGOTTEN, self.total(FORGOTTEN)?.max(oldest))?;
            }
        }
        self.set_total(PARTS, self.total(PARTS)?.saturating_sub(1))?;
        self.set_total(PART_BYTES, self.total(PART_BYTES)?.saturating_sub(part.bytes))?;
        Ok(true)
    }

    /// Forgets all parts of a tenant.
    pub(super) fn forget_all(&mut self, contents: &mut Contents<'_>, tenant: &str) -> Result<(), StoreError> {
        while self.forget_oldest(contents, tenant, u64::MAX)? {}
        Ok(())
    }

    /// Returns when a tenant was last changed, in seconds since 1970; none if no revision tells.
    pub(super) fn last_change_s(&self, tenant: &str) -> Result<Option<u64>, StoreError> {
        let mut parts = self.parts.range((tenant, 0)..=(tenant, u64::MAX)).map_err(|e| self.store.failed(e))?;
        let Some(last) = parts.next_back() else { return Ok(None) };
        let (_, bytes) = last.map_err(|e| self.store.failed(e))?;
        Ok(Some(StoredPart::decoded(self.store, bytes.value())?.time_unix_ms / 1000))
    }

    fn first_after(&self, tenant: &str, number: u64) -> Result<Option<u64>, StoreError> {
        let mut parts = self.parts.range((tenant, number)..=(tenant, u64::MAX)).map_err(|e| self.store.failed(e))?;
        let first = parts.next().transpose().map_err(|e| self.store.failed(e))?;
        Ok(first.map(|(key, _)| key.value().1))
    }

    fn share(&self, tenant: &str) -> Result<Option<Share>, StoreError> {
        Ok(self.shares.get(tenant).map_err(|e| self.store.failed(e))?.map(|row| Share::of(row.value())))
    }

    fn set_share(&mut self, tenant: &str, share: Share) -> Result<(), StoreError> {
        self.shares.insert(tenant, share.stored()).map(drop).map_err(|e| self.store.failed(e))
    }

    fn total(&self, name: &'static str) -> Result<u64, StoreError> {
        Ok(self.meta.get(name).map_err(|e| self.store.failed(e))?.map_or(0, |total| total.value()))
    }

    fn set_total(&mut self, name: &'static str, total: u64) -> Result<(), StoreError> {
        self.meta.insert(name, total).map(drop).map_err(|e| self.store.failed(e))
    }
}

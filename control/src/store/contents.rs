//! Objects by their content: each distinct object is stored once, under its digest, for as long as the desired state or a
//! kept revision refers to it.
//!
//! A content names its tenant, so no two tenants share one. With its first reference a content begins to need its uploads,
//! with its last one it ends; what is needed is not collected ([`super::garbage`]). A key is needed while an object names it.

use std::ops::RangeInclusive;

use prost::Message;
use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::needs::Needs;
use super::{Store, StoreError};
use crate::model::{Digest, Labelled, Object, ObjectRef};
use crate::proto;
use crate::wire::kind_of;

/// Kind (as in `pinion.v1.Kind`), tenant, name.
pub(super) type ObjectKey = (u8, &'static str, &'static str);
/// The tenant, and the digest of what it uploaded.
pub(super) type UploadKey = (&'static str, &'static [u8; 32]);

pub(super) const OBJECTS: TableDefinition<ObjectKey, &[u8; 32]> = TableDefinition::new("objects");
pub(super) const CONTENTS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("contents");
pub(super) const REFERENCES: TableDefinition<&[u8; 32], u64> = TableDefinition::new("references");
pub(super) const NEEDS: TableDefinition<UploadKey, u64> = TableDefinition::new("needs");

/// The numbers of kinds in keys.
pub(super) const KINDS: [u8; 6] = [
    proto::Kind::Module as u8,
    proto::Kind::Chain as u8,
    proto::Kind::Rule as u8,
    proto::Kind::Tenant as u8,
    proto::Kind::Key as u8,
    proto::Kind::Model as u8,
];

/// Returns the number of an object's kind in keys.
pub(super) fn kind_number(object: &ObjectRef) -> u8 {
    kind_of(object) as u8
}

/// Returns the names and contents of a tenant's objects, and of its terms, by kind and name.
pub(super) fn objects_of(
    store: &Store,
    objects: &impl ReadableTable<ObjectKey, &'static [u8; 32]>,
    tenant: &str,
) -> Result<Vec<(u8, String, Digest)>, StoreError> {
    let mut found = Vec::new();
    for kind in KINDS {
        for entry in objects.range(names_of(kind, tenant)).map_err(|e| store.failed(e))? {
            let (key, digest) = entry.map_err(|e| store.failed(e))?;
            found.push((kind, key.value().2.to_owned(), Digest::from_bytes(*digest.value())));
        }
    }
    Ok(found)
}

/// Returns whether a tenant has an object, or terms.
pub(super) fn has_objects(
    store: &Store,
    objects: &impl ReadableTable<ObjectKey, &'static [u8; 32]>,
    tenant: &str,
) -> Result<bool, StoreError> {
    for kind in KINDS {
        if objects.range(names_of(kind, tenant)).map_err(|e| store.failed(e))?.next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn names_of(kind: u8, tenant: &str) -> RangeInclusive<(u8, &str, &str)> {
    // No name is longer than this one, or sorts after it.
    (kind, tenant, "")..=(kind, tenant, "\u{10ffff}")
}

/// The tables of contents in a write transaction.
pub(super) struct Contents<'t> {
    store: &'t Store,
    contents: Table<'t, &'static [u8; 32], &'static [u8]>,
    references: Table<'t, &'static [u8; 32], u64>,
    needed: Table<'t, UploadKey, u64>,
}

impl<'t> Contents<'t> {
    pub(super) fn open(store: &'t Store, write: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            contents: write.open_table(CONTENTS).map_err(|e| store.failed(e))?,
            references: write.open_table(REFERENCES).map_err(|e| store.failed(e))?,
            needed: write.open_table(NEEDS).map_err(|e| store.failed(e))?,
        })
    }

    /// Adds this many references to an object, and stores it with the first. Returns its digest.
    pub(super) fn hold(&mut self, object: &Labelled<Object>, count: u64) -> Result<Digest, StoreError> {
        let bytes = proto::Object::from(object).encode_to_vec();
        let digest = Digest::of(&bytes);
        let held = self.add(&digest, count)?;
        // A damaged content, which needs nothing that is known, is replaced by the sound one.
        if held == 0 || self.bytes(&digest)? != bytes {
            self.contents.insert(digest.as_bytes(), bytes.as_slice()).map_err(|e| self.store.failed(e))?;
            let needs = Needs::of_content(&digest, &bytes);
            for upload in needs.uploads.keys() {
                self.need(&needs.tenant, upload)?;
            }
        }
        Ok(digest)
    }

    /// Notes that a key of the desired state has this content.
    pub(super) fn hold_key(&mut self, digest: &Digest) -> Result<(), StoreError> {
        let Needs { tenant, key, .. } = self.needs(digest)?;
        key.map_or(Ok(()), |key| self.need(&tenant, &key))
    }

    /// Notes that a key of the desired state has this content no more.
    pub(super) fn release_key(&mut self, digest: &Digest) -> Result<(), StoreError> {
        let Needs { tenant, key, .. } = self.needs(digest)?;
        key.map_or(Ok(()), |key| self.need_no_more(&tenant, &key))
    }

    /// Takes a reference away, and removes the content with the last one.
    pub(super) fn release(&mut self, digest: &Digest) -> Result<(), StoreError> {
        let held = self.references.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        if held > 1 {
            self.references.insert(digest.as_bytes(), held - 1).map_err(|e| self.store.failed(e))?;
            return Ok(());
        }
        // A damaged content does not tell what it needs. What is left of that is counted anew at the next start.
        let needs = self.needs(digest)?;
        for upload in needs.uploads.keys() {
            self.need_no_more(&needs.tenant, upload)?;
        }
        self.references.remove(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        self.contents.remove(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        Ok(())
    }

    /// Returns a content as it is stored; nothing if it is missing.
    pub(super) fn bytes(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let bytes = self.contents.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        Ok(bytes.map_or_else(Vec::new, |bytes| bytes.value().to_vec()))
    }

    /// Returns what a content needs.
    pub(super) fn needs(&self, digest: &Digest) -> Result<Needs, StoreError> {
        read_needs(self.store, &self.contents, digest)
    }

    /// Returns how many references there were.
    fn add(&mut self, digest: &Digest, count: u64) -> Result<u64, StoreError> {
        let held = self.references.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        self.references.insert(digest.as_bytes(), held + count).map_err(|e| self.store.failed(e))?;
        Ok(held)
    }

    fn need(&mut self, tenant: &str, upload: &Digest) -> Result<(), StoreError> {
        let key = (tenant, upload.as_bytes());
        let count = self.needed.get(key).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        self.needed.insert(key, count + 1).map_err(|e| self.store.failed(e))?;
        Ok(())
    }

    fn need_no_more(&mut self, tenant: &str, upload: &Digest) -> Result<(), StoreError> {
        let key = (tenant, upload.as_bytes());
        let count = self.needed.get(key).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        match count {
            0 | 1 => self.needed.remove(key).map(drop),
            more => self.needed.insert(key, more - 1).map(drop),
        }
        .map_err(|e| self.store.failed(e))
    }
}

/// What is wrong with a content, as the end of a sentence.
pub(super) struct Damage(pub(super) String);

/// Returns the object of a content, or why it is none.
pub(super) fn read_object(
    store: &Store,
    contents: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    digest: &Digest,
) -> Result<Result<Labelled<Object>, Damage>, StoreError> {
    let bytes = contents.get(digest.as_bytes()).map_err(|e| store.failed(e))?;
    Ok(match bytes {
        None => Err(Damage("its content is missing".to_owned())),
        Some(bytes) => object_of(digest, bytes.value()),
    })
}

/// Returns what a content needs.
pub(super) fn read_needs(
    store: &Store,
    contents: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    digest: &Digest,
) -> Result<Needs, StoreError> {
    let bytes = contents.get(digest.as_bytes()).map_err(|e| store.failed(e))?;
    Ok(bytes.map_or_else(Needs::default, |bytes| Needs::of_content(digest, bytes.value())))
}

/// Returns the object that is stored as these bytes.
pub(super) fn object_of(digest: &Digest, bytes: &[u8]) -> Result<Labelled<Object>, Damage> {
    if Digest::of(bytes) != *digest {
        return Err(Damage("its content is damaged: its bytes have another digest".to_owned()));
    }
    let message = proto::Object::decode(bytes).map_err(|e| Damage(format!("its content cannot be decoded: {e}")))?;
    message.try_into().map_err(|e| Damage(format!("its content is not valid: {e}")))
}

/// Returns the object of a content that has to be intact.
pub(super) fn decoded(
    store: &Store,
    contents: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    digest: &Digest,
) -> Result<Labelled<Object>, StoreError> {
    read_object(store, contents, digest)?.map_err(|Damage(reason)| StoreError::DamagedObject {
        path: store.path().to_owned(),
        digest: *digest,
        reason,
    })
}

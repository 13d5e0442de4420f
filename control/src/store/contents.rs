//! Objects by their content: each distinct object is stored once, under its digest, for as long as the desired state or a
//! kept revision refers to it.
//!
//! A content names its tenant, so no two tenants share one. With its first reference a content begins to need its uploads,
//! with its last one it ends; what is needed is not collected ([`super::garbage`]).

use prost::Message;
use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{Store, StoreError};
use crate::model::{Digest, Object, ObjectRef};
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

/// The tables of contents in a write transaction.
pub(super) struct Contents<'t> {
    store: &'t Store,
    contents: Table<'t, &'static [u8; 32], &'static [u8]>,
    references: Table<'t, &'static [u8; 32], u64>,
    needs: Table<'t, UploadKey, u64>,
}

impl<'t> Contents<'t> {
    pub(super) fn open(store: &'t Store, write: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            contents: write.open_table(CONTENTS).map_err(|e| store.failed(e))?,
            references: write.open_table(REFERENCES).map_err(|e| store.failed(e))?,
            needs: write.open_table(NEEDS).map_err(|e| store.failed(e))?,
        })
    }

    /// Adds this many references to an object, and stores it with the first. Returns its digest.
    pub(super) fn hold(&mut self, object: &Object, count: u64) -> Result<Digest, StoreError> {
        let bytes = proto::Object::from(object).encode_to_vec();
        let digest = Digest::of(&bytes);
        let held = self.add(&digest, count)?;
        if held == 0 {
            self.contents.insert(digest.as_bytes(), bytes.as_slice()).map_err(|e| self.store.failed(e))?;
            for (upload, _) in object.uploads() {
                self.need(object, &upload)?;
            }
        }
        Ok(digest)
    }

    /// Takes a reference away, and removes the content with the last one.
    pub(super) fn release(&mut self, digest: &Digest) -> Result<(), StoreError> {
        let held = self.references.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        if held > 1 {
            self.references.insert(digest.as_bytes(), held - 1).map_err(|e| self.store.failed(e))?;
            return Ok(());
        }
        let object = self.object(digest)?;
        for (upload, _) in object.uploads() {
            self.need_no_more(&object, &upload)?;
        }
        self.references.remove(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        self.contents.remove(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        Ok(())
    }

    /// Returns the size of a content with its uploads, in bytes: what a revision that replaces it keeps from being removed.
    pub(super) fn size_bytes(&self, digest: &Digest) -> Result<u64, StoreError> {
        let bytes = self.contents.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?;
        let len = bytes.map_or(0, |bytes| bytes.value().len() as u64);
        let uploads: u64 = self.object(digest)?.uploads().iter().map(|(_, size_bytes)| size_bytes).sum();
        Ok(len + uploads)
    }

    fn object(&self, digest: &Digest) -> Result<Object, StoreError> {
        decoded(self.store, &self.contents, digest)
    }

    /// Returns how many references there were.
    fn add(&mut self, digest: &Digest, count: u64) -> Result<u64, StoreError> {
        let held = self.references.get(digest.as_bytes()).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        self.references.insert(digest.as_bytes(), held + count).map_err(|e| self.store.failed(e))?;
        Ok(held)
    }

    fn need(&mut self, object: &Object, upload: &Digest) -> Result<(), StoreError> {
        let name = object.name();
        let key = (name.tenant().as_str(), upload.as_bytes());
        let count = self.needs.get(key).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        self.needs.insert(key, count + 1).map_err(|e| self.store.failed(e))?;
        Ok(())
    }

    fn need_no_more(&mut self, object: &Object, upload: &Digest) -> Result<(), StoreError> {
        let name = object.name();
        let key = (name.tenant().as_str(), upload.as_bytes());
        let count = self.needs.get(key).map_err(|e| self.store.failed(e))?.map_or(0, |it| it.value());
        match count {
            0 | 1 => self.needs.remove(key).map(drop),
            more => self.needs.insert(key, more - 1).map(drop),
        }
        .map_err(|e| self.store.failed(e))
    }
}

/// Returns the object of a content.
pub(super) fn decoded(
    store: &Store,
    contents: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    digest: &Digest,
) -> Result<Object, StoreError> {
    let bytes = contents.get(digest.as_bytes()).map_err(|e| store.failed(e))?;
    let bytes = bytes.ok_or_else(|| store.damaged(format!("the object {digest} is missing")))?;
    if Digest::of(bytes.value()) != *digest {
        return Err(store.damaged(format!("the object {digest} is another one")));
    }
    let message = proto::Object::decode(bytes.value()).map_err(|e| store.damaged(e))?;
    message.try_into().map_err(|e| store.damaged(e))
}

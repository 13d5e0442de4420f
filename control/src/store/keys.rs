//! Tenants' keys in the store: sealed by [`crate::control`], so that nothing of the store's file tells a key.

use std::time::SystemTime;

use redb::TableDefinition;

use super::{Store, StoreError, ToForget, seconds};
use crate::model::{Digest, TenantName};

/// The tenant, and the digest of the public key.
type Owned = (&'static str, &'static [u8; 32]);
/// When the key was uploaded, in seconds since 1970, its algorithm, and the sealed key.
type Sealed = (u64, &'static str, &'static [u8]);

pub(super) const SEALED: TableDefinition<Owned, Sealed> = TableDefinition::new("sealed");

impl Store {
    /// Stores a sealed key of this tenant. One that is stored already is replaced, as its seal may be damaged.
    pub fn put_key(
        &self,
        tenant: &TenantName,
        digest: &Digest,
        algorithm: &str,
        sealed: &[u8],
        now: SystemTime,
    ) -> Result<(), StoreError> {
        self.put_key_after(&ToForget::default(), tenant, digest, algorithm, sealed, now)
    }

    /// As [`Store::put_key`], and forgets these revisions with it: both or neither.
    pub fn put_key_after(
        &self,
        to_forget: &ToForget,
        tenant: &TenantName,
        digest: &Digest,
        algorithm: &str,
        sealed: &[u8],
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let written = self.opened.write(sealed.len() as u64, |write| {
            self.forget(write, to_forget, now)?;
            let mut keys = write.open_table(SEALED).map_err(|e| self.failed(e))?;
            let value = (seconds(now), algorithm, sealed);
            keys.insert((tenant.as_str(), digest.as_bytes()), value).map_err(|e| self.failed(e))?;
            Ok(())
        });
        Ok(written?)
    }

    /// Returns the algorithm of a key of this tenant; none if it never uploaded the key, or it was removed.
    pub fn key_algorithm(&self, tenant: &TenantName, digest: &Digest) -> Result<Option<String>, StoreError> {
        self.with_key(tenant, digest, |algorithm, _| algorithm.to_owned())
    }

    /// Returns a key of this tenant as it was stored; none if it never uploaded the key, or it was removed.
    pub fn sealed_key(&self, tenant: &TenantName, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.with_key(tenant, digest, |_, sealed| sealed.to_vec())
    }

    fn with_key<T>(
        &self,
        tenant: &TenantName,
        digest: &Digest,
        take: impl Fn(&str, &[u8]) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.opened.read(|read| {
            let keys = read.open_table(SEALED).map_err(|e| self.failed(e))?;
            let key = keys.get((tenant.as_str(), digest.as_bytes())).map_err(|e| self.failed(e))?;
            Ok(key.map(|key| {
                let (_, algorithm, sealed) = key.value();
                take(algorithm, sealed)
            }))
        })
    }
}

//! Removes uploads and keys that neither an object nor a kept revision needs, and bytes without an upload.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use redb::{ReadableTable, WriteTransaction};

use super::contents::{NEEDS, UploadKey};
use super::{BLOBS, SEALED, Store, StoreError, UPLOADS, seconds};
use crate::model::{Digest, TenantName, Upload};

/// How long an upload is kept while nothing names it.
pub const UPLOAD_LIFETIME: Duration = Duration::from_secs(3600);

impl Store {
    /// Returns the uploads that nothing needs, by tenant and digest, and for how long each is kept.
    pub fn unnamed_uploads(&self, now: SystemTime) -> Result<Vec<Upload>, StoreError> {
        self.opened.read(|read| {
            let needs = read.open_table(NEEDS).map_err(|e| self.failed(e))?;
            let mut found = Vec::new();
            let mut note = |key: (&str, &[u8; 32]), when: u64, size_bytes| {
                let kept_s = (when + UPLOAD_LIFETIME.as_secs()).saturating_sub(seconds(now));
                if kept_s == 0 || self.is_needed(&needs, key)? {
                    return Ok(());
                }
                let tenant = TenantName::new(key.0).map_err(|bad| self.damaged(bad))?;
                found.push(Upload { tenant, digest: Digest::from_bytes(*key.1), size_bytes, kept_ms: kept_s * 1000 });
                Ok::<_, StoreError>(())
            };
            for entry in read.open_table(UPLOADS).map_err(|e| self.failed(e))?.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                note(key.value(), value.value().0, value.value().1)?;
            }
            for entry in read.open_table(SEALED).map_err(|e| self.failed(e))?.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                note(key.value(), value.value().0, value.value().2.len() as u64)?;
            }
            found.sort_by(|a, b| (&a.tenant, &a.digest).cmp(&(&b.tenant, &b.digest)));
            Ok(found)
        })
    }

    /// Returns whether there are uploads that [`Store::collect_garbage`] would remove.
    pub fn has_garbage(&self, now: SystemTime) -> Result<bool, StoreError> {
        let spared_from = spared_from(now);
        self.opened.read(|read| {
            let needs = read.open_table(NEEDS).map_err(|e| self.failed(e))?;
            for entry in read.open_table(UPLOADS).map_err(|e| self.failed(e))?.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                if value.value().0 <= spared_from && !self.is_needed(&needs, key.value())? {
                    return Ok(true);
                }
            }
            for entry in read.open_table(SEALED).map_err(|e| self.failed(e))?.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                if value.value().0 <= spared_from && !self.is_needed(&needs, key.value())? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Removes what nothing needs, and returns the digests whose bytes were removed.
    ///
    /// Keeps uploads of the last hour. Keeps uploads with a time in the future too, which occur after the clock was set
    /// back, until the clock has caught up.
    pub fn collect_garbage(&self, now: SystemTime) -> Result<Vec<Digest>, StoreError> {
        Ok(self.opened.write(0, |write| self.remove_garbage(write, now))?)
    }

    /// Removes the uploads and keys of these tenants that nothing needs and that are no later than the time beside each, in seconds since
    /// 1970, and bytes that no other tenant has.
    pub(super) fn remove_left_uploads(
        &self,
        write: &WriteTransaction,
        tenants: &[(TenantName, u64)],
    ) -> Result<(), StoreError> {
        if tenants.is_empty() {
            return Ok(());
        }
        let needs = write.open_table(NEEDS).map_err(|e| self.failed(e))?;
        let mut keys = write.open_table(SEALED).map_err(|e| self.failed(e))?;
        let mut uploads = write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        let mut gone = BTreeSet::new();
        for (tenant, until_s) in tenants {
            for digest in self.left(&keys, &needs, tenant, |(when, ..)| when <= *until_s)? {
                keys.remove((tenant.as_str(), &digest)).map_err(|e| self.failed(e))?;
            }
            for digest in self.left(&uploads, &needs, tenant, |(when, _)| when <= *until_s)? {
                uploads.remove((tenant.as_str(), &digest)).map_err(|e| self.failed(e))?;
                gone.insert(digest);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        for entry in uploads.iter().map_err(|e| self.failed(e))? {
            gone.remove(entry.map_err(|e| self.failed(e))?.0.value().1);
        }
        let mut blobs = write.open_table(BLOBS).map_err(|e| self.failed(e))?;
        for digest in &gone {
            blobs.remove(digest).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Returns what a tenant has in this table for which this holds and that nothing needs.
    fn left<V: redb::Value + 'static>(
        &self,
        table: &impl ReadableTable<UploadKey, V>,
        needs: &impl ReadableTable<UploadKey, u64>,
        tenant: &TenantName,
        is_meant: impl Fn(V::SelfType<'_>) -> bool,
    ) -> Result<Vec<[u8; 32]>, StoreError> {
        let mut left = Vec::new();
        let all = (tenant.as_str(), &[0_u8; 32])..=(tenant.as_str(), &[0xff_u8; 32]);
        for entry in table.range(all).map_err(|e| self.failed(e))? {
            let (key, value) = entry.map_err(|e| self.failed(e))?;
            if is_meant(value.value()) && !self.is_needed(needs, key.value())? {
                left.push(*key.value().1);
            }
        }
        Ok(left)
    }

    pub(super) fn remove_garbage(&self, write: &WriteTransaction, now: SystemTime) -> Result<Vec<Digest>, StoreError> {
        let spared_from = spared_from(now);
        let mut needed = BTreeSet::new();
        for entry in write.open_table(NEEDS).map_err(|e| self.failed(e))?.iter().map_err(|e| self.failed(e))? {
            let (key, _) = entry.map_err(|e| self.failed(e))?;
            needed.insert((key.value().0.to_owned(), *key.value().1));
        }
        let is_needed = |(tenant, digest): (&str, &[u8; 32])| needed.contains(&(tenant.to_owned(), *digest));
        let mut keys = write.open_table(SEALED).map_err(|e| self.failed(e))?;
        keys.retain(|key, (when, ..)| when > spared_from || is_needed(key)).map_err(|e| self.failed(e))?;
        let mut uploads = write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        uploads.retain(|key, (when, _)| when > spared_from || is_needed(key)).map_err(|e| self.failed(e))?;
        let mut kept = BTreeSet::new();
        for entry in uploads.iter().map_err(|e| self.failed(e))? {
            kept.insert(*entry.map_err(|e| self.failed(e))?.0.value().1);
        }
        let mut blobs = write.open_table(BLOBS).map_err(|e| self.failed(e))?;
        let mut gone = Vec::new();
        for entry in blobs.iter().map_err(|e| self.failed(e))? {
            let digest = *entry.map_err(|e| self.failed(e))?.0.value();
            if !kept.contains(&digest) {
                gone.push(Digest::from_bytes(digest));
            }
        }
        for digest in &gone {
            blobs.remove(digest.as_bytes()).map_err(|e| self.failed(e))?;
        }
        Ok(gone)
    }

    fn is_needed(
        &self,
        needs: &impl ReadableTable<UploadKey, u64>,
        key: (&str, &[u8; 32]),
    ) -> Result<bool, StoreError> {
        Ok(needs.get(key).map_err(|e| self.failed(e))?.is_some())
    }
}

/// Returns the time from which on uploads are kept though nothing needs them, in seconds since 1970.
pub(super) fn spared_from(now: SystemTime) -> u64 {
    seconds(now).saturating_sub(UPLOAD_LIFETIME.as_secs())
}

//! Removes uploads and keys that nothing names, and bytes without an upload.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use redb::{ReadTransaction, ReadableTable};

use super::{BLOBS, SEALED, Store, StoreError, UPLOADS, seconds};
use crate::model::{DesiredState, Digest, TenantName, Upload};

/// How long an upload is kept while nothing names it.
pub const UPLOAD_LIFETIME: Duration = Duration::from_secs(3600);

impl Store {
    /// Returns the uploads that nothing names, by tenant and digest, and for how long each is kept.
    pub fn unnamed_uploads(&self, desired: &DesiredState, now: SystemTime) -> Result<Vec<Upload>, StoreError> {
        let named = named(desired);
        self.opened.read(|read| {
            let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            let mut found = Vec::new();
            for entry in uploads.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                let ((tenant, digest), (when, size_bytes)) = (key.value(), value.value());
                let kept_s = (when + UPLOAD_LIFETIME.as_secs()).saturating_sub(seconds(now));
                if kept_s == 0 || named.contains(&(tenant, digest)) {
                    continue;
                }
                let tenant = TenantName::new(tenant).map_err(|bad| self.damaged(bad))?;
                let digest = Digest::from_bytes(*digest);
                found.push(Upload { tenant, digest, size_bytes, kept_ms: kept_s * 1000 });
            }
            found.extend(self.unnamed_keys(read, desired, now)?);
            found.sort_by(|a, b| (&a.tenant, &a.digest).cmp(&(&b.tenant, &b.digest)));
            Ok(found)
        })
    }

    fn unnamed_keys(
        &self,
        read: &ReadTransaction,
        desired: &DesiredState,
        now: SystemTime,
    ) -> Result<Vec<Upload>, StoreError> {
        let (named, mut found) = (named_keys(desired), Vec::new());
        let Some(keys) = self.sealed_table(read)? else { return Ok(found) };
        for entry in keys.iter().map_err(|e| self.failed(e))? {
            let (key, value) = entry.map_err(|e| self.failed(e))?;
            let ((tenant, digest), (when, _, sealed)) = (key.value(), value.value());
            let kept_s = (when + UPLOAD_LIFETIME.as_secs()).saturating_sub(seconds(now));
            if kept_s == 0 || named.contains(&(tenant, digest)) {
                continue;
            }
            let tenant = TenantName::new(tenant).map_err(|bad| self.damaged(bad))?;
            let (digest, size_bytes) = (Digest::from_bytes(*digest), sealed.len() as u64);
            found.push(Upload { tenant, digest, size_bytes, kept_ms: kept_s * 1000 });
        }
        Ok(found)
    }

    /// Returns whether there are uploads that [`Store::collect_garbage`] would remove.
    pub fn has_garbage(&self, desired: &DesiredState, now: SystemTime) -> Result<bool, StoreError> {
        let (named, named_keys) = (named(desired), named_keys(desired));
        let spared_from = seconds(now).saturating_sub(UPLOAD_LIFETIME.as_secs());
        self.opened.read(|read| {
            let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            for entry in uploads.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                if value.value().0 <= spared_from && !named.contains(&key.value()) {
                    return Ok(true);
                }
            }
            let Some(keys) = self.sealed_table(read)? else { return Ok(false) };
            for entry in keys.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                if value.value().0 <= spared_from && !named_keys.contains(&key.value()) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Removes what nothing depends on, and returns the digests whose bytes were removed.
    ///
    /// Keeps uploads of the last hour. Keeps uploads with a time in the future too, which occur after the clock was set
    /// back, until the clock has caught up.
    pub fn collect_garbage(&self, desired: &DesiredState, now: SystemTime) -> Result<Vec<Digest>, StoreError> {
        let (named, named_keys) = (named(desired), named_keys(desired));
        let spared_from = seconds(now).saturating_sub(UPLOAD_LIFETIME.as_secs());

        let written = self.opened.write(0, |write| {
            let mut gone = Vec::new();
            let mut keys = write.open_table(SEALED).map_err(|e| self.failed(e))?;
            keys.retain(|key, (when, ..)| named_keys.contains(&key) || when > spared_from)
                .map_err(|e| self.failed(e))?;
            let mut uploads = write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            uploads.retain(|key, (when, _)| named.contains(&key) || when > spared_from).map_err(|e| self.failed(e))?;
            let mut kept = BTreeSet::new();
            for entry in uploads.iter().map_err(|e| self.failed(e))? {
                kept.insert(*entry.map_err(|e| self.failed(e))?.0.value().1);
            }
            let mut blobs = write.open_table(BLOBS).map_err(|e| self.failed(e))?;
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
        });
        Ok(written?)
    }
}

/// Returns the uploads that modules, models and stages' files depend on.
fn named(desired: &DesiredState) -> BTreeSet<(&str, &[u8; 32])> {
    let modules = desired.modules().values().map(|module| (module.tenant.as_str(), module.digest.as_bytes()));
    let models = desired.models().values().map(|model| (model.tenant.as_str(), model.digest.as_bytes()));
    let files = desired.files().map(|(tenant, files)| (tenant.as_str(), files.digest.as_bytes()));
    modules.chain(models).chain(files).collect()
}

/// Returns the sealed keys that keys depend on.
fn named_keys(desired: &DesiredState) -> BTreeSet<(&str, &[u8; 32])> {
    desired.keys().values().map(|key| (key.tenant.as_str(), key.digest.as_bytes())).collect()
}

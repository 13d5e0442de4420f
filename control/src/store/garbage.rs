//! Removes uploads that no module and no stage names, and bytes without an upload.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use redb::ReadableTable;

use super::{BLOBS, Store, StoreError, UPLOADS, seconds};
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
            Ok(found)
        })
    }

    /// Returns whether there are uploads that [`Store::collect_garbage`] would remove.
    pub fn has_garbage(&self, desired: &DesiredState, now: SystemTime) -> Result<bool, StoreError> {
        let named = named(desired);
        let spared_from = seconds(now).saturating_sub(UPLOAD_LIFETIME.as_secs());
        self.opened.read(|read| {
            let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            for entry in uploads.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                if value.value().0 <= spared_from && !named.contains(&key.value()) {
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
        let named = named(desired);
        let spared_from = seconds(now).saturating_sub(UPLOAD_LIFETIME.as_secs());

        let written = self.opened.write(0, |write| {
            let mut gone = Vec::new();
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

/// Returns the uploads that modules and stages' files depend on.
fn named(desired: &DesiredState) -> BTreeSet<(&str, &[u8; 32])> {
    let modules = desired.modules().values().map(|module| (module.tenant.as_str(), module.digest.as_bytes()));
    let files = desired.files().map(|(tenant, files)| (tenant.as_str(), files.digest.as_bytes()));
    modules.chain(files).collect()
}

//! The durable store: one file that holds the desired state, the bytes of modules, models and stages' files, and sealed
//! keys.
//!
//! Owned by [`crate::Control`], which calls it under its lock. When a call returns, what it wrote is on the disk. The
//! store never judges a change and never calls the node.
//!
//! ```text
//!   meta        "format" -> 3, "version" -> of the desired state
//!   objects     (kind, tenant, name) -> digest     uploads  (tenant, digest) -> when, seconds since 1970
//!   contents    digest -> pinion.v1.Object                  and how many bytes
//!   references  digest -> of objects, revisions    blobs    digest -> the bytes uploaded
//!   needs       (tenant, digest) -> by contents    sealed   (tenant, digest) -> when, algorithm
//!   history, order, share: the revisions                    and the sealed key
//!   quarantine  (kind, tenant, name) -> objects that cannot stand
//! ```
//!
//! A change is written with its revision, in one transaction. A content is there as long as an object or a kept revision
//! refers to it. A module of tenant t with digest d needs the upload (t, d), which depends on the blob d; so do a model and
//! the files of a stage. A key needs the sealed key (t, d) while it is an object: revisions keep none. Uploads and sealed keys that
//! nothing needs, and blobs without an upload, are garbage, once they are so old that no request that is about to name them can be in
//! progress.
//!
//! Damage of one object costs that object and what depends on it (`quarantine`). Counts follow from objects and revisions, and are
//! written anew if they do not (`counts`). Damage of the file itself is [`StoreError::Damaged`].

pub mod archive;
mod check;
mod contents;
mod counts;
#[cfg(test)]
mod faults;
mod garbage;
mod history;
mod intact;
mod keys;
mod needs;
mod opened;
mod overlay;
mod quarantine;
mod revisions;
mod room;
#[cfg(test)]
mod tests;

pub use check::{StoreCheck, check};
pub use garbage::UPLOAD_LIFETIME;
pub use history::Signature;
pub use quarantine::Quarantined;
pub use revisions::{
    HistoryUse, LastChange, NotKept, PAGE_BYTES, PAGE_OBJECTS, PAGE_REVISIONS, PastContents, Reader, RevisionPage,
    ToUndo,
};
pub use room::ToForget;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, TableDefinition, TableHandle, WriteTransaction};

use self::contents::{CONTENTS, Contents, NEEDS, OBJECTS, REFERENCES, has_objects, kind_number};
use self::history::{FORGOTTEN, HISTORY, History, ORDER, PART_BYTES, PARTS, SHARES};
use self::intact::Intact;
use self::keys::SEALED;
use self::opened::Opened;
use self::quarantine::QUARANTINE;
use crate::disk::DiskError;
use crate::model::{
    Applied, DesiredState, Digest, Effect, Files, HistoryLimits, Model, Module, ObjectChange, ObjectRef, Outcome,
    StoredUpload, TenantName,
};

/// The one format that this version reads and writes.
const FORMAT: u64 = 3;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const UPLOADS: TableDefinition<(&str, &[u8; 32]), (u64, u64)> = TableDefinition::new("uploads");
const BLOBS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("blobs");

/// Why the store can't be opened, or an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file can't be opened or created.
    #[error("cannot open the store {}: {source}", path.display())]
    Open {
        /// The store.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the store {} is in use by another process: is another piniond running on it?", path.display())]
    InUse {
        /// The store.
        path: PathBuf,
    },
    /// The file is not a store of Pinion.
    #[error("{} is not a store of Pinion's ({reason}): give another path, or move the file away to start empty", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that was recognised.
        reason: String,
    },
    /// The file was a store of Pinion, and is damaged.
    #[error("the store {} is damaged ({reason}): bring it back from a backup, or move it away to start empty", path.display())]
    Damaged {
        /// The store.
        path: PathBuf,
        /// How that was recognised.
        reason: String,
    },
    /// It was written by a version with another format.
    #[error("the store {} has format {found}, this piniond reads format {FORMAT}: run the version that wrote it, or move it away to start empty", path.display())]
    OtherFormat {
        /// The store.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// The bytes of an upload that an object depends on are missing or damaged.
    #[error("the store {} has lost the bytes of {whose} ({digest}): upload them again, by `pinion push` or with the manifest that names them", path.display())]
    Lost {
        /// The store.
        path: PathBuf,
        /// The object that depends on them.
        whose: String,
        /// Their digest.
        digest: Digest,
    },
    /// An object that a revision has is damaged.
    #[error(
        "the store {} has lost an object of a revision ({digest}): {reason}: it cannot be shown or returned to; apply the object as it \
         should be", path.display()
    )]
    DamagedObject {
        /// The store.
        path: PathBuf,
        /// The digest of the object's content.
        digest: Digest,
        /// How that was recognised.
        reason: String,
    },
    /// The file system has no room, or failed. Nothing was changed.
    #[error(transparent)]
    Disk(DiskError),
    /// The file system failed while a change was written, and the durable state cannot be told now.
    #[error("{0}; whether the change is durable cannot be told before the store can be read and written again")]
    Unknown(DiskError),
    /// Reading or writing failed.
    #[error("the store {} failed: {source}", path.display())]
    Failed {
        /// The store.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
}

/// What becomes of revisions and uploads of a name whose tenant is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namesakes {
    Forgotten,
    Kept,
}

/// The open store. Only one process can have it open at a time.
#[derive(Debug)]
pub struct Store {
    opened: Opened,
    /// How much of the past it keeps.
    history: HistoryLimits,
    /// What could not be written to the quarantine yet.
    not_set_aside: Mutex<Vec<Quarantined>>,
}

impl Store {
    /// Opens the store in this file, or creates an empty one if there is no such file. The directory must exist.
    ///
    /// Reads the whole file to check its integrity.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, HistoryLimits::default())
    }

    /// As [`Store::open`], with how many revisions it keeps. If there are more, [`Store::trim_history`] and the next change forget
    /// them.
    pub fn open_with(path: &Path, history: HistoryLimits) -> Result<Self, StoreError> {
        let store = Self { opened: Opened::open(path)?, history, not_set_aside: Mutex::default() };
        store.check_format()?;
        Ok(store)
    }

    /// Opens the store in this file to read it, while no process has it open. Nothing is written to the file.
    fn open_offline(path: &Path) -> Result<Self, StoreError> {
        let opened = Opened::open_offline(path)?;
        let store = Self { opened, history: HistoryLimits::default(), not_set_aside: Mutex::default() };
        store.check_format()?;
        Ok(store)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.opened.path()
    }

    /// Returns a warning for the operator while the file system has a problem. May write to the disk, once a second at
    /// most.
    pub fn warning(&self) -> Option<String> {
        self.opened.warning()
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let foreign = |reason: &str| StoreError::Foreign { path: self.path().to_owned(), reason: reason.into() };
        let found = self.opened.read(|read| {
            let tables: Vec<String> =
                read.list_tables().map_err(|e| self.failed(e))?.map(|table| table.name().to_owned()).collect();
            if tables.is_empty() {
                return Ok(None);
            }
            if !tables.iter().any(|table| table == META.name()) {
                return Err(foreign("it is a database of another program"));
            }
            let meta = read.open_table(META).map_err(|_| foreign("it is a database of another program"))?;
            let found = meta.get("format").map_err(|e| self.failed(e))?.map(|value| value.value());
            found.map(Some).ok_or_else(|| foreign("it is a database of another program"))
        })?;
        match found {
            None if self.opened.is_offline() => Err(foreign("it is empty")),
            None => Ok(self.opened.write(0, |write| self.initialise(write))?),
            Some(FORMAT) => Ok(()),
            Some(found) => Err(StoreError::OtherFormat { path: self.path().to_owned(), found }),
        }
    }

    fn initialise(&self, write: &WriteTransaction) -> Result<(), StoreError> {
        let mut meta = write.open_table(META).map_err(|e| self.failed(e))?;
        meta.insert("format", FORMAT).map_err(|e| self.failed(e))?;
        for name in ["version", PARTS, PART_BYTES, FORGOTTEN] {
            meta.insert(name, 0).map_err(|e| self.failed(e))?;
        }
        write.open_table(OBJECTS).map_err(|e| self.failed(e))?;
        write.open_table(CONTENTS).map_err(|e| self.failed(e))?;
        write.open_table(REFERENCES).map_err(|e| self.failed(e))?;
        write.open_table(NEEDS).map_err(|e| self.failed(e))?;
        write.open_table(HISTORY).map_err(|e| self.failed(e))?;
        write.open_table(ORDER).map_err(|e| self.failed(e))?;
        write.open_table(SHARES).map_err(|e| self.failed(e))?;
        write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        write.open_table(BLOBS).map_err(|e| self.failed(e))?;
        write.open_table(SEALED).map_err(|e| self.failed(e))?;
        write.open_table(QUARANTINE).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// Returns the desired state as last committed, without what cannot stand; see [`Store::recover`].
    pub fn load(&self) -> Result<DesiredState, StoreError> {
        Ok(self.intact()?.state)
    }

    fn intact(&self) -> Result<Intact, StoreError> {
        self.opened.read(|read| Intact::read(self, read))
    }

    /// Makes a change durable, with its revision. Writes only the objects that the change touched. A tenant that gets terms and had
    /// nothing before begins anew: revisions of an earlier tenant of its name are forgotten, with what was uploaded up to the last
    /// of them.
    ///
    /// After an error nothing of the change is durable, except for [`StoreError::Unknown`].
    pub fn commit(&self, applied: &Applied, signature: &Signature) -> Result<(), StoreError> {
        self.commit_with(Namesakes::Forgotten, applied, signature)
    }

    /// As [`Store::commit`], of a return to an earlier revision: a tenant that comes back keeps what there is of it.
    pub fn commit_return(&self, applied: &Applied, signature: &Signature) -> Result<(), StoreError> {
        self.commit_with(Namesakes::Kept, applied, signature)
    }

    fn commit_with(&self, namesakes: Namesakes, applied: &Applied, signature: &Signature) -> Result<(), StoreError> {
        let write = |write: &WriteTransaction| self.write_change(write, namesakes, applied, signature);
        let not_written = match self.opened.write(0, write) {
            Ok(()) => return Ok(()),
            Err(not_written) => not_written,
        };
        let StoreError::Disk(error) = not_written.error else { return Err(not_written.error) };
        if !not_written.begun {
            return Err(StoreError::Disk(error));
        }
        // An error of the last step does not tell whether the steps before it reached the disk. Reading it does.
        match self.load() {
            Ok(durable) if durable == applied.state && self.opened.is_durable() => {
                tracing::warn!(
                    version = durable.version(),
                    "a change is durable though the disk reported an error: {error}"
                );
                Ok(())
            }
            Ok(durable) if durable.version() < applied.state.version() => Err(StoreError::Disk(error)),
            Ok(_) | Err(_) => Err(StoreError::Unknown(error)),
        }
    }

    fn write_change(
        &self,
        write: &WriteTransaction,
        namesakes: Namesakes,
        applied: &Applied,
        signature: &Signature,
    ) -> Result<(), StoreError> {
        let new = if namesakes == Namesakes::Forgotten { self.new_tenants(write, applied)? } else { Vec::new() };
        let mut contents = Contents::open(self, write)?;
        let mut objects = write.open_table(OBJECTS).map_err(|e| self.failed(e))?;
        let mut quarantine = write.open_table(QUARANTINE).map_err(|e| self.failed(e))?;
        let mut changes = Vec::new();
        for outcome in applied.outcomes.iter().filter(|outcome| outcome.effect != Effect::Unchanged) {
            let object = outcome.object.clone();
            let key = (kind_number(&object), object.tenant().as_str(), object.name());
            // One reference of the object's own, which its revision takes over when it is replaced, and one of this revision.
            let after = applied.state.object(&object).map(|content| contents.hold(&content, 2)).transpose()?;
            let before = match &after {
                Some(digest) => objects.insert(key, digest.as_bytes()).map_err(|e| self.failed(e))?,
                None => objects.remove(key).map_err(|e| self.failed(e))?,
            };
            let before = before.map(|digest| Digest::from_bytes(*digest.value()));
            if let ObjectRef::Key { .. } = object {
                after.iter().try_for_each(|digest| contents.hold_key(digest))?;
                before.iter().try_for_each(|digest| contents.release_key(digest))?;
            }
            quarantine.remove(key).map_err(|e| self.failed(e))?;
            changes.push(ObjectChange { object, before, after });
        }
        drop((objects, quarantine));
        let mut history = History::open(self, write)?;
        let mut earlier = Vec::new();
        for tenant in new {
            if let Some(last_s) = history.last_change_s(tenant.as_str())? {
                history.forget_all(&mut contents, tenant.as_str())?;
                earlier.push((tenant, last_s));
            }
        }
        history.add(&mut contents, applied.state.version(), signature, &changes)?;
        drop((contents, history));
        self.remove_left_uploads(write, &earlier)
    }

    /// Returns the tenants that a change gives terms, and that had nothing before.
    fn new_tenants(&self, write: &WriteTransaction, applied: &Applied) -> Result<Vec<TenantName>, StoreError> {
        let objects = write.open_table(OBJECTS).map_err(|e| self.failed(e))?;
        let mut new = Vec::new();
        for Outcome { object, effect } in &applied.outcomes {
            if let ObjectRef::Tenant { name } = object
                && *effect == Effect::Created
                && !has_objects(self, &objects, name.as_str())?
            {
                new.push(name.clone());
            }
        }
        Ok(new)
    }

    /// Stores an upload of this tenant. If it is stored already, renews its time only.
    pub fn put_upload(
        &self,
        tenant: &TenantName,
        digest: &Digest,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), StoreError> {
        self.put_upload_after(&ToForget::default(), tenant, digest, bytes, now)
    }

    /// As [`Store::put_upload`], and forgets these revisions with it: both or neither.
    pub fn put_upload_after(
        &self,
        to_forget: &ToForget,
        tenant: &TenantName,
        digest: &Digest,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let key = (tenant.as_str(), digest.as_bytes());
        let written = self.opened.write(bytes.len() as u64, |write| {
            self.forget(write, to_forget, now)?;
            let mut uploads = write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            uploads.insert(key, (seconds(now), bytes.len() as u64)).map_err(|e| self.failed(e))?;
            let mut blobs = write.open_table(BLOBS).map_err(|e| self.failed(e))?;
            let there = blobs.get(digest.as_bytes()).map_err(|e| self.failed(e))?;
            // Damaged bytes are replaced by the sound ones.
            let is_sound = there.is_some_and(|blob| Digest::of(blob.value()) == *digest);
            if !is_sound {
                blobs.insert(digest.as_bytes(), bytes).map_err(|e| self.failed(e))?;
            }
            Ok(())
        });
        Ok(written?)
    }

    /// Returns how many bytes this tenant uploaded under the digest; none if it never did, or they were removed.
    pub fn upload_size_bytes(&self, tenant: &TenantName, digest: &Digest) -> Result<Option<u64>, StoreError> {
        self.opened.read(|read| {
            let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            let upload = uploads.get((tenant.as_str(), digest.as_bytes())).map_err(|e| self.failed(e))?;
            Ok(upload.map(|upload| upload.value().1))
        })
    }

    /// Returns all that tenants have uploaded, whether something names it or not.
    pub fn uploads(&self) -> Result<Vec<StoredUpload>, StoreError> {
        self.opened.read(|read| {
            let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            let mut all = Vec::new();
            for entry in uploads.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                let ((tenant, digest), (_, size_bytes)) = (key.value(), value.value());
                let tenant = TenantName::new(tenant).map_err(|bad| self.damaged(bad))?;
                all.push(StoredUpload { tenant, digest: Digest::from_bytes(*digest), size_bytes });
            }
            let keys = read.open_table(SEALED).map_err(|e| self.failed(e))?;
            for entry in keys.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                let ((tenant, digest), (.., sealed)) = (key.value(), value.value());
                let tenant = TenantName::new(tenant).map_err(|bad| self.damaged(bad))?;
                let (digest, size_bytes) = (Digest::from_bytes(*digest), sealed.len() as u64);
                all.push(StoredUpload { tenant, digest, size_bytes });
            }
            Ok(all)
        })
    }

    /// Returns the bytes of a module that the desired state names.
    pub fn wasm(&self, module: &Module) -> Result<Vec<u8>, StoreError> {
        self.blob(&module.digest, || ObjectRef::from(module).to_string())
    }

    /// Returns the bytes of a model that the desired state names.
    pub fn model(&self, model: &Model) -> Result<Vec<u8>, StoreError> {
        self.blob(&model.digest, || ObjectRef::from(model).to_string())
    }

    /// Returns the archive of a stage's files that the desired state names.
    pub fn files(&self, files: &Files) -> Result<Vec<u8>, StoreError> {
        self.blob(&files.digest, || "a stage's files".to_owned())
    }

    fn blob(&self, digest: &Digest, whose: impl FnOnce() -> String) -> Result<Vec<u8>, StoreError> {
        let bytes = self.opened.read(|read| {
            let blobs = read.open_table(BLOBS).map_err(|e| self.failed(e))?;
            let blob = blobs.get(digest.as_bytes()).map_err(|e| self.failed(e))?;
            Ok(blob.map(|blob| blob.value().to_vec()))
        })?;
        bytes.filter(|bytes| Digest::of(bytes) == *digest).ok_or_else(|| StoreError::Lost {
            path: self.path().to_owned(),
            whose: whose(),
            digest: *digest,
        })
    }

    fn damaged(&self, reason: impl ToString) -> StoreError {
        self.opened.damaged(reason)
    }

    fn failed(&self, error: impl Into<redb::Error>) -> StoreError {
        self.opened.failed(error)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

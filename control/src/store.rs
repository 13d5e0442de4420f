//! The durable store: one file that holds the desired state and the bytes of every module and of stages' files.
//!
//! Owned by [`crate::Control`], which calls it under its lock. What a call wrote is on the disk when it returns. It
//! never judges a change and never talks to the node.
//!
//! ```text
//!   meta      "format" -> 1, "version" -> of the desired state
//!   modules   tenant/name -> pinion.v1.Module        uploads  (tenant, digest) -> when, seconds since 1970
//!   chains    tenant/name -> pinion.v1.Chain         blobs    digest -> the bytes uploaded
//!   rules     tenant/name -> pinion.v1.Rule
//! ```
//!
//! A module of tenant t with digest d stands on the upload (t, d), and that on the blob d; so do the files of a stage. Garbage is what nothing
//! stands on, once it is old enough that nobody can be about to name it.

mod garbage;
impl UploadedBytes for Store {
    fn wasm(&self, module: &Module) -> Result<Vec<u8>, String> {
        Self::wasm(self, module).map_err(|error| error.to_string())
    }

    fn files(&self, files: &Files) -> Result<Vec<u8>, String> {
        self.blob(&files.digest, || "a stage's files".to_owned()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;

pub use garbage::UPLOAD_LIFETIME;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageError};
use redb::{Table, TableDefinition, TableHandle, WriteTransaction};

use crate::model::{Applied, Change, DesiredState, Digest, Effect, Files, Module, ObjectRef, TenantName};
use crate::node::UploadedBytes;
use crate::proto;
use crate::wire::BadMessage;

/// The one format that this version reads and writes.
const FORMAT: u64 = 1;
/// The most (tenant, digest) pairs that may be uploaded, named by anything or not.
pub const UPLOADS_MAX: u64 = 4096;
/// redb's own default is a gigabyte, far more than a control path needs.
const CACHE_BYTES: usize = 8 << 20;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const MODULES: TableDefinition<&str, &[u8]> = TableDefinition::new("modules");
const CHAINS: TableDefinition<&str, &[u8]> = TableDefinition::new("chains");
const RULES: TableDefinition<&str, &[u8]> = TableDefinition::new("rules");
const UPLOADS: TableDefinition<(&str, &[u8; 32]), u64> = TableDefinition::new("uploads");
const BLOBS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("blobs");

/// Why the store can't be had, or did not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file can't be opened or made.
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
    /// It is something else.
    #[error("{} is not a store of Pinion's ({reason}): give another path, or move the file away to start empty", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What tells.
        reason: String,
    },
    /// It was a store of Pinion's once.
    #[error("the store {} is damaged ({reason}): bring it back from a backup, or move it away to start empty", path.display())]
    Damaged {
        /// The store.
        path: PathBuf,
        /// What tells.
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
    /// There are too many uploads.
    #[error(
        "the store holds {UPLOADS_MAX} uploads already, which is the most: delete modules or chains with files, or wait an hour for unused uploads to be forgotten"
    )]
    Full,
    /// Reading or writing failed.
    #[error("the store {} failed: {source}", path.display())]
    Failed {
        /// The store.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
}

/// The open store. One process at a time.
#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
}

impl Store {
    /// Opens the store in this file, and makes an empty one if there is no such file. The folder must be there.
    ///
    /// Reads the whole file to see that it is sound.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let open_error = |source| StoreError::Open { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(open_error)?;
        if !file.metadata().map_err(open_error)?.is_file() {
            return Err(StoreError::Foreign { path: path.to_owned(), reason: "it is not a file".into() });
        }
        let database = open_sound(path, file)?;
        let store = Self { database, path: path.to_owned() };
        store.check_format()?;
        Ok(store)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(|e| self.failed(e))?;
        let tables: Vec<String> =
            write.list_tables().map_err(|e| self.failed(e))?.map(|table| table.name().to_owned()).collect();
        if tables.is_empty() {
            self.initialise(&write)?;
            return write.commit().map_err(|e| self.failed(e));
        }
        let foreign = |reason: &str| StoreError::Foreign { path: self.path.clone(), reason: reason.into() };
        if !tables.iter().any(|table| table == META.name()) {
            return Err(foreign("it is a database of another program"));
        }
        let meta = write.open_table(META).map_err(|_| foreign("it is a database of another program"))?;
        let found = meta.get("format").map_err(|e| self.failed(e))?.map(|value| value.value());
        match found {
            Some(FORMAT) => Ok(()),
            Some(found) => Err(StoreError::OtherFormat { path: self.path.clone(), found }),
            None => Err(foreign("it is a database of another program")),
        }
    }

    fn initialise(&self, write: &WriteTransaction) -> Result<(), StoreError> {
        let mut meta = write.open_table(META).map_err(|e| self.failed(e))?;
        meta.insert("format", FORMAT).map_err(|e| self.failed(e))?;
        meta.insert("version", 0).map_err(|e| self.failed(e))?;
        for table in [MODULES, CHAINS, RULES] {
            write.open_table(table).map_err(|e| self.failed(e))?;
        }
        write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        write.open_table(BLOBS).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// The desired state as last committed.
    pub fn load(&self) -> Result<DesiredState, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.failed(e))?;
        let meta = read.open_table(META).map_err(|e| self.failed(e))?;
        let version = meta.get("version").map_err(|e| self.failed(e))?;
        let version = version.ok_or_else(|| self.damaged("it has no version"))?.value();
        let objects = Change {
            modules: self.load_objects::<proto::Module, _>(&read, MODULES)?,
            chains: self.load_objects::<proto::Chain, _>(&read, CHAINS)?,
            rules: self.load_objects::<proto::Rule, _>(&read, RULES)?,
            delete: Vec::new(),
        };
        DesiredState::restore(version, objects).map_err(|invalid| self.damaged(invalid))
    }

    fn load_objects<M, T>(
        &self,
        read: &redb::ReadTransaction,
        table: TableDefinition<&str, &[u8]>,
    ) -> Result<Vec<T>, StoreError>
    where
        M: Message + Default,
        T: TryFrom<M, Error = BadMessage>,
    {
        let table = read.open_table(table).map_err(|e| self.failed(e))?;
        let mut objects = Vec::new();
        for entry in table.iter().map_err(|e| self.failed(e))? {
            let (_, bytes) = entry.map_err(|e| self.failed(e))?;
            let message = M::decode(bytes.value()).map_err(|e| self.damaged(e))?;
            objects.push(T::try_from(message).map_err(|e| self.damaged(e))?);
        }
        Ok(objects)
    }

    /// Makes a change durable. Writes only what the change touched.
    pub fn commit(&self, applied: &Applied) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(|e| self.failed(e))?;
        {
            let mut meta = write.open_table(META).map_err(|e| self.failed(e))?;
            meta.insert("version", applied.state.version()).map_err(|e| self.failed(e))?;
        }
        {
            let open = |table| write.open_table(table).map_err(|e| self.failed(e));
            let (mut modules, mut chains, mut rules) = (open(MODULES)?, open(CHAINS)?, open(RULES)?);
            for outcome in applied.outcomes.iter().filter(|outcome| outcome.effect != Effect::Unchanged) {
                let table = match outcome.object {
                    ObjectRef::Module { .. } => &mut modules,
                    ObjectRef::Chain { .. } => &mut chains,
                    ObjectRef::Rule { .. } => &mut rules,
                };
                self.write_object(table, &applied.state, &outcome.object)?;
            }
        }
        write.commit().map_err(|e| self.failed(e))
    }

    fn write_object(
        &self,
        table: &mut Table<'_, &str, &[u8]>,
        state: &DesiredState,
        object: &ObjectRef,
    ) -> Result<(), StoreError> {
        let bytes = match object.clone() {
            ObjectRef::Module { tenant, name } => {
                let module = state.modules().get(&(tenant, name));
                module.map(|module| proto::Module::from(&**module).encode_to_vec())
            }
            ObjectRef::Chain { tenant, name } => {
                let chain = state.chains().get(&(tenant, name));
                chain.map(|chain| proto::Chain::from(&**chain).encode_to_vec())
            }
            ObjectRef::Rule { tenant, name } => {
                let rule = state.rules().get(&(tenant, name));
                rule.map(|rule| proto::Rule::from(&**rule).encode_to_vec())
            }
        };
        let key = format!("{}/{}", object.tenant(), object.name());
        match bytes {
            Some(bytes) => table.insert(key.as_str(), bytes.as_slice()).map_err(|e| self.failed(e))?,
            None => table.remove(key.as_str()).map_err(|e| self.failed(e))?,
        };
        Ok(())
    }

    /// Keeps what was uploaded by this tenant at this time. Done again, it only renews the time.
    pub fn put_upload(
        &self,
        tenant: &TenantName,
        digest: &Digest,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(|e| self.failed(e))?;
        {
            let mut uploads = write.open_table(UPLOADS).map_err(|e| self.failed(e))?;
            let key = (tenant.as_str(), digest.as_bytes());
            let known = uploads.insert(key, seconds(now)).map_err(|e| self.failed(e))?.is_some();
            if !known && uploads.len().map_err(|e| self.failed(e))? > UPLOADS_MAX {
                return Err(StoreError::Full);
            }
            let mut blobs = write.open_table(BLOBS).map_err(|e| self.failed(e))?;
            if blobs.get(digest.as_bytes()).map_err(|e| self.failed(e))?.is_none() {
                blobs.insert(digest.as_bytes(), bytes).map_err(|e| self.failed(e))?;
            }
        }
        write.commit().map_err(|e| self.failed(e))
    }

    /// How many bytes this tenant uploaded under the digest; none if it never did, or they are forgotten.
    pub fn upload_size_bytes(&self, tenant: &TenantName, digest: &Digest) -> Result<Option<u64>, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.failed(e))?;
        let uploads = read.open_table(UPLOADS).map_err(|e| self.failed(e))?;
        if uploads.get((tenant.as_str(), digest.as_bytes())).map_err(|e| self.failed(e))?.is_none() {
            return Ok(None);
        }
        let blobs = read.open_table(BLOBS).map_err(|e| self.failed(e))?;
        let blob = blobs.get(digest.as_bytes()).map_err(|e| self.failed(e))?;
        Ok(blob.map(|blob| blob.value().len() as u64))
    }

    /// The bytes of a module that the desired state names.
    pub fn wasm(&self, module: &Module) -> Result<Vec<u8>, StoreError> {
        self.blob(&module.digest, || ObjectRef::from(module).to_string())
    }

    fn blob(&self, digest: &Digest, whose: impl FnOnce() -> String) -> Result<Vec<u8>, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.failed(e))?;
        let blobs = read.open_table(BLOBS).map_err(|e| self.failed(e))?;
        let blob = blobs.get(digest.as_bytes()).map_err(|e| self.failed(e))?;
        let bytes = blob.map(|blob| blob.value().to_vec());
        bytes
            .filter(|bytes| Digest::of(bytes) == *digest)
            .ok_or_else(|| self.damaged(format!("it has lost the bytes of {}", whose())))
    }

    fn damaged(&self, reason: impl ToString) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }

    fn failed(&self, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(reason) => self.damaged(reason),
            redb::Error::TableDoesNotExist(table) => self.damaged(format!("the table {table} is missing")),
            source => StoreError::Failed { path: self.path.clone(), source: Box::new(source) },
        }
    }
}

/// Opens the database and checks all of it.
fn open_sound(path: &Path, file: File) -> Result<Database, StoreError> {
    // Of some damage redb says nothing before it indexes out of bounds. Once its check has passed, it has rebuilt all
    // that it goes by, so it is here or never.
    let opened = panic::catch_unwind(|| {
        let mut database = Database::builder().set_cache_size(CACHE_BYTES).create_file(file)?;
        let sound = database.check_integrity()?;
        Ok((database, sound))
    });
    let broken = |_| StoreError::Damaged { path: path.to_owned(), reason: "its bookkeeping makes no sense".into() };
    let (database, sound) = opened.map_err(broken)?.map_err(|error| open_failed(path, error))?;
    if !sound {
        tracing::warn!(store = %path.display(), "the store was not sound and has been repaired");
    }
    Ok(database)
}

fn open_failed(path: &Path, error: DatabaseError) -> StoreError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path },
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Foreign { path, reason: error.to_string() }
        }
        DatabaseError::Storage(StorageError::Io(source)) => StoreError::Open { path, source },
        DatabaseError::Storage(StorageError::Corrupted(reason)) => StoreError::Damaged { path, reason },
        other => StoreError::Damaged { path, reason: other.to_string() },
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

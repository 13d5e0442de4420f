//! The open database, and how it is reopened after an error.
//!
//! After an error of the file system the database refuses everything until it is closed and opened again, even though
//! the file is intact. So a call that meets such an error, or the aftermath of one, reopens the database: for writing,
//! or if that fails, read-only over the file ([`super::overlay`]). The next write tries to open it for writing.
//!
//! What can be read after a failed write is not yet durable: the system may have it in memory only, and after a failed
//! sync it may drop it there. So opening for writing begins with a sync, and after an error reads from the disk again.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageBackend, StorageError, WriteTransaction,
};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::StoreError;
use super::overlay::Overlay;
use crate::disk::{DiskError, DiskWatch};

/// redb's own default is a gigabyte, far more than a control path needs.
const CACHE_BYTES: usize = 8 << 20;

/// A database in a file, reopened as often as necessary.
#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
    disk: DiskWatch,
    use_of_file: UseOfFile,
    state: RwLock<State>,
    #[cfg(test)]
    pub(super) faults: super::faults::Faults,
}

/// What the file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseOfFile {
    /// A node keeps its state in it.
    Node,
    /// It is read while no process has it open.
    Offline,
}

#[derive(Debug)]
struct State {
    /// How often the database was reopened.
    openings: u64,
    database: Access,
    /// Whether the database was not sound when it was opened, and was repaired.
    was_repaired: bool,
}

#[derive(Debug)]
enum Access {
    /// The normal state.
    ForWriting(Database),
    /// The file could only be read when it was last opened.
    ForReading(Database),
    /// It could not be opened.
    Closed,
}

impl Access {
    fn database(&self) -> Option<&Database> {
        match self {
            Self::ForWriting(database) | Self::ForReading(database) => Some(database),
            Self::Closed => None,
        }
    }
}

/// What the database is reopened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Reading,
    Writing,
}

/// Why a write failed.
pub(super) struct NotWritten {
    pub(super) error: StoreError,
    /// Whether parts of the write may have reached the file.
    pub(super) begun: bool,
}

impl From<NotWritten> for StoreError {
    fn from(not_written: NotWritten) -> Self {
        not_written.error
    }
}

impl Opened {
    /// Opens the file, or creates it.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(
            path,
            #[cfg(test)]
            super::faults::Faults::default(),
        )
    }

    pub(super) fn open_with(path: &Path, #[cfg(test)] faults: super::faults::Faults) -> Result<Self, StoreError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let metadata = metadata_of(path, &options)?;
        let opened = Self {
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
            disk: DiskWatch::new(path.parent().unwrap_or(path)),
            use_of_file: UseOfFile::Node,
            state: RwLock::new(State { openings: 0, database: Access::Closed, was_repaired: false }),
            #[cfg(test)]
            faults,
        };
        // An empty file becomes a new store, which requires writing.
        let purpose = if metadata.len() == 0 { Purpose::Writing } else { Purpose::Reading };
        opened.open_again(0, purpose)?;
        Ok(opened)
    }

    /// Opens a file that there is, to read it while no process has it open. Nothing is written to it.
    pub(super) fn open_offline(path: &Path) -> Result<Self, StoreError> {
        let metadata = metadata_of(path, OpenOptions::new().read(true).write(true))?;
        if metadata.len() == 0 {
            return Err(StoreError::Foreign { path: path.to_owned(), reason: "it is empty".into() });
        }
        let opened = Self {
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
            disk: DiskWatch::new(path.parent().unwrap_or(path)),
            use_of_file: UseOfFile::Offline,
            state: RwLock::new(State { openings: 0, database: Access::Closed, was_repaired: false }),
            #[cfg(test)]
            faults: super::faults::Faults::default(),
        };
        opened.open_again(0, Purpose::Reading)?;
        Ok(opened)
    }

    /// Returns whether it was opened to be read only.
    pub(super) fn is_offline(&self) -> bool {
        self.use_of_file == UseOfFile::Offline
    }

    /// Returns whether the database was not sound when it was opened, and was repaired.
    pub(super) fn was_repaired(&self) -> bool {
        self.state().was_repaired
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the warning for the status, if the file system has a problem.
    pub(super) fn warning(&self) -> Option<String> {
        if let Err(error) = self.check_place() {
            return Some(self.disk.note(error, 0).warning());
        }
        self.disk.warning()
    }

    /// Runs `read` in a read transaction. `read` may be called again.
    pub(super) fn read<T>(&self, read: impl Fn(&ReadTransaction) -> Result<T, StoreError>) -> Result<T, StoreError> {
        loop {
            let state = self.state();
            let openings = state.openings;
            if let Some(database) = state.database.database() {
                let begun = database.begin_read().map_err(|error| self.failed(error));
                match begun.and_then(|transaction| read(&transaction)) {
                    // An earlier error caused this one.
                    Err(error) if is_left_over(&error) => {}
                    Err(error) if is_broken(&error) => return Err(self.told(error, 0)),
                    done => return done,
                }
            }
            drop(state);
            self.open_again(openings, Purpose::Reading)?;
        }
    }

    /// Runs `write` in a write transaction and commits it. `write` may be called again if nothing was written.
    pub(super) fn write<T>(
        &self,
        bytes: u64,
        write: impl Fn(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, NotWritten> {
        let not_begun = |error| NotWritten { error, begun: false };
        self.check_place().map_err(|error| not_begun(StoreError::Disk(self.disk.note(error, bytes))))?;
        loop {
            let state = self.state();
            let openings = state.openings;
            if let Access::ForWriting(database) = &state.database {
                match database.begin_write().map_err(|error| self.failed(error)) {
                    Ok(transaction) => {
                        let done = write(&transaction)
                            .and_then(|value| transaction.commit().map(|()| value).map_err(|error| self.failed(error)));
                        drop(state);
                        return self.written(done, bytes, openings);
                    }
                    Err(error) if !is_broken(&error) => return Err(not_begun(error)),
                    Err(_) => {}
                }
            }
            drop(state);
            self.open_again(openings, Purpose::Writing).map_err(not_begun)?;
        }
    }

    /// Makes what can be read durable: if the database could only be read since an error, it is opened for writing.
    pub(super) fn make_durable(&self) -> Result<(), StoreError> {
        let openings = {
            let state = self.state();
            match state.database {
                Access::ForWriting(_) => return Ok(()),
                Access::ForReading(_) | Access::Closed => state.openings,
            }
        };
        self.open_again(openings, Purpose::Writing)
    }

    /// Returns whether what can be read is durable, and not only what was written before an error.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.state().database, Access::ForWriting(_))
    }

    fn written<T>(&self, done: Result<T, StoreError>, bytes: u64, openings: u64) -> Result<T, NotWritten> {
        match done {
            Ok(value) => {
                self.disk.succeeded();
                Ok(value)
            }
            Err(error) if is_broken(&error) => {
                let error = self.told(error, bytes);
                // Reopen at once, so that the durable state can be read.
                let _ = self.open_again(openings, Purpose::Reading);
                Err(NotWritten { error, begun: true })
            }
            Err(error) => Err(NotWritten { error, begun: false }),
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the database and opens it again, unless it was reopened since `openings` was read.
    fn open_again(&self, openings: u64, purpose: Purpose) -> Result<(), StoreError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.openings != openings {
            return Ok(());
        }
        state.openings += 1;
        // Releases the file's lock.
        state.database = Access::Closed;
        if self.is_offline() {
            let (database, is_sound) = self.open_file(Purpose::Reading)?;
            (state.database, state.was_repaired) = (Access::ForReading(database), !is_sound);
            return Ok(());
        }
        let failed = match self.open_file(Purpose::Writing) {
            Ok((database, is_sound)) => {
                (state.database, state.was_repaired) = (Access::ForWriting(database), !is_sound);
                return Ok(());
            }
            Err(error @ StoreError::Open { .. }) => error,
            Err(error) => return Err(error),
        };
        if let Ok((database, is_sound)) = self.open_file(Purpose::Reading) {
            (state.database, state.was_repaired) = (Access::ForReading(database), !is_sound);
        }
        let is_enough = purpose == Purpose::Reading && state.database.database().is_some();
        let told = self.told(failed, 0);
        if is_enough { Ok(()) } else { Err(told) }
    }

    /// Returns the database, and whether it was sound.
    fn open_file(&self, purpose: Purpose) -> Result<(Database, bool), StoreError> {
        let open_error = |source| StoreError::Open { path: self.path.clone(), source };
        let mut options = OpenOptions::new();
        // A lock of its own takes a file that could be written.
        options.read(true).write(purpose == Purpose::Writing || self.is_offline());
        let file = open_or_read(&self.path, &options).map_err(open_error)?;
        let metadata = file.metadata().map_err(open_error)?;
        if (metadata.dev(), metadata.ino()) != self.file {
            return Err(StoreError::Disk(DiskError::gone(self.disk.directory(), &self.path)));
        }
        open_sound(&self.path, || match purpose {
            Purpose::Writing => {
                let cached = file.try_clone();
                #[cfg(test)]
                let backend = self.faults.on(file)?;
                #[cfg(not(test))]
                let backend = redb::backends::FileBackend::new(file)?;
                let synced = backend.sync_data().and_then(|()| forget_cached(&cached?));
                synced.map_err(|error| DatabaseError::Storage(StorageError::Io(error)))?;
                builder().create_with_backend(backend)
            }
            Purpose::Reading => {
                let overlay = if self.is_offline() { Overlay::locking(file) } else { Overlay::new(file) };
                let overlay = overlay.map_err(|error| DatabaseError::Storage(StorageError::Io(error)))?;
                builder().create_with_backend(overlay)
            }
        })
    }

    /// Checks that the path still leads to the same file. What is written to a removed file is lost when the process
    /// ends.
    fn check_place(&self) -> Result<(), DiskError> {
        match fs::metadata(&self.path) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == self.file => Ok(()),
            Ok(_) => Err(DiskError::gone(self.disk.directory(), &self.path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(DiskError::gone(self.disk.directory(), &self.path))
            }
            Err(error) => Err(DiskError::new(self.disk.directory(), &error)),
        }
    }

    /// Turns an error of the file system into a sentence for the operator, and remembers it for the status.
    fn told(&self, error: StoreError, bytes: u64) -> StoreError {
        match error {
            StoreError::Open { source, .. } => StoreError::Disk(self.disk.failed(&source, bytes)),
            StoreError::Failed { source, .. } if matches!(*source, redb::Error::Io(_)) => match *source {
                redb::Error::Io(source) => StoreError::Disk(self.disk.failed(&source, bytes)),
                source => self.failed(source),
            },
            error => error,
        }
    }

    pub(super) fn damaged(&self, reason: impl ToString) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }

    pub(super) fn failed(&self, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(reason) => self.damaged(reason),
            redb::Error::TableDoesNotExist(table) => self.damaged(format!("the table {table} is missing")),
            source => StoreError::Failed { path: self.path.clone(), source: Box::new(source) },
        }
    }
}

/// Returns whether the database has to be reopened.
fn is_broken(error: &StoreError) -> bool {
    let is_io = |source: &redb::Error| matches!(source, redb::Error::Io(_));
    is_left_over(error) || matches!(error, StoreError::Failed { source, .. } if is_io(source))
}

/// Returns whether an earlier error is the cause.
fn is_left_over(error: &StoreError) -> bool {
    use redb::Error::{DatabaseClosed, LockPoisoned, PreviousIo};
    matches!(error, StoreError::Failed { source, .. } if matches!(**source, PreviousIo | DatabaseClosed | LockPoisoned(_)))
}

/// Makes the system forget what it has of the file in memory, so that the disk is read: after a failed sync the two may differ.
fn forget_cached(file: &File) -> io::Result<()> {
    match fadvise(file, 0, None, Advice::DontNeed) {
        // A file system without a cache.
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Opens a file, or on a read-only file system, opens it to be read.
fn open_or_read(path: &Path, options: &OpenOptions) -> io::Result<File> {
    options.open(path).or_else(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => File::open(path).map_err(|_| error),
        _ => Err(error),
    })
}

/// Returns the metadata of what has to be a file.
fn metadata_of(path: &Path, options: &OpenOptions) -> Result<Metadata, StoreError> {
    let open_error = |source| StoreError::Open { path: path.to_owned(), source };
    let metadata = open_or_read(path, options).and_then(|file| file.metadata()).map_err(open_error)?;
    if !metadata.is_file() {
        return Err(StoreError::Foreign { path: path.to_owned(), reason: "it is not a file".into() });
    }
    Ok(metadata)
}

/// Opens the database and checks all of it. Returns whether it was sound.
fn open_sound(
    path: &Path,
    open: impl FnOnce() -> Result<Database, DatabaseError>,
) -> Result<(Database, bool), StoreError> {
    // For some damage redb reports no error before it indexes out of bounds. After its check has passed, it has rebuilt
    // everything it relies on, so such a panic can only occur here.
    let opened = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut database = open()?;
        let sound = database.check_integrity()?;
        Ok((database, sound))
    }));
    let broken = |_| StoreError::Damaged { path: path.to_owned(), reason: "its bookkeeping makes no sense".into() };
    let (database, sound) = opened.map_err(broken)?.map_err(|error| open_failed(path, error))?;
    if !sound {
        tracing::warn!(store = %path.display(), "the store was not sound and has been repaired");
    }
    Ok((database, sound))
}

fn open_failed(path: &Path, error: DatabaseError) -> StoreError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path },
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Foreign { path, reason: error.to_string() }
        }
        DatabaseError::Storage(StorageError::Io(source)) => StoreError::Open { path, source },
        DatabaseError::Storage(StorageError::PreviousIo) => {
            StoreError::Open { path, source: io::Error::other("an error before this one") }
        }
        DatabaseError::Storage(StorageError::Corrupted(reason)) => StoreError::Damaged { path, reason },
        other => StoreError::Damaged { path, reason: other.to_string() },
    }
}

//! A file system with injected faults, for tests.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::io::Errno;

/// The injected faults, shared by all files that were opened with clones of this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    /// Writes, changes of length and syncs so far.
    steps: u64,
    /// The index of the first step that fails, and how many steps fail from there.
    failing: Option<(u64, u64)>,
    errno: Option<Errno>,
}

impl Faults {
    /// Lets the next `after` steps succeed, and the following `count` steps fail.
    pub(crate) fn fail(&self, after: u64, count: u64, errno: Errno) {
        *self.0.lock().unwrap() = Plan { steps: 0, failing: Some((after, count)), errno: Some(errno) };
    }

    /// Ends the injected faults. Returns how many steps there were since the last call of `fail` or `heal`.
    pub(crate) fn heal(&self) -> u64 {
        std::mem::take(&mut *self.0.lock().unwrap()).steps
    }

    pub(super) fn on(&self, file: File) -> Result<FaultyFile, DatabaseError> {
        Ok(FaultyFile { file: FileBackend::new(file)?, faults: self.clone() })
    }

    fn step(&self) -> io::Result<()> {
        let mut plan = self.0.lock().unwrap();
        let step = plan.steps;
        plan.steps += 1;
        match (plan.failing, plan.errno) {
            (Some((first, count)), Some(errno)) if step >= first && step - first < count => Err(errno.into()),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(super) struct FaultyFile {
    file: FileBackend,
    faults: Faults,
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.step()?;
        self.file.set_len(len)
    }

    /// What was written before is in the file, whether this fails or not. The error says nothing about that.
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.faults.step()
    }

    /// A write that fails may have written a part of its data.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.faults.step() {
            Ok(()) => self.file.write(offset, data),
            Err(error) => {
                self.file.write(offset, &data[..data.len() / 2])?;
                Err(error)
            }
        }
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

//! A file system with injected faults, for tests: writes that fail, and power cuts that lose and reorder what was not synced.

mod volatile;

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::io::Errno;

pub(crate) use self::volatile::Dice;
use self::volatile::Volatile;

/// The injected faults, shared by all files that were opened with clones of this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// What would be left of the file without power. None: everything.
    volatile: Option<Arc<Mutex<Volatile>>>,
}

#[derive(Debug, Default)]
struct Plan {
    /// Writes, changes of length and syncs so far.
    steps: u64,
    /// The index of the first step that fails, and how many steps fail from there.
    failing: Option<(u64, u64)>,
    errno: Option<Errno>,
    /// The index of the step at which the power is cut.
    power_cut: Option<u64>,
}

impl Plan {
    fn has_power(&self) -> bool {
        self.power_cut.is_none_or(|at| self.steps <= at)
    }
}

/// What becomes of a step.
enum Step {
    Succeeds,
    Fails(Errno),
    /// Nothing happens any more.
    WithoutPower,
}

impl Step {
    fn error(self) -> io::Error {
        match self {
            Self::Succeeds | Self::WithoutPower => Errno::IO.into(),
            Self::Fails(errno) => errno.into(),
        }
    }
}

impl Faults {
    /// Creates a file system that can lose its power. It does not sync what is written to the real one.
    pub(crate) fn volatile() -> Self {
        Self { plan: Arc::default(), volatile: Some(Arc::default()) }
    }

    /// Lets the next `after` steps succeed, and the following `count` steps fail.
    pub(crate) fn fail(&self, after: u64, count: u64, errno: Errno) {
        *self.plan.lock().unwrap() = Plan { failing: Some((after, count)), errno: Some(errno), ..Plan::default() };
    }

    /// Ends the injected faults. Returns how many steps there were since the last call of `fail`, `cut_power` or `heal`.
    pub(crate) fn heal(&self) -> u64 {
        std::mem::take(&mut *self.plan.lock().unwrap()).steps
    }

    /// Cuts the power after this many steps. What happens after that does not reach the file, until it is restored.
    pub(crate) fn cut_power(&self, after: u64) {
        *self.plan.lock().unwrap() = Plan { power_cut: Some(after), ..Plan::default() };
    }

    /// Returns whether the power is on.
    pub(crate) fn has_power(&self) -> bool {
        self.plan.lock().unwrap().has_power()
    }

    /// Returns whether the power is on, and will be cut.
    pub(crate) fn is_power_to_be_cut(&self) -> bool {
        let plan = self.plan.lock().unwrap();
        plan.power_cut.is_some() && plan.has_power()
    }

    /// Restores the power, and leaves of the closed file what was synced, with any part of what was not. Returns how many steps
    /// there were since the last call of `fail`, `cut_power` or `heal`.
    pub(crate) fn restore_power(&self, path: &Path, dice: &mut Dice) -> u64 {
        let volatile = self.volatile.as_ref().expect("the file system can lose its power");
        std::fs::write(path, volatile.lock().unwrap().lose(dice)).unwrap();
        self.heal()
    }

    pub(super) fn on(&self, file: File) -> Result<FaultyFile, DatabaseError> {
        Ok(FaultyFile { file: FileBackend::new(file)?, faults: self.clone() })
    }

    fn step(&self) -> Step {
        let mut plan = self.plan.lock().unwrap();
        let step = plan.steps;
        plan.steps += 1;
        match (plan.failing, plan.errno) {
            _ if !plan.has_power() => Step::WithoutPower,
            (Some((first, count)), Some(errno)) if step >= first && step - first < count => Step::Fails(errno),
            _ => Step::Succeeds,
        }
    }

    fn note(&self, change: impl FnOnce(&mut Volatile)) {
        if let Some(volatile) = &self.volatile {
            change(&mut volatile.lock().unwrap());
        }
    }
}

#[derive(Debug)]
pub(super) struct FaultyFile {
    file: FileBackend,
    faults: Faults,
}

impl FaultyFile {
    fn write_through(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)?;
        self.faults.note(|volatile| volatile.write(offset, data));
        Ok(())
    }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.faults.step() {
            Step::Succeeds => {
                self.file.set_len(len)?;
                self.faults.note(|volatile| volatile.set_len(len));
                Ok(())
            }
            failed => Err(failed.error()),
        }
    }

    /// What was written before is in the file, whether this fails or not. The error says nothing about that.
    fn sync_data(&self) -> io::Result<()> {
        let step = self.faults.step();
        match &self.faults.volatile {
            None => self.file.sync_data()?,
            Some(volatile) if matches!(step, Step::Succeeds) => volatile.lock().unwrap().sync(),
            Some(_) => {}
        }
        match step {
            Step::Succeeds => Ok(()),
            failed => Err(failed.error()),
        }
    }

    /// A write that fails may have written a part of its data.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.faults.step() {
            Step::Succeeds => self.write_through(offset, data),
            Step::WithoutPower => Err(Step::WithoutPower.error()),
            failed @ Step::Fails(_) => {
                self.write_through(offset, &data[..data.len() / 2])?;
                Err(failed.error())
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

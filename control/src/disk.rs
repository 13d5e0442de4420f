//! The file system of the state directory: what its errors mean to an operator, and whether they persist.
//!
//! Each component that keeps files there has a [`DiskWatch`] and reports every error to it. The status asks it for a
//! warning, which stays until files can be written again. Never used by a data-plane thread.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// The minimum time between two probes of whether files can be written again.
const TRY_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum number of bytes that a probe writes.
const TRIED_BYTES_MIN: u64 = 64 << 10;

/// Which resource is exhausted, or what is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NoSpace,
    Quota,
    ReadOnly,
    OpenFiles,
    Gone,
    Other,
}

impl Fault {
    fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::NOSPC) => Self::NoSpace,
            Some(Errno::DQUOT) => Self::Quota,
            Some(Errno::ROFS) => Self::ReadOnly,
            Some(Errno::MFILE | Errno::NFILE) => Self::OpenFiles,
            Some(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Self::Gone,
            _ => Self::Other,
        }
    }
}

/// An error of a directory's file system, as a sentence that says what is exhausted or broken, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    directory: PathBuf,
    fault: Fault,
    cause: String,
}

impl DiskError {
    /// Classifies an error that occurred in this directory.
    #[must_use]
    pub fn new(directory: &Path, error: &io::Error) -> Self {
        Self { directory: directory.to_owned(), fault: Fault::of(error), cause: error.to_string() }
    }

    /// Returns the error for a file in this directory that was removed or replaced.
    pub(crate) fn gone(directory: &Path, file: &Path) -> Self {
        let cause = format!("{} was removed or replaced", file.display());
        Self { directory: directory.to_owned(), fault: Fault::Gone, cause }
    }

    /// Returns whether an operator can fix it by providing more of a resource. Otherwise something is broken.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self.fault, Fault::NoSpace | Fault::Quota | Fault::OpenFiles)
    }

    /// Returns what is wrong, and how to fix it.
    fn parts(&self) -> (String, &'static str) {
        let (directory, cause) = (self.directory.display(), &self.cause);
        match self.fault {
            Fault::NoSpace => {
                (format!("the state directory {directory} has no space left"), "free some on its file system")
            }
            Fault::Quota => (
                format!("the state directory {directory} has used up its disk quota"),
                "free some, or ask for a larger quota",
            ),
            Fault::ReadOnly => (
                format!("the file system of the state directory {directory} is read-only"),
                "see the kernel's log for why, and mount it for writing",
            ),
            Fault::OpenFiles => (
                format!("piniond has as many files open as it may ({cause})"),
                "raise its limit of open files (LimitNOFILE, ulimit -n)",
            ),
            Fault::Gone => (
                format!("the state directory {directory} is not what it was when piniond started ({cause})"),
                "put it back as it was, or restart piniond to go by what is there",
            ),
            Fault::Other => (
                format!("the file system of the state directory {directory} failed ({cause})"),
                "see the kernel's log for why",
            ),
        }
    }

    /// Returns the sentence for the status while the error persists.
    #[must_use]
    pub fn warning(&self) -> String {
        let (what, remedy) = self.parts();
        format!("{what}: changes that need it are refused until that ends: {remedy}")
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, remedy) = self.parts();
        write!(f, "{what}: {remedy}, then try again")
    }
}

impl std::error::Error for DiskError {}

#[derive(Debug)]
struct Trouble {
    error: DiskError,
    /// The size of the write that failed.
    bytes: u64,
    tried: Instant,
}

/// Remembers the last error of a directory's file system while it persists.
#[derive(Debug)]
pub struct DiskWatch {
    directory: PathBuf,
    trouble: Mutex<Option<Trouble>>,
}

impl DiskWatch {
    /// Creates a watch for this directory, without an error.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        // The file's path has no directory part, so the file lies in the working directory.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        Self { directory: directory.to_owned(), trouble: Mutex::default() }
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Records an error that occurred when `bytes` were to be written.
    pub fn failed(&self, error: &io::Error, bytes: u64) -> DiskError {
        self.note(DiskError::new(&self.directory, error), bytes)
    }

    pub(crate) fn note(&self, error: DiskError, bytes: u64) -> DiskError {
        let mut trouble = self.trouble();
        if trouble.as_ref().is_none_or(|trouble| trouble.error != error) {
            tracing::error!("{}", error.warning());
        }
        *trouble = Some(Trouble { error: error.clone(), bytes, tried: Instant::now() });
        error
    }

    /// Records that files could be written.
    pub fn succeeded(&self) {
        if self.trouble().take().is_some() {
            tracing::info!(directory = %self.directory.display(), "the state directory can be written again");
        }
    }

    /// Returns the sentence for the status if there was an error that persists. Probes for that, once a second at most.
    pub fn warning(&self) -> Option<String> {
        let mut trouble = self.trouble();
        let Trouble { error, bytes, tried } = trouble.as_mut()?;
        if tried.elapsed() >= TRY_INTERVAL {
            *tried = Instant::now();
            match try_to_write(&self.directory, *bytes) {
                Ok(()) => {
                    drop(trouble);
                    self.succeeded();
                    return None;
                }
                Err(found) => *error = DiskError::new(&self.directory, &found),
            }
        }
        Some(error.warning())
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries to write a file of this size. The file has no name, so nothing of it remains.
fn try_to_write(directory: &Path, bytes: u64) -> io::Result<()> {
    let mut file = tempfile::tempfile_in(directory)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(TRIED_BYTES_MIN)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all(&[0xa5; TRIED_BYTES_MIN as usize])?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> DiskError {
        DiskError::new(Path::new("/var/lib/pinion"), &errno.into())
    }

    #[test]
    fn each_error_says_what_is_wrong_and_what_to_do() {
        for (errno, said) in [
            (Errno::NOSPC, "has no space left: free some"),
            (Errno::DQUOT, "has used up its disk quota: free some, or ask for a larger quota"),
            (Errno::ROFS, "is read-only: see the kernel's log for why, and mount it for writing"),
            (Errno::MFILE, "as many files open as it may (Too many open files (os error 24)): raise its limit"),
            (Errno::NFILE, "raise its limit of open files"),
            (Errno::NOENT, "is not what it was when piniond started (No such file or directory (os error 2))"),
            (Errno::STALE, "put it back as it was"),
            (Errno::IO, "failed (Input/output error (os error 5)): see the kernel's log for why"),
        ] {
            let error = error(errno);
            assert!(error.to_string().contains(said), "{error}");
            assert!(error.to_string().ends_with(", then try again"), "{error}");
            assert!(
                error.warning().contains("changes that need it are refused until that ends"),
                "{}",
                error.warning()
            );
        }
    }

    #[test]
    fn an_exhausted_resource_is_a_shortage_and_a_broken_one_is_not() {
        let shortages = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE];
        assert!(shortages.into_iter().all(|errno| error(errno).is_shortage()));
        assert!(![Errno::ROFS, Errno::IO, Errno::NOENT].into_iter().any(|errno| error(errno).is_shortage()));
    }

    #[test]
    fn a_warning_lasts_until_files_can_be_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let watch = DiskWatch::new(&directory);
        assert_eq!(watch.warning(), None);
        watch.failed(&Errno::NOSPC.into(), 100);
        let long_ago = || watch.trouble().as_mut().unwrap().tried -= TRY_INTERVAL;
        assert!(watch.warning().unwrap().contains("no space left"), "it was not tried yet");
        long_ago();
        assert!(watch.warning().unwrap().contains("No such file or directory"), "the directory is not there");
        std::fs::create_dir(&directory).unwrap();
        long_ago();
        assert_eq!(watch.warning(), None);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing of the try stays");
        watch.failed(&Errno::NOSPC.into(), 100);
        watch.succeeded();
        assert_eq!(watch.warning(), None);
    }
}

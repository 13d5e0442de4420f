//! Derived files: files of the state directory that can be made again from the store. How they are written, and how damage is recorded.
//!
//! A file is written under another name and renamed when it is complete, so a truncated file is damage. Code that finds damage reports it
//! here. The control plane then makes the file again, and the status tells the operator. Called by control threads and the launcher.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pinion_control::disk::{DiskError, DiskWatch};
use pinion_control::node::Refusal;
use tokio::sync::watch;

/// An error with a derived file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DerivedError {
    /// The file system is full, or failed.
    #[error(transparent)]
    Disk(DiskError),
    /// The file is not accessible now.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The file differs from what was written, or is missing.
    #[error("{} is damaged ({reason}); it is made again from what was uploaded", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl DerivedError {
    /// Returns the refusal of a change that needs the file.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Disk(error) if error.is_shortage() => Refusal::Short(error.to_string()),
            other => Refusal::Failed(other.to_string()),
        }
    }
}

impl DerivedError {
    /// Returns what is wrong with the file, for a tenant: without the node's paths.
    #[must_use]
    pub fn for_tenant(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "damaged; made again from what was uploaded",
            Self::Disk(_) | Self::File { .. } => "not readable now; the node's log says why",
        }
    }
}

/// See the module.
pub struct Derived {
    disk: DiskWatch,
    damage: Mutex<Damage>,
    /// How often damage was found by code that does not repair it.
    found: watch::Sender<u64>,
}

#[derive(Default)]
struct Damage {
    count: u64,
    latest: String,
    /// Damaged files that were not written again.
    unmended: BTreeSet<PathBuf>,
}

impl Derived {
    /// Creates the record of a node with this state directory.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { disk: DiskWatch::new(state_dir), damage: Mutex::default(), found: watch::Sender::default() }
    }

    /// Writes a file durably, and replaces whatever has its name. Makes the directory if it is gone.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), DerivedError> {
        let partial = path.with_extension("partial");
        let written = clear_way(path, &partial).and_then(|()| write_durably(&partial, bytes));
        let written = written.and_then(|()| fs::rename(&partial, path));
        match written {
            Ok(()) => {
                self.disk.succeeded();
                self.damage().unmended.remove(path);
                Ok(())
            }
            Err(error) => {
                // The part that was written would take space that is short.
                let _ = remove(&partial);
                Err(DerivedError::Disk(self.disk.failed(&error, bytes.len() as u64)))
            }
        }
    }

    /// Reads a file. A file counts as damaged if it cannot be read because of what it is, not because the process or the machine lacks a
    /// resource.
    pub(crate) fn read(path: &Path) -> Result<(File, Vec<u8>), DerivedError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|mut file| {
            io::Read::read_to_end(&mut file, &mut bytes)?;
            Ok(file)
        });
        read.map(|file| (file, bytes)).map_err(|error| {
            let path = path.to_owned();
            match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                    DerivedError::File { path, error }
                }
                _ => DerivedError::Damaged { path, reason: error.to_string() },
            }
        })
    }

    /// Records that a file is damaged. The caller makes it again.
    pub(crate) fn note_damage(&self, error: &DerivedError) {
        if let DerivedError::Damaged { path, .. } = error {
            let mut damage = self.damage();
            if damage.unmended.insert(path.clone()) {
                tracing::warn!("{error}");
                damage.count += 1;
                damage.latest = error.to_string();
            }
        }
    }

    /// Records that a file is damaged, and tells the control plane to make it again.
    pub(crate) fn report_damage(&self, error: &DerivedError) {
        self.note_damage(error);
        if let DerivedError::Damaged { .. } = error {
            self.found.send_modify(|found| *found += 1);
        }
    }

    /// Returns a counter that changes each time damage is found by code that does not repair it.
    #[must_use]
    pub fn found(&self) -> watch::Receiver<u64> {
        self.found.subscribe()
    }

    /// Returns warnings for the operator.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let Damage { count, latest, .. } = &*self.damage();
        let damage = (*count > 0).then(|| {
            format!("files that the node makes itself were found damaged, {count} since it started: check the disk; the latest: {latest}")
        });
        self.disk.warning().into_iter().chain(damage).collect()
    }

    fn damage(&self) -> MutexGuard<'_, Damage> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a directory that only the node's user can enter. Removes a file in its place.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
        tracing::warn!(path = %path.display(), "a file is where the node needs a directory: it is removed");
        fs::remove_file(path)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Not if the mode is right already: the file system may be read-only.
    if fs::metadata(path)?.permissions().mode() & 0o777 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes the directory of a file if it is missing, and removes anything that prevents writing the file.
fn clear_way(path: &Path, partial: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        make_directory(directory)?;
    }
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        remove(path)?;
    }
    match remove(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns what a directory contains.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>, DerivedError> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(at(directory))
}

/// Names the path at which an operation failed.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> DerivedError {
    let path = path.to_owned();
    |error| DerivedError::File { path, error }
}

/// Removes the file or directory at a path.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Damages a file on disk.
    type Damage = fn(&Path);

    /// The kinds of damage, by name.
    pub(crate) const DAMAGES: [(&str, Damage); 8] = [
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("cut short", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("altered by one byte", |path| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("longer by one byte", |path| fs::write(path, [&fs::read(path).unwrap()[..], b" "].concat()).unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("replaced by a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir_all(path.join("within")).unwrap();
        }),
        ("unreadable, as a link to itself", |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink(path, path).unwrap();
        }),
        ("gone with its directory", |path| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
    ];

    #[test]
    fn a_file_is_written_whatever_has_its_name() {
        for way in ["a.file", "a.partial"] {
            for (what, damage) in DAMAGES {
                let folder = tempfile::tempdir().unwrap();
                let directory = folder.path().join("derived");
                let derived = Derived::new(folder.path());
                derived.write(&directory.join("a.file"), b"once").unwrap();
                fs::write(directory.join("a.partial"), b"half").unwrap();
                damage(&directory.join(way));
                derived.write(&directory.join("a.file"), b"whole").unwrap();
                assert_eq!(fs::read(directory.join("a.file")).unwrap(), b"whole", "{way} was {what}");
                assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "{way} was {what}");
            }
        }
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("derived");
        fs::write(&path, "a file").unwrap();
        make_directory(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_failed_write_leaves_no_partial_file_and_causes_a_warning_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let derived = Derived::new(folder.path());
        let error = derived.write(&Path::new("/proc/derived").join("a.file"), b"bytes").unwrap_err();
        assert!(matches!(error, DerivedError::Disk(_)), "{error}");
        assert!(matches!(error.refusal(), Refusal::Failed(_)));
        assert_eq!(derived.warnings().len(), 1);
        derived.write(&folder.path().join("a.file"), b"bytes").unwrap();
        assert_eq!(derived.warnings(), Vec::<String>::new());
    }

    #[test]
    fn a_shortage_is_refused_in_a_sentence_for_the_operator_only() {
        let no_space = io::Error::from(rustix::io::Errno::NOSPC);
        let error = DerivedError::Disk(DiskError::new(Path::new("/var/lib/pinion"), &no_space));
        assert_eq!(error.refusal(), Refusal::Short(error.to_string()));
    }

    #[test]
    fn damage_is_counted_and_the_latest_is_named() {
        let derived = Derived::new(Path::new("/"));
        let found = derived.found();
        for name in ["first", "second", "first"] {
            derived.note_damage(&DerivedError::Damaged { path: name.into(), reason: "it is cut short".into() });
        }
        assert!(!found.has_changed().unwrap(), "the caller mends it");
        derived.report_damage(&DerivedError::Damaged { path: "third".into(), reason: "it is cut short".into() });
        assert!(found.has_changed().unwrap());
        let warnings = derived.warnings();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("found damaged, 3 since it started"), "{warnings:?}");
        assert!(
            warnings[0].contains("the latest: third is damaged (it is cut short); it is made again"),
            "{warnings:?}"
        );
    }
}

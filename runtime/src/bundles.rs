//! The files of stages as the node has them: archives on disk, each read into memory once for all templates that have it.
//!
//! An archive lies there under its digest, which is compared when it is read; the builder has looked through it before. What is read
//! stays in memory for as long as a template or an FWP has it, and goes with the last of these.
//!
//! ```text
//!   <state>/files/<archive>.tar
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pinion_control::model::Digest;
use pinion_guest::files::{BadBundle, Bundle};

use crate::artifacts::write_durably;

const ARCHIVE: &str = "tar";

/// What went wrong with an archive on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The directory or a file in it.
    #[error("files {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// Its bytes are not those that were kept.
    #[error("files {} are not what was deployed; remove that file and restart", .0.display())]
    Altered(PathBuf),
    /// It is no bundle.
    #[error(transparent)]
    Bad(#[from] BadBundle),
}

/// The directory of archives, and those of them that are in memory.
pub struct Bundles {
    directory: PathBuf,
    loaded: Mutex<HashMap<Digest, Weak<Bundle>>>,
    /// Held while one is written.
    keeping: Mutex<()>,
}

impl Bundles {
    /// Opens (makes) the directory.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn open(directory: PathBuf) -> Result<Self, BundleError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| BundleError::File { path: directory.clone(), error })?;
        Ok(Self { directory, loaded: Mutex::default(), keeping: Mutex::default() })
    }

    /// Whether an archive is there.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.path(digest).is_file()
    }

    /// Keeps an archive.
    ///
    /// # Errors
    /// If it can't be written; then nothing is kept.
    pub fn keep(&self, digest: &Digest, archive: &[u8]) -> Result<(), BundleError> {
        let _one_at_a_time = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(digest);
        if path.is_file() {
            return Ok(());
        }
        let partial = path.with_extension("partial");
        let kept = write_durably(&partial, archive).and_then(|()| fs::rename(&partial, &path));
        kept.map_err(|error| BundleError::File { path, error })
    }

    /// A bundle, from memory if anything has it.
    ///
    /// # Errors
    /// If it is not there, or altered.
    pub fn load(&self, digest: &Digest) -> Result<Arc<Bundle>, BundleError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bundle) = loaded.get(digest).and_then(Weak::upgrade) {
            return Ok(bundle);
        }
        let path = self.path(digest);
        let archive = fs::read(&path).map_err(|error| BundleError::File { path: path.clone(), error })?;
        if Digest::of(&archive) != *digest {
            return Err(BundleError::Altered(path));
        }
        let bundle = Arc::new(Bundle::read(archive)?);
        loaded.insert(*digest, Arc::downgrade(&bundle));
        Ok(bundle)
    }

    /// Removes the archives that are not wanted. What is in memory stays usable.
    ///
    /// # Errors
    /// If the directory can't be read or a file can't be removed.
    pub fn retain(&self, wanted: &BTreeSet<Digest>) -> Result<(), BundleError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            |error| BundleError::File { path, error }
        };
        let kept: BTreeSet<PathBuf> = wanted.iter().map(|digest| self.path(digest)).collect();
        for entry in fs::read_dir(&self.directory).map_err(at(&self.directory))? {
            let path = entry.map_err(at(&self.directory))?.path();
            if !kept.contains(&path) {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, bundle| bundle.strong_count() > 0);
        Ok(())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex()).with_extension(ARCHIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty archive.
    const ARCHIVE_BYTES: [u8; 1024] = [0; 1024];

    fn bundles() -> (tempfile::TempDir, Bundles) {
        let folder = tempfile::tempdir().unwrap();
        let bundles = Bundles::open(folder.path().join("files")).unwrap();
        (folder, bundles)
    }

    #[test]
    fn an_archive_is_read_once_for_all_and_let_go_with_the_last() {
        let (_folder, bundles) = bundles();
        let digest = Digest::of(&ARCHIVE_BYTES);
        bundles.keep(&digest, &ARCHIVE_BYTES).unwrap();
        let first = bundles.load(&digest).unwrap();
        assert!(Arc::ptr_eq(&first, &bundles.load(&digest).unwrap()));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        bundles.load(&digest).unwrap();
    }

    #[test]
    fn an_archive_that_was_altered_is_not_loaded() {
        let (_folder, bundles) = bundles();
        let digest = Digest::of(b"other bytes");
        bundles.keep(&digest, &ARCHIVE_BYTES).unwrap();
        assert!(matches!(bundles.load(&digest), Err(BundleError::Altered(_))));
    }

    #[test]
    fn what_nobody_wants_is_removed_and_what_is_wanted_stays_after_a_restart() {
        let (folder, bundles) = bundles();
        let (wanted, other) = (Digest::of(&ARCHIVE_BYTES), Digest::of(b"other"));
        bundles.keep(&wanted, &ARCHIVE_BYTES).unwrap();
        bundles.keep(&other, b"other").unwrap();
        bundles.retain(&BTreeSet::from([wanted])).unwrap();
        let bundles = Bundles::open(folder.path().join("files")).unwrap();
        assert!(bundles.has(&wanted) && !bundles.has(&other));
    }
}

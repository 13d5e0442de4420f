//! Stages' files on the node: archives on disk, each read into memory once for all templates that use it.
//!
//! An archive's file is named by its digest, which is compared when the file is read; the builder has checked the archive before. A bundle
//! stays in memory as long as a template or an FWP uses it.
//!
//! ```text
//!   <state>/files/<archive>.tar
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinion_control::model::Digest;
use pinion_guest::files::{BadBundle, Bundle};

use crate::templates::derived::{self, Derived, DerivedError, at};

const ARCHIVE: &str = "tar";

/// An error with an archive on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// An error with the file, or with the directory.
    #[error("files {0}")]
    File(#[from] DerivedError),
    /// It is not a valid bundle.
    #[error(transparent)]
    Bad(#[from] BadBundle),
}

/// The directory of archives, and the bundles that are in memory.
pub struct Bundles {
    directory: PathBuf,
    loaded: Mutex<HashMap<Digest, Weak<Bundle>>>,
    /// Archives with digests that were compared since the node started, or that are being written.
    compared: Mutex<HashSet<Digest>>,
    derived: Arc<Derived>,
}

impl Bundles {
    /// Opens the directory, and makes it if necessary.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open(directory: PathBuf, derived: Arc<Derived>) -> Result<Self, BundleError> {
        derived::make_directory(&directory).map_err(at(&directory))?;
        Ok(Self { directory, loaded: Mutex::default(), compared: Mutex::default(), derived })
    }

    /// Returns whether an archive exists and is as it was deployed. Reads each archive once.
    #[must_use]
    pub fn is_sound(&self, digest: &Digest) -> bool {
        self.is_sound_among(&mut self.compared(), digest)
    }

    fn is_sound_among(&self, compared: &mut HashSet<Digest>, digest: &Digest) -> bool {
        let path = self.path(digest);
        if !path.exists() {
            compared.remove(digest);
            return false;
        }
        if compared.contains(digest) {
            return true;
        }
        match self.read(digest) {
            Ok(_) => compared.insert(*digest),
            Err(error) => {
                self.derived.note_damage(&error);
                !matches!(error, DerivedError::Damaged { .. })
            }
        }
    }

    /// Stores an archive, and replaces a damaged one.
    ///
    /// # Errors
    /// If it cannot be written; then nothing is stored.
    pub fn keep(&self, digest: &Digest, archive: &[u8]) -> Result<(), BundleError> {
        // The lock is held meanwhile, so that archives are written one at a time.
        let mut compared = self.compared();
        if !self.is_sound_among(&mut compared, digest) {
            self.derived.write(&self.path(digest), archive)?;
            compared.insert(*digest);
        }
        Ok(())
    }

    /// Returns a bundle, from memory if it is in use. A damaged one is written again.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn load(&self, digest: &Digest) -> Result<Arc<Bundle>, BundleError> {
        if let Some(bundle) = self.loaded().get(digest).and_then(Weak::upgrade) {
            return Ok(bundle);
        }
        // Without the lock, as it takes long. The bundle of another thread may have come first.
        let archive = self.read(digest).inspect_err(|error| {
            self.compared().remove(digest);
            self.derived.report_damage(error);
        })?;
        let bundle = Arc::new(Bundle::read(archive)?);
        let mut loaded = self.loaded();
        if let Some(first) = loaded.get(digest).and_then(Weak::upgrade) {
            return Ok(first);
        }
        loaded.insert(*digest, Arc::downgrade(&bundle));
        Ok(bundle)
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<Digest, Weak<Bundle>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, digest: &Digest) -> Result<Vec<u8>, DerivedError> {
        let path = self.path(digest);
        let (_, archive) = Derived::read(&path)?;
        if Digest::of(&archive) == *digest {
            return Ok(archive);
        }
        Err(DerivedError::Damaged { path, reason: "it is not what was deployed".into() })
    }

    fn compared(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the archives that are not wanted. Bundles in memory stay usable.
    ///
    /// # Errors
    /// If the directory cannot be read or a file cannot be removed.
    pub fn retain(&self, wanted: &BTreeSet<Digest>) -> Result<(), BundleError> {
        // As in `keep`, so that no archive is removed while it is written.
        let mut compared = self.compared();
        let kept: BTreeSet<PathBuf> = wanted.iter().map(|digest| self.path(digest)).collect();
        let mut removed = Ok(());
        for entry in fs::read_dir(&self.directory).map_err(at(&self.directory))? {
            let path = entry.map_err(at(&self.directory))?.path();
            if !kept.contains(&path) {
                removed = removed.and(derived::remove(&path).map_err(at(&path)));
            }
        }
        compared.retain(|digest| wanted.contains(digest));
        drop(compared);
        self.loaded().retain(|_, bundle| bundle.strong_count() > 0);
        Ok(removed?)
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex()).with_extension(ARCHIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::derived::tests::DAMAGES;

    /// An empty archive.
    const ARCHIVE_BYTES: [u8; 1024] = [0; 1024];

    fn bundles() -> (tempfile::TempDir, Bundles) {
        let folder = tempfile::tempdir().unwrap();
        let bundles = open(&folder);
        (folder, bundles)
    }

    fn open(folder: &tempfile::TempDir) -> Bundles {
        Bundles::open(folder.path().join("files"), Arc::new(Derived::new(folder.path()))).unwrap()
    }

    #[test]
    fn an_archive_is_read_once_for_all_users_and_freed_with_the_last() {
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
        assert!(matches!(bundles.load(&digest), Err(BundleError::File(DerivedError::Damaged { .. }))));
    }

    #[test]
    fn a_damaged_archive_is_found_and_stored_again() {
        for (what, damage) in DAMAGES {
            let (folder, bundles) = bundles();
            let digest = Digest::of(&ARCHIVE_BYTES);
            bundles.keep(&digest, &ARCHIVE_BYTES).unwrap();
            let path = bundles.path(&digest);

            // Found when the node starts.
            let bundles = open(&folder);
            let found = bundles.derived.found();
            damage(&path);
            assert!(!bundles.is_sound(&digest), "{what}");
            assert!(!found.has_changed().unwrap(), "the one that asks has it written again");
            bundles.keep(&digest, &ARCHIVE_BYTES).unwrap();
            assert!(bundles.is_sound(&digest) && bundles.load(&digest).is_ok(), "{what}");

            // Found when it is loaded.
            let found = bundles.derived.found();
            damage(&path);
            assert!(bundles.load(&digest).is_err(), "{what}");
            assert!(found.has_changed().unwrap() && !bundles.is_sound(&digest), "{what}");
            bundles.keep(&digest, &ARCHIVE_BYTES).unwrap();
            assert!(bundles.load(&digest).is_ok(), "{what}");
        }
    }

    #[test]
    fn unwanted_archives_are_removed_and_wanted_ones_survive_a_restart() {
        let (folder, bundles) = bundles();
        let (wanted, other) = (Digest::of(&ARCHIVE_BYTES), Digest::of(b"other"));
        bundles.keep(&wanted, &ARCHIVE_BYTES).unwrap();
        bundles.keep(&other, b"other").unwrap();
        fs::create_dir_all(folder.path().join("files/a-folder.partial/within")).unwrap();
        bundles.retain(&BTreeSet::from([wanted])).unwrap();
        let bundles = open(&folder);
        assert!(bundles.is_sound(&wanted) && !bundles.is_sound(&other));
    }
}

//! The forms of models on disk, from which a node loads them without reading ONNX again.
//!
//! A form lies under a name with the digest of the model that it was made of and its own digest, which is compared whenever it is read. One that
//! is missing or damaged, or was made by another version, is made again by the builder. A form holds nothing of a tenant's but its model, so
//! tenants with the same model share it. A node that can't write one goes on without: it is made again at the next start.
//!
//! ```text
//!   <state>/forms/<model>.<release and version of forms>.<form>.form
//! ```

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinion_control::model::Digest;
use pinion_inference::form;

use crate::templates::derived::{self, Derived, DerivedError, at, files};

const FORM: &str = "form";

/// The directory of forms.
pub struct ModelForms {
    directory: PathBuf,
    /// Release and version, as they stand in file names.
    made_by: String,
    /// By digest of the model: the digest of its form. Locked while files are written or removed, so that none is removed while it is written.
    forms: Mutex<HashMap<Digest, Digest>>,
    derived: Arc<Derived>,
}

impl ModelForms {
    /// Opens the directory, and makes it if necessary.
    ///
    /// # Errors
    /// If it cannot be made or listed.
    pub fn open(directory: PathBuf, derived: Arc<Derived>) -> Result<Self, DerivedError> {
        derived::make_directory(&directory).map_err(at(&directory))?;
        let made_by = made_by(form::VERSION);
        let forms = files(&directory)?.iter().filter_map(|path| named(path, &made_by)).collect();
        Ok(Self { directory, made_by, forms: Mutex::new(forms), derived })
    }

    /// Returns the form of a model, if there is one that is as it was written. A damaged one counts as missing from then on; the caller has it
    /// made again.
    pub fn read(&self, model: &Digest) -> Option<Vec<u8>> {
        let form = self.forms().get(model).copied()?;
        let path = self.path(model, &form);
        let read = Derived::read(&path).and_then(|(_, bytes)| {
            let is_whole = Digest::of(&bytes) == form;
            let reason = || "it is not what the builder made".to_owned();
            if is_whole { Ok(bytes) } else { Err(DerivedError::Damaged { path, reason: reason() }) }
        });
        read.inspect_err(|error| {
            self.derived.note_damage(error);
            self.forms().remove(model);
        })
        .ok()
    }

    /// Stores the form of a model, and replaces a damaged one.
    ///
    /// # Errors
    /// If it cannot be written; then nothing is stored.
    pub fn keep(&self, model: &Digest, form: &[u8]) -> Result<(), DerivedError> {
        let digest = Digest::of(form);
        let mut forms = self.forms();
        self.derived.write(&self.path(model, &digest), form)?;
        forms.insert(*model, digest);
        Ok(())
    }

    /// Marks the form of a model as missing.
    pub fn forget(&self, model: &Digest) {
        self.forms().remove(model);
    }

    /// Removes the forms of models that are not wanted, and those of other versions.
    ///
    /// # Errors
    /// If the directory cannot be read or a file cannot be removed.
    pub fn retain(&self, wanted: &BTreeSet<Digest>) -> Result<(), DerivedError> {
        let mut forms = self.forms();
        forms.retain(|model, _| wanted.contains(model));
        let kept: BTreeSet<PathBuf> = forms.iter().map(|(model, form)| self.path(model, form)).collect();
        let mut removed = Ok(());
        for path in files(&self.directory)?.into_iter().filter(|path| !kept.contains(path)) {
            removed = removed.and(derived::remove(&path).map_err(at(&path)));
        }
        removed
    }

    fn path(&self, model: &Digest, form: &Digest) -> PathBuf {
        self.directory.join(format!("{}.{}.{}.{FORM}", model.hex(), self.made_by, form.hex()))
    }

    fn forms(&self) -> MutexGuard<'_, HashMap<Digest, Digest>> {
        self.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a name for this release and a version of forms.
fn made_by(version: u32) -> String {
    format!("{}-{version}", env!("CARGO_PKG_VERSION").replace('.', "-"))
}

/// Returns the model that a form is of, and the form's digest, if it was made by this version.
fn named(path: &Path, made_by: &str) -> Option<(Digest, Digest)> {
    let words: Vec<&str> = path.file_name()?.to_str()?.split('.').collect();
    let [model, by, form, FORM] = *words else { return None };
    let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().ok();
    if by == made_by { Some((digest(model)?, digest(form)?)) } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::templates::derived::tests::DAMAGES;

    fn open(folder: &Path) -> ModelForms {
        ModelForms::open(folder.join("forms"), Arc::new(Derived::new(folder))).unwrap()
    }

    fn model() -> Digest {
        Digest::of(b"model")
    }

    #[test]
    fn a_form_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let forms = open(folder.path());
        assert_eq!(forms.read(&model()), None);
        forms.keep(&model(), b"form").unwrap();
        for forms in [forms, open(folder.path())] {
            assert_eq!(forms.read(&model()).as_deref(), Some(&b"form"[..]));
            assert_eq!(forms.read(&Digest::of(b"other model")), None);
        }
    }

    #[test]
    fn a_damaged_form_counts_as_missing_and_is_written_again() {
        for (what, damage) in DAMAGES {
            let folder = tempfile::tempdir().unwrap();
            let forms = open(folder.path());
            forms.keep(&model(), b"form").unwrap();
            damage(&forms.path(&model(), &Digest::of(b"form")));
            assert_eq!(forms.read(&model()), None, "{what}");
            assert_eq!(forms.derived.warnings().len(), 1, "{what}");
            forms.keep(&model(), b"form").unwrap();
            assert_eq!(forms.read(&model()).as_deref(), Some(&b"form"[..]), "{what}");
            assert_eq!(open(folder.path()).read(&model()).as_deref(), Some(&b"form"[..]), "{what}");
        }
    }

    #[test]
    fn a_form_of_another_version_is_not_used_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let former = ModelForms { made_by: made_by(form::VERSION - 1), ..open(folder.path()) };
        former.keep(&model(), b"form").unwrap();
        let forms = open(folder.path());
        assert_eq!(forms.read(&model()), None);
        forms.retain(&BTreeSet::from([model()])).unwrap();
        assert!(!former.path(&model(), &Digest::of(b"form")).exists());
    }

    #[test]
    fn forms_of_models_that_are_not_wanted_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let forms = open(folder.path());
        let other = Digest::of(b"other model");
        forms.keep(&model(), b"form").unwrap();
        forms.keep(&other, b"other form").unwrap();
        fs::write(folder.path().join("forms/a.partial"), b"half").unwrap();
        forms.retain(&BTreeSet::from([other])).unwrap();
        assert_eq!((forms.read(&model()), forms.read(&other)), (None, Some(b"other form".to_vec())));
        assert_eq!(fs::read_dir(folder.path().join("forms")).unwrap().count(), 1);
    }
}

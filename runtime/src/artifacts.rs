//! Templates on disk: sealed by what they are built of and by what they are.
//!
//! A template's code is native: it lies in a directory only the node's user can enter, under a name that holds the digest of
//! facts and code, which is compared before every mapping.
//!
//! ```text
//!   <state>/templates/<module>.<engine settings and form>.<configuration, files and limits>.<facts and code>.{facts,cwasm}
//! ```

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pinion_builder::TEMPLATE_FORM;
use pinion_builder_client::protocol::Facts;
use pinion_control::model::{self, Digest};
use wasmtime::{Engine, Module};

use crate::template;

/// What went wrong with a template on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The directory or a file in it.
    #[error("template {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// Not there.
    #[error("there is no template of module {0} for this configuration")]
    Missing(Digest),
    /// Its bytes are not those that were built.
    #[error("template {} is not what the builder made; remove it and restart", .0.display())]
    Altered(PathBuf),
    /// wasmtime does not take it.
    #[error("template {} does not load: {error}", path.display())]
    Load {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// What a stage's template is built with, besides its module.
#[derive(Debug, Clone)]
pub struct Wishes<'a> {
    /// The configuration.
    pub config: &'a [u8],
    /// The files that instances find, if they have a file system.
    pub files: Option<&'a model::Files>,
    /// Linear memory that each instance may have, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that it is granted.
    pub fields: Vec<&'a str>,
}

/// What a template is built of, besides the engine's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateKey {
    module: Digest,
    wishes: Digest,
}

impl TemplateKey {
    /// The template of a module for a configuration, files, limits and fields of state.
    #[must_use]
    pub fn new(module: Digest, wishes: &Wishes<'_>) -> Self {
        let files = wishes.files.map_or(&[][..], |files| files.digest.as_bytes());
        // Names have no line breaks, and the lengths of both say where the configuration begins, which comes last.
        let fields = wishes.fields.join("\n");
        let numbers = [wishes.memory_bytes_max, files.len() as u64, fields.len() as u64].map(u64::to_le_bytes);
        let text = [numbers.as_flattened(), files, fields.as_bytes(), wishes.config].concat();
        Self { module, wishes: Digest::of(&text) }
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &Digest {
        &self.module
    }
}

/// The directory of templates.
pub struct Artifacts {
    directory: PathBuf,
    /// Names the engine settings and release, and the form, that templates must be made with.
    settings: String,
    /// Those of these settings: the digest of facts and code.
    seals: Mutex<HashMap<TemplateKey, Digest>>,
}

const FACTS: &str = "facts";
const CODE: &str = "cwasm";

impl Artifacts {
    /// Opens (makes) the directory. `engine` is any of the node's.
    ///
    /// # Errors
    /// If it can't be made, entered or listed.
    pub fn open(directory: PathBuf, engine: &Engine) -> Result<Self, ArtifactError> {
        let at = |error| ArtifactError::File { path: directory.clone(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(at)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).map_err(at)?;
        let settings = settings(engine, TEMPLATE_FORM);
        let seals = files(&directory)?.iter().filter_map(|path| sealed(path, &settings)).collect();
        Ok(Self { directory, settings, seals: Mutex::new(seals) })
    }

    /// Keeps what was built.
    ///
    /// # Errors
    /// If it can't be written; then nothing is kept.
    pub fn keep(&self, key: &TemplateKey, facts: &Facts, code: &[u8]) -> Result<(), ArtifactError> {
        let facts = serde_json::to_vec(facts).expect("facts are plain words and numbers");
        let seal = Digest::of(&[&facts, code].concat());
        // The code last: it is what is looked for when the node starts.
        for (extension, bytes) in [(FACTS, &*facts), (CODE, code)] {
            let path = self.path(key, &seal, extension);
            let partial = path.with_extension("partial");
            write_durably(&partial, bytes)
                .and_then(|()| fs::rename(&partial, &path))
                .map_err(|error| ArtifactError::File { path, error })?;
        }
        self.seals().insert(*key, seal);
        Ok(())
    }

    /// Maps a template into an engine, having compared its digest.
    ///
    /// # Errors
    /// If it is not there, altered, or not for this engine.
    pub fn load(&self, engine: &Engine, key: &TemplateKey) -> Result<(Module, Facts), ArtifactError> {
        let seal = self.seals().get(key).copied().ok_or(ArtifactError::Missing(key.module))?;
        let (facts_path, path) = (self.path(key, &seal, FACTS), self.path(key, &seal, CODE));
        // Opened once: what is mapped is what was read.
        let at = |path: &Path| {
            let path = path.to_owned();
            |error| ArtifactError::File { path, error }
        };
        let mut bytes = fs::read(&facts_path).map_err(at(&facts_path))?;
        let facts = serde_json::from_slice(&bytes).map_err(|_| ArtifactError::Altered(facts_path))?;
        let mut file = fs::File::open(&path).map_err(at(&path))?;
        file.read_to_end(&mut bytes).map_err(at(&path))?;
        if Digest::of(&bytes) != seal {
            return Err(ArtifactError::Altered(path));
        }
        match template::load(engine, file) {
            Ok(module) => Ok((module, facts)),
            Err(error) => Err(ArtifactError::Load { path, error: format!("{error:#}") }),
        }
    }

    /// What is known of a template beside its code, without loading that: for a look, as nothing is compared.
    ///
    /// # Errors
    /// If it is not there or can't be read.
    pub fn facts(&self, key: &TemplateKey) -> Result<Facts, ArtifactError> {
        let seal = self.seals().get(key).copied().ok_or(ArtifactError::Missing(key.module))?;
        let path = self.path(key, &seal, FACTS);
        let bytes = fs::read(&path).map_err(|error| ArtifactError::File { path: path.clone(), error })?;
        serde_json::from_slice(&bytes).map_err(|_| ArtifactError::Altered(path))
    }

    /// Whether the template is there.
    #[must_use]
    pub fn has(&self, key: &TemplateKey) -> bool {
        self.seals().contains_key(key)
    }

    /// Removes the templates that are not wanted, of whatever settings. What is mapped stays usable.
    ///
    /// # Errors
    /// If the directory can't be read or a file can't be removed.
    pub fn retain(&self, is_wanted: impl Fn(&TemplateKey) -> bool) -> Result<(), ArtifactError> {
        let mut seals = self.seals();
        seals.retain(|key, _| is_wanted(key));
        for path in files(&self.directory)? {
            let is_kept = sealed_name(&path, &self.settings).is_some_and(|(key, seal)| seals.get(&key) == Some(&seal));
            if !is_kept {
                fs::remove_file(&path).map_err(|error| ArtifactError::File { path, error })?;
            }
        }
        Ok(())
    }

    /// Takes a template for one that is not there.
    pub fn forget(&self, key: &TemplateKey) {
        self.seals().remove(key);
    }

    fn path(&self, key: &TemplateKey, seal: &Digest, extension: &str) -> PathBuf {
        let TemplateKey { module, wishes } = key;
        let name = format!("{}.{}.{}.{}.{extension}", module.hex(), self.settings, wishes.hex(), seal.hex());
        self.directory.join(name)
    }

    fn seals(&self) -> MutexGuard<'_, HashMap<TemplateKey, Digest>> {
        self.seals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names an engine's settings and release, and what the builder does to modules.
fn settings(engine: &Engine, form: u32) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    form.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>, ArtifactError> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(|error| ArtifactError::File { path: directory.to_owned(), error })
}

/// The template whose code a file holds, if it is of these settings.
fn sealed(path: &Path, settings: &str) -> Option<(TemplateKey, Digest)> {
    sealed_name(path, settings).filter(|_| path.extension().is_some_and(|extension| extension == CODE))
}

/// The template that a file belongs to, if it is of these settings.
fn sealed_name(path: &Path, settings: &str) -> Option<(TemplateKey, Digest)> {
    let words: Vec<&str> = path.file_name()?.to_str()?.split('.').collect();
    let [module, made_with, wishes, seal, FACTS | CODE] = *words else { return None };
    let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().ok();
    let key = TemplateKey { module: digest(module)?, wishes: digest(wishes)? };
    if made_with == settings { Some((key, digest(seal)?)) } else { None }
}

pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Reset;
    use pinion_builder_client::protocol::Start;

    const WISHES: Wishes<'_> =
        Wishes { config: b"allow all", files: None, memory_bytes_max: 1 << 20, fields: Vec::new() };

    fn open(folder: &Path) -> Artifacts {
        Artifacts::open(folder.join("templates"), &crate::engine::engine(1, Reset::Auto).unwrap()).unwrap()
    }

    fn facts() -> Facts {
        Facts {
            memory_bytes: 65536,
            start: Start::Module("it is so".to_owned()),
            metrics: Vec::new(),
            stack: Some(65536),
        }
    }

    fn key() -> TemplateKey {
        TemplateKey::new(Digest::of(b"a module"), &WISHES)
    }

    fn only_file(artifacts: &Artifacts, extension: &str) -> PathBuf {
        let is_it = |path: &PathBuf| path.extension().is_some_and(|other| other == extension);
        files(&artifacts.directory).unwrap().into_iter().find(is_it).unwrap()
    }

    #[test]
    fn a_template_that_was_altered_is_not_loaded() {
        let engine = crate::engine::engine(1, Reset::Auto).unwrap();
        let forged =
            [(CODE, "native code of somebody else's"), (FACTS, "{\"memory_bytes\":0,\"start\":{\"module\":\"\"}}")];
        for (extension, contents) in forged {
            let folder = tempfile::tempdir().unwrap();
            let artifacts = open(folder.path());
            artifacts.keep(&key(), &facts(), b"code").unwrap();
            fs::write(only_file(&artifacts, extension), contents).unwrap();
            let error = artifacts.load(&engine, &key()).err().unwrap();
            assert!(matches!(error, ArtifactError::Altered(_)), "{error}");
        }
    }

    #[test]
    fn what_was_built_is_there_after_a_restart_and_only_for_its_module_configuration_files_and_limits() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).keep(&key(), &facts(), b"code").unwrap();
        let artifacts = open(folder.path());
        assert!(artifacts.has(&key()));
        let (other_config, less) =
            (Wishes { config: b"allow none", ..WISHES }, Wishes { memory_bytes_max: 1 << 19, ..WISHES });
        let files =
            [&b"some"[..], b"others"].map(|archive| model::Files { digest: Digest::of(archive), size_bytes: 4 });
        let with_files =
            files.each_ref().map(|files| TemplateKey::new(*key().module(), &Wishes { files: Some(files), ..WISHES }));
        assert_ne!(with_files[0], with_files[1]);
        let with_state = Wishes { fields: vec!["counters"], ..WISHES };
        for other in [
            TemplateKey::new(Digest::of(b"another"), &WISHES),
            TemplateKey::new(*key().module(), &other_config),
            TemplateKey::new(*key().module(), &less),
            TemplateKey::new(*key().module(), &with_state),
            with_files[0],
        ] {
            assert!(!artifacts.has(&other));
        }
    }

    #[test]
    fn what_a_builder_of_another_form_has_made_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = open(folder.path());
        artifacts.keep(&key(), &facts(), b"code").unwrap();
        let engine = crate::engine::engine(1, Reset::Auto).unwrap();
        let former = settings(&engine, TEMPLATE_FORM - 1);
        for extension in [FACTS, CODE] {
            let path = only_file(&artifacts, extension);
            let name = path.file_name().unwrap().to_str().unwrap().replace(&artifacts.settings, &former);
            fs::rename(&path, path.with_file_name(name)).unwrap();
        }
        assert!(!open(folder.path()).has(&key()));
    }

    #[test]
    fn what_nobody_wants_is_removed_with_what_was_left_half_written_or_by_other_settings() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = open(folder.path());
        let other = TemplateKey::new(*key().module(), &Wishes { config: b"", ..WISHES });
        artifacts.keep(&key(), &facts(), b"code").unwrap();
        artifacts.keep(&other, &facts(), b"code").unwrap();
        fs::write(only_file(&artifacts, CODE).with_extension("partial"), "").unwrap();
        fs::write(artifacts.directory.join("00.11.22.33.cwasm"), "").unwrap();
        artifacts.retain(|wanted| *wanted == key()).unwrap();
        assert_eq!(files(&artifacts.directory).unwrap().len(), 2);
        assert!(artifacts.has(&key()) && !artifacts.has(&other));
    }

    #[test]
    fn nobody_else_may_enter_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mode = fs::metadata(&open(folder.path()).directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

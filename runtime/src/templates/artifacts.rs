//! Templates on disk, addressed by digests of their inputs and of their contents.
//!
//! A template's code is native code. It lies in a directory that only the node's user can enter, under a name with the digest of facts and
//! code. The digest is compared before every mapping, and once for each template when the node starts. A damaged template counts as
//! missing, so that it is built again.
//!
//! ```text
//!   <state>/templates/<module>.<engine settings and form>.<tenant, configuration, files and limits>.<facts and code>.{facts,cwasm}
//! ```

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use pinion_builder::TEMPLATE_FORM;
use pinion_builder_client::protocol::Facts;
use pinion_control::model::{self, BadDigest, Digest};
use wasmtime::{Engine, Module};

use crate::templates::derived::{self, Derived, DerivedError, at, files};
use crate::templates::native_code;

/// An error with a template on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// An error with one of its files, or with the directory.
    #[error("template {0}")]
    File(#[from] DerivedError),
    /// The template does not exist.
    #[error("there is no template of module {0} for this configuration")]
    Missing(Digest),
    /// wasmtime does not accept it.
    #[error("template {} does not load: {error}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// wasmtime's reason.
        error: String,
    },
}

/// What a stage's template is built for and from, besides its module.
#[derive(Debug, Clone)]
pub struct Wishes<'a> {
    /// The tenant. A template is no other tenant's: what `pinion_init` left in it, such as seeds of hash tables, is in all of its instances.
    pub tenant: &'a str,
    /// The configuration.
    pub config: &'a [u8],
    /// The files that instances see, if they have a file system.
    pub files: Option<&'a model::Files>,
    /// The most linear memory of each instance, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that the stage is granted.
    pub fields: Vec<&'a str>,
    /// The names of the private keys that the stage is granted. Which keys these are makes no other template.
    pub keys: Vec<&'a str>,
    /// The names of the models that the stage is granted, likewise.
    pub models: Vec<&'a str>,
}

/// What a template is built from, besides the engine's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateKey {
    module: Digest,
    wishes: Digest,
}

impl TemplateKey {
    /// Returns the key of a module's template for a tenant, a configuration, files, limits, fields of state and names of keys and models.
    #[must_use]
    pub fn new(module: Digest, wishes: &Wishes<'_>) -> Self {
        let files = wishes.files.map_or(&[][..], |files| files.digest.as_bytes());
        // Unambiguous: names have no line breaks, and the lengths say where each part begins.
        let names = [&wishes.fields, &wishes.keys, &wishes.models].map(|names| names.join("\n"));
        let [fields, keys, models] = names.each_ref().map(String::as_bytes);
        let parts = [files, fields, keys, models, wishes.tenant.as_bytes(), wishes.config];
        let lengths = parts.map(|part| (part.len() as u64).to_le_bytes());
        let numbers = [&wishes.memory_bytes_max.to_le_bytes()[..], lengths.as_flattened()];
        let text = [numbers.concat(), parts.concat()].concat();
        Self { module, wishes: Digest::of(&text) }
    }

    /// Returns the digest of the module.
    #[must_use]
    pub fn module(&self) -> &Digest {
        &self.module
    }
}

impl fmt::Display for TemplateKey {
    /// As in the names of its files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module.hex(), self.wishes.hex())
    }
}

impl FromStr for TemplateKey {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let (module, wishes) = text.split_once('.').unwrap_or((text, ""));
        let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>();
        Ok(Self { module: digest(module)?, wishes: digest(wishes)? })
    }
}

/// The directory of templates.
pub struct Artifacts {
    directory: PathBuf,
    /// Engine settings, release and form that templates must have been made with, as they stand in file names.
    settings: String,
    /// Templates with these settings.
    seals: Mutex<HashMap<TemplateKey, Seal>>,
    /// Shared while a template's files are there and its seal is not yet; held alone while files without a seal are removed.
    filing: RwLock<()>,
    derived: Arc<Derived>,
}

#[derive(Debug, Clone, Copy)]
struct Seal {
    /// Digest of facts and code.
    digest: Digest,
    /// The digest was compared since the node started.
    is_compared: bool,
}

const FACTS: &str = "facts";
const CODE: &str = "cwasm";

impl Artifacts {
    /// Opens the directory, and makes it if necessary. `engine` is any of the node's.
    ///
    /// # Errors
    /// If it cannot be made, entered or listed.
    pub fn open(directory: PathBuf, engine: &Engine, derived: Arc<Derived>) -> Result<Self, ArtifactError> {
        derived::make_directory(&directory).map_err(at(&directory))?;
        let settings = settings(engine, TEMPLATE_FORM);
        let sealed = |(key, digest)| (key, Seal { digest, is_compared: false });
        // A template that lacks one of its files is found damaged when it is needed.
        let seals = files(&directory)?.iter().filter_map(|path| sealed_name(path, &settings).map(sealed)).collect();
        Ok(Self { directory, settings, seals: Mutex::new(seals), filing: RwLock::new(()), derived })
    }

    /// Stores a template that was built.
    ///
    /// # Errors
    /// If it cannot be written; then nothing is stored.
    pub fn keep(&self, key: &TemplateKey, facts: &Facts, code: &[u8]) -> Result<(), ArtifactError> {
        let facts = serde_json::to_vec(facts).expect("facts are plain words and numbers");
        let seal = Digest::of(&[&facts, code].concat());
        let _filing = self.filing.read().unwrap_or_else(PoisonError::into_inner);
        for (extension, bytes) in [(FACTS, &*facts), (CODE, code)] {
            self.derived.write(&self.path(key, &seal, extension), bytes)?;
        }
        self.seals().insert(*key, Seal { digest: seal, is_compared: true });
        Ok(())
    }

    /// Returns the size of a template's code, in bytes.
    ///
    /// # Errors
    /// If it is missing.
    pub fn code_bytes(&self, key: &TemplateKey) -> Result<u64, ArtifactError> {
        let Seal { digest, .. } = self.seals().get(key).copied().ok_or(ArtifactError::Missing(key.module))?;
        // One whose file is gone is found damaged when it is read.
        Ok(fs::metadata(self.path(key, &digest, CODE)).map_or(0, |file| file.len()))
    }

    /// Maps a template into these engines, after comparing its digest, once. A damaged template counts as missing from then on, and is built
    /// again.
    ///
    /// # Errors
    /// If it is missing, damaged, or not for these engines.
    pub fn load<'e>(
        &self,
        engines: impl Iterator<Item = &'e Engine>,
        key: &TemplateKey,
    ) -> Result<(Vec<Module>, Facts), ArtifactError> {
        let Seal { digest, .. } = self.seals().get(key).copied().ok_or(ArtifactError::Missing(key.module))?;
        let (facts, file) = self.read(key, &digest).inspect_err(|error| {
            self.derived.report_damage(error);
            self.forget_damaged(key, error);
        })?;
        let load = |engine: &Engine| {
            let loaded =
                file.try_clone().map_err(wasmtime::Error::from).and_then(|file| native_code::load(engine, file));
            let path = || self.path(key, &digest, CODE);
            loaded.map_err(|error| ArtifactError::Load { path: path(), error: format!("{error:#}") })
        };
        Ok((engines.map(load).collect::<Result<_, _>>()?, facts))
    }

    /// Returns whether a template exists and was read since the node started.
    #[must_use]
    pub fn is_compared(&self, key: &TemplateKey) -> bool {
        self.seals().get(key).is_some_and(|seal| seal.is_compared)
    }

    /// Returns whether a template exists and is as it was built. A damaged one counts as missing from then on. Reads each template once.
    pub fn is_sound(&self, key: &TemplateKey) -> bool {
        let Some(Seal { digest, is_compared }) = self.seals().get(key).copied() else { return false };
        if is_compared {
            return true;
        }
        match self.read(key, &digest) {
            Ok(_) => {
                if let Some(seal) = self.seals().get_mut(key) {
                    seal.is_compared = true;
                }
                true
            }
            Err(error) => {
                self.derived.note_damage(&error);
                self.forget_damaged(key, &error);
                // A file that could not be read for other reasons is not built again.
                !matches!(error, DerivedError::Damaged { .. })
            }
        }
    }

    /// Returns facts and code of a template, after comparing the digest of both. Each file is opened once, so what is mapped is what was
    /// read.
    fn read(&self, key: &TemplateKey, seal: &Digest) -> Result<(Facts, fs::File), DerivedError> {
        let (facts_path, path) = (self.path(key, seal, FACTS), self.path(key, seal, CODE));
        let damaged = |path: PathBuf| DerivedError::Damaged { path, reason: "it is not what the builder made".into() };
        let (_, mut bytes) = Derived::read(&facts_path)?;
        let facts = serde_json::from_slice(&bytes).map_err(|_| damaged(facts_path))?;
        let (file, code) = Derived::read(&path)?;
        bytes.extend_from_slice(&code);
        if Digest::of(&bytes) == *seal { Ok((facts, file)) } else { Err(damaged(path)) }
    }

    fn forget_damaged(&self, key: &TemplateKey, error: &DerivedError) {
        if let DerivedError::Damaged { .. } = error {
            self.forget(key);
        }
    }

    /// Returns a template's facts, without loading its code. For display only, since no digest is compared.
    ///
    /// # Errors
    /// If it is missing or cannot be read.
    pub fn facts(&self, key: &TemplateKey) -> Result<Facts, ArtifactError> {
        let Seal { digest, .. } = self.seals().get(key).copied().ok_or(ArtifactError::Missing(key.module))?;
        let path = self.path(key, &digest, FACTS);
        let (_, bytes) = Derived::read(&path)?;
        let damaged = |_| DerivedError::Damaged { path, reason: "it is not what the builder made".into() };
        Ok(serde_json::from_slice(&bytes).map_err(damaged)?)
    }

    /// Returns whether the template exists.
    #[must_use]
    pub fn has(&self, key: &TemplateKey) -> bool {
        self.seals().contains_key(key)
    }

    /// Removes the templates that are not wanted, of any settings. Code that is mapped stays usable.
    ///
    /// # Errors
    /// If the directory cannot be read or a file cannot be removed.
    pub fn retain(&self, is_wanted: impl Fn(&TemplateKey) -> bool) -> Result<(), ArtifactError> {
        let _filing = self.filing.write().unwrap_or_else(PoisonError::into_inner);
        let mut seals = self.seals();
        seals.retain(|key, _| is_wanted(key));
        let is_kept = |path: &Path| {
            let sealed = sealed_name(path, &self.settings);
            sealed.is_some_and(|(key, digest)| seals.get(&key).is_some_and(|seal| seal.digest == digest))
        };
        let mut removed = Ok(());
        for path in files(&self.directory)?.into_iter().filter(|path| !is_kept(path)) {
            removed = removed.and(derived::remove(&path).map_err(at(&path)));
        }
        Ok(removed?)
    }

    /// Marks a template as missing.
    pub fn forget(&self, key: &TemplateKey) {
        self.seals().remove(key);
    }

    fn path(&self, key: &TemplateKey, seal: &Digest, extension: &str) -> PathBuf {
        let TemplateKey { module, wishes } = key;
        let name = format!("{}.{}.{}.{}.{extension}", module.hex(), self.settings, wishes.hex(), seal.hex());
        self.directory.join(name)
    }

    fn seals(&self) -> MutexGuard<'_, HashMap<TemplateKey, Seal>> {
        self.seals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a name for an engine's settings and release, and for what the builder does to modules.
fn settings(engine: &Engine, form: u32) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    form.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Returns the template that a file belongs to, if it has these settings.
fn sealed_name(path: &Path, settings: &str) -> Option<(TemplateKey, Digest)> {
    let words: Vec<&str> = path.file_name()?.to_str()?.split('.').collect();
    let [module, made_with, wishes, seal, FACTS | CODE] = *words else { return None };
    let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().ok();
    let key = TemplateKey { module: digest(module)?, wishes: digest(wishes)? };
    if made_with == settings { Some((key, digest(seal)?)) } else { None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::templates::derived::tests::DAMAGES;
    use crate::templates::engine::Reset;
    use pinion_builder_client::protocol::Start;

    const WISHES: Wishes<'_> = Wishes {
        tenant: "demo",
        config: b"allow all",
        files: None,
        memory_bytes_max: 1 << 20,
        fields: Vec::new(),
        keys: Vec::new(),
        models: Vec::new(),
    };

    fn open(folder: &Path) -> Artifacts {
        let engine = crate::templates::engine::engine(1, Reset::Auto).unwrap();
        Artifacts::open(folder.join("templates"), &engine, Arc::new(Derived::new(folder))).unwrap()
    }

    fn facts() -> Facts {
        Facts {
            memory_bytes: 65536,
            instance_bytes: 4096,
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
        let engine = crate::templates::engine::engine(1, Reset::Auto).unwrap();
        let forged =
            [(CODE, "native code of another module"), (FACTS, "{\"memory_bytes\":0,\"start\":{\"module\":\"\"}}")];
        for (extension, contents) in forged {
            let folder = tempfile::tempdir().unwrap();
            let artifacts = open(folder.path());
            artifacts.keep(&key(), &facts(), b"code").unwrap();
            fs::write(only_file(&artifacts, extension), contents).unwrap();
            let error = artifacts.load(std::iter::once(&engine), &key()).err().unwrap();
            assert!(matches!(error, ArtifactError::File(DerivedError::Damaged { .. })), "{error}");
        }
    }

    #[test]
    fn a_template_with_a_damaged_file_counts_as_missing_and_can_be_stored_again() {
        let engine = crate::templates::engine::engine(1, Reset::Auto).unwrap();
        for extension in [FACTS, CODE] {
            for (what, damage) in DAMAGES {
                let folder = tempfile::tempdir().unwrap();
                open(folder.path()).keep(&key(), &facts(), b"code").unwrap();

                // Found when the node starts.
                let artifacts = open(folder.path());
                assert!(artifacts.has(&key()));
                let found = artifacts.derived.found();
                damage(&only_file(&artifacts, extension));
                assert!(!artifacts.is_sound(&key()) && !artifacts.has(&key()), "{extension} is {what}");
                assert!(!found.has_changed().unwrap(), "the one that asks builds it again");
                assert_eq!(artifacts.derived.warnings().len(), 1, "{extension} is {what}");
                artifacts.keep(&key(), &facts(), b"code").unwrap();
                let artifacts = open(folder.path());
                assert!(artifacts.is_sound(&key()), "{extension} was {what}");

                // Found when it is loaded.
                damage(&only_file(&artifacts, extension));
                let found = artifacts.derived.found();
                let error = artifacts.load(std::iter::once(&engine), &key()).err().unwrap().to_string();
                assert!(error.contains("is damaged"), "{extension} is {what}: {error}");
                assert!(!artifacts.has(&key()) && found.has_changed().unwrap(), "{extension} is {what}");
            }
        }
    }

    #[test]
    fn a_template_that_cannot_be_opened_for_lack_of_a_resource_is_not_damaged() {
        let error = DerivedError::File { path: "a".into(), error: rustix::io::Errno::MFILE.into() };
        let folder = tempfile::tempdir().unwrap();
        let artifacts = open(folder.path());
        artifacts.keep(&key(), &facts(), b"code").unwrap();
        artifacts.derived.report_damage(&error);
        artifacts.forget_damaged(&key(), &error);
        assert!(artifacts.has(&key()) && artifacts.derived.warnings().is_empty());
    }

    #[test]
    fn a_key_is_parsed_from_its_own_text() {
        assert_eq!(key().to_string().parse(), Ok(key()));
        for bad in ["", ".", "ab.cd", &key().to_string()[1..]] {
            assert!(bad.parse::<TemplateKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_template_survives_a_restart_and_is_only_for_its_tenant_module_configuration_files_and_limits() {
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
        let with_key = Wishes { keys: vec!["counters"], ..WISHES };
        let with_model = Wishes { models: vec!["counters"], ..WISHES };
        for other in [
            TemplateKey::new(Digest::of(b"another"), &WISHES),
            TemplateKey::new(*key().module(), &Wishes { tenant: "lab", ..WISHES }),
            TemplateKey::new(*key().module(), &other_config),
            TemplateKey::new(*key().module(), &less),
            TemplateKey::new(*key().module(), &with_state),
            TemplateKey::new(*key().module(), &with_key),
            TemplateKey::new(*key().module(), &with_model),
            with_files[0],
        ] {
            assert!(!artifacts.has(&other));
        }
    }

    #[test]
    fn a_template_of_another_form_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = open(folder.path());
        artifacts.keep(&key(), &facts(), b"code").unwrap();
        let engine = crate::templates::engine::engine(1, Reset::Auto).unwrap();
        let former = settings(&engine, TEMPLATE_FORM - 1);
        for extension in [FACTS, CODE] {
            let path = only_file(&artifacts, extension);
            let name = path.file_name().unwrap().to_str().unwrap().replace(&artifacts.settings, &former);
            fs::rename(&path, path.with_file_name(name)).unwrap();
        }
        assert!(!open(folder.path()).has(&key()));
    }

    #[test]
    fn unwanted_partial_and_outdated_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = open(folder.path());
        let other = TemplateKey::new(*key().module(), &Wishes { config: b"", ..WISHES });
        artifacts.keep(&key(), &facts(), b"code").unwrap();
        artifacts.keep(&other, &facts(), b"code").unwrap();
        fs::write(only_file(&artifacts, CODE).with_extension("partial"), "").unwrap();
        fs::write(artifacts.directory.join("00.11.22.33.cwasm"), "").unwrap();
        fs::create_dir_all(artifacts.directory.join("a-folder.partial/within")).unwrap();
        artifacts.retain(|wanted| *wanted == key()).unwrap();
        assert_eq!(files(&artifacts.directory).unwrap().len(), 2);
        assert!(artifacts.has(&key()) && !artifacts.has(&other));
    }

    #[test]
    fn other_users_cannot_enter_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mode = fs::metadata(&open(folder.path()).directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

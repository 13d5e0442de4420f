//! Reads TOML manifests into the values of [`crate::model`].
//!
//! Called by the `pinion` command. Every error names the file, and the line and key where there is one. An unknown key
//! is an error. Manifests that are read together make one change. [`written`] is the way back. Never talks to a node.

mod chain;
mod document;
mod edges;
pub mod keys;
mod pack;
mod position;
mod reader;
mod rule;
mod tenant;
#[cfg(test)]
mod tests;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pinion_keys::{KeyError, PrivateKey};

use crate::control::NamedUpload;
use crate::model::{
    CONFIG_BYTES_MAX, Chain, Digest, Files, KeyName, Label, MODEL_BYTES_MAX, MODULE_BYTES_MAX, ModelName, ModuleName,
    ObjectRef, PEM_BYTES_MAX, Rule, Tenant, TenantName, quoted,
};
use crate::pem::Pem;

/// The value that the key `version` must have.
pub const VERSION: &str = "pinion.v1";
/// The tenant that owns the objects when a manifest or a command names none.
pub const DEFAULT_TENANT: &str = "default";
/// The key that names a module's file.
const MODULE_PATH: &str = "path";
/// The key that names the file of a key or a model.
const FILE: &str = "file";
/// The longest manifest. A manifest with all rules that a node accepts, each with every key, is half as long.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// Why manifests can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// A file can't be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that a manifest names can't be read.
    #[error("{manifest}: {key} names {}, which cannot be read: {source}{}", path.display(), remedy(key, source))]
    ReadNamed {
        /// Where the manifest names it.
        manifest: Position,
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder that a manifest names can't be packed.
    #[error("{manifest}: files: {problem}")]
    Pack {
        /// Where the manifest names it.
        manifest: Position,
        /// Why.
        problem: PackError,
    },
    /// A file is too long for its kind.
    #[error("{} is longer than the {bytes_max} bytes that {what} may have", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it is read as.
        what: &'static str,
        /// The maximum length.
        bytes_max: u64,
    },
    /// A file is not a manifest.
    #[error("{}: this is {what}, and no manifest, which is TOML (text in UTF-8)", path.display())]
    NotManifest {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A folder without a manifest.
    #[error("{}: there is no .toml file in this folder", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A manifest does not give its version.
    #[error("{}: the key version is missing: this pinion reads version = \"{VERSION}\"", path.display())]
    NoVersion {
        /// The manifest.
        path: PathBuf,
    },
    /// A manifest of another version.
    #[error("{place}: version is {}: this pinion reads version = \"{VERSION}\"", quoted(.found))]
    OtherVersion {
        /// Where the version stands.
        place: Position,
        /// The version that it gives.
        found: String,
    },
    /// An error in a manifest.
    #[error("{place}: {problem}")]
    Wrong {
        /// Where.
        place: Position,
        /// What is wrong, with the key.
        problem: String,
    },
    /// Two entries for one object.
    #[error("{second}: {object} is there already, at {first}")]
    Twice {
        /// The object.
        object: ObjectRef,
        /// The entry read first.
        first: Position,
        /// The entry read second.
        second: Position,
    },
    /// Two manifests with different labels.
    #[error(
        "{} has {}, and {} has {}: manifests that are one change have the same label, so apply them one after the other",
        first.display(), label_of(first_label), second.display(), label_of(second_label)
    )]
    OtherLabel {
        /// The manifest read first.
        first: PathBuf,
        /// Its label.
        first_label: Option<Label>,
        /// The manifest read second.
        second: PathBuf,
        /// Its label.
        second_label: Option<Label>,
    },
}

fn label_of(label: &Option<Label>) -> String {
    label.as_ref().map_or_else(|| "no label".to_owned(), |label| format!("label {label}"))
}

/// Returns the tenant that owns the objects when neither a manifest, a command nor a context names one.
#[must_use]
pub fn default_tenant() -> TenantName {
    TenantName::new(DEFAULT_TENANT).expect("the default tenant has a valid name")
}

/// Returns what to do about a file that cannot be read.
fn remedy(key: &str, error: &io::Error) -> &'static str {
    match (key, error.kind()) {
        (MODULE_PATH, io::ErrorKind::NotFound) => "; if it is to be built first, pinion build does that",
        _ => "",
    }
}

pub use pack::{PackError, pack};
pub use position::Position;
pub use written::{WriteError, written};

/// The contents of manifests, before the files that they name are read.
#[derive(Debug, Default)]
pub struct Bundle {
    tenants: Vec<Tenant>,
    modules: Vec<UploadEntry<ModuleName>>,
    keys: Vec<UploadEntry<KeyName>>,
    models: Vec<UploadEntry<ModelName>>,
    chains: Vec<ChainEntry>,
    rules: Vec<Rule>,
    places: BTreeMap<ObjectRef, Position>,
    /// The labels of manifests, with the first that has each.
    labels: BTreeMap<Option<Label>, PathBuf>,
    owners: BTreeSet<TenantName>,
}

/// A module, a key or a model.
#[derive(Debug)]
struct UploadEntry<N> {
    tenant: TenantName,
    name: N,
    source: Source,
}

/// Where its bytes are.
#[derive(Debug)]
enum Source {
    /// In a local file.
    File(NamedFile),
    /// On the node, uploaded before by its tenant.
    Uploaded(Digest),
}

/// A chain whose stages may still lack the configuration and the files that are stored in other files.
#[derive(Debug)]
struct ChainEntry {
    chain: Chain,
    config_files: Vec<(usize, NamedFile)>,
    folders: Vec<(usize, NamedFile)>,
}

/// A file or folder, and where a manifest names it.
#[derive(Debug)]
struct NamedFile {
    path: PathBuf,
    named_at: Position,
}

/// The contents of manifests, with the contents of the files they name.
#[derive(Debug)]
pub struct Contents {
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// Modules and their bytes.
    pub modules: Vec<ModuleFile>,
    /// Modules for which the manifests give only the digest.
    pub uploaded: Vec<NamedUpload>,
    /// Keys and their files.
    pub keys: Vec<KeyFile>,
    /// Keys for which the manifests give only the digest.
    pub uploaded_keys: Vec<NamedUpload<KeyName>>,
    /// Models and their bytes.
    pub models: Vec<ModelFile>,
    /// Models for which the manifests give only the digest.
    pub uploaded_models: Vec<NamedUpload<ModelName>>,
    /// Chains. Their stages' files are among [`Contents::files`].
    pub chains: Vec<Chain>,
    /// The files of stages, each archive of a tenant once.
    pub files: Vec<PackedFiles>,
    /// Rules.
    pub rules: Vec<Rule>,
    /// The label of the manifests, if they have one.
    pub label: Option<Label>,
    /// The tenants that own what manifests define, also of a manifest that defines nothing.
    pub owners: BTreeSet<TenantName>,
}

/// The files of a stage.
#[derive(Debug)]
pub struct PackedFiles {
    /// The tenant that is to own them.
    pub tenant: TenantName,
    /// The folder that they were read from.
    pub path: PathBuf,
    /// The digest of the archive.
    pub digest: Digest,
    /// The archive of all of them.
    pub archive: Vec<u8>,
}

/// A module that a manifest names.
#[derive(Debug)]
pub struct ModuleFile {
    /// The tenant that is to own it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModuleName,
    /// The file that its bytes were read from.
    pub path: PathBuf,
    /// Its bytes.
    pub wasm: Vec<u8>,
}

/// A key that a manifest names.
#[derive(Debug)]
pub struct KeyFile {
    /// The tenant that is to own it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: KeyName,
    /// The file that it was read from.
    pub path: PathBuf,
    /// The file's text.
    pub pem: Pem,
}

/// A model that a manifest names.
#[derive(Debug)]
pub struct ModelFile {
    /// The tenant that is to own it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModelName,
    /// The file that its bytes were read from.
    pub path: PathBuf,
    /// Its bytes.
    pub onnx: Vec<u8>,
}

impl KeyFile {
    /// Returns the digest of its public key, by which a node knows it.
    ///
    /// # Errors
    /// It is no key that a node takes.
    pub fn digest(&self) -> Result<Digest, KeyError> {
        PrivateKey::from_pem(self.pem.as_bytes()).map(|key| Digest::from_bytes(key.public_digest()))
    }
}

impl Bundle {
    /// Reads manifests. Of a folder, reads all files that end in `.toml`, by name.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ManifestError> {
        Self::read_for(&default_tenant(), paths)
    }

    /// The same, where this tenant owns the objects of manifests that name none.
    pub fn read_for(default: &TenantName, paths: &[PathBuf]) -> Result<Self, ManifestError> {
        let mut bundle = Self::default();
        for path in paths {
            for manifest in manifests_in(path)? {
                let text = read_text(&manifest)?;
                document::read(&manifest, &text, default, &mut bundle)?;
            }
        }
        Ok(bundle)
    }

    /// Returns the objects that the manifests define: tenants, modules, keys, models, chains, rules.
    pub fn objects(&self) -> Vec<ObjectRef> {
        let modules = self.modules.iter().map(|it| it.object(|tenant, name| ObjectRef::Module { tenant, name }));
        let keys = self.keys.iter().map(|it| it.object(|tenant, name| ObjectRef::Key { tenant, name }));
        let models = self.models.iter().map(|it| it.object(|tenant, name| ObjectRef::Model { tenant, name }));
        let chains = self.chains.iter().map(|entry| ObjectRef::from(&entry.chain));
        let tenants = self.tenants.iter().map(ObjectRef::from);
        let rules = self.rules.iter().map(ObjectRef::from);
        tenants.chain(modules).chain(keys).chain(models).chain(chains).chain(rules).collect()
    }

    /// Returns the chains that the manifests define. Configurations in separate files are not loaded yet.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().map(|entry| &entry.chain)
    }

    /// Returns the rules that the manifests define.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the files that modules' bytes are to be read from.
    pub fn module_paths(&self) -> impl Iterator<Item = &Path> {
        self.modules.iter().filter_map(|module| match &module.source {
            Source::File(file) => Some(&*file.path),
            Source::Uploaded(_) => None,
        })
    }

    /// Reads the files that the manifests name.
    pub fn load(self) -> Result<Contents, ManifestError> {
        let label = self.label()?.cloned();
        let (modules, uploaded) = loaded(self.modules, |tenant, name, file| {
            let wasm = file.read(MODULE_PATH, "a module", MODULE_BYTES_MAX)?;
            Ok(ModuleFile { tenant, name, path: file.path, wasm })
        })?;
        let (keys, uploaded_keys) = loaded(self.keys, |tenant, name, file| {
            let pem = Pem::new(file.read(FILE, "a key", PEM_BYTES_MAX)?);
            Ok(KeyFile { tenant, name, path: file.path, pem })
        })?;
        let (models, uploaded_models) = loaded(self.models, |tenant, name, file| {
            let onnx = file.read(FILE, "a model", MODEL_BYTES_MAX)?;
            Ok(ModelFile { tenant, name, path: file.path, onnx })
        })?;
        let mut files = BTreeMap::new();
        let load_chain = |mut entry: ChainEntry| {
            for (stage, file) in &entry.config_files {
                entry.chain.stages[*stage].config = file.read("config_path", "a config", CONFIG_BYTES_MAX as u64)?;
            }
            for (stage, folder) in entry.folders {
                let archive = folder.pack()?;
                let (tenant, digest) = (entry.chain.tenant.clone(), Digest::of(&archive));
                entry.chain.stages[stage].files = Some(Files { digest, size_bytes: archive.len() as u64 });
                let packed = PackedFiles { tenant: tenant.clone(), path: folder.path, digest, archive };
                files.entry((tenant, digest)).or_insert(packed);
            }
            Ok(entry.chain)
        };
        Ok(Contents {
            tenants: self.tenants,
            modules,
            uploaded,
            keys,
            uploaded_keys,
            models,
            uploaded_models,
            chains: self.chains.into_iter().map(load_chain).collect::<Result<_, ManifestError>>()?,
            files: files.into_values().collect(),
            rules: self.rules,
            label,
            owners: self.owners,
        })
    }

    /// Returns the label of all manifests, if they have one.
    fn label(&self) -> Result<Option<&Label>, ManifestError> {
        let mut labels = self.labels.iter();
        let Some((first_label, first)) = labels.next() else { return Ok(None) };
        match labels.next() {
            None => Ok(first_label.as_ref()),
            Some((second_label, second)) => Err(ManifestError::OtherLabel {
                first: first.clone(),
                first_label: first_label.clone(),
                second: second.clone(),
                second_label: second_label.clone(),
            }),
        }
    }

    /// Adds the owner of a manifest's objects, and the manifest's label.
    fn add_owner(&mut self, path: &Path, owner: TenantName, label: Option<Label>) {
        self.owners.insert(owner);
        self.labels.entry(label).or_insert_with(|| path.to_owned());
    }

    fn add_place(&mut self, object: ObjectRef, place: &Position) -> Result<(), ManifestError> {
        match self.places.insert(object.clone(), place.clone()) {
            Some(first) => Err(ManifestError::Twice { object, first, second: place.clone() }),
            None => Ok(()),
        }
    }

    fn add_tenant(&mut self, place: &Position, tenant: Tenant) -> Result<(), ManifestError> {
        let object = ObjectRef::from(&tenant);
        self.tenants.push(tenant);
        self.add_place(object, place)
    }

    fn add_module(&mut self, place: &Position, module: UploadEntry<ModuleName>) -> Result<(), ManifestError> {
        let object = module.object(|tenant, name| ObjectRef::Module { tenant, name });
        self.modules.push(module);
        self.add_place(object, place)
    }

    fn add_key(&mut self, place: &Position, key: UploadEntry<KeyName>) -> Result<(), ManifestError> {
        let object = key.object(|tenant, name| ObjectRef::Key { tenant, name });
        self.keys.push(key);
        self.add_place(object, place)
    }

    fn add_model(&mut self, place: &Position, model: UploadEntry<ModelName>) -> Result<(), ManifestError> {
        let object = model.object(|tenant, name| ObjectRef::Model { tenant, name });
        self.models.push(model);
        self.add_place(object, place)
    }

    fn add_chain(&mut self, place: &Position, chain: ChainEntry) -> Result<(), ManifestError> {
        let object = ObjectRef::from(&chain.chain);
        self.chains.push(chain);
        self.add_place(object, place)
    }

    fn add_rule(&mut self, place: &Position, rule: Rule) -> Result<(), ManifestError> {
        let object = ObjectRef::from(&rule);
        self.rules.push(rule);
        self.add_place(object, place)
    }
}

impl<N: Clone> UploadEntry<N> {
    fn object(&self, of: impl FnOnce(TenantName, N) -> ObjectRef) -> ObjectRef {
        of(self.tenant.clone(), self.name.clone())
    }
}

/// Reads the files of objects, and returns those apart for which only the digest is given.
fn loaded<N, T>(
    entries: Vec<UploadEntry<N>>,
    read: impl Fn(TenantName, N, NamedFile) -> Result<T, ManifestError>,
) -> Result<(Vec<T>, Vec<NamedUpload<N>>), ManifestError> {
    let (mut files, mut uploaded) = (Vec::new(), Vec::new());
    for UploadEntry { tenant, name, source } in entries {
        match source {
            Source::Uploaded(digest) => uploaded.push(NamedUpload { tenant, name, digest }),
            Source::File(file) => files.push(read(tenant, name, file)?),
        }
    }
    Ok((files, uploaded))
}

impl NamedFile {
    fn read(&self, key: &'static str, what: &'static str, bytes_max: u64) -> Result<Vec<u8>, ManifestError> {
        let path = self.path.clone();
        match read_at_most(&self.path, bytes_max) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(ManifestError::TooLong { path, what, bytes_max }),
            Err(source) => Err(ManifestError::ReadNamed { manifest: self.named_at.clone(), key, path, source }),
        }
    }

    /// Packs the contents of the folder into an archive.
    fn pack(&self) -> Result<Vec<u8>, ManifestError> {
        pack(&self.path).map_err(|problem| ManifestError::Pack { manifest: self.named_at.clone(), problem })
    }
}

/// What kind of content a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A WebAssembly module or component in binary form.
    Module,
    /// A WebAssembly module in text form.
    ModuleText,
    /// Other text, such as a manifest.
    Text,
    /// Anything else.
    Other,
}

impl FileKind {
    /// Detects the kind from these bytes: all of a file, or its beginning.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        const MODULE: &[u8] = b"\0asm";
        if bytes.starts_with(MODULE) {
            return Self::Module;
        }
        // Text that was cut within a character is text as well.
        let text = match str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => return Self::Other,
        };
        match first_of_wat(text) {
            Some('(') => Self::ModuleText,
            _ if text.contains('\0') => Self::Other,
            _ => Self::Text,
        }
    }
}

/// Returns the first character of WebAssembly text after its comments, `;;` to the end of the line and `(; ;)`. No
/// manifest begins with `(`.
fn first_of_wat(mut text: &str) -> Option<char> {
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        if let Some(comment) = text.strip_prefix(";;") {
            text = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else {
            return text.chars().next();
        }
    }
}

fn manifests_in(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let read_error = |source| ManifestError::Read { path: path.to_owned(), source };
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut manifests = Vec::new();
    for entry in path.read_dir().map_err(read_error)? {
        let found = entry.map_err(read_error)?.path();
        if found.extension().is_some_and(|extension| extension == "toml") && found.is_file() {
            manifests.push(found);
        }
    }
    if manifests.is_empty() {
        return Err(ManifestError::EmptyFolder { path: path.to_owned() });
    }
    manifests.sort();
    Ok(manifests)
}

fn read_text(path: &Path) -> Result<String, ManifestError> {
    let read_error = |source| ManifestError::Read { path: path.to_owned(), source };
    let bytes = read_at_most(path, MANIFEST_BYTES_MAX).map_err(read_error)?;
    let bytes = bytes.ok_or_else(|| ManifestError::TooLong {
        path: path.to_owned(),
        what: "a manifest",
        bytes_max: MANIFEST_BYTES_MAX,
    })?;
    let what = match FileKind::of(&bytes) {
        FileKind::Module => "a WebAssembly module",
        FileKind::ModuleText => "a WebAssembly module as text (.wat)",
        FileKind::Other => "not text",
        FileKind::Text => match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(_) => "not text",
        },
    };
    Err(ManifestError::NotManifest { path: path.to_owned(), what })
}

/// Returns none if the file is longer.
fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    // Room for all of it and a byte more, so that it is not moved: what is left behind of a key is not erased.
    let len = file.metadata()?.len().min(bytes_max);
    let mut bytes = Vec::with_capacity(len as usize + 2);
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

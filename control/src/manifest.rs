//! TOML manifests: what people write, read into the values of [`crate::model`].
//!
//! Called by the `pinion` command. Every error names the file, and the line and key where there is one; a key that
//! nobody knows is an error. Manifests read together make one change. Never talks to a node.

mod chain;
mod document;
mod pack;
mod place;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::control::NamedUpload;
use crate::model::{CONFIG_BYTES_MAX, Chain, Digest, Files, MODULE_BYTES_MAX, ModuleName, ObjectRef, Rule, TenantName};

/// What the key `version` has to say.
pub const VERSION: &str = "pinion.v1";
/// Whose things they are when a manifest or a command does not say.
pub const DEFAULT_TENANT: &str = "default";
/// The longest manifest: one with all rules that a node takes, each with every key, is half as long.
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
    #[error("{manifest}: {key} names {}, which cannot be read: {source}", path.display())]
    ReadNamed {
        /// Where the manifest names it.
        manifest: Place,
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
        manifest: Place,
        /// Why.
        problem: PackError,
    },
    /// A file is longer than anything of its kind may be.
    #[error("{} is longer than the {bytes_max} bytes that {what} may have", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it is read as.
        what: &'static str,
        /// How long that may be.
        bytes_max: u64,
    },
    /// A folder without a manifest.
    #[error("{}: there is no .toml file in this folder", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Nothing is said of which manifests these are.
    #[error("{}: the key version is missing: this pinion reads version = \"{VERSION}\"", path.display())]
    NoVersion {
        /// The manifest.
        path: PathBuf,
    },
    /// A manifest of another version.
    #[error("{place}: version is {found:?}: this pinion reads version = \"{VERSION}\"")]
    OtherVersion {
        /// Where it says so.
        place: Place,
        /// What it says.
        found: String,
    },
    /// Something in a manifest is wrong.
    #[error("{place}: {problem}")]
    Wrong {
        /// Where.
        place: Place,
        /// What, with the key.
        problem: String,
    },
    /// Two entries for one object.
    #[error("{second}: {object} is there already, at {first}")]
    Twice {
        /// The object.
        object: ObjectRef,
        /// The entry read first.
        first: Place,
        /// The entry read second.
        second: Place,
    },
}

pub use pack::{PackError, pack};
pub use place::Place;

/// Everything that some manifests say, before the files that they name are read.
#[derive(Debug, Default)]
pub struct Bundle {
    modules: Vec<ModuleEntry>,
    chains: Vec<ChainEntry>,
    rules: Vec<Rule>,
    places: BTreeMap<ObjectRef, Place>,
}

#[derive(Debug)]
struct ModuleEntry {
    tenant: TenantName,
    name: ModuleName,
    source: ModuleSource,
}

/// Where a module's bytes are.
#[derive(Debug)]
enum ModuleSource {
    /// Here.
    File(NamedFile),
    /// On the node, as its tenant has uploaded them.
    Uploaded(Digest),
}

/// A chain whose stages may still lack the configuration and the files that lie elsewhere.
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
    named_at: Place,
}

/// Everything that some manifests say, with what was in the files they name.
#[derive(Debug)]
pub struct Contents {
    /// Modules and their bytes.
    pub modules: Vec<ModuleFile>,
    /// Modules of which the manifests say the digest only.
    pub uploaded: Vec<NamedUpload>,
    /// Chains, whose stages' files are among [`Contents::files`].
    pub chains: Vec<Chain>,
    /// The files of stages, each archive of a tenant's once.
    pub files: Vec<PackedFiles>,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// The files of a stage.
#[derive(Debug)]
pub struct PackedFiles {
    /// Who shall own them.
    pub tenant: TenantName,
    /// The folder that they were in.
    pub path: PathBuf,
    /// What they are known by.
    pub digest: Digest,
    /// All of them.
    pub archive: Vec<u8>,
}

/// A module that a manifest names.
#[derive(Debug)]
pub struct ModuleFile {
    /// Who shall own it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModuleName,
    /// Where its bytes were read.
    pub path: PathBuf,
    /// Its bytes.
    pub wasm: Vec<u8>,
}

impl Bundle {
    /// Reads manifests; of a folder, all that end in `.toml`, by name.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ManifestError> {
        let mut bundle = Self::default();
        for path in paths {
            for manifest in manifests_in(path)? {
                let text = read_text(&manifest)?;
                document::read(&manifest, &text, &mut bundle)?;
            }
        }
        Ok(bundle)
    }

    /// The objects that the manifests speak of: modules, chains, rules.
    pub fn objects(&self) -> Vec<ObjectRef> {
        let module = |m: &ModuleEntry| ObjectRef::Module { tenant: m.tenant.clone(), name: m.name.clone() };
        let modules = self.modules.iter().map(module);
        let chains = self.chains.iter().map(|entry| ObjectRef::from(&entry.chain));
        modules.chain(chains).chain(self.rules.iter().map(ObjectRef::from)).collect()
    }

    /// The chains that the manifests speak of; configurations that lie in files are not there yet.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().map(|entry| &entry.chain)
    }

    /// The rules that the manifests speak of.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The files that modules' bytes are to be read from.
    pub fn module_paths(&self) -> impl Iterator<Item = &Path> {
        self.modules.iter().filter_map(|module| match &module.source {
            ModuleSource::File(file) => Some(&*file.path),
            ModuleSource::Uploaded(_) => None,
        })
    }

    /// Reads the files that the manifests name.
    pub fn load(self) -> Result<Contents, ManifestError> {
        let (mut modules, mut uploaded) = (Vec::new(), Vec::new());
        for ModuleEntry { tenant, name, source } in self.modules {
            match source {
                ModuleSource::Uploaded(digest) => uploaded.push(NamedUpload { tenant, name, digest }),
                ModuleSource::File(file) => {
                    let wasm = file.read("path", "a module", MODULE_BYTES_MAX)?;
                    modules.push(ModuleFile { tenant, name, path: file.path, wasm });
                }
            }
        }
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
            modules,
            uploaded,
            chains: self.chains.into_iter().map(load_chain).collect::<Result<_, ManifestError>>()?,
            files: files.into_values().collect(),
            rules: self.rules,
        })
    }

    fn add_place(&mut self, object: ObjectRef, place: &Place) -> Result<(), ManifestError> {
        match self.places.insert(object.clone(), place.clone()) {
            Some(first) => Err(ManifestError::Twice { object, first, second: place.clone() }),
            None => Ok(()),
        }
    }

    fn add_module(&mut self, place: &Place, module: ModuleEntry) -> Result<(), ManifestError> {
        let object = ObjectRef::Module { tenant: module.tenant.clone(), name: module.name.clone() };
        self.modules.push(module);
        self.add_place(object, place)
    }

    fn add_chain(&mut self, place: &Place, chain: ChainEntry) -> Result<(), ManifestError> {
        let object = ObjectRef::from(&chain.chain);
        self.chains.push(chain);
        self.add_place(object, place)
    }

    fn add_rule(&mut self, place: &Place, rule: Rule) -> Result<(), ManifestError> {
        let object = ObjectRef::from(&rule);
        self.rules.push(rule);
        self.add_place(object, place)
    }
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

    /// The archive of what is in the folder.
    fn pack(&self) -> Result<Vec<u8>, ManifestError> {
        pack(&self.path).map_err(|problem| ManifestError::Pack { manifest: self.named_at.clone(), problem })
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
    String::from_utf8(bytes).map_err(|error| read_error(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))
}

/// None if there is more.
fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

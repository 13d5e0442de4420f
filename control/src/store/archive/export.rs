//! Writes the archive of a store.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use prost::Message;
use tar::{Builder, Header};

use super::super::intact::Unfit;
use super::super::{Store, StoreError};
use super::{ArchiveError, BLOBS, KeyEntry, MANIFEST, Manifest, ObjectEntry, Transferred, UploadEntry, VERSION};
use crate::model::{Digest, Key, Labelled, Object, ObjectRef};
use crate::proto;

/// Writes the desired state of a store that no node has open, with its uploads and sealed keys, into a new file that only its
/// owner may read.
///
/// # Errors
/// The store cannot be read or is in use; it has lost bytes that an object needs; the file is there, or cannot be written. Then
/// there is no new file.
pub fn export(store: &Path, file: &Path) -> Result<Transferred, ArchiveError> {
    let store = Store::open_offline(store)?;
    let failed = |source| ArchiveError::File { path: file.to_owned(), source };
    let folder = super::folder_of(file);
    let temporary = tempfile::Builder::new().prefix(".pinion-export-").tempfile_in(folder).map_err(failed)?;
    let transferred = Exporting::new(&store, temporary.as_file(), file)?.run()?;
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist_noclobber(file).map_err(|error| super::not_made(file, error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(transferred)
}

struct Exporting<'a> {
    store: &'a Store,
    path: &'a Path,
    archive: Builder<BufWriter<&'a File>>,
    /// The blobs that are in the archive.
    written: BTreeSet<Digest>,
    version: u64,
    objects: Vec<Labelled<Object>>,
    transferred: Transferred,
}

impl<'a> Exporting<'a> {
    fn new(store: &'a Store, file: &'a File, path: &'a Path) -> Result<Self, StoreError> {
        let intact = store.intact()?;
        let sentence = |Unfit { key, reason, .. }: &Unfit| format!("{key}: {reason}");
        let transferred =
            Transferred { left_out: intact.unfit.iter().map(sentence).collect(), ..Transferred::default() };
        let (archive, objects) = (Builder::new(BufWriter::new(file)), intact.state.objects().collect());
        let version = intact.state.version();
        Ok(Self { store, path, archive, written: BTreeSet::new(), version, objects, transferred })
    }

    fn run(mut self) -> Result<Transferred, ArchiveError> {
        let manifest = self.manifest()?;
        let text = toml::to_string(&manifest).map_err(io::Error::other).map_err(|source| self.failed(source))?;
        self.append(MANIFEST, text.as_bytes())?;
        for object in std::mem::take(&mut self.objects) {
            let bytes = proto::Object::from(&object).encode_to_vec();
            self.blob(&Digest::of(&bytes), || Ok(bytes))?;
            let store = self.store;
            match &object.object {
                Object::Tenant(_) | Object::Rule(_) => {}
                Object::Module(module) => self.blob(&module.digest, || store.wasm(module))?,
                Object::Model(model) => self.blob(&model.digest, || store.model(model))?,
                Object::Key(key) => {
                    let sealed = sealed(store, key)?;
                    self.blob(&Digest::of(&sealed), || Ok(sealed))?;
                }
                Object::Chain(chain) => {
                    for files in chain.stages.iter().filter_map(|stage| stage.files) {
                        self.blob(&files.digest, || store.files(&files))?;
                    }
                }
            }
        }
        let finished = self.archive.into_inner().and_then(|mut file| file.flush());
        finished.map_err(|source| ArchiveError::File { path: self.path.to_owned(), source })?;
        Ok(self.transferred)
    }

    fn manifest(&mut self) -> Result<Manifest, ArchiveError> {
        let mut manifest = Manifest {
            version: VERSION.to_owned(),
            desired_version: self.version,
            object: Vec::new(),
            upload: Vec::new(),
            key: Vec::new(),
        };
        let mut uploads = BTreeSet::new();
        for object in &self.objects {
            let (name, bytes) = (object.name(), proto::Object::from(object).encode_to_vec());
            let tenant = name.tenant().to_string();
            manifest.object.push(ObjectEntry {
                kind: name.kind().to_owned(),
                tenant: tenant.clone(),
                name: name.name().to_owned(),
                digest: Digest::of(&bytes).to_string(),
            });
            match &object.object {
                Object::Key(key) => manifest.key.push(KeyEntry {
                    tenant,
                    digest: key.digest.to_string(),
                    algorithm: key.algorithm.clone(),
                    sealed: Digest::of(&sealed(self.store, key)?).to_string(),
                }),
                _ => uploads.extend(object.uploads().into_iter().map(|(digest, _)| (tenant.clone(), digest))),
            }
        }
        let entry = |(tenant, digest): (String, Digest)| UploadEntry { tenant, digest: digest.to_string() };
        manifest.upload = uploads.into_iter().map(entry).collect();
        self.transferred.objects = manifest.object.len() as u64;
        self.transferred.uploads = manifest.upload.len() as u64;
        self.transferred.keys = manifest.key.len() as u64;
        Ok(manifest)
    }

    /// Adds the bytes of this digest, unless they are there.
    fn blob(
        &mut self,
        digest: &Digest,
        bytes: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<(), ArchiveError> {
        if !self.written.insert(*digest) {
            return Ok(());
        }
        self.append(&format!("{BLOBS}{}", digest.hex()), &bytes()?)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let mut header = Header::new_ustar();
        header.set_mode(0o600);
        header.set_size(bytes.len() as u64);
        let appended = self.archive.append_data(&mut header, name, bytes);
        appended.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::File { path: self.path.to_owned(), source }
    }
}

/// Returns a key as the store has it.
fn sealed(store: &Store, key: &Key) -> Result<Vec<u8>, StoreError> {
    let sealed = store.sealed_key(&key.tenant, &key.digest)?;
    sealed.ok_or_else(|| StoreError::Lost {
        path: store.path().to_owned(),
        whose: ObjectRef::from(key).to_string(),
        digest: key.digest,
    })
}

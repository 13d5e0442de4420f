//! Makes a store of an archive, of which nothing is believed: every blob is compared with its digest, and the objects are checked
//! as those of a change are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::SystemTime;

use tar::Archive;

use super::super::contents::{Damage, object_of};
use super::super::{Signature, Store};
use super::{ArchiveError, BLOBS, KeyEntry, MANIFEST, Manifest, ObjectEntry, Transferred, UploadEntry, VERSION};
use crate::model::{
    Applied, Author, BadDigest, Change, DesiredState, Digest, Effect, FILES_BYTES_MAX, Labelled, MODEL_BYTES_MAX,
    MODULE_BYTES_MAX, Object, Outcome, TenantName, quoted,
};

/// The longest manifest: some 200 bytes for each object that a node may have.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// The author of the first revision.
const AUTHOR: &str = "pinion store import";

/// Makes a new store of an archive of [`super::export`]. Its desired state is revision 1.
///
/// # Errors
/// The archive cannot be read, or is damaged; the store is there, or cannot be made. Then there is no new store.
pub fn import(file: &Path, store: &Path) -> Result<Transferred, ArchiveError> {
    if store.symlink_metadata().is_ok() {
        return Err(ArchiveError::Exists(store.to_owned()));
    }
    let failed = |source| ArchiveError::File { path: store.to_owned(), source };
    let archive = File::open(file).map_err(|source| ArchiveError::File { path: file.to_owned(), source })?;
    let folder = super::folder_of(store);
    let temporary = tempfile::Builder::new().prefix(".pinion-import-").tempfile_in(folder).map_err(failed)?;
    let made = Store::open(temporary.path())?;
    let transferred = Importing { path: file, store: &made }.run(Archive::new(BufReader::new(archive)))?;
    drop(made);
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist_noclobber(store).map_err(|error| super::not_made(store, error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(transferred)
}

/// What is to become of a blob.
#[derive(Debug, Default)]
struct Uses {
    /// It is an object.
    is_object: bool,
    /// These tenants have uploaded it.
    uploaded_by: BTreeSet<TenantName>,
    /// It is the sealed key of these tenants, by the digests of the public keys.
    sealed: Vec<(TenantName, Digest, String)>,
}

struct Importing<'a> {
    path: &'a Path,
    store: &'a Store,
}

impl Importing<'_> {
    fn run(&self, mut archive: Archive<impl Read>) -> Result<Transferred, ArchiveError> {
        let mut entries = archive.entries().map_err(|error| self.wrong(error))?;
        let first = entries.next().ok_or_else(|| self.wrong("it is empty"))?;
        let (name, bytes) = self.entry(first, MANIFEST_BYTES_MAX)?;
        if name != MANIFEST {
            return Err(self.wrong(format!("it does not begin with {MANIFEST}")));
        }
        let manifest = self.manifest(bytes)?;
        let mut uses = self.uses(&manifest)?;
        let mut objects = BTreeMap::new();
        for entry in entries {
            let bytes_max = MODULE_BYTES_MAX.max(MODEL_BYTES_MAX).max(FILES_BYTES_MAX);
            let (name, bytes) = self.entry(entry, bytes_max)?;
            let digest = Digest::of(&bytes);
            if name.strip_prefix(BLOBS) != Some(&*digest.hex()) {
                return Err(self.wrong(format!("the bytes of {} have the digest {digest}", quoted(&name))));
            }
            let uses = uses
                .remove(&digest)
                .ok_or_else(|| self.wrong(format!("nothing names {digest}, or it is there twice")))?;
            if uses.is_object {
                let object = object_of(&digest, &bytes).map_err(|Damage(reason)| self.wrong(reason))?;
                objects.insert(digest, object);
            }
            self.store_blob(&digest, &bytes, uses)?;
        }
        if let Some(digest) = uses.keys().next() {
            return Err(self.wrong(format!("the bytes of {digest} are missing")));
        }
        self.commit(&manifest, &objects)?;
        Ok(Transferred {
            objects: manifest.object.len() as u64,
            uploads: manifest.upload.len() as u64,
            keys: manifest.key.len() as u64,
            left_out: Vec::new(),
        })
    }

    /// Returns the name and the bytes of an entry.
    fn entry<'r, R: Read + 'r>(
        &self,
        entry: std::io::Result<tar::Entry<'r, R>>,
        bytes_max: u64,
    ) -> Result<(String, Vec<u8>), ArchiveError> {
        let entry = entry.map_err(|error| self.wrong(error))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if entry.size() > bytes_max {
            return Err(self.wrong(format!("{} has {} bytes", quoted(&name), entry.size())));
        }
        let (size, mut bytes) = (entry.size(), Vec::new());
        entry.take(bytes_max).read_to_end(&mut bytes).map_err(|error| self.wrong(error))?;
        if bytes.len() as u64 != size {
            return Err(self.wrong(format!("{} is cut off", quoted(&name))));
        }
        Ok((name, bytes))
    }

    fn manifest(&self, bytes: Vec<u8>) -> Result<Manifest, ArchiveError> {
        let text = String::from_utf8(bytes).map_err(|error| self.wrong(error))?;
        let manifest: Manifest =
            crate::document::read(&text, |_| None).map_err(|fault| self.wrong(super::fault_sentence(&text, &fault)))?;
        match &*manifest.version {
            VERSION => Ok(manifest),
            other => Err(self.wrong(format!("its version is {}: this pinion reads {VERSION}", quoted(other)))),
        }
    }

    /// Returns what is to become of each blob.
    fn uses(&self, manifest: &Manifest) -> Result<BTreeMap<Digest, Uses>, ArchiveError> {
        let mut uses: BTreeMap<Digest, Uses> = BTreeMap::new();
        for ObjectEntry { digest, .. } in &manifest.object {
            uses.entry(self.digest(digest)?).or_default().is_object = true;
        }
        for UploadEntry { tenant, digest } in &manifest.upload {
            let tenant = TenantName::new(&**tenant).map_err(|bad| self.wrong(bad))?;
            uses.entry(self.digest(digest)?).or_default().uploaded_by.insert(tenant);
        }
        for KeyEntry { tenant, digest, algorithm, sealed } in &manifest.key {
            let tenant = TenantName::new(&**tenant).map_err(|bad| self.wrong(bad))?;
            let key = (tenant, self.digest(digest)?, algorithm.clone());
            uses.entry(self.digest(sealed)?).or_default().sealed.push(key);
        }
        Ok(uses)
    }

    fn store_blob(&self, digest: &Digest, bytes: &[u8], uses: Uses) -> Result<(), ArchiveError> {
        let now = SystemTime::now();
        for tenant in uses.uploaded_by {
            self.store.put_upload(&tenant, digest, bytes, now)?;
        }
        for (tenant, digest, algorithm) in uses.sealed {
            self.store.put_key(&tenant, &digest, &algorithm, bytes, now)?;
        }
        Ok(())
    }

    /// Makes the objects the desired state, once each is found to be what the manifest says, and to have its uploads.
    fn commit(&self, manifest: &Manifest, objects: &BTreeMap<Digest, Labelled<Object>>) -> Result<(), ArchiveError> {
        let (mut change, mut outcomes) = (Change::default(), Vec::new());
        for ObjectEntry { kind, tenant, name, digest } in &manifest.object {
            let object =
                objects.get(&self.digest(digest)?).ok_or_else(|| self.wrong(format!("{digest} is no object")))?;
            let found = object.name();
            if (found.kind(), found.tenant().as_str(), found.name()) != (kind, tenant, name) {
                return Err(self.wrong(format!("{digest} is {found}, and the manifest says something else")));
            }
            for (upload, size_bytes) in object.uploads() {
                let is_there = match &object.object {
                    Object::Key(key) => {
                        self.store.key_algorithm(&key.tenant, &upload)?.as_ref() == Some(&key.algorithm)
                    }
                    _ => self.store.upload_size_bytes(found.tenant(), &upload)? == Some(size_bytes),
                };
                if !is_there {
                    return Err(self.wrong(format!("{found} needs {upload}, which is not in it, or is another one")));
                }
            }
            change.set(object);
            outcomes.push(Outcome { object: found, effect: Effect::Created });
        }
        if outcomes.is_empty() {
            return Ok(());
        }
        let state = DesiredState::restore(1, change).map_err(|invalid| self.wrong(invalid))?;
        let signature = Signature { author: Author::operator(AUTHOR), time: SystemTime::now() };
        Ok(self.store.commit(&Applied { state, outcomes }, &signature)?)
    }

    fn digest(&self, text: &str) -> Result<Digest, ArchiveError> {
        text.parse().map_err(|bad: BadDigest| self.wrong(bad))
    }

    fn wrong(&self, problem: impl ToString) -> ArchiveError {
        ArchiveError::Wrong { path: self.path.to_owned(), problem: problem.to_string() }
    }
}

//! Tenants' keys at rest: sealed with the node's secret before they reach the store, and opened for the node alone.
//!
//! The secret lies in a file of its own, which is read when it is first needed. A key is sealed under its tenant and its
//! public key, so that what is stored for one tenant cannot be opened as another's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pinion_keys::{PrivateKey, Seal, SecretError};

use super::{Control, lock};
use crate::model::{Digest, Files, Key, Model, Module, ObjectRef, TenantName};
use crate::node::UploadedBytes;
use crate::store::Store;

/// The name of the secret's file beside the store.
const SECRET_FILE: &str = "keys.secret";

/// Why keys cannot be sealed or opened. Sentences for the operator, with the secret's path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// There is no secret, and the node does not make this one.
    #[error("the node's secret {} is not there: bring it back, or make another one and upload all keys again", .0.display())]
    Missing(PathBuf),
    /// The machine has no randomness.
    #[error("the key could not be sealed: {0}")]
    Failed(io::Error),
}

/// Seals and opens keys; see the module.
pub(super) struct SealedKeys {
    secret: PathBuf,
    /// Whether the operator has named the file. The node makes no such file.
    is_named: bool,
    seal: Mutex<Option<Arc<Seal>>>,
}

/// Whether a secret is made if there is none. A new one opens nothing that was sealed before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Make,
    Refuse,
}

impl SealedKeys {
    /// Creates it for a store, with the file that the operator has named for the secret.
    pub(super) fn new(store: &Store, named: Option<PathBuf>) -> Self {
        let beside = || store.path().parent().unwrap_or(Path::new("")).join(SECRET_FILE);
        let is_named = named.is_some();
        Self { secret: named.unwrap_or_else(beside), is_named, seal: Mutex::default() }
    }

    /// Returns the key as it may be stored for this tenant.
    pub(super) fn seal(&self, tenant: &TenantName, key: &PrivateKey) -> Result<Vec<u8>, SealError> {
        let if_missing = if self.is_named { IfMissing::Refuse } else { IfMissing::Make };
        let name = sealed_as(tenant, &Digest::from_bytes(key.public_digest()));
        self.secret(if_missing)?.seal(&name, &key.to_bytes()).map_err(SealError::Failed)
    }

    /// Returns a key of a tenant, or else a sentence for the operator.
    fn open(&self, store: &Store, key: &Key) -> Result<PrivateKey, String> {
        let (object, remedy) = (ObjectRef::from(key), "upload the key again");
        let sealed = store.sealed_key(&key.tenant, &key.digest).map_err(|error| format!("{object}: {error}"))?;
        let sealed = sealed.ok_or_else(|| format!("{object}: the store has lost it: {remedy}"))?;
        let seal = self.secret(IfMissing::Refuse).map_err(|error| format!("{object}: {error}"))?;
        let opened = seal.open(&sealed_as(&key.tenant, &key.digest), &sealed).map_err(|error| {
            let secret = self.secret.display();
            format!("{object}: what is stored of it cannot be opened with {secret}: {error}: {remedy}")
        })?;
        let private = PrivateKey::from_bytes(&opened).map_err(|error| format!("{object}: {error}"))?;
        match private.public_digest() == *key.digest.as_bytes() {
            true => Ok(private),
            false => Err(format!("{object}: what is stored of it is another key: {remedy}")),
        }
    }

    /// Returns the seal, and reads the secret if that was not done.
    fn secret(&self, if_missing: IfMissing) -> Result<Arc<Seal>, SealError> {
        let mut seal = lock(&self.seal);
        if let Some(seal) = &*seal {
            return Ok(Arc::clone(seal));
        }
        if if_missing == IfMissing::Refuse && !self.secret.exists() {
            return Err(SealError::Missing(self.secret.clone()));
        }
        let read = Arc::new(Seal::from_file(&self.secret)?);
        *seal = Some(Arc::clone(&read));
        Ok(read)
    }
}

/// Returns the name under which a key is sealed.
fn sealed_as(tenant: &TenantName, digest: &Digest) -> String {
    format!("{tenant}/{digest}")
}

/// The uploads of all tenants, for the node.
pub(super) struct Uploads<'c> {
    store: &'c Store,
    sealed_keys: &'c SealedKeys,
}

impl Control {
    /// Returns where the node reads what tenants have uploaded.
    pub(super) fn uploads(&self) -> Uploads<'_> {
        Uploads { store: &self.store, sealed_keys: &self.sealed_keys }
    }
}

impl UploadedBytes for Uploads<'_> {
    fn wasm(&self, module: &Module) -> Result<Vec<u8>, String> {
        self.store.wasm(module).map_err(|error| error.to_string())
    }

    fn files(&self, files: &Files) -> Result<Vec<u8>, String> {
        self.store.files(files).map_err(|error| error.to_string())
    }

    fn key(&self, key: &Key) -> Result<PrivateKey, String> {
        self.sealed_keys.open(self.store, key)
    }

    fn model(&self, model: &Model) -> Result<Vec<u8>, String> {
        self.store.model(model).map_err(|error| error.to_string())
    }
}

//! Uploads: what tenants bring to the node before a change names it. Bytes are identified by their digest, keys by that of
//! their public keys.

use std::fmt;
use std::time::SystemTime;

use pinion_keys::PrivateKey;

use super::turn_lock::Party;
use super::{Control, ControlError};
use crate::model::{
    Chain, Digest, FILES_BYTES_MAX, Key, KeyName, MODEL_BYTES_MAX, MODULE_BYTES_MAX, Model, ModelName, Module,
    ModuleName, ObjectRef, StoredUpload, TenantName, Upload, check_upload,
};
use crate::pem::Pem;
use crate::store::{StoreError, ToForget};

/// What an upload contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadKind {
    /// A module.
    Module,
    /// The archive of a stage's files.
    Files,
    /// A model.
    Model,
}

impl UploadKind {
    /// The maximum size of such an upload, in bytes.
    pub fn bytes_max(self) -> u64 {
        match self {
            UploadKind::Module => MODULE_BYTES_MAX,
            UploadKind::Files => FILES_BYTES_MAX,
            UploadKind::Model => MODEL_BYTES_MAX,
        }
    }

    /// Refuses an upload that is too large, as soon as its size is known.
    pub(crate) fn check_size(self, size_bytes: u64) -> Result<(), ControlError> {
        if size_bytes > self.bytes_max() { Err(ControlError::TooLarge { kind: self, size_bytes }) } else { Ok(()) }
    }
}

impl fmt::Display for UploadKind {
    /// Formats it with the verb that follows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UploadKind::Module => "module has",
            UploadKind::Files => "archive of files has",
            UploadKind::Model => "model has",
        })
    }
}

/// What becomes of an upload for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfFull {
    /// Revisions give way to it whose uploads no object needs.
    ForgetRevisions,
    /// It is refused.
    Refuse,
}

/// The name of a module, a key or a model for what was uploaded before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedUpload<N = ModuleName> {
    /// The tenant that owns the object and has uploaded it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: N,
    /// The digest of the uploaded bytes, or of the uploaded key's public key.
    pub digest: Digest,
}

/// What identifies a key that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedKey {
    /// The digest of its public key, by which a change can name it.
    pub digest: Digest,
    /// Its algorithm, such as `ecdsa-p256`.
    pub algorithm: String,
}

impl Control {
    /// Returns the uploads of tenants, keys among them, that nothing names.
    pub fn unnamed_uploads(&self) -> Result<Vec<Upload>, ControlError> {
        Ok(self.store.unnamed_uploads(SystemTime::now())?)
    }

    /// Asks the node to admit the bytes, then stores them for the tenant, for the operator. May take seconds.
    pub fn upload(
        &self,
        kind: UploadKind,
        tenant: &TenantName,
        announced: &Digest,
        bytes: &[u8],
    ) -> Result<(), ControlError> {
        self.upload_as(None, IfFull::ForgetRevisions, kind, tenant, announced, bytes)
    }

    /// As [`Control::upload`], for a caller of this tenant, or else the operator.
    pub fn upload_as(
        &self,
        caller: Option<&TenantName>,
        if_full: IfFull,
        kind: UploadKind,
        tenant: &TenantName,
        announced: &Digest,
        bytes: &[u8],
    ) -> Result<(), ControlError> {
        kind.check_size(bytes.len() as u64)?;
        let found = Digest::of(bytes);
        if found != *announced {
            return Err(ControlError::WrongDigest { announced: *announced, found });
        }
        let party = Party::of(caller, Some(tenant));
        let _one_at_a_time = self.admitting.lock(&party);
        self.check_party(&party)?;
        let new = StoredUpload { tenant: tenant.clone(), digest: found, size_bytes: bytes.len() as u64 };
        self.check_room(&new, if_full)?;
        match kind {
            UploadKind::Module => self.node.admit(bytes)?,
            UploadKind::Files => self.node.admit_files(bytes)?,
            UploadKind::Model => self.node.admit_model(bytes)?,
        }
        // It may have been deleted while the node looked at the bytes.
        self.check_party(&party)?;
        self.put(&new, if_full, |to_forget| {
            self.store.put_upload_after(to_forget, tenant, &found, bytes, SystemTime::now())
        })
    }

    /// Reads a private key and stores it, sealed, for the tenant, for the operator.
    pub fn upload_key(&self, tenant: &TenantName, pem: &Pem) -> Result<UploadedKey, ControlError> {
        self.upload_key_as(None, IfFull::ForgetRevisions, tenant, pem)
    }

    /// As [`Control::upload_key`], for a caller of this tenant, or else the operator.
    pub fn upload_key_as(
        &self,
        caller: Option<&TenantName>,
        if_full: IfFull,
        tenant: &TenantName,
        pem: &Pem,
    ) -> Result<UploadedKey, ControlError> {
        let party = Party::of(caller, Some(tenant));
        let _one_at_a_time = self.admitting.lock(&party);
        self.check_party(&party)?;
        let key = PrivateKey::from_pem(pem.as_bytes())?;
        let (digest, algorithm) = (Digest::from_bytes(key.public_digest()), key.algorithm().to_string());
        let sealed = self.sealed_keys.seal(tenant, &key)?;
        let new = StoredUpload { tenant: tenant.clone(), digest, size_bytes: sealed.len() as u64 };
        self.check_room(&new, if_full)?;
        self.put(&new, if_full, |to_forget| {
            self.store.put_key_after(to_forget, tenant, &digest, &algorithm, &sealed, SystemTime::now())
        })?;
        Ok(UploadedKey { digest, algorithm })
    }

    /// Refuses an upload for which there is no room, also without the uploads that nothing uses any more, and without those that only
    /// revisions need which can be forgotten for it. Removes the former. Called with the lock of uploads held.
    fn check_room(&self, new: &StoredUpload, if_full: IfFull) -> Result<(), ControlError> {
        if self.fits(new)? {
            return Ok(());
        }
        let party = Party::Tenant(new.tenant.clone());
        if self.store.has_garbage(SystemTime::now())? {
            self.remove_garbage(&party)?;
        }
        let _no_change = self.changing.lock(&party);
        self.settle()?;
        self.to_forget(new, if_full).map(drop)
    }

    /// Stores an upload in this way, with the revisions that have to be forgotten for it. Called with the lock of uploads held.
    fn put(
        &self,
        new: &StoredUpload,
        if_full: IfFull,
        put: impl Fn(&ToForget) -> Result<(), StoreError>,
    ) -> Result<(), ControlError> {
        if self.fits(new)? {
            return Ok(put(&ToForget::default())?);
        }
        // No change may come between the choice of the revisions and their end.
        let _no_change = self.changing.lock(&Party::Tenant(new.tenant.clone()));
        self.settle()?;
        Ok(put(&self.to_forget(new, if_full)?)?)
    }

    fn fits(&self, new: &StoredUpload) -> Result<bool, ControlError> {
        let desired = self.desired();
        let terms = desired.tenant(&new.tenant).map(|tenant| &**tenant);
        Ok(check_upload(&self.store.uploads()?, new, terms).is_ok())
    }

    /// Returns the revisions that have to be forgotten for an upload. Called with both locks held.
    fn to_forget(&self, new: &StoredUpload, if_full: IfFull) -> Result<ToForget, ControlError> {
        let desired = self.desired();
        let terms = desired.tenant(&new.tenant).map(|tenant| &**tenant);
        let Err(shortage) = check_upload(&self.store.uploads()?, new, terms) else { return Ok(ToForget::default()) };
        if if_full == IfFull::ForgetRevisions {
            let named = desired.objects().flat_map(|object| object.uploads_of_tenant()).collect();
            let check = |uploads: &[StoredUpload]| check_upload(uploads, new, terms);
            if let Some(to_forget) = self.store.to_forget(&new.tenant, &named, SystemTime::now(), check)? {
                return Ok(to_forget);
            }
        }
        let refused = ControlError::from(shortage.refused);
        self.refused_quotas.note(&refused, &desired);
        Err(refused)
    }

    /// Forgets revisions beyond the limits, which may have changed, and removes uploads that nothing needs. Called before there are
    /// callers.
    pub(super) fn tidy_up(&self) -> Result<(), ControlError> {
        self.store.trim_history()?;
        self.collect_garbage()
    }

    /// Removes uploads that nothing needs and that are older than an hour. Waits for uploads in progress.
    pub fn collect_garbage(&self) -> Result<(), ControlError> {
        let _no_upload = self.admitting.lock(&Party::Node);
        self.remove_garbage(&Party::Node)
    }

    /// Removes it in the turn of this party. Called with the lock of uploads held.
    fn remove_garbage(&self, party: &Party) -> Result<(), ControlError> {
        let _no_change = self.changing.lock(party);
        // Before that the store may have counted wrongly what is needed.
        self.settle()?;
        self.store.collect_garbage(SystemTime::now())?;
        Ok(())
    }

    pub(super) fn module(&self, named: NamedUpload) -> Result<Module, ControlError> {
        let NamedUpload { tenant, name, digest } = named;
        match self.store.upload_size_bytes(&tenant, &digest)? {
            Some(size_bytes) => Ok(Module { tenant, name, digest, size_bytes }),
            None => Err(ControlError::NotUploaded { object: ObjectRef::Module { tenant, name }, digest }),
        }
    }

    pub(super) fn key(&self, named: NamedUpload<KeyName>) -> Result<Key, ControlError> {
        let NamedUpload { tenant, name, digest } = named;
        match self.store.key_algorithm(&tenant, &digest)? {
            Some(algorithm) => Ok(Key { tenant, name, digest, algorithm }),
            None => Err(ControlError::NotUploaded { object: ObjectRef::Key { tenant, name }, digest }),
        }
    }

    pub(super) fn model(&self, named: NamedUpload<ModelName>) -> Result<Model, ControlError> {
        let NamedUpload { tenant, name, digest } = named;
        match self.store.upload_size_bytes(&tenant, &digest)? {
            Some(size_bytes) => Ok(Model { tenant, name, digest, size_bytes }),
            None => Err(ControlError::NotUploaded { object: ObjectRef::Model { tenant, name }, digest }),
        }
    }

    /// Returns the chain with the sizes of its stages' files filled in.
    pub(super) fn chain(&self, mut chain: Chain) -> Result<Chain, ControlError> {
        let object = ObjectRef::from(&chain);
        for files in chain.stages.iter_mut().filter_map(|stage| stage.files.as_mut()) {
            match self.store.upload_size_bytes(&chain.tenant, &files.digest)? {
                Some(size_bytes) => files.size_bytes = size_bytes,
                None => return Err(ControlError::NotUploaded { object, digest: files.digest }),
            }
        }
        Ok(chain)
    }
}

//! Keys and models: objects that stages are granted, so that functions use them without reading them.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::{ChainProblem, Digest, KeyName, ModelName, Stage, TenantName};

/// The maximum number of keys of a stage, and of its models.
pub const STAGE_GRANTS_MAX: usize = 16;
/// The longest file with a private key, in bytes.
pub const PEM_BYTES_MAX: u64 = pinion_keys::PEM_BYTES_MAX as u64;
/// The largest model that may be uploaded.
pub const MODEL_BYTES_MAX: u64 = 64 << 20;

/// A private key under a name of its tenant's choice. Its bytes are in the store only, sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: KeyName,
    /// The digest of its public key: the SHA-256 of the SubjectPublicKeyInfo (RFC 5280, section 4.1).
    pub digest: Digest,
    /// Its algorithm, such as `ecdsa-p256`.
    pub algorithm: String,
}

/// A neural network: uploaded bytes under a name of their tenant's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModelName,
    /// The digest of its current bytes.
    pub digest: Digest,
    /// The number of bytes.
    pub size_bytes: u64,
}

/// Checks that no stage is granted too many keys or models, or one of them twice.
pub(super) fn check(stages: &[Stage]) -> Result<(), ChainProblem> {
    for (at, stage) in stages.iter().enumerate() {
        check_names(at + 1, "keys", &stage.keys)?;
        check_names(at + 1, "models", &stage.models)?;
    }
    Ok(())
}

fn check_names<N: Ord + fmt::Display>(stage: usize, key: &'static str, names: &[N]) -> Result<(), ChainProblem> {
    if names.len() > STAGE_GRANTS_MAX {
        return Err(ChainProblem::TooManyGranted { stage, key, count: names.len() });
    }
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        Some(name) => Err(ChainProblem::GrantedTwice { stage, key, name: name.to_string() }),
        None => Ok(()),
    }
}

//! A desired state in one file: for backups, and for bringing it to another node's store.
//!
//! ```text
//!   FILE, a tar archive
//!     manifest.toml     the objects, uploads and keys, each by its digest
//!     blobs/HEX         the bytes with the SHA-256 HEX: a pinion.v1.Object, an upload, or a sealed key
//! ```
//!
//! Keys are in there as the store has them: sealed. No file has a private key in the clear, and the node that uses them needs the same
//! secret. Revisions, uploads that nothing names, and what is set aside are not in there.

mod export;
mod import;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::export::export;
pub use self::import::import;
use super::StoreError;
use crate::document::Fault;

/// The value of the key `version`.
const VERSION: &str = "pinion.store.v1";
/// The name of the first entry.
const MANIFEST: &str = "manifest.toml";
/// The folder of all others.
const BLOBS: &str = "blobs/";

/// Why a desired state cannot be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// A file or its folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file that is to be made is there.
    #[error("{} exists, and is not replaced: give another path, or move it away", .0.display())]
    Exists(PathBuf),
    /// The archive is none of an export, or is damaged.
    #[error("{}: this is no archive of pinion store export, or it is damaged: {problem}", path.display())]
    Wrong {
        /// The archive.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was exported or imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transferred {
    /// How many objects.
    pub objects: u64,
    /// How many uploads.
    pub uploads: u64,
    /// How many keys, sealed.
    pub keys: u64,
    /// Sentences about objects that cannot stand, and were left out.
    pub left_out: Vec<String>,
}

/// The first entry.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: String,
    /// The version of the exported state. An imported one begins anew.
    desired_version: u64,
    #[serde(default)]
    object: Vec<ObjectEntry>,
    #[serde(default)]
    upload: Vec<UploadEntry>,
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectEntry {
    kind: String,
    tenant: String,
    name: String,
    digest: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadEntry {
    tenant: String,
    digest: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    tenant: String,
    /// Of the public key.
    digest: String,
    algorithm: String,
    /// The digest of the sealed key.
    sealed: String,
}

fn fault_sentence(text: &str, Fault { span, problem }: &Fault) -> String {
    format!("{MANIFEST}:{}: {problem}", crate::document::line_of(text, span.start))
}

/// Returns the folder that a file is in, or is to be in.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns why a file could not be made.
fn not_made(path: &Path, source: io::Error) -> ArchiveError {
    match source.kind() {
        io::ErrorKind::AlreadyExists => ArchiveError::Exists(path.to_owned()),
        _ => ArchiveError::File { path: path.to_owned(), source },
    }
}

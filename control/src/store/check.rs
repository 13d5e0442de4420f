//! Checks a store while no node has it open, and changes nothing.

use std::collections::BTreeSet;
use std::path::Path;

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::contents::{CONTENTS, Damage, object_of};
use super::counts::Counts;
use super::history::HISTORY;
use super::intact::{Intact, Unfit};
use super::{BLOBS, Quarantined, SEALED, Store, StoreError, UPLOADS};
use crate::model::{Digest, Object, quoted};

/// What a store has, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCheck {
    /// The version of the desired state.
    pub version: u64,
    /// How many objects the desired state has.
    pub objects: u64,
    /// How many parts of revisions there are, one for each tenant that a revision touched.
    pub revisions: u64,
    /// How many uploads of tenants there are, without keys.
    pub uploads: u64,
    /// Sentences about what is wrong. None: the store is whole.
    pub findings: Vec<String>,
    /// What an earlier start has set aside. That is no finding.
    pub quarantined: Vec<Quarantined>,
}

/// Checks the store in this file: the database, each content and upload, revisions, and all counts.
///
/// # Errors
/// The file cannot be opened, is in use by a node, is no store of this format, or is damaged as a whole.
pub fn check(path: &Path) -> Result<StoreCheck, StoreError> {
    let store = Store::open_offline(path)?;
    let quarantined = store.quarantine()?;
    store.opened.read(|read| {
        let intact = Intact::read(&store, read)?;
        let mut findings = Vec::new();
        if store.opened.was_repaired() {
            findings.push("the database was not sound; a node that opens it repairs it".to_owned());
        }
        let unfit = |Unfit { key, reason, .. }: &Unfit| {
            format!("{key}: {reason}: the next start sets it aside; apply it again then")
        };
        findings.extend(intact.unfit.iter().map(unfit));
        findings.extend(damaged_contents(&store, read, &intact)?);
        let uploads = check_uploads(&store, read, &mut findings)?;
        check_needed(&store, read, &intact, &mut findings)?;
        findings.extend(check_counts(&store, read)?);
        let state = &intact.state;
        Ok(StoreCheck {
            version: state.version(),
            objects: state.objects().count() as u64,
            revisions: read.open_table(HISTORY).map_err(|e| store.failed(e))?.len().map_err(|e| store.failed(e))?,
            uploads,
            findings,
            quarantined: quarantined.clone(),
        })
    })
}

/// Returns a sentence for each damaged content that only revisions have.
fn damaged_contents(store: &Store, read: &ReadTransaction, intact: &Intact) -> Result<Vec<String>, StoreError> {
    let mut findings = Vec::new();
    let of_objects: BTreeSet<Digest> = intact.unfit.iter().map(|unfit| unfit.digest).collect();
    for entry in read.open_table(CONTENTS).map_err(|e| store.failed(e))?.iter().map_err(|e| store.failed(e))? {
        let (digest, bytes) = entry.map_err(|e| store.failed(e))?;
        let digest = Digest::from_bytes(*digest.value());
        if of_objects.contains(&digest) {
            continue;
        }
        if let Err(Damage(reason)) = object_of(&digest, bytes.value()) {
            findings.push(format!("an object of a revision ({digest}): {reason}: it cannot be shown or returned to"));
        }
    }
    Ok(findings)
}

/// Checks the bytes of all uploads, and returns how many there are.
fn check_uploads(store: &Store, read: &ReadTransaction, findings: &mut Vec<String>) -> Result<u64, StoreError> {
    let uploads = read.open_table(UPLOADS).map_err(|e| store.failed(e))?;
    let blobs = read.open_table(BLOBS).map_err(|e| store.failed(e))?;
    for entry in uploads.iter().map_err(|e| store.failed(e))? {
        let (key, value) = entry.map_err(|e| store.failed(e))?;
        let ((tenant, digest), (_, size_bytes)) = (key.value(), value.value());
        let digest = Digest::from_bytes(*digest);
        let bytes = blobs.get(digest.as_bytes()).map_err(|e| store.failed(e))?;
        let problem = match bytes {
            None => "its bytes are missing",
            Some(bytes) if Digest::of(bytes.value()) != digest => "its bytes are damaged",
            Some(bytes) if bytes.value().len() as u64 != size_bytes => "its size is wrong",
            Some(_) => continue,
        };
        findings.push(format!("upload {digest} of tenant {}: {problem}: upload it again", quoted(tenant)));
    }
    uploads.len().map_err(|e| store.failed(e))
}

/// Checks that the store has the uploads and keys that the desired state needs.
fn check_needed(
    store: &Store,
    read: &ReadTransaction,
    intact: &Intact,
    findings: &mut Vec<String>,
) -> Result<(), StoreError> {
    let uploads = read.open_table(UPLOADS).map_err(|e| store.failed(e))?;
    let keys = read.open_table(SEALED).map_err(|e| store.failed(e))?;
    for object in intact.state.objects() {
        let name = object.name();
        for (digest, _) in object.uploads() {
            let key = (name.tenant().as_str(), digest.as_bytes());
            let is_there = match object.object {
                Object::Key(_) => keys.get(key).map_err(|e| store.failed(e))?.is_some(),
                _ => uploads.get(key).map_err(|e| store.failed(e))?.is_some(),
            };
            if !is_there {
                findings.push(format!("{name}: its tenant's upload {digest} is missing: upload it again"));
            }
        }
    }
    Ok(())
}

/// Returns a sentence for each kind of count that is not what follows from objects and revisions.
fn check_counts(store: &Store, read: &ReadTransaction) -> Result<Vec<String>, StoreError> {
    let (expected, stored) = (Counts::expected(store, read)?, Counts::stored(store, read)?);
    let torn = expected.torn.iter().map(|(tenant, number)| {
        let tenant = quoted(tenant);
        format!("revision {number} of tenant {tenant} cannot be read: the next start forgets it and those before it")
    });
    let mut findings: Vec<String> = torn.collect();
    let revisions_differ =
        expected.order != stored.order || expected.shares != stored.shares || expected.totals != stored.totals;
    for (what, differs) in [
        ("the list of contents", expected.contents != stored.contents),
        ("the reference counts of contents", expected.references != stored.references),
        ("the counts of what needs uploads", expected.needs != stored.needs),
        ("the order and totals of revisions", revisions_differ && expected.torn.is_empty()),
    ] {
        if differs {
            findings.push(format!("{what}: not what follows from objects and revisions; the next start mends it"));
        }
    }
    Ok(findings)
}

//! `pinion store`: checks, exports and imports the stores of nodes that are stopped.

use std::path::Path;

use pinion_control::store::archive::{self, ArchiveError, Transferred};
use pinion_control::store::{self, Quarantined, StoreCheck, StoreError};
use serde::Serialize;

use crate::args::{Format, StoreCommand};
use crate::output::{self, printable};

/// Something is wrong with a store or an archive, and was shown. The exit status tells of it.
#[derive(Debug, thiserror::Error)]
#[error("the store is not whole")]
pub(crate) struct NotWhole;

/// What a check has found.
#[derive(Debug, Serialize)]
struct Report<'a> {
    is_whole: bool,
    version: u64,
    objects: u64,
    uploads: u64,
    revisions: u64,
    findings: &'a [String],
    /// What an earlier start of the node has set aside.
    quarantine: Vec<String>,
}

/// Executes the command.
pub(super) fn run(command: StoreCommand, format: Format) -> anyhow::Result<()> {
    match command {
        StoreCommand::Check { store } => check(&store, format),
        StoreCommand::Export { store, file } => {
            transferred(&archive::export(&store, &file)?, &file, "exported", format)
        }
        StoreCommand::Import { file, store } => {
            transferred(&archive::import(&file, &store)?, &store, "imported", format)
        }
    }
}

/// Returns whether an error tells of what is in a store or an archive, so that a retry does not help.
pub(crate) fn is_bad_content(error: &anyhow::Error) -> bool {
    use StoreError::{Damaged, DamagedObject, Foreign, Lost, OtherFormat};
    let is_bad = |error: &StoreError| {
        matches!(error, Damaged { .. } | DamagedObject { .. } | Foreign { .. } | Lost { .. } | OtherFormat { .. })
    };
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ArchiveError::Store(error)), _) | (_, Some(error)) => is_bad(error),
        (Some(ArchiveError::Wrong { .. } | ArchiveError::Exists(_)), _) => true,
        _ => false,
    }
}

fn check(path: &Path, format: Format) -> anyhow::Result<()> {
    let StoreCheck { version, objects, revisions, uploads, findings, quarantined, .. } = store::check(path)?;
    let set_aside = |it: &Quarantined| format!("{}: {}", it.object, it.reason);
    let quarantine: Vec<String> = quarantined.iter().map(set_aside).collect();
    let is_whole = findings.is_empty();
    match format {
        Format::Json => {
            output::json(&Report { is_whole, version, objects, uploads, revisions, findings: &findings, quarantine })?;
        }
        Format::Table => {
            findings.iter().try_for_each(|finding| output::print(&printable(finding)))?;
            quarantine.iter().try_for_each(|it| output::print(&printable(&format!("set aside before: {it}"))))?;
            let counts = format!("version {version}, {objects} objects, {uploads} uploads, {revisions} revisions");
            let verdict =
                if is_whole { "the store is whole".to_owned() } else { format!("{} findings", findings.len()) };
            output::print(&format!("{verdict}: {counts}"))?;
        }
    }
    if is_whole { Ok(()) } else { Err(NotWhole.into()) }
}

fn transferred(transferred: &Transferred, to: &Path, done: &str, format: Format) -> anyhow::Result<()> {
    let Transferred { objects, uploads, keys, left_out } = transferred;
    for object in left_out {
        output::say(&printable(&format!("warning: left out: {object}")));
    }
    if *keys > 0 {
        output::say("keys are sealed as before: a node needs the same secret (keys.secret) to use them");
    }
    match format {
        Format::Json => output::json(transferred),
        Format::Table => {
            let to = printable(&to.display().to_string());
            output::print(&format!("{objects} objects, {uploads} uploads and {keys} sealed keys {done} to {to}"))
        }
    }
}

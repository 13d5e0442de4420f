//! `pinion edit`: opens an object in an editor as a manifest, and applies what is saved.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::Context;
use pinion_control::client::ClientError;
use pinion_control::control::{ChangeOptions, Changed};
use pinion_control::manifest::Bundle;
use pinion_control::model::{Labelling, ObjectRef, TenantName};
use tempfile::TempPath;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::{BadInput, Done, apply, delete, get, print_changed, progress, rollout, wait};
use crate::args::{Format, Kind, Terms, Waiting, one};
use crate::contexts::Target;
use crate::output;

/// The variables that name an editor, the first that is set first, and the editor if none is.
const VARIABLES: [&str; 3] = ["PINION_EDITOR", "VISUAL", "EDITOR"];
const EDITOR: &str = "vi";

/// How the first of the two comment lines at the top begins: of the object, and of one that was refused.
const HEAD: &str = "# This is ";
const REFUSED: &str = "# Refused, so nothing is changed yet: ";
/// The second lines of the comments at the top: of what is opened first, and of what was refused.
const SECOND_LINES: [&str; 2] = [
    "# tenant meanwhile. A file that is saved unchanged or empty changes nothing.",
    "# Correct it, or save the file as it is or empty to give up: it is kept as it was refused then.",
];

/// The editor did not end well. Nothing is changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "the editor {editor:?} has failed ({status}), so nothing is changed: PINION_EDITOR, VISUAL or EDITOR names another one"
)]
struct EditorFailed {
    editor: String,
    status: ExitStatus,
}

pub(super) async fn run(target: &Target, words: &[String], waiting: Waiting, format: Format) -> anyhow::Result<()> {
    let tenant = target.tenant_or(None);
    let (kind, name) = one(words, &Kind::OF_MANIFESTS).map_err(BadInput::from)?;
    let edited = delete::object(kind, name.clone(), &tenant)?;
    let mut client = target.connect().await?;
    // Read before the object: a change in between is a later revision.
    let read = wait::latest_revision(&mut client, edited.tenant()).await?;
    let text = format!("{}{}", head(&edited), get::manifest(&mut client, kind, name, &tenant).await?);
    // A node ends a connection that is idle for long.
    drop(client);
    let file = written(&text)?;
    let (mut shown, mut refused): (String, Option<anyhow::Error>) = (text.clone(), None);
    let changed = loop {
        let saved = match open_in_editor(&file).await {
            Ok(()) => fs::read_to_string(&file).with_context(|| file.display().to_string()),
            Err(failed) => Err(failed),
        };
        let saved = match saved {
            Ok(saved) => saved,
            Err(failed) if fs::read_to_string(&file).is_ok_and(|saved| saved == text) => return Err(failed),
            Err(failed) => return Err(kept(file, failed)?),
        };
        if let Some(problem) = refused.take_if(|_| saved == shown || is_empty(&saved)) {
            // What was refused is not lost with a file that was emptied since.
            let _ = replace(&file, &shown);
            return Err(kept(file, problem)?);
        }
        if saved == shown || is_empty(&saved) {
            return unchanged(&edited, read, format);
        }
        match apply_file(target, &edited, &file, read).await {
            Ok(changed) => break changed,
            Err(problem) if io::stdin().is_terminal() && is_correctable(&problem) => {
                shown = with_problem(&saved, &problem);
                if replace(&file, &shown).is_err() {
                    return Err(kept(file, problem)?);
                }
                refused = Some(problem);
            }
            Err(problem) => return Err(kept(file, problem)?),
        }
    };
    print_changed(&changed, Done::Really, format)?;
    let terms = Terms { dry_run: false, expected_revision: None };
    let mut client = target.connect().await?;
    let waited = rollout::wait_for(&mut client, &changed, terms, waiting);
    unless_interrupted(waited, "interrupted: the change is made, and perhaps not in force yet").await
}

/// Tells that nothing was changed.
fn unchanged(edited: &ObjectRef, read: u64, format: Format) -> anyhow::Result<()> {
    output::say(&format!("No changes: {edited} is as it was."));
    match format {
        Format::Json => output::json(&Changed { version: read, outcomes: Vec::new() }),
        Format::Table => Ok(()),
    }
}

/// Returns the comment at the top of the file.
fn head(edited: &ObjectRef) -> String {
    format!(
        "{HEAD}{edited}. What you save is applied when the editor ends, unless a later revision has changed something of the\n{}\n\n",
        SECOND_LINES[0]
    )
}

/// Writes the text into a new file, which only its owner may read.
fn written(text: &str) -> anyhow::Result<TempPath> {
    let mut file = tempfile::Builder::new().prefix("pinion-edit-").suffix(".toml").tempfile()?;
    file.write_all(text.as_bytes())?;
    Ok(file.into_temp_path())
}

/// Replaces the text of the file as a whole, so that there is no time at which it has neither.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    Ok(written(text)?.persist(file)?)
}

/// Returns what was saved with the problem in place of the comment at the top, so that the lines keep their numbers.
fn with_problem(saved: &str, problem: &anyhow::Error) -> String {
    let (first, others) = saved.split_once('\n').unwrap_or((saved, ""));
    let (second, rest) = others.split_once('\n').unwrap_or((others, ""));
    let has_comment = (first.starts_with(HEAD) || first.starts_with(REFUSED)) && SECOND_LINES.contains(&second);
    let rest = if has_comment { rest } else { saved };
    let problem = output::error(problem).split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{REFUSED}{problem}\n{}\n{rest}", SECOND_LINES[1])
}

/// Returns whether another text may not be refused. One that came too late is refused whatever it is.
fn is_correctable(problem: &anyhow::Error) -> bool {
    let of_node = problem.chain().find_map(|cause| cause.downcast_ref()).map(ClientError::code);
    crate::exit_code(problem) == crate::BAD_INPUT && of_node != Some("ABORTED")
}

/// Keeps the file, and returns the error with its path.
fn kept(file: TempPath, error: anyhow::Error) -> anyhow::Result<anyhow::Error> {
    let path = file.keep()?;
    Ok(error.context(format!("what you saved is kept in {}", path.display())))
}

/// Returns whether there is nothing but comments.
fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Waits until the editor has ended.
async fn open_in_editor(file: &Path) -> anyhow::Result<()> {
    let mut named = VARIABLES.iter().filter_map(|name| std::env::var(name).ok());
    let editor = named.find(|editor| !editor.trim().is_empty()).unwrap_or_else(|| EDITOR.to_owned());
    // Ctrl-C in a terminal is the editor's own.
    let _interrupts = signal(SignalKind::interrupt())?;
    // A variable may have options as well as the program, as a shell reads them.
    let command_line = format!("{editor} \"$1\"");
    let status = Command::new("sh").args(["-c", &command_line, "sh"]).arg(file).status().await?;
    if status.success() { Ok(()) } else { Err(EditorFailed { editor, status }.into()) }
}

/// Applies what is saved, if it is the edited object and there is no later revision of its tenant than that which was read.
async fn apply_file(target: &Target, edited: &ObjectRef, file: &Path, read: u64) -> anyhow::Result<Changed> {
    let bundle = Bundle::read_for(&owner(target, edited), &[PathBuf::from(file)])?;
    let objects = bundle.objects();
    if objects != [edited.clone()] {
        let found = objects.iter().map(ToString::to_string).reduce(|all, object| format!("{all}, {object}"));
        let found = found.unwrap_or_else(|| "nothing".to_owned());
        return Err(BadInput::EditsOthers { edited: edited.clone(), found }.into());
    }
    let contents = bundle.load()?;
    // The label that was saved is the one that is meant.
    let labelling = Labelling { label: contents.label.clone(), take_over: true, ..Labelling::default() };
    let options = ChangeOptions { expected_revision: Some(read), dry_run: false };
    let work = apply::apply(target.connect().await?, contents, labelling, options);
    let shown = progress::shown_during(&target.address, work);
    unless_interrupted(shown, "interrupted: pinion history tells whether the change is made").await
}

/// Runs the work until Ctrl-C, which does not end the process any more once an editor ran.
async fn unless_interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    interrupted: &'static str,
) -> anyhow::Result<T> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    tokio::select! {
        done = work => done,
        _ = interrupts.recv() => anyhow::bail!(interrupted),
    }
}

/// Returns the owner of objects whose manifest names none.
fn owner(target: &Target, edited: &ObjectRef) -> TenantName {
    match edited {
        ObjectRef::Tenant { .. } => target.tenant_or(None),
        object => object.tenant().clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_comments_and_empty_lines_is_empty() {
        for text in ["", "\n", "# chain = 1\n  \n  # x"] {
            assert!(is_empty(text), "{text:?}");
        }
        assert!(!is_empty("# head\nversion = \"pinion.v1\"\n"));
    }

    #[test]
    fn a_problem_takes_the_place_of_the_comment_and_lines_keep_their_numbers() {
        let rest = "\nversion = \"pinion.v1\"\n";
        let edited = ObjectRef::Chain { tenant: "demo".parse().unwrap(), name: "echo".parse().unwrap() };
        let first = format!("{}{}", head(&edited), &rest[1..]);
        let once = with_problem(&first, &anyhow::anyhow!("this\nis wrong"));
        assert!(once.starts_with("# Refused, so nothing is changed yet: error: this is wrong\n# Correct it"), "{once}");
        let twice = with_problem(&once, &anyhow::anyhow!("that"));
        for text in [&first, &once, &twice] {
            assert!(text.ends_with(rest), "{text}");
            assert_eq!(text.lines().count(), 4, "{text}");
        }
        assert!(with_problem(rest, &anyhow::anyhow!("that")).ends_with(rest));
    }
}

//! `report`: what was measured, as a page with a plot per figure, and as the table of docs/performance.md.
//!
//! Reads the JSON that the other subcommands wrote, `NAME.json` in one folder; never measures anything. A figure that was not
//! measured is left out of both.

mod page;
mod plot;
mod results;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use self::results::{FIGURES, Results};

/// Makes a page, and the table of docs/performance.md, of what was measured
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder with the figures' JSON, each named after its subcommand
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// The page to write: one file that needs no other
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The text whose table of results to replace, between its two marker comments
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Writes what the options ask for.
pub(crate) fn write(options: &Options) -> anyhow::Result<()> {
    let all = read_all(&options.from)?;
    if let Some(path) = &options.html {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(path, page::page(&all)?).with_context(|| path.display().to_string())?;
        eprintln!("report: {}", path.display());
    }
    if let Some(path) = &options.table {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let text = table::with_table(&text, &all).with_context(|| path.display().to_string())?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
        eprintln!("report: the table in {}", path.display());
    }
    Ok(())
}

fn read_all(folder: &Path) -> anyhow::Result<Vec<Results>> {
    let mut all = Vec::new();
    for figure in FIGURES {
        let path = folder.join(figure.name).with_extension("json");
        if !path.exists() {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let json: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        all.push((figure.read)(json).with_context(|| path.display().to_string())?);
    }
    ensure!(!all.is_empty(), "there are no figures in {}: `make bench` measures them", folder.display());
    Ok(all)
}

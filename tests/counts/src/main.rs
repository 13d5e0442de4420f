//! `make counts`: what each step of a packet's way costs, in instructions and simulated cache misses, so that the same code has the same
//! figures on any machine.
//!
//! ```text
//!   pinion-counts            builds templates natively, runs itself under valgrind, compares with figures.toml
//!     `-- valgrind --tool=callgrind pinion-counts measure     one dump for each scene
//! ```
//!
//! A figure is a mean over many repetitions on one thread, with fixed inputs; nothing of the set-up is counted. Caches are simulated with
//! sizes that are given, not the machine's. Valgrind has no room for reservations of 4 GiB, so engines here reserve a few MiB for each
//! linear memory; guests' memory accesses are therefore bounds-checked, which they are not on a node. Native code is compiled for the
//! oldest processors of the architecture, not for the machine's.
#![deny(unsafe_code)]

mod dump;
mod figures;
mod node;
mod scenes;
mod valgrind;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use pinion_runtime::memory::allocator::Allocator;
use pinion_tests::machine::versions::{commit, first_line};
use serde_json::json;

use self::figures::{COMPILER, Figures};

/// The node's.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The instruction cache, the data cache and the last-level one: bytes, ways, bytes of a line. A line can lie anywhere in the data cache,
/// so what misses depends on how many other lines were used since, not on which addresses the heap happened to give.
const I1: &str = "32768,8,64";
const D1: &str = "32768,512,64";
const LL: &str = "8388608,16,64";

/// Measures what steps of a packet's way cost, in instructions and simulated cache misses: a table on standard error, JSON on standard
/// output
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Measure>,
    /// The file of figures to compare with
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/figures.toml"))]
    figures: PathBuf,
    /// Keeps callgrind's dumps in this folder, for callgrind_annotate
    #[arg(long, value_name = "FOLDER")]
    dumps: Option<PathBuf>,
    /// Writes what was counted to the file instead of comparing
    #[arg(long)]
    accept: bool,
}

#[derive(Subcommand)]
enum Measure {
    /// Runs the scenes; to be started under valgrind
    Measure {
        /// The folder with the templates
        templates: PathBuf,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Measure::Measure { templates }) = arguments.command {
        ensure!(valgrind::is_running(), "this counts nothing outside valgrind: run `make counts`");
        scenes::run_all(&templates);
        return Ok(ExitCode::SUCCESS);
    }
    let templates = tempfile::tempdir().context("a folder for templates")?;
    let temporary = tempfile::tempdir().context("a folder for dumps")?;
    let dumps = arguments.dumps.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(dumps).with_context(|| dumps.display().to_string())?;
    node::build_templates(templates.path())?;
    run_under_valgrind(templates.path(), dumps)?;
    let counted = Figures::of(&dump::read_all(dumps)?);
    if arguments.accept {
        counted.write(&arguments.figures)?;
    }
    let kept = Figures::read(&arguments.figures)?;
    let rows = counted.rows(&kept);
    eprint!("{}", figures::table(&rows));
    println!("{}", serde_json::to_string_pretty(&json!({ "env": env()?, "rows": rows }))?);
    let faults = counted.faults(&kept);
    for fault in &faults {
        eprintln!("error: {fault}");
    }
    eprintln!("counts: {} figures, {} above their bound", counted.len(), faults.len());
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the figures depend on.
fn env() -> anyhow::Result<serde_json::Value> {
    Ok(json!({
        "figure": "counts",
        "machine": std::env::consts::ARCH,
        "commit": commit(),
        "rustc": COMPILER,
        "valgrind": first_line(Command::new("valgrind").arg("--version")).map_err(anyhow::Error::msg)?,
        "l1": D1,
        "ll": LL,
    }))
}

fn run_under_valgrind(templates: &Path, dumps: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--cache-sim=yes", "--instr-atstart=no", "--collect-atstart=no"])
        // What many processors have; given, so that the machine's own do not matter.
        .args([format!("--I1={I1}"), format!("--D1={D1}"), format!("--LL={LL}")])
        .arg(format!("--callgrind-out-file={}/dump", dumps.display()))
        .arg(&program)
        .arg("measure")
        .arg(templates)
        // What lies on the stack from the environment on would move all that follows.
        .env_clear()
        // The same code in the C library on every processor.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX,-ERMS,-FSRM");
    let status = command.status().context("valgrind cannot be started: `tests/setup/install.sh test` installs it")?;
    ensure!(status.success(), "the scenes ended with {status}");
    Ok(())
}

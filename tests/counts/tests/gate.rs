//! The gate: what is counted now against the figures in the repository.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

fn counts(figures: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion-counts"));
    command.arg("--figures").arg(figures).output().expect("the program starts")
}

fn figures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/figures.toml"))
}

#[test]
fn no_step_costs_more_than_its_figure() {
    let output = counts(figures());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_step_that_costs_two_per_cent_more_than_its_figure_fails_the_gate_by_name() {
    const STEP: &str = "turn_1";
    let text = std::fs::read_to_string(figures()).expect("the figures");
    let mut table: toml::Table = text.parse().expect("TOML");
    let instructions = &mut table["figure"][STEP]["instructions"];
    *instructions = (instructions.as_float().expect("a number") / 1.02).into();
    let folder = tempfile::tempdir().expect("a folder");
    let cheaper = folder.path().join("figures.toml");
    std::fs::write(&cheaper, table.to_string()).expect("room for a file");
    let output = counts(&cheaper);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("error: {STEP}: ")), "{error}");
    assert_eq!(error.matches("error: ").count(), 1, "{error}");
}

//! Figures: what was counted for one repetition of each scene, and the file that they are compared with.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::dump::Counted;

/// How far above its figure in the file a count may be, in parts of a hundred.
const TOLERANCE_PERCENT: f64 = 1.0;
/// The same, if another compiler wrote the code than that of the file.
const TOLERANCE_OTHER_COMPILER_PERCENT: f64 = 10.0;
/// What is no more than rounding, in instructions.
const SLACK_INSTRUCTIONS: f64 = 0.5;
/// Simulated misses depend on where the heap places things, on the random keys of hash tables, and on how long the simulation takes, as a
/// worker prefetches what a pause leaves time for. Between runs of one program they differ by some lines, so they have a wider bound: in
/// parts of a hundred, and this many lines more.
const TOLERANCE_LINES_PERCENT: f64 = 10.0;
const SLACK_LINES: f64 = 6.0;
/// The compiler of this program, and so of what it counts.
const COMPILER: &str = env!("PINION_COUNTS_RUSTC");

/// What one repetition of a scene costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) instructions: f64,
    pub(crate) lines_missed: f64,
    /// Of the instructions, those of the guest's code, and the engine's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) guest: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) engine: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Figures by the names of their scenes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figures {
    /// The compiler of the code that was counted.
    compiler: String,
    figure: BTreeMap<String, Figure>,
}

impl Figures {
    /// The means of what was counted, to a tenth.
    pub(crate) fn of(counted: &BTreeMap<String, Counted>, repetitions: &BTreeMap<&str, u64>) -> Self {
        let figure = |(name, counted): (&String, &Counted)| {
            let count = *repetitions.get(name.as_str())? as f64;
            let mean = |sum: u64| (sum as f64 / count * 10.0).round() / 10.0;
            let Counted { instructions, lines_missed, guest, engine } = *counted;
            let figure = Figure {
                instructions: mean(instructions),
                lines_missed: mean(lines_missed),
                guest: mean(guest),
                engine: mean(engine),
            };
            Some((name.clone(), figure))
        };
        Self { compiler: COMPILER.to_owned(), figure: counted.iter().filter_map(figure).collect() }
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let head = "# What `make counts` compares with: for one repetition, instructions, and lines of 64 bytes that were not in a first-level\n\
            # data cache of 32 KiB. A figure that rises is a commit that says why: `make counts ACCEPT=yes` writes this file.\n\n";
        fs::write(path, format!("{head}{}", toml::to_string(self)?)).with_context(|| path.display().to_string())
    }

    pub(crate) fn len(&self) -> usize {
        self.figure.len()
    }

    /// Which figures are too far above those expected, and which are missing on either side, a sentence each.
    pub(crate) fn faults(&self, expected: &Self) -> Vec<String> {
        let is_same = self.compiler == expected.compiler;
        let percent = if is_same { TOLERANCE_PERCENT } else { TOLERANCE_OTHER_COMPILER_PERCENT };
        let mut faults = Vec::new();
        for (name, expected) in &expected.figure {
            let Some(counted) = self.figure.get(name) else {
                faults.push(format!("{name}: not counted, but in the file of figures"));
                continue;
            };
            for (what, counted, expected, percent, slack) in [
                ("instructions", counted.instructions, expected.instructions, percent, SLACK_INSTRUCTIONS),
                ("lines missed", counted.lines_missed, expected.lines_missed, TOLERANCE_LINES_PERCENT, SLACK_LINES),
            ] {
                let bound = expected * (1.0 + percent / 100.0) + slack;
                if counted > bound {
                    faults.push(format!(
                        "{name}: {counted:.1} {what}, {expected:.1} in the file: find what added them, or raise the figure in a commit \
                         that says why (`make counts ACCEPT=yes`)"
                    ));
                }
            }
        }
        let unknown = self.figure.keys().filter(|name| !expected.figure.contains_key(*name));
        faults.extend(unknown.map(|name| format!("{name}: not in the file of figures (`make counts ACCEPT=yes`)")));
        faults
    }

    /// A row for each, with what is expected.
    pub(crate) fn table(&self, expected: Option<&Self>) -> String {
        let mut table = format!(
            "{:<44} {:>12} {:>9} {:>9} {:>9} {:>12}\n",
            "one repetition of", "instructions", "guest", "engine", "lines", "in the file"
        );
        for (name, figure) in &self.figure {
            let Figure { instructions, lines_missed, guest, engine } = figure;
            let before = expected
                .and_then(|expected| expected.figure.get(name))
                .map(|figure| format!("{:.1}", figure.instructions));
            let before = before.unwrap_or_default();
            writeln!(
                table,
                "{name:<44} {instructions:>12.1} {guest:>9.1} {engine:>9.1} {lines_missed:>9.1} {before:>12}"
            )
            .expect("memory takes all");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(instructions: f64, lines_missed: f64) -> Figures {
        let figure = Figure { instructions, lines_missed, guest: 0.0, engine: 0.0 };
        Figures { compiler: "a".to_owned(), figure: BTreeMap::from([("turn".to_owned(), figure)]) }
    }

    #[test]
    fn a_figure_that_is_a_hundredth_above_the_file_is_a_fault_and_is_named() {
        let expected = figures(2700.0, 60.0);
        assert_eq!(figures(2727.0, 72.0).faults(&expected), Vec::<String>::new());
        assert!(
            figures(2729.0, 60.0).faults(&expected)[0].starts_with("turn: 2729.0 instructions, 2700.0 in the file")
        );
        assert!(figures(2000.0, 73.0).faults(&expected)[0].starts_with("turn: 73.0 lines missed, 60.0 in the file"));
        assert!(figures(1.0, 1.0).faults(&expected).is_empty(), "less is no fault");
    }

    #[test]
    fn code_by_another_compiler_may_be_a_tenth_above_the_file() {
        let expected = Figures { compiler: "b".to_owned(), ..figures(2700.0, 60.0) };
        assert_eq!(figures(2970.0, 60.0).faults(&expected), Vec::<String>::new());
        assert!(!figures(2972.0, 60.0).faults(&expected).is_empty());
    }

    #[test]
    fn a_figure_on_one_side_only_is_a_fault() {
        assert!(figures(1.0, 1.0).faults(&Figures::default())[0].contains("not in the file"));
        assert!(Figures::default().faults(&figures(1.0, 1.0))[0].contains("not counted"));
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures.toml");
        figures(2.5, 1.0).write(&path).unwrap();
        assert!(figures(2.5, 1.0).faults(&Figures::read(&path).unwrap()).is_empty());
    }
}

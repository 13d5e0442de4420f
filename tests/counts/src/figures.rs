//! Figures: what was counted for one repetition of each scene, and the file that they are compared with.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::dump::Counted;
use crate::scenes::{self, Scene};

/// How far above its figure in the file a count may be, in parts of a hundred.
const TOLERANCE_PERCENT: f64 = 1.0;
/// The same, if another compiler wrote the code than that of the file.
const TOLERANCE_OTHER_COMPILER_PERCENT: f64 = 10.0;
/// What is no more than rounding, in instructions.
const SLACK_INSTRUCTIONS: f64 = 0.5;
/// Simulated misses depend on how the heap places things within lines, on the random keys of hash tables, and on how long the simulation
/// takes, as a worker prefetches what a pause leaves time for. Between runs of one program they differ by a line or two, so they have a
/// wider bound: in parts of a hundred, and this many lines more.
const TOLERANCE_LINES_PERCENT: f64 = 5.0;
const SLACK_LINES: f64 = 3.0;
const HEAD: &str = "# What `make counts` compares with: for one step, instructions, and lines of 64 bytes that were not in a first-level data cache\n\
    # of 32 KiB and one set (l1_misses) or in none (ll_misses). A figure that rises is a commit that says why: `make counts ACCEPT=yes` writes this file.\n\n";
/// The compiler of this program, and so of what it counts.
pub(crate) const COMPILER: &str = env!("PINION_COUNTS_RUSTC");

/// What one step of a scene costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) instructions: f64,
    /// Lines of 64 bytes that were not in the first-level data cache, and in none at all.
    pub(crate) l1_misses: f64,
    pub(crate) ll_misses: f64,
    /// Of the instructions, those of the guest's code, and the engine's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) guest_instructions: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) engine_instructions: f64,
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
    pub(crate) fn of(counted: &BTreeMap<String, Counted>) -> Self {
        let steps = scenes::steps();
        let figure = |(name, counted): (&String, &Counted)| {
            let steps = *steps.get(name.as_str())? as f64;
            let mean = |sum: u64| (sum as f64 / steps * 10.0).round() / 10.0;
            let Counted { instructions, l1_misses, ll_misses, guest, engine } = *counted;
            let is_guest = scenes::all().any(|scene| scene.name == name && scene.part == scenes::GUEST);
            let figure = if is_guest {
                Figure { instructions: mean(guest), ..Figure::default() }
            } else {
                Figure {
                    instructions: mean(instructions),
                    l1_misses: mean(l1_misses),
                    ll_misses: mean(ll_misses),
                    guest_instructions: mean(guest),
                    engine_instructions: mean(engine),
                }
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
        fs::write(path, format!("{HEAD}{}", toml::to_string(self)?)).with_context(|| path.display().to_string())
    }

    pub(crate) fn len(&self) -> usize {
        self.figure.len()
    }

    /// Which figures are too far above those kept, and which are missing on either side, a sentence each.
    pub(crate) fn faults(&self, kept: &Self) -> Vec<String> {
        let is_same = self.compiler == kept.compiler;
        let percent = if is_same { TOLERANCE_PERCENT } else { TOLERANCE_OTHER_COMPILER_PERCENT };
        let mut faults = Vec::new();
        for (name, kept) in &kept.figure {
            let Some(counted) = self.figure.get(name) else {
                faults.push(format!("{name}: not counted, but in the file of figures"));
                continue;
            };
            for (what, counted, kept, percent, slack) in [
                ("instructions", counted.instructions, kept.instructions, percent, SLACK_INSTRUCTIONS),
                ("l1_misses", counted.l1_misses, kept.l1_misses, TOLERANCE_LINES_PERCENT, SLACK_LINES),
            ] {
                let bound = kept * (1.0 + percent / 100.0) + slack;
                if counted > bound {
                    faults.push(format!(
                        "{name}: {counted:.1} {what}, {kept:.1} in the file: find what added them, or raise the figure in a commit \
                         that says why (`make counts ACCEPT=yes`)"
                    ));
                }
            }
        }
        let unknown = self.figure.keys().filter(|name| !kept.figure.contains_key(*name));
        faults.extend(unknown.map(|name| format!("{name}: not in the file of figures (`make counts ACCEPT=yes`)")));
        faults
    }

    /// A row for each, with what is kept.
    pub(crate) fn rows(&self, kept: &Self) -> Vec<Row> {
        let row = |scene: &Scene| {
            let figure = *self.figure.get(scene.name)?;
            let kept_instructions = kept.figure.get(scene.name).map(|figure| figure.instructions);
            Some(Row { name: scene.name, part: scene.part, what: scene.what, kept_instructions, figure })
        };
        scenes::all().filter_map(row).collect()
    }
}

/// A figure beside the one that is kept.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: &'static str,
    part: &'static str,
    what: &'static str,
    kept_instructions: Option<f64>,
    #[serde(flatten)]
    figure: Figure,
}

/// Formats rows for people.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header([
        "NAME",
        "INSTRUCTIONS",
        "KEPT",
        "GUEST",
        "ENGINE",
        "L1 MISSES",
        "LL MISSES",
        "WHAT",
    ]);
    for Row { name, what, kept_instructions, figure, part: _ } in rows {
        let number = |value: f64| format!("{value:.1}");
        table.add_row([
            (*name).to_owned(),
            number(figure.instructions),
            kept_instructions.map_or("-".to_owned(), number),
            number(figure.guest_instructions),
            number(figure.engine_instructions),
            number(figure.l1_misses),
            number(figure.ll_misses),
            (*what).to_owned(),
        ]);
    }
    for column in 1..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(instructions: f64, l1_misses: f64) -> Figures {
        let figure = Figure { instructions, l1_misses, ..Figure::default() };
        Figures { compiler: "a".to_owned(), figure: BTreeMap::from([("turn".to_owned(), figure)]) }
    }

    #[test]
    fn a_figure_that_is_a_hundredth_above_the_file_is_a_fault_and_is_named() {
        let expected = figures(2700.0, 60.0);
        assert_eq!(figures(2727.0, 66.0).faults(&expected), Vec::<String>::new());
        assert!(
            figures(2729.0, 60.0).faults(&expected)[0].starts_with("turn: 2729.0 instructions, 2700.0 in the file")
        );
        assert!(figures(2000.0, 66.5).faults(&expected)[0].starts_with("turn: 66.5 l1_misses, 60.0 in the file"));
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

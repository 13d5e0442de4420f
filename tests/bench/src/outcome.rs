//! The results of a figure: values for programs, a table for people, and the checks that failed.

use std::io::Write;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::env;
use crate::figure::{Cores, Run};

/// More than the kernel and monitoring programs use.
const OTHERS_PERCENT_MAX: f64 = 5.0;

/// The results of a measurement.
#[derive(Debug)]
pub(crate) struct Outcome {
    figures: Map<String, Value>,
    table: Table,
    setup: Map<String, Value>,
    /// The cores of the node's roles, if not as for most figures.
    node: Option<Cores>,
    failed_checks: Vec<String>,
}

impl Outcome {
    /// Makes an outcome from a struct whose fields are the figures; the JSON has exactly their names.
    ///
    /// # Panics
    /// If it is no struct.
    pub(crate) fn new(figures: &impl Serialize, table: Table) -> Self {
        match serde_json::to_value(figures) {
            Ok(Value::Object(figures)) => {
                Self { figures, table, setup: Map::new(), node: None, failed_checks: Vec::new() }
            }
            other => panic!("figures are a struct of numbers, not {other:?}"),
        }
    }

    /// Records a condition of the measurement, under `"setup"` within the environment.
    pub(crate) fn describe(&mut self, what: &str, how: impl Into<Value>) {
        self.setup.insert(what.to_owned(), how.into());
    }

    /// Records the cores of the node's roles, if not gateway and MMA on the first core and the worker on the second.
    pub(crate) fn node_was_on(&mut self, cores: Cores) {
        self.node = Some(cores);
    }

    /// Records a failed check, in a sentence; the exit status is then 1.
    pub(crate) fn fail(&mut self, sentence: impl Into<String>) {
        self.failed_checks.push(sentence.into());
    }

    /// Writes the table and failed checks to standard error and, if wanted, the JSON to standard output; returns whether all checks held.
    pub(crate) fn report(self, run: &Run, wants_json: bool) -> anyhow::Result<bool> {
        eprintln!("{}", self.table);
        for sentence in &self.failed_checks {
            eprintln!("failed: {sentence}");
        }
        let others = run.others.percent_of_a_core()?;
        if others > OTHERS_PERCENT_MAX {
            eprintln!("warning: other programs used {others:.0} % of a core during the measurement");
        }
        let held = self.failed_checks.is_empty();
        if wants_json {
            let env = env::env(run, self.node.unwrap_or(run.cores))?;
            let object = self.into_json(env);
            writeln!(std::io::stdout().lock(), "{object:#}").context("standard output")?;
        }
        Ok(held)
    }

    fn into_json(self, mut env: Value) -> Value {
        if !self.setup.is_empty() {
            env["setup"] = Value::Object(self.setup);
        }
        let mut object = Map::from_iter([("env".to_owned(), env)]);
        object.extend(self.figures);
        if !self.failed_checks.is_empty() {
            object.insert("failed_checks".to_owned(), self.failed_checks.into());
        }
        Value::Object(object)
    }
}

/// Rounds to three digits after the point, as more would be noise.
pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// Makes a table of numeric columns with headings.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    table.add_rows(rows);
    table.column_iter_mut().for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    struct Figures {
        mpps: f64,
    }

    #[test]
    fn figures_lie_beside_the_environment() {
        let outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        assert_eq!(outcome.into_json(json!({"cores": [0]})), json!({"env": {"cores": [0]}, "mpps": 1.5}));
    }

    #[test]
    fn a_failed_check_is_in_the_json() {
        let mut outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        outcome.fail("a frame was lost");
        assert_eq!(outcome.into_json(json!({}))["failed_checks"], json!(["a frame was lost"]));
    }
}

//! What a figure comes to: figures for programs, a table for people, and the checks that failed.

use std::io::Write;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::env;
use crate::figure::{Cores, Run};

/// More than the kernel and what watches a machine use.
const OTHERS_PERCENT_MAX: f64 = 5.0;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    figures: Map<String, Value>,
    table: Table,
    setup: Map<String, Value>,
    /// Where the node's roles were, if not as for most figures.
    node: Option<Cores>,
    failed_checks: Vec<String>,
}

impl Outcome {
    /// From a struct whose fields are the figures, with exactly their names in the JSON.
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

    /// Notes how it was measured; it goes to `"setup"` within the environment.
    pub(crate) fn describe(&mut self, what: &str, how: impl Into<Value>) {
        self.setup.insert(what.to_owned(), how.into());
    }

    /// Notes where the node's roles were, if not gateway and MMA on the first core and the worker on the second.
    pub(crate) fn node_was_on(&mut self, cores: Cores) {
        self.node = Some(cores);
    }

    /// Notes a check that failed, in a sentence; the exit status is 1 then.
    pub(crate) fn fail(&mut self, sentence: impl Into<String>) {
        self.failed_checks.push(sentence.into());
    }

    /// Writes table and failed checks to standard error and, if wanted, the JSON to standard output; whether all checks held.
    pub(crate) fn report(self, run: &Run, wants_json: bool) -> anyhow::Result<bool> {
        eprintln!("{}", self.table);
        for sentence in &self.failed_checks {
            eprintln!("failed: {sentence}");
        }
        let others = run.others.percent_of_a_core()?;
        if others > OTHERS_PERCENT_MAX {
            eprintln!("beware: meanwhile other programs used {others:.0} % of a core");
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

/// Three digits after the point: more is noise.
pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// A table whose columns are numbers, under headings.
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
    fn a_failed_check_is_told_in_the_json() {
        let mut outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        outcome.fail("a frame was lost");
        assert_eq!(outcome.into_json(json!({}))["failed_checks"], json!(["a frame was lost"]));
    }
}

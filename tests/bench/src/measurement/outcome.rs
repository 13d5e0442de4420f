//! The results of a figure: values for programs, a table for people, and the checks that failed.

use std::io::Write;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::measurement::env;
use crate::measurement::run::{Cores, Run};

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
    /// The figures with another `tuning`, and its name.
    beside: Option<(&'static str, Map<String, Value>)>,
}

impl Outcome {
    /// Makes an outcome from a struct whose fields are the figures; the JSON has exactly their names.
    ///
    /// # Panics
    /// If it is no struct.
    pub(crate) fn new(figures: &impl Serialize, table: Table) -> Self {
        match serde_json::to_value(figures) {
            Ok(Value::Object(figures)) => {
                Self { figures, table, setup: Map::new(), node: None, failed_checks: Vec::new(), beside: None }
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

    /// Puts the figures of the same measurement with another `tuning` beside these.
    pub(crate) fn compare(&mut self, tuning: &'static str, other: Self) {
        self.failed_checks.extend(other.failed_checks.into_iter().map(|check| format!("tuning {tuning}: {check}")));
        self.beside = Some((tuning, other.figures));
    }

    /// Writes the table and failed checks to standard error and, if wanted, the JSON to standard output; returns whether all checks held.
    pub(crate) fn report(self, run: &Run, wants_json: bool) -> anyhow::Result<bool> {
        eprintln!("{}", self.table);
        if let Some((tuning, figures)) = &self.beside {
            eprintln!("\n{}", columns([run.tuning, tuning], [&self.figures, figures]));
        }
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
        if let Some((tuning, figures)) = self.beside {
            object.insert(format!("tuning_{tuning}"), Value::Object(figures));
        }
        if !self.failed_checks.is_empty() {
            object.insert("failed_checks".to_owned(), self.failed_checks.into());
        }
        Value::Object(object)
    }
}

/// Makes a table of all numbers in two measurements of the same figures, one below the other, with the second as a multiple of the first.
fn columns(names: [&str; 2], figures: [&Map<String, Value>; 2]) -> Table {
    let [first, second] = figures.map(|figures| {
        let mut numbers = Vec::new();
        figures.iter().for_each(|(name, value)| flatten(name, value, &mut numbers));
        numbers
    });
    let rows = first.into_iter().map(|(name, one)| {
        let other = second.iter().find(|(as_well, _)| *as_well == name).map(|(_, number)| *number);
        let ratio = other.filter(|_| one != 0.0).map(|other| format!("{:.2}", other / one));
        let [other, ratio] =
            [other.map(|other| rounded(other).to_string()), ratio].map(|text| text.unwrap_or("-".into()));
        [name, rounded(one).to_string(), other, ratio]
    });
    let [full, off] = names.map(|name| format!("tuning = {name}"));
    table(["figure", &full, &off, "ratio"], rows)
}

/// Appends every number in a value, named by the way to it: `rows[2].mpps`.
fn flatten(name: &str, value: &Value, numbers: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) => numbers.extend(number.as_f64().map(|number| (name.to_owned(), number))),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| flatten(&format!("{name}[{at}]"), value, numbers));
        }
        Value::Object(values) => {
            values.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, numbers));
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
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
    fn figures_with_another_tuning_lie_beside_the_first_under_a_key_of_their_own() {
        let mut outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        outcome.compare("off", Outcome::new(&Figures { mpps: 1.2 }, Table::new()));
        assert_eq!(outcome.into_json(json!({})), json!({"env": {}, "mpps": 1.5, "tuning_off": {"mpps": 1.2}}));
    }

    #[test]
    fn a_failed_check_counts_with_either_tuning() {
        let mut outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        let mut other = Outcome::new(&Figures { mpps: 1.2 }, Table::new());
        other.fail("a frame was lost");
        outcome.compare("off", other);
        assert_eq!(outcome.into_json(json!({}))["failed_checks"], json!(["tuning off: a frame was lost"]));
    }

    #[test]
    fn each_number_has_a_row_with_both_columns_and_their_ratio() {
        let figures = [json!({"rows": [{"size": 64, "mpps": 2.0}]}), json!({"rows": [{"size": 64, "mpps": 1.0}]})];
        let table = columns(["full", "off"], [0, 1].map(|at| figures[at].as_object().unwrap())).to_string();
        let row = table.lines().find(|line| line.contains("rows[0].mpps")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["rows[0].mpps", "2", "1", "0.50"]);
    }

    #[test]
    fn nothing_is_no_multiple_of_nothing() {
        let lost = json!({"lost": 0});
        let table = columns(["full", "off"], [lost.as_object().unwrap(); 2]).to_string();
        assert!(table.lines().any(|line| line.split_whitespace().eq(["lost", "0", "0", "-"])), "{table}");
    }

    #[test]
    fn a_failed_check_is_in_the_json() {
        let mut outcome = Outcome::new(&Figures { mpps: 1.5 }, Table::new());
        outcome.fail("a frame was lost");
        assert_eq!(outcome.into_json(json!({}))["failed_checks"], json!(["a frame was lost"]));
    }
}

//! The table of results in docs/performance.md, between two marker comments.

use std::fmt::Write;

use anyhow::Context;

use super::page::environment;
use super::results::Results;

const BEGIN: &str = "<!-- results: written by `make report` -->";
const END: &str = "<!-- end of results -->";

/// Returns the text with its table replaced.
pub(super) fn with_table(text: &str, all: &[Results]) -> anyhow::Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("it has no {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("it has no {END}"))?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", table(all)))
}

fn table(all: &[Results]) -> String {
    let mut table = "| | Pinion | peers, in the same run | the paper's |\n|---|---|---|---|\n".to_owned();
    for line in all.iter().flat_map(|results| &results.lines) {
        let cells = [&line.figure, &line.pinion, &line.peers, line.paper].join(" | ");
        writeln!(table, "| {cells} |").expect("memory takes all");
    }
    let mut environments: Vec<String> = all.iter().map(|results| environment(&results.env)).collect();
    environments.sort();
    environments.dedup();
    writeln!(table, "\nMeasured on {}{}.", environments.join("; "), distances(all)).expect("memory takes all");
    table
}

/// Returns a phrase with the distance of the cores, before and after each figure.
fn distances(all: &[Results]) -> String {
    let both = |results: &Results| results.env["core_round_trip_ns"].as_array().cloned().unwrap_or_default();
    let times_ns: Vec<f64> = all.iter().flat_map(both).filter_map(|time_ns| time_ns.as_f64()).collect();
    let Some(nearest_ns) = times_ns.iter().copied().reduce(f64::min) else { return String::new() };
    let farthest_ns = times_ns.iter().copied().fold(nearest_ns, f64::max);
    format!("; a line of memory went from one core to the other and back in {nearest_ns:.0} to {farthest_ns:.0} ns")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::Line;
    use super::*;

    fn results() -> Results {
        let line = Line {
            figure: "chain of 1".to_owned(),
            pinion: "10 Mpps".to_owned(),
            peers: "testpmd 40 Mpps".to_owned(),
            paper: "-",
        };
        let env = json!({
            "cpu_model": "CPU", "kernel": "6", "dpdk": "22.11", "rustc": "1.95.0 (x)", "pinion": "piniond 0.1.0",
            "commit": "abc", "cores": [0, 1], "core_round_trip_ns": [420.5, 80.25],
        });
        Results { title: "", origin: "", env, plots: Vec::new(), lines: vec![line] }
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nrest\n");
        let new = with_table(&text, &[results()]).unwrap();
        assert_eq!(
            new,
            format!(
                "# Title\n{BEGIN}\n| | Pinion | peers, in the same run | the paper's |\n|---|---|---|---|\n\
                 | chain of 1 | 10 Mpps | testpmd 40 Mpps | - |\n\n\
                 Measured on CPU, kernel 6, DPDK 22.11, Rust 1.95.0, piniond 0.1.0 at abc, cores [0,1]; \
                 a line of memory went from one core to the other and back in 80 to 420 ns.\n{END}\nrest\n"
            )
        );
        assert_eq!(with_table(&new, &[results()]).unwrap(), new);
    }

    #[test]
    fn a_text_without_markers_is_refused() {
        assert!(with_table("# Title\n", &[results()]).is_err());
    }
}

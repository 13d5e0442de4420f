//! `pinion metrics`: shows the metrics of functions, or of the node, in Prometheus format.

use std::collections::BTreeMap;

use pinion_control::Client;
use pinion_control::metrics::{MetricFilter, MetricKind, MetricStatus, MetricValue};
use pinion_control::node::NodeStatus;
use prometheus::TextEncoder;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::args::Format;
use crate::output::{self, printable};

/// The prefix of all names, so that a function's metric cannot be confused with another program's.
const PREFIX: &str = "pinion_function_";
/// The prefix of the names of the node's own metrics.
const NODE_PREFIX: &str = "pinion_node_";
/// The help text of a name that functions use for different things.
const SHARED_HELP: &str = "Used by several functions with different help texts.";

pub(super) async fn run(client: &mut Client, filter: MetricFilter, format: Format) -> anyhow::Result<()> {
    let metrics = client.metrics(filter).await?;
    match format {
        Format::Json => output::json(&metrics),
        Format::Table => output::write(&exposition(metrics)?),
    }
}

/// Shows the metrics of the node itself.
pub(super) async fn of_node(client: &mut Client, format: Format) -> anyhow::Result<()> {
    let report = client.status().await?;
    check_is_whole(&report.node)?;
    match format {
        Format::Json => output::json(&report),
        Format::Table => output::write(&node_exposition(&report.node)?),
    }
}

/// Refuses the part of a node's status that a tenant's caller gets: a node has cores, and the part has none, and zeros
/// instead of counters.
fn check_is_whole(node: &NodeStatus) -> anyhow::Result<()> {
    anyhow::ensure!(
        !node.cores.is_empty(),
        "the metrics of the node are for its operator: use an operator's certificate, or leave --node out"
    );
    Ok(())
}

/// Formats the node's own counters in Prometheus' text exposition format.
fn node_exposition(node: &NodeStatus) -> anyhow::Result<String> {
    let workers = node.cores.iter().filter(|core| core.roles.iter().any(|role| role == "worker"));
    let panics = workers.map(|core| counter([("core".to_owned(), core.core.to_string())], core.worker_panics));
    let families = [
        (
            "worker_panics",
            "How often the worker of a core panicked since the node started, and lost its instances.",
            panics.collect(),
        ),
        (
            "calls_redelivered",
            "How often calls of idempotent chains were delivered again since the node started.",
            vec![counter([], node.calls_redelivered)],
        ),
    ];
    let family = |(name, help, series): (&str, &str, Vec<Metric>)| {
        let mut family = MetricFamily::default();
        family.set_name(format!("{NODE_PREFIX}{name}_total"));
        family.set_field_type(MetricType::COUNTER);
        family.set_help(help.to_owned());
        family.mut_metric().extend(series);
        family
    };
    Ok(TextEncoder::new().encode_to_string(&families.map(family))?)
}

/// Formats the metrics in Prometheus' text exposition format, version 0.0.4. Help texts and label values come from
/// functions and may be any text. They are made printable first, and then the encoder escapes what the format requires.
fn exposition(metrics: Vec<MetricStatus>) -> anyhow::Result<String> {
    let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for metric in metrics {
        let (name, kind) = match metric.value.kind() {
            MetricKind::Counter => (format!("{PREFIX}{}_total", metric.name), MetricType::COUNTER),
            MetricKind::Gauge => (format!("{PREFIX}{}", metric.name), MetricType::GAUGE),
        };
        let family = families.entry(name.clone()).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name);
            family.set_field_type(kind);
            family.set_help(printable(&metric.help));
            family
        });
        // One tenant's help text must not describe another tenant's series.
        if family.help() != printable(&metric.help) {
            family.set_help(SHARED_HELP.to_owned());
        }
        family.mut_metric().push(series(metric));
    }
    Ok(TextEncoder::new().encode_to_string(&families.into_values().collect::<Vec<_>>())?)
}

/// Returns a label with its value.
fn label((name, value): (String, String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name);
    pair.set_value(printable(&value));
    pair
}

/// Returns a series of a counter.
fn counter(labels: impl IntoIterator<Item = (String, String)>, value: u64) -> Metric {
    let mut series = Metric::from_label(labels.into_iter().map(label).collect());
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    series.set_counter(counter);
    series
}

fn series(metric: MetricStatus) -> Metric {
    let of_node = [
        ("tenant", metric.tenant.to_string()),
        ("chain", metric.chain.to_string()),
        ("stage", metric.stage.to_string()),
        ("module", metric.module.to_string()),
    ];
    let of_node = of_node.map(|(name, value)| (name.to_owned(), value));
    let labels = of_node.into_iter().chain(metric.labels);
    match metric.value {
        MetricValue::Counter(value) => counter(labels, value),
        MetricValue::Gauge(value) => {
            let mut series = Metric::from_label(labels.map(label).collect());
            let mut gauge = Gauge::default();
            gauge.set_value(value as f64);
            series.set_gauge(gauge);
            series
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::node::CoreStatus;

    use super::*;

    fn metric(tenant: &str, name: &str, help: &str, labels: &[(&str, &str)], value: MetricValue) -> MetricStatus {
        MetricStatus {
            tenant: tenant.parse().unwrap(),
            chain: "web".parse().unwrap(),
            stage: 0,
            module: "count".parse().unwrap(),
            name: name.to_owned(),
            help: help.to_owned(),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            value,
        }
    }

    #[test]
    fn families_come_once_with_all_of_their_series_and_values_are_escaped() {
        let metrics = vec![
            metric("a", "hits", "Hits.", &[("way", "in")], MetricValue::Counter(3)),
            metric("a", "hits", "Depth.", &[], MetricValue::Gauge(-2)),
            metric("b", "hits", "Hits.", &[("way", "a\"b\\c\n\u{202e}")], MetricValue::Counter(1 << 40)),
        ];
        let expected = concat!(
            "# HELP pinion_function_hits Depth.\n",
            "# TYPE pinion_function_hits gauge\n",
            "pinion_function_hits{tenant=\"a\",chain=\"web\",stage=\"0\",module=\"count\"} -2\n",
            "# HELP pinion_function_hits_total Hits.\n",
            "# TYPE pinion_function_hits_total counter\n",
            "pinion_function_hits_total{tenant=\"a\",chain=\"web\",stage=\"0\",module=\"count\",way=\"in\"} 3\n",
            "pinion_function_hits_total{tenant=\"b\",chain=\"web\",stage=\"0\",module=\"count\",way=\"a\\\"b\\\\c\\\\n\\\\u{202e}\"} 1099511627776\n",
        );
        assert_eq!(exposition(metrics).unwrap(), expected);
        assert_eq!(exposition(Vec::new()).unwrap(), "");
    }

    #[test]
    fn a_tenants_part_of_a_status_is_not_shown_as_zeros() {
        let refused = check_is_whole(&NodeStatus::default()).unwrap_err();
        assert!(refused.to_string().contains("for its operator"), "{refused}");
    }

    #[test]
    fn the_node_counts_panics_of_each_worker() {
        let core = |core, role: &str, worker_panics| CoreStatus { core, roles: vec![role.to_owned()], worker_panics };
        let cores = vec![core(0, "gateway", 0), core(2, "worker", 1), core(3, "worker", 0)];
        let text = node_exposition(&NodeStatus { cores, calls_redelivered: 7, ..NodeStatus::default() }).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        let expected = [
            "# TYPE pinion_node_worker_panics_total counter",
            "pinion_node_worker_panics_total{core=\"2\"} 1",
            "pinion_node_worker_panics_total{core=\"3\"} 0",
            "# TYPE pinion_node_calls_redelivered_total counter",
            "pinion_node_calls_redelivered_total 7",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_tenants_help_text_does_not_describe_another_tenants_metric() {
        let metrics = ["All of yours are mine.", "Hits.", "All of yours are mine."]
            .map(|help| metric("a", "hits", help, &[], MetricValue::Counter(0)));
        let text = exposition(metrics.into()).unwrap();
        assert!(text.starts_with("# HELP pinion_function_hits_total Used by several functions"), "{text}");
        assert_eq!(text.matches("# HELP").count(), 1);
    }
}

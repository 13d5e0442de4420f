//! `pinion metrics`: shows the metrics of functions, or of the node, in Prometheus format.

use std::collections::BTreeMap;

use pinion_control::Client;
use pinion_control::metrics::{MetricFilter, MetricKind, MetricStatus, MetricValue};
use pinion_control::node::{JobStatus, NodeStatus, TenantStatus};
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

/// Formats the node's own counters and gauges in Prometheus' text exposition format.
fn node_exposition(node: &NodeStatus) -> anyhow::Result<String> {
    let workers = node.cores.iter().filter(|core| core.roles.iter().any(|role| role == "worker"));
    let panics = workers.map(|core| counter([("core".to_owned(), core.core.to_string())], core.worker_panics as f64));
    let of_node = [
        node_family(
            "worker_panics_total",
            MetricType::COUNTER,
            "How often the worker of a core panicked since the node started, and lost its instances.",
            panics.collect(),
        ),
        node_family(
            "calls_redelivered_total",
            MetricType::COUNTER,
            "How often calls of idempotent chains were delivered again since the node started.",
            vec![counter([], node.calls_redelivered as f64)],
        ),
    ];
    // Prometheus' format has no family without series.
    let families = of_node.into_iter().chain(jobs(node)).filter(|family| !family.get_metric().is_empty());
    Ok(TextEncoder::new().encode_to_string(&families.collect::<Vec<_>>())?)
}

fn node_family(name: &str, kind: MetricType, help: &str, series: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(format!("{NODE_PREFIX}{name}"));
    family.set_field_type(kind);
    family.set_help(help.to_owned());
    family.mut_metric().extend(series);
    family
}

/// Returns what was done for functions off the data path, by tenant and kind of job.
fn jobs(node: &NodeStatus) -> [MetricFamily; 5] {
    let all = || {
        node.tenants.iter().flat_map(|TenantStatus { tenant, meter, .. }| {
            let kinds = meter.jobs().into_iter().filter(|(_, jobs)| !jobs.is_empty());
            kinds.map(move |(kind, jobs)| ([("tenant", tenant.to_string()), ("kind", kind.to_owned())], jobs))
        })
    };
    let owned = |labels: [(&str, String); 2]| labels.map(|(name, value)| (name.to_owned(), value));
    let each = |value: fn(&JobStatus) -> f64| all().map(move |(of, jobs)| counter(owned(of), value(&jobs))).collect();
    let refused = all().flat_map(|(of, jobs)| {
        jobs.refused().map(|(reason, count)| {
            counter(owned(of.clone()).into_iter().chain([("reason".to_owned(), reason.to_owned())]), count as f64)
        })
    });
    [
        node_family(
            "jobs_done_total",
            MetricType::COUNTER,
            "Signatures, and runs of models (inference), that were done for functions.",
            each(|jobs| jobs.done as f64),
        ),
        node_family(
            "jobs_refused_total",
            MetricType::COUNTER,
            "Jobs that were refused, by reason: the tenant's rate, its full queue, or its memory.",
            refused.collect(),
        ),
        node_family(
            "jobs_dropped_total",
            MetricType::COUNTER,
            "Jobs that were dropped, or their results, as their FWPs had ended.",
            each(|jobs| jobs.dropped as f64),
        ),
        node_family(
            "jobs_cpu_seconds_total",
            MetricType::COUNTER,
            "CPU time of all jobs, whatever became of them.",
            each(|jobs| jobs.spent_us as f64 / 1e6),
        ),
        node_family(
            "jobs_waiting",
            MetricType::GAUGE,
            "Jobs that wait now.",
            all().map(|(of, jobs)| gauge(owned(of), jobs.waiting as f64)).collect(),
        ),
    ]
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
fn counter(labels: impl IntoIterator<Item = (String, String)>, value: f64) -> Metric {
    let mut series = Metric::from_label(labels.into_iter().map(label).collect());
    let mut counter = Counter::default();
    counter.set_value(value);
    series.set_counter(counter);
    series
}

/// Returns a series of a gauge.
fn gauge(labels: impl IntoIterator<Item = (String, String)>, value: f64) -> Metric {
    let mut series = Metric::from_label(labels.into_iter().map(label).collect());
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    series.set_gauge(gauge);
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
        MetricValue::Counter(value) => counter(labels, value as f64),
        MetricValue::Gauge(value) => gauge(labels, value as f64),
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::node::{CoreStatus, MeterStatus};

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
    fn jobs_are_counted_by_tenant_and_kind_and_only_for_those_that_have_had_some() {
        let inferences = JobStatus {
            waiting: 2,
            done: 3,
            dropped: 4,
            refused_rate: 0,
            refused_queue_full: 5,
            refused_memory: 6,
            spent_us: 1_500_000,
        };
        let tenant = |name: &str, inferences| TenantStatus {
            tenant: name.parse().unwrap(),
            memory_kib: 0,
            memory_limit_kib: None,
            fwps: 0,
            fwps_guaranteed: 0,
            fwps_refused: 0,
            meter: MeterStatus { inferences, ..MeterStatus::default() },
            state: Vec::new(),
            state_limit_kib: 0,
        };
        let tenants = vec![tenant("a", inferences), tenant("b", JobStatus::default())];
        let text = node_exposition(&NodeStatus { tenants, ..NodeStatus::default() }).unwrap();
        let lines: Vec<&str> =
            text.lines().filter(|line| line.contains("pinion_node_jobs") && !line.contains("# HELP")).collect();
        let expected = [
            "# TYPE pinion_node_jobs_done_total counter",
            "pinion_node_jobs_done_total{tenant=\"a\",kind=\"inference\"} 3",
            "# TYPE pinion_node_jobs_refused_total counter",
            "pinion_node_jobs_refused_total{tenant=\"a\",kind=\"inference\",reason=\"rate\"} 0",
            "pinion_node_jobs_refused_total{tenant=\"a\",kind=\"inference\",reason=\"queue-full\"} 5",
            "pinion_node_jobs_refused_total{tenant=\"a\",kind=\"inference\",reason=\"memory\"} 6",
            "# TYPE pinion_node_jobs_dropped_total counter",
            "pinion_node_jobs_dropped_total{tenant=\"a\",kind=\"inference\"} 4",
            "# TYPE pinion_node_jobs_cpu_seconds_total counter",
            "pinion_node_jobs_cpu_seconds_total{tenant=\"a\",kind=\"inference\"} 1.5",
            "# TYPE pinion_node_jobs_waiting gauge",
            "pinion_node_jobs_waiting{tenant=\"a\",kind=\"inference\"} 2",
        ];
        assert_eq!(lines, expected);
        let without = node_exposition(&NodeStatus::default()).unwrap();
        assert!(!without.contains("pinion_node_jobs"), "{without}");
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

//! `pinion status`: shows the status of the whole node.

use std::iter;

use pinion_control::client::NodeReport;
use pinion_control::model::{ChainName, TenantName};
use pinion_control::node::{
    BuildStatus, ChainDrop, ChainStatus, CoreStatus, DropCount, LatencyStatus, MeterStatus, NeighborStatus, NodeStatus,
    PortStatus, StateFieldStatus, TenantStatus,
};

use crate::args::Format;
use crate::output::{self, age, or_dash, printable, size};

pub(super) fn print(report: &NodeReport, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(report);
    }
    let node = &report.node;
    let mut parts = vec![
        output::description([
            ("Version", node.version.clone()),
            ("Uptime", age(node.uptime_ms)),
            (
                "Desired state",
                format!("version {}, version {} in effect", report.desired_version, node.followed_version),
            ),
            ("Copied", format!("{} bytes", node.copied_bytes)),
            ("Dropped, FWP ended", node.dropped_instance_ended.to_string()),
            ("Log lines lost", node.log_lines_lost.to_string()),
            ("Log lines omitted", node.guest_lines_left_out.to_string()),
            ("Worker panics", node.worker_panics.to_string()),
            ("Calls redelivered", node.calls_redelivered.to_string()),
        ]),
        output::table(["CORE", "ROLES", "PANICS"], node.cores.iter().map(core)),
        output::table(
            ["PORT", "DEVICE", "MAC", "MTU", "LINK", "RECEIVED", "SENT", "DROPS"],
            node.ports.iter().map(port),
        ),
    ];
    if !node.neighbors.is_empty() {
        let headings = ["PORT", "VLAN", "NEIGHBOR", "MAC", "STATE"];
        parts.push(output::table(headings, node.neighbors.iter().map(neighbor)));
    }
    if !node.chains.is_empty() {
        let headings = ["TENANT", "CHAIN", "READY", "ACTIVE", "MEMORY", "LIMIT", "FAILURES", "LAST FAILURE"];
        parts.push(output::table(headings, node.chains.iter().map(chain)));
    }
    if !node.tenants.is_empty() {
        parts.push(output::table(
            ["TENANT", "MEMORY", "LIMIT", "FWPS", "GUARANTEED", "REFUSED"],
            node.tenants.iter().map(tenant),
        ));
        let headings =
            ["TENANT", "CHAIN", "CPU", "ACTIVATIONS", "PREEMPTIONS", "WAIT P50", "WAIT P99", "COPIED", "DROPPED"];
        parts.push(output::table(headings, meters(node)));
    }
    let mut jobs = node.tenants.iter().flat_map(jobs).peekable();
    if jobs.peek().is_some() {
        parts.push(output::table(["TENANT", "JOBS", "DONE", "CPU", "WAITING", "REFUSED", "DROPPED"], jobs));
    }
    let mut fields =
        node.tenants.iter().flat_map(|tenant| tenant.state.iter().map(move |field| (tenant, field))).peekable();
    if fields.peek().is_some() {
        let headings = ["TENANT", "STATE", "ENTRIES", "OF", "MEMORY", "HITS", "MISSES", "WRITES", "DENIED", "FULL"];
        parts.push(output::table(headings, fields.map(state)));
    }
    let mut drops = node.chains.iter().flat_map(|chain| chain.drops.iter().map(move |drop| (chain, drop))).peekable();
    if drops.peek().is_some() {
        parts.push(output::table(["TENANT", "CHAIN", "DROPPED AT", "REASON", "COUNT"], drops.map(chain_drop)));
    }
    if !node.builds.is_empty() {
        parts.push(output::table(["TENANT", "BUILDING", "PHASE", "SINCE"], node.builds.iter().map(build)));
    }
    let latencies = latencies(node).filter(|(_, latency)| latency.count > 0).map(latency).collect::<Vec<_>>();
    if !latencies.is_empty() {
        parts.push(output::table(["LATENCY", "COUNT", "P50", "P90", "P99", "MAX"], latencies));
    }
    parts.extend(node.warnings.iter().map(|warning| format!("warning: {}", printable(warning))));
    output::print(&parts.join("\n\n"))
}

fn build(build: &BuildStatus) -> [String; 4] {
    [build.tenant.to_string(), build.module.clone(), build.phase.to_string(), age(build.age_ms)]
}

fn latencies(node: &NodeStatus) -> impl Iterator<Item = (&'static str, LatencyStatus)> {
    let NodeStatus { activation, chain_activation, preparation, run_queue_wait, preemption_lateness, .. } = *node;
    let named = [
        ("activation", activation),
        ("chain activation", chain_activation),
        ("preparation", preparation),
        ("run queue wait", run_queue_wait),
        ("preemption lateness", preemption_lateness),
    ];
    named.into_iter()
}

fn latency((what, latency): (&str, LatencyStatus)) -> [String; 6] {
    let LatencyStatus { count, p50_ns, p90_ns, p99_ns, max_ns } = latency;
    let [p50, p90, p99, max] = [p50_ns, p90_ns, p99_ns, max_ns].map(output::time);
    [what.to_owned(), count.to_string(), p50, p90, p99, max]
}

fn core(core: &CoreStatus) -> [String; 3] {
    [core.core.to_string(), core.roles.join(","), core.worker_panics.to_string()]
}

fn port(port: &PortStatus) -> [String; 8] {
    let drops = port.drops.iter().map(|DropCount { reason, count }| format!("{reason}={count}"));
    [
        port.name.to_string(),
        port.device.clone(),
        port.mac.clone(),
        port.mtu.to_string(),
        if port.link_up { "up" } else { "down" }.into(),
        port.received.to_string(),
        port.sent.to_string(),
        or_dash(drops.reduce(|all, drop| format!("{all},{drop}"))),
    ]
}

fn neighbor(neighbor: &NeighborStatus) -> [String; 5] {
    let vlan = neighbor.vlan.map(|vlan| match neighbor.inner_vlan {
        Some(inner) => format!("{vlan}.{inner}"),
        None => vlan.to_string(),
    });
    [
        neighbor.port.to_string(),
        or_dash(vlan),
        neighbor.address.clone(),
        or_dash(neighbor.mac.as_ref()),
        neighbor.state.to_string(),
    ]
}

fn chain_drop((chain, drop): (&ChainStatus, &ChainDrop)) -> [String; 5] {
    let ChainDrop { place, reason, count } = drop;
    [chain.tenant.to_string(), chain.chain.to_string(), place.clone(), reason.clone(), count.to_string()]
}

fn tenant(tenant: &TenantStatus) -> [String; 6] {
    [
        tenant.tenant.to_string(),
        size(tenant.memory_kib << 10),
        limit(tenant.memory_limit_kib),
        tenant.fwps.to_string(),
        tenant.fwps_guaranteed.to_string(),
        tenant.fwps_refused.to_string(),
    ]
}

fn state((tenant, field): (&TenantStatus, &StateFieldStatus)) -> [String; 10] {
    [
        tenant.tenant.to_string(),
        field.name.to_string(),
        field.entries.to_string(),
        field.entries_max.to_string(),
        size(field.memory_kib << 10),
        field.hits.to_string(),
        field.misses.to_string(),
        field.writes.to_string(),
        field.denied.to_string(),
        field.full.to_string(),
    ]
}

/// Returns the resources that each tenant used, followed by those of its chains.
fn meters(node: &NodeStatus) -> impl Iterator<Item = [String; 9]> {
    node.tenants.iter().flat_map(|tenant| {
        let chains = node.chains.iter().filter(|chain| chain.tenant == tenant.tenant);
        let of_chains = chains.map(|chain| meter(&chain.tenant, Some(&chain.chain), &chain.meter));
        iter::once(meter(&tenant.tenant, None, &tenant.meter)).chain(of_chains)
    })
}

fn meter(tenant: &TenantName, chain: Option<&ChainName>, meter: &MeterStatus) -> [String; 9] {
    let MeterStatus { cpu_us, activations, preemptions, copied_bytes, dropped, run_queue_wait, .. } = *meter;
    [
        tenant.to_string(),
        or_dash(chain),
        output::time(cpu_us * 1_000),
        activations.to_string(),
        preemptions.to_string(),
        output::time(run_queue_wait.p50_ns),
        output::time(run_queue_wait.p99_ns),
        size(copied_bytes),
        dropped.to_string(),
    ]
}

/// Returns the jobs of each kind that a tenant has had.
fn jobs(tenant: &TenantStatus) -> impl Iterator<Item = [String; 7]> {
    let kinds = tenant.meter.jobs().into_iter().filter(|(_, jobs)| !jobs.is_empty());
    kinds.map(|(kind, jobs)| {
        let refused = jobs.refused().into_iter().filter(|(_, count)| *count > 0);
        let refused = refused.map(|(reason, count)| format!("{reason}={count}"));
        [
            tenant.tenant.to_string(),
            kind.to_owned(),
            jobs.done.to_string(),
            output::time(jobs.spent_us * 1_000),
            jobs.waiting.to_string(),
            or_dash(refused.reduce(|all, reason| format!("{all},{reason}"))),
            jobs.dropped.to_string(),
        ]
    })
}

fn limit(limit_kib: Option<u64>) -> String {
    or_dash(limit_kib.map(|kib| size(kib << 10)))
}

fn chain(chain: &ChainStatus) -> [String; 8] {
    [
        chain.tenant.to_string(),
        chain.chain.to_string(),
        chain.ready.to_string(),
        chain.active.to_string(),
        size(chain.memory_kib << 10),
        limit(chain.memory_limit_kib),
        chain.failures.to_string(),
        or_dash(chain.last_failure.as_ref()),
    ]
}

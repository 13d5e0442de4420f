//! `pinion status`: the node as a whole.

use pinion_control::client::NodeReport;
use pinion_control::node::{ChainDrop, ChainStatus, CoreStatus, DropCount, PortStatus};

use crate::args::Format;
use crate::output::{self, age, or_dash, printable};

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
            ("Dropped, FWP gone", node.dropped_gone.to_string()),
        ]),
        output::table(["CORE", "ROLES"], node.cores.iter().map(core)),
        output::table(
            ["PORT", "DEVICE", "MAC", "MTU", "LINK", "RECEIVED", "SENT", "DROPS"],
            node.ports.iter().map(port),
        ),
    ];
    if !node.chains.is_empty() {
        let headings = ["TENANT", "CHAIN", "READY", "ACTIVE", "FAILURES", "LAST FAILURE"];
        parts.push(output::table(headings, node.chains.iter().map(chain)));
    }
    let mut drops = node.chains.iter().flat_map(|chain| chain.drops.iter().map(move |drop| (chain, drop))).peekable();
    if drops.peek().is_some() {
        parts.push(output::table(["TENANT", "CHAIN", "DROPPED AT", "REASON", "COUNT"], drops.map(chain_drop)));
    }
    parts.extend(node.warnings.iter().map(|warning| format!("warning: {}", printable(warning))));
    output::print(&parts.join("\n\n"))
}

fn core(core: &CoreStatus) -> [String; 2] {
    [core.core.to_string(), core.roles.join(",")]
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

fn chain_drop((chain, drop): (&ChainStatus, &ChainDrop)) -> [String; 5] {
    let ChainDrop { place, reason, count } = drop;
    [chain.tenant.to_string(), chain.chain.to_string(), place.clone(), reason.clone(), count.to_string()]
}

fn chain(chain: &ChainStatus) -> [String; 6] {
    [
        chain.tenant.to_string(),
        chain.chain.to_string(),
        chain.ready.to_string(),
        chain.active.to_string(),
        chain.failures.to_string(),
        or_dash(chain.last_failure.as_ref()),
    ]
}

//! What of the node's status is a tenant's own.

use crate::model::TenantName;
use crate::node::{LatencyStatus, NodeStatus, PortStatus};

/// Returns the part of a status that a tenant may see: what is its own, and of the node what says nothing about other
/// tenants. Taken apart field by field, so that a new one does not build until it is judged here.
pub(crate) fn own_part(status: NodeStatus, tenant: &TenantName) -> NodeStatus {
    let NodeStatus {
        version,
        uptime_ms,
        followed_version,
        cores: _,
        ports,
        chains,
        // Sentences for the operator, some of which name chains of several tenants.
        warnings: _,
        copied_bytes: _,
        dropped_instance_ended: _,
        log_lines_lost: _,
        guest_lines_left_out: _,
        builds,
        tenants,
        // Sums over all tenants. Each tenant has its own meter.
        activation: _,
        chain_activation: _,
        preparation: _,
        run_queue_wait: _,
        preemption_lateness: _,
        worker_panics: _,
        calls_redelivered: _,
        // Which stations are on a link is the operator's business, and who sends to them another tenant's.
        neighbors: _,
    } = status;
    let none = LatencyStatus::default();
    NodeStatus {
        version,
        uptime_ms,
        followed_version,
        cores: Vec::new(),
        ports: ports.into_iter().map(name_only).collect(),
        chains: chains.into_iter().filter(|chain| chain.tenant == *tenant).collect(),
        warnings: Vec::new(),
        copied_bytes: 0,
        dropped_instance_ended: 0,
        log_lines_lost: 0,
        guest_lines_left_out: 0,
        builds: builds.into_iter().filter(|build| build.tenant == *tenant).collect(),
        tenants: tenants.into_iter().filter(|status| status.tenant == *tenant).collect(),
        activation: none,
        chain_activation: none,
        preparation: none,
        run_queue_wait: none,
        preemption_lateness: none,
        worker_panics: 0,
        calls_redelivered: 0,
        neighbors: Vec::new(),
    }
}

/// Leaves of a port what rules and chains need.
fn name_only(port: PortStatus) -> PortStatus {
    let PortStatus { name, device: _, mac: _, mtu, link_up, received: _, sent: _, made_by_node: _, drops: _ } = port;
    PortStatus {
        name,
        device: String::new(),
        mac: String::new(),
        mtu,
        link_up,
        received: 0,
        sent: 0,
        made_by_node: 0,
        drops: Vec::new(),
    }
}

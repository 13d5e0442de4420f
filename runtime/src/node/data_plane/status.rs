//! The node's status: what of it takes the lock of the launcher's table is copied first, a few chains at a time, and the rest is read and
//! added up without it.

use std::collections::HashMap;

use pinion_control::model::TenantName;
use pinion_control::node::{
    ChainStatus, CoreStatus, DropCount, MeterStatus, NeighborState, NeighborStatus, NodeStatus, PortStatus,
    TenantStatus,
};
use pinion_gateway::gateway::PortObserver;
use pinion_gateway::headers::Ingress;
use pinion_gateway::neighbors::table::{self, Neighbor};
use pinion_gateway::port::LinkState;
use pinion_mma::accounts::counters::{Counter, MmaCounters};

use super::{DataPlane, PortRecord};
use crate::cores::plan::CoreId;
use crate::lockdown;
use crate::memory::pressure::Level;
use crate::node::machine::MachineFacts;
use crate::node::node_log::{self, LogStatus};
use crate::reports::fwp_shares::FwpShare;
use crate::reports::lists;
use crate::reports::status_table::StatusTable;
use crate::tenants::accounts::Usage;

/// What the launcher's table says.
struct Listed {
    followed_version: u64,
    /// Their use of the core and of memory is added later.
    chains: Vec<ChainStatus>,
    warnings: Vec<String>,
    /// By tenant: how many FWPs it has, and its share.
    fwps: HashMap<TenantName, (u64, FwpShare)>,
}

impl Listed {
    fn read(table: &StatusTable) -> Self {
        // First, so that the chains are not older than the version says.
        let followed_version = table.read(|entries| entries.followed_version);
        let chains = lists::chains(table);
        table.read(|entries| {
            let mut warnings = entries.warnings.clone();
            warnings.extend(entries.bans());
            if entries.memory_level != Level::Calm {
                warnings.push(format!("memory: {}", entries.memory_level));
            }
            let shares = entries.fwp_shares.by_tenant().iter();
            let with_count =
                |(tenant, share): (&TenantName, &FwpShare)| (tenant.clone(), (entries.counts_of(tenant).fwps, *share));
            let fwps = shares.map(with_count).collect();
            Self { followed_version, chains, warnings, fwps }
        })
    }
}

fn mac(station: [u8; 6]) -> String {
    station.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns a warning if workers have panicked.
fn worker_warning(panics: u64) -> Option<String> {
    (panics > 0).then(|| {
        format!(
            "workers have panicked {panics} times since the node started, and lost their instances: see its log for why"
        )
    })
}

/// Returns a warning if the port's device was deleted.
fn device_warning((port, observed): (&PortRecord, &PortObserver)) -> Option<String> {
    let PortRecord { name, device, .. } = port;
    match observed.link() {
        LinkState::Gone => Some(format!(
            "port {name}: the device {device} has gone, and the port works again when there is one of that name: make it again"
        )),
        LinkState::Lost => {
            Some(format!("port {name}: the device {device} has gone: make it again, and restart piniond"))
        }
        LinkState::Up | LinkState::Down | LinkState::Unknown => None,
    }
}

impl DataPlane {
    /// Returns how often the worker of this core has panicked.
    fn worker_panics(&self, core: CoreId) -> u64 {
        let of_workers = self.parts.plan.workers.iter().zip(&self.parts.turns);
        of_workers.filter(|(worker, _)| **worker == core).map(|(_, turns)| turns.failures.value()).sum()
    }

    pub(super) fn node_status(&self) -> NodeStatus {
        let cores = self.parts.plan.by_core().into_iter().map(|(core, roles)| CoreStatus {
            core: u32::from(core.0),
            roles: roles.into_iter().map(str::to_owned).collect(),
            worker_panics: self.worker_panics(core),
        });
        let cores: Vec<CoreStatus> = cores.collect();
        let worker_panics = cores.iter().map(|core| core.worker_panics).sum();
        let of_mmas =
            |count: fn(&MmaCounters) -> &Counter| -> u64 { self.parts.mmas.iter().map(|mma| count(mma).value()).sum() };
        let ports =
            (0..self.parts.ports.len()).map(|index| self.port_status(index)).chain([self.invoke_status()]).collect();
        let latencies = self.latencies();
        let mut listed = Listed::read(&self.parts.status_table);
        listed.chains.iter_mut().for_each(|chain| self.add_use(chain));
        let LogStatus { lost_lines: log_lines_lost, warning } = node_log::status();
        let mut warnings = self.parts.warnings.clone();
        warnings.extend(lockdown::warnings());
        warnings.extend(self.parts.ports.iter().zip(self.parts.observer.ports()).filter_map(device_warning));
        warnings.append(&mut MachineFacts::read().warnings(&self.parts.machine));
        warnings.append(&mut listed.warnings);
        warnings.extend(self.parts.workshop.derived().warnings());
        warnings.extend(warning);
        warnings.extend(worker_warning(worker_panics));
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            followed_version: listed.followed_version,
            cores,
            ports,
            tenants: self.tenant_statuses(&listed),
            chains: listed.chains,
            warnings,
            copied_bytes: of_mmas(|mma| &mma.copied_bytes),
            dropped_instance_ended: of_mmas(|mma| &mma.dropped_instance_ended),
            log_lines_lost,
            guest_lines_left_out: self.parts.log.left_out(),
            worker_panics,
            calls_redelivered: self.parts.invoke.redelivered.value(),
            neighbors: self.neighbors(),
            builds: self.parts.builds.statuses(),
            activation: latencies.activation.status(),
            chain_activation: latencies.chain_activation.status(),
            preparation: latencies.preparation.status(),
            run_queue_wait: latencies.run_queue_wait.status(),
            preemption_lateness: latencies.preemption_lateness.status(),
        }
    }

    /// Adds what a chain has used of the node.
    fn add_use(&self, chain: &mut ChainStatus) {
        let key = (chain.tenant.clone(), chain.chain.clone());
        chain.meter = MeterStatus {
            copied_bytes: chain.meter.copied_bytes,
            dropped: chain.drops.iter().map(|drop| drop.count).sum(),
            ..self.parts.meters.of_chain(&key)
        };
        if let Some(usage) = self.parts.accounts.of_chain(&key) {
            (chain.memory_kib, chain.memory_limit_kib) = (usage.used_kib, usage.limit_kib);
        }
    }

    /// Returns the statuses of the tenants. Packet counts are sums over the chains', so that chains and tenants agree: they come from one
    /// reading of the counters.
    fn tenant_statuses(&self, listed: &Listed) -> Vec<TenantStatus> {
        let mut packets: HashMap<&TenantName, (u64, u64)> = HashMap::new();
        for ChainStatus { tenant, meter, .. } in &listed.chains {
            let (copied_bytes, dropped) = packets.entry(tenant).or_default();
            (*copied_bytes, *dropped) = (*copied_bytes + meter.copied_bytes, *dropped + meter.dropped);
        }
        let status = |(tenant, usage): (TenantName, Usage)| {
            let (copied_bytes, dropped) = packets.get(&tenant).copied().unwrap_or_default();
            let meter = MeterStatus { copied_bytes, dropped, ..self.parts.meters.of_tenant(&tenant) };
            let (state, state_limit_kib) = self.parts.state.of_tenant(&tenant);
            let (fwps, FwpShare { guaranteed, refused, .. }) = listed.fwps.get(&tenant).copied().unwrap_or_default();
            TenantStatus {
                tenant,
                memory_kib: usage.used_kib,
                memory_limit_kib: usage.limit_kib,
                fwps,
                fwps_guaranteed: guaranteed,
                fwps_refused: refused,
                meter,
                state,
                state_limit_kib,
            }
        };
        self.parts.accounts.of_tenants().into_iter().map(status).collect()
    }

    /// Returns what the gateway knows of neighbours, by port and address.
    fn neighbors(&self) -> Vec<NeighborStatus> {
        let observer = &self.parts.observer;
        let mut neighbors = observer.neighbors().neighbors();
        neighbors.sort_unstable_by_key(|neighbor| (neighbor.network.0, neighbor.address));
        let status = |neighbor: Neighbor| {
            let Ingress { port, vlan } = *observer.networks().get(usize::from(neighbor.network.0))?;
            let id = |id: u16| (id != 0).then_some(u32::from(id));
            Some(NeighborStatus {
                port: self.parts.ports.get(usize::from(port.0))?.name.clone(),
                vlan: id(vlan.id),
                inner_vlan: id(vlan.inner_id),
                address: neighbor.address.to_string(),
                mac: neighbor.station.map(|station| mac(station.0)),
                state: match neighbor.state {
                    table::NeighborState::Asking => NeighborState::Asking,
                    table::NeighborState::Known => NeighborState::Known,
                    table::NeighborState::Checking => NeighborState::Checking,
                    table::NeighborState::Failed => NeighborState::Failed,
                },
            })
        };
        neighbors.into_iter().filter_map(status).collect()
    }

    fn port_status(&self, index: usize) -> PortStatus {
        let record = &self.parts.ports[index];
        let (received, sent) = (&record.counters.received, &record.counters.sent);
        let observed = self.parts.observer.ports().nth(index);
        let device_drops = [
            ("missed-by-device", observed.map_or(0, PortObserver::missed)),
            ("malformed-by-device", received.dropped_malformed.value()),
            ("transmit-full", sent.dropped_full.value()),
            ("transmit-refused", sent.dropped_refused.value()),
            ("transmit-runt", sent.dropped_runt.value()),
            ("transmit-unfit", sent.dropped_unfit.value()),
            ("link-down", sent.dropped_link_down.value()),
        ];
        let parsed_drops = observed.into_iter().flat_map(|port| port.drops.iter());
        let drops = parsed_drops
            .map(|(reason, count)| (reason.name(), count))
            .chain(device_drops)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| DropCount { reason: reason.to_owned(), count })
            .collect();
        // They change when the device is made again.
        let (station, mtu) =
            observed.and_then(PortObserver::mac_and_mtu).unwrap_or((record.facts.mac, record.facts.mtu));
        let mac = mac(station);
        PortStatus {
            name: record.name.clone(),
            device: record.device.clone(),
            mac,
            mtu: u32::from(mtu),
            link_up: observed.is_none_or(PortObserver::link_up),
            received: received.frames.value(),
            sent: sent.frames.value(),
            made_by_node: observed.map_or(0, |port| port.made.value()),
            drops,
        }
    }
}

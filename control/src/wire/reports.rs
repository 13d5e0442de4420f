//! Conversions of what a node reports of itself.

use super::{BadMessage, field};
use crate::model::{ChainName, FieldName, ModuleName, PortName, TenantName};
use crate::node::{
    BuildPhase, BuildStatus, ChainDrop, ChainInstanceStatus, ChainStatus, CoreStatus, DropCount, FwpCounters, FwpState,
    FwpStatus, JobStatus, LatencyStatus, MeterStatus, NeighborState, NeighborStatus, NodeStatus, PortStatus,
    ResourceUse, StateFieldStatus, TenantAccount, TenantStatus,
};
use crate::proto;

impl From<FwpState> for proto::FwpState {
    fn from(state: FwpState) -> Self {
        match state {
            FwpState::Object => proto::FwpState::Object,
            FwpState::Template => proto::FwpState::Template,
            FwpState::Restoring => proto::FwpState::Restoring,
            FwpState::Cached => proto::FwpState::Cached,
            FwpState::Active => proto::FwpState::Active,
            FwpState::Blocked => proto::FwpState::Blocked,
            FwpState::Terminated => proto::FwpState::Terminated,
            FwpState::Reclaimed => proto::FwpState::Reclaimed,
        }
    }
}

fn fwp_state(message: proto::FwpState) -> Result<FwpState, &'static str> {
    match message {
        proto::FwpState::Object => Ok(FwpState::Object),
        proto::FwpState::Template => Ok(FwpState::Template),
        proto::FwpState::Restoring => Ok(FwpState::Restoring),
        proto::FwpState::Cached => Ok(FwpState::Cached),
        proto::FwpState::Active => Ok(FwpState::Active),
        proto::FwpState::Blocked => Ok(FwpState::Blocked),
        proto::FwpState::Terminated => Ok(FwpState::Terminated),
        proto::FwpState::Reclaimed => Ok(FwpState::Reclaimed),
        proto::FwpState::Unspecified => Err("the node reports a state that this version does not know"),
    }
}

impl From<FwpStatus> for proto::Fwp {
    fn from(fwp: FwpStatus) -> Self {
        Self {
            id: fwp.id,
            tenant: fwp.tenant.into(),
            chain: fwp.chain.into(),
            module: fwp.module.into(),
            stage: fwp.stage,
            chain_instance: fwp.chain_instance,
            client: fwp.client,
            state: proto::FwpState::from(fwp.state).into(),
            worker_core: fwp.worker_core,
            memory_kib: fwp.memory_kib,
            age_ms: fwp.age_ms,
            counters: Some(fwp.counters.into()),
            run_queue_wait: Some(fwp.run_queue_wait.into()),
        }
    }
}

impl TryFrom<proto::Fwp> for FwpStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Fwp) -> Result<Self, BadMessage> {
        Ok(Self {
            state: field("fwp.state", fwp_state(message.state()))?,
            id: message.id,
            tenant: field("fwp.tenant", TenantName::new(message.tenant))?,
            chain: field("fwp.chain", ChainName::new(message.chain))?,
            module: field("fwp.module", ModuleName::new(message.module))?,
            stage: message.stage,
            chain_instance: message.chain_instance,
            client: message.client,
            worker_core: message.worker_core,
            memory_kib: message.memory_kib,
            age_ms: message.age_ms,
            counters: message.counters.unwrap_or_default().into(),
            run_queue_wait: message.run_queue_wait.unwrap_or_default().into(),
        })
    }
}

/// Converts between two structs with the same fields, in both directions.
macro_rules! same_fields {
    ($here:ident, $there:ident { $($field:ident),* $(,)? }) => {
        impl From<$here> for proto::$there {
            fn from(value: $here) -> Self {
                let $here { $($field),* } = value;
                Self { $($field),* }
            }
        }
        impl From<proto::$there> for $here {
            fn from(message: proto::$there) -> Self {
                let proto::$there { $($field),* } = message;
                Self { $($field),* }
            }
        }
    };
}
same_fields!(
    FwpCounters,
    FwpCounters {
        received,
        received_bytes,
        sent,
        sent_bytes,
        dropped_by_guest,
        dropped_no_slot,
        dropped_too_long,
        dropped_egress,
        dropped_instance_ended,
        dropped_by_graph,
        resumes,
        preemptions,
        cpu_us,
        wait_us,
        activations,
    }
);
same_fields!(CoreStatus, Core { core, roles, worker_panics });
same_fields!(DropCount, DropCount { reason, count });
same_fields!(ChainDrop, ChainDrop { place, reason, count });
same_fields!(LatencyStatus, Latency { count, p50_ns, p90_ns, p99_ns, max_ns });

impl From<ChainInstanceStatus> for proto::ChainInstance {
    fn from(instance: ChainInstanceStatus) -> Self {
        Self {
            id: instance.id,
            tenant: instance.tenant.into(),
            chain: instance.chain.into(),
            state: proto::FwpState::from(instance.state).into(),
            client: instance.client,
            fwp_ids: instance.fwp_ids,
            worker_core: instance.worker_core,
            age_ms: instance.age_ms,
            ended_because: instance.ended_because,
        }
    }
}

impl TryFrom<proto::ChainInstance> for ChainInstanceStatus {
    type Error = BadMessage;

    fn try_from(message: proto::ChainInstance) -> Result<Self, BadMessage> {
        Ok(Self {
            state: field("chain_instance.state", fwp_state(message.state()))?,
            id: message.id,
            tenant: field("chain_instance.tenant", TenantName::new(message.tenant))?,
            chain: field("chain_instance.chain", ChainName::new(message.chain))?,
            client: message.client,
            fwp_ids: message.fwp_ids,
            worker_core: message.worker_core,
            age_ms: message.age_ms,
            ended_because: message.ended_because,
        })
    }
}

impl proto::Status {
    /// Returns the node's own report with the version of the desired state that it ought to follow.
    pub(crate) fn new(desired_version: u64, node: NodeStatus) -> Self {
        Self {
            version: node.version,
            uptime_ms: node.uptime_ms,
            desired_version,
            followed_version: node.followed_version,
            cores: node.cores.into_iter().map(Into::into).collect(),
            ports: node.ports.into_iter().map(Into::into).collect(),
            chains: node.chains.into_iter().map(Into::into).collect(),
            warnings: node.warnings,
            copied_bytes: node.copied_bytes,
            dropped_instance_ended: node.dropped_instance_ended,
            log_lines_lost: node.log_lines_lost,
            guest_lines_left_out: node.guest_lines_left_out,
            worker_panics: node.worker_panics,
            calls_redelivered: node.calls_redelivered,
            neighbors: node.neighbors.into_iter().map(Into::into).collect(),
            builds: node.builds.into_iter().map(Into::into).collect(),
            tenants: node.tenants.into_iter().map(Into::into).collect(),
            activation: Some(node.activation.into()),
            chain_activation: Some(node.chain_activation.into()),
            preparation: Some(node.preparation.into()),
            run_queue_wait: Some(node.run_queue_wait.into()),
            preemption_lateness: Some(node.preemption_lateness.into()),
        }
    }
}

impl TryFrom<proto::Status> for NodeStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Status) -> Result<Self, BadMessage> {
        Ok(Self {
            version: message.version,
            uptime_ms: message.uptime_ms,
            followed_version: message.followed_version,
            cores: message.cores.into_iter().map(Into::into).collect(),
            ports: message.ports.into_iter().map(PortStatus::try_from).collect::<Result<_, _>>()?,
            chains: message.chains.into_iter().map(ChainStatus::try_from).collect::<Result<_, _>>()?,
            warnings: message.warnings,
            copied_bytes: message.copied_bytes,
            dropped_instance_ended: message.dropped_instance_ended,
            log_lines_lost: message.log_lines_lost,
            guest_lines_left_out: message.guest_lines_left_out,
            worker_panics: message.worker_panics,
            calls_redelivered: message.calls_redelivered,
            neighbors: message.neighbors.into_iter().map(NeighborStatus::try_from).collect::<Result<_, _>>()?,
            builds: message.builds.into_iter().map(BuildStatus::try_from).collect::<Result<_, _>>()?,
            tenants: message.tenants.into_iter().map(TenantStatus::try_from).collect::<Result<_, _>>()?,
            activation: message.activation.unwrap_or_default().into(),
            chain_activation: message.chain_activation.unwrap_or_default().into(),
            preparation: message.preparation.unwrap_or_default().into(),
            run_queue_wait: message.run_queue_wait.unwrap_or_default().into(),
            preemption_lateness: message.preemption_lateness.unwrap_or_default().into(),
        })
    }
}

impl From<BuildPhase> for proto::BuildPhase {
    fn from(phase: BuildPhase) -> Self {
        match phase {
            BuildPhase::Queued => proto::BuildPhase::Queued,
            BuildPhase::Validating => proto::BuildPhase::Validating,
            BuildPhase::Initialising => proto::BuildPhase::Initialising,
            BuildPhase::Compiling => proto::BuildPhase::Compiling,
        }
    }
}

fn build_phase(message: proto::BuildPhase) -> Result<BuildPhase, &'static str> {
    match message {
        proto::BuildPhase::Queued => Ok(BuildPhase::Queued),
        proto::BuildPhase::Validating => Ok(BuildPhase::Validating),
        proto::BuildPhase::Initialising => Ok(BuildPhase::Initialising),
        proto::BuildPhase::Compiling => Ok(BuildPhase::Compiling),
        proto::BuildPhase::Unspecified => Err("the node reports a phase that this version does not know"),
    }
}

impl From<BuildStatus> for proto::Build {
    fn from(build: BuildStatus) -> Self {
        Self {
            tenant: build.tenant.into(),
            module: build.module,
            phase: proto::BuildPhase::from(build.phase).into(),
            age_ms: build.age_ms,
        }
    }
}

impl TryFrom<proto::Build> for BuildStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Build) -> Result<Self, BadMessage> {
        Ok(Self {
            phase: field("build.phase", build_phase(message.phase()))?,
            tenant: field("build.tenant", TenantName::new(message.tenant))?,
            module: message.module,
            age_ms: message.age_ms,
        })
    }
}

impl From<MeterStatus> for proto::Meter {
    fn from(meter: MeterStatus) -> Self {
        let MeterStatus { cpu_us, activations, turns, preemptions, copied_bytes, dropped, run_queue_wait, .. } = meter;
        let run_queue_wait = Some(run_queue_wait.into());
        let [signatures, inferences] = [meter.signatures, meter.inferences].map(|jobs| Some(jobs.into()));
        Self { cpu_us, activations, turns, preemptions, copied_bytes, dropped, run_queue_wait, signatures, inferences }
    }
}

impl From<proto::Meter> for MeterStatus {
    fn from(message: proto::Meter) -> Self {
        let proto::Meter { cpu_us, activations, turns, preemptions, copied_bytes, dropped, .. } = message;
        let run_queue_wait = message.run_queue_wait.unwrap_or_default().into();
        let [signatures, inferences] =
            [message.signatures, message.inferences].map(|jobs| jobs.unwrap_or_default().into());
        Self { cpu_us, activations, turns, preemptions, copied_bytes, dropped, run_queue_wait, signatures, inferences }
    }
}

impl From<JobStatus> for proto::Jobs {
    fn from(jobs: JobStatus) -> Self {
        let JobStatus { waiting, done, dropped, refused_rate, refused_queue_full, refused_memory, spent_us } = jobs;
        Self { waiting, done, dropped, refused_rate, refused_queue_full, refused_memory, spent_us }
    }
}

impl From<proto::Jobs> for JobStatus {
    fn from(message: proto::Jobs) -> Self {
        let proto::Jobs { waiting, done, dropped, refused_rate, refused_queue_full, refused_memory, spent_us } =
            message;
        Self { waiting, done, dropped, refused_rate, refused_queue_full, refused_memory, spent_us }
    }
}

impl From<TenantStatus> for proto::TenantStatus {
    fn from(status: TenantStatus) -> Self {
        let TenantStatus { tenant, memory_kib, memory_limit_kib, meter, state, state_limit_kib, .. } = status;
        let TenantStatus { fwps, fwps_guaranteed, fwps_refused, .. } = status;
        let (tenant, meter) = (tenant.into(), Some(meter.into()));
        let state = state.into_iter().map(Into::into).collect();
        Self {
            tenant,
            memory_kib,
            memory_limit_kib,
            fwps,
            fwps_guaranteed,
            fwps_refused,
            meter,
            state,
            state_limit_kib,
        }
    }
}

impl TryFrom<proto::TenantStatus> for TenantStatus {
    type Error = BadMessage;

    fn try_from(message: proto::TenantStatus) -> Result<Self, BadMessage> {
        let proto::TenantStatus { tenant, memory_kib, memory_limit_kib, meter, state, state_limit_kib, .. } = message;
        let proto::TenantStatus { fwps, fwps_guaranteed, fwps_refused, .. } = message;
        let tenant = field("tenant_status.tenant", TenantName::new(tenant))?;
        let state = state.into_iter().map(StateFieldStatus::try_from).collect::<Result<_, _>>()?;
        let meter = meter.unwrap_or_default().into();
        Ok(Self {
            tenant,
            memory_kib,
            memory_limit_kib,
            fwps,
            fwps_guaranteed,
            fwps_refused,
            meter,
            state,
            state_limit_kib,
        })
    }
}

impl From<TenantAccount> for proto::TenantAccount {
    fn from(account: TenantAccount) -> Self {
        let resource = |ResourceUse { name, used, guaranteed, limit, refused }: ResourceUse| proto::ResourceUse {
            name,
            used,
            guaranteed,
            limit,
            refused,
        };
        let TenantAccount { tenant, resources } = account;
        Self { tenant: tenant.into(), resources: resources.into_iter().map(resource).collect() }
    }
}

impl TryFrom<proto::TenantAccount> for TenantAccount {
    type Error = BadMessage;

    fn try_from(message: proto::TenantAccount) -> Result<Self, BadMessage> {
        let resource = |message: proto::ResourceUse| {
            let proto::ResourceUse { name, used, guaranteed, limit, refused } = message;
            ResourceUse { name, used, guaranteed, limit, refused }
        };
        let proto::TenantAccount { tenant, resources } = message;
        let tenant = field("tenant_account.tenant", TenantName::new(tenant))?;
        Ok(Self { tenant, resources: resources.into_iter().map(resource).collect() })
    }
}

impl From<StateFieldStatus> for proto::StateFieldStatus {
    fn from(status: StateFieldStatus) -> Self {
        let StateFieldStatus { name, entries, entries_max, memory_kib, .. } = status;
        let StateFieldStatus { hits, misses, writes, denied, full, evicted, .. } = status;
        Self { name: name.into(), entries, entries_max, memory_kib, hits, misses, writes, denied, full, evicted }
    }
}

impl TryFrom<proto::StateFieldStatus> for StateFieldStatus {
    type Error = BadMessage;

    fn try_from(message: proto::StateFieldStatus) -> Result<Self, BadMessage> {
        let proto::StateFieldStatus { name, entries, entries_max, memory_kib, .. } = message;
        let proto::StateFieldStatus { hits, misses, writes, denied, full, evicted, .. } = message;
        let name = field("tenant_status.state.name", FieldName::new(name))?;
        Ok(Self { name, entries, entries_max, memory_kib, hits, misses, writes, denied, full, evicted })
    }
}

impl From<PortStatus> for proto::Port {
    fn from(port: PortStatus) -> Self {
        Self {
            name: port.name.into(),
            device: port.device,
            mac: port.mac,
            mtu: port.mtu,
            link_up: port.link_up,
            received: port.received,
            sent: port.sent,
            made_by_node: port.made_by_node,
            drops: port.drops.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<proto::Port> for PortStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Port) -> Result<Self, BadMessage> {
        Ok(Self {
            name: field("port.name", PortName::new(message.name))?,
            device: message.device,
            mac: message.mac,
            mtu: message.mtu,
            link_up: message.link_up,
            received: message.received,
            sent: message.sent,
            made_by_node: message.made_by_node,
            drops: message.drops.into_iter().map(Into::into).collect(),
        })
    }
}

impl From<NeighborState> for proto::NeighborState {
    fn from(state: NeighborState) -> Self {
        match state {
            NeighborState::Asking => Self::Asking,
            NeighborState::Known => Self::Known,
            NeighborState::Checking => Self::Checking,
            NeighborState::Failed => Self::Failed,
        }
    }
}

fn neighbor_state(message: proto::NeighborState) -> Result<NeighborState, &'static str> {
    match message {
        proto::NeighborState::Asking => Ok(NeighborState::Asking),
        proto::NeighborState::Known => Ok(NeighborState::Known),
        proto::NeighborState::Checking => Ok(NeighborState::Checking),
        proto::NeighborState::Failed => Ok(NeighborState::Failed),
        proto::NeighborState::Unspecified => Err("the node reports a state that this version does not know"),
    }
}

impl From<NeighborStatus> for proto::Neighbor {
    fn from(neighbor: NeighborStatus) -> Self {
        Self {
            state: proto::NeighborState::from(neighbor.state).into(),
            port: neighbor.port.into(),
            vlan: neighbor.vlan,
            inner_vlan: neighbor.inner_vlan,
            address: neighbor.address,
            mac: neighbor.mac,
        }
    }
}

impl TryFrom<proto::Neighbor> for NeighborStatus {
    type Error = BadMessage;

    fn try_from(message: proto::Neighbor) -> Result<Self, BadMessage> {
        Ok(Self {
            state: field("neighbor.state", neighbor_state(message.state()))?,
            port: field("neighbor.port", PortName::new(message.port))?,
            vlan: message.vlan,
            inner_vlan: message.inner_vlan,
            address: message.address,
            mac: message.mac,
        })
    }
}

impl From<ChainStatus> for proto::ChainStatus {
    fn from(chain: ChainStatus) -> Self {
        Self {
            tenant: chain.tenant.into(),
            chain: chain.chain.into(),
            ready: chain.ready,
            active: chain.active,
            failures: chain.failures,
            last_failure: chain.last_failure,
            drops: chain.drops.into_iter().map(Into::into).collect(),
            memory_kib: chain.memory_kib,
            memory_limit_kib: chain.memory_limit_kib,
            meter: Some(chain.meter.into()),
        }
    }
}

impl TryFrom<proto::ChainStatus> for ChainStatus {
    type Error = BadMessage;

    fn try_from(message: proto::ChainStatus) -> Result<Self, BadMessage> {
        Ok(Self {
            tenant: field("chain_status.tenant", TenantName::new(message.tenant))?,
            chain: field("chain_status.chain", ChainName::new(message.chain))?,
            ready: message.ready,
            active: message.active,
            failures: message.failures,
            last_failure: message.last_failure,
            drops: message.drops.into_iter().map(Into::into).collect(),
            memory_kib: message.memory_kib,
            memory_limit_kib: message.memory_limit_kib,
            meter: message.meter.unwrap_or_default().into(),
        })
    }
}

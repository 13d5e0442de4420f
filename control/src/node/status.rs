//! What a node reports of itself: its chains, instances, ports, cores and tenants.

use std::fmt;

use serde::Serialize;

use crate::model::{ChainName, FieldName, ModuleName, PortName, TenantName};

/// Where a stage's template, an FWP or a chain instance is in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FwpState {
    /// Of a stage: its module is known, but nothing is loaded from which an FWP could be created.
    Object,
    /// Of a stage: FWPs can be created from it.
    Template,
    /// Being created, or being torn down after its end.
    Restoring,
    /// Ready: it has run until its first wait, and is not assigned to a client.
    Cached,
    /// Serves a client.
    Active,
    /// Serves a client and waits for packets.
    Blocked,
    /// Ended; listed for a while longer so that the reason can be seen.
    Terminated,
    /// Reclaimed because memory was short, before it served a client; listed for a while longer.
    Reclaimed,
}

impl FwpState {
    /// All states, in the order of the life cycle.
    pub const ALL: [FwpState; 8] = [
        FwpState::Object,
        FwpState::Template,
        FwpState::Restoring,
        FwpState::Cached,
        FwpState::Active,
        FwpState::Blocked,
        FwpState::Terminated,
        FwpState::Reclaimed,
    ];

    /// Returns whether this is a state of a stage's template rather than of an FWP.
    pub fn is_of_template(self) -> bool {
        matches!(self, FwpState::Object | FwpState::Template)
    }
}

impl fmt::Display for FwpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FwpState::Object => "object",
            FwpState::Template => "template",
            FwpState::Restoring => "restoring",
            FwpState::Cached => "cached",
            FwpState::Active => "active",
            FwpState::Blocked => "blocked",
            FwpState::Terminated => "terminated",
            FwpState::Reclaimed => "reclaimed",
        })
    }
}

/// One feather-weight process, or the template of one stage of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FwpStatus {
    /// The node's id for it, never reused; of a stage's template `TENANT/CHAIN/STAGE`.
    pub id: String,
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// The chain it is part of.
    pub chain: ChainName,
    /// The module that it runs.
    pub module: ModuleName,
    /// The index of its stage in the chain, from 0.
    pub stage: u32,
    /// The chain instance it is part of; 0 for a template.
    pub chain_instance: u64,
    /// The address or flow it serves; none while it is cached or serves all matching packets.
    pub client: Option<String>,
    /// Its state.
    pub state: FwpState,
    /// The core whose worker runs it; 0 for a template, which all workers use.
    pub worker_core: u32,
    /// Its current linear memory.
    pub memory_kib: u64,
    /// Time since it was created.
    pub age_ms: u64,
    /// Its counters.
    pub counters: FwpCounters,
    /// How long it waited for each turn, from when it became runnable: rounded up to a power of two microseconds.
    pub run_queue_wait: LatencyStatus,
}

/// Counters of an FWP since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FwpCounters {
    /// Packets put into its pool.
    pub received: u64,
    /// Bytes of these packets.
    pub received_bytes: u64,
    /// Packets it sent that were passed on to the next stage or out of the node.
    pub sent: u64,
    /// Bytes of these packets.
    pub sent_bytes: u64,
    /// Packets that the function dropped.
    pub dropped_by_guest: u64,
    /// Packets to it that found no free slot in its pool.
    pub dropped_no_slot: u64,
    /// Packets to it that were longer than a slot.
    pub dropped_too_long: u64,
    /// Packets it sent that the egress port did not accept.
    pub dropped_egress: u64,
    /// Packets it sent to a stage that had ended.
    pub dropped_instance_ended: u64,
    /// Packets that an output or a branch of the chain leads nowhere.
    pub dropped_by_graph: u64,
    /// How often its worker resumed it, with packets or after a preemption.
    pub resumes: u64,
    /// How often it was preempted.
    pub preemptions: u64,
    /// CPU time used.
    pub cpu_us: u64,
    /// Time spent waiting for its turns, each from when it became runnable.
    pub wait_us: u64,
    /// The number of clients it was assigned to: 1 as soon as it has one.
    pub activations: u64,
}

impl FwpCounters {
    /// Returns the number of packets dropped, for all reasons.
    pub fn dropped(&self) -> u64 {
        self.dropped_by_guest
            + self.dropped_no_slot
            + self.dropped_too_long
            + self.dropped_egress
            + self.dropped_instance_ended
            + self.dropped_by_graph
    }
}

/// One running instance of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainInstanceStatus {
    /// The node's number for it, never reused.
    pub id: u64,
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// The chain it is an instance of.
    pub chain: ChainName,
    /// Its state.
    pub state: FwpState,
    /// The address or flow it serves; none while it is cached or serves all matching packets.
    pub client: Option<String>,
    /// Its FWPs, stage by stage.
    pub fwp_ids: Vec<String>,
    /// The core whose worker runs them.
    pub worker_core: u32,
    /// Time since it was created.
    pub age_ms: u64,
    /// Why it ended, if it did, as a sentence.
    pub ended_because: Option<String>,
}

/// The node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// The version of the software.
    pub version: String,
    /// Time since the node started.
    pub uptime_ms: u64,
    /// The version of the desired state that is completely in effect.
    pub followed_version: u64,
    /// The roles of each core in use.
    pub cores: Vec<CoreStatus>,
    /// The gateway's ports, in the order of the operator's configuration.
    pub ports: Vec<PortStatus>,
    /// The chains that the node follows.
    pub chains: Vec<ChainStatus>,
    /// Warnings for the operator, each a sentence.
    pub warnings: Vec<String>,
    /// Bytes of packets copied between pools, or between pools and the gateway.
    pub copied_bytes: u64,
    /// Packets that were in transit to an FWP when it ended.
    pub dropped_instance_ended: u64,
    /// Lines of the node's own log that could not be written.
    pub log_lines_lost: u64,
    /// Lines of functions that were left out of the node's own log, because a tenant exceeded its rate limit there.
    pub guest_lines_left_out: u64,
    /// How often workers have panicked since the node started: the sum of [`CoreStatus::worker_panics`].
    pub worker_panics: u64,
    /// How often calls of idempotent chains were delivered again, as the instance that had them ended.
    pub calls_redelivered: u64,
    /// What the node knows of the stations that it sends to, as far as it addresses packets itself.
    pub neighbors: Vec<NeighborStatus>,
    /// Templates that are being built, oldest first.
    pub builds: Vec<BuildStatus>,
    /// Tenants with active chains.
    pub tenants: Vec<TenantStatus>,
    /// How long new clients waited for a chain instance of their own: from when the gateway found that a packet's
    /// client had none, until the first stage had run its first instructions. Of a chain that is entered by a branch: until
    /// the stage that the packet reached had, and nothing if the branch can drop packets.
    pub activation: LatencyStatus,
    /// The same, until the last stage had run its first instructions; nothing of chains that are entered by a branch.
    pub chain_activation: LatencyStatus,
    /// How long it took to prepare each chain instance, before any client needed it.
    pub preparation: LatencyStatus,
    /// How long FWPs waited for each turn, from when they became runnable.
    pub run_queue_wait: LatencyStatus,
    /// How long it took to preempt FWPs whose quantum had ended.
    pub preemption_lateness: LatencyStatus,
}

/// The resources that a chain, or all chains of a tenant, have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MeterStatus {
    /// CPU time of FWPs, of copying what they sent, and of their jobs.
    pub cpu_us: u64,
    /// Clients that were assigned an instance.
    pub activations: u64,
    /// Turns of FWPs.
    pub turns: u64,
    /// How many of these ended because their quantum was over.
    pub preemptions: u64,
    /// Bytes of packets that were copied.
    pub copied_bytes: u64,
    /// Packets that were dropped: of a chain, the sum of [`ChainStatus::drops`].
    pub dropped: u64,
    /// How long FWPs waited for each turn, from when they became runnable.
    pub run_queue_wait: LatencyStatus,
    /// Handshakes that the node signed for FWPs.
    pub signatures: JobStatus,
    /// Runs of models for FWPs.
    pub inferences: JobStatus,
}

/// Jobs of one kind, which threads off the data path do for FWPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobStatus {
    /// Jobs that wait now.
    pub waiting: u64,
    /// Jobs that were done.
    pub done: u64,
    /// Jobs that were dropped, or their results, as their FWPs had ended.
    pub dropped: u64,
    /// Jobs that were refused, as the tenant asked for more in a second than it may.
    pub refused_rate: u64,
    /// Jobs that were refused, as the tenant had too many that waited or were under way.
    pub refused_queue_full: u64,
    /// Jobs that were not done, as the tenant had no memory left for them.
    pub refused_memory: u64,
    /// CPU time of all jobs, whatever became of them.
    pub spent_us: u64,
}

impl JobStatus {
    /// Returns how many jobs were refused, by reason. The reasons' names are stable.
    #[must_use]
    pub fn refused(&self) -> [(&'static str, u64); 3] {
        [("rate", self.refused_rate), ("queue-full", self.refused_queue_full), ("memory", self.refused_memory)]
    }

    /// Returns whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl MeterStatus {
    /// Returns the jobs of each kind, by the kind's name.
    #[must_use]
    pub fn jobs(&self) -> [(&'static str, JobStatus); 2] {
        [("signature", self.signatures), ("inference", self.inferences)]
    }
}

/// The phase of a template's build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BuildPhase {
    /// Waiting for its turn.
    Queued,
    /// Its module is being checked.
    Validating,
    /// Its module is being initialised with its configuration.
    Initialising,
    /// It is being compiled.
    Compiling,
}

impl BuildPhase {
    /// All phases, in order.
    pub const ALL: [BuildPhase; 4] =
        [BuildPhase::Queued, BuildPhase::Validating, BuildPhase::Initialising, BuildPhase::Compiling];
}

impl fmt::Display for BuildPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BuildPhase::Queued => "queued",
            BuildPhase::Validating => "validating",
            BuildPhase::Initialising => "initialising",
            BuildPhase::Compiling => "compiling",
        })
    }
}

/// A template that is being built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildStatus {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// What it is built from: a chain, a stage index, and that stage's module.
    pub module: String,
    /// Its phase.
    pub phase: BuildPhase,
    /// Time since the build began.
    pub age_ms: u64,
}

/// How long something took, over all occurrences since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyStatus {
    /// The number of occurrences.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

/// The roles of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreStatus {
    /// The core's number.
    pub core: u32,
    /// Its roles, such as `gateway`, `mma`, `worker`, `control`.
    pub roles: Vec<String>,
    /// How often its worker has panicked since the node started. All instances of the worker ended each time.
    pub worker_panics: u64,
}

/// A port of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Its name in rules and chains.
    pub name: PortName,
    /// The device string it was opened with.
    pub device: String,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU: the largest payload of a frame.
    pub mtu: u32,
    /// Whether the link is up.
    pub link_up: bool,
    /// Frames that were received.
    pub received: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that the node made itself to be sent here, answers to neighbours excepted.
    pub made_by_node: u64,
    /// Frames that were dropped, by reason. Reasons that never occurred are left out.
    pub drops: Vec<DropCount>,
}

/// The next hop of packets that the node addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeighborStatus {
    /// The port.
    pub port: PortName,
    /// The VLAN in which it is, by its outer tag; none if it is untagged.
    pub vlan: Option<u32>,
    /// By its inner tag, if there are two.
    pub inner_vlan: Option<u32>,
    /// Its address.
    pub address: String,
    /// Its hardware address, if it has answered.
    pub mac: Option<String>,
    /// What is known of it.
    pub state: NeighborState,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NeighborState {
    /// It was asked for and has not answered yet.
    Asking,
    /// It has answered.
    Known,
    /// It has answered a while ago, and is asked whether it is still there.
    Checking,
    /// It was asked for in vain.
    Failed,
}

impl fmt::Display for NeighborState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asking => "asking",
            Self::Known => "known",
            Self::Checking => "checking",
            Self::Failed => "failed",
        })
    }
}

/// How many frames were dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropCount {
    /// The reason, in a word or two.
    pub reason: String,
    /// The number of frames.
    pub count: u64,
}

/// How many packets of a chain were dropped in one place for one reason, including those of ended instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainDrop {
    /// A stage's index in the chain, from 0, and its module, such as `0/icmp-echo`; or `gateway`; or `earlier`, for
    /// stages that the chain no longer has.
    pub place: String,
    /// The reason, in a word or two.
    pub reason: String,
    /// The number of packets.
    pub count: u64,
}

/// The status of one chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainStatus {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub chain: ChainName,
    /// Instances that wait for a client.
    pub ready: u32,
    /// Instances that serve a client.
    pub active: u32,
    /// Instances that ended by a fault of their own, or could not be created.
    pub failures: u64,
    /// The latest of these failures, as a sentence.
    pub last_failure: Option<String>,
    /// Packets that were dropped, by place and reason. What never occurred is left out.
    pub drops: Vec<ChainDrop>,
    /// Linear memory of all its FWPs.
    pub memory_kib: u64,
    /// The limit for all its FWPs together, if there is one.
    pub memory_limit_kib: Option<u64>,
    /// The resources it has used since it became active.
    pub meter: MeterStatus,
}

/// The resources that a tenant's FWPs use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantStatus {
    /// The tenant.
    pub tenant: TenantName,
    /// The memory of all its FWPs: linear memory, changed files, tables, stacks, what the engine keeps of each,
    /// the code and files of templates, and models with their runs.
    pub memory_kib: u64,
    /// The limit for all its FWPs together, if the operator has set one.
    pub memory_limit_kib: Option<u64>,
    /// How many FWPs it has.
    pub fwps: u64,
    /// How many FWPs it is guaranteed.
    pub fwps_guaranteed: u64,
    /// How often the launcher found no room for an instance: all other FWPs of the node were taken, or guaranteed to other
    /// tenants.
    pub fwps_refused: u64,
    /// The resources that its active chains have used.
    pub meter: MeterStatus,
    /// The state that its chains keep, by name.
    pub state: Vec<StateFieldStatus>,
    /// The limit for the memory of all these fields together.
    pub state_limit_kib: u64,
}

/// Counters of a field of state since it was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateFieldStatus {
    /// The field.
    pub name: FieldName,
    /// Current entries, including expired entries that were not accessed since they expired.
    pub entries: u64,
    /// The declared maximum of entries.
    pub entries_max: u64,
    /// Memory that it uses, independent of the number of entries.
    pub memory_kib: u64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Lookups that found no entry.
    pub misses: u64,
    /// Changes of any kind.
    pub writes: u64,
    /// Calls that were refused for lack of a grant.
    pub denied: u64,
    /// New entries that were refused because the field was full.
    pub full: u64,
    /// Entries that were evicted to make room.
    pub evicted: u64,
}

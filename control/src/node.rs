//! What this crate asks of a data plane: the [`Node`] trait, and what a node reports of itself.
//!
//! Implemented by the runtime, called by [`crate::Control`]. This module holds no logic and must never learn what
//! a packet, a ring or a Wasm engine is.
//!
//! ```text
//!   upload      admit(wasm)               judge it; the bytes are stored only if this says yes
//!               admit_files(archive)      the same
//!   change      check(state)              could the node do it? nothing is changed yet
//!               build(state, uploads)     make the templates that its chains need
//!               -- the state becomes durable --
//!               follow(state)             do it; states come one after another, versions only grow
//! ```
//!
//! All methods are called from threads that may block, `admit` and `admit_files` one at a time, `check`, `build` and `follow` one after
//! another, the reports at any time and from many threads at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::journal::Journal;
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{ChainName, DesiredState, FieldName, Files, Module, ModuleName, ObjectRef, PortName, TenantName};

/// A data plane that follows a desired state.
pub trait Node: Send + Sync + 'static {
    /// Judges a module, before it is stored. A refusal is a sentence for the tenant, without the digest or the name of the
    /// module.
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal>;

    /// Judges the archive of a stage's files, before it is stored. A refusal is a sentence for the tenant, without the digest.
    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal>;

    /// Could the node follow this state? Port names that the node does not have, more stages than it has places: what
    /// [`DesiredState::apply`] can't know and is seen at a glance.
    ///
    /// Must change nothing that a client could notice: the state may still be thrown away. A refusal names the object, as
    /// [`crate::model::ObjectRef`] prints it.
    fn check(&self, state: &DesiredState) -> Result<(), Refusal>;

    /// Builds the templates that the state's chains need and that are not there: initialises modules with their
    /// configurations and files and compiles them; may take many seconds. Returns the chains for which that failed and why, such as a
    /// configuration that a function refuses, in sentences as of `check`.
    ///
    /// Called before a state becomes durable, which it does not if there is a refusal, and when the node starts. Nothing a
    /// client could notice changes.
    fn build(&self, state: &DesiredState, uploads: &dyn UploadedBytes) -> Vec<(ObjectRef, Refusal)>;

    /// Follows the state from now on. It passed `check` and is durable, so this can't be refused.
    ///
    /// Called once when the node starts, with the restored state, whatever `check` would say of it by now (the
    /// operator may have taken a port away): what can't be followed is left out and said in
    /// [`NodeStatus::warnings`]. The call returns when the state has been taken over; new clients meet it from
    /// then on, while [`NodeStatus::followed_version`] says when all of it is in effect.
    fn follow(&self, state: Arc<DesiredState>);

    /// Calls a chain of the state that is followed, and sees to it that `answered` is called once with what came of it. Does not wait.
    fn invoke(&self, call: Call, answered: Answered);

    /// All chain instances there are, and those that ended of late.
    fn chain_instances(&self) -> Vec<ChainInstanceStatus>;

    /// The template of each stage of each chain, all FWPs there are, and those that ended of late.
    fn fwps(&self) -> Vec<FwpStatus>;

    /// What functions say, which the node writes there as it comes.
    fn journal(&self) -> &Arc<Journal>;

    /// What functions of these chains count, by chain, stage, name and labels.
    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus>;

    /// The node as a whole.
    fn status(&self) -> NodeStatus;
}

/// A chain called by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who owns it.
    pub tenant: TenantName,
    /// Its name.
    pub chain: ChainName,
    /// What its first stage gets.
    pub payload: Vec<u8>,
    /// How long the caller waits.
    pub timeout: Duration,
}

/// What is called with the answer's payload, or why there is none. It does not wait.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, InvokeError>) + Send>;

/// Why a call has no answer: a sentence for whoever called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The payload is longer than a message holds.
    #[error("{0}")]
    TooLong(String),
    /// The chain is there and cannot be in force.
    #[error("{0}")]
    NotInForce(String),
    /// The node has no room for it now.
    #[error("{0}")]
    Exhausted(String),
    /// No instance of it could be had; it has not been called.
    #[error("{0}")]
    NoInstance(String),
    /// There was no answer within the caller's time.
    #[error("{0}")]
    Deadline(String),
    /// The instance that was called ended and has not answered.
    #[error("{0}")]
    Ended(String),
}

/// Where a node finds the bytes that tenants have uploaded.
pub trait UploadedBytes: Sync {
    /// The bytes of a module; else a sentence.
    fn wasm(&self, module: &Module) -> Result<Vec<u8>, String>;
    /// The archive of a stage's files; else a sentence.
    fn files(&self, files: &Files) -> Result<Vec<u8>, String>;
}

/// Why a node would not do something: a sentence for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// What was asked for is wrong in itself, on every node: not a Wasm module, another ABI, a bad configuration.
    #[error("{0}")]
    Invalid(String),
    /// This node can't do it as it is now: it has no such port, it did not admit the module.
    #[error("{0}")]
    Unfit(String),
    /// The node has no room left for it.
    #[error("{0}")]
    Exhausted(String),
    /// The node failed; whoever asked can't help it.
    #[error("{0}")]
    Failed(String),
}

/// Where a stage's template, an FWP or a chain instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FwpState {
    /// Of a stage: its module is known, and nothing is loaded that an FWP could be made of.
    Object,
    /// Of a stage: FWPs can be made of it.
    Template,
    /// Being made, or being taken apart after its end.
    Restoring,
    /// Ready, has run to its first wait, belongs to no client.
    Cached,
    /// Serves a client.
    Active,
    /// Serves a client and waits for packets.
    Blocked,
    /// Over; listed a while longer so that people see why.
    Terminated,
    /// Taken back, as memory was short, before it had served anybody; listed a while longer.
    Reclaimed,
}

impl FwpState {
    /// All of them, in the order of a life.
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

    /// Whether it is a stage's template that is in this state, and no FWP.
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

/// One feather-weight process, or what those of one stage of a chain are made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FwpStatus {
    /// The node's name for it, never given twice; of a stage's template `TENANT/CHAIN/STAGE`.
    pub id: String,
    /// Whose it is.
    pub tenant: TenantName,
    /// The chain it is part of.
    pub chain: ChainName,
    /// What it runs.
    pub module: ModuleName,
    /// Its place in the chain, from 0.
    pub stage: u32,
    /// The chain instance it is part of; 0 for a template.
    pub chain_instance: u64,
    /// The address or flow it serves; none while it is cached or serves all that matches.
    pub client: Option<String>,
    /// Where it is in its life.
    pub state: FwpState,
    /// The core whose worker runs it; 0 for a template, which all workers have.
    pub worker_core: u32,
    /// Its linear memory as it stands.
    pub memory_kib: u64,
    /// Since it was made.
    pub age_ms: u64,
    /// What it did so far.
    pub counters: FwpCounters,
    /// How long it waited for its turns, from when it had something to do: to the next power of two of a microsecond.
    pub run_queue_wait: LatencyStatus,
}

/// What an FWP did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FwpCounters {
    /// Packets put into its pool.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets it sent that went on to the next stage or out.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the function dropped.
    pub dropped_by_guest: u64,
    /// Packets for it that found no free slot in its pool.
    pub dropped_no_slot: u64,
    /// Packets for it that were longer than a slot.
    pub dropped_too_long: u64,
    /// Packets it sent that the egress port did not take.
    pub dropped_egress: u64,
    /// Packets it sent to a stage that was gone.
    pub dropped_gone: u64,
    /// How often its worker resumed it, with packets or after a preemption.
    pub resumes: u64,
    /// How often it was preempted.
    pub preemptions: u64,
    /// The time it ran.
    pub cpu_us: u64,
    /// The time it waited for its turns, from when it had something to do.
    pub wait_us: u64,
    /// Clients that it was given to: 1 as soon as it has one.
    pub activations: u64,
}

impl FwpCounters {
    /// Packets dropped for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_by_guest + self.dropped_no_slot + self.dropped_too_long + self.dropped_egress + self.dropped_gone
    }
}

/// One running copy of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainInstanceStatus {
    /// The node's number for it, never given twice.
    pub id: u64,
    /// Whose it is.
    pub tenant: TenantName,
    /// What it is a copy of.
    pub chain: ChainName,
    /// Where it is in its life.
    pub state: FwpState,
    /// The address or flow it serves; none while it is cached or serves all that matches.
    pub client: Option<String>,
    /// Its FWPs, stage by stage.
    pub fwp_ids: Vec<String>,
    /// The core whose worker runs them.
    pub worker_core: u32,
    /// Since it was made.
    pub age_ms: u64,
    /// Why it ended, if it did: a sentence.
    pub ended_because: Option<String>,
}

/// The node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// The version of the software.
    pub version: String,
    /// Since the node started.
    pub uptime_ms: u64,
    /// The version of the desired state that is wholly in effect.
    pub followed_version: u64,
    /// What each core in use does.
    pub cores: Vec<CoreStatus>,
    /// The gateway's ports, in the order of the operator's configuration.
    pub ports: Vec<PortStatus>,
    /// The chains that the node follows.
    pub chains: Vec<ChainStatus>,
    /// What an operator ought to know, each a sentence.
    pub warnings: Vec<String>,
    /// Bytes of packets copied, from pool to pool or between pools and the gateway.
    pub copied_bytes: u64,
    /// Packets that were on their way to an FWP when it ended.
    pub dropped_gone: u64,
    /// Templates that are being built, the oldest first.
    pub builds: Vec<BuildStatus>,
    /// Tenants that have chains in force.
    pub tenants: Vec<TenantStatus>,
    /// How long new clients waited for a chain instance of their own: from the moment at which the gateway found that a packet's
    /// client had none, until the first stage had run its first instructions.
    pub activation: LatencyStatus,
    /// The same until the last stage had.
    pub chain_activation: LatencyStatus,
    /// How long it took to prepare each chain instance, before any client needed it.
    pub preparation: LatencyStatus,
    /// How long FWPs waited for each of their turns, from when they had something to do.
    pub run_queue_wait: LatencyStatus,
    /// How long it took to get FWPs off their cores whose quantum was over.
    pub preemption_lateness: LatencyStatus,
}

/// What a chain, or a tenant's chains, have had of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MeterStatus {
    /// Time that FWPs had on cores.
    pub cpu_us: u64,
    /// Clients that were given an instance.
    pub activations: u64,
    /// Turns of FWPs.
    pub turns: u64,
    /// How many of these ended as their quantum was over.
    pub preemptions: u64,
    /// Bytes of packets that were copied.
    pub copied_bytes: u64,
    /// Packets that were dropped: of a chain all that [`ChainStatus::drops`] lists.
    pub dropped: u64,
    /// How long FWPs waited for their turns, from when they had something to do.
    pub run_queue_wait: LatencyStatus,
}

/// How far the building of a template has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BuildPhase {
    /// Waits for its turn.
    Queued,
    /// Its module is being checked.
    Validating,
    /// Its module is being initialised with its configuration.
    Initialising,
    /// It is being compiled.
    Compiling,
}

impl BuildPhase {
    /// All of them, in their order.
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
    /// Whose it is.
    pub tenant: TenantName,
    /// What it is built of: a chain, a stage of it, and that stage's module.
    pub module: String,
    /// How far it has come.
    pub phase: BuildPhase,
    /// Since the building began.
    pub age_ms: u64,
}

/// How long something took, each time since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyStatus {
    /// How often.
    pub count: u64,
    /// What half of the times did not exceed.
    pub p50_ns: u64,
    /// What nine in ten did not exceed.
    pub p90_ns: u64,
    /// What 99 in a hundred did not exceed.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What one core does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoreStatus {
    /// The core's number.
    pub core: u32,
    /// Its roles, such as `gateway`, `mma`, `worker`, `control`.
    pub roles: Vec<String>,
}

/// A port of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Its name in rules and chains.
    pub name: PortName,
    /// The device string it was opened with.
    pub device: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Its largest payload of a frame.
    pub mtu: u32,
    /// Whether it has a link.
    pub link_up: bool,
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames that were dropped, by reason; reasons that never occurred are left out.
    pub drops: Vec<DropCount>,
}

/// How many frames were dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropCount {
    /// Why, in a word or two.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// How many packets of a chain were dropped in one place for one reason, those of ended instances included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainDrop {
    /// A stage's place in the chain, from 0, and its module, such as `0/icmp-echo`; `gateway`; or `earlier` for stages that
    /// the chain no longer has.
    pub place: String,
    /// Why, in a word or two.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// How one chain is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainStatus {
    /// Whose it is.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub chain: ChainName,
    /// Instances that wait for a client.
    pub ready: u32,
    /// Instances that serve one.
    pub active: u32,
    /// Instances that ended by a fault of theirs, or could not be made.
    pub failures: u64,
    /// The latest of these: a sentence.
    pub last_failure: Option<String>,
    /// Packets that were dropped, by place and reason; what never occurred is left out.
    pub drops: Vec<ChainDrop>,
    /// Linear memory of all its FWPs.
    pub memory_kib: u64,
    /// What they may have together, if there is a limit.
    pub memory_limit_kib: Option<u64>,
    /// What it has had since it came into force.
    pub meter: MeterStatus,
}

/// What a tenant's FWPs have of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantStatus {
    /// Who it is.
    pub tenant: TenantName,
    /// Linear memory of all its FWPs.
    pub memory_kib: u64,
    /// What they may have together, if the operator has set a limit.
    pub memory_limit_kib: Option<u64>,
    /// What its chains that are in force have had.
    pub meter: MeterStatus,
    /// The state that its chains keep, by name.
    pub state: Vec<StateFieldStatus>,
    /// What all of these may take of memory.
    pub state_limit_kib: u64,
}

/// What became of a field of state since it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateFieldStatus {
    /// Which.
    pub name: FieldName,
    /// Entries now, with those that have expired and that nobody has asked for since.
    pub entries: u64,
    /// How many it was declared for.
    pub entries_max: u64,
    /// Memory that it takes, however many entries there are.
    pub memory_kib: u64,
    /// Entries that were asked for and were there.
    pub hits: u64,
    /// Entries that were asked for and were not there.
    pub misses: u64,
    /// Changes of any kind.
    pub writes: u64,
    /// Calls that were not granted.
    pub denied: u64,
    /// Entries that found no room.
    pub full: u64,
    /// Entries that went to make room.
    pub evicted: u64,
}

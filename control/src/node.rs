//! The interface to a data plane: the [`Node`] trait, and what a node reports of itself.
//!
//! The runtime implements it, and [`crate::Control`] calls it. This module holds no logic, and must never know what a
//! packet, a ring or a Wasm engine is.
//!
//! ```text
//!   upload      admit(wasm)               validate it; the bytes are stored only if this succeeds
//!               admit_files(archive)      the same
//!   change      check(state)              can the node apply it? changes nothing
//!               hold(state, chains)       keep what is built of their templates from here on
//!               build(state, chains)      build the templates that they need; then from the beginning, as others may
//!                                         have made changes meanwhile
//!               unfit(state, chains)      can the node apply it, by what the templates need?
//!               -- the state becomes durable --
//!               follow(state)             apply it; states come one after another, versions only grow
//! ```
//!
//! All methods are called from threads that may block. `admit` and `admit_files` are called one at a time, and `check`,
//! `hold`, `lacks`, `unfit`, `retry` and `follow` one after another. `build`, `stop_builds` and the reports may be called
//! at any time and from many threads at once.

mod resources;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

pub use self::resources::{ResourceUse, TenantAccount};
use crate::journal::Journal;
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{
    ChainKey, ChainName, DesiredState, FieldName, Files, Module, ModuleName, ObjectRef, PortName, TenantName,
};

/// A data plane that applies a desired state.
pub trait Node: Send + Sync + 'static {
    /// Validates a module before it is stored. A refusal is a sentence for the tenant, without the digest or the name
    /// of the module.
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal>;

    /// Validates the archive of a stage's files before it is stored. A refusal is a sentence for the tenant, without
    /// the digest.
    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal>;

    /// Checks whether the node could follow this state. Covers what [`DesiredState::apply`] can't know and what is
    /// cheap to check: port names that the node does not have, or more stages than it has room for.
    ///
    /// Judges only what differs between `before` and `state`. An object that was stored under an earlier configuration,
    /// and does not fit the present one, must not block changes to other tenants' objects.
    ///
    /// Must change nothing that a client could notice, since the state may still be discarded. A refusal names the
    /// object, as [`crate::model::ObjectRef`] prints it.
    fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), Refusal>;

    /// Builds the templates that these chains of the state need and that are missing: initialises modules with their
    /// configurations and files, and compiles them. May take many seconds. Returns the chains for which that failed and
    /// why, such as a configuration that a function refuses, as sentences like those of `check`.
    ///
    /// Called before a state becomes durable, and after the node has started. Several calls share the node's builders:
    /// tenants take turns. Changes nothing that a client could notice.
    fn build(
        &self,
        state: &DesiredState,
        chains: &BTreeSet<ChainKey>,
        uploads: &dyn UploadedBytes,
    ) -> Vec<(ObjectRef, Refusal)>;

    /// Returns those of these chains of the state that could never have an instance although none of their templates is
    /// missing, and why, as sentences like those of `check`: limits that are too small for what a template needs. Cheap.
    fn unfit(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Vec<(ObjectRef, Refusal)>;

    /// Keeps the templates that these chains of the state need, and that are or will be built, until the returned value
    /// is dropped. Templates that no followed state needs, and that are not held, are removed.
    fn hold(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Hold;

    /// Returns whether a template that these chains of the state need is missing, or damaged, so that `build` would make
    /// it. Cheap.
    fn lacks(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> bool;

    /// Ends the builds under way, and refuses others from now on. Called when the node is to stop.
    fn stop_builds(&self);

    /// Returns a receiver that changes each time the node finds files of its own damaged that `build` makes again.
    fn damaged(&self) -> watch::Receiver<u64>;

    /// Notes that these objects of the state were applied again. Chains that are held back because one of their
    /// functions ended the node may be started once more. Returns whether the state has to be followed for that, or for
    /// what `build` has made, even if it is followed already.
    fn retry(&self, state: &DesiredState, objects: &[&ObjectRef]) -> bool;

    /// Follows the state from now on. It passed `check` and is durable, so this can't be refused.
    ///
    /// Called once when the node starts, with the restored state, regardless of what `check` would say of it now (the
    /// operator may have removed a port), and before anything is built for it. What can't be followed is left out and reported in [`NodeStatus::warnings`].
    /// The call returns when the node has accepted the state. From then on new clients get the new state, and
    /// [`NodeStatus::followed_version`] tells when all of it is in effect.
    fn follow(&self, state: Arc<DesiredState>);

    /// Calls a chain of the followed state. `answered` is called exactly once, with the result, unless the returned
    /// handle is dropped before. Does not wait.
    fn invoke(&self, call: Call, answered: Answered) -> CallHandle;

    /// Returns all chain instances that exist, and those that ended recently.
    fn chain_instances(&self) -> Vec<ChainInstanceStatus>;

    /// Returns the template of each stage of each chain, all FWPs that exist, and those that ended recently.
    fn fwps(&self) -> Vec<FwpStatus>;

    /// Returns the journal, to which the node writes the log lines of functions as they arrive.
    fn journal(&self) -> &Arc<Journal>;

    /// Returns the metrics of these chains' functions, by chain, stage, name and labels.
    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus>;

    /// Returns what a tenant has of what the node shares among tenants; empty if none of its chains is active.
    fn resources(&self, tenant: &TenantName) -> Vec<ResourceUse>;

    /// Returns the status of the whole node.
    fn status(&self) -> NodeStatus;
}

/// A call of a chain by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tenant that owns the chain.
    pub tenant: TenantName,
    /// Its name.
    pub chain: ChainName,
    /// The message for its first stage.
    pub payload: Vec<u8>,
    /// How long the caller waits.
    pub timeout: Duration,
}

/// A call under way. Dropping it gives the call up, so that it takes no place any more. After the answer that does
/// nothing.
pub type CallHandle = OnDrop;

/// Templates that are kept. Dropping it lets go of them.
pub type Hold = OnDrop;

/// Something that ends when this is dropped.
#[derive(Default)]
#[must_use = "it ends when this is dropped"]
pub struct OnDrop(Option<Box<dyn FnOnce() + Send>>);

impl OnDrop {
    /// Makes a handle of something that this function ends.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// The callback for a call's result: the answer's payload, or why there is none. It must not block.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, InvokeError>) + Send>;

/// Why a call has no answer, as a sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The payload is longer than a message may be.
    #[error("{0}")]
    TooLong(String),
    /// The chain exists but cannot be activated.
    #[error("{0}")]
    ChainUnavailable(String),
    /// The node has no room for the call now.
    #[error("{0}")]
    Exhausted(String),
    /// No instance could be provided; the chain was not called.
    #[error("{0}")]
    NoInstance(String),
    /// There was no answer within the caller's timeout.
    #[error("{0}")]
    Deadline(String),
    /// The instance that was called ended without an answer.
    #[error("{0}")]
    Ended(String),
}

/// Where a node reads the bytes that tenants have uploaded.
pub trait UploadedBytes: Sync {
    /// Returns the bytes of a module; otherwise a sentence that says why not.
    fn wasm(&self, module: &Module) -> Result<Vec<u8>, String>;
    /// Returns the archive of a stage's files; otherwise a sentence that says why not.
    fn files(&self, files: &Files) -> Result<Vec<u8>, String>;
}

/// Why a node refused, as a sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is invalid on every node: not a Wasm module, another ABI, a bad configuration.
    #[error("{0}")]
    Invalid(String),
    /// This node can't do it in its present state: it has no such port, or it did not admit the module.
    #[error("{0}")]
    Unfit(String),
    /// The node has no room left for it.
    #[error("{0}")]
    Exhausted(String),
    /// The node failed; the caller can't fix that.
    #[error("{0}")]
    Failed(String),
    /// The node is about to stop, and begins nothing more that takes long.
    #[error("the node stops: ask again once it runs")]
    Stopping,
}

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
    /// Templates that are being built, oldest first.
    pub builds: Vec<BuildStatus>,
    /// Tenants with active chains.
    pub tenants: Vec<TenantStatus>,
    /// How long new clients waited for a chain instance of their own: from when the gateway found that a packet's
    /// client had none, until the first stage had run its first instructions.
    pub activation: LatencyStatus,
    /// The same, until the last stage had run its first instructions.
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
    /// CPU time of FWPs, and of copying what they sent.
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
    /// Frames that were dropped, by reason. Reasons that never occurred are left out.
    pub drops: Vec<DropCount>,
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
    /// Linear memory of all its FWPs.
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

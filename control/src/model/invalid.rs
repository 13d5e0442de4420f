//! Why a change is refused.

use super::branch::{BranchPart, BranchProblem, BranchSite, CHAIN_CASES_MAX};
use super::chain::{
    CACHE_INSTANCES_MAX, CONFIG_BYTES_MAX, DRAIN_TIMEOUT_MS_MAX, HOLD_FRAMES_MAX, IDLE_TIMEOUT_MS_MAX,
    IDLE_TIMEOUT_MS_MIN, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX, STAGES_MAX,
};
use super::fields::{FIELDS_MAX, FieldProblem};
use super::granted::STAGE_GRANTS_MAX;
use super::outbound::OUTBOUND_MAX;
use super::outputs::OUTPUTS_MAX;
use super::scheduling::{CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN, CPU_PER_SECOND_MS_MAX};
use super::tenant::GRANTS_MAX;
use super::{FieldName, Label, ModuleName, ObjectRef, PortName, Prefix, Protocol, StageName, TenantName, VlanId};

/// What to do where objects are too many.
pub(super) const REMEDY: &str = "delete some first";
/// What to do where uploads are.
pub(super) const REMEDY_FOR_UPLOADS: &str = "delete modules, keys, models or chains with files that are not needed: uploads that no object \
    names give way once they are an hour old";

/// A change that would make the desired state invalid. Nothing of it was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A tenant's terms are invalid in themselves.
    #[error("{tenant}: {problem}")]
    Tenant {
        /// The tenant.
        tenant: ObjectRef,
        /// What is wrong.
        problem: TenantProblem,
    },
    /// A chain or a rule uses what its tenant is not granted.
    #[error("{object}: {problem}, or ask the operator for more ([[tenant]] of {})", .object.tenant())]
    NotGranted {
        /// The chain or the rule.
        object: ObjectRef,
        /// What it uses.
        problem: NotGranted,
    },
    /// A tenant to be deleted still has objects.
    #[error(
        "tenant {tenant} still has objects ({}): delete them first, or all together",
        counted(.objects)
    )]
    TenantInUse {
        /// The tenant.
        tenant: TenantName,
        /// How many objects it has of each kind.
        objects: Vec<(&'static str, usize)>,
    },
    /// The change would give a tenant more than the operator grants it.
    #[error(
        "{what}: tenant {tenant} would have {count}, and the operator grants it {max} ({key}): {remedy}, or ask the operator for more"
    )]
    OverQuota {
        /// The tenant.
        tenant: TenantName,
        /// Of what, in which unit.
        what: &'static str,
        /// How much it would have.
        count: u64,
        /// How much it may have.
        max: u64,
        /// The key of the tenant's that says so.
        key: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A chain is invalid in itself.
    #[error("{chain}: {problem}")]
    Chain {
        /// The chain.
        chain: ObjectRef,
        /// What is wrong.
        problem: ChainProblem,
    },
    /// A rule is invalid in itself.
    #[error("{rule}: {problem}")]
    Rule {
        /// The rule.
        rule: ObjectRef,
        /// What is wrong.
        problem: RuleProblem,
    },
    /// A chain names a module that its tenant does not have.
    #[error(
        "{chain}: stage {stage} names the module {module}, which its tenant does not have: apply the module first or with it"
    )]
    UnknownModule {
        /// The chain.
        chain: ObjectRef,
        /// Which stage, from 1.
        stage: usize,
        /// The name that was not found.
        module: ModuleName,
    },
    /// A chain names a key or a model that its tenant does not have.
    #[error("{chain}: stage {stage} names {object}, which does not exist: apply it first or with the chain")]
    UnknownGranted {
        /// The chain.
        chain: ObjectRef,
        /// Which stage, from 1.
        stage: usize,
        /// The object that does not exist.
        object: ObjectRef,
    },
    /// A rule names a chain that its tenant does not have.
    #[error("{rule} names {chain}, which does not exist: apply the chain first or with it")]
    UnknownChain {
        /// The rule.
        rule: ObjectRef,
        /// The chain that does not exist.
        chain: ObjectRef,
    },
    /// Two rules of a tenant with the same match and priority.
    #[error("{first} and {second} are alike: both match {what} at priority {priority}; change one's match or priority")]
    Alike {
        /// One of them.
        first: ObjectRef,
        /// The other.
        second: ObjectRef,
        /// What both match.
        what: String,
        /// The priority of both.
        priority: u32,
    },
    /// Two chains of a tenant declare one field differently.
    #[error(
        "{first} and {second} declare the state field {field} differently: declare it alike, and apply all chains that have it \
         together if it is to change"
    )]
    FieldsDiffer {
        /// One of them.
        first: ObjectRef,
        /// The other.
        second: ObjectRef,
        /// The field.
        field: FieldName,
    },
    /// An object to be deleted is still in use.
    #[error("{object} is in use by {user}: delete or change that first, or both together")]
    InUse {
        /// The object to be deleted.
        object: ObjectRef,
        /// The object that uses it.
        user: ObjectRef,
    },
    /// An object to be deleted does not exist.
    #[error("there is no {0}")]
    NoSuch(ObjectRef),
    /// A change names an object twice.
    #[error("the change names {0} twice")]
    Twice(ObjectRef),
    /// An object that belongs to manifests of another label.
    #[error(
        "{object} belongs to the manifests with label {present}, and this one has label {label}: leave it to those, or take it over \
         (--take-over)"
    )]
    OtherLabel {
        /// The object.
        object: ObjectRef,
        /// The label that it has.
        present: Label,
        /// The label that it would get.
        label: Label,
    },
    /// A change that prunes has no label.
    #[error(
        "only objects of one label can be pruned, and this change has none: give the manifest a label (label = \"NAME\")"
    )]
    PruneWithoutLabel,
    /// The change would exceed the maximum number of objects of a kind.
    #[error(
        "the node takes at most {max} {kind} of all tenants together, and with this change it would have more: {REMEDY}"
    )]
    TooMany {
        /// Which kind.
        kind: &'static str,
        /// How many there would be. Not in the sentence, as it tells of other tenants.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// The change would give a tenant that has much more than is left for it.
    #[error(
        "{what}: tenant {tenant} would have {count}. Of the {max} that the node has room for, each tenant is sure of {little}, and gets \
         more only while there is enough to spare, which there is not: {remedy}"
    )]
    TooMuchOfOne {
        /// The tenant.
        tenant: TenantName,
        /// Of what, in which unit.
        what: &'static str,
        /// How much it would have.
        count: u64,
        /// What tenants may have of the last quarter.
        little: u64,
        /// How much there may be in all.
        max: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// An upload for which the node has no room.
    #[error(
        "the node takes at most {max} {what} of all tenants together, and with this one it would have more: {REMEDY_FOR_UPLOADS}"
    )]
    TooManyUploads {
        /// Of what.
        what: &'static str,
        /// How much there would be. Not in the sentence, as it tells of other tenants.
        count: u64,
        /// How much there may be.
        max: u64,
    },
    /// The change would exceed the maximum of stage configuration.
    #[error(
        "the node takes at most {max_kib} KiB of stage configuration of all tenants together, and with this change it would have more: {REMEDY}"
    )]
    TooMuchConfig {
        /// How much there would be. Not in the sentence, as it tells of other tenants.
        kib: usize,
        /// How much there may be.
        max_kib: usize,
    },
    /// The change would exceed the maximum of stages' files.
    #[error(
        "the node takes at most {max_kib} KiB of stages' files of all tenants together, and with this change it would have more: {REMEDY}"
    )]
    TooManyFiles {
        /// How much there would be. Not in the sentence, as it tells of other tenants.
        kib: u64,
        /// How much there may be.
        max_kib: u64,
    },
}

/// What is wrong with a tenant's terms in themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TenantProblem {
    /// A number that is out of bounds.
    #[error("{key} is {value}: it must be from {min} to {max}")]
    Number {
        /// The key.
        key: &'static str,
        /// The number as given.
        value: u32,
        /// The smallest allowed value.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// A list that is too long.
    #[error("{key} has {count} entries: at most {GRANTS_MAX} are allowed")]
    TooLong {
        /// The key.
        key: &'static str,
        /// How many it has.
        count: usize,
    },
}

/// What a chain or a rule uses and its tenant is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGranted {
    /// A port.
    #[error("its tenant is not granted the port {port}: use one of {granted}")]
    Port {
        /// The port.
        port: PortName,
        /// Those that it is granted.
        granted: String,
    },
    /// Flows of functions' own.
    #[error("its functions may open flows, and its tenant is not granted outbound_flows: leave outbound out")]
    OutboundFlows,
    /// Packets of all ports.
    #[error(
        "it matches packets of every port, and its tenant is granted some only: give port in its match, one of {granted}"
    )]
    AnyPort {
        /// Those that it is granted.
        granted: String,
    },
    /// Packets of which no side is within the tenant's networks.
    #[error(
        "it matches {matcher}, and its tenant is granted only packets from or to {granted}: give a source or a destination within \
         these"
    )]
    Addresses {
        /// What it matches.
        matcher: String,
        /// The networks that it is granted.
        granted: String,
    },
}

/// Formats numbers of things as `2 modules, 1 chain`, without those of which there are none.
fn counted(things: &[(&str, usize)]) -> String {
    let some = things.iter().filter(|(_, count)| *count > 0);
    let each = some.map(|(name, count)| format!("{count} {name}{}", if *count == 1 { "" } else { "s" }));
    each.collect::<Vec<_>>().join(", ")
}

/// What is wrong with a chain in itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainProblem {
    /// No stages, or too many.
    #[error("it has {0} stages: a chain has 1 to {STAGES_MAX}")]
    Stages(usize),
    /// A stage's configuration is too long.
    #[error("the config of stage {stage} is {bytes} bytes long: at most {CONFIG_BYTES_MAX} are allowed")]
    Config {
        /// Which stage, from 1.
        stage: usize,
        /// How long its configuration is.
        bytes: usize,
    },
    /// A memory limit that is out of bounds.
    #[error("memory_limit_kib is {0}: it must be from {MEMORY_LIMIT_KIB_MIN} to {MEMORY_LIMIT_KIB_MAX}")]
    MemoryLimit(u32),
    /// A memory limit for all FWPs together that is out of bounds.
    #[error(
        "memory_total_kib is {kib}: it must be from {kib_min}, 64 for each stage, to {MEMORY_TOTAL_KIB_MAX}, or be left out \
         for no such limit"
    )]
    MemoryTotal {
        /// The limit as given.
        kib: u32,
        /// The smallest allowed value.
        kib_min: u32,
    },
    /// An idle timeout that is out of bounds.
    #[error("idle_timeout_ms is {0}: it must be from {IDLE_TIMEOUT_MS_MIN} to {IDLE_TIMEOUT_MS_MAX}")]
    IdleTimeout(u64),
    /// A drain timeout that is out of bounds.
    #[error("drain_timeout_ms is {0}: it must be from 0 to {DRAIN_TIMEOUT_MS_MAX}")]
    DrainTimeout(u64),
    /// A CPU time per batch that is out of bounds.
    #[error("cpu_per_batch_us is {0}: it must be from {CPU_PER_BATCH_US_MIN} to {CPU_PER_BATCH_US_MAX}")]
    CpuPerBatch(u32),
    /// A CPU time per second that is out of bounds.
    #[error("cpu_per_second_ms is {0}: it must be from 1 to {CPU_PER_SECOND_MS_MAX}")]
    CpuPerSecond(u32),
    /// A minimum cache size that is out of bounds.
    #[error("cache_min is {0}: it must be from 0 to {CACHE_INSTANCES_MAX}")]
    CacheMin(u32),
    /// A maximum cache size that is out of bounds.
    #[error("cache_max is {instances}: it must be from cache_min, which is {cache_min}, to {CACHE_INSTANCES_MAX}")]
    CacheMax {
        /// The size as given.
        instances: u32,
        /// The minimum cache size of the same chain.
        cache_min: u32,
    },
    /// A number of frames to hold that is out of bounds.
    #[error("hold_frames is {0}: it must be from 0 to {HOLD_FRAMES_MAX}")]
    HoldFrames(u32),
    /// Too many fields of state.
    #[error("it has {0} state fields: a chain has at most {FIELDS_MAX}")]
    Fields(usize),
    /// A field that is invalid in itself.
    #[error("state field {field}: {problem}")]
    Field {
        /// Which.
        field: FieldName,
        /// What is wrong.
        problem: FieldProblem,
    },
    /// A field that is declared twice.
    #[error("the state field {0} is declared twice: leave one of them out")]
    SameField(FieldName),
    /// A field that is granted to no stage.
    #[error("the state field {0} is granted to none of its stages: grant it to one (state), or leave it out")]
    FieldWithoutGrant(FieldName),
    /// A grant of a field that is not declared.
    #[error(
        "stage {stage} is granted the state field {field}, which is not declared: declare it, as [state.{field}] in a manifest"
    )]
    FieldNotDeclared {
        /// Which stage, from 1.
        stage: usize,
        /// The field.
        field: FieldName,
    },
    /// A field that is granted to a stage twice.
    #[error("stage {stage} is granted the state field {field} twice: leave one of the grants out")]
    SameGrant {
        /// Which stage, from 1.
        stage: usize,
        /// The field.
        field: FieldName,
    },
    /// Too many keys, or models.
    #[error("stage {stage} is granted {count} {key}: at most {STAGE_GRANTS_MAX} are allowed")]
    TooManyGranted {
        /// Which stage, from 1.
        stage: usize,
        /// `keys` or `models`.
        key: &'static str,
        /// How many it is granted.
        count: usize,
    },
    /// A key or a model that is granted to a stage twice.
    #[error("stage {stage} is granted {name} twice ({key}): leave one of the two out")]
    GrantedTwice {
        /// Which stage, from 1.
        stage: usize,
        /// `keys` or `models`.
        key: &'static str,
        /// Which.
        name: String,
    },
    /// No outputs, or too many.
    #[error("stage {stage} has {count} outputs: a stage has 1 to {OUTPUTS_MAX}")]
    Outputs {
        /// Which stage, from 1.
        stage: usize,
        /// How many outputs it has.
        count: usize,
    },
    /// An output that leads to an earlier stage, to its own stage, or to a stage that does not exist.
    #[error(
        "output {output} of stage {stage} leads to stage {target} of {count}: it has to lead to a later stage, so that no \
         packet goes round in the chain"
    )]
    OutputNotForward {
        /// Which stage, from 1.
        stage: usize,
        /// Which of its outputs, from 0.
        output: usize,
        /// Which part of the output's branch, if it has one.
        part: Option<BranchPart>,
        /// Which stage it leads to, from 1.
        target: usize,
        /// How many stages there are.
        count: usize,
    },
    /// A stage to which no output leads.
    #[error(
        "nothing leads to stage {stage} ({name}): name it in the outputs of an earlier stage or in entry, or leave it out"
    )]
    Unreached {
        /// Which stage, from 1.
        stage: usize,
        /// Its name, or its module's.
        name: String,
    },
    /// Two stages with one name.
    #[error("stages {first} and {second} are both named {name}: name one of them otherwise")]
    SameStageName {
        /// The first that has the name, from 1.
        first: usize,
        /// The second, from 1.
        second: usize,
        /// The name of both.
        name: StageName,
    },
    /// Too many entries of flows that functions may open.
    #[error("outbound has {0} entries: at most {OUTBOUND_MAX} are allowed")]
    Outbound(usize),
    /// A flow of a protocol without ports.
    #[error("outbound allows flows of {protocol}: functions open flows of tcp and udp only")]
    OutboundProtocol {
        /// Which entry, from 1.
        entry: usize,
        /// The protocol.
        protocol: Protocol,
    },
    /// A reverse direction for replies alone, with a port by which they would leave.
    #[error(
        "reverse.egress is {0} and reverse.from names no port: replies leave by the port by which their packets came, so leave \
         egress out, or name in from the ports whose packets pass the stages backwards"
    )]
    ReverseEgressOfReplies(PortName),
    /// A reverse direction for packets that could not leave.
    #[error("reverse.from names a port and there is no reverse.egress: say by which port those packets leave")]
    ReverseFromWithoutEgress,
    /// A reverse direction that names a port twice.
    #[error("reverse.from names {0} twice: once is enough")]
    ReverseFromTwice(PortName),
    /// A reverse direction through stages that wait for each other.
    #[error(
        "hold_frames is {0} and there is a reverse: stages that wait for room both ways could wait for each other for ever, so \
         leave one of the two out"
    )]
    ReverseHolds(u32),
    /// A reverse direction that says where packets enter, and no packets that do.
    #[error(
        "reverse.entry says where packets of the ports in reverse.from enter, and that names none: leave entry out"
    )]
    ReverseEntryOfReplies,
    /// A reverse direction through a graph in which a stage follows several.
    #[error(
        "stage {stage} ({name}) follows {} and stage {second}, so packets that pass the chain in reverse could leave it to either: \
         let one of them alone lead to it, or leave reverse out",
        .first.map_or("the entry".to_owned(), |first| format!("stage {first}"))
    )]
    ReverseOfTwoWays {
        /// Which stage, from 1.
        stage: usize,
        /// Its name, or its module's.
        name: String,
        /// The first stage that leads to it, from 1; none for the entry.
        first: Option<usize>,
        /// The next one.
        second: usize,
    },
    /// A reverse direction through a graph with several ends, without an entry.
    #[error(
        "packets of the ports in reverse.from could enter by {first} or {second}, which both lead to no other stage: say by \
         reverse.entry which of them enter where"
    )]
    ReverseWithoutEntry {
        /// One of the stages, with its name.
        first: String,
        /// Another one.
        second: String,
    },
    /// A reverse direction, but no egress for the forward direction.
    #[error("there is a reverse and no egress: say by which port packets leave that pass the stages forwards")]
    ReverseWithoutEgress,
    /// A stage with the name of a target that is no stage.
    #[error("stage {stage} is named {name}: that is what outputs call {}, so name it otherwise", meaning(.name))]
    StageNamedAsTarget {
        /// Which stage, from 1.
        stage: usize,
        /// Its name.
        name: StageName,
    },
    /// A branch that is invalid in itself.
    #[error("{site}: {problem}")]
    Branch {
        /// Which branch.
        site: BranchSite,
        /// What is wrong.
        problem: Box<BranchProblem>,
    },
    /// Too many matches of branches.
    #[error(
        "its branches have {count} matches together, and a chain has at most {CHAIN_CASES_MAX}: leave some out, or let rules send \
         some of the packets to another chain"
    )]
    Cases {
        /// The branch with which they are too many.
        site: BranchSite,
        /// How many there are.
        count: usize,
    },
    /// An entrance that leads out of the chain.
    #[error("{site} leads to {to}: packets pass at least one stage; name a stage or drop")]
    EntryLeadsOut {
        /// Which entrance.
        site: BranchSite,
        /// Which part of it.
        part: BranchPart,
        /// The target, as in a manifest.
        to: String,
    },
    /// Flows that functions may open, and an entrance that drops the answers to their requests.
    #[error(
        "outbound lets its functions open flows, and the default of entry is drop: answers to requests for flows go to the \
         default, so name a stage there, or leave outbound out"
    )]
    AnswersDropped,
    /// An entrance that leads to a stage that does not exist.
    #[error("{site} leads to stage {target} of {count}: name one that there is")]
    EntryToNoStage {
        /// Which entrance.
        site: BranchSite,
        /// Which part of it.
        part: BranchPart,
        /// Which stage it leads to, from 1.
        target: usize,
        /// How many stages there are.
        count: usize,
    },
}

/// Returns what a name means that outputs have for a target.
fn meaning(name: &StageName) -> &'static str {
    if name.as_str() == "drop" { "nowhere" } else { "the way out of the chain" }
}

/// What is wrong with a rule in itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleProblem {
    /// A source of one IP version and a destination of the other.
    #[error("no packet goes from {from} to {to}: give both in the same IP version")]
    MixedFamilies {
        /// The source as given.
        from: Prefix,
        /// The destination as given.
        to: Prefix,
    },
    /// Ports with a protocol that has none.
    #[error("it matches ports of {}: ports need protocol tcp or udp", .0.map_or("any protocol".into(), |p| format!("protocol {p}")))]
    PortsWithoutProtocol(Option<Protocol>),
    /// ICMP of the other IP version.
    #[error("no packet with {prefix} has protocol {protocol}: it is icmp with IPv4 and icmpv6 with IPv6")]
    WrongIcmp {
        /// The protocol as given.
        protocol: Protocol,
        /// The prefix that does not go with it.
        prefix: Prefix,
    },
    /// An ICMP type with a protocol that has none.
    #[error("it matches an ICMP type of {}: icmp_type needs protocol icmp or icmpv6", .0.map_or("any protocol".into(), |p| format!("protocol {p}")))]
    IcmpTypeWithoutProtocol(Option<Protocol>),
    /// An inner VLAN without an outer one.
    #[error("inner_vlan {0} is not within any VLAN: give vlan, too")]
    InnerVlanWithoutVlan(VlanId),
}

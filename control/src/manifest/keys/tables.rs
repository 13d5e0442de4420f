//! The tables themselves, in the order of the book's chapter on manifests.

use super::IfAbsent::{False, None, Number as Is, Required, Word};
use super::Values::{Boolean, List, Number, OneOf, Tables, Text, TextOrNumber};
use super::{IfAbsent, Key, Table, Values};
use crate::manifest::DEFAULT_TENANT;
use crate::model::{
    CACHE_INSTANCES_MAX, CHAINS_MAX, CLOCK_STEP_US_MAX, CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN,
    CPU_PER_SECOND_MS_MAX, Chain, DRAIN_TIMEOUT_MS_MAX, ENTRIES_MAX, HOLD_FRAMES_MAX, IDLE_TIMEOUT_MS_MAX,
    IDLE_TIMEOUT_MS_MIN, KEYS_MAX, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX, MODEL_MIB_MAX,
    MODELS_MAX, MODULES_MAX, RULES_MAX, Scheduling, TENANT_CPU_PER_SECOND_MS_MAX, TENANT_MEMORY_MIB_MAX,
    TENANT_STATE_MIB_MAX, TTL_SECONDS_MAX, Tenant, UPLOAD_MIB_MAX, VALUE_BYTES_MAX, WEIGHT_MAX,
};

const NAME: Values = Text("1 to 63 of a-z, 0-9 and '-', with no '-' first or last");
const TARGET: Values =
    Text("in entry the name of a stage, or drop; in outputs that of a later stage, egress, port:NAME, or drop");
const CLASSES: Values = OneOf(&["system", "latency", "throughput"]);
const DEFAULT: &str = "the node's default";
const SHARES: &str = "the node's shares";
const ALL: &str = "all";
const NO_LIMIT: &str = "no limit";
const EITHER: &str = "one of these keys is required";

fn key(name: &'static str, values: Values, default: IfAbsent, about: &'static str) -> Key {
    Key { name, values, default, about }
}

fn number(min: impl Into<u64>, max: impl Into<u64>) -> Values {
    Number(min.into()..=max.into())
}

/// Returns all tables of manifests.
#[must_use]
pub fn tables() -> Vec<Table> {
    vec![
        top(),
        module(),
        granted("key"),
        granted("model"),
        state(),
        chain(),
        stage(),
        files(),
        entry(),
        case(),
        reverse(),
        outbound(),
        rule(),
        matcher(),
        tenant(),
    ]
}

fn top() -> Table {
    let keys = vec![
        key("version", OneOf(&["pinion.v1"]), Required, "The version of the manifest's keys"),
        key(
            "tenant",
            Text("a tenant's name, or tables [[tenant]]"),
            Word(DEFAULT_TENANT.to_owned()),
            "The owner of all objects of this file",
        ),
        key(
            "label",
            NAME,
            None("none; objects keep the labels that they have"),
            "What all objects of this file belong to; pinion apply --prune deletes what has it and is not in the file",
        ),
        key("module", Tables("tables [[module]]"), None("none"), "Modules: bytes of functions, under a name"),
        key("key", Tables("tables [key.NAME]"), None("none"), "Private keys that the node signs with for functions"),
        key("model", Tables("tables [model.NAME]"), None("none"), "Neural networks that the node runs for functions"),
        key("chain", Tables("tables [[chain]]"), None("none"), "Chains: the stages that serve a class of traffic"),
        key("rule", Tables("tables [[rule]]"), None("none"), "Rules: which packets go to which chain"),
        key("state", Tables("tables [state.NAME]"), None("none"), "Fields of state that outlive instances"),
    ];
    Table { path: "", header: "the top of a manifest", about: "A manifest in TOML, of at most 16 MiB", keys }
}

fn module() -> Table {
    let keys = vec![
        key("name", NAME, Required, "Its name within the tenant"),
        key(
            "path",
            Text("the path of a file of at most 16 MiB"),
            None(EITHER),
            "The file with its bytes, relative to the manifest",
        ),
        key(
            "digest",
            Text("sha256: and 64 hex digits"),
            None(EITHER),
            "The digest of bytes that were uploaded before (pinion push)",
        ),
    ];
    Table { path: "module", header: "[[module]]", about: "A WebAssembly module of the tenant", keys }
}

fn granted(path: &'static str) -> Table {
    let (header, about, file, digest) = match path {
        "key" => (
            "[key.NAME]",
            "A private key, with which the node signs in TLS handshakes for the stages that name it",
            "PEM of at most 64 KiB with one private key that is not encrypted",
            "The digest of the public key of a key that was uploaded before (pinion push)",
        ),
        _ => (
            "[model.NAME]",
            "A neural network, which the node runs for the stages that name it",
            "ONNX of at most 64 MiB",
            "The digest of bytes that were uploaded before (pinion push)",
        ),
    };
    let keys = vec![
        key("file", Text("the path of a file"), None(EITHER), file),
        key("digest", Text("sha256: and 64 hex digits"), None(EITHER), digest),
    ];
    Table { path, header, about, keys }
}

fn state() -> Table {
    let keys = vec![
        key("value_bytes", number(1u32, VALUE_BYTES_MAX), Required, "The longest value, in bytes"),
        key("entries", number(1u32, ENTRIES_MAX), Required, "The most entries"),
        key(
            "ttl_seconds",
            number(1u32, TTL_SECONDS_MAX),
            None("unlimited"),
            "How long an entry is there after it was written",
        ),
        key(
            "when_full",
            OneOf(&["refuse", "evict"]),
            Word("refuse".to_owned()),
            "What happens to a new entry of a full field",
        ),
    ];
    Table {
        path: "state",
        header: "[state.NAME]",
        about: "A field of state: entries by key that chains of the tenant share",
        keys,
    }
}

fn chain() -> Table {
    let Scheduling { class, over_budget, .. } = Scheduling::default();
    let keys = vec![
        key("name", NAME, Required, "Its name within the tenant"),
        key(
            "stage",
            Tables("1 to 16 tables [[chain.stage]]"),
            Required,
            "The stages, in the order in which packets pass them",
        ),
        key("entry", Tables("a table"), None("the first stage"), "By which stages packets enter, by their headers"),
        key(
            "egress",
            Text("a port of the node"),
            None("the port by which each packet came"),
            "The port by which packets leave",
        ),
        key("reverse", Tables("a table"), None("none"), "Which packets pass the stages backwards"),
        key(
            "memory_limit_kib",
            number(MEMORY_LIMIT_KIB_MIN, MEMORY_LIMIT_KIB_MAX),
            Is(Chain::MEMORY_LIMIT_KIB.into()),
            "The most memory of each FWP, in KiB",
        ),
        key(
            "memory_total_kib",
            number(MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX),
            None(NO_LIMIT),
            "The most memory of all its FWPs, in KiB",
        ),
        key(
            "idle_timeout_ms",
            number(IDLE_TIMEOUT_MS_MIN, IDLE_TIMEOUT_MS_MAX),
            Is(Chain::IDLE_TIMEOUT_MS),
            "An instance without a packet for so long ends",
        ),
        key(
            "drain_timeout_ms",
            number(0u32, DRAIN_TIMEOUT_MS_MAX),
            Is(Chain::DRAIN_TIMEOUT_MS),
            "How long instances of an older version serve their clients",
        ),
        key(
            "cache_min",
            number(0u32, CACHE_INSTANCES_MAX),
            Is(Chain::CACHE_MIN.into()),
            "The fewest instances that are kept ready",
        ),
        key(
            "cache_max",
            number(1u32, CACHE_INSTANCES_MAX),
            Is(Chain::CACHE_MAX.into()),
            "The most instances that are kept ready; cache_min if that is more",
        ),
        key(
            "hold_frames",
            number(0u32, HOLD_FRAMES_MAX),
            Is(Chain::HOLD_FRAMES.into()),
            "Packets that an instance holds before a stage by which they enter, when that has no free slot",
        ),
        key("idempotent", Boolean, False, "Whether a call whose instance ends is delivered again"),
        key("routed", Boolean, False, "Whether the node writes the Ethernet addresses of what leaves"),
        key("outbound", List("at most 16 tables"), None("none"), "The flows that its functions may open themselves"),
        key("class", CLASSES, Word(class.to_string()), "Its scheduling class, no higher than the tenant is granted"),
        key(
            "cpu_per_batch_us",
            number(CPU_PER_BATCH_US_MIN, CPU_PER_BATCH_US_MAX),
            None(NO_LIMIT),
            "The most CPU time of an FWP until it waits; beyond, it ends",
        ),
        key(
            "cpu_per_second_ms",
            number(1u32, CPU_PER_SECOND_MS_MAX),
            None(NO_LIMIT),
            "The most CPU time of an FWP in a second",
        ),
        key(
            "over_budget",
            OneOf(&["throttle", "kill"]),
            Word(over_budget.to_string()),
            "What happens to an FWP beyond cpu_per_second_ms",
        ),
    ];
    Table { path: "chain", header: "[[chain]]", about: "The stages that serve a class of traffic", keys }
}

fn stage() -> Table {
    let config = "The configuration of its function";
    let keys = vec![
        key("module", NAME, Required, "A module of the same tenant"),
        key("name", NAME, None("none"), "Its name, for outputs of other stages; not egress or drop"),
        key("config", Text("at most 64 KiB"), None("empty"), config),
        key(
            "config_path",
            Text("the path of a file of at most 64 KiB"),
            None("empty"),
            "A file with the configuration",
        ),
        key("config_base64", Text("base64 of at most 64 KiB"), None("empty"), "A configuration that is not text"),
        key(
            "files",
            Text("the path of a folder, or a table with digest and size_bytes"),
            None("none"),
            "Files that instances can read, at most 16 MiB",
        ),
        key(
            "outputs",
            List("1 to 16 of: the name of a later stage, egress, port:NAME, drop, or a table as entry"),
            None("the next stage; of the last, egress"),
            "Where packets go",
        ),
        key(
            "state",
            Tables("a table: FIELD = \"read\" or \"write\""),
            None("none"),
            "The fields of state that it may use",
        ),
        key("keys", List("at most 16 names of keys"), None("none"), "The keys that it may sign with"),
        key("models", List("at most 16 names of models"), None("none"), "The models that it may run"),
    ];
    Table {
        path: "chain.stage",
        header: "[[chain.stage]]",
        about: "A stage of a chain: a module with its configuration",
        keys,
    }
}

fn files() -> Table {
    let keys = vec![
        key("digest", Text("sha256: and 64 hex digits"), Required, "The digest of the archive"),
        key("size_bytes", number(0u32, i64::MAX as u64), Required, "The size of the archive, in bytes"),
    ];
    let about = "Files of a stage that were uploaded before, as pinion get -o toml names them";
    Table { path: "chain.stage.files", header: "files = { }", about, keys }
}

fn entry() -> Table {
    let keys = vec![
        key(
            "branch",
            List("1 to 16 tables with match and to"),
            Required,
            "The first match that applies to a packet counts",
        ),
        key("default", TARGET, Required, "Where packets go to which no match applies, and all that is not IP"),
    ];
    let about =
        "A branch: where packets go by their headers; reverse.entry, and outputs of a stage, may be such a table, too";
    Table { path: "chain.entry", header: "entry = { }", about, keys }
}

fn case() -> Table {
    let keys = vec![
        key("match", Tables("a table as rule.match"), Required, "The packets that it applies to"),
        key("to", TARGET, Required, "Where they go"),
    ];
    let about = "A match of a branch, and where it leads";
    Table { path: "chain.entry.branch", header: "branch = [{ }]", about, keys }
}

fn reverse() -> Table {
    let keys = vec![
        key(
            "from",
            List("ports of the node"),
            Required,
            "Packets from these ports pass the stages backwards; []: only replies do",
        ),
        key(
            "entry",
            Tables("a table as chain.entry"),
            None("the only stage that leads to no other one"),
            "By which stages they enter, by their headers",
        ),
        key("egress", Text("a port of the node"), None("none, with from = []"), "The port by which they leave"),
    ];
    Table {
        path: "chain.reverse",
        header: "reverse = { }",
        about: "Which packets pass the stages of a chain backwards",
        keys,
    }
}

fn outbound() -> Table {
    let keys = vec![
        key("protocol", TextOrNumber("tcp or udp"), Required, "The protocol"),
        key("to", Text("an address or a network"), Required, "Where the flows may lead"),
        key("ports", TextOrNumber("a port, or a range as 1-9"), None(ALL), "The destination ports"),
    ];
    Table {
        path: "chain.outbound",
        header: "outbound = [{ }]",
        about: "Flows that functions of a chain may open",
        keys,
    }
}

fn rule() -> Table {
    let policies = &["shared", "per-client", "per-flow"];
    let keys = vec![
        key("name", NAME, Required, "Its name within the tenant"),
        key(
            "priority",
            number(0u32, u32::MAX),
            Is(0),
            "Of the rules that match a packet the one with the highest priority applies",
        ),
        key("policy", OneOf(policies), Required, "Which packets share an instance"),
        key("chain", NAME, Required, "The chain of the same tenant that matching packets go to"),
        key("match", Tables("a table"), None("every packet"), "The packets that it applies to"),
    ];
    Table { path: "rule", header: "[[rule]]", about: "Which packets go to which chain", keys }
}

fn matcher() -> Table {
    let keys = vec![
        key("port", Text("a port of the node"), None("any"), "The port by which the packet came"),
        key("vlan", TextOrNumber("1 to 4094"), None("untagged packets only"), "Its VLAN"),
        key("inner_vlan", TextOrNumber("1 to 4094"), None("packets with one tag only"), "Its inner VLAN"),
        key("source", Text("an address or a network"), None("any"), "Its source address"),
        key("destination", Text("an address or a network"), None("any, but of no group"), "Its destination address"),
        key("protocol", TextOrNumber("icmp, icmpv6, tcp, udp, or a number"), None("any"), "Its IP protocol"),
        key("icmp_type", number(0u32, u8::MAX), None("any, but no error"), "Its ICMP or ICMPv6 type"),
        key("source_ports", TextOrNumber("a port, or a range as 1-9"), None("any"), "Its source port"),
        key("destination_ports", TextOrNumber("a port, or a range as 1-9"), None("any"), "Its destination port"),
    ];
    Table { path: "rule.match", header: "[rule.match]", about: "Conditions on a packet, all of which must hold", keys }
}

fn tenant() -> Table {
    let keys = vec![
        key("name", NAME, Required, "Its name"),
        key(
            "weight",
            number(1u32, WEIGHT_MAX),
            Is(Tenant::WEIGHT.into()),
            "Its weight against other tenants where several want more than there is",
        ),
        key("class_max", CLASSES, Word(Tenant::CLASS_MAX.to_string()), "The highest class that its chains may have"),
        key("memory_mib", number(1u32, TENANT_MEMORY_MIB_MAX), None(DEFAULT), "The most memory of its FWPs, in MiB"),
        key(
            "state_mib",
            number(0u32, TENANT_STATE_MIB_MAX),
            None(DEFAULT),
            "The most memory of its fields of state, in MiB",
        ),
        key(
            "cpu_per_second_ms",
            number(1u32, TENANT_CPU_PER_SECOND_MS_MAX),
            None(NO_LIMIT),
            "The most CPU time of its FWPs in a second",
        ),
        key(
            "clock_step_us",
            number(1u32, CLOCK_STEP_US_MAX),
            None(DEFAULT),
            "The steps of the clock that its functions see",
        ),
        key("modules_max", number(0u32, MODULES_MAX as u64), None(SHARES), "The most modules"),
        key("keys_max", number(0u32, KEYS_MAX as u64), None(SHARES), "The most keys"),
        key("models_max", number(0u32, MODELS_MAX as u64), None(SHARES), "The most models"),
        key("model_mib", number(0u32, MODEL_MIB_MAX), None(SHARES), "The most MiB of its models"),
        key("chains_max", number(0u32, CHAINS_MAX as u64), None(SHARES), "The most chains"),
        key("rules_max", number(0u32, RULES_MAX as u64), None(SHARES), "The most rules"),
        key("upload_mib", number(0u32, UPLOAD_MIB_MAX), None(SHARES), "The most MiB of its uploads"),
        key("ports", List("at most 256 ports of the node"), None(ALL), "The ports by which its packets come and leave"),
        key(
            "addresses",
            List("at most 256 addresses or networks"),
            None("any"),
            "The networks within which one side of its packets is",
        ),
        key("outbound_flows", Boolean, False, "Whether its functions may open flows"),
        key("transparent_forwarding", Boolean, False, "Whether its functions may send packets of other hosts"),
    ];
    let about = "The terms of a tenant, in a manifest that has no other tables";
    Table { path: "tenant", header: "[[tenant]]", about, keys }
}

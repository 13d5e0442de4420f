//! Writes objects as the text of a manifest: what an apply reads from it is what they are.
//!
//! Modules, keys, models and stages' files are named by their digests, so the manifest needs no other file, but a node that
//! has their bytes. A key is written also if it has its default, so that another default of a later build changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::document;
use super::{Bundle, VERSION};
use crate::model::{
    Access, Branch, Case, Chain, Class, Digest, Field, FieldName, Files, KeyName, Label, Labelled, Match, ModelName,
    ModuleName, Object, ObjectRef, Outbound, Output, OverBudget, Policy, PortName, Reverse, Rule, Stage, Target,
    Tenant, TenantName, WhenFull,
};

/// Why objects can't be written as a manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Objects of several tenants.
    #[error("a manifest has objects of one tenant, and these are of {first} and {second}: name one of them")]
    TwoTenants {
        /// One of the tenants.
        first: TenantName,
        /// Another one.
        second: TenantName,
    },
    /// Tenants together with other objects.
    #[error("a manifest with tenants has no other objects: write the tenants apart")]
    TenantsAndOthers,
    /// Something that only the API can say, such as outputs that lead to stages without names.
    #[error("{0} has something that manifests cannot say, as it was made through the API: take JSON or YAML instead")]
    Inexpressible(ObjectRef),
    /// The text could not be made.
    #[error("the manifest cannot be written: {0}")]
    Text(#[from] toml::ser::Error),
}

/// The first line of a manifest whose objects have several labels.
const SEVERAL_LABELS: &str = "# Not all of these objects have the same label, so this manifest has none, and an apply leaves theirs as they are.\n";

/// Returns a manifest that defines these objects. Applying it to a node that has them changes nothing. It has their label, if
/// all have the same.
///
/// # Errors
/// The objects don't go into one manifest, or one of them has something that manifests can't say.
pub fn written(objects: &[Labelled<Object>]) -> Result<String, WriteError> {
    let tenants: Vec<&Tenant> = objects.iter().filter_map(|object| tenant(object)).collect();
    let text = match tenants.len() {
        0 => written_of_tenant(objects)?,
        count if count == objects.len() => toml::to_string(&TenantsTable { version: VERSION, tenant: tenants })?,
        _ => return Err(WriteError::TenantsAndOthers),
    };
    check(&text, objects)?;
    Ok(text)
}

/// Returns the text of the manifest of one tenant's objects.
fn written_of_tenant(objects: &[Labelled<Object>]) -> Result<String, WriteError> {
    let names: Vec<ObjectRef> = objects.iter().map(|object| object.name()).collect();
    let owner = names.first().map(|name| name.tenant().clone());
    if let (Some(first), Some(other)) = (&owner, names.iter().find(|name| Some(name.tenant()) != owner.as_ref())) {
        return Err(WriteError::TwoTenants { first: first.clone(), second: other.tenant().clone() });
    }
    let first_label = objects.first().and_then(|object| object.label.as_ref());
    let is_same = objects.iter().all(|object| object.label.as_ref() == first_label);
    let label = first_label.filter(|_| is_same);
    let mut document = Document { version: VERSION, tenant: owner.as_ref(), label, ..Document::default() };
    for object in objects {
        document.add(object)?;
    }
    let text = toml::to_string(&document)?;
    Ok(if is_same { text } else { format!("{SEVERAL_LABELS}{text}") })
}

fn tenant(object: &Object) -> Option<&Tenant> {
    match object {
        Object::Tenant(tenant) => Some(tenant),
        Object::Module(_) | Object::Key(_) | Object::Model(_) | Object::Chain(_) | Object::Rule(_) => None,
    }
}

#[derive(Serialize)]
struct TenantsTable<'a> {
    version: &'static str,
    tenant: Vec<&'a Tenant>,
}

/// The keys in the order in which they are written. Empty ones are left out.
#[derive(Default, Serialize)]
struct Document<'a> {
    version: &'static str,
    tenant: Option<&'a TenantName>,
    label: Option<&'a Label>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    state: BTreeMap<&'a FieldName, FieldTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    module: Vec<ModuleTable<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    key: BTreeMap<&'a KeyName, UploadTable>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    model: BTreeMap<&'a ModelName, UploadTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chain: Vec<ChainTable<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rule: Vec<RuleTable<'a>>,
}

#[derive(Serialize)]
struct FieldTable {
    value_bytes: u32,
    entries: u32,
    ttl_seconds: Option<u32>,
    when_full: WhenFull,
}

#[derive(Serialize)]
struct ModuleTable<'a> {
    name: &'a ModuleName,
    digest: Digest,
}

#[derive(Serialize)]
struct UploadTable {
    digest: Digest,
}

#[derive(Serialize)]
struct ChainTable<'a> {
    name: &'a str,
    egress: Option<&'a PortName>,
    memory_limit_kib: u32,
    memory_total_kib: Option<u32>,
    idle_timeout_ms: u64,
    drain_timeout_ms: u64,
    cache_min: u32,
    cache_max: u32,
    hold_frames: u32,
    idempotent: bool,
    routed: bool,
    class: Class,
    cpu_per_batch_us: Option<u32>,
    cpu_per_second_ms: Option<u32>,
    over_budget: OverBudget,
    entry: Option<BranchTable<'a>>,
    reverse: Option<ReverseTable<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    outbound: &'a [Outbound],
    stage: Vec<StageTable<'a>>,
}

#[derive(Serialize)]
struct ReverseTable<'a> {
    from: &'a [PortName],
    egress: Option<&'a PortName>,
    entry: Option<BranchTable<'a>>,
}

#[derive(Serialize)]
struct BranchTable<'a> {
    default: String,
    branch: Vec<CaseTable<'a>>,
}

#[derive(Serialize)]
struct CaseTable<'a> {
    to: String,
    #[serde(rename = "match")]
    matcher: &'a Match,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OutputValue<'a> {
    Target(String),
    Branch(BranchTable<'a>),
}

#[derive(Serialize)]
struct StageTable<'a> {
    module: &'a ModuleName,
    name: Option<&'a str>,
    config: Option<&'a str>,
    config_base64: Option<String>,
    outputs: Option<Vec<OutputValue<'a>>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    keys: &'a [KeyName],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    models: &'a [ModelName],
    files: Option<&'a Files>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    state: BTreeMap<&'a FieldName, Access>,
}

#[derive(Serialize)]
struct RuleTable<'a> {
    name: &'a str,
    priority: u32,
    policy: Policy,
    chain: &'a str,
    #[serde(rename = "match")]
    matcher: Option<&'a Match>,
}

impl<'a> Document<'a> {
    fn add(&mut self, object: &'a Object) -> Result<(), WriteError> {
        match object {
            Object::Module(module) => self.module.push(ModuleTable { name: &module.name, digest: module.digest }),
            Object::Key(key) => _ = self.key.insert(&key.name, UploadTable { digest: key.digest }),
            Object::Model(model) => _ = self.model.insert(&model.name, UploadTable { digest: model.digest }),
            Object::Chain(chain) => self.add_chain(chain)?,
            Object::Rule(rule) => self.rule.push(RuleTable::new(rule)),
            Object::Tenant(_) => return Err(WriteError::TenantsAndOthers),
        }
        Ok(())
    }

    fn add_chain(&mut self, chain: &'a Chain) -> Result<(), WriteError> {
        for Field { name, value_bytes, entries, ttl_seconds, when_full } in &chain.fields {
            let (value_bytes, entries, ttl_seconds, when_full) = (*value_bytes, *entries, *ttl_seconds, *when_full);
            self.state.insert(name, FieldTable { value_bytes, entries, ttl_seconds, when_full });
        }
        let table = ChainTable::new(chain).ok_or_else(|| WriteError::Inexpressible(chain.into()))?;
        self.chain.push(table);
        Ok(())
    }
}

impl<'a> ChainTable<'a> {
    /// Returns none if an output or a branch leads to a stage without a name.
    fn new(chain: &'a Chain) -> Option<Self> {
        let stages = (0..chain.stages.len()).map(|at| StageTable::new(&chain.stages, at));
        let reverse = |it: &'a Reverse| {
            let Reverse { from, entry, egress } = it;
            Some(ReverseTable { from, egress: egress.as_ref(), entry: optional_branch(&chain.stages, entry.as_ref())? })
        };
        let reverse = match &chain.reverse {
            Some(it) => Some(reverse(it)?),
            None => None,
        };
        Some(Self {
            name: chain.name.as_str(),
            egress: chain.egress.as_ref(),
            memory_limit_kib: chain.memory_limit_kib,
            memory_total_kib: chain.memory_total_kib,
            idle_timeout_ms: chain.idle_timeout_ms,
            drain_timeout_ms: chain.drain_timeout_ms,
            cache_min: chain.cache_min,
            cache_max: chain.cache_max,
            hold_frames: chain.hold_frames,
            idempotent: chain.idempotent,
            routed: chain.routed,
            class: chain.scheduling.class,
            cpu_per_batch_us: chain.scheduling.cpu_per_batch_us,
            cpu_per_second_ms: chain.scheduling.cpu_per_second_ms,
            over_budget: chain.scheduling.over_budget,
            entry: optional_branch(&chain.stages, chain.entry.as_ref())?,
            reverse,
            outbound: &chain.outbound,
            stage: stages.collect::<Option<_>>()?,
        })
    }
}

impl<'a> StageTable<'a> {
    fn new(stages: &'a [Stage], at: usize) -> Option<Self> {
        let stage = &stages[at];
        let is_default = stage.outputs == Output::default_of(at, stages.len());
        let outputs = (!is_default).then(|| stage.outputs.iter().map(|it| output(stages, it)).collect::<Option<_>>());
        let text = str::from_utf8(&stage.config).ok().filter(|text| is_plain(text));
        Some(Self {
            module: &stage.module,
            name: stage.name.as_ref().map(|name| name.as_str()),
            config: text.filter(|text| !text.is_empty()),
            config_base64: text.is_none().then(|| STANDARD.encode(&stage.config)),
            outputs: match outputs {
                Some(named) => Some(named?),
                None => None,
            },
            keys: &stage.keys,
            models: &stage.models,
            files: stage.files.as_ref(),
            state: stage.state.iter().map(|grant| (&grant.field, grant.access)).collect(),
        })
    }
}

impl<'a> RuleTable<'a> {
    fn new(rule: &'a Rule) -> Self {
        let matcher = (rule.matcher != Match::default()).then_some(&rule.matcher);
        Self {
            name: rule.name.as_str(),
            priority: rule.priority,
            policy: rule.policy,
            chain: rule.chain.as_str(),
            matcher,
        }
    }
}

fn output<'a>(stages: &[Stage], output: &'a Output) -> Option<OutputValue<'a>> {
    Some(match output {
        Output::To(to) => OutputValue::Target(target(stages, to)?),
        Output::Branch(it) => OutputValue::Branch(branch(stages, it)?),
    })
}

/// Returns none inside if there is no branch, and none if there is one that leads to a stage without a name.
fn optional_branch<'a>(stages: &[Stage], it: Option<&'a Branch>) -> Option<Option<BranchTable<'a>>> {
    match it {
        Some(it) => branch(stages, it).map(Some),
        None => Some(None),
    }
}

fn branch<'a>(stages: &[Stage], Branch { cases, default }: &'a Branch) -> Option<BranchTable<'a>> {
    let case = |Case { matcher, to }: &'a Case| Some(CaseTable { to: target(stages, to)?, matcher });
    Some(BranchTable { default: target(stages, default)?, branch: cases.iter().map(case).collect::<Option<_>>()? })
}

fn target(stages: &[Stage], target: &Target) -> Option<String> {
    match target {
        Target::Stage(at) => Some(stages.get(*at)?.name.as_ref()?.to_string()),
        Target::Egress => Some("egress".to_owned()),
        Target::Port(port) => Some(format!("port:{port}")),
        Target::Drop => Some("drop".to_owned()),
    }
}

/// Returns whether a text can't control a terminal that shows the manifest.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\n' | '\t') || pinion_text::is_printable(c))
}

/// Reads the text back, and refuses it if an object is another one then.
fn check(text: &str, objects: &[Labelled<Object>]) -> Result<(), WriteError> {
    let Some(first) = objects.first() else { return Ok(()) };
    let inexpressible = |object: &Labelled<Object>| WriteError::Inexpressible(object.name());
    let mut bundle = Bundle::default();
    let read = document::read(Path::new("manifest"), text, first.name().tenant(), &mut bundle);
    let contents = read.and_then(|()| bundle.load()).map_err(|_| inexpressible(first))?;
    let tenants: BTreeMap<_, _> = contents.tenants.iter().map(|it| (&it.name, it)).collect();
    let modules: BTreeMap<_, _> = contents.uploaded.iter().map(|it| (&it.name, it.digest)).collect();
    let keys: BTreeMap<_, _> = contents.uploaded_keys.iter().map(|it| (&it.name, it.digest)).collect();
    let models: BTreeMap<_, _> = contents.uploaded_models.iter().map(|it| (&it.name, it.digest)).collect();
    let chains: BTreeMap<_, _> = contents.chains.iter().map(|it| (&it.name, it)).collect();
    let rules: BTreeMap<_, _> = contents.rules.iter().map(|it| (&it.name, it)).collect();
    // A chain and a rule have their tenant, and all objects are of the same one.
    let is_same = |object: &Labelled<Object>| match &object.object {
        Object::Tenant(tenant) => tenants.get(&tenant.name) == Some(&&**tenant),
        Object::Module(module) => modules.get(&module.name) == Some(&module.digest),
        Object::Key(key) => keys.get(&key.name) == Some(&key.digest),
        Object::Model(model) => models.get(&model.name) == Some(&model.digest),
        Object::Chain(chain) => chains.get(&chain.name) == Some(&&**chain),
        Object::Rule(rule) => rules.get(&rule.name) == Some(&&**rule),
    };
    match objects.iter().find(|object| !is_same(object)) {
        Some(object) => Err(inexpressible(object)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Grant, Key, Model, Module, Scheduling};

    const ALL_KEYS: &str = r#"version = "pinion.v1"
tenant = "demo"

[state.counters]
value_bytes = 64
entries = 1000
ttl_seconds = 60
when_full = "evict"

[[chain]]
name = "all"
egress = "lan"
memory_limit_kib = 1024
memory_total_kib = 65536
idle_timeout_ms = 1000
drain_timeout_ms = 0
cache_min = 2
cache_max = 3
hold_frames = 8
idempotent = true
routed = true
outbound = [{ protocol = "udp", to = "10.0.0.0/8", ports = 53 }, { protocol = "tcp", to = "fd77::/16" }]
class = "latency"
cpu_per_batch_us = 500
cpu_per_second_ms = 100
over_budget = "kill"
stage = [
    { module = "sort", name = "sort", config = "a \"b\"\n\tc = 'd'\n", outputs = ["slow", "fast", "port:wan", { default = "egress", branch = [
        { match = { protocol = "tcp", destination_ports = "80-90" }, to = "fast" },
        { match = { }, to = "drop" },
    ] }] },
    { module = "m", name = "fast", outputs = ["egress"], keys = ["site"], models = ["cifar"], state = { counters = "read" } },
    { module = "m", name = "slow", config_base64 = "/wAb", state = { counters = "write" } },
]

[[chain]]
name = "line"
egress = "lan"
reverse = { from = ["wan"], egress = "lan" }
stage = [{ module = "m" }, { module = "m", files = { digest = "sha256:DIGEST", size_bytes = 2048 } }]

[[chain]]
name = "tree"
egress = "wan"
entry = { branch = [{ match = { vlan = 7, source = "10.0.0.0/8" }, to = "fast" }, { match = { port = "lan" }, to = "drop" }], default = "slow" }
reverse = { from = ["wan"], egress = "lan", entry = { branch = [{ match = { protocol = "icmp", icmp_type = 0 }, to = "fast" }], default = "slow" } }
stage = [{ module = "m", name = "fast", outputs = ["egress"] }, { module = "m", name = "slow" }]

[[rule]]
name = "any"
policy = "shared"
chain = "line"

[[rule]]
name = "narrow"
priority = 7
policy = "per-client"
chain = "all"
match = { port = "lan", vlan = 7, inner_vlan = 8, source = "10.0.0.0/8", destination = "10.1.0.0/16", protocol = "tcp", source_ports = "1-9", destination_ports = 80 }

[[rule]]
name = "pings"
policy = "per-flow"
chain = "all"
match = { protocol = "icmp", icmp_type = 8 }
"#;

    const RULES: &str = "[[rule]]\nname = \"a\"\npolicy = \"shared\"\nchain = \"c\"\n\
                         [[rule]]\nname = \"b\"\npriority = 1\npolicy = \"shared\"\nchain = \"c\"\n";

    fn objects(text: &str) -> Vec<Labelled<Object>> {
        let mut bundle = Bundle::default();
        document::read(Path::new("demo.toml"), text, &crate::manifest::default_tenant(), &mut bundle).unwrap();
        let contents = bundle.load().unwrap();
        let tenants = contents.tenants.into_iter().map(|tenant| Object::Tenant(Arc::new(tenant)));
        let chains = contents.chains.into_iter().map(|chain| Object::Chain(Arc::new(chain)));
        let rules = contents.rules.into_iter().map(|rule| Object::Rule(Arc::new(rule)));
        let label = contents.label;
        tenants.chain(chains).chain(rules).map(|object| Labelled { object, label: label.clone() }).collect()
    }

    fn unlabelled(object: Object) -> Labelled<Object> {
        Labelled { object, label: None }
    }

    fn demo() -> TenantName {
        "demo".parse().unwrap()
    }

    fn chain() -> Chain {
        let stage = |name| Stage::new(name, Vec::new());
        Chain::new(demo(), "c".parse().unwrap(), vec![stage("m".parse().unwrap()), stage("m".parse().unwrap())])
    }

    #[test]
    fn what_is_read_from_a_written_manifest_is_what_was_written() {
        let all = objects(&ALL_KEYS.replace("DIGEST", &"7a".repeat(32)));
        assert_eq!(all.len(), 6);
        let text = written(&all).unwrap();
        assert_eq!(objects(&text), all, "{text}");
    }

    #[test]
    fn every_key_of_a_chain_and_of_a_rule_is_written() {
        let text = written(&objects(&ALL_KEYS.replace("DIGEST", &"7a".repeat(32)))).unwrap();
        for key in ALL_KEYS.lines().filter_map(|line| Some(line.split_once(" = ")?.0)) {
            assert!(key.contains('{') || text.contains(key), "{key} is missing in {text}");
        }
    }

    #[test]
    fn tenants_are_written_with_all_their_terms() {
        let text = "version = \"pinion.v1\"\n[[tenant]]\nname = \"lab\"\nweight = 3\nclass_max = \"latency\"\nmemory_mib = 512\n\
                    ports = [\"lan\"]\naddresses = [\"10.77.0.0/16\"]\noutbound_flows = true\n[[tenant]]\nname = \"shop\"\n";
        let tenants = objects(text);
        assert_eq!(objects(&written(&tenants).unwrap()), tenants);
    }

    #[test]
    fn uploads_are_named_by_their_digests() {
        let digest = Digest::of(b"it");
        let module = Module { tenant: demo(), name: "m".parse().unwrap(), digest, size_bytes: 7 };
        let key = Key { tenant: demo(), name: "site".parse().unwrap(), digest, algorithm: "ed25519".into() };
        let model = Model { tenant: demo(), name: "cifar".parse().unwrap(), digest, size_bytes: 7 };
        let objects = [Object::Module(Arc::new(module)), Object::Key(Arc::new(key)), Object::Model(Arc::new(model))];
        let objects = objects.map(unlabelled);
        let text = written(&objects).unwrap();
        let expected = format!(
            "version = \"pinion.v1\"\ntenant = \"demo\"\n\n[[module]]\nname = \"m\"\ndigest = \"{digest}\"\n\n\
             [key.site]\ndigest = \"{digest}\"\n\n[model.cifar]\ndigest = \"{digest}\"\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn the_label_is_written_if_all_objects_have_the_same() {
        let all = |label: &str| format!("version = \"pinion.v1\"\ntenant = \"demo\"\n{label}\n{}", RULES);
        let (web, none) = (objects(&all("label = \"web\"")), objects(&all("")));
        assert_eq!(web[0].label.as_ref().map(Label::as_str), Some("web"));
        assert_eq!(objects(&written(&web).unwrap()), web);
        assert!(!written(&none).unwrap().contains("label"));
        let mixed = [web[0].clone(), none[1].clone()];
        let text = written(&mixed).unwrap();
        assert!(
            text.starts_with("# Not all of these objects have the same label") && !text.contains("label ="),
            "{text}"
        );
        assert_eq!(objects(&text), none);
    }

    #[test]
    fn a_configuration_that_could_control_a_terminal_is_written_as_base64() {
        for config in ["\u{1b}[2J", "\u{9b}2J", "a\u{202e}b", "line\r\n"] {
            let mut chain = chain();
            chain.stages[0].config = config.as_bytes().to_vec();
            let text = written(&[unlabelled(Object::Chain(Arc::new(chain)))]).unwrap();
            assert!(text.contains("config_base64 = ") && is_plain(&text), "{text:?}");
        }
    }

    #[test]
    fn objects_of_two_tenants_and_tenants_with_objects_need_manifests_of_their_own() {
        let chain_of = |tenant: &str| Chain { tenant: tenant.parse().unwrap(), ..chain() };
        let of = |tenant: &str| unlabelled(Object::Chain(Arc::new(chain_of(tenant))));
        let error = written(&[of("a"), of("b")]).unwrap_err();
        assert!(error.to_string().contains("these are of a and b"), "{error}");
        let tenant = unlabelled(Object::Tenant(Arc::new(Tenant::new(demo()))));
        let error = written(&[tenant, of("a")]).unwrap_err();
        assert!(error.to_string().contains("write the tenants apart"), "{error}");
    }

    #[test]
    fn what_only_the_api_can_say_is_an_error_and_not_another_chain() {
        let mut unnamed = chain();
        unnamed.stages[0].outputs = [Target::Stage(1), Target::Egress].map(Output::from).into();
        let mut unordered = chain();
        let field = |name: &str| Field {
            name: name.parse().unwrap(),
            value_bytes: 8,
            entries: 8,
            ttl_seconds: None,
            when_full: WhenFull::Refuse,
        };
        unordered.fields = vec![field("a"), field("b")];
        let grant = |field: &str| Grant { field: field.parse().unwrap(), access: Access::Read };
        unordered.stages[0].state = vec![grant("b"), grant("a")];
        for chain in [unnamed, unordered] {
            assert_eq!(chain.check(), Ok(()));
            assert_eq!(chain.scheduling, Scheduling::default());
            let error = written(&[unlabelled(Object::Chain(Arc::new(chain)))]).unwrap_err();
            assert!(error.to_string().starts_with("chain demo/c has something that manifests cannot say"), "{error}");
        }
    }
}

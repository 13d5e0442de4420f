//! `pinion describe`: shows one object and what belongs to it.

use pinion_control::client::{Filter, ListedChain};
use pinion_control::model::{
    Branch, Case, Key, KeyName, Labelled, Model, ModelName, Module, Outbound, Output, OverBudget, PortName, PortRange,
    Reverse, Rule, Scheduling, Stage, Target as To, Tenant, TenantName,
};
use pinion_control::node::{ChainDrop, ChainStatus, FwpStatus, LatencyStatus, ResourceUse, TenantAccount};
use serde::Serialize;

use super::BadInput;
use super::get::users;
use crate::args::{Kind, OutputFormat, one};
use crate::contexts::Target;
use crate::output::{self, age, or_dash, size};

/// Describes the object that these words name.
pub(super) async fn run(target: &Target, words: &[String], output: OutputFormat) -> anyhow::Result<()> {
    let format = match output {
        OutputFormat::Wide => OutputFormat::Table,
        OutputFormat::Toml => return Err(BadInput::NoFormat("toml", "table, json and yaml").into()),
        OutputFormat::Name => return Err(BadInput::NoFormat("name", "table, json and yaml").into()),
        output => output,
    };
    let (kind, name) = one(words, &Kind::DESCRIBED).map_err(BadInput::from)?;
    let tenant = target.tenant_or(None);
    let client = &mut target.connect().await?;
    let all = Filter { tenant: Some(tenant.clone()), name: None };
    let one = Filter { tenant: Some(tenant.clone()), name: Some(name.clone()) };
    let named = name.clone();
    let not_found = || BadInput::NotFoundOf { kind: kind.singular(), name, tenant };
    match kind {
        Kind::Module => {
            let module = client.modules(one).await?.pop().ok_or_else(not_found)?;
            let chains = client.chains(all).await?;
            print(&module, format, |module| describe_module(module, &chains))
        }
        Kind::Key => {
            let key = client.keys(one).await?.pop().ok_or_else(not_found)?;
            let chains = client.chains(all).await?;
            print(&key, format, |key| describe_key(key, &chains))
        }
        Kind::Model => {
            let model = client.models(one).await?.pop().ok_or_else(not_found)?;
            let chains = client.chains(all).await?;
            print(&model, format, |model| describe_model(model, &chains))
        }
        Kind::Chain => {
            let chain = client.chains(one).await?.pop().ok_or_else(not_found)?;
            let rules = client.rules(all).await?;
            let status = client.status().await?.node.chains;
            print(&chain, format, |chain| describe_chain(chain, &rules, &status))
        }
        Kind::Rule => {
            let rule = client.rules(one).await?.pop().ok_or_else(not_found)?;
            print(&rule, format, describe_rule)
        }
        Kind::Fwp => {
            let fwp = client.fwps(one).await?.pop().ok_or_else(not_found)?;
            print(&fwp, format, describe_fwp)
        }
        Kind::Tenant => {
            let name = TenantName::new(named)?;
            let terms = client.tenants(Some(name.clone())).await?.pop();
            let account = client.account(&name).await?;
            print(&DescribedTenant { account, terms }, format, describe_tenant)
        }
        Kind::Upload | Kind::Instance | Kind::State => unreachable!("no word names one of these here"),
    }
}

fn print<T: Serialize>(value: &T, format: OutputFormat, describe: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json => output::json(value),
        OutputFormat::Yaml => output::yaml(value),
        _ => output::print(&describe(value)),
    }
}

/// Formats names one below another, or a dash for none.
fn names(names: impl Iterator<Item = String>) -> String {
    or_dash(names.reduce(|all, name| format!("{all}\n{name}")))
}

/// A tenant's account, and its terms if it has any of its own.
#[derive(Debug, Serialize)]
struct DescribedTenant {
    #[serde(flatten)]
    account: TenantAccount,
    terms: Option<Tenant>,
}

fn describe_tenant(DescribedTenant { account, terms }: &DescribedTenant) -> String {
    let headings = ["RESOURCE", "USED", "GUARANTEED", "LIMIT", "REFUSED"];
    let table = output::table(headings, account.resources.iter().map(resource));
    let head = match terms {
        Some(terms) => describe_terms(terms),
        None => output::description([
            ("Tenant", account.tenant.to_string()),
            ("Terms", "the node's defaults: it has none of its own".to_owned()),
        ]),
    };
    format!("{head}\n\n{table}")
}

fn describe_terms(terms: &Tenant) -> String {
    let or = |value: Option<String>, absent: &str| value.unwrap_or_else(|| absent.to_owned());
    let mib = |mib: Option<u32>| or(mib.map(|mib| size(u64::from(mib) << 20)), "the node's default");
    let count = |count: Option<u32>| or(count.map(|count| format!("at most {count}")), "the node's shares");
    let yes = |granted: bool| if granted { "yes" } else { "no" }.to_owned();
    let all = |items: Vec<String>, none: &str| if items.is_empty() { none.to_owned() } else { items.join("\n") };
    output::description([
        ("Tenant", terms.name.to_string()),
        ("Weight", terms.weight.to_string()),
        ("Class", format!("{} at most", terms.class_max)),
        ("Memory", mib(terms.memory_mib)),
        ("State", mib(terms.state_mib)),
        ("CPU a second", or(terms.cpu_per_second_ms.map(|ms| format!("{ms} ms")), "no limit")),
        ("Clock step", or(terms.clock_step_us.map(|us| format!("{us} us")), "the node's default")),
        ("Modules", count(terms.modules_max)),
        ("Keys", count(terms.keys_max)),
        ("Models", count(terms.models_max)),
        ("Size of models", or(terms.model_mib.map(|mib| size(u64::from(mib) << 20)), "the node's shares")),
        ("Chains", count(terms.chains_max)),
        ("Rules", count(terms.rules_max)),
        ("Uploads", or(terms.upload_mib.map(|mib| size(u64::from(mib) << 20)), "the node's shares")),
        ("Ports", all(terms.ports.iter().map(ToString::to_string).collect(), "all")),
        ("Addresses", all(terms.addresses.iter().map(ToString::to_string).collect(), "any")),
        ("Outbound flows", yes(terms.outbound_flows)),
        ("Transparent forwarding", yes(terms.transparent_forwarding)),
    ])
}

/// Formats a resource in the unit that its name ends with.
fn resource(ResourceUse { name, used, guaranteed, limit, refused }: &ResourceUse) -> [String; 5] {
    let (label, format): (&str, fn(u64) -> String) = if let Some(label) = name.strip_suffix("_kib") {
        (label, |kib| size(kib.saturating_mul(1024)))
    } else if let Some(label) = name.strip_suffix("_bytes") {
        (label, size)
    } else if let Some(label) = name.strip_suffix("_us") {
        (label, |us| output::time(us.saturating_mul(1_000)))
    } else {
        (name, |count| count.to_string())
    };
    let limit = limit.map(|limit| if name == "cpu_us" { format!("{} a second", format(limit)) } else { format(limit) });
    [
        output::printable(&label.replace('_', " ")),
        format(*used),
        or_dash(guaranteed.map(format)),
        or_dash(limit),
        or_dash(*refused),
    ]
}

fn describe_module(module: &Labelled<Module>, chains: &[ListedChain]) -> String {
    let users = chains.iter().filter(|chain| chain.stages.iter().any(|stage| stage.module == module.name));
    output::description([
        ("Tenant", module.tenant.to_string()),
        ("Name", module.name.to_string()),
        ("Label", or_dash(module.label.as_ref())),
        ("Digest", module.digest.to_string()),
        ("Size", size(module.size_bytes)),
        ("Chains", names(users.map(|chain| chain.name.to_string()))),
    ])
}

fn describe_key(key: &Labelled<Key>, chains: &[ListedChain]) -> String {
    output::description([
        ("Tenant", key.tenant.to_string()),
        ("Name", key.name.to_string()),
        ("Label", or_dash(key.label.as_ref())),
        ("Algorithm", key.algorithm.clone()),
        ("Public key", key.digest.to_string()),
        ("Chains", names(users(chains, &key.tenant, |stage| stage.keys.contains(&key.name)).into_iter())),
    ])
}

fn describe_model(model: &Labelled<Model>, chains: &[ListedChain]) -> String {
    output::description([
        ("Tenant", model.tenant.to_string()),
        ("Name", model.name.to_string()),
        ("Label", or_dash(model.label.as_ref())),
        ("Digest", model.digest.to_string()),
        ("Size", size(model.size_bytes)),
        ("Chains", names(users(chains, &model.tenant, |stage| stage.models.contains(&model.name)).into_iter())),
    ])
}

fn describe_chain(chain: &ListedChain, rules: &[Labelled<Rule>], status: &[ChainStatus]) -> String {
    let status = status.iter().find(|status| status.tenant == chain.tenant && status.chain == chain.name);
    let stages = (0..chain.stages.len()).map(|at| describe_stage(&chain.stages, at));
    let drop = |drop: &ChainDrop| format!("{} at {}, {}", drop.count, drop.place, drop.reason);
    let drops = status.into_iter().flat_map(|status| status.drops.iter().map(drop));
    let meter = status.map(|status| &status.meter);
    let held = match chain.hold_frames {
        0 => "nothing: what finds no room is dropped".into(),
        frames => format!("up to {frames} packets"),
    };
    let idempotent = if chain.idempotent {
        "yes: a call whose instance ends is delivered again"
    } else {
        "no: a call whose instance ends fails"
    };
    let implicit = if chain.implicit { "yes: a call of the module of this name has made it" } else { "no" };
    let egress = chain.egress.as_ref().map_or("the port that a packet came in by".into(), |port| port.to_string());
    output::description([
        ("Tenant", chain.tenant.to_string()),
        ("Name", chain.name.to_string()),
        ("Label", or_dash(chain.chain.label.as_ref())),
        ("Implicit", implicit.into()),
        ("Entry", chain.entry.as_ref().map_or("the first stage".into(), |entry| branch(&chain.stages, entry, "\n"))),
        ("Stages", names(stages)),
        ("Egress", egress),
        ("Reverse", or_dash(chain.reverse.as_ref().map(|it| reverse(&chain.stages, it)))),
        ("Memory limit", size(u64::from(chain.memory_limit_kib) << 10)),
        ("Memory total", chain.memory_total_kib.map_or("no limit".into(), |kib| size(u64::from(kib) << 10))),
        ("Idle timeout", format!("{} ms", chain.idle_timeout_ms)),
        ("Drain timeout", format!("{} ms", chain.drain_timeout_ms)),
        ("Kept ready", format!("{} to {}", chain.cache_min, chain.cache_max)),
        ("Held", held),
        ("Idempotent", idempotent.into()),
        ("Routed", if chain.routed { "by the node" } else { "by its functions" }.into()),
        ("Outbound", or_dash(outbound(&chain.outbound))),
        ("Class", chain.scheduling.class.to_string()),
        (
            "CPU per batch",
            chain.scheduling.cpu_per_batch_us.map_or("no limit".into(), |us| format!("{us} us, or it is ended")),
        ),
        ("CPU a second", cpu_per_second(&chain.scheduling)),
        ("Rules", names(rules.iter().filter(|rule| rule.chain == chain.name).map(|rule| rule.name.to_string()))),
        ("Ready", or_dash(status.map(|status| status.ready))),
        ("Active", or_dash(status.map(|status| status.active))),
        ("Memory used", or_dash(status.map(|status| size(status.memory_kib << 10)))),
        ("Failures", or_dash(status.map(|status| status.failures))),
        ("CPU used", or_dash(meter.map(|meter| format!("{} us in {} turns", meter.cpu_us, meter.turns)))),
        ("Preemptions", or_dash(meter.map(|meter| meter.preemptions))),
        ("Activations", or_dash(meter.map(|meter| meter.activations))),
        ("Copied", or_dash(meter.map(|meter| format!("{} bytes", meter.copied_bytes)))),
        ("Run-queue wait", or_dash(meter.map(|meter| wait(&meter.run_queue_wait)))),
        ("Last failure", or_dash(status.and_then(|status| status.last_failure.as_ref()))),
        ("Dropped", or_dash(meter.map(|meter| meter.dropped))),
        ("Of which", names(drops)),
    ])
}

/// Formats it as `udp to 10.0.0.0/8 port 53`.
fn outbound(list: &[Outbound]) -> Option<String> {
    let ports = |ports: &PortRange| format!(" port {ports}");
    let entry = |Outbound { protocol, to, ports: range }: &Outbound| {
        format!("{protocol} to {to}{}", range.as_ref().map(ports).unwrap_or_default())
    };
    (!list.is_empty()).then(|| list.iter().map(entry).collect::<Vec<_>>().join(", "))
}

/// Formats it as `from outside, leaving by inside`, or as `replies only`.
fn reverse(stages: &[Stage], Reverse { from, entry, egress }: &Reverse) -> String {
    let Some(egress) = egress else { return "replies only".into() };
    let from: Vec<&str> = from.iter().map(PortName::as_str).collect();
    let entry = entry.as_ref().map(|entry| format!("\n{}", branch(stages, entry, "\n"))).unwrap_or_default();
    format!("from {}, leaving by {egress}{entry}", from.join(", "))
}

/// Formats it as `protocol tcp, destination-ports 80: to cache`, with what is between two of its cases, and
/// `otherwise: to firewall`.
fn branch(stages: &[Stage], Branch { cases, default }: &Branch, between: &str) -> String {
    let case = |Case { matcher, to }: &Case| format!("{matcher}: to {}", target(stages, to));
    let otherwise = format!("otherwise: to {}", target(stages, default));
    cases.iter().map(case).chain([otherwise]).collect::<Vec<_>>().join(between)
}

fn wait(latency: &LatencyStatus) -> String {
    let [p50, p99, max] = [latency.p50_ns, latency.p99_ns, latency.max_ns].map(output::time);
    format!("{p50} by the median, 99 % within {p99}, at most {max}")
}

fn cpu_per_second(Scheduling { cpu_per_second_ms, over_budget, .. }: &Scheduling) -> String {
    match (cpu_per_second_ms, over_budget) {
        (None, _) => "no limit".into(),
        (Some(ms), OverBudget::Throttle) => format!("{ms} ms, or it waits"),
        (Some(ms), OverBudget::Kill) => format!("{ms} ms, or it is ended"),
    }
}

/// Formats it as `1. macswap (fast), config of 0B, files of 12KiB, to slow, egress, state: write counters`. Outputs are
/// shown only where they are not the default.
fn describe_stage(stages: &[Stage], at: usize) -> String {
    let Stage { module, name, config, files, outputs, state, keys, models } = &stages[at];
    let name = name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let mut text = format!("{at}. {module}{name}, config of {}", size(config.len() as u64));
    if let Some(files) = files {
        text = format!("{text}, files of {}", size(files.size_bytes));
    }
    if *outputs != Output::default_of(at, stages.len()) {
        let output = |output: &Output| match output {
            Output::To(to) => target(stages, to),
            Output::Branch(it) => format!("a branch ({})", branch(stages, it, "; ")),
        };
        let targets: Vec<String> = outputs.iter().map(output).collect();
        text = format!("{text}, to {}", targets.join(", "));
    }
    if !state.is_empty() {
        let grants: Vec<String> =
            state.iter().map(|grant| format!("{} {}", grant.access.as_str(), grant.field)).collect();
        text = format!("{text}, state: {}", grants.join(", "));
    }
    if !keys.is_empty() {
        text = format!("{text}, keys: {}", keys.iter().map(KeyName::as_str).collect::<Vec<_>>().join(", "));
    }
    if !models.is_empty() {
        text = format!("{text}, models: {}", models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(", "));
    }
    text
}

fn target(stages: &[Stage], target: &To) -> String {
    match target {
        To::Stage(at) => match stages.get(*at).and_then(|stage| stage.name.as_ref()) {
            Some(name) => name.to_string(),
            None => format!("stage {at}"),
        },
        To::Egress => "egress".into(),
        To::Port(port) => format!("port:{port}"),
        To::Drop => "drop".into(),
    }
}

fn describe_rule(rule: &Labelled<Rule>) -> String {
    output::description([
        ("Tenant", rule.tenant.to_string()),
        ("Name", rule.name.to_string()),
        ("Label", or_dash(rule.label.as_ref())),
        ("Priority", rule.priority.to_string()),
        ("Match", rule.matcher.to_string().replace(", ", "\n")),
        ("Policy", rule.policy.to_string()),
        ("Chain", rule.chain.to_string()),
    ])
}

fn describe_fwp(fwp: &FwpStatus) -> String {
    let counters = &fwp.counters;
    output::description([
        ("Tenant", fwp.tenant.to_string()),
        ("FWP", fwp.id.clone()),
        ("Chain", fwp.chain.to_string()),
        ("Chain instance", or_dash((!fwp.state.is_of_template()).then_some(fwp.chain_instance))),
        ("Stage", fwp.stage.to_string()),
        ("Module", fwp.module.to_string()),
        ("State", fwp.state.to_string()),
        ("Client", or_dash(fwp.client.as_ref())),
        ("Worker core", or_dash((!fwp.state.is_of_template()).then_some(fwp.worker_core))),
        ("Memory", size(fwp.memory_kib << 10)),
        ("Age", age(fwp.age_ms)),
        ("Received", format!("{} packets, {} bytes", counters.received, counters.received_bytes)),
        ("Sent", format!("{} packets, {} bytes", counters.sent, counters.sent_bytes)),
        ("Dropped by the function", counters.dropped_by_guest.to_string()),
        ("Dropped, no free slot", counters.dropped_no_slot.to_string()),
        ("Dropped, too long", counters.dropped_too_long.to_string()),
        ("Dropped at egress", counters.dropped_egress.to_string()),
        ("Dropped, next ended", counters.dropped_instance_ended.to_string()),
        ("Dropped by the graph", counters.dropped_by_graph.to_string()),
        ("Activations", counters.activations.to_string()),
        ("Resumes", counters.resumes.to_string()),
        ("Preemptions", counters.preemptions.to_string()),
        ("CPU time", format!("{} us", counters.cpu_us)),
        ("Run-queue wait", format!("{} us: {}", counters.wait_us, wait(&fwp.run_queue_wait))),
    ])
}

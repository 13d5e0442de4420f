//! What is shown of each kind: where it comes from, and its columns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pinion_control::Client;
use pinion_control::client::{Filter, ListedChain};
use pinion_control::model::{
    Key, KeyName, Labelled, Model, ModelName, Module, Object, Rule, Stage, Tenant, TenantName, Upload,
};
use pinion_control::node::{ChainInstanceStatus, ChainStatus, FwpStatus, StateFieldStatus};
use serde::Serialize;

use super::{Found, Item};
use crate::args::Kind;
use crate::commands::BadInput;
use crate::output::{self, age, or_dash, size};

/// Returns the objects of a kind that pass the filter. Its tenant does not filter tenants themselves.
pub(super) async fn find(client: &mut Client, kind: Kind, filter: Filter) -> anyhow::Result<Found> {
    let of_tenant = Filter { tenant: filter.tenant.clone(), name: None };
    Ok(match kind {
        Kind::Tenant => match filter.name.map(TenantName::new) {
            Some(Err(_)) => tenants(Vec::new())?,
            Some(Ok(name)) => tenants(client.tenants(Some(name)).await?)?,
            None => tenants(client.tenants(None).await?)?,
        },
        Kind::Module => modules(client.modules(filter).await?, &client.chains(of_tenant).await?)?,
        Kind::Key => keys(client.keys(filter).await?, &client.chains(of_tenant).await?)?,
        Kind::Model => models(client.models(filter).await?, &client.chains(of_tenant).await?)?,
        Kind::Chain => chains(client.chains(filter).await?, &client.status().await?.node.chains)?,
        Kind::Rule => rules(client.rules(filter).await?)?,
        Kind::Upload => uploads(client.uploads(filter.tenant).await?)?,
        Kind::Fwp => fwps(client.fwps(filter).await?)?,
        Kind::Instance => {
            let id = filter.name.map(|name| name.parse().map_err(|_| BadInput::InstanceId(name))).transpose()?;
            instances(client.chain_instances(filter.tenant, id).await?)?
        }
        Kind::State => {
            let tenants = client.status().await?.node.tenants.into_iter();
            let fields = tenants.flat_map(|status| {
                let (tenant, limit_kib) = (status.tenant, status.state_limit_kib);
                status.state.into_iter().map(move |field| TenantField { tenant: tenant.clone(), field, limit_kib })
            });
            let is_meant = |found: &TenantField| filter.tenant.as_ref().is_none_or(|tenant| found.tenant == *tenant);
            state(fields.filter(is_meant).collect())?
        }
    })
}

/// A field of state, with its tenant.
#[derive(Debug, Serialize)]
struct TenantField {
    tenant: TenantName,
    #[serde(flatten)]
    field: StateFieldStatus,
    /// The memory limit of all fields of the tenant together.
    limit_kib: u64,
}

/// Returns an item with its name and the texts of its columns.
fn item(
    name: impl ToString,
    value: &impl Serialize,
    row: Vec<String>,
    object: Option<Labelled<Object>>,
) -> anyhow::Result<Item> {
    Ok(Item { name: name.to_string(), value: serde_json::to_value(value)?, row, object })
}

fn listing<T>(
    kind: Kind,
    (headings, narrow): (&'static [&'static str], usize),
    all: Vec<T>,
    item: impl FnMut(T) -> anyhow::Result<Item>,
) -> anyhow::Result<Found> {
    Ok(Found { kind, headings, narrow, items: all.into_iter().map(item).collect::<Result<_, _>>()? })
}

const TENANTS: (&[&str], usize) = (
    &[
        "NAME",
        "WEIGHT",
        "CLASS MAX",
        "MEMORY",
        "STATE",
        "CPU A SECOND",
        "PORTS",
        "ADDRESSES",
        "MODULES",
        "KEYS",
        "MODELS",
        "CHAINS",
        "RULES",
        "UPLOADS",
        "OUTBOUND",
        "TRANSPARENT",
    ],
    8,
);

fn tenants(tenants: Vec<Tenant>) -> anyhow::Result<Found> {
    let mib = |mib: Option<u32>| or_dash(mib.map(|mib| size(u64::from(mib) << 20)));
    let yes = |granted: bool| if granted { "yes" } else { "no" }.to_owned();
    listing(Kind::Tenant, TENANTS, tenants, |tenant| {
        let row = vec![
            tenant.name.to_string(),
            tenant.weight.to_string(),
            tenant.class_max.to_string(),
            mib(tenant.memory_mib),
            mib(tenant.state_mib),
            or_dash(tenant.cpu_per_second_ms.map(|ms| format!("{ms}ms"))),
            listed(&tenant.ports),
            listed(&tenant.addresses),
            or_dash(tenant.modules_max),
            or_dash(tenant.keys_max),
            or_dash(tenant.models_max),
            or_dash(tenant.chains_max),
            or_dash(tenant.rules_max),
            mib(tenant.upload_mib),
            yes(tenant.outbound_flows),
            yes(tenant.transparent_forwarding),
        ];
        let object = Labelled { object: Object::Tenant(Arc::new(tenant.clone())), label: None };
        item(&tenant.name, &tenant, row, Some(object))
    })
}

/// Formats items in one line, or a dash for none.
fn listed(items: &BTreeSet<impl ToString>) -> String {
    or_dash(items.iter().map(ToString::to_string).reduce(|all, item| format!("{all},{item}")))
}

fn modules(modules: Vec<Labelled<Module>>, chains: &[ListedChain]) -> anyhow::Result<Found> {
    let users = Users::of(chains, |stage| vec![stage.module.as_str()]);
    listing(Kind::Module, (&["TENANT", "NAME", "DIGEST", "SIZE", "CHAINS", "LABEL"], 4), modules, |module| {
        let row = vec![
            module.tenant.to_string(),
            module.name.to_string(),
            module.digest.to_string(),
            size(module.size_bytes),
            users.listed(&module.tenant, module.name.as_str()),
            or_dash(module.label.as_ref()),
        ];
        let object = module.clone().map(|module| Object::Module(Arc::new(module)));
        item(&module.name, &module, row, Some(object))
    })
}

fn keys(keys: Vec<Labelled<Key>>, chains: &[ListedChain]) -> anyhow::Result<Found> {
    let users = Users::of(chains, |stage| stage.keys.iter().map(KeyName::as_str).collect());
    listing(Kind::Key, (&["TENANT", "NAME", "ALGORITHM", "PUBLIC KEY", "CHAINS", "LABEL"], 5), keys, |key| {
        let row = vec![
            key.tenant.to_string(),
            key.name.to_string(),
            key.algorithm.clone(),
            key.digest.to_string(),
            users.listed(&key.tenant, key.name.as_str()),
            or_dash(key.label.as_ref()),
        ];
        let object = key.clone().map(|key| Object::Key(Arc::new(key)));
        item(&key.name, &key, row, Some(object))
    })
}

fn models(models: Vec<Labelled<Model>>, chains: &[ListedChain]) -> anyhow::Result<Found> {
    let users = Users::of(chains, |stage| stage.models.iter().map(ModelName::as_str).collect());
    listing(Kind::Model, (&["TENANT", "NAME", "DIGEST", "SIZE", "CHAINS", "LABEL"], 5), models, |model| {
        let row = vec![
            model.tenant.to_string(),
            model.name.to_string(),
            model.digest.to_string(),
            size(model.size_bytes),
            users.listed(&model.tenant, model.name.as_str()),
            or_dash(model.label.as_ref()),
        ];
        let object = model.clone().map(|model| Object::Model(Arc::new(model)));
        item(&model.name, &model, row, Some(object))
    })
}

/// The names of chains by what their stages use, so that a list of many objects looks at each chain once.
struct Users<'c>(BTreeMap<(&'c TenantName, &'c str), BTreeSet<&'c str>>);

impl<'c> Users<'c> {
    fn of(chains: &'c [ListedChain], used: impl Fn(&'c Stage) -> Vec<&'c str>) -> Self {
        let mut users = BTreeMap::<_, BTreeSet<_>>::new();
        for chain in chains {
            for name in chain.stages.iter().flat_map(&used) {
                users.entry((&chain.tenant, name)).or_default().insert(chain.name.as_str());
            }
        }
        Self(users)
    }

    /// Formats the chains that use a tenant's object, or a dash for none.
    fn listed(&self, tenant: &TenantName, name: &str) -> String {
        or_dash(self.0.get(&(tenant, name)).map(listed))
    }
}

/// Returns the names of a tenant's chains with a stage for which this holds.
pub(in crate::commands) fn users(
    chains: &[ListedChain],
    tenant: &TenantName,
    uses: impl Fn(&Stage) -> bool,
) -> BTreeSet<String> {
    let users = chains.iter().filter(|chain| chain.tenant == *tenant && chain.stages.iter().any(&uses));
    users.map(|chain| chain.name.to_string()).collect()
}

const CHAINS: (&[&str], usize) = (
    &[
        "TENANT",
        "NAME",
        "STAGES",
        "EGRESS",
        "READY",
        "ACTIVE",
        "FAILURES",
        "CLASS",
        "KEPT READY",
        "MEMORY",
        "LIMIT",
        "DROPPED",
        "LABEL",
    ],
    7,
);

fn chains(chains: Vec<ListedChain>, status: &[ChainStatus]) -> anyhow::Result<Found> {
    let by_name: BTreeMap<_, _> = status.iter().map(|status| ((&status.tenant, &status.chain), status)).collect();
    listing(Kind::Chain, CHAINS, chains, |chain| {
        let status = by_name.get(&(&chain.tenant, &chain.name));
        let stages: Vec<&str> = chain.stages.iter().map(|stage| stage.module.as_str()).collect();
        let kib = |kib: u64| size(kib << 10);
        let implicit = if chain.implicit { " (implicit)" } else { "" };
        let row = vec![
            chain.tenant.to_string(),
            format!("{}{implicit}", chain.name),
            stages.join(","),
            or_dash(chain.egress.as_ref()),
            or_dash(status.map(|status| status.ready)),
            or_dash(status.map(|status| status.active)),
            or_dash(status.map(|status| status.failures)),
            chain.scheduling.class.to_string(),
            format!("{}-{}", chain.cache_min, chain.cache_max),
            or_dash(status.map(|status| kib(status.memory_kib))),
            or_dash(chain.memory_total_kib.map(|limit_kib| kib(limit_kib.into()))),
            or_dash(status.map(|status| status.meter.dropped)),
            or_dash(chain.chain.label.as_ref()),
        ];
        // No manifest defines an implicit one.
        let object = (!chain.implicit).then(|| chain.chain.clone().map(|chain| Object::Chain(Arc::new(chain))));
        item(&chain.name, &chain, row, object)
    })
}

fn rules(rules: Vec<Labelled<Rule>>) -> anyhow::Result<Found> {
    listing(Kind::Rule, (&["TENANT", "NAME", "PRIORITY", "POLICY", "CHAIN", "MATCH", "LABEL"], 6), rules, |rule| {
        let row = vec![
            rule.tenant.to_string(),
            rule.name.to_string(),
            rule.priority.to_string(),
            rule.policy.to_string(),
            rule.chain.to_string(),
            rule.matcher.to_string(),
            or_dash(rule.label.as_ref()),
        ];
        let object = rule.clone().map(|rule| Object::Rule(Arc::new(rule)));
        item(&rule.name, &rule, row, Some(object))
    })
}

fn uploads(uploads: Vec<Upload>) -> anyhow::Result<Found> {
    listing(Kind::Upload, (&["TENANT", "DIGEST", "SIZE", "KEPT FOR"], 4), uploads, |it| {
        let row = vec![it.tenant.to_string(), it.digest.to_string(), size(it.size_bytes), age(it.kept_ms)];
        item(it.digest, &it, row, None)
    })
}

const FWPS: (&[&str], usize) = (
    &[
        "TENANT",
        "CHAIN",
        "INSTANCE",
        "FWP",
        "MODULE",
        "STATE",
        "CLIENT",
        "CORE",
        "RECEIVED",
        "SENT",
        "DROPPED",
        "MEMORY",
        "AGE",
        "STAGE",
        "BYTES IN",
        "BYTES OUT",
        "WAIT P99",
    ],
    13,
);

fn fwps(fwps: Vec<FwpStatus>) -> anyhow::Result<Found> {
    listing(Kind::Fwp, FWPS, fwps, |fwp| {
        let row = vec![
            fwp.tenant.to_string(),
            fwp.chain.to_string(),
            or_dash((!fwp.state.is_of_template()).then_some(fwp.chain_instance)),
            fwp.id.clone(),
            fwp.module.to_string(),
            fwp.state.to_string(),
            or_dash(fwp.client.as_ref()),
            or_dash((!fwp.state.is_of_template()).then_some(fwp.worker_core)),
            fwp.counters.received.to_string(),
            fwp.counters.sent.to_string(),
            fwp.counters.dropped().to_string(),
            size(fwp.memory_kib << 10),
            age(fwp.age_ms),
            fwp.stage.to_string(),
            size(fwp.counters.received_bytes),
            size(fwp.counters.sent_bytes),
            output::time(fwp.run_queue_wait.p99_ns),
        ];
        item(&fwp.id, &fwp, row, None)
    })
}

const STATE: (&[&str], usize) = (
    &["TENANT", "NAME", "ENTRIES", "OF", "MEMORY", "LIMIT", "HITS", "MISSES", "WRITES", "DENIED", "FULL", "EVICTED"],
    12,
);

fn state(fields: Vec<TenantField>) -> anyhow::Result<Found> {
    listing(Kind::State, STATE, fields, |found| {
        let TenantField { tenant, field, limit_kib } = &found;
        let row = vec![
            tenant.to_string(),
            field.name.to_string(),
            field.entries.to_string(),
            field.entries_max.to_string(),
            size(field.memory_kib << 10),
            size(limit_kib << 10),
            field.hits.to_string(),
            field.misses.to_string(),
            field.writes.to_string(),
            field.denied.to_string(),
            field.full.to_string(),
            field.evicted.to_string(),
        ];
        item(&field.name, &found, row, None)
    })
}

const INSTANCES: (&[&str], usize) =
    (&["TENANT", "CHAIN", "INSTANCE", "STATE", "CLIENT", "FWPS", "CORE", "AGE", "ENDED"], 9);

fn instances(instances: Vec<ChainInstanceStatus>) -> anyhow::Result<Found> {
    listing(Kind::Instance, INSTANCES, instances, |instance| {
        let row = vec![
            instance.tenant.to_string(),
            instance.chain.to_string(),
            instance.id.to_string(),
            instance.state.to_string(),
            or_dash(instance.client.as_ref()),
            instance.fwp_ids.join(","),
            instance.worker_core.to_string(),
            age(instance.age_ms),
            or_dash(instance.ended_because.as_ref()),
        ];
        item(instance.id, &instance, row, None)
    })
}

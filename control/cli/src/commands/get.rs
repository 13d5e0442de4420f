//! `pinion get`: lists objects.

use std::collections::BTreeSet;

use pinion_control::Client;
use pinion_control::client::Filter;
use pinion_control::model::{Chain, Key, Model, Module, Rule, Stage, Tenant, TenantName, Upload};
use pinion_control::node::{ChainInstanceStatus, ChainStatus, FwpStatus, StateFieldStatus};
use serde::Serialize;

use super::BadInput;
use crate::args::{Format, Listed};
use crate::output::{self, age, or_dash, size};

pub(super) async fn run(client: &mut Client, kind: Listed, filter: Filter, format: Format) -> anyhow::Result<()> {
    let wanted = filter.clone();
    match kind {
        Listed::Tenants => {
            let mut tenants = client.tenants(filter.tenant).await?;
            tenants.retain(|tenant| filter.name.as_ref().is_none_or(|name| tenant.name.as_str() == name));
            print(tenants, "tenant", wanted, format, self::tenants)
        }
        Listed::Modules => print(client.modules(filter).await?, "module", wanted, format, modules),
        Listed::Keys => {
            let chains = client.chains(Filter { tenant: filter.tenant.clone(), name: None }).await?;
            print(client.keys(filter).await?, "key", wanted, format, |all| keys(all, &chains))
        }
        Listed::Models => {
            let chains = client.chains(Filter { tenant: filter.tenant.clone(), name: None }).await?;
            print(client.models(filter).await?, "model", wanted, format, |all| models(all, &chains))
        }
        Listed::Uploads => {
            let mut uploads = client.uploads(filter.tenant).await?;
            uploads.retain(|upload| filter.name.as_ref().is_none_or(|name| upload.digest.to_string() == *name));
            print(uploads, "upload", wanted, format, self::uploads)
        }
        Listed::Rules => print(client.rules(filter).await?, "rule", wanted, format, rules),
        Listed::Fwps => print(client.fwps(filter).await?, "fwp", wanted, format, fwps),
        Listed::Chains => {
            let status = client.status().await?.node.chains;
            print(client.chains(filter).await?, "chain", wanted, format, |all| chains(all, &status))
        }
        Listed::State => {
            let is_wanted = |found: &TenantField| {
                filter.tenant.as_ref().is_none_or(|tenant| found.tenant == *tenant)
                    && filter.name.as_ref().is_none_or(|name| found.field.name.as_str() == name)
            };
            let tenants = client.status().await?.node.tenants.into_iter();
            let fields = tenants.flat_map(|status| {
                let (tenant, limit_kib) = (status.tenant, status.state_limit_kib);
                status.state.into_iter().map(move |field| TenantField { tenant: tenant.clone(), field, limit_kib })
            });
            print(fields.filter(is_wanted).collect(), "state field", wanted, format, state)
        }
        Listed::Instances => {
            let id = filter.name.map(|name| name.parse().map_err(|_| BadInput::InstanceId(name))).transpose()?;
            print(client.chain_instances(filter.tenant, id).await?, "instance", wanted, format, instances)
        }
    }
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

fn print<T: Serialize>(
    found: Vec<T>,
    kind: &'static str,
    wanted: Filter,
    format: Format,
    table: impl FnOnce(&[T]) -> String,
) -> anyhow::Result<()> {
    match wanted {
        Filter { name: Some(name), tenant: Some(tenant) } if found.is_empty() => {
            return Err(BadInput::NotFoundOf { kind, name, tenant }.into());
        }
        Filter { name: Some(name), tenant: None } if found.is_empty() => {
            return Err(BadInput::NotFound { kind, name }.into());
        }
        _ => {}
    }
    match format {
        Format::Json => output::json(&found),
        Format::Table if found.is_empty() => {
            output::say(&format!("There is no {kind}."));
            Ok(())
        }
        Format::Table => output::print(&table(&found)),
    }
}

fn tenants(tenants: &[Tenant]) -> String {
    let headings = ["NAME", "WEIGHT", "CLASS MAX", "MEMORY", "STATE", "CPU A SECOND", "PORTS", "ADDRESSES"];
    let mib = |mib: Option<u32>| or_dash(mib.map(|mib| size(u64::from(mib) << 20)));
    let row = |tenant: &Tenant| {
        [
            tenant.name.to_string(),
            tenant.weight.to_string(),
            tenant.class_max.to_string(),
            mib(tenant.memory_mib),
            mib(tenant.state_mib),
            or_dash(tenant.cpu_per_second_ms.map(|ms| format!("{ms}ms"))),
            listed(&tenant.ports),
            listed(&tenant.addresses),
        ]
    };
    output::table(headings, tenants.iter().map(row))
}

/// Formats items in one line, or a dash for none.
fn listed(items: &BTreeSet<impl ToString>) -> String {
    or_dash(items.iter().map(ToString::to_string).reduce(|all, item| format!("{all},{item}")))
}

fn modules(modules: &[Module]) -> String {
    let row = |m: &Module| [m.tenant.to_string(), m.name.to_string(), m.digest.to_string(), size(m.size_bytes)];
    output::table(["TENANT", "NAME", "DIGEST", "SIZE"], modules.iter().map(row))
}

fn keys(keys: &[Key], chains: &[Chain]) -> String {
    let row = |key: &Key| {
        let users = users(chains, &key.tenant, |stage| stage.keys.contains(&key.name));
        let algorithm = key.algorithm.clone();
        [key.tenant.to_string(), key.name.to_string(), algorithm, key.digest.to_string(), listed(&users)]
    };
    output::table(["TENANT", "NAME", "ALGORITHM", "PUBLIC KEY", "CHAINS"], keys.iter().map(row))
}

fn models(models: &[Model], chains: &[Chain]) -> String {
    let row = |model: &Model| {
        let users = users(chains, &model.tenant, |stage| stage.models.contains(&model.name));
        let size = size(model.size_bytes);
        [model.tenant.to_string(), model.name.to_string(), model.digest.to_string(), size, listed(&users)]
    };
    output::table(["TENANT", "NAME", "DIGEST", "SIZE", "CHAINS"], models.iter().map(row))
}

/// Returns the names of a tenant's chains with a stage for which this holds.
pub(super) fn users(chains: &[Chain], tenant: &TenantName, uses: impl Fn(&Stage) -> bool) -> BTreeSet<String> {
    let users = chains.iter().filter(|chain| chain.tenant == *tenant && chain.stages.iter().any(&uses));
    users.map(|chain| chain.name.to_string()).collect()
}

fn uploads(uploads: &[Upload]) -> String {
    let row = |it: &Upload| [it.tenant.to_string(), it.digest.to_string(), size(it.size_bytes), age(it.kept_ms)];
    output::table(["TENANT", "DIGEST", "SIZE", "KEPT FOR"], uploads.iter().map(row))
}

fn chains(chains: &[Chain], status: &[ChainStatus]) -> String {
    let row = |chain: &Chain| {
        let status = status.iter().find(|status| status.tenant == chain.tenant && status.chain == chain.name);
        let stages: Vec<&str> = chain.stages.iter().map(|stage| stage.module.as_str()).collect();
        [
            chain.tenant.to_string(),
            chain.name.to_string(),
            stages.join(","),
            or_dash(chain.egress.as_ref()),
            or_dash(status.map(|status| status.ready)),
            or_dash(status.map(|status| status.active)),
            or_dash(status.map(|status| status.failures)),
        ]
    };
    output::table(["TENANT", "NAME", "STAGES", "EGRESS", "READY", "ACTIVE", "FAILURES"], chains.iter().map(row))
}

fn rules(rules: &[Rule]) -> String {
    let row = |rule: &Rule| {
        [
            rule.tenant.to_string(),
            rule.name.to_string(),
            rule.priority.to_string(),
            rule.policy.to_string(),
            rule.chain.to_string(),
            rule.matcher.to_string(),
        ]
    };
    output::table(["TENANT", "NAME", "PRIORITY", "POLICY", "CHAIN", "MATCH"], rules.iter().map(row))
}

fn fwps(fwps: &[FwpStatus]) -> String {
    let headings = [
        "TENANT", "CHAIN", "INSTANCE", "FWP", "MODULE", "STATE", "CLIENT", "CORE", "RECEIVED", "SENT", "DROPPED",
        "MEMORY", "AGE",
    ];
    let row = |fwp: &FwpStatus| {
        [
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
        ]
    };
    output::table(headings, fwps.iter().map(row))
}

fn state(fields: &[TenantField]) -> String {
    let headings =
        ["TENANT", "NAME", "ENTRIES", "OF", "MEMORY", "LIMIT", "HITS", "MISSES", "WRITES", "DENIED", "FULL", "EVICTED"];
    let row = |TenantField { tenant, field, limit_kib }: &TenantField| {
        [
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
        ]
    };
    output::table(headings, fields.iter().map(row))
}

fn instances(instances: &[ChainInstanceStatus]) -> String {
    let row = |instance: &ChainInstanceStatus| {
        [
            instance.tenant.to_string(),
            instance.chain.to_string(),
            instance.id.to_string(),
            instance.state.to_string(),
            or_dash(instance.client.as_ref()),
            instance.fwp_ids.join(","),
            instance.worker_core.to_string(),
            age(instance.age_ms),
            or_dash(instance.ended_because.as_ref()),
        ]
    };
    let headings = ["TENANT", "CHAIN", "INSTANCE", "STATE", "CLIENT", "FWPS", "CORE", "AGE", "ENDED"];
    output::table(headings, instances.iter().map(row))
}

//! `pinion wait`: waits until objects are in force, or deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use pinion_control::Client;
use pinion_control::client::Filter;
use pinion_control::model::{ObjectRef, RevisionFilter, TenantName};
use serde::Serialize;

use super::rollout::{INTERVAL, Patience, concerned, in_force};
use super::{BadInput, delete};
use crate::args::{Condition, Format, Wait};
use crate::contexts::Target;
use crate::output;

/// An object was not deleted in time.
#[derive(Debug, thiserror::Error)]
#[error("{object} is still there after {timeout:?}: see pinion history for who changes it")]
struct StillThere {
    object: ObjectRef,
    timeout: Duration,
}

/// What was waited for.
#[derive(Debug, Serialize)]
struct Reached<'a> {
    #[serde(flatten)]
    object: &'a ObjectRef,
    condition: &'static str,
}

pub(super) async fn run(target: &Target, wait: Wait, format: Format) -> anyhow::Result<()> {
    let Wait { objects, condition, timeout } = wait;
    let objects = delete::objects(&objects, &target.tenant_or(None))?;
    let mut client = target.connect().await?;
    let patience = Patience::begin(timeout);
    for object in &objects {
        wait_for(&mut client, object, condition, patience).await?;
    }
    let condition = match condition {
        Condition::InForce => "in-force",
        Condition::Deleted => "deleted",
    };
    match format {
        Format::Json => output::json(&objects.iter().map(|object| Reached { object, condition }).collect::<Vec<_>>()),
        Format::Table => objects
            .iter()
            .try_for_each(|object| output::print(&format!("{}/{} {condition}", object.kind(), object.name()))),
    }
}

async fn wait_for(
    client: &mut Client,
    object: &ObjectRef,
    condition: Condition,
    patience: Patience,
) -> anyhow::Result<()> {
    match condition {
        Condition::InForce if !is_there(client, object).await? => return Err(not_found(object).into()),
        Condition::InForce => {
            let version = latest_revision(client, object.tenant()).await?;
            let chains = concerned(client, &[object].into()).await?;
            in_force(client, version, chains, patience).await?;
            // It may have been deleted meanwhile.
            if !is_there(client, object).await? {
                return Err(not_found(object).into());
            }
        }
        Condition::Deleted => {
            while is_there(client, object).await? {
                if patience.is_over() {
                    return Err(StillThere { object: object.clone(), timeout: patience.timeout }.into());
                }
                tokio::time::sleep(INTERVAL).await;
            }
            let version = latest_revision(client, object.tenant()).await?;
            in_force(client, version, BTreeSet::new(), patience).await?;
        }
    }
    Ok(())
}

/// Returns the number of the latest revision of a tenant, which has all that its objects depend on; if none is kept, that of the
/// node.
pub(super) async fn latest_revision(client: &mut Client, tenant: &TenantName) -> anyhow::Result<u64> {
    let filter = RevisionFilter { tenant: Some(tenant.clone()), limit: 1, ..RevisionFilter::default() };
    match &client.revisions(filter).await?[..] {
        [latest, ..] => Ok(latest.number),
        [] => Ok(client.status().await?.desired_version),
    }
}

async fn is_there(client: &mut Client, object: &ObjectRef) -> anyhow::Result<bool> {
    let filter = Filter { tenant: Some(object.tenant().clone()), name: Some(object.name().to_owned()) };
    Ok(match object {
        ObjectRef::Tenant { name } => !client.tenants(Some(name.clone())).await?.is_empty(),
        ObjectRef::Module { .. } => !client.modules(filter).await?.is_empty(),
        ObjectRef::Key { .. } => !client.keys(filter).await?.is_empty(),
        ObjectRef::Model { .. } => !client.models(filter).await?.is_empty(),
        // One that a call has made is no object, and comes again with the next call.
        ObjectRef::Chain { .. } => client.chains(filter).await?.iter().any(|listed| !listed.implicit),
        ObjectRef::Rule { .. } => !client.rules(filter).await?.is_empty(),
    })
}

fn not_found(object: &ObjectRef) -> BadInput {
    let (kind, name) = (object.kind(), object.name().to_owned());
    match object {
        ObjectRef::Tenant { .. } => BadInput::NotFound { kind, name },
        _ => BadInput::NotFoundOf { kind, name, tenant: object.tenant().clone() },
    }
}

//! `pinion rollout`: returns to earlier revisions, and waits until the latest one is in force.

use std::time::Duration;

use pinion_control::Client;
use pinion_control::client::NodeReport;
use pinion_control::control::{Changed, Restored};
use serde::Serialize;

use super::{Done, print_changed, progress};
use crate::args::{Format, Terms, Timeout, Waiting};
use crate::contexts::Target;
use crate::output;

/// The interval between requests to the node.
const INTERVAL: Duration = Duration::from_millis(100);

/// A revision was not in force in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "revision {version} is not in force after {}s; {followed} is: see pinion status and pinion get chains for chains that have no instance",
    timeout.as_secs()
)]
struct NotInForce {
    version: u64,
    followed: u64,
    timeout: Duration,
}

/// How far the node is.
#[derive(Debug, Serialize)]
struct InForce {
    desired_version: u64,
    followed_version: u64,
}

pub(super) async fn undo(
    target: &Target,
    to_revision: Option<u64>,
    terms: Terms,
    waiting: Waiting,
    format: Format,
) -> anyhow::Result<()> {
    let tenant = target.tenant_or(None);
    let mut client = target.connect().await?;
    let work = async { client.roll_back(&tenant, to_revision, terms.into()).await };
    let restored = progress::shown_during(&target.address, work).await?;
    wait_for(&mut client, restored.version, terms, waiting).await?;
    if format == Format::Json {
        return output::json(&restored);
    }
    let Restored { version, restored, outcomes } = restored;
    if outcomes.is_empty() {
        output::say(&format!("Tenant {tenant} is as it was at revision {restored} already."));
    }
    print_changed(&Changed { version, outcomes }, Done::of(terms), format)
}

pub(super) async fn status(target: &Target, Timeout { timeout }: Timeout, format: Format) -> anyhow::Result<()> {
    let mut client = target.connect().await?;
    let version = client.status().await?.desired_version;
    let NodeReport { node, .. } = in_force(&mut client, version, timeout).await?;
    match format {
        Format::Json => output::json(&InForce { desired_version: version, followed_version: node.followed_version }),
        Format::Table => output::print(&format!("revision {version} is in force")),
    }
}

/// Waits until a change is in force, if that is wanted and it was made.
pub(super) async fn wait_for(client: &mut Client, version: u64, terms: Terms, waiting: Waiting) -> anyhow::Result<()> {
    if waiting.wait && !terms.dry_run {
        in_force(client, version, waiting.timeout.timeout).await?;
    }
    Ok(())
}

/// Waits until this version, or a later one, is completely in force.
async fn in_force(client: &mut Client, version: u64, timeout: Duration) -> anyhow::Result<NodeReport> {
    let began = tokio::time::Instant::now();
    loop {
        let report = client.status().await?;
        let followed = report.node.followed_version;
        if followed >= version {
            return Ok(report);
        }
        if began.elapsed() >= timeout {
            return Err(NotInForce { version, followed, timeout }.into());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

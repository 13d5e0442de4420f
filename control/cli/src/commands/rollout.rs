//! `pinion rollout`: returns to earlier revisions, and waits until the latest one is in force.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pinion_control::Client;
use pinion_control::client::{Filter, ListedChain};
use pinion_control::control::{Changed, Restored};
use pinion_control::model::{Chain, ChainKey, Effect, ObjectRef, Outcome, TenantName};
use serde::Serialize;

use super::{Done, print_changed, progress};
use crate::args::{Format, Terms, Waiting};
use crate::contexts::Target;
use crate::output;

/// The interval between requests to the node while a command waits.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);
/// How many chains without an instance an error names.
const NAMED_MAX: usize = 8;

/// A revision was not in force in time.
#[derive(Debug, thiserror::Error)]
enum NotInForce {
    #[error("revision {version} is not in force after {timeout:?}; {followed} is: see pinion status")]
    NotFollowed { version: u64, followed: u64, timeout: Duration },
    #[error(
        "revision {version} is followed, but after {timeout:?} no instance is ready of {}: pinion get chains and pinion logs say why",
        named(chains)
    )]
    NotReady { version: u64, chains: BTreeSet<ChainKey>, timeout: Duration },
}

/// Formats them as `chain demo/echo, chain demo/other`.
fn named(chains: &BTreeSet<ChainKey>) -> String {
    let some = chains.iter().take(NAMED_MAX).map(|(tenant, name)| format!("chain {tenant}/{name}"));
    let more = chains.len().saturating_sub(NAMED_MAX);
    some.chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>().join(", ")
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
    let changed = Changed { version: restored.version, outcomes: restored.outcomes.clone() };
    match format {
        Format::Json => output::json(&restored)?,
        Format::Table => {
            let Restored { restored, outcomes, .. } = restored;
            if outcomes.is_empty() {
                output::say(&format!("Tenant {tenant} is as it was at revision {restored} already."));
            }
            print_changed(&changed, Done::of(terms), format)?;
        }
    }
    wait_for(&mut client, &changed, terms, waiting).await
}

pub(super) async fn status(target: &Target, timeout: Duration, format: Format) -> anyhow::Result<()> {
    let mut client = target.connect().await?;
    let version = client.status().await?.desired_version;
    let chains = client.chains(Filter::default()).await?;
    let chains = chains.iter().filter(|chain| is_awaited(chain)).map(key).collect();
    let followed_version = in_force(&mut client, version, chains, Patience::begin(timeout)).await?;
    match format {
        Format::Json => output::json(&InForce { desired_version: version, followed_version }),
        Format::Table => output::print(&format!("revision {version} is in force")),
    }
}

/// Waits until a change is in force, if that is wanted and it was made. Called once it is told what was done.
pub(super) async fn wait_for(
    client: &mut Client,
    changed: &Changed,
    terms: Terms,
    waiting: Waiting,
) -> anyhow::Result<()> {
    if waiting.wait && !terms.dry_run {
        let patience = Patience::begin(waiting.timeout());
        let is_there = |outcome: &&Outcome| !matches!(outcome.effect, Effect::Deleted | Effect::Pruned);
        let objects = changed.outcomes.iter().filter(is_there).map(|outcome| &outcome.object).collect();
        let chains = concerned(client, &objects).await?;
        in_force(client, changed.version, chains, patience).await?;
    }
    Ok(())
}

/// For how long a command waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    began: Instant,
    pub(super) timeout: Duration,
}

impl Patience {
    pub(super) fn begin(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout }
    }

    pub(super) fn is_over(&self) -> bool {
        self.began.elapsed() >= self.timeout
    }
}

/// Returns the chains that are among these objects, or have modules, keys or models of them, and which keep instances ready.
pub(super) async fn concerned(
    client: &mut Client,
    objects: &BTreeSet<&ObjectRef>,
) -> anyhow::Result<BTreeSet<ChainKey>> {
    let tenants: BTreeSet<&TenantName> = objects.iter().map(|object| object.tenant()).collect();
    let mut concerned = BTreeSet::new();
    for tenant in tenants {
        let chains = client.chains(Filter { tenant: Some(tenant.clone()), name: None }).await?;
        let chains = chains.iter().filter(|chain| is_awaited(chain));
        concerned.extend(chains.filter(|chain| needs(chain).any(|object| objects.contains(&object))).map(key));
    }
    Ok(concerned)
}

/// Returns whether a chain has to have an instance ready for a revision to be in force. An implicit one is part of none.
fn is_awaited(chain: &ListedChain) -> bool {
    chain.cache_min > 0 && !chain.implicit
}

/// Returns a chain's name and those of its modules, keys and models.
fn needs(chain: &Chain) -> impl Iterator<Item = ObjectRef> {
    let tenant = &chain.tenant;
    let of_stages = chain.stages.iter().flat_map(move |stage| {
        let module = ObjectRef::Module { tenant: tenant.clone(), name: stage.module.clone() };
        let keys = stage.keys.iter().map(move |name| ObjectRef::Key { tenant: tenant.clone(), name: name.clone() });
        let models =
            stage.models.iter().map(move |name| ObjectRef::Model { tenant: tenant.clone(), name: name.clone() });
        std::iter::once(module).chain(keys).chain(models)
    });
    std::iter::once(ObjectRef::from(chain)).chain(of_stages)
}

fn key(chain: &ListedChain) -> ChainKey {
    (chain.tenant.clone(), chain.name.clone())
}

/// Waits until this version, or a later one, is completely in force: the node follows it, and each of these chains that is still there
/// was seen with a ready instance after that. Returns the version that it follows.
pub(super) async fn in_force(
    client: &mut Client,
    version: u64,
    mut chains: BTreeSet<ChainKey>,
    patience: Patience,
) -> anyhow::Result<u64> {
    let timeout = patience.timeout;
    loop {
        let node = client.status().await?.node;
        let followed = node.followed_version;
        if followed >= version {
            let waiting = node.chains.iter().filter(|status| status.ready == 0);
            let waiting: BTreeSet<ChainKey> = waiting.map(|it| (it.tenant.clone(), it.chain.clone())).collect();
            chains.retain(|chain| waiting.contains(chain));
            if chains.is_empty() {
                return Ok(followed);
            }
        }
        if patience.is_over() {
            return Err(match followed >= version {
                true => NotInForce::NotReady { version, chains, timeout },
                false => NotInForce::NotFollowed { version, followed, timeout },
            }
            .into());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_chains_without_an_instance_are_counted() {
        let chain = |number: usize| ("demo".parse().unwrap(), format!("c{number}").parse().unwrap());
        assert_eq!(named(&[chain(1), chain(2)].into()), "chain demo/c1, chain demo/c2");
        assert!(named(&(10..30).map(chain).collect()).ends_with("chain demo/c17, 12 more"));
    }
}

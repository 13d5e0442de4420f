//! A node with a function on it: builds, applies, and shows log lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pinion_control::Client;
use pinion_control::client::Follow;
use pinion_control::control::ChangeOptions;
use pinion_control::journal::LogFilter;
use pinion_control::manifest::Contents;
use pinion_control::model::{ChainName, Effect, Labelling, ObjectRef};
use pinion_control::node::ChainStatus;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::Function;
use super::account::Account;
use super::node::{self, Node, PortConfig};
use crate::args::Format;
use crate::commands::{apply, logs};
use crate::output::{self, printable};

/// The interval of checks whether the node still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The interval of checks whether instances are ready, and the longest wait for them.
const READY_INTERVAL: Duration = Duration::from_millis(10);
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for the last log lines after the node has ended.
const LAST_LINES_MAX: Duration = Duration::from_secs(5);

/// A node with the function on it.
pub(super) struct Session {
    node: Node,
    client: Client,
    applied: BTreeSet<ObjectRef>,
    /// The chains, with how many instances of each are kept ready.
    kept_ready: BTreeMap<ChainName, u32>,
    heard: JoinHandle<()>,
}

impl Session {
    /// Starts a node with these ports. Its functions' log lines are shown from now on.
    pub(super) async fn start(function: &Function, ports: &[PortConfig], format: Format) -> anyhow::Result<Self> {
        Self::start_in(node::folder()?, function, ports, format).await
    }

    /// The same in an existing folder.
    pub(super) async fn start_in(
        folder: TempDir,
        function: &Function,
        ports: &[PortConfig],
        format: Format,
    ) -> anyhow::Result<Self> {
        let node = Node::start(function, folder, ports).await?;
        let client = Client::connect(&node.socket()).await?;
        let mut listening = client.clone();
        let heard = tokio::spawn(async move {
            // The stream ends with the node, which is detected elsewhere.
            let _ = logs::show(&mut listening, LogFilter::default(), Follow::Yes, format).await;
        });
        Ok(Self { node, client, applied: BTreeSet::new(), kept_ready: BTreeMap::new(), heard })
    }

    pub(super) fn described(&self) -> String {
        format!("pinion --socket {} asks the node; Ctrl-C ends it.", self.socket().display())
    }

    /// Shows the node's warnings about this machine.
    pub(super) async fn warn(&mut self) -> anyhow::Result<()> {
        for warning in self.client.status().await?.node.warnings {
            output::say(&format!("warning: {}", printable(&warning)));
        }
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.node.socket()
    }

    /// Builds the function, and applies its manifest with this modification, and nothing else.
    pub(super) async fn deploy(
        &mut self,
        function: &Function,
        change: impl FnOnce(Contents) -> anyhow::Result<Contents>,
    ) -> anyhow::Result<()> {
        let mut contents = change(function.contents().await?)?;
        // A developer expects the new version at once.
        contents.chains.iter_mut().for_each(|chain| chain.drain_timeout_ms = 0);
        self.kept_ready = contents.chains.iter().map(|chain| (chain.name.clone(), chain.cache_min)).collect();
        let labelling = Labelling { label: contents.label.clone(), take_over: true, prune: BTreeSet::new() };
        let changed = apply::apply(self.client.clone(), contents, labelling, ChangeOptions::default()).await?;
        let mut outcomes = changed.outcomes;
        let wanted: BTreeSet<ObjectRef> = outcomes.iter().map(|outcome| outcome.object.clone()).collect();
        let unwanted: Vec<ObjectRef> = self.applied.difference(&wanted).cloned().collect();
        if !unwanted.is_empty() {
            outcomes.extend(self.client.delete(&unwanted).await?.outcomes);
        }
        self.applied = wanted;
        for outcome in outcomes.iter().filter(|outcome| outcome.effect != Effect::Unchanged) {
            output::say(&format!("{}/{} {}", outcome.object.kind(), outcome.object.name(), outcome.effect));
        }
        Ok(())
    }

    /// Waits until all instances that are kept ready are, so that the first frames find one. Gives up after some seconds, and when an
    /// instance has failed; what happens to frames then is counted.
    pub(super) async fn until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            self.node.check()?;
            let chains = self.client.status().await?.node.chains;
            let kept_ready = &self.kept_ready;
            let is_ready = |chain: &ChainStatus| {
                chain.failures > 0 || kept_ready.get(&chain.chain).is_none_or(|kept| chain.ready >= *kept)
            };
            if chains.iter().all(is_ready) || started.elapsed() > READY_PATIENCE {
                return Ok(());
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    /// Returns the counts of frames so far.
    pub(super) async fn account(&mut self) -> anyhow::Result<Account> {
        self.node.check()?;
        Ok(Account::of(&self.client.status().await?))
    }

    /// Waits until the node ends unexpectedly, and returns the reason.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        loop {
            if let Err(why) = self.node.check() {
                return why;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Stops the node, and waits until it has ended and all log lines are shown.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.node.stop().await?;
        let _ = tokio::time::timeout(LAST_LINES_MAX, self.heard).await;
        Ok(())
    }
}

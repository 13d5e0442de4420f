//! `pinion dev`: runs a function on a local node that ends with the command.
//!
//! ```text
//!   --read    capture -> wire --Unix socket--> piniond (port, rules, chain) --Unix socket--> wire -> capture
//!   --tap     programs of this machine <--kernel--> TAP device <--> piniond
//! ```
//!
//! The node is a normal `piniond`. Its builder, rules, limits and quantum affect a function as on an operator's node.
//!
//! | file | what it holds |
//! |---|---|
//! | `capture` | reads and writes captures |
//! | `node` | the node's process and its folder |
//! | `wire` | sends frames into the node's ports, and receives frames from them |
//! | `replay` | `--read`: replays a capture until each frame was sent or dropped |
//! | `session` | what both have in common: building, applying, log lines |
//! | `tap` | `--tap`: the device's addresses |
//! | `watch` | watches files for changes, and handles interrupts |
//! | `account` | counts what happened to frames |

mod account;
mod capture;
mod node;
mod replay;
mod session;
mod tap;
mod watch;
mod wire;

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use pinion_control::manifest::{Bundle, Contents};
use pinion_control::model::{ChainName, PortName, TenantName};

use self::watch::{Changes, Interrupt};
use super::build::{self, Way};
use super::{BadInput, check, folder_of, own_manifest, read_manifests};
use crate::args::{Dev, Format};
use crate::output;

/// The port on which frames arrive, if the manifest names none.
const PORT: &str = "lan";

/// The function that the command runs.
struct Function {
    manifest: PathBuf,
    /// The tenant of a manifest that names none.
    tenant: TenantName,
    piniond: PathBuf,
    builder: PathBuf,
}

/// The frames to replay, and how.
struct Replay {
    read: PathBuf,
    write: Option<PathBuf>,
    /// The number of frames in a burst.
    burst: usize,
    which: Which,
    /// How long functions may hold a burst's frames back before the next burst goes in.
    patience: Duration,
    /// How long functions may hold the last frames back while nothing else happens.
    linger: Duration,
}

/// Which frames of a capture the function gets.
enum Which {
    /// Those that the manifest's rules send to it.
    ByRules,
    /// All frames, to this chain, or to the only one.
    AllTo(Option<ChainName>),
}

impl Function {
    /// Creates the function of this manifest, to be run by these programs.
    fn new(
        tenant: TenantName,
        manifest: PathBuf,
        piniond: Option<PathBuf>,
        builder: Option<PathBuf>,
    ) -> Result<Self, BadInput> {
        let builder = check::builder_program(builder)?;
        let piniond = piniond.unwrap_or_else(|| neighbour("piniond"));
        if !piniond.is_file() {
            return Err(BadInput::NoPiniond(piniond));
        }
        Ok(Self { manifest, tenant, piniond, builder })
    }

    fn folder(&self) -> &Path {
        folder_of(&self.manifest)
    }

    /// Returns how the function is built. Modules outside its folder are not built here, even if there is a Makefile.
    fn way(&self) -> anyhow::Result<Option<Way>> {
        Ok(match Way::of(self.folder()) {
            Some(Way::Make) if self.own_modules()?.is_empty() => None,
            way => way,
        })
    }

    /// Returns the modules in its folder or below, by their paths relative to it.
    fn own_modules(&self) -> anyhow::Result<Vec<PathBuf>> {
        let folder = self.manifest.parent().unwrap_or(Path::new(""));
        let within = |module: &Path| {
            let within = module.strip_prefix(folder).ok()?;
            let is_below = within.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            is_below.then(|| within.to_owned())
        };
        Ok(self.bundle()?.module_paths().filter_map(within).collect())
    }

    /// Reads the manifest without the files that it names, since these may have to be built first.
    fn bundle(&self) -> anyhow::Result<Bundle> {
        read_manifests(&self.tenant, std::slice::from_ref(&self.manifest))
    }

    /// Builds the function if its folder tells how, and reads the files that the manifest names.
    async fn contents(&self) -> anyhow::Result<Contents> {
        if self.way()?.is_some() {
            let folder = self.folder().to_owned();
            tokio::task::spawn_blocking(move || build::compile(&folder)).await??;
        }
        Ok(self.bundle()?.load()?)
    }

    /// Returns the ports that a node needs for it. Frames arrive on the first.
    fn ports(&self) -> anyhow::Result<Vec<PortName>> {
        let bundle = self.bundle()?;
        let mut ports: Vec<PortName> = bundle.rules().filter_map(|rule| rule.matcher.port.clone()).collect();
        if ports.is_empty() {
            ports.push(PortName::new(PORT).expect("it is a port's name"));
        }
        for chain in bundle.chains() {
            ports.extend(chain.egress.iter().chain(chain.ports_of_edges()).cloned());
        }
        let mut seen = std::collections::BTreeSet::new();
        ports.retain(|port| seen.insert(port.clone()));
        Ok(ports)
    }

    fn unclear(&self, problem: String) -> BadInput {
        BadInput::Unclear { manifest: self.manifest.clone(), problem }
    }

    fn changes(&self) -> anyhow::Result<Changes> {
        let bundle = self.bundle()?;
        let built = match self.way()? {
            Some(Way::Cargo) => Vec::new(),
            // All other products of the Makefile are in the module's folder, too.
            Some(Way::Make) => self.own_modules()?,
            // A module that is built elsewhere is watched itself.
            None => return Changes::of(&self.manifest, bundle.module_paths(), &[]),
        };
        Changes::of(&self.manifest, std::iter::empty(), &built)
    }
}

/// Returns the path of a program beside this one.
fn neighbour(name: &str) -> PathBuf {
    let beside_us = || Some(std::env::current_exe().ok()?.parent()?.join(name));
    beside_us().unwrap_or_else(|| name.into())
}

/// Executes the command line. `tenant` owns the objects of a manifest that names no tenant.
pub(super) async fn run(tenant: TenantName, dev: Dev, format: Format) -> anyhow::Result<()> {
    let manifest = own_manifest(dev.manifest.file)?;
    let function = Function::new(tenant, manifest, dev.piniond, dev.builder.program)?;
    let Some(read) = dev.read else {
        return tap(function, &dev.tap.unwrap_or_default(), dev.address, !dev.no_watch, format).await;
    };
    if dev.watch && !is_read_again(&read) {
        let problem = "with --watch, the capture is read again and again: name a file".to_owned();
        return Err(BadInput::Capture { path: read, problem }.into());
    }
    let which = if dev.by_rules { Which::ByRules } else { Which::AllTo(dev.chain) };
    let Dev { write, patience, linger, .. } = dev;
    replay(function, &Replay { read, write, burst: dev.burst.into(), which, patience, linger }, dev.watch, format).await
}

/// Returns whether a capture can be read a second time. A capture that does not exist is reported later.
fn is_read_again(capture: &Path) -> bool {
    capture != Path::new("-") && !capture.metadata().is_ok_and(|found| !found.is_file())
}

/// `pinion dev --read`: runs once, or again whenever a file has changed.
async fn replay(function: Function, replay: &Replay, watch: bool, format: Format) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::expect()?;
    let mut changes = watch.then(|| function.changes()).transpose()?;
    loop {
        let done = tokio::select! {
            done = replay::once(&function, replay, format) => done,
            () = interrupt.came() => anyhow::bail!("interrupted before all frames were answered for"),
        };
        let Some(changes) = &mut changes else { return done };
        if let Err(error) = done {
            output::say(&output::error(&error));
        }
        tokio::select! {
            changed = changes.next() => changed?,
            () = interrupt.came() => return Ok(()),
        }
    }
}

/// `pinion dev --tap`: runs until it is interrupted.
async fn tap(
    function: Function,
    device: &str,
    address: Option<IpNet>,
    watch: bool,
    format: Format,
) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::expect()?;
    let mut changes = watch.then(|| function.changes()).transpose()?;
    let plan = tap::Plan::new(device, address, &function)?;
    let ports = plan.node_ports();
    let mut session = tokio::select! {
        session = session::Session::start(&function, &ports, format) => session?,
        () = interrupt.came() => return Ok(()),
    };
    plan.set_up()?;
    session.warn().await?;
    output::say(&format!("{}\n{}", plan.described(), session.described()));
    loop {
        let deployed = tokio::select! {
            deployed = session.deploy(&function, Ok) => deployed,
            () = interrupt.came() => break,
        };
        match (deployed, &changes) {
            (Ok(()), _) => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => output::say(&output::error(&error)),
        }
        let changed = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changed => changed?,
            ended = session.ended() => return Err(ended),
            () = interrupt.came() => break,
        }
    }
    let account = session.account().await?;
    session.stop().await?;
    account.print(format)
}

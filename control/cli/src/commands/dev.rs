//! `pinion dev`: a function run here, on a node of its own that goes when the command ends.
//!
//! ```text
//!   --read    capture -> wire --Unix socket--> piniond (port, rules, chain) --Unix socket--> wire -> capture
//!   --tap     programs of this machine <--kernel--> TAP device <--> piniond
//! ```
//!
//! The node is a `piniond` like any: what its builder, rules, limits and quantum do to a function is what an operator's would.
//!
//! | file | what it holds |
//! |---|---|
//! | `capture` | captures: read, and written |
//! | `node` | the node's process and its folder |
//! | `wire` | frames into the node's ports and out of them |
//! | `replay` | `--read`: until each frame is answered for |
//! | `session` | what both have in common: building, applying, what functions say |
//! | `tap` | `--tap`: the device's addresses |
//! | `watch` | files that change, and the wish to end |
//! | `account` | what became of frames |

mod account;
mod capture;
mod node;
mod replay;
mod session;
mod tap;
mod watch;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use pinion_control::manifest::{Bundle, Contents};
use pinion_control::model::{ChainName, Output, PortName};

use self::watch::{Changes, Interrupt};
use super::{BadInput, build, check, folder_of, own_manifest, read_manifests};
use crate::args::{Dev, Format};

/// What cargo builds has one of these beside its manifest.
const CRATE: &str = "Cargo.toml";
/// The port that frames come in by, if the manifest does not name one.
const PORT: &str = "lan";

/// A function that is being worked on.
struct Function {
    manifest: PathBuf,
    piniond: PathBuf,
    builder: PathBuf,
}

/// What goes through the function, and what with it.
struct Replay {
    read: PathBuf,
    write: Option<PathBuf>,
    /// Frames that go in at a time.
    burst: usize,
    which: Which,
    /// How long functions may keep frames when nothing else happens.
    linger: Duration,
}

/// Which frames of a capture the function gets.
enum Which {
    /// Those that the manifest's rules send there.
    ByRules,
    /// All, to this chain, or to the only one.
    AllTo(Option<ChainName>),
}

impl Function {
    /// The one of this manifest, to be run by these programs.
    fn new(manifest: PathBuf, piniond: Option<PathBuf>, builder: Option<PathBuf>) -> Result<Self, BadInput> {
        let builder = check::builder_program(builder)?;
        let piniond = piniond.unwrap_or_else(|| neighbour("piniond"));
        if !piniond.is_file() {
            return Err(BadInput::NoPiniond(piniond));
        }
        Ok(Self { manifest, piniond, builder })
    }

    fn folder(&self) -> &Path {
        folder_of(&self.manifest)
    }

    fn is_crate(&self) -> bool {
        self.folder().join(CRATE).is_file()
    }

    /// What the manifest says, without the files that it names: these may have to be built.
    fn bundle(&self) -> anyhow::Result<Bundle> {
        read_manifests(std::slice::from_ref(&self.manifest))
    }

    /// Has cargo build it, if it is cargo's, and reads what the manifest names.
    async fn contents(&self) -> anyhow::Result<Contents> {
        if self.is_crate() {
            let folder = self.folder().to_owned();
            tokio::task::spawn_blocking(move || build::compile(&folder)).await??;
        }
        Ok(self.bundle()?.load()?)
    }

    /// The ports that a node has to have for it. Frames come in by the first.
    fn ports(&self) -> anyhow::Result<Vec<PortName>> {
        let bundle = self.bundle()?;
        let mut ports: Vec<PortName> = bundle.rules().filter_map(|rule| rule.matcher.port.clone()).collect();
        if ports.is_empty() {
            ports.push(PortName::new(PORT).expect("it is a port's name"));
        }
        for chain in bundle.chains() {
            ports.extend(chain.egress.clone());
            let outputs = chain.stages.iter().flat_map(|stage| &stage.outputs);
            ports.extend(outputs.filter_map(|output| match output {
                Output::Port(port) => Some(port.clone()),
                Output::Stage(_) | Output::Egress => None,
            }));
        }
        let mut seen = std::collections::BTreeSet::new();
        ports.retain(|port| seen.insert(port.clone()));
        Ok(ports)
    }

    fn unclear(&self, problem: String) -> BadInput {
        BadInput::Unclear { manifest: self.manifest.clone(), problem }
    }

    fn changes(&self) -> anyhow::Result<Changes> {
        // What cargo builds is made of what lies in its folder; for what somebody else builds, the module itself is looked at.
        let bundle = self.bundle()?;
        let modules = bundle.module_paths().filter(|_| !self.is_crate());
        Changes::of(&self.manifest, modules)
    }
}

/// A program beside this one.
fn neighbour(name: &str) -> PathBuf {
    let beside_us = || Some(std::env::current_exe().ok()?.parent()?.join(name));
    beside_us().unwrap_or_else(|| name.into())
}

/// Does what the command line says.
pub(super) async fn run(dev: Dev, format: Format) -> anyhow::Result<()> {
    let manifest = own_manifest(dev.manifest.file)?;
    let function = Function::new(manifest, dev.piniond, dev.builder.program)?;
    let Some(read) = dev.read else {
        return tap(function, &dev.tap.unwrap_or_default(), dev.address, !dev.no_watch, format).await;
    };
    let which = if dev.by_rules { Which::ByRules } else { Which::AllTo(dev.chain) };
    let (write, burst, linger) = (dev.write, dev.burst.into(), dev.linger);
    replay(function, &Replay { read, write, burst, which, linger }, dev.watch, format).await
}

/// `pinion dev --read`: once, or again whenever a file has changed.
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
            eprintln!("error: {error:#}");
        }
        tokio::select! {
            changed = changes.next() => changed?,
            () = interrupt.came() => return Ok(()),
        }
    }
}

/// `pinion dev --tap`: until somebody interrupts it.
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
    let ports = plan.ports_text();
    let mut session = tokio::select! {
        session = session::Session::start(&function, &ports, format) => session?,
        () = interrupt.came() => return Ok(()),
    };
    plan.set_up()?;
    session.warn().await?;
    eprintln!("{}\n{}", plan.described(), session.described());
    loop {
        let deployed = tokio::select! {
            deployed = session.deploy(&function, Ok) => deployed,
            () = interrupt.came() => break,
        };
        match (deployed, &changes) {
            (Ok(()), _) => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => eprintln!("error: {error:#}"),
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

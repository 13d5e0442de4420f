//! `piniond`: a Pinion node. Reads one configuration file, runs until it is told to stop.
#![forbid(unsafe_code)]

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use pinion_control::server::ServeError;
use pinion_control::{Control, Server, Store};
use pinion_runtime::allocator::Allocator;
use pinion_runtime::assembly::{self, AssemblyError};
use pinion_runtime::config::{ConfigError, NodeConfig};
use pinion_runtime::plan::stay_on;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Exit status for what the operator can mend: configuration, devices, machine settings.
const EXIT_BAD_INPUT: u8 = 2;

/// A Pinion node: runs tenants' network functions, each client's in an instance of its own.
#[derive(Parser)]
#[command(name = "piniond", version)]
struct Arguments {
    /// The configuration file; runtime/piniond.example.toml has every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Checks the configuration file and exits.
    #[arg(long)]
    check: bool,
    /// Stops when the process of this number ends, which has to be the one that starts this one.
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("PINION_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let is_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_terminal).with_writer(std::io::stderr).init();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let is_bad_input = error.is::<ConfigError>()
                || matches!(error.downcast_ref(), Some(AssemblyError::Unfit(_)))
                || matches!(error.downcast_ref(), Some(ServeError::InUse { .. } | ServeError::NotASocket { .. }));
            if is_bad_input { ExitCode::from(EXIT_BAD_INPUT) } else { ExitCode::FAILURE }
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = NodeConfig::read(&arguments.config)?;
    if arguments.check {
        return Ok(());
    }
    // Whoever tells the process to stop while it starts is heard once it has started, and it cleans up.
    let cores = assembly::control_cores(&config)?;
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let own = cores.clone();
    let threads = threads.worker_threads(2).on_thread_start(move || stay_on(&own)).enable_all().build()?;
    let shutdown = threads.block_on(async { stop_signal() })?;
    if let Some(parent) = arguments.parent {
        end_with(parent)?;
    }
    // The socket before the devices: it is what tells that another piniond runs here.
    let server = Server::bind(&config.socket)?;
    let state_dir = &config.state_dir;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .with_context(|| state_dir.display().to_string())?;
    let store = Arc::new(Store::open(&state_dir.join("pinion.redb"))?);
    let node = assembly::assemble(&config)?;
    // Not before: which cores there are is told by where this thread may run.
    stay_on(&cores);
    let control = Arc::new(Control::open(store, Arc::clone(&node.data_plane) as _)?);
    threads.block_on(async {
        tracing::info!(socket = %config.socket.display(), "piniond is up");
        server.serve(control, shutdown).await?;
        anyhow::Ok(())
    })?;
    // A change under way ends first: it needs the node.
    drop(threads);
    tracing::info!("piniond stops");
    Ok(())
}

/// Has the kernel tell this process to stop when its parent ends, whatever ends that.
fn end_with(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("--parent")?;
    // Whoever ended before that was said is heard of here.
    let found = getppid().map_or(0, Pid::as_raw_pid);
    anyhow::ensure!(found == parent, "--parent {parent}: the process that started this one is {found}");
    Ok(())
}

/// Done when somebody tells the process to stop.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

//! `piniond`: a Pinion node. Reads one configuration file and runs until it gets a signal to stop.
#![forbid(unsafe_code)]

use std::fs;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use anyhow::Context;
use clap::Parser;
use pinion_builder_client::process;
use pinion_builder_client::supervised::{self, Request};
use pinion_control::causes::with_causes;
use pinion_control::control::Settings;
use pinion_control::socket::ServeError;
use pinion_control::{Control, Server, Store};
use pinion_runtime::cores::plan::stay_on;
use pinion_runtime::lockdown::thread_role::ThreadRole;
use pinion_runtime::lockdown::{self, OwnPaths, refusals};
use pinion_runtime::memory::allocator::Allocator;
use pinion_runtime::node::assembly::{self, AssemblyError};
use pinion_runtime::node::config::{ConfigError, NodeConfig, PortConfig};
use pinion_runtime::node::node_log::NodeLog;
use pinion_runtime::supervisor::{self, Supervised, SupervisorConfig, XdpInterface, supervise};
use pinion_text::{TEXT_BYTES_MAX, indented};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Exit status for errors that the operator can fix: configuration, devices, machine settings.
const EXIT_BAD_INPUT: u8 = supervisor::BAD_INPUT;
/// Threads of the control API, beside those that wait.
const CONTROL_THREADS: usize = 2;
/// Exit status for all other errors.
const EXIT_FAILED: u8 = 1;

/// A Pinion node: runs tenants' network functions, with an instance of its own for each client.
#[derive(Parser)]
#[command(name = "piniond", version)]
struct Arguments {
    /// Configuration file; runtime/piniond.example.toml has every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Checks the configuration file and exits.
    #[arg(long)]
    check: bool,
    /// Stops when the process with this number ends. It must be the process that starts this one.
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = NodeConfig::read(&arguments.config);
    let Some(config) = config.as_ref().ok().filter(|config| config.confinement.supervisor && !arguments.check) else {
        // The node itself says what is wrong with its configuration.
        return ExitCode::from(node(&arguments, None));
    };
    let status = arguments.parent.map_or(Ok(()), end_with).and_then(|()| {
        let (builder, builder_user) = (process::place(config.builder.clone()), config.confinement.builder_user);
        let interface = |port: &PortConfig| XdpInterface::of(&port.device, port.namespace.as_deref());
        let interfaces = config.ports.iter().filter_map(interface).collect();
        let socket = config.socket.clone();
        let config = SupervisorConfig {
            #[cfg(feature = "dpdk")]
            ports: pinion_runtime::node::ports::device_configs(config),
            builder,
            builder_user,
            interfaces,
            socket,
        };
        Ok(supervise(&config, |supervised| node(&arguments, Some(&supervised)))?)
    });
    match status {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Runs a node until it ends; returns the status with which it ends.
fn node(arguments: &Arguments, supervised: Option<&Supervised>) -> u8 {
    ThreadRole::Control.enter();
    let filter = EnvFilter::try_from_env("PINION_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let is_terminal = std::io::stderr().is_terminal();
    let Ok(log) = NodeLog::start(filter, is_terminal) else { return EXIT_FAILED };
    let status = match run(arguments, &log, supervised) {
        Ok(()) => 0,
        Err(error) => {
            log.line(&format!("error: {}", indented(with_causes(error.as_ref()), TEXT_BYTES_MAX)));
            let is_bad_input = error.is::<ConfigError>()
                || matches!(error.downcast_ref(), Some(AssemblyError::Unfit(_)))
                || matches!(
                    error.downcast_ref(),
                    Some(
                        ServeError::InUse { .. }
                            | ServeError::NotASocket { .. }
                            | ServeError::Listen { .. }
                            | ServeError::Tls(_)
                    )
                );
            if is_bad_input { EXIT_BAD_INPUT } else { EXIT_FAILED }
        }
    };
    log.finish();
    status
}

fn run(arguments: &Arguments, log: &NodeLog, supervised: Option<&Supervised>) -> anyhow::Result<()> {
    let config = NodeConfig::read(&arguments.config)?;
    if arguments.check {
        return Ok(());
    }
    // Signals are caught from here on: one that comes during start-up takes effect once the node runs, so that it stops cleanly.
    let cores = assembly::control_cores(&config)?;
    log.stay_on(cores.clone());
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let own = cores.clone();
    let (has_role, begun) = mpsc::channel();
    let begin = move || {
        ThreadRole::Control.enter();
        let _ = has_role.send(());
        stay_on(&own);
    };
    let threads = threads.worker_threads(CONTROL_THREADS).on_thread_start(begin).enable_all().build()?;
    // They give up what their role has no use for, so each must have it by then.
    begun.iter().take(CONTROL_THREADS).for_each(drop);
    let shutdown = threads.block_on(async { stop_signal() })?;
    if let Some(parent) = arguments.parent.filter(|_| supervised.is_none()) {
        end_with(parent)?;
    }
    // The socket comes before the devices, because it shows whether another piniond runs here.
    let mut server = Server::bind(&config.socket)?.with_limits(config.api.limits());
    if let Some((address, files)) = config.api.tcp() {
        server = server.with_tls(address, files)?;
    }
    let state_dir = &config.state_dir;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .with_context(|| state_dir.display().to_string())?;
    let store = Arc::new(Store::open_with(&state_dir.join("pinion.redb"), config.history_limits())?);
    if let Some(Supervised { link, .. }) = supervised {
        supervised::send(link.as_fd(), &Request::Opening, &[])?;
    }
    let node = assembly::assemble(&config, supervised)?;
    // Not earlier: `assemble` reads the available cores from this thread's affinity.
    stay_on(&cores);
    // Everything is open, and no client has been served yet.
    give_up_rights(&config, supervised)?;
    threads.spawn(refusals::log());
    let settings = Settings { tenants: config.tenants.clone(), secret: config.secret.clone() };
    let control = Control::open_with(store, Arc::clone(&node.data_plane) as _, settings)?;
    let control = Arc::new(control);
    threads.block_on(async {
        tracing::info!(socket = %config.socket.display(), "piniond is up");
        if let Some(Supervised { link, .. }) = supervised {
            supervised::send(link.as_fd(), &Request::Up, &[])?;
        }
        server.serve(control, shutdown).await?;
        anyhow::Ok(())
    })?;
    // A change under way must end before the node does, because it needs the node.
    drop(threads);
    tracing::info!("piniond stops");
    Ok(())
}

/// Gives up all rights that the node needs no more, and notes what operators are to be warned of.
fn give_up_rights(config: &NodeConfig, supervised: Option<&Supervised>) -> anyhow::Result<()> {
    let weakness = supervised.and_then(|Supervised { weakness, .. }| weakness.as_ref());
    lockdown::warn(weakness.map(|weakness| {
        format!("builders are isolated less than they could be: {weakness}: start piniond as root, or in a service that may do so")
    }));
    let files = config.api.tcp().map(|(_, files)| files);
    let files = files
        .into_iter()
        .flat_map(|files| [files.certificate, files.key, files.client_ca].into_iter().chain(files.revoked));
    let paths = OwnPaths {
        state_dir: config.state_dir.clone(),
        read: files
            .chain(config.memory_cgroup.iter().map(|cgroup| cgroup.join("memory.current")))
            .chain(config.secret.clone().filter(|secret| secret.exists()))
            .collect(),
    };
    lockdown::give_up(&config.confinement, &paths).context("the node cannot give up its rights")
}

/// Makes the kernel send this process SIGTERM when its parent ends, for whatever reason.
fn end_with(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("--parent")?;
    // If the parent ended before the call above, the kernel sends no signal: the check finds that.
    let found = getppid().map_or(0, Pid::as_raw_pid);
    anyhow::ensure!(found == parent, "--parent {parent}: the process that started this one is {found}");
    Ok(())
}

/// Returns a future that completes at the first SIGINT, SIGTERM or SIGHUP.
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

//! Vital threads, whose end aborts the process even if the error cannot be logged. Seen from outside, with processes that lose such a
//! thread.

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::memory::{MemoryPeer, MemoryPort, MemoryPortConfig};
use pinion_gateway::port::{BufferPool, Port, PortCounters, PortFacts};
use pinion_mma::buffer::Frame;
use pinion_runtime::node::assembly::assemble_with;
use pinion_runtime::node::config::NodeConfig;
use pinion_runtime::node::node_log::NodeLog;
use pinion_runtime::node::ports::{GatewayThread, Opened};
use pinion_runtime::node::vital;
use pinion_runtime::worker::{Worker, WorkerCommand};
use support::{Bench, UNKNOWN};
use tracing_subscriber::EnvFilter;

/// Tells the process that a test has started what to do.
const DEED: &str = "PINION_TEST_DEED";
/// The default capacity of a pipe.
const PIPE_BYTES: usize = 64 << 10;
const SIGABRT: i32 = 6;

/// A port with a broken driver: it panics when a frame arrives.
struct Broken(MemoryPort);

impl Port for Broken {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn device(&self) -> &str {
        self.0.device()
    }

    fn facts(&self) -> PortFacts {
        self.0.facts()
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        assert_eq!(self.0.receive(frames, max), 0, "a frame came\nERROR forged\u{1b}[2J");
        0
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        self.0.transmit(frames, pool)
    }

    fn counters(&self) -> &Arc<PortCounters> {
        self.0.counters()
    }
}

fn broken_port() -> (Opened, MemoryPeer) {
    let pool = HeapPool::new(8192, 2048);
    let (port, peer) = MemoryPort::pair(MemoryPortConfig::named("lan"), pool.clone());
    let ports: Vec<Box<dyn Port>> = vec![Box::new(Broken(port))];
    (Opened { ports, pool: Box::new(pool), thread: GatewayThread::default() }, peer)
}

/// Starts a whole node with a gateway thread that panics.
fn lose_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("piniond.toml");
    let text = format!(
        "state_dir = {:?}\nbuilder = \"/bin/sh\"\n[limits]\nfwps_max = 4\n[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n",
        folder.path()
    );
    fs::write(&config, text).unwrap();
    let (opened, peer) = broken_port();
    let node = assemble_with(&NodeConfig::read(&config).unwrap(), |_| Ok(opened)).unwrap();
    peer.send(&[0; 60]).unwrap();
    thread::sleep(Duration::from_secs(60));
    drop(node);
}

/// Runs in a process that a test has started. Run alone, it tests nothing.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn deed() {
    let Ok(deed) = std::env::var(DEED) else { return };
    if deed != "lose the gateway without a log" {
        NodeLog::start(EnvFilter::new("info"), false).unwrap();
    }
    let stays = || Arc::new(AtomicBool::new(false));
    match &*deed {
        "lose the gateway" | "lose the gateway without a log" => lose_the_gateway(),
        "return" => drop(vital::spawn("core-9", stays(), || ()).unwrap().join()),
        "return at the end" => {
            vital::spawn("core-9", Arc::new(AtomicBool::new(true)), || ()).unwrap().join().unwrap();
        }
        "fail once" => {
            let (_bench, mut worker, commands) = failing();
            commands.send(UNKNOWN).unwrap();
            let ending = Arc::new(AtomicBool::new(true));
            vital::spawn("core-9", ending, move || _ = worker.poll()).unwrap().join().unwrap();
            NodeLog::start(EnvFilter::new("info"), false).unwrap().finish();
        }
        "fail for ever" => {
            let (_bench, mut worker, commands) = failing();
            let fails = move || {
                loop {
                    commands.send(UNKNOWN).unwrap();
                    worker.poll();
                }
            };
            drop(vital::spawn("core-9", stays(), fails).unwrap().join());
        }
        "panic elsewhere" => {
            let other = thread::Builder::new().name("other".to_owned());
            assert!(other.spawn(|| panic!("a word\nERROR forged")).unwrap().join().is_err());
            NodeLog::start(EnvFilter::new("info"), false).unwrap().finish();
        }
        other => unreachable!("{other}"),
    }
}

fn failing() -> (Bench, Worker, Sender<WorkerCommand>) {
    let mut bench = Bench::new();
    let (worker, commands, _) = bench.worker();
    (bench, worker, commands)
}

fn start(deed: &str, stderr: impl Into<Stdio>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "deed", "--ignored", "--nocapture"]).env(DEED, deed).env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
}

/// Returns how the process ends. If it does not end, kills it and fails the test.
#[track_caller]
fn end(mut child: Child) -> ExitStatus {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the process lives on without one of its threads: {}", child.wait().unwrap());
}

#[track_caller]
fn ends_with_an_abort(deed: &str, stderr: impl Into<Stdio>) {
    assert_eq!(end(start(deed, stderr)).signal(), Some(SIGABRT), "{deed}");
}

/// Returns what the process writes, and how it ends.
#[track_caller]
fn outcome(deed: &str) -> (String, ExitStatus) {
    let mut said = tempfile::tempfile().unwrap();
    let status = end(start(deed, said.try_clone().unwrap()));
    let mut text = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut text).unwrap();
    (text, status)
}

#[test]
fn a_panic_in_a_data_plane_thread_ends_the_process_and_is_one_line_in_the_log() {
    for deed in ["lose the gateway", "lose the gateway without a log"] {
        let (text, status) = outcome(deed);
        assert_eq!(status.signal(), Some(SIGABRT), "{text}");
        let line = text.lines().find(|line| line.starts_with("ERROR thread core-")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("a frame came\\nERROR forged\\u{1b}[2J"), "{text}");
        assert!(line.ends_with("; the node cannot go on without it"), "{text}");
        assert!(!text.contains("\nERROR forged"), "{text}");
    }
}

#[test]
fn a_panic_ends_the_process_even_if_standard_error_accepts_nothing() {
    for deed in ["lose the gateway", "lose the gateway without a log"] {
        ends_with_an_abort(deed, File::options().write(true).open(Path::new("/dev/full")).unwrap());
        let (unread, mut full) = std::io::pipe().unwrap();
        full.write_all(&[b'.'; PIPE_BYTES]).unwrap();
        ends_with_an_abort(deed, full);
        drop(unread);
        let (gone, closed) = std::io::pipe().unwrap();
        drop(gone);
        ends_with_an_abort(deed, closed);
    }
}

#[test]
fn a_data_plane_thread_that_returns_before_the_node_stops_ends_the_process() {
    let (text, status) = outcome("return");
    assert_eq!(status.signal(), Some(SIGABRT), "{text}");
    assert!(text.contains("ERROR thread core-9 has ended; the node cannot go on without it"), "{text}");
    let (text, status) = outcome("return at the end");
    assert!(status.success(), "{text}");
}

#[test]
fn a_panic_of_a_worker_is_logged_and_ends_the_process_only_if_it_happens_again_and_again() {
    let (text, status) = outcome("fail once");
    assert!(status.success(), "{status}: {text}");
    assert!(text.contains("ERROR thread core-9 panicked at "), "{text}");
    assert!(text.contains("a worker has panicked: its instances end, and it begins anew"), "{text}");
    let (text, status) = outcome("fail for ever");
    assert_eq!(status.signal(), Some(SIGABRT), "{text}");
    assert!(text.contains("a worker has panicked 9 times within 10 s; the node cannot go on without it"), "{text}");
}

#[test]
fn a_panic_of_another_thread_is_logged_and_ends_nothing() {
    let (text, status) = outcome("panic elsewhere");
    assert!(status.success(), "{status}: {text}");
    let line = text
        .lines()
        .find(|line| line.starts_with("ERROR thread other panicked at "))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(line.ends_with(": a word\\nERROR forged"), "{text}");
}

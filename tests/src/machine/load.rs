//! The processor time and wake-ups of a node's threads, and how long threads wait for cores, as the kernel counts them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::product::node::Node;

/// A thread's use so far.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu_ns: u64,
    wakes: u64,
}

/// The use by a node's threads during one measurement.
#[derive(Clone, Debug)]
pub struct Load {
    /// The use of all threads together, in per cent of one core.
    pub core_percent: f64,
    /// The thread that woke up most often.
    pub thread: String,
    /// Its wake-ups per second.
    pub wakes_per_second: f64,
}

/// Measures a node's threads for so long.
///
/// # Panics
/// If the node does not run.
#[must_use]
pub fn look(node: &Node, window: Duration) -> Load {
    let (before, start) = (used(node), Instant::now());
    std::thread::sleep(window);
    let (after, seconds) = (used(node), start.elapsed().as_secs_f64());
    let before = |name: &String| before.get(name).copied().unwrap_or_default();
    let cpu_ns: u64 = after.iter().map(|(name, used)| used.cpu_ns - before(name).cpu_ns).sum();
    let wakes = after.iter().map(|(name, used)| (used.wakes - before(name).wakes, name));
    let (most, thread) = wakes.max().expect("a node has threads");
    Load {
        core_percent: cpu_ns as f64 / 1e7 / seconds,
        thread: thread.clone(),
        wakes_per_second: most as f64 / seconds,
    }
}

/// Returns what each thread has used, by name.
fn used(node: &Node) -> BTreeMap<String, Used> {
    let tasks = PathBuf::from(format!("/proc/{}/task", node.process()));
    let of = |task: PathBuf| {
        let read = |name: &str| fs::read_to_string(task.join(name)).ok();
        let cpu_ns = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
        let status = read("status")?;
        let wakes = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let name = format!("{} {}", read("comm")?.trim(), task.file_name()?.to_str()?);
        Some((name, Used { cpu_ns, wakes: wakes.trim().parse().ok()? }))
    };
    fs::read_dir(tasks).expect("the node runs").filter_map(|task| of(task.ok()?.path())).collect()
}

/// How long threads that could run have waited for a core: those of a node, the calling thread, and those with which the kernel passes
/// frames on. Of a time between a request and its answer, this part says nothing about the node.
#[derive(Debug)]
pub struct CoreWaits {
    /// With what was read last: of a thread that has ended nothing can be read.
    threads: Vec<(File, Cell<u64>)>,
}

impl CoreWaits {
    /// Looks at the node's thread on this core only.
    ///
    /// # Panics
    /// If the node does not run.
    #[must_use]
    pub fn on_core(node: &Node, core: usize) -> Self {
        let all = paths(Path::new(&format!("/proc/{}/task", node.process())));
        let is_there = |thread: &PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == format!("core-{core}"))
        };
        Self { threads: all.into_iter().filter(is_there).filter_map(watched).collect() }
    }

    /// Looks at the node's threads that have cores of their own.
    ///
    /// # Panics
    /// If the node does not run.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        Self::of_threads(node, |name| name.starts_with("core-"))
    }

    /// Looks at all threads that the node has now: also the launcher and those that answer the API.
    ///
    /// # Panics
    /// If the node does not run.
    #[must_use]
    pub fn of_all(node: &Node) -> Self {
        Self::of_threads(node, |_| true)
    }

    fn of_threads(node: &Node, is_meant: fn(&str) -> bool) -> Self {
        let is_named = |thread: &PathBuf, is_meant: fn(&str) -> bool| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| is_meant(&name))
        };
        let of_node = paths(Path::new(&format!("/proc/{}/task", node.process())));
        let of_node = of_node.into_iter().filter(|thread| is_named(thread, is_meant));
        let of_kernel = paths(Path::new("/proc"));
        let of_kernel = of_kernel.into_iter().filter(|thread| is_named(thread, |name| name.starts_with("ksoftirqd/")));
        let all = of_node.chain(of_kernel).chain([PathBuf::from("/proc/thread-self")]);
        Self { threads: all.filter_map(watched).collect() }
    }

    /// Returns how long they have waited together, since they began.
    #[must_use]
    pub fn total(&self) -> Duration {
        for (thread, waited_ns) in &self.threads {
            waited_ns.set(waited_for_core_ns(thread).unwrap_or(waited_ns.get()));
        }
        Duration::from_nanos(self.threads.iter().map(|(_, waited_ns)| waited_ns.get()).sum())
    }
}

/// Opens a thread's `schedstat`.
fn watched(thread: PathBuf) -> Option<(File, Cell<u64>)> {
    Some((File::open(thread.join("schedstat")).ok()?, Cell::new(0)))
}

/// Reads a `schedstat`: time on a core, time waited for one, times that it got one.
fn waited_for_core_ns(thread: &File) -> Option<u64> {
    let mut text = [0; 64];
    let len = thread.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

fn paths(of: &Path) -> Vec<PathBuf> {
    fs::read_dir(of).expect("it is there").filter_map(|entry| Some(entry.ok()?.path())).collect()
}

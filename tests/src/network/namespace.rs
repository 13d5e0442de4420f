//! Network namespaces, and virtual cables between them.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::machine::leftovers::{NAMESPACES, prefix, remove_namespace};
use crate::machine::process::{require_root, run};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace. When dropped, it is removed with all its interfaces.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes an empty namespace, with its loopback up and no addresses that the kernel generates for interfaces.
    ///
    /// # Panics
    /// If it cannot be made, for example without root's privileges.
    #[track_caller]
    #[must_use]
    pub fn new(role: &str) -> Self {
        require_root();
        let name = format!("{}{}-{role}", prefix(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Returns its name for `ip netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(NAMESPACES).join(&self.name)
    }

    /// Returns a command that runs a program inside.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs `ip` in it with these words; returns the output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ip(&self, words: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()))
    }

    /// Runs `work` inside the namespace, on a thread of its own, since only that thread changes its namespace. A socket opened there stays
    /// in the namespace, whichever thread uses it.
    ///
    /// # Panics
    /// If `work` panics, or the namespace cannot be entered.
    #[track_caller]
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).expect("the namespace is there while its value is");
        let done = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap_or_else(|error| panic!("{} cannot be entered: {error}", self.name));
                work()
            });
            inside.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Turns off the offloads of an interface, so that the kernel completes each frame before the interface gets it, with right checksums
    /// and no more than the MTU. The ends of a virtual cable leave that work to each other, so anything between them would see incomplete
    /// frames.
    ///
    /// # Panics
    /// If the offloads cannot be changed.
    #[track_caller]
    pub fn finish_frames(&self, interface: &str) {
        run(self.command("ethtool").args(["--offload", interface, "tx", "off", "tso", "off", "gso", "off"]));
    }

    /// Returns the names of its interfaces other than the loopback.
    ///
    /// # Panics
    /// If they cannot be listed.
    #[track_caller]
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        let name = |line: &str| Some(line.split_whitespace().nth(1)?.split(['@', ':']).next()?.to_owned());
        self.ip("-oneline link show").lines().filter_map(name).filter(|name| name != "lo").collect()
    }

    /// Returns how many datagrams the kernel dropped because the receiving socket had no room, or was closed before they came.
    ///
    /// # Panics
    /// If the counters cannot be read.
    #[track_caller]
    #[must_use]
    pub fn datagrams_unread(&self) -> u64 {
        self.inside(|| {
            let (v4, v6) = (net_file("snmp"), net_file("snmp6"));
            let mut lines = v4.lines().filter(|line| line.starts_with("Udp: ")).map(str::split_whitespace);
            let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
            let v4: HashMap<&str, &str> = names.zip(values).collect();
            let v6: HashMap<&str, &str> = v6.lines().filter_map(|line| line.split_once(char::is_whitespace)).collect();
            let number = |text: Option<&&str>| text.and_then(|text| text.trim().parse::<u64>().ok());
            let both = |name: &str| {
                let v6 = number(v6.get(&*format!("Udp6{name}"))).expect("a count for IPv6");
                number(v4.get(name)).expect("a count for IPv4") + v6
            };
            both("RcvbufErrors") + both("NoPorts")
        })
    }

    /// Returns how many frames the kernel dropped as they came to one of the interfaces here: above all because no core had time for them
    /// and its backlog was full.
    ///
    /// # Panics
    /// If the counters cannot be read.
    #[track_caller]
    #[must_use]
    pub fn frames_dropped_on_arrival(&self) -> u64 {
        // `eth0: bytes packets errs drop fifo ...` of what was received, below two lines of names.
        let dropped = |line: &str| line.split_once(':')?.1.split_whitespace().nth(3)?.parse::<u64>().ok();
        self.inside(|| net_file("dev").lines().skip(2).map(|line| dropped(line).expect("a count of drops")).sum())
    }

    /// Returns the counters of the kernel's TCP and IP by their names in `nstat`.
    ///
    /// # Panics
    /// If they cannot be read.
    #[track_caller]
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let text = run(self.command("nstat").args(["--ignore", "--zeros", "--noupdate"]));
        let pair = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        text.lines().filter_map(pair).collect()
    }

    /// Connects an interface here by a virtual cable to one in another namespace; sets both up.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    pub fn connect(&self, here: &str, other: &Self, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", other.name));
        self.ip(&format!("link set {here} up"));
        other.ip(&format!("link set {there} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove_namespace(&self.name);
    }
}

/// Reads one of the calling thread's files of network counters.
#[track_caller]
fn net_file(name: &str) -> String {
    let path = format!("/proc/thread-self/net/{name}");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

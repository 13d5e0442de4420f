//! Network namespaces, and virtual cables between them.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::leftovers::{NAMESPACES, prefix, remove_namespace};
use crate::process::{require_root, run};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace, removed when dropped, with all its interfaces.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// An empty one, with its loopback up and no address made up by the kernel for any interface.
    ///
    /// # Panics
    /// If it can't be made; not being root is one reason.
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

    /// Its name for `ip netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(NAMESPACES).join(&self.name)
    }

    /// A program to be run inside.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs `ip` on it, with these words; what it says.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ip(&self, words: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()))
    }

    /// Does something inside, on a thread of its own, since no other may change its namespace. A socket opened there stays
    /// there, whoever uses it.
    ///
    /// # Panics
    /// If `work` does, or the namespace can't be entered.
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

    /// Has the kernel finish each frame before an interface here gets it: checksums right, none longer than the MTU. A
    /// virtual cable's ends leave that to each other, and whatever is between them would see it undone.
    ///
    /// # Panics
    /// If the interface can't be told.
    #[track_caller]
    pub fn finish_frames(&self, interface: &str) {
        run(self.command("ethtool").args(["--offload", interface, "tx", "off", "tso", "off", "gso", "off"]));
    }

    /// Its interfaces' names, but for the loopback's.
    ///
    /// # Panics
    /// If they can't be listed.
    #[track_caller]
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        let name = |line: &str| Some(line.split_whitespace().nth(1)?.split(['@', ':']).next()?.to_owned());
        self.ip("-oneline link show").lines().filter_map(name).filter(|name| name != "lo").collect()
    }

    /// Datagrams that its kernel had no room for in the socket that they were for.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[track_caller]
    #[must_use]
    pub fn datagrams_without_room(&self) -> u64 {
        self.inside(|| {
            let read = |file: &str| {
                let path = format!("/proc/thread-self/net/{file}");
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
            };
            let (v4, v6) = (read("snmp"), read("snmp6"));
            let mut lines = v4.lines().filter(|line| line.starts_with("Udp: ")).map(str::split_whitespace);
            let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
            let v4 = names.zip(values).find(|(name, _)| *name == "RcvbufErrors").map(|(_, value)| value);
            let v6 = v6.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
            let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok());
            number(v4).expect("a count for IPv4") + number(v6).expect("a count for IPv6")
        })
    }

    /// Lays a cable from an interface here to one in another namespace, both up.
    ///
    /// # Panics
    /// If it can't be made.
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

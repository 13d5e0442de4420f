//! Memory pressure: turns the kernel's stall information (PSI) and the limits of the process's cgroup into a level on which the launcher
//! acts ([`crate::launcher::Order::Relieve`]).
//!
//! ```text
//!   /proc/pressure/memory, <cgroup>/memory.pressure    tasks that waited for memory    --> Reading --> Gauge --> Level
//!   <cgroup>/memory.current, .stat, .high, .max        how full the cgroup is              each second
//! ```
//!
//! A thread of its own reads the sources once a second, and at once when a PSI trigger fires, where the kernel grants triggers. The level
//! rises as fast as memory fills, and by one step per reading with stalls. It falls by one step after some calm readings. While a level
//! lasts, it is reported again each second, because memory that was given back fills up again. Nothing here frees anything.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::Chain;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;

/// How often the sources are read, and the shortest time between two readings when a trigger fires.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The share of time for which tasks wait for memory that counts as a stall.
const STALL_PER_MILLE: u128 = 100;
/// How full a cgroup is at each level.
const SPARE_PER_MILLE: u64 = 800;
const CACHES_PER_MILLE: u64 = 900;
const TEMPLATES_PER_MILLE: u64 = 950;
/// Readings in a row with less pressure before the level falls by one step.
const CALM_LOOKS: u32 = 5;
/// The kernel's trigger: tasks waited for 200 ms within 2 s. Windows of whole 2 s need no privilege.
const TRIGGER: &[u8] = b"some 200000 2000000\0";
/// Magic numbers of the kernel file systems in which writing to a pressure file creates a trigger.
const PROC_MAGIC: u64 = 0x9fa0;
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// The pressure file of the whole machine.
const MACHINE_PRESSURE: &str = "/proc/pressure/memory";

/// How short memory is, and so what may be given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Memory is not short.
    #[default]
    Calm,
    /// Gives back instances beyond the chains' smallest caches.
    Spare,
    /// Gives back cached instances, except one per chain.
    Caches,
    /// Gives back all cached instances, and the templates of chains without clients.
    Templates,
}

impl Level {
    /// Returns how many instances of a chain may be kept ready.
    #[must_use]
    pub fn ready_max(self, chain: &Chain) -> u32 {
        match self {
            Self::Calm => u32::MAX,
            Self::Spare => chain.cache_min,
            Self::Caches => 1,
            Self::Templates => 0,
        }
    }

    fn step_down(self) -> Self {
        match self {
            Self::Calm | Self::Spare => Self::Calm,
            Self::Caches => Self::Spare,
            Self::Templates => Self::Caches,
        }
    }

    fn of_fill(per_mille: u64) -> Self {
        match per_mille {
            0..SPARE_PER_MILLE => Self::Calm,
            SPARE_PER_MILLE..CACHES_PER_MILLE => Self::Spare,
            CACHES_PER_MILLE..TEMPLATES_PER_MILLE => Self::Caches,
            TEMPLATES_PER_MILLE.. => Self::Templates,
        }
    }

    fn of_stalls(looks: u32) -> Self {
        match looks {
            0 => Self::Calm,
            1 => Self::Spare,
            2 | 3 => Self::Caches,
            _ => Self::Templates,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "there is enough again; caches may fill",
            Self::Spare => "it gets short; no more than cache_min instances are kept ready",
            Self::Caches => "it is short; one instance of each chain is kept ready",
            Self::Templates => "it is very short; no instances are kept ready, and idle chains' templates are unloaded",
        })
    }
}

/// What the kernel reports at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// For how long tasks have waited for memory so far.
    pub stalled_us: u64,
    /// How full the fullest cgroup with a limit is.
    pub fill_per_mille: u64,
}

/// Turns successive readings into a level.
#[derive(Debug, Default)]
pub struct Gauge {
    level: Level,
    before: Option<Reading>,
    stalled_looks: u32,
    calm_looks: u32,
}

impl Gauge {
    /// Takes a reading, `after` the previous one; returns the level to report, if any.
    pub fn take(&mut self, reading: Reading, after: Duration) -> Option<Level> {
        let before = self.before.replace(reading).unwrap_or(reading);
        let stalled_us = reading.stalled_us.saturating_sub(before.stalled_us);
        let is_stall = stalled_us > 0 && u128::from(stalled_us) * 1000 >= after.as_micros() * STALL_PER_MILLE;
        self.stalled_looks = if is_stall { self.stalled_looks.saturating_add(1) } else { 0 };
        let now = Level::of_fill(reading.fill_per_mille).max(Level::of_stalls(self.stalled_looks));
        if now >= self.level {
            self.calm_looks = 0;
            self.level = now;
            return (now > Level::Calm).then_some(now);
        }
        self.calm_looks += 1;
        if self.calm_looks < CALM_LOOKS {
            return None;
        }
        self.calm_looks = 0;
        self.level = self.level.step_down();
        Some(self.level)
    }
}

/// The files to read.
#[derive(Debug, Clone)]
pub struct Sources {
    pressures: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
}

impl Sources {
    /// Returns the machine's pressure file, and those of the given cgroup (v2), or else of the process's own, with its parents.
    #[must_use]
    pub fn new(cgroup: Option<&Path>) -> Self {
        let own = || cgroup_path(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default()).map(PathBuf::from);
        let innermost = cgroup.map(Path::to_owned).or_else(own);
        let cgroups: Vec<PathBuf> = innermost.iter().flat_map(|path| path.ancestors()).map(Path::to_owned).collect();
        let cgroups: Vec<PathBuf> = cgroups.into_iter().filter(|path| path.join("memory.current").is_file()).collect();
        let of_cgroup = cgroups.first().map(|path| path.join("memory.pressure"));
        Self { pressures: std::iter::once(MACHINE_PRESSURE.into()).chain(of_cgroup).collect(), cgroups }
    }

    /// Reads the sources.
    #[must_use]
    pub fn read(&self) -> Reading {
        let stalled = self.pressures.iter().filter_map(|path| stalled_us(&fs::read_to_string(path).ok()?));
        let fill = self.cgroups.iter().filter_map(|path| fill_per_mille(path));
        Reading { stalled_us: stalled.max().unwrap_or(0), fill_per_mille: fill.max().unwrap_or(0) }
    }
}

/// Parses, from a PSI file, for how long some task has waited.
fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

/// Returns how full a cgroup is, without reclaimable page cache; none if it has no limit.
fn fill_per_mille(cgroup: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(cgroup.join(file)).ok()?.trim().parse::<u64>().ok();
    let limit = number("memory.max").into_iter().chain(number("memory.high")).min()?;
    let stat = fs::read_to_string(cgroup.join("memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let inactive = inactive.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some(number("memory.current")?.saturating_sub(inactive).saturating_mul(1000) / limit.max(1))
}

/// Ends a [`Watch`].
#[derive(Clone)]
pub struct Ending(Arc<OwnedFd>);

impl Ending {
    /// Makes the thread end now.
    pub fn ring(&self) {
        // Fails only after 2^64 calls.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// What ends a pause early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InterruptedBy {
    Ending,
    EndingAndTriggers,
}

/// Reads the sources until it is ended.
pub struct Watch {
    sources: Sources,
    triggers: Vec<File>,
    ending: Arc<OwnedFd>,
}

impl Watch {
    /// Creates a watch of these sources, and asks the kernel for stall triggers.
    ///
    /// # Errors
    /// If no event file is available.
    pub fn new(sources: Sources) -> std::io::Result<(Self, Ending)> {
        let ending = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let triggers = sources.pressures.iter().filter_map(|path| trigger(path).ok()).collect();
        Ok((Self { sources, triggers, ending: Arc::clone(&ending) }, Ending(ending)))
    }

    /// Calls `tell` with each level that the gauge reports, until the watch is ended.
    pub fn run(mut self, mut tell: impl FnMut(Level)) {
        let mut gauge = Gauge::default();
        let mut looked_at = Instant::now();
        loop {
            let after = looked_at.elapsed();
            looked_at = Instant::now();
            if let Some(level) = gauge.take(self.sources.read(), after) {
                tell(level);
            }
            // A trigger ends the longer pause only.
            if self.is_ended_within(INTERVAL_MIN, InterruptedBy::Ending)
                || self.is_ended_within(INTERVAL - INTERVAL_MIN, InterruptedBy::EndingAndTriggers)
            {
                return;
            }
        }
    }

    fn is_ended_within(&mut self, time: Duration, heeds: InterruptedBy) -> bool {
        let mut files = vec![PollFd::from_borrowed_fd(self.ending.as_fd(), PollFlags::IN)];
        if heeds == InterruptedBy::EndingAndTriggers {
            files.extend(self.triggers.iter().map(|file| PollFd::new(file, PollFlags::PRI)));
        }
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let _ = poll(&mut files, Some(&time));
        let is_ended = !files[0].revents().is_empty();
        // The cgroup of the trigger is gone; without this, it would wake the thread again and again.
        let gone: Vec<bool> = files[1..].iter().map(|file| file.revents().contains(PollFlags::ERR)).collect();
        let mut gone = gone.into_iter();
        self.triggers.retain(|_| !gone.next().unwrap_or(false));
        is_ended
    }
}

/// Creates a kernel trigger for stalls with this file.
fn trigger(pressure: &Path) -> std::io::Result<File> {
    let mut file =
        File::options().read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(pressure)?;
    let is_kernels =
        rustix::fs::fstatfs(&file).is_ok_and(|of| [PROC_MAGIC, CGROUP2_MAGIC].contains(&(of.f_type as u64)));
    if is_kernels {
        file.write_all(TRIGGER)?;
        return Ok(file);
    }
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Returns the directory of a process's cgroup v2, from its `/proc/PID/cgroup`, if it is in one.
#[must_use]
pub fn cgroup_path(proc_cgroup: &str) -> Option<String> {
    let path = proc_cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("/sys/fs/cgroup{}", path.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_control::model::Stage;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the levels reported for these fill levels of a cgroup, a second apart.
    fn told_of_fills(fills: &[u64]) -> Vec<Option<Level>> {
        let mut gauge = Gauge::default();
        let reading = |fill_per_mille: &u64| Reading { stalled_us: 0, fill_per_mille: *fill_per_mille };
        fills.iter().map(|fill| gauge.take(reading(fill), SECOND)).collect()
    }

    /// Returns the levels reported for these stall times in each second.
    fn told_of_stalls(stalls_ms: &[u64]) -> Vec<Option<Level>> {
        let (mut gauge, mut stalled_us) = (Gauge::default(), 5_000_000);
        gauge.take(Reading { stalled_us, fill_per_mille: 0 }, SECOND);
        let take = |ms: &u64| {
            stalled_us += ms * 1000;
            gauge.take(Reading { stalled_us, fill_per_mille: 0 }, SECOND)
        };
        stalls_ms.iter().map(take).collect()
    }

    #[test]
    fn the_level_follows_the_fill_of_the_cgroup_and_is_repeated_while_it_lasts() {
        use Level::{Caches, Spare, Templates};
        assert_eq!(
            told_of_fills(&[0, 799, 800, 899, 900, 949, 950, 1200]),
            [None, None, Some(Spare), Some(Spare), Some(Caches), Some(Caches), Some(Templates), Some(Templates)]
        );
    }

    #[test]
    fn the_level_falls_one_step_after_a_calm_period_and_rises_at_once() {
        let mut fills = vec![960];
        fills.extend([0; 15]);
        fills.extend([960, 0]);
        let mut expected = vec![Some(Level::Templates)];
        for level in [Level::Caches, Level::Spare, Level::Calm] {
            expected.extend([None, None, None, None, Some(level)]);
        }
        expected.extend([Some(Level::Templates), None]);
        assert_eq!(told_of_fills(&fills), expected);
    }

    #[test]
    fn long_stalls_raise_the_level_step_by_step_and_short_ones_do_not() {
        use Level::{Caches, Spare, Templates};
        assert_eq!(
            told_of_stalls(&[99, 100, 900, 500, 500, 99]),
            [None, Some(Spare), Some(Caches), Some(Caches), Some(Templates), None]
        );
    }

    #[test]
    fn waits_before_the_first_reading_are_no_stalls() {
        let mut gauge = Gauge::default();
        assert_eq!(gauge.take(Reading { stalled_us: 1 << 40, fill_per_mille: 0 }, Duration::ZERO), None);
    }

    #[test]
    fn the_kernels_files_are_parsed() {
        let text =
            "some avg10=0.00 avg60=0.12 avg300=0.05 total=10972926\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=6\n";
        assert_eq!(stalled_us(text), Some(10_972_926));
        assert_eq!(stalled_us("full avg10=0.00 total=6\n"), None);
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        write("memory.current", "900\n");
        assert_eq!(fill_per_mille(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.high", "max\n");
        assert_eq!(fill_per_mille(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(fill_per_mille(folder.path()), Some(900));
        write("memory.stat", "anon 500\ninactive_file 100\nactive_file 3\n");
        assert_eq!(fill_per_mille(folder.path()), Some(800));
        write("memory.high", "800\n");
        assert_eq!(fill_per_mille(folder.path()), Some(1000));
    }

    #[test]
    fn the_fullest_of_a_cgroup_and_its_parents_counts() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("slice/service");
        fs::create_dir_all(&inner).unwrap();
        for (path, current) in [(inner.as_path(), "10"), (inner.parent().unwrap(), "950")] {
            fs::write(path.join("memory.current"), current).unwrap();
            fs::write(path.join("memory.max"), "1000").unwrap();
        }
        assert_eq!(Sources::new(Some(&inner)).read().fill_per_mille, 950);
        assert_eq!(Sources::new(Some(folder.path())).read().fill_per_mille, 0);
    }

    #[test]
    fn each_level_keeps_fewer_instances_ready() {
        let stage = Stage::new("m".parse().unwrap(), Vec::new());
        let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![stage]);
        let kept = [Level::Calm, Level::Spare, Level::Caches, Level::Templates].map(|level| level.ready_max(&chain));
        assert_eq!(kept, [u32::MAX, 4, 1, 0]);
    }

    #[test]
    fn a_watch_reports_levels_and_ends_at_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.current"), "950").unwrap();
        fs::write(folder.path().join("memory.max"), "1000").unwrap();
        let (watch, ending) = Watch::new(Sources::new(Some(folder.path()))).unwrap();
        let (tell, told) = crossbeam_channel::unbounded();
        let thread = std::thread::spawn(move || watch.run(|level| tell.send(level).unwrap()));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Level::Templates));
        let started = Instant::now();
        ending.ring();
        thread.join().unwrap();
        assert!(started.elapsed() < INTERVAL / 2, "it took {:?}", started.elapsed());
    }

    #[test]
    fn a_file_outside_the_kernels_file_systems_is_not_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(trigger(file.path()).is_err());
        assert_eq!(fs::read(file.path()).unwrap(), b"");
    }
}

//! Ends the builder when it reaches a limit of time or memory, with a sentence that names the limit and what the builder was doing.
//!
//! The operating system's limits ([`crate::limits`]) would end it as well, a little later, and without a message.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use pinion_builder_client::protocol::BuilderMessage;
use pinion_builder_client::{
    BUILD_TIME_MAX, CPU_TIME_MAX, EXIT_REFUSED, MEMORY_BYTES_MAX, MODEL_CPU_TIME_MAX, MODEL_MEMORY_BYTES_MAX,
};
use rustix::time::{ClockId, clock_gettime};

use crate::limits::Limit;
use crate::progress;
use crate::refused::Refused;

/// How often the limits are checked.
const INTERVAL: Duration = Duration::from_millis(20);

/// What a module may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// CPU time.
    pub cpu_time: Duration,
    /// Elapsed time.
    pub time: Duration,
    /// The builder's address space, in bytes.
    pub memory_bytes: u64,
    /// What the builder works on.
    pub of: Work,
}

/// What the builder works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A module, or files.
    Module,
    /// A model.
    Model,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu_time: CPU_TIME_MAX, time: BUILD_TIME_MAX, memory_bytes: MEMORY_BYTES_MAX, of: Work::Module }
    }
}

impl Limits {
    /// Returns the limits for a model: lower, as nothing is compiled.
    #[must_use]
    pub fn of_model() -> Self {
        Self {
            cpu_time: MODEL_CPU_TIME_MAX,
            time: BUILD_TIME_MAX,
            memory_bytes: MODEL_MEMORY_BYTES_MAX,
            of: Work::Model,
        }
    }
}

/// Starts to watch.
///
/// # Errors
/// If its thread cannot be started.
pub fn begin(limits: Limits, memory: OwnMemory) -> std::io::Result<()> {
    let began = Instant::now();
    thread::Builder::new().name("watch".to_owned()).spawn(move || {
        loop {
            if let Some(limit) = reached(&limits, &memory, began) {
                let refused = match limits.of {
                    Work::Module => Refused::Limit { limit, at: progress::now() },
                    Work::Model => Refused::ModelLimit(limit),
                };
                let _ = writeln!(std::io::stderr(), "{}", BuilderMessage::Sentence(refused.to_string()).to_line());
                process::exit(EXIT_REFUSED);
            }
            thread::sleep(INTERVAL);
        }
    })?;
    Ok(())
}

fn reached(limits: &Limits, memory: &OwnMemory, began: Instant) -> Option<Limit> {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_time = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
    if cpu_time > limits.cpu_time {
        return Some(Limit::CpuTime(limits.cpu_time));
    }
    if began.elapsed() > limits.time {
        return Some(Limit::Time(limits.time));
    }
    (memory.address_space_bytes().unwrap_or(0) > limits.memory_bytes).then_some(Limit::Memory(limits.memory_bytes))
}

/// What the operating system reports of this process's memory. Open from the start, as the builder gives up opening files.
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    /// Opens the report.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open() -> std::io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// Returns the size of all mappings, which is what the operating system limits.
    fn address_space_bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0).ok()?;
        let pages: u64 = std::str::from_utf8(&text[..length]).ok()?.split(' ').next()?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_measured() {
        let own = OwnMemory::open().unwrap();
        let before = own.address_space_bytes().unwrap();
        let memory = std::hint::black_box(vec![0_u8; 1 << 30]);
        assert!(own.address_space_bytes().unwrap() >= before + (1 << 29));
        drop(memory);
    }

    #[test]
    fn each_limit_is_named_with_its_value() {
        let Limits { cpu_time, time, memory_bytes, .. } = Limits::default();
        let named = [Limit::CpuTime(cpu_time), Limit::Time(time), Limit::Memory(memory_bytes)].map(|it| it.to_string());
        assert_eq!(named, ["30 s of processor time", "600 s", "4096 MiB of memory"]);
    }
}

//! DPDK's environment (EAL): started once per process, stopped when its last user is gone.
//!
//! `rte_eal_init` pins the calling thread, and threads spawned by that thread inherit the pinning. So it runs on a
//! thread of its own, which then sleeps until it has to clean up. That thread is DPDK's main lcore; it never handles a
//! packet.
#![allow(unsafe_code)] // Starts and stops DPDK.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use pinion_dpdk_sys as sys;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::sched_getaffinity;

use crate::port::dpdk::buffers::sizes::BUFFER_FOOTPRINT;
use crate::port::dpdk::device::device_string::Device;
use crate::port::dpdk::error::{DpdkError, last_reason};
use crate::port::dpdk::log;

/// Memory for DPDK's rings, queues and drivers, in addition to the buffers. In MiB.
const BASE_MIB: u64 = 32;
/// Memory that each port needs in addition. In MiB.
const PORT_MIB: u64 = 8;

/// What DPDK is started with.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// The devices that will be opened. DPDK must know PCI devices from the start; the others only count for memory.
    pub devices: Vec<String>,
    /// Packet buffers of all pools together.
    pub buffers: u32,
    /// The kind of memory that holds the buffers.
    pub huge_pages: HugePages,
    /// The core on which DPDK's own thread sleeps. If none is given, the first core that this process may use.
    pub core: Option<usize>,
}

/// Whether DPDK uses huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Uses huge pages if enough of them are free, else ordinary pages.
    #[default]
    IfFree,
    /// Never uses huge pages.
    Never,
}

/// Running DPDK. Cheap to clone; DPDK stops when the last clone, pool, port and registered thread is gone.
#[derive(Clone, Debug)]
pub struct Eal {
    running: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    serves_cards: bool,
    /// When this is dropped, the thread cleans up.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Eal {
    /// Starts DPDK.
    ///
    /// # Errors
    /// If DPDK was started in this process before, or cannot be.
    pub fn start(config: &EalConfig) -> Result<Self, DpdkError> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        let devices = config.devices.iter().map(|text| Device::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let arguments = arguments(config, &devices);
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(DpdkError::AlreadyStarted);
        }
        prepare_process();
        let (stop, stopped) = mpsc::channel::<()>();
        let (report, reported) = mpsc::sync_channel(1);
        let run = move || {
            let started = init(&arguments);
            let is_running = started.is_ok();
            let _ = report.send(started);
            if is_running {
                let _ = stopped.recv();
                // SAFETY: the last handle is gone: no port, pool or registered thread is left.
                unsafe { sys::rte_eal_cleanup() };
            }
        };
        let thread = std::thread::Builder::new().name("dpdk".to_owned()).spawn(run).map_err(DpdkError::Thread)?;
        reported.recv().expect("the thread reports before it waits or ends")?;
        let serves_cards = !cards(&devices).is_empty();
        Ok(Self { running: Arc::new(Running { serves_cards, stop: Some(stop), thread: Some(thread) }) })
    }

    /// Returns whether PCI devices may be opened.
    pub(super) fn serves_cards(&self) -> bool {
        self.running.serves_cards
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Registers the calling thread with DPDK until the value is dropped, on the same thread.
///
/// Ports and pools work from any thread. A registered thread has its own buffer cache and so shares fewer cache lines
/// with others. A gateway registers its thread before its loop.
///
/// # Errors
/// If DPDK cannot register one more thread.
pub fn register_thread(eal: &Eal) -> Result<RegisteredThread, DpdkError> {
    // SAFETY: DPDK is running, as `eal` proves.
    if unsafe { sys::rte_thread_register() } != 0 {
        return Err(DpdkError::Register { reason: last_reason() });
    }
    Ok(RegisteredThread { _eal: eal.clone(), stays_on_its_thread: PhantomData })
}

/// Keeps the calling thread registered with DPDK while it lives.
#[derive(Debug)]
pub struct RegisteredThread {
    _eal: Eal,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        // SAFETY: registered on this thread, which the value cannot leave.
        unsafe { sys::rte_thread_unregister() };
    }
}

/// Marks the process's open files close-on-exec. Drivers open taps and raw sockets, which child processes would
/// inherit.
pub(crate) fn keep_files_from_children() {
    // SAFETY: sets a flag on descriptors and closes none.
    let code = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as c_int) };
    if code != 0 {
        tracing::warn!("open files can be inherited by the builder: {}", std::io::Error::last_os_error());
    }
}

/// Raises limits that DPDK's drivers need.
fn prepare_process() {
    // AF_XDP locks the pool in memory. If the limit may not be raised, the driver reports it when it matters.
    let unlimited = Rlimit { current: None, maximum: None };
    if let Err(error) = setrlimit(Resource::Memlock, unlimited) {
        tracing::debug!(%error, "the limit on locked memory stays as it is");
    }
}

fn init(arguments: &[CString]) -> Result<(), DpdkError> {
    let mut argv: Vec<*mut c_char> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    argv.push(std::ptr::null_mut());
    let argc = c_int::try_from(arguments.len()).expect("a dozen arguments");
    log::capture();
    let _collector = log::Collector::start();
    // SAFETY: called once per process, with `argc` strings and a null after them; DPDK reorders the pointers and
    // copies what it keeps, without writing to the strings.
    let code = unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) };
    let reason = last_reason();
    remove_runtime_directory();
    if code < 0 {
        let arguments = arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ");
        return Err(DpdkError::Start { arguments, reason, told: log::told() });
    }
    Ok(())
}

/// Removes DPDK's runtime directory, and its parent, if they are empty. Without shared files and telemetry DPDK does
/// not use it, and would leave it behind.
fn remove_runtime_directory() {
    // SAFETY: the string, which may be empty, lives as long as the process.
    let path = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let removed = std::fs::remove_dir(path).and_then(|()| path.parent().map_or(Ok(()), std::fs::remove_dir));
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "DPDK's runtime directory was not removed");
    }
}

/// Returns the PCI devices among these.
fn cards(devices: &[Device]) -> Vec<&Device> {
    devices.iter().filter(|device| device.is_pci()).collect()
}

fn arguments(config: &EalConfig, devices: &[Device]) -> Vec<CString> {
    let memory_mib = memory_mib(config);
    let core = config.core.unwrap_or_else(first_allowed_core);
    let mut arguments: Vec<String> = ["pinion", "--no-telemetry", "--log-level=warning"].map(str::to_owned).into();
    arguments.push(format!("--file-prefix=pinion-{}", std::process::id()));
    arguments.push(format!("--lcores=0@{core}"));
    arguments.extend(["-m".to_owned(), memory_mib.to_string()]);
    // Both options keep DPDK from sharing state through files; they exclude each other.
    let sharing: &[&str] = match use_huge_pages(config.huge_pages, memory_mib) {
        true => &["--in-memory"],
        false => &["--no-huge", "--no-shconf"],
    };
    arguments.extend(sharing.iter().map(|&argument| argument.to_owned()));
    let pci = cards(devices);
    if pci.is_empty() {
        // With virtual addresses for I/O, the pool can be one piece, which AF_XDP needs.
        arguments.extend(["--no-pci".to_owned(), "--iova-mode=va".to_owned()]);
    }
    for device in pci {
        arguments.extend(["-a".to_owned(), device.text().to_owned()]);
    }
    arguments.into_iter().map(|argument| CString::new(argument).expect("no argument holds a zero byte")).collect()
}

fn memory_mib(config: &EalConfig) -> u64 {
    let buffers_mib = (u64::from(config.buffers) * BUFFER_FOOTPRINT).div_ceil(1 << 20);
    buffers_mib + BASE_MIB + PORT_MIB * config.devices.len() as u64
}

fn use_huge_pages(wish: HugePages, memory_mib: u64) -> bool {
    let huge_mib = free_huge_mib(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    if wish == HugePages::IfFree && huge_mib < memory_mib {
        tracing::info!(memory_mib, huge_mib, "too few huge pages are free; DPDK uses ordinary ones");
    }
    wish == HugePages::IfFree && huge_mib >= memory_mib
}

/// Returns the free memory in huge pages of the default size, in MiB.
fn free_huge_mib(meminfo: &str) -> u64 {
    let value = |key: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    value("HugePages_Free").saturating_sub(value("HugePages_Rsvd")) * value("Hugepagesize") / 1024
}

fn first_allowed_core() -> usize {
    let allowed = sched_getaffinity(None).ok();
    (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_some_and(|set| set.is_set(*core))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument_texts(config: &EalConfig) -> Vec<String> {
        let devices: Vec<Device> = config.devices.iter().map(|text| Device::parse(text).unwrap()).collect();
        arguments(config, &devices).into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn free_huge_pages_exclude_reserved_ones() {
        let meminfo = "MemTotal: 100 kB\nHugePages_Total:      64\n\
             HugePages_Free:       40\nHugePages_Rsvd:        8\nHugepagesize:       2048 kB\n";
        assert_eq!(free_huge_mib(meminfo), 64);
        assert_eq!(free_huge_mib("MemTotal: 100 kB\n"), 0);
    }

    #[test]
    fn only_the_pci_devices_asked_for_are_touched() {
        let config = |devices: &[&str]| EalConfig {
            devices: devices.iter().map(|&device| device.to_owned()).collect(),
            buffers: 1024,
            huge_pages: HugePages::IfFree,
            core: Some(0),
        };
        let without = argument_texts(&config(&["net_tap0,iface=x"]));
        assert!(without.contains(&"--no-pci".to_owned()));
        let with = argument_texts(&config(&["net_tap0", "0000:00:04.0"]));
        assert!(!with.contains(&"--no-pci".to_owned()));
        assert!(with.windows(2).any(|pair| pair == ["-a", "0000:00:04.0"]));
    }

    #[test]
    fn more_memory_than_there_is_in_huge_pages_is_taken_elsewhere() {
        let config = EalConfig { devices: Vec::new(), buffers: u32::MAX, huge_pages: HugePages::IfFree, core: None };
        assert!(argument_texts(&config).contains(&"--no-huge".to_owned()));
    }
}

//! What can go wrong when DPDK is started and its ports are opened.
#![allow(unsafe_code)] // Queries DPDK's error texts.

use std::ffi::CStr;
use std::io;
use std::path::PathBuf;

use pinion_dpdk_sys as sys;

/// Why DPDK, a pool or a port is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// DPDK was started before.
    #[error("DPDK was started in this process before; it can be started once")]
    AlreadyStarted,
    /// The thread that DPDK runs on could not be created.
    #[error("the thread for DPDK cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// `rte_eal_init` failed.
    #[error("DPDK does not start with the arguments `{arguments}` ({reason}): {told}")]
    Start {
        /// The arguments that it was started with.
        arguments: String,
        /// DPDK's text for its error number.
        reason: String,
        /// What it logged.
        told: String,
    },
    /// The pool does not fit into the memory that DPDK was started with.
    #[error("no memory for {buffers} packet buffers ({reason}): start DPDK with room for them, or ask for fewer")]
    Pool {
        /// The number of buffers requested.
        buffers: u32,
        /// DPDK's text for its error number.
        reason: String,
    },
    /// The device's driver would lose the frames in some buffers of the pool.
    #[error(
        "the device `{device}` takes packet buffers without gaps, for which DPDK needs huge pages if a node has a PCI \
         device: reserve some (`sysctl vm.nr_hugepages=64`), or name the interface with `net_af_packet`"
    )]
    PoolWithGaps {
        /// The device string.
        device: String,
    },
    /// DPDK cannot register one more thread.
    #[error("the thread cannot be registered with DPDK: {reason}")]
    Register {
        /// DPDK's text for its error number.
        reason: String,
    },
    /// The string is not a device string.
    #[error(
        "`{device}` is not a device: give a PCI address, or a driver's name, a number and arguments as in \
         `net_tap0,iface=pinion0`"
    )]
    Malformed {
        /// The device string.
        device: String,
    },
    /// There is no driver of that name.
    #[error(
        "no driver answers to the device `{device}`: give a PCI address, or a driver's name such as net_tap, \
         net_af_packet, net_af_xdp, net_pcap, net_ring or net_memif, and install that driver's Debian package \
         librte-net-*23"
    )]
    UnknownDriver {
        /// The device string.
        device: String,
    },
    /// The driver would silently ignore this argument, and all others with it.
    #[error("the device `{device}` has the argument `{argument}`, which its driver does not know: it takes {known}")]
    UnknownArgument {
        /// The device string.
        device: String,
        /// The argument.
        argument: String,
        /// What the driver takes.
        known: String,
    },
    /// The interface in the device string does not exist.
    #[error(
        "the device `{device}` names the interface `{interface}`, which does not exist here: create it first, or \
         correct `iface=`"
    )]
    MissingInterface {
        /// The device string.
        device: String,
        /// The interface.
        interface: String,
    },
    /// The device already has a port.
    #[error(
        "the device `{device}` is in use by another port: each port needs a device of its own (virtual ones are told \
         apart by the number after the driver's name)"
    )]
    InUse {
        /// The device string.
        device: String,
    },
    /// DPDK was not told of the PCI device.
    #[error(
        "the PCI device `{device}` was not found: is the address right, bound to vfio-pci (`dpdk-devbind.py \
         --status`) and among the devices DPDK was started for?"
    )]
    MissingPci {
        /// The device string.
        device: String,
    },
    /// The driver refuses the device.
    #[error("the device `{device}` cannot be opened, at {step}: {reason}{hint}")]
    Refused {
        /// The device string.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// The driver's messages, or DPDK's text for its error number.
        reason: String,
        /// A hint on what may help, as a further sentence; or empty.
        hint: String,
    },
    /// The device has fewer queues than requested.
    #[error("the device `{device}` cannot have {queues} queues: it has at most {queues_max}")]
    TooFewQueues {
        /// The device string.
        device: String,
        /// The number of queues requested.
        queues: u16,
        /// The number of queues that the device has.
        queues_max: u16,
    },
    /// The device string gives another number of queues than the port's settings.
    #[error(
        "the device `{device}` has {argument}, but its port has queues = {queues}: remove {argument}, because the port \
         passes its number of queues to the driver"
    )]
    QueuesDiffer {
        /// The device string.
        device: String,
        /// The device string's argument.
        argument: String,
        /// The number of queues that the port's settings request.
        queues: u16,
    },
    /// The MTU is outside the device's range.
    #[error("the device `{device}` refuses an MTU of {mtu} ({reason}): set one between 68 and {mtu_max}")]
    Mtu {
        /// The device string.
        device: String,
        /// The MTU requested.
        mtu: u16,
        /// The largest MTU that is possible.
        mtu_max: u16,
        /// DPDK's text for its error number.
        reason: String,
    },
    /// The link stays down.
    #[error("the device `{device}` did not come up within {waited_ms} ms: {reason}")]
    DoesNotComeUp {
        /// The device string.
        device: String,
        /// How long the port waited, in milliseconds.
        waited_ms: u128,
        /// What is missing, and what to do.
        reason: String,
    },
    /// The network namespace cannot be entered.
    #[error("the network namespace `{}` cannot be entered: {error}; create it with `ip netns add`, and run as \
        root", path.display())]
    Namespace {
        /// The namespace's file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The kernel cannot be queried about the interface.
    #[error("the interface of the device `{device}` cannot be watched: {error}")]
    Watch {
        /// The device string.
        device: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
}

/// Returns DPDK's text for one of its error numbers, of either sign.
pub(crate) fn reason(code: i32) -> String {
    // SAFETY: accepts any number, and returns a string that lives until this thread's next call.
    let words = unsafe { CStr::from_ptr(sys::rte_strerror(code.saturating_abs())) };
    words.to_string_lossy().into_owned()
}

/// Returns DPDK's text for the error of the calling thread's last DPDK call.
pub(crate) fn last_reason() -> String {
    // SAFETY: reads a thread-local number.
    reason(unsafe { sys::pinion_errno() })
}

//! What can go wrong while DPDK is started and its ports are opened.
#![allow(unsafe_code)] // Asks DPDK for its words.

use std::ffi::CStr;
use std::io;
use std::path::PathBuf;

use pinion_dpdk_sys as sys;

/// Why DPDK, a pool or a port cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// A second start.
    #[error("DPDK was started in this process before; it can be started once")]
    AlreadyStarted,
    /// The thread DPDK runs on cannot be had.
    #[error("the thread for DPDK cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// `rte_eal_init` failed.
    #[error("DPDK does not start with the arguments `{arguments}` ({reason}): {told}")]
    Start {
        /// What it was started with.
        arguments: String,
        /// DPDK's word for it.
        reason: String,
        /// What it logged.
        told: String,
    },
    /// The pool does not fit into the memory DPDK was started with.
    #[error("no memory for {buffers} packet buffers ({reason}): start DPDK with room for them, or ask for fewer")]
    Pool {
        /// Buffers asked for.
        buffers: u32,
        /// DPDK's word for it.
        reason: String,
    },
    /// No place for one more thread.
    #[error("the thread cannot be made known to DPDK: {reason}")]
    Register {
        /// DPDK's word for it.
        reason: String,
    },
    /// Not a device string at all.
    #[error(
        "`{device}` is not a device: give a PCI address, or a driver's name, a number and arguments as in \
         `net_tap0,iface=pinion0`"
    )]
    Malformed {
        /// The device string.
        device: String,
    },
    /// No driver of that name.
    #[error(
        "no driver answers to the device `{device}`: its name is to begin with one like net_tap, net_af_packet, \
         net_af_xdp, net_pcap, net_ring or net_memif (and that driver's Debian package librte-net-*23 be installed), \
         or be a PCI address"
    )]
    UnknownDriver {
        /// The device string.
        device: String,
    },
    /// An argument that the driver would silently ignore, all others with it.
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
    /// The device has a port already.
    #[error(
        "the device `{device}` is in use by another port: each port needs a device of its own (virtual ones are told \
         apart by the number after the driver's name)"
    )]
    InUse {
        /// The device string.
        device: String,
    },
    /// A PCI device that DPDK was not told of.
    #[error(
        "the PCI device `{device}` was not found: is the address right, bound to vfio-pci (`dpdk-devbind.py \
         --status`) and among the devices DPDK was started for?"
    )]
    MissingPci {
        /// The device string.
        device: String,
    },
    /// The driver does not like the device.
    #[error("the device `{device}` cannot be opened, at {step}: {reason}{hint}")]
    Refused {
        /// The device string.
        device: String,
        /// What was being done.
        step: &'static str,
        /// What the driver says about it.
        reason: String,
        /// What may help, as a further sentence; or empty.
        hint: String,
    },
    /// The device has fewer queues than asked for.
    #[error("the device `{device}` cannot have {queues} queues: it has at most {queues_max}")]
    TooFewQueues {
        /// The device string.
        device: String,
        /// Queues asked for.
        queues: u16,
        /// What the device has.
        queues_max: u16,
    },
    /// The device string says another number of queues than the port.
    #[error(
        "the device `{device}` says {argument}, its port queues = {queues}: leave {argument} away, the driver is told"
    )]
    QueuesDiffer {
        /// The device string.
        device: String,
        /// What it says.
        argument: String,
        /// Queues asked for.
        queues: u16,
    },
    /// The MTU is out of the device's range.
    #[error("the device `{device}` refuses an MTU of {mtu} ({reason}): set one between 68 and {mtu_max}")]
    Mtu {
        /// The device string.
        device: String,
        /// The MTU asked for.
        mtu: u16,
        /// The longest that could pass.
        mtu_max: u16,
        /// DPDK's word for it.
        reason: String,
    },
    /// The link stays down.
    #[error("the device `{device}` did not come up within {waited_ms} ms: {reason}")]
    DoesNotComeUp {
        /// The device string.
        device: String,
        /// How long it was given.
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
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A socket to ask the kernel about interfaces.
    #[error("the interface of the device `{device}` cannot be watched: {error}")]
    Watch {
        /// The device string.
        device: String,
        /// Why.
        #[source]
        error: io::Error,
    },
}

/// DPDK's words for one of its error numbers, of either sign.
pub(crate) fn reason(code: i32) -> String {
    // SAFETY: takes any number and answers with a string that lives until this thread's next call.
    let words = unsafe { CStr::from_ptr(sys::rte_strerror(code.saturating_abs())) };
    words.to_string_lossy().into_owned()
}

/// What the calling thread's last DPDK call failed with.
pub(crate) fn last_reason() -> String {
    // SAFETY: reads a thread-local number.
    reason(unsafe { sys::pinion_errno() })
}

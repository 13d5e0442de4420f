//! Ports: where frames enter and leave the node, and the buffers they travel in.
//!
//! A gateway thread owns its ports and one [`BufferPool`]; all of its ports take buffers from that pool and give them
//! back to it, so a buffer that was filled by one port can be transmitted by any other without another copy.
//!
//! ```text
//!   device --receive--> Frame (Buffer + length) --> Net-In ...
//!   device <-transmit-- Frame                   <-- Net-Out ...
//!                         |
//!        BufferPool  <----+  spent, dropped
//! ```
//!
//! * [`dpdk`] drives any device DPDK 22.11 knows, in buffers of a [`dpdk::DpdkPool`] (cargo feature `dpdk`);
//! * [`memory`] has no device: another thread of the process injects and collects the frames. For tests, and for
//!   machines without DPDK, together with [`heap::HeapPool`];
//! * [`socket`] has none either: another program injects and collects them.
//!
//! Nothing here looks into a frame.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::counters::Counter;

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod heap;
pub mod memory;
pub mod socket;

/// What surrounds the MTU in a frame: the Ethernet header and one VLAN tag.
pub const FRAME_OVERHEAD: u32 = 18;

/// Where buffers come from and go back to.
///
/// Taking and giving is for the fast path: it neither blocks nor allocates (into vectors with room enough).
pub trait BufferPool: Send {
    /// Appends up to `count` empty buffers to `buffers`; returns how many there were.
    fn take(&mut self, buffers: &mut Vec<Buffer>, count: usize) -> usize;

    /// Takes all of `buffers` back, leaving the vector empty.
    ///
    /// # Panics
    /// If one of them is not of this pool: ports of different pools were mixed in one gateway.
    fn give(&mut self, buffers: &mut Vec<Buffer>);

    /// Buffers in all, whether in the pool or out.
    fn capacity(&self) -> usize;

    /// Bytes that fit into each buffer.
    fn buffer_len_max(&self) -> u32;
}

/// Something that receives and transmits Ethernet frames.
///
/// A port belongs to one thread at a time; that thread calls everything here.
pub trait Port: Send {
    /// The name by which the configuration and the operator know the port.
    fn name(&self) -> &str;

    /// The device behind it, as the configuration names it.
    fn device(&self) -> &str;

    /// The port's present facts. Asks the device, maybe with a system call: not for the fast path.
    fn facts(&self) -> PortFacts;

    /// Whether frames for other stations than [`PortFacts::mac`] are to be taken in.
    fn promiscuous(&self) -> Promiscuous {
        Promiscuous::No
    }

    /// Appends up to `max` received frames to `frames` and returns how many.
    ///
    /// Does not block and, if `frames` has room for `max` more, does not allocate. Which of a gateway's ports they came in by is
    /// for the gateway to note in them.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize;

    /// Transmits `frames` in their order, leaving the vector empty, and returns how many the device took.
    ///
    /// What the device does not take after a bounded number of tries, or cannot carry (empty, longer than the MTU
    /// allows), is given back to the pool and counted as dropped. Neither blocks nor allocates.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize;

    /// Has the port's device report the frames that come from now on to a thread that is about to sleep; says how. To be
    /// undone by [`Port::disarm`] before the port is used again. May call the kernel.
    fn arm(&mut self) -> Alarm {
        Alarm::None
    }

    /// What `poll(2)` finds readable while a frame waits and the port is armed with [`Alarm::Set`].
    fn descriptors(&self) -> &[OwnedFd] {
        &[]
    }

    /// Undoes [`Port::arm`].
    fn disarm(&mut self) {}

    /// The port's counters, for any thread to read.
    fn counters(&self) -> &Arc<PortCounters>;
}

/// What a port is like at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The address the port's own station uses: what neighbours are to send to, and the source of what it originates.
    pub mac: [u8; 6],
    /// The longest payload of a frame in bytes.
    pub mtu: u16,
    /// Whether frames can pass.
    pub link: LinkState,
    /// Frames that were lost before [`Port::receive`] saw them: no buffer, a full queue, a damaged frame. As far as the
    /// device counts them.
    pub missed: u64,
}

/// Whether a port receives frames for other stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promiscuous {
    /// It does not.
    #[default]
    No,
    /// It does.
    Yes,
}

/// How a sleeping thread learns that a port has received a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Frames wait already.
    Ringing,
    /// Not at all: the thread has to look from time to time.
    None,
    /// One of [`Port::descriptors`] becomes readable.
    Set,
}

/// Whether frames can pass a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// They can.
    Up,
    /// They cannot.
    Down,
    /// The device does not tell: its interface was moved out of the network namespace in which the port was opened.
    Unknown,
}

/// A port's traffic. Written by the thread that owns the port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// What came in.
    pub received: CachePadded<ReceiveCounters>,
    /// What went out.
    pub sent: CachePadded<TransmitCounters>,
}

/// The receiving half of [`PortCounters`].
#[derive(Debug, Default)]
pub struct ReceiveCounters {
    /// Frames received.
    pub frames: Counter,
    /// Bytes of these.
    pub bytes: Counter,
    /// Frames that did not lie in one buffer of the pool, and were dropped.
    pub dropped_malformed: Counter,
}

/// The transmitting half of [`PortCounters`].
#[derive(Debug, Default)]
pub struct TransmitCounters {
    /// Frames the device took.
    pub frames: Counter,
    /// Bytes of these.
    pub bytes: Counter,
    /// Frames the device had no room for.
    pub dropped_full: Counter,
    /// Frames that were empty, longer than the port's MTU allows, or in a buffer that is not of the port's pool.
    pub dropped_unfit: Counter,
}

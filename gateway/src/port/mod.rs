//! Ports: where frames enter and leave the node, and the buffers that hold them.
//!
//! A gateway's thread owns its ports and one [`BufferPool`]. All its ports take buffers from that pool and return them
//! to it, so a buffer that one port filled can be transmitted by any other without another copy.
//!
//! ```text
//!   device --receive--> Frame (Buffer + length) --> Net-In ...
//!   device <-transmit-- Frame                   <-- Net-Out ...
//!                         |
//!        BufferPool  <----+  spent, dropped
//! ```
//!
//! * [`dpdk`] drives any device that DPDK 22.11 knows, with buffers of a [`dpdk::DpdkPool`] (cargo feature `dpdk`);
//! * [`memory`] has no device: another thread of the process sends and receives the frames. For tests, and for machines
//!   without DPDK, together with [`heap::HeapPool`];
//! * [`socket`] has no device either: another program sends and receives the frames.
//!
//! Nothing here reads a frame's contents.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use pinion_mma::accounts::counters::Counter;
use pinion_mma::buffer::{Buffer, Frame};

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod heap;
pub mod memory;
pub mod socket;

/// Bytes of a frame in addition to the MTU: the Ethernet header and one VLAN tag.
pub const FRAME_OVERHEAD: u32 = 18;

/// The shortest frame that may leave, in bytes: an Ethernet header. A shorter frame has no receiver. No device is asked
/// to send it, because the kernel refuses it and some cards stop.
pub const FRAME_LEN_MIN: u32 = 14;

/// Why a port cannot send a frame, however much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is empty, or shorter than [`FRAME_LEN_MIN`].
    Runt,
    /// It is longer than the port's MTU allows, or in a buffer that is not of the port's pool.
    Other,
}

/// Returns why a frame of `len` bytes cannot be sent by a port whose longest frame has `len_max` bytes, if it cannot.
#[inline]
#[must_use]
pub fn unfit_for(len: u32, len_max: u32) -> Option<Unfit> {
    match len {
        0..FRAME_LEN_MIN => Some(Unfit::Runt),
        _ if len > len_max => Some(Unfit::Other),
        _ => None,
    }
}

/// A pool that buffers are taken from and returned to.
///
/// Taking and giving are for the fast path: they neither block nor allocate (if the vector has room).
pub trait BufferPool: Send {
    /// Appends up to `count` empty buffers to `buffers`. Returns how many there were.
    fn take(&mut self, buffers: &mut Vec<Buffer>, count: usize) -> usize;

    /// Takes all of `buffers` back and leaves the vector empty.
    ///
    /// # Panics
    /// If one of them is not of this pool: then ports of different pools were mixed in one gateway.
    fn give(&mut self, buffers: &mut Vec<Buffer>);

    /// Returns the number of all buffers, whether in the pool or out.
    fn capacity(&self) -> usize;

    /// Returns how many bytes fit into each buffer.
    fn buffer_len_max(&self) -> u32;
}

/// A device that receives and transmits Ethernet frames.
///
/// A port belongs to one thread at a time; that thread calls everything here.
pub trait Port: Send {
    /// Returns the port's name in the configuration and in reports.
    fn name(&self) -> &str;

    /// Returns the device behind the port, as the configuration names it.
    fn device(&self) -> &str;

    /// Returns the port's present state. Queries the device, possibly with a system call: not for the fast path.
    fn facts(&self) -> PortFacts;

    /// Looks after the device: notices that it has gone, and continues with the one that took its place. Called now and
    /// then, before [`Port::facts`]. May call the kernel, and never waits.
    fn tend(&mut self) {}

    /// Returns whether the port receives frames for other stations than [`PortFacts::mac`].
    fn promiscuous(&self) -> Promiscuous {
        Promiscuous::No
    }

    /// Appends up to `max` received frames to `frames`. Returns how many.
    ///
    /// Does not block and, if `frames` has room for `max` more, does not allocate. The gateway notes in the frames
    /// which of its ports they came in by.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize;

    /// Transmits `frames` in order and leaves the vector empty. Returns how many the device took.
    ///
    /// Some frames are returned to the pool and counted as dropped: those that the device does not take after a bounded
    /// number of attempts, and those that it cannot carry (shorter than [`FRAME_LEN_MIN`], longer than the MTU allows).
    /// Only these are dropped, because the frames of a burst belong to different tenants. While the link is known to be
    /// down, all are. Neither blocks nor allocates.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize;

    /// Makes the port's device report the frames that come from now on to a thread that is about to sleep. Returns how
    /// it does. [`Port::disarm`] must undo this before the port is used again. May call the kernel.
    fn arm(&mut self) -> Alarm {
        Alarm::None
    }

    /// Returns the descriptors that `poll(2)` finds readable while a frame waits and the port is armed with
    /// [`Alarm::Set`].
    fn descriptors(&self) -> &[OwnedFd] {
        &[]
    }

    /// Undoes [`Port::arm`].
    fn disarm(&mut self) {}

    /// Returns the port's counters, which any thread may read.
    fn counters(&self) -> &Arc<PortCounters>;
}

/// A port's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The address of the port's own station: where neighbours send to, and the source of frames that the gateway
    /// originates.
    pub mac: [u8; 6],
    /// The longest payload of a frame, in bytes.
    pub mtu: u16,
    /// Whether the link is up.
    pub link: LinkState,
    /// Frames lost before [`Port::receive`] saw them, for want of a buffer, in a full queue, or damaged. As far as the
    /// device counts them, or the kernel for it.
    pub missed: u64,
}

/// Whether a port receives frames for other stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promiscuous {
    /// Only frames for its own station and for groups.
    #[default]
    No,
    /// Frames for all stations.
    Yes,
}

/// How a sleeping thread learns that a port has received a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Frames already wait.
    Ringing,
    /// It does not learn it: the thread has to poll from time to time.
    None,
    /// One of [`Port::descriptors`] becomes readable.
    Set,
}

/// Whether frames can pass through a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// They can.
    Up,
    /// They cannot.
    Down,
    /// Unknown: the interface was moved out of the network namespace in which the port was opened.
    Unknown,
    /// The device was deleted. The port works again when there is one of the same name.
    Gone,
    /// The device was deleted, and the port needs a restart of the node to work again.
    Lost,
}

impl LinkState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Up, Self::Down, Self::Unknown, Self::Gone, Self::Lost];

    /// Returns whether no frame can pass.
    #[must_use]
    pub fn is_down(self) -> bool {
        matches!(self, Self::Down | Self::Gone | Self::Lost)
    }
}

/// A port's traffic. Only the thread that owns the port writes it.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// What was received.
    pub received: CachePadded<ReceiveCounters>,
    /// What was transmitted.
    pub sent: CachePadded<TransmitCounters>,
}

/// The receiving half of [`PortCounters`].
#[derive(Debug, Default)]
pub struct ReceiveCounters {
    /// Frames received.
    pub frames: Counter,
    /// Bytes of these frames.
    pub bytes: Counter,
    /// Frames that were dropped because they did not lie in one buffer of the pool.
    pub dropped_malformed: Counter,
    /// Frames of which the sender had left the TCP or UDP checksum to hardware, and the port computed it.
    pub completed_checksums: Counter,
}

/// The transmitting half of [`PortCounters`].
#[derive(Debug, Default)]
pub struct TransmitCounters {
    /// Frames that the device took.
    pub frames: Counter,
    /// Bytes of these frames.
    pub bytes: Counter,
    /// Frames that were dropped because the device had no room.
    pub dropped_full: Counter,
    /// Frames that were dropped because the device refused them repeatedly, and then took the frames behind them.
    pub dropped_refused: Counter,
    /// Frames that were dropped as [`Unfit::Runt`].
    pub dropped_runt: Counter,
    /// Frames that were dropped as [`Unfit::Other`].
    pub dropped_unfit: Counter,
    /// Frames that were dropped because the link was down.
    pub dropped_link_down: Counter,
}

/// Returns the buffers of all frames to the pool, and counts the frames. `spent` has room for some buffers, and is empty
/// before and after.
#[cfg(feature = "dpdk")]
fn drop_all(frames: &mut Vec<Frame>, pool: &mut dyn BufferPool, spent: &mut Vec<Buffer>, counter: &Counter) {
    counter.add(frames.len() as u64);
    give_all(frames, pool, spent);
}

/// As [`drop_all`], without counting.
#[cfg(feature = "dpdk")]
fn give_all(frames: &mut Vec<Frame>, pool: &mut dyn BufferPool, spent: &mut Vec<Buffer>) {
    for frame in frames.drain(..) {
        if spent.len() == spent.capacity() && !spent.is_empty() {
            pool.give(spent);
        }
        spent.push(frame.into_buffer());
    }
    pool.give(spent);
}

impl TransmitCounters {
    /// Counts a frame that cannot be sent.
    pub(crate) fn count_unfit(&self, why: Unfit) {
        match why {
            Unfit::Runt => self.dropped_runt.add(1),
            Unfit::Other => self.dropped_unfit.add(1),
        }
    }
}

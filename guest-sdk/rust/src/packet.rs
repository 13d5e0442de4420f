//! What a function gets: a [`Batch`] of [`Packet`]s, each a view of one slot, and the verdict on each.
//!
//! No code here touches raw memory. Nothing here allocates or blocks; every operation but the copies a function
//! asks for itself takes constant time. A packet must never be lost: whatever happens to it, its slot ends up in one
//! transmit descriptor.

use core::fmt;
use core::iter::FusedIterator;

use pinion_abi::{
    Descriptor, OUTPUTS_MAX, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_IP_CHECKSUM_BAD, RX_IP_CHECKSUM_GOOD,
    RX_L4_CHECKSUM_BAD, RX_L4_CHECKSUM_GOOD,
};

use crate::held::{Held, Shelf};
use crate::pool::{Grants, Pool, SLOT_SIZE};

/// The packets that have arrived since the last time, in order of arrival: an iterator over [`Packet`]s. What is not
/// taken from it is dropped.
///
/// ```
/// # use pinion_sdk::{Batch, Function, InitError, testing::Harness};
/// # struct Police;
/// # impl Function for Police {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
/// fn handle(&mut self, batch: Batch<'_>) {
///     // Of each batch, ten packets may pass.
///     for packet in batch.take(10) {
///         packet.send();
///     }
/// }
/// # }
/// # let frames = [&[0_u8; 60][..]; 12];
/// # let verdicts = Harness::<Police>::new(b"").unwrap().deliver(&frames);
/// # assert_eq!(verdicts.iter().filter(|v| v.outcome == pinion_sdk::testing::Outcome::Dropped).count(), 2);
/// ```
pub struct Batch<'a> {
    grants: Grants<'a>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(grants: Grants<'a>) -> Self {
        Self { grants }
    }

    /// Where packets lie that were [held](Packet::hold).
    #[must_use]
    pub fn shelf(&self) -> Shelf<'a> {
        self.grants.shelf()
    }

    /// Makes a packet: see [`Shelf::make`].
    #[must_use]
    pub fn make(&self, bytes: &[u8]) -> Option<Packet<'a>> {
        self.shelf().make(bytes)
    }

    /// Whether all packets have been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grants.remaining() == 0
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        self.grants.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.grants.remaining() as usize;
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for Batch<'_> {}
impl FusedIterator for Batch<'_> {}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("remaining", &self.grants.remaining()).finish_non_exhaustive()
    }
}

/// The last number that is taken for an output's; no chain has so many.
const OUTPUT_LAST: u16 = PORT_REPLY - 1;
const _: () = assert!(OUTPUT_LAST >= OUTPUTS_MAX && OUTPUT_LAST < PORT_DROP);

/// A slot has not enough bytes left for a change of a packet's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes there were.
    pub available: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes asked for where the packet has {}", self.wanted, self.available)
    }
}

impl std::error::Error for NoRoom {}

/// One frame, from its Ethernet header on, in a slot of its own. Dropped unless [sent](Packet::send), also
/// [by another output](Packet::send_to), or [replied](Packet::reply).
///
/// ```
/// # use pinion_sdk::{Batch, Function, InitError, testing::Harness};
/// # struct Tag;
/// # impl Function for Tag {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
/// fn handle(&mut self, batch: Batch<'_>) {
///     for mut packet in batch {
///         // Put a VLAN tag after the addresses: four bytes more in front, and the addresses moved there.
///         if packet.len() < 14 || packet.prepend(4).is_err() {
///             continue; // dropped
///         }
///         let frame = packet.data_mut();
///         frame.copy_within(4..16, 0);
///         frame[12..16].copy_from_slice(&[0x81, 0x00, 0x00, 0x07]);
///         packet.send();
///     }
/// }
/// # }
/// # let verdicts = Harness::<Tag>::new(b"").unwrap().deliver(&[&[9; 60], &[9; 13]]);
/// # assert_eq!(verdicts[0].bytes[..17], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0x81, 0, 0, 7, 9]);
/// # assert_eq!(verdicts[0].bytes.len(), 64);
/// ```
pub struct Packet<'a> {
    pool: &'a Pool<'a>,
    bytes: &'a mut [u8; SLOT_SIZE],
    /// Invariant: `offset + len <= SLOT_SIZE`.
    offset: usize,
    len: usize,
    slot: u16,
    ingress_port: u16,
    flags: u32,
}

/// What the device that received a packet has found out about a checksum of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It is right.
    Good,
    /// It is wrong.
    Bad,
    /// The device does not tell, or the packet was sent by the chain's stage before.
    Unknown,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(pool: &'a Pool<'a>, bytes: &'a mut [u8; SLOT_SIZE], descriptor: Descriptor) -> Self {
        Self {
            pool,
            bytes,
            offset: usize::from(descriptor.offset),
            len: usize::from(descriptor.len),
            slot: descriptor.slot,
            ingress_port: descriptor.port,
            flags: descriptor.flags,
        }
    }

    /// What is known of the IPv4 header's checksum as the packet was received.
    #[must_use]
    pub fn ip_checksum(&self) -> Checksum {
        self.checksum(RX_IP_CHECKSUM_GOOD, RX_IP_CHECKSUM_BAD)
    }

    /// What is known of the TCP or UDP checksum as the packet was received: if it is [`Checksum::Good`], a function need not
    /// compute it to check it.
    #[must_use]
    pub fn l4_checksum(&self) -> Checksum {
        self.checksum(RX_L4_CHECKSUM_GOOD, RX_L4_CHECKSUM_BAD)
    }

    fn checksum(&self, good: u32, bad: u32) -> Checksum {
        match self.flags & (good | bad) {
            found if found == good => Checksum::Good,
            found if found == bad => Checksum::Bad,
            _ => Checksum::Unknown,
        }
    }

    /// The frame.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.offset..self.offset + self.len]
    }

    /// The frame, to be changed in place.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.offset..self.offset + self.len]
    }

    /// The frame's length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Index of the node's port that the packet came in by.
    #[must_use]
    pub fn ingress_port(&self) -> u16 {
        self.ingress_port
    }

    /// Bytes free before the frame: what [`Packet::prepend`] can give.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.offset
    }

    /// Bytes free after the frame: what [`Packet::set_len`] can add.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        SLOT_SIZE - self.offset - self.len
    }

    /// Cuts the frame's end off, or makes it longer by zeroes.
    ///
    /// # Errors
    ///
    /// The slot has no room for so many bytes; the packet is as it was.
    pub fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        let available = SLOT_SIZE - self.offset;
        if len > available {
            return Err(NoRoom { wanted: len, available });
        }
        if let Some(grown) = self.bytes.get_mut(self.offset + self.len..self.offset + len) {
            grown.fill(0);
        }
        self.len = len;
        Ok(())
    }

    /// Makes the frame longer by `count` zeroes in front, for a header to be written there.
    ///
    /// # Errors
    ///
    /// The slot has less [headroom](Packet::headroom); the packet is as it was.
    pub fn prepend(&mut self, count: usize) -> Result<(), NoRoom> {
        let available = self.headroom();
        let offset = available.checked_sub(count).ok_or(NoRoom { wanted: count, available })?;
        self.bytes[offset..self.offset].fill(0);
        self.offset = offset;
        self.len += count;
        Ok(())
    }

    /// Cuts `count` bytes off the frame's front.
    ///
    /// # Errors
    ///
    /// The frame is shorter than that; the packet is as it was.
    pub fn trim_front(&mut self, count: usize) -> Result<(), NoRoom> {
        self.len = self.len.checked_sub(count).ok_or(NoRoom { wanted: count, available: self.len })?;
        self.offset += count;
        Ok(())
    }

    /// Sends the packet on by the stage's first output: to the next stage of the chain, or out of the node after the last,
    /// unless the chain says otherwise.
    #[inline]
    pub fn send(self) {
        self.finish(PORT_NEXT);
    }

    /// Sends the packet on by one of the stage's outputs, as the chain's manifest lists them: `outputs = ["fast", "slow"]`
    /// makes `fast` output 0, which [`Packet::send`] uses, and `slow` output 1.
    ///
    /// An output that the chain does not give this stage is a fault of the function's: the node ends the instance for
    /// it, and says so. A function that is to run in chains of many shapes learns its outputs from its configuration.
    ///
    /// ```
    /// # use pinion_sdk::{Batch, Function, InitError, testing::{Harness, Outcome}};
    /// # struct Sort;
    /// # impl Function for Sort {
    /// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
    /// fn handle(&mut self, batch: Batch<'_>) {
    ///     for packet in batch {
    ///         // Short frames take the fast path, output 0; all others the slow one, output 1.
    ///         let output = if packet.len() <= 128 { 0 } else { 1 };
    ///         packet.send_to(output);
    ///     }
    /// }
    /// # }
    /// # let verdicts = Harness::<Sort>::new(b"").unwrap().deliver(&[&[0; 64], &[0; 1500]]);
    /// # assert_eq!(verdicts[0].outcome, Outcome::Sent);
    /// # assert_eq!(verdicts[1].outcome, Outcome::SentTo(1));
    /// ```
    #[inline]
    pub fn send_to(self, output: u16) {
        // The numbers beyond mean something else.
        self.finish(output.min(OUTPUT_LAST));
    }

    /// Sends the packet back out of the port it came in by, past the rest of the chain; in a chain with a way back, through the
    /// stages between here and that port. Turning the addresses round is the function's task.
    #[inline]
    pub fn reply(self) {
        self.finish(PORT_REPLY);
    }

    /// Keeps the packet for later, as it is: the function may hold it in its own state, and [takes it up](Shelf::take) in a later batch, or when
    /// its [deadline](crate::Function::deadline_ns) has passed. Its slot stays taken meanwhile: a function with all of its slots
    /// in its hands gets no more packets.
    ///
    /// The first one in an instance allocates.
    pub fn hold(self) -> Held {
        let descriptor = Descriptor { port: self.ingress_port, flags: self.flags, ..self.descriptor(PORT_DROP) };
        let held = Held::new(self.pool.kept(), descriptor);
        core::mem::forget(self);
        held
    }

    /// Another packet of the same bytes, and of the same port, in a slot of the function's [own](crate::Function::OWN_SLOTS); none if all of them are in
    /// use.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        let mut clone = self.pool.make()?;
        (clone.offset, clone.len) = (self.offset, self.len);
        (clone.ingress_port, clone.flags) = (self.ingress_port, self.flags);
        clone.data_mut().copy_from_slice(self.data());
        Some(clone)
    }

    /// Drops the packet, as going out of scope does; for saying so.
    #[inline]
    pub fn discard(self) {
        drop(self);
    }

    #[inline]
    fn finish(self, port: u16) {
        self.give_back(port);
        core::mem::forget(self);
    }

    /// Called once per packet: the slot is the node's from here on.
    #[inline]
    fn give_back(&self, port: u16) {
        self.pool.transmit(self.descriptor(port));
    }

    #[inline]
    fn descriptor(&self, port: u16) -> Descriptor {
        // Both numbers are at most `SLOT_SIZE`, so they fit.
        Descriptor { slot: self.slot, offset: self.offset as u16, len: self.len as u16, port, flags: 0, reserved: 0 }
    }
}

impl Drop for Packet<'_> {
    fn drop(&mut self) {
        self.give_back(PORT_DROP);
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("slot", &self.slot)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("ingress_port", &self.ingress_port)
            .finish_non_exhaustive()
    }
}

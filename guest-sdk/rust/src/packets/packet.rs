//! A [`Packet`]: a view of one slot, and the verdict on it.
//!
//! No code here touches raw memory. Nothing here allocates, except the first [`Packet::hold`], or blocks. Every operation takes constant
//! time, except copies that a function asks for. A packet is never lost: whatever happens to it, its slot ends up in exactly one transmit
//! descriptor.

use core::fmt;

use pinion_abi::{
    Descriptor, OUTPUTS_MAX, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_BACKWARD, RX_FORWARD, RX_IP_CHECKSUM_BAD,
    RX_IP_CHECKSUM_GOOD, RX_L4_CHECKSUM_BAD, RX_L4_CHECKSUM_GOOD, RX_REPLY, TX_CHECKSUM,
};

use super::held::Held;
use super::pool::{Pool, SLOT_SIZE, TakenSlot};
use super::way::Way;

/// The last number that counts as an output; no chain has so many.
const OUTPUT_LAST: u16 = PORT_REPLY - 1;
const _: () = assert!(OUTPUT_LAST >= OUTPUTS_MAX && OUTPUT_LAST < PORT_DROP);

/// A slot has too few bytes left for a change of a packet's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Requested bytes.
    pub wanted: usize,
    /// Available bytes.
    pub available: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes asked for where the packet has {}", self.wanted, self.available)
    }
}

impl std::error::Error for NoRoom {}

/// One frame, from its Ethernet header on, in a slot of its own. It is dropped unless it is [sent](Packet::send), possibly [by another
/// output](Packet::send_to), [replied](Packet::reply) or [held](Packet::hold).
///
/// ```
/// # use pinion_sdk::{Batch, Function, InitError, testing::Harness};
/// # struct Tag;
/// # impl Function for Tag {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
/// fn handle(&mut self, batch: Batch<'_>) {
///     for mut packet in batch {
///         // Insert a VLAN tag after the addresses: extend the front by four bytes, and move the addresses there.
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
    way: Way,
    /// As received, and those to be sent with.
    flags: u16,
    /// The lowest bits of microseconds.
    arrived_us: u32,
}

/// The result of a check of a checksum, by the receiving device or by the function itself ([`Headers::l4_checksum`], [`Ip::checksum`]).
///
/// [`Headers::l4_checksum`]: crate::headers::Headers::l4_checksum
/// [`Ip::checksum`]: crate::headers::Ip::checksum
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is correct.
    Good,
    /// The checksum is wrong.
    Bad,
    /// The device does not report it, or the packet was sent by the chain's previous stage. Or there is no checksum that could be verified.
    Unknown,
}

/// The direction of a packet through a chain with a way back (`reverse` in its manifest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first stage to the last.
    Forward,
    /// From the last stage to the first: packets that came in by a port of `reverse.from`, and replies to packets that go forwards.
    Backward,
}

/// One side of a function that separates two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The network that the function protects.
    Inside,
    /// All other networks.
    Outside,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(pool: &'a Pool<'a>, TakenSlot { bytes, descriptor }: TakenSlot<'a>) -> Self {
        Self {
            pool,
            bytes,
            offset: usize::from(descriptor.offset),
            len: usize::from(descriptor.len),
            slot: descriptor.slot,
            way: Way { number: descriptor.way, port: descriptor.port },
            flags: descriptor.flags,
            arrived_us: descriptor.arrived,
        }
    }

    /// Makes an empty packet that goes this way, in one of the function's own slots. `None` if all of them are in use.
    pub(crate) fn made(pool: &'a Pool<'a>, way: Way) -> Option<Self> {
        Some(Self::new(pool, pool.make(way)?))
    }

    /// Returns all bytes of its slot.
    #[cfg(feature = "net")]
    pub(crate) fn slot_bytes(&mut self) -> &mut [u8; SLOT_SIZE] {
        self.bytes
    }

    /// Moves the frame's ends within the slot, and sets the flags to send it with. The bytes stay as they are.
    ///
    /// # Errors
    ///
    /// The slot does not reach that far; the packet is unchanged.
    #[cfg(feature = "net")]
    pub(crate) fn set_place(&mut self, offset: usize, len: usize, flags: u16) -> Result<(), NoRoom> {
        let available = SLOT_SIZE.saturating_sub(offset);
        if len > available {
            return Err(NoRoom { wanted: len, available });
        }
        (self.offset, self.len, self.flags) = (offset, len, flags);
        Ok(())
    }

    /// Returns the number of its slot.
    #[cfg(feature = "net")]
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns what the device reported on the IPv4 header's checksum when the packet was received.
    #[must_use]
    pub fn ip_checksum(&self) -> Checksum {
        self.checksum(RX_IP_CHECKSUM_GOOD, RX_IP_CHECKSUM_BAD)
    }

    /// Returns what the device reported on the TCP or UDP checksum when the packet was received. If it is [`Checksum::Good`], a function
    /// need not compute it to check it.
    #[must_use]
    pub fn l4_checksum(&self) -> Checksum {
        self.checksum(RX_L4_CHECKSUM_GOOD, RX_L4_CHECKSUM_BAD)
    }

    fn checksum(&self, good: u16, bad: u16) -> Checksum {
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

    /// Returns the frame, to be changed in place.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.offset..self.offset + self.len]
    }

    /// Returns the frame's length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index of the packet's ingress port. A reply of a later stage has the port of the packet that it replies to: in a chain
    /// with a way back, [`Packet::direction`] says which direction a packet comes from.
    #[must_use]
    pub fn ingress_port(&self) -> u16 {
        self.way.port
    }

    /// Returns the way by which the packet came, for packets that the function [makes](crate::Slots::make). Of a packet that it has made, the
    /// way that it was given.
    #[inline]
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Returns when the packet came into the chain: the lowest 32 bits of the microseconds of [`clock::now_ns`](crate::clock::now_ns()), in
    /// the same steps as that clock. All stages are told the same time. It wraps around after 71 minutes, so compare such times by their
    /// difference ([`u32::wrapping_sub`]), or see [`Packet::arrived_ns`]. Of a packet that the function has made, 0.
    ///
    /// The node notes the time when it moves the packet to the first stage. A packet that then waits for its function for more than 8 s may
    /// seem to have come later.
    #[inline]
    #[must_use]
    pub fn arrived_us(&self) -> u32 {
        self.arrived_us
    }

    /// Returns when the packet came into the chain, in nanoseconds of [`clock::now_ns`](crate::clock::now_ns()), by the present time
    /// `now_ns` of that clock. The packet may be [held](Packet::hold) for up to 71 minutes.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, advance_clock_ns};
    /// use pinion_sdk::{InitError, Packet, PacketFunction, clock};
    ///
    /// /// Logs how long packets waited.
    /// struct Waits;
    ///
    /// impl PacketFunction for Waits {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, packet: Packet<'_>) {
    ///         let now_ns = clock::now_ns();
    ///         pinion_sdk::info!("waited for {} ns", now_ns - packet.arrived_ns(now_ns));
    ///         packet.send();
    ///     }
    /// }
    ///
    /// advance_clock_ns(5_000_000_000_000);
    /// let mut harness = Harness::<Waits>::new(b"").unwrap();
    /// harness.deliver_late(3_000, &[&[0; 60]]);
    /// assert_eq!(pinion_sdk::testing::take_log()[0].1, "waited for 3000 ns");
    /// ```
    #[must_use]
    pub fn arrived_ns(&self, now_ns: u64) -> u64 {
        let now_us = now_ns / 1_000;
        let age_us = (now_us as u32).wrapping_sub(self.arrived_us);
        now_us.saturating_sub(age_us.into()) * 1_000
    }

    /// Returns the packet's direction through its chain, by the node's own record. `None` if the chain has no way back, if the packet is a
    /// message, or if the function has made it.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, Outcome};
    /// use pinion_sdk::{Direction, InitError, Packet, PacketFunction};
    ///
    /// /// Passes packets in one direction only.
    /// struct OneWay;
    ///
    /// impl PacketFunction for OneWay {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, packet: Packet<'_>) {
    ///         if packet.direction() == Some(Direction::Forward) {
    ///             packet.send();
    ///         }
    ///     }
    /// }
    ///
    /// let mut harness = Harness::<OneWay>::new(b"").unwrap();
    /// let mut pass = |direction| harness.deliver_direction(direction, 0, &[&[0; 60]]).remove(0).outcome;
    /// assert_eq!([Direction::Forward, Direction::Backward].map(&mut pass), [Outcome::Sent, Outcome::Dropped]);
    /// ```
    #[must_use]
    pub fn direction(&self) -> Option<Direction> {
        match self.flags & (RX_FORWARD | RX_BACKWARD) {
            RX_FORWARD => Some(Direction::Forward),
            RX_BACKWARD => Some(Direction::Backward),
            _ => None,
        }
    }

    /// Returns whether the packet is a reply, in a chain with a way back: another stage made it, or sent it back, as a
    /// [reply](Packet::reply) to a packet that came in by this port.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & RX_REPLY != 0
    }

    /// Returns the side that the packet comes from, independent of its source address. In a chain with a way back, packets that go forwards
    /// come from inside. In other chains, packets that came in by one of `inside_ports` do. `None` if neither is known: the chain has no
    /// way back, and no port is given.
    ///
    /// ```
    /// use pinion_sdk::testing::Harness;
    /// use pinion_sdk::{InitError, Packet, PacketFunction, Side};
    ///
    /// /// Passes packets that come in by the node's second port.
    /// struct OutOnly;
    ///
    /// impl PacketFunction for OutOnly {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, packet: Packet<'_>) {
    ///         if packet.side(&[1]) == Some(Side::Inside) {
    ///             packet.send();
    ///         }
    ///     }
    /// }
    ///
    /// # use pinion_sdk::testing::Outcome;
    /// let mut harness = Harness::<OutOnly>::new(b"").unwrap();
    /// let outcomes = [0, 1].map(|port| harness.deliver_from(port, &[&[0; 60]])[0].outcome);
    /// assert_eq!(outcomes, [Outcome::Dropped, Outcome::Sent]);
    /// ```
    #[must_use]
    pub fn side(&self, inside_ports: &[u16]) -> Option<Side> {
        let of = |is_inside| if is_inside { Side::Inside } else { Side::Outside };
        match self.direction() {
            Some(direction) => Some(of(direction == Direction::Forward)),
            None if inside_ports.is_empty() => None,
            None => Some(of(inside_ports.contains(&self.way.port))),
        }
    }

    /// Returns the bytes free before the frame, which [`Packet::prepend`] can use.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.offset
    }

    /// Returns the bytes free after the frame, which [`Packet::set_len`] can use.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        SLOT_SIZE - self.offset - self.len
    }

    /// Truncates the frame, or extends it by zeroes.
    ///
    /// # Errors
    ///
    /// The slot has no room for so many bytes; the packet is unchanged.
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

    /// Extends the frame by `count` zeroes at its front, where the caller can write a header.
    ///
    /// # Errors
    ///
    /// The slot has less [headroom](Packet::headroom); the packet is unchanged.
    pub fn prepend(&mut self, count: usize) -> Result<(), NoRoom> {
        let available = self.headroom();
        let offset = available.checked_sub(count).ok_or(NoRoom { wanted: count, available })?;
        self.bytes[offset..self.offset].fill(0);
        self.offset = offset;
        self.len += count;
        Ok(())
    }

    /// Removes `count` bytes from the frame's front.
    ///
    /// # Errors
    ///
    /// The frame is shorter than that; the packet is unchanged.
    pub fn trim_front(&mut self, count: usize) -> Result<(), NoRoom> {
        self.len = self.len.checked_sub(count).ok_or(NoRoom { wanted: count, available: self.len })?;
        self.offset += count;
        Ok(())
    }

    /// Lets the node compute the packet's checksums when it is sent: of the IPv4 header, and of TCP, UDP, ICMP or ICMPv6. What these fields
    /// contain does not matter then, and a function saves a pass over the packet. VLAN tags, IP options and extension headers are skipped. Of
    /// a fragment only the IPv4 header's checksum is computed, and a frame that is no whole packet is sent as it is.
    ///
    /// After a change of single fields, [`Headers`](crate::headers::Headers)' own methods are as good: they update the checksums in a few
    /// steps. To have the checksums in the function itself, use [`recompute_checksums`](crate::headers::Headers::recompute_checksums).
    ///
    /// ```
    /// use pinion_sdk::testing::Harness;
    /// use pinion_sdk::{InitError, Packet, PacketFunction};
    ///
    /// /// Decrements the TTL, and leaves the checksum to the node.
    /// struct Hop;
    ///
    /// impl PacketFunction for Hop {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, mut packet: Packet<'_>) {
    ///         packet.data_mut()[22] -= 1;
    ///         packet.complete_checksums();
    ///         packet.send();
    ///     }
    /// }
    ///
    /// let ip = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// let frame = [&[2; 12][..], &[8, 0], &ip].concat();
    /// let sent = Harness::<Hop>::new(b"").unwrap().deliver(&[&frame]).remove(0);
    /// assert!(sent.completes_checksums, "a node computes them, and this harness does not");
    /// ```
    pub fn complete_checksums(&mut self) {
        self.flags |= TX_CHECKSUM;
    }

    /// Sends the packet by the stage's first output: to the next stage of the chain, or out of the node after the last, unless the chain's
    /// manifest says otherwise.
    #[inline]
    pub fn send(self) {
        self.finish(PORT_NEXT);
    }

    /// Sends the packet by one of the stage's outputs, numbered as the chain's manifest lists them: `outputs = ["fast", "slow"]` makes
    /// `fast` output 0, which [`Packet::send`] uses, and `slow` output 1.
    ///
    /// If the chain does not give the stage this output, the function is at fault: the node ends the instance and reports the reason. A
    /// function for chains of different shapes should read its outputs from its configuration.
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
        // Larger numbers have other meanings.
        self.finish(output.min(OUTPUT_LAST));
    }

    /// Sends the packet back out of its ingress port, past the rest of the chain; in a chain with a way back, through the stages between
    /// this stage and that port. Swapping the addresses is left to the function.
    #[inline]
    pub fn reply(self) {
        self.finish(PORT_REPLY);
    }

    /// Keeps the packet for later, unchanged. The function stores the result in its own state, and [takes the packet up](crate::Slots::take) in a
    /// later batch, or when its [deadline](crate::Function::deadline_ns) has passed. The slot stays in use meanwhile: a function that holds
    /// all of its slots gets no more packets.
    ///
    /// The first call in an instance allocates.
    pub fn hold(self) -> Held {
        let descriptor = Descriptor { flags: self.flags, arrived: self.arrived_us, ..self.descriptor(self.way.port) };
        let held = Held::new(self.pool.kept(), descriptor);
        core::mem::forget(self);
        held
    }

    /// Copies the packet, with the same way, into one of the function's [own](crate::Function::OWN_SLOTS) slots. `None` if all of them are
    /// in use.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        let mut clone = Self::made(self.pool, self.way)?;
        (clone.offset, clone.len) = (self.offset, self.len);
        (clone.flags, clone.arrived_us) = (self.flags, self.arrived_us);
        clone.data_mut().copy_from_slice(self.data());
        Some(clone)
    }

    /// Drops the packet, as going out of scope does, but explicitly.
    #[inline]
    pub fn discard(self) {
        drop(self);
    }

    #[inline]
    fn finish(self, port: u16) {
        self.give_back(port);
        core::mem::forget(self);
    }

    /// Called once per packet: from here on the node owns the slot.
    #[inline]
    fn give_back(&self, port: u16) {
        self.pool.transmit(self.descriptor(port));
    }

    #[inline]
    fn descriptor(&self, port: u16) -> Descriptor {
        // Both numbers are at most `SLOT_SIZE`, so they fit.
        let (offset, len) = (self.offset as u16, self.len as u16);
        Descriptor {
            slot: self.slot,
            offset,
            len,
            port,
            flags: self.flags & TX_CHECKSUM,
            way: self.way.number,
            arrived: 0,
        }
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
            .field("ingress_port", &self.way.port)
            .finish_non_exhaustive()
    }
}

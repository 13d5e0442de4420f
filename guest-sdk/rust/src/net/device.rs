//! The pool as a smoltcp device for IP packets. Each packet that is sent becomes a frame in one of the function's own slots.

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::MTU_BYTES;
use super::link::Link;
use super::sequence::Sent;
use crate::{Packet, Slots};

/// The device of one connection, for the duration of one poll.
pub(super) struct Wire<'a> {
    /// `None` if all sent packets are discarded.
    slots: Option<Slots<'a>>,
    link: Link,
    mtu: u16,
    sent: &'a mut Sent,
    /// The received packet, until it is taken.
    received: Option<&'a [u8]>,
}

impl<'a> Wire<'a> {
    /// Makes a device without a received packet; `sent` records what is sent.
    pub(super) fn new(slots: Option<Slots<'a>>, link: Link, mtu: u16, sent: &'a mut Sent) -> Self {
        Self { slots, link, mtu, sent, received: None }
    }

    /// Makes a device with a received IP packet.
    pub(super) fn with(slots: Option<Slots<'a>>, link: Link, mtu: u16, sent: &'a mut Sent, received: &'a [u8]) -> Self {
        Self { slots, link, mtu, sent, received: Some(received) }
    }
}

/// Returns what smoltcp is to do about checksums.
pub(super) fn checksums() -> ChecksumCapabilities {
    let mut checksum = ChecksumCapabilities::default();
    // Checksums of received packets were verified before.
    checksum.ipv4 = Checksum::Tx;
    checksum.tcp = Checksum::Tx;
    checksum
}

impl Device for Wire<'_> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Answer<'t>
    where
        Self: 't;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Answer<'_>)> {
        let received = self.received.take()?;
        let packet = self.slots.and_then(|slots| slots.make(&[], self.link.way()));
        Some((Received(received), Answer { packet, link: &self.link, sent: self.sent }))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Answer<'_>> {
        let packet = match self.slots {
            Some(slots) => Some(slots.make(&[], self.link.way())?),
            None => None,
        };
        Some(Answer { packet, link: &self.link, sent: self.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu.into();
        capabilities.checksum = checksums();
        capabilities
    }
}

/// A received IP packet.
pub(super) struct Received<'t>(&'t [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Room for a packet to the peer. `None` if the packet is to be lost, as a network may lose it.
pub(super) struct Answer<'t> {
    packet: Option<Packet<'t>>,
    link: &'t Link,
    sent: &'t mut Sent,
}

impl TxToken for Answer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let header = self.link.bytes();
        let Some(mut packet) = self.packet.filter(|_| len <= MTU_BYTES) else {
            let mut lost = vec![0; len];
            let result = write(&mut lost);
            self.sent.note(&lost);
            return result;
        };
        packet.set_len(header.len() + len).expect("a slot is longer than a frame of the MTU");
        let (start, ip) = packet.data_mut().split_at_mut(header.len());
        start.copy_from_slice(header);
        let result = write(ip);
        self.sent.note(ip);
        self.link.send(packet);
        result
    }
}

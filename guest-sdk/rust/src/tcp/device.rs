//! The pool as smoltcp sees it: a device for IP packets, each of which becomes a frame in a slot of the function's own.

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::MTU_BYTES;
use super::link::Link;
use crate::{Packet, Shelf};

/// What one connection's packets pass, for the time of one look at it.
pub(super) struct Wire<'a> {
    shelf: Shelf<'a>,
    link: Link,
    /// What has come, once.
    received: Option<&'a [u8]>,
}

impl<'a> Wire<'a> {
    pub(super) fn new(shelf: Shelf<'a>, link: Link) -> Self {
        Self { shelf, link, received: None }
    }

    /// The same with an IP packet that has come.
    pub(super) fn with(shelf: Shelf<'a>, link: Link, received: &'a [u8]) -> Self {
        Self { shelf, link, received: Some(received) }
    }
}

/// What smoltcp is told of the device.
pub(super) fn capabilities() -> DeviceCapabilities {
    let mut checksum = ChecksumCapabilities::default();
    // Those of what is received were looked at before.
    checksum.ipv4 = Checksum::Tx;
    checksum.tcp = Checksum::Tx;
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = MTU_BYTES;
    capabilities.checksum = checksum;
    capabilities
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
        Some((Received(received), Answer { packet: self.shelf.make(&[]), link: &self.link }))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Answer<'_>> {
        let packet = self.shelf.make(&[])?;
        Some(Answer { packet: Some(packet), link: &self.link })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// An IP packet that has come.
pub(super) struct Received<'t>(&'t [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Room for a packet to the peer; none where it may get lost, as the network may lose it.
pub(super) struct Answer<'t> {
    packet: Option<Packet<'t>>,
    link: &'t Link,
}

impl TxToken for Answer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let header = self.link.bytes();
        let Some(mut packet) = self.packet.filter(|_| len <= MTU_BYTES) else {
            return write(&mut vec![0; len]);
        };
        packet.set_len(header.len() + len).expect("a slot is longer than a frame of the MTU");
        let (start, ip) = packet.data_mut().split_at_mut(header.len());
        start.copy_from_slice(header);
        let result = write(ip);
        packet.reply();
        result
    }
}

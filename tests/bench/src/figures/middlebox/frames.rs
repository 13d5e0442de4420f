//! The frames of many clients. Each contains its client and its number, so that any change, loss or reordering is detected.
//!
//! ```text
//!   Ethernet 14 | IPv4 20, from the client's address | UDP 8 | number 8 | sent at 8 | mark 4 | 2
//! ```
//!
//! 64 bytes, as short as Ethernet has them. All but number, time and mark are the same in all frames of a client. The mark depends on all
//! three and on the client, so that a bit error cannot turn one frame into another. Nothing is allocated after a client was made.

use std::net::Ipv4Addr;

use crate::clients::checksum::internet_checksum;

/// A frame's length, without the checksum at its end.
pub(crate) const FRAME_LEN: usize = 64;

const HEADERS: usize = 14 + 20 + 8;
const NUMBER: std::ops::Range<usize> = HEADERS..HEADERS + 8;
const SENT: std::ops::Range<usize> = HEADERS + 8..HEADERS + 16;
const MARK: std::ops::Range<usize> = HEADERS + 16..HEADERS + 20;
const SOURCE: std::ops::Range<usize> = 26..30;

/// The first client's address; the others' follow.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// The address that all clients send to.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The port of the server that all send to.
pub(crate) const SERVER_PORT: u16 = 4789;

/// The addresses of the frames on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The sender's MAC address.
    pub(crate) source: [u8; 6],
    /// The MAC address of the middlebox, or of the receiver.
    pub(crate) destination: [u8; 6],
}

/// A client's next frame, and its counts of frames sent and received.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    headers: [u8; HEADERS],
    /// How many frames it has sent.
    sent: u64,
    /// When it sent the last one.
    sent_ns: u64,
    /// The number of the next frame to arrive.
    awaited: u64,
}

/// Returns client `index`'s address.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_CLIENT.to_bits() + index as u32)
}

/// What is wrong with a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no client's frame, or not as it was sent.
    Altered,
    /// It is a duplicate, or came after a frame that was sent later.
    OutOfOrder,
}

/// A frame that arrived as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Its client.
    pub(crate) client: usize,
    /// When it was sent.
    pub(crate) sent_ns: u64,
    /// Its number among the client's frames.
    pub(crate) number: u64,
}

impl Client {
    fn new(index: usize, link: Link) -> Self {
        let mut headers = [0; HEADERS];
        headers[..6].copy_from_slice(&link.destination);
        headers[6..12].copy_from_slice(&link.source);
        headers[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip_len = (FRAME_LEN - 14) as u16;
        headers[14..24].copy_from_slice(&[0x45, 0, 0, ip_len as u8, 0, 0, 0x40, 0, 64, 17]);
        headers[SOURCE].copy_from_slice(&address(index).octets());
        headers[30..34].copy_from_slice(&SERVER.octets());
        let sum = internet_checksum(&headers[14..34]);
        headers[24..26].copy_from_slice(&sum.to_be_bytes());
        headers[34..36].copy_from_slice(&4000_u16.to_be_bytes());
        headers[36..38].copy_from_slice(&SERVER_PORT.to_be_bytes());
        headers[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
        Self { headers, sent: 0, sent_ns: 0, awaited: 0 }
    }
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    all: Vec<Client>,
}

impl Clients {
    /// Makes so many clients, none of which has sent anything.
    pub(crate) fn new(count: usize, link: Link) -> Self {
        Self { all: (0..count).map(|index| Client::new(index, link)).collect() }
    }

    /// Writes the next frame of a client.
    #[inline]
    pub(crate) fn write(&self, client: usize, sent_ns: u64, frame: &mut [u8]) {
        let Client { headers, sent: number, .. } = &self.all[client];
        frame[..HEADERS].copy_from_slice(headers);
        frame[NUMBER].copy_from_slice(&number.to_le_bytes());
        frame[SENT].copy_from_slice(&sent_ns.to_le_bytes());
        frame[MARK].copy_from_slice(&mark(client, *number, sent_ns).to_le_bytes());
        frame[MARK.end..FRAME_LEN].fill(0);
    }

    /// Records that the client's next frame was sent.
    #[inline]
    pub(crate) fn sent(&mut self, client: usize, sent_ns: u64) {
        let client = &mut self.all[client];
        client.sent += 1;
        client.sent_ns = sent_ns;
    }

    /// Returns those of the first `count` clients whose last frame was sent before that time and did not arrive.
    pub(crate) fn unanswered(&self, count: usize, before_ns: u64) -> impl Iterator<Item = usize> {
        let is_unanswered = move |client: &Client| client.awaited < client.sent && client.sent_ns < before_ns;
        self.all[..count].iter().enumerate().filter(move |(_, client)| is_unanswered(client)).map(|(index, _)| index)
    }

    /// Reads a received frame without recording it.
    ///
    /// # Errors
    /// It is not as any client sends it.
    #[inline]
    pub(crate) fn read(&self, frame: &[u8]) -> Result<Arrival, Fault> {
        if frame.len() != FRAME_LEN {
            return Err(Fault::Altered);
        }
        let source = u32::from_be_bytes(frame[SOURCE].try_into().unwrap_or_default());
        let client = source.wrapping_sub(FIRST_CLIENT.to_bits()) as usize;
        let number = u64::from_le_bytes(frame[NUMBER].try_into().unwrap_or_default());
        let sent_ns = u64::from_le_bytes(frame[SENT].try_into().unwrap_or_default());
        let is_whole = self.all.get(client).is_some_and(|client| frame[..HEADERS] == client.headers)
            && frame[MARK] == mark(client, number, sent_ns).to_le_bytes()
            && frame[MARK.end..] == [0, 0];
        if is_whole { Ok(Arrival { client, sent_ns, number }) } else { Err(Fault::Altered) }
    }

    /// Reads a received frame and records it; frames that it overtook count as lost.
    ///
    /// # Errors
    /// It is not as any client sends it, or it is neither the client's next frame nor a later one.
    #[inline]
    pub(crate) fn receive(&mut self, frame: &[u8]) -> Result<Arrival, Fault> {
        let arrival = self.read(frame)?;
        let Client { sent, awaited, .. } = &mut self.all[arrival.client];
        if !(*awaited..*sent).contains(&arrival.number) {
            return Err(Fault::OutOfOrder);
        }
        *awaited = arrival.number + 1;
        Ok(arrival)
    }

    /// Forgets the frames that are still in flight.
    pub(crate) fn settle(&mut self) {
        self.all.iter_mut().for_each(|client| client.awaited = client.sent);
    }

    /// Returns the number of clients.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}

/// Returns a value that depends on all arguments; two different sets have the same one with a chance of one in four billion.
#[inline]
fn mark(client: usize, number: u64, sent_ns: u64) -> u32 {
    let mixed = (client as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ sent_ns.wrapping_mul(0x1656_67b1_9e37_79f9);
    (mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2] };

    fn send(clients: &mut Clients, client: usize, sent_ns: u64) -> [u8; FRAME_LEN] {
        let mut frame = [0xee; FRAME_LEN];
        clients.write(client, sent_ns, &mut frame);
        clients.sent(client, 0);
        frame
    }

    #[test]
    fn an_unchanged_frame_is_recognised() {
        let mut clients = Clients::new(300, LINK);
        let frames = [send(&mut clients, 7, 11), send(&mut clients, 299, 12), send(&mut clients, 7, 13)];
        let arrivals = frames.map(|frame| clients.receive(&frame).unwrap());
        let expected = [(7, 11, 0), (299, 12, 0), (7, 13, 1)];
        assert_eq!(arrivals, expected.map(|(client, sent_ns, number)| Arrival { client, sent_ns, number }));
    }

    #[test]
    fn a_frame_has_a_right_header_checksum_and_lengths() {
        let frame = send(&mut Clients::new(2, LINK), 1, 0);
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        assert_eq!(u16::from_be_bytes([frame[16], frame[17]]) as usize, FRAME_LEN - 14);
        assert_eq!(u16::from_be_bytes([frame[38], frame[39]]) as usize, FRAME_LEN - 34);
        assert_eq!(frame[26..30], [10, 100, 0, 2]);
    }

    #[test]
    fn a_frame_of_which_any_bit_changed_is_altered() {
        let mut clients = Clients::new(4, LINK);
        let frame = send(&mut clients, 2, 123_456);
        for bit in 0..FRAME_LEN * 8 {
            let mut altered = frame;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(clients.receive(&altered), Err(Fault::Altered), "bit {bit}");
        }
        assert_eq!(clients.receive(&frame[..FRAME_LEN - 1]), Err(Fault::Altered));
        assert!(clients.receive(&frame).is_ok());
    }

    #[test]
    fn a_frame_that_comes_twice_or_too_late_or_was_never_sent_is_out_of_order() {
        let mut clients = Clients::new(1, LINK);
        let (first, second) = (send(&mut clients, 0, 1), send(&mut clients, 0, 2));
        assert!(clients.receive(&second).is_ok());
        assert_eq!(clients.receive(&second), Err(Fault::OutOfOrder));
        assert_eq!(clients.receive(&first), Err(Fault::OutOfOrder));
        let mut unsent = [0; FRAME_LEN];
        clients.write(0, 3, &mut unsent);
        assert_eq!(clients.receive(&unsent), Err(Fault::OutOfOrder));
    }
}

//! The frames of many clients: each says whose it is and its number, so that whatever happens to one is noticed.
//!
//! ```text
//!   Ethernet 14 | IPv4 20, from the client's address | UDP 8 | number 8 | sent at 8 | mark 4 | 2
//! ```
//!
//! 64 bytes, as short as Ethernet has them. All but number, time and mark are the same in all frames of a client; the mark is made of all
//! three and the client, so no frame is another's by a slip of bits. Allocates nothing after a client was made.

use std::net::Ipv4Addr;

use crate::checksum::internet_checksum;

/// A frame's length, without the checksum at its end.
pub(crate) const FRAME_LEN: usize = 64;

const HEADERS: usize = 14 + 20 + 8;
const NUMBER: std::ops::Range<usize> = HEADERS..HEADERS + 8;
const SENT: std::ops::Range<usize> = HEADERS + 8..HEADERS + 16;
const MARK: std::ops::Range<usize> = HEADERS + 16..HEADERS + 20;
const SOURCE: std::ops::Range<usize> = 26..30;

/// The first client's address; the others' follow.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// Whom all send to.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The port of the server that all send to.
pub(crate) const SERVER_PORT: u16 = 4789;

/// Where the frames come from and go to on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The sender's hardware address.
    pub(crate) source: [u8; 6],
    /// That of the middlebox, or of whoever receives.
    pub(crate) destination: [u8; 6],
}

/// What a client sends, and what it has sent and received so far.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    headers: [u8; HEADERS],
    /// How many it has sent.
    sent: u64,
    /// When it sent the last one.
    sent_ns: u64,
    /// The number of the next to come.
    awaited: u64,
}

/// Client `index`'s address.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_CLIENT.to_bits() + index as u32)
}

/// What is wrong with a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is none of any client's, or not as it was sent.
    Altered,
    /// It came before, or behind one that was sent later.
    OutOfOrder,
}

/// A frame that came as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Whose it is.
    pub(crate) client: usize,
    /// When it was sent.
    pub(crate) sent_ns: u64,
    /// Which of the client's it is.
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
    /// So many, none of which has sent anything.
    pub(crate) fn new(count: usize, link: Link) -> Self {
        Self { all: (0..count).map(|index| Client::new(index, link)).collect() }
    }

    /// Writes the frame that a client sends next.
    #[inline]
    pub(crate) fn write(&self, client: usize, sent_ns: u64, frame: &mut [u8]) {
        let Client { headers, sent: number, .. } = &self.all[client];
        frame[..HEADERS].copy_from_slice(headers);
        frame[NUMBER].copy_from_slice(&number.to_le_bytes());
        frame[SENT].copy_from_slice(&sent_ns.to_le_bytes());
        frame[MARK].copy_from_slice(&mark(client, *number, sent_ns).to_le_bytes());
        frame[MARK.end..FRAME_LEN].fill(0);
    }

    /// Notes that the client's next frame is under way.
    #[inline]
    pub(crate) fn sent(&mut self, client: usize, sent_ns: u64) {
        let client = &mut self.all[client];
        client.sent += 1;
        client.sent_ns = sent_ns;
    }

    /// Those of the first `count` whose last frame was sent before that time and did not come.
    pub(crate) fn unanswered(&self, count: usize, before_ns: u64) -> impl Iterator<Item = usize> {
        let is_unanswered = move |client: &Client| client.awaited < client.sent && client.sent_ns < before_ns;
        self.all[..count].iter().enumerate().filter(move |(_, client)| is_unanswered(client)).map(|(index, _)| index)
    }

    /// Reads a frame that came, without taking note of it.
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

    /// Reads a frame that came and takes note of it; those that it overtook are lost.
    ///
    /// # Errors
    /// It is not as any client sends it, or not the client's next or one after that.
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

    /// Forgets what is still under way.
    pub(crate) fn settle(&mut self) {
        self.all.iter_mut().for_each(|client| client.awaited = client.sent);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}

/// Differs if any of these does, but for one chance in four billion.
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
    fn a_frame_that_comes_as_it_was_sent_is_known_again() {
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

//! The frames of memcached's clients over UDP: a client's address is its own, and so are its items.
//!
//! ```text
//!   Ethernet 14 | IPv4 20, from the client's address | UDP 8 | request 2 | 0 | 1 | 0 | a get or a set
//! ```
//!
//! The request's number among its client's is in memcached's header, by its low 16 bits, and comes back with the reply. Nothing is allocated
//! after the clients were made.

use std::net::Ipv4Addr;
use std::ops::Range;

use crate::clients::checksum::internet_checksum;
use crate::figures::memcached::items::{Item, STORED, Texts};
use crate::figures::memcached::mixed;

/// Bytes of a value (EdgeOS, section 5.6).
pub(crate) const VALUE_BYTES: usize = 135;
/// Of a hundred requests so many are sets (EdgeOS, section 5.6).
const SETS_PERCENT: u64 = 5;

const ETHERNET: usize = 14;
const SOURCE: Range<usize> = 26..30;
const DESTINATION: Range<usize> = 30..34;
const UDP: usize = 34;
const CLIENT_PORT_AT: Range<usize> = 36..38;
const REQUEST: Range<usize> = 42..44;
const HEADERS: usize = 50;
/// Longer than any frame here.
pub(crate) const FRAME_BYTES_MAX: usize = 512;

/// The first client's address; the others' follow.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// The network of all clients.
pub(crate) const CLIENTS: &str = "10.100.0.0/16";
/// The port that all clients send from.
const CLIENT_PORT: u16 = 4000;

/// The addresses of frames to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) source: [u8; 6],
    pub(crate) destination: [u8; 6],
    pub(crate) server: Ipv4Addr,
    /// The server's port for the first client.
    pub(crate) port: u16,
    /// What to add to that for each further client.
    pub(crate) port_step: u16,
}

/// What is expected of the system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    /// It is memcached.
    Memcached,
    /// It sends each request back as it is.
    Reflected,
}

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    number: u64,
    /// When it was to be sent.
    due_ns: u64,
    item: u32,
    is_set: bool,
    is_open: bool,
}

#[derive(Debug)]
struct Client {
    headers: [u8; HEADERS],
    /// The number of its next request.
    next: u64,
    open: Box<[Request]>,
}

/// A frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The right reply to a request of this client, which was to be sent then.
    Reply { client: usize, due_ns: u64 },
    /// Something else than what was asked for.
    Wrong,
    /// The reply to a request that has counted as lost, or has been answered.
    Late,
    /// No frame to a client.
    Foreign,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    all: Vec<Client>,
    items: u32,
    replies: Replies,
    texts: Texts,
}

impl Clients {
    /// Makes so many clients with so many items each, none of which has sent anything.
    pub(crate) fn new(count: usize, items: u32, link: Link, replies: Replies) -> Self {
        // As many as a client may have under way: with few clients all numbers, with many those of about a second.
        let open = if count > 8 { 512 } else { 1 << 16 };
        let client = |index| Client {
            headers: headers(index, link),
            next: 0,
            open: vec![Request::default(); open].into_boxed_slice(),
        };
        Self { all: (0..count).map(client).collect(), items, replies, texts: Texts::new(VALUE_BYTES) }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn items(&self) -> u32 {
        self.items
    }

    /// Writes the next request of a client, one of those of the load; returns the frame's length. It counts as sent.
    pub(crate) fn write_next(&mut self, client: usize, due_ns: u64, frame: &mut [u8]) -> usize {
        let drawn = mixed(self.all[client].next << 16 | client as u64);
        let item = ((drawn >> 32) % u64::from(self.items)) as u32;
        self.write(client, item, drawn % 100 < SETS_PERCENT, due_ns, frame)
    }

    /// Writes a set of an item as the next request of a client; returns the frame's length.
    pub(crate) fn write_set(&mut self, client: usize, item: u32, due_ns: u64, frame: &mut [u8]) -> usize {
        self.write(client, item, true, due_ns, frame)
    }

    fn write(&mut self, client: usize, item: u32, is_set: bool, due_ns: u64, frame: &mut [u8]) -> usize {
        let Self { all, texts, .. } = self;
        let Client { headers, next: number, open } = &mut all[client];
        let at = (*number % open.len() as u64) as usize;
        open[at] = Request { number: *number, due_ns, item, is_set, is_open: true };
        frame[..HEADERS].copy_from_slice(headers);
        frame[REQUEST].copy_from_slice(&(*number as u16).to_be_bytes());
        *number += 1;
        let item = Item { client: client as u32, number: item };
        let body = match is_set {
            true => texts.write_set(item, &mut frame[HEADERS..]),
            false => texts.write_get(item, &mut frame[HEADERS..]),
        };
        let len = HEADERS + body;
        finish(&mut frame[..len]);
        len
    }

    /// Takes a client's last request back, which was not sent after all.
    pub(crate) fn take_back(&mut self, client: usize) {
        let Client { next, open, .. } = &mut self.all[client];
        *next -= 1;
        open[(*next % open.len() as u64) as usize].is_open = false;
    }

    /// Judges a frame that came, and closes the request that it answers.
    pub(crate) fn receive(&mut self, frame: &[u8]) -> Arrival {
        let Self { all, replies, texts, .. } = self;
        let Some(body) = frame.get(HEADERS..) else { return Arrival::Foreign };
        let to = u32::from_be_bytes(frame[DESTINATION].try_into().unwrap_or_default());
        let index = to.wrapping_sub(FIRST_CLIENT.to_bits()) as usize;
        let is_udp = frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17;
        let Some(client) = all.get_mut(index).filter(|_| is_udp) else { return Arrival::Foreign };
        if frame[CLIENT_PORT_AT] != CLIENT_PORT.to_be_bytes() {
            return Arrival::Wrong;
        }
        let id = u16::from_be_bytes(frame[REQUEST].try_into().unwrap_or_default());
        let at = usize::from(id) % client.open.len();
        let request = &mut client.open[at];
        if request.number as u16 != id || !request.is_open {
            return Arrival::Late;
        }
        let item = Item { client: index as u32, number: request.item };
        let is_right = frame[REQUEST.end..HEADERS] == [0, 0, 0, 1, 0, 0]
            && match replies {
                Replies::Memcached if request.is_set => body == STORED,
                Replies::Memcached => texts.is_found(item, body),
                Replies::Reflected => true,
            };
        if !is_right {
            return Arrival::Wrong;
        }
        request.is_open = false;
        Arrival::Reply { client: index, due_ns: request.due_ns }
    }

    /// Gives up all requests under way; their replies are late from now on.
    pub(crate) fn forget(&mut self) {
        self.all.iter_mut().flat_map(|client| &mut client.open).for_each(|request| request.is_open = false);
    }
}

fn headers(client: usize, link: Link) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[..6].copy_from_slice(&link.destination);
    headers[6..12].copy_from_slice(&link.source);
    headers[12..14].copy_from_slice(&[0x08, 0x00]);
    headers[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    headers[SOURCE].copy_from_slice(&(FIRST_CLIENT.to_bits() + client as u32).to_be_bytes());
    headers[DESTINATION].copy_from_slice(&link.server.octets());
    headers[UDP..UDP + 2].copy_from_slice(&CLIENT_PORT.to_be_bytes());
    headers[UDP + 2..UDP + 4].copy_from_slice(&(link.port + link.port_step * client as u16).to_be_bytes());
    headers[REQUEST.end..].copy_from_slice(&[0, 0, 0, 1, 0, 0]);
    headers
}

/// Writes lengths and checksums.
fn finish(frame: &mut [u8]) {
    let ip_len = (frame.len() - ETHERNET) as u16;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    let sum = internet_checksum(&frame[ETHERNET..UDP]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let udp_len = ip_len - 20;
    frame[UDP + 4..UDP + 6].copy_from_slice(&udp_len.to_be_bytes());
    // The pseudo-header has the addresses, which lie before UDP's header, the protocol and the length again.
    let rest = 17 + udp_len;
    frame[UDP + 6..UDP + 8].copy_from_slice(&rest.to_be_bytes());
    let sum = match internet_checksum(&frame[SOURCE.start..]) {
        0 => 0xffff,
        sum => sum,
    };
    frame[UDP + 6..UDP + 8].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link =
        Link { source: [2; 6], destination: [4; 6], server: Ipv4Addr::new(10, 77, 0, 2), port: 11_211, port_step: 1 };

    fn clients() -> Clients {
        Clients::new(3, 100, LINK, Replies::Memcached)
    }

    /// Returns the reply to a frame: the other way round, with this text.
    fn reply(frame: &[u8], text: &[u8]) -> Vec<u8> {
        let mut reply = [&frame[..HEADERS], text].concat();
        reply.copy_within(SOURCE, DESTINATION.start);
        reply[CLIENT_PORT_AT].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        reply
    }

    fn sent_set(clients: &mut Clients, client: usize) -> Vec<u8> {
        let mut frame = [0; FRAME_BYTES_MAX];
        let len = clients.write_set(client, 5, 77, &mut frame);
        frame[..len].to_vec()
    }

    #[test]
    fn a_frame_has_right_checksums() {
        let frame = sent_set(&mut clients(), 2);
        assert_eq!(internet_checksum(&frame[ETHERNET..UDP]), 0);
        let mut pseudo = frame[SOURCE.start..DESTINATION.end].to_vec();
        pseudo.extend([0, 17]);
        pseudo.extend(&frame[UDP + 4..UDP + 6]);
        pseudo.extend(&frame[UDP..]);
        assert_eq!(internet_checksum(&pseudo), 0);
        assert_eq!(frame[CLIENT_PORT_AT], 11_213_u16.to_be_bytes());
    }

    #[test]
    fn the_right_reply_closes_its_request() {
        let mut clients = clients();
        let stored = reply(&sent_set(&mut clients, 2), STORED);
        assert_eq!(clients.receive(&stored), Arrival::Reply { client: 2, due_ns: 77 });
        assert_eq!(clients.receive(&stored), Arrival::Late);
    }

    #[test]
    fn another_text_is_wrong_and_another_request_late() {
        let mut clients = clients();
        let frame = sent_set(&mut clients, 0);
        assert_eq!(clients.receive(&reply(&frame, b"NOT_STORED\r\n")), Arrival::Wrong);
        let mut other = reply(&frame, STORED);
        other[REQUEST.start] ^= 1;
        assert_eq!(clients.receive(&other), Arrival::Late);
        assert_eq!(clients.receive(&frame[..30]), Arrival::Foreign);
        assert_eq!(clients.receive(&frame), Arrival::Foreign);
    }

    #[test]
    fn a_request_that_was_taken_back_is_the_next_one() {
        let mut clients = clients();
        let first = sent_set(&mut clients, 1);
        clients.take_back(1);
        assert_eq!(clients.receive(&reply(&first, STORED)), Arrival::Late);
        assert_eq!(sent_set(&mut clients, 1), first);
        assert_eq!(clients.receive(&reply(&first, STORED)), Arrival::Reply { client: 1, due_ns: 77 });
    }

    #[test]
    fn a_request_that_was_given_up_has_no_reply_any_more() {
        let mut clients = clients();
        let stored = reply(&sent_set(&mut clients, 1), STORED);
        clients.forget();
        assert_eq!(clients.receive(&stored), Arrival::Late);
    }

    #[test]
    fn five_of_a_hundred_requests_are_sets() {
        let mut clients = clients();
        let mut frame = [0; FRAME_BYTES_MAX];
        let mut is_set = || {
            clients.write_next(0, 0, &mut frame);
            frame[HEADERS..].starts_with(b"set ")
        };
        let sets = (0..10_000).filter(|_| is_set()).count();
        assert!((400..600).contains(&sets), "{sets}");
    }
}

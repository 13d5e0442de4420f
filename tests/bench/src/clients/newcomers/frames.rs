//! The frames of new clients, and the expected replies.
//!
//! ```text
//!   Ethernet: to the node, from the client's side | IPv4, the client's own address | UDP, with its checksum | the client's number, filling
//! ```

use crate::clients::checksum::internet_checksum;

/// The port's MAC address.
pub(super) const NODE_MAC: [u8; 6] = [0x02, 0x70, 0x69, 0x6e, 0x03, 0x01];
const CLIENTS_MAC: [u8; 6] = [0x02, 0x70, 0x69, 0x6e, 0x03, 0x02];
/// The address that clients send to.
pub(crate) const NODE_ADDRESS: &str = "10.77.0.2";
const NODE_IPV4: [u8; 4] = [10, 77, 0, 2];
/// The UDP port there.
pub(crate) const SERVICE_PORT: u16 = 7;
const CLIENT_PORT: u16 = 10_007;
/// The first client's address, 10.128.0.0. As many addresses of the network follow it.
const FIRST_CLIENT: u32 = 0x0a80_0000;
pub(super) const CLIENTS_MAX: u32 = 1 << 23;

/// With the checksum of a wire it is the shortest frame of Ethernet.
pub(super) const FRAME_BYTES: usize = 60;
const IP: usize = 14;
const SOURCE: usize = IP + 12;
const DESTINATION: usize = IP + 16;
const UDP: usize = IP + 20;
const UDP_CHECKSUM: usize = UDP + 6;
const NUMBER: usize = UDP + 8;

/// What a chain does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It swaps the MAC addresses so often.
    Swapped {
        /// How often.
        times: usize,
    },
    /// It swaps source and destination in all headers.
    Echoed,
}

/// A frame in which only the client changes.
pub(super) struct Template {
    request: [u8; FRAME_BYTES],
    reply: [u8; FRAME_BYTES],
}

impl Template {
    pub(super) fn new() -> Self {
        let mut request = [0; FRAME_BYTES];
        request[..6].copy_from_slice(&NODE_MAC);
        request[6..12].copy_from_slice(&CLIENTS_MAC);
        request[12..14].copy_from_slice(&[0x08, 0]);
        let ip_bytes = (FRAME_BYTES - IP) as u16;
        request[IP] = 0x45;
        request[IP + 2..IP + 4].copy_from_slice(&ip_bytes.to_be_bytes());
        request[IP + 6] = 0x40; // not to be fragmented
        request[IP + 8] = 64;
        request[IP + 9] = 17; // UDP
        request[DESTINATION..UDP].copy_from_slice(&NODE_IPV4);
        for (place, field) in [CLIENT_PORT, SERVICE_PORT, ip_bytes - 20].into_iter().enumerate() {
            request[UDP + 2 * place..][..2].copy_from_slice(&field.to_be_bytes());
        }
        for (place, byte) in request[NUMBER + 4..].iter_mut().enumerate() {
            *byte = place as u8 * 7 + 1;
        }
        Self { request, reply: [0; FRAME_BYTES] }
    }

    /// Returns a client's request.
    pub(super) fn request(&mut self, client: u32) -> &[u8; FRAME_BYTES] {
        let request = &mut self.request;
        request[SOURCE..DESTINATION].copy_from_slice(&(FIRST_CLIENT + client).to_be_bytes());
        request[NUMBER..NUMBER + 4].copy_from_slice(&client.to_be_bytes());
        request[IP + 10..IP + 12].fill(0);
        let checksum = internet_checksum(&request[IP..UDP]);
        request[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        let checksum = udp_checksum(request);
        request[UDP_CHECKSUM..NUMBER].copy_from_slice(&checksum.to_be_bytes());
        request
    }

    /// Returns the expected reply to it.
    pub(super) fn reply(&mut self, client: u32, answer: Answer) -> &[u8; FRAME_BYTES] {
        self.reply = *self.request(client);
        let reply = &mut self.reply;
        match answer {
            Answer::Swapped { times } if times % 2 == 0 => {}
            Answer::Swapped { .. } => reply[..12].rotate_left(6),
            Answer::Echoed => {
                reply[..12].rotate_left(6);
                reply[SOURCE..UDP].rotate_left(4);
                reply[UDP..UDP + 4].rotate_left(2);
            }
        }
        reply
    }

    /// Returns the client that the frame states.
    pub(super) fn client_of(frame: &[u8]) -> Option<u32> {
        let number = frame.get(NUMBER..NUMBER + 4)?;
        Some(u32::from_be_bytes(number.try_into().expect("four bytes")))
    }
}

fn udp_checksum(frame: &[u8; FRAME_BYTES]) -> u16 {
    // The pseudo header in another order, which does not change the sum: addresses, length and protocol, then the datagram.
    let mut summed = [0; FRAME_BYTES - SOURCE + 4];
    summed[..FRAME_BYTES - SOURCE].copy_from_slice(&frame[SOURCE..]);
    let checksum_at = UDP_CHECKSUM - SOURCE;
    summed[checksum_at..checksum_at + 2].fill(0);
    let len = (FRAME_BYTES - UDP) as u16;
    summed[FRAME_BYTES - SOURCE..FRAME_BYTES - SOURCE + 2].copy_from_slice(&len.to_be_bytes());
    summed[FRAME_BYTES - SOURCE + 3] = 17;
    match internet_checksum(&summed) {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_valid_and_clients_differ() {
        let mut template = Template::new();
        let [first, second] = [0, 70_000].map(|client| *template.request(client));
        assert_eq!(internet_checksum(&first[IP..UDP]), 0, "a right header sums up to nothing");
        assert_eq!(first[SOURCE..DESTINATION], [10, 128, 0, 0]);
        assert_eq!(second[SOURCE..DESTINATION], [10, 129, 0x11, 0x70]);
        assert_eq!(Template::client_of(&second), Some(70_000));
        assert_eq!(Template::client_of(&second[..50 - 5]), None);
    }

    #[test]
    fn a_udp_checksum_makes_datagram_and_pseudo_header_sum_up_to_nothing() {
        let request = *Template::new().request(77);
        let mut summed = request[SOURCE..].to_vec();
        summed.extend([0, 17]);
        summed.extend(((FRAME_BYTES - UDP) as u16).to_be_bytes());
        assert_eq!(internet_checksum(&summed), 0);
    }

    #[test]
    fn an_echo_has_its_addresses_and_ports_swapped_and_nothing_else() {
        let mut template = Template::new();
        let request = *template.request(5);
        let reply = *template.reply(5, Answer::Echoed);
        assert_eq!((&reply[..6], &reply[6..12]), (&CLIENTS_MAC[..], &NODE_MAC[..]));
        assert_eq!((&reply[SOURCE..DESTINATION], &reply[DESTINATION..UDP]), (&NODE_IPV4[..], &[10, 128, 0, 5][..]));
        assert_eq!(reply[UDP..UDP + 4], [0, 7, 0x27, 0x17]);
        assert_eq!((&reply[12..SOURCE], &reply[UDP + 4..]), (&request[12..SOURCE], &request[UDP + 4..]));
    }

    #[test]
    fn two_swaps_are_none() {
        let mut template = Template::new();
        let request = *template.request(9);
        assert_eq!(*template.reply(9, Answer::Swapped { times: 10 }), request);
        assert_eq!(template.reply(9, Answer::Swapped { times: 1 })[..6], CLIENTS_MAC);
    }
}

//! Makes and reads single TCP segments; an echo service to send them to.
#![allow(dead_code, reason = "each file of tests uses a part")]

pub(crate) mod peer;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

use pinion_sdk::headers::Headers;
use pinion_sdk::net::testing::Network;
use pinion_sdk::net::{Server, Service, Settings, Stream};
use pinion_sdk::testing::{Frame, Outcome};
use pinion_sdk::{Function, InitError, checksum};

pub(crate) const PLACES: u16 = 8;
pub(crate) const IDLE_NS: u64 = 60_000_000_000;

/// The configuration of an echo with a longer idle timeout. Retransmission intervals grow, so a few consecutive losses of segments or
/// acknowledgements can take more than a minute.
pub(crate) const PATIENT: &[u8] = b"patient";
const PATIENCE_NS: u64 = 60 * IDLE_NS;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;

/// The configuration of an echo that closes a connection as soon as it has received data.
pub(crate) const CURT: &[u8] = b"curt";

/// Echoes its input, and closes when its peer does, or at once.
pub(crate) struct Echo {
    is_curt: bool,
}

impl Service for Echo {
    type Connection = Vec<u8>;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let idle_timeout_ns = if config == PATIENT { PATIENCE_NS } else { IDLE_NS };
        Ok((
            Self { is_curt: config == CURT },
            Settings { tcp_ports: vec![7], connections_max: PLACES, idle_timeout_ns, ..Settings::default() },
        ))
    }

    fn accept(&mut self, _stream: &mut Stream<'_>) -> Vec<u8> {
        Vec::new()
    }

    fn ready(&mut self, left: &mut Vec<u8>, stream: &mut Stream<'_>) {
        loop {
            if let Ok(count) = stream.write(left) {
                left.drain(..count);
            }
            if !left.is_empty() {
                return;
            }
            let mut bytes = [0; 1000];
            match stream.read(&mut bytes) {
                Ok(0) => return stream.close(),
                Ok(_) if self.is_curt => return stream.close(),
                Ok(count) => left.extend_from_slice(&bytes[..count]),
                Err(_) => return,
            }
        }
    }
}

pub(crate) type Echoes = Network<Server<Echo>>;

pub(crate) fn echoes() -> Echoes {
    Network::new(b"").unwrap()
}

pub(crate) fn v4(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

pub(crate) fn at_v4(port: u16) -> SocketAddr {
    (v4(200), port).into()
}

pub(crate) fn at_v6(port: u16) -> SocketAddr {
    "[fd77::2]:7".parse::<SocketAddr>().map(|at| (at.ip(), port).into()).unwrap()
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 13)) as u8).collect()
}

/// The fields of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Makes a TCP segment in a frame, with correct checksums, over the version of IP of its addresses.
pub(crate) fn frame(from: SocketAddr, to: SocketAddr, fields: &Fields) -> Vec<u8> {
    let Fields { flags, seq, ack, window, options, payload } = fields;
    let frame = Frame::tcp(from, to).sequence(*seq).acknowledged(*ack).tcp_flags(*flags).window(*window);
    frame.tcp_options(options).payload(payload).dont_fragment().bytes()
}

/// Makes a segment over IPv4 that acknowledges nothing, or number 0.
pub(crate) fn segment(from: SocketAddr, to: SocketAddr, flags: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    let fields = Fields { flags, seq, ack: 0, window: 0xffff, options: vec![], payload: payload.to_vec() };
    frame(from, to, &fields)
}

/// Reads a frame's segment. The checksums must be correct.
pub(crate) fn read(frame: &[u8]) -> Fields {
    let headers = Headers::of(frame).unwrap();
    let (ip, tcp) = (&frame[headers.at.network..], &frame[headers.at.transport..headers.at.end]);
    let addresses = if ip[0] >> 4 == 4 {
        assert_eq!(checksum::of(&ip[..20]), 0, "the IPv4 header's checksum");
        &ip[12..20]
    } else {
        &ip[8..40]
    };
    let pseudo = [addresses, &[0, 6], &(tcp.len() as u16).to_be_bytes(), tcp].concat();
    assert_eq!(checksum::of(&pseudo), 0, "TCP's checksum");
    let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    let end = usize::from(tcp[12] >> 4) * 4;
    Fields {
        flags: tcp[13],
        seq: number(4),
        ack: number(8),
        window: u16::from_be_bytes([tcp[14], tcp[15]]),
        options: tcp[20..end].to_vec(),
        payload: tcp[end..].to_vec(),
    }
}

pub(crate) fn flags_of(frame: &[u8]) -> u8 {
    read(frame).flags
}

/// Returns the function's answers to a frame.
pub(crate) fn answers<F: Function>(network: &mut Network<F>, frame: &[u8]) -> Vec<Vec<u8>> {
    let verdicts = network.harness.deliver(&[frame]);
    verdicts.into_iter().filter(|it| it.outcome == Outcome::Replied).map(|it| it.bytes).collect()
}

//! The structs of `pinion/net.h`, and what they are in Rust. Any bytes are valid in each of them: C may have written anything.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pinion_sdk::{InitError, foreign, net};

const PORTS_MAX: usize = 16;
const RESOLVERS_MAX: usize = 4;
const HEADER_MAX: usize = 22;

/// `struct pinion_address`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// 4 or 6; anything else is no address.
    pub version: u8,
    /// In network order: 4 bytes, or 16.
    pub bytes: [u8; 16],
    /// The port; 0 for none.
    pub port: u16,
}

/// `struct pinion_via`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Via {
    /// A `pinion_way`.
    pub way: u32,
    /// The VLAN; 0 for the untagged network.
    pub vlan: u16,
}

/// `struct pinion_udp_peer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpPeer {
    /// The peer's address and port.
    pub address: Address,
    /// The local address and port.
    pub local: Address,
    way: u32,
    header: [u8; HEADER_MAX],
    header_len: u8,
}

/// `struct pinion_datagram`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Where the payload begins.
    pub payload: *const u8,
    /// Its length in bytes.
    pub len: usize,
    /// The sender.
    pub peer: UdpPeer,
    /// Whether it answers a flow of the function's own.
    pub is_of_flow: bool,
    /// That flow's number; 0 if there is none.
    pub flow: u64,
}

/// `struct pinion_settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The first 0 ends them.
    pub tcp_ports: [u16; PORTS_MAX],
    /// Likewise.
    pub udp_ports: [u16; PORTS_MAX],
    /// As in [`net::Settings`].
    pub connections_max: u16,
    /// As in [`net::Settings`].
    pub udp_flows_max: u16,
    /// The first that is no address ends them.
    pub resolvers: [Address; RESOLVERS_MAX],
    /// As in [`net::Settings`].
    pub receive_bytes: u32,
    /// As in [`net::Settings`].
    pub send_bytes: u32,
    /// As in [`net::Settings`], in nanoseconds.
    pub idle_timeout_ns: u64,
    /// As in [`net::Settings`], in nanoseconds; 0 for none.
    pub send_timeout_ns: u64,
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        let version = match address {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                4
            }
            IpAddr::V6(address) => {
                bytes = address.octets();
                6
            }
        };
        Self { version, bytes, port: 0 }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { port: address.port(), ..address.ip().into() }
    }
}

impl Address {
    /// Returns the IP address. `None` if it is none.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self.version {
            4 => Some(Ipv4Addr::from_octets(*self.bytes.first_chunk()?).into()),
            6 => Some(Ipv6Addr::from_octets(self.bytes).into()),
            _ => None,
        }
    }

    /// Returns the address with its port. `None` if it is none.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.port))
    }
}

impl From<net::Via> for Via {
    fn from(via: net::Via) -> Self {
        Self { way: foreign::bits_of_way(via.way), vlan: via.vlan }
    }
}

impl From<Via> for net::Via {
    fn from(via: Via) -> Self {
        Self { way: foreign::way_of(via.way), vlan: via.vlan }
    }
}

impl From<net::UdpPeer> for UdpPeer {
    fn from(peer: net::UdpPeer) -> Self {
        let (bytes, way) = foreign::link_of(&peer);
        let mut header = [0; HEADER_MAX];
        header[..bytes.len()].copy_from_slice(bytes);
        Self {
            address: peer.address().into(),
            local: peer.local().into(),
            way: foreign::bits_of_way(way),
            header,
            header_len: bytes.len() as u8,
        }
    }
}

impl UdpPeer {
    /// Returns the peer. `None` if it is none.
    pub(crate) fn peer(&self) -> Option<net::UdpPeer> {
        let header = self.header.get(..usize::from(self.header_len))?;
        foreign::peer_of(self.address.socket()?, self.local.socket()?, header, foreign::way_of(self.way))
    }
}

impl Default for Settings {
    fn default() -> Self {
        let settings = net::Settings::default();
        Self {
            tcp_ports: [0; PORTS_MAX],
            udp_ports: [0; PORTS_MAX],
            connections_max: settings.connections_max,
            udp_flows_max: settings.udp_flows_max,
            resolvers: [Address::default(); RESOLVERS_MAX],
            receive_bytes: settings.receive_bytes as u32,
            send_bytes: settings.send_bytes as u32,
            idle_timeout_ns: settings.idle_timeout_ns,
            send_timeout_ns: 0,
        }
    }
}

impl Settings {
    /// Returns the settings as the SDK for Rust has them, which checks the numbers.
    pub(crate) fn settings(&self) -> Result<net::Settings, InitError> {
        let ports = |ports: &[u16]| ports.iter().copied().take_while(|port| *port != 0).collect();
        let mut resolvers = Vec::new();
        for resolver in self.resolvers.iter().take_while(|resolver| resolver.version != 0) {
            let address = resolver.socket().filter(|address| address.port() != 0);
            resolvers.push(address.ok_or("a resolver is no address with a port")?);
        }
        Ok(net::Settings {
            tcp_ports: ports(&self.tcp_ports),
            udp_ports: ports(&self.udp_ports),
            connections_max: self.connections_max,
            udp_flows_max: self.udp_flows_max,
            resolvers,
            receive_bytes: self.receive_bytes as usize,
            send_bytes: self.send_bytes as usize,
            idle_timeout_ns: self.idle_timeout_ns,
            send_timeout_ns: Some(self.send_timeout_ns).filter(|timeout_ns| *timeout_ns != 0),
        })
    }
}

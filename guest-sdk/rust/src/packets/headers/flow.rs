//! Flow keys: [`FlowKey`], by which functions with state record flows.

use core::hash::{Hash, Hasher};

use super::{Addresses, Headers, IPV6_FRAGMENT, Pair, TCP, UDP};

/// What all packets of a flow in one direction have in common.
///
/// ```
/// # use pinion_sdk::headers::{Headers, TCP};
/// # let mut request = vec![0; 54];
/// # request[12..14].copy_from_slice(&[0x08, 0x00]);
/// # request[14..34].copy_from_slice(&[0x45, 0, 0, 40, 0, 1, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
/// # request[34..38].copy_from_slice(&[0x14, 0xe9, 0, 80]);
/// # request[46] = 0x50;
/// # let mut answer = request.clone();
/// # answer[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
/// # answer[34..38].copy_from_slice(&[0, 80, 0x14, 0xe9]);
/// let of = |frame: &[u8]| Headers::of(frame).ok().and_then(|headers| headers.flow()).unwrap();
/// assert_eq!(of(&answer), of(&request).reversed());
/// assert_eq!(of(&answer).both_ways(), of(&request).both_ways());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// Source and destination address.
    pub addresses: Addresses,
    /// The ports of TCP and UDP. For an ICMP echo both are its identifier; for other protocols they are zero.
    pub ports: Pair<u16>,
    /// The number of the protocol above IP.
    pub protocol: u8,
}

/// Few numbers instead of one for each field, as each takes a round of a table's hash.
impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Pair { source, destination } = self.ports;
        let rest = (u64::from(source) << 48) | (u64::from(destination) << 32) | (u64::from(self.protocol) << 8);
        match self.addresses {
            Addresses::V4(pair) => {
                hasher.write_u64(rest | 4);
                hasher.write_u64((u64::from(pair.source) << 32) | u64::from(pair.destination));
            }
            Addresses::V6(pair) => {
                hasher.write_u64(rest | 6);
                hasher.write_u128(pair.source);
                hasher.write_u128(pair.destination);
            }
        }
    }
}

impl FlowKey {
    /// Returns the flow of the opposite direction.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { addresses: self.addresses.reversed(), ports: self.ports.reversed(), protocol: self.protocol }
    }

    /// Returns the flow as bytes, for a key of [state](crate::state). Different flows have different bytes.
    ///
    /// ```text
    ///   | IP version | protocol | ports, 2 bytes each | source, 16 bytes | destination, 16 bytes |     IPv4 addresses padded with zeros
    /// ```
    #[inline]
    #[must_use]
    pub fn to_key(&self) -> [u8; 38] {
        let mut key = [0; 38];
        key[1] = self.protocol;
        key[2..4].copy_from_slice(&self.ports.source.to_be_bytes());
        key[4..6].copy_from_slice(&self.ports.destination.to_be_bytes());
        match self.addresses {
            Addresses::V4(pair) => {
                key[0] = 4;
                key[6..10].copy_from_slice(&pair.source.to_be_bytes());
                key[22..26].copy_from_slice(&pair.destination.to_be_bytes());
            }
            Addresses::V6(pair) => {
                key[0] = 6;
                key[6..22].copy_from_slice(&pair.source.to_be_bytes());
                key[22..38].copy_from_slice(&pair.destination.to_be_bytes());
            }
        }
        key
    }

    /// Returns one key for both directions of a flow: one of the two flows' keys.
    #[inline]
    #[must_use]
    pub fn both_ways(&self) -> Self {
        (*self).min(self.reversed())
    }
}

impl Headers {
    /// Returns the flow that the packet belongs to. `None` for fragments after the first, as their ports are unknown, and for ICMP messages
    /// that are neither echo requests nor echo replies.
    #[inline]
    #[must_use]
    pub fn flow(&self) -> Option<FlowKey> {
        let ports = match self.protocol {
            TCP | UDP => self.ports?,
            protocol if protocol == self.addresses.icmp() => {
                let id = self.icmp?.echo?.id;
                Pair { source: id, destination: id }
            }
            _ if self.fragment.is_some_and(|fragment| !fragment.is_first()) => return None,
            _ => Pair { source: 0, destination: 0 },
        };
        Some(FlowKey { addresses: self.addresses, ports, protocol: self.protocol })
    }

    /// Returns addresses and protocol only, for packets without a flow, or to ignore ports: all fragments of a datagram have the same
    /// result. Only the first fragment of IPv6 states the protocol, so all of them have 44 in its place.
    #[inline]
    #[must_use]
    pub fn without_ports(&self) -> FlowKey {
        let protocol = match (self.addresses, self.fragment) {
            (Addresses::V6(_), Some(_)) => IPV6_FRAGMENT,
            _ => self.protocol,
        };
        FlowKey { addresses: self.addresses, ports: Pair { source: 0, destination: 0 }, protocol }
    }
}

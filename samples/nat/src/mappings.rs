//! The table of mappings: which outside port stands for which inside end, and how long.
//!
//! A mapping belongs to a protocol and an inside address and port, independently of the peer (endpoint-independent
//! mapping, RFC 4787). It has its own port of an outside address, which is the same for all mappings of a host. A TCP
//! mapping lasts as long as any of its connections, each of which has its own state and timeout (`connections.rs`).
//! Everything is bounded, all memory is allocated when the table is made, and every call takes constant time.

use core::hash::Hasher;
use std::hash::DefaultHasher;

use pinion_sdk::headers::{ICMP, Segment, TCP, UDP};
use pinion_sdk::lru::{Id, Lru};
use pinion_sdk::random;

use crate::config::Config;
use crate::connections::{ConnectionKey, Connections};
use crate::ports::Ports;

/// Most mappings of one kind that are expired at once, so that no batch waits until all old ones are removed.
const EXPIRED_MAX: usize = 64;
/// Most connections that are evicted at once to free an entry and a port for a mapping.
const ROOM_STEPS_MAX: usize = 8;
const SECOND_NS: u64 = 1_000_000_000;

/// A protocol that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP, by ports.
    Tcp,
    /// UDP, by ports.
    Udp,
    /// ICMP echoes, by their identifier.
    Icmp,
}

impl Protocol {
    const COUNT: usize = 3;

    /// Returns the protocol of a number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        match number {
            TCP => Some(Self::Tcp),
            UDP => Some(Self::Udp),
            ICMP => Some(Self::Icmp),
            _ => None,
        }
    }
}

/// One end, inside or outside: a protocol, an address, and a port or an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The protocol.
    pub protocol: Protocol,
    /// The IPv4 address.
    pub address: u32,
    /// The port; in an echo, the identifier.
    pub port: u16,
}

/// The side that a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A host that is translated.
    Inside,
    /// Any other host.
    Outside,
}

/// Why there is no mapping for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table is full.
    TableFull,
    /// The host has used its share.
    HostFull,
    /// The host's outside address has no free port.
    NoPort,
    /// It is a TCP segment of no known connection.
    NoConnection,
}

/// What determines a mapping's lifetime, which is also its queue in the table.
#[derive(Clone, Copy)]
enum Life {
    /// Its TCP connections.
    Tcp,
    Udp,
    Icmp,
}

const LIVES: usize = 3;

impl Life {
    fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Icmp => Self::Icmp,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// Index of the outside address.
    outside: u8,
    port: u16,
    /// For TCP: the number of its connections.
    connections: u32,
}

/// How many mappings and connections a host has.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    mappings: u32,
    connections: u32,
}

/// The table of mappings.
#[derive(Debug)]
pub struct Mappings {
    table: Lru<Endpoint, Mapping, LIVES>,
    connections: Connections,
    hosts: Lru<u32, Had>,
    per_host_max: u32,
    connections_per_host_max: u32,
    /// Ports by outside address, and for each address by protocol.
    ports: Vec<Ports>,
    outside: Vec<u32>,
    /// Timeouts of UDP and echo mappings. A TCP mapping never times out by itself.
    timeouts_ns: [u64; LIVES],
    /// A hasher initialised with the hash key.
    keyed: DefaultHasher,
    drawn: u64,
}

impl Mappings {
    /// Makes an empty table.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let times = config.timeouts_s;
        let ports = Ports::new(config.port_min, config.port_max);
        Self {
            table: Lru::with_capacity(config.mappings_max),
            connections: Connections::new(config),
            hosts: Lru::with_capacity(config.mappings_max),
            per_host_max: config.mappings_per_host_max(),
            connections_per_host_max: config.connections_per_host_max(),
            ports: vec![ports; config.outside.len() * Protocol::COUNT],
            outside: config.outside.iter().map(|address| address.to_bits()).collect(),
            timeouts_ns: [u64::MAX, times.udp * SECOND_NS, times.icmp * SECOND_NS],
            keyed: DefaultHasher::new(),
            drawn: 0,
        }
    }

    /// Draws the keys, so that hashes and ports cannot be guessed.
    pub fn rekey(&mut self) {
        self.table.rekey();
        self.connections.rekey();
        self.hosts.rekey();
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed.write(&key);
    }

    /// Returns whether it is an outside address of the table.
    #[must_use]
    pub fn is_outside(&self, address: u32) -> bool {
        self.outside.contains(&address)
    }

    /// Returns the number of mappings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no mappings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the number of TCP connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns until when a mapping is remembered if no further packet comes.
    #[must_use]
    pub fn needed_until_ns(&self) -> Option<u64> {
        let of_life = |life: Life| {
            let (_, used_ns) = self.table.newest(life as usize)?;
            Some(used_ns + self.timeouts_ns[life as usize])
        };
        [of_life(Life::Udp), of_life(Life::Icmp), self.connections.needed_until_ns()].into_iter().flatten().max()
    }

    /// Returns the outside end for a packet from an inside end to this peer. Creates the mapping if there is none, and
    /// restarts its timeout; for TCP, that of the connection.
    ///
    /// # Errors
    ///
    /// There is no mapping and none can be created.
    pub fn outward(
        &mut self,
        inside: Endpoint,
        peer: Endpoint,
        segment: Option<Segment>,
        now_ns: u64,
    ) -> Result<Endpoint, Refusal> {
        let id = match (self.live(inside, now_ns), segment) {
            (Some(id), None) => {
                self.table.touch(id, Life::of(inside.protocol) as usize, now_ns);
                id
            }
            (None, None) => self.create(inside, now_ns)?,
            (there, Some(segment)) => self.outward_segment(there, inside, peer, segment, now_ns)?,
        };
        Ok(self.outer(inside.protocol, *self.table.value(id)))
    }

    /// The same for TCP. A SYN begins a connection, and so does the answer to a SYN from outside. Other segments pass
    /// by an existing mapping without prolonging it.
    fn outward_segment(
        &mut self,
        there: Option<Id>,
        inside: Endpoint,
        peer: Endpoint,
        segment: Segment,
        now_ns: u64,
    ) -> Result<Id, Refusal> {
        let key = ConnectionKey { inside, peer };
        if self.connections.learn(&key, From::Inside, segment, now_ns)
            && let Some(id) = there
        {
            return Ok(id);
        }
        let begins = segment.flags.syn() && !segment.flags.rst() && (!segment.flags.ack() || there.is_some());
        match there {
            Some(id) if !begins => return Ok(id),
            None if !begins => return Err(Refusal::NoConnection),
            _ => {}
        }
        let had = self.hosts.find(&inside.address).map(|host| *self.hosts.value(host)).unwrap_or_default();
        if had.connections >= self.connections_per_host_max {
            return Err(Refusal::HostFull);
        }
        if self.connections.is_full() {
            self.end_weakest_connection(Some(inside)).ok_or(Refusal::TableFull)?;
        }
        let id = match there {
            Some(id) => id,
            None => self.create(inside, now_ns)?,
        };
        if !self.connections.begin(key, id, segment, now_ns) {
            return Err(Refusal::TableFull);
        }
        self.table.value_mut(id).connections += 1;
        self.change_had(inside.address, |had| had.connections += 1);
        Ok(id)
    }

    /// Returns the inside end for a packet from this peer to an outside end. This does not prolong the mapping, as any
    /// outside host could do that. A segment of no known connection changes nothing.
    pub fn inward(
        &mut self,
        outside: Endpoint,
        peer: Endpoint,
        segment: Option<Segment>,
        now_ns: u64,
    ) -> Option<Endpoint> {
        let id = self.owner(outside, now_ns)?;
        let inside = *self.table.key(id);
        if let Some(segment) = segment {
            self.connections.learn(&ConnectionKey { inside, peer }, From::Outside, segment, now_ns);
        }
        Some(inside)
    }

    /// Returns the outside end for an ICMP error about a packet. It neither creates nor prolongs a mapping.
    #[must_use]
    pub fn outside_of(&self, inside: Endpoint, now_ns: u64) -> Option<Endpoint> {
        let id = self.table.find(&inside).filter(|id| !self.is_over(*id, now_ns))?;
        Some(self.outer(inside.protocol, *self.table.value(id)))
    }

    /// Returns the inside end for an ICMP error about a packet. It does not prolong the mapping.
    #[must_use]
    pub fn inside_of(&self, outside: Endpoint, now_ns: u64) -> Option<Endpoint> {
        self.owner(outside, now_ns).map(|id| *self.table.key(id))
    }

    /// Removes a bounded number of connections and mappings that have timed out. Mappings that remain count as removed.
    pub fn expire(&mut self, now_ns: u64) {
        for life in [Life::Udp, Life::Icmp] {
            for _ in 0..EXPIRED_MAX {
                match self.table.oldest(life as usize) {
                    Some((id, _)) if self.is_over(id, now_ns) => self.end(id),
                    _ => break,
                }
            }
        }
        for _ in 0..EXPIRED_MAX {
            let Some(over) = self.connections.next_over(now_ns) else { break };
            self.end_connection(over);
        }
    }

    fn is_over(&self, id: Id, now_ns: u64) -> bool {
        let life = Life::of(self.table.key(id).protocol);
        now_ns >= self.table.used_ns(id).saturating_add(self.timeouts_ns[life as usize])
    }

    /// Returns the mapping of an inside end. If it has timed out, removes it instead.
    fn live(&mut self, inside: Endpoint, now_ns: u64) -> Option<Id> {
        let id = self.table.find(&inside)?;
        if self.is_over(id, now_ns) {
            self.end(id);
            return None;
        }
        Some(id)
    }

    fn owner(&self, outside: Endpoint, now_ns: u64) -> Option<Id> {
        let number = self.outside.iter().position(|address| *address == outside.address)?;
        let ports = self.ports.get(number * Protocol::COUNT + outside.protocol as usize)?;
        ports.owner(outside.port).filter(|id| !self.is_over(*id, now_ns))
    }

    fn outer(&self, protocol: Protocol, mapping: Mapping) -> Endpoint {
        Endpoint { protocol, address: self.outside[usize::from(mapping.outside)], port: mapping.port }
    }

    /// Evicts the connection that has been idle for longest of the opening ones, or else of the closing ones. If it was
    /// the last of its mapping, removes the mapping, too, except that of `but`. Returns `None` if all connections are
    /// established.
    fn end_weakest_connection(&mut self, but: Option<Endpoint>) -> Option<()> {
        let weakest = self.connections.weakest()?;
        let mapping = self.connections.mapping(weakest);
        let spared = but.is_some_and(|inside| *self.table.key(mapping) == inside);
        if spared && self.table.value(mapping).connections == 1 {
            return None;
        }
        self.end_connection(weakest);
        Some(())
    }

    fn end_connection(&mut self, connection: Id) {
        let mapping = self.connections.mapping(connection);
        self.connections.remove(connection);
        self.change_had(self.table.key(mapping).address, |had| had.connections -= 1);
        self.table.value_mut(mapping).connections -= 1;
        if self.table.value(mapping).connections == 0 {
            self.end(mapping);
        }
    }

    fn create(&mut self, inside: Endpoint, now_ns: u64) -> Result<Id, Refusal> {
        let had = self.hosts.find(&inside.address).map(|id| *self.hosts.value(id)).unwrap_or_default();
        if had.mappings >= self.per_host_max {
            return Err(Refusal::HostFull);
        }
        // All mappings of a host have the same outside address ("paired"), as its peers may compare them.
        let outside = (self.hash(inside.address.into()) % self.outside.len() as u64) as u8;
        let at = usize::from(outside) * Protocol::COUNT + inside.protocol as usize;
        self.make_room(at, inside.protocol)?;
        self.drawn += 1;
        let random = self.hash(u64::MAX - self.drawn);
        let port = self.ports[at].take(random).ok_or(Refusal::NoPort)?;
        let mapping = Mapping { outside, port, connections: 0 };
        let life = Life::of(inside.protocol) as usize;
        let id = self.table.insert(inside, mapping, life, now_ns).ok_or(Refusal::TableFull)?;
        self.ports[at].assign(port, id);
        if self.hosts.find(&inside.address).is_none() {
            // There are at most as many hosts as mappings, so there is room.
            self.hosts.insert(inside.address, Had::default(), 0, now_ns);
        }
        self.change_had(inside.address, |had| had.mappings += 1);
        Ok(id)
    }

    /// Makes room for a mapping: a table entry and a port of these. Evicts opening or closing connections if necessary,
    /// a few at most.
    fn make_room(&mut self, ports: usize, protocol: Protocol) -> Result<(), Refusal> {
        for _ in 0..ROOM_STEPS_MAX {
            let lacking = if self.table.len() == self.table.capacity() {
                Refusal::TableFull
            } else if self.ports[ports].is_empty() {
                Refusal::NoPort
            } else {
                return Ok(());
            };
            // Connections have TCP ports only.
            if lacking == Refusal::NoPort && protocol != Protocol::Tcp {
                return Err(lacking);
            }
            self.end_weakest_connection(None).ok_or(lacking)?;
        }
        Err(Refusal::TableFull)
    }

    fn end(&mut self, id: Id) {
        let (inside, mapping) = self.table.remove(id);
        self.ports[usize::from(mapping.outside) * Protocol::COUNT + inside.protocol as usize].give_back(mapping.port);
        self.change_had(inside.address, |had| had.mappings -= 1);
    }

    /// Changes a host's counts, and forgets the host when they are zero.
    fn change_had(&mut self, host: u32, change: impl FnOnce(&mut Had)) {
        let Some(id) = self.hosts.find(&host) else { return };
        let had = self.hosts.value_mut(id);
        change(had);
        if had.mappings == 0 {
            self.hosts.remove(id);
        }
    }

    fn hash(&self, number: u64) -> u64 {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(number);
        hasher.finish()
    }
}

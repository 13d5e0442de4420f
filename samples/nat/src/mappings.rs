//! The table of mappings: which outside port stands for which inside end, and how long.
//!
//! A mapping belongs to a protocol and an inside address and port, independently of the peer (endpoint-independent
//! mapping, RFC 4787). It has its own port of an outside address, which is the same for all mappings of a host. A TCP
//! mapping lasts as long as any of its connections, each of which has its own state and timeout (`connections.rs`).
//! Everything is bounded, all memory is allocated when the table is made, and every call takes constant time.

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use pinion_sdk::headers::{ICMP, Segment, TCP, UDP};
use pinion_sdk::lru::{Id, Linked, Links, List, Lru};
use pinion_sdk::random;

use crate::config::Config;
use crate::connections::{ConnectionKey, Connections, Evictable, Known};
use crate::ports::Ports;

/// Most mappings of one kind that are expired at once, so that no batch waits until all old ones are removed.
const EXPIRED_MAX: usize = 64;
/// Most mappings or connections that are evicted at once to free an entry and a port for a mapping.
const ROOM_STEPS_MAX: usize = 8;
/// Most mappings that are searched for one with a port of a certain outside address.
const SEARCHED_MAX: usize = 64;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The protocol.
    pub protocol: Protocol,
    /// The IPv4 address.
    pub address: u32,
    /// The port; in an echo, the identifier.
    pub port: u16,
}

impl Hash for Endpoint {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let protocol = self.protocol as u64;
        hasher.write_u64((protocol << 48) | (u64::from(self.address) << 16) | u64::from(self.port));
    }
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

/// What determines a mapping's lifetime, and whether it is evicted. It is also the mapping's queue in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Its TCP connections.
    Tcp,
    /// Its own time. Nothing has come from outside.
    UdpUnanswered,
    IcmpUnanswered,
    Udp,
    Icmp,
}

const LIVES: usize = 5;
/// Those that end by themselves.
const TIMED: [Life; 4] = [Life::UdpUnanswered, Life::IcmpUnanswered, Life::Udp, Life::Icmp];

impl Life {
    fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::UdpUnanswered,
            Protocol::Icmp => Self::IcmpUnanswered,
        }
    }

    fn answered(self) -> Self {
        match self {
            Self::UdpUnanswered => Self::Udp,
            Self::IcmpUnanswered => Self::Icmp,
            other => other,
        }
    }

    #[inline]
    fn is_unanswered(self) -> bool {
        matches!(self, Self::UdpUnanswered | Self::IcmpUnanswered)
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    life: Life,
    /// Index of the outside address.
    outside: u8,
    port: u16,
    /// For TCP: the number of its connections.
    connections: u32,
    /// In its host's list of unanswered mappings.
    links: Links,
}

impl Linked for Mapping {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// What a host has.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    mappings: u32,
    connections: u32,
    unanswered: List,
    evictable: Evictable,
}

/// The table of mappings.
#[derive(Debug)]
pub struct Mappings {
    table: Lru<Endpoint, Mapping, LIVES>,
    connections: Connections,
    /// Each has at least one mapping.
    hosts: Lru<u32, Host>,
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
        let (udp_ns, icmp_ns) = (times.udp * SECOND_NS, times.icmp * SECOND_NS);
        let ports = Ports::new(config.port_min, config.port_max);
        Self {
            table: Lru::with_capacity(config.mappings_max),
            connections: Connections::new(config),
            hosts: Lru::with_capacity(config.mappings_max),
            per_host_max: config.mappings_per_host_max(),
            connections_per_host_max: config.connections_per_host_max(),
            ports: vec![ports; config.outside.len() * Protocol::COUNT],
            outside: config.outside.iter().map(|address| address.to_bits()).collect(),
            timeouts_ns: [u64::MAX, udp_ns, icmp_ns, udp_ns, icmp_ns],
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
        TIMED.into_iter().filter_map(of_life).chain(self.connections.needed_until_ns()).max()
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
        let id = match segment {
            Some(segment) => self.outward_segment(inside, peer, segment, now_ns)?,
            None => match self.live(inside, now_ns) {
                Some(id) => {
                    self.table.touch(id, self.table.value(id).life as usize, now_ns);
                    id
                }
                None => self.create(inside, now_ns)?,
            },
        };
        Ok(self.outer(inside.protocol, *self.table.value(id)))
    }

    /// The same for TCP. The mapping lasts as long as its connections, so a known connection has it.
    #[inline]
    fn outward_segment(
        &mut self,
        inside: Endpoint,
        peer: Endpoint,
        segment: Segment,
        now_ns: u64,
    ) -> Result<Id, Refusal> {
        let key = ConnectionKey { inside, peer };
        match self.connections.learn(&key, From::Inside, segment, now_ns) {
            Some(known) => {
                self.note_change(known, inside.address);
                Ok(self.connections.mapping(known.id))
            }
            None => self.outward_unknown(key, segment, now_ns),
        }
    }

    /// The same for a segment of no known connection. A SYN begins one, and so does the answer to a SYN from outside.
    /// Other segments pass by an existing mapping without prolonging it.
    #[inline(never)]
    fn outward_unknown(&mut self, key: ConnectionKey, segment: Segment, now_ns: u64) -> Result<Id, Refusal> {
        let inside = key.inside;
        let there = self.table.find(&inside);
        let begins = segment.flags.syn() && !segment.flags.rst() && (!segment.flags.ack() || there.is_some());
        let id = match there {
            Some(id) if !begins => return Ok(id),
            None if !begins => return Err(Refusal::NoConnection),
            Some(id) => id,
            None => self.create(inside, now_ns)?,
        };
        // Counted already, so that the mapping does not end with a connection that is evicted for this one.
        self.table.value_mut(id).connections += 1;
        if let Err(refusal) = self.begin(key, id, segment, now_ns) {
            self.table.value_mut(id).connections -= 1;
            if self.table.value(id).connections == 0 {
                self.end(id);
            }
            return Err(refusal);
        }
        Ok(id)
    }

    /// Begins a connection of an existing mapping.
    fn begin(&mut self, key: ConnectionKey, mapping: Id, segment: Segment, now_ns: u64) -> Result<(), Refusal> {
        let host = self.hosts.find(&key.inside.address).ok_or(Refusal::TableFull)?;
        let Host { connections, evictable, .. } = *self.hosts.value(host);
        if connections >= self.connections_per_host_max {
            self.end_connection(evictable.oldest().ok_or(Refusal::HostFull)?);
        }
        if self.connections.is_full() {
            self.end_weakest_connection().ok_or(Refusal::TableFull)?;
        }
        let host = self.hosts.value_mut(host);
        if !self.connections.begin(key, mapping, segment, &mut host.evictable, now_ns) {
            return Err(Refusal::TableFull);
        }
        host.connections += 1;
        Ok(())
    }

    /// Returns the inside end for a packet from this peer to an outside end. The first one prolongs the mapping, and no
    /// other does, as any outside host could do that. A segment of no known connection changes nothing.
    pub fn inward(
        &mut self,
        outside: Endpoint,
        peer: Endpoint,
        segment: Option<Segment>,
        now_ns: u64,
    ) -> Option<Endpoint> {
        let id = self.owner(outside, now_ns)?;
        let inside = *self.table.key(id);
        match segment {
            Some(segment) => {
                let key = ConnectionKey { inside, peer };
                if let Some(known) = self.connections.learn(&key, From::Outside, segment, now_ns) {
                    self.note_change(known, inside.address);
                }
            }
            None if self.table.value(id).life.is_unanswered() => self.answer(id, now_ns),
            None => {}
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
        for life in TIMED {
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
        let life = self.table.value(id).life;
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

    /// Keeps the host's lists right when the state of one of its connections has changed.
    #[inline]
    fn note_change(&mut self, known: Known, host: u32) {
        if let Some(before) = known.before
            && let Some(host) = self.hosts.find(&host)
        {
            self.connections.relist(known.id, before, &mut self.hosts.value_mut(host).evictable);
        }
    }

    /// Notes the first packet from outside for a mapping of UDP or ICMP.
    #[cold]
    fn answer(&mut self, id: Id, now_ns: u64) {
        self.unlist(id);
        let life = self.table.value(id).life.answered();
        self.table.value_mut(id).life = life;
        self.table.touch(id, life as usize, now_ns);
    }

    /// Takes an unanswered mapping off its host's list.
    fn unlist(&mut self, id: Id) {
        if let Some(host) = self.hosts.find(&self.table.key(id).address) {
            self.hosts.value_mut(host).unanswered.remove(&mut self.table, id);
        }
    }

    /// Evicts the connection that has been idle for longest of the opening ones, or else of the closing ones. If it was
    /// the last of its mapping, removes the mapping, too. Returns `None` if all connections are established.
    fn end_weakest_connection(&mut self) -> Option<()> {
        let weakest = self.connections.weakest()?;
        self.end_connection(weakest);
        Some(())
    }

    fn end_connection(&mut self, connection: Id) {
        let mapping = self.connections.mapping(connection);
        if let Some(host) = self.hosts.find(&self.table.key(mapping).address) {
            let host = self.hosts.value_mut(host);
            host.connections -= 1;
            self.connections.remove(connection, &mut host.evictable);
        }
        self.table.value_mut(mapping).connections -= 1;
        if self.table.value(mapping).connections == 0 {
            self.end(mapping);
        }
    }

    #[inline(never)]
    fn create(&mut self, inside: Endpoint, now_ns: u64) -> Result<Id, Refusal> {
        self.make_room_of(inside.address)?;
        // All mappings of a host have the same outside address ("paired"), as its peers may compare them.
        let outside = (self.hash(inside.address.into()) % self.outside.len() as u64) as u8;
        self.make_room(outside, inside.protocol)?;
        self.drawn += 1;
        let random = self.hash(u64::MAX - self.drawn);
        let ports = &mut self.ports[usize::from(outside) * Protocol::COUNT + inside.protocol as usize];
        let port = ports.take(random).ok_or(Refusal::NoPort)?;
        let life = Life::new(inside.protocol);
        let mapping = Mapping { life, outside, port, connections: 0, links: Links::default() };
        let id = self.table.insert(inside, mapping, life as usize, now_ns).ok_or(Refusal::TableFull)?;
        ports.assign(port, id);
        // There are at most as many hosts as mappings, so there is room.
        let known = self.hosts.find(&inside.address);
        if let Some(host) = known.or_else(|| self.hosts.insert(inside.address, Host::default(), 0, now_ns)) {
            let host = self.hosts.value_mut(host);
            host.mappings += 1;
            if life.is_unanswered() {
                host.unanswered.append(&mut self.table, id);
            }
        }
        Ok(id)
    }

    /// Makes room for a mapping among those of its host: if the host has its share, evicts its oldest unanswered one,
    /// or else connections of it that are not established, a few at most.
    fn make_room_of(&mut self, host: u32) -> Result<(), Refusal> {
        for _ in 0..ROOM_STEPS_MAX {
            let Some(Host { mappings, unanswered, evictable, .. }) =
                self.hosts.find(&host).map(|id| *self.hosts.value(id))
            else {
                return Ok(());
            };
            if mappings < self.per_host_max {
                return Ok(());
            }
            match (unanswered.oldest(), evictable.oldest()) {
                (Some(mapping), _) => self.end(mapping),
                (None, Some(connection)) => self.end_connection(connection),
                (None, None) => break,
            }
        }
        Err(Refusal::HostFull)
    }

    /// Makes room for a mapping: a table entry and a port of this outside address. If necessary, evicts mappings without
    /// an answer, or else opening or closing connections, a few at most.
    fn make_room(&mut self, outside: u8, protocol: Protocol) -> Result<(), Refusal> {
        for _ in 0..ROOM_STEPS_MAX {
            if self.table.len() == self.table.capacity() {
                match self.oldest_unanswered() {
                    Some(mapping) => self.end(mapping),
                    None => self.end_weakest_connection().ok_or(Refusal::TableFull)?,
                }
            } else if self.ports[usize::from(outside) * Protocol::COUNT + protocol as usize].is_empty() {
                // Connections have TCP ports only.
                match self.unanswered_at(outside, protocol) {
                    Some(mapping) => self.end(mapping),
                    None if protocol == Protocol::Tcp => self.end_weakest_connection().ok_or(Refusal::NoPort)?,
                    None => return Err(Refusal::NoPort),
                }
            } else {
                return Ok(());
            }
        }
        Err(Refusal::TableFull)
    }

    /// Returns the mapping without an answer that was used least recently.
    fn oldest_unanswered(&self) -> Option<Id> {
        let oldest = |life: Life| self.table.oldest(life as usize);
        let found = [Life::UdpUnanswered, Life::IcmpUnanswered].into_iter().filter_map(oldest);
        found.min_by_key(|(_, used_ns)| *used_ns).map(|(id, _)| id)
    }

    /// Returns an old mapping without an answer that has a port of this outside address.
    fn unanswered_at(&self, outside: u8, protocol: Protocol) -> Option<Id> {
        let life = Life::new(protocol);
        let mut old = self.table.iter(life as usize).take(if life.is_unanswered() { SEARCHED_MAX } else { 0 });
        let (inside, _) = old.find(|(_, mapping)| mapping.outside == outside)?;
        self.table.find(inside)
    }

    fn end(&mut self, id: Id) {
        if self.table.value(id).life.is_unanswered() {
            self.unlist(id);
        }
        let (inside, mapping) = self.table.remove(id);
        self.ports[usize::from(mapping.outside) * Protocol::COUNT + inside.protocol as usize].give_back(mapping.port);
        let Some(host) = self.hosts.find(&inside.address) else { return };
        self.hosts.value_mut(host).mappings -= 1;
        if self.hosts.value(host).mappings == 0 {
            self.hosts.remove(host);
        }
    }

    fn hash(&self, number: u64) -> u64 {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(number);
        hasher.finish()
    }
}

//! Who outside is who inside: the table of mappings, and how long they last.
//!
//! A mapping is of a protocol and an address and port inside, whoever is spoken to (endpoint-independent, RFC 4787), and has a port of its own of
//! an outside address, which is the same for all mappings of a host. It is bounded, takes all its memory when it is
//! made, and every call takes constant time.

use core::hash::Hasher;
use std::hash::DefaultHasher;

use pinion_sdk::headers::{ICMP, TCP, TcpFlags, UDP};
use pinion_sdk::lru::{Id, Lru};
use pinion_sdk::random;

use crate::config::Config;
use crate::ports::Ports;

/// Mappings of one kind that are ended at once, so that no batch waits for all that have become old meanwhile.
const EXPIRED_MAX: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// What is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// By ports.
    Tcp,
    /// By ports.
    Udp,
    /// Echoes, by their identifier.
    Icmp,
}

impl Protocol {
    const COUNT: usize = 3;

    /// That of a number.
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

/// One end, inside or outside: an address, and a port or an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Whose.
    pub protocol: Protocol,
    /// Of IPv4.
    pub address: u32,
    /// In an echo, the identifier.
    pub port: u16,
}

/// From where a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// From a host that is translated.
    Inside,
    /// From anybody else.
    Outside,
}

/// Why nothing is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are as many mappings as there may be.
    TableFull,
    /// The host has as many as it may have.
    HostFull,
    /// Its address has no port left.
    NoPort,
    /// A TCP segment of no connection that began here.
    NoConnection,
}

/// How long a mapping lasts, and in which of the table's queues it is.
#[derive(Clone, Copy)]
enum Life {
    TcpEstablished,
    TcpTransitory,
    Udp,
    Icmp,
}

const LIVES: usize = 4;

/// What was seen of the connections of a mapping of TCP.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    answered: bool,
    established: bool,
    fin_inside: bool,
    fin_outside: bool,
    reset: bool,
}

impl Connection {
    fn see(&mut self, from: From, flags: TcpFlags) {
        match from {
            From::Inside if flags.syn() => *self = Self::default(),
            From::Inside => {
                self.fin_inside |= flags.fin();
                self.established |= self.answered && flags.ack();
            }
            From::Outside => {
                self.fin_outside |= flags.fin();
                self.answered |= flags.ack();
            }
        }
        self.reset |= flags.rst();
    }

    fn life(self) -> Life {
        let is_over = self.reset || (self.fin_inside && self.fin_outside);
        if self.established && !is_over { Life::TcpEstablished } else { Life::TcpTransitory }
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// Number of the outside address.
    outside: u8,
    port: u16,
    connection: Connection,
}

/// All mappings.
#[derive(Debug)]
pub struct Mappings {
    table: Lru<Endpoint, Mapping, LIVES>,
    hosts: Lru<u32, u32>,
    per_host_max: u32,
    /// In order of addresses, and for each of protocols.
    ports: Vec<Ports>,
    outside: Vec<u32>,
    timeouts_ns: [u64; LIVES],
    /// Has taken in a key.
    keyed: DefaultHasher,
    drawn: u64,
}

impl Mappings {
    /// None as yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let times = config.timeouts_s;
        let timeouts_s = [times.tcp_established, times.tcp_transitory, times.udp, times.icmp];
        let ports = Ports::new(config.port_min, config.port_max);
        Self {
            table: Lru::with_capacity(config.mappings_max),
            hosts: Lru::with_capacity(config.mappings_max),
            per_host_max: config.mappings_per_host_max.unwrap_or(u32::MAX),
            ports: vec![ports; config.outside.len() * Protocol::COUNT],
            outside: config.outside.iter().map(|address| address.to_bits()).collect(),
            timeouts_ns: timeouts_s.map(|seconds| seconds * SECOND_NS),
            keyed: DefaultHasher::new(),
            drawn: 0,
        }
    }

    /// Draws the keys by which hashes and ports cannot be guessed.
    pub fn rekey(&mut self) {
        self.table.rekey();
        self.hosts.rekey();
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed.write(&key);
    }

    /// Whether an address is one that is translated to.
    #[must_use]
    pub fn is_outside(&self, address: u32) -> bool {
        self.outside.contains(&address)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What an end inside is outside, for a packet from there: it has a mapping from now on, and for its timeout.
    ///
    /// # Errors
    ///
    /// It has none and gets none.
    pub fn outward(&mut self, inside: Endpoint, flags: Option<TcpFlags>, now_ns: u64) -> Result<Endpoint, Refusal> {
        let flags = flags.unwrap_or_default();
        let id = match self.live(inside, now_ns) {
            Some(id) => id,
            None => self.create(inside, flags, now_ns)?,
        };
        let mapping = self.table.value_mut(id);
        mapping.connection.see(From::Inside, flags);
        let mapping = *mapping;
        self.table.touch(id, life(inside.protocol, mapping.connection) as usize, now_ns);
        Ok(self.outer(inside.protocol, mapping))
    }

    /// Who inside an end outside is, for a packet to there. That keeps no mapping from its end: strangers could.
    pub fn inward(&mut self, outside: Endpoint, flags: Option<TcpFlags>, now_ns: u64) -> Option<Endpoint> {
        let id = self.owner(outside, now_ns)?;
        let before = life(outside.protocol, self.table.value(id).connection) as usize;
        let mapping = self.table.value_mut(id);
        mapping.connection.see(From::Outside, flags.unwrap_or_default());
        let after = life(outside.protocol, mapping.connection) as usize;
        if after != before {
            self.table.touch(id, after, now_ns);
        }
        Some(*self.table.key(id))
    }

    /// What an end inside is outside, for an error about a packet: that makes no mapping, and keeps none.
    #[must_use]
    pub fn outside_of(&self, inside: Endpoint, now_ns: u64) -> Option<Endpoint> {
        let id = self.table.find(&inside).filter(|id| !self.is_over(*id, now_ns))?;
        Some(self.outer(inside.protocol, *self.table.value(id)))
    }

    /// Who inside an end outside is, likewise.
    #[must_use]
    pub fn inside_of(&self, outside: Endpoint, now_ns: u64) -> Option<Endpoint> {
        self.owner(outside, now_ns).map(|id| *self.table.key(id))
    }

    /// Ends mappings that are over, a bounded number of them; others that are count as ended.
    pub fn expire(&mut self, now_ns: u64) {
        for life in 0..LIVES {
            for _ in 0..EXPIRED_MAX {
                match self.table.oldest(life) {
                    Some((id, _)) if self.is_over(id, now_ns) => self.end(id),
                    _ => break,
                }
            }
        }
    }

    fn is_over(&self, id: Id, now_ns: u64) -> bool {
        let life = life(self.table.key(id).protocol, self.table.value(id).connection);
        now_ns >= self.table.used_ns(id).saturating_add(self.timeouts_ns[life as usize])
    }

    /// The mapping of an end inside; one that is over is ended.
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

    fn create(&mut self, inside: Endpoint, flags: TcpFlags, now_ns: u64) -> Result<Id, Refusal> {
        if inside.protocol == Protocol::Tcp && (!flags.syn() || flags.rst()) {
            return Err(Refusal::NoConnection);
        }
        if self.table.len() == self.table.capacity() {
            return Err(Refusal::TableFull);
        }
        let host = self.hosts.find(&inside.address);
        let of_host = host.map_or(0, |id| *self.hosts.value(id));
        if of_host >= self.per_host_max {
            return Err(Refusal::HostFull);
        }
        // One outside address for all that a host says ("paired"), as its peers may compare.
        let outside = (self.hash(inside.address.into()) % self.outside.len() as u64) as u8;
        self.drawn += 1;
        let random = self.hash(u64::MAX - self.drawn);
        let at = usize::from(outside) * Protocol::COUNT + inside.protocol as usize;
        let port = self.ports[at].take(random).ok_or(Refusal::NoPort)?;
        let mapping = Mapping { outside, port, connection: Connection::default() };
        let life = life(inside.protocol, mapping.connection) as usize;
        let id = self.table.insert(inside, mapping, life, now_ns).ok_or(Refusal::TableFull)?;
        self.ports[at].assign(port, id);
        match host {
            Some(host) => *self.hosts.value_mut(host) += 1,
            // There are no more hosts than mappings, so there is room.
            None => _ = self.hosts.insert(inside.address, 1, 0, now_ns),
        }
        Ok(id)
    }

    fn end(&mut self, id: Id) {
        let (inside, mapping) = self.table.remove(id);
        self.ports[usize::from(mapping.outside) * Protocol::COUNT + inside.protocol as usize].give_back(mapping.port);
        if let Some(host) = self.hosts.find(&inside.address) {
            *self.hosts.value_mut(host) -= 1;
            if *self.hosts.value(host) == 0 {
                self.hosts.remove(host);
            }
        }
    }

    fn hash(&self, number: u64) -> u64 {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(number);
        hasher.finish()
    }
}

fn life(protocol: Protocol, connection: Connection) -> Life {
    match protocol {
        Protocol::Tcp => connection.life(),
        Protocol::Udp => Life::Udp,
        Protocol::Icmp => Life::Icmp,
    }
}

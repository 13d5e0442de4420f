//! What the callback that runs may use: [`Call`]. Each call of `pinion/net.h` is a method here, in safe code.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::io::{Read, Write};

use pinion_abi::Descriptor;
use pinion_sdk::net::{Datagram, IpVersion, Sockets, Stream, StreamId, Target, UdpPeer};
use pinion_sdk::{SLOT_SIZE, foreign};

use crate::frames::{self, Given, Verdict};
use crate::program::Blocking;
use crate::results::{Close, Outcome};
use crate::types::{Address, Via};

/// What a call of C's was made in.
pub(crate) enum Call<'c, 'p> {
    /// A service's callback about a connection.
    Stream { stream: &'c mut Stream<'p>, is_closed: bool },
    /// A service's other callbacks; one with a datagram has it until it is answered.
    Sockets { sockets: Sockets<'p>, datagram: Option<Datagram<'p>> },
    /// A program's callback for packets.
    Frame(Sockets<'p>),
    /// A program itself.
    Program(&'c mut Blocking<'p>),
}

type Result<T, E = Outcome> = core::result::Result<T, E>;

/// Addresses and ports of the peer and of this end.
pub(crate) type Ends = (SocketAddr, SocketAddr);

impl<'c, 'p> Call<'c, 'p> {
    /// A call about a connection.
    pub(crate) fn about(stream: &'c mut Stream<'p>) -> Self {
        Self::Stream { stream, is_closed: false }
    }

    /// A call about nothing that is open.
    pub(crate) fn by(sockets: Sockets<'p>) -> Self {
        Self::Sockets { sockets, datagram: None }
    }

    /// Returns the connection that the callback is about, if it has this number and is not closed.
    fn stream(&mut self, number: u64) -> Result<&mut Stream<'p>> {
        match self {
            Self::Stream { stream, is_closed: false } if foreign::number_of_stream(stream.id()) == number => Ok(stream),
            Self::Stream { .. } => Err(Outcome::NoSocket),
            _ => Err(Outcome::NotNow),
        }
    }

    /// Calls `work` with a service's means.
    fn with_sockets<R>(&mut self, work: impl FnOnce(&mut Sockets<'_>) -> R) -> Result<R> {
        match self {
            Self::Stream { stream, .. } => Ok(work(&mut stream.sockets())),
            Self::Sockets { sockets, .. } => Ok(work(sockets)),
            Self::Frame(_) | Self::Program(_) => Err(Outcome::NotNow),
        }
    }

    /// Returns the program that makes the call.
    fn program(&mut self) -> Result<&mut Blocking<'p>> {
        match self {
            Self::Program(program) => Ok(program),
            _ => Err(Outcome::NotNow),
        }
    }

    pub(crate) fn read(&mut self, number: u64, bytes: &mut [u8]) -> Result<usize> {
        match self {
            Self::Program(program) => program.stream(number)?.read(bytes).map_err(Outcome::from),
            _ => self.stream(number)?.read(bytes).map_err(Outcome::from),
        }
    }

    pub(crate) fn write(&mut self, number: u64, bytes: &[u8]) -> Result<usize> {
        match self {
            Self::Program(program) => program.stream(number)?.write(bytes).map_err(Outcome::from),
            _ => self.stream(number)?.write(bytes).map_err(Outcome::from),
        }
    }

    pub(crate) fn write_all(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        self.program()?.stream(number)?.write_all(bytes).map_err(Outcome::from)
    }

    pub(crate) fn room(&mut self, number: u64) -> Result<usize> {
        self.stream(number).map(Stream::room)
    }

    pub(crate) fn shut_down(&mut self, number: u64) -> Result<()> {
        match self {
            Self::Program(program) => program.stream(number)?.shutdown(),
            _ => self.stream(number)?.shutdown(),
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, number: u64) -> Result<()> {
        if let Self::Program(program) = self {
            return program.take_stream(number).map(drop);
        }
        self.stream(number)?.close();
        self.set_closed();
        Ok(())
    }

    pub(crate) fn abort(&mut self, number: u64) -> Result<()> {
        if let Self::Program(program) = self {
            program.take_stream(number)?.abort();
            return Ok(());
        }
        if let Ok(stream) = self.stream(number) {
            stream.abort();
            self.set_closed();
            return Ok(());
        }
        self.with_known_stream(number, |sockets, stream| sockets.abort(stream))
    }

    fn set_closed(&mut self) {
        if let Self::Stream { is_closed, .. } = self {
            *is_closed = true;
        }
    }

    /// Calls `work` with any connection of a service that there is, unless the callback has closed it.
    fn with_known_stream(&mut self, number: u64, work: impl FnOnce(&mut Sockets<'_>, StreamId)) -> Result<()> {
        let id = foreign::stream_of(number);
        if matches!(self, Self::Stream { stream, is_closed: true } if stream.id() == id) {
            return Err(Outcome::NoSocket);
        }
        self.with_sockets(|sockets| {
            let is_there = sockets.has_stream(id);
            if is_there {
                work(sockets, id);
            }
            is_there.then_some(()).ok_or(Outcome::NoSocket)
        })?
    }

    pub(crate) fn reason(&mut self, number: u64) -> Result<Close> {
        let reason = match self {
            Self::Program(program) => program.stream(number)?.close_reason(),
            _ => self.stream(number)?.close_reason(),
        };
        Ok(reason.into())
    }

    pub(crate) fn ends(&mut self, number: u64) -> Result<Ends> {
        match self {
            Self::Program(program) => program.stream(number).map(|stream| (stream.peer_addr(), stream.local_addr())),
            _ => self.stream(number).map(|stream| (stream.peer(), stream.local())),
        }
    }

    pub(crate) fn via(&mut self, number: u64) -> Result<Via> {
        let via = match self {
            Self::Program(program) => program.stream(number)?.via(),
            _ => self.stream(number)?.via(),
        };
        Ok(via.into())
    }

    pub(crate) fn wake(&mut self, number: u64) -> Result<()> {
        self.with_known_stream(number, |sockets, stream| sockets.wake(stream))
    }

    pub(crate) fn wake_at(&mut self, number: u64, time_ns: Option<u64>) -> Result<()> {
        self.stream(number).map(|stream| stream.wake_at(time_ns))
    }

    pub(crate) fn connect(&mut self, to: &Address, via: Option<&Via>) -> Result<u64> {
        let target = target(to, via)?;
        match self {
            Self::Program(program) => program.connect(target),
            _ => Ok(foreign::number_of_stream(self.with_sockets(|sockets| sockets.connect(target))??)),
        }
    }

    pub(crate) fn send(&mut self, peer: &UdpPeer, payload: &[u8]) -> Result<()> {
        if payload.len() > peer.payload_bytes_max() {
            return Err(Outcome::TooLong);
        }
        match self {
            Self::Program(program) => program.send(peer, payload),
            _ => self.with_sockets(|sockets| sent(peer, payload, sockets))?,
        }
    }

    /// Returns where the slot of the datagram lies that the callback is about, or more than that: the addresses at which a payload may be part of
    /// it.
    pub(crate) fn datagram_range(&mut self) -> Result<Range<usize>> {
        let Self::Sockets { datagram: Some(datagram), .. } = self else { return Err(Outcome::NotNow) };
        let frame = datagram.packet().data().as_ptr().addr();
        Ok(frame.saturating_sub(SLOT_SIZE)..frame.saturating_add(SLOT_SIZE))
    }

    /// Answers the datagram that the callback is about, once.
    pub(crate) fn answer(&mut self, payload: &[u8]) -> Result<()> {
        let Self::Sockets { datagram, .. } = self else { return Err(Outcome::NotNow) };
        let answered = datagram.take().ok_or(Outcome::NotNow)?;
        if payload.len() > answered.peer().payload_bytes_max() {
            *datagram = Some(answered);
            return Err(Outcome::TooLong);
        }
        // Only a frame that a stage before this one has moved to the end of its slot leaves no room.
        if answered.answer(payload) { Ok(()) } else { Err(Outcome::Later) }
    }

    pub(crate) fn receive(&mut self, port: u16, bytes: &mut [u8]) -> Result<(usize, UdpPeer)> {
        self.program()?.receive(port, bytes)
    }

    pub(crate) fn open_flow(&mut self, to: &Address, via: Option<&Via>) -> Result<u64> {
        let target = target(to, via)?;
        match self {
            Self::Program(program) => program.open_flow(target),
            _ => Ok(foreign::number_of_flow(self.with_sockets(|sockets| sockets.open_udp(target))??)),
        }
    }

    pub(crate) fn close_flow(&mut self, number: u64) -> Result<()> {
        if let Self::Program(program) = self {
            return program.take_flow(number).map(drop);
        }
        let id = foreign::flow_of(number);
        self.with_sockets(|sockets| {
            let is_there = sockets.has_flow(id);
            sockets.close_udp(id);
            is_there.then_some(()).ok_or(Outcome::NoSocket)
        })?
    }

    pub(crate) fn flow_ends(&mut self, number: u64) -> Result<Ends> {
        if let Self::Program(program) = self {
            let flow = program.flow(number)?;
            return Ok((flow.peer_addr()?, flow.local_addr()?));
        }
        self.flow_peer(number).map(|peer| (peer.address(), peer.local()))
    }

    fn flow_peer(&mut self, number: u64) -> Result<UdpPeer> {
        self.with_sockets(|sockets| sockets.udp_peer(foreign::flow_of(number)))?.ok_or(Outcome::NoSocket)
    }

    pub(crate) fn send_by_flow(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        if let Self::Program(program) = self {
            return program.flow(number)?.send(payload).map_err(Outcome::from);
        }
        let peer = self.flow_peer(number)?;
        self.send(&peer, payload)
    }

    pub(crate) fn receive_by_flow(&mut self, number: u64, bytes: &mut [u8]) -> Result<usize> {
        self.program()?.receive_by_flow(number, bytes)
    }

    pub(crate) fn resolve(&mut self, name: &str, version: i32) -> Result<u64> {
        let version = version_of(version)?;
        let lookup = self.with_sockets(|sockets| sockets.resolve(name, version))??;
        Ok(foreign::number_of_lookup(lookup))
    }

    pub(crate) fn resolve_and_wait(&mut self, name: &str, version: i32) -> Result<Vec<IpAddr>> {
        let version = version_of(version)?;
        self.program()?.resolve(name, version)
    }

    pub(crate) fn accept(&mut self, port: u16) -> Result<u64> {
        self.program()?.accept(port)
    }

    pub(crate) fn set_timeout(&mut self, timeout_ns: Option<u64>) -> Result<()> {
        self.program()?.set_timeout(timeout_ns);
        Ok(())
    }

    pub(crate) fn sleep_until(&mut self, time_ns: u64) -> Result<()> {
        self.program()?.sleep_until(time_ns)
    }

    /// Does with a packet that C has what C has decided. Returns false if C has none in this slot, or only half of it.
    pub(crate) fn decide(&mut self, given: Given, verdict: Verdict) -> Result<bool> {
        match self {
            Self::Frame(sockets) => Ok(frames::take_back(given, verdict, sockets)),
            _ => self.with_sockets(|sockets| frames::take_back(given, verdict, sockets)),
        }
    }

    /// Makes a packet that goes this way.
    pub(crate) fn make(&mut self, way: u32) -> Result<(Descriptor, *mut u8)> {
        let made = match self {
            Self::Frame(sockets) => frames::make(way, sockets.slots()),
            _ => self.with_sockets(|sockets| frames::make(way, sockets.slots()))?,
        };
        made.ok_or(Outcome::Later)
    }
}

fn sent(peer: &UdpPeer, payload: &[u8], sockets: &Sockets<'_>) -> Result<()> {
    let sent = peer.send_with(sockets.slots(), |bytes| {
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        Some(payload.len())
    });
    match sent {
        Ok(true) => Ok(()),
        Ok(false) => Err(Outcome::Invalid),
        Err(_) => Err(Outcome::Later),
    }
}

fn target(to: &Address, via: Option<&Via>) -> Result<Target> {
    let to = to.socket().filter(|to| to.port() != 0).ok_or(Outcome::Invalid)?;
    Ok(Target { to, via: via.map(|via| (*via).into()) })
}

fn version_of(version: i32) -> Result<IpVersion> {
    match version {
        4 => Ok(IpVersion::V4),
        6 => Ok(IpVersion::V6),
        _ => Err(Outcome::Invalid),
    }
}

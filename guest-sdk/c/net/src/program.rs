//! A program in C, and what it has open: [`Blocking`].

use core::net::IpAddr;
use core::time::Duration;
use std::io;

use pinion_sdk::net::{IpVersion, Net, Program, Settings, Sockets, Target, TcpStream, UdpFlow, UdpPeer};
use pinion_sdk::{InitError, Packet, clock};

use crate::boundary::{callbacks, current};
use crate::call::Call;
use crate::frames;
use crate::results::Outcome;

/// A program whose callbacks are those of the C function.
#[derive(Debug)]
pub struct Guest;

impl Program for Guest {
    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, callbacks::init(config)?))
    }

    fn packet(packet: Packet<'_>, sockets: Sockets<'_>) {
        if !callbacks::has_packet() {
            return sockets.refuse(packet);
        }
        let (descriptor, slot) = frames::lend(packet);
        current::during(&mut Call::Frame(sockets), || callbacks::deliver(&descriptor, slot));
    }

    fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
        let mut blocking = Blocking::new(*net);
        current::during(&mut Call::Program(&mut blocking), callbacks::run);
        Ok(())
    }
}

type Result<T, E = Outcome> = core::result::Result<T, E>;

/// Sockets of a program, by their numbers.
pub(crate) struct Blocking<'p> {
    net: Net<'p>,
    streams: Vec<(u64, TcpStream<'p>)>,
    flows: Vec<(u64, UdpFlow<'p>)>,
    serial: u64,
    timeout: Option<Duration>,
}

impl<'p> Blocking<'p> {
    fn new(net: Net<'p>) -> Self {
        Self { net, streams: Vec::new(), flows: Vec::new(), serial: 0, timeout: None }
    }

    pub(crate) fn set_timeout(&mut self, timeout_ns: Option<u64>) {
        self.timeout = timeout_ns.map(Duration::from_nanos);
    }

    /// Returns a connection of this number, with the present limit of a read.
    pub(crate) fn stream(&mut self, number: u64) -> Result<&mut TcpStream<'p>> {
        let (_, stream) = self.streams.iter_mut().find(|(of, _)| *of == number).ok_or(Outcome::NoSocket)?;
        stream.set_read_timeout(self.timeout);
        Ok(stream)
    }

    /// Takes a connection out; its number is none any more.
    pub(crate) fn take_stream(&mut self, number: u64) -> Result<TcpStream<'p>> {
        let at = self.streams.iter().position(|(of, _)| *of == number).ok_or(Outcome::NoSocket)?;
        Ok(self.streams.swap_remove(at).1)
    }

    fn keep_stream(&mut self, stream: TcpStream<'p>) -> u64 {
        self.serial += 1;
        self.streams.push((self.serial, stream));
        self.serial
    }

    pub(crate) fn accept(&mut self, port: u16) -> Result<u64> {
        let accepted = match (self.timeout, port) {
            (None, 0) => self.net.accept(),
            (None, port) => self.net.accept_on(port),
            (Some(timeout), 0) => self.net.accept_timeout(timeout),
            (Some(timeout), port) => self.net.accept_on_timeout(port, timeout),
        };
        let (stream, _peer) = accepted?;
        Ok(self.keep_stream(stream))
    }

    pub(crate) fn connect(&mut self, target: Target) -> Result<u64> {
        let stream = match self.timeout {
            None => self.net.connect(target),
            Some(timeout) => self.net.connect_timeout(target, timeout),
        }?;
        Ok(self.keep_stream(stream))
    }

    pub(crate) fn send(&mut self, peer: &UdpPeer, payload: &[u8]) -> Result<()> {
        // Any port's socket sends to any peer.
        Ok(self.net.send_to(payload, peer)?)
    }

    pub(crate) fn receive(&mut self, port: u16, bytes: &mut [u8]) -> Result<(usize, UdpPeer)> {
        let mut socket = self.net.udp_socket(port)?;
        socket.set_read_timeout(self.timeout);
        Ok(socket.recv_from(bytes)?)
    }

    pub(crate) fn open_flow(&mut self, target: Target) -> Result<u64> {
        let flow = self.net.udp_flow(target)?;
        self.serial += 1;
        self.flows.push((self.serial, flow));
        Ok(self.serial)
    }

    /// Returns a flow of this number.
    pub(crate) fn flow(&mut self, number: u64) -> Result<&mut UdpFlow<'p>> {
        self.flows.iter_mut().find(|(of, _)| *of == number).map(|(_, flow)| flow).ok_or(Outcome::NoSocket)
    }

    /// Takes a flow out; its number is none any more.
    pub(crate) fn take_flow(&mut self, number: u64) -> Result<UdpFlow<'p>> {
        let at = self.flows.iter().position(|(of, _)| *of == number).ok_or(Outcome::NoSocket)?;
        Ok(self.flows.swap_remove(at).1)
    }

    pub(crate) fn receive_by_flow(&mut self, number: u64, bytes: &mut [u8]) -> Result<usize> {
        let timeout = self.timeout;
        let flow = self.flow(number)?;
        flow.set_read_timeout(timeout);
        Ok(flow.recv(bytes)?)
    }

    pub(crate) fn resolve(&mut self, name: &str, version: IpVersion) -> Result<Vec<IpAddr>> {
        Ok(self.net.resolve(name, version)?)
    }

    pub(crate) fn sleep_until(&mut self, time_ns: u64) -> Result<()> {
        Ok(self.net.sleep(Duration::from_nanos(time_ns.saturating_sub(clock::now_ns())))?)
    }
}

//! Clients and servers for native tests of functions with sockets: [`Network`], smoltcp's own stack at the other end of a fake wire. It also
//! plays the node that opens [flows](crate::outbound).
//!
//! Time passes only when a test lets it pass. So a test of minutes takes no time, and runs the same each time.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, Ipv4Packet, UdpPacket};

use super::MTU_BYTES;
use super::link::Flow;
pub use super::program::play;
use crate::headers::{Headers, UDP};
use crate::outbound::End;
use crate::packets::udp;
use crate::testing::{FlowNode, Harness, Outcome, Verdict};
use crate::{Direction, Function, InitError, clock};

/// The hardware address of the function, and that of the clients.
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// See [`STATION`].
const CLIENTS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ETHERNET_HEADER: usize = 14;
/// How long clients and function may delay an acknowledgement.
const SETTLING_NS: u64 = 30_000_000;
/// How long a condition may take to come true.
const UNTIL_NS_MAX: u64 = 3_600_000_000_000;
const FIRST_PORT: u16 = 49_152;

/// The direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// To the function.
    Function,
    /// To the clients, and to servers.
    Clients,
}

/// A client's connection, or that of a server to which the function connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(SocketHandle);

/// A UDP server: returns the answers to a datagram from this address.
type UdpServer = dyn FnMut(SocketAddr, &[u8]) -> Vec<Vec<u8>>;

/// Decides which frames arrive, and in which order.
type Fate = dyn FnMut(Towards, Vec<Vec<u8>>) -> Vec<Vec<u8>>;

/// A function on a fake node, and any number of clients on the same wire.
pub struct Network<F: Function> {
    /// The fake node, for frames that no client sends.
    pub harness: Harness<F>,
    /// The fake node's flows.
    pub node: FlowNode,
    interface: Interface,
    sockets: SocketSet<'static>,
    queues: Queues,
    fate: Box<Fate>,
    next_port: u16,
    udp_servers: Vec<(SocketAddr, Box<UdpServer>)>,
    /// The ports of the chain's next stage; the chain has a way back if there is one.
    next_stage: Vec<SocketAddr>,
    /// Frames of UDP servers, and what the node says.
    pending: Vec<Vec<u8>>,
}

impl<F: Function> Network<F> {
    /// Prepares a function with this configuration; no client is connected yet.
    ///
    /// # Errors
    ///
    /// The function refuses its configuration.
    pub fn new(config: &[u8]) -> Result<Self, InitError> {
        let harness = Harness::new(config)?;
        let mut queues = Queues::default();
        let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut queues, now());
        interface.set_any_ip(true);
        let fate = Box::new(|_: Towards, frames: Vec<Vec<u8>>| frames);
        Ok(Self {
            harness,
            node: FlowNode::default(),
            interface,
            sockets: SocketSet::new(vec![]),
            queues,
            fate,
            next_port: FIRST_PORT,
            udp_servers: Vec::new(),
            next_stage: Vec::new(),
            pending: Vec::new(),
        })
    }

    /// From now on, `fate` decides which frames of those sent together arrive, and in which order.
    pub fn impair(&mut self, fate: impl FnMut(Towards, Vec<Vec<u8>>) -> Vec<Vec<u8>> + 'static) {
        self.fate = Box::new(fate);
    }

    /// Connects a client from an address, with a receive buffer of 64 KiB. It is connected once the network has [settled](Self::settle).
    ///
    /// # Panics
    ///
    /// If the addresses are of different versions, or not valid for a client or a server.
    pub fn connect(&mut self, from: IpAddr, to: SocketAddr) -> Client {
        self.connect_with_window(from, to, 64 << 10)
    }

    /// Connects a client with a receive buffer of `window_bytes`.
    ///
    /// # Panics
    ///
    /// As [`Network::connect`].
    pub fn connect_with_window(&mut self, from: IpAddr, to: SocketAddr, window_bytes: usize) -> Client {
        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(window_bytes), buffer(1 << 20));
        socket.set_nagle_enabled(false);
        let local = (from, self.next_port);
        self.next_port += 1;
        socket.connect(self.interface.context(), to, local).expect("a client can connect from there to there");
        Client(self.sockets.add(socket))
    }

    /// Makes a server that accepts one connection of the function to this address. Without one, a connection there is refused.
    ///
    /// # Panics
    ///
    /// If the port is 0.
    pub fn listen(&mut self, at: SocketAddr) -> Client {
        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(64 << 10), buffer(1 << 20));
        socket.set_nagle_enabled(false);
        socket.listen((at.ip(), at.port())).expect("a server can listen there");
        Client(self.sockets.add(socket))
    }

    /// Adds a next stage to the chain, which has a way back from now on. It answers what the function sends to this address by its first
    /// output: it refuses connections there, until there is a [server](Network::listen).
    pub fn add_next_stage(&mut self, at: SocketAddr) {
        self.next_stage.push(at);
    }

    /// [Adds](Network::add_next_stage) a next stage with a server that accepts one connection.
    ///
    /// # Panics
    ///
    /// As [`Network::listen`].
    pub fn listen_at_next_stage(&mut self, at: SocketAddr) -> Client {
        self.add_next_stage(at);
        self.listen(at)
    }

    /// Makes a UDP server at this address, which answers a datagram from another address with the datagrams that `server` returns.
    pub fn serve_udp(&mut self, at: SocketAddr, server: impl FnMut(SocketAddr, &[u8]) -> Vec<Vec<u8>> + 'static) {
        self.udp_servers.push((at, Box::new(server)));
    }

    /// Ends a flow, by its number, and tells the function.
    ///
    /// # Panics
    ///
    /// If it is not open.
    pub fn end_flow(&mut self, number: u64, end: End) {
        let news = self.node.end(number, end);
        self.deliver(&news);
    }

    /// Queues bytes for a client to send.
    ///
    /// # Panics
    ///
    /// If it cannot send, or has a mebibyte queued already.
    pub fn send(&mut self, client: Client, bytes: &[u8]) {
        // Bytes that are queued before the connection exists are sent once it does.
        if self.socket(client).state() == State::SynSent {
            self.settle();
        }
        assert_eq!(self.socket(client).send_slice(bytes), Ok(bytes.len()), "the client cannot send");
    }

    /// Returns what a client has received since the last call.
    pub fn received(&mut self, client: Client) -> Vec<u8> {
        let mut received = Vec::new();
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = self.socket(client).recv_slice(&mut part) {
            received.extend_from_slice(&part[..count]);
        }
        received
    }

    /// Sends a datagram from a client's address, and returns the payloads of the datagrams that the function sends back to it at once.
    ///
    /// # Panics
    ///
    /// If the addresses are of different versions, or the payload is too long for a packet.
    pub fn ask(&mut self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<Vec<u8>> {
        let headers = udp::headers_bytes(to);
        let verdicts = self.harness.deliver(&[&framed(&datagram(from, to, payload))]);
        let is_answer = |verdict: &Verdict| {
            let headers = Headers::of(&verdict.bytes).ok().filter(|headers| headers.protocol == UDP);
            let flow = headers.and_then(|headers| Flow::of(&headers));
            verdict.outcome == Outcome::Replied && flow.is_some_and(|flow| (flow.peer(), flow.local()) == (to, from))
        };
        let (answers, others): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(is_answer);
        self.take(others);
        answers.into_iter().map(|answer| answer.bytes[ETHERNET_HEADER + headers..].to_vec()).collect()
    }

    /// Delivers a frame that no client sends, from a port of the node's.
    pub fn deliver(&mut self, frame: &[u8]) {
        let direction = self.has_way_back().then_some(Direction::Forward);
        let verdicts = match direction {
            Some(direction) => self.harness.deliver_direction(direction, 0, &[frame]),
            None => self.harness.deliver(&[frame]),
        };
        self.take(verdicts);
    }

    /// Delivers a frame as a reply of the chain's next stage.
    pub fn deliver_from_next_stage(&mut self, frame: &[u8]) {
        let verdicts = self.harness.deliver_reply(Direction::Backward, 0, &[frame]);
        self.take(verdicts);
    }

    fn has_way_back(&self) -> bool {
        !self.next_stage.is_empty()
    }

    /// Delivers frames: those from an address of the next stage as its replies.
    fn deliver_all(&mut self, frames: &[Vec<u8>]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let is_reply = |frame: &Vec<u8>| ends(frame).is_some_and(|(from, _)| self.next_stage.contains(&from));
        for run in frames.chunk_by(|one, next| is_reply(one) == is_reply(next)) {
            let is_reply = is_reply(&run[0]);
            let run: Vec<&[u8]> = run.iter().map(Vec::as_slice).collect();
            verdicts.extend(match (is_reply, self.has_way_back()) {
                (true, _) => self.harness.deliver_reply(Direction::Backward, 0, &run),
                (false, true) => self.harness.deliver_direction(Direction::Forward, 0, &run),
                (false, false) => self.harness.deliver(&run),
            });
        }
        verdicts
    }

    /// Closes a client's sending side.
    pub fn close(&mut self, client: Client) {
        self.socket(client).close();
    }

    /// Resets a client's connection.
    pub fn abort(&mut self, client: Client) {
        self.socket(client).abort();
    }

    /// Returns whether a client is connected, and neither end has closed.
    pub fn is_connected(&mut self, client: Client) -> bool {
        self.socket(client).state() == State::Established
    }

    /// Returns whether the function has closed or reset the connection, and the client has read everything.
    pub fn is_ended(&mut self, client: Client) -> bool {
        !matches!(self.socket(client).state(), State::SynSent) && !self.socket(client).may_recv()
    }

    /// Returns whether a client's connection was refused or reset, or both sides have closed.
    pub fn is_closed(&mut self, client: Client) -> bool {
        matches!(self.socket(client).state(), State::Closed | State::TimeWait)
    }

    /// Exchanges frames until neither the clients nor the function send any more, and lets a few milliseconds pass.
    pub fn settle(&mut self) {
        self.let_pass_ns(SETTLING_NS);
    }

    /// Exchanges frames while that time passes.
    pub fn let_pass_ns(&mut self, duration_ns: u64) {
        let end_ns = clock::now_ns() + duration_ns;
        while clock::now_ns() < end_ns {
            self.step(end_ns);
        }
        self.exchange();
    }

    /// Lets time pass until a condition holds.
    ///
    /// # Panics
    ///
    /// If it does not within an hour.
    pub fn until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        let end_ns = clock::now_ns() + UNTIL_NS_MAX;
        while !holds(self) {
            assert!(clock::now_ns() < end_ns, "it has not come true within an hour");
            self.step(end_ns);
        }
    }

    fn socket(&mut self, client: Client) -> &mut Socket<'static> {
        self.sockets.get_mut(client.0)
    }

    /// Exchanges the frames that are ready, or lets time pass until the next timer expires.
    pub(super) fn step(&mut self, end_ns: u64) {
        if self.exchange() {
            return;
        }
        let at_ns = |at: Instant| at.total_micros().max(0) as u64 * 1_000;
        let clients_ns = self.interface.poll_at(now(), &self.sockets).map(at_ns);
        let function_ns = self.harness.function().deadline_ns();
        let next_ns = clients_ns.into_iter().chain(function_ns).min().unwrap_or(end_ns);
        let step_ns = next_ns.min(end_ns).saturating_sub(clock::now_ns()).max(1_000);
        let verdicts = self.harness.let_pass_ns(step_ns);
        self.take(verdicts);
    }

    /// Exchanges frames. Returns whether there were any.
    fn exchange(&mut self) -> bool {
        let had_received = !self.queues.received.is_empty();
        self.interface.poll(now(), &mut self.queues, &mut self.sockets);
        let packets = std::mem::take(&mut self.queues.sent);
        let mut frames = std::mem::take(&mut self.pending);
        let sent: Vec<_> = packets.into_iter().map(|packet| framed(&packet)).collect();
        if frames.is_empty() && sent.is_empty() {
            return had_received;
        }
        if !sent.is_empty() {
            frames.extend((self.fate)(Towards::Function, sent).into_iter().filter(|frame| self.node.lets_in(frame)));
        }
        let verdicts = self.deliver_all(&frames);
        self.take(verdicts);
        true
    }

    fn take(&mut self, verdicts: Vec<Verdict>) {
        let mut answers = Vec::new();
        for verdict in verdicts {
            match verdict.outcome {
                Outcome::Replied => {}
                Outcome::Sent if self.is_for_next_stage(&verdict) => {
                    answers.push(verdict.bytes);
                    continue;
                }
                _ => continue,
            }
            let (is_request, answer) = self.node.answer(&verdict.bytes);
            self.pending.extend(answer);
            if !is_request && self.node.lets_out(&verdict.bytes) {
                answers.push(verdict.bytes);
            }
        }
        if answers.is_empty() {
            return;
        }
        for frame in (self.fate)(Towards::Clients, answers) {
            let macs = (&frame[..6], &frame[6..12]);
            // The node writes the addresses of what leaves by a flow.
            let is_of_flow = macs == (&[0; 6][..], &[0; 6][..]);
            let is_of_next_stage = ends(&frame).is_some_and(|(_, to)| self.next_stage.contains(&to));
            let right = if is_of_next_stage { (&STATION[..], &CLIENTS[..]) } else { (&CLIENTS[..], &STATION[..]) };
            assert!(
                is_of_flow || macs == right,
                "an answer goes back where it came from, and to the next stage as the client's"
            );
            if !self.serve(&frame) {
                self.queues.received.push_back(frame[ETHERNET_HEADER..].to_vec());
            }
        }
    }

    fn is_for_next_stage(&self, verdict: &Verdict) -> bool {
        let is_forward = verdict.direction == Some(Direction::Forward);
        is_forward && ends(&verdict.bytes).is_some_and(|(_, to)| self.next_stage.contains(&to))
    }

    /// Gives a frame to the UDP server that it is for. Returns whether there is one.
    fn serve(&mut self, frame: &[u8]) -> bool {
        let headers = Headers::of(frame).ok().filter(|headers| headers.protocol == UDP);
        let Some((headers, flow)) = headers.and_then(|headers| Some((headers, Flow::of(&headers)?))) else {
            return false;
        };
        let (from, to) = (flow.peer(), flow.local());
        let Some((_, server)) = self.udp_servers.iter_mut().find(|(at, _)| *at == to) else { return false };
        let answers = server(from, &frame[headers.at.payload..headers.at.end]);
        let frames = answers.iter().map(|answer| framed(&datagram(to, from, answer)));
        self.pending.extend(frames.filter(|frame| self.node.lets_in(frame)));
        true
    }
}

/// Returns the sender's and the receiver's address of a frame with ports.
fn ends(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let flow = Flow::of(&Headers::of(frame).ok()?)?;
    Some((flow.peer(), flow.local()))
}

/// Makes an IP packet with a datagram, with right checksums.
fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let headers = udp::headers_bytes(to);
    let mut packet = vec![0; headers];
    packet.extend_from_slice(payload);
    udp::write_headers(&mut packet, from, to).expect("a datagram between addresses of one version");
    let mut datagram = UdpPacket::new_unchecked(&mut packet[headers - udp::UDP_HEADER..]);
    datagram.fill_checksum(&from.ip().into(), &to.ip().into());
    if from.is_ipv4() {
        Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
    }
    packet
}

fn now() -> Instant {
    Instant::ZERO + Duration::from_micros(clock::now_ns() / 1_000)
}

fn framed(packet: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&STATION[..], &CLIENTS, &ethertype, packet].concat()
}

/// IP packets on their way to and from the clients.
#[derive(Default)]
struct Queues {
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Device for Queues {
    type RxToken<'t> = Received;
    type TxToken<'t> = Sending<'t>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sending<'_>)> {
        let received = self.received.pop_front()?;
        Some((Received(received), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU_BYTES;
        capabilities
    }
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

struct Sending<'t>(&'t mut Vec<Vec<u8>>);

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}

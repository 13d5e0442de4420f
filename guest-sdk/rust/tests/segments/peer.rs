//! A peer that sends single segments over one connection, and shows the answers.

use std::net::SocketAddr;

use super::{ACK, CURT, Echoes, FIN, Fields, PSH, RST, SYN, URG, answers, at_v4, at_v6, echoes, frame, read, v4};

/// The peer's initial sequence number.
pub(crate) const FIRST: u32 = 0xffff_ff00;
/// The service's initial window.
pub(crate) const WINDOW: u32 = 16 << 10;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// A peer under the test's control. Numbers are relative: the peer's to [`FIRST`], the service's to its own initial number.
pub(crate) struct Peer {
    pub(crate) network: Echoes,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The service's initial sequence number.
    pub(crate) theirs: u32,
    pub(crate) window: u16,
    /// The options of its SYNs.
    pub(crate) options: Vec<u8>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::between((v4(1), 4_000).into(), at_v4(7))
    }

    pub(crate) fn between(from: SocketAddr, to: SocketAddr) -> Self {
        Self { network: echoes(), from, to, theirs: 0, window: 0xffff, options: vec![] }
    }

    /// Returns a connected peer for each version of IP.
    pub(crate) fn of_both_versions() -> [Self; 2] {
        let mut peers = [Self::new(), Self::between("[fd77::11]:4000".parse().unwrap(), at_v6(7))];
        for peer in &mut peers {
            assert_eq!(peer.open(FIRST), ["SYN,ACK 0 1"]);
            assert!(peer.send(ACK, 1, 1, b"").is_empty());
        }
        peers
    }

    /// Returns a peer with a handshake that lacks only its last segment.
    pub(crate) fn half_open() -> Self {
        let mut peer = Self::new();
        assert_eq!(peer.open(FIRST), ["SYN,ACK 0 1"]);
        peer
    }

    /// Returns a connected peer.
    pub(crate) fn connected() -> Self {
        let mut peer = Self::half_open();
        assert!(peer.send(ACK, 1, 1, b"").is_empty());
        peer
    }

    /// Returns a peer after the service has closed, which the peer has acknowledged.
    pub(crate) fn closed_by_service() -> Self {
        let mut peer = Self { network: Echoes::new(CURT).unwrap(), ..Self::new() };
        peer.open(FIRST);
        assert!(peer.send(ACK, 1, 1, b"").is_empty());
        assert_eq!(peer.send(ACK, 1, 1, b"bye"), ["FIN,ACK 1 4"]);
        peer
    }

    /// Returns a peer with a connection in TIME-WAIT.
    pub(crate) fn over() -> Self {
        let mut peer = Self::closed_by_service();
        assert_eq!(peer.send(ACK | FIN, 4, 2, b"").last().unwrap(), "ACK 2 5");
        peer
    }

    /// Sends a SYN, and records the service's initial sequence number from its answer.
    pub(crate) fn open(&mut self, seq: u32) -> Vec<String> {
        let (window, options) = (self.window, self.options.clone());
        let fields = Fields { flags: SYN, seq, ack: 0, window, options, payload: vec![] };
        let frames = answers(&mut self.network, &frame(self.from, self.to, &fields));
        if let Some(fields) = frames.first().map(|frame| read(frame)).filter(|fields| fields.flags == SYN | ACK) {
            self.theirs = fields.seq;
        }
        frames.iter().map(|frame| self.show(frame)).collect()
    }

    pub(crate) fn frame(&self, flags: u8, seq: i64, ack: i64, payload: &[u8]) -> Vec<u8> {
        let at = |first: u32, number: i64| first.wrapping_add(number as u32);
        let ack = if flags & ACK == 0 { 0 } else { at(self.theirs, ack) };
        let (window, payload) = (self.window, payload.to_vec());
        frame(self.from, self.to, &Fields { flags, seq: at(FIRST, seq), ack, window, options: vec![], payload })
    }

    /// Sends a segment, and returns the immediate answers.
    pub(crate) fn send(&mut self, flags: u8, seq: i64, ack: i64, payload: &[u8]) -> Vec<String> {
        let frame = self.frame(flags, seq, ack, payload);
        answers(&mut self.network, &frame).iter().map(|frame| self.show(frame)).collect()
    }

    /// Lets time pass, and returns what the service sends meanwhile.
    pub(crate) fn wait(&mut self, duration_ns: u64) -> Vec<String> {
        let verdicts = self.network.harness.let_pass_ns(duration_ns);
        verdicts.iter().map(|verdict| self.show(&verdict.bytes)).collect()
    }

    /// Formats a segment: flags, sequence number, acknowledgement, and length of the payload if there is one.
    pub(crate) fn show(&self, frame: &[u8]) -> String {
        let fields = read(frame);
        let seq = fields.seq.wrapping_sub(self.theirs) as i32;
        let ack = fields.ack.wrapping_sub(FIRST) as i32;
        let mut text = format!("{} {seq}", names(fields.flags & !PSH));
        if fields.flags & ACK != 0 {
            text += &format!(" {ack}");
        }
        if !fields.payload.is_empty() {
            text += &format!(" +{}", fields.payload.len());
        }
        text
    }

    /// Checks that the service still echoes data at these numbers.
    pub(crate) fn assert_echoes(&mut self, seq: i64, ack: i64) {
        let answers = self.send(ACK | PSH, seq, ack, b"hi");
        assert_eq!(answers, [format!("ACK {ack} {} +2", seq + 2)]);
    }
}

pub(crate) fn names(flags: u8) -> String {
    let names = [(FIN, "FIN"), (SYN, "SYN"), (RST, "RST"), (PSH, "PSH"), (ACK, "ACK"), (URG, "URG")];
    let names: Vec<_> = names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
    names.join(",")
}

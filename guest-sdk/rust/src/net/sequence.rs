//! Sequence numbers of one connection, and the checks of RFC 9293 (section 3.10.7.4) and RFC 5961 on a segment that arrives for it.
//!
//! smoltcp implements the protocol, but does not expose its numbers, and does not answer in all cases in which these RFCs require an
//! answer. So the numbers are derived from the segments sent ([`Sent`]) and from the bytes read and written. [`judge`] checks a segment by
//! them before smoltcp gets it, if at all. Nothing here allocates or blocks, and the only loop is over a header's options.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpRepr};

use crate::headers::TcpFlags;

/// Most bytes of an IP header and a TCP header with all the options of a SYN,ACK.
const SYN_ACK_BYTES_MAX: usize = 40 + 60;

/// Returns whether a number comes before another (RFC 9293, section 3.4).
pub(super) fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

/// A segment with data that was sent more than once.
#[derive(Clone, Copy, Debug, Default)]
struct Repeated {
    seq: u32,
    bytes: u16,
    times: u8,
}

/// The latest numbers in a connection's own segments.
pub(super) struct Sent {
    /// The initial sequence number, that of the SYN.
    pub(super) first: u32,
    /// The number after the highest that was sent.
    pub(super) next: u32,
    /// The first number beyond the last window that was offered to the peer.
    pub(super) window_end: u32,
    /// The window scale; `None` if the two sides did not agree on one.
    pub(super) shift: Option<u8>,
    /// Segments sent since this was last set to 0.
    pub(super) count: u32,
    /// The segment that was sent again last: its number, the bytes of its packet, and how often.
    repeated: Repeated,
    syn_ack: [u8; SYN_ACK_BYTES_MAX],
    syn_ack_len: usize,
}

impl Default for Sent {
    fn default() -> Self {
        let syn_ack = [0; SYN_ACK_BYTES_MAX];
        Self {
            first: 0,
            next: 0,
            window_end: 0,
            shift: None,
            count: 0,
            repeated: Repeated::default(),
            syn_ack,
            syn_ack_len: 0,
        }
    }
}

impl Sent {
    /// Records an IP packet that is sent.
    pub(super) fn note(&mut self, ip: &[u8]) {
        self.count += 1;
        let Some(tcp) = tcp_of(ip) else { return };
        if tcp.rst() {
            return;
        }
        let end = (tcp.seq_number() + tcp.segment_len()).0 as u32;
        if tcp.syn() {
            self.shift = window_scale(&tcp);
            self.first = tcp.seq_number().0 as u32;
            self.next = end;
            self.syn_ack_len = ip.len().min(SYN_ACK_BYTES_MAX);
            self.syn_ack[..self.syn_ack_len].copy_from_slice(&ip[..self.syn_ack_len]);
        } else if is_before(self.next, end) {
            self.next = end;
        } else if !tcp.payload().is_empty() {
            self.note_repeated(tcp.seq_number().0 as u32, ip.len());
        }
        // The window of a SYN is not shifted (RFC 7323, section 2.2).
        let shift = if tcp.syn() { 0 } else { self.shift.unwrap_or(0) };
        self.window_end = (tcp.ack_number().0 as u32).wrapping_add(u32::from(tcp.window_len()) << shift);
    }

    /// Records what the peer has answered to the SYN: its next number, and whether windows are scaled.
    pub(super) fn agree(&mut self, receive_next: u32, peer_scale: Option<u8>) {
        self.shift = self.shift.and_then(|shift| peer_scale.map(|_| shift));
        // A SYN acknowledges nothing, so what it has offered counts from 0.
        self.window_end = self.window_end.wrapping_add(receive_next);
    }

    fn note_repeated(&mut self, seq: u32, bytes: usize) {
        let times = if self.repeated.seq == seq { self.repeated.times.saturating_add(1) } else { 1 };
        self.repeated = Repeated { seq, bytes: u16::try_from(bytes).unwrap_or(u16::MAX), times };
    }

    /// Returns the bytes of the packet that was sent again last, if it was at least so many times.
    pub(super) fn repeated_bytes(&self, times: u8) -> Option<u16> {
        (self.repeated.times >= times).then_some(self.repeated.bytes)
    }

    /// Begins to count anew, as the segment will be sent in another form.
    pub(super) fn forget_repeated(&mut self) {
        self.repeated.times = 0;
    }

    /// Returns whether the SYN, or the SYN,ACK, was sent.
    pub(super) fn has_begun(&self) -> bool {
        self.syn_ack_len > 0
    }

    /// Returns the SYN,ACK as it was sent.
    pub(super) fn syn_ack(&self) -> &[u8] {
        &self.syn_ack[..self.syn_ack_len]
    }
}

/// Returns the segment in an IP packet without extension headers, if it is complete.
fn tcp_of(ip: &[u8]) -> Option<TcpPacket<&[u8]>> {
    let payload = match ip.first()? >> 4 {
        4 => Ipv4Packet::new_checked(ip).ok().filter(|ip| ip.next_header() == IpProtocol::Tcp)?.payload(),
        _ => Ipv6Packet::new_checked(ip).ok().filter(|ip| ip.next_header() == IpProtocol::Tcp)?.payload(),
    };
    TcpPacket::new_checked(payload).ok()
}

/// Returns the window scale option of a SYN.
pub(super) fn window_scale(syn: &TcpPacket<&[u8]>) -> Option<u8> {
    options(syn)?.window_scale
}

/// Returns a segment with its options; `None` if these are malformed.
pub(super) fn options<'p>(segment: &TcpPacket<&'p [u8]>) -> Option<TcpRepr<'p>> {
    // The addresses are used only for the checksum, which is not verified here.
    let nowhere = IpAddress::v4(0, 0, 0, 0);
    TcpRepr::parse(segment, &nowhere, &nowhere, &ChecksumCapabilities::ignored()).ok()
}

/// The fields by which a segment is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) flags: TcpFlags,
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Bytes of its payload.
    pub(super) len: u32,
    pub(super) window: u16,
}

impl Arrived {
    /// Returns the segment's length in sequence numbers: its payload, SYN and FIN (RFC 9293, section 3.4).
    pub(super) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.flags.syn()) + u32::from(self.flags.fin())
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// SYN-SENT.
    Connecting,
    /// SYN-RECEIVED.
    Opening,
    /// The handshake is done, and the peer has not closed.
    Open,
    /// The peer has closed.
    PeerClosed,
    /// TIME-WAIT.
    Over,
}

/// A connection's sequence numbers, with the names of RFC 9293.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) stage: Stage,
    /// IRS.
    pub(super) peer_first: u32,
    /// RCV.NXT.
    pub(super) receive_next: u32,
    /// RCV.NXT + RCV.WND.
    pub(super) window_end: u32,
    /// SND.UNA.
    pub(super) unacknowledged: u32,
    /// SND.NXT.
    pub(super) send_next: u32,
    /// MAX.SND.WND of RFC 5961, section 5.2.
    pub(super) peer_window_max: u32,
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Drop it.
    Drop,
    /// Give it to smoltcp with these changes.
    Take(Changes),
    /// Give it to smoltcp, and acknowledge it in any case: the segment, or all of its payload, is not acceptable.
    Acknowledge(Changes),
    /// Answer with an acknowledgement, at a limited rate, and do nothing else (RFC 5961).
    Challenge,
    /// The peer has reset the connection.
    Reset,
    /// Answer as a segment of no connection: it acknowledges what was not sent.
    Refuse,
    /// Repeat the SYN,ACK: the connection's first SYN was received again.
    Repeat,
    /// Forget the connection and treat the segment as one of no connection: another SYN within the window of a handshake, or one that
    /// follows on a connection that is over.
    Reopen,
}

/// Changes to a segment before smoltcp sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Replacement for an old acknowledgement number: smoltcp drops segments with one, payload included.
    pub(super) ack: Option<u32>,
    /// The sequence number of a FIN with payload that was received before: smoltcp does not look for the FIN after such a payload.
    pub(super) fin_at: Option<u32>,
    pub(super) without_fin: bool,
    pub(super) without_payload: bool,
    /// Only a reset.
    pub(super) only_reset: bool,
}

/// Decides what to do with a segment that arrives for a connection.
pub(super) fn judge(at: &Numbers, segment: &Arrived) -> Verdict {
    let Arrived { flags, seq, ack, .. } = *segment;
    if at.stage == Stage::Connecting {
        return judge_answer(at, segment);
    }
    let opens = flags.syn() && !flags.ack() && !flags.rst() && !flags.fin();
    if opens && at.stage == Stage::Opening && seq == at.peer_first {
        return Verdict::Repeat;
    }
    // The peer reuses the port (RFC 9293, section 3.6.1; without timestamps, RFC 6191 compares the sequence number).
    if opens && at.stage == Stage::Over && !is_before(seq, at.receive_next) {
        return Verdict::Reopen;
    }
    let acceptable = is_acceptable(at, segment);
    if flags.rst() {
        return match seq {
            seq if seq == at.receive_next => Verdict::Reset,
            seq if is_in_window(at, seq) => Verdict::Challenge,
            _ => Verdict::Drop,
        };
    }
    if flags.syn() {
        let begins_anew = at.stage == Stage::Opening && acceptable && opens;
        return if begins_anew { Verdict::Reopen } else { Verdict::Challenge };
    }
    if at.stage == Stage::Opening {
        return match (acceptable, flags.ack()) {
            (false, _) => Verdict::Challenge,
            (true, false) => Verdict::Drop,
            // smoltcp refuses an acknowledgement of something else.
            (true, true) => Verdict::Take(Changes::default()),
        };
    }
    let is_ack_known = flags.ack() && !is_before(at.send_next, ack) && {
        let oldest = at.unacknowledged.wrapping_sub(at.peer_window_max);
        !is_before(ack, oldest)
    };
    match (acceptable, is_ack_known) {
        // A probe, or data received before: smoltcp restarts its timers if need be.
        (false, true) => Verdict::Acknowledge(changes(at, segment)),
        (false, false) => Verdict::Challenge,
        (true, _) if !flags.ack() => Verdict::Drop,
        (true, false) => Verdict::Challenge,
        (true, true) => match changes(at, segment) {
            changes if changes.without_payload && changes.fin_at.is_none() => Verdict::Acknowledge(changes),
            changes => Verdict::Take(changes),
        },
    }
}

/// Decides what to do with a segment that arrives after the function's own SYN (RFC 9293, section 3.10.7.3). A SYN without an
/// acknowledgement is dropped: no peer opens the same connection at the same time, as the node chooses the port.
fn judge_answer(at: &Numbers, segment: &Arrived) -> Verdict {
    let Arrived { flags, ack, .. } = *segment;
    match flags {
        _ if !flags.ack() => Verdict::Drop,
        _ if ack != at.send_next && flags.rst() => Verdict::Drop,
        _ if ack != at.send_next => Verdict::Refuse,
        _ if flags.rst() => Verdict::Reset,
        _ if flags.syn() && !flags.fin() => Verdict::Take(Changes::default()),
        _ => Verdict::Drop,
    }
}

/// Returns whether a segment that is only acknowledged again shows that the peer lives: one that it may have sent recently.
pub(super) fn is_sign_of_life(at: &Numbers, segment: &Arrived) -> bool {
    is_in_window(at, segment.seq) || is_before(segment.seq, at.receive_next)
}

/// The four cases of RFC 9293, section 3.10.7.4.
fn is_acceptable(at: &Numbers, segment: &Arrived) -> bool {
    let window = at.window_end.wrapping_sub(at.receive_next);
    match (segment.seq_len(), window) {
        (0, _) => is_in_window(at, segment.seq),
        (_, 0) => false,
        (len, _) => is_in_window(at, segment.seq) || is_in_window(at, segment.seq.wrapping_add(len - 1)),
    }
}

/// Returns whether the peer may use a number; if its window is closed, only the next number.
fn is_in_window(at: &Numbers, seq: u32) -> bool {
    let window = at.window_end.wrapping_sub(at.receive_next);
    seq.wrapping_sub(at.receive_next) < window.max(1)
}

fn changes(at: &Numbers, segment: &Arrived) -> Changes {
    let end = segment.seq.wrapping_add(segment.len);
    let has_closed = matches!(at.stage, Stage::PeerClosed | Stage::Over);
    let is_window_closed = at.window_end == at.receive_next;
    let is_fin_next = segment.flags.fin() && end == at.receive_next && !has_closed;
    let fin_at = (is_fin_next && segment.len > 0).then_some(end);
    Changes {
        ack: is_before(segment.ack, at.unacknowledged).then_some(at.unacknowledged),
        fin_at,
        // The FIN follows the payload, part of which is beyond the window and is cut off.
        without_fin: segment.flags.fin() && is_before(at.window_end, end),
        // After its FIN a peer has no more data; and a closed window still accepts acknowledgements.
        without_payload: segment.len > 0
            && (fin_at.is_some()
                || (has_closed && !is_before(segment.seq, at.receive_next))
                || (is_window_closed && segment.seq == at.receive_next)),
        only_reset: false,
    }
}

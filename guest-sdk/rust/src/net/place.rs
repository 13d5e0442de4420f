//! A slot for a connection, [`Place`]: its socket, the numbers that smoltcp does not expose, and the limits on how long the peer may be
//! idle.
//!
//! A connection is aborted
//!
//! * if its handshake takes longer than [`OPENING_NS_MAX`], or, if the function opens it, than [`CONNECT_NS_MAX`];
//! * if its peer was silent for [`Settings::idle_timeout_ns`]: any segment that the peer may have sent recently is a sign of life,
//!   including a probe;
//! * if its peer accepts too little of the data sent to it: less than [`PROGRESS_BYTES`], and not all of it, within
//!   [`Settings::send_timeout_ns`]. An answer that the window is closed is not progress;
//! * if the service has closed it, and the peer has acknowledged all but does not close for [`Settings::idle_timeout_ns`].

use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{RecvError, SendError, Socket, SocketBuffer, State};

use super::close::CloseReason;
use super::link::{Flow, Link};
use super::outbound::ConnectError;
#[cfg(doc)]
use super::own_flow::CONNECT_NS_MAX;
use super::own_flow::OwnFlow;
use super::sequence::{Arrived, Numbers, Sent, Stage};
use super::{MTU_BYTES, Settings};
use crate::lru::Id;

/// How long a handshake may take.
const OPENING_NS_MAX: u64 = 10_000_000_000;
/// Bytes that a peer must accept in each [`Settings::send_timeout_ns`], unless less is left. A peer that opens its window opens it by more
/// (RFC 9293, section 3.8.6.2.2), and one that accepts a byte now and then is not served for years.
const PROGRESS_BYTES: u32 = 512;
/// How many segments that do not belong to the connection are answered in each [`CHALLENGES_NS`] (RFC 5961, section 7). Each connection has
/// its own count, so that other connections do not reveal it.
const CHALLENGES_MAX: u8 = 10;
/// See [`CHALLENGES_MAX`].
const CHALLENGES_NS: u64 = 5_000_000_000;
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// The node is asked for a flow.
    Asking,
    /// The function has sent a SYN.
    Connecting,
    /// The peer has sent one.
    Opening,
    Open,
    Leaving,
}

/// Whom a connection of the function's own leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Own {
    /// An address behind a port of the node's, by a flow that the node opens.
    Outbound(OwnFlow),
    /// The chain's next stage; it is to answer by then.
    NextStage { until_ns: u64 },
}

impl Own {
    /// Returns when the attempt to open it ends.
    pub(super) fn until_ns(&self) -> u64 {
        match self {
            Self::Outbound(flow) => flow.until_ns,
            Self::NextStage { until_ns } => *until_ns,
        }
    }

    /// Returns the flow that the node opens for it.
    pub(super) fn flow(&mut self) -> Option<&mut OwnFlow> {
        match self {
            Self::Outbound(flow) => Some(flow),
            Self::NextStage { .. } => None,
        }
    }
}

/// The next amount of data that the peer must accept.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The time at which this began.
    since_ns: u64,
    /// SND.UNA once the peer has accepted it.
    goal: u32,
}

/// A slot for a connection, reused by one connection after the other.
pub(super) struct Place {
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) phase: Phase,
    /// Tells its connections apart.
    pub(super) serial: u64,
    /// Of a connection that the function has opened.
    pub(super) own: Option<Own>,
    /// Why the function's connection cannot be opened.
    pub(super) failure: Option<ConnectError>,
    /// Why the connection was reset or aborted.
    pub(super) reason: Option<CloseReason>,
    /// Since when routers say that the peer cannot be reached.
    unreachable_since_ns: Option<u64>,
    pub(super) flow: Option<Flow>,
    /// The flow's entry in the table of flows. `None` once the connection is over, though its owner may not know yet.
    pub(super) id: Option<Id>,
    pub(super) link: Link,
    /// The MTU of the path to the peer, as far as it is known.
    pub(super) mtu: u16,
    /// smoltcp's record of that MTU, if it is smaller than that of other paths.
    pub(super) narrow: Option<Box<Interface>>,
    /// When to call the service.
    pub(super) wake_ns: u64,
    pub(super) is_touched: bool,
    /// The last turn in which another connection has woken this one.
    pub(super) woken_in: u64,
    /// Whether it has been woken in that turn again, and is to be called in the next one.
    pub(super) is_woken_again: bool,
    pub(super) sent: Sent,
    /// The peer's initial sequence number, the window scale that it offered, and its largest window.
    peer_first: u32,
    peer_scale: Option<u8>,
    peer_window_max: u32,
    /// Bytes read and written, modulo 2^32.
    read: u32,
    written: u32,
    /// When the peer last sent a segment that counts.
    quiet_since_ns: u64,
    progress: Option<Progress>,
    /// Since when the connection only waits for the peer to close.
    lingers_since_ns: Option<u64>,
    challenges: u8,
    challenges_since_ns: u64,
}

impl Place {
    pub(super) fn new(settings: &Settings) -> Self {
        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let socket = Socket::new(buffer(settings.receive_bytes), buffer(settings.send_bytes));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self {
            sockets,
            handle,
            phase: Phase::Free,
            serial: 0,
            own: None,
            failure: None,
            reason: None,
            unreachable_since_ns: None,
            flow: None,
            id: None,
            link: Link::NONE,
            mtu: MTU_BYTES as u16,
            narrow: None,
            wake_ns: NEVER,
            is_touched: false,
            woken_in: 0,
            is_woken_again: false,
            sent: Sent::default(),
            peer_first: 0,
            peer_scale: None,
            peer_window_max: 0,
            read: 0,
            written: 0,
            quiet_since_ns: 0,
            progress: None,
            lingers_since_ns: None,
            challenges: 0,
            challenges_since_ns: 0,
        }
    }

    /// Resets the records for a new connection, with the sequence number, window, and window scale of its SYN.
    pub(super) fn begin(&mut self, peer_first: u32, peer_window: u16, peer_scale: Option<u8>, now_ns: u64) {
        (self.peer_first, self.peer_window_max, self.peer_scale) = (peer_first, peer_window.into(), peer_scale);
        (self.read, self.written) = (0, 0);
        self.sent = Sent::default();
        (self.mtu, self.narrow) = (MTU_BYTES as u16, None);
        (self.reason, self.unreachable_since_ns) = (None, None);
        self.quiet_since_ns = now_ns;
        (self.progress, self.lingers_since_ns) = (None, None);
        (self.challenges, self.challenges_since_ns) = (0, now_ns);
    }

    /// Records the peer's answer to the function's own SYN: its number, window and window scale.
    pub(super) fn agree(&mut self, answer: &Arrived, scale: Option<u8>, now_ns: u64) {
        (self.peer_first, self.peer_window_max, self.peer_scale) = (answer.seq, answer.window.into(), scale);
        self.sent.agree(answer.seq.wrapping_add(1), scale);
        self.quiet_since_ns = now_ns;
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn known(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    pub(super) fn state(&self) -> State {
        self.known().state()
    }

    /// Returns whether nothing is left to be sent to the peer, not even a reset.
    pub(super) fn is_over(&self) -> bool {
        self.state() == State::Closed && self.known().remote_endpoint().is_none()
    }

    /// Returns whether the peer has yet to acknowledge data, or the FIN.
    fn is_sending(&self) -> bool {
        let is_closing = matches!(self.state(), State::FinWait1 | State::Closing | State::LastAck);
        self.known().send_queue() > 0 || is_closing
    }

    /// Returns whether a segment says nothing but what the peer has acknowledged before, while only our FIN is on its way. smoltcp takes the third
    /// of these for a loss, finds no data to send again, and has no timer for the FIN any more.
    pub(super) fn is_only_repeated(&self, at: &Numbers, segment: &Arrived) -> bool {
        let is_only_fin_left = self.is_sending() && self.known().send_queue() == 0;
        is_only_fin_left && segment.seq_len() == 0 && !segment.flags.rst() && segment.ack == at.unacknowledged
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, RecvError> {
        let count = self.socket().recv_slice(buffer)?;
        self.read = self.read.wrapping_add(count as u32);
        Ok(count)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, SendError> {
        let count = self.socket().send_slice(bytes)?;
        self.written = self.written.wrapping_add(count as u32);
        Ok(count)
    }

    /// Drops received data that was not read.
    pub(super) fn discard_received(&mut self) {
        let mut all = 0;
        while let Ok(len @ 1..) = self.socket().recv(|bytes| (bytes.len(), bytes.len())) {
            all += len;
        }
        self.read = self.read.wrapping_add(all as u32);
    }

    /// Returns the connection's sequence numbers, valid from the handshake's first answer on.
    pub(super) fn numbers(&self) -> Numbers {
        let socket = self.known();
        let stage = match socket.state() {
            State::SynSent => Stage::Connecting,
            State::SynReceived => Stage::Opening,
            State::TimeWait => Stage::Over,
            State::CloseWait | State::LastAck | State::Closing => Stage::PeerClosed,
            _ => Stage::Open,
        };
        let fin = u32::from(matches!(stage, Stage::PeerClosed | Stage::Over));
        let received = self.read.wrapping_add(socket.recv_queue() as u32);
        Numbers {
            stage,
            peer_first: self.peer_first,
            receive_next: self.peer_first.wrapping_add(1).wrapping_add(received).wrapping_add(fin),
            window_end: self.sent.window_end,
            unacknowledged: self.unacknowledged(),
            send_next: self.sent.next,
            peer_window_max: self.peer_window_max,
        }
    }

    /// SND.UNA.
    fn unacknowledged(&self) -> u32 {
        let acknowledged = self.written.wrapping_sub(self.known().send_queue() as u32);
        let flags = match self.state() {
            State::SynSent | State::SynReceived => 0,
            // Includes our FIN.
            State::FinWait2 | State::TimeWait => 2,
            _ => 1,
        };
        self.sent.first.wrapping_add(acknowledged).wrapping_add(flags)
    }

    /// Records a sign of life from the peer, and the window that it offered.
    pub(super) fn note_alive(&mut self, window: u16, now_ns: u64) {
        self.quiet_since_ns = now_ns;
        // Windows are scaled only if both sides agreed, and by 14 bits at most (RFC 7323, section 2).
        let shift = self.sent.shift.and(self.peer_scale).unwrap_or(0).min(14);
        self.peer_window_max = self.peer_window_max.max(u32::from(window) << shift);
    }

    /// Returns whether one more segment that does not belong to the connection may be answered.
    pub(super) fn may_challenge(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.challenges_since_ns + CHALLENGES_NS {
            (self.challenges, self.challenges_since_ns) = (0, now_ns);
        }
        self.challenges += u8::from(self.challenges < CHALLENGES_MAX + 1);
        self.challenges <= CHALLENGES_MAX
    }

    /// Returns the last offered window as it stands in a header.
    pub(super) fn window(&self, receive_next: u32) -> u16 {
        let window = self.sent.window_end.wrapping_sub(receive_next) >> self.sent.shift.unwrap_or(0);
        u16::try_from(window).unwrap_or(u16::MAX)
    }

    /// Records how much of the data the peer has accepted.
    pub(super) fn note_progress(&mut self, now_ns: u64) {
        let lingers = self.phase == Phase::Leaving && self.state() == State::FinWait2;
        self.lingers_since_ns = if lingers { self.lingers_since_ns.or(Some(now_ns)) } else { None };
        if !self.is_sending() {
            self.progress = None;
            return;
        }
        let at = self.unacknowledged();
        let goes_on = self.progress.is_some_and(|progress| (at.wrapping_sub(progress.goal) as i32) < 0);
        if !goes_on {
            if self.progress.is_none() {
                // The connection may have been idle, and the peer cannot have answered data that is only now sent.
                self.quiet_since_ns = now_ns;
            }
            let queued = (self.known().send_queue() as u32).clamp(1, PROGRESS_BYTES);
            self.progress = Some(Progress { since_ns: now_ns, goal: at.wrapping_add(queued) });
        }
    }

    /// Records that a router says that the peer cannot be reached.
    pub(super) fn note_unreachable(&mut self, now_ns: u64) {
        self.unreachable_since_ns = Some(now_ns);
    }

    /// Returns why the connection is aborted when a limit has passed.
    pub(super) fn limit_reason(&self, settings: &Settings, now_ns: u64) -> CloseReason {
        // What the peer has sent later shows that the route is there again.
        if self.unreachable_since_ns.is_some_and(|at| at >= self.quiet_since_ns) {
            return CloseReason::Unreachable;
        }
        let send_ns = settings.send_limit_ns();
        let is_slow = self.progress.is_some_and(|progress| progress.since_ns.saturating_add(send_ns) <= now_ns);
        if is_slow { CloseReason::SendTimeout } else { CloseReason::Idle }
    }

    /// Returns why the connection has ended, or why the peer sends no more.
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.reason.or_else(|| {
            let has_closed = matches!(
                self.state(),
                State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed
            );
            (self.phase == Phase::Open && has_closed).then_some(CloseReason::ByPeer)
        })
    }

    /// Returns when the connection is aborted, unless something happens before.
    pub(super) fn limit_ns(&self, settings: &Settings) -> u64 {
        let after = |since_ns: Option<u64>, limit_ns: u64| since_ns.map_or(NEVER, |at| at.saturating_add(limit_ns));
        let idle_ns = settings.idle_timeout_ns;
        match self.phase {
            Phase::Free => NEVER,
            Phase::Asking | Phase::Connecting => self.own.map_or(NEVER, |own| own.until_ns()),
            Phase::Opening => after(Some(self.quiet_since_ns), OPENING_NS_MAX),
            Phase::Open | Phase::Leaving if matches!(self.state(), State::Closed | State::TimeWait) => NEVER,
            Phase::Open | Phase::Leaving => after(Some(self.quiet_since_ns), idle_ns)
                .min(after(self.progress.map(|progress| progress.since_ns), settings.send_limit_ns()))
                .min(after(self.lingers_since_ns, idle_ns)),
        }
    }
}

//! Why a connection has ended: [`CloseReason`].

use core::fmt;
use std::io::ErrorKind;

use crate::outbound::End;

/// Why a connection has ended, or its peer sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer has closed its side (FIN): it sends no more, and may still receive.
    ByPeer,
    /// The peer has reset the connection (RST).
    Reset,
    /// The peer has sent nothing for [`Settings::idle_timeout_ns`](super::Settings::idle_timeout_ns).
    Idle,
    /// The peer has accepted too little for [`Settings::send_timeout_ns`](super::Settings::send_timeout_ns).
    SendTimeout,
    /// As [`CloseReason::Idle`] or [`CloseReason::SendTimeout`], and routers said that the peer cannot be reached.
    Unreachable,
    /// The node has ended the flow of a connection that the function has opened.
    FlowEnded(End),
    /// The function has aborted it.
    Aborted,
}

impl CloseReason {
    /// Returns the kind of the error that a read or a write gets.
    pub(super) fn kind(self) -> ErrorKind {
        match self {
            Self::ByPeer | Self::Reset => ErrorKind::ConnectionReset,
            Self::Idle | Self::SendTimeout => ErrorKind::TimedOut,
            Self::Unreachable => ErrorKind::HostUnreachable,
            Self::FlowEnded(_) | Self::Aborted => ErrorKind::ConnectionAborted,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByPeer => f.write_str("the peer has closed the connection"),
            Self::Reset => f.write_str("the peer has reset the connection"),
            Self::Idle => f.write_str("the peer has been silent for too long"),
            Self::SendTimeout => f.write_str("the peer has accepted too little for too long"),
            Self::Unreachable => f.write_str("the peer cannot be reached"),
            Self::FlowEnded(end) => write!(f, "the node has ended the connection's flow: {end:?}"),
            Self::Aborted => f.write_str("the connection was aborted"),
        }
    }
}

impl std::error::Error for CloseReason {}

//! The results of `pinion/net.h`, and what they are of errors of the SDK for Rust.

use std::io::{self, ErrorKind};

use pinion_sdk::net::{CloseReason, ConnectError, ResolveError};
use pinion_sdk::outbound::Refusal;

/// `enum pinion_net`, whose comments explain each.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Outcome {
    Done,
    Later,
    Closed,
    ShutDown,
    TimedOut,
    Invalid,
    NoSocket,
    NotNow,
    TooLong,
    NoRoom,
    NoWay,
    NotGranted,
    Quota,
    NoRoute,
    Refused,
    Unreachable,
    FlowEnded,
    NoSuchName,
    NoAddress,
    ResolverFailed,
    NoResolver,
}

/// `enum pinion_close`, whose comments explain each.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Close {
    None,
    ByPeer,
    Reset,
    Idle,
    SendTimeout,
    Unreachable,
    FlowEnded,
    Aborted,
}

impl From<ConnectError> for Outcome {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::ByNode(Refusal::NotGranted) => Self::NotGranted,
            ConnectError::ByNode(Refusal::Quota | Refusal::NoPort) => Self::Quota,
            ConnectError::ByNode(Refusal::NoRoute) => Self::NoRoute,
            ConnectError::ByNode(Refusal::Invalid) => Self::Invalid,
            ConnectError::FlowEnded(_) => Self::FlowEnded,
            ConnectError::RefusedByPeer => Self::Refused,
            ConnectError::Unreachable => Self::Unreachable,
            ConnectError::TimedOut => Self::TimedOut,
            ConnectError::NoRoom => Self::NoRoom,
            ConnectError::NoWay => Self::NoWay,
            // The SDK's error may get further cases.
            _ => Self::Refused,
        }
    }
}

impl From<ResolveError> for Outcome {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::InvalidName => Self::Invalid,
            ResolveError::NoSuchName => Self::NoSuchName,
            ResolveError::NoAddress => Self::NoAddress,
            ResolveError::TimedOut => Self::TimedOut,
            ResolveError::NoFlow(error) => error.into(),
            ResolveError::NoResolver => Self::NoResolver,
            ResolveError::NoRoom => Self::NoRoom,
            // Including further cases that the SDK's error may get.
            _ => Self::ResolverFailed,
        }
    }
}

impl From<io::Error> for Outcome {
    fn from(error: io::Error) -> Self {
        if let Some(inner) = error.get_ref() {
            if let Some(error) = inner.downcast_ref::<ConnectError>() {
                return (*error).into();
            }
            if let Some(error) = inner.downcast_ref::<ResolveError>() {
                return (*error).into();
            }
            if inner.is::<CloseReason>() {
                return Self::Closed;
            }
        }
        match error.kind() {
            ErrorKind::WouldBlock => Self::Later,
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::BrokenPipe => Self::ShutDown,
            ErrorKind::InvalidInput => Self::TooLong,
            ErrorKind::AddrNotAvailable | ErrorKind::NotConnected => Self::NoSocket,
            _ => Self::Closed,
        }
    }
}

impl From<Option<CloseReason>> for Close {
    fn from(reason: Option<CloseReason>) -> Self {
        match reason {
            None => Self::None,
            Some(CloseReason::ByPeer) => Self::ByPeer,
            Some(CloseReason::Reset) => Self::Reset,
            Some(CloseReason::Idle) => Self::Idle,
            Some(CloseReason::SendTimeout) => Self::SendTimeout,
            Some(CloseReason::Unreachable) => Self::Unreachable,
            Some(CloseReason::FlowEnded(_)) => Self::FlowEnded,
            // Including further cases that the SDK's reason may get.
            Some(_) => Self::Aborted,
        }
    }
}

//! Whether a failed request may work later without a change of it.
//!
//! `RESOURCE_EXHAUSTED` is both: of a tenant that has all that it may have, which stays, and of a disk that is full at the
//! moment. The node marks the latter in the metadata of its status (`api/status.rs`).

use tonic::Code;

use super::ClientError;

impl ClientError {
    /// Returns whether the same request may work later, as nothing is wrong with it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotRunning { .. } | Self::Unreachable { .. } | Self::Exhausted { .. } => true,
            // A node that stops, or without an instance.
            Self::Failed { code, .. } => *code == Code::Unavailable,
            Self::Refused { .. }
            | Self::NotAllowed { .. }
            | Self::Credentials(_)
            | Self::UntrustedNode(_)
            | Self::CertificateRefused(_)
            | Self::BadAnswer(_) => false,
        }
    }

    /// Returns the code of gRPC for the failure, in its own spelling, also where no node answered: `NOT_FOUND`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotRunning { .. } | Self::Unreachable { .. } => "UNAVAILABLE",
            Self::NotAllowed { .. } => "PERMISSION_DENIED",
            Self::Credentials(_) | Self::UntrustedNode(_) | Self::CertificateRefused(_) => "UNAUTHENTICATED",
            Self::BadAnswer(_) => "UNKNOWN",
            Self::Refused { code, .. } | Self::Failed { code, .. } | Self::Exhausted { code, .. } => spelling(*code),
        }
    }
}

/// Returns the code as gRPC's documentation spells it.
fn spelling(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use tonic::Status;

    use super::*;
    use crate::api::mark_retryable;

    #[test]
    fn exhausted_resources_are_retryable_only_where_the_node_says_so() {
        let mut full = Status::resource_exhausted("/var/lib/pinion has no space left");
        assert!(!ClientError::from(full.clone()).is_retryable());
        mark_retryable(&mut full);
        let error = ClientError::from(full);
        assert_eq!((error.is_retryable(), error.code()), (true, "RESOURCE_EXHAUSTED"));
        assert_eq!(error.to_string(), "/var/lib/pinion has no space left");
    }

    #[test]
    fn a_socket_that_the_caller_may_not_use_stays_so() {
        let socket = crate::client::NodeAddress::Socket("/run/pinion/pinion.sock".into());
        for (kind, is_retryable, code) in [
            (ErrorKind::PermissionDenied, false, "PERMISSION_DENIED"),
            (ErrorKind::InvalidInput, false, "PERMISSION_DENIED"),
            (ErrorKind::ConnectionReset, true, "UNAVAILABLE"),
        ] {
            let error = crate::client::unreachable(&socket, &io::Error::from(kind));
            assert_eq!((error.is_retryable(), error.code()), (is_retryable, code), "{error}");
            assert!(error.to_string().starts_with("cannot reach piniond at /run/pinion/pinion.sock: "), "{error}");
        }
    }

    #[test]
    fn a_node_that_is_away_is_retryable_and_a_refusal_is_not() {
        let away = ClientError::NotRunning { address: "/run/pinion/pinion.sock".into() };
        assert_eq!((away.is_retryable(), away.code()), (true, "UNAVAILABLE"));
        for (status, is_retryable, code) in [
            (Status::unavailable("the node is shutting down"), true, "UNAVAILABLE"),
            (Status::not_found("there is no chain"), false, "NOT_FOUND"),
            (Status::internal("the node failed"), false, "INTERNAL"),
            (Status::aborted("it ended before it answered"), false, "ABORTED"),
        ] {
            let error = ClientError::from(status);
            assert_eq!((error.is_retryable(), error.code()), (is_retryable, code));
        }
    }
}

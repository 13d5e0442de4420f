//! Converts errors to gRPC status codes. The message is always the error's own sentence, made printable.

use std::sync::Arc;

use pinion_text::printable_lines;
use tokio::task::JoinError;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::access::ToldTenants;
use crate::control::ControlError;
use crate::model::Invalid;
use crate::node::{InvokeError, Refusal};
use crate::store::StoreError;

/// The longest message of a status. It travels in a header, where each byte may be encoded as three, and clients accept
/// headers of 16 KiB.
const MESSAGE_BYTES_MAX: usize = 5 << 10;

/// What tenants are told when the machine lacks something for their change.
const SHORT: &str =
    "the node has no room on its disk for this at the moment; its operator finds why in its log: try again later";

/// The key of the metadata of a status that a later request may not get, and its only value.
const RETRY: (&str, &str) = ("pinion-retry", "later");

/// Marks a status as one that a later request may not get.
pub(crate) fn mark_retryable(status: &mut Status) {
    status.metadata_mut().insert(RETRY.0, MetadataValue::from_static(RETRY.1));
}

/// Returns whether the status is marked so.
pub(crate) fn is_marked_retryable(status: &Status) -> bool {
    status.metadata().get(RETRY.0).is_some_and(|value| value == RETRY.1)
}

/// Returns a status with the message made printable.
pub(super) fn status(code: Code, message: impl ToString) -> Status {
    Status::new(code, printable_lines(message.to_string(), MESSAGE_BYTES_MAX))
}

pub(super) fn to_status(error: ControlError) -> Status {
    let code = match &error {
        ControlError::Invalid(invalid) => invalid_code(invalid),
        ControlError::Refused(refusal) => refusal_code(refusal),
        ControlError::UnknownTenant(_) => Code::PermissionDenied,
        ControlError::NotUploaded { .. } => Code::FailedPrecondition,
        ControlError::Outdated { .. } | ControlError::NotRecorded { .. } | ControlError::ChangedMeanwhile { .. } => {
            Code::Aborted
        }
        ControlError::NothingToUndo(_) => Code::FailedPrecondition,
        ControlError::NoFunction { .. }
        | ControlError::NoRevision { .. }
        | ControlError::RevisionForgotten { .. }
        | ControlError::NoTenant(_) => Code::NotFound,
        ControlError::WrongDigest { .. } | ControlError::TooLarge { .. } | ControlError::BadKey(_) => {
            Code::InvalidArgument
        }
        ControlError::Seal(_) => Code::Internal,
        ControlError::Store(error) => store_code(error),
        ControlError::NotFollowed { .. } => Code::Internal,
    };
    let told_tenants = told_tenants(&error);
    let is_short = is_short(&error);
    if code == Code::Internal || told_tenants.is_some() {
        tracing::error!(%error, "a request failed");
    }
    let mut status = status(code, error);
    if is_short {
        mark_retryable(&mut status);
    }
    if let Some(told) = told_tenants {
        status.set_source(Arc::new(told));
    }
    status
}

/// Returns whether the node lacks something at the moment that it may have later, without a change of the request.
fn is_short(error: &ControlError) -> bool {
    match error {
        ControlError::Refused(refusal) => matches!(refusal, Refusal::Short(_)),
        ControlError::Store(StoreError::Disk(error)) => error.is_shortage(),
        _ => false,
    }
}

/// Returns what tenants' callers are told of an error whose sentence is for the operator.
fn told_tenants(error: &ControlError) -> Option<ToldTenants> {
    let told = match error {
        ControlError::Store(StoreError::Lost { whose, digest, .. }) => {
            format!("the node has lost the bytes of {whose} ({digest}): upload them again")
        }
        ControlError::Refused(Refusal::Short(_)) => SHORT.to_owned(),
        ControlError::Store(StoreError::Disk(error)) if error.is_shortage() => SHORT.to_owned(),
        ControlError::Store(_) | ControlError::Seal(_) | ControlError::Refused(Refusal::Failed(_)) => {
            "the node failed; its operator finds why in its log".to_owned()
        }
        _ => return None,
    };
    Some(ToldTenants(printable_lines(told, MESSAGE_BYTES_MAX)))
}

fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::Disk(error) if error.is_shortage() => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

fn invalid_code(invalid: &Invalid) -> Code {
    match invalid {
        Invalid::Tenant { .. }
        | Invalid::Chain { .. }
        | Invalid::Rule { .. }
        | Invalid::Twice(_)
        | Invalid::PruneWithoutLabel => Code::InvalidArgument,
        Invalid::NotGranted { .. }
        | Invalid::TenantInUse { .. }
        | Invalid::UnknownModule { .. }
        | Invalid::UnknownGranted { .. }
        | Invalid::UnknownChain { .. }
        | Invalid::FieldsDiffer { .. }
        | Invalid::Alike { .. }
        | Invalid::OtherLabel { .. }
        | Invalid::InUse { .. } => Code::FailedPrecondition,
        Invalid::NoSuch(_) => Code::NotFound,
        Invalid::TooMany { .. }
        | Invalid::OverQuota { .. }
        | Invalid::TooMuchOfOne { .. }
        | Invalid::TooManyUploads { .. }
        | Invalid::TooMuchConfig { .. }
        | Invalid::TooManyFiles { .. } => Code::ResourceExhausted,
    }
}

fn refusal_code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::Unfit(_) => Code::FailedPrecondition,
        Refusal::Exhausted(_) | Refusal::Short(_) => Code::ResourceExhausted,
        Refusal::Failed(_) => Code::Internal,
        Refusal::Stopping => Code::Unavailable,
    }
}

pub(super) fn invoke_status(error: &InvokeError) -> Status {
    let code = match error {
        InvokeError::TooLong(_) => Code::InvalidArgument,
        InvokeError::ChainUnavailable(_) | InvokeError::NotCallable(_) => Code::FailedPrecondition,
        InvokeError::Exhausted(_) => Code::ResourceExhausted,
        InvokeError::NoInstance(_) => Code::Unavailable,
        InvokeError::Deadline(_) => Code::DeadlineExceeded,
        InvokeError::Ended(_) => Code::Aborted,
    };
    let mut status = status(code, error);
    if code == Code::ResourceExhausted {
        // More calls are under way than there is room for.
        mark_retryable(&mut status);
    }
    status
}

pub(super) fn node_panicked(panicked: JoinError) -> Status {
    tracing::error!(error = %panicked, "a request ended in a panic");
    Status::internal("the node failed at this request; its log says more")
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::client::ClientError;
    use crate::disk::DiskError;

    #[test]
    fn a_tenant_is_told_of_a_shortage_without_the_nodes_paths_and_the_operator_with_them() {
        let shortage = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let shortage = DiskError::new(Path::new("/var/lib/pinion"), &shortage);
        for error in [
            ControlError::Refused(Refusal::Short(shortage.to_string())),
            ControlError::Store(StoreError::Disk(shortage.clone())),
        ] {
            let status = to_status(error);
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(ClientError::from(status.clone()).is_retryable());
            assert!(status.message().contains("/var/lib/pinion has no space left"), "{}", status.message());
            let told = status.source().unwrap().to_string();
            assert!(told.contains("no room on its disk") && !told.contains("/var"), "{told}");
        }
    }

    #[test]
    fn a_message_fits_into_the_headers_that_clients_take() {
        let long = Refusal::Invalid(format!("a\u{1b}\nb {}", "ä".repeat(1 << 20)));
        let status = to_status(ControlError::Refused(long));
        assert!(status.message().starts_with("a\\u{1b}\nb ää"), "{}", &status.message()[..40]);
        // Each byte of it may become three.
        assert!(3 * status.message().len() < (16 << 10) - 512, "{} bytes", status.message().len());
    }
}

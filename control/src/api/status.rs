//! Errors to gRPC status codes. The message is always the error's own sentence.

use tokio::task::JoinError;
use tonic::{Code, Status};

use crate::control::ControlError;
use crate::model::Invalid;
use crate::node::{InvokeError, Refusal};
use crate::store::StoreError;

pub(super) fn to_status(error: ControlError) -> Status {
    let code = match &error {
        ControlError::Invalid(invalid) => invalid_code(invalid),
        ControlError::Refused(refusal) => refusal_code(refusal),
        ControlError::NotUploaded { .. } => Code::FailedPrecondition,
        ControlError::NoFunction { .. } => Code::NotFound,
        ControlError::WrongDigest { .. } | ControlError::TooLarge { .. } => Code::InvalidArgument,
        ControlError::Store(StoreError::Full) => Code::ResourceExhausted,
        ControlError::Store(_) => Code::Internal,
    };
    if code == Code::Internal {
        tracing::error!(%error, "a request failed");
    }
    Status::new(code, error.to_string())
}

fn invalid_code(invalid: &Invalid) -> Code {
    match invalid {
        Invalid::Chain { .. } | Invalid::Rule { .. } | Invalid::Twice(_) => Code::InvalidArgument,
        Invalid::UnknownModule { .. }
        | Invalid::UnknownChain { .. }
        | Invalid::FieldsDiffer { .. }
        | Invalid::Alike { .. }
        | Invalid::InUse { .. } => Code::FailedPrecondition,
        Invalid::NoSuch(_) => Code::NotFound,
        Invalid::TooMany { .. } | Invalid::TooMuchConfig { .. } | Invalid::TooManyFiles { .. } => {
            Code::ResourceExhausted
        }
    }
}

fn refusal_code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::Unfit(_) => Code::FailedPrecondition,
        Refusal::Exhausted(_) => Code::ResourceExhausted,
        Refusal::Failed(_) => Code::Internal,
    }
}

pub(super) fn invoke_status(error: &InvokeError) -> Status {
    let code = match error {
        InvokeError::TooLong(_) => Code::InvalidArgument,
        InvokeError::NotInForce(_) => Code::FailedPrecondition,
        InvokeError::Exhausted(_) => Code::ResourceExhausted,
        InvokeError::NoInstance(_) => Code::Unavailable,
        InvokeError::Deadline(_) => Code::DeadlineExceeded,
        InvokeError::Ended(_) => Code::Aborted,
    };
    Status::new(code, error.to_string())
}

pub(super) fn node_panicked(panicked: JoinError) -> Status {
    tracing::error!(error = %panicked, "a request ended in a panic");
    Status::internal("the node failed at this request; its log says more")
}

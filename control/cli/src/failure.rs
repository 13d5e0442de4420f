//! Errors as programs read them: `{"error":{"message":"...","code":"NOT_FOUND","retryable":false}}`.

use pinion_control::causes::with_causes;
use pinion_control::client::ClientError;
use serde::Serialize;

use crate::commands::BadInput;
use crate::contexts::ContextError;

/// What is printed of an error.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    error: Failure,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Failure {
    /// The error with its causes.
    message: String,
    /// A code of gRPC, also for errors that no node answered.
    code: &'static str,
    /// Whether the same command may work later.
    retryable: bool,
}

/// Returns the report of an error that ended a command.
pub(crate) fn report(error: &anyhow::Error) -> Report {
    let code = code(error);
    Report { error: Failure { message: with_causes(error.as_ref()), code, retryable: is_retryable(error) } }
}

/// Returns the report of a command line that can't be understood.
pub(crate) fn of_usage(error: &clap::Error) -> Report {
    let text = error.render().to_string();
    // The usage and hints after it are for people.
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned();
    Report { error: Failure { message, code: "INVALID_ARGUMENT", retryable: false } }
}

/// Returns whether the same command may work later.
pub(crate) fn is_retryable(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref()).any(ClientError::is_retryable)
}

fn code(error: &anyhow::Error) -> &'static str {
    let of_node = error.chain().find_map(|cause| cause.downcast_ref()).map(ClientError::code);
    let of_cause = || {
        error.chain().find_map(|cause| {
            let input = cause.downcast_ref().map(|input| match input {
                BadInput::NotFound { .. } | BadInput::NotFoundOf { .. } => "NOT_FOUND",
                _ => "INVALID_ARGUMENT",
            });
            let context = cause.downcast_ref().map(|context| match context {
                ContextError::Unknown { .. } => "NOT_FOUND",
                _ => "INVALID_ARGUMENT",
            });
            input.or(context)
        })
    };
    let is_input = crate::exit_code(error) == crate::BAD_INPUT;
    of_node.or_else(of_cause).unwrap_or(if is_input { "INVALID_ARGUMENT" } else { "UNKNOWN" })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_report_has_the_message_with_its_causes_a_code_and_whether_to_retry() {
        let away = ClientError::NotRunning { address: "/x".into() };
        let error = Err::<(), _>(away).context("module m").unwrap_err();
        let text = serde_json::to_string(&report(&error)).unwrap();
        let expected = r#"{"error":{"message":"module m: no piniond at /x: is it running?","code":"UNAVAILABLE","retryable":true}}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn errors_that_no_node_answered_have_codes_too() {
        let unknown = BadInput::NotFound { kind: "tenant", name: "nope".into() };
        let empty = BadInput::Empty(vec!["x.toml".into()]);
        for (error, code) in [
            (anyhow::Error::from(unknown), "NOT_FOUND"),
            (empty.into(), "INVALID_ARGUMENT"),
            (anyhow::anyhow!("something else"), "UNKNOWN"),
        ] {
            assert_eq!((report(&error).error.code, report(&error).error.retryable), (code, false));
        }
    }
}

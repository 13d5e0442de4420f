//! `pinion`: the command line tool for tenants and operators.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `commands` | one file per command |
//! | `contexts` | named nodes, and which of them a command uses |
//! | `output` | tables, descriptions and JSON |

#![forbid(unsafe_code)]

mod args;
mod commands;
mod contexts;
mod output;

use std::io::{self, Write};
use std::process::ExitCode;

use pinion_control::client::{ClientError, CredentialsError};
use pinion_control::manifest::ManifestError;
use pinion_control::model::BadName;

/// The request is wrong; a retry does not help.
const BAD_INPUT: u8 = 2;
/// Any other failure.
const FAILURE: u8 = 1;
/// `pinion diff` found a difference. After an error its status is larger.
const DIFFERENT: u8 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let command_line = match args::CommandLine::read() {
        Ok(command_line) => command_line,
        Err(error) => return print_usage(&error),
    };
    let is_diff = matches!(command_line.args.command, args::Command::Diff { .. });
    match commands::run(command_line).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<commands::Differs>() => ExitCode::from(DIFFERENT),
        Err(error) => {
            output::say(&output::error(&error));
            ExitCode::from(if is_diff { BAD_INPUT } else { exit_code(&error) })
        }
    }
}

/// Prints help or the version on standard output, and errors of the command line on standard error.
fn print_usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    match printed.and_then(|()| io::stdout().flush()) {
        _ if error.use_stderr() => ExitCode::from(BAD_INPUT),
        Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => {
            output::say(&format!("error: {problem}"));
            ExitCode::from(FAILURE)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let bad_input = error.chain().any(|cause| {
        cause.is::<ManifestError>()
            || cause.is::<commands::BadInput>()
            || cause.is::<BadName>()
            || cause.is::<commands::CertError>()
            || cause.is::<contexts::ContextError>()
            || cause.is::<CredentialsError>()
            || matches!(cause.downcast_ref(), Some(error) if is_refusal(error))
    });
    if bad_input { BAD_INPUT } else { FAILURE }
}

/// Returns whether a retry would fail in the same way.
fn is_refusal(error: &ClientError) -> bool {
    use ClientError::{CertificateRefused, Credentials, Refused, UntrustedNode};
    matches!(error, Refused { .. } | Credentials(_) | UntrustedNode(_) | CertificateRefused(_))
}

/// Returns whether standard output was closed by its reader, as by `pinion get fwps | head`, which is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

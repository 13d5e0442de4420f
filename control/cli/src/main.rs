//! `pinion`: the command line tool for tenants and operators.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `commands` | one file per command |
//! | `contexts` | named nodes, and which of them a command uses |
//! | `failure` | errors as programs read them |
//! | `output` | tables, descriptions and JSON |

#![forbid(unsafe_code)]

mod args;
mod commands;
mod contexts;
mod failure;
mod output;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use pinion_control::client::{ClientError, CredentialsError};
use pinion_control::manifest::{ManifestError, WriteError};
use pinion_control::model::BadName;

/// The request is wrong; a retry does not help.
const BAD_INPUT: u8 = 2;
/// No node answers, or it lacks something at the moment; a retry may help.
const RETRY: u8 = 3;
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
    let is_json = command_line.args.output == args::OutputFormat::Json;
    let is_diff = matches!(command_line.args.command, args::Command::Diff { .. });
    match commands::run(command_line).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<commands::Differs>() => ExitCode::from(DIFFERENT),
        Err(error) if error.is::<commands::NotWhole>() => ExitCode::from(BAD_INPUT),
        Err(error) => {
            if is_json {
                output::say_json(&failure::report(&error));
            } else {
                output::say(&output::error(&error));
            }
            ExitCode::from(match exit_code(&error) {
                FAILURE if is_diff => BAD_INPUT,
                code => code,
            })
        }
    }
}

/// Prints help or the version on standard output, and errors of the command line on standard error.
fn print_usage(error: &clap::Error) -> ExitCode {
    let printed = if error.use_stderr() && wants_json(std::env::args_os().skip(1)) {
        output::say_json(&failure::of_usage(error));
        Ok(())
    } else {
        error.print()
    };
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
            || cause.is::<WriteError>()
            || cause.is::<contexts::ContextError>()
            || cause.is::<CredentialsError>()
            || matches!(cause.downcast_ref(), Some(error) if is_refusal(error))
    });
    if failure::is_retryable(error) {
        RETRY
    } else if bad_input || commands::is_bad_content(error) {
        BAD_INPUT
    } else {
        FAILURE
    }
}

/// Returns whether a command line that can't be understood asks for JSON.
fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.collect();
    let is_json = |word: &OsString| word == "json";
    let is_option = |word: &OsString| word == "-o" || word == "--output";
    words.iter().any(|word| word == "-ojson" || word == "-o=json" || word == "--output=json")
        || words.windows(2).any(|pair| is_option(&pair[0]) && is_json(&pair[1]))
}

/// Returns whether a retry would fail in the same way.
fn is_refusal(error: &ClientError) -> bool {
    use ClientError::{CertificateRefused, Credentials, NotAllowed, Refused, UntrustedNode};
    matches!(error, Refused { .. } | NotAllowed { .. } | Credentials(_) | UntrustedNode(_) | CertificateRefused(_))
}

/// Returns whether standard output was closed by its reader, as by `pinion get fwps | head`, which is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

//! `pinion`: what tenants and operators type.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `commands` | one file per command |
//! | `output` | tables, descriptions and JSON |

#![forbid(unsafe_code)]

mod args;
mod commands;
mod output;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use pinion_control::client::ClientError;
use pinion_control::manifest::ManifestError;

/// What somebody asked for is wrong; asking again does not help.
const BAD_INPUT: u8 = 2;
/// Anything else went wrong.
const FAILURE: u8 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match commands::run(args::Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let bad_input = error.chain().any(|cause| {
        cause.is::<ManifestError>()
            || cause.is::<commands::BadInput>()
            || matches!(cause.downcast_ref(), Some(ClientError::Refused { .. }))
    });
    if bad_input { BAD_INPUT } else { FAILURE }
}

/// `pinion get fwps | head` has seen enough, and that is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

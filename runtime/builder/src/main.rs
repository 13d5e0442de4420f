//! `pinion-builder`: judges modules and builds templates; started by the node. See [`pinion_builder_client::protocol`].
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pinion_builder::build::build;
use pinion_builder::initialise::Wishes;
use pinion_builder::refused::Refused;
use pinion_builder::{MODULE_BYTES_MAX, admission, limits};
use pinion_builder_client::EXIT_REFUSED;
use pinion_builder_client::protocol::Said;

/// Judges modules and builds templates for a Pinion node.
#[derive(Parser)]
#[command(name = "pinion-builder", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judges the module on standard input
    Check,
    /// Builds a template from the configuration and the module on standard input
    Build {
        /// How much of standard input is the configuration
        #[arg(long)]
        config_bytes: u64,
        /// Linear memory that an instance may have
        #[arg(long)]
        memory_bytes_max: u64,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(refused)) => {
            say(&Said::Sentence(refused.to_string()));
            ExitCode::from(EXIT_REFUSED as u8)
        }
        Err(error) => {
            say(&Said::Sentence(format!("the builder failed: {error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn say(said: &Said) {
    eprintln!("{said}");
}

fn run(command: &Command) -> anyhow::Result<Result<(), Refused>> {
    limits::impose()?;
    match command {
        Command::Check => {
            let engine = wasmtime::Engine::new(&pinion_guest::settings::config());
            let engine = engine.map_err(|error| anyhow::anyhow!("{error:#}"))?;
            Ok(admission::check(&engine, &read_module()?))
        }
        Command::Build { config_bytes, memory_bytes_max } => {
            let mut config = Vec::new();
            std::io::stdin().lock().take(*config_bytes).read_to_end(&mut config)?;
            let wishes = Wishes { config: config.into(), memory_bytes_max: *memory_bytes_max };
            match build(&read_module()?, &wishes, say) {
                Ok(built) => {
                    let mut out = std::io::stdout().lock();
                    serde_json::to_writer(&mut out, &built.facts)?;
                    out.write_all(b"\n")?;
                    out.write_all(&built.artifact)?;
                    out.flush()?;
                    Ok(Ok(()))
                }
                Err(refused) => Ok(Err(refused)),
            }
        }
    }
}

fn read_module() -> anyhow::Result<Vec<u8>> {
    let mut wasm = Vec::new();
    std::io::stdin().lock().take(MODULE_BYTES_MAX as u64 + 1).read_to_end(&mut wasm)?;
    anyhow::ensure!(wasm.len() <= MODULE_BYTES_MAX, "the module is over {MODULE_BYTES_MAX} bytes");
    Ok(wasm)
}

//! `pinion-builder`: judges modules and builds templates; started by the node. See [`pinion_builder_client::protocol`].
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use pinion_builder::build::build;
use pinion_builder::initialise::Wishes;
use pinion_builder::refused::Refused;
use pinion_builder::{FILES_BYTES_MAX, MODULE_BYTES_MAX, admission, limits};
use pinion_builder_client::EXIT_REFUSED;
use pinion_builder_client::protocol::Said;
use pinion_guest::files::Bundle;

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
    /// Judges the archive of files on standard input
    CheckFiles,
    /// Builds a template from the configuration, the files and the module on standard input
    Build {
        /// How much of standard input is the configuration
        #[arg(long)]
        config_bytes: u64,
        /// How much of it is the archive of files; not given, the module has no file system
        #[arg(long)]
        files_bytes: Option<u64>,
        /// Linear memory that an instance may have
        #[arg(long)]
        memory_bytes_max: u64,
        /// The fields of state that its stage was granted, by their numbers
        #[arg(long = "field", value_name = "NAME")]
        fields: Vec<String>,
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
            Ok(admission::check(&engine, &read_module()?).map(|_| ()))
        }
        Command::CheckFiles => Ok(bundle(read_at_most(FILES_BYTES_MAX, "the archive of files is")?).map(|_| ())),
        Command::Build { config_bytes, files_bytes, memory_bytes_max, fields } => {
            let config = read_exactly(*config_bytes)?;
            let archive = files_bytes.map(read_exactly).transpose()?;
            let files = match archive.map(bundle).transpose() {
                Ok(files) => files,
                Err(refused) => return Ok(Err(refused)),
            };
            let (memory_bytes_max, fields) = (*memory_bytes_max, fields.clone().into());
            let wishes = Wishes { config: config.into(), files, memory_bytes_max, fields };
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

fn bundle(archive: Vec<u8>) -> Result<Arc<Bundle>, Refused> {
    Ok(Arc::new(Bundle::read(archive)?))
}

fn read_module() -> anyhow::Result<Vec<u8>> {
    read_at_most(MODULE_BYTES_MAX, "the module is")
}

fn read_at_most(bytes_max: usize, what: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() <= bytes_max, "{what} over {bytes_max} bytes");
    Ok(bytes)
}

fn read_exactly(bytes_wanted: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(bytes_wanted).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 == bytes_wanted, "standard input ends too early");
    Ok(bytes)
}

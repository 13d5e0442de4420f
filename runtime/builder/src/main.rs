//! `pinion-builder`: checks modules and builds templates; started by the node. See [`pinion_builder_client::protocol`].
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pinion_builder::build::build;
use pinion_builder::initialise::Wishes;
use pinion_builder::model::{self, BadModel};
use pinion_builder::refused::{Input, Refused};
use pinion_builder::{
    CONFIG_BYTES_MAX, FILES_BYTES_MAX, MODULE_BYTES_MAX, admission, confinement, limits, progress, watch,
};
use pinion_builder_client::EXIT_REFUSED;
use pinion_builder_client::protocol::BuilderMessage;
use pinion_guest::files::Bundle;
use pinion_inference::bounds::MODEL_BYTES_MAX;
use pinion_text::{SENTENCE_BYTES_MAX, printable, printable_lines};

const MODULE: Input = Input { what: "a module", bytes_max: MODULE_BYTES_MAX };
const FILES: Input = Input { what: "the archive of a stage's files", bytes_max: FILES_BYTES_MAX };
const CONFIG: Input = Input { what: "a configuration", bytes_max: CONFIG_BYTES_MAX };

/// Checks modules and builds templates for a Pinion node.
#[derive(Parser)]
#[command(name = "pinion-builder", version)]
struct Arguments {
    #[command(flatten)]
    limits: Limits,
    #[command(subcommand)]
    command: Command,
}

/// Lower limits than usual, for tests.
#[derive(clap::Args)]
struct Limits {
    #[arg(long, hide = true)]
    cpu_time_ms_max: Option<u64>,
    #[arg(long, hide = true)]
    time_ms_max: Option<u64>,
    #[arg(long, hide = true)]
    memory_mib_max: Option<u64>,
}

impl Arguments {
    fn limits(&self) -> watch::Limits {
        let most = match self.command {
            Command::Model => watch::Limits::of_model(),
            _ => watch::Limits::default(),
        };
        let given = &self.limits;
        let time = |given: Option<u64>, most: Duration| given.map_or(most, |ms| Duration::from_millis(ms).min(most));
        watch::Limits {
            cpu_time: time(given.cpu_time_ms_max, most.cpu_time),
            time: time(given.time_ms_max, most.time),
            memory_bytes: given.memory_mib_max.map_or(most.memory_bytes, |mib| (mib << 20).min(most.memory_bytes)),
            of: most.of,
        }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Check the module on standard input
    Check,
    /// Check the archive of files on standard input
    CheckFiles,
    /// Write the form that nodes load of the model on standard input, in ONNX
    Model,
    /// Build a template from the configuration, the files and the module on standard input
    Build {
        /// Length of the configuration on standard input, in bytes
        #[arg(long)]
        config_bytes: u64,
        /// Length of the archive of files that follows, in bytes; without it, the module has no file system
        #[arg(long)]
        files_bytes: Option<u64>,
        /// The most linear memory of an instance, in bytes
        #[arg(long)]
        memory_bytes_max: u64,
        /// A field of state that the stage is granted; repeat it in the order of the fields' numbers
        #[arg(long = "field", value_name = "NAME")]
        fields: Vec<String>,
        /// A private key that the stage is granted; repeat it in the order of the keys' numbers
        #[arg(long = "key", value_name = "NAME")]
        keys: Vec<String>,
        /// A model that the stage is granted; repeat it in the order of the models' numbers
        #[arg(long = "model", value_name = "NAME")]
        models: Vec<String>,
    },
}

fn main() -> ExitCode {
    panic::set_hook(Box::new(say_panic));
    match run(&Arguments::parse()) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(refused)) => {
            say(&BuilderMessage::Sentence(refused.to_string()));
            ExitCode::from(EXIT_REFUSED as u8)
        }
        Err(error) => {
            say(&BuilderMessage::Sentence(printable_lines(
                format!("the builder failed: {error:#}"),
                SENTENCE_BYTES_MAX,
            )));
            ExitCode::FAILURE
        }
    }
}

/// Writes a message, if there is still a reader.
fn say(said: &BuilderMessage) {
    let line = said.to_line() + "\n";
    // Without a reader nothing can be done, and the exit status says how it ended.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Reports a panic in the protocol's form, because its message may quote the module.
fn say_panic(info: &PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("it gives no reason");
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    say(&BuilderMessage::Sentence(format!("the builder panicked{place}: {}", printable(message, SENTENCE_BYTES_MAX))));
}

fn run(arguments: &Arguments) -> anyhow::Result<Result<(), Refused>> {
    limits::impose()?;
    let memory = watch::OwnMemory::open()?;
    confinement::enter()?;
    watch::begin(arguments.limits(), memory)?;
    progress::listen();
    match &arguments.command {
        Command::Check => {
            let engine = wasmtime::Engine::new(&pinion_guest::settings::config());
            let engine = engine.map_err(|error| anyhow::anyhow!("{error:#}"))?;
            let module = read_at_most(MODULE_BYTES_MAX)?;
            Ok(module.map_or_else(|| Err(Refused::Large(MODULE)), |wasm| admission::check(&engine, &wasm).map(|_| ())))
        }
        Command::CheckFiles => {
            let archive = read_at_most(FILES_BYTES_MAX)?;
            Ok(archive.map_or_else(|| Err(Refused::Large(FILES)), |archive| bundle(archive).map(|_| ())))
        }
        Command::Model => {
            // The refusal says what it was.
            panic::set_hook(Box::new(|_| ()));
            let Some(onnx) = read_at_most(MODEL_BYTES_MAX)? else { return Ok(Err(BadModel::Large.into())) };
            match model::import(&onnx) {
                Ok(form) => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(&form)?;
                    out.flush()?;
                    Ok(Ok(()))
                }
                Err(refused) => Ok(Err(refused.into())),
            }
        }
        Command::Build { config_bytes, files_bytes, memory_bytes_max, fields, keys, models } => {
            if *config_bytes > CONFIG_BYTES_MAX as u64 {
                return Ok(Err(Refused::Large(CONFIG)));
            }
            if files_bytes.is_some_and(|bytes| bytes > FILES_BYTES_MAX as u64) {
                return Ok(Err(Refused::Large(FILES)));
            }
            let config = read_exactly(*config_bytes)?;
            let archive = files_bytes.map(read_exactly).transpose()?;
            let files = match archive.map(bundle).transpose() {
                Ok(files) => files,
                Err(refused) => return Ok(Err(refused)),
            };
            let (memory_bytes_max, fields, keys) = (*memory_bytes_max, fields.clone().into(), keys.clone().into());
            let wishes =
                Wishes { config: config.into(), files, memory_bytes_max, fields, keys, models: models.clone().into() };
            let Some(wasm) = read_at_most(MODULE_BYTES_MAX)? else { return Ok(Err(Refused::Large(MODULE))) };
            match build(&wasm, &wishes, say) {
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

/// Returns all of standard input; none if it is longer than that.
fn read_at_most(bytes_max: usize) -> anyhow::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

fn read_exactly(bytes_wanted: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(bytes_wanted).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 == bytes_wanted, "standard input ends too early");
    Ok(bytes)
}

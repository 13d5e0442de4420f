//! All steps from a module to a template.

use pinion_builder_client::NATIVE_BYTES_MAX;
use pinion_builder_client::protocol::{BuilderMessage, Facts, Phase, Start};
use pinion_guest::settings;
use wasmtime::{Config, Engine, Module};

use crate::admission;
use crate::initialise::{Initialised, Wishes, initialise};
use crate::interruptible::interruptible;
use crate::progress;
use crate::refused::Refused;
use crate::stack;

const WASM_PAGE_BYTES: u64 = 64 * 1024;

/// A template: what the node's engines load, and the facts about it.
#[derive(Debug)]
pub struct Built {
    /// The facts about it.
    pub facts: Facts,
    /// Native code.
    pub artifact: Vec<u8>,
}

/// Checks a module, initialises it and compiles it; reports progress to `say`.
///
/// # Errors
/// Why the module is refused.
pub fn build(wasm: &[u8], wishes: &Wishes, say: fn(&BuilderMessage)) -> Result<Built, Refused> {
    build_with(settings::config(), wasm, wishes, say)
}

/// Does the same as [`build`], for engines with other settings than a node's.
///
/// # Errors
/// Why the module is not taken.
pub fn build_with(
    mut config: Config,
    wasm: &[u8],
    wishes: &Wishes,
    say: fn(&BuilderMessage),
) -> Result<Built, Refused> {
    let invalid = |error: wasmtime::Error| Refused::Invalid(format!("{error:#}"));
    let begin = |phase: Phase| {
        progress::begin(phase);
        say(&BuilderMessage::Phase(phase));
    };
    // Functions are compiled one after the other: the cores belong to the data plane.
    let engine = Engine::new(config.parallel_compilation(false)).map_err(invalid)?;
    begin(Phase::Validating);
    let asked = admission::check(&engine, wasm)?;
    if wishes.fields.is_empty()
        && let Some(import) = asked.state
    {
        return Err(Refused::NoState(import));
    }
    memory_suffices(asked.memory_bytes, wishes)?;
    let wasm = &*interruptible(wasm)?;
    begin(Phase::Initialising);
    let initialised = initialise(wasm, wishes, say)?;
    begin(Phase::Compiling);
    let (module, start, metrics) = match initialised {
        Initialised::Snapshot { wasm, pool, metrics } => {
            (Module::from_binary(&engine, &wasm), Start::Snapshot(pool), metrics)
        }
        Initialised::NotPossible(reason) => (Module::from_binary(&engine, wasm), Start::Module(reason), Vec::new()),
    };
    let module = module.map_err(|error| Refused::of_engine(&error))?;
    progress::compiled();
    let (memory_bytes, stack) = (memory_bytes(&module), stack::of(wasm));
    let facts = Facts { memory_bytes, instance_bytes: asked.instance_bytes, start, metrics, stack };
    memory_suffices(facts.memory_bytes, wishes)?;
    let artifact = module.serialize().map_err(invalid)?;
    if artifact.len() > NATIVE_BYTES_MAX {
        return Err(Refused::NativeCode(artifact.len()));
    }
    Ok(Built { facts, artifact })
}

fn memory_bytes(module: &Module) -> u64 {
    module.resources_required().max_initial_memory_size.unwrap_or(0) * WASM_PAGE_BYTES
}

fn memory_suffices(memory_bytes: u64, wishes: &Wishes) -> Result<(), Refused> {
    if memory_bytes <= wishes.memory_bytes_max {
        return Ok(());
    }
    Err(Refused::Memory { needed_kib: memory_bytes / 1024, limit_kib: wishes.memory_bytes_max / 1024 })
}

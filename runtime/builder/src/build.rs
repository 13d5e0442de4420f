//! The whole way from a module to a template.

use pinion_builder_client::protocol::{Facts, Phase, Said, Start};
use pinion_guest::settings;
use wasmtime::{Engine, Module};

use crate::admission;
use crate::initialise::{Initialised, Wishes, initialise};
use crate::interruptible::interruptible;
use crate::refused::Refused;
use crate::stack;

const WASM_PAGE_BYTES: u64 = 64 * 1024;

/// A template: what the node's engines load, and what is known of it.
#[derive(Debug)]
pub struct Built {
    /// What is known of it.
    pub facts: Facts,
    /// Native code.
    pub artifact: Vec<u8>,
}

/// Judges a module, initialises it and compiles it; says on the way how far it is.
///
/// # Errors
/// Why the module is not taken.
pub fn build(wasm: &[u8], wishes: &Wishes, say: fn(&Said)) -> Result<Built, Refused> {
    let invalid = |error: wasmtime::Error| Refused::Invalid(format!("{error:#}"));
    let engine = Engine::new(&settings::config()).map_err(invalid)?;
    say(&Said::Phase(Phase::Validating));
    let imports = admission::check(&engine, wasm)?;
    if wishes.fields.is_empty()
        && let Some(import) = imports.state
    {
        return Err(Refused::NoState(import));
    }
    let wasm = &*interruptible(wasm)?;
    say(&Said::Phase(Phase::Initialising));
    let initialised = initialise(wasm, wishes, say);
    say(&Said::Phase(Phase::Compiling));
    let (module, start, metrics) = match initialised {
        Ok(Initialised::Snapshot { wasm, pool, metrics }) => {
            (Module::from_binary(&engine, &wasm), Start::Snapshot(pool), metrics)
        }
        Ok(Initialised::NotPossible(reason)) => (Module::from_binary(&engine, wasm), Start::Module(reason), Vec::new()),
        Err(refused) => return Err(over_memory(&engine, wasm, wishes).unwrap_or(refused)),
    };
    let module = module.map_err(invalid)?;
    let facts = Facts { memory_bytes: memory_bytes(&module), start, metrics, stack: stack::of(wasm) };
    memory_suffices(facts.memory_bytes, wishes)?;
    Ok(Built { facts, artifact: module.serialize().map_err(invalid)? })
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

/// Whether the module as it came would start with more memory than it may have: then that is why nothing came of it.
fn over_memory(engine: &Engine, wasm: &[u8], wishes: &Wishes) -> Option<Refused> {
    let module = Module::from_binary(engine, wasm).ok()?;
    memory_suffices(memory_bytes(&module), wishes).err()
}

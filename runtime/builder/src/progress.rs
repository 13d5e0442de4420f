//! The builder's progress, for the sentence with which it ends when it reaches a limit of time or memory.
//!
//! The engine reports which function it compiles only through a log line, which is read here and not written anywhere. Only that sentence
//! depends on it.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};
use pinion_builder_client::protocol::Phase;
use pinion_text::{NAME_BYTES_MAX, printable};

/// The log target of these lines.
const TARGET: &str = "wasmtime_internal_cranelift::compiler";
/// The text before the function's index in such a line, and between index and name.
const BEFORE_INDEX: &str = "wasm[0]::function[";
const BEFORE_NAME: &str = "]::";
const LINE_START: &str = "compiling Wasm function: ";

static AT: Mutex<At> = Mutex::new(At { phase: None, function: None, compiled: 0 });

/// What the builder is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    phase: Option<Phase>,
    /// The function that is being compiled.
    function: Option<Function>,
    /// How many functions were compiled before it in this phase.
    compiled: u32,
}

/// A function of the module, by its index, imported ones included, and by its name, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    index: u32,
    name: Option<String>,
}

/// Returns what the builder is doing now.
#[must_use]
pub fn now() -> At {
    at().clone()
}

/// Notes that a phase begins.
pub(crate) fn begin(phase: Phase) {
    *at() = At { phase: Some(phase), function: None, compiled: 0 };
}

/// Notes that no function is being compiled any more.
pub(crate) fn compiled() {
    at().function = None;
}

/// Reads the engine's log from now on.
pub fn listen() {
    if log::set_logger(&Listener).is_ok() {
        log::set_max_level(LevelFilter::Trace);
    }
}

fn at() -> MutexGuard<'static, At> {
    AT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for At {
    /// As the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Function { index, name }) = &self.function else {
            let doing = match self.phase {
                None => "being read",
                Some(Phase::Validating) => "being judged",
                Some(Phase::Initialising) => "being initialised",
                Some(Phase::Compiling) => "being compiled",
            };
            return write!(f, "it was {doing}");
        };
        write!(f, "its function {index} ")?;
        if let Some(name) = name {
            write!(f, "({}) ", printable(name, NAME_BYTES_MAX))?;
        }
        write!(
            f,
            "was being compiled, after {} others: divide that function, or have the compiler inline less into it; ",
            self.compiled
        )?;
        f.write_str("if it is short, the module has too much code in all")
    }
}

struct Listener;

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if let Some(function) = function(&record.args().to_string()) {
            let mut at = at();
            at.compiled += u32::from(at.function.is_some());
            at.function = Some(function);
        }
    }

    fn flush(&self) {}
}

/// Parses the function that is compiled next from a log line. The engine has shortened the names and removed unprintable characters.
fn function(line: &str) -> Option<Function> {
    let line = line.strip_prefix(LINE_START)?;
    let (_, symbol) = line.split_once(BEFORE_INDEX)?;
    let (index, rest) = symbol.split_once(']')?;
    let name = rest.strip_prefix(&BEFORE_NAME[1..]).map(|name| name.trim_end_matches('"').to_owned());
    Some(Function { index: index.parse().ok()?, name })
}

#[cfg(test)]
mod tests {
    use pinion_guest::settings;
    use wasmtime::{Engine, Module};

    use super::*;

    /// Fails if a release of the engine changes the wording.
    #[test]
    fn the_function_that_the_engine_compiles_is_known_by_index_and_name() {
        listen();
        begin(Phase::Compiling);
        let wat = "(module (import \"m\" \"f\" (func)) (func) (func $last (result i32) (i32.const 1)))";
        let mut config = settings::config();
        config.parallel_compilation(false);
        Module::new(&Engine::new(&config).unwrap(), wat::parse_str(wat).unwrap()).unwrap();
        let at = now();
        assert_eq!(at.function, Some(Function { index: 2, name: Some("last".to_owned()) }));
        assert_eq!(at.compiled, 1);
        assert!(at.to_string().starts_with("its function 2 (last) was being compiled, after 1 others: divide"), "{at}");
        compiled();
        assert_eq!(now().to_string(), "it was being compiled");
    }

    #[test]
    fn functions_without_a_name_are_known_by_their_index_and_other_lines_mean_nothing() {
        let unnamed = "compiling Wasm function: DefinedWasmFunction(StaticModuleIndex(0), DefinedFuncIndex(4)) = \"wasm[0]::function[7]\"";
        assert_eq!(function(unnamed), Some(Function { index: 7, name: None }));
        for line in ["", "compiling Wasm function: ", "`wasm[0]::function[7]` translated to CLIF in 1ms"] {
            assert_eq!(function(line), None);
        }
    }
}

//! A module whose code looks at its epoch again and again, whatever it does, so that it can be interrupted.
//!
//! The engine has code look where a function begins, at the head of each loop and before a bulk memory operation, and nowhere
//! else: what lies in between runs to its end, and so does the way back out of a recursion. Therefore
//!
//! ```text
//!   straight code  --->   straight code, look, straight code     wherever more than BUDGET could lie between two looks
//!   call           --->   call, look
//!   memory.copy    --->   call N, look
//!                              N: up to CHUNK_BYTES:     memory.copy
//!                                 more, within bounds:   memory.copy of CHUNK_BYTES, again and again
//!                                 out of bounds:         memory.copy, which traps as it would have
//!   table.copy     --->   the same, by CHUNK_ELEMENTS
//! ```
//!
//! A look is a loop that does nothing, once. Where looks are needed is told by `straight` from what instructions `cost`; which
//! operations may be long, by `bulk`. What these are replaced by are functions at the module's end, one for each kind
//! (`pieces`).
//!
//! Nothing else changes: no index shifts, and sections without a part in this stay as they are, byte by byte; but what
//! names places in the code is left out, as they shift. Called by [`build`](crate::build) with modules that have been judged: they are valid
//! by the engine's settings, have one 32-bit memory, and one table of functions at most.

mod bulk;
mod cost;
mod outline;
mod pages;
mod pieces;
mod straight;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;

use wasm_encoder::reencode::{self, Reencode, RoundtripReencoder, utils};
use wasm_encoder::{
    BlockType, CodeSection, FunctionSection, InstructionSink, Module, NameSection, RawSection, TypeSection,
};
use wasmparser::{BinaryReader, CodeSectionReader, CustomSectionReader, KnownCustom, Name, Parser, Payload};

use self::bulk::Operation;
pub use self::cost::BUDGET;
use self::outline::Outline;
use crate::refused::Refused;

/// Bytes that one bulk memory operation moves at most.
pub const CHUNK_BYTES: u32 = 16 * 1024;

/// Elements that one bulk operation on a table moves at most. The engine makes an element when it is first read, in some 40 ns.
pub const CHUNK_ELEMENTS: u32 = 128;

/// Custom sections of this name and more say something of places in the code: hints for the compiler.
const CODE_METADATA: &str = "metadata.code.";

/// Rewrites a module such that no path through its code costs more than [`BUDGET`] between two looks at the epoch, and no bulk
/// operation in it moves more than [`CHUNK_BYTES`] of memory or [`CHUNK_ELEMENTS`] of a table at once. What it does stays the
/// same, traps included.
///
/// # Errors
/// If it can't be parsed.
pub fn interruptible(wasm: &[u8]) -> Result<Cow<'_, [u8]>, Refused> {
    let invalid = |error: reencode::Error| Refused::Invalid(error.to_string());
    let plan = Plan::of(wasm).map_err(|error| invalid(error.into()))?;
    if plan.edits.is_empty() {
        return Ok(Cow::Borrowed(wasm));
    }
    plan.carried_out(wasm).map(Cow::Owned).map_err(invalid)
}

/// What becomes of some bytes of the module.
struct Edit {
    bytes: Range<usize>,
    replacement: Replacement,
}

enum Replacement {
    /// A call of the function that stands for this operation.
    Call(Operation),
    Look,
}

/// What is to be done with a module.
struct Plan {
    /// How many types it has.
    types: u32,
    /// How many functions it has, imported ones included.
    functions: u32,
    /// In their order.
    edits: Vec<Edit>,
    /// The functions to be added, in their order.
    added: Vec<Operation>,
}

impl Plan {
    fn of(wasm: &[u8]) -> wasmparser::Result<Self> {
        let outline = Outline::of(wasm)?;
        let edits = straight::edits(&outline)?;
        let operation = |edit: &Edit| match edit.replacement {
            Replacement::Call(operation) => Some(operation),
            Replacement::Look => None,
        };
        let added: BTreeSet<Operation> = edits.iter().filter_map(operation).collect();
        Ok(Self { types: outline.types(), functions: outline.functions(), edits, added: added.into_iter().collect() })
    }

    fn carried_out(&self, wasm: &[u8]) -> Result<Vec<u8>, reencode::Error> {
        let mut module = Module::new();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            match &payload {
                Payload::TypeSection(section) if !self.added.is_empty() => {
                    let mut types = TypeSection::new();
                    RoundtripReencoder.parse_type_section(&mut types, section.clone())?;
                    for operation in &self.added {
                        types.ty().function(pieces::parameters(*operation), []);
                    }
                    module.section(&types);
                }
                Payload::FunctionSection(section) if !self.added.is_empty() => {
                    let mut functions = FunctionSection::new();
                    RoundtripReencoder.parse_function_section(&mut functions, section.clone())?;
                    for ty in (self.types..).take(self.added.len()) {
                        functions.function(ty);
                    }
                    module.section(&functions);
                }
                Payload::CodeSectionStart { range, .. } => {
                    module.section(&self.code(wasm, range)?);
                }
                Payload::CustomSection(section) if section.name().starts_with(CODE_METADATA) => {}
                Payload::CustomSection(section) if let Some(names) = self.names(section) => {
                    module.section(&names);
                }
                _ => {
                    if let Some((id, range)) = payload.as_section() {
                        module.section(&RawSection { id, data: &wasm[range] });
                    }
                }
            }
        }
        Ok(module.finish())
    }

    /// The functions as edited, and those that are called there.
    fn code(&self, wasm: &[u8], range: &Range<usize>) -> Result<CodeSection, reencode::Error> {
        let mut code = CodeSection::new();
        let mut edits = self.edits.iter().peekable();
        for body in CodeSectionReader::new(BinaryReader::new(&wasm[range.clone()], range.start))? {
            let body = body?.range();
            let (mut bytes, mut copied) = (Vec::with_capacity(body.len()), body.start);
            while let Some(edit) = edits.next_if(|edit| edit.bytes.end <= body.end) {
                bytes.extend_from_slice(&wasm[copied..edit.bytes.start]);
                let mut sink = InstructionSink::new(&mut bytes);
                match edit.replacement {
                    Replacement::Call(operation) => sink.call(self.function_of(operation)),
                    Replacement::Look => sink.loop_(BlockType::Empty).end(),
                };
                copied = edit.bytes.end;
            }
            bytes.extend_from_slice(&wasm[copied..body.end]);
            code.raw(&bytes);
        }
        for operation in &self.added {
            code.function(&pieces::function(*operation));
        }
        Ok(code)
    }

    /// The index of the function that stands for an operation.
    fn function_of(&self, operation: Operation) -> u32 {
        self.functions + self.added.partition_point(|other| *other < operation) as u32
    }

    /// The names of functions with those of the added ones, if this is the section of names and can be read: nothing but
    /// backtraces depends on it.
    fn names(&self, section: &CustomSectionReader<'_>) -> Option<NameSection> {
        let KnownCustom::Name(names) = section.as_known() else { return None };
        Naming(self).custom_name_section(names).ok()
    }
}

/// Copies the section of names, and adds to it.
struct Naming<'a>(&'a Plan);

impl Reencode for Naming<'_> {
    type Error = Infallible;

    fn parse_custom_name_subsection(
        &mut self,
        names: &mut NameSection,
        section: Name<'_>,
    ) -> Result<(), reencode::Error> {
        match section {
            Name::Function(functions) => {
                let mut functions = utils::name_map(functions, Ok)?;
                for operation in &self.0.added {
                    functions.append(self.0.function_of(*operation), &operation.name());
                }
                names.functions(&functions);
                Ok(())
            }
            // They count loops.
            Name::Label(_) => Ok(()),
            _ => utils::parse_custom_name_subsection(self, names, section),
        }
    }
}

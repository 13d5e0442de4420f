//! Rewrites a module so that its code checks the epoch often enough, whatever it does, and can be interrupted.
//!
//! The engine's code checks the epoch at function entries, at loop heads and before bulk memory operations, and nowhere else. Code in
//! between runs to its end, and so does the way back out of a recursion. A check is called a look here. Therefore:
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
//! A look is an empty loop that runs once. `straight` finds where looks are needed, from what instructions `cost`; `bulk` finds the
//! operations that may be long. Functions at the module's end replace these, one for each kind of operation (`pieces`).
//!
//! Nothing else changes. No index shifts, and sections without a part in this are copied byte by byte. Names of places in the code are
//! dropped, since these places shift. Called by [`build`](crate::build) with modules that have been admitted: they are valid under the
//! engine's settings, and have one 32-bit memory and at most one table of functions.

mod budget;
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

pub use self::budget::BUDGET;
use self::bulk::Operation;
use self::outline::Outline;
use crate::refused::Refused;

/// The most bytes that one bulk memory operation moves.
pub const CHUNK_BYTES: u32 = 16 * 1024;

/// The most elements that one bulk operation on a table moves. The engine creates an element when it is first read, in some 40 ns.
pub const CHUNK_ELEMENTS: u32 = 128;

/// Custom sections with this prefix refer to places in the code: hints for the compiler.
const CODE_METADATA: &str = "metadata.code.";

/// Rewrites a module so that no path through its code costs more than [`BUDGET`] between two looks at the epoch. No bulk operation in it
/// moves more than [`CHUNK_BYTES`] of memory or [`CHUNK_ELEMENTS`] of a table at once. Its behaviour stays the same, traps included.
///
/// # Errors
/// If it cannot be parsed.
pub fn interruptible(wasm: &[u8]) -> Result<Cow<'_, [u8]>, Refused> {
    let invalid = |error: reencode::Error| Refused::Invalid(error.to_string());
    let plan = Plan::of(wasm).map_err(|error| invalid(error.into()))?;
    if plan.edits.is_empty() {
        return Ok(Cow::Borrowed(wasm));
    }
    plan.carried_out(wasm).map(Cow::Owned).map_err(invalid)
}

/// A change to some bytes of the module.
struct Edit {
    bytes: Range<usize>,
    replacement: Replacement,
}

enum Replacement {
    /// A call of the function that replaces this operation.
    Call(Operation),
    Look,
}

/// All changes to a module.
struct Plan {
    /// The number of its types.
    types: u32,
    /// The number of its functions, imported ones included.
    functions: u32,
    /// In the order of the code.
    edits: Vec<Edit>,
    /// The functions to be added, in order.
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

    /// Returns the edited functions, and the added ones.
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

    /// Returns the index of the function that replaces an operation.
    fn function_of(&self, operation: Operation) -> u32 {
        self.functions + self.added.partition_point(|other| *other < operation) as u32
    }

    /// Returns the function names, with those of the added functions, if this is the name section and can be read. Only backtraces depend
    /// on it.
    fn names(&self, section: &CustomSectionReader<'_>) -> Option<NameSection> {
        let KnownCustom::Name(names) = section.as_known() else { return None };
        NameRewriter(self).custom_name_section(names).ok()
    }
}

/// Copies the name section, and adds to it.
struct NameRewriter<'a>(&'a Plan);

impl Reencode for NameRewriter<'_> {
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
            // Dropped: labels are numbered by loops, and loops are added.
            Name::Label(_) => Ok(()),
            _ => utils::parse_custom_name_subsection(self, names, section),
        }
    }
}

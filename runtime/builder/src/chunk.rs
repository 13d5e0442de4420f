//! Bulk memory operations in pieces, so that they can be interrupted.
//!
//! The engine looks at its epoch before a `memory.copy`, `memory.fill` or `memory.init`, and not again until that has moved
//! all its bytes: tens of milliseconds for a large memory. So each that may be long becomes a call of a function at the
//! module's end, one for each kind of operation (`pieces`), which goes through it in a loop:
//!
//! ```text
//!   memory.copy   --->   call N      N: up to CHUNK_BYTES:     memory.copy
//!                                       more, within bounds:   memory.copy of CHUNK_BYTES, again and again
//!                                       out of bounds:         memory.copy, which traps as it would have
//! ```
//!
//! Nothing else changes: no index shifts, and sections without a part in this stay as they are, byte by byte. Called by
//! [`build`](crate::build) with modules that have been judged: they are valid and have one 32-bit memory.

mod pieces;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;

use wasm_encoder::reencode::{self, Reencode, RoundtripReencoder, utils};
use wasm_encoder::{
    CodeSection, FunctionSection, InstructionSink, Module, NameSection, RawSection, TypeSection, ValType,
};
use wasmparser::{
    BinaryReader, CodeSectionReader, CustomSectionReader, DataKind, FunctionBody, KnownCustom, Name, Operator, Parser,
    Payload, TypeRef,
};

use crate::refused::Refused;

/// Bytes that one bulk memory operation moves at most.
pub const CHUNK_BYTES: u32 = 16 * 1024;

/// A kind of operation that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Copy,
    Fill,
    /// Out of a passive data segment of this index and so many bytes.
    Init {
        segment: u32,
        bytes: u32,
    },
}

impl Operation {
    /// The name that its function has in backtraces.
    fn name(self) -> String {
        match self {
            Self::Copy => "pinion:memory.copy".to_owned(),
            Self::Fill => "pinion:memory.fill".to_owned(),
            Self::Init { segment, .. } => format!("pinion:memory.init {segment}"),
        }
    }
}

/// Rewrites a module such that no bulk memory operation in it moves more than [`CHUNK_BYTES`] at once. What it does stays
/// the same, traps included.
///
/// # Errors
/// If it can't be parsed.
pub fn chunked(wasm: &[u8]) -> Result<Cow<'_, [u8]>, Refused> {
    let invalid = |error: reencode::Error| Refused::Invalid(error.to_string());
    let plan = Plan::of(wasm).map_err(|error| invalid(error.into()))?;
    if plan.sites.is_empty() {
        return Ok(Cow::Borrowed(wasm));
    }
    plan.carried_out(wasm).map(Cow::Owned).map_err(invalid)
}

/// An instruction that becomes a call: what it is, and its bytes in the module.
struct Site {
    operation: Operation,
    bytes: Range<usize>,
}

/// What is to be done with a module.
#[derive(Default)]
struct Plan {
    /// How many types it has.
    types: u32,
    /// How many functions it has, imported ones included.
    functions: u32,
    /// In their order.
    sites: Vec<Site>,
    /// The functions to be added, in their order.
    added: Vec<Operation>,
}

impl Plan {
    fn of(wasm: &[u8]) -> wasmparser::Result<Self> {
        let (mut plan, mut passive_bytes) = (Self::default(), Vec::new());
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => {
                    for group in section {
                        plan.types += group?.types().count() as u32;
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        plan.functions += u32::from(matches!(import?.ty, TypeRef::Func(_)));
                    }
                }
                Payload::FunctionSection(section) => plan.functions += section.count(),
                Payload::CodeSectionEntry(body) => plan.sites.extend(sites(&body)?),
                Payload::DataSection(section) => {
                    for segment in section {
                        let segment = segment?;
                        // An active one is empty once the instance has been made.
                        let is_passive = matches!(segment.kind, DataKind::Passive);
                        passive_bytes.push(if is_passive { segment.data.len() as u32 } else { 0 });
                    }
                }
                _ => {}
            }
        }
        // More than a segment has is never moved, so those of short ones are short.
        plan.sites.retain_mut(|site| match &mut site.operation {
            Operation::Init { segment, bytes } => {
                *bytes = passive_bytes.get(*segment as usize).copied().unwrap_or(0);
                *bytes > CHUNK_BYTES
            }
            Operation::Copy | Operation::Fill => true,
        });
        plan.added = plan.sites.iter().map(|site| site.operation).collect::<BTreeSet<_>>().into_iter().collect();
        Ok(plan)
    }

    fn carried_out(&self, wasm: &[u8]) -> Result<Vec<u8>, reencode::Error> {
        let mut module = Module::new();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            match &payload {
                Payload::TypeSection(section) => {
                    let mut types = TypeSection::new();
                    RoundtripReencoder.parse_type_section(&mut types, section.clone())?;
                    types.ty().function([ValType::I32; 3], []);
                    module.section(&types);
                }
                Payload::FunctionSection(section) => {
                    let mut functions = FunctionSection::new();
                    RoundtripReencoder.parse_function_section(&mut functions, section.clone())?;
                    for _ in &self.added {
                        functions.function(self.types);
                    }
                    module.section(&functions);
                }
                Payload::CodeSectionStart { range, .. } => {
                    module.section(&self.code(wasm, range)?);
                }
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

    /// The functions, with calls at the sites, and those that are called there.
    fn code(&self, wasm: &[u8], range: &Range<usize>) -> Result<CodeSection, reencode::Error> {
        let mut code = CodeSection::new();
        let mut sites = self.sites.iter().peekable();
        for body in CodeSectionReader::new(BinaryReader::new(&wasm[range.clone()], range.start))? {
            let body = body?.range();
            let (mut bytes, mut copied) = (Vec::with_capacity(body.len()), body.start);
            while let Some(site) = sites.next_if(|site| site.bytes.end <= body.end) {
                bytes.extend_from_slice(&wasm[copied..site.bytes.start]);
                InstructionSink::new(&mut bytes).call(self.function_of(site.operation));
                copied = site.bytes.end;
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

/// The instructions of a function that may move more than [`CHUNK_BYTES`].
fn sites(body: &FunctionBody<'_>) -> wasmparser::Result<Vec<Site>> {
    let (mut sites, mut is_short) = (Vec::new(), false);
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        let (operator, start) = operators.read_with_offset()?;
        let operation = match operator {
            Operator::MemoryCopy { .. } => Some(Operation::Copy),
            Operator::MemoryFill { .. } => Some(Operation::Fill),
            Operator::MemoryInit { data_index, .. } => Some(Operation::Init { segment: data_index, bytes: 0 }),
            _ => None,
        };
        if let Some(operation) = operation.filter(|_| !is_short) {
            sites.push(Site { operation, bytes: start..operators.original_position() });
        }
        // How many bytes is what comes last before the instruction.
        is_short = matches!(operator, Operator::I32Const { value } if value as u32 <= CHUNK_BYTES);
    }
    Ok(sites)
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
        let Name::Function(functions) = section else {
            return utils::parse_custom_name_subsection(self, names, section);
        };
        let mut functions = utils::name_map(functions, Ok)?;
        for operation in &self.0.added {
            functions.append(self.0.function_of(*operation), &operation.name());
        }
        names.functions(&functions);
        Ok(())
    }
}

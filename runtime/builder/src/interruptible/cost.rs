//! What an instruction costs, in units of about an eighth of a nanosecond: the time that most instructions take or less.
//!
//! What may wait for memory costs more, as nobody knows beforehand what it finds. So with its pages and cache lines at hand,
//! code takes a fraction of what is reckoned here; with pages that the kernel must provide first, much more.

use pinion_abi::{IMPORT_CLOCK, IMPORT_MODULE, IMPORT_WAIT, IMPORT_WAIT_UNTIL, IMPORT_YIELD};
use pinion_guest::calls::WASI_MODULE;
use wasmparser::Operator;

use super::bulk::{Bulk, Space};
use super::outline::Outline;
use super::pages::Access;

/// Units that code may cost between two looks at the epoch.
pub const BUDGET: u32 = 8192;

const DIVISION: u32 = 64;
const NEAR_ACCESS: u32 = 8;
/// So there are no more than 16 of them between two looks.
const FAR_ACCESS: u32 = 512;
/// Out of the guest and back: a call of the host's, or of the engine's.
const HOST_CALL: u32 = 1024;
const MEMORY_GROWTH: u32 = 2048;
/// There is a look right before and one right after.
const ALL: u32 = BUDGET;

/// Calls that read the clock or leave a word with the host. All others may move as much as a turn allows.
const BRIEF_CALLS: [(&str, &str); 6] = [
    (IMPORT_MODULE, IMPORT_WAIT),
    (IMPORT_MODULE, IMPORT_WAIT_UNTIL),
    (IMPORT_MODULE, IMPORT_YIELD),
    (IMPORT_MODULE, IMPORT_CLOCK),
    (WASI_MODULE, "clock_time_get"),
    (WASI_MODULE, "sched_yield"),
];

/// How an instruction uses linear memory, or the table if it goes through it.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemoryUse {
    Access(Access),
    Bulk(Bulk),
}

/// The cost of an instruction, without that of the values which it moves to where paths join.
pub(super) fn of(operator: &Operator<'_>, memory: Option<MemoryUse>, outline: &Outline<'_>) -> u32 {
    match memory {
        None => of_others(operator, outline),
        Some(MemoryUse::Access(Access::Near)) => NEAR_ACCESS,
        Some(MemoryUse::Access(Access::Far)) => FAR_ACCESS,
        // Where from, and where to.
        Some(MemoryUse::Bulk(Bulk::Short { space: Space::Memory, size })) => (2 * FAR_ACCESS + size / 2).min(ALL),
        Some(MemoryUse::Bulk(Bulk::Short { space: Space::Table, .. })) => ALL,
        // The call of a function that has three parameters.
        Some(MemoryUse::Bulk(Bulk::Long(_))) => 1 + 3,
    }
}

/// The cost of calling an imported function.
pub(super) fn of_import(module: &str, name: &str) -> u32 {
    if BRIEF_CALLS.contains(&(module, name)) { HOST_CALL } else { ALL }
}

fn of_others(operator: &Operator<'_>, outline: &Outline<'_>) -> u32 {
    match *operator {
        Operator::Nop
        | Operator::Unreachable
        | Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::Else
        | Operator::End => 0,
        Operator::Call { function_index } => {
            outline.import_cost(function_index).unwrap_or(1) + outline.function_arity(function_index).values()
        }
        // Where it leads to may have to be made first, and be the host's.
        Operator::CallIndirect { type_index, .. } | Operator::CallRef { type_index } => {
            2 * HOST_CALL + outline.type_arity(type_index).values()
        }
        Operator::I32DivS
        | Operator::I32DivU
        | Operator::I32RemS
        | Operator::I32RemU
        | Operator::I64DivS
        | Operator::I64DivU
        | Operator::I64RemS
        | Operator::I64RemU
        | Operator::F32Div
        | Operator::F64Div
        | Operator::F32Sqrt
        | Operator::F64Sqrt
        | Operator::F32x4Div
        | Operator::F64x2Div
        | Operator::F32x4Sqrt
        | Operator::F64x2Sqrt => DIVISION,
        Operator::GlobalGet { .. } | Operator::GlobalSet { .. } => NEAR_ACCESS,
        Operator::TableSet { .. } => FAR_ACCESS,
        Operator::MemoryGrow { .. } => MEMORY_GROWTH,
        Operator::TableGet { .. }
        | Operator::RefFunc { .. }
        | Operator::RefTestNonNull { .. }
        | Operator::RefTestNullable { .. }
        | Operator::RefCastNonNull { .. }
        | Operator::RefCastNullable { .. }
        | Operator::BrOnCast { .. }
        | Operator::BrOnCastFail { .. }
        | Operator::DataDrop { .. }
        | Operator::ElemDrop { .. } => HOST_CALL,
        Operator::TableGrow { .. } => ALL,
        _ => 1,
    }
}

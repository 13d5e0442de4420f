//! The cost of instructions, in units of about an eighth of a nanosecond: the time that most instructions take, or less.
//!
//! An instruction that may wait for memory costs more, because a cache miss cannot be foreseen. If its pages and cache lines are present,
//! code takes a fraction of the cost calculated here; if the kernel must provide the pages first, much more.

use wasmparser::Operator;

use super::budget::{ALL, HOST_CALL};
use super::bulk::{Bulk, Space};
use super::outline::Outline;
use super::pages::Access;

const DIVISION: u32 = 64;
const NEAR_ACCESS: u32 = 8;
/// So at most 16 such accesses fit between two looks.
const FAR_ACCESS: u32 = 512;
const MEMORY_GROWTH: u32 = 2048;

/// How an instruction uses linear memory, or the table for bulk operations on it.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemoryUse {
    Access(Access),
    Bulk(Bulk),
}

/// Returns the cost of an instruction, without the values that it moves to where paths join.
pub(super) fn of(operator: &Operator<'_>, memory: Option<MemoryUse>, outline: &Outline<'_>) -> u32 {
    match memory {
        None => of_others(operator, outline),
        Some(MemoryUse::Access(Access::Near)) => NEAR_ACCESS,
        Some(MemoryUse::Access(Access::Far)) => FAR_ACCESS,
        // One access for the source, and one for the destination.
        Some(MemoryUse::Bulk(Bulk::Short { space: Space::Memory, size })) => (2 * FAR_ACCESS + size / 2).min(ALL),
        Some(MemoryUse::Bulk(Bulk::Short { space: Space::Table, .. })) => ALL,
        // The call of a function with three parameters.
        Some(MemoryUse::Bulk(Bulk::Long(_))) => 1 + 3,
    }
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
        // The callee may have to be created first, and may belong to the host.
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

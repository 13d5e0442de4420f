//! The functions that stand for bulk memory operations: `(where to, where from or which byte, how many) -> ()`.
//!
//! Each begins with a block that is left at once if the operation is short or does not fit, and after the loop otherwise.
//! Behind it is the operation itself, which then is all of it, traps as it would have, or is the last piece.

use wasm_encoder::{BlockType, Function, InstructionSink};

use super::CHUNK_BYTES;
use super::bulk::Operation;

const TO: u32 = 0;
/// An address, or the byte to fill with.
const FROM: u32 = 1;
const COUNT: u32 = 2;

const CHUNK: i32 = CHUNK_BYTES as i32;
const MEMORY: u32 = 0;
const PAGE_BITS: i64 = 16;

/// How a loop goes through the bytes.
#[derive(Clone, Copy)]
enum Way {
    Up,
    /// From the last piece to the first.
    Down,
}

/// The function of an operation.
pub(super) fn function(operation: Operation) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.block(BlockType::Empty);
    code.local_get(COUNT).i32_const(CHUNK).i32_le_u().br_if(0);
    leave_if_beyond(&mut code, TO, memory_bytes);
    match operation {
        Operation::Fill => pieces(&mut code, operation, Way::Up),
        Operation::Init { bytes, .. } => {
            // If the segment was dropped the first piece traps, with nothing written.
            leave_if_beyond(&mut code, FROM, |code| {
                code.i64_const(bytes.into());
            });
            pieces(&mut code, operation, Way::Up);
        }
        Operation::Copy => {
            leave_if_beyond(&mut code, FROM, memory_bytes);
            // Downwards where the start of what is written is still to be read: TO - FROM, which is large if negative.
            code.local_get(TO).local_get(FROM).i32_sub().local_get(COUNT).i32_lt_u().if_(BlockType::Empty);
            pieces(&mut code, operation, Way::Down);
            code.else_();
            pieces(&mut code, operation, Way::Up);
            code.end();
        }
    }
    code.end();
    code.local_get(TO).local_get(FROM).local_get(COUNT);
    perform(&mut code, operation);
    code.end();
    function
}

/// Leaves the block if the bytes from this address on do not lie within so many.
fn leave_if_beyond(code: &mut InstructionSink<'_>, address: u32, size: impl FnOnce(&mut InstructionSink<'_>)) {
    code.local_get(address).i64_extend_i32_u().local_get(COUNT).i64_extend_i32_u().i64_add();
    size(code);
    code.i64_gt_u().br_if(0);
}

fn memory_bytes(code: &mut InstructionSink<'_>) {
    code.memory_size(MEMORY).i64_extend_i32_u().i64_const(PAGE_BITS).i64_shl();
}

/// A loop that moves whole pieces until at most one is left. There is more than one to begin with.
fn pieces(code: &mut InstructionSink<'_>, operation: Operation, way: Way) {
    let advance = |code: &mut InstructionSink<'_>, local| {
        code.local_get(local).i32_const(CHUNK).i32_add().local_set(local);
    };
    code.loop_(BlockType::Empty);
    code.local_get(COUNT).i32_const(CHUNK).i32_sub().local_set(COUNT);
    match way {
        Way::Up => {
            code.local_get(TO).local_get(FROM).i32_const(CHUNK);
            perform(code, operation);
            advance(code, TO);
            if operation != Operation::Fill {
                advance(code, FROM);
            }
        }
        Way::Down => {
            code.local_get(TO).local_get(COUNT).i32_add();
            code.local_get(FROM).local_get(COUNT).i32_add();
            code.i32_const(CHUNK);
            perform(code, operation);
        }
    }
    code.local_get(COUNT).i32_const(CHUNK).i32_gt_u().br_if(0);
    code.end();
}

fn perform(code: &mut InstructionSink<'_>, operation: Operation) {
    match operation {
        Operation::Copy => code.memory_copy(MEMORY, MEMORY),
        Operation::Fill => code.memory_fill(MEMORY),
        Operation::Init { segment, .. } => code.memory_init(MEMORY, segment),
    };
}

//! The functions that replace bulk operations: `(destination, source or fill value, count) -> ()`.
//!
//! Each function begins with a block, which it leaves at once if the operation is short or out of bounds, and otherwise after the loop.
//! After the block follows the operation itself. It then does all of the work, traps as the original would have, or moves the last piece.

use wasm_encoder::{BlockType, Function, InstructionSink, ValType};

use super::bulk::{Operation, Space};

const TO: u32 = 0;
/// The source, or the fill value.
const FROM: u32 = 1;
const COUNT: u32 = 2;

const MEMORY: u32 = 0;
const TABLE: u32 = 0;
const PAGE_BITS: i64 = 16;

/// Returns the parameters of an operation's function.
pub(super) fn parameters(operation: Operation) -> [ValType; 3] {
    let from = if operation == Operation::Fill(Space::Table) { ValType::FUNCREF } else { ValType::I32 };
    [ValType::I32, from, ValType::I32]
}

/// The direction of a loop through a space.
#[derive(Clone, Copy)]
enum Way {
    Up,
    /// From the last piece to the first.
    Down,
}

/// Returns the function of an operation.
pub(super) fn function(operation: Operation) -> Function {
    let (space, chunk) = (operation.space(), operation.space().chunk() as i32);
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.block(BlockType::Empty);
    code.local_get(COUNT).i32_const(chunk).i32_le_u().br_if(0);
    leave_if_beyond(&mut code, TO, |code| size_of(code, space));
    match operation {
        Operation::Fill(_) => pieces(&mut code, operation, Way::Up),
        Operation::Init { size, .. } => {
            // If the segment was dropped, the first piece traps, with nothing written.
            leave_if_beyond(&mut code, FROM, |code| {
                code.i64_const(size.into());
            });
            pieces(&mut code, operation, Way::Up);
        }
        Operation::Copy(_) => {
            leave_if_beyond(&mut code, FROM, |code| size_of(code, space));
            // Downwards if the start of the destination is still to be read: TO - FROM, which is large if negative, is below COUNT.
            code.local_get(TO).local_get(FROM).i32_sub().local_get(COUNT).i32_lt_u().if_(BlockType::Empty);
            pieces(&mut code, operation, Way::Down);
            code.else_();
            pieces(&mut code, operation, Way::Up);
            code.end();
        }
    }
    code.end();
    if space == Space::Table {
        // Before an operation on memory, the engine has its own look.
        code.loop_(BlockType::Empty).end();
    }
    code.local_get(TO).local_get(FROM).local_get(COUNT);
    perform(&mut code, operation);
    code.end();
    function
}

/// Leaves the block if the range that begins here is not within this many bytes or elements.
fn leave_if_beyond(code: &mut InstructionSink<'_>, place: u32, size: impl FnOnce(&mut InstructionSink<'_>)) {
    code.local_get(place).i64_extend_i32_u().local_get(COUNT).i64_extend_i32_u().i64_add();
    size(code);
    code.i64_gt_u().br_if(0);
}

/// Pushes the size of the space, in bytes or elements.
fn size_of(code: &mut InstructionSink<'_>, space: Space) {
    match space {
        Space::Memory => code.memory_size(MEMORY).i64_extend_i32_u().i64_const(PAGE_BITS).i64_shl(),
        Space::Table => code.table_size(TABLE).i64_extend_i32_u(),
    };
}

/// Emits a loop that moves whole pieces until at most one is left. There is more than one at the start.
fn pieces(code: &mut InstructionSink<'_>, operation: Operation, way: Way) {
    let chunk = operation.space().chunk() as i32;
    let advance = |code: &mut InstructionSink<'_>, local| {
        code.local_get(local).i32_const(chunk).i32_add().local_set(local);
    };
    code.loop_(BlockType::Empty);
    code.local_get(COUNT).i32_const(chunk).i32_sub().local_set(COUNT);
    match way {
        Way::Up => {
            code.local_get(TO).local_get(FROM).i32_const(chunk);
            perform(code, operation);
            advance(code, TO);
            if !matches!(operation, Operation::Fill(_)) {
                advance(code, FROM);
            }
        }
        Way::Down => {
            code.local_get(TO).local_get(COUNT).i32_add();
            code.local_get(FROM).local_get(COUNT).i32_add();
            code.i32_const(chunk);
            perform(code, operation);
        }
    }
    code.local_get(COUNT).i32_const(chunk).i32_gt_u().br_if(0);
    code.end();
}

fn perform(code: &mut InstructionSink<'_>, operation: Operation) {
    match operation {
        Operation::Copy(Space::Memory) => code.memory_copy(MEMORY, MEMORY),
        Operation::Copy(Space::Table) => code.table_copy(TABLE, TABLE),
        Operation::Fill(Space::Memory) => code.memory_fill(MEMORY),
        Operation::Fill(Space::Table) => code.table_fill(TABLE),
        Operation::Init { space: Space::Memory, segment, .. } => code.memory_init(MEMORY, segment),
        Operation::Init { space: Space::Table, segment, .. } => code.table_init(TABLE, segment),
    };
}

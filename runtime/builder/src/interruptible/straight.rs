//! Inserts looks at the epoch where a path through the code would otherwise run for too long without one.
//!
//! A single pass over a function, from its first instruction to its last, tracks the cost of the costliest path to each instruction since
//! that path's last look:
//!
//! ```text
//!   beginning, head of a loop      0: the engine has a look there
//!   an instruction                 adds its cost; if the sum exceeds the budget, a look goes before it
//!   a branch                       its frame's end is reached at this cost
//!   else, end                      the cost of the costliest path that leads there
//!   a call                         0, and a look after it: the callee has one at its entry, but none at its return
//! ```
//!
//! Code after a branch, a return or a trap is unreachable, up to the next `else` or `end` that a path reaches.
//!
//! A call that is the last thing a function does needs no look after it: there is one after the call of that function. So on a recursion's
//! way back there is no look while the only work left is to return. The number of such returns is bounded by the size of the stack.

use std::ops::Range;

use wasmparser::{BlockType, FunctionBody, Operator};

use super::budget::BUDGET;
use super::bulk::Bulk;
use super::cost::{self, MemoryUse};
use super::outline::{Arity, Outline};
use super::pages::Pages;
use super::{Edit, Replacement};

/// Returns the edits that make all of a module's code interruptible, in order.
pub(super) fn edits(outline: &Outline<'_>) -> wasmparser::Result<Vec<Edit>> {
    let mut edits = Vec::new();
    for (arity, body) in outline.defined() {
        walk(arity, body, outline, &mut edits)?;
    }
    Ok(edits)
}

fn walk(arity: Arity, body: &FunctionBody<'_>, outline: &Outline<'_>, edits: &mut Vec<Edit>) -> wasmparser::Result<()> {
    let mut walk = Walk::new(arity, outline, edits);
    let (mut operators, mut pages, mut pushed) = (body.get_operators_reader()?, Pages::default(), None);
    while !operators.eof() {
        let (operator, start) = operators.read_with_offset()?;
        let access = pages.pass(&operator).map(MemoryUse::Access);
        let memory = Bulk::of(&operator, pushed, outline).map(MemoryUse::Bulk).or(access);
        walk.step(&operator, memory, start..operators.original_position())?;
        pushed = match operator {
            Operator::I32Const { value } => Some(value as u32),
            _ => None,
        };
    }
    Ok(())
}

/// The cost of the costliest of some paths since its last look; none if there is no path.
type Spent = Option<u32>;

/// A `block`, `loop` or `if` that has not ended, or the function.
struct Frame {
    kind: Kind,
    /// Over the paths seen so far that lead to its end.
    to_end: Spent,
    /// How many values a branch to it carries.
    label_values: u32,
    results: u32,
}

#[derive(Clone, Copy)]
enum Kind {
    Block,
    Loop,
    /// No `else` was seen so far.
    If {
        /// The cost at its entry.
        entry: Spent,
    },
}

struct Walk<'a> {
    outline: &'a Outline<'a>,
    edits: &'a mut Vec<Edit>,
    /// The innermost last.
    frames: Vec<Frame>,
    /// Over the paths to the current instruction.
    spent: Spent,
    /// Whether the previous instruction was a call.
    owes_look: bool,
}

impl<'a> Walk<'a> {
    fn new(arity: Arity, outline: &'a Outline<'a>, edits: &'a mut Vec<Edit>) -> Self {
        let function = Frame { kind: Kind::Block, to_end: None, label_values: arity.results, results: arity.results };
        Self { outline, edits, frames: vec![function], spent: Some(0), owes_look: false }
    }

    fn step(
        &mut self,
        operator: &Operator<'_>,
        memory: Option<MemoryUse>,
        bytes: Range<usize>,
    ) -> wasmparser::Result<()> {
        if std::mem::take(&mut self.owes_look) && !self.soon_looks(operator) {
            self.look(bytes.start);
        }
        self.spend(cost::of(operator, memory, self.outline) + self.values_moved(operator), bytes.start);
        if let Some(MemoryUse::Bulk(Bulk::Long(operation))) = memory {
            self.edits.push(Edit { bytes, replacement: Replacement::Call(operation) });
            self.has_called();
            return Ok(());
        }
        self.follow(operator)
    }

    /// Returns whether an instruction leads only to a look, or to the end of the function.
    fn soon_looks(&self, operator: &Operator<'_>) -> bool {
        match *operator {
            Operator::Loop { .. } | Operator::Return | Operator::Unreachable => true,
            Operator::Br { relative_depth } => matches!(self.frame(relative_depth).kind, Kind::Loop),
            Operator::End => self.frames.len() == 1,
            _ => false,
        }
    }

    fn look(&mut self, at: usize) {
        self.edits.push(Edit { bytes: at..at, replacement: Replacement::Look });
        self.spent = Some(0);
    }

    fn spend(&mut self, cost: u32, at: usize) {
        let Some(spent) = self.spent else { return };
        if spent + cost > BUDGET {
            self.look(at);
        }
        // A single instruction may cost more, and cannot be divided.
        self.spent = self.spent.map(|spent| (spent + cost).min(BUDGET));
    }

    /// Returns how many values an instruction moves to a place that other paths may reach, too.
    fn values_moved(&self, operator: &Operator<'_>) -> u32 {
        match *operator {
            Operator::Loop { blockty } | Operator::If { blockty } => self.outline.block_arity(blockty).params,
            Operator::Else | Operator::End => self.frame(0).results,
            Operator::Return => self.frames.first().map_or(0, |function| function.results),
            Operator::Br { relative_depth }
            | Operator::BrIf { relative_depth }
            | Operator::BrOnNull { relative_depth }
            | Operator::BrOnNonNull { relative_depth }
            | Operator::BrOnCast { relative_depth, .. }
            | Operator::BrOnCastFail { relative_depth, .. } => self.frame(relative_depth).label_values,
            Operator::BrTable { ref targets } => self.frame(targets.default()).label_values,
            _ => 0,
        }
    }

    /// Updates the state for an instruction's control flow.
    fn follow(&mut self, operator: &Operator<'_>) -> wasmparser::Result<()> {
        match *operator {
            Operator::Block { blockty } => self.enter(Kind::Block, blockty),
            Operator::Loop { blockty } => {
                self.spent = self.spent.map(|_| 0);
                self.enter(Kind::Loop, blockty);
            }
            Operator::If { blockty } => self.enter(Kind::If { entry: self.spent }, blockty),
            Operator::Else => self.turn_to_else(),
            Operator::End => self.leave(),
            Operator::BrIf { relative_depth }
            | Operator::BrOnNull { relative_depth }
            | Operator::BrOnNonNull { relative_depth }
            | Operator::BrOnCast { relative_depth, .. }
            | Operator::BrOnCastFail { relative_depth, .. } => self.branch(relative_depth),
            Operator::Br { relative_depth } => {
                self.branch(relative_depth);
                self.spent = None;
            }
            Operator::BrTable { ref targets } => {
                self.branch(targets.default());
                for target in targets.targets() {
                    self.branch(target?);
                }
                self.spent = None;
            }
            Operator::Return | Operator::Unreachable => self.spent = None,
            Operator::Call { function_index } if self.outline.import_cost(function_index).is_some() => {}
            Operator::Call { .. } | Operator::CallIndirect { .. } | Operator::CallRef { .. } => self.has_called(),
            _ => {}
        }
        Ok(())
    }

    fn has_called(&mut self) {
        self.owes_look = self.spent.is_some();
        self.spent = self.spent.map(|_| 0);
    }

    fn enter(&mut self, kind: Kind, ty: BlockType) {
        let arity = self.outline.block_arity(ty);
        let label_values = if matches!(kind, Kind::Loop) { arity.params } else { arity.results };
        self.frames.push(Frame { kind, to_end: None, label_values, results: arity.results });
    }

    fn turn_to_else(&mut self) {
        let spent = self.spent;
        let frame = self.frame_mut(0);
        if let Kind::If { entry } = frame.kind {
            frame.kind = Kind::Block;
            frame.to_end = frame.to_end.max(spent);
            self.spent = entry;
        }
    }

    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.spent = self.spent.max(frame.to_end);
        if let Kind::If { entry } = frame.kind {
            self.spent = self.spent.max(entry);
        }
    }

    fn branch(&mut self, relative_depth: u32) {
        let spent = self.spent;
        let frame = self.frame_mut(relative_depth);
        // The head of a loop has a look.
        if !matches!(frame.kind, Kind::Loop) {
            frame.to_end = frame.to_end.max(spent);
        }
    }

    /// Returns the frame that encloses the current instruction at this depth; it exists, because the module is valid.
    fn frame(&self, relative_depth: u32) -> &Frame {
        &self.frames[self.frames.len() - 1 - relative_depth as usize]
    }

    fn frame_mut(&mut self, relative_depth: u32) -> &mut Frame {
        let at = self.frames.len() - 1 - relative_depth as usize;
        &mut self.frames[at]
    }
}

//! Looks at the epoch where a path through the code would otherwise go for too long without one.
//!
//! A function is walked through once, from its first instruction to its last, with what the costliest path to each has cost
//! since its last look:
//!
//! ```text
//!   beginning, head of a loop      0: the engine has a look there
//!   an instruction                 its cost more; if that is over the budget, there is a look before it
//!   a branch                       its frame's end is led to, at this cost
//!   else, end                      that of the costliest of the ways that lead there
//!   a call                         0, and a look behind it: the callee has one where it begins, but none where it returns
//! ```
//!
//! Behind a branch, a return or a trap is code that nobody comes to, up to an `else` or `end` that somebody does.
//!
//! A call that is the last thing a function does needs no look behind it: there is one behind the call of that function. So on
//! a recursion's way back there is none while all that is to be done is to return, which is no more often than the stack has
//! room for.

use std::ops::Range;

use wasmparser::{BlockType, FunctionBody, Operator};

use super::bulk::Bulk;
use super::cost::{self, BUDGET, MemoryUse};
use super::outline::{Arity, Outline};
use super::pages::Pages;
use super::{Edit, Replacement};

/// The edits that make all of a module's code interruptible, in their order.
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

/// What the costliest of some paths has cost since its last look; none, if there is no path.
type Spent = Option<u32>;

/// A `block`, `loop` or `if` that has not ended, or the function.
struct Frame {
    kind: Kind,
    /// Of the ways seen so far that lead to its end.
    to_end: Spent,
    /// How many values a branch to it takes along.
    label_values: u32,
    results: u32,
}

#[derive(Clone, Copy)]
enum Kind {
    Block,
    Loop,
    /// Without an `else` so far.
    If {
        /// Where it was entered.
        entry: Spent,
    },
}

struct Walk<'a> {
    outline: &'a Outline<'a>,
    edits: &'a mut Vec<Edit>,
    /// The innermost last.
    frames: Vec<Frame>,
    /// Of the paths to the instruction at hand.
    spent: Spent,
    /// Whether the instruction before was a call.
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

    /// Whether all that comes of an instruction is a look, or the end of the function.
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
        // One instruction may cost more, and can't be divided.
        self.spent = self.spent.map(|spent| (spent + cost).min(BUDGET));
    }

    /// How many values an instruction moves to where another path may bring them, too.
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

    /// Goes where an instruction leads.
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

    /// The frame that encloses the instruction at hand at this depth; there is one, as the module is valid.
    fn frame(&self, relative_depth: u32) -> &Frame {
        &self.frames[self.frames.len() - 1 - relative_depth as usize]
    }

    fn frame_mut(&mut self, relative_depth: u32) -> &mut Frame {
        let at = self.frames.len() - 1 - relative_depth as usize;
        &mut self.frames[at]
    }
}

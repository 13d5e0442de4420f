//! Counts the features of a function that make a compiler's time and memory grow faster than the length of the code.
//!
//! | what | why it is bounded |
//! |---|---|
//! | loops in each other, loops, calls | each has a look at the epoch, with code to save and restore the values in use |
//! | places where code branches or joins | a jump over many of them walks through them one by one |
//! | values handed on there | each value is moved |
//! | triples of a loop and two locals that it changes | each such local has its own value at the loop's head, and these are compared in pairs |
//! | pairs of a call and a local in use there | each local is saved across the call |
//!
//! The bounds are a multiple of what compilers emit for functions of [`FUNCTION_BYTES_MAX`](crate::FUNCTION_BYTES_MAX). Code at one of the
//! bounds is compiled in seconds.

use std::collections::HashSet;

use wasmparser::{BlockType, Operator};

/// A bound on one function, and the name of what it bounds.
pub(super) struct Bound {
    pub(super) what: &'static str,
    pub(super) max: u64,
    count: fn(&Function<'_>) -> u64,
}

/// All bounds, in the order in which they are reported.
pub(super) const BOUNDS: [Bound; 7] = [
    Bound { what: "loops in each other", max: 256, count: |function| function.depth_max },
    Bound { what: "loops", max: 4096, count: |function| function.loops },
    Bound { what: "calls", max: 20_000, count: |function| function.calls },
    Bound { what: "places where it branches or joins", max: 50_000, count: |function| function.places },
    Bound { what: "values to hand on where it branches or calls", max: 5_000_000, count: |function| function.values },
    Bound {
        what: "triples of a loop and two locals that it changes",
        max: 50_000_000,
        count: |function| function.changed_squared,
    },
    Bound { what: "pairs of a call and a local in use there", max: 5_000_000, count: |function| function.kept() },
];

/// How many parameters and results an index in the code stands for.
pub(super) trait Arities {
    fn values_of_type(&self, ty: u32) -> u64;
    fn values_of_function(&self, function: u32) -> u64;
    fn is_imported(&self, function: u32) -> bool;
}

/// A function's code, up to the current instruction.
pub(super) struct Function<'a> {
    arities: &'a dyn Arities,
    /// The enclosing blocks, the innermost last, without the function itself.
    frames: Vec<Frame>,
    /// The locals that each of the enclosing loops has changed, the innermost last.
    changed: Vec<HashSet<u32>>,
    /// By local: how many calls came before its first use, and before its last.
    used: Vec<Option<(u64, u64)>>,
    depth_max: u64,
    pub(super) loops: u64,
    pub(super) calls: u64,
    places: u64,
    values: u64,
    changed_squared: u64,
}

struct Frame {
    /// How many values may be moved to its end or its beginning.
    values: u64,
    is_loop: bool,
}

impl<'a> Function<'a> {
    pub(super) fn new(arities: &'a dyn Arities) -> Self {
        Self {
            arities,
            frames: Vec::new(),
            changed: Vec::new(),
            used: Vec::new(),
            depth_max: 0,
            loops: 0,
            calls: 0,
            places: 0,
            values: 0,
            changed_squared: 0,
        }
    }

    /// Returns the first bound that the function exceeds, and its count.
    pub(super) fn over(&self) -> Option<(&'static Bound, u64)> {
        BOUNDS.iter().map(|bound| (bound, (bound.count)(self))).find(|(bound, count)| *count > bound.max)
    }

    pub(super) fn pass(&mut self, operator: &Operator<'_>) {
        match *operator {
            Operator::Block { blockty } | Operator::If { blockty } => self.enter(blockty, false),
            Operator::Loop { blockty } => self.enter(blockty, true),
            Operator::Else => self.place(self.to(0)),
            Operator::End => self.leave(),
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth } => self.place(self.to(relative_depth)),
            Operator::BrTable { ref targets } => {
                self.place(self.to(targets.default()));
                for target in targets.targets().flatten() {
                    self.place(self.to(target));
                }
            }
            Operator::Call { function_index } => {
                self.calls += u64::from(!self.arities.is_imported(function_index));
                self.values += self.arities.values_of_function(function_index);
            }
            Operator::CallIndirect { type_index, .. } => {
                self.calls += 1;
                self.values += self.arities.values_of_type(type_index);
            }
            Operator::LocalGet { local_index } => self.use_local(local_index),
            Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                self.use_local(local_index);
                if let Some(changed) = self.changed.last_mut() {
                    changed.insert(local_index);
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, ty: BlockType, is_loop: bool) {
        let values = match ty {
            BlockType::Empty => 0,
            BlockType::Type(_) => 1,
            BlockType::FuncType(ty) => self.arities.values_of_type(ty),
        };
        self.frames.push(Frame { values, is_loop });
        self.place(values);
        if is_loop {
            self.loops += 1;
            self.changed.push(HashSet::new());
            self.depth_max = self.depth_max.max(self.changed.len() as u64);
        }
    }

    fn leave(&mut self) {
        let Some(Frame { values, is_loop }) = self.frames.pop() else { return };
        self.place(values);
        if !is_loop {
            return;
        }
        let Some(mut changed) = self.changed.pop() else { return };
        self.changed_squared += (changed.len() as u64).pow(2);
        // The enclosing loop has changed them as well. The smaller set is merged into the larger one, so that each local is moved a few
        // times only.
        if let Some(around) = self.changed.last_mut() {
            if around.len() < changed.len() {
                std::mem::swap(around, &mut changed);
            }
            around.extend(changed);
        }
    }

    fn place(&mut self, values: u64) {
        self.places += 1;
        self.values += values;
    }

    /// Returns how many values a branch moves. A branch out of the function moves them once per branch.
    fn to(&self, relative_depth: u32) -> u64 {
        let frame = self.frames.len().checked_sub(1 + relative_depth as usize).and_then(|at| self.frames.get(at));
        frame.map_or(0, |frame| frame.values)
    }

    fn use_local(&mut self, local: u32) {
        let (at, calls) = (local as usize, self.calls);
        if at >= self.used.len() {
            self.used.resize(at + 1, None);
        }
        let (first, _) = self.used[at].unwrap_or((calls, calls));
        self.used[at] = Some((first, calls));
    }

    fn kept(&self) -> u64 {
        self.used.iter().flatten().map(|(first, last)| last - first).sum()
    }
}

//! Finds loads and stores that may be the first access to their page.
//!
//! The first access to a page, or the first for a long time, takes a guest longer than any other instruction. But most code accesses memory
//! through a few addresses, again and again, at constant offsets. So a page counts as present if the same address was used before, less
//! than a page away.

use std::collections::HashMap;

use wasmparser::Operator;

const PAGE_BITS: u32 = 12;

/// What a load or store accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// A page that the same code has just accessed.
    Near,
    /// Any page.
    Far,
}

/// The source of an address, as far as it is known; equal sources have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    /// A local, after this many writes to it.
    Local(u32, u32),
    Constant,
}

/// What is known of the operands and the memory at an instruction.
#[derive(Default)]
pub(super) struct Pages {
    /// How often each local was written.
    writes: HashMap<u32, u32>,
    /// The topmost operands, each with a number to be added to it; nothing is known of operands below.
    operands: Vec<Option<(Origin, u32)>>,
    /// The stretch in which a page, counted from an address, was last accessed.
    touched: HashMap<(Origin, u32), u32>,
    /// A stretch is code that is entered only at its beginning: where paths join, another one begins.
    stretch: u32,
}

impl Pages {
    /// Passes an instruction; returns how it accesses memory, if it does.
    pub(super) fn pass(&mut self, operator: &Operator<'_>) -> Option<Access> {
        let Some(OperatorArity { pops, pushes, offset }) = shape(operator) else {
            self.operands.clear();
            if matches!(operator, Operator::Loop { .. } | Operator::Else | Operator::End) {
                self.stretch += 1;
            }
            return None;
        };
        let rest = self.operands.len().checked_sub(pops);
        // For a store, the address lies below the value.
        let address = rest.and_then(|rest| self.operands.get(rest).copied().flatten());
        self.operands.truncate(rest.unwrap_or(0));
        self.operands.resize(self.operands.len() + pushes, None);
        match *operator {
            Operator::LocalSet { local_index } => self.write(local_index),
            Operator::LocalTee { local_index } => {
                self.write(local_index);
                self.know(self.local(local_index));
            }
            Operator::LocalGet { local_index } => self.know(self.local(local_index)),
            Operator::I32Const { value } => self.know((Origin::Constant, value as u32)),
            _ => {}
        }
        offset.map(|offset| self.access(address, offset))
    }

    fn access(&mut self, address: Option<(Origin, u32)>, offset: u64) -> Access {
        let Some((origin, more)) = address else { return Access::Far };
        // An address beyond 32 bits traps.
        let page = ((u64::from(more) + offset) >> PAGE_BITS) as u32;
        match self.touched.insert((origin, page), self.stretch) {
            Some(stretch) if stretch == self.stretch => Access::Near,
            _ => Access::Far,
        }
    }

    fn write(&mut self, local: u32) {
        *self.writes.entry(local).or_default() += 1;
    }

    fn local(&self, local: u32) -> (Origin, u32) {
        (Origin::Local(local, self.writes.get(&local).copied().unwrap_or(0)), 0)
    }

    /// Records what the operand is that was pushed last.
    fn know(&mut self, operand: (Origin, u32)) {
        if let Some(last) = self.operands.last_mut() {
            *last = Some(operand);
        }
    }
}

/// How many operands an instruction pops and pushes, and the offset of its memory access.
struct OperatorArity {
    pops: usize,
    pushes: usize,
    offset: Option<u64>,
}

/// Defines the shape of each instruction. Control flow, and instructions with operands that depend on a type, have none.
macro_rules! define_shape {
    ($(@$proposal:ident $name:ident $({ $($field:ident: $ty:ty),* })? => $visit:ident ($($arity:tt)*))*) => {
        fn shape(operator: &Operator<'_>) -> Option<OperatorArity> {
            match operator {
                $(Operator::$name { $($($field),*)? } => {
                    $($(let _ = $field;)*)?
                    let (pops, pushes) = arity!($($arity)*)?;
                    Some(OperatorArity { pops, pushes, offset: offset!($($($field $field)*)?) })
                })*
                _ => None,
            }
        }
    };
}

macro_rules! arity {
    (arity $pops:literal -> $pushes:literal) => {
        Some(($pops, $pushes))
    };
    (arity custom) => {
        None
    };
}

macro_rules! offset {
    (memarg $memarg:ident $(lane $lane:ident)?) => {
        Some($memarg.offset)
    };
    ($($other:ident)*) => {
        None
    };
}

wasmparser::for_each_operator!(define_shape);

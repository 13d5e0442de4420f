//! Which loads and stores may be the first to their page.
//!
//! A page that has not been touched for long, or never, takes a guest longer than all else that an instruction can do. But most
//! code goes to memory by a few addresses, again and again, at constant offsets: what was touched by the same
//! address before, less than a page away, is at hand.

use std::collections::HashMap;

use wasmparser::Operator;

const PAGE_BITS: u32 = 12;

/// What a load or store finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// A page that the same code has just touched.
    Near,
    /// Whatever page.
    Far,
}

/// Where an address comes from, as far as it is known; equal ones are the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    /// A local, after so many writes to it.
    Local(u32, u32),
    Constant,
}

/// What is known of the operands and the memory at an instruction.
#[derive(Default)]
pub(super) struct Pages {
    /// How often each local was written to.
    writes: HashMap<u32, u32>,
    /// The last of the operands, with a number that is to be added to each; beneath these nothing is known.
    operands: Vec<Option<(Origin, u32)>>,
    /// In which stretch an address and so many pages behind it were touched last.
    touched: HashMap<(Origin, u32), u32>,
    /// Code that is only entered at its beginning: paths that join begin another.
    stretch: u32,
}

impl Pages {
    /// Goes past an instruction; how it accesses memory, if it does.
    pub(super) fn pass(&mut self, operator: &Operator<'_>) -> Option<Access> {
        let Some(Shape { pops, pushes, offset }) = shape(operator) else {
            self.operands.clear();
            if matches!(operator, Operator::Loop { .. } | Operator::Else | Operator::End) {
                self.stretch += 1;
            }
            return None;
        };
        let rest = self.operands.len().checked_sub(pops);
        // An address lies beneath what is to be stored there.
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
        // Beyond 32 bits it traps.
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

    /// Notes what the operand is that was pushed last.
    fn know(&mut self, operand: (Origin, u32)) {
        if let Some(last) = self.operands.last_mut() {
            *last = Some(operand);
        }
    }
}

/// How many operands an instruction takes and leaves, and the offset of the memory that it accesses.
struct Shape {
    pops: usize,
    pushes: usize,
    offset: Option<u64>,
}

/// Defines the shape of each instruction. Those that lead elsewhere, and those whose operands a type says, have none.
macro_rules! define_shape {
    ($(@$proposal:ident $name:ident $({ $($field:ident: $ty:ty),* })? => $visit:ident ($($arity:tt)*))*) => {
        fn shape(operator: &Operator<'_>) -> Option<Shape> {
            match operator {
                $(Operator::$name { $($($field),*)? } => {
                    $($(let _ = $field;)*)?
                    let (pops, pushes) = arity!($($arity)*)?;
                    Some(Shape { pops, pushes, offset: offset!($($($field $field)*)?) })
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

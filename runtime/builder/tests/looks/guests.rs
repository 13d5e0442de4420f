//! Random guests of structured code that terminate: each loop and each function consumes fuel, and a guest without fuel traps.

use proptest::prelude::*;
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection,
    GlobalType, ImportSection, InstructionSink, MemArg, MemorySection, MemoryType, Module, TypeSection, ValType,
};

/// Functions of each guest, all of type `(x: i32) -> i32`.
pub(crate) const FUNCTIONS: u32 = 3;
/// Size of its memory.
pub(crate) const MEMORY_BYTES: u32 = 65_536;
/// Loops and functions that are entered before a guest traps; fewer than the stack has room for.
const FUEL: i32 = 200;

/// Imports: a brief call, and one that may take any time.
const BRIEF: u32 = 0;
const LONG: u32 = 1;
const FIRST: u32 = 2;

/// The value on which the code depends, and which it changes all the time.
const X: u32 = 0;
/// An address within the memory.
const ADDRESS: u32 = 1;
const FUEL_GLOBAL: u32 = 0;

/// A part of a function.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// This many additions.
    Additions(u16),
    /// A division, sometimes by zero.
    Division,
    /// A load, a store and another load through the same address, at this offset.
    Near(u16),
    /// This many stores to addresses that depend on each other.
    Far(u8),
    /// Changes the local that holds the address.
    Move,
    Fill(u16),
    Brief,
    Long,
    /// Of one of the guest's own functions.
    Call(u32),
    Block(Vec<Part>),
    /// A block with a result.
    Value(Vec<Part>),
    Loop(Vec<Part>),
    If(Vec<Part>),
    IfElse(Vec<Part>, Vec<Part>),
    /// To one of the enclosing frames, sometimes.
    BranchIf(u32),
    Branch(u32),
    BranchTable(Vec<u32>),
    Return,
}

/// Returns the parts of a function.
pub(crate) fn parts() -> impl Strategy<Value = Vec<Part>> {
    let leaf = prop_oneof![
        4 => (1..3_000_u16).prop_map(Part::Additions),
        1 => Just(Part::Division),
        2 => (0..5_000_u16).prop_map(Part::Near),
        2 => (1..20_u8).prop_map(Part::Far),
        1 => Just(Part::Move),
        1 => (0..20_000_u16).prop_map(Part::Fill),
        2 => Just(Part::Brief),
        1 => Just(Part::Long),
        2 => (0..FUNCTIONS).prop_map(Part::Call),
        4 => any::<u32>().prop_map(Part::BranchIf),
        1 => any::<u32>().prop_map(Part::Branch),
        1 => prop::collection::vec(any::<u32>(), 1..4).prop_map(Part::BranchTable),
        1 => Just(Part::Return),
    ];
    let part = leaf.prop_recursive(4, 24, 5, |part| {
        let parts = || prop::collection::vec(part.clone(), 0..5);
        prop_oneof![
            parts().prop_map(Part::Block),
            parts().prop_map(Part::Value),
            parts().prop_map(Part::Loop),
            parts().prop_map(Part::If),
            (parts(), parts()).prop_map(|(then, otherwise)| Part::IfElse(then, otherwise)),
        ]
    });
    prop::collection::vec(part, 0..6)
}

/// Returns a module of these functions.
pub(crate) fn module(functions: &[Vec<Part>]) -> Vec<u8> {
    let (mut types, mut imports, mut defined) = (TypeSection::new(), ImportSection::new(), FunctionSection::new());
    types.ty().function([], []);
    types.ty().function([ValType::I32], [ValType::I32]);
    imports.import("pinion", "yield", EntityType::Function(0)).import("pinion", "random", EntityType::Function(0));
    let (mut exports, mut code) = (ExportSection::new(), CodeSection::new());
    for (index, parts) in functions.iter().enumerate() {
        defined.function(1);
        exports.export(&format!("f{index}"), ExportKind::Func, FIRST + index as u32);
        code.function(&function(parts));
    }
    let mut memories = MemorySection::new();
    let pages = Some(u64::from(MEMORY_BYTES / 65_536));
    memories.memory(MemoryType { minimum: 1, maximum: pages, memory64: false, shared: false, page_size_log2: None });
    let mut globals = GlobalSection::new();
    let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    globals.global(ty, &wasm_encoder::ConstExpr::i32_const(FUEL));
    exports.export("memory", ExportKind::Memory, 0).export("fuel", ExportKind::Global, FUEL_GLOBAL);
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&defined).section(&memories).section(&globals).section(&exports);
    module.section(&code);
    module.finish()
}

fn function(parts: &[Part]) -> Function {
    let mut function = Function::new([(1, ValType::I32)]);
    let mut code = Code { code: function.instructions(), frames: vec![Frame { takes_value: true }] };
    code.burn();
    code.parts(parts);
    code.code.local_get(X).end();
    function
}

struct Frame {
    takes_value: bool,
}

struct Code<'a> {
    code: InstructionSink<'a>,
    /// The frames that enclose the current part, the function first.
    frames: Vec<Frame>,
}

impl Code<'_> {
    fn parts(&mut self, parts: &[Part]) {
        parts.iter().for_each(|part| self.part(part));
    }

    fn part(&mut self, part: &Part) {
        let at = |offset: u64| MemArg { offset, align: 0, memory_index: 0 };
        match part {
            Part::Additions(count) => (0..*count).for_each(|_| self.shuffle()),
            Part::Division => {
                self.code.i32_const(1_000_003).local_get(X).i32_const(255).i32_and().i32_div_s().local_set(X);
                self.shuffle();
            }
            Part::Near(offset) => {
                let offset = u64::from(*offset);
                self.code.local_get(ADDRESS).i32_load8_u(at(offset)).drop();
                self.code.local_get(ADDRESS).local_get(X).i32_store8(at(offset + 9));
                self.code.local_get(ADDRESS).i32_load(at(offset + 3)).local_get(X).i32_add().local_set(X);
            }
            Part::Far(count) => {
                for _ in 0..*count {
                    self.shuffle();
                    self.code.local_get(X).i32_const(0xffff).i32_and().local_get(X).i32_store8(at(0));
                }
            }
            Part::Move => {
                self.shuffle();
                self.code.local_get(X).i32_const(0xffff).i32_and().local_set(ADDRESS);
            }
            Part::Fill(bytes) => {
                self.code.local_get(ADDRESS).local_get(X).i32_const((*bytes).into()).memory_fill(0);
            }
            Part::Brief => drop(self.code.call(BRIEF)),
            Part::Long => drop(self.code.call(LONG)),
            Part::Call(index) => drop(self.code.local_get(X).call(FIRST + index).local_set(X)),
            Part::Return => drop(self.code.local_get(X).return_()),
            Part::BranchIf(depth) => self.branch_if(*depth),
            Part::Branch(depth) => {
                let depth = self.depth(*depth);
                self.push_value(depth);
                self.code.br(depth);
            }
            Part::BranchTable(depths) => self.branch_table(depths),
            Part::Block(_) | Part::Value(_) | Part::Loop(_) | Part::If(_) | Part::IfElse(..) => self.frame(part),
        }
    }

    fn frame(&mut self, part: &Part) {
        self.shuffle();
        match part {
            Part::Block(parts) => {
                self.code.block(BlockType::Empty);
                self.inside(parts, false);
            }
            Part::Value(parts) => {
                self.code.block(BlockType::Result(ValType::I32));
                self.inside(parts, true);
                self.code.local_set(X);
            }
            Part::Loop(parts) => {
                self.code.loop_(BlockType::Empty);
                self.burn();
                self.inside(parts, false);
            }
            Part::If(parts) => {
                self.condition();
                self.code.if_(BlockType::Empty);
                self.inside(parts, false);
            }
            Part::IfElse(then, otherwise) => {
                self.condition();
                self.code.if_(BlockType::Empty);
                self.frames.push(Frame { takes_value: false });
                self.parts(then);
                self.code.else_();
                self.parts(otherwise);
                self.frames.pop();
                self.code.end();
            }
            _ => unreachable!("no frame"),
        }
    }

    fn inside(&mut self, parts: &[Part], takes_value: bool) {
        self.frames.push(Frame { takes_value });
        self.parts(parts);
        self.frames.pop();
        if takes_value {
            self.code.local_get(X);
        }
        self.code.end();
    }

    fn branch_if(&mut self, depth: u32) {
        let depth = self.depth(depth);
        let takes_value = self.push_value(depth);
        self.condition();
        self.code.br_if(depth);
        if takes_value {
            self.code.drop();
        }
    }

    fn branch_table(&mut self, depths: &[u32]) {
        let mut depths: Vec<u32> = depths.iter().map(|depth| self.depth(*depth)).collect();
        let takes_value = self.push_value(depths[0]);
        depths.retain(|depth| self.to(*depth).takes_value == takes_value);
        self.code.local_get(X).i32_const(28).i32_shr_u().br_table(depths[1..].iter().copied(), depths[0]);
    }

    /// Returns a depth that exists.
    fn depth(&self, depth: u32) -> u32 {
        depth % self.frames.len() as u32
    }

    fn to(&self, depth: u32) -> &Frame {
        &self.frames[self.frames.len() - 1 - depth as usize]
    }

    /// Pushes the values that a branch carries.
    fn push_value(&mut self, depth: u32) -> bool {
        let takes_value = self.to(depth).takes_value;
        if takes_value {
            self.code.local_get(X);
        }
        takes_value
    }

    fn shuffle(&mut self) {
        self.code.local_get(X).i32_const(0x9e37_79b9_u32 as i32).i32_add().local_set(X);
    }

    fn condition(&mut self) {
        self.shuffle();
        self.code.local_get(X).i32_const(0x4000_0000).i32_and();
    }

    fn burn(&mut self) {
        self.code.global_get(FUEL_GLOBAL).i32_const(1).i32_sub().global_set(FUEL_GLOBAL);
        self.code.global_get(FUEL_GLOBAL).i32_eqz().if_(BlockType::Empty).unreachable().end();
    }
}

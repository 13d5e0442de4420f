//! Counts everything in a module that is bounded: in one pass, in milliseconds, before anything is compiled.
//!
//! Counts per function are in [`function`].

mod function;

use std::collections::BTreeSet;

use pinion_guest::settings::{
    INSTANCE_BYTES_LEAST, INSTANCE_BYTES_MAX, MEMORY_BYTES_MAX, TABLE_ELEMENT_BYTES, TABLE_ELEMENTS_MAX,
};
use wasmparser::{CompositeInnerType, ElementItems, ExternalKind, FunctionBody, Operator, Parser, Payload, TypeRef};

use self::function::{Arities, Bound, Function};
use crate::FUNCTION_BYTES_MAX;
use crate::refused::Refused;

/// The tables for which a node's engines have room in each instance.
const TABLES_MAX: u32 = 1;
const WASM_PAGE_BYTES: u64 = 64 * 1024;
/// Bytes that the engine keeps for a global, and for a function that is imported, exported or has its address taken.
const GLOBAL_BYTES: u64 = 16;
const FUNCTION_BYTES: u64 = 32;
/// Bounds for all of a module's functions together: more cannot be compiled in the time that a module has.
const FUNCTIONS_MAX: u64 = 100_000;
const CALLS_MAX: u64 = 300_000;
const LOOPS_MAX: u64 = 50_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Linear memory at the start.
    pub(crate) memory_bytes: u64,
    /// What the engine keeps of an instance beside that at most: its record and its table.
    pub(crate) instance_bytes: u64,
    tables: u32,
    table_elements: u64,
    globals: u64,
    imported_functions: u32,
    /// Functions to which others refer, without imported ones.
    named_functions: BTreeSet<u32>,
    /// By type: how many parameters and results its functions have.
    values_of_types: Vec<u32>,
    /// By index, imported functions first.
    types_of_functions: Vec<u32>,
    functions_with_code: u32,
    calls: u64,
    loops: u64,
}

impl Counts {
    /// Counts what a valid module has, and checks it against the bounds.
    ///
    /// # Errors
    /// The first bound that it exceeds.
    pub(crate) fn judged(wasm: &[u8]) -> Result<Self, Refused> {
        let mut counts = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            counts.take(payload.map_err(invalid)?)?;
        }
        if counts.tables > TABLES_MAX {
            return Err(Refused::Tables(counts.tables));
        }
        if counts.table_elements > TABLE_ELEMENTS_MAX as u64 {
            return Err(Refused::TableElements(counts.table_elements));
        }
        if counts.memory_bytes > MEMORY_BYTES_MAX as u64 {
            return Err(Refused::MemoryMost(counts.memory_bytes));
        }
        for (what, count, max) in [
            ("functions", counts.functions_with_code.into(), FUNCTIONS_MAX),
            ("calls", counts.calls, CALLS_MAX),
            ("loops", counts.loops, LOOPS_MAX),
        ] {
            if count > max {
                return Err(Refused::Code { what, count, max });
            }
        }
        let functions = u64::from(counts.imported_functions) + counts.named_functions.len() as u64;
        let globals = counts.globals;
        let bytes = globals * GLOBAL_BYTES + functions * FUNCTION_BYTES;
        if bytes > INSTANCE_BYTES_MAX as u64 {
            return Err(Refused::Instance { bytes, globals, functions });
        }
        counts.instance_bytes =
            INSTANCE_BYTES_LEAST as u64 + bytes + counts.table_elements * TABLE_ELEMENT_BYTES as u64;
        Ok(counts)
    }

    fn take(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        match payload {
            Payload::TypeSection(section) => {
                for group in section {
                    self.values_of_types.extend(group.map_err(invalid)?.types().map(
                        |ty| match &ty.composite_type.inner {
                            CompositeInnerType::Func(ty) => (ty.params().len() + ty.results().len()) as u32,
                            _ => 0,
                        },
                    ));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(ty) = import.map_err(invalid)?.ty {
                        self.types_of_functions.push(ty);
                        self.imported_functions += 1;
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    self.types_of_functions.push(ty.map_err(invalid)?);
                }
            }
            Payload::TableSection(section) => {
                self.tables += section.count();
                for table in section {
                    self.table_elements = self.table_elements.max(table.map_err(invalid)?.ty.initial);
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memory_bytes = memory.map_err(invalid)?.initial.saturating_mul(WASM_PAGE_BYTES);
                }
            }
            Payload::GlobalSection(section) => {
                self.globals += u64::from(section.count());
                for global in section {
                    for operator in global.map_err(invalid)?.init_expr.get_operators_reader() {
                        self.note_name(&operator.map_err(invalid)?);
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(invalid)?;
                    if export.kind == ExternalKind::Func {
                        self.note_function(export.index);
                    }
                }
            }
            Payload::StartSection { func, .. } => self.note_function(func),
            Payload::ElementSection(section) => {
                for segment in section {
                    match segment.map_err(invalid)?.items {
                        ElementItems::Functions(functions) => {
                            for function in functions {
                                self.note_function(function.map_err(invalid)?);
                            }
                        }
                        ElementItems::Expressions(_, expressions) => {
                            for expression in expressions {
                                for operator in expression.map_err(invalid)?.get_operators_reader() {
                                    self.note_name(&operator.map_err(invalid)?);
                                }
                            }
                        }
                    }
                }
            }
            Payload::CodeSectionEntry(body) => self.take_function(&body)?,
            _ => {}
        }
        Ok(())
    }

    fn note_name(&mut self, operator: &Operator<'_>) {
        if let Operator::RefFunc { function_index } = operator {
            self.note_function(*function_index);
        }
    }

    fn note_function(&mut self, function: u32) {
        if function >= self.imported_functions {
            self.named_functions.insert(function);
        }
    }

    fn take_function(&mut self, body: &FunctionBody<'_>) -> Result<(), Refused> {
        let index = self.imported_functions + self.functions_with_code;
        self.functions_with_code += 1;
        let bytes = body.range().len();
        if bytes > FUNCTION_BYTES_MAX {
            return Err(Refused::LongFunction { index, bytes });
        }
        let mut function = Function::new(self);
        for operator in body.get_operators_reader().map_err(invalid)? {
            function.pass(&operator.map_err(invalid)?);
        }
        if let Some((Bound { what, max, .. }, count)) = function.over() {
            return Err(Refused::Function { index, what, count, max: *max });
        }
        let (calls, loops) = (function.calls, function.loops);
        self.calls += calls;
        self.loops += loops;
        Ok(())
    }
}

impl Arities for Counts {
    fn values_of_type(&self, ty: u32) -> u64 {
        self.values_of_types.get(ty as usize).copied().unwrap_or(0).into()
    }

    fn values_of_function(&self, function: u32) -> u64 {
        self.types_of_functions.get(function as usize).map_or(0, |ty| self.values_of_type(*ty))
    }

    fn is_imported(&self, function: u32) -> bool {
        function < self.imported_functions
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err calls")]
fn invalid(error: wasmparser::BinaryReaderError) -> Refused {
    Refused::Invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(wat: &str) -> String {
        let wasm = wat::parse_str(wat).unwrap();
        Counts::judged(&wasm).map_or_else(|refused| refused.to_string(), |_| "taken".to_owned())
    }

    /// Returns a module of two functions; the second has this code.
    fn second(code: &str) -> String {
        format!("(module (memory 1) (func $first (param i32)) (func (param i32) (local i32 i32) {code}))")
    }

    fn nested(block: &str, count: usize, inside: &str) -> String {
        format!("{}{inside}{}", format!("({block} ").repeat(count), ")".repeat(count))
    }

    /// Makes a module that exceeds a function's bound by this number.
    type Make<'a> = Box<dyn Fn(usize) -> String + 'a>;

    #[test]
    fn everything_that_slows_a_compiler_is_bounded_for_each_function() {
        let call = "(call $first (i32.const 0))";
        let set_all = |locals: usize| (0..locals).map(|i| format!("(local.set {i} (i32.const 1))")).collect::<String>();
        let with_locals = |locals: usize, code: String| {
            format!("(module (func) (func $first (param i32)) (func (local {}) {code}))", "i32 ".repeat(locals))
        };
        let cases: [(&str, u64, Make<'_>); 7] = [
            ("loops in each other", 256, Box::new(|more| second(&nested("loop", 256 + more, "")))),
            ("loops", 4096, Box::new(|more| second(&"(loop)".repeat(4096 + more)))),
            ("calls", 20_000, Box::new(|more| second(&call.repeat(20_000 + more)))),
            (
                "places where it branches or joins",
                50_000,
                Box::new(|more| {
                    second(&format!("{}{}", "(block)".repeat(25_000), "(br_if 0 (i32.const 0))".repeat(more)))
                }),
            ),
            (
                "values to hand on where it branches or calls",
                5_000_000,
                // At its beginning, at each branch, and at its end.
                Box::new(|more| {
                    let (values, jumps) =
                        ("(i32.const 1) ".repeat(1000), "(br_if 0 (i32.const 1)) ".repeat(4998 + more));
                    let results = "i32 ".repeat(1000);
                    format!(
                        "(module (func) (func) (func (block (result {results}) {values} {jumps}) {}))",
                        "drop ".repeat(1000)
                    )
                }),
            ),
            (
                "triples of a loop and two locals that it changes",
                50_000_000,
                Box::new(|more| {
                    with_locals(
                        1000,
                        nested("loop", 50, &set_all(1000)) + &nested("loop", more, "(local.set 0 (i32.const 1))"),
                    )
                }),
            ),
            (
                "pairs of a call and a local in use there",
                5_000_000,
                Box::new(|more| {
                    let code = set_all(500)
                        + &call.repeat(10_000)
                        + &set_all(500)
                        + &call.repeat(more)
                        + "(local.set 0 (i32.const 1))";
                    with_locals(500, code)
                }),
            ),
        ];
        for (what, max, module) in cases {
            assert_eq!(verdict(&module(0)), "taken", "{what}");
            let refused = verdict(&module(1));
            assert!(
                refused.starts_with("its function ") && refused.contains(&format!(" {what}, and {max} are the most")),
                "{refused}"
            );
        }
        assert_eq!(
            verdict(&second(&nested("loop", 43_000, ""))),
            "its function 1 has 43000 loops in each other, and 256 are the most: divide it, or have the compiler inline less into it"
        );
    }

    #[test]
    fn all_functions_together_are_bounded_too() {
        let calls = format!("(func {})", "(call 0)".repeat(20_000)).repeat(15);
        assert_eq!(verdict(&format!("(module (func) {calls})")), "taken");
        assert_eq!(
            verdict(&format!("(module (func) {calls} (func (call 0)))")),
            "it has 300001 calls in all, and 300000 are the most: have less code in it"
        );
        assert_eq!(verdict(&format!("(module {})", "(func)".repeat(100_000))), "taken");
        assert_eq!(
            verdict(&format!("(module {})", "(func)".repeat(100_001))),
            "it has 100001 functions in all, and 100000 are the most: have less code in it"
        );
        let loops = format!("(func {})", "(loop)".repeat(4_000)).repeat(13);
        assert!(verdict(&format!("(module {loops})")).starts_with("it has 52000 loops in all, and 50000 are the most"));
    }

    #[test]
    fn host_calls_and_locals_used_between_two_calls_count_little() {
        let host = "(module (import \"pinion\" \"yield\" (func)) (func";
        assert_eq!(verdict(&format!("{host} {}))", "(call 0)".repeat(40_000))), "taken");
        // Ten thousand calls, and as many locals, each used next to one call only.
        let used = |i: usize| format!("(local.set {i} (i32.const 1)) (call 0)");
        let code: String = (0..10_000).map(used).collect();
        assert_eq!(verdict(&format!("(module (func) (func (local {}) {code}))", "i32 ".repeat(10_000))), "taken");
    }
}

//! Finds a module's stack in linear memory, where compilers keep what does not fit into locals.
//!
//! LLVM's linker makes the stack pointer a module's first global. Its initial value is the top of the stack, which grows downwards. Only a
//! worker's prefetches depend on it, so a module that does otherwise is only a little slower.

use wasmparser::{GlobalType, Operator, Parser, Payload, TypeRef, ValType};

/// Returns the top of the stack, if the module's first global can be its stack pointer.
pub(crate) fn of(wasm: &[u8]) -> Option<u32> {
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.ok()? {
            Payload::ImportSection(section) => {
                let mut imports = section.into_imports();
                if imports.any(|import| import.is_ok_and(|import| matches!(import.ty, TypeRef::Global(_)))) {
                    return None;
                }
            }
            Payload::GlobalSection(section) => {
                let first = section.into_iter().next()?.ok()?;
                let GlobalType { content_type: ValType::I32, mutable: true, .. } = first.ty else { return None };
                let mut code = first.init_expr.get_operators_reader();
                return match (code.read().ok()?, code.read().ok()?) {
                    (Operator::I32Const { value }, Operator::End) => Some(value as u32),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(items: &str) -> Option<u32> {
        of(&wat::parse_str(format!("(module {items} (memory 17))")).unwrap())
    }

    #[test]
    fn the_stack_begins_at_the_value_of_the_first_global() {
        let others = "(global i32 (i32.const 7)) (global (mut i32) (i32.const 9))";
        assert_eq!(stack(&format!("(global (mut i32) (i32.const 1048576)) {others}")), Some(1_048_576));
    }

    #[test]
    fn a_module_with_another_first_global_has_no_known_stack() {
        for items in [
            "",
            "(global i32 (i32.const 1048576))",
            "(global (mut i64) (i64.const 1048576))",
            "(global (mut i32) (i32.add (i32.const 1) (i32.const 2)))",
            "(import \"host\" \"base\" (global $base i32)) (global (mut i32) (global.get $base))",
        ] {
            assert_eq!(stack(items), None, "{items}");
        }
    }
}

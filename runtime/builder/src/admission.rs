//! What a module must be to run on a node: it has the exports of the ABI, and no import that the node does not offer.

use pinion_abi::{
    ABI_VERSION, EXPORT_ABI_PREFIX, EXPORT_INIT, EXPORT_MEMORY, EXPORT_METRICS, EXPORT_POOL, EXPORT_RUN, IMPORT_MODULE,
    IMPORT_STATE_PREFIX,
};
use wasmparser::types::{EntityType, TypesRef};
use wasmparser::{Export, FuncType, Import, Parser, Payload, ValType};
use wasmtime::{Engine, Extern, Linker, Store};

use crate::counts::Counts;
use crate::features;
use crate::initialise::{self, Guest};
use crate::refused::Refused;

/// What an admitted module asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The first of its imports for state, if it has any: the module runs only in stages that are granted some.
    pub state: Option<String>,
    /// Linear memory at the start, in bytes.
    pub memory_bytes: u64,
    /// What the engine keeps of an instance beside its linear memory, in bytes, at most.
    pub instance_bytes: u64,
}

/// Checks a module, without compiling it.
///
/// # Errors
/// Why the module is refused.
pub fn check(engine: &Engine, wasm: &[u8]) -> Result<Asked, Refused> {
    match wasm {
        // For another version, or a truncated module, the validator has its own message.
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => return Err(Refused::Component),
        [0, b'a', b's', b'm', ..] => {}
        [] => return Err(Refused::Empty),
        _ => return Err(Refused::NotWasm(wasm.iter().copied().take(4).collect())),
    }
    let types = features::validate(wasm)?;
    let invalid = |error: wasmparser::BinaryReaderError| Refused::Invalid(error.to_string());
    let counts = Counts::judged(wasm)?;
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(invalid)? {
            Payload::ImportSection(section) => {
                imports.extend(section.into_imports().collect::<Result<Vec<_>, _>>().map_err(invalid)?);
            }
            Payload::ExportSection(section) => {
                exports.extend(section.into_iter().collect::<Result<Vec<_>, _>>().map_err(invalid)?);
            }
            _ => {}
        }
    }
    check_exports(types.as_ref(), &exports)?;
    check_imports(types.as_ref(), &imports, engine)?;
    let for_state =
        |import: &&Import<'_>| import.module == IMPORT_MODULE && import.name.starts_with(IMPORT_STATE_PREFIX);
    let state = imports.iter().find(for_state).map(|import| import.name.to_owned());
    Ok(Asked { state, memory_bytes: counts.memory_bytes, instance_bytes: counts.instance_bytes })
}

fn check_exports(types: TypesRef<'_>, exports: &[Export<'_>]) -> Result<(), Refused> {
    match exports.iter().find_map(|export| export.name.strip_prefix(EXPORT_ABI_PREFIX)) {
        None => return Err(Refused::NoAbi),
        Some(version) if version != ABI_VERSION.to_string() => return Err(Refused::OtherAbi(version.to_owned())),
        Some(_) => {}
    }
    let entity = |name: &str| {
        exports.iter().find(|export| export.name == name).and_then(|export| types.entity_type_from_export(export))
    };
    let function = |name: &'static str, expected: &'static str, results: &[ValType]| match entity(name) {
        Some(EntityType::Func(id)) if *types[id].unwrap_func() == FuncType::new([], results.iter().copied()) => Ok(()),
        _ => Err(Refused::Export { name, expected }),
    };
    function(EXPORT_INIT, "a function () -> i32", &[ValType::I32])?;
    function(EXPORT_POOL, "a function () -> i32", &[ValType::I32])?;
    function(EXPORT_RUN, "a function ()", &[])?;
    if entity(EXPORT_METRICS).is_some() {
        function(EXPORT_METRICS, "a function () -> i32, if at all", &[ValType::I32])?;
    }
    match entity(EXPORT_MEMORY) {
        Some(EntityType::Memory(memory)) if !memory.memory64 && !memory.shared => Ok(()),
        _ => Err(Refused::Export { name: EXPORT_MEMORY, expected: "its own 32-bit linear memory" }),
    }
}

/// Checks each import against what is offered. Imports during the initialisation have the same names and types as on a node.
fn check_imports(types: TypesRef<'_>, imports: &[Import<'_>], engine: &Engine) -> Result<(), Refused> {
    let linker = initialise::linker(engine).map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    let mut store = Store::new(engine, Guest::without_configuration());
    for import in imports {
        let (module, name) = (import.module.to_owned(), import.name.to_owned());
        let Some(offered) = offered(&linker, &mut store, import) else {
            return Err(Refused::UnknownImport { module, name });
        };
        let wanted = types.entity_type_from_import(import);
        let is_it = matches!(wanted, Some(EntityType::Func(id)) if *types[id].unwrap_func() == offered);
        match wanted {
            Some(EntityType::Func(_)) if is_it => {}
            Some(EntityType::Func(_)) => return Err(Refused::ImportType { module, name, expected: text(&offered) }),
            _ => return Err(Refused::UnknownImport { module, name }),
        }
    }
    Ok(())
}

fn offered(linker: &Linker<Guest>, store: &mut Store<Guest>, import: &Import<'_>) -> Option<FuncType> {
    let Ok(Extern::Func(func)) = linker.get(&mut *store, import.module, import.name) else { return None };
    let ty = func.ty(&*store);
    let values = |values: &mut dyn Iterator<Item = wasmtime::ValType>| -> Option<Vec<ValType>> {
        values
            .map(|value| match value {
                wasmtime::ValType::I32 => Some(ValType::I32),
                wasmtime::ValType::I64 => Some(ValType::I64),
                // No import has other types.
                _ => None,
            })
            .collect()
    };
    Some(FuncType::new(values(&mut ty.params())?, values(&mut ty.results())?))
}

/// Formats a function's type as WebAssembly tools do.
fn text(ty: &FuncType) -> String {
    let list = |values: &[ValType]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ty.results() {
        [] => format!("({})", list(ty.params())),
        results => format!("({}) -> {}", list(ty.params()), list(results)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FUNCTION_BYTES_MAX;

    fn verdict(wat: &str) -> String {
        let engine = Engine::new(&pinion_guest::settings::config()).unwrap();
        let wasm = wat::parse_str(wat).unwrap();
        check(&engine, &wasm).map(|_| "taken".to_owned()).unwrap_or_else(|refused| refused.to_string())
    }

    fn module_with(imports: &str, abi: &str) -> String {
        format!(
            "(module {imports} (memory (export \"memory\") 1)
               (func (export \"{abi}\")) (func (export \"pinion_run\"))
               (func (export \"pinion_init\") (result i32) i32.const 0)
               (func (export \"pinion_pool\") (result i32) i32.const 0))"
        )
    }

    #[test]
    fn a_module_of_this_abi_is_admitted() {
        assert_eq!(verdict(&module_with("(import \"pinion\" \"wait\" (func (result i32)))", "pinion_abi_v3")), "taken");
    }

    #[test]
    fn a_file_that_is_not_wasm_is_refused_with_its_first_bytes() {
        let engine = Engine::new(&pinion_guest::settings::config()).unwrap();
        let refused = check(&engine, b"\x7fELF....").unwrap_err().to_string();
        assert_eq!(refused, "it is not a WebAssembly module: it starts with [7f, 45, 4c, 46] instead of \\0asm");
    }

    #[test]
    fn a_component_another_version_and_a_truncated_module_have_different_refusals() {
        let engine = Engine::new(&pinion_guest::settings::config()).unwrap();
        for (wasm, expected) in [
            (&b"\0asm\x0d\0\x01\0"[..], "it is a WebAssembly component; build a core module"),
            (b"\0asm\x02\0\0\0", "it does not compile: unknown binary version"),
            (b"\0asm\x01", "it does not compile: unexpected end"),
        ] {
            let refused = check(&engine, wasm).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn a_function_with_too_much_code_is_refused_with_its_index() {
        let with_code = |bytes: usize| {
            // Two bytes more: the count of locals, and the end.
            let nops = "nop ".repeat(bytes - 2);
            module_with("(import \"pinion\" \"yield\" (func))", "pinion_abi_v3")
                .replace("(func (export \"pinion_run\"))", &format!("(func (export \"pinion_run\") {nops})"))
        };
        assert_eq!(verdict(&with_code(FUNCTION_BYTES_MAX)), "taken");
        assert_eq!(
            verdict(&with_code(FUNCTION_BYTES_MAX + 1)),
            "its function 2 has 131073 bytes of code, and a function may have 131072: divide it, or have the compiler \
             inline less into it"
        );
    }

    #[test]
    fn every_refusal_names_what_is_wrong() {
        let cases = [
            ("(module)".to_owned(), "exports no function pinion_abi_v3"),
            (
                module_with("", "pinion_abi_v2"),
                "it speaks version 2 of the Pinion ABI, this node version 3: build it again with",
            ),
            (module_with("(import \"env\" \"system\" (func))", "pinion_abi_v3"), "it imports env.system"),
            (
                module_with("(import \"pinion\" \"wait\" (func))", "pinion_abi_v3"),
                "it imports pinion.wait with another type than () -> i32",
            ),
            (
                module_with("(import \"pinion\" \"wait_until\" (func (result i32)))", "pinion_abi_v3"),
                "it imports pinion.wait_until with another type than (i64) -> i32",
            ),
            (
                module_with("(import \"pinion\" \"state_get\" (func (param i32) (result i32)))", "pinion_abi_v3"),
                "it imports pinion.state_get with another type than (i32, i32, i32, i32, i32) -> i32",
            ),
            (module_with("(import \"pinion\" \"state_dump\" (func))", "pinion_abi_v3"), "it imports pinion.state_dump"),
            (
                module_with("(import \"wasi_snapshot_preview1\" \"random_get\" (func (param i64)))", "pinion_abi_v3"),
                "it imports wasi_snapshot_preview1.random_get with another type than (i32, i32) -> i32",
            ),
            (
                module_with("(import \"wasi_snapshot_preview1\" \"sock_accept\" (func))", "pinion_abi_v3"),
                "it imports wasi_snapshot_preview1.sock_accept, which this node does not offer",
            ),
            (
                module_with(
                    "(import \"wasi_ephemeral_nn\" \"compute\" (func (param i64) (result i32)))",
                    "pinion_abi_v3",
                ),
                "it imports wasi_ephemeral_nn.compute with another type than (i32) -> i32",
            ),
            (
                module_with("(import \"wasi_ephemeral_nn\" \"load_by_name_with_config\" (func))", "pinion_abi_v3"),
                "it imports wasi_ephemeral_nn.load_by_name_with_config, which this node does not offer",
            ),
            (
                module_with("(import \"pinion\" \"table\" (table 1 funcref))", "pinion_abi_v3"),
                "it imports pinion.table",
            ),
            (
                module_with("(import \"pinion\" \"panic\" (func (param i32)))", "pinion_abi_v3"),
                "it imports pinion.panic with another type than (i32, i32)",
            ),
            (
                module_with("", "pinion_abi_v3").replace(
                    "(func (export \"pinion_run\"))",
                    "(func (export \"pinion_run\")) (func (export \"pinion_metrics\"))",
                ),
                "must export pinion_metrics as a function () -> i32, if at all",
            ),
            (
                "(module (func (export \"pinion_abi_v3\")) (memory (export \"memory\") 1))".to_owned(),
                "must export pinion_init as a function () -> i32",
            ),
        ];
        for (wat, expected) in cases {
            let verdict = verdict(&wat);
            assert!(verdict.contains(expected), "{verdict:?} does not say {expected:?}");
        }
    }
}

//! What a module must be to run here: the exports of the ABI, and no import that the node does not offer.

use pinion_abi::{
    ABI_VERSION, EXPORT_ABI_PREFIX, EXPORT_INIT, EXPORT_MEMORY, EXPORT_POOL, EXPORT_RUN, IMPORT_CLOCK, IMPORT_CONFIG,
    IMPORT_LOG, IMPORT_MODULE, IMPORT_RANDOM, IMPORT_WAIT, IMPORT_YIELD,
};
use wasmtime::{Engine, ExternType, FuncType, Module, ValType};

/// The import module of the WASI preview 1 functions that libc and std call.
pub const WASI_MODULE: &str = "wasi_snapshot_preview1";

/// The WASI functions a guest may import; the node answers each in bounded time, most with an errno.
pub const WASI_FUNCTIONS: [&str; 16] = [
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_fdstat_get",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_read",
    "fd_seek",
    "fd_write",
    "proc_exit",
    "random_get",
    "sched_yield",
];

/// Why a module is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Not WebAssembly at all.
    #[error("it is not a WebAssembly module: it starts with {0:02x?} instead of \\0asm")]
    NotWasm(Vec<u8>),
    /// A component where a core module is needed.
    #[error("it is a WebAssembly component; build a core module for wasm32-wasip1 instead")]
    Component,
    /// Malformed, or uses features that are off.
    #[error("it does not compile: {0}")]
    Invalid(String),
    /// No declaration of the ABI.
    #[error("it exports no function {EXPORT_ABI_PREFIX}{ABI_VERSION}: build it with the Pinion SDK")]
    NoAbi,
    /// Another version of the ABI.
    #[error(
        "it speaks version {0} of the Pinion ABI, this node version {ABI_VERSION}: rebuild it with the SDK of this release"
    )]
    OtherAbi(String),
    /// An export of the ABI is missing or has another type.
    #[error("it must export {name} as {expected}")]
    Export {
        /// The export's name.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// An import the node does not offer.
    #[error("it imports {module}.{name}, which this node does not offer")]
    UnknownImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// An import of a known name with another type.
    #[error("it imports {module}.{name} with another type than {expected}")]
    ImportType {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// The type offered.
        expected: &'static str,
    },
}

/// Judges and compiles a module; returns the artifact that the node's engines load.
///
/// # Errors
/// Why the module is not taken.
pub fn build(engine: &Engine, wasm: &[u8]) -> Result<Vec<u8>, Refused> {
    match wasm {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => {}
        [0, b'a', b's', b'm', ..] => return Err(Refused::Component),
        _ => return Err(Refused::NotWasm(wasm.iter().copied().take(4).collect())),
    }
    let module = Module::from_binary(engine, wasm).map_err(|error| Refused::Invalid(format!("{error:#}")))?;
    check_exports(&module)?;
    check_imports(&module)?;
    module.serialize().map_err(|error| Refused::Invalid(format!("{error:#}")))
}

fn check_exports(module: &Module) -> Result<(), Refused> {
    let abi = module.exports().find_map(|export| export.name().strip_prefix(EXPORT_ABI_PREFIX).map(str::to_owned));
    match abi {
        None => return Err(Refused::NoAbi),
        Some(version) if version != ABI_VERSION.to_string() => return Err(Refused::OtherAbi(version)),
        Some(_) => {}
    }
    let function = |name: &'static str, expected: &'static str, results: &[ValType]| match module.get_export(name) {
        Some(ExternType::Func(ty)) if has_type(&ty, &[], results) => Ok(()),
        _ => Err(Refused::Export { name, expected }),
    };
    function(EXPORT_INIT, "a function () -> i32", &[ValType::I32])?;
    function(EXPORT_POOL, "a function () -> i32", &[ValType::I32])?;
    function(EXPORT_RUN, "a function ()", &[])?;
    match module.get_export(EXPORT_MEMORY) {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => Ok(()),
        _ => Err(Refused::Export { name: EXPORT_MEMORY, expected: "its own 32-bit linear memory" }),
    }
}

fn check_imports(module: &Module) -> Result<(), Refused> {
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let unknown = || Refused::UnknownImport { module: from.to_owned(), name: name.to_owned() };
        let ExternType::Func(ty) = import.ty() else { return Err(unknown()) };
        let (params, results, expected): (&[ValType], &[ValType], &'static str) = match (from, name) {
            // Types of WASI functions are checked by the linker, whose message names them.
            (WASI_MODULE, name) if WASI_FUNCTIONS.contains(&name) => continue,
            (IMPORT_MODULE, IMPORT_WAIT) => (&[], &[ValType::I32], "() -> i32"),
            (IMPORT_MODULE, IMPORT_YIELD) => (&[], &[], "()"),
            (IMPORT_MODULE, IMPORT_LOG) => (&[ValType::I32, ValType::I32, ValType::I32], &[], "(i32, i32, i32)"),
            (IMPORT_MODULE, IMPORT_CLOCK) => (&[], &[ValType::I64], "() -> i64"),
            (IMPORT_MODULE, IMPORT_RANDOM | IMPORT_CONFIG) => {
                (&[ValType::I32, ValType::I32], &[ValType::I32], "(i32, i32) -> i32")
            }
            _ => return Err(unknown()),
        };
        if !has_type(&ty, params, results) {
            return Err(Refused::ImportType { module: from.to_owned(), name: name.to_owned(), expected });
        }
    }
    Ok(())
}

fn has_type(ty: &FuncType, params: &[ValType], results: &[ValType]) -> bool {
    let same = |have: &mut dyn ExactSizeIterator<Item = ValType>, want: &[ValType]| {
        have.len() == want.len() && have.zip(want).all(|(have, want)| ValType::eq(&have, want))
    };
    same(&mut ty.params(), params) && same(&mut ty.results(), results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(wat: &str) -> String {
        let engine = Engine::new(&crate::settings::config()).unwrap();
        let wasm = wat::parse_str(wat).unwrap();
        build(&engine, &wasm).map(|_| "taken".to_owned()).unwrap_or_else(|refused| refused.to_string())
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
    fn a_module_of_this_abi_is_taken() {
        assert_eq!(verdict(&module_with("(import \"pinion\" \"wait\" (func (result i32)))", "pinion_abi_v1")), "taken");
    }

    #[test]
    fn what_is_not_wasm_is_refused_by_its_first_bytes() {
        let engine = Engine::new(&crate::settings::config()).unwrap();
        let refused = build(&engine, b"\x7fELF....").unwrap_err().to_string();
        assert_eq!(refused, "it is not a WebAssembly module: it starts with [7f, 45, 4c, 46] instead of \\0asm");
    }

    #[test]
    fn every_refusal_names_what_is_wrong() {
        let cases = [
            ("(module)".to_owned(), "exports no function pinion_abi_v1"),
            (module_with("", "pinion_abi_v2"), "speaks version 2 of the Pinion ABI, this node version 1"),
            (module_with("(import \"env\" \"system\" (func))", "pinion_abi_v1"), "it imports env.system"),
            (
                module_with("(import \"pinion\" \"wait\" (func))", "pinion_abi_v1"),
                "it imports pinion.wait with another type than () -> i32",
            ),
            (
                module_with("(import \"wasi_snapshot_preview1\" \"path_open\" (func))", "pinion_abi_v1"),
                "it imports wasi_snapshot_preview1.path_open",
            ),
            (
                module_with("(import \"pinion\" \"table\" (table 1 funcref))", "pinion_abi_v1"),
                "it imports pinion.table",
            ),
            (
                "(module (func (export \"pinion_abi_v1\")) (memory (export \"memory\") 1))".to_owned(),
                "must export pinion_init as a function () -> i32",
            ),
        ];
        for (wat, expected) in cases {
            let verdict = verdict(&wat);
            assert!(verdict.contains(expected), "{verdict:?} does not say {expected:?}");
        }
    }
}

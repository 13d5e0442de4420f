//! Where the engine keeps what a turn touches of an instance. For prefetching, and for nothing else.
//!
//! The engine's public interface gives the address of a record for each function ([`Func::to_raw`]), but not what is in it. So its layout
//! is searched for by what must be there, with each FWP that is prepared until it is found, and then kept for the process:
//!
//! ```text
//!   function's record        instance's context                     store
//!   | ... | context | ... |  -->  | ... | store's part | ... |  -->  | ... engine's part ... | FwpContext |
//!                                 | address of its memory |
//! ```
//!
//! A word of the record is the context's address if the address of the instance's memory is found behind it. A word of the context is the
//! address of the engine's part of the store if it lies a little before the store's `FwpContext`. What is not found is not prefetched.
//! Words are read through the kernel while searching, so that an address that is none does no harm.
#![allow(unsafe_code)] // Reads a word of a record of the engine.

use std::sync::OnceLock;

use wasmtime::{AsContextMut as _, Func, Memory, Store};

use super::own_memory::OwnMemory;

/// How many words of a function's record are looked at.
const RECORD_WORDS: usize = 4;
/// How many words of an instance's context are looked at. The functions that it imports come before its memory, with four words each.
const CONTEXT_WORDS: usize = 512;
/// How far before the `FwpContext` the engine's part of the store begins, at most, in bytes.
const STORE_PART_BYTES_MAX: usize = 2048;

/// Only what was found: one tenant's module, whose context may be too long for the search, turns nothing off for others.
static LAYOUT: OnceLock<Layout> = OnceLock::new();

/// Where the engine's release keeps things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Which word of a function's record is the address of its instance's context.
    context_word: usize,
    /// How far before the `FwpContext` the engine's part of the store lies, in bytes, if that was found.
    store_part_bytes: Option<usize>,
}

/// Addresses of what the engine keeps of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineParts {
    /// What guest code reads: where its memory lies, its globals, the functions it imports.
    pub(crate) context: usize,
    /// What the engine changes with each call: limits of the stack, the deadline, the way back to the host.
    pub(crate) store_part: Option<usize>,
}

impl EngineParts {
    /// Returns the addresses for the instance with this exported function and this memory, if the engine's layout was found.
    pub(crate) fn of<T>(function: &Func, memory: &Memory, store: &mut Store<T>) -> Option<Self> {
        let record = function.to_raw(store.as_context_mut()).cast::<[usize; RECORD_WORDS]>();
        let data = (&raw const *store.data()).addr();
        let memory = memory.data_ptr(&*store).addr();
        let find = || Layout::find(&OwnMemory::open()?, record.addr(), data, memory);
        let layout = LAYOUT.get().copied().or_else(|| find().map(|found| *LAYOUT.get_or_init(|| found)))?;
        // SAFETY: such a record lives as long as the store, which outlives this. This word of such a record was read before.
        let context = unsafe { (*record)[layout.context_word] };
        Some(Self { context, store_part: layout.store_part_bytes.map(|bytes| data - bytes) })
    }
}

impl Layout {
    /// Searches with an instance whose function has this record, whose store has its data here, and whose memory lies here.
    fn find(own: &OwnMemory, record: usize, data: usize, memory: usize) -> Option<Self> {
        let behind = |word: usize| Some(own.words(word, CONTEXT_WORDS)).filter(|words| words.contains(&memory));
        let record = own.words(record, RECORD_WORDS);
        let (context_word, context) =
            record.into_iter().enumerate().find_map(|(at, word)| Some((at, behind(word)?)))?;
        let mut before_data = context.iter().filter_map(|word| data.checked_sub(*word));
        let store_part_bytes = before_data.find(|bytes| *bytes <= STORE_PART_BYTES_MAX);
        Some(Self { context_word, store_part_bytes })
    }
}

#[cfg(test)]
mod tests {
    use pinion_guest::settings;
    use wasmtime::{Engine, Instance, Module};

    use super::*;
    use crate::tuning::own_memory::WORD;

    fn guest(imports: usize) -> String {
        let imports = r#"(import "host" "wait" (func))"#.repeat(imports);
        format!(
            r#"(module
                {imports}
                (memory (export "memory") 1)
                (global (mut i32) (i32.const 4096))
                (func (export "run") (call 0)))"#
        )
    }

    struct Made {
        store: Store<[u64; 16]>,
        run: Func,
        memory: Memory,
    }

    fn instance(engine: &Engine, module: &Module) -> Made {
        let mut store = Store::new(engine, [0; 16]);
        let wait = Func::wrap(&mut store, || {});
        let imports = vec![wait.into(); module.imports().len()];
        let instance = Instance::new(&mut store, module, &imports).unwrap();
        let run = instance.get_func(&mut store, "run").unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        Made { store, run, memory }
    }

    fn instances<const COUNT: usize>(imports: usize) -> [Made; COUNT] {
        let engine = Engine::new(&settings::config()).unwrap();
        let module = Module::new(&engine, wat::parse_str(guest(imports)).unwrap()).unwrap();
        std::array::from_fn(|_| instance(&engine, &module))
    }

    #[test]
    fn in_this_release_of_the_engine_both_parts_are_found_for_each_instance() {
        let own = OwnMemory::open().unwrap();
        let mut contexts = instances::<2>(1).map(|Made { mut store, run, memory }| {
            let parts = EngineParts::of(&run, &memory, &mut store).unwrap();
            assert!(own.words(parts.context, CONTEXT_WORDS).contains(&memory.data_ptr(&store).addr()));
            // The layout that the process keeps may come of a store of other data, which may lie elsewhere in the store.
            let (record, data) = (run.to_raw(&mut store).addr(), (&raw const *store.data()).addr());
            let found = Layout::find(&own, record, data, memory.data_ptr(&store).addr()).unwrap();
            let before = found.store_part_bytes.unwrap();
            assert!((1..=STORE_PART_BYTES_MAX).contains(&before), "{before} bytes before the data");
            parts.context
        });
        contexts.sort_unstable();
        assert_ne!(contexts[0], contexts[1]);
    }

    #[test]
    fn nothing_is_found_where_it_is_not_or_where_nothing_is_mapped() {
        let own = OwnMemory::open().unwrap();
        let [Made { mut store, run, memory }] = instances(1);
        let record = run.to_raw(&mut store).addr();
        let data = (&raw const *store.data()).addr();
        let memory = memory.data_ptr(&store).addr();
        assert!(Layout::find(&own, record, data, memory).is_some_and(|layout| layout.store_part_bytes.is_some()));
        // Nothing is mapped there, so no word of the context is an address a little before it, whatever the heap looks like.
        let elsewhere = Layout::find(&own, record, 0x5a5a << 48, memory).unwrap();
        assert_eq!(elsewhere.store_part_bytes, None);
        assert_eq!(Layout::find(&own, record, data, memory + 1), None);
        assert_eq!(Layout::find(&own, data, data, memory), None);
        assert_eq!(Layout::find(&own, WORD, data, memory), None);
    }

    #[test]
    fn the_memory_is_found_behind_many_imported_functions() {
        let own = OwnMemory::open().unwrap();
        let [Made { mut store, run, memory }] = instances(100);
        let record = run.to_raw(&mut store).addr();
        let data = (&raw const *store.data()).addr();
        assert!(Layout::find(&own, record, data, memory.data_ptr(&store).addr()).is_some());
    }
}

//! Where an FWP's native stack ends while it waits. For prefetching, and for nothing else.
//!
//! The engine does not tell. But while a guest is suspended, it keeps at the top of the guest's stack where it left it, to come back. Which
//! word that is, is searched for with each FWP that is prepared until it is found, and then kept for the process:
//!
//! ```text
//!   lower addresses                                                        end of a page
//!   | where the engine left the stack | ... | frame of the host call | ... | address of the left end, ... |
//! ```
//!
//! A guest whose frames reach into another page before it is suspended has no such word there, and gets the place of its host call.
#![allow(unsafe_code)] // Reads a word of a stack that is suspended.

use std::sync::OnceLock;

use super::own_memory::{OwnMemory, WORD};

const PAGE: usize = 4096;
/// How many words at the top of the stack are looked at.
const TOP_WORDS: usize = 4;
/// How far below the host call the stack ends, at most, in bytes.
const BELOW_CALL_MAX: usize = 1024;

/// How many bytes before the top the word lies. Only what was found is kept: a guest with a deep stack turns nothing off for others.
static BEFORE_TOP: OnceLock<usize> = OnceLock::new();

/// Returns where the native stack of a suspended guest ends, which waits since a host call that had its frame here.
///
/// # Safety
/// The address is one of a stack of native code that lives until this returns, and no code runs on this stack meanwhile.
pub(crate) unsafe fn stack_end(call: usize) -> usize {
    let find = || before_top(&OwnMemory::open()?, call);
    let Some(before_top) = BEFORE_TOP.get().copied().or_else(|| find().map(|found| *BEFORE_TOP.get_or_init(|| found)))
    else {
        return call;
    };
    let word = std::ptr::with_exposed_provenance::<usize>(call.next_multiple_of(PAGE) - before_top);
    // SAFETY: this word lies in the page of the address, which belongs to the stack as a whole.
    let left = unsafe { word.read_volatile() };
    if is_end(call, left) { left } else { call }
}

/// Searches the last words of the page.
fn before_top(own: &OwnMemory, call: usize) -> Option<usize> {
    let top = call.next_multiple_of(PAGE);
    let words = own.words(top.checked_sub(TOP_WORDS * WORD)?, TOP_WORDS);
    let at = words.iter().position(|word| is_end(call, *word))?;
    Some((TOP_WORDS - at) * WORD)
}

/// Returns whether a stack could end here on which this host call was made, in the same page.
fn is_end(call: usize, end: usize) -> bool {
    call / PAGE == end / PAGE && call.checked_sub(end).is_some_and(|below| (1..=BELOW_CALL_MAX).contains(&below))
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use pinion_guest::settings;
    use wasmtime::{Caller, Engine, Func, Instance, Module, Store};

    use super::*;

    /// Lets a guest call the host `deep` functions down and be suspended after it; gives the place of the host call meanwhile.
    fn suspended(engine: &Engine, deep: usize, look: impl FnOnce(usize)) {
        let text = r#"(module
            (import "host" "wait" (func $wait))
            (func $down (param i32)
                (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))) (else (call $wait) (loop)))
                (drop (i32.load (i32.const 0))))
            (memory (export "memory") 1)
            (func (export "run") (param i32) (call $down (local.get 0))))"#;
        let module = Module::new(engine, wat::parse_str(text).unwrap()).unwrap();
        let mut store = Store::new(engine, Arc::new(AtomicUsize::new(0)));
        let call = Arc::clone(store.data());
        let wait = Func::wrap(&mut store, |caller: Caller<'_, Arc<AtomicUsize>>| {
            let here = 0_u8;
            caller.data().store((&raw const here).expose_provenance(), Ordering::Relaxed);
            caller.engine().increment_epoch();
        });
        let instance = Instance::new(&mut store, &module, &[wait.into()]).unwrap();
        let run = instance.get_typed_func::<u32, ()>(&mut store, "run").unwrap();
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        let mut run = Box::pin(run.call_async(&mut store, deep as u32));
        let mut context = Context::from_waker(Waker::noop());
        assert!(run.as_mut().poll(&mut context).is_pending());
        look(call.load(Ordering::Relaxed));
        assert!(run.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn in_this_release_of_the_engine_the_stack_s_end_is_found_at_its_top() {
        let engine = Engine::new(&settings::config()).unwrap();
        let own = OwnMemory::open().unwrap();
        for deep in [0, 1, 10] {
            suspended(&engine, deep, |call| {
                assert!(before_top(&own, call).is_some(), "{deep} functions down");
                // SAFETY: the guest is suspended.
                let end = unsafe { stack_end(call) };
                assert!(is_end(call, end), "{call:#x}, {end:#x}");
            });
        }
    }

    #[test]
    fn a_guest_whose_frames_fill_pages_gets_the_place_of_its_call() {
        let engine = Engine::new(&settings::config()).unwrap();
        suspended(&engine, 1000, |call| {
            // SAFETY: the guest is suspended.
            assert_eq!(unsafe { stack_end(call) }, call);
        });
    }

    #[test]
    fn nothing_is_found_where_no_word_points_nearby_or_nothing_is_mapped() {
        let own = OwnMemory::open().unwrap();
        let zeros = vec![0_u8; 3 * PAGE];
        let page = zeros.as_ptr().addr().next_multiple_of(PAGE);
        assert_eq!(before_top(&own, page + 2048), None);
        assert_eq!(before_top(&own, 1), None);
        assert_eq!(before_top(&own, 0), None);
    }
}

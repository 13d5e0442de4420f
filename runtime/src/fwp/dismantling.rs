//! How an FWP is taken apart: the counterpart of [`super::preparation`].

use std::mem::ManuallyDrop;

use pinion_mma::wiring::Endpoint;
use wasmtime::{Engine, Store};

use super::{Fwp, FwpContext};
use crate::ids::LeftPlace;
use crate::memory::reset_check::Marked;

impl Fwp {
    /// Ends it for good, counts the frames that are lost with it, and frees its memory. The endpoint proves that the MMA has released the
    /// pool.
    ///
    /// Unwinds a suspended fiber, and resets or unmaps memory: never call it on a worker, but on the thread that prepares FWPs of its engine,
    /// so that none gets its place before the reset was looked at.
    ///
    /// Returns where its memory lay, and how much of that is left.
    ///
    /// # Panics
    /// If the endpoint belongs to another FWP.
    pub fn dismantle(mut self, mut endpoint: Box<Endpoint>) -> LeftPlace {
        assert_eq!(endpoint.id(), self.id, "the endpoint of another FWP is no proof");
        endpoint.settle();
        drop(endpoint);
        let place = self.place();
        // SAFETY: `self` is consumed, so `life` is never used again; the MMA has released the memory.
        let end = || unsafe { ManuallyDrop::drop(&mut self.life) };
        // SAFETY: its guest never runs again, the MMA has released its memory, and host calls keep no reference into it.
        let present_bytes = unsafe { reset(self.overwrites.as_ref(), (place.address, place.bytes), end) };
        LeftPlace { place, present_bytes }
    }
}

/// The store of an FWP that is being made. If that is not done to its end, the memory is reset as that of others, from when it is known where
/// it lies.
pub(super) struct NewStore {
    store: Option<Store<FwpContext>>,
    overwrites: Option<Engine>,
    /// Of the linear memory.
    address: Option<usize>,
}

impl NewStore {
    /// Takes a store, whose engine is `overwrites` if that overwrites the memory of ended FWPs.
    pub(super) fn new(store: Store<FwpContext>, overwrites: Option<Engine>) -> Self {
        Self { store: Some(store), overwrites, address: None }
    }

    pub(super) fn get(&mut self) -> &mut Store<FwpContext> {
        self.store.as_mut().expect("it is taken by value")
    }

    /// Notes where the linear memory lies.
    pub(super) fn found(&mut self, address: usize) {
        self.address = Some(address);
    }

    /// Returns the store, which the FWP has from now on, and the engine again.
    pub(super) fn finish(mut self) -> (Store<FwpContext>, Option<Engine>) {
        (self.store.take().expect("it is taken once"), self.overwrites.take())
    }
}

impl Drop for NewStore {
    fn drop(&mut self) {
        let Some(store) = self.store.take() else { return };
        let Some(address) = self.address else { return };
        let bytes = store.data().shared.memory_bytes() as usize;
        // SAFETY: the FWP was not made, so that nothing but the store knows the memory.
        unsafe { reset(self.overwrites.as_ref(), (address, bytes), || drop(store)) };
    }
}

/// Lets `end` reset a linear memory of this address and size, and looks at what it did, if the engine overwrites. Returns how many bytes are
/// left there in pages that were written to.
///
/// # Safety
/// No guest runs in this memory any more, the MMA has released it, and there is no reference into it. `end` ends its instance.
unsafe fn reset(overwrites: Option<&Engine>, (address, bytes): (usize, usize), end: impl FnOnce()) -> usize {
    // SAFETY: as told.
    let marked = overwrites.map(|_| unsafe { Marked::new(address..address + bytes) });
    end();
    // SAFETY: the engine keeps its places mapped for as long as it lives, and `overwrites` is one. No other FWP is prepared meanwhile, as that
    // is this thread's work.
    marked.map_or(0, |marked| unsafe { marked.return_missed() }.left_bytes)
}

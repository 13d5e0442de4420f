//! How an FWP is taken apart: the counterpart of [`super::preparation`].

use std::mem::ManuallyDrop;

use pinion_mma::wiring::Endpoint;

use super::Fwp;

impl Fwp {
    /// Ends it for good, counts the frames that are lost with it, and frees its memory. The endpoint proves that the MMA has released the
    /// pool.
    ///
    /// Unwinds a suspended fiber and unmaps memory: never call it on a worker.
    ///
    /// # Panics
    /// If the endpoint belongs to another FWP.
    pub fn dismantle(mut self, mut endpoint: Box<Endpoint>) {
        assert_eq!(endpoint.id(), self.id, "the endpoint of another FWP is no proof");
        endpoint.settle();
        drop(endpoint);
        // SAFETY: `self` is consumed, so `life` is never used again; the MMA has released the memory.
        unsafe { ManuallyDrop::drop(&mut self.life) };
    }
}

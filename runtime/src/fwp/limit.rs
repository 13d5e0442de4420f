//! Limits an FWP's memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinion_guest::files::Space;
use wasmtime::ResourceLimiter;

use super::FwpShared;
use crate::fwp::end_reason::{EndReason, Stop};
use crate::tenants::accounts::Holding;

/// Limits a guest's memory, including its changed files and the tensors of its models, to what the FWP, its chain and its tenant may use.
pub(crate) struct MemoryLimit {
    holding: Holding,
    /// Its memory exists, and may only grow.
    made: bool,
    /// The size from which it was allowed to grow last.
    grows_from: Option<usize>,
    /// Memory of the inputs and outputs of models.
    tensors_bytes: u64,
    shared: Arc<FwpShared>,
}

impl MemoryLimit {
    /// Creates the limit of an FWP that has no memory yet.
    pub(super) fn new(holding: Holding, shared: Arc<FwpShared>) -> Self {
        Self { holding, made: false, grows_from: None, tensors_bytes: 0, shared }
    }

    /// Charges inputs and outputs of a model for as long as the FWP lives. Returns false if its limits do not cover them.
    pub(super) fn add_tensors(&mut self, bytes: u64) -> bool {
        let wanted = self.tensors_bytes.saturating_add(bytes);
        let others = self.shared.memory_bytes() + self.shared.files_bytes();
        let is_granted = self.holding.resize(others.saturating_add(wanted)).is_ok();
        if is_granted {
            self.tensors_bytes = wanted;
        }
        is_granted
    }

    /// Returns what it holds besides its linear memory, in bytes.
    fn beside_memory(&self) -> u64 {
        self.shared.files_bytes() + self.tensors_bytes
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, now: usize, wanted: usize, declared_max: Option<usize>) -> wasmtime::Result<bool> {
        let making = !std::mem::replace(&mut self.made, true);
        self.grows_from = None;
        // The engine would refuse it too, but only after it was charged.
        if declared_max.is_some_and(|max| wanted > max) {
            return Ok(false);
        }
        match self.holding.resize(wanted as u64 + self.beside_memory()) {
            Ok(()) => {
                self.shared.memory_bytes.store(wanted as u64, Ordering::Relaxed);
                self.grows_from = Some(now);
                Ok(true)
            }
            Err(over) if making => Err(Stop(EndReason::OverLimit(over)).into()),
            Err(_) => Ok(false),
        }
    }

    /// The kernel had no memory for what was allowed: it is not charged, and is not the guest's.
    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        if let Some(bytes) = self.grows_from.take() {
            let shrunk = self.holding.resize(bytes as u64 + self.beside_memory());
            debug_assert!(shrunk.is_ok(), "less is always allowed");
            self.shared.memory_bytes.store(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn table_growing(&mut self, now: usize, wanted: usize, _declared_max: Option<usize>) -> wasmtime::Result<bool> {
        // Charged with all else that is kept for the FWP; a guest must make do with the one that its module declares.
        Ok(now == 0 || wanted == now)
    }
}

impl Space for MemoryLimit {
    fn resize(&mut self, bytes: u64) -> bool {
        let is_granted = self.holding.resize(self.shared.memory_bytes() + bytes + self.tensors_bytes).is_ok();
        if is_granted {
            self.shared.files_bytes.store(bytes, Ordering::Relaxed);
        }
        is_granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::accounts::MemoryAccounts;

    const PAGE: usize = 1 << 16;

    #[test]
    fn growth_that_the_kernel_refuses_is_neither_charged_nor_counted() {
        let shared = Arc::new(FwpShared::new(false));
        let holding = Holding::new(MemoryAccounts::default(), 3 * PAGE as u64, 0);
        let mut limit = MemoryLimit::new(holding, Arc::clone(&shared));
        let mut grow = |from: usize, to: usize, fails: bool| {
            let is_allowed = limit.memory_growing(from * PAGE, to * PAGE, None).unwrap();
            if fails {
                limit.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
            }
            (is_allowed, shared.memory_bytes() as usize / PAGE)
        };
        assert_eq!(grow(0, 1, false), (true, 1));
        assert_eq!(grow(1, 3, true), (true, 1));
        assert_eq!(grow(1, 4, true), (false, 1), "it was not allowed");
        assert_eq!(grow(1, 3, false), (true, 3), "what was refused was not charged");
    }
    #[test]
    fn tensors_take_of_the_same_limit_as_memory_and_files() {
        let shared = Arc::new(FwpShared::new(false));
        let holding = Holding::new(MemoryAccounts::default(), 4 * PAGE as u64, 0);
        let mut limit = MemoryLimit::new(holding, shared);
        assert!(limit.memory_growing(0, PAGE, None).unwrap());
        assert!(limit.add_tensors(PAGE as u64) && !limit.add_tensors(3 * PAGE as u64));
        assert!(!limit.resize(3 * PAGE as u64) && limit.resize(PAGE as u64));
        assert!(
            !limit.memory_growing(PAGE, 3 * PAGE, None).unwrap() && limit.memory_growing(PAGE, 2 * PAGE, None).unwrap()
        );
        assert!(!limit.add_tensors(1) && !limit.add_tensors(u64::MAX));
    }
}

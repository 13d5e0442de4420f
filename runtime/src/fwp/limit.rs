//! Limits an FWP's memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinion_guest::files::Space;
use wasmtime::ResourceLimiter;

use super::FwpShared;
use crate::fwp::end_reason::{EndReason, Stop};
use crate::tenants::accounts::Holding;

/// Limits a guest's memory, including its changed files, to what the FWP, its chain and its tenant may use.
pub(crate) struct MemoryLimit {
    holding: Holding,
    /// Its memory exists, and may only grow.
    made: bool,
    shared: Arc<FwpShared>,
}

impl MemoryLimit {
    /// Creates the limit of an FWP that has no memory yet.
    pub(super) fn new(holding: Holding, shared: Arc<FwpShared>) -> Self {
        Self { holding, made: false, shared }
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, _now: usize, wanted: usize, declared_max: Option<usize>) -> wasmtime::Result<bool> {
        let making = !std::mem::replace(&mut self.made, true);
        // The engine would refuse it too, but only after it was charged.
        if declared_max.is_some_and(|max| wanted > max) {
            return Ok(false);
        }
        match self.holding.resize(wanted as u64 + self.shared.files_bytes()) {
            Ok(()) => {
                self.shared.memory_bytes.store(wanted as u64, Ordering::Relaxed);
                Ok(true)
            }
            Err(over) if making => Err(Stop(EndReason::OverLimit(over)).into()),
            Err(_) => Ok(false),
        }
    }

    fn table_growing(&mut self, now: usize, wanted: usize, _declared_max: Option<usize>) -> wasmtime::Result<bool> {
        // Tables are part of the engine's reservation; a guest must make do with the one that its module declares.
        Ok(now == 0 || wanted == now)
    }
}

impl Space for MemoryLimit {
    fn resize(&mut self, bytes: u64) -> bool {
        let is_granted = self.holding.resize(self.shared.memory_bytes() + bytes).is_ok();
        if is_granted {
            self.shared.files_bytes.store(bytes, Ordering::Relaxed);
        }
        is_granted
    }
}

//! Templates: a module made ready for one engine, with the configuration and limits of the stage it serves.

use std::fs::File;
use std::sync::Arc;

use wasmtime::{Engine, Instance, InstancePre, Linker, Module, Store};

use crate::fwp::FwpContext;

/// What the FWPs of one stage, on one worker, are made from.
pub struct Template {
    instance: InstancePre<FwpContext>,
    /// Handed to the guest on request.
    pub config: Arc<[u8]>,
    /// Linear memory an FWP may grow to, in bytes.
    pub memory_bytes_max: usize,
}

impl Template {
    /// Joins a module to the imports the node offers.
    ///
    /// # Errors
    /// wasmtime's, if an import's type is not what the node offers.
    pub fn new(
        linker: &Linker<FwpContext>,
        module: &Module,
        config: Arc<[u8]>,
        memory_bytes_max: usize,
    ) -> wasmtime::Result<Self> {
        Ok(Self { instance: linker.instantiate_pre(module)?, config, memory_bytes_max })
    }

    /// The engine its instances belong to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.instance.module().engine()
    }

    pub(crate) async fn instantiate(&self, store: &mut Store<FwpContext>) -> wasmtime::Result<Instance> {
        self.instance.instantiate_async(store).await
    }
}

/// Maps an artifact of the builder's into an engine.
///
/// # Errors
/// wasmtime's, if the file is not there or was made with other settings or another release.
#[allow(unsafe_code)] // Maps native code.
pub fn load(engine: &Engine, artifact: File) -> wasmtime::Result<Module> {
    // SAFETY: the file is the builder's own output: it lies in a directory that only the node's user can write to, and the
    // caller has compared its digest, read through this very file, with the one recorded when it was made.
    unsafe { Module::deserialize_open_file(engine, artifact) }
}

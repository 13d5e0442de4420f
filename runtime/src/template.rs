//! Templates: what the builder made of a module and its configuration, loaded into one engine and joined to its imports.

use std::fs::File;
use std::sync::Arc;

use pinion_abi::{EXPORT_MEMORY, EXPORT_RUN};
use pinion_builder_client::metrics::{self, BadMetrics, Metric};
use pinion_builder_client::protocol::{Facts, Start};
use pinion_guest::files::Bundle;
use pinion_mma::pool::{PoolError, PoolLayout};
use wasmtime::{Engine, Extern, Func, Instance, InstancePre, Linker, Memory, Module, ModuleExport, Store};

use crate::fwp::FwpContext;
use crate::hot_pages::HotPages;

/// An artifact of the builder's in an engine: what all chains share that have a stage of it.
pub struct Loaded {
    module: Module,
    facts: Facts,
    hot_pages: Arc<HotPages>,
}

impl Loaded {
    /// That module, of which the builder says this.
    #[must_use]
    pub fn new((module, facts): (Module, Facts)) -> Self {
        Self { module, facts, hot_pages: Arc::default() }
    }
}

/// What the FWPs of one stage, on one worker, are made from.
pub struct Template {
    instance: InstancePre<FwpContext>,
    exports: Exports,
    /// Where an instance's pool is, if it is initialised already; else it initialises itself.
    pub(crate) pool: Option<PoolLayout>,
    /// The metrics of an instance that is initialised already.
    pub(crate) metrics: Arc<[Arc<Metric>]>,
    /// Handed to the guest on request.
    pub config: Arc<[u8]>,
    /// What instances find, if they have a file system.
    pub files: Option<Arc<Bundle>>,
    /// Linear memory an FWP may grow to, in bytes.
    pub memory_bytes_max: usize,
    pub(crate) hot_pages: Arc<HotPages>,
    /// Where an instance's own stack begins in its memory, downwards, if that is known.
    pub(crate) stack: Option<u32>,
}

/// Where an instance's exports are: to find one by its name takes as long as a short turn.
struct Exports {
    memory: Option<ModuleExport>,
    run: Option<ModuleExport>,
}

/// Why a template can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// An import's type is not what the node offers.
    #[error("{0:#}")]
    Imports(wasmtime::Error),
    /// Its pool can't be used.
    #[error("its packet pool is unusable: {0}")]
    Pool(PoolError),
    /// Its metrics can't be read.
    #[error(transparent)]
    Metrics(#[from] BadMetrics),
}

impl Template {
    /// Joins a module to the imports the node offers.
    ///
    /// # Errors
    /// What does not fit.
    pub fn new(
        linker: &Linker<FwpContext>,
        Loaded { module, facts, hot_pages }: &Loaded,
        config: Arc<[u8]>,
        files: Option<Arc<Bundle>>,
        memory_bytes_max: usize,
    ) -> Result<Self, TemplateError> {
        let pool = match facts.start {
            Start::Snapshot(pool) => {
                let layout = PoolLayout::check(pool.header(), facts.memory_bytes as usize);
                metrics::check(&facts.metrics, &pool.header(), facts.memory_bytes)?;
                Some(layout.map_err(TemplateError::Pool)?)
            }
            Start::Module(_) => None,
        };
        let instance = linker.instantiate_pre(module).map_err(TemplateError::Imports)?;
        let metrics = facts.metrics.iter().cloned().map(Arc::new).collect();
        let exports =
            Exports { memory: module.get_export_index(EXPORT_MEMORY), run: module.get_export_index(EXPORT_RUN) };
        let (stack, hot_pages) = (facts.stack, Arc::clone(hot_pages));
        Ok(Self { instance, exports, pool, metrics, config, files, memory_bytes_max, hot_pages, stack })
    }

    /// What tells it from others, and engines' parts of one template from each other's not.
    pub(crate) fn mark(&self) -> usize {
        Arc::as_ptr(&self.hot_pages).addr()
    }

    /// The engine its instances belong to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.instance.module().engine()
    }

    pub(crate) async fn instantiate(&self, store: &mut Store<FwpContext>) -> wasmtime::Result<Instance> {
        self.instance.instantiate_async(store).await
    }

    /// An instance's linear memory, if it exports one.
    pub(crate) fn memory(&self, instance: &Instance, store: &mut Store<FwpContext>) -> Option<Memory> {
        instance.get_module_export(store, self.exports.memory.as_ref()?).and_then(Extern::into_memory)
    }

    /// Its function that lasts as long as it does, if it exports one.
    pub(crate) fn run(&self, instance: &Instance, store: &mut Store<FwpContext>) -> Option<Func> {
        instance.get_module_export(store, self.exports.run.as_ref()?).and_then(Extern::into_func)
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

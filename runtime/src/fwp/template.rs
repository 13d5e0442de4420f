//! Templates: what the builder made of a module and its configuration, loaded into one engine and linked to its imports.

use std::sync::Arc;

use pinion_abi::{EXPORT_MEMORY, EXPORT_RUN};
use pinion_builder_client::metrics::{self, BadMetrics, Metric};
use pinion_builder_client::protocol::{Facts, Start};
use pinion_guest::files::Bundle;
use pinion_guest::settings::FIBER_STACK_BYTES;
use pinion_mma::guest::pool::{PoolError, PoolLayout};
use wasmtime::{Engine, Extern, Func, Instance, InstancePre, Linker, Memory, Module, ModuleExport, Store};

use crate::fwp::FwpContext;
use crate::memory::hot_pages::HotPages;
use crate::tenants::accounts::Charge;

/// The builder's artifact, loaded into an engine. Shared by all chains with a stage made from it.
pub struct Loaded {
    module: Module,
    facts: Facts,
    hot_pages: Arc<HotPages>,
    charge: Option<Arc<Charge>>,
}

impl Loaded {
    /// Wraps a module with the facts that the builder states about it.
    #[must_use]
    pub fn new((module, facts): (Module, Facts)) -> Self {
        Self { module, facts, hot_pages: Arc::default(), charge: None }
    }

    /// Charges it, as long as it or a template or an FWP made of it lives.
    #[must_use]
    pub fn charged(self, charge: Arc<Charge>) -> Self {
        Self { charge: Some(charge), ..self }
    }
}

/// What the FWPs of one stage, on one worker, are made from.
pub struct Template {
    instance: InstancePre<FwpContext>,
    exports: Exports,
    /// The pool of an instance that is initialised already; without it, an instance initialises itself.
    pub(crate) pool: Option<PoolLayout>,
    /// The metrics of an instance that is initialised already.
    pub(crate) metrics: Arc<[Arc<Metric>]>,
    /// Handed to the guest on request.
    pub config: Arc<[u8]>,
    /// The files that instances see, if they have a file system.
    pub files: Option<Arc<Bundle>>,
    /// The most linear memory of an FWP, in bytes.
    pub memory_bytes_max: usize,
    /// What an FWP takes beside its linear memory and its files, in bytes, at most: the engine's record of it, its table, and its stack.
    pub(crate) kept_bytes: u64,
    pub(crate) hot_pages: Arc<HotPages>,
    /// The top of an instance's own stack in its memory, which grows downwards, if it is known.
    pub(crate) stack: Option<u32>,
    /// The charge of its code and files to its tenant.
    pub(crate) charge: Option<Arc<Charge>>,
}

/// Indices of an instance's exports. To find an export by name takes as long as a short turn.
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
    /// Links a module to the imports that the node offers.
    ///
    /// # Errors
    /// What does not match.
    pub fn new(
        linker: &Linker<FwpContext>,
        Loaded { module, facts, hot_pages, charge }: &Loaded,
        config: Arc<[u8]>,
        files: Option<Arc<Bundle>>,
        memory_bytes_max: usize,
    ) -> Result<Arc<Self>, TemplateError> {
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
        Ok(Arc::new(Self {
            instance,
            exports,
            pool,
            metrics,
            config,
            files,
            memory_bytes_max,
            kept_bytes: facts.instance_bytes + FIBER_STACK_BYTES as u64,
            hot_pages: Arc::clone(hot_pages),
            stack: facts.stack,
            charge: charge.clone(),
        }))
    }

    /// Returns a number that distinguishes templates, also those of one module in several engines.
    pub(crate) fn mark(&self) -> usize {
        Arc::as_ptr(&self.hot_pages).addr()
    }

    /// Returns the engine of its instances.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.instance.module().engine()
    }

    pub(crate) async fn instantiate(&self, store: &mut Store<FwpContext>) -> wasmtime::Result<Instance> {
        self.instance.instantiate_async(store).await
    }

    /// Returns an instance's linear memory, if it exports one.
    pub(crate) fn memory(&self, instance: &Instance, store: &mut Store<FwpContext>) -> Option<Memory> {
        instance.get_module_export(store, self.exports.memory.as_ref()?).and_then(Extern::into_memory)
    }

    /// Returns the function that runs for the whole life of an instance, if it exports one.
    pub(crate) fn run(&self, instance: &Instance, store: &mut Store<FwpContext>) -> Option<Func> {
        instance.get_module_export(store, self.exports.run.as_ref()?).and_then(Extern::into_func)
    }
}

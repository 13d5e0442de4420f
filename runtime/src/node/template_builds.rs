//! Builds the templates that a desired state needs and that are missing or damaged.
//!
//! The control plane calls it before a state is applied. Templates stay, across restarts too, as long as a chain needs them. Several are
//! built at a time, each by a builder process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pinion_builder_client::protocol::{BuilderMessage, Phase};
use pinion_control::model::{Chain, DesiredState, Digest, Module, ObjectRef};
use pinion_control::node::{Refusal, UploadedBytes};
use wasmtime::Linker;

use crate::fwp::FwpContext;
use crate::fwp::template::{Loaded, Template, TemplateError};
use crate::instruments::log::{LogHub, Origin};
use crate::launcher;
use crate::templates::artifacts::{ArtifactError, Artifacts, TemplateKey, Wishes};
use crate::templates::build_progress::{Build, BuildPhase, Builds};
use crate::templates::bundles::{BundleError, Bundles};
use crate::templates::derived::Derived;
use crate::templates::trials::Trials;
use pinion_builder_client::process::{self, BuildError, Builder};

/// Most builders at a time; no more than the machine has cores.
const BUILDS_AT_ONCE: usize = 4;

/// Builds templates; see the module.
pub struct TemplateBuilds {
    parts: TemplateBuildsParts,
    /// Set when a template was built since a state was last applied.
    has_built: AtomicBool,
}

/// The parts of [`TemplateBuilds`]. See [`TemplateBuilds::new`].
pub struct TemplateBuildsParts {
    /// Validates modules and builds templates.
    pub builder: Builder,
    /// Stores templates.
    pub artifacts: Arc<Artifacts>,
    /// Stores the files of stages.
    pub bundles: Arc<Bundles>,
    /// The imports of guests, of one of the workers' engines, which are all alike.
    pub linker: Linker<FwpContext>,
    /// Receives what guests log while their templates are built.
    pub log: LogHub,
    /// The builds under way, for statuses.
    pub builds: Builds,
    /// The damage found in stored files.
    pub derived: Arc<Derived>,
    /// The trials of templates, and which are withheld.
    pub trials: Arc<Trials>,
}

/// A template to be built, and the chain that needs it.
struct Task<'s> {
    key: TemplateKey,
    /// The build's status until the template is built or refused.
    build: Build,
    module: &'s Module,
    chain: &'s Chain,
    stage: usize,
}

impl Task<'_> {
    fn wishes(&self) -> Wishes<'_> {
        launcher::wishes(self.chain, self.stage)
    }

    /// Returns the refusal with chain, stage and module named in its sentence.
    fn refused(&self, refusal: Refusal) -> Refusal {
        let Chain { tenant, name, .. } = self.chain;
        let say = |text: String| format!("chain {tenant}/{name}: stage {} ({}): {text}", self.stage, self.module.name);
        match refusal {
            Refusal::Invalid(text) => Refusal::Invalid(say(text)),
            Refusal::Unfit(text) => Refusal::Unfit(say(text)),
            Refusal::Exhausted(text) => Refusal::Exhausted(say(text)),
            Refusal::Failed(text) => Refusal::Failed(say(text)),
            other => other,
        }
    }
}

impl TemplateBuilds {
    /// Creates it of these parts.
    #[must_use]
    pub fn new(parts: TemplateBuildsParts) -> Self {
        Self { parts, has_built: AtomicBool::new(false) }
    }

    /// Returns the damage found in stored templates and files.
    #[must_use]
    pub fn derived(&self) -> &Derived {
        &self.parts.derived
    }

    /// Returns whether a template was built since the last call.
    pub fn take_built(&self) -> bool {
        self.has_built.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a template or files that the state's chains need are missing, as far as that is known without reading them.
    #[must_use]
    pub fn lacks(&self, state: &DesiredState) -> bool {
        let mut keys = state.chains().values().flat_map(|chain| launcher::keys(state, chain).into_iter().flatten());
        keys.any(|key| !self.parts.artifacts.has(&key))
            || state.files().any(|(_, files)| !self.parts.bundles.is_sound(&files.digest))
    }

    /// Validates a module in the builder.
    ///
    /// # Errors
    /// Returns why the module is refused.
    pub fn check(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.parts.builder.check(wasm).map_err(refusal)
    }

    /// Validates the archive of a stage's files in the builder.
    ///
    /// # Errors
    /// Returns why the archive is refused.
    pub fn check_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.parts.builder.check_files(archive).map_err(refusal)
    }

    /// Builds the missing templates of the state's chains. Returns the chains for which that failed, in the order of their names.
    pub fn build(&self, state: &DesiredState, uploads: &dyn UploadedBytes) -> Vec<(ObjectRef, Refusal)> {
        self.compare(state);
        let tasks = self.tasks(state);
        let refused = Mutex::new(BTreeMap::new());
        in_parallel(tasks, |task| match self.build_one(&task, uploads) {
            Ok(()) => self.has_built.store(true, Ordering::Relaxed),
            Err(refusal) => {
                refused.lock().unwrap_or_else(PoisonError::into_inner).insert(task.key, task.refused(refusal));
            }
        });
        let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of_chain = |chain: &Arc<Chain>| {
            let keys = launcher::keys(state, chain)?;
            let refusal = keys.iter().find_map(|key| refused.get(key)).cloned();
            let refusal = refusal.or_else(|| self.too_small_in_all(chain, &keys))?;
            Some((ObjectRef::Chain { tenant: chain.tenant.clone(), name: chain.name.clone() }, refusal))
        };
        state.chains().values().filter_map(of_chain).collect()
    }

    /// Returns a refusal if a chain's limit for all FWPs together is too small for even one instance.
    fn too_small_in_all(&self, chain: &Chain, keys: &[TemplateKey]) -> Option<Refusal> {
        let total_kib = chain.memory_total_kib?;
        let facts = keys.iter().filter_map(|key| self.parts.artifacts.facts(key).ok());
        let instance_kib: u64 = facts.map(|facts| facts.memory_bytes / 1024).sum();
        (instance_kib > u64::from(total_kib)).then(|| {
            let Chain { tenant, name, .. } = chain;
            Refusal::Invalid(format!(
                "chain {tenant}/{name}: one instance of it starts with {instance_kib} KiB of memory, and memory_total_kib is \
                 {total_kib}: raise it"
            ))
        })
    }

    /// Reads the templates of the state's chains that were not read since the node started. Damaged ones count as missing afterwards.
    fn compare(&self, state: &DesiredState) {
        let keys = state.chains().values().flat_map(|chain| launcher::keys(state, chain).into_iter().flatten());
        let keys: BTreeSet<TemplateKey> = keys.filter(|key| !self.parts.artifacts.is_compared(key)).collect();
        in_parallel(keys.into_iter().collect(), |key| _ = self.parts.artifacts.is_sound(&key));
    }

    /// Returns one task per missing template.
    fn tasks<'s>(&self, state: &'s DesiredState) -> Vec<Task<'s>> {
        let mut missing = BTreeMap::new();
        for chain in state.chains().values() {
            for (stage, key) in launcher::keys(state, chain).into_iter().flatten().enumerate() {
                let Some(module) = state.module(&chain.tenant, &chain.stages[stage].module) else { continue };
                let has_files = |digest: Digest| self.parts.bundles.is_sound(&digest);
                let files = chain.stages[stage].files.map(|files| files.digest);
                if !self.parts.artifacts.is_sound(&key) || !files.is_none_or(has_files) {
                    let label = || format!("{}/{stage} {}", chain.name, module.name);
                    let task =
                        || Task { key, build: self.parts.builds.begin(&chain.tenant, label()), module, chain, stage };
                    missing.entry(key).or_insert_with(task);
                }
            }
        }
        missing.into_values().collect()
    }

    fn build_one(&self, task: &Task<'_>, uploads: &dyn UploadedBytes) -> Result<(), Refusal> {
        let wasm = uploads.wasm(task.module).map_err(Refusal::Failed)?;
        let Wishes { config, files, memory_bytes_max, fields } = task.wishes();
        let archive = files.map(|files| uploads.files(files)).transpose().map_err(Refusal::Failed)?;
        let wishes = process::Wishes { config, files: archive.as_deref(), memory_bytes_max, fields };
        let mut log = self.parts.log.log(Origin {
            tenant: task.chain.tenant.clone(),
            chain: task.chain.name.clone(),
            stage: task.stage as u32,
            module: task.module.name.clone(),
            fwp: "template".to_owned(),
        });
        let hear = |said: &BuilderMessage| match said {
            BuilderMessage::Log(level, text) => log.line(*level, text.as_bytes()),
            BuilderMessage::Phase(phase) => task.build.set_phase(shown(*phase)),
            BuilderMessage::Sentence(_) => {}
        };
        let (facts, code) = self.parts.builder.build(&wasm, wishes, hear).map_err(refusal)?;
        // This process reads an archive only after the builder has validated it.
        if let (Some(files), Some(archive)) = (files, &archive) {
            let kept = self.parts.bundles.keep(&files.digest, archive);
            kept.map_err(|error| match error {
                BundleError::File(error) => error.refusal(),
                error => Refusal::Failed(error.to_string()),
            })?;
        }
        let kept = self.parts.artifacts.keep(&task.key, &facts, &code);
        kept.map_err(|error| match error {
            ArtifactError::File(error) => error.refusal(),
            error => Refusal::Failed(error.to_string()),
        })?;
        self.try_out(task).inspect_err(|_| self.parts.artifacts.forget(&task.key))
    }

    /// Loads a template as for a worker and links it with its imports, so that failures show here first. The builder has already tried it
    /// under a node's limits. A template that does not load is therefore the node's failure, and its path belongs in the node's log only.
    fn try_out(&self, task: &Task<'_>) -> Result<(), Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            let Chain { tenant, name, .. } = task.chain;
            tracing::error!("chain {tenant}/{name}: the template of stage {} does not load: {error}", task.stage);
            Refusal::Failed("this node cannot load the template that was built of it: its log says why".to_owned())
        };
        let loaded = self.parts.artifacts.load(self.parts.linker.engine(), &task.key);
        let loaded = Loaded::new(loaded.map_err(|error| failed(&error))?);
        let Wishes { config, files, memory_bytes_max, .. } = task.wishes();
        let files = files.map(|files| self.parts.bundles.load(&files.digest)).transpose();
        let files = files.map_err(|error| failed(&error))?;
        let memory_bytes_max = memory_bytes_max as usize;
        match Template::new(&self.parts.linker, &loaded, config.into(), files, memory_bytes_max) {
            Ok(_) => Ok(()),
            Err(error @ TemplateError::Imports(_)) => Err(failed(&error)),
            // The sentence comes from the builder and is meant for the tenant.
            Err(error) => Err(Refusal::Invalid(error.to_string())),
        }
    }

    /// Removes templates and files that no chain of the state needs.
    pub fn clear_up(&self, state: &DesiredState) {
        let wanted: Vec<TemplateKey> =
            state.chains().values().filter_map(|chain| launcher::keys(state, chain)).flatten().collect();
        if let Err(error) = self.parts.artifacts.retain(|key| wanted.contains(key)) {
            tracing::warn!("unused templates could not be removed: {error}");
        }
        let wanted = state.files().map(|(_, files)| files.digest).collect();
        if let Err(error) = self.parts.bundles.retain(&wanted) {
            tracing::warn!("unused files could not be removed: {error}");
        }
        // A module without a chain keeps its record: a chain of it may be applied later.
        let modules: BTreeSet<Digest> = state.modules().values().map(|module| module.digest).collect();
        self.parts.trials.retain(|key| modules.contains(key.module()));
    }
}

/// Calls `work` for each item, on at most [`BUILDS_AT_ONCE`] threads.
fn in_parallel<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (count, items) = (items.len(), Mutex::new(items.into_iter()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..count.min(cores).min(BUILDS_AT_ONCE) {
            scope.spawn(|| std::iter::from_fn(next).for_each(&work));
        }
    });
}

fn shown(phase: Phase) -> BuildPhase {
    match phase {
        Phase::Validating => BuildPhase::Validating,
        Phase::Initialising => BuildPhase::Initialising,
        Phase::Compiling => BuildPhase::Compiling,
    }
}

fn refusal(error: BuildError) -> Refusal {
    match error {
        BuildError::Refused(sentence) => Refusal::Invalid(sentence),
        BuildError::Limits(_) => Refusal::Invalid(error.to_string()),
        error => Refusal::Failed(error.to_string()),
    }
}

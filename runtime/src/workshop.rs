//! The workshop: has the templates built that a desired state needs and that are not there.
//!
//! Called by the control plane before a state is followed; what is built stays, across restarts too, as long as somebody
//! wants it. Several are built at a time, each by a builder of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pinion_builder_client::protocol::{Phase, Said};
use pinion_control::model::{Chain, DesiredState, Digest, Module, ObjectRef};
use pinion_control::node::{Refusal, UploadedBytes};
use wasmtime::Linker;

use crate::artifacts::{Artifacts, TemplateKey, Wishes};
use crate::builds::{Build, BuildPhase, Builds};
use crate::bundles::Bundles;
use crate::fwp::FwpContext;
use crate::launcher;
use crate::log::{LogHub, Origin};
use crate::template::{Loaded, Template};
use pinion_builder_client::process::{self, BuildError, Builder};

/// Builders at work at a time, where the machine has as many cores.
const BUILDS_AT_ONCE: usize = 4;

/// See the module.
pub struct Workshop {
    builder: Builder,
    artifacts: Arc<Artifacts>,
    bundles: Arc<Bundles>,
    /// Of any of the workers' engines: they are alike.
    linker: Linker<FwpContext>,
    log: LogHub,
    builds: Builds,
}

/// A template to be built, and for what.
struct Task<'s> {
    key: TemplateKey,
    /// What is shown of it until it is built or refused.
    build: Build,
    module: &'s Module,
    chain: &'s Chain,
    stage: usize,
}

impl Task<'_> {
    fn wishes(&self) -> Wishes<'_> {
        launcher::wishes(self.chain, self.stage)
    }

    /// The same refusal, saying of what.
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

impl Workshop {
    /// A workshop that keeps what it builds in `artifacts`, and the files of what it builds in `bundles`. `linker` has what guests may import, for any of the node's
    /// engines; `builds` is told what is being built.
    #[must_use]
    pub fn new(
        builder: Builder,
        artifacts: Arc<Artifacts>,
        bundles: Arc<Bundles>,
        linker: Linker<FwpContext>,
        log: LogHub,
        builds: Builds,
    ) -> Self {
        Self { builder, artifacts, bundles, linker, log, builds }
    }

    /// Has a module judged.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.builder.check(wasm).map_err(refusal)
    }

    /// Has the archive of a stage's files judged.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.builder.check_files(archive).map_err(refusal)
    }

    /// Builds what the state's chains need and is not there; the chains for which that failed, in the order of their names.
    pub fn build(&self, state: &DesiredState, uploads: &dyn UploadedBytes) -> Vec<(ObjectRef, Refusal)> {
        let tasks = self.tasks(state);
        let builders = tasks.len();
        let (next, refused) = (Mutex::new(tasks.into_iter()), Mutex::new(BTreeMap::new()));
        let work = || {
            loop {
                let task = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(task) = task else { break };
                if let Err(refusal) = self.build_one(&task, uploads) {
                    refused.lock().unwrap_or_else(PoisonError::into_inner).insert(task.key, task.refused(refusal));
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..builders.min(cores).min(BUILDS_AT_ONCE) {
                scope.spawn(work);
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

    /// Why not even one instance of a chain could be made, if its limit for all FWPs together is that small.
    fn too_small_in_all(&self, chain: &Chain, keys: &[TemplateKey]) -> Option<Refusal> {
        let total_kib = chain.memory_total_kib?;
        let facts = keys.iter().filter_map(|key| self.artifacts.facts(key).ok());
        let instance_kib: u64 = facts.map(|facts| facts.memory_bytes / 1024).sum();
        (instance_kib > u64::from(total_kib)).then(|| {
            let Chain { tenant, name, .. } = chain;
            Refusal::Invalid(format!(
                "chain {tenant}/{name}: one instance of it starts with {instance_kib} KiB of memory, and memory_total_kib is \
                 {total_kib}: raise it"
            ))
        })
    }

    /// Each template that is missing, once.
    fn tasks<'s>(&self, state: &'s DesiredState) -> Vec<Task<'s>> {
        let mut missing = BTreeMap::new();
        for chain in state.chains().values() {
            for (stage, key) in launcher::keys(state, chain).into_iter().flatten().enumerate() {
                let Some(module) = state.module(&chain.tenant, &chain.stages[stage].module) else { continue };
                let has_files = |digest: Digest| self.bundles.has(&digest);
                let files = chain.stages[stage].files.map(|files| files.digest);
                if !self.artifacts.has(&key) || !files.is_none_or(has_files) {
                    let label = || format!("{}/{stage} {}", chain.name, module.name);
                    let task = || Task { key, build: self.builds.begin(&chain.tenant, label()), module, chain, stage };
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
        let mut log = self.log.log(Origin {
            tenant: task.chain.tenant.clone(),
            chain: task.chain.name.clone(),
            stage: task.stage as u32,
            module: task.module.name.clone(),
            fwp: "template".to_owned(),
        });
        let hear = |said: &Said| match said {
            Said::Log(level, text) => log.line(*level, text.as_bytes()),
            Said::Phase(phase) => task.build.set_phase(shown(*phase)),
            Said::Sentence(_) => {}
        };
        let (facts, code) = self.builder.build(&wasm, wishes, hear).map_err(refusal)?;
        // Only what the builder has looked through is ever read here.
        if let (Some(files), Some(archive)) = (files, &archive) {
            let kept = self.bundles.keep(&files.digest, archive);
            kept.map_err(|error| Refusal::Failed(error.to_string()))?;
        }
        let kept = self.artifacts.keep(&task.key, &facts, &code);
        kept.map_err(|error| Refusal::Failed(error.to_string()))?;
        self.try_out(task).inspect_err(|_| self.artifacts.forget(&task.key))
    }

    /// Loads a template as a worker would, and joins it to its imports: whatever would fail there fails here.
    fn try_out(&self, task: &Task<'_>) -> Result<(), Refusal> {
        let unfit = |reason: String| Refusal::Invalid(format!("it cannot run on this node: {reason}"));
        let loaded = self.artifacts.load(self.linker.engine(), &task.key);
        let loaded = Loaded::new(loaded.map_err(|error| unfit(error.to_string()))?);
        let Wishes { config, files, memory_bytes_max, .. } = task.wishes();
        let files = files.map(|files| self.bundles.load(&files.digest)).transpose();
        let files = files.map_err(|error| unfit(error.to_string()))?;
        let memory_bytes_max = memory_bytes_max as usize;
        Template::new(&self.linker, &loaded, config.into(), files, memory_bytes_max)
            .map_err(|error| unfit(error.to_string()))?;
        Ok(())
    }

    /// Removes what no chain of the state needs.
    pub fn clear_up(&self, state: &DesiredState) {
        let wanted: Vec<TemplateKey> =
            state.chains().values().filter_map(|chain| launcher::keys(state, chain)).flatten().collect();
        if let Err(error) = self.artifacts.retain(|key| wanted.contains(key)) {
            tracing::warn!("templates that nobody needs stay: {error}");
        }
        let wanted = state.files().map(|(_, files)| files.digest).collect();
        if let Err(error) = self.bundles.retain(&wanted) {
            tracing::warn!("files that nobody needs stay: {error}");
        }
    }
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

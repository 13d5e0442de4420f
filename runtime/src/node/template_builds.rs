//! Builds the templates that a desired state needs and that are missing or damaged, and loads the keys and models that its chains
//! are granted.
//!
//! The control plane calls it before a state is applied. Templates stay, across restarts too, as long as a chain needs them or a change
//! under way holds them. Several are built at a time, each by a builder process of its own, and tenants take turns at the builders.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pinion_builder_client::protocol::{BuilderMessage, Phase};
use pinion_control::model::{Chain, ChainKey, DesiredState, Digest, Files, Model, Module, ObjectRef};
use pinion_control::node::{Hold, Refusal, UploadedBytes};

use crate::fwp::template::TemplateError;
use crate::instruments::log::{LogHub, Origin};
use crate::launcher::{self, GrantNeeds, GrantedObjects, LoadError, LoadedTemplate, LoadedTemplates};
use crate::node::held_templates::{HeldTemplates, Needs};
use crate::templates::artifacts::{ArtifactError, Artifacts, TemplateKey, Wishes};
use crate::templates::build_progress::{Build, BuildPhase, Builds};
use crate::templates::build_turns::BuildTurns;
use crate::templates::bundles::{BundleError, Bundles};
use crate::templates::derived::Derived;
use crate::templates::model_forms::ModelForms;
use crate::templates::one_at_a_time::OneAtATime;
use crate::templates::refused_builds::RefusedBuilds;
use crate::templates::trials::Trials;
use pinion_builder_client::process::{self, BuildError, Builder};

/// Most builders at a time, but for one more if a tenant has none; no more than the machine has cores.
const BUILDS_AT_ONCE: usize = 4;

/// Builds templates; see the module.
pub struct TemplateBuilds {
    parts: TemplateBuildsParts,
    turns: Arc<BuildTurns>,
    refused: RefusedBuilds,
    /// Several changes, of several tenants too, may need the same template at once.
    building: OneAtATime<TemplateKey>,
    held: Arc<HeldTemplates>,
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
    /// Stores the forms of models.
    pub forms: ModelForms,
    /// The templates that are loaded.
    pub loaded: Arc<LoadedTemplates>,
    /// The keys and models that are loaded.
    pub granted: Arc<GrantedObjects>,
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
}

/// Returns the refusal of a stage's template with chain, stage and module named in its sentence.
fn named(chain: &Chain, stage: usize, refusal: Refusal) -> Refusal {
    let Chain { tenant, name, stages, .. } = chain;
    said_of(&format_args!("chain {tenant}/{name}: stage {stage} ({})", stages[stage].module), refusal)
}

/// Returns the refusal with a subject in its sentence.
fn said_of(subject: &dyn Display, refusal: Refusal) -> Refusal {
    let say = |text: String| format!("{subject}: {text}");
    match refusal {
        Refusal::Invalid(text) => Refusal::Invalid(say(text)),
        Refusal::Unfit(text) => Refusal::Unfit(say(text)),
        Refusal::Exhausted(text) => Refusal::Exhausted(say(text)),
        Refusal::Short(text) => Refusal::Short(say(text)),
        Refusal::Failed(text) => Refusal::Failed(say(text)),
        other => other,
    }
}

impl TemplateBuilds {
    /// Creates it of these parts.
    #[must_use]
    pub fn new(parts: TemplateBuildsParts) -> Self {
        Self {
            parts,
            turns: BuildTurns::new(builds_at_once()),
            refused: RefusedBuilds::default(),
            building: OneAtATime::default(),
            held: Arc::default(),
            has_built: AtomicBool::new(false),
        }
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

    /// Returns whether a template, files, keys or models that these chains of the state need are missing, as far as that is known without reading
    /// templates, or not loaded.
    #[must_use]
    pub fn lacks(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> bool {
        let Needs { keys, files, granted } = Needs::of(state, chains);
        keys.iter().any(|key| !self.parts.artifacts.has(key) || self.parts.loaded.get(key).is_none())
            || files.iter().any(|digest| !self.parts.bundles.is_sound(digest))
            || !self.parts.granted.has_all(&granted)
    }

    /// Keeps what these chains of the state need, until the returned value is dropped; loaded, if it is or will be.
    pub fn hold(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Hold {
        let needs = Needs::of(state, chains);
        let loaded = needs.keys.iter().filter_map(|key| self.parts.loaded.get(key)).collect();
        self.held.hold(needs, loaded)
    }

    /// Ends the builds under way, and refuses others from now on.
    pub fn stop(&self) {
        self.parts.builder.stop();
    }

    /// Validates a module in the builder.
    ///
    /// # Errors
    /// Returns why the module is refused.
    pub fn check(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.parts.builder.check(wasm).map_err(refusal)
    }

    /// Reads a model in the builder.
    ///
    /// # Errors
    /// Returns why the model is refused.
    pub fn check_model(&self, onnx: &[u8]) -> Result<(), Refusal> {
        self.parts.builder.model(onnx).map(|_| ()).map_err(refusal)
    }

    /// Validates the archive of a stage's files in the builder.
    ///
    /// # Errors
    /// Returns why the archive is refused.
    pub fn check_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.parts.builder.check_files(archive).map_err(refusal)
    }

    /// Builds the missing templates of these chains of the state, and loads all of them, and their keys and models, for as long as they are
    /// held. Returns the chains for which that failed, in the order of their names.
    pub fn build(
        &self,
        state: &DesiredState,
        chains: &BTreeSet<ChainKey>,
        uploads: &dyn UploadedBytes,
    ) -> Vec<(ObjectRef, Refusal)> {
        let chains: Vec<&Arc<Chain>> = chains.iter().filter_map(|key| state.chains().get(key)).collect();
        if self.parts.builder.is_stopped() {
            return chains.into_iter().map(|chain| (ObjectRef::from(&**chain), Refusal::Stopping)).collect();
        }
        self.compare(state, &chains);
        let mut refused = BTreeMap::new();
        let tasks = self.tasks(state, &chains, &mut refused);
        let refused = Mutex::new(refused);
        in_parallel(tasks, |task| {
            if let Err(refusal) = self.build_in_turn(&task, uploads) {
                refused.lock().unwrap_or_else(PoisonError::into_inner).insert(task.key, refusal);
            }
        });
        self.load(state, &chains, &refused);
        let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of_chain = |chain: &Arc<Chain>| {
            if let Err(refusal) = self.load_granted(state, chain, uploads) {
                return Some((ObjectRef::from(&**chain), refusal));
            }
            let keys = launcher::keys(state, chain)?;
            let mut stages = keys.iter().enumerate();
            let (stage, refusal) = stages.find_map(|(stage, key)| Some((stage, refused.get(key)?.clone())))?;
            Some((ObjectRef::from(&**chain), named(chain, stage, refusal)))
        };
        chains.into_iter().filter_map(of_chain).collect()
    }

    /// Loads what a chain is granted, and notes that a state has to be followed for that.
    fn load_granted(&self, state: &DesiredState, chain: &Chain, uploads: &dyn UploadedBytes) -> Result<(), Refusal> {
        let mut needs = GrantNeeds::default();
        needs.add_chain(state, chain);
        if self.parts.granted.has_all(&needs) {
            return Ok(());
        }
        // Also if only some of it can be loaded.
        self.held.note_loaded(&needs);
        let _turn = self.turns.wait(&chain.tenant);
        let has_loaded = self.parts.granted.load(state, chain, uploads, |model| self.form(model, uploads));
        let has_loaded = has_loaded.map_err(|refusal| {
            // A form may be why. Then it is made again when the chain is asked for again.
            if let Refusal::Failed(_) = refusal {
                needs.models().iter().for_each(|model| self.parts.forms.forget(model));
            }
            said_of(&format_args!("chain {}/{}", chain.tenant, chain.name), refusal)
        })?;
        self.has_built.fetch_or(has_loaded, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the form of a model, which the builder makes if it is missing or damaged. Called in its tenant's turn.
    fn form(&self, model: &Model, uploads: &dyn UploadedBytes) -> Result<Vec<u8>, Refusal> {
        if let Some(form) = self.parts.forms.read(&model.digest) {
            return Ok(form);
        }
        let onnx = uploads.model(model).map_err(Refusal::Failed)?;
        let form = self.parts.builder.model(&onnx).map_err(refusal)?;
        // Without it the model is read again at the next start.
        if let Err(error) = self.parts.forms.keep(&model.digest, &form) {
            tracing::warn!("the form of {} could not be stored: {error}", ObjectRef::from(model));
        }
        Ok(form)
    }

    /// Returns those of these chains of the state that could have no instance although their templates are there, and why.
    pub fn unfit(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Vec<(ObjectRef, Refusal)> {
        let chains = chains.iter().filter_map(|key| state.chains().get(key));
        let of_chain = |chain: &Arc<Chain>| {
            let refusal = self.too_small_in_all(chain, &launcher::keys(state, chain)?)?;
            Some((ObjectRef::from(&**chain), refusal))
        };
        chains.filter_map(of_chain).collect()
    }

    /// Builds a template when it is its tenant's turn, unless that was refused a short while ago or another change has built it meanwhile.
    fn build_in_turn(&self, task: &Task<'_>, uploads: &dyn UploadedBytes) -> Result<(), Refusal> {
        let tenant = &task.chain.tenant;
        let answer =
            || self.refused.answer(tenant, &task.key).or(self.parts.builder.is_stopped().then_some(Refusal::Stopping));
        let _turn = self.turns.wait(tenant);
        // In this order: a build that others wait for has its turn already.
        let _alone = self.building.take(task.key);
        if let Some(refusal) = answer() {
            return Err(refusal);
        }
        if !self.is_there(task.key, task.wishes().files) {
            self.build_one(task, uploads).inspect_err(|refusal| self.refused.note(tenant, task.key, refusal))?;
        }
        self.has_built.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether a template and its files exist and are as they were built.
    fn is_there(&self, key: TemplateKey, files: Option<&Files>) -> bool {
        self.parts.artifacts.is_sound(&key) && files.is_none_or(|files| self.parts.bundles.is_sound(&files.digest))
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

    /// Reads the templates of these chains that were not read since the node started. Damaged ones count as missing afterwards.
    fn compare(&self, state: &DesiredState, chains: &[&Arc<Chain>]) {
        let keys = chains.iter().flat_map(|chain| launcher::keys(state, chain).into_iter().flatten());
        let keys: BTreeSet<TemplateKey> = keys.filter(|key| !self.parts.artifacts.is_compared(key)).collect();
        in_parallel(keys.into_iter().collect(), |key| {
            if !self.parts.builder.is_stopped() {
                self.parts.artifacts.is_sound(&key);
            }
        });
    }

    /// Loads the templates of these chains. If one does not load, that is noted in `refused`.
    fn load(&self, state: &DesiredState, chains: &[&Arc<Chain>], refused: &Mutex<BTreeMap<TemplateKey, Refusal>>) {
        let of_chain = |chain: &&Arc<Chain>| {
            let (keys, chain) = (launcher::keys(state, chain).unwrap_or_default(), Arc::clone(chain));
            keys.into_iter().enumerate().map(move |(stage, key)| (key, (Arc::clone(&chain), stage)))
        };
        let all: BTreeMap<TemplateKey, (Arc<Chain>, usize)> = chains.iter().flat_map(of_chain).collect();
        let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
        in_parallel(all.into_iter().collect(), |(key, (chain, stage))| {
            let is_there = || self.is_there(key, chain.stages[stage].files.as_ref());
            if refused().contains_key(&key) || !is_there() || self.parts.builder.is_stopped() {
                return;
            }
            if let Err(error) = self.load_one(&key, &chain, stage)
                // If it is damaged it is built when all is judged anew, as it is still lacking.
                && is_there()
            {
                refused().insert(key, not_loaded(&chain, stage, &error));
            }
        });
    }

    /// Loads the template of a chain's stage for as long as it is held.
    fn load_one(&self, key: &TemplateKey, chain: &Chain, stage: usize) -> Result<Arc<LoadedTemplate>, LoadError> {
        let loaded = self.parts.loaded.load(key, &chain.tenant, chain.stages[stage].files.as_ref())?;
        self.held.keep_loaded(key, &loaded);
        Ok(loaded)
    }

    /// Returns one task per missing template, unless it was refused a short while ago, which is noted in `refused`.
    fn tasks<'s>(
        &self,
        state: &'s DesiredState,
        chains: &[&'s Arc<Chain>],
        refused: &mut BTreeMap<TemplateKey, Refusal>,
    ) -> Vec<Task<'s>> {
        let mut missing = BTreeMap::new();
        for &chain in chains {
            for (stage, key) in launcher::keys(state, chain).into_iter().flatten().enumerate() {
                let Some(module) = state.module(&chain.tenant, &chain.stages[stage].module) else { continue };
                if !self.is_there(key, chain.stages[stage].files.as_ref()) {
                    if let Some(refusal) = self.refused.answer(&chain.tenant, &key) {
                        refused.insert(key, refusal);
                        continue;
                    }
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
        let Wishes { config, files, memory_bytes_max, fields, keys, models, .. } = task.wishes();
        let archive = files.map(|files| uploads.files(files)).transpose().map_err(Refusal::Failed)?;
        let wishes = process::Wishes { config, files: archive.as_deref(), memory_bytes_max, fields, keys, models };
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
        self.held.note_built(&task.key);
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
        self.try_out(task).inspect_err(|refusal| {
            // A template that its tenant only has no room for is sound.
            if !matches!(refusal, Refusal::Exhausted(_)) {
                self.parts.artifacts.forget(&task.key);
            }
        })
    }

    /// Loads a template and links it with its imports, so that failures show here first. The builder has already tried it under a node's
    /// limits.
    fn try_out(&self, task: &Task<'_>) -> Result<(), Refusal> {
        let loaded = self.load_one(&task.key, task.chain, task.stage);
        let loaded = loaded.map_err(|error| not_loaded(task.chain, task.stage, &error))?;
        match self.parts.loaded.link(&loaded, &task.wishes()) {
            Ok(_) => Ok(()),
            Err(error @ TemplateError::Imports(_)) => {
                let Chain { tenant, name, .. } = task.chain;
                tracing::error!("chain {tenant}/{name}: the template of stage {} does not link: {error}", task.stage);
                Err(Refusal::Failed(
                    "this node cannot use the template that was built of it: its log says why".to_owned(),
                ))
            }
            // The sentence comes from the builder and is meant for the tenant.
            Err(error) => Err(Refusal::Invalid(error.to_string())),
        }
    }

    /// Does as [`TemplateBuilds::clear_up`] if something was built for a change that does not hold it any more.
    pub fn clear_up_built(&self, state: &DesiredState) {
        if self.held.take_left() {
            self.clear_up(state);
        }
    }

    /// Removes templates, files and forms of models that no chain of the state needs and no change holds, and unloads keys and models.
    pub fn clear_up(&self, state: &DesiredState) {
        let mut wanted = Needs::of_chains(state, state.chains().values());
        self.held.add_to(&mut wanted);
        if let Err(error) = self.parts.artifacts.retain(|key| wanted.keys.contains(key)) {
            tracing::warn!("unused templates could not be removed: {error}");
        }
        if let Err(error) = self.parts.bundles.retain(&wanted.files) {
            tracing::warn!("unused files could not be removed: {error}");
        }
        if let Err(error) = self.parts.forms.retain(&wanted.granted.models()) {
            tracing::warn!("unused forms of models could not be removed: {error}");
        }
        self.parts.granted.retain(&wanted.granted);
        // A module without a chain keeps its record: a chain of it may be applied later.
        let modules: BTreeSet<Digest> = state.modules().values().map(|module| module.digest).collect();
        self.parts.trials.retain(|key| modules.contains(key.module()));
    }
}

/// Returns the refusal of a chain's stage whose template does not load. Unless its tenant has no room for it, this is the node's failure, and
/// paths belong in the node's log only.
fn not_loaded(Chain { tenant, name, .. }: &Chain, stage: usize, error: &LoadError) -> Refusal {
    if let LoadError::OverLimit(_) = error {
        return Refusal::Exhausted(error.to_string());
    }
    tracing::error!("chain {tenant}/{name}: the template of stage {stage} does not load: {error}");
    Refusal::Failed("this node cannot load the template that was built of it: its log says why".to_owned())
}

fn builds_at_once() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(BUILDS_AT_ONCE)
}

/// Calls `work` for each item, on at most as many threads as there can be builders.
fn in_parallel<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync) {
    let (count, items) = (items.len(), Mutex::new(items.into_iter()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..count.min(builds_at_once()) {
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
        BuildError::Stopped => Refusal::Stopping,
        error => Refusal::Failed(error.to_string()),
    }
}

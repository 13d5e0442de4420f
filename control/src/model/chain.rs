//! Modules, and the chains made of them.

use base64::Engine as _;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::fields::{self, Field, Grant};
use super::outputs::{self, Output};
use super::reverse::{self, Reverse};
use super::{ChainName, ChainProblem, Digest, ModuleName, PortName, Scheduling, StageName, TenantName};

/// The largest module that may be uploaded.
pub const MODULE_BYTES_MAX: u64 = 16 << 20;
/// The most that a stage's files may have together, with what the archive says of each.
pub const FILES_BYTES_MAX: u64 = 16 << 20;
/// The most stages of a chain; the least is 1.
pub const STAGES_MAX: usize = 16;
/// The longest configuration of one stage.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;
/// The smallest memory limit of an FWP: one Wasm page.
pub const MEMORY_LIMIT_KIB_MIN: u32 = 64;
/// The largest memory limit of an FWP.
pub const MEMORY_LIMIT_KIB_MAX: u32 = 64 << 10;
/// The shortest idle time after which a chain instance may be ended.
pub const IDLE_TIMEOUT_MS_MIN: u64 = 100;
/// The longest idle time after which a chain instance may be ended: a week.
pub const IDLE_TIMEOUT_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// The longest time to drain: a week, too.
pub const DRAIN_TIMEOUT_MS_MAX: u64 = IDLE_TIMEOUT_MS_MAX;
/// The largest limit for all of a chain's FWPs together: 1 TiB. The least is what one FWP of each stage must have.
pub const MEMORY_TOTAL_KIB_MAX: u32 = 1 << 30;
/// The most chain instances to be kept ready. With none, the first client waits until there is one.
pub const CACHE_INSTANCES_MAX: u32 = 1024;
/// The most frames that an instance may hold for a stage without a free slot.
pub const HOLD_FRAMES_MAX: u32 = 1024;

/// What a tenant uploaded, under the tenant's name for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Who owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModuleName,
    /// The bytes it stands for now.
    pub digest: Digest,
    /// How many bytes these are.
    pub size_bytes: u64,
}

/// The files of a stage: an archive that the chain's tenant uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// The archive's bytes.
    pub digest: Digest,
    /// How many these are.
    pub size_bytes: u64,
}

/// Bytes that a tenant has uploaded, and that neither a module of its nor files of a stage are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Upload {
    /// Who uploaded them.
    pub tenant: TenantName,
    /// What they are known by.
    pub digest: Digest,
    /// How many they are.
    pub size_bytes: u64,
    /// For so long they are kept, unless something names them.
    pub kept_ms: u64,
}

/// One place in a chain: a module, and the configuration it is pre-initialised with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// A module of the chain's tenant.
    pub module: ModuleName,
    /// What the chain's manifest calls it, if anything.
    pub name: Option<StageName>,
    /// Given to the function at initialisation, as it is.
    #[serde(serialize_with = "serialize_config")]
    pub config: Vec<u8>,
    /// The files that its instances find; none, and they have no file system.
    pub files: Option<Files>,
    /// Where it sends to: 1 to [`super::OUTPUTS_MAX`], of which the function's plain `send` takes the first.
    pub outputs: Vec<Output>,
    /// The fields of state that it was granted. The function knows them by their names and, underneath, by their places here.
    pub state: Vec<Grant>,
}

impl Stage {
    /// A stage without a name, whose outputs [`Chain::new`] fills in.
    pub fn new(module: ModuleName, config: Vec<u8>) -> Self {
        Self { module, name: None, config, files: None, outputs: Vec::new(), state: Vec::new() }
    }

    /// Its name, or its module's if it has none.
    pub fn label(&self) -> &str {
        self.name.as_ref().map_or(self.module.as_str(), StageName::as_str)
    }
}

/// What serves a class of traffic: stages that a packet passes one after another, as their outputs lead it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// Who owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ChainName,
    /// 1 to [`STAGES_MAX`] of them, in the order packets pass them; the first is where they enter.
    pub stages: Vec<Stage>,
    /// The port that packets leave by; none means the port that each came in by.
    pub egress: Option<PortName>,
    /// Which packets pass the stages backwards; none means that all pass them forwards.
    pub reverse: Option<Reverse>,
    /// The most linear memory of each FWP of the chain.
    pub memory_limit_kib: u32,
    /// The most linear memory of all FWPs of the chain together, those that wait for a client included; none for no limit
    /// but the tenant's.
    pub memory_total_kib: Option<u32>,
    /// A chain instance that saw no packet for this long is ended.
    pub idle_timeout_ms: u64,
    /// How long instances of an older version of the chain may go on to serve their clients; new clients get the new version at once.
    pub drain_timeout_ms: u64,
    /// How many chain instances are kept ready for clients to come, at least. With 0 one is made when somebody comes.
    pub cache_min: u32,
    /// How many are kept ready at most, however fast clients come.
    pub cache_max: u32,
    /// How many frames an instance holds before its first stage when that has no slot free, and whether stages wait for
    /// room in the next at all; with 0, what finds no room is dropped.
    pub hold_frames: u32,
    /// The fields of state that its stages were granted. Chains of a tenant that declare one of the same name share it.
    pub fields: Vec<Field>,
    /// How each FWP of the chain may use its core.
    #[serde(flatten)]
    pub scheduling: Scheduling,
}

impl Chain {
    /// [`Chain::memory_limit_kib`] when nothing else is said.
    pub const MEMORY_LIMIT_KIB: u32 = 16 << 10;
    /// [`Chain::idle_timeout_ms`] when nothing else is said: five minutes.
    pub const IDLE_TIMEOUT_MS: u64 = 300_000;
    /// [`Chain::drain_timeout_ms`] when nothing else is said: half a minute.
    pub const DRAIN_TIMEOUT_MS: u64 = 30_000;
    /// [`Chain::cache_min`] when nothing else is said.
    pub const CACHE_MIN: u32 = 4;
    /// [`Chain::cache_max`] when nothing else is said, unless [`Chain::cache_min`] is larger.
    pub const CACHE_MAX: u32 = 64;
    /// [`Chain::hold_frames`] when nothing else is said: what finds no room is dropped.
    pub const HOLD_FRAMES: u32 = 0;

    /// A chain with the defaults for all that is not named here, and for the outputs of stages that have none.
    pub fn new(tenant: TenantName, name: ChainName, mut stages: Vec<Stage>) -> Self {
        let count = stages.len();
        for (at, stage) in stages.iter_mut().enumerate().filter(|(_, stage)| stage.outputs.is_empty()) {
            stage.outputs = Output::default_of(at, count);
        }
        Self {
            tenant,
            name,
            stages,
            egress: None,
            reverse: None,
            memory_limit_kib: Self::MEMORY_LIMIT_KIB,
            memory_total_kib: None,
            idle_timeout_ms: Self::IDLE_TIMEOUT_MS,
            drain_timeout_ms: Self::DRAIN_TIMEOUT_MS,
            cache_min: Self::CACHE_MIN,
            cache_max: Self::CACHE_MAX,
            hold_frames: Self::HOLD_FRAMES,
            fields: Vec::new(),
            scheduling: Scheduling::default(),
        }
    }

    /// The chain that a module is invoked by, if there is no other of its name.
    pub fn of_module(tenant: TenantName, module: &ModuleName) -> Self {
        let chain = Self::new(tenant, ChainName::of_module(module), vec![Stage::new(module.clone(), Vec::new())]);
        Self { cache_min: 0, ..chain }
    }

    /// [`Chain::cache_max`] of a chain for which nothing is said of it.
    pub fn default_cache_max(cache_min: u32) -> u32 {
        Self::CACHE_MAX.max(cache_min)
    }

    /// Whether every number is within its bounds, and the stages' outputs lead somewhere. Says nothing of the modules and
    /// ports named.
    pub fn check(&self) -> Result<(), ChainProblem> {
        if !(1..=STAGES_MAX).contains(&self.stages.len()) {
            return Err(ChainProblem::Stages(self.stages.len()));
        }
        if let Some((at, stage)) = self.stages.iter().enumerate().find(|(_, s)| s.config.len() > CONFIG_BYTES_MAX) {
            return Err(ChainProblem::Config { stage: at + 1, bytes: stage.config.len() });
        }
        if !(MEMORY_LIMIT_KIB_MIN..=MEMORY_LIMIT_KIB_MAX).contains(&self.memory_limit_kib) {
            return Err(ChainProblem::MemoryLimit(self.memory_limit_kib));
        }
        let memory_total_kib_min = MEMORY_LIMIT_KIB_MIN * self.stages.len() as u32;
        if let Some(kib) = self.memory_total_kib
            && !(memory_total_kib_min..=MEMORY_TOTAL_KIB_MAX).contains(&kib)
        {
            return Err(ChainProblem::MemoryTotal { kib, kib_min: memory_total_kib_min });
        }
        if !(IDLE_TIMEOUT_MS_MIN..=IDLE_TIMEOUT_MS_MAX).contains(&self.idle_timeout_ms) {
            return Err(ChainProblem::IdleTimeout(self.idle_timeout_ms));
        }
        if self.drain_timeout_ms > DRAIN_TIMEOUT_MS_MAX {
            return Err(ChainProblem::DrainTimeout(self.drain_timeout_ms));
        }
        if self.cache_min > CACHE_INSTANCES_MAX {
            return Err(ChainProblem::CacheMin(self.cache_min));
        }
        // At least one, as that is what a client is given.
        if !(self.cache_min.max(1)..=CACHE_INSTANCES_MAX).contains(&self.cache_max) {
            return Err(ChainProblem::CacheMax { instances: self.cache_max, cache_min: self.cache_min });
        }
        if self.hold_frames > HOLD_FRAMES_MAX {
            return Err(ChainProblem::HoldFrames(self.hold_frames));
        }
        self.scheduling.check()?;
        fields::check(&self.fields, &self.stages)?;
        outputs::check(&self.stages)?;
        reverse::check(self)
    }
}

/// Text stays readable, anything else becomes base64; the key says which.
fn serialize_config<S: Serializer>(config: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    match std::str::from_utf8(config) {
        Ok(text) => map.serialize_entry("text", text)?,
        Err(_) => map.serialize_entry("base64", &base64::engine::general_purpose::STANDARD.encode(config))?,
    }
    map.end()
}

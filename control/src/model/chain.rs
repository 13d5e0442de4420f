//! Modules, and the chains made of them.

use base64::Engine as _;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::branch::Branch;
use super::fields::{self, Field, Grant};
use super::outbound::{self, Outbound};
use super::outputs::{self, Output};
use super::reverse::{self, Reverse};
use super::{
    ChainName, ChainProblem, Digest, KeyName, ModelName, ModuleName, PortName, Scheduling, StageName, TenantName,
    granted,
};

/// The largest module that may be uploaded.
pub const MODULE_BYTES_MAX: u64 = 16 << 20;
/// The maximum size of a stage's files together, including the archive's headers.
pub const FILES_BYTES_MAX: u64 = 16 << 20;
/// The most stages of a chain; the least is 1.
pub const STAGES_MAX: usize = 16;
/// The longest configuration of one stage, in bytes.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;
/// The smallest memory limit of an FWP: one Wasm page.
pub const MEMORY_LIMIT_KIB_MIN: u32 = 64;
/// The largest memory limit of an FWP.
pub const MEMORY_LIMIT_KIB_MAX: u32 = 64 << 10;
/// The shortest idle time after which a chain instance may be ended.
pub const IDLE_TIMEOUT_MS_MIN: u64 = 100;
/// The longest idle time after which a chain instance may be ended: a week.
pub const IDLE_TIMEOUT_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// The longest drain timeout: a week, too.
pub const DRAIN_TIMEOUT_MS_MAX: u64 = IDLE_TIMEOUT_MS_MAX;
/// The largest limit for all of a chain's FWPs together: 1 TiB. The smallest is what one FWP of each stage needs.
pub const MEMORY_TOTAL_KIB_MAX: u32 = 1 << 30;
/// The maximum number of chain instances to keep ready. With none, the first client waits until there is one.
pub const CACHE_INSTANCES_MAX: u32 = 1024;
/// The maximum number of frames that an instance may hold for a stage without a free slot.
pub const HOLD_FRAMES_MAX: u32 = 1024;

/// A module: uploaded bytes under a name of their tenant's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModuleName,
    /// The digest of its current bytes.
    pub digest: Digest,
    /// The number of bytes.
    pub size_bytes: u64,
}

/// The files of a stage: an archive that the chain's tenant uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// The digest of the archive.
    pub digest: Digest,
    /// The size of the archive.
    pub size_bytes: u64,
}

/// Bytes that a tenant has uploaded, or a key, and that nothing names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Upload {
    /// The tenant that uploaded them.
    pub tenant: TenantName,
    /// Their digest; of a key that of its public key.
    pub digest: Digest,
    /// The number of bytes.
    pub size_bytes: u64,
    /// How long they are still kept, unless something names them.
    pub kept_ms: u64,
}

/// Bytes that a tenant has uploaded, or a key, whether something uses them or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredUpload {
    /// The tenant that uploaded them.
    pub tenant: TenantName,
    /// Their digest.
    pub digest: Digest,
    /// The number of bytes.
    pub size_bytes: u64,
}

/// One stage of a chain: a module, and the configuration it is pre-initialised with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// A module of the chain's tenant.
    pub module: ModuleName,
    /// Its name in the chain's manifest, if it has one.
    pub name: Option<StageName>,
    /// Passed to the function at initialisation, unchanged.
    #[serde(serialize_with = "serialize_config")]
    pub config: Vec<u8>,
    /// The files that its instances can read. With none, they have no file system.
    pub files: Option<Files>,
    /// Where it sends packets to: 1 to [`super::OUTPUTS_MAX`] outputs. The function's plain `send` uses the first.
    pub outputs: Vec<Output>,
    /// The fields of state that it may use. The function identifies them by name, and in the ABI by their index here.
    pub state: Vec<Grant>,
    /// The keys of its tenant that it may sign with, at most [`super::STAGE_GRANTS_MAX`]. The function names a key by its
    /// name once, and then by its index here.
    pub keys: Vec<KeyName>,
    /// The models of its tenant that it may use, in the same way.
    pub models: Vec<ModelName>,
}

impl Stage {
    /// Creates a stage without a name, whose outputs [`Chain::new`] fills in.
    pub fn new(module: ModuleName, config: Vec<u8>) -> Self {
        Self {
            module,
            name: None,
            config,
            files: None,
            outputs: Vec::new(),
            state: Vec::new(),
            keys: Vec::new(),
            models: Vec::new(),
        }
    }

    /// Returns its name, or its module's name if it has none.
    pub fn label(&self) -> &str {
        self.name.as_ref().map_or(self.module.as_str(), StageName::as_str)
    }
}

/// The stages that serve a class of traffic. A packet passes them one after another, along their outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ChainName,
    /// 1 to [`STAGES_MAX`] stages, in the order in which packets pass them.
    pub stages: Vec<Stage>,
    /// By which of its stages packets enter it; none means by the first one.
    pub entry: Option<Branch>,
    /// The port by which packets leave; none means the port by which each packet arrived.
    pub egress: Option<PortName>,
    /// Which packets pass the stages in reverse order; none means that all pass them forwards.
    pub reverse: Option<Reverse>,
    /// The maximum linear memory of each FWP of the chain.
    pub memory_limit_kib: u32,
    /// The maximum linear memory of all FWPs of the chain together, including those that wait for a client. None means
    /// that only the tenant's limit applies.
    pub memory_total_kib: Option<u32>,
    /// A chain instance that received no packet for this long is ended.
    pub idle_timeout_ms: u64,
    /// How long instances of an older version of the chain may go on to serve their clients. New clients get the new
    /// version at once.
    pub drain_timeout_ms: u64,
    /// The minimum number of chain instances that are kept ready for new clients. With 0, an instance is created when a
    /// client arrives.
    pub cache_min: u32,
    /// The maximum number of chain instances that are kept ready, however fast clients arrive.
    pub cache_max: u32,
    /// How many frames an instance holds before a stage by which they enter, when that has no free slot. Unless it is 0, a stage
    /// also waits for a free slot in the next stage. With 0, a frame that finds no free slot is dropped.
    pub hold_frames: u32,
    /// Whether calling the chain more than once with a message is the same as calling it once. If so, a call whose
    /// instance ends before it answers is delivered again, to another instance. If not, it fails.
    pub idempotent: bool,
    /// Whether the node routes what leaves: it writes the Ethernet addresses of each packet, for the next hop on the way
    /// to its destination. If not, it does so for packets whose receiver's address is all zero.
    pub routed: bool,
    /// The flows that its functions may open themselves.
    pub outbound: Vec<Outbound>,
    /// The fields of state that its stages may use. Chains of a tenant that declare a field of the same name share it.
    pub fields: Vec<Field>,
    /// How each FWP of the chain may use its core.
    #[serde(flatten)]
    pub scheduling: Scheduling,
}

impl Chain {
    /// The default of [`Chain::memory_limit_kib`].
    pub const MEMORY_LIMIT_KIB: u32 = 16 << 10;
    /// The default of [`Chain::idle_timeout_ms`]: five minutes.
    pub const IDLE_TIMEOUT_MS: u64 = 300_000;
    /// The default of [`Chain::drain_timeout_ms`]: half a minute.
    pub const DRAIN_TIMEOUT_MS: u64 = 30_000;
    /// The default of [`Chain::cache_min`].
    pub const CACHE_MIN: u32 = 4;
    /// The default of [`Chain::cache_max`], unless [`Chain::cache_min`] is larger.
    pub const CACHE_MAX: u32 = 64;
    /// The default of [`Chain::hold_frames`]: a frame that finds no free slot is dropped.
    pub const HOLD_FRAMES: u32 = 0;

    /// Creates a chain with defaults for everything that is not a parameter, and for the outputs of stages that have
    /// none.
    pub fn new(tenant: TenantName, name: ChainName, mut stages: Vec<Stage>) -> Self {
        let count = stages.len();
        for (at, stage) in stages.iter_mut().enumerate().filter(|(_, stage)| stage.outputs.is_empty()) {
            stage.outputs = Output::default_of(at, count);
        }
        Self {
            tenant,
            name,
            stages,
            entry: None,
            egress: None,
            reverse: None,
            memory_limit_kib: Self::MEMORY_LIMIT_KIB,
            memory_total_kib: None,
            idle_timeout_ms: Self::IDLE_TIMEOUT_MS,
            drain_timeout_ms: Self::DRAIN_TIMEOUT_MS,
            cache_min: Self::CACHE_MIN,
            cache_max: Self::CACHE_MAX,
            hold_frames: Self::HOLD_FRAMES,
            idempotent: false,
            routed: false,
            outbound: Vec::new(),
            fields: Vec::new(),
            scheduling: Scheduling::default(),
        }
    }

    /// Returns the chain by which a module is invoked if there is no other chain of its name.
    pub fn of_module(tenant: TenantName, module: &ModuleName) -> Self {
        let chain = Self::new(tenant, ChainName::of_module(module), vec![Stage::new(module.clone(), Vec::new())]);
        Self { cache_min: 0, ..chain }
    }

    /// Returns the default of [`Chain::cache_max`] for a chain with this [`Chain::cache_min`].
    pub fn default_cache_max(cache_min: u32) -> u32 {
        Self::CACHE_MAX.max(cache_min)
    }

    /// Checks that every number is within its bounds, and that the stages' outputs lead to a stage or out of the chain.
    /// Does not check the modules, keys, models and ports that the chain names.
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
        // At least one, since a client gets an instance from the cache.
        if !(self.cache_min.max(1)..=CACHE_INSTANCES_MAX).contains(&self.cache_max) {
            return Err(ChainProblem::CacheMax { instances: self.cache_max, cache_min: self.cache_min });
        }
        if self.hold_frames > HOLD_FRAMES_MAX {
            return Err(ChainProblem::HoldFrames(self.hold_frames));
        }
        self.scheduling.check()?;
        fields::check(&self.fields, &self.stages)?;
        granted::check(&self.stages)?;
        outputs::check(self)?;
        outbound::check(self)?;
        reverse::check(self)
    }
}

/// Serialises text as it is, and anything else as base64. The key tells which.
fn serialize_config<S: Serializer>(config: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    match std::str::from_utf8(config) {
        Ok(text) => map.serialize_entry("text", text)?,
        Err(_) => map.serialize_entry("base64", &base64::engine::general_purpose::STANDARD.encode(config))?,
    }
    map.end()
}

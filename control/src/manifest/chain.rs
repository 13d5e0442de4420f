//! The entry of a chain in a manifest, and how it becomes an entry of a [`Bundle`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::edges::{BranchPositions, BranchTable, OutputValue, TargetKey, Targets};
use super::position::Position;
use super::reader::{Reader, wrong};
use super::rule::{from_text, required};
use super::{Bundle, ChainEntry, ManifestError};
use crate::model::{
    Access, BranchPart, BranchSite, Chain, ChainName, ChainProblem, Class, Digest, FieldName, Files, Grant, KeyName,
    ModelName, ModuleName, Outbound, OverBudget, PortName, PortRange, Prefix, Protocol, Reverse, Scheduling, Stage,
    StageName,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChainTable {
    name: Spanned<ChainName>,
    stage: Vec<StageTable>,
    entry: Option<Spanned<BranchTable>>,
    egress: Option<PortName>,
    reverse: Option<Spanned<ReverseTable>>,
    memory_limit_kib: Option<Spanned<u32>>,
    memory_total_kib: Option<Spanned<u32>>,
    idle_timeout_ms: Option<Spanned<u64>>,
    drain_timeout_ms: Option<Spanned<u64>>,
    cache_min: Option<Spanned<u32>>,
    cache_max: Option<Spanned<u32>>,
    hold_frames: Option<Spanned<u32>>,
    idempotent: Option<bool>,
    routed: Option<bool>,
    #[serde(default)]
    outbound: Vec<Spanned<OutboundTable>>,
    class: Option<Class>,
    cpu_per_batch_us: Option<Spanned<u32>>,
    cpu_per_second_ms: Option<Spanned<u32>>,
    over_budget: Option<OverBudget>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutboundTable {
    #[serde(deserialize_with = "required")]
    protocol: Protocol,
    #[serde(deserialize_with = "required")]
    to: Prefix,
    #[serde(default, deserialize_with = "from_text")]
    ports: Option<PortRange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReverseTable {
    from: Vec<PortName>,
    entry: Option<Spanned<BranchTable>>,
    egress: Option<PortName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StageTable {
    module: ModuleName,
    name: Option<Spanned<StageName>>,
    config: Option<Spanned<String>>,
    config_path: Option<Spanned<PathBuf>>,
    config_base64: Option<Spanned<String>>,
    files: Option<Spanned<StageFiles>>,
    outputs: Option<Spanned<Vec<Spanned<OutputValue>>>>,
    #[serde(default)]
    state: BTreeMap<FieldName, Spanned<Access>>,
    keys: Option<Spanned<Vec<KeyName>>>,
    models: Option<Spanned<Vec<ModelName>>>,
}

/// Where the files of a stage are.
enum StageFiles {
    /// In a local folder.
    Folder(PathBuf),
    /// On the node, as an archive that the tenant uploaded before.
    Uploaded(Files),
}

/// An archive that was uploaded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesTable {
    #[serde(deserialize_with = "required")]
    digest: Digest,
    size_bytes: u64,
}

impl<'de> Deserialize<'de> for StageFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FolderOrTable;

        impl<'de> Visitor<'de> for FolderOrTable {
            type Value = StageFiles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a folder, or a table with digest and size_bytes")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<StageFiles, E> {
                Ok(StageFiles::Folder(path.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<StageFiles, A::Error> {
                let FilesTable { digest, size_bytes } = FilesTable::deserialize(MapAccessDeserializer::new(table))?;
                Ok(StageFiles::Uploaded(Files { digest, size_bytes }))
            }
        }

        deserializer.deserialize_any(FolderOrTable)
    }
}

/// The positions of keys in which [`Chain::check`] may find an error.
struct KeyPositions {
    chain: Position,
    reverse: Option<Position>,
    branches: BranchPositions,
    memory_limit: Option<Position>,
    memory_total: Option<Position>,
    idle_timeout: Option<Position>,
    drain_timeout: Option<Position>,
    cache_min: Option<Position>,
    cache_max: Option<Position>,
    hold_frames: Option<Position>,
    outbound: Vec<Position>,
    cpu_per_batch: Option<Position>,
    cpu_per_second: Option<Position>,
    /// The name of each stage.
    names: Vec<Option<Position>>,
    outputs: Vec<Option<Position>>,
    keys: Vec<Option<Position>>,
    models: Vec<Option<Position>>,
}

impl KeyPositions {
    fn new(reader: &Reader<'_>, table: &ChainTable) -> Self {
        Self {
            chain: reader.place(&table.name),
            branches: Self::of_branches(reader, table),
            reverse: table.reverse.as_ref().map(|it| reader.place(it)),
            memory_limit: table.memory_limit_kib.as_ref().map(|it| reader.place(it)),
            memory_total: table.memory_total_kib.as_ref().map(|it| reader.place(it)),
            idle_timeout: table.idle_timeout_ms.as_ref().map(|it| reader.place(it)),
            drain_timeout: table.drain_timeout_ms.as_ref().map(|it| reader.place(it)),
            cache_min: table.cache_min.as_ref().map(|it| reader.place(it)),
            cache_max: table.cache_max.as_ref().map(|it| reader.place(it)),
            hold_frames: table.hold_frames.as_ref().map(|it| reader.place(it)),
            outbound: table.outbound.iter().map(|it| reader.place(it)).collect(),
            cpu_per_batch: table.cpu_per_batch_us.as_ref().map(|it| reader.place(it)),
            cpu_per_second: table.cpu_per_second_ms.as_ref().map(|it| reader.place(it)),
            names: table.stage.iter().map(|stage| Some(reader.place(stage.name.as_ref()?))).collect(),
            outputs: table.stage.iter().map(|stage| Some(reader.place(stage.outputs.as_ref()?))).collect(),
            keys: table.stage.iter().map(|stage| Some(reader.place(stage.keys.as_ref()?))).collect(),
            models: table.stage.iter().map(|stage| Some(reader.place(stage.models.as_ref()?))).collect(),
        }
    }

    fn of_branches(reader: &Reader<'_>, table: &ChainTable) -> BranchPositions {
        let mut branches = BranchPositions::default();
        let back = table.reverse.as_ref().and_then(|reverse| reverse.get_ref().entry.as_ref());
        for (site, entry) in [(BranchSite::Entry, table.entry.as_ref()), (BranchSite::ReverseEntry, back)] {
            entry.into_iter().for_each(|entry| branches.add(reader, site, entry.get_ref()));
        }
        for (at, stage) in table.stage.iter().enumerate() {
            stage.outputs.iter().for_each(|outputs| branches.add_outputs(reader, at + 1, outputs.get_ref()));
        }
        branches
    }

    /// Returns the position of the key that caused the problem, or of the chain itself.
    fn of(&self, problem: &ChainProblem) -> Position {
        let of_stage = |places: &[Option<Position>], stage: usize| places[stage - 1].clone();
        let key = match *problem {
            ChainProblem::MemoryLimit(_) => self.memory_limit.clone(),
            ChainProblem::MemoryTotal { .. } => self.memory_total.clone(),
            ChainProblem::IdleTimeout(_) => self.idle_timeout.clone(),
            ChainProblem::DrainTimeout(_) => self.drain_timeout.clone(),
            ChainProblem::CacheMin(_) => self.cache_min.clone(),
            ChainProblem::CacheMax { .. } => self.cache_max.clone().or_else(|| self.cache_min.clone()),
            ChainProblem::HoldFrames(_) => self.hold_frames.clone(),
            ChainProblem::Outbound(_) => self.outbound.last().cloned(),
            ChainProblem::OutboundProtocol { entry, .. } => self.outbound.get(entry - 1).cloned(),
            ChainProblem::CpuPerBatch(_) => self.cpu_per_batch.clone(),
            ChainProblem::CpuPerSecond(_) => self.cpu_per_second.clone(),
            ChainProblem::SameStageName { second: stage, .. } | ChainProblem::StageNamedAsTarget { stage, .. } => {
                of_stage(&self.names, stage)
            }
            ChainProblem::Branch { site, ref problem } => self.branches.of(site, problem),
            ChainProblem::Cases { site, .. } => self.branches.of_branch(site),
            ChainProblem::EntryToNoStage { site, part, .. } | ChainProblem::EntryLeadsOut { site, part, .. } => {
                self.branches.of_part(site, part)
            }
            ChainProblem::AnswersDropped => self.branches.of_part(BranchSite::Entry, BranchPart::Default),
            ChainProblem::OutputNotForward { stage, output, part: Some(part), .. } => {
                self.branches.of_part(BranchSite::Output { stage, output }, part)
            }
            ChainProblem::Outputs { stage, .. } | ChainProblem::OutputNotForward { stage, .. } => {
                of_stage(&self.outputs, stage)
            }
            ChainProblem::ReverseEgressOfReplies(_)
            | ChainProblem::ReverseFromWithoutEgress
            | ChainProblem::ReverseFromTwice(_)
            | ChainProblem::ReverseHolds(_)
            | ChainProblem::ReverseEntryOfReplies
            | ChainProblem::ReverseOfTwoWays { .. }
            | ChainProblem::ReverseWithoutEntry { .. }
            | ChainProblem::ReverseWithoutEgress => self.reverse.clone(),
            ChainProblem::TooManyGranted { stage, key, .. } | ChainProblem::GrantedTwice { stage, key, .. } => {
                of_stage(if key == "keys" { &self.keys } else { &self.models }, stage)
            }
            ChainProblem::Unreached { stage, .. } => of_stage(&self.names, stage),
            // Fields of a manifest are checked when they are read, and when they are granted.
            ChainProblem::Fields(_)
            | ChainProblem::Field { .. }
            | ChainProblem::SameField(_)
            | ChainProblem::FieldWithoutGrant(_)
            | ChainProblem::FieldNotDeclared { .. }
            | ChainProblem::SameGrant { .. } => None,
            ChainProblem::Stages(_) | ChainProblem::Config { .. } => None,
        };
        key.unwrap_or_else(|| self.chain.clone())
    }
}

/// Adds a chain to the bundle.
pub(super) fn read(reader: &Reader<'_>, table: ChainTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
    let places = KeyPositions::new(reader, &table);
    let names: Vec<Option<StageName>> =
        table.stage.iter().map(|stage| Some(stage.name.as_ref()?.get_ref().clone())).collect();
    let (mut stages, mut config_files, mut folders) = (Vec::new(), Vec::new(), Vec::new());
    let targets = Targets { reader, names: &names };
    let entry = table.entry.map(|entry| targets.branch(TargetKey::ENTRY, entry.get_ref())).transpose()?;
    let reverse = table.reverse.map(|reverse| read_reverse(&targets, reverse.into_inner())).transpose()?;
    let mut fields = BTreeMap::new();
    let table_name = &table.name;
    for (at, table) in table.stage.into_iter().enumerate() {
        let config = read_config(reader, &table)?;
        if let Some(path) = table.config_path {
            config_files.push((at, reader.file(path)));
        }
        let mut stage = Stage::new(table.module, config);
        if let Some(files) = table.files {
            let named_at = reader.place(&files);
            match files.into_inner() {
                StageFiles::Folder(path) => folders.push((at, reader.file_at(path, named_at))),
                StageFiles::Uploaded(files) => stage.files = Some(files),
            }
        }
        stage.name = names[at].clone();
        stage.keys = table.keys.map(Spanned::into_inner).unwrap_or_default();
        stage.models = table.models.map(Spanned::into_inner).unwrap_or_default();
        if let Some(outputs) = table.outputs {
            stage.outputs = targets.outputs(&outputs)?;
        }
        for (field, access) in table.state {
            let declared = reader.field(&field).ok_or_else(|| {
                let problem = ChainProblem::FieldNotDeclared { stage: at + 1, field: field.clone() };
                wrong(reader.place(&access), format!("chain {}: {problem}", table_name.get_ref()))
            })?;
            fields.insert(field.clone(), declared);
            stage.state.push(Grant { field, access: access.into_inner() });
        }
        stages.push(stage);
    }

    let mut chain = Chain::new(reader.tenant.clone(), table.name.into_inner(), stages);
    chain.fields = fields.into_values().collect();
    (chain.entry, chain.egress, chain.reverse) = (entry, table.egress, reverse);
    chain.memory_limit_kib = table.memory_limit_kib.map_or(chain.memory_limit_kib, Spanned::into_inner);
    chain.memory_total_kib = table.memory_total_kib.map(Spanned::into_inner);
    chain.idle_timeout_ms = table.idle_timeout_ms.map_or(chain.idle_timeout_ms, Spanned::into_inner);
    chain.drain_timeout_ms = table.drain_timeout_ms.map_or(chain.drain_timeout_ms, Spanned::into_inner);
    chain.cache_min = table.cache_min.map_or(chain.cache_min, Spanned::into_inner);
    let default_cache_max = Chain::default_cache_max(chain.cache_min);
    chain.cache_max = table.cache_max.map_or(default_cache_max, Spanned::into_inner);
    chain.hold_frames = table.hold_frames.map_or(chain.hold_frames, Spanned::into_inner);
    chain.idempotent = table.idempotent.unwrap_or(chain.idempotent);
    chain.routed = table.routed.unwrap_or(chain.routed);
    let outbound = |OutboundTable { protocol, to, ports }| Outbound { protocol, to, ports };
    chain.outbound = table.outbound.into_iter().map(|table| outbound(table.into_inner())).collect();
    let default = Scheduling::default();
    chain.scheduling = Scheduling {
        class: table.class.unwrap_or(default.class),
        cpu_per_batch_us: table.cpu_per_batch_us.map(Spanned::into_inner),
        cpu_per_second_ms: table.cpu_per_second_ms.map(Spanned::into_inner),
        over_budget: table.over_budget.unwrap_or(default.over_budget),
    };
    if let Err(problem) = chain.check() {
        return Err(wrong(places.of(&problem), format!("chain {}: {problem}", chain.name)));
    }
    bundle.add_chain(&places.chain, ChainEntry { chain, config_files, folders })
}

/// Returns the configuration of a stage that the manifest itself has.
fn read_config(reader: &Reader<'_>, table: &StageTable) -> Result<Vec<u8>, ManifestError> {
    let StageTable { config, config_path, config_base64, .. } = table;
    let keys = [
        ("config", config.as_ref().map(|it| reader.place(it))),
        ("config_path", config_path.as_ref().map(|it| reader.place(it))),
        ("config_base64", config_base64.as_ref().map(|it| reader.place(it))),
    ];
    let mut given = keys.into_iter().filter_map(|(key, place)| Some((key, place?)));
    if let (Some((first, place)), Some((second, _))) = (given.next(), given.next()) {
        return Err(wrong(place, format!("{first} and {second} exclude each other: give one of them")));
    }
    if let Some(text) = config_base64 {
        let decoded = STANDARD.decode(text.get_ref());
        return decoded
            .map_err(|problem| wrong(reader.place(text), format!("config_base64: this is no base64: {problem}")));
    }
    Ok(config.as_ref().map(|config| config.get_ref().clone().into_bytes()).unwrap_or_default())
}

fn read_reverse(targets: &Targets<'_>, table: ReverseTable) -> Result<Reverse, ManifestError> {
    let ReverseTable { from, entry, egress } = table;
    let entry = entry.map(|entry| targets.branch(TargetKey::REVERSE_ENTRY, entry.get_ref())).transpose()?;
    Ok(Reverse { from, entry, egress })
}

//! The structure of one manifest, and how it becomes entries of a [`Bundle`].

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::chain::{self, ChainTable};
use super::position::{Position, Text};
use super::reader::{Reader, wrong};
use super::rule::RuleTable;
use super::tenant::{self, Tenancy};
use super::{Bundle, ManifestError, Source, UploadEntry, VERSION};
use crate::document::{Fault, whole_number};
use crate::model::{
    CACHE_INSTANCES_MAX, CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN, CPU_PER_SECOND_MS_MAX, DRAIN_TIMEOUT_MS_MAX,
    Digest, ENTRIES_MAX, Field, FieldName, FieldProblem, HOLD_FRAMES_MAX, IDLE_TIMEOUT_MS_MAX, IDLE_TIMEOUT_MS_MIN,
    KeyName, Label, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX, ModelName, ModuleName,
    TTL_SECONDS_MAX, TenantName, VALUE_BYTES_MAX, WhenFull,
};

/// Adds the contents of a manifest to the bundle. `default` owns the objects if the manifest names no tenant.
pub(super) fn read(path: &Path, text: &str, default: &TenantName, bundle: &mut Bundle) -> Result<(), ManifestError> {
    let text = Text::new(path, text);
    let VersionOnly { tenant, .. } = check_version(&text)?;
    if tenant == Some(Tenancy::Tables) {
        return tenant::read(&text, bundle);
    }
    let document: Document = parse(&text)?;
    let (fields, tenant) = (read_fields(&text, document.state)?, document.tenant.unwrap_or_else(|| default.clone()));
    bundle.add_owner(path, tenant.clone(), document.label);
    let reader = Reader::new(text, tenant, fields);
    document.module.into_iter().try_for_each(|module| reader.module(module, bundle))?;
    document.key.into_iter().try_for_each(|(name, table)| reader.key(name, table, bundle))?;
    document.model.into_iter().try_for_each(|(name, table)| reader.model(name, table, bundle))?;
    document.chain.into_iter().try_for_each(|chain| chain::read(&reader, chain, bundle))?;
    reader.check_all_granted()?;
    document.rule.into_iter().try_for_each(|rule| reader.rule(rule, bundle))
}

/// Checks the version first, since a manifest of another version may have other keys. Returns what has to be known before
/// the rest is read.
fn check_version(text: &Text<'_>) -> Result<VersionOnly, ManifestError> {
    let beginning = parse::<VersionOnly>(text)?;
    let version = beginning.version.as_ref().ok_or_else(|| ManifestError::NoVersion { path: text.path.to_owned() })?;
    let place = text.place(&version.span());
    match version.get_ref() {
        found if found == VERSION => Ok(beginning),
        found => Err(ManifestError::OtherVersion { place, found: found.clone() }),
    }
}

pub(super) fn parse<T: DeserializeOwned>(text: &Text<'_>) -> Result<T, ManifestError> {
    crate::document::read(text.text, allowed)
        .map_err(|Fault { span, problem }| ManifestError::Wrong { place: text.place(&span), problem })
}

/// Returns the allowed values of keys for which the type alone does not tell.
fn allowed(key: &str) -> Option<String> {
    let bounds = match key {
        "tenant" => return Some("a tenant's name, or tables, each with the header [[tenant]]".to_owned()),
        "module" | "chain" | "rule" | "chain.stage" => return Some(format!("tables, each with the header [[{key}]]")),
        "rule.match"
        | "chain.entry"
        | "chain.reverse"
        | "chain.reverse.entry"
        | "state"
        | "chain.stage.state"
        | "key"
        | "model" => {
            return Some("a table".to_owned());
        }
        "chain.memory_limit_kib" => u64::from(MEMORY_LIMIT_KIB_MIN)..=u64::from(MEMORY_LIMIT_KIB_MAX),
        "chain.memory_total_kib" => u64::from(MEMORY_LIMIT_KIB_MIN)..=u64::from(MEMORY_TOTAL_KIB_MAX),
        "chain.idle_timeout_ms" => IDLE_TIMEOUT_MS_MIN..=IDLE_TIMEOUT_MS_MAX,
        "chain.drain_timeout_ms" => 0..=DRAIN_TIMEOUT_MS_MAX,
        "chain.cache_min" => 0..=u64::from(CACHE_INSTANCES_MAX),
        "chain.cache_max" => 1..=u64::from(CACHE_INSTANCES_MAX),
        "chain.hold_frames" => 0..=u64::from(HOLD_FRAMES_MAX),
        "chain.cpu_per_batch_us" => u64::from(CPU_PER_BATCH_US_MIN)..=u64::from(CPU_PER_BATCH_US_MAX),
        "chain.cpu_per_second_ms" => 1..=u64::from(CPU_PER_SECOND_MS_MAX),
        _ => match key.strip_prefix("state.")?.rsplit_once('.')?.1 {
            "value_bytes" => 1..=u64::from(VALUE_BYTES_MAX),
            "entries" => 1..=u64::from(ENTRIES_MAX),
            "ttl_seconds" => 1..=u64::from(TTL_SECONDS_MAX),
            _ => return None,
        },
    };
    Some(whole_number(&bounds))
}

#[derive(Deserialize)]
struct VersionOnly {
    version: Option<Spanned<String>>,
    tenant: Option<Tenancy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "version")]
    _version: String,
    tenant: Option<TenantName>,
    label: Option<Label>,
    #[serde(default)]
    module: Vec<ModuleTable>,
    #[serde(default)]
    key: BTreeMap<Spanned<KeyName>, UploadTable>,
    #[serde(default)]
    model: BTreeMap<Spanned<ModelName>, UploadTable>,
    #[serde(default)]
    chain: Vec<ChainTable>,
    #[serde(default)]
    rule: Vec<RuleTable>,
    #[serde(default)]
    state: BTreeMap<Spanned<FieldName>, FieldTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldTable {
    value_bytes: Spanned<u32>,
    entries: Spanned<u32>,
    ttl_seconds: Option<Spanned<u32>>,
    #[serde(default)]
    when_full: WhenFull,
}

/// Reads the fields that a manifest declares, each with its position.
fn read_fields(
    text: &Text<'_>,
    tables: BTreeMap<Spanned<FieldName>, FieldTable>,
) -> Result<BTreeMap<FieldName, (Position, Field)>, ManifestError> {
    let mut fields = BTreeMap::new();
    for (name, table) in tables {
        let span = name.span();
        let field = Field {
            name: name.into_inner(),
            value_bytes: *table.value_bytes.get_ref(),
            entries: *table.entries.get_ref(),
            ttl_seconds: table.ttl_seconds.as_ref().map(|seconds| *seconds.get_ref()),
            when_full: table.when_full,
        };
        field.check().map_err(|problem| {
            let key = match problem {
                FieldProblem::ValueBytes(_) => table.value_bytes.span(),
                FieldProblem::Entries(_) => table.entries.span(),
                FieldProblem::Ttl(_) => table.ttl_seconds.as_ref().map_or(span.clone(), Spanned::span),
            };
            wrong(text.place(&key), format!("state.{}: {problem}", field.name))
        })?;
        fields.insert(field.name.clone(), (text.place(&span), field));
    }
    Ok(fields)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModuleTable {
    name: Spanned<ModuleName>,
    path: Option<Spanned<PathBuf>>,
    #[serde(default, deserialize_with = "digest")]
    digest: Option<Digest>,
}

/// A key, or a model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadTable {
    file: Option<Spanned<PathBuf>>,
    #[serde(default, deserialize_with = "digest")]
    digest: Option<Digest>,
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Digest>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl Reader<'_> {
    fn module(&self, table: ModuleTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
        let place = self.place(&table.name);
        let name = table.name.into_inner();
        let source = match (table.path, table.digest) {
            (Some(path), None) => Source::File(self.file(path)),
            (None, Some(digest)) => Source::Uploaded(digest),
            (None, None) => {
                return Err(wrong(
                    place,
                    format!("module {name}: its bytes are missing: give path, or digest of what was pushed"),
                ));
            }
            (Some(_), Some(_)) => {
                return Err(wrong(
                    place,
                    format!("module {name}: path and digest exclude each other: give one of them"),
                ));
            }
        };
        bundle.add_module(&place, UploadEntry { tenant: self.tenant.clone(), name, source })
    }

    fn key(&self, name: Spanned<KeyName>, table: UploadTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
        let (place, name) = (self.place(&name), name.into_inner());
        let source = self.source(&place, &format_args!("key.{name}"), table)?;
        bundle.add_key(&place, UploadEntry { tenant: self.tenant.clone(), name, source })
    }

    fn model(&self, name: Spanned<ModelName>, table: UploadTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
        let (place, name) = (self.place(&name), name.into_inner());
        let source = self.source(&place, &format_args!("model.{name}"), table)?;
        bundle.add_model(&place, UploadEntry { tenant: self.tenant.clone(), name, source })
    }

    /// Returns where the bytes of a key or a model are.
    fn source(&self, place: &Position, what: &dyn Display, table: UploadTable) -> Result<Source, ManifestError> {
        let problem = match (table.file, table.digest) {
            (Some(file), None) => return Ok(Source::File(self.file(file))),
            (None, Some(digest)) => return Ok(Source::Uploaded(digest)),
            (None, None) => "its bytes are missing: give file, or digest of what was pushed",
            (Some(_), Some(_)) => "file and digest exclude each other: give one of them",
        };
        Err(wrong(place.clone(), format!("{what}: {problem}")))
    }
}

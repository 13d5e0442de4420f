//! The structure of one manifest, and how it becomes entries of a [`Bundle`].

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::chain::{self, ChainTable};
use super::position::{Position, Text};
use super::reader::{Reader, wrong};
use super::{Bundle, DEFAULT_TENANT, ManifestError, ModuleEntry, ModuleSource, VERSION};
use crate::document::{Fault, whole_number};
use crate::model::{
    CACHE_INSTANCES_MAX, CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN, CPU_PER_SECOND_MS_MAX, ChainName,
    DRAIN_TIMEOUT_MS_MAX, Digest, ENTRIES_MAX, Field, FieldName, FieldProblem, HOLD_FRAMES_MAX, IDLE_TIMEOUT_MS_MAX,
    IDLE_TIMEOUT_MS_MIN, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX, Match, ModuleName, Policy,
    PortName, PortRange, Prefix, Protocol, Rule, RuleName, TTL_SECONDS_MAX, TenantName, VALUE_BYTES_MAX, VlanId,
    WhenFull,
};

/// Adds the contents of a manifest to the bundle.
pub(super) fn read(path: &Path, text: &str, bundle: &mut Bundle) -> Result<(), ManifestError> {
    let text = Text::new(path, text);
    check_version(&text)?;
    let document: Document = parse(&text)?;
    let (fields, tenant) = (read_fields(&text, document.state)?, document.tenant.unwrap_or_else(default_tenant));
    let reader = Reader::new(text, tenant, fields);
    document.module.into_iter().try_for_each(|module| reader.module(module, bundle))?;
    document.chain.into_iter().try_for_each(|chain| chain::read(&reader, chain, bundle))?;
    reader.check_all_granted()?;
    document.rule.into_iter().try_for_each(|rule| reader.rule(rule, bundle))
}

fn default_tenant() -> TenantName {
    TenantName::new(DEFAULT_TENANT).expect("the default tenant has a valid name")
}

/// Checks the version first, since a manifest of another version may have other keys.
fn check_version(text: &Text<'_>) -> Result<(), ManifestError> {
    let version = parse::<VersionOnly>(text)?.version;
    let version = version.ok_or_else(|| ManifestError::NoVersion { path: text.path.to_owned() })?;
    let place = text.place(&version.span());
    match version.into_inner() {
        found if found == VERSION => Ok(()),
        found => Err(ManifestError::OtherVersion { place, found }),
    }
}

fn parse<T: DeserializeOwned>(text: &Text<'_>) -> Result<T, ManifestError> {
    crate::document::read(text.text, allowed)
        .map_err(|Fault { span, problem }| ManifestError::Wrong { place: text.place(&span), problem })
}

/// Returns the allowed values of keys for which the type alone does not tell.
fn allowed(key: &str) -> Option<String> {
    let bounds = match key {
        "module" | "chain" | "rule" | "chain.stage" => return Some(format!("tables, each with the header [[{key}]]")),
        "rule.match" | "chain.reverse" | "state" | "chain.stage.state" => return Some("a table".to_owned()),
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "version")]
    _version: String,
    tenant: Option<TenantName>,
    #[serde(default)]
    module: Vec<ModuleTable>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    name: Spanned<RuleName>,
    #[serde(default)]
    priority: u32,
    policy: Policy,
    chain: ChainName,
    #[serde(rename = "match")]
    matcher: Option<Spanned<MatchTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchTable {
    port: Option<PortName>,
    #[serde(default, deserialize_with = "from_text")]
    vlan: Option<VlanId>,
    #[serde(default, deserialize_with = "from_text")]
    inner_vlan: Option<VlanId>,
    #[serde(default, deserialize_with = "from_text")]
    source: Option<Prefix>,
    #[serde(default, deserialize_with = "from_text")]
    destination: Option<Prefix>,
    #[serde(default, deserialize_with = "from_text")]
    protocol: Option<Protocol>,
    icmp_type: Option<u8>,
    #[serde(default, deserialize_with = "from_text")]
    source_ports: Option<PortRange>,
    #[serde(default, deserialize_with = "from_text")]
    destination_ports: Option<PortRange>,
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Digest>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Accepts text or a number, so that `protocol = 89` and `destination_ports = 80` need no quotes.
fn from_text<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    struct TextOrNumber<T>(PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextOrNumber<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text or a number")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(TextOrNumber(PhantomData)).map(Some)
}

impl Reader<'_> {
    fn module(&self, table: ModuleTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
        let place = self.place(&table.name);
        let name = table.name.into_inner();
        let source = match (table.path, table.digest) {
            (Some(path), None) => ModuleSource::File(self.file(path)),
            (None, Some(digest)) => ModuleSource::Uploaded(digest),
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
        bundle.add_module(&place, ModuleEntry { tenant: self.tenant.clone(), name, source })
    }

    fn rule(&self, table: RuleTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
        let place = self.place(&table.name);
        let match_place = table.matcher.as_ref().map_or_else(|| place.clone(), |matcher| self.place(matcher));
        let RuleTable { name, priority, policy, chain, matcher } = table;
        let name = name.into_inner();
        let matcher = matcher.map(|matcher| Match::from(matcher.into_inner())).unwrap_or_default();
        matcher.check().map_err(|problem| wrong(match_place, format!("rule {name}: match: {problem}")))?;
        bundle.add_rule(&place, Rule { tenant: self.tenant.clone(), name, priority, matcher, policy, chain })
    }
}

impl From<MatchTable> for Match {
    fn from(table: MatchTable) -> Self {
        let MatchTable { port, vlan, inner_vlan, source, destination, protocol, icmp_type, .. } = table;
        let MatchTable { source_ports, destination_ports, .. } = table;
        Self { port, vlan, inner_vlan, source, destination, protocol, icmp_type, source_ports, destination_ports }
    }
}

//! The shape of one manifest, and how it becomes entries of a [`Bundle`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::chain::{self, ChainTable};
use super::place::{Place, Text};
use super::{Bundle, DEFAULT_TENANT, ManifestError, ModuleEntry, ModuleSource, NamedFile, VERSION};
use crate::model::{
    ChainName, Digest, Field, FieldName, FieldProblem, Match, ModuleName, Policy, PortName, PortRange, Prefix,
    Protocol, Rule, RuleName, TenantName, VlanId, WhenFull,
};

/// Adds what a manifest says to the bundle.
pub(super) fn read(path: &Path, text: &str, bundle: &mut Bundle) -> Result<(), ManifestError> {
    let text = Text::new(path, text);
    check_version(&text)?;
    let document: Document = parse(&text)?;
    let (fields, tenant) = (read_fields(&text, document.state)?, document.tenant.unwrap_or_else(default_tenant));
    let reader = Reader { text, tenant, fields, granted: RefCell::default() };
    document.module.into_iter().try_for_each(|module| reader.module(module, bundle))?;
    document.chain.into_iter().try_for_each(|chain| chain::read(&reader, chain, bundle))?;
    reader.check_all_granted()?;
    document.rule.into_iter().try_for_each(|rule| reader.rule(rule, bundle))
}

fn default_tenant() -> TenantName {
    TenantName::new(DEFAULT_TENANT).expect("the default tenant has a valid name")
}

/// First of all, since a manifest of another version may have other keys.
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
    toml::from_str(text.text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let problem = error.message().replace("unknown field", "unknown key").replace("missing field", "missing key");
        let problem = match text.key_of(&span) {
            Some(key) => format!("{key}: {problem}"),
            None => problem,
        };
        ManifestError::Wrong { place: text.place(&span), problem: problem.replace('\n', ", ") }
    })
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

/// The fields that a manifest declares, each with where.
fn read_fields(
    text: &Text<'_>,
    tables: BTreeMap<Spanned<FieldName>, FieldTable>,
) -> Result<BTreeMap<FieldName, (Place, Field)>, ManifestError> {
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

/// Takes text or a number, so that `protocol = 89` and `destination_ports = 80` need no quotes.
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

/// What the entries of one manifest share.
pub(super) struct Reader<'a> {
    text: Text<'a>,
    pub(super) tenant: TenantName,
    fields: BTreeMap<FieldName, (Place, Field)>,
    granted: RefCell<BTreeSet<FieldName>>,
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

    /// A field that the manifest declares, to be granted.
    pub(super) fn field(&self, name: &FieldName) -> Option<Field> {
        let (_, field) = self.fields.get(name)?;
        self.granted.borrow_mut().insert(name.clone());
        Some(field.clone())
    }

    /// A field that nobody was granted is a slip of the pen: nothing would come of it.
    fn check_all_granted(&self) -> Result<(), ManifestError> {
        let granted = self.granted.borrow();
        match self.fields.iter().find(|(name, _)| !granted.contains(*name)) {
            Some((name, (place, _))) => {
                let problem = "no stage of this manifest is granted it: grant it to one (state), or leave it out";
                Err(wrong(place.clone(), format!("state.{name}: {problem}")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn place<T>(&self, value: &Spanned<T>) -> Place {
        self.text.place(&value.span())
    }

    /// A file or folder named relative to the manifest.
    pub(super) fn file(&self, path: Spanned<PathBuf>) -> NamedFile {
        let named_at = self.place(&path);
        let folder = self.text.path.parent().unwrap_or(Path::new(""));
        NamedFile { path: folder.join(path.into_inner()), named_at }
    }
}

pub(super) fn wrong(place: Place, problem: impl Into<String>) -> ManifestError {
    ManifestError::Wrong { place, problem: problem.into() }
}

impl From<MatchTable> for Match {
    fn from(table: MatchTable) -> Self {
        let MatchTable { port, vlan, inner_vlan, source, destination, protocol, icmp_type, .. } = table;
        let MatchTable { source_ports, destination_ports, .. } = table;
        Self { port, vlan, inner_vlan, source, destination, protocol, icmp_type, source_ports, destination_ports }
    }
}

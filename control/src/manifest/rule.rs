//! The rules of a manifest: which packets get which chain.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::reader::{Reader, wrong};
use super::{Bundle, ManifestError};
use crate::model::{ChainName, Match, Policy, PortName, PortRange, Prefix, Protocol, Rule, RuleName, VlanId};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleTable {
    name: Spanned<RuleName>,
    #[serde(default)]
    priority: u32,
    policy: Policy,
    chain: ChainName,
    #[serde(rename = "match")]
    matcher: Option<Spanned<MatchTable>>,
}

/// Conditions on a packet, as rules and branches have them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatchTable {
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

impl Reader<'_> {
    pub(super) fn rule(&self, table: RuleTable, bundle: &mut Bundle) -> Result<(), ManifestError> {
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

/// Accepts text or a number, so that `protocol = 89` and `destination_ports = 80` need no quotes.
pub(super) fn from_text<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
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

/// The same for a key that has to be there.
pub(super) fn required<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    from_text(deserializer)?.ok_or_else(|| serde::de::Error::custom("a value is missing"))
}

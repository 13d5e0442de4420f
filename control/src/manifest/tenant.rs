//! The tenants of a manifest. Such a manifest defines nothing else, since its key `tenant` can't name an owner as well.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::document::parse;
use super::position::Text;
use super::reader::wrong;
use super::{Bundle, ManifestError};
use crate::model::Tenant;

/// What the key `tenant` of a manifest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// Tables: the manifest defines tenants.
    Tables,
    /// Anything else: the owner of the objects, or a mistake.
    Owner,
}

impl<'de> Deserialize<'de> for Tenancy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kind;

        impl<'de> Visitor<'de> for Kind {
            type Value = Tenancy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tenant's name, or tables, each with the header [[tenant]]")
            }

            fn visit_str<E>(self, _: &str) -> Result<Tenancy, E> {
                Ok(Tenancy::Owner)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Tenancy, A::Error> {
                while table.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Tenancy::Owner)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Tenancy, A::Error> {
                while tables.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Tenancy::Tables)
            }
        }

        deserializer.deserialize_any(Kind)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "version")]
    _version: String,
    tenant: Vec<Spanned<Tenant>>,
    label: Option<Spanned<IgnoredAny>>,
    module: Option<Spanned<IgnoredAny>>,
    key: Option<Spanned<IgnoredAny>>,
    model: Option<Spanned<IgnoredAny>>,
    chain: Option<Spanned<IgnoredAny>>,
    rule: Option<Spanned<IgnoredAny>>,
    state: Option<Spanned<IgnoredAny>>,
}

/// Adds the tenants of a manifest to the bundle.
pub(super) fn read(text: &Text<'_>, bundle: &mut Bundle) -> Result<(), ManifestError> {
    let Document { tenant, label, module, key, model, chain, rule, state, .. } = parse(text)?;
    if let Some(label) = label {
        let problem = "the terms of tenants have none: leave it out, and give it to the manifests of their objects";
        return Err(wrong(text.place(&label.span()), format!("label: {problem}")));
    }
    let others =
        [("module", module), ("key", key), ("model", model), ("chain", chain), ("rule", rule), ("state", state)];
    for (key, other) in others {
        if let Some(other) = other {
            let problem =
                "a manifest with [[tenant]] defines tenants only: put this into another file, with tenant = \"NAME\"";
            return Err(wrong(text.place(&other.span()), format!("{key}: {problem}")));
        }
    }
    for tenant in tenant {
        let place = text.place(&tenant.span());
        let tenant = tenant.into_inner();
        tenant.check().map_err(|problem| wrong(place.clone(), format!("tenant {}: {problem}", tenant.name)))?;
        bundle.add_tenant(&place, tenant)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::{Class, ObjectRef};

    const GOOD: &str = r#"version = "pinion.v1"

[[tenant]]
name = "lab"
weight = 3
class_max = "latency"
memory_mib = 512
state_mib = 0
cpu_per_second_ms = 1500
clock_step_us = 1
modules_max = 20
keys_max = 3
models_max = 2
model_mib = 100
chains_max = 10
rules_max = 40
upload_mib = 64
ports = ["lan", "wan"]
addresses = ["10.77.0.0/16", "fd77::1"]
outbound_flows = true

[[tenant]]
name = "shop"
"#;

    fn read(text: &str) -> Result<Bundle, ManifestError> {
        let mut bundle = Bundle::default();
        crate::manifest::document::read(
            Path::new("tenants.toml"),
            text,
            &crate::manifest::default_tenant(),
            &mut bundle,
        )?;
        Ok(bundle)
    }

    fn refused_with(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        read(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_defines_tenants() {
        let bundle = read(GOOD).unwrap();
        let objects: Vec<String> = bundle.objects().iter().map(ObjectRef::to_string).collect();
        assert_eq!(objects, ["tenant lab", "tenant shop"]);
        let [lab, shop] = &bundle.load().unwrap().tenants[..] else { panic!("there are two") };
        assert_eq!((lab.weight, lab.class_max, lab.memory_mib, lab.state_mib), (3, Class::Latency, Some(512), Some(0)));
        assert_eq!(
            (lab.modules_max, lab.chains_max, lab.rules_max, lab.upload_mib),
            (Some(20), Some(10), Some(40), Some(64))
        );
        assert_eq!((lab.keys_max, lab.models_max, lab.model_mib), (Some(3), Some(2), Some(100)));
        assert_eq!(lab.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.77.0.0/16", "fd77::1/128"]);
        assert!(lab.outbound_flows && !lab.transparent_forwarding);
        assert_eq!(*shop, Tenant::new("shop".parse().unwrap()));
    }

    #[test]
    fn errors_name_the_line_and_the_key_and_what_is_allowed() {
        let cases = [
            (
                "weight = 3",
                "weight = 0",
                "5: tenant.weight: invalid value: integer `0`, expected a whole number from 1 to 1000",
            ),
            (
                "memory_mib = 512",
                "memory_mib = \"512\"",
                "7: tenant.memory_mib: invalid type: string \"512\", expected a whole number from 1 to 1048576",
            ),
            (
                "state_mib = 0",
                "state_mib = -1",
                "8: tenant.state_mib: invalid value: integer `-1`, expected a whole number from 0 to 65536",
            ),
            (
                "\"latency\"",
                "\"fast\"",
                "6: tenant.class_max: unknown variant `fast`, expected one of `system`, `latency`, `throughput`",
            ),
            (
                "\"wan\"",
                "\"WAN\"",
                "18: tenant.ports: \"WAN\" is not a port name: use 1 to 63 of a-z, 0-9 and '-', with no '-' first or last",
            ),
            (
                "10.77.0.0/16",
                "10.77.0.1/16",
                "19: tenant.addresses: 10.77.0.1/16 has bits set beyond its prefix length: write 10.77.0.0/16 if you mean all of \
                 these",
            ),
            (
                "outbound_flows = true",
                "outbound_flows = 1",
                "20: tenant.outbound_flows: invalid type: integer `1`, expected true or false",
            ),
            ("\"shop\"", "\"lab\"", "22: tenant lab is there already, at tenants.toml:3"),
            ("name = \"shop\"", "weight = 1", "22: tenant: missing key `name`"),
        ];
        for (from, to, expected) in cases {
            assert_eq!(refused_with(from, to), format!("tenants.toml:{expected}"), "{to}");
        }
        let error = refused_with("rules_max", "rule_max");
        assert!(
            error.starts_with("tenants.toml:16: tenant: unknown key `rule_max`, expected one of `name`,"),
            "{error}"
        );
        let table = "version = \"pinion.v1\"\n[tenant]\nname = \"lab\"\n";
        let error = read(table).unwrap_err().to_string();
        assert!(error.contains("expected a tenant's name, or tables, each with the header [[tenant]]"), "{error}");
    }

    #[test]
    fn a_manifest_with_tenants_defines_nothing_else() {
        let module = "[[module]]\nname = \"m\"\npath = \"m.wasm\"\n";
        assert_eq!(
            read(&format!("{GOOD}{module}")).err().map(|error| error.to_string()).as_deref(),
            Some(
                "tenants.toml:24: module: a manifest with [[tenant]] defines tenants only: put this into another file, with tenant = \
                 \"NAME\""
            )
        );
        // Several manifests may be one change.
        let mut bundle = read(GOOD).unwrap();
        let owned = format!("version = \"pinion.v1\"\ntenant = \"lab\"\n{module}");
        crate::manifest::document::read(Path::new("lab.toml"), &owned, &crate::manifest::default_tenant(), &mut bundle)
            .unwrap();
        assert_eq!(bundle.objects().len(), 3);
    }
}

//! The names that tenants and operators give to objects. All follow one rule, and each kind has its own type.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

use super::quoted;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Text that is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is not a {what} name: use 1 to {NAME_BYTES_MAX} of a-z, 0-9 and '-', with no '-' first or last",
    quoted(value)
)]
pub struct BadName {
    what: &'static str,
    value: String,
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Deserialises a name from text. It uses a visitor, so that a document's error points to this name and not to the list
/// that contains it.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err = BadName>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text: 1 to 63 of a-z, 0-9 and `-`, with no `-` first or last.
            pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
                let value = text.into();
                if is_name(&value) { Ok(Self(value.into())) } else { Err(BadName { what: $what, value }) }
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(PhantomData))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name!(
    /// The owner of modules, chains and rules.
    TenantName,
    "tenant"
);
name!(
    /// The name of a module, within its tenant.
    ModuleName,
    "module"
);
name!(
    /// The name of a chain, within its tenant.
    ChainName,
    "chain"
);
impl ChainName {
    /// Returns the name of the chain by which a module is invoked.
    pub fn of_module(module: &ModuleName) -> Self {
        Self(Arc::clone(&module.0))
    }
}

name!(
    /// The name of a stage, within its chain.
    StageName,
    "stage"
);
name!(
    /// The name of a field of state, within its tenant.
    FieldName,
    "field"
);
name!(
    /// The name of a flow rule, within its tenant.
    RuleName,
    "rule"
);
name!(
    /// The name of a key that functions may use without reading it.
    KeyName,
    "key"
);
name!(
    /// The name of a model that functions may use.
    ModelName,
    "model"
);
name!(
    /// The label of manifests, which the objects that are applied from them have. Each tenant has labels of its own.
    Label,
    "label"
);
name!(
    /// The name of a gateway port of the node, as in the operator's configuration.
    PortName,
    "port"
);

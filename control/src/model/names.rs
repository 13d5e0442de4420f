//! Names that tenants and operators give to things. All follow one rule, none can be taken for another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::quoted;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Text that was meant to be a name and is not.
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

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text: 1 to 63 of a-z, 0-9 and `-`, with no `-` first or last.
            pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
                let value = text.into();
                if is_name(&value) { Ok(Self(value.into())) } else { Err(BadName { what: $what, value }) }
            }

            /// The name as text.
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

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::new(text)
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
    /// A module, within its tenant.
    ModuleName,
    "module"
);
name!(
    /// A chain, within its tenant.
    ChainName,
    "chain"
);
impl ChainName {
    /// The name of the chain that a module is invoked by.
    pub fn of_module(module: &ModuleName) -> Self {
        Self(Arc::clone(&module.0))
    }
}

name!(
    /// A stage, within its chain.
    StageName,
    "stage"
);
name!(
    /// A field of state, within its tenant.
    FieldName,
    "field"
);
name!(
    /// A flow rule, within its tenant.
    RuleName,
    "rule"
);
name!(
    /// A gateway port of the node, as the operator's configuration calls it.
    PortName,
    "port"
);

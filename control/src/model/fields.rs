//! State that chains keep outside their instances: fields, and the stages' access to them.

use serde::{Deserialize, Serialize};

use super::{ChainProblem, FieldName, Stage};

/// The longest value of a field, in bytes.
pub const VALUE_BYTES_MAX: u32 = 1024;
/// The maximum number of entries of a field.
pub const ENTRIES_MAX: u32 = 1 << 20;
/// The longest TTL of a field's entries: 30 days.
pub const TTL_SECONDS_MAX: u32 = 30 * 24 * 3600;
/// The maximum number of fields of a chain.
pub const FIELDS_MAX: usize = 32;

/// What happens to a new entry when the field is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// The function gets an error.
    #[default]
    Refuse,
    /// Another entry is evicted: of those that could make room, the one that was not written to for the longest time.
    Evict,
}

/// Entries of one kind, by key. Chains of a tenant that declare a field of the same name share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name within the tenant.
    pub name: FieldName,
    /// The maximum length of a value, 1 to [`VALUE_BYTES_MAX`].
    pub value_bytes: u32,
    /// The maximum number of entries, 1 to [`ENTRIES_MAX`].
    pub entries: u32,
    /// The TTL of an entry after it was written, 1 to [`TTL_SECONDS_MAX`]; none for unlimited.
    pub ttl_seconds: Option<u32>,
    /// What happens to a new entry when the field is full.
    pub when_full: WhenFull,
}

/// What a stage may do with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read entries.
    Read,
    /// Read and change entries.
    Write,
}

impl Access {
    /// Returns its name in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// A grant of a field to a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// The field.
    pub field: FieldName,
    /// The access that is granted.
    pub access: Access,
}

/// What is wrong with a field in itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// A value length that is out of bounds.
    #[error("value_bytes is {0}: it must be from 1 to {VALUE_BYTES_MAX}")]
    ValueBytes(u32),
    /// A number of entries that is out of bounds.
    #[error("entries is {0}: it must be from 1 to {ENTRIES_MAX}")]
    Entries(u32),
    /// A TTL that is out of bounds.
    #[error("ttl_seconds is {0}: it must be from 1 to {TTL_SECONDS_MAX}, or be left out for entries that stay")]
    Ttl(u32),
}

impl Field {
    /// Checks that every number is within its bounds.
    pub fn check(&self) -> Result<(), FieldProblem> {
        if !(1..=VALUE_BYTES_MAX).contains(&self.value_bytes) {
            return Err(FieldProblem::ValueBytes(self.value_bytes));
        }
        if !(1..=ENTRIES_MAX).contains(&self.entries) {
            return Err(FieldProblem::Entries(self.entries));
        }
        match self.ttl_seconds {
            Some(seconds) if !(1..=TTL_SECONDS_MAX).contains(&seconds) => Err(FieldProblem::Ttl(seconds)),
            _ => Ok(()),
        }
    }
}

/// Checks a chain's fields, and that each grant names one of them.
pub(super) fn check(fields: &[Field], stages: &[Stage]) -> Result<(), ChainProblem> {
    if fields.len() > FIELDS_MAX {
        return Err(ChainProblem::Fields(fields.len()));
    }
    for (at, field) in fields.iter().enumerate() {
        let name = &field.name;
        field.check().map_err(|problem| ChainProblem::Field { field: name.clone(), problem })?;
        if fields[..at].iter().any(|other| other.name == *name) {
            return Err(ChainProblem::SameField(name.clone()));
        }
        if !stages.iter().any(|stage| stage.state.iter().any(|grant| grant.field == *name)) {
            return Err(ChainProblem::FieldWithoutGrant(name.clone()));
        }
    }
    for (stage, Stage { state, .. }) in stages.iter().enumerate() {
        for (at, Grant { field, .. }) in state.iter().enumerate() {
            if !fields.iter().any(|declared| declared.name == *field) {
                return Err(ChainProblem::FieldNotDeclared { stage: stage + 1, field: field.clone() });
            }
            if state[..at].iter().any(|other| other.field == *field) {
                return Err(ChainProblem::SameGrant { stage: stage + 1, field: field.clone() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Chain, Change, DesiredState, Digest, Module};

    fn field(name: &str) -> Field {
        let name = name.parse().unwrap();
        Field { name, value_bytes: 8, entries: 10, ttl_seconds: None, when_full: WhenFull::Refuse }
    }

    /// Returns a chain of one stage with these fields and grants.
    fn chain(tenant: &str, name: &str, fields: Vec<Field>, grants: &[&str]) -> Chain {
        let mut stage = Stage::new("m".parse().unwrap(), Vec::new());
        let grant = |name: &&str| Grant { field: name.parse().unwrap(), access: Access::Read };
        stage.state = grants.iter().map(grant).collect();
        Chain { fields, ..Chain::new(tenant.parse().unwrap(), name.parse().unwrap(), vec![stage]) }
    }

    fn of(chains: Vec<Chain>) -> Change {
        let module = |chain: &Chain| Module {
            tenant: chain.tenant.clone(),
            name: "m".parse().unwrap(),
            digest: Digest::of(b"m"),
            size_bytes: 1,
        };
        let mut modules: Vec<Module> = chains.iter().map(module).collect();
        modules.dedup();
        Change { modules, chains, ..Change::default() }
    }

    #[test]
    fn errors_in_a_chains_fields_name_the_field() {
        let many = (0..=FIELDS_MAX).map(|number| field(&format!("f{number}"))).collect();
        let cases = [
            (chain("t", "c", many, &[]), "it has 33 state fields: a chain has at most 32"),
            (
                chain("t", "c", vec![Field { value_bytes: 0, ..field("a") }], &["a"]),
                "state field a: value_bytes is 0: it must be from 1 to 1024",
            ),
            (
                chain("t", "c", vec![Field { entries: ENTRIES_MAX + 1, ..field("a") }], &["a"]),
                "state field a: entries is 1048577: it must be from 1 to 1048576",
            ),
            (
                chain("t", "c", vec![Field { ttl_seconds: Some(0), ..field("a") }], &["a"]),
                "state field a: ttl_seconds is 0: it must be from 1 to 2592000",
            ),
            (chain("t", "c", vec![field("a"), field("a")], &["a"]), "the state field a is declared twice"),
            (chain("t", "c", vec![field("a")], &[]), "the state field a is granted to none of its stages"),
            (chain("t", "c", vec![], &["a"]), "stage 1 is granted the state field a, which is not declared"),
            (chain("t", "c", vec![field("a")], &["a", "a"]), "stage 1 is granted the state field a twice"),
        ];
        for (chain, expected) in cases {
            let problem = chain.check().unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{problem:?} does not say {expected:?}");
        }
        assert_eq!(chain("t", "c", vec![field("b"), field("a")], &["a", "b"]).check(), Ok(()));
    }

    #[test]
    fn chains_of_a_tenant_declare_a_field_identically_and_change_it_together() {
        let declared = |tenant, name, entries| chain(tenant, name, vec![Field { entries, ..field("a") }], &["a"]);
        let change = of(vec![declared("t", "first", 10), declared("t", "second", 10), declared("u", "third", 20)]);
        let state = DesiredState::default().apply(&change).unwrap().state;
        let refused = state.apply(&of(vec![declared("t", "second", 20)])).unwrap_err().to_string();
        assert!(
            refused.starts_with(
                "chain t/first and chain t/second declare the state field a differently: declare it alike"
            ),
            "{refused}"
        );
        assert!(state.apply(&of(vec![declared("t", "first", 20), declared("t", "second", 20)])).is_ok());
    }
}

//! What one tenant has of what tenants share.

use serde::Serialize;

use crate::model::TenantName;

/// The account of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantAccount {
    /// The tenant.
    pub tenant: TenantName,
    /// What it has.
    pub resources: Vec<ResourceUse>,
}

/// What a tenant has of one resource. Numbers are in the unit that the name ends with, or else are counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResourceUse {
    /// The resource, such as `fwps` or `memory_kib`.
    pub name: String,
    /// How much it has, or has used.
    pub used: u64,
    /// How much it can have whatever others have.
    pub guaranteed: Option<u64>,
    /// How much it can have at most; of processor time, in a second.
    pub limit: Option<u64>,
    /// How often it was refused more, since others have a claim to what is left; none if that is not counted.
    pub refused: Option<u64>,
}

impl ResourceUse {
    /// Returns the use of a resource without shares, limits and refusals.
    #[must_use]
    pub fn of(name: &str, used: u64) -> Self {
        Self { name: name.to_owned(), used, guaranteed: None, limit: None, refused: None }
    }
}

//! Accounts of tenants: what they have of what tenants share, and how often they were refused more.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Control, ControlError, lock};
use crate::model::{DesiredState, Invalid, QuotaUse, TenantName};
use crate::node::{ResourceUse, TenantAccount};
use crate::store::HistoryUse;

/// Most tenants whose refusals are counted: as many as may have active chains.
const TENANTS_COUNTED_MAX: usize = 4096;

/// How often tenants were refused more of something than a node keeps room for, by the name of that.
#[derive(Default)]
pub(super) struct RefusedQuotas(Mutex<BTreeMap<TenantName, BTreeMap<&'static str, u64>>>);

impl RefusedQuotas {
    /// Counts an error, if it is such a refusal.
    pub(super) fn note(&self, error: &ControlError, state: &DesiredState) {
        let ControlError::Invalid(Invalid::TooMuchOfOne { tenant, what, .. } | Invalid::OverQuota { tenant, what, .. }) =
            error
        else {
            return;
        };
        let mut by_tenant = lock(&self.0);
        // Names of tenants are made up easily.
        if by_tenant.len() >= TENANTS_COUNTED_MAX {
            by_tenant.retain(|tenant, _| QuotaUse::all_of(state, tenant).iter().any(|quota| quota.used > 0));
        }
        if by_tenant.len() < TENANTS_COUNTED_MAX || by_tenant.contains_key(tenant) {
            *by_tenant.entry(tenant.clone()).or_default().entry(what).or_default() += 1;
        }
    }

    fn of(&self, tenant: &TenantName, what: &str) -> u64 {
        lock(&self.0).get(tenant).and_then(|refused| refused.get(what)).copied().unwrap_or(0)
    }
}

impl Control {
    /// Returns the account of a tenant; none if it has no terms of its own, no object, no upload, no revision, and nothing on
    /// the node.
    pub fn account(&self, tenant: &TenantName) -> Result<Option<TenantAccount>, ControlError> {
        let mut resources = self.node.resources(tenant);
        let desired = self.desired();
        let terms = desired.tenant(tenant).map(|terms| &**terms);
        let mut quotas = QuotaUse::all_of(&desired, tenant);
        let uploads = self.store.uploads().map(|all| QuotaUse::of_uploads(&all, tenant, terms));
        quotas.extend(uploads.as_ref().map(Vec::clone).unwrap_or_default());
        let history = self.store.history_use(tenant);
        let has_history = history.as_ref().is_ok_and(|history| history.revisions > 0);
        if terms.is_none() && resources.is_empty() && quotas.iter().all(|quota| quota.used == 0) && !has_history {
            // Without the store it is not known whether it has uploads and revisions. The rest can be told all the same.
            return uploads.and(history).map(|_| None).map_err(Into::into);
        }
        resources.extend(quotas.into_iter().map(|QuotaUse { key, what, used, limit }| ResourceUse {
            name: key.to_owned(),
            used,
            guaranteed: None,
            limit: Some(limit),
            refused: Some(self.refused_quotas.of(tenant, what)),
        }));
        resources.extend(history.into_iter().flat_map(of_history));
        Ok(Some(TenantAccount { tenant: tenant.clone(), resources }))
    }
}

/// Returns the rows of a tenant's revisions.
fn of_history(HistoryUse { revisions, bytes, guaranteed, limits }: HistoryUse) -> [ResourceUse; 2] {
    let row = |name, used, guaranteed, limit| ResourceUse {
        guaranteed: Some(guaranteed),
        limit: Some(limit),
        ..ResourceUse::of(name, used)
    };
    [
        row("history_revisions", revisions, guaranteed.revisions, limits.revisions),
        row("history_bytes", bytes, guaranteed.bytes, limits.bytes),
    ]
}

//! The templates that are loaded, for all workers.
//!
//! Loading reads a template's files, compares their digest and maps the code into each worker's engine, which takes milliseconds. So it is
//! done once for all workers, and ahead, by the thread that makes a change:
//!
//! ```text
//!   control thread   a change needs it --read, compared, mapped--> loaded, as long as the change is under way
//!   launcher         a chain that comes into force takes it; loaded as long as the chain has it
//! ```
//!
//! What was not loaded ahead is loaded by the launcher: as the node starts, and after memory was short. A template is charged to its tenant
//! as long as a chain, a change under way or an FWP has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinion_control::model::{Chain, Files, TenantName};
use pinion_guest::files::Bundle;
use wasmtime::Linker;

use super::wishes;
use crate::fwp::FwpContext;
use crate::fwp::template::{Loaded, Template, TemplateError};
use crate::templates::artifacts::{ArtifactError, Artifacts, TemplateKey, Wishes};
use crate::templates::bundles::{BundleError, Bundles};
use crate::templates::one_at_a_time::OneAtATime;
use crate::tenants::accounts::{Accounts, Charge, OverLimit};

/// The loaded templates; see the module.
pub struct LoadedTemplates {
    artifacts: Arc<Artifacts>,
    bundles: Arc<Bundles>,
    accounts: Arc<Accounts>,
    /// The imports that guests get, by worker.
    linkers: Vec<Linker<FwpContext>>,
    loaded: Mutex<HashMap<TemplateKey, Weak<LoadedTemplate>>>,
    /// Several changes, and the launcher, may need the same template at once.
    loading: OneAtATime<TemplateKey>,
}

/// A template in the engine of each worker, with the files that its instances see. It is loaded as long as this lives.
pub struct LoadedTemplate {
    by_worker: Vec<Loaded>,
    files: Option<Arc<Bundle>>,
}

/// Why a template cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An error with its own files.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// An error with the files that its instances see.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Its tenant has too little memory left.
    #[error(
        "its code and files take {} KiB of memory, and the tenant would have more than the {} KiB that the node grants it: delete chains, \
         keep fewer instances ready (cache_min, cache_max), or ask the operator to raise the tenant's memory_mib",
        .0.wanted_kib, .0.limit_kib
    )]
    OverLimit(OverLimit),
}

impl LoadError {
    /// Returns the sentence for the template's tenant: without the node's paths, which belong in the node's log only.
    fn for_tenant(&self) -> String {
        match self {
            Self::Artifact(ArtifactError::File(error)) => format!("its template is {}", error.for_tenant()),
            Self::Artifact(ArtifactError::Load { .. }) => {
                "its template does not load; the node's log says why".to_owned()
            }
            Self::Bundle(BundleError::File(error)) => format!("the archive of its files is {}", error.for_tenant()),
            other => other.to_string(),
        }
    }
}

/// The templates of a chain, by worker and then by stage.
pub(super) type ChainTemplates = Vec<Vec<Arc<Template>>>;

/// Why the templates of a chain cannot be had.
pub(super) struct Unavailable {
    /// A sentence for the chain's tenant.
    pub(super) sentence: String,
    /// The tenant's memory limit, if it is for that.
    pub(super) over_limit: Option<OverLimit>,
}

impl LoadedTemplates {
    /// Creates an empty set of templates for the engines of these linkers, one for each worker.
    #[must_use]
    pub fn new(
        artifacts: Arc<Artifacts>,
        bundles: Arc<Bundles>,
        accounts: Arc<Accounts>,
        linkers: Vec<Linker<FwpContext>>,
    ) -> Self {
        Self { artifacts, bundles, accounts, linkers, loaded: Mutex::default(), loading: OneAtATime::default() }
    }

    /// Returns a template, if it is loaded.
    #[must_use]
    pub fn get(&self, key: &TemplateKey) -> Option<Arc<LoadedTemplate>> {
        self.loaded().get(key)?.upgrade()
    }

    /// Returns a template of a tenant, and loads it if necessary; once, also if several threads ask. Before anything is read it is charged to
    /// the tenant, until the last FWP made of it has ended.
    ///
    /// # Errors
    /// If it is missing, damaged, not for these engines, or more than its tenant may have.
    pub fn load(
        &self,
        key: &TemplateKey,
        tenant: &TenantName,
        files: Option<&Files>,
    ) -> Result<Arc<LoadedTemplate>, LoadError> {
        if let Some(loaded) = self.get(key) {
            return Ok(loaded);
        }
        let _alone = self.loading.take(*key);
        if let Some(loaded) = self.get(key) {
            return Ok(loaded);
        }
        let code_bytes = self.artifacts.code_bytes(key)?;
        let charge = Arc::new(self.charge(tenant, code_bytes, files).map_err(LoadError::OverLimit)?);
        let files = files.map(|files| self.bundles.load(&files.digest)).transpose()?;
        let (modules, facts) = self.artifacts.load(self.linkers.iter().map(Linker::engine), key)?;
        let of_worker = |module| Loaded::new((module, facts.clone())).charged(Arc::clone(&charge));
        let by_worker = modules.into_iter().map(of_worker).collect();
        let new = Arc::new(LoadedTemplate { by_worker, files });
        let mut loaded = self.loaded();
        if loaded.len() == loaded.capacity() {
            loaded.retain(|_, other| other.strong_count() > 0);
        }
        loaded.insert(*key, Arc::downgrade(&new));
        Ok(new)
    }

    fn charge(&self, tenant: &TenantName, code_bytes: u64, files: Option<&Files>) -> Result<Charge, OverLimit> {
        let wanted_kib = (code_bytes + files.map_or(0, |files| files.size_bytes)).div_ceil(1024);
        let of_files = files.map(|files| self.accounts.charge_files(tenant, files)).transpose();
        let charge = of_files.and_then(|of_files| Ok(self.accounts.charge(tenant, code_bytes)?.and(of_files)));
        charge.map_err(|over| OverLimit { wanted_kib, ..over })
    }

    /// Links a loaded template with the imports of guests, for each worker.
    ///
    /// # Errors
    /// Returns what does not match.
    pub fn link(&self, loaded: &LoadedTemplate, wishes: &Wishes<'_>) -> Result<Vec<Arc<Template>>, TemplateError> {
        let config: Arc<[u8]> = wishes.config.into();
        let link = |(linker, of_worker): (&Linker<FwpContext>, &Loaded)| {
            let (files, memory_bytes_max) = (loaded.files.clone(), wishes.memory_bytes_max as usize);
            Template::new(linker, of_worker, Arc::clone(&config), files, memory_bytes_max)
        };
        self.linkers.iter().zip(&loaded.by_worker).map(link).collect()
    }

    /// Returns the templates of a chain, and what keeps them loaded.
    ///
    /// # Errors
    /// Returns why one of them cannot be had.
    pub(super) fn of_chain(
        &self,
        spec: &Chain,
        keys: &[TemplateKey],
    ) -> Result<(ChainTemplates, Vec<Arc<LoadedTemplate>>), Unavailable> {
        if self.linkers.is_empty() {
            // Without workers there are no instances.
            return Ok((Vec::new(), Vec::new()));
        }
        let (mut templates, mut all) = (vec![Vec::new(); self.linkers.len()], Vec::new());
        for (stage, key) in keys.iter().enumerate() {
            let failed = |error: &dyn std::fmt::Display, over_limit| Unavailable {
                sentence: format!("stage {stage} ({}): {error}", spec.stages[stage].module),
                over_limit,
            };
            let wishes = wishes(spec, stage);
            let loaded = self.load(key, &spec.tenant, wishes.files).map_err(|error| {
                let told = error.for_tenant();
                if let LoadError::OverLimit(limit) = error {
                    return failed(&told, Some(limit));
                }
                tracing::warn!(tenant = %spec.tenant, chain = %spec.name, stage, "its template cannot be loaded: {error}");
                failed(&told, None)
            })?;
            let linked = self.link(&loaded, &wishes).map_err(|error| failed(&error, None))?;
            templates.iter_mut().zip(linked).for_each(|(of_worker, template)| of_worker.push(template));
            all.push(loaded);
        }
        Ok((templates, all))
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<TemplateKey, Weak<LoadedTemplate>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::derived::DerivedError;

    #[test]
    fn a_tenant_is_told_why_its_template_is_not_loaded_without_the_nodes_paths() {
        let damaged = || DerivedError::Damaged { path: "/state/a".into(), reason: "it is cut short".to_owned() };
        let unreadable =
            || DerivedError::File { path: "/state/a".into(), error: std::io::Error::from_raw_os_error(24) };
        let load = ArtifactError::Load { path: "/state/a".into(), error: "of /state/a".to_owned() };
        for (error, told) in [
            (ArtifactError::File(damaged()).into(), "its template is damaged; made again from what was uploaded"),
            (
                BundleError::File(damaged()).into(),
                "the archive of its files is damaged; made again from what was uploaded",
            ),
            (ArtifactError::File(unreadable()).into(), "its template is not readable now; the node's log says why"),
            (LoadError::from(load), "its template does not load; the node's log says why"),
        ] {
            assert!(error.to_string().contains("/state/a"));
            assert_eq!(error.for_tenant(), told);
        }
    }
}

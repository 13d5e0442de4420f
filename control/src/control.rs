//! [`Control`]: applies changes in a fixed order. It is the only owner of the store and the node.
//!
//! The API calls it from threads that may block. Nothing here is async, so a client that disconnects cannot leave a
//! change half done. This module knows nothing of sockets and messages.
//!
//! ```text
//!   change:  lock -> model: next state -> node: check -> store: commit -> node: follow -> unlock
//!            and if templates are missing after the check: unlock -> node: build -> once more from the beginning
//!   upload:  one at a time: verify digest -> room, also that of garbage -> node: admit -> store, with revisions that give way
//!   key:     the same: parse -> seal -> room -> store
//!   garbage: no upload in progress, lock -> store: remove unused uploads
//! ```

mod account;
mod change;
mod first_tenants;
mod implicit_chains;
mod rebuild;
mod revisions;
mod sealed_keys;
mod turn_lock;
mod uploads;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use pinion_keys::KeyError;
use serde::Serialize;
use tokio::sync::watch;

use self::account::RefusedQuotas;
use self::change::Reason;
use self::first_tenants::FirstTenants;
pub use self::rebuild::BuildTime;
use self::rebuild::NotBuilt;
pub use self::revisions::{Past, Restored};
pub use self::sealed_keys::SealError;
use self::sealed_keys::SealedKeys;
use self::turn_lock::TurnLock;
pub use self::uploads::{IfFull, NamedUpload, UploadKind, UploadedKey};
use crate::journal::Journal;
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{
    Applied, Author, Chain, ChainName, DesiredState, Digest, Invalid, KeyName, Labelling, ModelName, ModuleName,
    ObjectRef, Outcome, Rule, Tenant, TenantName,
};
use crate::node::{
    Answered, Call, CallHandle, ChainInstanceStatus, FwpStatus, InvokeError, Node, NodeStatus, Pages, Refusal,
};
use crate::store::{Quarantined, Signature, Store, StoreError};

/// Why [`Control`] did not do what it was asked to. Nothing was changed, unless the error says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The desired state would be invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The node refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A tenant's caller asks for a change, and the node has no such tenant, whose terms would bound it.
    #[error("tenant {0} is not on this node: its operator makes it with `pinion apply` of a [[tenant]] table")]
    UnknownTenant(TenantName),
    /// A module, a key, a model, or the files of a stage, name what their tenant did not upload.
    #[error("{object}: its tenant has uploaded nothing with the digest {digest}: upload it first")]
    NotUploaded {
        /// The module, key, model or chain.
        object: ObjectRef,
        /// The digest without bytes.
        digest: Digest,
    },
    /// The received bytes do not have the announced digest.
    #[error("the bytes have the digest {found}, announced was {announced}: upload them again")]
    WrongDigest {
        /// The announced digest.
        announced: Digest,
        /// The digest of the received bytes.
        found: Digest,
    },
    /// Something was changed since the revision that the request expects.
    #[error(
        "the request expects revision {expected}, and revision {present} has changed objects of tenant {tenant} since: look at it \
         (pinion history), and ask again with --expected-revision {present} if the change is still right"
    )]
    Outdated {
        /// The revision that the request expects.
        expected: u64,
        /// The latest revision of the tenant.
        present: u64,
        /// A tenant of the request.
        tenant: TenantName,
    },
    /// Whether something was changed since the revision that the request expects is not known any more.
    #[error(
        "the request expects revision {expected}, and whether tenant {tenant}, which has nothing now, was changed since is known from \
         revision {present} on only: ask again with --expected-revision {present} if the change is still right"
    )]
    NotRecorded {
        /// The revision that the request expects.
        expected: u64,
        /// The earliest revision that it may expect.
        present: u64,
        /// A tenant of the request.
        tenant: TenantName,
    },
    /// The latest revision is not the one any more that was to be undone.
    #[error(
        "revision {present} has changed objects of tenant {tenant} since it was asked to undo its latest one: look at it (pinion \
         history), and undo again if that is still right"
    )]
    ChangedMeanwhile {
        /// The tenant.
        tenant: TenantName,
        /// Its latest revision.
        present: u64,
    },
    /// A request names a revision that is not there yet.
    #[error("there is no revision {number} yet: the latest is {latest}")]
    NoRevision {
        /// The number.
        number: u64,
        /// The latest one.
        latest: u64,
    },
    /// A request names a revision that the node does not know any more.
    #[error("revision {number} of tenant {tenant} is not kept any more: the earliest that is known is {from}")]
    RevisionForgotten {
        /// The tenant.
        tenant: TenantName,
        /// The number.
        number: u64,
        /// The earliest that is known.
        from: u64,
    },
    /// The operator names a tenant of which nothing is known.
    #[error(
        "there is no tenant {0}: it has no terms, no object and no revision (pinion history -A shows all revisions)"
    )]
    NoTenant(TenantName),
    /// There is no revision to undo.
    #[error("tenant {0} has no revision to undo: none is kept, or there was none")]
    NothingToUndo(TenantName),
    /// Neither a chain nor a module has the name to be invoked.
    #[error("there is no chain {tenant}/{name}, nor a module of that name")]
    NoFunction {
        /// The tenant that was named.
        tenant: TenantName,
        /// The name that was not found.
        name: ChainName,
    },
    /// The upload is larger than the node accepts.
    #[error("the {kind} {size_bytes} bytes: at most {} are allowed", .kind.bytes_max())]
    TooLarge {
        /// What is uploaded.
        kind: UploadKind,
        /// Its size.
        size_bytes: u64,
    },
    /// What is uploaded as a key is none.
    #[error("this is no key that a node takes: {0}")]
    BadKey(#[from] KeyError),
    /// A key could not be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The change is durable, but the node failed while it followed it.
    #[error(
        "the change is durable, as version {version}, but the node failed to apply it: see its log, then restart it"
    )]
    NotFollowed {
        /// The version that is durable.
        version: u64,
    },
}

/// Tenants, modules, keys, models, chains and rules to create or update.
#[derive(Clone, Debug, Default)]
pub struct ApplyRequest {
    /// Tenants, as they should be.
    pub tenants: Vec<Tenant>,
    /// Modules, by the digest of bytes that were uploaded before.
    pub modules: Vec<NamedUpload>,
    /// Keys, by the digest of the public key of what was uploaded before.
    pub keys: Vec<NamedUpload<KeyName>>,
    /// Models, by the digest of bytes that were uploaded before.
    pub models: Vec<NamedUpload<ModelName>>,
    /// Chains, as they should be.
    pub chains: Vec<Chain>,
    /// Rules, as they should be.
    pub rules: Vec<Rule>,
    /// Objects to delete in the same change.
    pub deletes: Vec<ObjectRef>,
    /// Which label the objects get, and what is pruned.
    pub labelling: Labelling,
    /// On what terms it is made.
    pub options: ChangeOptions,
}

/// On what terms a change is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeOptions {
    /// The change is refused if a later revision touched a tenant of it.
    pub expected_revision: Option<u64>,
    /// The change is checked and answered as if it were made, and is not made.
    pub dry_run: bool,
}

impl ApplyRequest {
    /// Returns the tenants whose objects, or terms, it would change.
    pub(crate) fn tenants(&self) -> BTreeSet<TenantName> {
        let tenants = self.tenants.iter().map(|tenant| &tenant.name);
        let tenants = tenants.chain(self.modules.iter().map(|module| &module.tenant));
        let tenants = tenants.chain(self.keys.iter().map(|key| &key.tenant));
        let tenants = tenants.chain(self.models.iter().map(|model| &model.tenant));
        let tenants = tenants.chain(self.chains.iter().map(|chain| &chain.tenant));
        let tenants = tenants.chain(self.rules.iter().map(|rule| &rule.tenant));
        let tenants = tenants.chain(self.deletes.iter().map(ObjectRef::tenant));
        tenants.chain(&self.labelling.prune).cloned().collect()
    }

    /// Returns the tenant of the first object that a tenant owns. Manifests are of one tenant. Tenants themselves are the
    /// operator's, who must not wait for their changes.
    pub(crate) fn tenant(&self) -> Option<&TenantName> {
        let modules = self.modules.first().map(|module| &module.tenant);
        let keys = self.keys.first().map(|key| &key.tenant);
        let models = self.models.first().map(|model| &model.tenant);
        let chains = self.chains.first().map(|chain| &chain.tenant);
        let rules = self.rules.first().map(|rule| &rule.tenant);
        let deletes = self.deletes.iter().find(|object| !matches!(object, ObjectRef::Tenant { .. }));
        let named = modules.or(keys).or(models).or(chains).or(rules).or(deletes.map(ObjectRef::tenant));
        named.or(self.labelling.prune.first())
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The version of the desired state after the change, which is the number of its revision.
    pub version: u64,
    /// One outcome for each named object, in the order in which they were named.
    pub outcomes: Vec<Outcome>,
}

/// What the node's configuration says about the desired state.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Tenants. Those that the store does not have are added durably. Those that it has stay as they are stored, with a
    /// warning in the status if they differ.
    pub tenants: Vec<Tenant>,
    /// The file with the secret that keys are sealed with. By default one beside the store, which is made with the first key.
    pub secret: Option<PathBuf>,
}

/// Holds the desired state, makes changes durable, and passes them to the node.
pub struct Control {
    store: Arc<Store>,
    sealed_keys: SealedKeys,
    node: Arc<dyn Node>,
    /// Held for a whole change but not while templates are built, so that changes are serialised and wait for no build. Taken
    /// in turns of parties.
    changing: TurnLock,
    /// Held for a whole upload, in turns of tenants. Looking at one module at a time bounds the resources that uploads use, and garbage
    /// can't be collected between an admission and the moment its upload is stored.
    admitting: TurnLock,
    /// The durable state. Locked only for a pointer copy.
    desired: RwLock<Arc<DesiredState>>,
    /// Stored chains that the node could not build when no change asked for it, and why.
    not_built: Mutex<BTreeMap<ObjectRef, NotBuilt>>,
    /// The durable state may differ from `desired`: the store failed during a change and could not be read, or what is damaged
    /// in it could not be set aside.
    is_unsettled: AtomicBool,
    /// Modules that were invoked by name, for which the node therefore has chains. Not durable: after a restart, the
    /// next invocation creates the chain again.
    invoked_modules: Mutex<BTreeSet<(TenantName, ModuleName)>>,
    refused_quotas: RefusedQuotas,
    first_tenants: FirstTenants,
}

impl Control {
    /// Restores the desired state from the store and passes it to the node, which serves what is built of it.
    /// [`Control::build_missing`] builds the rest.
    pub fn open(store: Arc<Store>, node: Arc<dyn Node>) -> Result<Self, StoreError> {
        Self::open_with(store, node, Settings::default())
    }

    /// As [`Control::open`], with what the node's configuration says.
    pub fn open_with(store: Arc<Store>, node: Arc<dyn Node>, settings: Settings) -> Result<Self, StoreError> {
        let Settings { tenants, secret } = settings;
        let sealed_keys = SealedKeys::new(&store, secret);
        let first_tenants = FirstTenants::new(tenants);
        let (stored, is_unsettled) = match store.recover(SystemTime::now()) {
            Ok(stored) => (stored, false),
            // The next change writes what could not be written now.
            Err(error @ StoreError::Disk(_)) => {
                tracing::warn!("what is damaged in the store could not be set aside: {error}");
                (store.load()?, true)
            }
            Err(error) => return Err(error),
        };
        let desired = Arc::new(first_tenants.add_to(&store, stored));
        let control = Self {
            store,
            sealed_keys,
            node,
            changing: TurnLock::default(),
            admitting: TurnLock::default(),
            desired: RwLock::new(desired.clone()),
            not_built: Mutex::default(),
            is_unsettled: AtomicBool::new(is_unsettled),
            invoked_modules: Mutex::default(),
            refused_quotas: RefusedQuotas::default(),
            first_tenants,
        };
        // What is too much does no harm, and a node whose disk is full must still serve its clients.
        if !is_unsettled && let Err(error) = control.tidy_up() {
            tracing::warn!("old revisions or unused uploads could not be removed from the store: {error}");
        }
        tracing::info!(
            version = desired.version(),
            tenants = desired.tenants().len(),
            modules = desired.modules().len(),
            keys = desired.keys().len(),
            models = desired.models().len(),
            chains = desired.chains().len(),
            rules = desired.rules().len(),
            "desired state restored"
        );
        control.node.follow(desired, &|| false);
        Ok(control)
    }

    /// Returns a receiver that changes each time [`Control::build_missing`] has something to rebuild.
    pub fn damaged(&self) -> watch::Receiver<u64> {
        self.node.damaged()
    }

    /// Returns the desired state that is durable now.
    pub fn desired(&self) -> Arc<DesiredState> {
        self.desired.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses a tenant that is no object of the desired state, so that its callers change nothing: without terms it would
    /// be bounded by the node's defaults only.
    pub fn check_known(&self, tenant: &TenantName) -> Result<(), ControlError> {
        match self.desired().tenant(tenant) {
            Some(_) => Ok(()),
            None => Err(ControlError::UnknownTenant(tenant.clone())),
        }
    }

    fn commit(&self, applied: &Applied, author: &Author, reason: Reason) -> Result<(), StoreError> {
        let signature = Signature { author: author.clone(), time: SystemTime::now() };
        let committed = match reason {
            Reason::Request => self.store.commit(applied, &signature),
            Reason::Return => self.store.commit_return(applied, &signature),
        };
        committed.inspect_err(|error| {
            if matches!(error, StoreError::Unknown(_)) {
                self.is_unsettled.store(true, Ordering::Relaxed);
            }
        })
    }

    /// Reads the durable state if the store could not tell whether the last change was committed.
    fn settle(&self) -> Result<(), ControlError> {
        if !self.is_unsettled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let durable = self.store.settle(SystemTime::now())?;
        self.is_unsettled.store(false, Ordering::Relaxed);
        if durable == *self.desired() {
            return Ok(());
        }
        tracing::warn!(version = durable.version(), "what the store failed to tell of is durable: it is now in effect");
        let durable = Arc::new(durable);
        *self.desired.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&durable);
        self.follow_durable(&durable)
    }

    /// Calls [`Control::follow`], and turns a panic of the node into an error, so that the caller gets an answer.
    fn follow_durable(&self, state: &DesiredState) -> Result<(), ControlError> {
        let followed = catch_unwind(AssertUnwindSafe(|| self.follow(state)));
        followed.map_err(|_| ControlError::NotFollowed { version: state.version() })
    }

    /// Passes a durable state to the node, together with the chains of modules that were invoked by name.
    fn follow(&self, state: &DesiredState) {
        let mut invoked = lock(&self.invoked_modules);
        // A chain with the name of an invoked module replaces that module's implicit chain.
        invoked.retain(|(tenant, module)| {
            let key = (tenant.clone(), ModuleName::clone(module));
            let has_chain = state.chains().contains_key(&(tenant.clone(), ChainName::of_module(module)));
            state.modules().contains_key(&key) && !has_chain
        });
        let whole = state.with_chains_of(&invoked);
        drop(invoked);
        self.node.follow(Arc::new(whole), &|| self.changing.is_waited_for());
    }

    /// Passes a call to the node; see [`Node::invoke`]. A call of a chain whose entry drops calls is refused at once, as it would
    /// have no answer.
    pub fn invoke(&self, call: Call, answered: Answered) -> CallHandle {
        let desired = self.desired();
        if desired.chain(&call.tenant, &call.chain).is_some_and(|chain| !chain.takes_what_is_not_ip()) {
            let Call { tenant, chain, .. } = call;
            answered(Err(InvokeError::NotCallable(format!(
                "chain {tenant}/{chain} was not called: calls enter by the default of its entry, which is drop; name a stage there"
            ))));
            return CallHandle::default();
        }
        self.node.invoke(call, answered)
    }

    /// Returns the node's own report, with the warnings of this module added.
    pub fn status(&self) -> NodeStatus {
        let mut status = self.node.status();
        let not_built = lock(&self.not_built);
        let sentence = |NotBuilt { refusal, when, .. }: &NotBuilt| format!("not built {when}: {refusal}");
        status.warnings.extend(not_built.values().map(sentence));
        drop(not_built);
        status.warnings.extend(self.first_tenants.warnings(&self.desired()));
        status.warnings.extend(shadowed_warnings(&self.desired()));
        status.warnings.extend(quarantine_warnings(&self.store));
        // Other users of the state directory may have met the same error, and report the same warning.
        status.warnings.extend(self.store.warning().filter(|warning| !status.warnings.contains(warning)));
        status
    }

    /// Returns the journal of functions' log lines.
    pub fn journal(&self) -> &Arc<Journal> {
        self.node.journal()
    }

    /// Returns the metrics of functions that pass the filter.
    pub fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        self.node.metrics(filter)
    }

    /// Returns the FWPs of a tenant, or all.
    pub fn fwps(&self, of: Option<&TenantName>) -> Pages<FwpStatus> {
        self.node.fwps(of)
    }

    /// Returns the chain instances of a tenant, or all.
    pub fn chain_instances(&self, of: Option<&TenantName>) -> Pages<ChainInstanceStatus> {
        self.node.chain_instances(of)
    }
}

/// Returns warnings about rules that never apply, as another tenant has a rule that is alike.
fn shadowed_warnings(state: &DesiredState) -> Vec<String> {
    const NAMED_MAX: usize = 8;
    let shadowed = state.shadowed_rules();
    let sentence = |(first, second): &(&Rule, &Rule)| {
        let (matcher, priority) = (&first.matcher, first.priority);
        let [first, second] = [*first, *second].map(ObjectRef::from);
        format!(
            "{first} and {second} are alike: both match {matcher} at priority {priority}, and only the former applies; have one of them \
             changed"
        )
    };
    let mut warnings: Vec<String> = shadowed.iter().take(NAMED_MAX).map(sentence).collect();
    if let Some(more) = shadowed.len().checked_sub(NAMED_MAX + 1) {
        warnings.push(format!("{} more rules never apply, as those of other tenants are alike", more + 1));
    }
    warnings
}

/// Returns warnings about objects that were set aside.
fn quarantine_warnings(store: &Store) -> Vec<String> {
    const NAMED_MAX: usize = 8;
    let set_aside = store.quarantine().unwrap_or_default();
    let mut warnings: Vec<String> = set_aside.iter().take(NAMED_MAX).map(Quarantined::warning).collect();
    if let Some(more) = set_aside.len().checked_sub(NAMED_MAX + 1) {
        warnings.push(format!(
            "{} more objects were set aside: the log of the node's start and pinion store check name them",
            more + 1
        ));
    }
    warnings
}

/// Locks the mutex. No lock here guards data that a panic could leave half changed, so a poisoned lock is still usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

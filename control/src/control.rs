//! [`Control`]: the order in which a change happens, and the only holder of the store and the node.
//!
//! Called by the API from threads that may block; nothing here is async, so a client that goes away can't leave a
//! change half done. Knows nothing of sockets and messages.
//!
//! ```text
//!   change:  lock -> model: what would it be? -> node: could you? build it -> store: durable -> node: do it -> unlock
//!   upload:  one at a time: digest right? -> node: admit -> store
//!   garbage: no upload under way, lock -> store: forget
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use serde::Serialize;

use crate::journal::Journal;
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{
    Applied, CHAINS_MAX, Chain, ChainName, Change, DesiredState, Digest, FILES_BYTES_MAX, Invalid, MODULE_BYTES_MAX,
    Module, ModuleName, ObjectRef, Outcome, Rule, TenantName, Upload,
};
use crate::node::{Answered, Call, ChainInstanceStatus, FwpStatus, Node, NodeStatus, Refusal};
use crate::store::{Store, StoreError};

/// Why something asked of [`Control`] was not done. Nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The desired state would be wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The node would not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A module, or a stage of a chain for its files, names bytes that its tenant did not upload.
    #[error("{object}: its tenant has uploaded nothing with the digest {digest}: upload it first")]
    NotUploaded {
        /// The module or chain.
        object: ObjectRef,
        /// The digest without bytes.
        digest: Digest,
    },
    /// The bytes that came are not those that were announced.
    #[error("the bytes have the digest {found}, announced was {announced}: upload them again")]
    WrongDigest {
        /// What was announced.
        announced: Digest,
        /// What came.
        found: Digest,
    },
    /// Nothing has the name that somebody wants to invoke.
    #[error("there is no chain {tenant}/{name}, nor a module of that name")]
    NoFunction {
        /// Whose it would be.
        tenant: TenantName,
        /// What it would be called.
        name: ChainName,
    },
    /// What is to be uploaded is larger than the node takes.
    #[error("the {kind} {size_bytes} bytes: at most {} are allowed", .kind.bytes_max())]
    TooLarge {
        /// What it is.
        kind: UploadKind,
        /// How large it is.
        size_bytes: u64,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Modules, chains and rules that somebody wants to be there.
#[derive(Clone, Debug, Default)]
pub struct ApplyRequest {
    /// Modules by the digest of bytes that were uploaded before.
    pub modules: Vec<NamedUpload>,
    /// Chains to be there like this.
    pub chains: Vec<Chain>,
    /// Rules to be there like this.
    pub rules: Vec<Rule>,
}

/// What somebody uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadKind {
    /// A module.
    Module,
    /// The archive of a stage's files.
    Files,
}

impl UploadKind {
    /// How large it may be.
    pub fn bytes_max(self) -> u64 {
        match self {
            UploadKind::Module => MODULE_BYTES_MAX,
            UploadKind::Files => FILES_BYTES_MAX,
        }
    }

    /// Refuses what is larger, as soon as that is known.
    pub(crate) fn check_size(self, size_bytes: u64) -> Result<(), ControlError> {
        if size_bytes > self.bytes_max() { Err(ControlError::TooLarge { kind: self, size_bytes }) } else { Ok(()) }
    }
}

impl fmt::Display for UploadKind {
    /// With the verb that follows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UploadKind::Module => "module has",
            UploadKind::Files => "archive of files has",
        })
    }
}

/// A name for bytes that were uploaded before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedUpload {
    /// Who owns the module, and uploaded it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: ModuleName,
    /// What was uploaded.
    pub digest: Digest,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The version of the desired state after it.
    pub version: u64,
    /// One outcome for each object named, in the order they were named.
    pub outcomes: Vec<Outcome>,
}

/// Holds the desired state, makes it durable, and has the node follow it.
pub struct Control {
    store: Arc<Store>,
    node: Arc<dyn Node>,
    /// Held through a whole change, so that changes come one after another.
    changing: Mutex<()>,
    /// Held through a whole upload: compiling one module at a time bounds what uploads take from the node, and
    /// garbage can't be collected between an admission and its upload being stored.
    admitting: Mutex<()>,
    /// What is durable. Held for the time of a pointer copy only.
    desired: RwLock<Arc<DesiredState>>,
    /// Stored chains that the node could not build when it started, and why.
    refused_at_start: Mutex<BTreeMap<ObjectRef, Refusal>>,
    /// Modules that somebody has invoked by their names, and that the node therefore has chains of. Not durable: who invokes one again
    /// after a start has its chain made again.
    invoked_modules: Mutex<BTreeSet<(TenantName, ModuleName)>>,
}

impl Control {
    /// Restores the desired state from the store, admits its modules, and has the node follow it.
    ///
    /// A module that the node does not admit any more is reported, here and in every [`Control::status`], and does
    /// not keep the rest from starting.
    pub fn open(store: Arc<Store>, node: Arc<dyn Node>) -> Result<Self, StoreError> {
        let desired = Arc::new(store.load()?);
        let control = Self {
            store,
            node,
            changing: Mutex::new(()),
            admitting: Mutex::new(()),
            desired: RwLock::new(desired.clone()),
            refused_at_start: Mutex::default(),
            invoked_modules: Mutex::default(),
        };
        control.collect_garbage()?;
        control.build_all(&desired);
        tracing::info!(
            version = desired.version(),
            modules = desired.modules().len(),
            chains = desired.chains().len(),
            rules = desired.rules().len(),
            "desired state restored"
        );
        control.node.follow(desired);
        Ok(control)
    }

    fn build_all(&self, desired: &DesiredState) {
        for (object, refusal) in self.node.build(desired, &*self.store) {
            tracing::error!(%object, "a stored chain has no templates: {refusal}");
            lock(&self.refused_at_start).insert(object, refusal);
        }
    }

    /// The desired state as it is durable now.
    pub fn desired(&self) -> Arc<DesiredState> {
        self.desired.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What tenants have uploaded and neither a module nor a stage's files are.
    pub fn unnamed_uploads(&self) -> Result<Vec<Upload>, ControlError> {
        Ok(self.store.unnamed_uploads(&self.desired(), SystemTime::now())?)
    }

    /// Has the node admit bytes and keeps them for the tenant. May take seconds.
    pub fn upload(
        &self,
        kind: UploadKind,
        tenant: &TenantName,
        announced: &Digest,
        bytes: &[u8],
    ) -> Result<(), ControlError> {
        kind.check_size(bytes.len() as u64)?;
        let found = Digest::of(bytes);
        if found != *announced {
            return Err(ControlError::WrongDigest { announced: *announced, found });
        }
        let _one_at_a_time = lock(&self.admitting);
        match kind {
            UploadKind::Module => self.node.admit(bytes)?,
            UploadKind::Files => self.node.admit_files(bytes)?,
        }
        Ok(self.store.put_upload(tenant, &found, bytes, SystemTime::now())?)
    }

    /// Makes the objects be there as given, all of them or none.
    pub fn apply(&self, request: ApplyRequest) -> Result<Changed, ControlError> {
        let changing = lock(&self.changing);
        let modules = request.modules.into_iter().map(|named| self.module(named)).collect::<Result<_, _>>()?;
        let chains = request.chains.into_iter().map(|chain| self.chain(chain)).collect::<Result<_, _>>()?;
        let change = Change { modules, chains, rules: request.rules, delete: Vec::new() };
        self.change(&changing, &change)
    }

    /// Deletes the objects, all of them or none.
    pub fn delete(&self, objects: Vec<ObjectRef>) -> Result<Changed, ControlError> {
        self.change(&lock(&self.changing), &Change { delete: objects, ..Change::default() })
    }

    fn module(&self, named: NamedUpload) -> Result<Module, ControlError> {
        let NamedUpload { tenant, name, digest } = named;
        match self.store.upload_size_bytes(&tenant, &digest)? {
            Some(size_bytes) => Ok(Module { tenant, name, digest, size_bytes }),
            None => Err(ControlError::NotUploaded { object: ObjectRef::Module { tenant, name }, digest }),
        }
    }

    /// The chain, with what is known of its stages' files.
    fn chain(&self, mut chain: Chain) -> Result<Chain, ControlError> {
        let object = ObjectRef::from(&chain);
        for files in chain.stages.iter_mut().filter_map(|stage| stage.files.as_mut()) {
            match self.store.upload_size_bytes(&chain.tenant, &files.digest)? {
                Some(size_bytes) => files.size_bytes = size_bytes,
                None => return Err(ControlError::NotUploaded { object, digest: files.digest }),
            }
        }
        Ok(chain)
    }

    /// The one way from a desired state to the next.
    fn change(&self, _changing: &MutexGuard<'_, ()>, change: &Change) -> Result<Changed, ControlError> {
        let applied = self.desired().apply(change)?;
        if applied.changed() {
            self.node.check(&applied.state)?;
            self.build(&applied.state.with_chains_of(&lock(&self.invoked_modules)))?;
            self.store.commit(&applied)?;
        }
        let changed = applied.changed();
        let Applied { state, outcomes } = applied;
        let version = state.version();
        if changed {
            let state = Arc::new(state);
            *self.desired.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&state);
            self.follow(&state);
            tracing::info!(version, objects = outcomes.len(), "desired state changed");
        }
        Ok(Changed { version, outcomes })
    }

    /// Has the node follow a state that is durable, and have chains of modules that are invoked by name.
    fn follow(&self, state: &DesiredState) {
        let mut invoked = lock(&self.invoked_modules);
        // Whoever gives a chain the name of a module means that chain from now on.
        invoked.retain(|(tenant, module)| {
            let key = (tenant.clone(), ModuleName::clone(module));
            let has_chain = state.chains().contains_key(&(tenant.clone(), ChainName::of_module(module)));
            state.modules().contains_key(&key) && !has_chain
        });
        let whole = state.with_chains_of(&invoked);
        drop(invoked);
        self.node.follow(Arc::new(whole));
    }

    /// Whether there is a chain of this name, be it one made of a module.
    pub fn has_chain(&self, tenant: &TenantName, name: &ChainName) -> bool {
        let is_it = |(of, module): &(TenantName, ModuleName)| of == tenant && module.as_str() == name.as_str();
        self.desired().chain(tenant, name).is_some() || lock(&self.invoked_modules).iter().any(is_it)
    }

    /// Makes a chain of the module of this name, for as long as the node runs: nothing of it is durable. May take seconds.
    pub fn make_chain_of_module(&self, tenant: &TenantName, name: &ChainName) -> Result<(), ControlError> {
        let _changing = lock(&self.changing);
        if self.has_chain(tenant, name) {
            return Ok(());
        }
        let desired = self.desired();
        let module = ModuleName::new(name.as_str()).ok().filter(|module| desired.module(tenant, module).is_some());
        let Some(module) = module else {
            return Err(ControlError::NoFunction { tenant: tenant.clone(), name: name.clone() });
        };
        let mut invoked = lock(&self.invoked_modules).clone();
        invoked.insert((tenant.clone(), module));
        let whole = desired.with_chains_of(&invoked);
        if whole.chain(tenant, name).is_none() {
            return Err(Invalid::TooMany { kind: "chains", count: CHAINS_MAX + 1, max: CHAINS_MAX }.into());
        }
        self.node.check(&whole)?;
        self.build(&whole)?;
        *lock(&self.invoked_modules) = invoked;
        self.follow(&desired);
        Ok(())
    }

    /// Has the node call a chain; see [`Node::invoke`].
    pub fn invoke(&self, call: Call, answered: Answered) {
        self.node.invoke(call, answered);
    }

    /// Has the node build what the state needs. A chain that failed just like this when the node started is not this change's
    /// fault.
    fn build(&self, state: &DesiredState) -> Result<(), ControlError> {
        let refused = self.node.build(state, &*self.store);
        let mut known = lock(&self.refused_at_start);
        let is_new = |(object, refusal): &&(ObjectRef, Refusal)| known.get(object) != Some(refusal);
        if let Some((_, refusal)) = refused.iter().find(is_new) {
            return Err(refusal.clone().into());
        }
        known.retain(|object, _| refused.iter().any(|(other, _)| other == object));
        Ok(())
    }

    /// Forgets uploads that nothing names and that are older than an hour. Waits for uploads under way.
    pub fn collect_garbage(&self) -> Result<(), StoreError> {
        let _no_upload = lock(&self.admitting);
        let _no_change = lock(&self.changing);
        self.store.collect_garbage(&self.desired(), SystemTime::now()).map(|_| ())
    }

    /// The node's own report, with what is known here beside it.
    pub fn status(&self) -> NodeStatus {
        let mut status = self.node.status();
        let refused = lock(&self.refused_at_start);
        status.warnings.extend(refused.values().map(|refusal| format!("not built when the node started: {refusal}")));
        drop(refused);
        status
    }

    /// What functions have said.
    pub fn journal(&self) -> &Arc<Journal> {
        self.node.journal()
    }

    /// What functions of these chains count.
    pub fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        self.node.metrics(filter)
    }

    /// The FWPs of the node.
    pub fn fwps(&self) -> Vec<FwpStatus> {
        self.node.fwps()
    }

    /// The running copies of chains.
    pub fn chain_instances(&self) -> Vec<ChainInstanceStatus> {
        self.node.chain_instances()
    }
}

/// No lock here guards data that a panic could leave half changed, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

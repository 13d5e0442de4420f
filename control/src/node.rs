//! The interface to a data plane: the [`Node`] trait, and what a node reports of itself.
//!
//! The runtime implements it, and [`crate::Control`] calls it. This module holds no logic, and must never know what a
//! packet, a ring or a Wasm engine is.
//!
//! ```text
//!   upload      admit(wasm)               validate it; the bytes are stored only if this succeeds
//!               admit_files(archive)      the same
//!               admit_model(onnx)         the same
//!   change      check(state)              can the node apply it? changes nothing
//!               hold(state, chains)       keep what is built of their templates from here on
//!               build(state, chains)      build the templates that they need, and read their keys and models; then from
//!                                         the beginning, as others may have made changes meanwhile
//!               unfit(state, chains)      can the node apply it, by what the templates need?
//!               -- the state becomes durable --
//!               follow(state)             apply it; states come one after another, versions only grow
//! ```
//!
//! All methods are called from threads that may block. `admit`, `admit_files` and `admit_model` are called one at a time, and `check`,
//! `hold`, `lacks`, `unfit`, `retry` and `follow` one after another. `build`, `stop_builds` and the reports may be called
//! at any time and from many threads at once.

mod resources;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pinion_keys::PrivateKey;
use tokio::sync::watch;

pub use self::resources::{ResourceUse, TenantAccount};
pub use self::status::{
    BuildPhase, BuildStatus, ChainDrop, ChainInstanceStatus, ChainStatus, CoreStatus, DropCount, FwpCounters, FwpState,
    FwpStatus, JobStatus, LatencyStatus, MeterStatus, NeighborState, NeighborStatus, NodeStatus, PortStatus,
    StateFieldStatus, TenantStatus,
};
use crate::journal::Journal;
use crate::metrics::{MetricFilter, MetricStatus};
use crate::model::{ChainKey, ChainName, DesiredState, Files, Key, Model, Module, ObjectRef, TenantName};

/// A data plane that applies a desired state.
pub trait Node: Send + Sync + 'static {
    /// Validates a module before it is stored. A refusal is a sentence for the tenant, without the digest or the name
    /// of the module.
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal>;

    /// Validates the archive of a stage's files before it is stored. A refusal is a sentence for the tenant, without
    /// the digest.
    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal>;

    /// Validates a model (ONNX) before it is stored. A refusal is a sentence for the tenant, without the digest or the name
    /// of the model.
    fn admit_model(&self, onnx: &[u8]) -> Result<(), Refusal>;

    /// Checks whether the node could follow this state. Covers what [`DesiredState::apply`] can't know and what is
    /// cheap to check: port names that the node does not have, or more stages than it has room for.
    ///
    /// Judges only what differs between `before` and `state`. An object that was stored under an earlier configuration,
    /// and does not fit the present one, must not block changes to other tenants' objects.
    ///
    /// Must change nothing that a client could notice, since the state may still be discarded. A refusal names the
    /// object, as [`crate::model::ObjectRef`] prints it.
    fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), Refusal>;

    /// Builds the templates that these chains of the state need and that are missing: initialises modules with their
    /// configurations and files, and compiles them. Loads all of them, and the chains' keys and models, for as long as they
    /// are held. May take many
    /// seconds. Returns the chains for which that failed and
    /// why, such as a configuration that a function refuses, as sentences like those of `check`.
    ///
    /// Called before a state becomes durable, and after the node has started. Several calls share the node's builders:
    /// tenants take turns. Changes nothing that a client could notice.
    fn build(
        &self,
        state: &DesiredState,
        chains: &BTreeSet<ChainKey>,
        uploads: &dyn UploadedBytes,
    ) -> Vec<(ObjectRef, Refusal)>;

    /// Returns those of these chains of the state that could never have an instance although none of their templates is
    /// missing, and why, as sentences like those of `check`: limits that are too small for what a template needs. Cheap.
    fn unfit(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Vec<(ObjectRef, Refusal)>;

    /// Keeps the templates that these chains of the state need, and that are or will be built, until the returned value
    /// is dropped, and keeps them loaded, as well as the chains' keys and models. What no followed state needs, and is not
    /// held, is removed.
    fn hold(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Hold;

    /// Removes what was built for changes that were not made: templates that no chain of this state needs, and that are
    /// not held. It is the followed state. Cheap if nothing was built.
    fn clear_up(&self, state: &DesiredState);

    /// Returns whether a template that these chains of the state need is missing, damaged, or not loaded, or a key or a model
    /// is not loaded, so that `build` would make or load it. Cheap.
    fn lacks(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> bool;

    /// Ends the builds under way, and refuses others from now on. Called when the node is to stop.
    fn stop_builds(&self);

    /// Returns a receiver that changes each time the node finds files of its own damaged that `build` makes again.
    fn damaged(&self) -> watch::Receiver<u64>;

    /// Notes that these objects of the state were applied again. Chains that are held back because one of their
    /// functions ended the node may be started once more. Returns whether the state has to be followed for that, or for
    /// what `build` has made, even if it is followed already.
    fn retry(&self, state: &DesiredState, objects: &[&ObjectRef]) -> bool;

    /// Follows the state from now on. It passed `check` and is durable, so this can't be refused.
    ///
    /// Called once when the node starts, with the restored state, regardless of what `check` would say of it now (the
    /// operator may have removed a port), and before anything is built for it. What can't be followed is left out and reported in [`NodeStatus::warnings`].
    /// The call returns when the node has accepted the state. From then on new clients get the new state, and
    /// [`NodeStatus::followed_version`] tells when all of it is in effect. Chains that are changed have their first
    /// instances ready by then, unless that takes long and `is_waited_for`: other callers must not wait for what one
    /// tenant's functions do until their first wait.
    fn follow(&self, state: Arc<DesiredState>, is_waited_for: &dyn Fn() -> bool);

    /// Calls a chain of the followed state. `answered` is called exactly once, with the result, unless the returned
    /// handle is dropped before. Does not wait.
    fn invoke(&self, call: Call, answered: Answered) -> CallHandle;

    /// Returns all chain instances that exist, and those that ended recently; of one tenant or of all.
    fn chain_instances(&self, of: Option<&TenantName>) -> Pages<ChainInstanceStatus>;

    /// Returns the template of each stage of each chain, all FWPs that exist, and those that ended recently; of one
    /// tenant or of all.
    fn fwps(&self, of: Option<&TenantName>) -> Pages<FwpStatus>;

    /// Returns the journal, to which the node writes the log lines of functions as they arrive.
    fn journal(&self) -> &Arc<Journal>;

    /// Returns the metrics of these chains' functions, by chain, stage, name and labels.
    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus>;

    /// Returns what a tenant has of what the node shares among tenants; empty if none of its chains is active.
    fn resources(&self, tenant: &TenantName) -> Vec<ResourceUse>;

    /// Returns the status of the whole node.
    fn status(&self) -> NodeStatus;
}

/// A list in pages, which may be empty. Each is read when it is asked for, so that a list of any length takes the memory
/// of one page.
pub type Pages<T> = Box<dyn Iterator<Item = Vec<T>> + Send>;

/// A call of a chain by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tenant that owns the chain.
    pub tenant: TenantName,
    /// Its name.
    pub chain: ChainName,
    /// The message for its first stage.
    pub payload: Vec<u8>,
    /// How long the caller waits.
    pub timeout: Duration,
}

/// A call under way. Dropping it gives the call up, so that it takes no place any more. After the answer that does
/// nothing.
pub type CallHandle = OnDrop;

/// Templates that are kept. Dropping it lets go of them.
pub type Hold = OnDrop;

/// Something that ends when this is dropped.
#[derive(Default)]
#[must_use = "it ends when this is dropped"]
pub struct OnDrop(Option<Box<dyn FnOnce() + Send>>);

impl OnDrop {
    /// Makes a handle of something that this function ends.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// The callback for a call's result: the answer's payload, or why there is none. It must not block.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, InvokeError>) + Send>;

/// Why a call has no answer, as a sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The payload is longer than a message may be.
    #[error("{0}")]
    TooLong(String),
    /// The chain exists but cannot be activated.
    #[error("{0}")]
    ChainUnavailable(String),
    /// The chain's entry drops calls.
    #[error("{0}")]
    NotCallable(String),
    /// The node has no room for the call now.
    #[error("{0}")]
    Exhausted(String),
    /// No instance could be provided; the chain was not called.
    #[error("{0}")]
    NoInstance(String),
    /// There was no answer within the caller's timeout.
    #[error("{0}")]
    Deadline(String),
    /// The instance that was called ended without an answer.
    #[error("{0}")]
    Ended(String),
}

/// Where a node reads the bytes that tenants have uploaded.
pub trait UploadedBytes: Sync {
    /// Returns the bytes of a module; otherwise a sentence that says why not.
    fn wasm(&self, module: &Module) -> Result<Vec<u8>, String>;
    /// Returns the archive of a stage's files; otherwise a sentence that says why not.
    fn files(&self, files: &Files) -> Result<Vec<u8>, String>;
    /// Returns a key; otherwise a sentence for the operator that says why not.
    fn key(&self, key: &Key) -> Result<PrivateKey, String>;
    /// Returns the bytes of a model; otherwise a sentence that says why not.
    fn model(&self, model: &Model) -> Result<Vec<u8>, String>;
}

/// Why a node refused, as a sentence for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is invalid on every node: not a Wasm module, another ABI, a bad configuration.
    #[error("{0}")]
    Invalid(String),
    /// This node can't do it in its present state: it has no such port, or it did not admit the module.
    #[error("{0}")]
    Unfit(String),
    /// The node has no room left for it.
    #[error("{0}")]
    Exhausted(String),
    /// The machine lacks something that its operator can provide, as space on its disk. The sentence is the operator's, and may name the
    /// node's paths; a tenant's caller gets another one.
    #[error("{0}")]
    Short(String),
    /// The node failed; the caller can't fix that.
    #[error("{0}")]
    Failed(String),
    /// The node is about to stop, and begins nothing more that takes long.
    #[error("the node stops: ask again once it runs")]
    Stopping,
}

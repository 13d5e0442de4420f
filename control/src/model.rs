//! The desired state of a node: tenants, and the modules, keys, models, chains and rules of all of them, as plain checked
//! values.
//!
//! Called by everything else in this crate. Never reads a file, a clock or the network. A change is a pure function
//! from one [`DesiredState`] to the next, and is made completely or not at all.
//!
//! One file for each kind of thing:
//!
//! | file | what it holds |
//! |---|---|
//! | `names` | [`TenantName`], [`ModuleName`], [`ChainName`], [`StageName`], [`RuleName`], [`PortName`], [`FieldName`], [`KeyName`], [`ModelName`], [`Label`] |
//! | `digest` | [`Digest`], which identifies the bytes of modules, files and models, and keys by their public keys |
//! | `granted` | [`Key`], [`Model`] and their bounds |
//! | `chain` | [`Module`], [`Files`], [`Stage`], [`Chain`] and their bounds |
//! | `outputs` | [`Output`], [`Target`], and the check that stages form a chain |
//! | `branch` | [`Branch`]: targets by headers |
//! | `reverse` | [`Reverse`], and which chains can have one |
//! | `fields` | [`Field`], [`Grant`]: state outside of instances, and the stages' access to it |
//! | `rule` | [`Rule`], [`Match`], [`Prefix`], [`Protocol`], [`PortRange`], [`Policy`] |
//! | `tenant` | [`Tenant`]: what the operator grants a tenant |
//! | `state` | [`DesiredState`] |
//! | `change` | [`Change`], and what one did: [`Effect`], [`Outcome`], [`Applied`] |
//! | `labels` | [`Labelling`], [`Labelled`]: which objects came from manifests of which label |
//! | `object` | [`Object`]: one object of any kind |
//! | `revision` | [`Revision`], [`Author`], and how many are kept |
//! | `quotas` | what one tenant may have of what a node has room for |
//! | `touched` | [`ChainKey`], [`Ingredients`]: which chains a change touches, and what their templates are made of |
//! | `invalid` | [`Invalid`]: why a change is refused |

mod branch;
mod chain;
mod change;
mod digest;
mod fields;
mod granted;
mod invalid;
mod labels;
mod names;
mod object;
mod outbound;
mod outputs;
mod quotas;
mod reverse;
mod revision;
mod rule;
mod scheduling;
mod state;
mod tenant;
#[cfg(test)]
mod tests;
mod touched;

use pinion_text::{SENTENCE_BYTES_MAX, printable};

pub use branch::{
    BRANCH_CASES_MAX, Branch, BranchPart, BranchProblem, BranchSite, CASES_TOTAL_MAX, CHAIN_CASES_MAX, Case,
};
pub use chain::{
    CACHE_INSTANCES_MAX, CONFIG_BYTES_MAX, Chain, DRAIN_TIMEOUT_MS_MAX, FILES_BYTES_MAX, Files, HOLD_FRAMES_MAX,
    IDLE_TIMEOUT_MS_MAX, IDLE_TIMEOUT_MS_MIN, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX,
    MODULE_BYTES_MAX, Module, STAGES_MAX, Stage, StoredUpload, Upload,
};
pub use change::{Applied, Change, Effect, Outcome};
pub use digest::{BadDigest, Digest};
pub use fields::{
    Access, ENTRIES_MAX, FIELDS_MAX, Field, FieldProblem, Grant, TTL_SECONDS_MAX, VALUE_BYTES_MAX, WhenFull,
};
pub use granted::{Key, MODEL_BYTES_MAX, Model, PEM_BYTES_MAX, STAGE_GRANTS_MAX};
pub use invalid::{ChainProblem, Invalid, NotGranted, RuleProblem, TenantProblem};
pub use labels::{Labelled, Labelling};
pub use names::{
    BadName, ChainName, FieldName, KeyName, Label, ModelName, ModuleName, NAME_BYTES_MAX, PortName, RuleName,
    StageName, TenantName,
};
pub use object::Object;
pub use outbound::{OUTBOUND_MAX, Outbound};
pub use outputs::{OUTPUTS_MAX, Output, Target};
pub use quotas::{QuotaUse, UPLOAD_BYTES_TOTAL_MAX, UPLOADS_MAX, UploadShortage, check_upload, leaves_room, little_of};
pub use reverse::Reverse;
pub use revision::{Author, ChangeCounts, HistoryLimits, ObjectChange, Revision, RevisionFilter};
pub use rule::{BadMatch, Match, Policy, PortRange, Prefix, Protocol, Rule, VlanId};
pub use scheduling::{
    CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN, CPU_PER_SECOND_MS_MAX, Class, OverBudget, Scheduling,
};
pub use state::{
    CHAINS_MAX, CONFIG_BYTES_TOTAL_MAX, DesiredState, FILES_BYTES_TOTAL_MAX, KEYS_MAX, LeftOut, MODEL_BYTES_TOTAL_MAX,
    MODELS_MAX, MODULES_MAX, ObjectRef, RULES_MAX, TENANTS_MAX,
};
pub use tenant::{
    CLOCK_STEP_US_MAX, GRANTS_MAX, MODEL_MIB_MAX, TENANT_CPU_PER_SECOND_MS_MAX, TENANT_MEMORY_MIB_MAX,
    TENANT_STATE_MIB_MAX, Tenant, UPLOAD_MIB_MAX, WEIGHT_MAX,
};
pub use touched::{ChainKey, Ingredients};

/// Formats foreign text for a message: printable, quoted, and truncated when long.
pub(crate) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let (start, more) = match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => (&text[..end], "..."),
        None => (text, ""),
    };
    format!("{}{more}", printable(format!("{start:?}"), SENTENCE_BYTES_MAX))
}

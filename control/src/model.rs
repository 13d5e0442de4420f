//! What the node ought to do: modules, chains and rules of all tenants, as plain checked values.
//!
//! Called by everything else in this crate. Never reads a file, a clock or the network: a change is a pure
//! function from one [`DesiredState`] to the next, and it happens whole or not at all.
//!
//! One file per thing:
//!
//! | file | what it holds |
//! |---|---|
//! | `names` | [`TenantName`], [`ModuleName`], [`ChainName`], [`StageName`], [`RuleName`], [`PortName`], [`FieldName`] |
//! | `digest` | [`Digest`], by which the bytes of modules and files are known |
//! | `chain` | [`Module`], [`Files`], [`Stage`], [`Chain`] and their bounds |
//! | `outputs` | [`Output`], and what makes stages a chain |
//! | `reverse` | [`Reverse`], and which chains can have one |
//! | `fields` | [`Field`], [`Grant`]: state outside of instances, and who may do what with it |
//! | `rule` | [`Rule`], [`Match`], [`Prefix`], [`Protocol`], [`PortRange`], [`Policy`] |
//! | `state` | [`DesiredState`], [`Change`], [`Applied`] |
//! | `invalid` | [`Invalid`]: why a change was not made |

mod chain;
mod digest;
mod fields;
mod invalid;
mod names;
mod outputs;
mod reverse;
mod rule;
mod scheduling;
mod state;
#[cfg(test)]
mod tests;

pub use chain::{
    CACHE_INSTANCES_MAX, CONFIG_BYTES_MAX, Chain, DRAIN_TIMEOUT_MS_MAX, FILES_BYTES_MAX, Files, HOLD_FRAMES_MAX,
    IDLE_TIMEOUT_MS_MAX, IDLE_TIMEOUT_MS_MIN, MEMORY_LIMIT_KIB_MAX, MEMORY_LIMIT_KIB_MIN, MEMORY_TOTAL_KIB_MAX,
    MODULE_BYTES_MAX, Module, STAGES_MAX, Stage, Upload,
};
pub use digest::{BadDigest, Digest};
pub use fields::{
    Access, ENTRIES_MAX, FIELDS_MAX, Field, FieldProblem, Grant, TTL_SECONDS_MAX, VALUE_BYTES_MAX, WhenFull,
};
pub use invalid::{ChainProblem, Invalid, RuleProblem};
pub use names::{BadName, ChainName, FieldName, ModuleName, NAME_BYTES_MAX, PortName, RuleName, StageName, TenantName};
pub use outputs::{OUTPUTS_MAX, Output};
pub use reverse::Reverse;
pub use rule::{BadMatch, Match, Policy, PortRange, Prefix, Protocol, Rule, VlanId};
pub use scheduling::{
    CPU_PER_BATCH_US_MAX, CPU_PER_BATCH_US_MIN, CPU_PER_SECOND_MS_MAX, Class, OverBudget, Scheduling,
};
pub use state::{
    Applied, CHAINS_MAX, CONFIG_BYTES_TOTAL_MAX, Change, DesiredState, Effect, FILES_BYTES_TOTAL_MAX, MODULES_MAX,
    ObjectRef, Outcome, RULES_MAX,
};

/// Foreign text as it may stand in a message: quoted, without control characters, cut when long.
pub(crate) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

//! A node as a whole: assembles it from its configuration, runs it, and stops it.
//!
//! The topmost module: it uses all others, and none uses it. Its threads are control threads; nothing in it runs on the fast path.
//!
//! | file | owns |
//! |---|---|
//! | [`config`] | the configuration file |
//! | [`machine`] | a node's requirements of the machine, checked before it starts |
//! | [`assembly`] | starting and stopping a node |
//! | [`ports`], `device_maker` | opening the gateway's devices, and having them made again |
//! | [`data_plane`] | the node as the control plane sees it: desired state in, statuses out |
//! | [`template_builds`] | building the templates that a desired state needs |
//! | [`invocations`] | calls of functions by name, and the callers that wait for answers |
//! | [`node_log`], [`vital`] | the node's own log; vital threads, which abort the process when they end |

pub mod assembly;
pub mod config;
pub mod data_plane;
#[cfg(feature = "dpdk")]
mod device_maker;
mod held_templates;
pub mod invocations;
pub mod machine;
pub mod node_log;
pub mod ports;
pub mod template_builds;
pub mod vital;

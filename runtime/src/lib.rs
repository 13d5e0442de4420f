//! Where the parts meet: engines, FWPs, workers, the launcher and the node.
//!
//! ```text
//!   control threads   node  <-- gRPC API (pinion-control)
//!        orders |      ^ board
//!               v      |
//!   launcher thread   launcher: catalogue -> instances      artifacts <- builder process
//!      Ready |   Attach |  Adopt |       ^ events
//!            v          v        v       |
//!   data plane     gateway      mma    workers        roles on pinned threads, by the core plan
//!                                          ^ epochs
//!   ticker thread                        clock
//! ```
//!
//! | module | room |
//! |---|---|
//! | [`config`], [`plan`] | what the operator said; which role runs on which core |
//! | [`assembly`], [`machine`] | puts a node together, and takes it apart; what of the machine does not suit it |
//! | [`workshop`], [`artifacts`], [`bundles`], [`engine`], [`template`] | from a module to something FWPs are made of |
//! | [`fwp`], [`imports`], [`log`], [`end`] | one guest: its life, what it may call, why it ended |
//! | [`allocator`] | the process's heap |
//! | `footprint`, `hot_pages`, [`spare`] | what of an FWP's memory is brought near, provided ahead, given back |
//! | [`worker`], [`clock`], [`roles`] | who runs when, and for how long |
//! | [`timers`] | until when FWPs wait |
//! | [`launcher`], [`lifecycle`], [`lines`] | chain instances: prepared ahead, ended in order |
//! | [`state`] | what functions keep outside their instances |
//! | [`accounts`] | memory of chains and tenants, held to its limits |
//! | [`pressure`] | whether the machine's memory is short |
//! | [`activation`], [`latency`] | how long new clients wait |
//! | [`board`], [`drops`], [`builds`], [`node`] | what the control plane sees and says |
//! | [`metrics`] | counters and gauges that functions have |
//! | [`ports`] | opening the gateway's devices |
//! | [`invocations`] | functions called by name, and who waits for their answers |

pub mod accounts;
pub mod activation;
pub mod allocator;
pub mod artifacts;
pub mod assembly;
pub mod board;
pub mod builds;
pub mod bundles;
pub mod clock;
pub mod config;
pub mod drops;
pub mod end;
pub mod engine;
mod footprint;
pub mod fwp;
mod hot_pages;
pub mod imports;
pub mod invocations;
pub mod latency;
pub mod launcher;
pub mod lifecycle;
pub mod lines;
pub mod log;
pub mod machine;
pub mod meters;
pub mod metrics;
pub mod node;
pub mod plan;
pub mod ports;
pub mod pressure;
pub mod roles;
pub mod scheduler;
pub mod spare;
pub mod state;
pub mod template;
pub mod terms;
pub mod timers;
pub mod worker;
pub mod workshop;

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
//! | [`assembly`] | puts a node together, and takes it apart |
//! | [`engine`], [`artifacts`], [`template`] | from a compiled module to something FWPs are made of |
//! | [`fwp`], [`imports`], `wasi`, [`log`], [`end`] | one guest: its life, what it may call, why it ended |
//! | [`worker`], [`clock`], [`roles`] | who runs when, and for how long |
//! | [`launcher`], [`lines`] | chain instances: prepared ahead, ended in order |
//! | [`board`], [`drops`], [`node`] | what the control plane sees and says |
//! | [`ports`] | opening the gateway's devices |

pub mod artifacts;
pub mod assembly;
pub mod board;
pub mod clock;
pub mod config;
pub mod drops;
pub mod end;
pub mod engine;
mod footprint;
pub mod fwp;
pub mod imports;
pub mod launcher;
pub mod lines;
pub mod log;
pub mod node;
pub mod plan;
pub mod ports;
pub mod roles;
pub mod template;
mod wasi;
pub mod worker;

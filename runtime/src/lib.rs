//! The runtime: engines, FWPs, workers, the launcher and the node.
//!
//! ```text
//!   control threads   node  <-- gRPC API (pinion-control)
//!        orders |      ^ reports
//!               v      |
//!   launcher thread   launcher: active chains -> instances    templates <- builder process
//!      Ready |   Attach |  Adopt |       ^ events
//!            v          v        v       |
//!   data plane     gateway      mma    workers        roles on pinned threads, by the core plan
//!                                          ^ epochs
//!   ticker thread                        clock
//! ```
//!
//! Rooms, from the top floor to the ground; each uses only rooms below it, which `tests/integration/project/rooms.rs` holds.
//!
//! | room | owns | runs on |
//! |---|---|---|
//! | [`node`] | a node as a whole: configuration, start and stop, what the control plane asks | control threads |
//! | [`lockdown`] | what the node gives up before it serves a client: system calls, files, capabilities | all |
//! | [`supervisor`] | the process that starts the node and its builders, and keeps the rights for that | itself |
//! | [`roles`] | the loops of pinned threads: which roles a thread polls, how it sleeps and wakes | data plane |
//! | [`launcher`] | which chain gets an instance next; preparing, placing and ending instances | launcher thread, in steps |
//! | [`reports`] | statuses of chains and instances, and the packets they lost | launcher, control threads |
//! | [`worker`] | turns of FWPs, one after another; their timers | data plane |
//! | [`fwp`] | one instance: its preparation, its turn, its imports, its limits, its end | data plane, launcher |
//! | [`offload`] | work for FWPs off the data path: threads, queues, turns of tenants | data plane, its own threads |
//! | [`tuning`] | prefetches: code whose only reason is a cache | data plane |
//! | [`memory`] | the heap, pages provided ahead, memory pressure | launcher, control threads |
//! | [`tenants`] | memory accounts, scheduling parameters, meters | all |
//! | [`state`] | what functions keep outside their instances | data plane |
//! | [`scheduler`] | whose turn is next: classes, weights, budgets; knows no guest and no clock | data plane |
//! | [`preemption`] | ends turns that have used their quantum, by epochs | data plane, ticker |
//! | [`clock`] | the time | data plane |
//! | [`templates`] | compiled modules: files, engines, builds under way | control threads, launcher |
//! | [`cores`] | which role runs on which core; commands from thread to thread | all |
//! | [`instruments`] | counters, histograms and log lines that the fast path writes | data plane |
//! | [`containment`] | panics that end less than the process | all |
//! | [`ids`] | keys that several rooms share | all |

// Tests beside the code use what those in `tests` do.
#[cfg(test)]
extern crate self as pinion_runtime;

pub mod clock;
pub mod containment;
pub mod cores;
pub mod fwp;
pub mod ids;
pub mod instruments;
pub mod launcher;
pub mod lockdown;
pub mod memory;
pub mod node;
pub mod offload;
pub mod preemption;
pub mod reports;
pub mod roles;
pub mod scheduler;
pub mod state;
pub mod supervisor;
pub mod templates;
pub mod tenants;
pub mod tuning;
pub mod worker;

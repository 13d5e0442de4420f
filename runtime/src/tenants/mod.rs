//! What tenants and their chains may use, and what they have used: memory, CPU time, scheduling parameters.
//!
//! | file | owns |
//! |---|---|
//! | [`accounts`] | memory of chains and tenants, and its limits |
//! | [`scheduling_params`] | weight, class and budget of a chain's FWPs, and the number by which workers know a tenant |
//! | [`meters`] | CPU time and run-queue waits, by chain |
//! | [`job_meters`] | jobs done for a chain's FWPs off the data path, and the time that they took |
//! | [`node_use`] | CPU time by tenant, that workers tell each other |

pub mod accounts;
pub mod job_meters;
pub mod meters;
pub mod node_use;
pub mod scheduling_params;

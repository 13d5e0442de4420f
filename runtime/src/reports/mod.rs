//! Reports about chains and their instances for operators and tenants. Written by the launcher, read by control threads.
//!
//! No data-plane thread takes a lock of this module. Counters of the fast path are read in place (`instruments`).

mod chain_accounts;
pub mod drop_ledger;
pub mod fwp_shares;
pub mod instance_counts;
pub mod lists;
pub mod metric_sums;
pub mod status_table;

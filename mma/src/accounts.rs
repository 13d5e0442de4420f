//! What tenants share: how it is divided, what each of them has of it, and what was counted.

pub mod copying;
pub mod counters;
pub(crate) mod leaving;
pub mod shares;
pub(crate) mod slot_numbers;
pub mod tenant_counts;

//! The memory that frames lie in.

pub(super) mod mempool;
pub(super) mod pool;
pub(super) mod sizes;

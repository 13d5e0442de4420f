//! The machine below the tests: its processes, cores and disks, and what earlier runs left on it.

pub mod autogroup;
pub mod cores;
pub mod disk;
pub mod holdings;
pub(crate) mod leftovers;
pub mod load;
pub mod process;
pub mod taken_over;
pub mod versions;
pub mod witness;

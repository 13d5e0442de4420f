//! Sizes of buffers, and of bursts of them.

use pinion_dpdk_sys as sys;

/// Bytes of a frame that a buffer of the pool holds at least.
pub const BUFFER_LEN: u16 = 2048;
/// Memory per buffer in bytes, including DPDK's own, rounded up.
pub(crate) const BUFFER_FOOTPRINT: u64 = 2560;

/// The most mbufs that are moved in one call.
pub(crate) const BURST: usize = sys::PINION_BURST_MAX as usize;

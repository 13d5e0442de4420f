//! What runs are fitted to: the caches of this machine's processor.

use tract_core::tract_linalg::cache;

/// Reads the sizes of the processor's caches from the kernel's files. To be called once before the process gives up the right to read them:
/// the library reads them when it first runs a model, and else takes sizes that fit any processor.
pub fn learn_caches() {
    let _ = cache::last_level_cache();
}

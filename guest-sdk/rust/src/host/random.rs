//! Random bytes from the node that are fit for keys.

use pinion_abi::RANDOM_BYTES_MAX;

use super::calls;

/// Fills `buffer` with random bytes.
///
/// In [`Function::init`](crate::Function::init) a node refuses it, as all instances of a template would have the same bytes; draw keys in
/// [`Function::start`](crate::Function::start). In a test the bytes are the same in each run.
///
/// ```
/// let mut key = [0; 32];
/// pinion_sdk::random::fill(&mut key);
/// assert_ne!(key, [0; 32]);
/// ```
pub fn fill(buffer: &mut [u8]) {
    for chunk in buffer.chunks_mut(RANDOM_BYTES_MAX as usize) {
        calls::random(chunk);
    }
}

//! Reading any word of this process's memory, also where none may be.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

pub(super) const WORD: usize = size_of::<usize>();

/// This process's memory, of which any address may be asked for.
pub(super) struct OwnMemory(File);

impl OwnMemory {
    pub(super) fn open() -> Option<Self> {
        File::open("/proc/self/mem").ok().map(Self)
    }

    /// Reads as many of these words as are mapped.
    pub(super) fn words(&self, address: usize, count: usize) -> Vec<usize> {
        let mut bytes = vec![0; count * WORD];
        let read = self.0.read_at(&mut bytes, address as u64).unwrap_or_default();
        let (words, _) = bytes[..read].as_chunks::<WORD>();
        words.iter().map(|word| usize::from_ne_bytes(*word)).collect()
    }
}

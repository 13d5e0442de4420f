//! Memory for items: chunks of one size, linked to chains. Since all chunks are of one size, memory cannot fragment: a free chunk serves
//! any item. Memory is taken from the allocator in segments, when it is first needed, and kept.
//!
//! ```text
//!   segments  [ chunk | chunk | chunk | ... ]  [ chunk | ... ]  ...   up to the budget
//!                 |        ^
//!                 +--next--+      an item is a chain of chunks; so is the free list
//! ```

/// Bytes of a chunk, with its link.
pub const CHUNK_BYTES: usize = 128;
/// Bytes of a chunk that hold data.
pub const DATA_BYTES: usize = CHUNK_BYTES - 4;
/// Chunks that are taken from the allocator at a time.
pub const SEGMENT_CHUNKS: usize = 512;
/// No chunk: chunks count from 1.
pub const NONE: u32 = 0;

#[derive(Clone)]
struct Chunk {
    next: u32,
    data: [u8; DATA_BYTES],
}

/// The chunks.
pub struct Arena {
    segments: Vec<Box<[Chunk]>>,
    segments_max: usize,
    /// Chunks that were in use at some time; those after them were never touched.
    touched: u32,
    free: u32,
    free_len: u32,
}

impl Arena {
    /// Makes an arena for at most `bytes`, rounded up to a segment. It takes no memory yet.
    pub fn new(bytes: usize) -> Self {
        let segments_max = bytes.div_ceil(SEGMENT_CHUNKS * CHUNK_BYTES).max(1);
        Self { segments: Vec::with_capacity(segments_max), segments_max, touched: 0, free: NONE, free_len: 0 }
    }

    /// Returns the most chunks that there can be.
    pub fn chunks_max(&self) -> usize {
        self.segments_max * SEGMENT_CHUNKS
    }

    /// Returns the number of segments that were taken from the allocator.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of chunks in use.
    pub fn used(&self) -> usize {
        (self.touched - self.free_len) as usize
    }

    /// Allocates a chunk, whose content is arbitrary and which has no next one. `None` if the budget, or the instance's memory, is used up.
    pub fn alloc(&mut self) -> Option<u32> {
        if self.free != NONE {
            let chunk = self.free;
            self.free = self.next(chunk);
            self.free_len -= 1;
            self.set_next(chunk, NONE);
            return Some(chunk);
        }
        if self.touched as usize == self.segments.len() * SEGMENT_CHUNKS {
            self.grow()?;
        }
        self.touched += 1;
        Some(self.touched)
    }

    fn grow(&mut self) -> Option<()> {
        if self.segments.len() == self.segments_max {
            return None;
        }
        let mut segment = Vec::new();
        segment.try_reserve_exact(SEGMENT_CHUNKS).ok()?;
        segment.resize(SEGMENT_CHUNKS, Chunk { next: NONE, data: [0; DATA_BYTES] });
        self.segments.push(segment.into_boxed_slice());
        Some(())
    }

    /// Frees the chain of `count` chunks from `first` to `last`. Takes constant time.
    pub fn free(&mut self, first: u32, last: u32, count: u32) {
        self.set_next(last, self.free);
        self.free = first;
        self.free_len += count;
    }

    /// Returns the chunk after this one, or [`NONE`].
    pub fn next(&self, chunk: u32) -> u32 {
        self.at(chunk).next
    }

    /// Links a chunk to its next one.
    pub fn set_next(&mut self, chunk: u32, next: u32) {
        self.at_mut(chunk).next = next;
    }

    /// Returns a chunk's data.
    pub fn data(&self, chunk: u32) -> &[u8; DATA_BYTES] {
        &self.at(chunk).data
    }

    /// Returns a chunk's data, to be changed.
    pub fn data_mut(&mut self, chunk: u32) -> &mut [u8; DATA_BYTES] {
        &mut self.at_mut(chunk).data
    }

    fn at(&self, chunk: u32) -> &Chunk {
        let index = chunk as usize - 1;
        &self.segments[index / SEGMENT_CHUNKS][index % SEGMENT_CHUNKS]
    }

    fn at_mut(&mut self, chunk: u32) -> &mut Chunk {
        let index = chunk as usize - 1;
        &mut self.segments[index / SEGMENT_CHUNKS][index % SEGMENT_CHUNKS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_gives_out_its_budget_and_each_chunk_that_was_freed_again() {
        let mut arena = Arena::new(2 * SEGMENT_CHUNKS * CHUNK_BYTES);
        let chunks: Vec<_> = core::iter::from_fn(|| arena.alloc()).collect();
        assert_eq!((chunks.len(), arena.used(), arena.segments()), (1024, 1024, 2));
        let chain = [chunks[3], chunks[700], chunks[9]];
        arena.set_next(chain[0], chain[1]);
        arena.set_next(chain[1], chain[2]);
        arena.free(chain[0], chain[2], 3);
        assert_eq!(arena.used(), 1021);
        let again: Vec<_> = core::iter::from_fn(|| arena.alloc()).collect();
        assert_eq!(again, chain);
        assert!(again.iter().all(|chunk| arena.next(*chunk) == NONE));
    }
}

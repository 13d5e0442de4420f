//! Pseudo-random numbers, which are the same for the same seed.

/// A generator (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The state must not be zero, which xorshift never leaves.
        Self(seed.max(1))
    }

    /// Returns the next number, which is never zero.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns the next number, below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

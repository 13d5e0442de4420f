//! Numbers that look random and are the same for the same seed.

/// A generator (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The one of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // It would stand still at zero.
        Self(seed.max(1))
    }

    /// The next number, of all but zero.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number, below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

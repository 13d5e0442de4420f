//! How much [`Fragments`](super::Fragments) remembers, and for how long.

/// Bounds of [`Fragments`](super::Fragments).
///
/// The defaults suit a module with the default number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most datagrams whose first fragment has come: 256.
    pub datagrams_max: usize,
    /// Most of these with one source: 64.
    pub datagrams_per_source_max: usize,
    /// Most fragments that wait for a first one: 96. Each takes a slot of the module, and packets need slots, too.
    pub waiting_max: usize,
    /// Most of these with one source: 32.
    pub waiting_per_source_max: usize,
    /// How long a fragment waits: 2 s.
    pub waiting_ns: u64,
    /// How long later fragments pass after the first one: 30 s, which is as long as most receivers wait for them.
    pub datagram_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            datagrams_max: 256,
            datagrams_per_source_max: 64,
            waiting_max: 96,
            waiting_per_source_max: 32,
            waiting_ns: 2_000_000_000,
            datagram_ns: 30_000_000_000,
        }
    }
}

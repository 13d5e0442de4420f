//! What is counted for `stats`.

/// Counters since the start, or the last `stats reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those that `stats` prints, and protocol.txt of memcached explains")]
pub struct Counters {
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub get_cmds: u64,
    pub get_hits: u64,
    pub get_misses: u64,
    pub get_expired: u64,
    pub get_flushed: u64,
    pub set_cmds: u64,
    pub flush_cmds: u64,
    pub touch_cmds: u64,
    pub touch_hits: u64,
    pub touch_misses: u64,
    pub meta_cmds: u64,
    pub delete_hits: u64,
    pub delete_misses: u64,
    pub incr_hits: u64,
    pub incr_misses: u64,
    pub decr_hits: u64,
    pub decr_misses: u64,
    pub cas_hits: u64,
    pub cas_misses: u64,
    pub cas_badval: u64,
    pub store_too_large: u64,
    pub store_no_memory: u64,
    pub idle_kicks: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub total_items: u64,
    pub evictions: u64,
    pub evicted_nonzero: u64,
    pub evicted_unfetched: u64,
    /// How long the item that was evicted last had not been used, in seconds.
    pub evicted_time: u64,
    pub reclaimed: u64,
    pub expired_unfetched: u64,
    pub lrutail_reflocked: u64,
    pub outofmemory: u64,
}

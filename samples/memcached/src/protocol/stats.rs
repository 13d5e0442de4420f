//! `stats`: what is counted, with memcached's names. What this server has not is left out.

use super::{Answer, Command, Settings, Tokens, VERSION, append};
use crate::store::Store;
use crate::store::arena::{CHUNK_BYTES, SEGMENT_CHUNKS};
use crate::store::counters::Counters;

/// Lines of an answer.
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, name: &str, value: impl core::fmt::Display) -> &mut Self {
        append(&mut self.0, format_args!("STAT {name} {value}\r\n"));
        self
    }
}

pub(super) fn stats(tokens: &Tokens<'_>, store: &mut Store, settings: &Settings) -> Command {
    let mut lines = Lines(Vec::with_capacity(2048));
    match (tokens.at(1), tokens.len) {
        (_, 1) => general(&mut lines, store, settings),
        (b"reset", _) => {
            store.counters = Counters::default();
            return Command::line("RESET");
        }
        (b"settings", _) => of_settings(&mut lines, store, settings),
        (b"items", _) => of_items(&mut lines, store),
        (b"slabs", _) => of_slabs(&mut lines, store),
        // Sizes are not counted, as with memcached unless it was started to do so.
        (b"sizes" | b"sizes_enable" | b"sizes_disable", _) => {
            lines.add("sizes_status", "disabled");
        }
        (b"cachedump", _) => return Command::line("CLIENT_ERROR stats cachedump not allowed"),
        (b"detail", 3..) if matches!(tokens.at(2), b"on" | b"off" | b"dump") => {
            return Command::line("CLIENT_ERROR stats detail not allowed");
        }
        (b"detail", _) => return Command::line("CLIENT_ERROR usage: stats detail on|off|dump"),
        _ => return Command::line("ERROR"),
    }
    lines.0.extend_from_slice(b"END\r\n");
    Command::Answer(Answer { text: lines.0, value: None })
}

fn general(lines: &mut Lines, store: &Store, settings: &Settings) {
    let now_s = i64::from(store.now_s());
    let (items, bytes) = store.len();
    let counted = &store.counters;
    lines
        .add("uptime", store.uptime_s())
        .add("time", store.epoch_s() + now_s)
        .add("version", VERSION)
        .add("pointer_size", usize::BITS)
        .add("max_connections", settings.connections_max)
        .add("curr_connections", store.connections)
        .add("total_connections", counted.total_connections)
        .add("cmd_get", counted.get_cmds)
        .add("cmd_set", counted.set_cmds)
        .add("cmd_flush", counted.flush_cmds)
        .add("cmd_touch", counted.touch_cmds)
        .add("cmd_meta", counted.meta_cmds)
        .add("get_hits", counted.get_hits)
        .add("get_misses", counted.get_misses)
        .add("get_expired", counted.get_expired)
        .add("get_flushed", counted.get_flushed)
        .add("delete_misses", counted.delete_misses)
        .add("delete_hits", counted.delete_hits)
        .add("incr_misses", counted.incr_misses)
        .add("incr_hits", counted.incr_hits)
        .add("decr_misses", counted.decr_misses)
        .add("decr_hits", counted.decr_hits)
        .add("cas_misses", counted.cas_misses)
        .add("cas_hits", counted.cas_hits)
        .add("cas_badval", counted.cas_badval)
        .add("touch_hits", counted.touch_hits)
        .add("touch_misses", counted.touch_misses)
        .add("store_too_large", counted.store_too_large)
        .add("store_no_memory", counted.store_no_memory);
    if settings.idle_timeout_s > 0 {
        lines.add("idle_kicks", counted.idle_kicks);
    }
    lines
        .add("bytes_read", counted.bytes_read)
        .add("bytes_written", counted.bytes_written)
        .add("limit_maxbytes", store.limits().0)
        .add("accepting_conns", u8::from(store.connections < settings.connections_max.into()))
        .add("threads", 1)
        .add("hash_power_level", store.buckets().ilog2())
        .add("hash_bytes", store.buckets() * size_of::<u32>())
        .add("hash_is_expanding", 0)
        .add("bytes", bytes)
        .add("curr_items", items)
        .add("total_items", counted.total_items)
        .add("expired_unfetched", counted.expired_unfetched)
        .add("evicted_unfetched", counted.evicted_unfetched)
        .add("evictions", counted.evictions)
        .add("reclaimed", counted.reclaimed)
        .add("lrutail_reflocked", counted.lrutail_reflocked);
}

fn of_settings(lines: &mut Lines, store: &Store, settings: &Settings) {
    let (memory_bytes, item_size_max) = store.limits();
    lines
        .add("maxbytes", memory_bytes)
        .add("maxconns", settings.connections_max)
        .add("tcpport", settings.tcp_port)
        .add("udpport", settings.udp_port)
        .add("verbosity", 0)
        .add("oldest", store.flush_at())
        .add("evictions", "on")
        .add("shutdown_command", "no")
        .add("chunk_size", CHUNK_BYTES)
        .add("num_threads", 1)
        .add("detail_enabled", "no")
        .add("cas_enabled", "yes")
        .add("auth_enabled_sasl", "no")
        .add("auth_enabled_ascii", "no")
        .add("item_size_max", item_size_max)
        .add("slab_reassign", "no")
        .add("lru_crawler", "no")
        .add("flush_enabled", "yes")
        .add("dump_enabled", "no")
        .add("hash_algorithm", "siphash13")
        .add("lru_segmented", "no")
        .add("idle_timeout", settings.idle_timeout_s)
        .add("track_sizes", "no");
}

/// The one class of items: all are made of chunks of one size.
fn of_items(lines: &mut Lines, store: &Store) {
    let (items, bytes) = store.len();
    let counted = &store.counters;
    if items == 0 {
        return;
    }
    lines
        .add("items:1:number", items)
        .add("items:1:age", store.age_s())
        .add("items:1:mem_requested", bytes)
        .add("items:1:evicted", counted.evictions)
        .add("items:1:evicted_nonzero", counted.evicted_nonzero)
        .add("items:1:evicted_time", counted.evicted_time)
        .add("items:1:outofmemory", counted.outofmemory)
        .add("items:1:reclaimed", counted.reclaimed)
        .add("items:1:expired_unfetched", counted.expired_unfetched)
        .add("items:1:evicted_unfetched", counted.evicted_unfetched)
        .add("items:1:lrutail_reflocked", counted.lrutail_reflocked);
}

/// The one class of chunks; a page is a segment.
fn of_slabs(lines: &mut Lines, store: &Store) {
    let arena = store.arena();
    let counted = &store.counters;
    let segments = arena.segments();
    let chunks = segments * SEGMENT_CHUNKS;
    if segments > 0 {
        lines
            .add("1:chunk_size", CHUNK_BYTES)
            .add("1:chunks_per_page", SEGMENT_CHUNKS)
            .add("1:total_pages", segments)
            .add("1:total_chunks", chunks)
            .add("1:used_chunks", arena.used())
            .add("1:free_chunks", chunks - arena.used())
            .add("1:free_chunks_end", 0)
            .add("1:get_hits", counted.get_hits)
            .add("1:cmd_set", counted.set_cmds)
            .add("1:delete_hits", counted.delete_hits)
            .add("1:incr_hits", counted.incr_hits)
            .add("1:decr_hits", counted.decr_hits)
            .add("1:cas_hits", counted.cas_hits)
            .add("1:cas_badval", counted.cas_badval)
            .add("1:touch_hits", counted.touch_hits);
    }
    lines.add("active_slabs", usize::from(segments > 0)).add("total_malloced", chunks * CHUNK_BYTES);
}

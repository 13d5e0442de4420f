//! The commands of old: those with words.

use super::{BAD_EXPTIME, BAD_FORMAT};
use super::{Command, Get, NO_MEMORY, NON_NUMERIC, Receive, TOO_LARGE, Tokens, is_too_long, words};
use crate::numbers;
use crate::store::{Delta, DeltaError, Mode, Store};

/// Longest value that a command may announce.
const VALUE_BYTES_MAX: i32 = i32::MAX - 2;

/// `get`, `gets`, `gat` and `gats`.
pub(super) fn get(line: &[u8], with_cas: bool, touches: bool, store: &mut Store) -> Command {
    let first_key = 1 + usize::from(touches);
    let touch = match words(line).nth(1).filter(|_| touches).map(numbers::signed_32) {
        Some(None) => return Command::line(BAD_EXPTIME),
        Some(Some(exptime)) => Some(store.expiry(exptime)),
        None => None,
    };
    // Nothing is sent of an answer that ends in an error.
    if words(line).skip(first_key).any(is_too_long) {
        return Command::line(BAD_FORMAT);
    }
    // The keys come after the words before them.
    let at = words(line)
        .nth(first_key - 1)
        .map_or(line.len(), |word| word.as_ptr_range().end as usize - line.as_ptr() as usize);
    Command::Get(Get { with_cas, touch, at, is_done: false })
}

/// `set` and its like, of which a value follows.
pub(super) fn update(tokens: &Tokens<'_>, mode: Mode, store: &mut Store) -> Command {
    let no_reply = tokens.no_reply();
    let key = tokens.at(1);
    let refuse = || Command::line_unless(BAD_FORMAT, no_reply);
    if is_too_long(key) {
        return refuse();
    }
    let numbers =
        (numbers::unsigned_32(tokens.at(2)), numbers::signed_32(tokens.at(3)), numbers::signed_32(tokens.at(4)));
    let (Some(client_flags), Some(exptime), Some(value_len)) = numbers else { return refuse() };
    let cas = match mode {
        Mode::Cas => numbers::unsigned_64(tokens.at(5)),
        _ => Some(0),
    };
    let Some(cas) = cas else { return refuse() };
    if !(0..=VALUE_BYTES_MAX).contains(&value_len) {
        return refuse();
    }
    let value_len = value_len as usize;
    let refusal = if !store.fits(key.len(), client_flags, value_len) {
        store.counters.store_too_large += 1;
        TOO_LARGE
    } else {
        match store.make(key, client_flags, store.expiry(exptime)) {
            Ok(pin) => return Command::Receive(Receive { cas, ..Receive::new(pin, value_len, mode, no_reply) }),
            Err(_) => {
                store.counters.store_no_memory += 1;
                NO_MEMORY
            }
        }
    };
    // The old value must not be taken for the new one.
    if mode == Mode::Set
        && let Some(id) = store.find(key)
    {
        store.remove(id);
    }
    Command::Discard(super::Answer::line_unless(refusal, no_reply), value_len as u64 + 2)
}

/// `incr` and `decr`.
pub(super) fn arithmetic(tokens: &Tokens<'_>, increments: bool, store: &mut Store) -> Command {
    let no_reply = tokens.no_reply();
    let key = tokens.at(1);
    if is_too_long(key) {
        return Command::line_unless(BAD_FORMAT, no_reply);
    }
    let Some(delta) = numbers::unsigned_64(tokens.at(2)) else {
        return Command::line_unless("CLIENT_ERROR invalid numeric delta argument", no_reply);
    };
    let delta = if increments { Delta::Increment(delta) } else { Delta::Decrement(delta) };
    let text = match store.add_delta(key, delta, 0) {
        Ok((_, value)) => &value.to_string(),
        Err(DeltaError::NonNumeric) => NON_NUMERIC,
        Err(DeltaError::OutOfMemory) => "SERVER_ERROR out of memory",
        Err(DeltaError::NotFound | DeltaError::CasMismatch) => {
            count_delta_miss(delta, store);
            "NOT_FOUND"
        }
    };
    Command::line_unless(text, no_reply)
}

pub(super) fn count_delta_miss(delta: Delta, store: &mut Store) {
    match delta {
        Delta::Increment(_) => store.counters.incr_misses += 1,
        Delta::Decrement(_) => store.counters.decr_misses += 1,
    }
}

/// `delete`.
pub(super) fn delete(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    let key = tokens.at(1);
    let mut no_reply = false;
    if tokens.len > 2 {
        let holds_zero = tokens.at(2) == b"0";
        no_reply = tokens.no_reply();
        if !(tokens.len == 3 && (holds_zero || no_reply) || tokens.len == 4 && holds_zero && no_reply) {
            let text = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            return Command::line_unless(text, no_reply);
        }
    }
    if is_too_long(key) {
        return Command::line_unless(BAD_FORMAT, no_reply);
    }
    match store.find(key) {
        Some(id) => {
            store.counters.delete_hits += 1;
            store.remove(id);
            Command::line_unless("DELETED", no_reply)
        }
        None => {
            store.counters.delete_misses += 1;
            Command::line_unless("NOT_FOUND", no_reply)
        }
    }
}

/// `touch`.
pub(super) fn touch(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    let no_reply = tokens.no_reply();
    let key = tokens.at(1);
    if is_too_long(key) {
        return Command::line_unless(BAD_FORMAT, no_reply);
    }
    let Some(exptime) = numbers::signed_32(tokens.at(2)) else {
        return Command::line_unless(BAD_EXPTIME, no_reply);
    };
    store.counters.touch_cmds += 1;
    match store.find(key) {
        Some(id) => {
            store.counters.touch_hits += 1;
            store.bump(id);
            store.set_exptime(id, store.expiry(exptime));
            Command::line_unless("TOUCHED", no_reply)
        }
        None => {
            store.counters.touch_misses += 1;
            Command::line_unless("NOT_FOUND", no_reply)
        }
    }
}

/// `flush_all`.
pub(super) fn flush_all(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    let no_reply = tokens.no_reply();
    let delay_s = match tokens.len - usize::from(no_reply) {
        1 => Some(0),
        _ => numbers::signed_32(tokens.at(1)),
    };
    match delay_s {
        Some(delay_s) => {
            store.flush(delay_s);
            Command::line_unless("OK", no_reply)
        }
        None => {
            store.counters.flush_cmds += 1;
            Command::line_unless(BAD_EXPTIME, no_reply)
        }
    }
}

/// `verbosity`, which changes nothing: there is no such log.
pub(super) fn verbosity(tokens: &Tokens<'_>) -> Command {
    let text = if numbers::unsigned_32(tokens.at(1)).is_some() { "OK" } else { BAD_FORMAT };
    Command::line_unless(text, tokens.no_reply())
}

/// `cache_memlimit`, which is refused: the configuration says how much memory there is.
pub(super) fn memory_limit(tokens: &Tokens<'_>) -> Command {
    let text = match numbers::unsigned_32(tokens.at(1)) {
        None => "ERROR",
        Some(0..8) => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        Some(1_000_000_001..) => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        Some(_) => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
    };
    Command::line_unless(text, tokens.no_reply())
}

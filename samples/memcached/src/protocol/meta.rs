//! The meta commands: `mg`, `ms`, `md`, `ma` and `me`. Each has flags of one letter after its key, some with a value.
//!
//! Flags take effect, and are answered, in the order in which they come.

use std::borrow::Cow;

use super::classic::count_delta_miss;
use super::{Answer, BAD_FORMAT, Command, NO_MEMORY, NON_NUMERIC, Receive, Returned, TOO_LARGE, Tokens};
use super::{append, base64, is_too_long};
use crate::numbers;
use crate::store::{Delta, DeltaError, Id, KEY_BYTES_MAX, Mode, Store};

/// Most tokens of a meta command.
const META_TOKENS_MAX: usize = 19;
/// Longest opaque token, with its letter.
const OPAQUE_BYTES_MAX: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";

/// The flags of a command.
#[derive(Default)]
struct Flags {
    no_update: bool,
    vivifies: bool,
    wants_value: bool,
    set_stale: bool,
    no_reply: bool,
    key_binary: bool,
    mode: Option<u8>,
    exptime: Option<u32>,
    vivified_exptime: u32,
    recache_time: u32,
    client_flags: u32,
    cas: Option<u64>,
    delta: Option<u64>,
    initial: u64,
}

impl Flags {
    /// Reads the flags from the token with this index on, and the key.
    fn read<'a>(tokens: &Tokens<'a>, first: usize, store: &Store) -> Result<(Self, Cow<'a, [u8]>), &'static str> {
        let mut flags = Self::default();
        let mut key = Cow::Borrowed(tokens.at(1));
        let mut seen = 0_u128;
        // The last mistake is reported, unless a flag is unknown or comes twice.
        let mut mistake = None;
        for token in tokens.from(first) {
            let (flag, value) = (token[0], &token[1..]);
            if flag >= 127 || seen & 1 << flag != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << flag;
            if flag == b'b' {
                flags.key_binary = true;
                match base64::decode(&key) {
                    Some(decoded) => key = Cow::Owned(decoded),
                    None => mistake = Some("CLIENT_ERROR error decoding key"),
                }
            } else if let Err(text) = flags.set(flag, value, store) {
                if text == UNKNOWN_FLAG {
                    return Err(text);
                }
                // Without a text of its own it keeps that of an earlier one.
                mistake = Some(if flag == b'F' { mistake.unwrap_or(text) } else { text });
            }
        }
        mistake.map_or(Ok((flags, key)), Err)
    }

    fn set(&mut self, flag: u8, value: &[u8], store: &Store) -> Result<(), &'static str> {
        let expiry = || numbers::signed_32(value).map(|exptime| store.expiry(exptime)).ok_or(BAD_TOKEN);
        match flag {
            b'N' => {
                self.vivifies = true;
                self.vivified_exptime = expiry()?;
            }
            b'T' => self.exptime = Some(expiry()?),
            b'R' => self.recache_time = expiry()?,
            b'v' => self.wants_value = true,
            b'u' => self.no_update = true,
            b'q' => self.no_reply = true,
            b'I' => self.set_stale = true,
            b'F' => self.client_flags = numbers::unsigned_32(value).ok_or(BAD_FORMAT)?,
            b'C' => self.cas = Some(numbers::unsigned_64(value).ok_or(BAD_TOKEN)?),
            b'M' => match value {
                [mode] => self.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => self.initial = numbers::unsigned_64(value).ok_or("CLIENT_ERROR invalid numeric initial value")?,
            b'D' => self.delta = Some(numbers::unsigned_64(value).ok_or("CLIENT_ERROR invalid numeric delta value")?),
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Err(UNKNOWN_FLAG),
        }
        Ok(())
    }
}

const UNKNOWN_FLAG: &str = "CLIENT_ERROR invalid flag";

/// Appends the flags of an answer that need no item.
fn append_common(text: &mut Vec<u8>, token: &[u8], key: &[u8], key_binary: bool) -> Result<(), &'static str> {
    match token[0] {
        b'O' if token.len() > OPAQUE_BYTES_MAX => return Err(OPAQUE_TOO_LONG),
        b'O' => {
            text.push(b' ');
            text.extend_from_slice(token);
        }
        b'k' => append_key(text, key, key_binary),
        _ => {}
    }
    Ok(())
}

fn append_key(text: &mut Vec<u8>, key: &[u8], key_binary: bool) {
    text.extend_from_slice(b" k");
    if key_binary {
        base64::encode(key, text);
        text.extend_from_slice(b" b");
    } else {
        text.extend_from_slice(key);
    }
}

/// Seconds until an expiry, or -1 without one.
fn append_ttl(text: &mut Vec<u8>, exptime: u32, now_s: u32) {
    match exptime {
        0 => append(text, format_args!(" t-1")),
        exptime => append(text, format_args!(" t{}", exptime.wrapping_sub(now_s))),
    }
}

fn finished(mut text: Vec<u8>) -> Command {
    text.extend_from_slice(b"\r\n");
    Command::Answer(Answer { text, value: None })
}

/// `mg`.
pub(super) fn get(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    if is_too_long(tokens.at(1)) {
        return Command::line(BAD_FORMAT);
    }
    if tokens.len > META_TOKENS_MAX {
        return Command::line("CLIENT_ERROR options flags are too long");
    }
    let (flags, key) = match Flags::read(tokens, 2, store) {
        Ok(read) => read,
        Err(text) => return Command::line(text),
    };
    let found = store.find(&key);
    let item = match found {
        None if flags.vivifies => store.vivify(&key, b"").ok(),
        found => found,
    };
    let is_new = found.is_none();
    match item {
        Some(id) => hit(tokens, &flags, id, is_new, store).unwrap_or_else(Command::line),
        None => miss(tokens, &flags, &key, store).unwrap_or_else(Command::line),
    }
}

fn hit(tokens: &Tokens<'_>, flags: &Flags, id: Id, is_new: bool, store: &mut Store) -> Result<Command, &'static str> {
    let mut text = Vec::with_capacity(64);
    let mut wins = false;
    if flags.wants_value {
        append(&mut text, format_args!("VA {}", store.attributes(id).value_len));
    } else {
        text.extend_from_slice(b"HD");
    }
    for token in tokens.from(2) {
        let item = store.attributes(id);
        match token[0] {
            b'T' => store.set_exptime(id, flags.exptime.unwrap_or(0)),
            b'N' if is_new => {
                store.set_exptime(id, flags.vivified_exptime);
                wins = true;
            }
            b'R' => wins |= !item.is_token_sent && !is_new && item.exptime != 0 && item.exptime < flags.recache_time,
            b's' => append(&mut text, format_args!(" s{}", item.value_len)),
            b't' => append_ttl(&mut text, item.exptime, store.now_s()),
            b'c' => append(&mut text, format_args!(" c{}", item.cas)),
            b'f' => append(&mut text, format_args!(" f{}", item.client_flags)),
            b'l' => append(&mut text, format_args!(" l{}", store.now_s() - item.time)),
            b'h' => append(&mut text, format_args!(" h{}", u8::from(item.is_fetched))),
            _ => {
                let mut key = [0; KEY_BYTES_MAX];
                let len = store.key(id, &mut key);
                append_common(&mut text, token, &key[..len], item.is_key_binary)?;
            }
        }
    }
    let item = store.attributes(id);
    if item.is_token_sent {
        text.extend_from_slice(b" Z");
    }
    if item.is_stale {
        text.extend_from_slice(b" X");
        wins |= !item.is_token_sent;
    }
    if wins {
        text.extend_from_slice(b" W");
        store.set_token_sent(id);
    }
    text.extend_from_slice(b"\r\n");
    if !flags.no_update {
        store.bump(id);
    }
    if flags.exptime.is_some() {
        store.counters.touch_cmds += 1;
        store.counters.touch_hits += 1;
    } else {
        store.counters.get_cmds += 1;
        store.counters.get_hits += 1;
    }
    let value = if flags.wants_value { Some(store.pin(id)) } else { None };
    Ok(Command::Answer(Answer { text, value }))
}

fn miss(tokens: &Tokens<'_>, flags: &Flags, key: &[u8], store: &mut Store) -> Result<Command, &'static str> {
    store.counters.get_cmds += 1;
    store.counters.get_misses += 1;
    let mut text = b"EN".to_vec();
    for token in tokens.from(2) {
        append_common(&mut text, token, key, flags.key_binary)?;
    }
    Ok(if flags.no_reply { Command::Answer(Answer::default()) } else { finished(text) })
}

/// `ms`, of which a value follows.
pub(super) fn set(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    if is_too_long(tokens.at(1)) || tokens.len == 2 {
        return Command::line(BAD_FORMAT);
    }
    if tokens.len > META_TOKENS_MAX {
        return Command::line("CLIENT_ERROR options flags too long");
    }
    match numbers::signed_32(tokens.at(2)) {
        Some(value_len @ 0..=2_147_483_645) => set_of(tokens, value_len as usize, store)
            .map_or_else(|text| Command::Discard(Answer::line(text), value_len as u64 + 2), Command::Receive),
        _ => Command::line(BAD_FORMAT),
    }
}

fn set_of(tokens: &Tokens<'_>, value_len: usize, store: &mut Store) -> Result<Receive, &'static str> {
    let (flags, key) = Flags::read(tokens, 3, store)?;
    let mut returned = Vec::new();
    let mut mistake = None;
    for token in tokens.from(3) {
        let mut text = Vec::new();
        match append_common(&mut text, token, &key, flags.key_binary) {
            Ok(()) if token[0] == b'c' => returned.push(Returned::Cas),
            Ok(()) => returned.push(Returned::Text(text)),
            Err(text) => mistake = Some(text),
        }
    }
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    let mode = match mode {
        Mode::Set | Mode::Replace if flags.cas.is_some() => Mode::Cas,
        mode => mode,
    };
    mistake.map_or(Ok(()), Err)?;
    let refusal = if !store.fits(key.len(), flags.client_flags, value_len) {
        store.counters.store_too_large += 1;
        TOO_LARGE
    } else {
        match store.make(&key, flags.client_flags, flags.exptime.unwrap_or(0)) {
            Ok(pin) => {
                if flags.key_binary {
                    store.set_key_binary(pin.id());
                }
                return Ok(Receive {
                    cas: flags.cas.unwrap_or(0),
                    set_stale: flags.set_stale && mode == Mode::Cas,
                    returned: Some(returned),
                    ..Receive::new(pin, value_len, mode, flags.no_reply)
                });
            }
            Err(_) => {
                store.counters.store_no_memory += 1;
                NO_MEMORY
            }
        }
    };
    // The old value must not be taken for the new one.
    if let Some(id) = store.find(&key) {
        store.remove(id);
    }
    Err(refusal)
}

/// Reads the flags of `md` and `ma`, which have one text for all that is wrong with them.
fn read_flags<'a>(tokens: &Tokens<'a>, store: &Store) -> Result<(Flags, Cow<'a, [u8]>), &'static str> {
    if is_too_long(tokens.at(1)) {
        return Err(BAD_FORMAT);
    }
    if tokens.len > META_TOKENS_MAX {
        return Err("CLIENT_ERROR options flags too long");
    }
    Flags::read(tokens, 2, store).map_err(|_| "CLIENT_ERROR invalid or duplicate flag")
}

/// `md`.
pub(super) fn delete(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    delete_or_refuse(tokens, store).unwrap_or_else(Command::line)
}

fn delete_or_refuse(tokens: &Tokens<'_>, store: &mut Store) -> Result<Command, &'static str> {
    let (flags, key) = read_flags(tokens, store)?;
    let mut rest = Vec::new();
    for token in tokens.from(2) {
        append_common(&mut rest, token, &key, flags.key_binary)?;
    }
    let code = match store.find(&key) {
        None => {
            store.counters.delete_misses += 1;
            "NF"
        }
        Some(id) if flags.cas.is_some_and(|cas| cas != store.attributes(id).cas) => {
            store.counters.delete_misses += 1;
            "EX"
        }
        Some(id) => {
            if flags.set_stale {
                if let Some(exptime) = flags.exptime {
                    store.set_exptime(id, exptime);
                }
                store.set_stale(id);
            } else {
                store.counters.delete_hits += 1;
                store.remove(id);
            }
            if flags.no_reply {
                return Ok(Command::Answer(Answer::default()));
            }
            "HD"
        }
    };
    Ok(finished([code.as_bytes(), &rest].concat()))
}

/// `ma`.
pub(super) fn arithmetic(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    arithmetic_or_refuse(tokens, store).unwrap_or_else(Command::line)
}

fn arithmetic_or_refuse(tokens: &Tokens<'_>, store: &mut Store) -> Result<Command, &'static str> {
    let (flags, key) = read_flags(tokens, store)?;
    let by = flags.delta.unwrap_or(1);
    let delta = match flags.mode {
        None | Some(b'I' | b'+') => Delta::Increment(by),
        Some(b'D' | b'-') => Delta::Decrement(by),
        Some(_) => return Err("CLIENT_ERROR invalid mode for ma M token"),
    };
    let changed = store.add_delta(&key, delta, flags.cas.unwrap_or(0));
    let code = match changed {
        Ok((id, value)) => {
            let answer = changed_number(tokens, &flags, &key, (id, value), false, store)?;
            return Ok(if flags.no_reply { Command::Answer(Answer::default()) } else { answer });
        }
        Err(DeltaError::NotFound) if flags.vivifies => {
            let Ok(id) = store.vivify(&key, flags.initial.to_string().as_bytes()) else {
                return Err("SERVER_ERROR Out of memory allocating new item");
            };
            return changed_number(tokens, &flags, &key, (id, flags.initial), true, store);
        }
        Err(DeltaError::NotFound) => {
            count_delta_miss(delta, store);
            "NF"
        }
        Err(DeltaError::CasMismatch) => "EX",
        Err(DeltaError::NonNumeric) => return Err(NON_NUMERIC),
        Err(DeltaError::OutOfMemory) => return Err("SERVER_ERROR out of memory"),
    };
    let mut text = code.as_bytes().to_vec();
    for token in tokens.from(2) {
        append_common(&mut text, token, &key, flags.key_binary)?;
    }
    Ok(finished(text))
}

fn changed_number(
    tokens: &Tokens<'_>,
    flags: &Flags,
    key: &[u8],
    (id, value): (Id, u64),
    is_new: bool,
    store: &mut Store,
) -> Result<Command, &'static str> {
    let digits = value.to_string();
    let mut text = if flags.wants_value { format!("VA {}", digits.len()) } else { "HD".to_owned() }.into_bytes();
    for token in tokens.from(2) {
        let item = store.attributes(id);
        match token[0] {
            b'c' => append(&mut text, format_args!(" c{}", item.cas)),
            b't' => append_ttl(&mut text, item.exptime, store.now_s()),
            b'T' => store.set_exptime(id, flags.exptime.unwrap_or(0)),
            b'N' if is_new => store.set_exptime(id, flags.vivified_exptime),
            _ => append_common(&mut text, token, key, flags.key_binary)?,
        }
    }
    if flags.wants_value {
        append(&mut text, format_args!("\r\n{digits}"));
    }
    Ok(finished(text))
}

/// `me`: what is known of an item.
pub(super) fn debug(tokens: &Tokens<'_>, store: &mut Store) -> Command {
    let key = tokens.at(1);
    if tokens.len < 2 || is_too_long(key) {
        return Command::line(BAD_FORMAT);
    }
    let key = match tokens.at(2) {
        b"b" => match base64::decode(key) {
            Some(key) => Cow::Owned(key),
            None => return Command::line(BAD_FORMAT),
        },
        _ => Cow::Borrowed(key),
    };
    store.counters.meta_cmds += 1;
    let Some(id) = store.find(&key) else { return Command::line("EN") };
    let item = store.attributes(id);
    let mut text = b"ME ".to_vec();
    if item.is_key_binary {
        base64::encode(&key, &mut text);
    } else {
        text.extend_from_slice(&key);
    }
    let expiry = if item.exptime == 0 { -1 } else { i64::from(store.now_s()) - i64::from(item.exptime) };
    let size = Store::item_size(key.len(), item.client_flags, item.value_len);
    append(
        &mut text,
        format_args!(
            " exp={expiry} la={} cas={} fetch={} cls=1 size={size}",
            store.now_s() - item.time,
            item.cas,
            if item.is_fetched { "yes" } else { "no" },
        ),
    );
    finished(text)
}

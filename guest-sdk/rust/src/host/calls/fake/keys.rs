//! Replaces a node's private keys in native tests. Tickets are not encrypted: they carry name and age, so that those of other keys, expired
//! and changed ones are refused.

use core::cell::RefCell;

use pinion_abi::{
    Errno, KEY_MESSAGE_BYTES_MAX, KEY_SIGNATURE_BYTES_MAX, STATE_KEY_BYTES_MAX, TICKET_OVERHEAD_BYTES,
    TICKET_PLAIN_BYTES_MAX,
};

use super::exact_clock_ns;
use super::state::is_initialising;
use crate::testing::FakeKey;

/// For how long tickets are opened: twice as long as a node promises at least.
const LIFETIME_NS: u64 = 12 * 60 * 60 * 1_000_000_000;

thread_local! {
    static KEYS: RefCell<Vec<FakeKey>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn grant_key(key: FakeKey) {
    KEYS.with_borrow_mut(|keys| match keys.iter_mut().find(|other| other.name == key.name) {
        Some(other) => *other = key,
        None => keys.push(key),
    });
}

pub(crate) fn key_open(name: &str) -> i32 {
    if name.len() > STATE_KEY_BYTES_MAX {
        return Errno::TooLong.negated();
    }
    let number = KEYS.with_borrow(|keys| keys.iter().position(|key| key.name == name));
    number.and_then(|number| i32::try_from(number).ok()).unwrap_or(Errno::NoKey.negated())
}

pub(crate) fn key_sign(key: i32, scheme: u16, message: &[u8], signature: &mut [u8]) -> i32 {
    with(key, |key| {
        if message.len() > KEY_MESSAGE_BYTES_MAX {
            return Err(Errno::Refused);
        }
        let made = (key.sign)(scheme, message).ok_or(Errno::Refused)?;
        assert!(made.len() <= KEY_SIGNATURE_BYTES_MAX, "no key of a node makes longer signatures");
        signature.get_mut(..made.len()).ok_or(Errno::TooLong)?.copy_from_slice(&made);
        Ok(made.len())
    })
}

pub(crate) fn ticket_seal(key: i32, plain: &[u8], sealed: &mut [u8]) -> i32 {
    with(key, |key| {
        let len = plain.len() + TICKET_OVERHEAD_BYTES;
        let sealed = sealed.get_mut(..len).filter(|_| plain.len() <= TICKET_PLAIN_BYTES_MAX).ok_or(Errno::TooLong)?;
        let (head, content) = sealed.split_at_mut(TICKET_OVERHEAD_BYTES);
        content.copy_from_slice(plain);
        let now_ns = exact_clock_ns();
        head[..8].copy_from_slice(&now_ns.to_le_bytes());
        head[8..16].copy_from_slice(&sum(&key.name, now_ns, plain).to_le_bytes());
        head[16..].fill(0);
        Ok(len)
    })
}

pub(crate) fn ticket_open(key: i32, sealed: &[u8], plain: &mut [u8]) -> i32 {
    with(key, |key| {
        let (head, content) = sealed.split_at_checked(TICKET_OVERHEAD_BYTES).ok_or(Errno::Refused)?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (sealed_ns, expected) = (word(0), word(8));
        let is_good = head[16..].iter().all(|byte| *byte == 0)
            && expected == sum(&key.name, sealed_ns, content)
            && exact_clock_ns().saturating_sub(sealed_ns) < LIFETIME_NS;
        if !is_good {
            return Err(Errno::Refused);
        }
        plain.get_mut(..content.len()).ok_or(Errno::TooLong)?.copy_from_slice(content);
        Ok(content.len())
    })
}

fn with(key: i32, work: impl FnOnce(&FakeKey) -> Result<usize, Errno>) -> i32 {
    if is_initialising() {
        return Errno::NotNow.negated();
    }
    let called = KEYS
        .with_borrow(|keys| work(usize::try_from(key).ok().and_then(|number| keys.get(number)).ok_or(Errno::NoKey)?));
    called.map_or_else(Errno::negated, |len| i32::try_from(len).unwrap_or(i32::MAX))
}

/// Returns a checksum (FNV-1a), by which changed tickets are told.
fn sum(name: &str, sealed_ns: u64, content: &[u8]) -> u64 {
    let bytes = name.bytes().chain(sealed_ns.to_le_bytes()).chain(content.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

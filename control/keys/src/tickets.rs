//! Session tickets of one key's servers: sealed and opened by the host, so that all instances resume each other's sessions, and no instance
//! holds a key that opens the tickets of others' clients.
//!
//! ```text
//!   ticket   generation, 8 bytes | number, 8 | encrypted with AES-256-GCM | tag, 16
//! ```
//!
//! A generation is a random key with a random name. It seals for [`TICKET_LIFETIME_S`], and opens for as long again. Each ticket has a
//! number of its own, which is the nonce. Called on workers: nothing blocks for longer than a swap of two generations takes, once in hours.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// For how long a ticket is opened at least, in seconds: 6 h. It is opened for twice as long at most. RFC 8446, section 4.6.1, allows 7 days.
pub const TICKET_LIFETIME_S: u64 = 6 * 60 * 60;
/// The longest content of a ticket, in bytes.
pub const TICKET_PLAIN_BYTES_MAX: usize = 4096;
/// How many bytes longer than its content a ticket is.
pub const TICKET_OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

const NAME_BYTES: usize = 8;
const NUMBER_BYTES: usize = 8;
const HEAD_BYTES: usize = NAME_BYTES + NUMBER_BYTES;
const TAG_BYTES: usize = 16;
/// Tickets of one generation, far below what AES-GCM can seal with one key.
const SEALED_MAX: u64 = 1 << 32;

/// Why a ticket was not sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The content is longer than [`TICKET_PLAIN_BYTES_MAX`], or the room for the result is too small.
    #[error("the content of a ticket has at most {TICKET_PLAIN_BYTES_MAX} bytes, and its result has to have room")]
    TooLong,
    /// It has expired, was changed, or is no ticket of this key.
    #[error("the ticket has expired, was forged, or is of another key")]
    Invalid,
    /// The machine has no randomness.
    #[error("sealing failed")]
    Failed,
}

/// The tickets of one key. See the module.
#[derive(Default)]
pub struct Tickets {
    generations: RwLock<Generations>,
}

#[derive(Default)]
struct Generations {
    current: Option<Generation>,
    previous: Option<Generation>,
}

struct Generation {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
    began_s: u64,
    sealed: AtomicU64,
}

impl Generation {
    fn new(now_s: u64) -> Result<Self, TicketError> {
        let mut random = Zeroizing::new([0; NAME_BYTES + 32]);
        SystemRandom::new().fill(&mut *random).map_err(|_| TicketError::Failed)?;
        let (name, key) = random.split_at(NAME_BYTES);
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| TicketError::Failed)?;
        let name = name.try_into().map_err(|_| TicketError::Failed)?;
        Ok(Self { name, key: LessSafeKey::new(key), began_s: now_s, sealed: AtomicU64::new(0) })
    }

    fn age_s(&self, now_s: u64) -> u64 {
        now_s.saturating_sub(self.began_s)
    }

    /// Takes a number for a ticket; none if it seals no more.
    fn number(&self, now_s: u64) -> Option<u64> {
        if self.age_s(now_s) >= TICKET_LIFETIME_S {
            return None;
        }
        Some(self.sealed.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < SEALED_MAX)
    }

    fn seal(&self, number: u64, plain: &[u8], sealed: &mut [u8]) -> Result<usize, TicketError> {
        let (head, rest) = sealed.split_at_mut(HEAD_BYTES);
        let (encrypted, tag) = rest.split_at_mut(plain.len());
        head[..NAME_BYTES].copy_from_slice(&self.name);
        head[NAME_BYTES..].copy_from_slice(&number.to_le_bytes());
        encrypted.copy_from_slice(plain);
        let computed = self.key.seal_in_place_separate_tag(nonce(number), Aad::from(&self.name), encrypted);
        tag[..TAG_BYTES].copy_from_slice(computed.map_err(|_| TicketError::Failed)?.as_ref());
        Ok(TICKET_OVERHEAD_BYTES + plain.len())
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Tickets {
    /// Seals the content of a ticket into the start of `sealed`. Returns the ticket's length. `now_s` are seconds of any clock that is not set
    /// back, and always the same one. Takes a microsecond for each kilobyte or so; allocates nothing but once in [`TICKET_LIFETIME_S`].
    ///
    /// # Errors
    /// [`TicketError::TooLong`], or [`TicketError::Failed`] if there is no randomness for a new generation.
    pub fn seal(&self, now_s: u64, plain: &[u8], sealed: &mut [u8]) -> Result<usize, TicketError> {
        if plain.len() > TICKET_PLAIN_BYTES_MAX || sealed.len() < plain.len() + TICKET_OVERHEAD_BYTES {
            return Err(TicketError::TooLong);
        }
        if let Some(sealed) = self.seal_with_current(now_s, plain, sealed) {
            return sealed;
        }
        let next = Generation::new(now_s)?;
        let mut generations = self.generations.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if generations.current.as_ref().is_none_or(|current| current.number(now_s).is_none()) {
            generations.previous = generations.current.replace(next);
        }
        drop(generations);
        self.seal_with_current(now_s, plain, sealed).unwrap_or(Err(TicketError::Failed))
    }

    /// Returns none if there is no generation that seals.
    fn seal_with_current(&self, now_s: u64, plain: &[u8], sealed: &mut [u8]) -> Option<Result<usize, TicketError>> {
        let generations = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        let current = generations.current.as_ref()?;
        let number = current.number(now_s)?;
        Some(current.seal(number, plain, sealed))
    }

    /// Opens a ticket into the start of `plain`. Returns the content's length. Takes as long as sealing, and allocates nothing.
    ///
    /// # Errors
    /// [`TicketError::Invalid`], or [`TicketError::TooLong`] if `plain` has no room for the content. `plain` holds nothing of the content then.
    pub fn open(&self, now_s: u64, sealed: &[u8], plain: &mut [u8]) -> Result<usize, TicketError> {
        let len = sealed.len().checked_sub(TICKET_OVERHEAD_BYTES).ok_or(TicketError::Invalid)?;
        if len > TICKET_PLAIN_BYTES_MAX {
            return Err(TicketError::Invalid);
        }
        let plain = plain.get_mut(..len).ok_or(TicketError::TooLong)?;
        let (head, rest) = sealed.split_at(HEAD_BYTES);
        let (encrypted, tag) = rest.split_at(len);
        let (name, number) = head.split_at(NAME_BYTES);
        let number = u64::from_le_bytes(number.try_into().map_err(|_| TicketError::Invalid)?);
        let tag = Tag::try_from(tag).map_err(|_| TicketError::Invalid)?;
        let generations = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        let mut both = [&generations.current, &generations.previous].into_iter().flatten();
        let generation =
            both.find(|generation| generation.name == name && generation.age_s(now_s) < 2 * TICKET_LIFETIME_S);
        let generation = generation.ok_or(TicketError::Invalid)?;
        plain.copy_from_slice(encrypted);
        let (nonce, aad) = (nonce(number), Aad::from(&generation.name));
        match generation.key.open_in_place_separate_tag(nonce, aad, tag, plain, 0..) {
            Ok(_) => Ok(len),
            Err(_) => {
                plain.fill(0);
                Err(TicketError::Invalid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1000;

    fn seal(tickets: &Tickets, now_s: u64, plain: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; plain.len() + TICKET_OVERHEAD_BYTES + 7];
        let len = tickets.seal(now_s, plain, &mut sealed).unwrap();
        sealed.truncate(len);
        sealed
    }

    fn open(tickets: &Tickets, now_s: u64, sealed: &[u8]) -> Result<Vec<u8>, TicketError> {
        let mut plain = vec![0; TICKET_PLAIN_BYTES_MAX];
        let len = tickets.open(now_s, sealed, &mut plain)?;
        plain.truncate(len);
        Ok(plain)
    }

    #[test]
    fn a_ticket_is_opened_by_its_own_key_alone() {
        let (tickets, others) = (Tickets::default(), Tickets::default());
        for plain in [&b""[..], b"a session", &[7; TICKET_PLAIN_BYTES_MAX]] {
            let sealed = seal(&tickets, NOW_S, plain);
            assert_eq!(sealed.len(), plain.len() + TICKET_OVERHEAD_BYTES);
            assert_eq!(open(&tickets, NOW_S, &sealed).as_deref(), Ok(plain));
            seal(&others, NOW_S, plain);
            assert_eq!(open(&others, NOW_S, &sealed), Err(TicketError::Invalid));
        }
    }

    #[test]
    fn one_content_is_never_sealed_alike() {
        let tickets = Tickets::default();
        assert_ne!(seal(&tickets, NOW_S, b"a session"), seal(&tickets, NOW_S, b"a session"));
    }

    #[test]
    fn a_ticket_with_any_other_bit_is_refused_and_nothing_of_it_is_shown() {
        let tickets = Tickets::default();
        let sealed = seal(&tickets, NOW_S, b"a session");
        for bit in 0..sealed.len() * 8 {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let mut plain = [0; 64];
            assert_eq!(tickets.open(NOW_S, &forged, &mut plain), Err(TicketError::Invalid), "bit {bit}");
            assert_eq!(plain, [0; 64], "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(open(&tickets, NOW_S, &sealed[..len]), Err(TicketError::Invalid), "{len} bytes");
        }
    }

    #[test]
    fn tickets_are_opened_for_their_lifetime_and_never_for_longer_than_twice_that() {
        let tickets = Tickets::default();
        let (early, late_s) = (seal(&tickets, NOW_S, b"early"), NOW_S + TICKET_LIFETIME_S - 1);
        let late = seal(&tickets, late_s, b"late");
        let next = seal(&tickets, NOW_S + TICKET_LIFETIME_S, b"next");
        assert!(early[..8] == late[..8] && late[..8] != next[..8]);
        let last_s = late_s + TICKET_LIFETIME_S;
        assert_eq!(open(&tickets, last_s, &late).as_deref(), Ok(&b"late"[..]));
        assert_eq!(
            open(&tickets, last_s + 1, &late),
            Err(TicketError::Invalid),
            "twice a lifetime after its generation began"
        );
        assert_eq!(open(&tickets, last_s + 1, &early), Err(TicketError::Invalid));
        assert_eq!(open(&tickets, last_s + 1, &next).as_deref(), Ok(&b"next"[..]));
    }

    #[test]
    fn tickets_of_two_generations_before_are_refused() {
        let tickets = Tickets::default();
        let old = seal(&tickets, NOW_S, b"old");
        for age in [1, 2] {
            seal(&tickets, NOW_S + age * TICKET_LIFETIME_S, b"new");
        }
        assert_eq!(open(&tickets, NOW_S, &old), Err(TicketError::Invalid));
    }

    #[test]
    fn a_generation_that_has_sealed_enough_is_followed_by_the_next() {
        let tickets = Tickets::default();
        let first = seal(&tickets, NOW_S, b"first");
        tickets.generations.read().unwrap().current.as_ref().unwrap().sealed.store(SEALED_MAX, Ordering::Relaxed);
        let second = seal(&tickets, NOW_S, b"second");
        assert_ne!(first[..8], second[..8]);
        assert_eq!(open(&tickets, NOW_S, &first).as_deref(), Ok(&b"first"[..]));
    }

    #[test]
    fn contents_and_results_without_room_are_refused() {
        let tickets = Tickets::default();
        let mut sealed = vec![0; 2 * TICKET_PLAIN_BYTES_MAX];
        let long = [0; TICKET_PLAIN_BYTES_MAX + 1];
        assert_eq!(tickets.seal(NOW_S, &long, &mut sealed), Err(TicketError::TooLong));
        let short = &mut sealed[..TICKET_OVERHEAD_BYTES + 8];
        assert_eq!(tickets.seal(NOW_S, b"a session", short), Err(TicketError::TooLong));
        let ticket = seal(&tickets, NOW_S, b"a session");
        assert_eq!(tickets.open(NOW_S, &ticket, &mut [0; 8]), Err(TicketError::TooLong));
        assert_eq!(open(&tickets, NOW_S, &[&ticket[..], &long].concat()), Err(TicketError::Invalid));
    }
}

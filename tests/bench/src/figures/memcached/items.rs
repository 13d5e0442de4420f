//! The items that all clients ask for, over UDP and TCP. Keys and values follow from their number, so that every reply can be checked and
//! none has to be kept.

use crate::figures::memcached::mixed;

/// Bytes of a key (Enberg's).
pub(crate) const KEY_BYTES: usize = 30;

/// An item: the client whose it is, and its number among that client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) client: u32,
    pub(crate) number: u32,
}

impl Item {
    /// Returns the key.
    pub(crate) fn key(self) -> [u8; KEY_BYTES] {
        let mut key = *b"client-0000000-item-0000000000";
        digits(self.client, &mut key[7..14]);
        digits(self.number, &mut key[20..]);
        key
    }

    /// Writes the value; its length is that of the place.
    pub(crate) fn write_value(self, place: &mut [u8]) {
        for (word, chunk) in place.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(word).to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns whether this is the value.
    pub(crate) fn has_value(self, value: &[u8]) -> bool {
        value.chunks(8).enumerate().all(|(word, chunk)| *chunk == self.word(word).to_le_bytes()[..chunk.len()])
    }

    fn word(self, word: usize) -> u64 {
        mixed(u64::from(self.client) << 40 | u64::from(self.number) << 8 | word as u64)
    }
}

/// The parts of texts of the protocol around a key and a value of so many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    value_bytes: usize,
    after_key: Vec<u8>,
}

const GET: &[u8] = b"get ";
const SET: &[u8] = b"set ";
const VALUE: &[u8] = b"VALUE ";
const LINE_END: &[u8] = b"\r\n";
const END: &[u8] = b"\r\nEND\r\n";
/// The reply to a `set`.
pub(crate) const STORED: &[u8] = b"STORED\r\n";

impl Texts {
    /// Makes the texts for values of this length.
    pub(crate) fn new(value_bytes: usize) -> Self {
        Self { value_bytes, after_key: format!(" 0 {value_bytes}\r\n").into_bytes() }
    }

    /// The bytes of the longest text.
    pub(crate) fn bytes_max(&self) -> usize {
        VALUE.len() + KEY_BYTES + 2 + self.after_key.len() + self.value_bytes + END.len()
    }

    /// Writes a `get` to the start of a place; returns its length.
    pub(crate) fn write_get(&self, item: Item, place: &mut [u8]) -> usize {
        let mut at = 0;
        for part in [GET, &item.key(), LINE_END] {
            place[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    }

    /// Writes a `set` to the start of a place; returns its length.
    pub(crate) fn write_set(&self, item: Item, place: &mut [u8]) -> usize {
        let mut at = 0;
        for part in [SET, &item.key(), b" 0", &self.after_key] {
            place[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        item.write_value(&mut place[at..at + self.value_bytes]);
        at += self.value_bytes;
        place[at..at + LINE_END.len()].copy_from_slice(LINE_END);
        at + LINE_END.len()
    }

    /// Bytes of the reply to a `get`.
    pub(crate) fn found_bytes(&self) -> usize {
        VALUE.len() + KEY_BYTES + self.after_key.len() + self.value_bytes + END.len()
    }

    /// Returns whether this is the reply to a `get`.
    pub(crate) fn is_found(&self, item: Item, reply: &[u8]) -> bool {
        let parts = || {
            let reply =
                reply.strip_prefix(VALUE)?.strip_prefix(&item.key())?.strip_prefix(self.after_key.as_slice())?;
            let (value, end) = reply.split_at_checked(self.value_bytes)?;
            Some(end == END && item.has_value(value))
        };
        parts().unwrap_or(false)
    }
}

/// Writes a number with leading zeros.
fn digits(mut number: u32, place: &mut [u8]) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: Item = Item { client: 12, number: 345 };

    #[test]
    fn requests_are_the_protocols() {
        let texts = Texts::new(3);
        let mut place = [0; 100];
        let len = texts.write_get(ITEM, &mut place);
        assert_eq!(&place[..len], b"get client-0000012-item-0000000345\r\n");
        let len = texts.write_set(ITEM, &mut place);
        let mut value = [0; 3];
        ITEM.write_value(&mut value);
        assert_eq!(place[..len], [b"set client-0000012-item-0000000345 0 0 3\r\n", &value[..], b"\r\n"].concat());
    }

    #[test]
    fn only_the_items_own_value_is_its_reply() {
        let texts = Texts::new(135);
        let mut value = [0; 135];
        ITEM.write_value(&mut value);
        let reply = [b"VALUE client-0000012-item-0000000345 0 135\r\n", &value[..], b"\r\nEND\r\n"].concat();
        assert_eq!(reply.len(), texts.found_bytes());
        assert!(texts.is_found(ITEM, &reply));
        assert!(!texts.is_found(Item { number: 346, ..ITEM }, &reply));
        for at in 0..reply.len() {
            let mut altered = reply.clone();
            altered[at] ^= 1;
            assert!(!texts.is_found(ITEM, &altered), "byte {at}");
        }
        assert!(!texts.is_found(ITEM, b"END\r\n"));
        assert!(!texts.is_found(ITEM, &reply[..reply.len() - 1]));
    }
}

//! Queries and answers (RFC 1035): smoltcp's format, and what of an answer counts.

use core::net::IpAddr;

use smoltcp::wire::{
    DnsFlags, DnsOpcode, DnsPacket, DnsQueryType, DnsQuestion, DnsRcode, DnsRecord, DnsRecordData, DnsRepr,
};

use super::IpVersion;

/// Most bytes of a name in a message (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 255;
const LABEL_BYTES_MAX: usize = 63;
/// Offset of the number of additional records.
const ADDITIONAL_AT: usize = 10;
/// Most aliases on the way from a name to its addresses.
const ALIASES_MAX: usize = 8;
/// Most addresses that are taken from an answer.
const ADDRESSES_MAX: usize = 16;
/// An OPT record (RFC 6891, section 6.1.2): answers may have 1232 bytes, which no path with IPv6 fragments.
const OPT: [u8; 11] = [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0];

/// A name as in a message: labels with their lengths, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::net) struct Name(Box<[u8]>);

impl Name {
    /// Returns a name from its text, with or without a dot at the end.
    pub(in crate::net) fn of(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len() + 2);
        for label in text.strip_suffix('.').unwrap_or(text).split('.') {
            let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if label.is_empty() || label.len() > LABEL_BYTES_MAX || !label.bytes().all(is_right) {
                return None;
            }
            bytes.push(label.len() as u8);
            bytes.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        bytes.push(0);
        (bytes.len() <= NAME_BYTES_MAX).then(|| Self(bytes.into()))
    }
}

/// What a resolver says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// At least one, and for how long they may be kept.
    Addresses {
        addresses: Vec<IpAddr>,
        ttl_s: u32,
    },
    NoSuchName,
    NoAddress,
    /// It did not fit.
    Truncated,
    /// The resolver does not understand the query.
    NotUnderstood,
    /// It has failed, refuses to answer, or sends nonsense.
    Failed,
}

/// Writes a query. Returns its length; `None` if there is too little room.
pub(super) fn query(id: u16, name: &Name, version: IpVersion, is_extended: bool, bytes: &mut [u8]) -> Option<usize> {
    let question = DnsQuestion { name: &name.0, type_: record_type(version) };
    let (transaction_id, opcode, flags) = (id, DnsOpcode::Query, DnsFlags::RECURSION_DESIRED);
    let repr = DnsRepr { transaction_id, opcode, flags, question };
    let len = repr.buffer_len();
    let message = bytes.get_mut(..len)?;
    message.fill(0);
    repr.emit(&mut DnsPacket::new_unchecked(message));
    if !is_extended {
        return Some(len);
    }
    bytes.get_mut(len..len + OPT.len())?.copy_from_slice(&OPT);
    bytes[ADDITIONAL_AT + 1] = 1;
    Some(len + OPT.len())
}

/// Returns what a message says about a query. `None` if it does not answer it.
pub(super) fn answer(message: &[u8], id: u16, name: &Name, version: IpVersion) -> Option<Answer> {
    let packet = DnsPacket::new_checked(message).ok()?;
    let is_answer = packet.transaction_id() == id
        && packet.flags().contains(DnsFlags::RESPONSE)
        && packet.opcode() == DnsOpcode::Query;
    if !is_answer {
        return None;
    }
    let code = packet.rcode();
    // A server that cannot read a query may leave it out of its answer.
    if packet.question_count() == 0 && code == DnsRcode::FormErr {
        return Some(Answer::NotUnderstood);
    }
    let (records, question) = DnsQuestion::parse(packet.payload()).ok()?;
    let is_question = packet.question_count() == 1
        && question.type_ == record_type(version)
        && question.name.eq_ignore_ascii_case(&name.0);
    if !is_question {
        return None;
    }
    Some(match code {
        _ if packet.flags().contains(DnsFlags::TRUNCATED) => Answer::Truncated,
        DnsRcode::NoError => addresses(&packet, question.name, records, version).unwrap_or(Answer::Failed),
        DnsRcode::NXDomain => Answer::NoSuchName,
        DnsRcode::FormErr | DnsRcode::NotImp => Answer::NotUnderstood,
        _ => Answer::Failed,
    })
}

/// Follows the aliases from the name in question to its addresses, in whatever order the records are. `None` if they make no sense.
fn addresses(packet: &DnsPacket<&[u8]>, name: &[u8], records: &[u8], version: IpVersion) -> Option<Answer> {
    let (mut name, mut ttl_s) = (name, u32::MAX);
    for _ in 0..=ALIASES_MAX {
        let mut addresses = Vec::new();
        let mut alias = None;
        let mut rest = records;
        for _ in 0..packet.answer_record_count() {
            let (next, record) = DnsRecord::parse(rest).ok()?;
            rest = next;
            let address = match (record.data, version) {
                (DnsRecordData::A(address), IpVersion::V4) => IpAddr::from(address),
                (DnsRecordData::Aaaa(address), IpVersion::V6) => IpAddr::from(address),
                (DnsRecordData::Cname(target), _) if is_same(packet, record.name, name) => {
                    ttl_s = ttl_s.min(record.ttl);
                    alias = Some(target);
                    continue;
                }
                _ => continue,
            };
            if addresses.len() < ADDRESSES_MAX && is_same(packet, record.name, name) {
                ttl_s = ttl_s.min(record.ttl);
                addresses.push(address);
            }
        }
        if !addresses.is_empty() {
            return Some(Answer::Addresses { addresses, ttl_s });
        }
        let Some(target) = alias else { return Some(Answer::NoAddress) };
        name = target;
    }
    None
}

/// Returns whether two names in a message are the same. Malformed ones are not.
fn is_same(packet: &DnsPacket<&[u8]>, one: &[u8], other: &[u8]) -> bool {
    let (mut one, mut other) = (packet.parse_name(one), packet.parse_name(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(Ok(one)), Some(Ok(other))) if one.eq_ignore_ascii_case(other) => {}
            _ => return false,
        }
    }
}

fn record_type(version: IpVersion) -> DnsQueryType {
    match version {
        IpVersion::V4 => DnsQueryType::A,
        IpVersion::V6 => DnsQueryType::Aaaa,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with this code and these records to the query of `name`, where a pointer to offset 12 is that name.
    fn message(name: &str, flags: u16, records: &[(&[u8], u16, u32, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; 300];
        let len = query(7, &Name::of(name).unwrap(), IpVersion::V4, false, &mut message).unwrap();
        message.truncate(len);
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[7] = records.len() as u8;
        for (name, kind, ttl_s, data) in records {
            message.extend_from_slice(name);
            message.extend(kind.to_be_bytes());
            message.extend(1_u16.to_be_bytes());
            message.extend(ttl_s.to_be_bytes());
            message.extend((data.len() as u16).to_be_bytes());
            message.extend_from_slice(data);
        }
        message
    }

    const GOOD: u16 = 0x8180;
    const QUESTION: &[u8] = &[0xc0, 12];

    fn read(message: &[u8]) -> Option<Answer> {
        answer(message, 7, &Name::of("www.example.org").unwrap(), IpVersion::V4)
    }

    #[test]
    fn only_what_repeats_identification_and_question_is_an_answer() {
        let right = message("www.example.org", GOOD, &[(QUESTION, 1, 60, &[192, 0, 2, 1])]);
        let addresses = vec![[192, 0, 2, 1].into()];
        assert_eq!(read(&right), Some(Answer::Addresses { addresses, ttl_s: 60 }));
        assert!(read(&message("WWW.Example.ORG", GOOD, &[])).is_some(), "case does not count");
        assert_eq!(read(&message("www.example.com", GOOD, &[])), None);
        assert_eq!(read(&message("www.example.org", 0x0180, &[])), None, "a query");
        for at in [0, 1, 5, 12 + 17 + 1] {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert_eq!(read(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn aliases_are_followed_in_any_order_and_the_shortest_life_counts() {
        let alias: &[u8] = b"\x05alias\x07example\x03net\x00";
        let other: &[u8] = b"\x05other\x00";
        let records: [(&[u8], u16, u32, &[u8]); 4] = [
            (other, 1, 5, &[192, 0, 2, 9]),
            (alias, 1, 300, &[192, 0, 2, 1]),
            (b"\x05ALIAS\x07example\x03net\x00", 1, 200, &[192, 0, 2, 2]),
            (QUESTION, 5, 100, alias),
        ];
        let addresses = vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let answer = Answer::Addresses { addresses, ttl_s: 100 };
        assert_eq!(read(&message("www.example.org", GOOD, &records)), Some(answer));
    }

    #[test]
    fn aliases_in_a_circle_end() {
        let records: [(&[u8], u16, u32, &[u8]); 1] = [(QUESTION, 5, 100, b"\x03WWW\x07example\x03org\x00")];
        assert_eq!(read(&message("www.example.org", GOOD, &records)), Some(Answer::Failed));
    }

    #[test]
    fn an_answer_without_addresses_says_why() {
        let answer_of = |flags| read(&message("www.example.org", flags, &[]));
        assert_eq!(answer_of(GOOD), Some(Answer::NoAddress));
        assert_eq!(answer_of(GOOD | 3), Some(Answer::NoSuchName));
        assert_eq!(answer_of(GOOD | 2), Some(Answer::Failed));
        assert_eq!(answer_of(GOOD | 1), Some(Answer::NotUnderstood));
        assert_eq!(answer_of(GOOD | 0x200), Some(Answer::Truncated));
    }

    #[test]
    fn no_more_addresses_are_taken_than_are_bounded() {
        let records = [(QUESTION, 1, 60, &[192, 0, 2, 1][..]); 40];
        let Some(Answer::Addresses { addresses, .. }) = read(&message("www.example.org", GOOD, &records)) else {
            panic!()
        };
        assert_eq!(addresses.len(), ADDRESSES_MAX);
    }

    #[test]
    fn names_are_checked_before_they_are_asked_for() {
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        for right in ["example.org", "example.org.", "a", "_dns.x-1.org", &longest] {
            assert!(Name::of(right).is_some(), "{right}");
        }
        let too_long = format!("{longest}b");
        for wrong in ["", ".", "a..b", "a b", "\u{e4}.org", &"a".repeat(64), &too_long] {
            assert!(Name::of(wrong).is_none(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_message_panics(message in proptest::collection::vec(proptest::num::u8::ANY, 0..200), from in 0..40_usize) {
            let mut bytes = super::tests::message("www.example.org", GOOD, &[(QUESTION, 5, 60, QUESTION); 2]);
            bytes[7] = 9;
            bytes.truncate(bytes.len() - from.min(30));
            bytes.extend_from_slice(&message);
            read(&bytes);
            read(&message);
        }
    }
}

//! Fragmentation of IPv4 datagrams that are longer than their next hop's MTU (RFC 791; RFC 1812, 4.2.2.7).
//!
//! ```text
//!   datagram   | header, options | payload ..................|
//!   first      | header, options | payload .......|                          stays in its slot
//!   rest       | header, some options | .......... payload |                 in one of the function's own
//! ```
//!
//! A slot has room for less than twice the least MTU that can be configured, so two fragments are always enough.

use pinion_sdk::headers::{Addresses, Ip};
use pinion_sdk::{Packet, checksum};

const HEADER_MIN: usize = 20;
const HEADER_MAX: usize = 60;
const LEN_AT: usize = 2;
const FRAGMENT_AT: usize = 6;
const CHECKSUM_AT: usize = 10;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// An option that is one byte, and ends the list.
const OPTION_END: u8 = 0;
/// An option that is one byte, and does nothing.
const OPTION_NOTHING: u8 = 1;
/// The bit of an option's type by which all fragments have a copy.
const OPTION_COPIED: u8 = 0x80;

/// Returns whether a datagram may be fragmented by a router: one of IPv4 whose sender has not forbidden it.
#[must_use]
pub fn may_be_split(frame: &[u8], datagram: &Ip) -> bool {
    match datagram.addresses {
        Addresses::V4(_) => word(&frame[datagram.at..], FRAGMENT_AT) & DONT_FRAGMENT == 0,
        Addresses::V6(_) => false,
    }
}

/// Splits a datagram of IPv4 into two fragments, of which the first has at most `mtu` bytes; returns the second one.
/// `None` if there is no slot for it, or if it would be too long as well; the packet is unchanged then.
pub fn split<'a>(packet: &mut Packet<'a>, datagram: &Ip, mtu: usize) -> Option<Packet<'a>> {
    let Ip { at, len, header_len, .. } = *datagram;
    let first_payload = mtu.checked_sub(header_len)? & !7;
    let rest_payload = len.checked_sub(header_len + first_payload)?;
    let (options, options_len) = copied_options(&packet.data()[at + HEADER_MIN..at + header_len]);
    let rest_header = HEADER_MIN + options_len;
    let field = word(&packet.data()[at..], FRAGMENT_AT);
    let offset = (field & OFFSET) + (first_payload / 8) as u16;
    if first_payload == 0 || rest_header + rest_payload > mtu || offset > OFFSET {
        return None;
    }
    let mut rest = packet.try_clone()?;

    let data = rest.data_mut();
    data.copy_within(at + header_len + first_payload..at + len, at + rest_header);
    data[at] = 0x40 | (rest_header / 4) as u8;
    data[at + HEADER_MIN..at + rest_header].copy_from_slice(&options[..options_len]);
    finish(&mut rest, at, rest_header, rest_payload, (field & !OFFSET) | offset)?;
    finish(packet, at, header_len, first_payload, field | MORE_FRAGMENTS)?;
    Some(rest)
}

/// Truncates the frame after a fragment, and writes the fields of its header that depend on it.
fn finish(packet: &mut Packet<'_>, at: usize, header_len: usize, payload: usize, field: u16) -> Option<()> {
    let len = header_len + payload;
    packet.set_len(at + len).ok()?;
    let header = &mut packet.data_mut()[at..at + header_len];
    header[LEN_AT..LEN_AT + 2].copy_from_slice(&(len as u16).to_be_bytes());
    header[FRAGMENT_AT..FRAGMENT_AT + 2].copy_from_slice(&field.to_be_bytes());
    header[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let sum = checksum::of(header);
    header[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// Returns the options of which all fragments have a copy, padded to a multiple of 4 bytes, and their length.
fn copied_options(options: &[u8]) -> ([u8; HEADER_MAX - HEADER_MIN], usize) {
    let (mut copied, mut len) = ([OPTION_END; HEADER_MAX - HEADER_MIN], 0);
    let mut rest = options;
    while let Some(kind) = rest.first().copied().filter(|kind| *kind != OPTION_END) {
        let option_len = if kind == OPTION_NOTHING { 1 } else { rest.get(1).map_or(0, |len| usize::from(*len)) };
        // One that is too short or too long is the last that can be read.
        let Some(option) = rest.get(..option_len).filter(|option| kind == OPTION_NOTHING || option.len() >= 2) else {
            break;
        };
        if kind & OPTION_COPIED != 0 {
            copied[len..len + option_len].copy_from_slice(option);
            len += option_len;
        }
        rest = &rest[option_len..];
    }
    (copied, len.next_multiple_of(4))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::copied_options;

    #[test]
    fn only_options_with_the_bit_for_it_are_copied() {
        let copied = |options: &[u8]| {
            let (copied, len) = copied_options(options);
            copied[..len].to_vec()
        };
        // Loose source route, router alert: copied. Record route, no operation: not copied.
        assert_eq!(copied(&[]), []);
        assert_eq!(copied(&[1, 7, 3, 4, 0x94, 4, 0, 0, 0x83, 3, 4, 0]), [0x94, 4, 0, 0, 0x83, 3, 4, 0]);
        assert_eq!(copied(&[0x83, 3, 4, 1]), [0x83, 3, 4, 0]);
        assert_eq!(copied(&[0, 0x94, 4, 0]), []);
        // Too short, and too long.
        assert_eq!(copied(&[0x94, 1, 0, 0]), []);
        assert_eq!(copied(&[0x94, 4, 0, 0, 0x94, 9, 0, 0]), [0x94, 4, 0, 0]);
    }
}

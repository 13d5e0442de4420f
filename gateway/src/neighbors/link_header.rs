//! The Ethernet header of a message that the node makes itself, with the tags of its VLAN.
//!
//! The types of two tags differ: 802.1ad has its own for the outer one, Linux uses that of 802.1Q for both unless it is
//! told otherwise, and stations hear what has theirs only.

use smoltcp::wire::EthernetAddress;

use crate::headers::Vlan;

/// The longest header: two addresses, two tags and the type.
pub(crate) const LINK_HEADER_MAX: usize = 22;

const CUSTOMER_TAG: [u8; 2] = [0x81, 0x00];
const PROVIDER_TAG: [u8; 2] = [0x88, 0xa8];

/// The tags of a network's frames, by their ids and types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    vlan: Vlan,
    outer: [u8; 2],
    inner: [u8; 2],
}

impl Tags {
    /// Returns those that a VLAN has by the standards: 802.1Q, and for two 802.1ad.
    pub(crate) fn standard(vlan: Vlan) -> Self {
        let outer = if vlan.inner_id == 0 { CUSTOMER_TAG } else { PROVIDER_TAG };
        Self { vlan, outer, inner: CUSTOMER_TAG }
    }

    /// Returns those of a frame that was read as one of this VLAN. Stations that stack tags may use other types than the
    /// standards name, and hear only these.
    pub(crate) fn of(frame: &[u8], vlan: Vlan) -> Self {
        let standard = Self::standard(vlan);
        let type_at = |at| frame.get(at..).and_then(|rest| rest.first_chunk()).copied();
        match (vlan.id, vlan.inner_id) {
            (0, _) => standard,
            (_, 0) => Self { outer: type_at(12).unwrap_or(standard.outer), ..standard },
            _ => Self {
                outer: type_at(12).unwrap_or(standard.outer),
                inner: type_at(16).unwrap_or(standard.inner),
                ..standard
            },
        }
    }
}

/// Writes the header to the start of `space`, which must hold [`LINK_HEADER_MAX`] bytes. Returns its length.
pub(crate) fn write(
    space: &mut [u8],
    (to, from): (EthernetAddress, EthernetAddress),
    tags: Tags,
    ethertype: u16,
) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        space[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&to.0);
    put(&from.0);
    let Tags { vlan: Vlan { id, inner_id }, outer, inner } = tags;
    if id != 0 {
        put_tag(&mut put, outer, id);
    }
    if id != 0 && inner_id != 0 {
        put_tag(&mut put, inner, inner_id);
    }
    put(&ethertype.to_be_bytes());
    at
}

fn put_tag(put: &mut impl FnMut(&[u8]), kind: [u8; 2], id: u16) {
    put(&kind);
    put(&id.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: EthernetAddress = EthernetAddress([1; 6]);
    const FROM: EthernetAddress = EthernetAddress([2; 6]);

    fn written(tags: Tags) -> Vec<u8> {
        let mut space = [0xee; LINK_HEADER_MAX];
        let len = write(&mut space, (TO, FROM), tags, 0x0806);
        space[..len].to_vec()
    }

    #[test]
    fn a_header_has_the_tags_of_its_vlan() {
        let addresses = [[1; 6], [2; 6]].concat();
        let with = |rest: &[u8]| [&addresses[..], rest].concat();
        let standard = |id, inner_id| written(Tags::standard(Vlan { id, inner_id }));
        assert_eq!(standard(0, 0), with(&[8, 6]));
        assert_eq!(standard(0x123, 0), with(&[0x81, 0, 1, 0x23, 8, 6]));
        assert_eq!(standard(0x123, 7), with(&[0x88, 0xa8, 1, 0x23, 0x81, 0, 0, 7, 8, 6]));
    }

    #[test]
    fn tags_of_any_type_are_written_as_they_were_read() {
        let header = |tags: &[u8]| [&[1; 6], &[2; 6], tags, &[8, 6]].concat();
        let two = Vlan { id: 0x123, inner_id: 7 };
        for (tags, vlan) in [
            (&[][..], Vlan::UNTAGGED),
            (&[0x88, 0xa8, 1, 0x23], Vlan { id: 0x123, inner_id: 0 }),
            (&[0x81, 0, 1, 0x23, 0x81, 0, 0, 7], two),
            (&[0x88, 0xa8, 1, 0x23, 0x88, 0xa8, 0, 7], two),
        ] {
            assert_eq!(written(Tags::of(&header(tags), vlan)), header(tags));
        }
        let priority = header(&[0x81, 0, 0xe0, 0]);
        assert_eq!(written(Tags::of(&priority, Vlan::UNTAGGED)), header(&[]));
    }
}

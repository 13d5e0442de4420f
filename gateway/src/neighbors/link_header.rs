//! The Ethernet header of a message that the node makes itself, with the tags of its VLAN.

use smoltcp::wire::EthernetAddress;

use crate::headers::Vlan;

/// The longest header: two addresses, two tags and the type.
pub(crate) const LINK_HEADER_MAX: usize = 22;

const CUSTOMER_TAG: [u8; 2] = [0x81, 0x00];
const PROVIDER_TAG: [u8; 2] = [0x88, 0xa8];

/// Writes the header to the start of `space`, which must hold [`LINK_HEADER_MAX`] bytes. Returns its length. The outer
/// one of two tags is a provider's (802.1ad).
pub(crate) fn write(
    space: &mut [u8],
    (to, from): (EthernetAddress, EthernetAddress),
    vlan: Vlan,
    ethertype: u16,
) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        space[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&to.0);
    put(&from.0);
    match vlan {
        Vlan { id: 0, .. } => {}
        Vlan { id, inner_id: 0 } => put_tag(&mut put, CUSTOMER_TAG, id),
        Vlan { id, inner_id } => {
            put_tag(&mut put, PROVIDER_TAG, id);
            put_tag(&mut put, CUSTOMER_TAG, inner_id);
        }
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

    fn written(vlan: Vlan) -> Vec<u8> {
        let mut space = [0xee; LINK_HEADER_MAX];
        let len = write(&mut space, (TO, FROM), vlan, 0x0806);
        space[..len].to_vec()
    }

    #[test]
    fn a_header_has_the_tags_of_its_vlan() {
        let addresses = [[1; 6], [2; 6]].concat();
        let with = |rest: &[u8]| [&addresses[..], rest].concat();
        assert_eq!(written(Vlan::UNTAGGED), with(&[8, 6]));
        assert_eq!(written(Vlan { id: 0x123, inner_id: 0 }), with(&[0x81, 0, 1, 0x23, 8, 6]));
        let both = written(Vlan { id: 0x123, inner_id: 7 });
        assert_eq!(both, with(&[0x88, 0xa8, 1, 0x23, 0x81, 0, 0, 7, 8, 6]));
    }
}

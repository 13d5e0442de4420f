//! VLAN tags: IEEE 802.1Q, and two tags as in 802.1ad (QinQ) or both of 802.1Q.

use super::be16;
use super::key::Vlan;
use crate::drops::DropReason;

/// The most tags that are read. A frame with more is dropped.
pub const TAGS_MAX: usize = 2;

/// The types of a customer's tag (802.1Q) and a provider's (802.1ad).
const TYPES: [u16; 2] = [0x8100, 0x88a8];
const TAG: usize = 4;
const ETHERNET_HEADER: usize = 14;
const ID_MASK: u16 = 0x0fff;

#[inline]
pub(super) fn is_tag(ethertype: u16) -> bool {
    TYPES.contains(&ethertype)
}

/// Reads the tags of a frame, whose first has this type. Returns the VLAN, the type of what follows the tags, and the
/// rest.
///
/// A tag with the id 0 only carries a priority. As the outer one of two tags it is not skipped: a frame of the untagged
/// network must not enter a VLAN by naming it in an inner tag.
pub(super) fn read(tag: u16, bytes: &[u8]) -> Result<(Vlan, u16, &[u8]), DropReason> {
    let (mut ids, mut ethertype, mut rest) = ([0; TAGS_MAX], tag, bytes);
    for id in &mut ids {
        if !is_tag(ethertype) {
            break;
        }
        let (fields, behind) = rest.split_first_chunk::<TAG>().ok_or(DropReason::Truncated)?;
        *id = be16(fields[0], fields[1]) & ID_MASK;
        ethertype = be16(fields[2], fields[3]);
        rest = behind;
    }
    if is_tag(ethertype) {
        return Err(DropReason::TooManyTags);
    }
    Ok((Vlan { id: ids[0], inner_id: ids[1] }, ethertype, rest))
}

/// Returns where the payload begins, for a frame that [`super::parse`] has read.
pub(crate) fn payload_offset(frame: &[u8]) -> usize {
    let mut offset = ETHERNET_HEADER;
    for _ in 0..TAGS_MAX {
        match frame.get(offset - 2..offset) {
            Some(&[high, low]) if is_tag(be16(high, low)) => offset += TAG,
            _ => break,
        }
    }
    offset
}

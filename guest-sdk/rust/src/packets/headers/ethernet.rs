//! The Ethernet header, which lies at the same place in each frame, whatever the frame carries: hardware addresses and VLAN tags.

use core::fmt;
use core::ops::Deref;
use core::str::FromStr;

use super::{CannotRewrite, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, MAC_ADDRESSES, Pair, VLAN_TAGS_MAX};

const MAC: usize = 6;
const VLAN_TAG: usize = 4;
/// The greatest id of a VLAN; 4095 is reserved (IEEE 802.1Q).
const VLAN_ID_MAX: u16 = 4094;
const VLAN_ID: u16 = 0x0fff;
const VLAN_DROP_ELIGIBLE: u16 = 0x1000;

/// A hardware address.
///
/// ```
/// use pinion_sdk::headers::Mac;
///
/// let mac: Mac = "02:00:00:00:00:0a".parse().unwrap();
/// assert_eq!((mac, mac.to_string().as_str()), (Mac([2, 0, 0, 0, 0, 10]), "02:00:00:00:00:0a"));
/// assert!(!mac.is_group() && Mac([0xff; 6]).is_group());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(
    /// Its bytes, as in a frame.
    pub [u8; MAC],
);

impl Mac {
    /// Returns whether it is the address of several stations: multicast or broadcast.
    #[inline]
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// A text is not a hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidMac(String);

impl fmt::Display for InvalidMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no hardware address: write six bytes like 02:00:00:00:00:01", self.0)
    }
}

impl std::error::Error for InvalidMac {}

impl FromStr for Mac {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, InvalidMac> {
        let byte = |text: &str| match text.as_bytes() {
            // A sign is no digit, but the parser of numbers would accept it.
            [first, _] if first.is_ascii_hexdigit() => u8::from_str_radix(text, 16).ok(),
            _ => None,
        };
        let mut parts = text.split(':');
        let mut mac = [0; MAC];
        let is_read = mac.iter_mut().all(|to| parts.next().and_then(byte).map(|byte| *to = byte).is_some());
        if is_read && parts.next().is_none() { Ok(Self(mac)) } else { Err(InvalidMac(text.to_owned())) }
    }
}

/// Returns the hardware addresses of any frame. `None` if it is too short for them.
#[inline]
#[must_use]
pub fn macs(frame: &[u8]) -> Option<Pair<Mac>> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *frame.first_chunk::<MAC_ADDRESSES>()?;
    Some(Pair { destination: Mac([a, b, c, d, e, f]), source: Mac([g, h, i, j, k, l]) })
}

/// Replaces the hardware addresses of any frame. No checksum covers them.
///
/// ```
/// use pinion_sdk::headers::{Mac, Pair, macs, set_macs};
///
/// let mut frame = [0; 60];
/// let to_gateway = Pair { source: Mac([2, 0, 0, 0, 0, 1]), destination: Mac([2, 0, 0, 0, 0, 2]) };
/// set_macs(&mut frame, to_gateway).unwrap();
/// assert_eq!(macs(&frame), Some(to_gateway));
/// ```
///
/// # Errors
///
/// The frame is too short for them.
#[inline]
pub fn set_macs(frame: &mut [u8], macs: Pair<Mac>) -> Result<(), CannotRewrite> {
    let field = frame.first_chunk_mut::<MAC_ADDRESSES>().ok_or(CannotRewrite::TooShort)?;
    field[..MAC].copy_from_slice(&macs.destination.0);
    field[MAC..].copy_from_slice(&macs.source.0);
    Ok(())
}

/// Swaps the hardware addresses of any frame, so that it goes back to the station that it came from.
///
/// # Errors
///
/// The frame is too short for them.
#[inline]
pub fn swap_macs(frame: &mut [u8]) -> Result<(), CannotRewrite> {
    frame.first_chunk_mut::<MAC_ADDRESSES>().ok_or(CannotRewrite::TooShort)?.rotate_left(MAC);
    Ok(())
}

/// The kind of a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VlanKind {
    /// A customer's tag, 0x8100 (802.1Q). The usual one.
    #[default]
    Customer,
    /// A provider's tag, 0x88a8 (802.1ad), which usually has a customer's behind it.
    Service,
}

impl VlanKind {
    fn of(ethertype: [u8; 2]) -> Option<Self> {
        match ethertype {
            ETHERTYPE_VLAN => Some(Self::Customer),
            ETHERTYPE_SERVICE_VLAN => Some(Self::Service),
            _ => None,
        }
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan {
    /// Its kind.
    pub kind: VlanKind,
    /// The VLAN's number, 12 bits. 0 is no VLAN: the tag has only a priority.
    pub id: u16,
    /// The frame's priority, 0 to 7.
    pub priority: u8,
    /// Whether the frame may be dropped before others.
    pub is_drop_eligible: bool,
}

/// The VLAN tags of a frame, at most two, the outer one first. It is used like a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    tags: [Vlan; VLAN_TAGS_MAX as usize],
    len: usize,
}

impl Deref for Vlans {
    type Target = [Vlan];

    fn deref(&self) -> &[Vlan] {
        &self.tags[..self.len]
    }
}

/// Returns the VLAN tags of any frame, at most two. Of a frame that [`Headers::of`](super::Headers::of) has read, these are all.
///
/// ```
/// use pinion_sdk::headers::{VlanKind, set_vlan_id, vlans};
///
/// let mut frame = [&[2; 12][..], &[0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0x60, 0x07, 0x08, 0x00]].concat();
/// let tags = vlans(&frame);
/// assert_eq!((tags[0].kind, tags[0].id, tags[0].priority), (VlanKind::Service, 5, 0));
/// assert_eq!((tags[1].kind, tags[1].id, tags[1].priority), (VlanKind::Customer, 7, 3));
///
/// set_vlan_id(&mut frame, 1, 4000).unwrap();
/// assert_eq!((vlans(&frame)[1].id, vlans(&frame)[1].priority), (4000, 3));
/// assert!(vlans(&[2; 60]).is_empty());
/// ```
#[must_use]
pub fn vlans(frame: &[u8]) -> Vlans {
    let mut vlans = Vlans::default();
    let (tags, _) = frame.get(MAC_ADDRESSES..).unwrap_or_default().as_chunks::<VLAN_TAG>();
    for (to, [a, b, c, d]) in vlans.tags.iter_mut().zip(tags) {
        let Some(kind) = VlanKind::of([*a, *b]) else { break };
        let control = u16::from_be_bytes([*c, *d]);
        let is_drop_eligible = control & VLAN_DROP_ELIGIBLE != 0;
        *to = Vlan { kind, id: control & VLAN_ID, priority: (control >> 13) as u8, is_drop_eligible };
        vlans.len += 1;
    }
    vlans
}

/// Moves a frame to another VLAN: replaces the id of a tag that it has, of the outer one for `which` 0. Kind and priority of the tag stay.
/// No checksum covers them.
///
/// # Errors
///
/// The frame has no such tag, or no VLAN has this id.
pub fn set_vlan_id(frame: &mut [u8], which: usize, id: u16) -> Result<(), CannotRewrite> {
    if id > VLAN_ID_MAX {
        return Err(CannotRewrite::NoSuchVlan);
    }
    if which >= vlans(frame).len() {
        return Err(CannotRewrite::NoTag);
    }
    let at = MAC_ADDRESSES + VLAN_TAG * which + 2;
    let field = frame.get_mut(at..at + 2).ok_or(CannotRewrite::NoTag)?;
    let rest = u16::from_be_bytes([field[0], field[1]]) & !VLAN_ID;
    field.copy_from_slice(&(rest | id).to_be_bytes());
    Ok(())
}

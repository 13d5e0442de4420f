//! Frames by which guest and node speak of outbound flows.

/// EtherType of what a guest and the node say to each other about outbound flows: the other one that IEEE 802 reserves for local
/// experiments. No device receives frames of this type for a guest.
///
/// ```text
///    0          12     14        15     16    24     32         33   34       35     36           38                40
///    | addresses | type | version | kind | tag | flow | protocol | IP | reason | zero | source port | destination port | source address
///                                                                                    56                    72     74       80
///                                                                                    | destination address | VLAN | zero ...
/// ```
///
/// A guest asks by a frame that it sends as it will send the packets of the flow: by the output, or as the reply, that leads out of the node
/// by the same port. The node answers each request with one frame, which comes in where packets of that port do, and later tells with
/// another one that the flow has ended. Addresses, type and ports are in network order, everything else little-endian. An IPv4 address is
/// in the first 4 bytes of its field, with zeros behind it.
pub const FLOW_ETHERTYPE: u16 = 0x88b6;
/// The version of these frames.
pub const FLOW_VERSION: u8 = 1;
/// Offset of the version.
pub const FLOW_VERSION_AT: usize = 14;
/// Offset of the kind, a [`FlowKind`].
pub const FLOW_KIND_AT: usize = 15;
/// Offset of the tag: 8 bytes that the guest chooses when it asks for a flow. Whatever the node says about the flow has them, too.
pub const FLOW_TAG_AT: usize = 16;
/// Offset of the flow's number, of 8 bytes, by which the guest asks for its end. Not 0 for a flow that was opened.
pub const FLOW_NUMBER_AT: usize = 24;
/// Offset of the IP protocol's number, of 1 byte: 6 for TCP or 17 for UDP.
pub const FLOW_PROTOCOL_AT: usize = 32;
/// Offset of the version of IP, of 1 byte: 4 or 6.
pub const FLOW_IP_AT: usize = 33;
/// Offset of the reason, of 1 byte: a [`FlowRefusal`] or a [`FlowEnd`]; otherwise 0.
pub const FLOW_REASON_AT: usize = 34;
/// Offset of the source port, of 2 bytes, which the node chooses.
pub const FLOW_SOURCE_PORT_AT: usize = 36;
/// Offset of the destination port, of 2 bytes.
pub const FLOW_DESTINATION_PORT_AT: usize = 38;
/// Offset of the source address, of 16 bytes, which the node chooses.
pub const FLOW_SOURCE_AT: usize = 40;
/// Offset of the destination address, of 16 bytes.
pub const FLOW_DESTINATION_AT: usize = 56;
/// Offset of the VLAN's number, of 2 bytes: 0 for the untagged network.
pub const FLOW_VLAN_AT: usize = 72;
/// Bytes of each of these frames.
pub const FLOW_BYTES: usize = 80;

/// What a frame of [`FLOW_ETHERTYPE`] says.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// The guest asks for a flow to the destination.
    Open = 1,
    /// The guest asks for the end of the flow of this number. The answer says that it has ended, also if it did before.
    Close = 2,
    /// The node has opened the flow: packets from its source to its destination may leave, and answers come in.
    Opened = 3,
    /// The node does not open the flow, for a [`FlowRefusal`].
    Refused = 4,
    /// The flow has ended, for a [`FlowEnd`].
    Closed = 5,
}

impl FlowKind {
    /// Returns the kind of this number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Open),
            2 => Some(Self::Close),
            3 => Some(Self::Opened),
            4 => Some(Self::Refused),
            5 => Some(Self::Closed),
            _ => None,
        }
    }
}

/// Why the node does not open a flow.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRefusal {
    /// The request is none that the node understands, or the destination is not one host's address.
    Invalid = 1,
    /// The chain's grants do not allow flows of this protocol to this destination, or none of its rules names this VLAN.
    NotGranted = 2,
    /// The tenant or the instance has as many flows as it may have.
    Quota = 3,
    /// All source ports are in use for flows to this destination.
    NoPort = 4,
    /// The node has no address of this version there, or no route leads to the destination.
    NoRoute = 5,
}

impl FlowRefusal {
    /// Returns the refusal of this number; an unknown one counts as [`FlowRefusal::Invalid`].
    #[must_use]
    pub const fn of(number: u8) -> Self {
        match number {
            2 => Self::NotGranted,
            3 => Self::Quota,
            4 => Self::NoPort,
            5 => Self::NoRoute,
            _ => Self::Invalid,
        }
    }
}

/// Why a flow has ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// The guest asked for it, or the flow did not exist.
    ByGuest = 1,
    /// Its TCP connection was closed by both sides, or reset by either.
    ByConnection = 2,
    /// The guest has sent nothing for too long.
    Idle = 3,
    /// The chain's grants changed, and no longer allow it.
    NotGranted = 4,
    /// The node has as many flows as it can, this tenant more than it is guaranteed, and another one fewer.
    Quota = 5,
}

impl FlowEnd {
    /// Returns the end of this number; an unknown one counts as [`FlowEnd::ByGuest`].
    #[must_use]
    pub const fn of(number: u8) -> Self {
        match number {
            2 => Self::ByConnection,
            3 => Self::Idle,
            4 => Self::NotGranted,
            5 => Self::Quota,
            _ => Self::ByGuest,
        }
    }
}

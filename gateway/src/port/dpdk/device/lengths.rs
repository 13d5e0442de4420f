//! The lengths of frames that leave by a device: which are too long for it, and which a card needs padded.

use pinion_mma::buffer::Frame;

use super::device_string::Device;
use crate::port::{FRAME_LEN_MIN, FRAME_OVERHEAD};

/// The shortest frame on a wire, without its checksum (IEEE 802.3), in bytes. Some cards leave padding to the driver's
/// user. They pad shorter frames with old contents of their memory, refuse them, or stop. Frames to the kernel or to
/// another program cross no wire and are sent as they are.
const WIRE_LEN_MIN: u32 = 60;

/// The lengths of frames that a port sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// The shortest; shorter frames are padded.
    min: u32,
    /// The longest.
    max: u32,
    /// The longest of frames without an 802.1Q tag.
    untagged_max: u32,
}

impl Lengths {
    pub(crate) fn of(mtu: u16, device: &Device) -> Self {
        let (max, untagged_max) = (u32::from(mtu) + FRAME_OVERHEAD, u32::from(mtu) + FRAME_LEN_MIN);
        Self {
            min: if device.is_pci() { WIRE_LEN_MIN } else { FRAME_LEN_MIN },
            max,
            // Other devices do not check that the four bytes beyond the MTU are for a tag.
            untagged_max: if device.sends_by_packet_socket() { untagged_max } else { max },
        }
    }

    /// Returns those of a port on a packet socket.
    pub(crate) fn of_packet_socket(mtu: u16) -> Self {
        let (max, untagged_max) = (u32::from(mtu) + FRAME_OVERHEAD, u32::from(mtu) + FRAME_LEN_MIN);
        Self { min: FRAME_LEN_MIN, max, untagged_max }
    }

    /// Returns whether every frame of this length can be sent as it is, whatever its contents.
    #[inline]
    pub(crate) fn is_any_fit(self, len: u32) -> bool {
        (self.min..=self.untagged_max).contains(&len)
    }

    pub(crate) fn max_of(self, frame: &[u8]) -> u32 {
        if frame.get(12..14) == Some(&[0x81, 0x00]) { self.max } else { self.untagged_max }
    }

    /// Pads a frame that is too short with zeros: the buffer's old contents may belong to other tenants.
    pub(crate) fn pad(self, frame: &mut Frame) {
        let (from, to) = (frame.len(), self.min.min(frame.capacity()));
        if from < to {
            frame.space_mut()[from as usize..to as usize].fill(0);
            frame.set_len(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::BufferPool;
    use crate::port::heap::HeapPool;

    fn lengths(device: &str) -> Lengths {
        Lengths::of(1500, &Device::parse(device).unwrap())
    }

    /// Returns what is sent of a frame of `len` bytes, whose buffer was full of other data.
    fn padded(lengths: Lengths, len: u32) -> Vec<u8> {
        let mut pool = HeapPool::new(1, 2048);
        let mut buffers = Vec::new();
        pool.take(&mut buffers, 1);
        let mut frame = Frame::new(buffers.remove(0), 2048);
        frame.space_mut().fill(0xaa);
        frame.set_len(len);
        lengths.pad(&mut frame);
        let bytes = frame.bytes().to_vec();
        pool.give(&mut vec![frame.into_buffer()]);
        bytes
    }

    #[test]
    fn a_frame_is_padded_with_zeros_to_what_a_card_sends_at_least() {
        let card = lengths("0000:00:04.0");
        for len in FRAME_LEN_MIN..70 {
            let sent = padded(card, len);
            assert_eq!(sent.len() as u32, len.max(60));
            let (own, padding) = sent.split_at(len as usize);
            assert!(own.iter().all(|byte| *byte == 0xaa) && padding.iter().all(|byte| *byte == 0), "{sent:02x?}");
            assert_eq!(card.is_any_fit(len), len >= 60);
        }
    }

    #[test]
    fn a_frame_to_the_kernel_or_to_another_program_is_not_padded() {
        for device in ["net_tap0", "net_af_packet0,iface=a", "net_af_xdp0,iface=a", "net_ring0", "net_virtio_user0"] {
            let lengths = lengths(device);
            assert!(lengths.is_any_fit(14) && !lengths.is_any_fit(13), "{device}");
            assert_eq!(padded(lengths, 14).len(), 14, "{device}");
        }
    }

    #[test]
    fn four_bytes_beyond_the_mtu_are_for_a_tag_where_the_device_looks() {
        let (tagged, untagged) = ([[2; 12].as_slice(), &[0x81, 0]].concat(), [2; 14]);
        for (device, untagged_max) in [("net_af_packet0,iface=a", 1514), ("net_tap0", 1518), ("0000:00:04.0", 1518)] {
            let lengths = lengths(device);
            assert_eq!((lengths.max_of(&tagged), lengths.max_of(&untagged)), (1518, untagged_max), "{device}");
            assert!(lengths.is_any_fit(untagged_max) && !lengths.is_any_fit(untagged_max + 1), "{device}");
        }
    }
}

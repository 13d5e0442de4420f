//! The fake node's side of a pool: which slots the function owns, what was delivered into them, and by which ways.

use pinion_abi::{
    Descriptor, OUTPUTS_MAX, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_BACKWARD, RX_FORWARD, RX_HEADROOM, TX_CHECKSUM,
    WAYS_MAX,
};

use super::{Outcome, Verdict};
use crate::Direction;
use crate::host::calls;
use crate::packets::pool::{Pool, SLOT_COUNT_DEFAULT, SLOT_SIZE};

/// What frames are delivered with.
#[derive(Clone, Copy, Default)]
pub(super) struct Described {
    pub(super) ingress_port: u16,
    /// The `RX_` bits.
    pub(super) flags: u16,
    /// How long the frames have waited, in nanoseconds.
    pub(super) waited_ns: u64,
}

impl Described {
    /// Returns the direction in a chain with a way back.
    pub(super) fn direction(&self) -> Option<Direction> {
        match self.flags & (RX_FORWARD | RX_BACKWARD) {
            RX_FORWARD => Some(Direction::Forward),
            RX_BACKWARD => Some(Direction::Backward),
            _ => None,
        }
    }
}

/// A way: an ingress port and a direction.
#[derive(Clone, Copy)]
struct Came {
    port: u16,
    direction: Option<Direction>,
}

impl Came {
    fn of(described: &Described) -> Self {
        let port = described.ingress_port;
        assert!(port < WAYS_MAX / 2, "a node has at most {} ports, and none has the index {port}", WAYS_MAX / 2 - 1);
        Self { port, direction: described.direction() }
    }

    fn number(self) -> u16 {
        self.port << 1 | u16::from(self.direction == Some(Direction::Backward))
    }
}

/// A packet that the function owns.
#[derive(Clone, Copy)]
struct Granted {
    /// The index of its frame among those delivered together.
    frame: usize,
    came: Came,
}

/// See the module.
pub(super) struct NodeSlots {
    granted: [Option<Granted>; SLOT_COUNT_DEFAULT],
    /// Slots for received frames.
    lent: usize,
    next: u16,
    /// The function's own slots that are to be returned to it.
    returned: Vec<u16>,
    /// By which the function has got packets.
    ways: Vec<Came>,
}

impl NodeSlots {
    pub(super) fn new(own_slots: u16) -> Self {
        let lent = SLOT_COUNT_DEFAULT - usize::from(own_slots);
        Self { granted: [None; SLOT_COUNT_DEFAULT], lent, next: 0, returned: Vec::new(), ways: Vec::new() }
    }

    /// Returns the number of slots for received frames.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Searches the slots in turn, so that a test uses every slot.
    fn free_slot(&self) -> Option<u16> {
        let slots = (0..self.lent).map(|step| (usize::from(self.next) + step) % self.lent);
        let mut slots = slots;
        slots.find(|slot| self.granted[*slot].is_none()).and_then(|slot| u16::try_from(slot).ok())
    }

    /// Publishes a frame, if a slot is free for it. Returns whether one is.
    ///
    /// # Panics
    ///
    /// If the frame does not fit into a slot.
    pub(super) fn publish(&mut self, pool: &mut Pool<'_>, described: &Described, number: usize, frame: &[u8]) -> bool {
        let Some(slot) = self.free_slot() else { return false };
        let (came, offset) = (Came::of(described), RX_HEADROOM as usize);
        let room = SLOT_SIZE - offset;
        assert!(frame.len() <= room, "a frame of {} bytes does not fit into a slot's {room}", frame.len());
        self.next = slot + 1;
        self.granted[usize::from(slot)] = Some(Granted { frame: number, came });
        self.ways.retain(|way| way.number() != came.number());
        self.ways.push(came);
        pool.host_slot(slot)[offset..offset + frame.len()].copy_from_slice(frame);
        pool.receive_ring().push(Descriptor {
            slot,
            offset: offset as u16,
            len: frame.len() as u16,
            port: came.port,
            flags: described.flags,
            way: came.number(),
            arrived: (calls::clock_ns().saturating_sub(described.waited_ns) / 1_000) as u32,
        });
        true
    }

    /// Returns the function's own slots to it, by descriptors. Returns how many.
    pub(super) fn give_back(&mut self, pool: &Pool<'_>) -> u32 {
        let count = self.returned.len() as u32;
        self.returned.drain(..).for_each(|slot| pool.receive_ring().push(Descriptor { slot, ..Descriptor::default() }));
        count
    }

    /// Takes what the function has sent.
    ///
    /// # Panics
    ///
    /// If a node would end the function for it.
    pub(super) fn collect(&mut self, pool: &mut Pool<'_>, verdicts: &mut Vec<Verdict>) {
        while let Some(descriptor) = pool.transmit_ring().pop() {
            let (frame, came) = self.take_back(&descriptor);
            let outcome = match descriptor.port {
                PORT_NEXT => Outcome::Sent,
                PORT_REPLY => Outcome::Replied,
                PORT_DROP => Outcome::Dropped,
                output if output < OUTPUTS_MAX => Outcome::SentTo(output),
                output => panic!("the function sent to output {output}: a stage has at most {OUTPUTS_MAX}, from 0 on"),
            };
            let start = usize::from(descriptor.offset);
            let bytes = pool.host_slot(descriptor.slot).get(start..start + usize::from(descriptor.len));
            let bytes = bytes.unwrap_or_else(|| panic!("{descriptor:?} is outside its slot")).to_vec();
            let Came { port: ingress_port, direction } = came;
            let completes_checksums = descriptor.flags & TX_CHECKSUM != 0;
            verdicts.push(Verdict { frame, outcome, ingress_port, direction, completes_checksums, bytes });
        }
    }

    /// Takes a slot back. Returns the frame that it was granted for, if any, and the way of what is in it.
    fn take_back(&mut self, sent: &Descriptor) -> (Option<usize>, Came) {
        if usize::from(sent.slot) < self.lent {
            let granted = self.granted[usize::from(sent.slot)].take();
            let granted = granted.unwrap_or_else(|| panic!("the function does not own the slot of {sent:?}"));
            return (Some(granted.frame), granted.came);
        }
        assert!(!self.returned.contains(&sent.slot), "the function does not own the slot of {sent:?}");
        self.returned.push(sent.slot);
        let way = self.ways.iter().find(|way| way.number() == sent.way);
        (None, *way.unwrap_or_else(|| panic!("the function got no packet by the way of {sent:?}")))
    }
}

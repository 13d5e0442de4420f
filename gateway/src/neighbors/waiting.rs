//! Frames that wait until a neighbour has answered: a few for each neighbour, and a part for each tenant.
//!
//! Bounded in frames, each of which is in a buffer of the gateway's pool. Allocates nothing after it was made.

use pinion_mma::buffer::Frame;
use pinion_mma::id::{Sender, TENANTS_MAX};

use super::table::{NEIGHBORS_MAX, NeighborIndex};

/// A tenant may have one in so many of the frames that may wait for neighbours, but for one neighbour no more than
/// [`OF_NEIGHBOR_MAX`].
const TENANT_SHARE: u16 = 4;
const OF_NEIGHBOR_MAX: u8 = 8;

const NONE: u16 = u16::MAX;

struct Place {
    frame: Option<(Frame, Sender)>,
    next: u16,
}

#[derive(Clone, Copy)]
struct Queue {
    first: u16,
    last: u16,
    count: u8,
}

/// See the module.
pub(crate) struct WaitingFrames {
    places: Box<[Place]>,
    /// The first free place.
    free: u16,
    queues: Box<[Queue]>,
    of_tenant: Box<[u16]>,
    of_tenant_max: u16,
}

impl WaitingFrames {
    /// Makes room for so many frames, of which there can be some thousands.
    pub(crate) fn new(frames: u16) -> Self {
        let next = |at: u16| if at + 1 < frames { at + 1 } else { NONE };
        Self {
            places: (0..frames).map(|at| Place { frame: None, next: next(at) }).collect(),
            of_tenant_max: (frames / TENANT_SHARE).max(1),
            free: 0,
            queues: vec![Queue { first: NONE, last: NONE, count: 0 }; NEIGHBORS_MAX].into(),
            of_tenant: vec![0; TENANTS_MAX].into(),
        }
    }

    /// Lets a frame wait for a neighbour. Returns it if there is no room for it.
    pub(crate) fn push(&mut self, neighbor: NeighborIndex, frame: Frame, sender: Sender) -> Result<(), Frame> {
        let queue = &mut self.queues[usize::from(neighbor.0)];
        let of_tenant = &mut self.of_tenant[usize::from(sender.tenant.0)];
        let at = self.free;
        if at == NONE || queue.count >= OF_NEIGHBOR_MAX || *of_tenant >= self.of_tenant_max {
            return Err(frame);
        }
        let place = &mut self.places[usize::from(at)];
        self.free = std::mem::replace(&mut place.next, NONE);
        place.frame = Some((frame, sender));
        *of_tenant += 1;
        queue.count += 1;
        match std::mem::replace(&mut queue.last, at) {
            NONE => queue.first = at,
            last => self.places[usize::from(last)].next = at,
        }
        Ok(())
    }

    /// Takes the frame that has waited longest for a neighbour.
    pub(crate) fn pop(&mut self, neighbor: NeighborIndex) -> Option<(Frame, Sender)> {
        let queue = &mut self.queues[usize::from(neighbor.0)];
        let at = queue.first;
        let place = self.places.get_mut(usize::from(at))?;
        queue.first = std::mem::replace(&mut place.next, self.free);
        queue.count -= 1;
        if queue.first == NONE {
            queue.last = NONE;
        }
        self.free = at;
        let taken = place.frame.take();
        if let Some((_, sender)) = &taken {
            self.of_tenant[usize::from(sender.tenant.0)] -= 1;
        }
        taken
    }

    /// Returns how many frames wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.iter().filter(|place| place.frame.is_some()).count()
    }

    /// Takes any frame.
    pub(crate) fn pop_any(&mut self) -> Option<(Frame, Sender)> {
        let neighbor = self.queues.iter().position(|queue| queue.first != NONE)?;
        self.pop(NeighborIndex(neighbor as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::BufferPool;
    use crate::port::heap::HeapPool;
    use pinion_mma::id::TenantIndex;

    fn frames(count: usize) -> Vec<Frame> {
        let mut buffers = Vec::new();
        HeapPool::new(count, 256).take(&mut buffers, count);
        (0..).zip(buffers).map(|(len, buffer)| Frame::new(buffer, len % 200)).collect()
    }

    fn of(tenant: u16) -> Sender {
        Sender { tenant: TenantIndex(tenant), chain: 0, instance: 0 }
    }

    #[test]
    fn frames_leave_in_the_order_in_which_they_came() {
        let (mut waiting, neighbor) = (WaitingFrames::new(64), NeighborIndex(7));
        for frame in frames(5) {
            waiting.push(neighbor, frame, of(1)).expect("there is room");
        }
        let lens: Vec<u32> = std::iter::from_fn(|| waiting.pop(neighbor)).map(|(frame, _)| frame.len()).collect();
        assert_eq!(lens, [0, 1, 2, 3, 4]);
        assert!(waiting.pop_any().is_none());
    }

    #[test]
    fn a_neighbour_a_tenant_and_all_have_their_parts() {
        const FRAMES: u16 = 256;
        let mut waiting = WaitingFrames::new(FRAMES);
        let mut push = |tenant: u16, neighbor: u16| {
            let frame = frames(1).remove(0);
            waiting.push(NeighborIndex(neighbor), frame, of(tenant)).is_ok()
        };
        assert_eq!((0..20).filter(|_| push(1, 0)).count(), usize::from(OF_NEIGHBOR_MAX));
        let of_others = (1..200).filter(|neighbor| push(1, *neighbor)).count();
        assert_eq!(of_others, usize::from(FRAMES / TENANT_SHARE - u16::from(OF_NEIGHBOR_MAX)));
        let of_others = (0..3000).filter(|number| push(2 + number % 40, 300 + number)).count();
        assert_eq!(of_others, usize::from(FRAMES - FRAMES / TENANT_SHARE));
        let left = std::iter::from_fn(|| waiting.pop_any()).count();
        assert_eq!(left, usize::from(FRAMES));
        assert!(waiting.push(NeighborIndex(0), frames(1).remove(0), of(1)).is_ok(), "all places are free again");
    }
}

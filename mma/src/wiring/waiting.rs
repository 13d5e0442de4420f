//! Frames that wait for slots of FWPs, in order: a list for each FWP, all in memory that is allocated once.

use crate::buffer::Frame;
use crate::ways::Arrival;

const NONE: u32 = u32::MAX;

/// The frames that wait for one FWP.
#[derive(Debug)]
pub(crate) struct WaitingList {
    first: u32,
    last: u32,
    len: u32,
    /// The next one of which the length is asked for.
    asked: u32,
}

impl Default for WaitingList {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0, asked: NONE }
    }
}

impl WaitingList {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins anew to return lengths, with the first frame's.
    #[inline]
    pub(crate) fn ask_from_first(&mut self) {
        self.asked = self.first;
    }
}

#[derive(Debug)]
struct Node {
    frame: Option<Frame>,
    next: u32,
    arrived: Arrival,
}

/// Those of all FWPs.
#[derive(Debug)]
pub(crate) struct WaitingFrames {
    nodes: Box<[Node]>,
    free: u32,
}

impl WaitingFrames {
    /// Makes room for so many.
    pub(crate) fn new(max: usize) -> Self {
        let next = |at: usize| if at + 1 < max { at as u32 + 1 } else { NONE };
        let nodes = (0..max).map(|at| Node { frame: None, next: next(at), arrived: Arrival::NONE }).collect();
        Self { nodes, free: if max > 0 { 0 } else { NONE } }
    }

    /// Appends a frame that came at this time.
    ///
    /// # Panics
    /// If as many wait as there is room for.
    pub(crate) fn push(&mut self, list: &mut WaitingList, frame: Frame, arrived: Arrival) {
        let at = self.free;
        let node = self.nodes.get_mut(at as usize).expect("frames that wait are counted before");
        self.free = node.next;
        *node = Node { frame: Some(frame), next: NONE, arrived };
        match self.nodes.get_mut(list.last as usize) {
            Some(last) => last.next = at,
            None => list.first = at,
        }
        list.last = at;
        list.len += 1;
    }

    /// Returns the first frame, and when it came.
    pub(crate) fn front(&self, list: &WaitingList) -> Option<(&Frame, Arrival)> {
        let Node { frame, arrived, .. } = self.nodes.get(list.first as usize)?;
        Some((frame.as_ref()?, *arrived))
    }

    /// Takes the first frame.
    pub(crate) fn pop(&mut self, list: &mut WaitingList) -> Option<Frame> {
        let at = list.first;
        let node = self.nodes.get_mut(at as usize)?;
        let frame = node.frame.take();
        list.first = std::mem::replace(&mut node.next, self.free);
        self.free = at;
        list.len -= 1;
        if list.len == 0 {
            *list = WaitingList::default();
        }
        frame
    }

    /// Returns the length of the next frame, in bytes, since [`WaitingList::ask_from_first`].
    #[inline(always)]
    pub(crate) fn next_len(&self, list: &mut WaitingList) -> Option<u32> {
        if list.is_empty() { None } else { self.next_len_of_some(list) }
    }

    fn next_len_of_some(&self, list: &mut WaitingList) -> Option<u32> {
        let node = self.nodes.get(list.asked as usize)?;
        list.asked = node.next;
        node.frame.as_ref().map(Frame::len)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::buffer::Buffer;

    #[allow(unsafe_code)] // A frame that is nowhere.
    fn frame(len: u32) -> Frame {
        // SAFETY: of 1,000 bytes, of which none is accessed.
        Frame::new(unsafe { Buffer::from_raw_parts(NonNull::dangling(), 1000, NonNull::dangling()) }, len)
    }

    #[test]
    fn each_list_has_its_frames_in_order_and_all_room_is_used_again() {
        let mut frames = WaitingFrames::new(6);
        let mut lists = [WaitingList::default(), WaitingList::default()];
        for round in 0..3 {
            for len in 1..=3 {
                frames.push(&mut lists[0], frame(len), Arrival::at(u64::from(len) << 10));
                frames.push(&mut lists[1], frame(100 + len + round), Arrival::NONE);
            }
            let front = frames.front(&lists[0]).map(|(frame, arrived)| (frame.len(), arrived));
            assert_eq!(front, Some((1, Arrival::at(1 << 10))));
            let lens = |frames: &mut WaitingFrames, list: &mut WaitingList| -> Vec<u32> {
                std::iter::from_fn(|| frames.pop(list)).map(|frame| frame.len()).collect()
            };
            assert_eq!(lens(&mut frames, &mut lists[1]), [101 + round, 102 + round, 103 + round]);
            assert_eq!(lens(&mut frames, &mut lists[0]), [1, 2, 3]);
            assert!(lists.iter().all(WaitingList::is_empty));
        }
    }

    #[test]
    fn lengths_are_returned_in_order_from_the_first() {
        let (mut frames, mut list) = (WaitingFrames::new(3), WaitingList::default());
        (1..=3).for_each(|len| frames.push(&mut list, frame(len), Arrival::NONE));
        for _ in 0..2 {
            list.ask_from_first();
            let lens: Vec<_> = (0..4).map(|_| frames.next_len(&mut list)).collect();
            assert_eq!(lens, [Some(1), Some(2), Some(3), None]);
        }
        frames.pop(&mut list);
        list.ask_from_first();
        assert_eq!((frames.next_len(&mut list), list.len()), (Some(2), 2));
    }
}

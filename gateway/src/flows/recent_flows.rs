//! Where recent frames of plain flows went: a shortcut past the flow cache and the instances.
//!
//! Frames come in trains: most frames of a burst belong to flows that had frames just before. The memo holds, by flow,
//! where these went, for little more than a millisecond. The gateway clears it whenever an instance is released, the
//! rules change, the tables are swept, or it has not polled for that long. It forgets a single flow when that flow
//! opens anew. So an entry is never wrong. And the flow cache and the instances have to note that a flow is alive only
//! once per sweep instead of once per frame. Flows that map to the same entry evict each other, and then take the long
//! way.
//!
//! Of fixed size, small enough to stay in the first-level cache.

use pinion_mma::id::FwpId;

use crate::headers::plain::PlainFlow;

const NOTES: usize = 256;

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Note {
    flow: PlainFlow,
    entry: FwpId,
    /// The round in which it was noted.
    round: u32,
}

pub(crate) struct RecentFlows {
    notes: Box<[Note; NOTES]>,
    round: u32,
}

impl RecentFlows {
    pub(crate) fn new() -> Self {
        let nothing = Note { flow: PlainFlow::NONE, entry: FwpId { index: 0, generation: 0 }, round: 0 };
        Self { notes: Box::new([nothing; NOTES]), round: 1 }
    }

    /// Returns where frames of the flow go, if that is noted.
    #[inline(always)]
    pub(crate) fn entry(&self, flow: PlainFlow) -> Option<FwpId> {
        let note = &self.notes[place(flow)];
        (note.flow == flow && note.round == self.round).then_some(note.entry)
    }

    #[inline(always)]
    pub(crate) fn note(&mut self, flow: PlainFlow, entry: FwpId) {
        self.notes[place(flow)] = Note { flow, entry, round: self.round };
    }

    /// Forgets where frames of the flow went.
    pub(crate) fn forget_flow(&mut self, flow: PlainFlow) {
        let note = &mut self.notes[place(flow)];
        if note.flow == flow {
            note.flow = PlainFlow::NONE;
        }
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        // After the counter has wrapped, in months, notes of the earlier round with the same number would be valid
        // again.
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            *self = Self::new();
        }
    }
}

/// Returns the entry that a flow maps to. Not keyed: a client that makes its flows collide makes them go the long way,
/// which is what they would do without a memo.
#[inline(always)]
fn place(flow: PlainFlow) -> usize {
    let [addresses, rest] = flow.words();
    let mixed = (addresses ^ rest.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - NOTES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::plain;
    use crate::test_frames::{STATION, UDP, ipv4, to_station, udp};
    use pinion_mma::id::PortIndex;
    use proptest::prelude::*;
    use smoltcp::wire::EthernetAddress;
    use std::collections::HashMap;

    fn flow(client: u32) -> PlainFlow {
        let packet = ipv4(client.into(), [10, 0, 0, 2].into(), UDP, &udp(client as u16, 53, b""));
        plain::read(&to_station(&packet), PortIndex(0), EthernetAddress(STATION)).unwrap()
    }

    fn entry(number: u32) -> FwpId {
        FwpId { index: number, generation: 7 }
    }

    proptest! {
        #[test]
        fn an_entry_found_is_the_last_one_noted_since_everything_was_forgotten(
            steps in proptest::collection::vec((0_u32..600, 0_u32..4, 0..40), 0..1000),
        ) {
            let (mut memo, mut model) = (RecentFlows::new(), HashMap::new());
            for (client, number, forget) in steps {
                let flow = flow(0x0a00_0000 + client);
                if let Some(found) = memo.entry(flow) {
                    prop_assert_eq!(model.get(&client), Some(&found));
                }
                memo.note(flow, entry(number));
                model.insert(client, entry(number));
                prop_assert_eq!(memo.entry(flow), Some(entry(number)));
                if forget == 0 {
                    memo.forget();
                    model.clear();
                }
            }
        }
    }

    #[test]
    fn a_few_flows_in_a_row_find_places_of_their_own() {
        let mut memo = RecentFlows::new();
        (0..32).for_each(|client| memo.note(flow(0x0a00_0000 + client), entry(client)));
        let kept = (0..32).filter(|&client| memo.entry(flow(0x0a00_0000 + client)) == Some(entry(client))).count();
        assert!(kept >= 24, "{kept} of 32");
    }
}

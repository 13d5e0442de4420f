//! Which flow a datagram's fragments belong to: the first fragment has the ports, later ones are looked up.
//!
//! A later fragment that overlaps the headers by which the flow was classified ends its datagram (RFC 5722, RFC 3128).
//! Otherwise a receiver could reassemble another packet than the one that was classified here.
//!
//! Fragments of a datagram share source, destination, protocol, identification and the network that they came in by.
//! The table has a fixed size, and a lookup searches one bucket. A datagram that is unseen for [`FRAGMENTS_IDLE_NS`] is
//! forgotten; in a full bucket, the one unseen for longest. So a flood of first fragments can make other clients lose
//! some of theirs, which are dropped and counted, but it never directs a fragment to another client's flow.

use crate::drops::DropReason;
use crate::flows::bucket::{Bucket, Round, Seen, Tag, Tick, WAYS, first_bucket, ticks_in};
use crate::flows::hash::FlowHasher;
use crate::headers::{FlowKey, Fragment, Ingress, Part, Vlan};

/// How long after the previous fragment of its datagram a later one may come. In nanoseconds.
const FRAGMENTS_IDLE_NS: u64 = 3_000_000_000;
const IDLE_TICKS: u16 = ticks_in(FRAGMENTS_IDLE_NS);

#[derive(Clone, Copy)]
struct Entry {
    datagram: FlowKey,
    flow: FlowKey,
}

pub(crate) struct Fragments {
    hasher: FlowHasher,
    buckets: Box<[Bucket]>,
    entries: Box<[[Entry; WAYS]]>,
    /// For each entry, where the headers of its first fragment end.
    boundaries: Box<[[u16; WAYS]]>,
    round: Round,
}

impl Fragments {
    /// Makes room for `datagrams` datagrams at a time.
    pub(crate) fn new(datagrams: usize) -> Self {
        let buckets = datagrams.div_ceil(WAYS);
        let nowhere = Ingress { port: pinion_mma::id::PortIndex(0), vlan: Vlan::UNTAGGED };
        let no_flow = FlowKey::ipv4([0; 4].into(), [0; 4].into(), 0, nowhere);
        Self {
            hasher: FlowHasher::new(),
            buckets: vec![Bucket::EMPTY; buckets].into(),
            entries: vec![[Entry { datagram: no_flow, flow: no_flow }; WAYS]; buckets].into(),
            boundaries: vec![[0; WAYS]; buckets].into(),
            round: Round::default(),
        }
    }

    /// Returns the bytes of memory that it takes, which never change.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.entries) + size_of_val(&*self.boundaries)
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the flow that a fragment belongs to.
    pub(crate) fn flow_of(&mut self, fragment: &Fragment, now_ns: u64) -> Result<FlowKey, DropReason> {
        let datagram = fragment.flow.datagram(fragment.identification);
        let hash = self.hasher.hash(&datagram);
        let (index, tag, now) = (first_bucket(hash, self.buckets.len()), Tag::of(hash), Tick::at(now_ns));
        let (bucket, entries) = (&mut self.buckets[index], &mut self.entries[index]);
        let known = bucket.ways_with(tag).find(|way| entries[*way].datagram == datagram);
        let way = match fragment.part {
            Part::Whole => return Ok(fragment.flow),
            Part::First => {
                let way = known.or_else(|| bucket.empty_way()).unwrap_or_else(|| oldest_way(bucket, now));
                bucket.set(way, tag, Seen::at(now));
                entries[way] = Entry { datagram, flow: fragment.flow };
                self.boundaries[index][way] = fragment.boundary;
                way
            }
            Part::Later => {
                let way = known.filter(|way| bucket.seen[*way].age(now) <= IDLE_TICKS);
                let way = way.ok_or(DropReason::FragmentWithoutFirst)?;
                if fragment.boundary < self.boundaries[index][way] {
                    bucket.set_empty(way);
                    return Err(DropReason::OverlappingFragment);
                }
                way
            }
        };
        bucket.seen[way] = Seen::at(now);
        Ok(entries[way].flow)
    }

    /// Forgets idle datagrams in the next few buckets.
    pub(crate) fn sweep(&mut self, buckets: usize, now_ns: u64) {
        let now = Tick::at(now_ns);
        self.round.go_on(&mut self.buckets, buckets, |bucket| {
            bucket.empty_older(now, IDLE_TICKS + 1);
        });
    }
}

fn oldest_way(bucket: &Bucket, now: Tick) -> usize {
    (0..WAYS).max_by_key(|way| bucket.seen[*way].age(now)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_mma::id::PortIndex;
    use std::net::Ipv4Addr;

    const INGRESS: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };

    fn portless(client: u32, ingress: Ingress) -> FlowKey {
        FlowKey::ipv4(Ipv4Addr::from_bits(client), Ipv4Addr::LOCALHOST, 17, ingress)
    }

    fn first(client: u32, port: u16, identification: u32) -> Fragment {
        let flow = portless(client, INGRESS).with_ports(port, 53);
        Fragment { flow, identification, part: Part::First, boundary: 8 }
    }

    fn later(client: u32, identification: u32) -> Fragment {
        Fragment { flow: portless(client, INGRESS), identification, part: Part::Later, boundary: 8 }
    }

    const UNKNOWN: Result<FlowKey, DropReason> = Err(DropReason::FragmentWithoutFirst);

    #[test]
    fn later_fragments_follow_the_first_one_of_their_datagram_only() {
        let mut fragments = Fragments::new(64);
        assert_eq!(fragments.flow_of(&later(1, 7), 0), UNKNOWN);
        for (client, port, identification) in [(1, 1000, 7), (1, 1001, 8), (2, 1002, 7)] {
            let first = first(client, port, identification);
            assert_eq!(fragments.flow_of(&first, 0), Ok(first.flow));
        }
        for (client, port, identification) in [(1, 1000, 7), (1, 1001, 8), (2, 1002, 7)] {
            let known = portless(client, INGRESS).with_ports(port, 53);
            assert_eq!(fragments.flow_of(&later(client, identification), 1), Ok(known));
        }
        assert_eq!(fragments.flow_of(&later(2, 8), 1), UNKNOWN);
        let other_vlan = Ingress { vlan: Vlan { id: 5, inner_id: 0 }, ..INGRESS };
        let other_port = Ingress { port: PortIndex(1), ..INGRESS };
        for elsewhere in [other_vlan, other_port] {
            let strange = Fragment { flow: portless(1, elsewhere), ..later(1, 7) };
            assert_eq!(fragments.flow_of(&strange, 1), UNKNOWN);
        }
        // The identification is reused.
        fragments.flow_of(&first(1, 2000, 7), 2).unwrap();
        assert_eq!(fragments.flow_of(&later(1, 7), 2), Ok(portless(1, INGRESS).with_ports(2000, 53)));
    }

    #[test]
    fn a_fragment_that_overlaps_the_headers_of_its_datagram_ends_the_datagram() {
        let mut fragments = Fragments::new(64);
        for identification in [7, 8] {
            fragments.flow_of(&Fragment { boundary: 28, ..first(1, 1000, identification) }, 0).unwrap();
        }
        let at = |boundary, identification| Fragment { boundary, ..later(1, identification) };
        assert!(fragments.flow_of(&at(32, 7), 0).is_ok());
        assert_eq!(fragments.flow_of(&at(24, 7), 0), Err(DropReason::OverlappingFragment));
        assert_eq!(fragments.flow_of(&at(32, 7), 0), UNKNOWN);
        assert!(fragments.flow_of(&at(32, 8), 0).is_ok(), "no other datagram");
        // Its identification may be reused.
        fragments.flow_of(&first(1, 1000, 7), 0).unwrap();
        assert!(fragments.flow_of(&at(8, 7), 0).is_ok());
    }

    #[test]
    fn fragments_that_come_too_late_are_refused_swept_or_not() {
        for swept in [false, true] {
            let mut fragments = Fragments::new(64);
            fragments.flow_of(&first(1, 1000, 7), 0).unwrap();
            assert!(fragments.flow_of(&later(1, 7), FRAGMENTS_IDLE_NS).is_ok());
            let late_ns = 2 * FRAGMENTS_IDLE_NS + FRAGMENTS_IDLE_NS / 10;
            if swept {
                fragments.sweep(fragments.buckets(), late_ns);
                assert!(fragments.buckets.iter().all(|bucket| (0..WAYS).eq(bucket.ways_with(Tag::NONE))));
            }
            assert_eq!(fragments.flow_of(&later(1, 7), late_ns), UNKNOWN);
        }
    }

    #[test]
    fn a_flood_of_first_fragments_takes_no_memory_and_misdirects_no_fragment() {
        let mut fragments = Fragments::new(64);
        let places = fragments.buckets() * WAYS;
        for client in 0..10_000 {
            fragments.flow_of(&first(client, client as u16, 7), u64::from(client)).unwrap();
        }
        let known = |client: &u32| match fragments.flow_of(&later(*client, 7), 10_000) {
            Ok(flow) => {
                assert_eq!(flow, first(*client, *client as u16, 7).flow);
                true
            }
            Err(_) => false,
        };
        assert_eq!((0..10_000).filter(known).count(), places);
    }
}

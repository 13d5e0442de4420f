//! Datagrams in fragments, through a function that sends each to the output that its first fragment's port names.

#![cfg(all(feature = "tables", not(target_family = "wasm")))]

use core::net::Ipv6Addr;

use pinion_sdk::fragments::{Arrival, Fragments, Limits, Loss};
use pinion_sdk::headers::{Headers, UDP};
use pinion_sdk::testing::{Frame, Harness, Outcome, Verdict, advance_clock_ns};
use pinion_sdk::{Batch, Function, InitError, SLOT_COUNT_DEFAULT, Slots, clock};
use proptest::prelude::*;

const S_NS: u64 = 1_000_000_000;
/// The port that the function refuses.
const REFUSED: u16 = 15;

/// Sends each packet to the output with the number of its UDP port.
struct Sort(Fragments<u16>);

fn decision(headers: &Headers) -> Option<u16> {
    headers.ports.map(|ports| ports.destination).filter(|port| *port != REFUSED)
}

impl Function for Sort {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self(Fragments::new("sort", Limits::default())))
    }

    fn start(&mut self) {
        self.0.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        for packet in batch {
            let headers = Headers::of_part(packet.data()).unwrap();
            let way = packet.ingress_port();
            match self.0.arrive(packet, &headers, way, now_ns) {
                Arrival::Whole(packet) => packet.send_to(decision(&headers).unwrap()),
                Arrival::First(packet, first) => {
                    let decided = decision(&headers);
                    if self.0.decide(first, decided, now_ns) {
                        packet.send_to(decided.unwrap());
                    }
                    while let Some(held) = self.0.next_held(first, slots, now_ns) {
                        held.send_to(decided.unwrap());
                    }
                }
                Arrival::Later(packet, decided) => packet.send_to(decided),
                Arrival::Taken => {}
            }
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.0.deadline_ns()
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        self.0.expire(clock::now_ns());
    }
}

/// A datagram: its IP version, its source host and identification, and the port that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Datagram {
    is_v6: bool,
    host: u16,
    id: u16,
    port: u16,
}

const ONE: Datagram = Datagram { is_v6: false, host: 1, id: 7, port: 3 };
const VERSIONS: [Datagram; 2] = [ONE, Datagram { is_v6: true, ..ONE }];

impl Datagram {
    /// Makes its fragment with these bytes.
    fn part(self, start: usize, end: usize, more: bool) -> Vec<u8> {
        let mut payload: Vec<u8> = (start..end).map(|at| at as u8).collect();
        if start == 0 {
            let [high, low] = self.port.to_be_bytes();
            payload[..8].copy_from_slice(&[0, 9, high, low, 0, 0, 0, 0]);
        }
        let [high, low] = self.host.to_be_bytes();
        let part = if self.is_v6 {
            // A host of a /64 network of its own. Later fragments state another protocol.
            let stated = if start == 0 { UDP } else { 59 };
            Frame::other(stated, Ipv6Addr::new(0xfd00, 0, 0, self.host, 0, 0, 0, 1), "fd::")
        } else {
            Frame::other(UDP, [10, 0, high, low], [10, 1, 0, 0])
        };
        part.id(self.id.into()).fragment(start as u16, more).payload(&payload).bytes()
    }

    /// Splits it into fragments of 8 bytes, the last one shorter.
    fn parts(self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|at| self.part(8 * at, 8 * at + if at + 1 < count { 8 } else { 5 }, at + 1 < count)).collect()
    }
}

fn sort() -> Harness<Sort> {
    Harness::new(b"").unwrap()
}

/// Delivers frames one by one; returns those that were sent, with their outputs.
fn sent(sort: &mut Harness<Sort>, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
    frames.iter().flat_map(|frame| sort.deliver(&[frame])).filter_map(of_sent).collect()
}

fn of_sent(verdict: Verdict) -> Option<(u16, Vec<u8>)> {
    match verdict.outcome {
        Outcome::SentTo(output) => Some((output, verdict.bytes)),
        Outcome::Dropped => None,
        other => panic!("{other:?}"),
    }
}

fn dropped(sort: &mut Harness<Sort>, loss: Loss) -> u64 {
    sort.function().0.dropped_for(loss)
}

fn waiting(sort: &mut Harness<Sort>) -> usize {
    sort.function().0.waiting_count()
}

#[test]
fn later_fragments_follow_their_first_one_in_whatever_order_they_come() {
    for datagram in VERSIONS {
        let parts = datagram.parts(3);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut sort = sort();
            let sent = sent(&mut sort, &order.map(|at| parts[at].clone()));
            assert_eq!(sent[0], (3, parts[0].clone()), "the first one leaves first: {order:?}");
            assert!(parts.iter().all(|part| sent.contains(&(3, part.clone()))), "{order:?}");
            assert_eq!((sent.len(), waiting(&mut sort)), (3, 0));
        }
        let reversed: Vec<_> = parts.iter().rev().cloned().collect();
        let in_order: Vec<_> = parts.iter().map(|part| (3, part.clone())).collect();
        assert_eq!(sent(&mut sort(), &reversed), in_order, "those that waited leave in the order of their offsets");
    }
}

#[test]
fn fragments_of_another_source_identification_or_way_belong_to_another_datagram() {
    for datagram in VERSIONS {
        let mut sort = sort();
        assert_eq!(sent(&mut sort, &datagram.parts(2)[..1]).len(), 1);
        for other in [Datagram { host: 2, ..datagram }, Datagram { id: 8, ..datagram }] {
            assert_eq!(sent(&mut sort, &other.parts(2)[1..]), []);
        }
        assert_eq!(sort.deliver_from(1, &[&datagram.parts(2)[1]]), []);
        assert_eq!(waiting(&mut sort), 3);
        assert_eq!(sent(&mut sort, &datagram.parts(2)[1..]).len(), 1);
    }
}

#[test]
fn a_fragment_waits_for_two_seconds_and_is_then_dropped_and_counted() {
    for datagram in VERSIONS {
        let mut sort = sort();
        let parts = datagram.parts(3);
        assert_eq!(sort.deliver(&[&parts[1], &parts[2]]), []);
        assert_eq!(sort.let_pass_ns(2 * S_NS - 1_000), []);
        let outcomes: Vec<_> = sort.let_pass_ns(1_000).iter().map(|verdict| verdict.outcome).collect();
        assert_eq!(outcomes, [Outcome::Dropped; 2]);
        assert_eq!((waiting(&mut sort), dropped(&mut sort, Loss::NoFirst)), (0, 2));
        assert_eq!(sort.metric("sort_fragments_dropped", &[("reason", "no-first")]), Some(2));
        assert_eq!(sort.metric("sort_fragments_held", &[]), Some(2));
        assert_eq!(sort.function().deadline_ns(), None);
    }
}

#[test]
fn a_later_fragment_passes_for_thirty_seconds_after_the_first() {
    for datagram in VERSIONS {
        for (seconds, passes) in [(29, true), (30, false)] {
            let mut sort = sort();
            assert_eq!(sent(&mut sort, &datagram.parts(2)[..1]).len(), 1);
            advance_clock_ns(seconds * S_NS);
            assert_eq!(sent(&mut sort, &datagram.parts(2)[1..]).len(), usize::from(passes));
        }
    }
}

#[test]
fn nothing_of_a_refused_datagram_passes_and_none_of_it_waits() {
    for datagram in VERSIONS {
        let refused = Datagram { port: REFUSED, ..datagram };
        let parts = refused.parts(3);
        let mut sort = sort();
        assert_eq!(sent(&mut sort, &[parts[1].clone(), parts[0].clone(), parts[2].clone()]), []);
        assert_eq!((waiting(&mut sort), dropped(&mut sort, Loss::Refused)), (0, 2));
        assert_eq!(sent(&mut sort, &datagram.parts(2)).len(), 2, "the same identification, used again");
    }
}

#[test]
fn fragments_that_overlap_end_their_datagram_before_its_first_one_and_after() {
    for datagram in VERSIONS {
        let [first, second, third] = [0, 1, 2].map(|at| datagram.parts(3)[at].clone());
        let overlapping = datagram.part(8, 24, true);
        let mut sort = sort();
        assert_eq!(sent(&mut sort, &[second.clone(), overlapping.clone(), first.clone(), third.clone()]), []);
        assert_eq!((dropped(&mut sort, Loss::Overlap), dropped(&mut sort, Loss::Ended)), (1, 3));
        assert_eq!(waiting(&mut sort), 0);
        let mut sort = self::sort();
        assert_eq!(sent(&mut sort, &[first, second, overlapping, third]).len(), 2);
        assert_eq!((dropped(&mut sort, Loss::Overlap), dropped(&mut sort, Loss::Ended)), (1, 1));
    }
}

#[test]
fn a_second_first_fragment_ends_its_datagram_unless_it_is_the_same() {
    for datagram in VERSIONS {
        let parts = datagram.parts(3);
        let longer = datagram.part(0, 16, true);
        let to_another_port = Datagram { port: 4, ..datagram }.parts(3)[0].clone();
        let to_refused_port = Datagram { port: REFUSED, ..datagram }.parts(3)[0].clone();
        for (again, rest) in [(&parts[0], 2), (&longer, 0), (&to_another_port, 0), (&to_refused_port, 0)] {
            let mut sort = sort();
            assert_eq!(sent(&mut sort, &parts[..1]).len(), 1);
            assert_eq!(sent(&mut sort, std::slice::from_ref(again)).len(), usize::from(rest > 0));
            assert_eq!(sent(&mut sort, &parts[1..]).len(), rest);
        }
    }
}

#[test]
fn a_fragment_that_no_datagram_can_have_ends_its_datagram() {
    for datagram in VERSIONS {
        let parts = datagram.parts(2);
        let bad = [
            datagram.part(65_528, 65_536, false),
            datagram.part(65_520, 65_544, false),
            datagram.part(16, 16, false),
            datagram.part(16, 21, true),
        ];
        for bad in bad {
            let mut sort = sort();
            assert_eq!(sent(&mut sort, &[parts[0].clone(), bad.clone(), parts[1].clone()]).len(), 1);
            assert_eq!(dropped(&mut sort, Loss::BadLength), 1);
            let mut sort = self::sort();
            assert_eq!(sent(&mut sort, &[bad, parts[0].clone(), parts[1].clone()]), []);
        }
        let longest = datagram.part(65_528, 65_535, false);
        assert_eq!(sent(&mut sort(), &[parts[0].clone(), longest]).len(), 2);
    }
}

#[test]
fn an_identification_of_ipv4_can_be_used_again_as_soon_as_its_datagram_is_complete() {
    let mut sort = sort();
    for port in [3, 4, 5] {
        let parts = Datagram { port, ..ONE }.parts(3);
        let sent = sent(&mut sort, &[parts[2].clone(), parts[0].clone(), parts[1].clone()]);
        assert_eq!(sent.iter().map(|(output, _)| *output).collect::<Vec<_>>(), [port; 3]);
    }
}

#[test]
fn a_source_that_floods_with_fragments_takes_no_more_than_its_share() {
    let Limits { waiting_per_source_max, waiting_max, .. } = Limits::default();
    for datagram in VERSIONS {
        let mut sort = sort();
        let mine = Datagram { host: 2, ..datagram }.parts(2);
        assert_eq!(sent(&mut sort, &mine[1..]), []);
        for id in 100..400 {
            assert_eq!(sent(&mut sort, &Datagram { id, ..datagram }.parts(2)[1..]), []);
        }
        assert_eq!(waiting(&mut sort), waiting_per_source_max + 1);
        assert_eq!(sent(&mut sort, &mine[..1]).len(), 2, "another source's fragment has waited");
        // The flooder's latest ones are still there, its oldest ones are not.
        let last = Datagram { id: 399, ..datagram };
        assert_eq!(sent(&mut sort, &last.parts(2)[..1]).len(), 2);
        assert_eq!(sent(&mut sort, &Datagram { id: 100, ..datagram }.parts(2)[..1]).len(), 1);
        // Many sources fill all places, and slots are left for others.
        for host in 100..1100 {
            assert_eq!(sent(&mut sort, &Datagram { host, ..datagram }.parts(2)[1..]), []);
        }
        assert_eq!(waiting(&mut sort), waiting_max);
        assert!(waiting_max < SLOT_COUNT_DEFAULT / 2);
        assert_eq!(sent(&mut sort, &Datagram { host: 1099, ..datagram }.parts(2)[..1]).len(), 2);
    }
}

#[test]
fn one_datagram_with_more_waiting_fragments_than_a_source_may_have_ends() {
    for datagram in VERSIONS {
        let parts = datagram.parts(60);
        let mut sort = sort();
        assert_eq!(sent(&mut sort, &parts[20..]), []);
        assert_eq!((waiting(&mut sort), dropped(&mut sort, Loss::NoRoom)), (0, 1));
        assert_eq!(sent(&mut sort, &parts[..20]), []);
        let mut sort = self::sort();
        assert_eq!(sent(&mut sort, &[&parts[28..], &parts[..28]].concat()).len(), 60);
    }
}

#[test]
fn a_fragment_for_which_others_leave_no_room_is_lost_and_its_datagram_is_not() {
    let Limits { waiting_max, .. } = Limits::default();
    for datagram in VERSIONS {
        let mut sort = sort();
        let mine = datagram.parts(4);
        assert_eq!(sent(&mut sort, &mine[1..2]), []);
        for host in 2..=waiting_max as u16 {
            assert_eq!(sent(&mut sort, &Datagram { host, ..datagram }.parts(2)[1..]), []);
        }
        // It is the oldest one that waits, and the first that would be dropped for another datagram.
        assert_eq!(sent(&mut sort, &mine[2..3]), []);
        assert_eq!((waiting(&mut sort), dropped(&mut sort, Loss::NoRoom)), (waiting_max, 1));
        assert_eq!(sent(&mut sort, &mine[..1]).len(), 2, "the first one, and the one that has waited");
        assert_eq!(sent(&mut sort, &mine[3..]).len(), 1);
    }
}

#[test]
fn a_datagram_with_more_fragments_than_can_be_remembered_ends() {
    for datagram in VERSIONS {
        let mut sort = sort();
        assert_eq!(sent(&mut sort, &datagram.parts(128)).len(), 128);
        let longer = Datagram { id: 8, ..datagram }.parts(131);
        assert_eq!(sent(&mut sort, &longer).len(), 128);
        assert_eq!([Loss::TooMany, Loss::Ended, Loss::Overlap].map(|loss| dropped(&mut sort, loss)), [1, 2, 0]);
    }
}

#[test]
fn a_source_with_many_datagrams_loses_its_own_and_no_other_loses_any() {
    let Limits { datagrams_per_source_max, .. } = Limits::default();
    for datagram in VERSIONS {
        let mut sort = sort();
        let mine = Datagram { host: 2, ..datagram }.parts(2);
        assert_eq!(sent(&mut sort, &mine[..1]).len(), 1);
        let last = 100 + datagrams_per_source_max as u16;
        for id in 100..=last {
            assert_eq!(sent(&mut sort, &Datagram { id, ..datagram }.parts(2)[..1]).len(), 1);
        }
        assert_eq!(sent(&mut sort, &mine[1..]).len(), 1);
        let passes = |id, sort: &mut _| sent(sort, &Datagram { id, ..datagram }.parts(2)[1..]).len();
        assert_eq!([100, 101, last].map(|id| passes(id, &mut sort)), [0, 1, 1]);
    }
}

#[test]
fn when_all_datagrams_are_in_use_ended_and_refused_ones_are_forgotten_first() {
    let Limits { datagrams_max, .. } = Limits::default();
    for datagram in VERSIONS {
        let mut sort = sort();
        let of = |host, port| Datagram { host, port, ..datagram }.parts(2);
        assert_eq!(sent(&mut sort, &of(1, 3)[..1]).len(), 1);
        for host in 2..datagrams_max as u16 {
            assert_eq!(sent(&mut sort, &of(host, REFUSED)[..1]), []);
        }
        for host in 1000..1000 + datagrams_max as u16 - 1 {
            assert_eq!(sent(&mut sort, &of(host, 4)[..1]).len(), 1);
        }
        assert_eq!(sent(&mut sort, &of(1, 3)[1..]).len(), 1, "the oldest of all, but it passes");
    }
}

/// Steps of several datagrams' fragments: the datagram, and the fragment's number.
fn arrivals() -> impl Strategy<Value = (Vec<usize>, Vec<(usize, usize)>)> {
    proptest::collection::vec(2_usize..7, 1..5).prop_flat_map(|counts| {
        let all: Vec<_> =
            counts.iter().enumerate().flat_map(|(of, count)| (0..*count).map(move |at| (of, at))).collect();
        (Just(counts), Just(all).prop_shuffle())
    })
}

proptest! {
    #[test]
    fn each_fragment_of_shuffled_datagrams_leaves_once_after_its_first_one((counts, arrivals) in arrivals(), is_v6: bool) {
        let of = |of: usize| Datagram { is_v6, host: of as u16 % 2, id: of as u16, port: of as u16 + 1 };
        let frames: Vec<_> = arrivals.iter().map(|(datagram, at)| of(*datagram).parts(counts[*datagram])[*at].clone()).collect();
        let mut sort = sort();
        let left = sent(&mut sort, &frames);
        prop_assert_eq!(left.len(), frames.len());
        for (number, count) in counts.iter().enumerate() {
            let mine: Vec<_> = left.iter().filter(|(output, _)| usize::from(*output) == number + 1).collect();
            prop_assert_eq!(mine.len(), *count);
            prop_assert_eq!(&mine[0].1, &of(number).parts(*count)[0]);
        }
        prop_assert_eq!((waiting(&mut sort), sort.function().0.dropped()), (0, 0));
    }

    /// All slots are given back in the end, and what passes of a datagram overlaps nothing that passed before.
    #[test]
    fn no_fragments_lose_slots_or_overlap_what_has_passed(
        parts in proptest::collection::vec((0_usize..6, 1_usize..4, any::<bool>(), 0_u16..3, 0_u16..2), 0..120), is_v6: bool,
    ) {
        let mut sort = sort();
        let mut passed: Vec<(usize, usize)> = Vec::new();
        for (start, len, more, id, host) in parts {
            let datagram = Datagram { is_v6, host, id, port: 3 };
            let end = 8 * (start + len);
            for (_, bytes) in sent(&mut sort, &[datagram.part(8 * start, end, more || start == 0)]) {
                let headers = Headers::of_part(&bytes).unwrap();
                let range = headers.part(&bytes).unwrap();
                if (host, id) == (0, 0) && is_v6 {
                    let range = (range.start, range.end);
                    let overlaps = |other: &(usize, usize)| range.0 < other.1 && other.0 < range.1 && *other != range;
                    prop_assert!(!passed.iter().any(overlaps), "{:?} after {:?}", range, passed);
                    passed.push(range);
                }
            }
        }
        let verdicts = sort.let_pass_ns(2 * S_NS);
        prop_assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
        prop_assert_eq!(waiting(&mut sort), 0);
    }
}

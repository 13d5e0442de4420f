//! What a bad network does to the frames that pass it in one direction: loses, doubles, delays and reorders them, and refuses those that are
//! too long. [`Lane`] decides by a seeded generator and the order of frames alone. It sends nothing and reads no clock.

use std::time::Duration;

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

use crate::network::too_big;
use crate::random::Random;

/// The length of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Most frames that overtake one.
const OVERTAKING_MAX: u64 = 8;
/// How long a frame waits to be overtaken, if no frames come.
const OVERTAKEN_MAX: Duration = Duration::from_millis(20);
/// The longest delay of a frame.
const DELAY_MS_MAX: u64 = 30;

/// Chances in percent, and a length. It falls on TCP segments alone, so that neighbour discovery fails no test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Segments that are lost.
    pub lost: u64,
    /// Segments that arrive twice.
    pub doubled: u64,
    /// Segments that up to eight later ones overtake.
    pub overtaken: u64,
    /// Segments that come up to 30 ms late.
    pub delayed: u64,
    /// The longest packet in bytes, with its IP header, and what happens to longer ones.
    pub mtu: Option<(usize, TooLong)>,
}

/// What happens to a packet that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLong {
    /// Its sender is told so by ICMP.
    Reported,
    /// It is dropped.
    Swallowed,
}

/// What has happened to the segments of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that came, those included that are counted below.
    pub segments: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Those that were lost.
    pub lost: u64,
    /// Those that were sent twice.
    pub doubled: u64,
    /// Those that others overtook.
    pub overtaken: u64,
    /// Those that were delayed.
    pub delayed: u64,
    /// Those that were too long.
    pub too_long: u64,
    /// The longest packet that has passed, in bytes with its IP header.
    pub longest: usize,
}

/// One direction of a network.
#[derive(Debug)]
pub struct Lane {
    weather: Weather,
    random: Random,
    held: Vec<Held>,
    counts: Counts,
}

/// A frame that leaves when as many others have passed, or when the time has come.
#[derive(Debug)]
struct Held {
    frame: Vec<u8>,
    frames_left: u64,
    until: Duration,
}

/// What follows from a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The frames that leave now, in this order.
    pub onwards: Vec<Vec<u8>>,
    /// A frame for the sender.
    pub back: Option<Vec<u8>>,
}

impl Lane {
    /// Makes a direction with this weather. The same seed decides the same about the same frames.
    #[must_use]
    pub fn new(weather: Weather, seed: u64) -> Self {
        Self { weather, random: Random::new(seed), held: Vec::new(), counts: Counts::default() }
    }

    /// Returns what has happened until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes a frame that came at this time since the start.
    pub fn take(&mut self, frame: Vec<u8>, now: Duration) -> Taken {
        let Some(payload_bytes) = payload_bytes(&frame) else {
            return Taken { onwards: vec![frame], back: None };
        };
        self.counts.segments += 1;
        self.counts.payload_bytes += payload_bytes as u64;
        // All are drawn for each segment, so that one chance does not change what another decides.
        let Weather { lost, doubled, overtaken, delayed, mtu } = self.weather;
        let [is_lost, is_doubled, is_overtaken, is_delayed] =
            [lost, doubled, overtaken, delayed].map(|percent| self.random.below(100) < percent);
        let (frames_left, delay_ms) = (1 + self.random.below(OVERTAKING_MAX), 1 + self.random.below(DELAY_MS_MAX));
        if let Some((mtu, too_long)) = mtu.filter(|(mtu, _)| frame.len() - ETHERNET > *mtu) {
            self.counts.too_long += 1;
            let back = (too_long == TooLong::Reported).then(|| too_big::report(&frame, mtu));
            return Taken { onwards: Vec::new(), back };
        }
        if is_lost {
            self.counts.lost += 1;
            return Taken::default();
        }
        self.counts.longest = self.counts.longest.max(frame.len() - ETHERNET);
        self.counts.doubled += u64::from(is_doubled);
        let mut onwards = vec![frame.clone(); usize::from(is_doubled)];
        if is_overtaken {
            self.counts.overtaken += 1;
            self.release_after(&mut onwards);
            self.held.push(Held { frame, frames_left, until: now + OVERTAKEN_MAX });
        } else if is_delayed {
            self.counts.delayed += 1;
            self.release_after(&mut onwards);
            let until = now + Duration::from_millis(delay_ms);
            self.held.push(Held { frame, frames_left: u64::MAX, until });
        } else {
            onwards.push(frame);
            self.release_after(&mut onwards);
        }
        Taken { onwards, back: None }
    }

    /// Returns the frames whose time has come.
    pub fn due(&mut self, now: Duration) -> Vec<Vec<u8>> {
        self.release(|held| held.until <= now)
    }

    /// Appends the frames that these were the last to overtake.
    fn release_after(&mut self, onwards: &mut Vec<Vec<u8>>) {
        let passed = onwards.len() as u64;
        self.held.iter_mut().for_each(|held| held.frames_left = held.frames_left.saturating_sub(passed));
        onwards.extend(self.release(|held| held.frames_left == 0));
    }

    fn release(&mut self, leaves: impl Fn(&Held) -> bool) -> Vec<Vec<u8>> {
        self.held.extract_if(.., |held| leaves(held)).map(|held| held.frame).collect()
    }
}

/// Returns the length of a segment's payload; none for other frames.
fn payload_bytes(frame: &[u8]) -> Option<usize> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let of_tcp = |tcp: &[u8]| Some(TcpPacket::new_checked(tcp).ok()?.payload().len());
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            of_tcp(ip.payload()).filter(|_| ip.next_header() == IpProtocol::Tcp)
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            of_tcp(ip.payload()).filter(|_| ip.next_header() == IpProtocol::Tcp)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::too_big::tests::segment;

    const NOW: Duration = Duration::from_secs(1);

    /// Sends segments whose lengths number them; returns the numbers of those that arrive, in their order, at the latest when all are due.
    fn arrivals(lane: &mut Lane, count: usize) -> Vec<usize> {
        let mut frames: Vec<Vec<u8>> = (0..count).flat_map(|number| lane.take(segment(number), NOW).onwards).collect();
        frames.extend(lane.due(NOW + OVERTAKEN_MAX + Duration::from_millis(DELAY_MS_MAX)));
        frames.iter().map(|frame| payload_bytes(frame).expect("a segment")).collect()
    }

    #[test]
    fn fair_weather_changes_nothing() {
        let mut lane = Lane::new(Weather::default(), 1);
        assert_eq!(arrivals(&mut lane, 100), (0..100).collect::<Vec<_>>());
        let (segments, payload_bytes) = (100, (0..100).sum());
        assert_eq!(lane.counts(), Counts { segments, payload_bytes, longest: 40 + 99, ..Counts::default() });
    }

    #[test]
    fn the_same_seed_decides_the_same_and_another_one_differs() {
        let bad = Weather { lost: 10, doubled: 10, overtaken: 10, delayed: 10, mtu: None };
        let of = |seed: u64| arrivals(&mut Lane::new(bad, seed), 500);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn each_segment_that_does_not_arrive_or_arrives_twice_is_counted() {
        let bad = Weather { lost: 20, doubled: 20, overtaken: 20, delayed: 20, mtu: None };
        let mut lane = Lane::new(bad, 3);
        let arrived = arrivals(&mut lane, 1_000);
        let Counts { lost, doubled, overtaken, delayed, .. } = lane.counts();
        for count in [lost, doubled, overtaken, delayed] {
            assert!((100..300).contains(&count), "{:?}", lane.counts());
        }
        assert_eq!(arrived.len() as u64, 1_000 - lost + doubled);
        assert!(!arrived.is_sorted());
    }

    #[test]
    fn a_frame_is_overtaken_by_eight_at_most() {
        let mut lane = Lane::new(Weather { overtaken: 100, ..Weather::default() }, 1);
        assert_eq!(lane.take(segment(0), NOW).onwards, Vec::<Vec<u8>>::new());
        lane.weather = Weather::default();
        let place = (1..=8).find(|number| lane.take(segment(*number), NOW).onwards.contains(&segment(0)));
        assert!(place.is_some());
        assert_eq!(lane.due(NOW + OVERTAKEN_MAX), Vec::<Vec<u8>>::new(), "it is gone");
    }

    #[test]
    fn a_packet_that_is_too_long_is_reported_or_swallowed_and_one_that_is_not_passes() {
        for (too_long, is_reported) in [(TooLong::Reported, true), (TooLong::Swallowed, false)] {
            let mut lane = Lane::new(Weather { mtu: Some((600, too_long)), ..Weather::default() }, 1);
            assert_eq!(lane.take(segment(560), NOW).onwards, [segment(560)]);
            let taken = lane.take(segment(561), NOW);
            assert_eq!((taken.onwards.len(), taken.back.is_some()), (0, is_reported));
        }
    }

    #[test]
    fn frames_that_are_no_segments_pass_in_any_weather() {
        let mut arp = segment(0);
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        let mut lane = Lane::new(Weather { lost: 100, ..Weather::default() }, 1);
        assert_eq!(lane.take(arp.clone(), NOW).onwards, [arp]);
        assert_eq!(lane.counts(), Counts::default());
    }
}

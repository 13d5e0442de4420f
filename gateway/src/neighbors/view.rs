//! What is known of neighbours, as other threads can read it at any time, without a lock.
//!
//! Each place of the table has four words and a number that is odd while they are written (a sequence lock). The
//! gateway writes a place when it looks at it in its round and something has changed; a reader that meets a write looks
//! again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use smoltcp::wire::EthernetAddress;

use super::table::{NEIGHBORS_MAX, Neighbor, NeighborState, NetworkIndex};

/// How often a reader looks at a place that is being written.
const LOOKS_MAX: u32 = 100;

const IS_IPV6: u64 = 1 << 8;

#[derive(Debug, Default)]
struct Place {
    sequence: AtomicU32,
    /// Address, station, and the rest; all zero if there is no neighbour.
    words: [AtomicU64; 4],
}

/// See the module.
#[derive(Debug)]
pub struct NeighborView {
    places: Box<[Place]>,
}

impl Default for NeighborView {
    fn default() -> Self {
        Self { places: (0..NEIGHBORS_MAX).map(|_| Place::default()).collect() }
    }
}

impl NeighborView {
    /// Writes a place, if it has changed. Only the gateway's thread may call this.
    pub(crate) fn set(&self, at: usize, neighbor: Option<Neighbor>) {
        let (place, words) = (&self.places[at], neighbor.map_or([0; 4], words_of));
        let is_same = place.words.iter().zip(words).all(|(there, word)| there.load(Ordering::Relaxed) == word);
        if is_same {
            return;
        }
        let sequence = place.sequence.load(Ordering::Relaxed);
        place.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (there, word) in place.words.iter().zip(words) {
            there.store(word, Ordering::Relaxed);
        }
        place.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Returns all neighbours, as the gateway last looked at them: within some tenths of a second.
    #[must_use]
    pub fn neighbors(&self) -> Vec<Neighbor> {
        self.places.iter().filter_map(Place::read).collect()
    }
}

impl Place {
    fn read(&self) -> Option<Neighbor> {
        for _ in 0..LOOKS_MAX {
            let before = self.sequence.load(Ordering::Acquire);
            let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return neighbor_of(words);
            }
            std::hint::spin_loop();
        }
        None
    }
}

fn words_of(neighbor: Neighbor) -> [u64; 4] {
    let (bits, version) = match neighbor.address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 0),
        IpAddr::V6(address) => (address.to_bits(), IS_IPV6),
    };
    let station =
        neighbor.station.map_or(0, |EthernetAddress([a, b, c, d, e, f])| u64::from_be_bytes([0, 1, a, b, c, d, e, f]));
    let state = match neighbor.state {
        NeighborState::Asking => 1,
        NeighborState::Known => 2,
        NeighborState::Checking => 3,
        NeighborState::Failed => 4,
    };
    [(bits >> 64) as u64, bits as u64, station, state | version | u64::from(neighbor.network.0) << 16]
}

fn neighbor_of([high, low, station, rest]: [u64; 4]) -> Option<Neighbor> {
    let state = match rest & 0xff {
        1 => NeighborState::Asking,
        2 => NeighborState::Known,
        3 => NeighborState::Checking,
        4 => NeighborState::Failed,
        _ => return None,
    };
    let address = if rest & IS_IPV6 != 0 {
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(low as u32))
    };
    let [_, there, a, b, c, d, e, f] = station.to_be_bytes();
    let station = (there == 1).then_some(EthernetAddress([a, b, c, d, e, f]));
    Some(Neighbor { network: NetworkIndex((rest >> 16) as u16), address, station, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn neighbor(number: u8, state: NeighborState) -> Neighbor {
        let address = IpAddr::V6(Ipv6Addr::from([number; 16]));
        Neighbor { network: NetworkIndex(number.into()), address, station: Some(EthernetAddress([number; 6])), state }
    }

    #[test]
    fn neighbours_are_read_as_they_were_written() {
        let view = NeighborView::default();
        let all = [
            neighbor(1, NeighborState::Known),
            Neighbor { station: None, ..neighbor(2, NeighborState::Asking) },
            Neighbor { address: [10, 0, 0, 1].into(), ..neighbor(3, NeighborState::Checking) },
            Neighbor { station: Some(EthernetAddress([0; 6])), ..neighbor(0, NeighborState::Failed) },
        ];
        (10..).zip(all).for_each(|(at, neighbor)| view.set(at, Some(neighbor)));
        assert_eq!(view.neighbors(), all);
        view.set(11, None);
        assert_eq!(view.neighbors().len(), 3);
    }

    #[test]
    fn no_reader_sees_half_of_a_neighbour() {
        let (view, is_over) = (NeighborView::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000_u32 {
                    view.set(5, Some(neighbor((round % 200) as u8 + 1, NeighborState::Known)));
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                for seen in view.neighbors() {
                    assert_eq!(seen, neighbor(seen.network.0 as u8, NeighborState::Known));
                }
            }
        });
    }
}

//! Answers over UDP of more datagrams than the function had slots for: they go on as slots come back.
//!
//! Each has a datagram in its turn. A client has few of them, so that one that asks for much keeps no other waiting; what is beyond that is cut
//! off, as a network may lose any datagram.

use std::collections::VecDeque;

use pinion_sdk::net::UdpPeer;
use pinion_sdk::{Slots, clock};

use crate::datagram::Answers;
use crate::protocol::Settings;
use crate::store::Store;

/// Most answers under way.
const ANSWERS_MAX: usize = 64;
/// Most of them to one address.
const ANSWERS_OF_PEER_MAX: usize = 4;
/// Most datagrams that are sent at once, of the 128 that the function has slots for: connections need some, too.
const DATAGRAMS_MAX: usize = 32;
/// When to look again for slots that have come back.
const PAUSE_NS: u64 = 50_000;

/// The answers under way.
#[derive(Default)]
pub(crate) struct Pending {
    answers: VecDeque<(UdpPeer, Answers)>,
    next_ns: Option<u64>,
}

impl Pending {
    /// Sends the rest of an answer, or keeps it for later.
    pub(crate) fn go_on(
        &mut self,
        peer: UdpPeer,
        mut answers: Answers,
        store: &mut Store,
        settings: &Settings,
        slots: Slots<'_>,
    ) {
        // Behind those that wait already.
        let most = if self.answers.is_empty() { DATAGRAMS_MAX } else { 0 };
        for _ in 0..most {
            match peer.send_with(slots, |bytes| answers.next(store, settings, bytes)) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => break,
            }
        }
        if answers.is_done() {
            return;
        }
        let of_peer = self.answers.iter().filter(|(other, _)| other.address().ip() == peer.address().ip());
        if of_peer.count() < ANSWERS_OF_PEER_MAX && self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((peer, answers));
            self.next_ns.get_or_insert_with(|| clock::now_ns() + PAUSE_NS);
        }
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Sends a datagram of each answer in turn, as long as there are slots.
    pub(crate) fn expire(&mut self, store: &mut Store, settings: &Settings, slots: Slots<'_>) {
        for _ in 0..DATAGRAMS_MAX {
            let Some((peer, mut answers)) = self.answers.pop_front() else { break };
            match peer.send_with(slots, |bytes| answers.next(store, settings, bytes)) {
                Ok(true) => self.answers.push_back((peer, answers)),
                Ok(false) => {}
                Err(_) => {
                    self.answers.push_front((peer, answers));
                    break;
                }
            }
        }
        self.next_ns = (!self.answers.is_empty()).then(|| clock::now_ns() + PAUSE_NS);
    }
}

//! What each flow has taken: in all, and since the last report.

use core::cmp::Reverse;

use pinion_sdk::headers::{FlowKey, Headers, Pair};
use pinion_sdk::lru::Lru;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Since it was first seen.
    pub total: Amount,
    /// In the interval of that number, which is the last in which it was seen.
    pub recent: Amount,
    interval: u64,
    /// When its first packet came.
    pub first_ns: u64,
    /// When its last one did.
    pub last_ns: u64,
}

/// Flows, as many as there is room for: if there is none, the one unseen for longest is forgotten. Takes all memory when it
/// is made, and constant time for a packet.
#[derive(Debug)]
pub struct Flows {
    table: Lru<FlowKey, Usage>,
    interval: u64,
    /// Of all that was seen in this interval, whatever it was.
    pub recent: Amount,
    /// Flows that were forgotten.
    pub forgotten: u64,
}

impl Flows {
    /// None as yet, and room for so many.
    #[must_use]
    pub fn with_capacity(flows: usize) -> Self {
        Self { table: Lru::with_capacity(flows), interval: 0, recent: Amount::default(), forgotten: 0 }
    }

    /// Draws the key by which flows are found.
    pub fn rekey(&mut self) {
        self.table.rekey();
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Counts a frame.
    #[inline]
    pub fn see(&mut self, frame: &[u8], now_ns: u64) {
        self.recent.add(frame.len());
        // What is not IP is of no flow.
        let Ok(headers) = Headers::of(frame) else { return };
        let key = key(&headers);
        let id = match self.table.find(&key) {
            Some(id) => id,
            None => {
                let (none, interval) = (Amount::default(), self.interval);
                self.forget_one_if_full();
                let usage = Usage { total: none, recent: none, interval, first_ns: now_ns, last_ns: now_ns };
                let Some(id) = self.table.insert(key, usage, 0, now_ns) else { return };
                id
            }
        };
        let interval = self.interval;
        let usage = self.table.value_mut(id);
        if usage.interval != interval {
            (usage.interval, usage.recent) = (interval, Amount::default());
        }
        usage.total.add(frame.len());
        usage.recent.add(frame.len());
        usage.last_ns = now_ns;
        self.table.touch(id, 0, now_ns);
    }

    /// Ends the interval: those that have taken most bytes in it, at most `count`, with the greatest first. Looks at each flow once.
    pub fn top(&mut self, count: usize) -> Vec<(FlowKey, Usage)> {
        let mut top: Vec<(FlowKey, Usage)> = Vec::with_capacity(count + 1);
        for (key, usage) in self.table.iter(0).filter(|(_, usage)| usage.interval == self.interval) {
            let rank = |usage: &Usage| Reverse((usage.recent.bytes, usage.recent.packets));
            let at = top.partition_point(|(_, other)| rank(other) <= rank(usage));
            if at < count {
                top.insert(at, (*key, *usage));
                top.truncate(count);
            }
        }
        self.interval += 1;
        self.recent = Amount::default();
        top
    }

    fn forget_one_if_full(&mut self) {
        if self.table.len() == self.table.capacity()
            && let Some((oldest, _)) = self.table.oldest(0)
        {
            self.table.remove(oldest);
            self.forgotten += 1;
        }
    }
}

/// The flow of a packet; what has no ports, later fragments among them, is of one for its addresses and protocol.
fn key(headers: &Headers) -> FlowKey {
    headers.flow().unwrap_or(FlowKey {
        addresses: headers.addresses,
        ports: Pair { source: 0, destination: 0 },
        protocol: headers.protocol,
    })
}

//! Traffic of each flow: in total, and since the last report.

use core::cmp::Reverse;

use pinion_sdk::headers::{FlowKey, Headers};
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

/// Counts of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Since it was first seen.
    pub total: Amount,
    /// In the last interval in which the flow was seen, which has this number.
    pub recent: Amount,
    interval: u64,
    /// When its first packet came, in nanoseconds.
    pub first_ns: u64,
    /// When its last packet came, in nanoseconds.
    pub last_ns: u64,
}

/// The flow table. If it is full, the flow unseen for longest is forgotten. It allocates all memory at the start, and
/// takes constant time per packet.
#[derive(Debug)]
pub struct Flows {
    table: Lru<FlowKey, Usage>,
    interval: u64,
    /// All frames of this interval, of any kind.
    pub recent: Amount,
    /// Number of flows that were forgotten.
    pub forgotten: u64,
}

impl Flows {
    /// Makes an empty table with room for so many flows.
    #[must_use]
    pub fn with_capacity(flows: usize) -> Self {
        Self { table: Lru::with_capacity(flows), interval: 0, recent: Amount::default(), forgotten: 0 }
    }

    /// Draws the hash key.
    pub fn rekey(&mut self) {
        self.table.rekey();
    }

    /// Returns the number of remembered flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Counts a frame.
    #[inline]
    pub fn see(&mut self, frame: &[u8], now_ns: u64) {
        self.recent.add(frame.len());
        // A frame that is not IP belongs to no flow.
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

    /// Ends the interval. Returns the flows with the most bytes in it, at most `count`, the greatest first. Looks at
    /// each flow once.
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

/// Returns the flow of a packet. Packets without ports, such as later fragments, belong to one flow for their addresses
/// and protocol.
fn key(headers: &Headers) -> FlowKey {
    headers.flow().unwrap_or(headers.without_ports())
}

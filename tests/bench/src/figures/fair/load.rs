//! A port that offers more than a node can process: frames of several flows in turn, as many as the gateway accepts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::{BufferPool, LinkState, Port, PortCounters, PortFacts};
use pinion_mma::buffer::{Buffer, Frame};

use crate::clients::checksum::internet_checksum;

/// Its name in rules.
pub(super) const PORT: &str = "load";
const MAC: [u8; 6] = [0x02, 0x70, 0x69, 0x6e, 0x04, 0x01];
const SENDERS_MAC: [u8; 6] = [0x02, 0x70, 0x69, 0x6e, 0x04, 0x02];
const MTU: u16 = 1500;
/// Buffers that are kept ready for further frames.
const SPARE_MAX: usize = 128;
const IP: usize = 14;
const UDP: usize = IP + 20;

/// One sender's frames, all alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The last two bytes of its address, 10.78.x.x.
    pub(super) source: u16,
    pub(super) destination_port: u16,
    pub(super) frame_bytes: usize,
}

impl Flow {
    fn frame(self) -> Vec<u8> {
        let mut frame = vec![0; self.frame_bytes];
        frame[..6].copy_from_slice(&MAC);
        frame[6..12].copy_from_slice(&SENDERS_MAC);
        frame[12..14].copy_from_slice(&[0x08, 0]);
        frame[IP..IP + 2].copy_from_slice(&[0x45, 0]);
        frame[IP + 2..IP + 4].copy_from_slice(&((self.frame_bytes - IP) as u16).to_be_bytes());
        frame[IP + 8..IP + 10].copy_from_slice(&[64, 17]);
        frame[IP + 12..IP + 14].copy_from_slice(&[10, 78]);
        frame[IP + 14..IP + 16].copy_from_slice(&self.source.to_be_bytes());
        frame[IP + 16..UDP].copy_from_slice(&[10, 77, 0, 2]);
        let checksum = internet_checksum(&frame[IP..UDP]);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        // Without a UDP checksum, as IPv4 allows.
        for (place, field) in [9, self.destination_port, (self.frame_bytes - UDP) as u16].into_iter().enumerate() {
            frame[UDP + 2 * place..][..2].copy_from_slice(&field.to_be_bytes());
        }
        frame
    }
}

/// How many frames are still to come: the figure sets the number, and the port counts down.
#[derive(Clone, Debug, Default)]
pub(super) struct Tap(Arc<AtomicU64>);

impl Tap {
    /// Lets so many frames come.
    pub(super) fn open(&self, frames: u64) {
        self.0.store(frames, Ordering::Relaxed);
    }
}

/// The port. See the module's documentation.
pub(super) struct Load {
    pool: HeapPool,
    spare: Vec<Buffer>,
    frames: Vec<Vec<u8>>,
    next: usize,
    tap: Tap,
    counters: Arc<PortCounters>,
}

impl Load {
    pub(super) fn new(flows: &[Flow], tap: Tap, pool: HeapPool) -> Self {
        let frames = flows.iter().map(|flow| flow.frame()).collect();
        Self { pool, spare: Vec::with_capacity(2 * SPARE_MAX), frames, next: 0, tap, counters: Arc::default() }
    }
}

impl Port for Load {
    fn name(&self) -> &str {
        PORT
    }

    fn device(&self) -> &str {
        PORT
    }

    fn facts(&self) -> PortFacts {
        PortFacts { mac: MAC, mtu: MTU, link: LinkState::Up, missed: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let left = self.tap.0.load(Ordering::Relaxed);
        let wanted = left.min(max as u64) as usize;
        if self.spare.len() < wanted {
            self.pool.take(&mut self.spare, max);
        }
        let count = wanted.min(self.spare.len());
        for mut buffer in self.spare.drain(self.spare.len() - count..) {
            let frame = &self.frames[self.next];
            self.next = (self.next + 1) % self.frames.len();
            buffer.bytes_mut(frame.len() as u32).copy_from_slice(frame);
            frames.push(Frame::new(buffer, frame.len() as u32));
        }
        if count > 0 {
            // If the figure has set another number meanwhile, that one remains.
            let _ = self.tap.0.compare_exchange(left, left - count as u64, Ordering::Relaxed, Ordering::Relaxed);
            self.counters.received.frames.add(count as u64);
        }
        count
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let count = frames.len();
        self.counters.sent.frames.add(count as u64);
        self.spare.extend(frames.drain(..).map(Frame::into_buffer));
        if self.spare.len() > SPARE_MAX {
            pool.give(&mut self.spare);
        }
        count
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.pool.give(&mut self.spare);
    }
}

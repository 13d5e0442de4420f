//! A port without a device: another thread of the process holds its far end.
//!
//! ```text
//!   MemoryPeer::send    --[queue]--> MemoryPort::receive
//!   MemoryPeer::receive <--[queue]-- MemoryPort::transmit
//! ```
//!
//! For tests, simulation and machines without DPDK. Frames cross the queues as vectors, so this port allocates per
//! frame. No other port does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use pinion_mma::buffer::{Buffer, Frame};

use super::{BufferPool, FRAME_OVERHEAD, LinkState, Port, PortCounters, PortFacts, Promiscuous, Unfit, unfit_for};

/// The settings of a [`MemoryPort`].
#[derive(Clone, Debug)]
pub struct MemoryPortConfig {
    /// The port's name.
    pub name: String,
    /// The address of the port's station.
    pub mac: [u8; 6],
    /// The longest payload of a frame in bytes.
    pub mtu: u16,
    /// Whether frames for other stations are taken in.
    pub promiscuous: Promiscuous,
    /// Frames that each direction can queue.
    pub queue_frames: usize,
}

impl MemoryPortConfig {
    /// Returns the settings of a port with an MTU of 1500, queues of 1,024 frames, and an address derived from the
    /// name's length and letters.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let sum = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let [a, b, c, d] = sum.to_be_bytes();
        let mac = [0x02, name.len() as u8, a, b, c, d];
        Self { name: name.to_owned(), mac, mtu: 1500, promiscuous: Promiscuous::No, queue_frames: 1024 }
    }
}

struct Wire {
    to_port: ArrayQueue<Vec<u8>>,
    from_port: ArrayQueue<Vec<u8>>,
    up: AtomicBool,
}

/// The gateway's end.
pub struct MemoryPort {
    config: MemoryPortConfig,
    wire: Arc<Wire>,
    pool: Box<dyn BufferPool>,
    spare: Vec<Buffer>,
    counters: Arc<PortCounters>,
}

/// The far end. Any thread may use it.
#[derive(Clone)]
pub struct MemoryPeer {
    wire: Arc<Wire>,
}

/// The port's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory port's receive queue is full: let the gateway poll it")]
pub struct QueueFull;

impl MemoryPort {
    /// Makes a port that receives into buffers of `pool`, and its far end.
    ///
    /// # Panics
    /// If the configuration has queues without room.
    #[must_use]
    pub fn pair(config: MemoryPortConfig, pool: impl BufferPool + 'static) -> (Self, MemoryPeer) {
        let wire = Arc::new(Wire {
            to_port: ArrayQueue::new(config.queue_frames),
            from_port: ArrayQueue::new(config.queue_frames),
            up: AtomicBool::new(true),
        });
        let peer = MemoryPeer { wire: Arc::clone(&wire) };
        (Self { config, wire, pool: Box::new(pool), spare: Vec::new(), counters: Arc::default() }, peer)
    }

    fn unfit(&self, frame: &Frame) -> Option<Unfit> {
        unfit_for(frame.len(), u32::from(self.config.mtu) + FRAME_OVERHEAD)
    }
}

impl MemoryPeer {
    /// Queues a frame for the port to receive.
    ///
    /// If the queue is full because the port has not received yet.
    /// If the port has not received as many frames as its queue holds.
    pub fn send(&self, frame: &[u8]) -> Result<(), QueueFull> {
        self.wire.to_port.push(frame.to_vec()).map_err(|_| QueueFull)
    }

    /// Takes the oldest frame that the port has transmitted, if any.
    #[must_use]
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.wire.from_port.pop()
    }

    /// Makes the port report this link state. Frames still pass.
    pub fn set_link(&self, link: LinkState) {
        self.wire.up.store(link == LinkState::Up, Ordering::Relaxed);
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn device(&self) -> &str {
        "memory"
    }

    fn facts(&self) -> PortFacts {
        let link = if self.wire.up.load(Ordering::Relaxed) { LinkState::Up } else { LinkState::Down };
        PortFacts { mac: self.config.mac, mtu: self.config.mtu, link, missed: 0 }
    }

    fn promiscuous(&self) -> Promiscuous {
        self.config.promiscuous
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let wanted = max.min(self.wire.to_port.len());
        let missing = wanted.saturating_sub(self.spare.len());
        self.pool.take(&mut self.spare, missing);
        let before = frames.len();
        for _ in 0..wanted {
            let Some(mut buffer) = self.spare.pop() else { break };
            let Some(bytes) = self.wire.to_port.pop() else {
                self.spare.push(buffer);
                break;
            };
            let len = bytes.len().try_into().unwrap_or(u32::MAX);
            if len == 0 || len > buffer.capacity() {
                self.counters.received.dropped_malformed.add(1);
                self.spare.push(buffer);
                continue;
            }
            buffer.bytes_mut(len).copy_from_slice(&bytes);
            self.counters.received.frames.add(1);
            self.counters.received.bytes.add(len.into());
            frames.push(Frame::new(buffer, len));
        }
        frames.len() - before
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let sent = &self.counters.sent;
        let before = sent.frames.value();
        for frame in frames.iter() {
            if let Some(why) = self.unfit(frame) {
                sent.count_unfit(why);
            } else if self.wire.from_port.push(frame.bytes().to_vec()).is_err() {
                sent.dropped_full.add(1);
            } else {
                sent.frames.add(1);
                sent.bytes.add(frame.len().into());
            }
        }
        let mut buffers = frames.drain(..).map(Frame::into_buffer).collect();
        pool.give(&mut buffers);
        (sent.frames.value() - before) as usize
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.pool.give(&mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::heap::HeapPool;

    fn port(queue_frames: usize, buffers: usize) -> (MemoryPort, MemoryPeer, HeapPool) {
        let pool = HeapPool::new(buffers, 2048);
        let config = MemoryPortConfig { queue_frames, ..MemoryPortConfig::named("west") };
        let (port, peer) = MemoryPort::pair(config, pool.clone());
        (port, peer, pool)
    }

    fn give_back(frames: &mut Vec<Frame>, pool: &mut HeapPool) {
        let mut buffers = frames.drain(..).map(Frame::into_buffer).collect();
        pool.give(&mut buffers);
    }

    #[test]
    fn frames_arrive_in_order_and_whole() {
        let (mut port, peer, mut pool) = port(8, 16);
        for byte in 0..5_u8 {
            peer.send(&[byte; 60]).unwrap();
        }
        let mut frames = Vec::new();
        assert_eq!(port.receive(&mut frames, 3), 3);
        assert_eq!(port.receive(&mut frames, 3), 2);
        for (byte, frame) in (0..).zip(&frames) {
            assert_eq!(frame.bytes(), [byte; 60]);
        }
        assert_eq!(port.counters().received.frames.value(), 5);
        assert_eq!(port.counters().received.bytes.value(), 300);
        give_back(&mut frames, &mut pool);
    }

    #[test]
    fn what_was_received_can_be_transmitted_and_its_buffer_returns_to_the_pool() {
        let (mut port, peer, mut pool) = port(8, 4);
        peer.send(b"a frame of some length").unwrap();
        let mut frames = Vec::new();
        port.receive(&mut frames, 8);
        assert_eq!(port.transmit(&mut frames, &mut pool), 1);
        assert!(frames.is_empty());
        assert_eq!(peer.receive().unwrap(), b"a frame of some length");
        drop(port);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn frames_wait_while_the_pool_is_empty() {
        let (mut port, peer, mut pool) = port(8, 2);
        for byte in 0..3_u8 {
            peer.send(&[byte; 60]).unwrap();
        }
        let mut frames = Vec::new();
        assert_eq!(port.receive(&mut frames, 8), 2);
        assert_eq!(port.receive(&mut frames, 8), 0);
        give_back(&mut frames, &mut pool);
        assert_eq!(port.receive(&mut frames, 8), 1);
        assert_eq!(frames[0].bytes(), [2; 60]);
        give_back(&mut frames, &mut pool);
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_keeps_no_buffer() {
        let (mut port, peer, mut pool) = port(2, 8);
        let mut buffers = Vec::new();
        pool.take(&mut buffers, 3);
        let mut frames = buffers.into_iter().map(|buffer| Frame::new(buffer, 60)).collect();
        assert_eq!(port.transmit(&mut frames, &mut pool), 2);
        assert_eq!(port.counters().sent.dropped_full.value(), 1);
        assert_eq!(pool.available(), 8);
        peer.send(&[0; 60]).unwrap();
        peer.send(&[0; 60]).unwrap();
        assert_eq!(peer.send(&[0; 60]), Err(QueueFull));
    }

    #[test]
    fn frames_that_cannot_be_carried_are_dropped_and_counted() {
        let (mut port, peer, mut pool) = port(8, 8);
        let mut buffers = Vec::new();
        pool.take(&mut buffers, 8);
        let lengths = [0, 1, 13, 14, 60, 1518, 1519, 2048];
        let mut frames = buffers.into_iter().zip(lengths).map(|(buffer, len)| Frame::new(buffer, len)).collect();
        assert_eq!(port.transmit(&mut frames, &mut pool), 3);
        let sent = &port.counters().sent;
        assert_eq!((sent.dropped_runt.value(), sent.dropped_unfit.value(), sent.dropped_full.value()), (3, 2, 0));
        let carried: Vec<usize> = std::iter::from_fn(|| peer.receive()).map(|frame| frame.len()).collect();
        assert_eq!(carried, [14, 60, 1518]);
        assert_eq!(pool.available(), 8);
        peer.send(&[0; 3000]).unwrap();
        assert_eq!(port.receive(&mut frames, 8), 0);
        assert_eq!(port.counters().received.dropped_malformed.value(), 1);
    }

    #[test]
    fn frames_cross_threads() {
        let (mut port, peer, mut pool) = port(16, 32);
        let far = std::thread::spawn(move || {
            let (mut sent, mut seen) = (0_u32, 0_u32);
            while seen < 10_000 {
                // No more frames are under way than the queues hold, so that none may be dropped.
                if sent < 10_000 && sent - seen < 16 && peer.send(&[sent.to_be_bytes(); 4].concat()).is_ok() {
                    sent += 1;
                }
                match peer.receive() {
                    Some(frame) => {
                        assert_eq!(frame, [seen.to_be_bytes(); 4].concat());
                        seen += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        let mut frames = Vec::new();
        while !far.is_finished() {
            if port.receive(&mut frames, 8) == 0 {
                std::thread::yield_now();
            }
            port.transmit(&mut frames, &mut pool);
        }
        far.join().unwrap();
    }

    #[test]
    fn the_far_end_decides_about_the_link() {
        let (port, peer, _) = port(2, 2);
        assert_eq!(port.facts().link, LinkState::Up);
        peer.set_link(LinkState::Down);
        assert_eq!(port.facts().link, LinkState::Down);
    }
}

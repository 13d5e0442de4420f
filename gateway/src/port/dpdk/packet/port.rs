//! A port on packet sockets.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{SendFlags, send};

use super::ring::{Received, Ring};
use super::settings::Settings;
use super::sockets::{self, Sockets};
use crate::checksums::{Completion, complete_checksums};
use crate::port::dpdk::buffers::sizes::BURST;
use crate::port::dpdk::device::lengths::Lengths;
use crate::port::dpdk::device::offers::{self, Outcome};
use crate::port::dpdk::error::DpdkError;
use crate::port::dpdk::kernel::interface::Interface;
use crate::port::dpdk::kernel::namespace::{Namespace, has_given_up_rights};
use crate::port::dpdk::kernel::ring_overflows::RingOverflows;
use crate::port::dpdk::port_config::PortConfig;
use crate::port::dpdk::remake::MadeSockets;
use crate::port::{
    Alarm, BufferPool, LinkState, Port, PortCounters, PortFacts, Promiscuous, drop_all, give_all, unfit_for,
};

/// How often the kernel is asked to transmit what it has left in the ring for want of memory.
const KICKS_MAX: usize = 4;
/// A tag's place in a frame: behind the two addresses.
const TAG_AT: usize = 12;
const TAG_LEN: usize = 4;

/// See the module.
pub(crate) struct PacketPort {
    config: PortConfig,
    settings: Settings,
    interface: Interface,
    /// Dropped before their sockets.
    rings: Vec<Ring>,
    sockets: Vec<OwnedFd>,
    overflows: RingOverflows,
    lengths: Lengths,
    mac: [u8; 6],
    /// The link as it was last known. Nothing is sent while it is down.
    link: LinkState,
    /// The queue that is polled first. It changes with each call, so that no queue is always last.
    first_queue: usize,
    pool: Box<dyn BufferPool>,
    /// Empty buffers for the next frames.
    spare: Vec<Buffer>,
    /// Buffers on their way back to a pool; empty between calls.
    spent: Vec<Buffer>,
    counters: Arc<PortCounters>,
}

/// The kernel can transmit nothing by this socket.
struct LinkIsDown;

impl PacketPort {
    /// Opens the port, whose link may be down.
    pub(crate) fn open(config: &PortConfig, pool: impl BufferPool + 'static) -> Result<Self, DpdkError> {
        let settings = Settings::of(config)?;
        let Sockets { interface, queues } = open_sockets(config, &settings)?;
        let rings = mapped(&queues, &settings)
            .map_err(|error| Settings::error(config, &settings.interface, ("mapping a ring", error)))?;
        let mut port = Self::waiting_on(interface, config, settings, pool);
        (port.rings, port.sockets, port.link) = (rings, queues, LinkState::Up);
        Ok(port)
    }

    /// Makes a port whose interface has gone: it works when there is one of that name. Until then it has this address.
    pub(crate) fn waiting(
        config: &PortConfig,
        mac: [u8; 6],
        counters: &Arc<PortCounters>,
        pool: impl BufferPool + 'static,
    ) -> Result<Self, DpdkError> {
        let settings = Settings::of(config)?;
        // No interface has this number.
        let nowhere = Interface::of_index(0)
            .map_err(|error| Settings::error(config, &settings.interface, ("asking for interfaces", error)))?;
        let mut port = Self::waiting_on(nowhere, config, settings, pool);
        (port.mac, port.counters) = (mac, Arc::clone(counters));
        Ok(port)
    }

    fn waiting_on(
        interface: Interface,
        config: &PortConfig,
        settings: Settings,
        pool: impl BufferPool + 'static,
    ) -> Self {
        Self {
            lengths: Lengths::of_packet_socket(settings.mtu),
            mac: interface.mac().unwrap_or_default(),
            config: config.clone(),
            settings,
            interface,
            rings: Vec::new(),
            sockets: Vec::new(),
            overflows: RingOverflows::default(),
            link: LinkState::Gone,
            first_queue: 0,
            pool: Box::new(pool),
            spare: Vec::with_capacity(BURST),
            spent: Vec::with_capacity(BURST),
            counters: Arc::default(),
        }
    }

    pub(crate) fn interface(&self) -> &Interface {
        &self.interface
    }

    fn link(&self) -> LinkState {
        match self.interface.link() {
            LinkState::Unknown if self.can_be_remade() => LinkState::Gone,
            LinkState::Unknown => LinkState::Lost,
            link => link,
        }
    }

    /// Returns whether someone has the rights to make new sockets.
    fn can_be_remade(&self) -> bool {
        self.config.maker.is_some() || !has_given_up_rights()
    }

    /// Continues with new sockets, if there are some by now.
    fn replace_sockets(&mut self) {
        let made = match &self.config.maker {
            Some(maker) => maker.sockets().map(|MadeSockets { interface, control, queues }| Sockets {
                interface: Interface::by(control, interface),
                queues,
            }),
            None => open_sockets(&self.config, &self.settings).ok(),
        };
        let Some(Sockets { interface, queues }) = made else { return };
        if queues.len() != usize::from(self.settings.queues) || interface.link() == LinkState::Unknown {
            return;
        }
        let Ok(rings) = mapped(&queues, &self.settings) else { return };
        self.overflows.count(&self.sockets);
        // The old rings go before the old sockets.
        self.rings = rings;
        self.sockets = queues;
        self.interface = interface;
        // They may have noted that the link was down while they were made.
        self.sockets.iter().for_each(|socket| _ = socket_error(socket));
    }

    fn receive_from(&mut self, queue: usize, frames: &mut Vec<Frame>, max: usize) -> usize {
        let Self { rings, pool, spare, counters, .. } = self;
        let (ring, received) = (&mut rings[queue], &counters.received);
        let (mut count, mut bytes) = (0, 0);
        while count < max
            && let Some(found) = ring.next()
        {
            if spare.is_empty() && pool.take(spare, BURST) == 0 {
                break;
            }
            let Some(buffer) = spare.pop() else { break };
            match taken_over(&found, buffer) {
                Ok(mut frame) => {
                    if found.is_partial && complete_checksums(frame.bytes_mut()) == Completion::Completed {
                        received.completed_checksums.add(1);
                    }
                    bytes += u64::from(frame.len());
                    count += 1;
                    frames.push(frame);
                }
                Err(buffer) => {
                    spare.push(buffer);
                    received.dropped_malformed.add(1);
                }
            }
            ring.release();
        }
        received.frames.add(count as u64);
        received.bytes.add(bytes);
        count
    }

    /// Offers frames to the kernel. Returns how many it took.
    fn send(&mut self, frames: &[Frame]) -> usize {
        let (ring, socket) = (&mut self.rings[0], &self.sockets[0]);
        let (mut bytes, mut undelivered, mut is_down) = (0, 0, false);
        let take = |range: Range<usize>| {
            let offered = &frames[range];
            if is_down {
                undelivered += offered.len() as u64;
                return offered.len();
            }
            let put = offered.iter().take_while(|frame| ring.put(frame.bytes())).count();
            let back = match kick(ring, socket) {
                Ok(()) => 0,
                Err(LinkIsDown) => {
                    is_down = true;
                    ring.take_back(put)
                }
            };
            undelivered += back as u64;
            bytes += offered[..put - back].iter().map(|frame| u64::from(frame.len())).sum::<u64>();
            put
        };
        let Outcome { sent, full, refused } = offers::offer(frames.len(), take, |_| ());
        if is_down {
            self.link = LinkState::Down;
        }
        let counters = &self.counters.sent;
        counters.frames.add(sent - undelivered);
        counters.bytes.add(bytes);
        counters.dropped_link_down.add(undelivered);
        counters.dropped_full.add(full + refused);
        (sent - undelivered) as usize
    }

    /// Removes frames that cannot be sent.
    #[inline(never)]
    fn make_fit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) {
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            match unfit_for(frame.len(), self.lengths.max_of(frame.bytes())) {
                None => at += 1,
                Some(why) => {
                    self.counters.sent.count_unfit(why);
                    self.spent.push(frames.remove(at).into_buffer());
                    if self.spent.len() == BURST {
                        pool.give(&mut self.spent);
                    }
                }
            }
        }
        pool.give(&mut self.spent);
    }
}

/// Makes the sockets in the port's namespace.
fn open_sockets(config: &PortConfig, settings: &Settings) -> Result<Sockets, DpdkError> {
    let namespace = Namespace::open(config.network_namespace.as_deref())?;
    let opened = namespace.run(|| sockets::open(settings))?;
    opened.map_err(|error| Settings::error(config, &settings.interface, error))
}

fn mapped(sockets: &[OwnedFd], settings: &Settings) -> io::Result<Vec<Ring>> {
    sockets.iter().map(|socket| Ring::map(socket, settings.ring)).collect()
}

/// Copies a received frame into a buffer, and puts its tag back. Returns the buffer if the frame is cut or does not fit.
#[inline]
fn taken_over(found: &Received<'_>, mut buffer: Buffer) -> Result<Frame, Buffer> {
    let Received { bytes, tag, is_cut, .. } = *found;
    let len = bytes.len() + if tag.is_some() { TAG_LEN } else { 0 };
    if is_cut || bytes.is_empty() || len > buffer.capacity() as usize || (tag.is_some() && bytes.len() < TAG_AT) {
        return Err(buffer);
    }
    let space = buffer.bytes_mut(len as u32);
    match tag {
        None => space.copy_from_slice(bytes),
        Some(tag) => {
            space[..TAG_AT].copy_from_slice(&bytes[..TAG_AT]);
            space[TAG_AT..TAG_AT + TAG_LEN].copy_from_slice(&tag);
            space[TAG_AT + TAG_LEN..].copy_from_slice(&bytes[TAG_AT..]);
        }
    }
    Ok(Frame::new(buffer, len as u32))
}

/// Asks the kernel to transmit what is in the ring.
fn kick(ring: &Ring, socket: &OwnedFd) -> Result<(), LinkIsDown> {
    let mut failures = 0;
    for _ in 0..KICKS_MAX {
        match send(socket, &[], SendFlags::DONTWAIT) {
            // An error that was noted when the link went down is reported once, even if it is up again.
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) if failures == 0 => failures = 1,
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => return Err(LinkIsDown),
            _ if ring.has_unsent() => {}
            _ => break,
        }
    }
    Ok(())
}

impl Port for PacketPort {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn device(&self) -> &str {
        &self.config.device
    }

    fn facts(&self) -> PortFacts {
        PortFacts {
            mac: self.interface.mac().unwrap_or(self.mac),
            mtu: self.interface.mtu().unwrap_or(self.settings.mtu),
            link: self.link(),
            missed: self.overflows.count(&self.sockets),
        }
    }

    fn tend(&mut self) {
        if self.link() == LinkState::Gone {
            self.replace_sockets();
        }
        self.link = self.link();
        if self.link.is_down() {
            // What the kernel has left must not be sent late.
            let frames = self.settings.ring.frames() as usize;
            let back = self.rings.first_mut().map_or(0, |ring| ring.take_back(frames));
            self.counters.sent.dropped_link_down.add(back as u64);
        }
        self.mac = self.interface.mac().unwrap_or(self.mac);
        let mtu_max = self.settings.mtu;
        self.lengths = Lengths::of_packet_socket(self.interface.mtu().map_or(mtu_max, |mtu| mtu.min(mtu_max)));
    }

    fn promiscuous(&self) -> Promiscuous {
        self.settings.promiscuous
    }

    /// Makes no system call.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let (queues, mut received) = (self.rings.len(), 0);
        for turn in 0..queues {
            received += self.receive_from((self.first_queue + turn) % queues, frames, max - received);
            if received == max {
                break;
            }
        }
        self.first_queue = (self.first_queue + 1) % queues.max(1);
        if received > 0 && self.link == LinkState::Down {
            self.link = LinkState::Up;
        }
        received
    }

    /// One system call a burst.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        if self.link.is_down() {
            drop_all(frames, pool, &mut self.spent, &self.counters.sent.dropped_link_down);
            return 0;
        }
        if !frames.iter().all(|frame| self.lengths.is_any_fit(frame.len())) {
            self.make_fit(frames, pool);
        }
        let sent = frames.chunks(BURST).map(|burst| self.send(burst)).sum();
        give_all(frames, pool, &mut self.spent);
        sent
    }

    fn arm(&mut self) -> Alarm {
        // An interface that went down leaves a pending error, which would end every sleep until it is read.
        self.sockets.iter().for_each(|socket| _ = socket_error(socket));
        Alarm::Set
    }

    fn descriptors(&self) -> &[OwnedFd] {
        &self.sockets
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for PacketPort {
    fn drop(&mut self) {
        self.pool.give(&mut self.spare);
    }
}

//! A port on a DPDK device, with one or several queues each way.
#![allow(unsafe_code)] // Calls the device's driver.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_dpdk_sys as sys;
use pinion_mma::buffer::{Buffer, Frame};

use super::buffers::pool::{DpdkPool, append, no_mbufs};
use super::buffers::sizes::BURST;
use super::device::alarms::{Alarms, OpenFiles};
use super::device::device_string::Device;
use super::device::ethernet::Ethernet;
use super::device::lengths::Lengths;
use super::device::offers::{self, Outcome};
use super::error::DpdkError;
use super::kernel::interface::{self, Interface, LinkDownReason};
use super::kernel::namespace::{Namespace, has_given_up_rights};
use super::kernel::ring_overflows::RingOverflows;
use super::kernel::send_room;
use super::kernel::signals::NoFreeSignals;
use super::kernel::vlan_tags::{self, Tags};
use super::log;
use super::port_config::PortConfig;
use super::tap::{self, TapWish};
use crate::checksums::{Completion, complete_partial_checksums};
use crate::port::{
    Alarm, BufferPool, LinkState, Port, PortCounters, PortFacts, Promiscuous, Unfit, drop_all, unfit_for,
};

/// The queue that all frames leave by, so that none overtakes another. Only one thread transmits.
const TRANSMIT_QUEUE: u16 = 0;

/// How often a deleted tap is looked for before it is made again, so that an operator can do so.
const LOOKS_BEFORE_REMAKING: u32 = 3;
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(10);

const _: () = {
    assert!(sys::PINION_IP_CHECKSUM_GOOD == pinion_abi::RX_IP_CHECKSUM_GOOD as u32);
    assert!(sys::PINION_IP_CHECKSUM_BAD == pinion_abi::RX_IP_CHECKSUM_BAD as u32);
    assert!(sys::PINION_L4_CHECKSUM_GOOD == pinion_abi::RX_L4_CHECKSUM_GOOD as u32);
    assert!(sys::PINION_L4_CHECKSUM_BAD == pinion_abi::RX_L4_CHECKSUM_BAD as u32);
};

/// A port on a device that DPDK drives. Dropping it stops the device and removes it from DPDK: a tap disappears.
pub(crate) struct DpdkPort {
    config: PortConfig,
    /// Dropped before the device, which is free for others only when its files are closed.
    alarms: Alarms,
    overflows: RingOverflows,
    /// While this is open, the interface that the device is attached to receives additional frames.
    _member: Option<OwnedFd>,
    ethernet: Ethernet,
    interface: Option<Interface>,
    /// The flags of its files, if it is a tap.
    tap_flags: Option<i16>,
    /// The address of the kernel's side when a tap was attached again. It may change later; the port's stays.
    tap_mac: Option<[u8; 6]>,
    lengths: Lengths,
    /// Received frames may lack their checksums, without a mark.
    lacks_checksums: bool,
    /// The link as it was last known. Nothing is sent while it is down.
    link: LinkState,
    /// How often it was looked for a deleted device.
    looks: u32,
    /// The queue that is polled first. It changes with each call, so that no queue is always last.
    first_queue: u16,
    burst: Burst,
    counters: Arc<PortCounters>,
    /// Dropped after the device, which returns its buffers when it is closed.
    pool: DpdkPool,
}

/// Space for the arguments of one call.
struct Burst {
    mbufs: Box<[*mut sys::rte_mbuf; BURST]>,
    unfit: Vec<Buffer>,
}

// SAFETY: holds pointers to mbufs only within a call.
unsafe impl Send for Burst {}

impl DpdkPort {
    /// Opens a device whose frames lie in buffers of `pool`, and waits for its link.
    ///
    /// # Errors
    /// An error whose message names the device and what to do.
    pub(crate) fn open(config: &PortConfig, pool: &DpdkPool) -> Result<Self, DpdkError> {
        let device = Device::parse(&config.device)?.with_queues(config.queues)?;
        let namespace = Namespace::open(config.network_namespace.as_deref())?;
        let (inside, pool) = (namespace.clone(), pool.clone());
        let _collector = log::Collector::start();
        let _signals = device.name().starts_with("net_tap").then(NoFreeSignals::take);
        let port = namespace.run(move || Self::open_inside(config, device, inside, pool))?;
        super::eal::keep_files_from_children();
        port
    }

    fn open_inside(
        config: &PortConfig,
        device: Device,
        namespace: Namespace,
        pool: DpdkPool,
    ) -> Result<Self, DpdkError> {
        if let Some(name) = device.underlying_interface().filter(|name| !interface::exists(name)) {
            return Err(DpdkError::MissingInterface { device: config.device.clone(), interface: name.to_owned() });
        }
        let before = OpenFiles::now();
        let ethernet = Ethernet::probe(device, namespace, config.queues)?;
        let interface = ethernet.launch(config, &pool)?;
        let mut files = before.appeared_since();
        files.retain(|file| !tap::is_idle(file));
        send_room::widen(&files);
        let alarms = Alarms::of(&ethernet, files);
        let sits_on = interface.as_ref().filter(|_| ethernet.device().underlying_interface().is_some());
        let member = sits_on.map(|interface| interface.widen(config.promiscuous)).transpose();
        let watch_error = |error| DpdkError::Watch { device: config.device.clone(), error };
        let lengths = Lengths::of(config.mtu, ethernet.device());
        if let Some(interface) = interface.as_ref().filter(|_| ethernet.device().attaches_program())
            && vlan_tags::keep(interface) == Tags::MayBeLost
        {
            tracing::warn!(
                port = config.name,
                device = config.device,
                "VLAN tags of received frames may be lost: on a virtual cable, turn off txvlan at its far end with ethtool"
            );
        }
        let is_tap = tap::name(ethernet.device()).is_some();
        let port = Self {
            config: config.clone(),
            tap_flags: alarms.descriptors().first().filter(|_| is_tap).and_then(tap::flags),
            tap_mac: None,
            alarms,
            overflows: RingOverflows::default(),
            _member: member.map_err(watch_error)?,
            // The driver's frames are a kernel's, whose own notes of a frame are lost on the way.
            lacks_checksums: ethernet.device().attaches_program(),
            ethernet,
            interface,
            lengths,
            link: LinkState::Up,
            looks: 0,
            first_queue: 0,
            burst: Burst { mbufs: no_mbufs(), unfit: Vec::with_capacity(BURST) },
            counters: Arc::default(),
            pool,
        };
        port.await_link(config.link_timeout)?;
        Ok(port)
    }

    fn await_link(&self, timeout: Duration) -> Result<(), DpdkError> {
        await_link(self.device(), timeout, || (self.link(), self.interface.as_ref()))
    }

    /// Returns the link as the kernel or the driver tells it now.
    fn link(&self) -> LinkState {
        let Some(interface) = &self.interface else { return self.ethernet.link() };
        match (interface.link(), self.tap_flags) {
            (LinkState::Unknown, Some(_)) if self.is_attached() => LinkState::Unknown,
            (LinkState::Unknown, Some(_)) if self.config.maker.is_some() || !has_given_up_rights() => LinkState::Gone,
            (LinkState::Unknown, _) => LinkState::Lost,
            (link, _) => link,
        }
    }

    /// Returns whether the files of a tap are attached to one.
    fn is_attached(&self) -> bool {
        self.alarms.descriptors().first().and_then(tap::flags).is_some()
    }

    /// Attaches the files of a deleted tap to one of the same name, which is made if there has been none for a while.
    fn remake(&mut self) {
        let (Some(flags), Some(interface)) = (self.tap_flags, &mut self.interface) else { return };
        let Some(name) = tap::name(self.ethernet.device()) else { return };
        self.looks += 1;
        if self.looks <= LOOKS_BEFORE_REMAKING && interface.index_of(name).is_none() {
            return;
        }
        let wish = TapWish { flags, mac: self.ethernet.mac() };
        let files = self.alarms.descriptors();
        match &self.config.maker {
            Some(maker) => maker.tap(&wish, interface.socket(), files),
            None => {
                let attached = tap::attach(name, &wish, interface, files);
                let _ = attached.and_then(|()| interface.set_mtu(self.config.mtu)).and_then(|()| interface.set_up());
            }
        }
    }

    /// Continues with the interface to which the files of a tap were attached again.
    fn follow_tap(&mut self) {
        if let (Some(interface), Some(name)) = (&mut self.interface, tap::name(self.ethernet.device())) {
            interface.follow(name);
        }
    }

    /// Offers at most [`BURST`] frames to the device and frees those that it does not take. Returns how many it took.
    /// The caller must forget all of them.
    fn send(&mut self, frames: &[Frame]) -> usize {
        let (id, mbufs) = (self.ethernet.id(), &mut self.burst.mbufs[..frames.len()]);
        // SAFETY: a `Frame` is a `pinion_frame`; `transmit` has checked that these are of the port's pool, so their
        // tokens are plain mbufs, which they give up, each with room for its length. There is room for as many
        // pointers.
        let bytes = unsafe { sys::pinion_tx_prepare(frames.as_ptr().cast(), mbufs.as_mut_ptr(), frames.len() as u16) };
        let mbufs = mbufs.as_mut_ptr();
        let take = |range: Range<usize>| {
            // SAFETY: `range` lies within the burst, and holds mbufs that are this function's: those that the device took, and those
            // that were freed, lie before it. The device is started, and `&mut self` keeps other threads away from its queue.
            unsafe { sys::pinion_tx_burst(id, TRANSMIT_QUEUE, mbufs.add(range.start), range.len() as u16).into() }
        };
        let mut lost_bytes = 0;
        let lose = |at: usize| {
            lost_bytes += u64::from(frames[at].len());
            // SAFETY: an mbuf of the burst that the device did not take, and that is not used again.
            unsafe { sys::pinion_free_burst(mbufs.add(at), 1) };
        };
        let Outcome { sent, full, refused } = offers::offer(frames.len(), take, lose);
        let counters = &self.counters.sent;
        counters.frames.add(sent);
        counters.bytes.add(u64::from(bytes) - lost_bytes);
        if full + refused > 0 {
            self.count_refused(full, refused);
        }
        sent as usize
    }

    /// Counts frames that the device did not take. A tap that was deleted takes none.
    #[cold]
    fn count_refused(&mut self, full: u64, refused: u64) {
        let sent = &self.counters.sent;
        if self.tap_flags.is_some() && !self.is_attached() {
            sent.dropped_link_down.add(full + refused);
            self.link = LinkState::Gone;
        } else {
            sent.dropped_full.add(full);
            sent.dropped_refused.add(refused);
        }
    }

    fn receive_from(&mut self, queue: u16, frames: &mut Vec<Frame>, max: usize) -> usize {
        let mut received = 0;
        let (id, mempool) = (self.ethernet.id(), self.pool.mempool().raw());
        let counters = &self.counters.received;
        while received < max {
            let wanted = (max - received).min(BURST);
            let mut burst = sys::pinion_burst { bytes: 0, rejected: 0 };
            // SAFETY: the device is started and has this queue, and `&mut self` keeps other threads away from it. It
            // gives up these mbufs, and the shim has checked that they are plain and of this pool.
            let count = unsafe {
                append(frames, wanted, |place, max| {
                    sys::pinion_rx_burst(id, queue, mempool, place, max, &raw mut burst)
                })
            };
            if self.lacks_checksums {
                let new = frames.iter_mut().rev().take(count);
                let completed = new.filter_map(|frame| match complete_partial_checksums(frame.bytes_mut()) {
                    Completion::Completed => Some(()),
                    Completion::Unchanged => None,
                });
                counters.completed_checksums.add(completed.count() as u64);
            }
            counters.frames.add(count as u64);
            counters.bytes.add(burst.bytes.into());
            counters.dropped_malformed.add(burst.rejected.into());
            received += count;
            if count + usize::from(burst.rejected) < wanted {
                break;
            }
        }
        received
    }

    /// Returns whether the frame can be sent as it is: neither too short nor too long, and in a buffer of the port's
    /// pool.
    #[inline]
    fn is_fit(&self, frame: &Frame) -> bool {
        self.lengths.is_any_fit(frame.len()) && self.pool.mempool().owns(frame.bytes())
    }

    /// Pads frames that are too short, and removes those that cannot be sent.
    #[inline(never)]
    fn make_fit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) {
        let mut at = 0;
        while let Some(frame) = frames.get_mut(at) {
            let bytes = frame.bytes();
            let length = unfit_for(frame.len(), self.lengths.max_of(bytes));
            let unfit = length.or_else(|| (!self.pool.mempool().owns(bytes)).then_some(Unfit::Other));
            let Some(why) = unfit else {
                self.lengths.pad(frame);
                at += 1;
                continue;
            };
            self.counters.sent.count_unfit(why);
            self.burst.unfit.push(frames.remove(at).into_buffer());
            if self.burst.unfit.len() == BURST {
                pool.give(&mut self.burst.unfit);
            }
        }
        pool.give(&mut self.burst.unfit);
    }
}

impl Port for DpdkPort {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn device(&self) -> &str {
        self.ethernet.device().text()
    }

    fn facts(&self) -> PortFacts {
        let interface = self.interface.as_ref();
        PortFacts {
            mac: self.ethernet.station(match self.tap_flags {
                Some(_) => self.tap_mac,
                None => interface.and_then(|interface| interface.mac().ok()),
            }),
            mtu: interface.and_then(|interface| interface.mtu().ok()).unwrap_or_else(|| self.ethernet.mtu()),
            // A tap that was attached again since is not used before the port has followed it.
            link: if self.link == LinkState::Gone { LinkState::Gone } else { self.link() },
            missed: self.ethernet.missed() + self.overflows.count(self.alarms.descriptors()),
        }
    }

    fn tend(&mut self) {
        let was_gone = self.link == LinkState::Gone;
        if was_gone && self.is_attached() {
            self.follow_tap();
        } else if self.link() == LinkState::Gone {
            self.remake();
        }
        self.link = self.link();
        if self.link != LinkState::Gone {
            self.looks = 0;
            if was_gone {
                self.tap_mac = self.interface.as_ref().and_then(|interface| interface.mac().ok());
            }
        }
        if let Some(mtu) = self.interface.as_ref().and_then(|interface| interface.mtu().ok()) {
            self.lengths = Lengths::of(mtu.min(self.config.mtu), self.ethernet.device());
        }
    }

    fn promiscuous(&self) -> Promiscuous {
        self.config.promiscuous
    }

    /// Allocates nothing, takes no lock and does not block. Receives at most `max` frames, in bursts of 64. Some
    /// drivers (`net_tap`, `net_af_xdp`) make a system call per frame or per burst. Some vectorised drivers receive
    /// nothing if `max` is below 32.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let (queues, mut received) = (self.ethernet.queues().end, 0);
        for turn in 0..queues {
            received += self.receive_from((self.first_queue + turn) % queues, frames, max - received);
            if received == max {
                break;
            }
        }
        self.first_queue = (self.first_queue + 1) % queues;
        if received > 0 && self.link == LinkState::Down {
            self.link = LinkState::Up;
        }
        received
    }

    /// Allocates nothing and takes no lock. Each burst of 64 is offered to the device a bounded number of times
    /// (`device/offers.rs`). Virtual devices make system calls.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        if self.link.is_down() {
            drop_all(frames, pool, &mut self.burst.unfit, &self.counters.sent.dropped_link_down);
            return 0;
        }
        if !frames.iter().all(|frame| self.is_fit(frame)) {
            self.make_fit(frames, pool);
        }
        let sent = frames.chunks(BURST).map(|burst| self.send(burst)).sum();
        frames.clear();
        sent
    }

    fn arm(&mut self) -> Alarm {
        self.alarms.arm(&self.ethernet)
    }

    /// A file of a deleted tap would end every sleep at once.
    fn descriptors(&self) -> &[OwnedFd] {
        if self.link == LinkState::Gone { &[] } else { self.alarms.descriptors() }
    }

    fn disarm(&mut self) {
        self.alarms.disarm(&self.ethernet);
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// Waits for a link. `look` returns its state, and the interface that the device is or has.
pub(super) fn await_link<'a>(
    device: &str,
    timeout: Duration,
    look: impl Fn() -> (LinkState, Option<&'a Interface>),
) -> Result<(), DpdkError> {
    let started = Instant::now();
    loop {
        let (link, interface) = look();
        if link == LinkState::Up {
            return Ok(());
        }
        if started.elapsed() >= timeout {
            let (device, waited_ms) = (device.to_owned(), timeout.as_millis());
            return Err(DpdkError::DoesNotComeUp { device, waited_ms, reason: link_obstacle(interface) });
        }
        std::thread::sleep(LINK_POLL_INTERVAL);
    }
}

fn link_obstacle(interface: Option<&Interface>) -> String {
    let Some(interface) = interface else { return "it reports no link; is its cable plugged in?".to_owned() };
    let name = interface.name().unwrap_or_default();
    match interface.obstacle() {
        Ok(Some(LinkDownReason::Down)) => format!("its interface `{name}` is down; `ip link set {name} up`"),
        Ok(Some(LinkDownReason::NoCarrier)) => format!("its interface `{name}` has no carrier; set its far end up"),
        Ok(None) => "it came up too late".to_owned(),
        Err(error) => format!("its interface cannot be watched: {error}"),
    }
}

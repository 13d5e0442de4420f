//! A port on a DPDK device, with one or several queues each way.
#![allow(unsafe_code)] // Calls the device's driver.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_dpdk_sys as sys;
use pinion_mma::buffer::{Buffer, Frame};

use super::alarms::{Alarms, OpenFiles};
use super::device::Device;
use super::error::DpdkError;
use super::ethernet::Ethernet;
use super::interface::{self, Interface, Obstacle};
use super::log;
use super::namespace::Namespace;
use super::pool::{BURST, DpdkPool, append, no_mbufs};
use super::send_room;
use super::signals::NoFreeSignals;
use crate::port::{Alarm, BufferPool, FRAME_OVERHEAD, LinkState, Port, PortCounters, PortFacts, Promiscuous};

/// How often a burst is offered to a device that takes less than all of it.
const TRANSMIT_TRIES: usize = 16;
/// The queue that all frames leave by, so that none overtakes another: it is one thread that transmits.
const TRANSMIT_QUEUE: u16 = 0;

const LINK_POLL_INTERVAL: Duration = Duration::from_millis(10);

const _: () = {
    assert!(sys::PINION_IP_CHECKSUM_GOOD == pinion_abi::RX_IP_CHECKSUM_GOOD);
    assert!(sys::PINION_IP_CHECKSUM_BAD == pinion_abi::RX_IP_CHECKSUM_BAD);
    assert!(sys::PINION_L4_CHECKSUM_GOOD == pinion_abi::RX_L4_CHECKSUM_GOOD);
    assert!(sys::PINION_L4_CHECKSUM_BAD == pinion_abi::RX_L4_CHECKSUM_BAD);
};

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The port's name.
    pub name: String,
    /// The device, in DPDK's notation.
    pub device: String,
    /// The longest payload of a frame in bytes. Set on the device, and on the kernel interface of a virtual one.
    pub mtu: u16,
    /// Receive queues, over which the device spreads flows, and as many to transmit by.
    pub queues: u16,
    /// Whether frames for other stations are received too.
    pub promiscuous: Promiscuous,
    /// How long the link may take to come up.
    pub link_timeout: Duration,
    /// The network namespace to open the device in, if not the process's own: a file as `/run/netns/NAME`. A tap device
    /// appears there, and `iface=` names an interface there.
    pub network_namespace: Option<PathBuf>,
}

impl PortConfig {
    /// A port of the usual MTU, with one queue, whose link may take five seconds to come up.
    #[must_use]
    pub fn new(name: &str, device: &str) -> Self {
        Self {
            name: name.to_owned(),
            device: device.to_owned(),
            mtu: 1500,
            queues: 1,
            promiscuous: Promiscuous::No,
            link_timeout: Duration::from_secs(5),
            network_namespace: None,
        }
    }
}

/// A port on a device that DPDK drives. Dropping it stops the device and removes it from DPDK: a tap disappears.
pub struct DpdkPort {
    name: String,
    /// Before the device, which is free for others only when its files are closed.
    alarms: Alarms,
    /// What the interface that the device sits on receives besides, while this is open.
    _member: Option<OwnedFd>,
    ethernet: Ethernet,
    interface: Option<Interface>,
    frame_len_max: u32,
    promiscuous: Promiscuous,
    /// The queue that is received from first, so that none is always last.
    first_queue: u16,
    burst: Burst,
    counters: Arc<PortCounters>,
    /// After the device, which gives its buffers back when it is closed.
    pool: DpdkPool,
}

/// Room for the arguments of one call.
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
    /// A sentence that names the device and what to do about it.
    pub fn open(config: &PortConfig, pool: &DpdkPool) -> Result<Self, DpdkError> {
        let device = Device::parse(&config.device)?.with_queues(config.queues)?;
        let namespace = Namespace::open(config.network_namespace.as_deref())?;
        let (inside, pool) = (namespace.clone(), pool.clone());
        let _collector = log::Collector::start();
        let _signals = device.name().starts_with("net_tap").then(NoFreeSignals::take);
        let port = namespace.run(move || Self::open_inside(config, device, inside, pool))?;
        crate::eal::keep_files_from_children();
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
        let files = before.appeared_since();
        send_room::widen(&files);
        let alarms = Alarms::of(&ethernet, files);
        let sits_on = interface.as_ref().filter(|_| ethernet.device().underlying_interface().is_some());
        let member = sits_on.map(|interface| interface.widen(config.promiscuous)).transpose();
        let watch_error = |error| DpdkError::Watch { device: config.device.clone(), error };
        let port = Self {
            name: config.name.clone(),
            alarms,
            _member: member.map_err(watch_error)?,
            ethernet,
            interface,
            frame_len_max: u32::from(config.mtu) + FRAME_OVERHEAD,
            promiscuous: config.promiscuous,
            first_queue: 0,
            burst: Burst { mbufs: no_mbufs(), unfit: Vec::with_capacity(BURST) },
            counters: Arc::default(),
            pool,
        };
        port.await_link(config.link_timeout)?;
        Ok(port)
    }

    fn await_link(&self, timeout: Duration) -> Result<(), DpdkError> {
        let started = Instant::now();
        while self.link() != LinkState::Up {
            if started.elapsed() >= timeout {
                let (device, waited_ms) = (self.device().to_owned(), timeout.as_millis());
                return Err(DpdkError::DoesNotComeUp { device, waited_ms, reason: self.link_obstacle() });
            }
            std::thread::sleep(LINK_POLL_INTERVAL);
        }
        Ok(())
    }

    fn link(&self) -> LinkState {
        match &self.interface {
            Some(interface) => interface.link(),
            None => self.ethernet.link(),
        }
    }

    fn link_obstacle(&self) -> String {
        let Some(interface) = &self.interface else { return "it reports no link; is its cable plugged in?".to_owned() };
        let name = interface.name().unwrap_or_default();
        match interface.obstacle() {
            Ok(Some(Obstacle::Down)) => format!("its interface `{name}` is down; `ip link set {name} up`"),
            Ok(Some(Obstacle::NoCarrier)) => format!("its interface `{name}` has no carrier; set its far end up"),
            Ok(None) => "it came up too late".to_owned(),
            Err(error) => format!("its interface cannot be watched: {error}"),
        }
    }

    /// Offers frames, [`BURST`] at most, to the device, frees what it does not take, returns what it took. All of them are the
    /// caller's to forget.
    fn send(&mut self, frames: &[Frame]) -> usize {
        let (id, mbufs) = (self.ethernet.id(), &mut self.burst.mbufs[..frames.len()]);
        // SAFETY: a `Frame` is a `pinion_frame`; `transmit` has found these to be of the port's pool, so that their tokens are
        // plain mbufs, which they give up, each with room for its length. There is room for as many pointers.
        let bytes = unsafe { sys::pinion_tx_prepare(frames.as_ptr().cast(), mbufs.as_mut_ptr(), frames.len() as u16) };
        let mut sent = 0;
        for _ in 0..TRANSMIT_TRIES {
            let rest = &mut mbufs[sent..];
            // SAFETY: mbufs that are this function's. The device is started, and `&mut self` keeps other threads away from
            // its queue.
            sent +=
                usize::from(unsafe { sys::pinion_tx_burst(id, TRANSMIT_QUEUE, rest.as_mut_ptr(), rest.len() as u16) });
            if sent == frames.len() {
                break;
            }
            std::hint::spin_loop();
        }
        let (counters, mut bytes) = (&self.counters.sent, u64::from(bytes));
        if let rest @ [_, ..] = &mut mbufs[sent..] {
            // SAFETY: what the device did not take is still this function's.
            unsafe { sys::pinion_free_burst(rest.as_mut_ptr(), rest.len() as u16) };
            counters.dropped_full.add(rest.len() as u64);
            bytes -= frames[sent..].iter().map(|frame| u64::from(frame.len())).sum::<u64>();
        }
        counters.frames.add(sent as u64);
        counters.bytes.add(bytes);
        sent
    }

    fn receive_from(&mut self, queue: u16, frames: &mut Vec<Frame>, max: usize) -> usize {
        let mut received = 0;
        let (id, mempool) = (self.ethernet.id(), self.pool.mempool().raw());
        let counters = &self.counters.received;
        while received < max {
            let wanted = (max - received).min(BURST);
            let mut burst = sys::pinion_burst { bytes: 0, rejected: 0 };
            // SAFETY: the device is started and has this queue, and `&mut self` keeps other threads away from it. It gives
            // these mbufs away, and the shim has found them plain and of our pool.
            let count = unsafe {
                append(frames, wanted, |place, max| {
                    sys::pinion_rx_burst(id, queue, mempool, place, max, &raw mut burst)
                })
            };
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

    /// Whether the frame can leave by this port: neither empty nor too long, and in a buffer of its pool.
    #[inline]
    fn is_fit(&self, frame: &Frame) -> bool {
        (1..=self.frame_len_max).contains(&frame.len()) && self.pool.mempool().owns(frame.bytes())
    }

    /// Takes out what cannot leave.
    #[cold]
    fn drop_unfit_of(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) {
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            if self.is_fit(frame) {
                at += 1;
                continue;
            }
            self.burst.unfit.push(frames.remove(at).into_buffer());
            if self.burst.unfit.len() == BURST {
                self.drop_unfit(pool);
            }
        }
        self.drop_unfit(pool);
    }

    fn drop_unfit(&mut self, pool: &mut dyn BufferPool) {
        self.counters.sent.dropped_unfit.add(self.burst.unfit.len() as u64);
        pool.give(&mut self.burst.unfit);
    }
}

impl Port for DpdkPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn device(&self) -> &str {
        self.ethernet.device().text()
    }

    fn facts(&self) -> PortFacts {
        PortFacts {
            mac: self.ethernet.station(),
            mtu: self.ethernet.mtu(),
            link: self.link(),
            missed: self.ethernet.missed(),
        }
    }

    fn promiscuous(&self) -> Promiscuous {
        self.promiscuous
    }

    /// Allocates nothing, locks nothing and waits for nothing; at most `max` frames, in bursts of 64. Some drivers
    /// (`net_tap`, `net_af_xdp`) make a system call per frame or per burst. Some that work on vectors find nothing at
    /// all if `max` is below 32.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let (queues, mut received) = (self.ethernet.queues().end, 0);
        for turn in 0..queues {
            received += self.receive_from((self.first_queue + turn) % queues, frames, max - received);
            if received == max {
                break;
            }
        }
        self.first_queue = (self.first_queue + 1) % queues;
        received
    }

    /// Allocates nothing and locks nothing; each burst of 64 is offered to the device at most 16 times.
    /// Virtual devices make system calls.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        if !frames.iter().all(|frame| self.is_fit(frame)) {
            self.drop_unfit_of(frames, pool);
        }
        let sent = frames.chunks(BURST).map(|burst| self.send(burst)).sum();
        frames.clear();
        sent
    }

    fn arm(&mut self) -> Alarm {
        self.alarms.arm(&self.ethernet)
    }

    fn descriptors(&self) -> &[OwnedFd] {
        self.alarms.descriptors()
    }

    fn disarm(&mut self) {
        self.alarms.disarm(&self.ethernet);
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

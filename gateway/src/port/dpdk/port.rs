//! A port on a DPDK device, with one queue each way.
#![allow(unsafe_code)] // Calls the device's driver.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinion_dpdk_sys as sys;
use pinion_mma::buffer::Buffer;

use super::device::Device;
use super::error::{DpdkError, reason};
use super::interface::{self, Interface, Obstacle};
use super::log;
use super::namespace::Namespace;
use super::pool::{BURST, DpdkPool, buffer, no_frames, no_mbufs};
use super::signals::NoFreeSignals;
use crate::port::{BufferPool, FRAME_OVERHEAD, Frame, LinkState, Port, PortCounters, PortFacts};

/// The ports that are open, by DPDK's numbers. Held while a device is added or removed, as DPDK's lists of these are
/// not guarded. Not for the fast path.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// How often a burst is offered to a device that takes less than all of it.
const TRANSMIT_TRIES: usize = 16;

/// Descriptors per queue, where the driver has no limit of its own.
const DESCRIPTORS: u16 = 1024;
/// The same for `net_tap`, which keeps a buffer of the pool per descriptor and uses one.
const TAP_DESCRIPTORS: u16 = 16;

/// What AF_XDP keeps for itself at the start of each buffer.
const XDP_HEADROOM: u32 = 256;

const QUEUE: u16 = 0;
const NO_PORT: u16 = u16::MAX;
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The port's name.
    pub name: String,
    /// The device, in DPDK's notation.
    pub device: String,
    /// The longest payload of a frame in bytes. Set on the device, and on the kernel interface of a virtual one.
    pub mtu: u16,
    /// Whether frames for other stations are received too.
    pub promiscuous: Promiscuous,
    /// How long the link may take to come up.
    pub link_timeout: Duration,
    /// The network namespace to open the device in, if not the process's own: a file as `/run/netns/NAME`. A tap device
    /// appears there, and `iface=` names an interface there.
    pub network_namespace: Option<PathBuf>,
}

/// Whether a port receives frames for other stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promiscuous {
    /// It does not ask for them.
    #[default]
    No,
    /// It asks for them.
    Yes,
}

impl PortConfig {
    /// A port of the usual MTU whose link may take five seconds to come up.
    #[must_use]
    pub fn new(name: &str, device: &str) -> Self {
        Self {
            name: name.to_owned(),
            device: device.to_owned(),
            mtu: 1500,
            promiscuous: Promiscuous::No,
            link_timeout: Duration::from_secs(5),
            network_namespace: None,
        }
    }
}

/// A port on a device that DPDK drives. Dropping it stops the device and removes it from DPDK: a tap disappears.
pub struct DpdkPort {
    name: String,
    ethernet: Ethernet,
    interface: Option<Interface>,
    frame_len_max: u32,
    burst: Burst,
    counters: Arc<PortCounters>,
    /// After the device, which gives its buffers back when it is closed.
    pool: DpdkPool,
}

/// Room for the arguments of one call.
struct Burst {
    mbufs: Box<[*mut sys::rte_mbuf; BURST]>,
    frames: Box<[sys::pinion_frame; BURST]>,
    lengths: Box<[u32; BURST]>,
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
        let device = Device::parse(&config.device)?;
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
        let ethernet = Ethernet::probe(device, namespace)?;
        let interface = ethernet.configure(config, &pool)?;
        ethernet.start(config)?;
        let port = Self {
            name: config.name.clone(),
            ethernet,
            interface,
            frame_len_max: u32::from(config.mtu) + FRAME_OVERHEAD,
            burst: Burst {
                mbufs: no_mbufs(),
                frames: no_frames(),
                lengths: Box::new([0; BURST]),
                unfit: Vec::with_capacity(BURST),
            },
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

    /// Offers the first `count` mbufs of the burst to the device, frees what it does not take, returns what it took.
    fn send(&mut self, count: usize) -> usize {
        let mut sent = 0;
        for _ in 0..TRANSMIT_TRIES {
            let (mbufs, lengths) = (&mut self.burst.mbufs[sent..count], &self.burst.lengths[sent..count]);
            // SAFETY: plain mbufs of the port's pool that their buffers gave up, each long enough for its length. The
            // device is started, and `&mut self` keeps other threads away from its queue.
            sent += usize::from(unsafe {
                sys::pinion_tx_burst(self.ethernet.id, mbufs.as_mut_ptr(), lengths.as_ptr(), mbufs.len() as u16)
            });
            if sent == count {
                break;
            }
            std::hint::spin_loop();
        }
        let counters = &self.counters.sent;
        counters.frames.add(sent as u64);
        counters.bytes.add(self.burst.lengths[..sent].iter().copied().map(u64::from).sum());
        if sent < count {
            let rest = &mut self.burst.mbufs[sent..count];
            // SAFETY: what the device did not take is still this function's.
            unsafe { sys::pinion_free_burst(rest.as_mut_ptr(), rest.len() as u16) };
            counters.dropped_full.add(rest.len() as u64);
        }
        sent
    }

    fn is_fit(&self, frame: &Frame) -> bool {
        (1..=self.frame_len_max.min(frame.buffer.capacity())).contains(&frame.len)
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
        self.ethernet.device.text()
    }

    fn facts(&self) -> PortFacts {
        PortFacts {
            mac: self.ethernet.station(),
            mtu: self.ethernet.mtu(),
            link: self.link(),
            missed: self.ethernet.missed(),
        }
    }

    /// Allocates nothing, locks nothing and waits for nothing; at most `max` frames, in bursts of 64. Some drivers
    /// (`net_tap`, `net_af_xdp`) make a system call per frame or per burst. Some that work on vectors find nothing at
    /// all if `max` is below 32.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let mut received = 0;
        let counters = &self.counters.received;
        while received < max {
            let wanted = (max - received).min(BURST);
            let mempool = self.pool.mempool().raw();
            let (mbufs, descriptions) = (self.burst.mbufs.as_mut_ptr(), self.burst.frames.as_mut_ptr());
            let mut rejected = 0;
            // SAFETY: the arrays have room for `BURST`. The device is started, and `&mut self` keeps other threads
            // away from its queue.
            let count = usize::from(unsafe {
                sys::pinion_rx_burst(self.ethernet.id, mempool, mbufs, descriptions, wanted as u16, &raw mut rejected)
            });
            let mut bytes = 0;
            for (mbuf, frame) in self.burst.mbufs.iter().zip(&*self.burst.frames).take(count) {
                bytes += u64::from(frame.len);
                // SAFETY: the device gave this mbuf away; the shim has found it plain, of our pool, and described it.
                frames.push(Frame { buffer: unsafe { buffer(*mbuf, frame) }, len: frame.len });
            }
            counters.frames.add(count as u64);
            counters.bytes.add(bytes);
            counters.dropped_malformed.add(rejected.into());
            received += count;
            if count + usize::from(rejected) < wanted {
                break;
            }
        }
        received
    }

    /// Allocates nothing and locks nothing; each burst of 64 is offered to the device at most 16 times.
    /// Virtual devices make system calls.
    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let (mut sent, mut count) = (0, 0);
        for frame in frames.drain(..) {
            if !self.is_fit(&frame) || !self.pool.mempool().owns(&frame.buffer) {
                self.burst.unfit.push(frame.buffer);
                if self.burst.unfit.len() == BURST {
                    self.drop_unfit(pool);
                }
                continue;
            }
            self.burst.lengths[count] = frame.len;
            self.burst.mbufs[count] = frame.buffer.into_token().cast().as_ptr();
            count += 1;
            if count == BURST {
                sent += self.send(count);
                count = 0;
            }
        }
        if count > 0 {
            sent += self.send(count);
        }
        if !self.burst.unfit.is_empty() {
            self.drop_unfit(pool);
        }
        sent
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// A device that DPDK has taken, as an Ethernet port of DPDK's. Given back on drop.
struct Ethernet {
    device: Device,
    namespace: Namespace,
    id: u16,
    raw_device: *mut sys::rte_device,
}

// SAFETY: DPDK's handle of the device may be used by any thread.
unsafe impl Send for Ethernet {}
// SAFETY: by reference, a device is asked about itself, which may be done at any time; it is changed only while it is
// opened and dropped.
unsafe impl Sync for Ethernet {}

impl Ethernet {
    /// Has a driver take the device.
    fn probe(device: Device, namespace: Namespace) -> Result<Self, DpdkError> {
        let text = || device.text().to_owned();
        let mut open = open_ports();
        // SAFETY: DPDK is running, since the caller has a pool; it copies the string.
        match unsafe { sys::rte_dev_probe(device.as_c().as_ptr()) } {
            0 => {}
            // DPDK has probed PCI devices at its start.
            code if code == -libc::EEXIST && device.is_pci() => {}
            code if code == -libc::EEXIST => return Err(DpdkError::InUse { device: text() }),
            code if code == -libc::EFAULT => return Err(DpdkError::UnknownDriver { device: text() }),
            _ if device.is_pci() => return Err(DpdkError::MissingPci { device: text() }),
            code => return Err(refused(&device, "probing it", code)),
        }
        let id = port_of(&device).ok_or_else(|| refused(&device, "looking for its port", -libc::ENODEV))?;
        let raw_device = info(id).map_err(|code| refused(&device, "asking what it can do", code))?.device;
        if !open.insert(id) {
            return Err(DpdkError::InUse { device: text() });
        }
        Ok(Self { device, namespace, id, raw_device })
    }

    /// Sets up both queues and the MTU; returns the kernel interface that belongs to the device, if one does.
    fn configure(&self, config: &PortConfig, pool: &DpdkPool) -> Result<Option<Interface>, DpdkError> {
        let refused = |step| move |code| refused(&self.device, step, code);
        self.check_mtu(config.mtu, pool.buffer_len_max())?;
        // SAFETY: all-zero bytes mean "nothing special" throughout this structure.
        let mut settings: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        settings.rxmode.mtu = config.mtu.into();
        // SAFETY: the port exists and is not started; DPDK copies the settings.
        check(unsafe { sys::rte_eth_dev_configure(self.id, 1, 1, &raw const settings) })
            .map_err(refused("configuring it"))?;
        let (mut receive, mut transmit) = match self.driver().as_str() {
            "net_tap" => (TAP_DESCRIPTORS, TAP_DESCRIPTORS),
            _ => (DESCRIPTORS, DESCRIPTORS),
        };
        // SAFETY: writes two numbers.
        check(unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &raw mut receive, &raw mut transmit) })
            .map_err(refused("sizing its queues"))?;
        // SAFETY: the port exists.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) }.cast_unsigned();
        let mempool = pool.mempool().raw();
        // SAFETY: the pool outlives the port, whose owner keeps a handle of it.
        check(unsafe { sys::rte_eth_rx_queue_setup(self.id, QUEUE, receive, socket, null(), mempool) })
            .map_err(refused("setting up its receive queue"))?;
        // SAFETY: the port is configured with this queue.
        check(unsafe { sys::rte_eth_tx_queue_setup(self.id, QUEUE, transmit, socket, null()) })
            .map_err(refused("setting up its transmit queue"))?;
        self.set_mtu(config.mtu, pool.buffer_len_max())?;
        let index = info(self.id).map_err(refused("asking what it can do"))?.if_index;
        let interface = (index != 0).then(|| Interface::of_index(index)).transpose();
        interface.map_err(|error| DpdkError::Watch { device: self.device.text().to_owned(), error })
    }

    fn start(&self, config: &PortConfig) -> Result<(), DpdkError> {
        // SAFETY: the port is configured.
        check(unsafe { sys::rte_eth_dev_start(self.id) }).map_err(|code| refused(&self.device, "starting it", code))?;
        if config.promiscuous == Promiscuous::Yes {
            // SAFETY: the port is started.
            check(unsafe { sys::rte_eth_promiscuous_enable(self.id) })
                .map_err(|code| refused(&self.device, "making it promiscuous", code))?;
        }
        Ok(())
    }

    /// The longest MTU that both the device and the pool's buffers allow.
    fn mtu_max(&self, buffer_len: u32) -> u16 {
        let headroom = if self.driver() == "net_af_xdp" { XDP_HEADROOM } else { 0 };
        let fits = u16::try_from(buffer_len - headroom - FRAME_OVERHEAD).unwrap_or(u16::MAX);
        info(self.id).map_or(fits, |info| {
            let by_frame = u16::try_from(info.max_rx_pktlen.saturating_sub(FRAME_OVERHEAD)).unwrap_or(u16::MAX);
            fits.min(info.max_mtu).min(by_frame)
        })
    }

    fn check_mtu(&self, mtu: u16, buffer_len: u32) -> Result<(), DpdkError> {
        if (68..=self.mtu_max(buffer_len)).contains(&mtu) {
            return Ok(());
        }
        Err(self.mtu_error(mtu, buffer_len, "out of range".to_owned()))
    }

    fn set_mtu(&self, mtu: u16, buffer_len: u32) -> Result<(), DpdkError> {
        // SAFETY: the port is configured.
        match unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) } {
            0 => Ok(()),
            // Files and rings have none.
            code if code == -libc::ENOTSUP => Ok(()),
            code => Err(self.mtu_error(mtu, buffer_len, reason(code))),
        }
    }

    fn mtu_error(&self, mtu: u16, buffer_len: u32, reason: String) -> DpdkError {
        DpdkError::Mtu { device: self.device.text().to_owned(), mtu, mtu_max: self.mtu_max(buffer_len), reason }
    }

    fn driver(&self) -> String {
        info(self.id).map(|info| text_of(info.driver_name)).unwrap_or_default()
    }

    fn station(&self) -> [u8; 6] {
        let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: writes six bytes.
        unsafe { sys::rte_eth_macaddr_get(self.id, &raw mut address) };
        let mut mac = address.addr_bytes;
        if self.driver() == "net_tap" {
            // The device's address is that of the kernel's side. Two stations on one wire need two.
            mac[5] ^= 1;
        }
        mac
    }

    fn mtu(&self) -> u16 {
        let mut mtu = 0;
        // SAFETY: writes a number.
        unsafe { sys::rte_eth_dev_get_mtu(self.id, &raw mut mtu) };
        mtu
    }

    fn link(&self) -> LinkState {
        // SAFETY: all-zero bytes are a link that is down.
        let mut link: sys::rte_eth_link = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure.
        let code = unsafe { sys::rte_eth_link_get_nowait(self.id, &raw mut link) };
        if code == 0 && u32::from(link.link_status()) == sys::RTE_ETH_LINK_UP { LinkState::Up } else { LinkState::Down }
    }

    fn missed(&self) -> u64 {
        // SAFETY: all-zero bytes are counts of nothing.
        let mut stats: sys::rte_eth_stats = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure.
        unsafe { sys::rte_eth_stats_get(self.id, &raw mut stats) };
        stats.imissed.saturating_add(stats.ierrors).saturating_add(stats.rx_nombuf)
    }

    /// Stops the device, closes it and has DPDK forget it.
    fn close(&self) {
        let mut open = open_ports();
        // SAFETY: the port is this value's, and nobody uses its queues any more. Stopping one that was not started does
        // nothing.
        unsafe {
            sys::rte_eth_dev_stop(self.id);
            sys::rte_eth_dev_close(self.id);
        }
        // SAFETY: DPDK's handle of the device is valid until this call.
        let code = unsafe { sys::rte_dev_remove(self.raw_device) };
        if code != 0 {
            tracing::warn!(device = self.device.text(), reason = reason(code), "the device was not removed");
        }
        open.remove(&self.id);
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        let closed = self.namespace.run(|| self.close());
        if let Err(error) = closed {
            tracing::warn!(device = self.device.text(), %error, "the device was not closed: its namespace cannot be \
                 entered");
        }
    }
}

fn open_ports() -> MutexGuard<'static, BTreeSet<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// DPDK's number for the device's port.
fn port_of(device: &Device) -> Option<u16> {
    let mut iterator = MaybeUninit::<sys::rte_dev_iterator>::zeroed();
    // SAFETY: initialises the iterator, which keeps nothing of the string.
    if unsafe { sys::rte_eth_iterator_init(iterator.as_mut_ptr(), device.as_c().as_ptr()) } != 0 {
        return None;
    }
    // SAFETY: initialised above.
    let id = unsafe { sys::rte_eth_iterator_next(iterator.as_mut_ptr()) };
    if id == NO_PORT {
        return None;
    }
    // SAFETY: as above; not yet at its end, where it cleans up by itself.
    unsafe { sys::rte_eth_iterator_cleanup(iterator.as_mut_ptr()) };
    Some(id)
}

fn info(id: u16) -> Result<sys::rte_eth_dev_info, i32> {
    let mut info = MaybeUninit::zeroed();
    // SAFETY: writes the structure.
    check(unsafe { sys::rte_eth_dev_info_get(id, info.as_mut_ptr()) })?;
    // SAFETY: all of it was zeroed and some of it written.
    Ok(unsafe { info.assume_init() })
}

fn check(code: i32) -> Result<(), i32> {
    if code < 0 { Err(code) } else { Ok(()) }
}

fn refused(device: &Device, step: &'static str, code: i32) -> DpdkError {
    let hint =
        match device.argument("iface").filter(|name| device.name().starts_with("net_tap") && interface::exists(name)) {
            Some(name) => {
                format!(". The interface `{name}` exists already: choose another name, or `ip link delete {name}`")
            }
            None => String::new(),
        };
    // Many drivers answer -1 to whatever went wrong.
    let reason = Some(log::told()).filter(|told| !told.is_empty()).unwrap_or_else(|| reason(code));
    DpdkError::Refused { device: device.text().to_owned(), step, reason, hint }
}

fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: DPDK's strings end with a zero byte; drivers' names are constants.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

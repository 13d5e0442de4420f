//! A device as DPDK manages it: probed, configured, started, queried, and removed.
#![allow(unsafe_code)] // Calls the device's driver.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pinion_dpdk_sys as sys;

use super::device_string::Device;
use crate::port::dpdk::buffers::mempool::Reach;
use crate::port::dpdk::buffers::pool::DpdkPool;
use crate::port::dpdk::error::{DpdkError, reason};
use crate::port::dpdk::kernel::interface::{self, Interface};
use crate::port::dpdk::kernel::namespace::{Namespace, has_given_up_rights};
use crate::port::dpdk::log;
use crate::port::dpdk::port_config::PortConfig;
use crate::port::{BufferPool, FRAME_OVERHEAD, LinkState, Promiscuous};

/// The ports that are open, by DPDK's numbers. Locked while a device is added or removed, because DPDK does not guard
/// its lists of these. Not for the fast path.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Descriptors per queue, where the driver has no limit of its own.
const DESCRIPTORS: u16 = 1024;
/// The same for `net_tap`, which keeps one buffer of the pool per descriptor but uses only one.
const TAP_DESCRIPTORS: u16 = 16;

/// The headroom that AF_XDP reserves at the start of each buffer.
const XDP_HEADROOM: u32 = 256;

const NO_PORT: u16 = u16::MAX;

/// A device that DPDK has probed, as one of DPDK's Ethernet ports. Removed on drop.
pub(crate) struct Ethernet {
    device: Device,
    namespace: Namespace,
    id: u16,
    queues: u16,
    raw_device: *mut sys::rte_device,
}

/// Whether a device is configured to interrupt when it has received a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupts {
    Wanted,
    No,
}

// SAFETY: any thread may use DPDK's handle of the device.
unsafe impl Send for Ethernet {}
// SAFETY: by reference, a device is only queried, which is allowed at any time. It is changed only while it is opened
// and dropped.
unsafe impl Sync for Ethernet {}

impl Ethernet {
    /// Makes a driver probe the device.
    pub(crate) fn probe(device: Device, namespace: Namespace, queues: u16) -> Result<Self, DpdkError> {
        let text = || device.text().to_owned();
        let mut open = open_ports();
        // SAFETY: DPDK is running, since the caller has a pool; it copies the string.
        match unsafe { sys::rte_dev_probe(device.probed().as_ptr()) } {
            0 => {}
            // DPDK has already probed PCI devices when it was started.
            code if code == -libc::EEXIST && device.is_pci() => {}
            code if code == -libc::EEXIST => return Err(DpdkError::InUse { device: text() }),
            code if code == -libc::EFAULT => return Err(DpdkError::UnknownDriver { device: text() }),
            _ if device.is_pci() => return Err(DpdkError::MissingPci { device: text() }),
            code => return Err(refused(&device, "probing it", code)),
        }
        let id = port_of(&device).ok_or_else(|| refused(&device, "looking up its port", -libc::ENODEV))?;
        let raw_device = info(id).map_err(|code| refused(&device, "querying its capabilities", code))?.device;
        if !open.insert(id) {
            return Err(DpdkError::InUse { device: text() });
        }
        Ok(Self { device, namespace, id, queues, raw_device })
    }

    /// Configures the device and starts it. Returns the kernel interface that belongs to it, if any.
    pub(crate) fn launch(&self, config: &PortConfig, pool: &DpdkPool) -> Result<Option<Interface>, DpdkError> {
        // Virtual devices have other ways to report frames, and some create a thread for each interrupt.
        let interrupts = if self.device.is_pci() { Interrupts::Wanted } else { Interrupts::No };
        let launch = |interrupts| {
            let interface = self.configure(config, pool, interrupts)?;
            self.start(config)?;
            Ok(interface)
        };
        // Not every card can interrupt under DPDK, and not every kernel driver forwards interrupts.
        launch(interrupts)
            .or_else(|error| if interrupts == Interrupts::No { Err(error) } else { launch(Interrupts::No) })
    }

    fn configure(
        &self,
        config: &PortConfig,
        pool: &DpdkPool,
        interrupts: Interrupts,
    ) -> Result<Option<Interface>, DpdkError> {
        let refused = |step| move |code| refused(&self.device, step, code);
        self.check_mtu(config.mtu, pool.buffer_len_max())?;
        self.check_reach(pool.mempool().reach())?;
        let able = info(self.id).map_err(refused("querying its capabilities"))?;
        let queues_max = able.max_rx_queues.min(able.max_tx_queues);
        if self.queues > queues_max {
            let device = self.device.text().to_owned();
            return Err(DpdkError::TooFewQueues { device, queues: self.queues, queues_max });
        }
        // SAFETY: all-zero bytes mean "nothing special" throughout this structure.
        let mut settings: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        settings.rxmode.mtu = config.mtu.into();
        if self.checks_wires() {
            settings.rxmode.offloads = able.rx_offload_capa & sys::PINION_RX_CHECKSUMS;
        }
        let hashed = able.flow_type_rss_offloads & sys::PINION_RSS_FLOWS;
        if self.queues > 1 && hashed != 0 {
            settings.rxmode.mq_mode = sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
            settings.rx_adv_conf.rss_conf.rss_hf = hashed;
        }
        settings.intr_conf.set_rxq((interrupts == Interrupts::Wanted).into());
        // SAFETY: the port exists and is not started; DPDK copies the settings.
        check(unsafe { sys::rte_eth_dev_configure(self.id, self.queues, self.queues, &raw const settings) })
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
        for queue in self.queues() {
            // SAFETY: the port is configured with this queue; the pool outlives the port, whose owner keeps a handle.
            check(unsafe { sys::rte_eth_rx_queue_setup(self.id, queue, receive, socket, null(), mempool) })
                .map_err(refused("setting up a receive queue"))?;
            // SAFETY: the port is configured with this queue.
            check(unsafe { sys::rte_eth_tx_queue_setup(self.id, queue, transmit, socket, null()) })
                .map_err(refused("setting up a transmit queue"))?;
        }
        self.set_mtu(config.mtu, pool.buffer_len_max())?;
        let index = info(self.id).map_err(refused("querying its capabilities"))?.if_index;
        let interface = (index != 0).then(|| Interface::of_index(index)).transpose();
        interface.map_err(|error| DpdkError::Watch { device: self.device.text().to_owned(), error })
    }

    fn start(&self, config: &PortConfig) -> Result<(), DpdkError> {
        // SAFETY: the port is configured.
        check(unsafe { sys::rte_eth_dev_start(self.id) }).map_err(|code| refused(&self.device, "starting it", code))?;
        if !self.has_cable() {
            return Ok(());
        }
        // SAFETY: the port is started.
        check(unsafe {
            match config.promiscuous {
                Promiscuous::Yes => sys::rte_eth_promiscuous_enable(self.id),
                Promiscuous::No => sys::rte_eth_promiscuous_disable(self.id),
            }
        })
        .map_err(|code| refused(&self.device, "setting promiscuous mode", code))?;
        // Neighbour discovery uses multicast.
        // SAFETY: the port is started.
        let code = unsafe { sys::rte_eth_allmulticast_enable(self.id) };
        if code != 0 {
            let reason = reason(code);
            tracing::warn!(device = self.device.text(), reason, "the device may not receive multicast frames");
        }
        Ok(())
    }

    /// Returns whether frames reach the device with complete checksums. Between virtual machines they may not, if the
    /// receiver's driver accepts that; such frames could not be forwarded.
    fn checks_wires(&self) -> bool {
        let driver = self.driver();
        !["virtio", "vhost"].iter().any(|virtual_kind| driver.contains(virtual_kind))
    }

    /// Returns whether the device filters the frames of a wire. Virtual devices receive all frames sent to them; those
    /// on a kernel interface leave filtering to it.
    fn has_cable(&self) -> bool {
        self.device.is_pci()
    }

    /// Returns DPDK's number for the port.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns its queues. There are as many receive as transmit queues.
    pub(crate) fn queues(&self) -> Range<u16> {
        0..self.queues
    }

    /// Returns the event file of a receive queue's interrupt, if there is one.
    pub(crate) fn interrupt_descriptor(&self, queue: u16) -> Option<RawFd> {
        // SAFETY: only queries.
        let descriptor = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(self.id, queue) };
        (descriptor >= 0).then_some(descriptor)
    }

    /// Enables the interrupt of a receive queue. Returns whether the device supports that.
    pub(crate) fn enable_interrupt(&self, queue: u16) -> bool {
        // SAFETY: the port is started.
        unsafe { sys::rte_eth_dev_rx_intr_enable(self.id, queue) == 0 }
    }

    pub(crate) fn disable_interrupt(&self, queue: u16) {
        // SAFETY: the port is started.
        unsafe { sys::rte_eth_dev_rx_intr_disable(self.id, queue) };
    }

    /// Returns how many frames wait in a receive queue; 0 if the driver does not tell.
    pub(crate) fn waiting(&self, queue: u16) -> usize {
        // SAFETY: the port is started and has this queue.
        usize::try_from(unsafe { sys::pinion_rx_waiting(self.id, queue) }).unwrap_or(0)
    }

    /// Returns the largest MTU that both the device and the pool's buffers allow.
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

    fn check_reach(&self, reach: Reach) -> Result<(), DpdkError> {
        if reach == Reach::Some && self.driver() == "net_af_xdp" {
            return Err(DpdkError::PoolWithGaps { device: self.device.text().to_owned() });
        }
        Ok(())
    }

    fn set_mtu(&self, mtu: u16, buffer_len: u32) -> Result<(), DpdkError> {
        // SAFETY: the port is configured.
        match unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) } {
            0 => Ok(()),
            // File and ring devices have no MTU.
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

    /// Returns the device's address as the driver has it.
    pub(crate) fn mac(&self) -> [u8; 6] {
        let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: writes six bytes.
        unsafe { sys::rte_eth_macaddr_get(self.id, &raw mut address) };
        address.addr_bytes
    }

    /// Returns the address of the port's station. `of_interface` is that of the kernel's interface, if there is one.
    pub(crate) fn station(&self, of_interface: Option<[u8; 6]>) -> [u8; 6] {
        let mut mac = of_interface.unwrap_or_else(|| self.mac());
        if self.driver() == "net_tap" {
            // The device's address is that of the kernel's side. Two stations on one wire need different addresses.
            mac[5] ^= 1;
        }
        mac
    }

    pub(crate) fn mtu(&self) -> u16 {
        let mut mtu = 0;
        // SAFETY: writes a number.
        unsafe { sys::rte_eth_dev_get_mtu(self.id, &raw mut mtu) };
        mtu
    }

    pub(crate) fn link(&self) -> LinkState {
        // SAFETY: all-zero bytes are a link that is down.
        let mut link: sys::rte_eth_link = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure.
        let code = unsafe { sys::rte_eth_link_get_nowait(self.id, &raw mut link) };
        if code == 0 && u32::from(link.link_status()) == sys::RTE_ETH_LINK_UP { LinkState::Up } else { LinkState::Down }
    }

    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: all-zero bytes are counts of nothing.
        let mut stats: sys::rte_eth_stats = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure.
        unsafe { sys::rte_eth_stats_get(self.id, &raw mut stats) };
        stats.imissed.saturating_add(stats.ierrors).saturating_add(stats.rx_nombuf)
    }

    /// Stops the device, closes it and removes it from DPDK.
    fn close(&self) {
        let mut open = open_ports();
        // SAFETY: the port is this value's, and nothing uses its queues any more. To stop a port that was not started
        // does nothing.
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
        if has_given_up_rights() {
            // What drivers have open needs no rights to be closed, in whatever namespace it is, but for a program at an interface. That
            // one is detached by a process that has the right; DPDK's other records of the device go with the process.
            if !self.device.attaches_program() {
                self.close();
            }
            return;
        }
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

/// Returns DPDK's number for the device's port.
fn port_of(device: &Device) -> Option<u16> {
    let mut iterator = MaybeUninit::<sys::rte_dev_iterator>::zeroed();
    // SAFETY: initialises the iterator, which keeps nothing of the string.
    if unsafe { sys::rte_eth_iterator_init(iterator.as_mut_ptr(), device.probed().as_ptr()) } != 0 {
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
    // Many drivers return -1 for any failure.
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

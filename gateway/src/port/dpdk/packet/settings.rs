//! What a port's packet sockets are made by.

use std::io;

use crate::port::dpdk::device::device_string::Device;
use crate::port::dpdk::error::DpdkError;
use crate::port::dpdk::port_config::PortConfig;
use crate::port::{FRAME_OVERHEAD, Promiscuous};

/// The arguments that a device takes; those of DPDK's driver.
const ARGUMENTS: [&str; 6] = ["iface", "qpairs", "blocksz", "framesz", "framecnt", "qdisc_bypass"];
/// Bytes before a frame's data in a ring, at most.
const RING_HEADER_BYTES: u32 = 80;
const MTU_MAX: u16 = 1500;

/// The settings of a port's sockets.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) interface: String,
    pub(crate) queues: u16,
    pub(crate) ring: RingShape,
    /// Whether frames leave without passing the interface's queueing discipline.
    pub(crate) bypasses_queueing: bool,
    pub(crate) promiscuous: Promiscuous,
    pub(crate) mtu: u16,
}

/// The size of a socket's ring for one direction: blocks of whole frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u32,
    pub(crate) frame_bytes: u32,
}

impl RingShape {
    pub(crate) fn frames_per_block(self) -> u32 {
        self.block_bytes / self.frame_bytes
    }

    pub(crate) fn frames(self) -> u32 {
        self.blocks * self.frames_per_block()
    }
}

impl Settings {
    pub(crate) fn of(config: &PortConfig) -> Result<Self, DpdkError> {
        let device = Device::parse(&config.device)?.with_queues(config.queues)?;
        device.check_known(&ARGUMENTS)?;
        let refused = |reason: &str| DpdkError::Refused {
            device: config.device.clone(),
            step: "reading its arguments",
            reason: reason.to_owned(),
            hint: String::new(),
        };
        let number = |key: &str, default: u32| -> Result<u32, DpdkError> {
            let value = device.argument(key).map_or(Ok(default), str::parse);
            value.map_err(|_| refused(&format!("{key} is no number")))
        };
        let interface = device.argument("iface").ok_or_else(|| refused("it names no interface: give iface=NAME"))?;
        let page_bytes = super::ring::page_bytes();
        let (block_bytes, frame_bytes) = (number("blocksz", page_bytes)?, number("framesz", 2048)?);
        let frames = number("framecnt", 512)?;
        if frame_bytes <= RING_HEADER_BYTES || frame_bytes % 16 != 0 || frame_bytes > block_bytes {
            return Err(refused(&format!(
                "framesz = {frame_bytes}: give a multiple of 16 above {RING_HEADER_BYTES}, and at most blocksz = {block_bytes}"
            )));
        }
        if !block_bytes.is_multiple_of(page_bytes) {
            return Err(refused(&format!("blocksz = {block_bytes}: give a multiple of {page_bytes}")));
        }
        let blocks = frames / (block_bytes / frame_bytes);
        if !(1..=1 << 14).contains(&blocks) {
            return Err(refused(&format!("framecnt = {frames}: give as many as make 1 to {} blocks", 1 << 14)));
        }
        let ring = RingShape { block_bytes, blocks, frame_bytes };
        let mtu_max = MTU_MAX.min((frame_bytes - RING_HEADER_BYTES).saturating_sub(FRAME_OVERHEAD) as u16);
        if !(68..=mtu_max).contains(&config.mtu) {
            let (device, reason) = (config.device.clone(), "out of range".to_owned());
            return Err(DpdkError::Mtu { device, mtu: config.mtu, mtu_max, reason });
        }
        Ok(Self {
            interface: interface.to_owned(),
            queues: config.queues,
            ring,
            bypasses_queueing: number("qdisc_bypass", 1)? != 0,
            promiscuous: config.promiscuous,
            mtu: config.mtu,
        })
    }

    /// Returns the error of a step of opening the sockets.
    pub(crate) fn error(config: &PortConfig, interface: &str, (step, error): (&'static str, io::Error)) -> DpdkError {
        let device = config.device.clone();
        match error.raw_os_error() {
            Some(libc::ENODEV) => DpdkError::MissingInterface { device, interface: interface.to_owned() },
            _ => DpdkError::Refused { device, step, reason: error.to_string(), hint: String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(device: &str) -> Result<Settings, String> {
        Settings::of(&PortConfig::new("port", device)).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_those_of_dpdks_driver() {
        let plain = settings("net_af_packet0,iface=eth1").unwrap();
        assert_eq!((plain.interface.as_str(), plain.queues, plain.bypasses_queueing), ("eth1", 1, true));
        assert_eq!((plain.ring.frames(), plain.ring.frame_bytes), (512, 2048));
        let set = settings("net_af_packet0,iface=a,blocksz=8192,framesz=4096,framecnt=64,qdisc_bypass=0").unwrap();
        assert_eq!((set.ring.blocks, set.ring.frames(), set.bypasses_queueing), (32, 64, false));
    }

    #[test]
    fn what_no_ring_can_be_made_of_is_refused_with_what_to_give() {
        for (arguments, said) in [
            ("", "give iface=NAME"),
            (",iface=a,framesz=x", "framesz is no number"),
            (",iface=a,framesz=4112", "at most blocksz = 4096"),
            (",iface=a,framesz=100", "a multiple of 16"),
            (",iface=a,blocksz=5000", "a multiple of 4096"),
            (",iface=a,framecnt=0", "1 to 16384 blocks"),
            (",iface=a,framesz=1024", "between 68 and 926"),
            (",ifcae=a", "has the argument `ifcae`"),
        ] {
            let refusal = settings(&format!("net_af_packet0{arguments}")).unwrap_err();
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}

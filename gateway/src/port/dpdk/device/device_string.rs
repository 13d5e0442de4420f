//! Device strings: `NAME[,KEY=VALUE]...`, where the name is a PCI address, or a driver's name with a number.

use std::ffi::CString;

use crate::port::dpdk::error::DpdkError;

/// DPDK's limit for the length of a device's name, including the terminator.
const NAME_LEN_MAX: usize = 64;

/// The arguments of drivers that ignore all their arguments if they do not know one.
const CARELESS_DRIVERS: [(&str, &[&str]); 2] =
    [("net_tap", &["iface", "mac", "persist", "remote"]), ("net_ring", &["internal", "nodeaction"])];

/// The argument that tells a driver its number of queues.
const QUEUE_ARGUMENTS: [(&str, &str); 2] = [("net_af_packet", "qpairs"), ("net_af_xdp", "queue_count")];

/// A device as the configuration names it.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    text: CString,
    /// The same with arguments that the driver needs in addition.
    probed: CString,
}

impl Device {
    pub(crate) fn parse(text: &str) -> Result<Self, DpdkError> {
        let malformed = || DpdkError::Malformed { device: text.to_owned() };
        let name = text.split(',').next().unwrap_or_default();
        if name.is_empty() || name.len() >= NAME_LEN_MAX || text.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(malformed());
        }
        let text = CString::new(text).map_err(|_| malformed())?;
        let device = Self { probed: text.clone(), text };
        device.check_arguments()?;
        Ok(device)
    }

    /// Returns whether its driver attaches a program to an interface of the kernel.
    pub(crate) fn attaches_program(&self) -> bool {
        self.name().starts_with("net_af_xdp")
    }

    /// Returns the device with `queues` queues, if its driver takes the number from the device string.
    pub(crate) fn with_queues(self, queues: u16) -> Result<Self, DpdkError> {
        let Some((_, key)) = QUEUE_ARGUMENTS.iter().find(|(driver, _)| self.name().starts_with(driver)) else {
            return Ok(self);
        };
        match self.argument(key) {
            Some(value) if value.parse() == Ok(queues) => Ok(self),
            // Frames for queues that are not polled would be lost.
            Some(value) => Err(DpdkError::QueuesDiffer {
                device: self.text().to_owned(),
                argument: format!("{key}={value}"),
                queues,
            }),
            None => {
                let probed = format!("{},{key}={queues}", self.text());
                Ok(Self { probed: CString::new(probed).expect("made of a string without zero bytes"), ..self })
            }
        }
    }

    fn check_arguments(&self) -> Result<(), DpdkError> {
        match CARELESS_DRIVERS.iter().find(|(driver, _)| self.name().starts_with(driver)) {
            Some((_, known)) => self.check_known(known),
            None => Ok(()),
        }
    }

    /// Checks that it has no arguments but these.
    pub(crate) fn check_known(&self, known: &[&str]) -> Result<(), DpdkError> {
        let mut keys = self.text().split(',').skip(1).map(|pair| pair.split_once('=').map_or(pair, |(key, _)| key));
        match keys.find(|key| !known.contains(key)) {
            Some(argument) => Err(DpdkError::UnknownArgument {
                device: self.text().to_owned(),
                argument: argument.to_owned(),
                known: known.join(", "),
            }),
            None => Ok(()),
        }
    }

    /// Returns the whole string, as configured.
    pub(crate) fn text(&self) -> &str {
        self.text.to_str().unwrap_or_default()
    }

    /// Returns the string for DPDK.
    pub(crate) fn probed(&self) -> &CString {
        &self.probed
    }

    /// Returns the part before the arguments.
    pub(crate) fn name(&self) -> &str {
        self.text().split(',').next().unwrap_or_default()
    }

    /// Returns the value of an argument.
    pub(crate) fn argument(&self, key: &str) -> Option<&str> {
        self.text().split(',').skip(1).filter_map(|pair| pair.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Returns whether the name is a PCI address: `[domain:]bus:device.function`.
    pub(crate) fn is_pci(&self) -> bool {
        let is_hex = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fields: Vec<&str> = self.name().split([':', '.']).collect();
        self.name().contains(':')
            && self.name().contains('.')
            && matches!(fields.len(), 3 | 4)
            && fields.into_iter().all(is_hex)
    }

    /// Returns whether its frames leave through a packet socket of the kernel (`AF_PACKET`). Such a socket accepts the
    /// four bytes beyond the MTU only in tagged frames.
    pub(crate) fn sends_by_packet_socket(&self) -> bool {
        let is_of = |driver: &str| self.name().starts_with(driver);
        is_of("net_af_packet")
            || (is_of("net_pcap") && ["iface", "tx_iface"].iter().any(|key| self.argument(key).is_some()))
    }

    /// Returns the kernel interface that the device is attached to and that must exist beforehand.
    pub(crate) fn underlying_interface(&self) -> Option<&str> {
        let sits_on_one = ["net_af_packet", "net_af_xdp"].iter().any(|driver| self.name().starts_with(driver));
        self.argument("iface").filter(|_| sits_on_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Device {
        Device::parse(text).unwrap()
    }

    #[test]
    fn names_and_arguments_are_told_apart() {
        let tap = device("net_tap0,iface=pinion0,mac=02:00:00:00:00:01");
        assert_eq!(tap.name(), "net_tap0");
        assert_eq!(tap.argument("iface"), Some("pinion0"));
        assert_eq!(tap.argument("mac"), Some("02:00:00:00:00:01"));
        assert_eq!(tap.argument("remote"), None);
        assert_eq!(tap.underlying_interface(), None);
        assert_eq!(device("net_af_xdp1,iface=veth0").underlying_interface(), Some("veth0"));
    }

    #[test]
    fn devices_that_send_by_a_packet_socket_are_known() {
        for text in ["net_af_packet0,iface=a", "net_pcap0,iface=a", "net_pcap0,rx_pcap=in.pcap,tx_iface=a"] {
            assert!(device(text).sends_by_packet_socket(), "{text}");
        }
        for text in
            ["net_af_xdp0,iface=a", "net_tap0,iface=a", "net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap", "net_ring0"]
        {
            assert!(!device(text).sends_by_packet_socket(), "{text}");
        }
    }

    #[test]
    fn pci_addresses_are_recognised() {
        for address in ["0000:00:04.0", "00:04.0", "0000:af:1f.7,representor=[0-3]"] {
            assert!(device(address).is_pci(), "{address}");
        }
        for other in ["net_ring0", "net_tap0,mac=02:00:00:00:00:01", "00:04", "4.0", "zz:04.0"] {
            assert!(!device(other).is_pci(), "{other}");
        }
    }

    #[test]
    fn a_misspelt_argument_is_not_ignored() {
        let error = Device::parse("net_tap0,ifcae=pinion0").err().unwrap();
        assert!(matches!(&error, DpdkError::UnknownArgument { argument, .. } if argument == "ifcae"), "{error}");
    }

    #[test]
    fn the_number_of_queues_is_passed_to_the_driver_unless_the_string_has_it() {
        let probed = |text: &str, queues| device(text).with_queues(queues).map(|device| device.probed);
        let packet = "net_af_packet0,iface=veth0";
        assert_eq!(probed(packet, 2).unwrap(), c"net_af_packet0,iface=veth0,qpairs=2".to_owned());
        assert_eq!(probed("net_af_xdp0,iface=a", 3).unwrap(), c"net_af_xdp0,iface=a,queue_count=3".to_owned());
        assert_eq!(probed("net_tap0,iface=a", 3).unwrap(), c"net_tap0,iface=a".to_owned());
        assert_eq!(
            probed(&format!("{packet},qpairs=2"), 2).unwrap(),
            c"net_af_packet0,iface=veth0,qpairs=2".to_owned()
        );
        let error = probed(&format!("{packet},qpairs=4"), 2).unwrap_err().to_string();
        assert!(error.contains("`net_af_packet0,iface=veth0,qpairs=4`") && error.contains("queues = 2"), "{error}");
    }

    #[test]
    fn a_malformed_device_string_is_refused() {
        for text in ["", ",iface=x", "net_tap0, iface=x", "net_tap0\0", &"x".repeat(64)] {
            assert!(matches!(Device::parse(text), Err(DpdkError::Malformed { .. })), "{text:?}");
        }
    }
}

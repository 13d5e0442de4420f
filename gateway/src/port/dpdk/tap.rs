//! Taps that are deleted under their port, and made again.
//!
//! A file of a deleted tap is attached to none, and can be attached to one of the same name: what the driver has opened
//! stays in use.
#![allow(unsafe_code)] // Requests about taps.

use std::ffi::{c_int, c_short};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::device::device_string::Device;
use super::kernel::interface::Interface;

const DRIVER: &str = "net_tap";
/// The device file of taps, by its numbers.
const TUN: (u32, u32) = (10, 200);
/// The flags by which the driver's taps differ. It reads four bytes before each frame, so `IFF_NO_PI` is not among them:
/// where the kernel tells the flags, that bit means something else.
const FLAGS: c_int = libc::IFF_MULTI_QUEUE | libc::IFF_VNET_HDR;

/// What a tap has to be like that takes the place of a deleted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapWish {
    /// The kernel's flags of its files.
    pub flags: i16,
    /// The hardware address of the kernel's side, if the tap has to be made.
    pub mac: [u8; 6],
}

/// Returns the interface that a tap's device string names, if it is a tap's and names one.
pub(crate) fn name(device: &Device) -> Option<&str> {
    device.argument("iface").filter(|_| device.name().starts_with(DRIVER))
}

/// Returns the flags of the tap that a file is attached to, or none if it is attached to none any more.
pub(crate) fn flags(file: &OwnedFd) -> Option<i16> {
    let mut request = no_request();
    // SAFETY: writes the structure, which outlives the call.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) };
    // SAFETY: the flags are the member that was written.
    (code == 0).then_some(unsafe { request.ifr_ifru.ifru_flags })
}

/// Returns whether a file keeps a tap alive, and carries no frames.
pub(crate) fn is_idle(file: &OwnedFd) -> bool {
    flags(file).is_some_and(|flags| c_int::from(flags) & libc::IFF_DETACH_QUEUE != 0)
}

/// Attaches files to the tap of this name, which is made if there is none. `interface` becomes the tap.
pub(crate) fn attach(name: &str, wish: &TapWish, interface: &mut Interface, files: &[OwnedFd]) -> io::Result<()> {
    if let Some(other) = files.iter().find(|file| !is_of_taps(file)) {
        return Err(io::Error::other(format!("descriptor {} is no tap's", other.as_raw_fd())));
    }
    let is_new = interface.index_of(name).is_none();
    let flags = c_int::from(wish.flags) & FLAGS | libc::IFF_TAP;
    for (number, file) in files.iter().enumerate() {
        match attach_one(file, name, flags) {
            // A tap that somebody made for a single queue.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && number == 0 => {
                attach_one(file, name, flags & !libc::IFF_MULTI_QUEUE)?;
            }
            // Two descriptors of one file, or further queues of a tap with one.
            Err(error) if [Some(libc::EEXIST), Some(libc::EINVAL)].contains(&error.raw_os_error()) && number > 0 => {}
            attached => attached?,
        }
    }
    if !interface.follow(name) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    if is_new { interface.set_mac(wish.mac) } else { Ok(()) }
}

fn attach_one(file: &OwnedFd, name: &str, flags: c_int) -> io::Result<()> {
    let mut request = no_request();
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: reads and writes the structure, which outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_of_taps(file: &OwnedFd) -> bool {
    let numbers = |stat: rustix::fs::Stat| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    rustix::fs::fstat(file).is_ok_and(|stat| numbers(stat) == TUN)
}

fn no_request() -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid request.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_taps_with_a_name_can_be_made_again() {
        let name_of = |text: &str| name(&Device::parse(text).unwrap()).map(str::to_owned);
        assert_eq!(name_of("net_tap0,iface=pinion0").as_deref(), Some("pinion0"));
        assert_eq!((name_of("net_tap0"), name_of("net_af_packet0,iface=eth1")), (None, None));
    }

    #[test]
    fn no_other_file_is_attached() {
        let null = std::fs::File::open("/dev/null").unwrap().into();
        let mut interface = Interface::of_name("lo").unwrap();
        let wish = TapWish { flags: 0, mac: [2; 6] };
        assert_eq!(flags(&null), None);
        let refusal = attach("no-such-tap", &wish, &mut interface, &[null]).unwrap_err();
        assert!(refusal.to_string().ends_with("is no tap's"), "{refusal}");
    }
}

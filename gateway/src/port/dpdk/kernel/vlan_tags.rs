//! Tags that an interface takes out of the frames that it receives, to note them beside the frames. What receives frames
//! by a program at the interface never sees those notes.
#![allow(unsafe_code)] // Requests of ethtool.

use std::io;

use super::interface::Interface;

/// Requests, and what they are about (linux/ethtool.h).
const GET_DRIVER: u32 = 0x03;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const TAKES_TAGS_OUT: u32 = 1 << 8;

/// The driver of virtual cables. Tags stay in their frames only if the far end leaves them there.
const VIRTUAL_CABLE: &[u8] = b"veth\0";

#[repr(C)]
struct Flags {
    command: u32,
    flags: u32,
}

#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    others: [u8; 160],
}

/// Whether frames keep their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tags {
    /// The interface leaves them in the frames.
    Kept,
    /// It cannot be kept from taking them out, or the far end of a virtual cable may do so.
    MayBeLost,
}

/// Makes the interface leave tags in the frames that it receives. This lasts.
pub(crate) fn keep(interface: &Interface) -> Tags {
    match kept(interface) {
        Ok(true) if !is_virtual_cable(interface) => Tags::Kept,
        _ => Tags::MayBeLost,
    }
}

fn kept(interface: &Interface) -> io::Result<bool> {
    let mut flags = Flags { command: GET_FLAGS, flags: 0 };
    // SAFETY: this request writes no more than the structure.
    unsafe { interface.ethtool(&mut flags)? };
    if flags.flags & TAKES_TAGS_OUT != 0 {
        let mut wanted = Flags { command: SET_FLAGS, flags: flags.flags & !TAKES_TAGS_OUT };
        // SAFETY: this request reads no more than the structure.
        unsafe { interface.ethtool(&mut wanted)? };
        flags.command = GET_FLAGS;
        // SAFETY: as the first one.
        unsafe { interface.ethtool(&mut flags)? };
    }
    Ok(flags.flags & TAKES_TAGS_OUT == 0)
}

fn is_virtual_cable(interface: &Interface) -> bool {
    let mut driver = Driver { command: GET_DRIVER, name: [0; 32], others: [0; 160] };
    // SAFETY: this request writes no more than the structure, which is as long as the kernel's.
    unsafe { interface.ethtool(&mut driver) }.is_ok() && driver.name.starts_with(VIRTUAL_CABLE)
}

//! How a device wakes a sleeping thread when a frame comes.
//!
//! * Devices fed by the kernel (`net_tap`, `net_af_packet`, `net_af_xdp`, `net_pcap` on an interface) have a file that
//!   is readable while a frame waits. No driver tells which file that is, so it is found among the files that appeared
//!   while the device was opened.
//! * Cards have receive interrupts, if kernel and driver support them. DPDK has an event file per queue, which becomes
//!   readable when a frame comes while the queue's interrupt is enabled.
//! * Other devices (rings, memif, recorded files) have no wake-up.
#![allow(unsafe_code)] // Borrows descriptors that drivers have opened.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_domain, socket_error};

use super::ethernet::Ethernet;
use crate::port::Alarm;

/// Where the kernel lists the open files of a process.
const OPEN_FILES: &str = "/proc/self/fd";
/// The device file of a tap.
const TAP: &str = "/dev/net/tun";
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The wake-up of one device. The descriptors are duplicates of the driver's, so that they stay valid.
#[derive(Debug)]
pub(crate) enum Alarms {
    /// No wake-up.
    None,
    /// Files that are readable while a frame waits.
    Files(Vec<OwnedFd>),
    /// Event files, one per queue, of interrupts that have to be enabled.
    Interrupts(Vec<OwnedFd>),
}

impl Alarms {
    /// Returns the wake-up of a started device, which has opened `files` to receive frames.
    pub(crate) fn of(ethernet: &Ethernet, files: Vec<OwnedFd>) -> Self {
        if !files.is_empty() {
            return Self::Files(files);
        }
        interrupts(ethernet).map_or(Self::None, Self::Interrupts)
    }

    pub(crate) fn descriptors(&self) -> &[OwnedFd] {
        match self {
            Self::None => &[],
            Self::Files(files) | Self::Interrupts(files) => files,
        }
    }

    pub(crate) fn arm(&self, ethernet: &Ethernet) -> Alarm {
        match self {
            Self::None => Alarm::None,
            Self::Files(files) => {
                // An interface that went down leaves a pending error, which would end every sleep until it is read.
                files.iter().for_each(|file| _ = socket_error(file));
                Alarm::Set
            }
            Self::Interrupts(_) => {
                if !ethernet.queues().all(|queue| ethernet.enable_interrupt(queue)) {
                    return Alarm::None;
                }
                // A frame that came before the interrupt was enabled may not have caused one.
                if ethernet.queues().any(|queue| ethernet.waiting(queue) > 0) { Alarm::Ringing } else { Alarm::Set }
            }
        }
    }

    pub(crate) fn disarm(&self, ethernet: &Ethernet) {
        let Self::Interrupts(events) = self else { return };
        for queue in ethernet.queues() {
            ethernet.disable_interrupt(queue);
        }
        for event in events {
            // The read returns how often the event was signalled, or fails if it was not. It does not block.
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }
}

fn interrupts(ethernet: &Ethernet) -> Option<Vec<OwnedFd>> {
    let event = |queue| {
        let event = duplicate(ethernet.interrupt_descriptor(queue)?)?;
        rustix::io::ioctl_fionbio(&event, true).ok()?;
        let works = ethernet.enable_interrupt(queue);
        ethernet.disable_interrupt(queue);
        works.then_some(event)
    };
    ethernet.queues().map(event).collect()
}

fn duplicate(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: borrowed for this call only, and the kernel checks that it is open.
    fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(descriptor) }, 0).ok()
}

/// The files that the process had open at one time.
#[derive(Debug)]
pub(crate) struct OpenFiles(BTreeSet<(RawFd, PathBuf)>);

impl OpenFiles {
    pub(crate) fn now() -> Self {
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
        };
        Self(fs::read_dir(OPEN_FILES).map(|entries| entries.filter_map(entry).collect()).unwrap_or_default())
    }

    /// Returns duplicates of files opened since then through which the kernel delivers frames.
    pub(crate) fn appeared_since(&self) -> Vec<OwnedFd> {
        let now = Self::now();
        let new = now.0.difference(&self.0);
        let feeding = new.filter_map(|(descriptor, file)| {
            duplicate(*descriptor).filter(|duplicate| hands_over_frames(duplicate.as_fd(), file) && is_quiet(duplicate))
        });
        feeding.collect()
    }
}

fn hands_over_frames(descriptor: BorrowedFd<'_>, file: &Path) -> bool {
    let families = [AddressFamily::PACKET, AddressFamily::XDP];
    file == Path::new(TAP) || socket_domain(descriptor).is_ok_and(|family| families.contains(&family))
}

/// Returns whether a file reports only frames. The file by which a driver keeps a tap alive, for example, always
/// reports an error.
fn is_quiet(descriptor: &OwnedFd) -> bool {
    let _ = socket_error(descriptor);
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let found = poll(&mut polled, Some(&AT_ONCE));
    found.is_ok() && (polled[0].revents() - PollFlags::IN).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};

    #[test]
    fn files_that_bring_no_frames_are_not_watched() {
        let before = OpenFiles::now();
        let _socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let _file = fs::File::open("/dev/null").unwrap();
        assert!(before.appeared_since().is_empty());
    }
}

//! A port's way to the supervisor, which makes the port's device again if that was deleted: the node itself has given up the rights.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pinion_builder_client::supervised::{self, Request};
use pinion_gateway::port::dpdk::remake::{DeviceMaker, MadeSockets, TapWish};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// The maker of one port's device.
#[derive(Debug)]
pub(super) struct SupervisedMaker {
    supervisor: Arc<OwnedFd>,
    port: u16,
    /// What the supervisor sends, and the end to which it sends.
    replies: OwnedFd,
    to: OwnedFd,
}

impl SupervisedMaker {
    /// Makes the maker of the port at this place in the configuration.
    pub(super) fn new(supervisor: &Arc<OwnedFd>, port: u16) -> std::io::Result<Self> {
        let (replies, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(Self { supervisor: Arc::clone(supervisor), port, replies, to })
    }
}

impl DeviceMaker for SupervisedMaker {
    fn sockets(&self) -> Option<MadeSockets> {
        let made = supervised::take_reply(self.replies.as_fd()).and_then(|(interface, mut sockets)| {
            let control = (!sockets.is_empty()).then(|| sockets.remove(0))?;
            Some(MadeSockets { interface, control, queues: sockets })
        });
        if made.is_none() {
            // If the supervisor has no room for a request now, the next one comes in a second.
            let _ = supervised::try_send(
                self.supervisor.as_fd(),
                &Request::Sockets { port: self.port },
                &[self.to.as_fd()],
            );
        }
        made
    }

    fn tap(&self, wish: &TapWish, control: BorrowedFd<'_>, files: &[OwnedFd]) {
        let TapWish { flags, mac } = *wish;
        let descriptors: Vec<_> = [control].into_iter().chain(files.iter().map(AsFd::as_fd)).collect();
        let request = Request::Tap { port: self.port, flags, mac };
        let _ = supervised::try_send(self.supervisor.as_fd(), &request, &descriptors);
    }
}

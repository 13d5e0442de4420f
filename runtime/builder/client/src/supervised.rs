//! Builders that a supervisor starts for the node, which has given up the rights that this takes.
//!
//! ```text
//!   node --[arguments] + stdin, stdout, stderr, status--> supervisor --starts--> builder
//!     <---------------- status: how it ended -----------------'
//! ```
//!
//! A request is one packet with four descriptors. The supervisor writes to the last one how the builder ended. If the node closes its end of
//! that pipe, or ends, the supervisor kills the builder.

use std::io::{self, IoSlice, IoSliceMut, PipeReader, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// The longest request, in bytes: an argument is a number or the name of a field, of which a stage has 64 at most.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Standard input, output and error, and the pipe for the status.
const DESCRIPTORS: usize = 4;

/// What the node tells its supervisor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// It opens its devices: from now on there may be something to clean up after it.
    Opening,
    /// It is up: from now on it is started again if it crashes.
    Up,
    /// A builder with these arguments is to be started.
    Build(Vec<String>),
}

/// How a builder ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderEnd {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

/// Sends a request, and the descriptors of a builder.
///
/// # Errors
/// The kernel's, also if the supervisor has ended.
pub fn send(supervisor: BorrowedFd<'_>, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(request)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(supervisor, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a request with its descriptors; none if the node has closed its end.
///
/// # Errors
/// The kernel's, or that it is no request.
pub fn receive(node: BorrowedFd<'_>) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(node, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("the request is too long"));
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
}

/// A builder that the supervisor was asked for. Dropping it kills the builder.
#[derive(Debug)]
pub(crate) struct SupervisedBuilder {
    status: PipeReader,
    told: Vec<u8>,
}

/// The ends of a builder's pipes that the node holds.
pub(crate) struct Pipes {
    pub(crate) stdin: io::PipeWriter,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
}

impl SupervisedBuilder {
    pub(crate) fn start(supervisor: BorrowedFd<'_>, arguments: &[String]) -> io::Result<(Self, Pipes)> {
        let (input, stdin) = io::pipe()?;
        let (stdout, output) = io::pipe()?;
        let (stderr, error) = io::pipe()?;
        let (status, tells) = io::pipe()?;
        let descriptors = [input.as_fd(), output.as_fd(), error.as_fd(), tells.as_fd()];
        send(supervisor, &Request::Build(arguments.to_vec()), &descriptors)?;
        Ok((Self { status, told: Vec::new() }, Pipes { stdin, stdout, stderr }))
    }

    /// Returns how it ended; none while it runs. Waits a short time for that.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<BuilderEnd>> {
        const SHORT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let mut ready = [PollFd::new(&self.status, PollFlags::IN)];
        match poll(&mut ready, Some(&SHORT)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            polled => polled?,
        };
        // Written in one piece, and shorter than what a pipe keeps together.
        self.status.read_to_end(&mut self.told)?;
        if self.told.is_empty() {
            return Err(io::Error::other("the supervisor has ended"));
        }
        Ok(Some(serde_json::from_slice(&self.told)?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_request_arrives_with_its_pipes_and_the_end_is_told() {
        let (node, supervisor) = pair();
        let arguments = vec!["check".to_owned()];
        let (mut builder, mut pipes) = SupervisedBuilder::start(node.as_fd(), &arguments).unwrap();
        let (request, descriptors) = receive(supervisor.as_fd()).unwrap().unwrap();
        assert_eq!(request, Request::Build(arguments));
        let [input, output, error, tells]: [OwnedFd; 4] = descriptors.try_into().unwrap();
        pipes.stdin.write_all(b"a module").unwrap();
        drop((pipes.stdin, output, error));
        let mut read = String::new();
        std::fs::File::from(input).read_to_string(&mut read).unwrap();
        assert_eq!(read, "a module");
        assert_eq!(builder.try_wait().unwrap(), None);
        std::fs::File::from(tells).write_all(&serde_json::to_vec(&BuilderEnd::Signal(9)).unwrap()).unwrap();
        assert_eq!(builder.try_wait().unwrap(), Some(BuilderEnd::Signal(9)));
    }

    #[test]
    fn the_end_of_either_side_is_noticed() {
        let (node, supervisor) = pair();
        let (mut builder, _pipes) = SupervisedBuilder::start(node.as_fd(), &[]).unwrap();
        drop(supervisor);
        assert!(builder.try_wait().is_err());
        assert!(SupervisedBuilder::start(node.as_fd(), &[]).is_err());
        let (node, supervisor) = pair();
        send(node.as_fd(), &Request::Up, &[]).unwrap();
        drop(node);
        assert_eq!(receive(supervisor.as_fd()).unwrap().map(|(request, _)| request), Some(Request::Up));
        assert!(receive(supervisor.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        let (node, supervisor) = pair();
        rustix::io::write(&node, b"{\"build\": 7}").unwrap();
        assert!(receive(supervisor.as_fd()).is_err());
    }
}

//! What a supervisor does for the node, which has given up the rights that this takes: starting builders, and making devices again that
//! were deleted.
//!
//! ```text
//!   node --[arguments] + stdin, stdout, stderr, status--> supervisor --starts--> builder
//!     <---------------- status: how it ended -----------------'
//!   node --[port] + reply--> supervisor    reply: sockets of the port
//!   node --[port] + files of a tap--> supervisor, which attaches them
//! ```
//!
//! A request is one packet with descriptors. Of a builder's four, the supervisor writes to the last one how the builder ended. If the node
//! closes its end of that pipe, or ends, the supervisor kills the builder.

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
/// The most descriptors of a packet, which is the kernel's bound (`SCM_MAX_FD`). A port has up to 64 queues: of a tap two for each, of packet
/// sockets one, and one more to ask the kernel by.
const DESCRIPTORS_MAX: usize = 253;

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
    /// The sockets of a port are to be made and sent to the descriptor that comes with it.
    Sockets {
        /// The port's place in the configuration, from 0.
        port: u16,
    },
    /// The files of a tap are to be attached to it. The first descriptor is a socket of its namespace.
    Tap {
        /// The port's place in the configuration, from 0.
        port: u16,
        /// The kernel's flags of the files.
        flags: i16,
        /// The hardware address of the tap, if it has to be made.
        mac: [u8; 6],
    },
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

/// Sends a request with its descriptors.
///
/// # Errors
/// The kernel's, also if the supervisor has ended.
pub fn send(supervisor: BorrowedFd<'_>, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_bytes(supervisor, &serde_json::to_vec(request)?, descriptors, SendFlags::NOSIGNAL)
}

/// As [`send`], for threads that must not wait.
///
/// # Errors
/// Also if the supervisor has not read earlier requests.
pub fn try_send(supervisor: BorrowedFd<'_>, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_bytes(supervisor, &serde_json::to_vec(request)?, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Sends the sockets of a port, which are bound to the interface of this index. Does not wait.
///
/// # Errors
/// The kernel's.
pub fn reply(node: BorrowedFd<'_>, interface: u32, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_bytes(node, &interface.to_be_bytes(), sockets, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Returns the last reply that has come, if there is one. Does not wait.
#[must_use]
pub fn take_reply(supervisor: BorrowedFd<'_>) -> Option<(u32, Vec<OwnedFd>)> {
    let mut last = None;
    let mut bytes = [0; size_of::<u32>()];
    while let Ok((size_of_index, sockets)) = receive_bytes(supervisor, &mut bytes, RecvFlags::DONTWAIT)
        && size_of_index == bytes.len()
    {
        last = Some((u32::from_be_bytes(bytes), sockets));
    }
    last
}

fn send_bytes(to: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let has_room = descriptors.len() <= DESCRIPTORS_MAX
        && (descriptors.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !has_room {
        let sentence =
            format!("{} descriptors in one packet: at most {DESCRIPTORS_MAX} are possible", descriptors.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives a request with its descriptors; none if the node has closed its end.
///
/// # Errors
/// The kernel's, or that it is no request.
pub fn receive(node: BorrowedFd<'_>) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let (len, descriptors) = receive_bytes(node, &mut bytes, RecvFlags::empty())?;
    if len == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..len])?, descriptors)))
}

/// Receives a packet with its descriptors. Returns its length.
fn receive_bytes(from: BorrowedFd<'_>, bytes: &mut [u8], flags: RecvFlags) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("the packet is too long"));
    }
    Ok((received.bytes, descriptors))
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
    fn the_last_reply_counts_and_none_is_waited_for() {
        let (node, supervisor) = pair();
        assert!(take_reply(node.as_fd()).is_none());
        let (one, two) = pair();
        reply(supervisor.as_fd(), 7, &[one.as_fd()]).unwrap();
        reply(supervisor.as_fd(), 8, &[one.as_fd(), two.as_fd()]).unwrap();
        let (interface, sockets) = take_reply(node.as_fd()).unwrap();
        assert_eq!((interface, sockets.len()), (8, 2));
        assert!(take_reply(node.as_fd()).is_none());
    }

    #[test]
    fn as_many_sockets_arrive_as_a_port_can_have_queues_and_more_than_fit_are_refused() {
        let (node, supervisor) = pair();
        let (socket, _other) = pair();
        reply(supervisor.as_fd(), 7, &vec![socket.as_fd(); 2 * 64 + 1]).unwrap();
        assert_eq!(take_reply(node.as_fd()).unwrap().1.len(), 129);
        let refused = reply(supervisor.as_fd(), 7, &vec![socket.as_fd(); DESCRIPTORS_MAX + 1]).unwrap_err();
        assert!(refused.to_string().contains("254 descriptors in one packet: at most 253"), "{refused}");
        assert!(take_reply(node.as_fd()).is_none(), "nothing is sent without its sockets");
    }

    #[test]
    fn a_supervisor_that_does_not_read_holds_up_no_thread_that_must_not_wait() {
        let (node, _supervisor) = pair();
        let request = Request::Tap { port: 1, flags: 2, mac: [3; 6] };
        let sent = (0..100_000).find_map(|_| try_send(node.as_fd(), &request, &[]).err());
        assert_eq!(sent.expect("the socket is full").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        let (node, supervisor) = pair();
        rustix::io::write(&node, b"{\"build\": 7}").unwrap();
        assert!(receive(supervisor.as_fd()).is_err());
    }
}

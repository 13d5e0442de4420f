//! A client that pings: it sends one echo request at a time, compares the reply byte by byte, and measures the round trip.
//!
//! The same code is used for every system under test. It sends by a raw socket in the client's network namespace, so a request takes the
//! same path as one of `ping`. Times are taken right before the request is handed to the kernel and right after the reply came out of it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pinion_tests::network::namespace::Namespace;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, connect, ipproto, recv, send, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::clients::checksum::internet_checksum;

/// An echo message: the header, and as much payload as `ping` sends.
const MESSAGE_LEN: usize = 8 + 56;
/// Longer than any reply.
const BUFFER_LEN: usize = 2048;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// A request unanswered for this long is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// How the client waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Polls the socket, so that the figure contains no wake-up of the client.
    Polling,
    /// Sleeps in the kernel, as most clients do.
    Sleeping,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The expected reply came after this time.
    After(Duration),
    /// No reply came.
    Lost,
}

/// The client.
#[derive(Debug)]
pub(crate) struct Prober {
    socket: OwnedFd,
    waiting: Waiting,
    ident: u16,
    sequence: u64,
}

impl Prober {
    /// Makes a client that pings `to`. From here on the calling thread is in the client's namespace, so it should be a thread made for
    /// this.
    pub(crate) fn open_here(client: &Namespace, to: Ipv4Addr, waiting: Waiting) -> anyhow::Result<Self> {
        let path = client.path();
        let namespace = std::fs::File::open(&path).with_context(|| format!("{}", path.display()))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("the client's namespace")?;
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).context("a raw socket")?;
        connect(&socket, &SocketAddrV4::new(to, 0)).with_context(|| format!("the way to {to}"))?;
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { socket, waiting, ident: 0x7069, sequence: 0 })
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// The reply is not the expected one, or the kernel does not accept the request.
    pub(crate) fn ping(&mut self) -> anyhow::Result<Answer> {
        self.sequence += 1;
        let request = message(ECHO_REQUEST, self.ident, self.sequence);
        let mut buffer = [0; BUFFER_LEN];
        let start = Instant::now();
        send(&self.socket, &request, SendFlags::empty()).context("an echo request")?;
        loop {
            let received = self.receive(&mut buffer, start)?;
            let now = Instant::now();
            let Some(len) = received else { return Ok(Answer::Lost) };
            match judge(&buffer[..len], self.ident, self.sequence) {
                Judged::Awaited => return Ok(Answer::After(now - start)),
                Judged::OtherTraffic => {}
                Judged::Wrong(sentence) => bail!("the reply to request {} is wrong: {sentence}", self.sequence),
            }
        }
    }

    /// Returns the next message's length; none if no message came in time.
    fn receive(&self, buffer: &mut [u8], start: Instant) -> anyhow::Result<Option<usize>> {
        let flags = match self.waiting {
            Waiting::Polling => RecvFlags::DONTWAIT,
            Waiting::Sleeping => RecvFlags::empty(),
        };
        loop {
            match recv(&self.socket, &mut *buffer, flags) {
                Ok((_, len)) => return Ok(Some(len)),
                Err(Errno::AGAIN) if start.elapsed() < PATIENCE => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("an echo reply"),
            }
        }
    }
}

/// A received message, compared with the expected one.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    Awaited,
    OtherTraffic,
    Wrong(&'static str),
}

/// Compares an IPv4 datagram as raw sockets deliver it.
fn judge(datagram: &[u8], ident: u16, sequence: u64) -> Judged {
    let header_len = datagram.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    let Some(got) = datagram.get(header_len..) else { return Judged::Wrong("it is cut short") };
    if got.first() != Some(&ECHO_REPLY) || got.get(4..6) != Some(&ident.to_be_bytes()) {
        return Judged::OtherTraffic;
    }
    if got == message(ECHO_REPLY, ident, sequence) {
        Judged::Awaited
    } else if got.get(6..8) != Some(&(sequence as u16).to_be_bytes()) {
        Judged::Wrong("it has another sequence number: it came twice or too late")
    } else {
        Judged::Wrong("its bytes are others than those of the request")
    }
}

/// Returns an echo message with a payload that no other request has.
fn message(kind: u8, ident: u16, sequence: u64) -> [u8; MESSAGE_LEN] {
    let mut message = [0; MESSAGE_LEN];
    message[0] = kind;
    message[4..6].copy_from_slice(&ident.to_be_bytes());
    message[6..8].copy_from_slice(&(sequence as u16).to_be_bytes());
    for (word, chunk) in message[8..].chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64).to_be_bytes());
    }
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(message: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; 20];
        datagram[0] = 0x45;
        datagram.extend(message);
        datagram
    }

    #[test]
    fn a_message_has_a_right_checksum() {
        assert_eq!(internet_checksum(&message(ECHO_REQUEST, 1, 2)), 0);
    }

    #[test]
    fn only_the_reply_to_the_request_is_awaited() {
        assert_eq!(judge(&datagram(&message(ECHO_REPLY, 7, 3)), 7, 3), Judged::Awaited);
        assert_eq!(judge(&datagram(&message(ECHO_REQUEST, 7, 3)), 7, 3), Judged::OtherTraffic);
        assert_eq!(judge(&datagram(&message(ECHO_REPLY, 8, 3)), 7, 3), Judged::OtherTraffic);
        assert!(matches!(judge(&datagram(&message(ECHO_REPLY, 7, 2)), 7, 3), Judged::Wrong(_)));
        assert!(matches!(judge(&datagram(&message(ECHO_REPLY, 7, 3 + 0x1_0000)), 7, 3), Judged::Wrong(_)));
    }

    #[test]
    fn an_altered_reply_is_wrong_wherever_it_was_altered() {
        let reply = datagram(&message(ECHO_REPLY, 7, 3));
        for at in (20 + 6)..reply.len() {
            let mut altered = reply.clone();
            altered[at] ^= 1;
            assert!(matches!(judge(&altered, 7, 3), Judged::Wrong(_)), "byte {at}");
        }
        assert!(matches!(judge(&reply[..reply.len() - 1], 7, 3), Judged::Wrong(_)));
    }
}

//! A port whose far end is another program on the same machine. Each frame is a packet of a Unix socket
//! (`SOCK_SEQPACKET`).
//!
//! ```text
//!   the program, which listens  --send--> socket --> SocketPort::receive
//!                               <--recv-- socket <-- SocketPort::transmit
//! ```
//!
//! For tools that feed a node, such as `pinion dev`. It needs no device, no DPDK and no privileges except access to the
//! socket's file. The program must listen before the port is opened. An empty packet, or the end of the connection,
//! takes the link down for good.
//!
//! Each frame is one system call, as with the kernel's other sockets. A frame that finds no room in the socket is
//! dropped and counted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};

use super::memory::MemoryPortConfig;
use super::{
    Alarm, BufferPool, FRAME_OVERHEAD, LinkState, Port, PortCounters, PortFacts, Promiscuous, Unfit, unfit_for,
};

/// The send buffer to request, for frames that the program has not read yet. The kernel may grant less.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("no program exchanges frames at {}: {error}: start the program that listens there first", path.display())]
pub struct NoListener {
    path: PathBuf,
    error: io::Error,
}

/// The gateway's end.
pub struct SocketPort {
    name: String,
    device: String,
    mac: [u8; 6],
    mtu: u16,
    promiscuous: Promiscuous,
    /// `None` after the far end has closed the connection.
    socket: Option<OwnedFd>,
    pool: Box<dyn BufferPool>,
    spare: Vec<Buffer>,
    /// Buffers on their way back to a pool; empty between calls.
    spent: Vec<Buffer>,
    counters: Arc<PortCounters>,
}

impl SocketPort {
    /// Connects to the program that listens at `path`. The queue length of the configuration is not used. `device` is
    /// the device name that the port reports.
    ///
    /// # Errors
    /// If no program listens there.
    pub fn connect(
        config: MemoryPortConfig,
        device: &str,
        path: &Path,
        pool: impl BufferPool + 'static,
    ) -> Result<Self, NoListener> {
        let no_program = |error: Errno| NoListener { path: path.to_owned(), error: error.into() };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(no_program)?;
        // A smaller buffer is no failure: frames that do not fit are dropped and counted.
        let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        let address = SocketAddrUnix::new(path).map_err(no_program)?;
        connect(&socket, &address).map_err(no_program)?;
        let MemoryPortConfig { name, mac, mtu, promiscuous, .. } = config;
        let (socket, pool) = (Some(socket), Box::new(pool));
        let (spare, spent, counters) = (Vec::new(), Vec::new(), Arc::default());
        Ok(Self { name, device: device.to_owned(), mac, mtu, promiscuous, socket, pool, spare, spent, counters })
    }

    fn unfit(&self, frame: &Frame) -> Option<Unfit> {
        unfit_for(frame.len(), u32::from(self.mtu) + FRAME_OVERHEAD)
    }

    /// Receives the next frame into one of the spare buffers. Returns `None` if no frame waits.
    fn next(&mut self) -> Option<Frame> {
        loop {
            let socket = self.socket.as_ref()?;
            let mut buffer = self.spare.pop()?;
            let capacity = buffer.capacity();
            let received = recv(socket, buffer.bytes_mut(capacity), RecvFlags::DONTWAIT | RecvFlags::TRUNC);
            match received.map(|(_, len)| len.try_into().unwrap_or(u32::MAX)) {
                Ok(len @ 1..) if len <= capacity => return Some(Frame::new(buffer, len)),
                Ok(1..) => self.counters.received.dropped_malformed.add(1),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.spare.push(buffer);
                    return None;
                }
                Ok(0) | Err(_) => self.socket = None,
            }
            self.spare.push(buffer);
        }
    }
}

impl Port for SocketPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn device(&self) -> &str {
        &self.device
    }

    fn facts(&self) -> PortFacts {
        let link = if self.socket.is_some() { LinkState::Up } else { LinkState::Down };
        PortFacts { mac: self.mac, mtu: self.mtu, link, missed: 0 }
    }

    fn promiscuous(&self) -> Promiscuous {
        self.promiscuous
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let before = frames.len();
        // Buffers taken for frames that did not come are kept for the next call.
        let missing = max.saturating_sub(self.spare.len());
        self.pool.take(&mut self.spare, missing);
        while frames.len() - before < max
            && let Some(frame) = self.next()
        {
            self.counters.received.frames.add(1);
            self.counters.received.bytes.add(frame.len().into());
            frames.push(frame);
        }
        frames.len() - before
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let sent = &self.counters.sent;
        let before = sent.frames.value();
        for frame in frames.iter() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if let Some(why) = self.unfit(frame) {
                sent.count_unfit(why);
                continue;
            }
            match self.socket.as_ref().map(|socket| send(socket, frame.bytes(), flags)) {
                Some(Ok(_)) => {
                    sent.frames.add(1);
                    sent.bytes.add(frame.len().into());
                }
                Some(Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR)) => sent.dropped_full.add(1),
                Some(Err(_)) | None => sent.dropped_link_down.add(1),
            }
        }
        self.spent.extend(frames.drain(..).map(Frame::into_buffer));
        pool.give(&mut self.spent);
        (sent.frames.value() - before) as usize
    }

    fn arm(&mut self) -> Alarm {
        // A closed connection has nothing to report.
        Alarm::Set
    }

    fn descriptors(&self) -> &[OwnedFd] {
        self.socket.as_slice()
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for SocketPort {
    fn drop(&mut self) {
        self.pool.give(&mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{accept, bind, listen};

    use super::*;
    use crate::port::heap::HeapPool;

    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    /// A port, its far end, and its pool of `buffers` buffers of 2 KiB.
    fn port(buffers: usize) -> (SocketPort, OwnedFd, HeapPool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frames.sock");
        let listening = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listening, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listening, 1).unwrap();
        let pool = HeapPool::new(buffers, 2048);
        let port = SocketPort::connect(MemoryPortConfig::named("west"), "unix0", &path, pool.clone()).unwrap();
        (port, accept(&listening).unwrap(), pool)
    }

    fn put(far: &OwnedFd, frame: &[u8]) {
        assert_eq!(send(far, frame, SendFlags::DONTWAIT), Ok(frame.len()));
    }

    fn is_readable(port: &SocketPort) -> bool {
        let mut polled: Vec<_> = port.descriptors().iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        poll(&mut polled, Some(&AT_ONCE)).unwrap() > 0
    }

    #[test]
    fn frames_pass_both_ways_in_order_and_whole_and_their_buffers_return() {
        let (mut port, far, mut pool) = port(8);
        (0..5_u8).for_each(|byte| put(&far, &[byte; 60]));
        let mut frames = Vec::new();
        assert_eq!((port.receive(&mut frames, 3), port.receive(&mut frames, 3)), (3, 2));
        for (byte, frame) in (0..).zip(&frames) {
            assert_eq!(frame.bytes(), [byte; 60]);
        }
        assert_eq!(port.transmit(&mut frames, &mut pool), 5);
        let mut bytes = [0; 100];
        for byte in 0..5_u8 {
            let (len, _) = recv(&far, &mut bytes[..], RecvFlags::DONTWAIT).unwrap();
            assert_eq!(bytes[..len], [byte; 60]);
        }
        let counters = Arc::clone(port.counters());
        assert_eq!((counters.received.bytes.value(), counters.sent.frames.value()), (300, 5));
        drop(port);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn frames_wait_while_the_pool_is_empty() {
        let (mut port, far, mut pool) = port(2);
        (0..3_u8).for_each(|byte| put(&far, &[byte; 60]));
        let mut frames = Vec::new();
        assert_eq!((port.receive(&mut frames, 8), port.receive(&mut frames, 8)), (2, 0));
        pool.give(&mut frames.drain(..).map(Frame::into_buffer).collect());
        assert_eq!(port.receive(&mut frames, 8), 1);
        assert_eq!(frames[0].bytes(), [2; 60]);
    }

    #[test]
    fn a_frame_that_no_buffer_holds_or_no_port_may_send_is_dropped_and_counted() {
        let (mut port, far, mut pool) = port(4);
        put(&far, &[1; 3000]);
        for len in [1600, 1, 13, 14] {
            put(&far, &[2; 1600][..len]);
        }
        let mut frames = Vec::new();
        while port.receive(&mut frames, 8) > 0 {}
        assert_eq!(frames.len(), 4);
        assert_eq!(port.counters().received.dropped_malformed.value(), 1);
        assert_eq!(port.transmit(&mut frames, &mut pool), 1);
        let sent = &port.counters().sent;
        assert_eq!((sent.dropped_runt.value(), sent.dropped_unfit.value(), sent.dropped_full.value()), (2, 1, 0));
    }

    #[test]
    fn what_the_far_end_does_not_read_is_dropped_and_counted_when_the_socket_is_full() {
        let (mut port, _far, mut pool) = port(1);
        for _ in 0..10_000 {
            let mut buffers = Vec::new();
            assert_eq!(pool.take(&mut buffers, 1), 1);
            let mut frames = buffers.into_iter().map(|buffer| Frame::new(buffer, 1500)).collect();
            if port.transmit(&mut frames, &mut pool) == 0 {
                break;
            }
        }
        assert_eq!(port.counters().sent.dropped_full.value(), 1);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_sleeping_thread_is_woken_by_frames_and_once_by_the_end() {
        let (mut port, far, _pool) = port(4);
        assert_eq!(port.facts().link, LinkState::Up);
        assert!(!is_readable(&port));
        put(&far, &[1; 60]);
        assert!(is_readable(&port));
        let mut frames = Vec::new();
        assert_eq!(port.receive(&mut frames, 8), 1);
        drop(far);
        assert!(is_readable(&port));
        assert_eq!(port.receive(&mut frames, 8), 0);
        assert_eq!(port.facts().link, LinkState::Down);
        assert!(port.descriptors().is_empty());
    }

    #[test]
    fn without_a_program_that_listens_the_path_is_named() {
        let pool = HeapPool::new(1, 2048);
        let path = Path::new("/nowhere/frames.sock");
        let error = SocketPort::connect(MemoryPortConfig::named("west"), "unix0", path, pool).err().unwrap();
        assert!(error.to_string().starts_with("no program exchanges frames at /nowhere/frames.sock: "), "{error}");
    }
}

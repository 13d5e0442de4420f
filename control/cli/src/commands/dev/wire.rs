//! Sends frames into a node's ports and receives frames from them: the peer of its `unix` devices, where each frame is
//! a packet.
//!
//! A thread for each port receives frames as they arrive, and writes them with the time of the newest frame that was
//! sent in before.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use pinion_control::model::PortName;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    send, shutdown, socket_with, sockopt::set_socket_send_buffer_size,
};

use super::BadInput;
use super::capture::{Captured, Sink};
use super::node::{PortConfig, text};

/// An upper bound of a frame's length. The kernel passes packets of up to 64 KiB before they are segmented.
const FRAME_BYTES_MAX: usize = 128 << 10;
/// The requested send buffer for frames that the node has not read yet.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The listening socket that a starting node connects to.
pub(super) struct Listening {
    socket: OwnedFd,
    path: PathBuf,
    ports: Vec<PortName>,
}

impl Listening {
    /// Listens for these ports, in a folder of this command.
    pub(super) fn new(folder: &Path, ports: Vec<PortName>) -> anyhow::Result<Self> {
        let path = folder.join("frames.sock");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&path)?).with_context(|| path.display().to_string())?;
        listen(&socket, ports.len().try_into()?)?;
        Ok(Self { socket, path, ports })
    }

    /// Returns the node's ports, which receive frames for every station.
    pub(super) fn ports(&self) -> Result<Vec<PortConfig>, BadInput> {
        let path = text(&self.path)?;
        let port = |(number, name): (usize, &PortName)| PortConfig {
            name: name.clone(),
            device: format!("unix{number},path={path}"),
            promiscuous: true,
            addresses: Vec::new(),
        };
        Ok(self.ports.iter().enumerate().map(port).collect())
    }

    /// Accepts the connections of the node's ports once it is up. They connect one after another.
    pub(super) fn wired(self, sink: Sink) -> anyhow::Result<Wire> {
        let accept = |_| accept_with(&self.socket, SocketFlags::CLOEXEC).context("the node has not opened its ports");
        let ends = self.ports.iter().map(accept).collect::<anyhow::Result<Vec<_>>>()?;
        let _ = set_socket_send_buffer_size(&ends[0], SEND_BUFFER_BYTES);
        let shared = Arc::new(Mutex::new(Outcome {
            sink,
            newest: Duration::ZERO,
            stations: HashSet::new(),
            came: Came::default(),
        }));
        let ends: Vec<Arc<OwnedFd>> = ends.into_iter().map(Arc::new).collect();
        let take = |end: &Arc<OwnedFd>| {
            let (end, shared) = (Arc::clone(end), Arc::clone(&shared));
            std::thread::spawn(move || take_all(&end, &shared))
        };
        let takers = ends.iter().map(take).collect();
        Ok(Wire { ends, takers, shared })
    }
}

/// The frames that were received from the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) frames: u64,
    /// Frames to stations from which frames had come.
    pub(super) replies: u64,
    problem: Option<String>,
}

struct Outcome {
    sink: Sink,
    newest: Duration,
    /// The source addresses of frames.
    stations: HashSet<[u8; 6]>,
    came: Came,
}

/// The peers of a node's ports.
pub(super) struct Wire {
    ends: Vec<Arc<OwnedFd>>,
    takers: Vec<JoinHandle<()>>,
    shared: Arc<Mutex<Outcome>>,
}

impl Wire {
    /// Sends frames into the first port, and waits while the socket has no room. Removes frames from the burst that are
    /// longer than the socket accepts, which are longer than any port accepts.
    pub(super) fn put(&self, burst: &mut Vec<Captured>) -> anyhow::Result<()> {
        {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let newest = burst.iter().map(|it| it.time.since_1970).max().unwrap_or_default();
            shared.newest = newest.max(shared.newest);
            shared.stations.extend(burst.iter().filter_map(|it| it.frame[..].get(6..12)?.first_chunk::<6>()));
        }
        let mut failed = Ok(());
        burst.retain(|Captured { frame, .. }| match send(&self.ends[0], frame, SendFlags::NOSIGNAL) {
            _ if failed.is_err() => true,
            Ok(_) => true,
            Err(Errno::MSGSIZE) => false,
            Err(error) => {
                failed = Err(error);
                true
            }
        });
        failed.context("the node takes no more frames")
    }

    /// Returns the counts of received frames so far.
    pub(super) fn came(&self) -> Came {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).came.clone()
    }

    /// Receives the remaining frames of a node that has ended, and flushes the output file.
    pub(super) fn finish(mut self) -> anyhow::Result<Came> {
        for taker in self.takers.drain(..) {
            taker.join().map_err(|_| anyhow::anyhow!("a thread that receives frames panicked"))?;
        }
        let shared = Arc::clone(&self.shared);
        drop(self);
        let outcome = Arc::into_inner(shared).context("the outcome is still shared with a receiving thread")?;
        let Outcome { sink, came, .. } = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        sink.finish().map_err(anyhow::Error::msg)?;
        match &came.problem {
            Some(problem) => Err(anyhow::Error::msg(problem.clone())),
            None => Ok(came),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = shutdown(end, rustix::net::Shutdown::Both);
        }
        self.takers.drain(..).for_each(|taker| _ = taker.join());
    }
}

/// Receives frames until the node's end is closed.
fn take_all(end: &OwnedFd, shared: &Mutex<Outcome>) {
    let mut bytes = vec![0; FRAME_BYTES_MAX];
    loop {
        let len = match recv(end, &mut bytes[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Ok((len @ 1.., _)) => len,
            Ok(_) | Err(_) => return,
        };
        let frame = &bytes[..len];
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Outcome { sink, newest, stations, came } = &mut *shared;
        came.frames += 1;
        came.replies += u64::from(frame.first_chunk().is_some_and(|station| stations.contains(station)));
        if let Err(problem) = sink.write(*newest, frame) {
            came.problem.get_or_insert(problem);
        }
    }
}

//! Frames into a node's ports and out of them: the far end of its `unix` devices, each frame a packet.
//!
//! What comes out is taken by a thread for each port as it comes, and written with the time of the newest frame that went in before.

use std::collections::HashSet;
use std::fmt::Write as _;
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

use super::capture::{Captured, Sink};

/// No frame is longer; the kernel hands out packets of up to 64 KiB before they are cut.
const FRAME_BYTES_MAX: usize = 128 << 10;
/// What is asked for frames that the node has not read yet.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Where a node that is about to start finds us.
pub(super) struct Listening {
    socket: OwnedFd,
    path: PathBuf,
    ports: Vec<PortName>,
}

impl Listening {
    /// For these ports, in a folder of ours.
    pub(super) fn new(folder: &Path, ports: Vec<PortName>) -> anyhow::Result<Self> {
        let path = folder.join("frames.sock");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&path)?).with_context(|| path.display().to_string())?;
        listen(&socket, ports.len().try_into()?)?;
        Ok(Self { socket, path, ports })
    }

    /// The node's `[[port]]`s, which take in frames for every station.
    pub(super) fn ports_text(&self) -> String {
        let mut text = String::new();
        for (number, port) in self.ports.iter().enumerate() {
            let device = format!("unix{number},path={}", self.path.display());
            let _ = write!(text, "[[port]]\nname = \"{port}\"\ndevice = {device:?}\npromiscuous = true\n");
        }
        text
    }

    /// What the node's ports have connected to, once it is up: they do so one after another.
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

/// What has come out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) frames: u64,
    /// To stations that frames had come from.
    pub(super) replies: u64,
    problem: Option<String>,
}

struct Outcome {
    sink: Sink,
    newest: Duration,
    /// Where frames came from.
    stations: HashSet<[u8; 6]>,
    came: Came,
}

/// The far ends of a node's ports.
pub(super) struct Wire {
    ends: Vec<Arc<OwnedFd>>,
    takers: Vec<JoinHandle<()>>,
    shared: Arc<Mutex<Outcome>>,
}

impl Wire {
    /// Puts frames in at the first port; waits while there is no room.
    pub(super) fn put(&self, frames: &[Captured]) -> anyhow::Result<()> {
        {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.newest = frames.iter().map(|it| it.time).max().unwrap_or_default().max(shared.newest);
            shared.stations.extend(frames.iter().filter_map(|it| it.frame[..].get(6..12)?.first_chunk::<6>()));
        }
        for Captured { frame, .. } in frames {
            match send(&self.ends[0], frame, SendFlags::NOSIGNAL) {
                Ok(_) => {}
                // What is longer than a socket takes is longer than any port does, too.
                Err(Errno::MSGSIZE) => anyhow::bail!("a frame of {} bytes: no port takes one so long", frame.len()),
                Err(error) => return Err(error).context("the node takes no more frames"),
            }
        }
        Ok(())
    }

    /// What has come out so far.
    pub(super) fn came(&self) -> Came {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).came.clone()
    }

    /// Takes what is still on the way out of a node that has ended; all is written then.
    pub(super) fn finish(mut self) -> anyhow::Result<Came> {
        for taker in self.takers.drain(..) {
            taker.join().map_err(|_| anyhow::anyhow!("frames that came out were not taken"))?;
        }
        let shared = Arc::clone(&self.shared);
        drop(self);
        let outcome = Arc::into_inner(shared).context("nobody else has it")?;
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

/// Until the node's end is closed.
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

//! Clients over TCP: each has one request under way, and sends the next once it has the reply (Enberg, whose load comes from mutilate).
//!
//! They are one thread in the client's namespace, which polls; so the figure contains no wake-up of theirs.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::figures::memcached::items::{Item, STORED, Texts};
use crate::figures::memcached::mixed;
use crate::measurement::percentiles::Percentiles;

/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 200;
/// The items that all connections ask for.
const ITEMS: u32 = 10_000;
/// Includes the server's start.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// No reply takes longer.
const REPLY_MAX: Duration = Duration::from_secs(10);
/// The most events taken at a time.
const EVENTS: usize = 128;

/// What all connections measured.
#[derive(Debug)]
pub(crate) struct Asked {
    /// From right before a request was written until its reply was read whole.
    pub(crate) times: Percentiles,
    /// Bytes of values a second, in megabytes.
    pub(crate) goodput_mbs: f64,
}

struct Connection {
    stream: TcpStream,
    item: Item,
    asked: Instant,
    reply: Vec<u8>,
    got: usize,
}

/// All connections.
pub(crate) struct Connections {
    texts: Texts,
    all: Vec<Connection>,
    drawn: u64,
}

impl Connections {
    /// Opens so many connections, as soon as the server takes them, and stores all items.
    ///
    /// # Errors
    /// The server takes none, or stores nothing.
    pub(crate) fn open(count: usize, to: SocketAddr) -> anyhow::Result<Self> {
        let texts = Texts::new(VALUE_BYTES);
        let connect = |_| connected(to);
        let streams = (0..count).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
        store_all(streams.first().context("there are no connections")?, &texts)?;
        let connection = |stream: TcpStream| -> anyhow::Result<Connection> {
            stream.set_nonblocking(true)?;
            let reply = vec![0; texts.bytes_max()];
            Ok(Connection { stream, item: item(0), asked: Instant::now(), reply, got: 0 })
        };
        let all = streams.into_iter().map(connection).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { texts, all, drawn: 0 })
    }

    /// Asks on all connections for `time`, after a warm-up of a tenth of it.
    ///
    /// # Errors
    /// A reply is wrong or does not come.
    pub(crate) fn ask(&mut self, time: Duration) -> anyhow::Result<Asked> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        for (at, connection) in self.all.iter().enumerate() {
            epoll::add(&poll, &connection.stream, EventData::new_u64(at as u64), EventFlags::IN)?;
        }
        let start = Instant::now() + time / 10;
        let (mut times, mut replies) = (Percentiles::new(), 0_u64);
        (0..self.all.len()).try_for_each(|at| self.ask_next(at))?;
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut last_reply = Instant::now();
        loop {
            let count = epoll::wait(&poll, &mut events[..], Some(&now)).context("replies")?;
            ensure!(last_reply.elapsed() < REPLY_MAX, "no reply came for {REPLY_MAX:?}");
            for event in &events[..count] {
                let at = event.data.u64() as usize;
                let Some(asked) = self.read(at)? else { continue };
                last_reply = Instant::now();
                if asked >= start {
                    times.record(last_reply - asked);
                    replies += 1;
                }
                self.ask_next(at)?;
            }
            if last_reply >= start + time {
                let seconds = (last_reply - start).as_secs_f64();
                return Ok(Asked { times, goodput_mbs: replies as f64 * VALUE_BYTES as f64 / seconds / 1e6 });
            }
        }
    }

    fn ask_next(&mut self, at: usize) -> anyhow::Result<()> {
        self.drawn += 1;
        let connection = &mut self.all[at];
        connection.item = item((mixed(self.drawn) % u64::from(ITEMS)) as u32);
        connection.got = 0;
        connection.asked = Instant::now();
        let mut request = [0; 64];
        let len = self.texts.write_get(connection.item, &mut request);
        // A connection without a request under way has room for one.
        connection.stream.write_all(&request[..len]).context("a request")
    }

    /// Reads what has come; returns when the request was written whose reply is whole now.
    fn read(&mut self, at: usize) -> anyhow::Result<Option<Instant>> {
        let Connection { stream, item, asked, reply, got } = &mut self.all[at];
        match stream.read(&mut reply[*got..]) {
            Ok(0) => anyhow::bail!("the server has closed a connection"),
            Ok(count) => *got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("a reply"),
        }
        if *got < self.texts.found_bytes() {
            return Ok(None);
        }
        ensure!(self.texts.is_found(*item, &reply[..*got]), "a reply is not the item's");
        Ok(Some(*asked))
    }
}

fn item(number: u32) -> Item {
    Item { client: 0, number }
}

fn connected(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let deadline = Instant::now() + CONNECT_MAX;
    loop {
        match TcpStream::connect_timeout(&to, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(REPLY_MAX))?;
                return Ok(stream);
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).with_context(|| format!("a connection to {to}")),
        }
    }
}

fn store_all(mut stream: &TcpStream, texts: &Texts) -> anyhow::Result<()> {
    let (mut request, mut reply) = (vec![0; texts.bytes_max()], [0; STORED.len()]);
    for number in 0..ITEMS {
        let len = texts.write_set(item(number), &mut request);
        stream.write_all(&request[..len]).context("a set")?;
        stream.read_exact(&mut reply).context("the reply to a set")?;
        ensure!(reply == STORED, "item {number} is not stored: {}", String::from_utf8_lossy(&reply));
    }
    Ok(())
}

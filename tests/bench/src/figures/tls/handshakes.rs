//! Handshakes, so many of which are under way all the time, each on a connection of its own.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, HandshakeKind};

use crate::clients::web::addresses::{Addresses, begin, open};
use crate::clients::web::reply::Reply;
use crate::clients::web::wire::{Received, Secure, Speaks};
use crate::measurement::percentiles::Percentiles;

/// If no handshake is done for this long, none will be.
const DONE_MAX: Duration = Duration::from_secs(10);
/// The most events taken at a time.
const EVENTS: usize = 64;

/// The results.
#[derive(Debug)]
pub(crate) struct Shaken {
    /// From right before the connection until the server's last message was verified.
    pub(crate) times: Percentiles,
    /// Handshakes of the wanted kind, with a reply after them.
    wanted: u64,
    /// Those of another kind, which count for nothing.
    unwanted: u64,
    all: u64,
    time: Duration,
    busy: Duration,
}

impl Shaken {
    /// Returns the handshakes a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.wanted as f64 / self.time.as_secs_f64()
    }

    /// Returns the part of all handshakes that was of another kind.
    pub(crate) fn unwanted_part(&self) -> f64 {
        self.unwanted as f64 / (self.wanted + self.unwanted).max(1) as f64
    }

    /// Returns the clients' own work for a handshake and its request, in nanoseconds: that of the kernel on their thread is part of it.
    pub(crate) fn client_ns(&self) -> f64 {
        self.busy.as_nanos() as f64 / self.all.max(1) as f64
    }
}

/// Handshakes of one kind with a server.
#[derive(Debug)]
pub(crate) struct Handshakes {
    to: SocketAddrV4,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    wanted: HandshakeKind,
    request: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
struct Attempt {
    secure: Secure,
    started: Instant,
    /// How long the handshake took; none while it is under way.
    took: Option<Duration>,
    reply: Reply,
}

impl Handshakes {
    pub(crate) fn new(
        to: SocketAddrV4,
        speaks: &Speaks,
        wanted: HandshakeKind,
        request: Vec<u8>,
    ) -> anyhow::Result<Self> {
        let Speaks::Tls(config, name) = speaks else { bail!("plain text has no handshake") };
        Ok(Self { to, config: Arc::clone(config), name: name.clone(), wanted, request })
    }

    /// Keeps so many under way for `time`, after a warm-up of a tenth of it, as soon as the server is there.
    ///
    /// # Errors
    /// One fails, or its reply is not right.
    pub(crate) fn keep(&self, under_way: usize, addresses: &mut Addresses, time: Duration) -> anyhow::Result<Shaken> {
        drop(open(addresses.next(), self.to)?);
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let start = Instant::now();
        let (counts_from, end) = (start + time / 10, start + time / 10 + time);
        let mut shaken =
            Shaken { times: Percentiles::new(), wanted: 0, unwanted: 0, all: 0, time, busy: Duration::ZERO };
        let mut begin_next = |at: usize| self.begin(at, addresses, &poll);
        let mut attempts = (0..under_way).map(&mut begin_next).collect::<anyhow::Result<Vec<_>>>()?;
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut last_done = start;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(shaken);
            }
            ensure!(now - last_done < DONE_MAX, "no handshake was done for {DONE_MAX:?}");
            let count = epoll::wait(&poll, &mut events[..], Some(&at_once)).context("handshakes")?;
            for event in &events[..count] {
                let at = event.data.u64() as usize;
                let Some(took) = self.advance(&mut attempts[at])? else { continue };
                last_done = Instant::now();
                shaken.all += 1;
                if last_done >= counts_from {
                    let is_wanted = attempts[at].secure.session.handshake_kind() == Some(self.wanted);
                    match is_wanted {
                        true => shaken.wanted += 1,
                        false => shaken.unwanted += 1,
                    }
                    if is_wanted {
                        shaken.times.record(took);
                    }
                }
                // Closes the connection that is done.
                attempts[at] = begin_next(at)?;
            }
            if count > 0 {
                shaken.busy += now.elapsed();
            }
            // The kernel's receive processing on this core may have been left to a thread.
            thread::yield_now();
        }
    }

    fn begin(&self, at: usize, addresses: &mut Addresses, poll: &OwnedFd) -> anyhow::Result<Attempt> {
        let started = Instant::now();
        let stream = begin(addresses.next(), self.to).context("a connection")?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(poll, &stream, EventData::new_u64(at as u64), flags)?;
        let secure = Secure::new(stream, &self.config, &self.name)?;
        Ok(Attempt { secure, started, took: None, reply: Reply::default() })
    }

    /// Goes on as far as the kernel lets it; returns how long the handshake took once its reply is there.
    fn advance(&self, attempt: &mut Attempt) -> anyhow::Result<Option<Duration>> {
        let Attempt { secure, started, took, reply } = attempt;
        loop {
            secure.send()?;
            let received = secure.receive()?;
            if !secure.session.is_handshaking() && took.is_none() {
                *took = Some(started.elapsed());
                let suite = secure.session.negotiated_cipher_suite().map(|suite| suite.suite());
                ensure!(suite == Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256), "the cipher suite is {suite:?}");
                std::io::Write::write_all(&mut secure.session.writer(), &self.request)?;
            }
            if took.is_some() {
                secure.read_plain(&mut reply.bytes)?;
            }
            if let Some(body) = reply.body()? {
                ensure!(body.is_empty(), "the file is {:?}", String::from_utf8_lossy(body));
                return Ok(*took);
            }
            if received == Received::Nothing {
                return secure.send().map(|()| None);
            }
        }
    }
}

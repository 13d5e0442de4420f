//! The load of clients that keep their connections: as much as the server answers, or an open loop.
//!
//! In an open loop each client asks at random times, whether or not its last request was answered (Poisson; the times are the same in each
//! run). As HTTP/1.1 without pipelining has one request under way on a connection, later ones wait at the client. A request's time runs from
//! when it was to be sent.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinion_tests::random::Random;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::clients::web::addresses::{Addresses, open};
use crate::clients::web::reply::Reply;
use crate::clients::web::wire::{Speaks, Wire};
use crate::measurement::percentiles::Percentiles;

/// Replies that have not come so long after the last request do not come.
const DRAIN: Duration = Duration::from_secs(10);
/// The most requests sent before replies are looked for.
const BURST: usize = 32;
/// The most events taken at a time.
const EVENTS: usize = 128;
const SEED: u64 = 0x70_69_6e_69_6f_6e;

/// What a client asks, and the body of the right reply.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) request: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// The results of a load.
#[derive(Debug)]
pub(crate) struct Load {
    /// From when a request was to be sent until its reply was read.
    pub(crate) times: Percentiles,
    /// Replies that came in `time`.
    replies: u64,
    time: Duration,
    /// All replies, those of the warm-up included.
    all_replies: u64,
    /// How long the clients worked, and did not only look for work.
    busy: Duration,
}

impl Load {
    /// Returns the replies a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.replies as f64 / self.time.as_secs_f64()
    }

    /// Returns the clients' own work for a request, in nanoseconds: that of the kernel on their thread is part of it.
    pub(crate) fn client_ns(&self) -> f64 {
        self.busy.as_nanos() as f64 / self.all_replies.max(1) as f64
    }
}

#[derive(Debug)]
struct Client {
    wire: Wire,
    reply: Reply,
    /// What was asked last.
    exchange: usize,
    /// When its requests were to be sent, the first of which is under way.
    due: VecDeque<Instant>,
}

/// Clients with a connection each.
#[derive(Debug)]
pub(crate) struct Clients<'a> {
    exchanges: &'a [Exchange],
    all: Vec<Client>,
    poll: OwnedFd,
    random: Random,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// On each connection as soon as the last reply is there.
    Saturating,
    /// At these times on average, in seconds.
    Open { interval_s: f64 },
}

impl<'a> Clients<'a> {
    /// Connects so many clients, one after the other, as soon as the server takes them, and has each asked everything once.
    ///
    /// # Errors
    /// The server does not take a client, or a reply is not right.
    pub(crate) fn connect(
        count: usize,
        addresses: &mut Addresses,
        to: SocketAddrV4,
        speaks: &Speaks,
        exchanges: &'a [Exchange],
    ) -> anyhow::Result<Self> {
        ensure!(!exchanges.is_empty(), "there is nothing to ask");
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let client = |at: usize| -> anyhow::Result<Client> {
            let wire = Wire::new(open(addresses.next(), to)?, speaks).with_context(|| format!("client {at}"))?;
            epoll::add(&poll, wire.stream(), EventData::new_u64(at as u64), EventFlags::IN)?;
            Ok(Client { wire, reply: Reply::default(), exchange: 0, due: VecDeque::new() })
        };
        let all = (0..count).map(client).collect::<anyhow::Result<Vec<_>>>()?;
        let mut clients = Self { exchanges, all, poll, random: Random::new(SEED) };
        (0..count).try_for_each(|at| clients.ask_everything(at).with_context(|| format!("client {at}")))?;
        Ok(clients)
    }

    /// Asks for `time` as much as the server answers, after a warm-up of a tenth of it.
    ///
    /// # Errors
    /// A reply is not right, or does not come.
    pub(crate) fn saturate(&mut self, time: Duration) -> anyhow::Result<Load> {
        self.load(Pace::Saturating, time)
    }

    /// Asks for `time` in an open loop so many times a second, all clients together, after a warm-up of a tenth of it.
    ///
    /// # Errors
    /// A reply is not right, or does not come.
    pub(crate) fn offer(&mut self, per_second: f64, time: Duration) -> anyhow::Result<Load> {
        self.random = Random::new(SEED);
        self.load(Pace::Open { interval_s: 1.0 / per_second }, time)
    }

    fn ask_everything(&mut self, at: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + DRAIN;
        for exchange in 0..self.exchanges.len() {
            self.all[at].due.push_back(Instant::now());
            self.send(at, exchange)?;
            while self.read(at)?.is_none() {
                ensure!(Instant::now() < deadline, "no reply came for {DRAIN:?}");
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn load(&mut self, pace: Pace, time: Duration) -> anyhow::Result<Load> {
        let start = Instant::now();
        let (counts_from, end) = (start + time / 10, start + time / 10 + time);
        let mut account =
            Account { counts_from, end, times: Percentiles::new(), replies: 0, all_replies: 0, busy: Duration::ZERO };
        let mut next_due = start;
        if let Pace::Saturating = pace {
            (0..self.all.len()).try_for_each(|at| self.ask(at, start))?;
        }
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let mut worked = 0;
            if let Pace::Open { interval_s } = pace {
                while next_due <= now && worked < BURST {
                    let at = self.random.below(self.all.len() as u64) as usize;
                    self.ask(at, next_due)?;
                    next_due += Duration::from_secs_f64(interval_s * exponential(&mut self.random));
                    worked += 1;
                }
            }
            worked += self.receive(Some(pace), &mut account)?;
            if worked > 0 {
                account.busy += now.elapsed();
            }
            // The kernel's receive processing on this core may have been left to a thread.
            thread::yield_now();
        }
        while self.all.iter().any(|client| !client.due.is_empty()) {
            ensure!(end.elapsed() < DRAIN, "replies have not come {DRAIN:?} after the last request");
            self.receive(None, &mut account)?;
        }
        let Account { times, replies, all_replies, busy, .. } = account;
        Ok(Load { times, replies, time, all_replies, busy })
    }

    /// Takes what has come; returns how many connections had something. On these a saturating load goes on.
    fn receive(&mut self, pace: Option<Pace>, account: &mut Account) -> anyhow::Result<usize> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.poll, &mut events[..], Some(&at_once)).context("replies")?;
        for event in &events[..count] {
            let at = event.data.u64() as usize;
            let Some(due) = self.read(at)? else { continue };
            let now = Instant::now();
            account.replied(due, now);
            if let Some(Pace::Saturating) = pace {
                self.ask(at, now)?;
            } else if !self.all[at].due.is_empty() {
                self.send_random(at)?;
            }
        }
        Ok(count)
    }

    /// Lets a client ask: now, or as soon as its last request is answered.
    fn ask(&mut self, at: usize, due: Instant) -> anyhow::Result<()> {
        self.all[at].due.push_back(due);
        if self.all[at].due.len() == 1 { self.send_random(at) } else { Ok(()) }
    }

    fn send_random(&mut self, at: usize) -> anyhow::Result<()> {
        let exchange = self.random.below(self.exchanges.len() as u64) as usize;
        self.send(at, exchange)
    }

    fn send(&mut self, at: usize, exchange: usize) -> anyhow::Result<()> {
        let client = &mut self.all[at];
        client.exchange = exchange;
        client.wire.write(&self.exchanges[exchange].request)
    }

    /// Reads what has come for a client; returns when the request was due whose reply is whole now.
    fn read(&mut self, at: usize) -> anyhow::Result<Option<Instant>> {
        let Client { wire, reply, exchange, due } = &mut self.all[at];
        wire.read(&mut reply.bytes)?;
        let Some(body) = reply.body()? else { return Ok(None) };
        let right = &self.exchanges[*exchange].body;
        let text = String::from_utf8_lossy;
        ensure!(body == right, "client {at} gets {:?} instead of {:?}", text(body), text(right));
        reply.bytes.clear();
        due.pop_front().map(Some).context("a reply came that was not asked for")
    }
}

/// The counts during a load.
struct Account {
    counts_from: Instant,
    end: Instant,
    times: Percentiles,
    replies: u64,
    all_replies: u64,
    busy: Duration,
}

impl Account {
    fn replied(&mut self, due: Instant, now: Instant) {
        self.all_replies += 1;
        if due >= self.counts_from {
            self.times.record(now - due);
        }
        if (self.counts_from..self.end).contains(&now) {
            self.replies += 1;
        }
    }
}

/// Returns a number that is distributed exponentially, 1 on average.
fn exponential(random: &mut Random) -> f64 {
    // 53 bits, of which the lowest is set, so that it is neither 0 nor 1.
    let uniform = ((random.number() >> 11) | 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_exponential() {
        let mut random = Random::new(SEED);
        let all: Vec<f64> = (0..100_000).map(|_| exponential(&mut random)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((0.98..1.02).contains(&mean), "{mean}");
        let longer = all.iter().filter(|interval| **interval > 2.0).count() as f64 / all.len() as f64;
        assert!((0.130..0.141).contains(&longer), "{longer} instead of e^-2");
        assert!(all.iter().all(|interval| interval.is_finite() && *interval >= 0.0));
    }

    #[test]
    fn only_what_came_in_time_counts_and_only_what_was_due_then_is_timed() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut account = Account {
            counts_from: at(1),
            end: at(5),
            times: Percentiles::new(),
            replies: 0,
            all_replies: 0,
            busy: Duration::ZERO,
        };
        for (due, came) in [(0, 0), (0, 2), (2, 3), (4, 6)] {
            account.replied(at(due), at(came));
        }
        assert_eq!((account.replies, account.times.count(), account.all_replies), (2, 2, 4));
    }
}

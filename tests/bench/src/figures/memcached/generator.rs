//! The generator of UDP requests: an open loop, which sends each request when it is due, whether or not others were answered.
//!
//! It is one thread, which polls its port and only yields, and it knows nothing of what is behind the port. Nothing is allocated during a
//! measurement.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use pinion_gateway::port::{BufferPool, Port};
use pinion_mma::buffer::{Buffer, Frame};

use crate::figures::memcached::datagrams::{Arrival, Clients, FRAME_BYTES_MAX};
use crate::measurement::percentiles::Percentiles;

/// The most frames sent, and received, at a time.
const BURST: usize = 32;
/// Replies that have not come so long after the last request are lost.
const DRAIN: Duration = Duration::from_millis(500);
/// An item that is not stored after this time is sent again, and so often.
const PATIENCE: Duration = Duration::from_millis(50);
const ATTEMPTS: u32 = 200;
/// The clients that store their items at the same time.
const STORING: usize = 16;

/// The results of a load.
#[derive(Debug)]
pub(crate) struct Offered {
    /// From when a request was to be sent until its reply was read.
    pub(crate) times: Percentiles,
    /// Requests that were to be sent.
    pub(crate) due: u64,
    /// Those of them that were.
    pub(crate) sent: u64,
    /// Those that were answered.
    pub(crate) answered: u64,
    /// Frames that came and were no right reply.
    pub(crate) wrong: u64,
    /// How long the generator worked, and did not only look for work.
    pub(crate) busy: Duration,
}

impl Offered {
    /// Returns the part of all due requests that was not answered.
    pub(crate) fn loss(&self) -> f64 {
        1.0 - self.answered as f64 / self.due.max(1) as f64
    }

    /// Returns the generator's own work for a request, in nanoseconds.
    pub(crate) fn generator_ns(&self) -> f64 {
        self.busy.as_nanos() as f64 / self.sent.max(1) as f64
    }
}

/// The generator. See the module's documentation.
pub(crate) struct Generator<'a> {
    port: &'a mut dyn Port,
    pool: &'a mut dyn BufferPool,
    clients: Clients,
    epoch: Instant,
    buffers: Vec<Buffer>,
    outgoing: Vec<Frame>,
    incoming: Vec<Frame>,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(port: &'a mut dyn Port, pool: &'a mut dyn BufferPool, clients: Clients) -> Self {
        let buffers = || Vec::with_capacity(BURST);
        let (outgoing, incoming) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        Self { port, pool, clients, epoch: Instant::now(), buffers: buffers(), outgoing, incoming }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Stores every item of every client.
    ///
    /// # Errors
    /// One is not stored.
    pub(crate) fn store_all(&mut self) -> anyhow::Result<()> {
        (0..self.clients.count()).step_by(STORING).try_for_each(|first| self.store_some(first))?;
        self.clients.forget();
        Ok(())
    }

    /// Stores the items of some clients, one after the other for each.
    fn store_some(&mut self, first: usize) -> anyhow::Result<()> {
        let count = STORING.min(self.clients.count() - first);
        let mut stored = [0_u32; STORING];
        let items = self.clients.items();
        // How often a client's item was sent, and when it was sent last.
        let mut asked: [Option<(u32, u64)>; STORING] = [None; STORING];
        while stored[..count].iter().any(|stored| *stored < items) {
            let now_ns = self.now_ns();
            for at in 0..count {
                let is_due = asked[at].is_none_or(|(_, asked_ns)| now_ns >= asked_ns + PATIENCE.as_nanos() as u64);
                if stored[at] < items && is_due {
                    let attempt = asked[at].map_or(1, |(attempt, _)| attempt + 1);
                    ensure!(attempt <= ATTEMPTS, "client {} cannot store its item {}", first + at, stored[at]);
                    let client = first + at;
                    self.send(1, |clients, _, frame| (client, clients.write_set(client, stored[at], now_ns, frame)))?;
                    asked[at] = Some((attempt, now_ns));
                }
            }
            self.port.receive(&mut self.incoming, BURST);
            for frame in &self.incoming {
                match self.clients.receive(frame.bytes()) {
                    // A reply to an earlier attempt does not count, else the last one's would count for the next item.
                    Arrival::Reply { client, due_ns } => {
                        let at = client.wrapping_sub(first);
                        if asked.get(at).is_some_and(|asked| asked.is_some_and(|(_, asked_ns)| asked_ns == due_ns)) {
                            stored[at] += 1;
                            asked[at] = None;
                        }
                    }
                    Arrival::Wrong => bail!("a client gets another answer to a set than STORED"),
                    _ => {}
                }
            }
            self.give_back();
        }
        Ok(())
    }

    /// Sends requests; `write` returns each one's client and length. Returns how many were sent.
    fn send(
        &mut self,
        count: usize,
        mut write: impl FnMut(&mut Clients, usize, &mut [u8]) -> (usize, usize),
    ) -> anyhow::Result<usize> {
        ensure!(self.pool.take(&mut self.buffers, count) == count, "the generator is out of buffers");
        let mut senders = [0; BURST];
        for (at, mut buffer) in self.buffers.drain(..).enumerate() {
            let (client, len) = write(&mut self.clients, at, buffer.bytes_mut(FRAME_BYTES_MAX as u32));
            senders[at] = client;
            self.outgoing.push(Frame::new(buffer, len as u32));
        }
        let sent = self.port.transmit(&mut self.outgoing, self.pool);
        senders[sent..count].iter().rev().for_each(|client| self.clients.take_back(*client));
        Ok(sent)
    }

    fn give_back(&mut self) {
        self.buffers.extend(self.incoming.drain(..).map(Frame::into_buffer));
        self.pool.give(&mut self.buffers);
    }

    /// Sends so many requests a second for `time`, after a warm-up of a tenth of it: evenly, one client after the other.
    ///
    /// # Errors
    /// The generator itself fails. Lost requests and wrong replies are no error.
    pub(crate) fn offer(&mut self, per_second: u64, time: Duration) -> anyhow::Result<Offered> {
        let clients = self.clients.count();
        let start_ns = self.now_ns();
        let mut account = Account::new(start_ns + time.as_nanos() as u64 / 10, time);
        let due_at_ns = |number: u64| start_ns + number * 1_000_000_000 / per_second;
        let (mut sent, mut busy_ns) = (0_u64, 0);
        loop {
            let now_ns = self.now_ns();
            if now_ns >= account.end_ns {
                break;
            }
            let due = (now_ns - start_ns) * per_second / 1_000_000_000 + 1;
            let burst = (due.saturating_sub(sent) as usize).min(BURST);
            let mut worked = 0;
            if burst > 0 {
                worked += self.send(burst, |all, at, frame| {
                    let number = sent + at as u64;
                    let client = (number % clients as u64) as usize;
                    (client, all.write_next(client, due_at_ns(number), frame))
                })?;
                sent += worked as u64;
            }
            worked += self.receive(&mut account);
            if worked > 0 {
                busy_ns += self.now_ns() - now_ns;
            }
            // The kernel's receive processing on this core may have been left to a thread.
            thread::yield_now();
        }
        account.due = (account.end_ns - start_ns) * per_second / 1_000_000_000;
        account.sent = sent;
        let ended = Instant::now();
        while account.answered < sent && ended.elapsed() < DRAIN {
            self.receive(&mut account);
        }
        self.clients.forget();
        let Account { times, due, sent, answered, wrong, .. } = account;
        Ok(Offered { times, due: due.max(sent), sent, answered, wrong, busy: Duration::from_nanos(busy_ns) })
    }

    /// Receives a burst; returns how many frames it had.
    fn receive(&mut self, account: &mut Account) -> usize {
        let count = self.port.receive(&mut self.incoming, BURST);
        if count == 0 {
            return 0;
        }
        let now_ns = self.now_ns();
        for frame in &self.incoming {
            match self.clients.receive(frame.bytes()) {
                Arrival::Reply { due_ns, .. } => account.arrived(due_ns, now_ns),
                Arrival::Wrong => account.wrong += 1,
                Arrival::Late | Arrival::Foreign => {}
            }
        }
        self.give_back();
        count
    }
}

/// The counts during a load.
struct Account {
    counts_from_ns: u64,
    end_ns: u64,
    times: Percentiles,
    due: u64,
    sent: u64,
    answered: u64,
    wrong: u64,
}

impl Account {
    fn new(counts_from_ns: u64, time: Duration) -> Self {
        let end_ns = counts_from_ns + time.as_nanos() as u64;
        Self { counts_from_ns, end_ns, times: Percentiles::new(), due: 0, sent: 0, answered: 0, wrong: 0 }
    }

    fn arrived(&mut self, due_ns: u64, now_ns: u64) {
        self.answered += 1;
        if due_ns >= self.counts_from_ns {
            self.times.record(Duration::from_nanos(now_ns.saturating_sub(due_ns)));
        }
    }
}

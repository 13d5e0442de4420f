//! New clients, one frame each, from a port of a node in this process.
//!
//! ```text
//!   the figure's thread --Round--> Newcomers: a Port, polled by the node's gateway --Tally--> the figure's thread
//!                                    receive    the frames that are due, their arrival noted
//!                                    transmit   each reply compared with the expected one, and timed
//! ```
//!
//! A reply's time runs from its client's frame's arrival in Net-In's burst, right before [`Port::receive`] returns, to the reply's hand-over
//! to the transmit burst, when [`Port::transmit`] is called. All of it happens on the gateway's thread, as a device's work does: while a
//! round runs nothing is allocated and the kernel is not called.

mod frames;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, ensure};
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::{BufferPool, FRAME_OVERHEAD, LinkState, Port, PortCounters, PortFacts};
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::stopwatch::Stopwatch;

pub(crate) use self::frames::{Answer, NODE_ADDRESS, SERVICE_PORT};
use self::frames::{FRAME_BYTES, NODE_MAC, Template};
use crate::measurement::percentiles::Percentiles;

/// The same clients' requests, for senders that use other paths.
pub(crate) struct Requests(Template);

impl Requests {
    pub(crate) fn new() -> Self {
        Self(Template::new())
    }

    /// Returns a client's frame.
    pub(crate) fn of(&mut self, client: u32) -> &[u8] {
        self.0.request(client)
    }
}

/// The port's name in rules, which is also its device's name in the node's configuration.
pub(crate) const PORT: &str = "lan";
/// The longest wait for a reply: longer than a node keeps frames that wait for an instance.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time beyond a round's own length after which the figure's thread gives up.
const ROUND_SLACK: Duration = Duration::from_secs(30);
const MTU: u16 = 1500;
/// Buffers that are kept ready for further clients; no burst is larger.
const SPARE_MAX: usize = 128;

/// When the next client comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// After the previous client's reply, or after that client's timeout.
    AfterReply,
    /// So long after the previous client, with or without its reply.
    Every(Duration),
}

/// What the figure's thread requests.
struct Round {
    first: u32,
    pace: Pace,
    answer: Answer,
    /// By client, from the first on.
    clients: Vec<Client>,
}

/// A client's state: its frame's time in nanoseconds of the port's clock, or one of these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client(u64);

impl Client {
    const TO_COME: Self = Self(u64::MAX);
    const SERVED: Self = Self(u64::MAX - 1);

    fn waits_since_ns(self) -> Option<u64> {
        (self.0 < Self::SERVED.0).then_some(self.0)
    }
}

/// The results of a round.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The replies' times.
    pub(crate) times: Percentiles,
    /// How late each frame came: the generator, or its thread, was busy with something else.
    pub(crate) late: Percentiles,
    /// Clients that got no reply.
    pub(crate) lost: u64,
    /// Frames that were no expected reply: altered, a duplicate, or for no client. The next field describes the first of them.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
    /// From the first client's frame to the last client's, and to the last reply.
    pub(crate) coming: Duration,
    pub(crate) serving: Duration,
}

impl Tally {
    fn new() -> Self {
        Self {
            times: Percentiles::new(),
            late: Percentiles::new(),
            lost: 0,
            wrong: 0,
            first_wrong: None,
            coming: Duration::ZERO,
            serving: Duration::ZERO,
        }
    }

    fn note_wrong(&mut self, sentence: impl FnOnce() -> String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert_with(sentence);
    }

    /// Fails unless every client got its reply, and no other frame came.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let first = self.first_wrong.as_deref().unwrap_or_default();
        ensure!(self.wrong == 0, "{} frames were not expected replies; the first: {first}", self.wrong);
        ensure!(self.lost == 0, "{} clients got no reply", self.lost);
        Ok(())
    }
}

/// The figure's end of the channel.
pub(crate) struct Rounds {
    orders: Sender<Box<Round>>,
    tallies: Receiver<Box<Tally>>,
    next: u32,
}

impl Rounds {
    /// Sends so many new clients' frames; returns the results.
    pub(crate) fn run(&mut self, clients: usize, pace: Pace, answer: Answer) -> anyhow::Result<Tally> {
        let count = u32::try_from(clients).context("too many clients")?;
        ensure!(count <= frames::CLIENTS_MAX, "there are addresses for {} clients only", frames::CLIENTS_MAX);
        // When all addresses have been used, the first ones count as new again.
        let first = if self.next > frames::CLIENTS_MAX - count { 0 } else { self.next };
        self.next = first + count;
        // Written here, so that its memory is resident before the round begins.
        let round = Round { first, pace, answer, clients: vec![Client::TO_COME; clients] };
        self.orders.send(Box::new(round)).map_err(|_| anyhow::anyhow!("the node's gateway has ended"))?;
        let time = match pace {
            Pace::AfterReply => PATIENCE * u32::try_from(clients)?.min(15),
            Pace::Every(interval) => interval * u32::try_from(clients)?,
        };
        let tally = self.tallies.recv_timeout(time + PATIENCE + ROUND_SLACK);
        Ok(*tally.context("a round of new clients does not end")?)
    }
}

/// A round in the port's own representation.
struct Course {
    round: Box<Round>,
    tally: Box<Tally>,
    started_ns: u64,
    /// How many clients have come, and how many of them wait.
    come: usize,
    waiting: usize,
    last_come_ns: u64,
    last_served_ns: u64,
}

impl Course {
    fn new(round: Box<Round>, now_ns: u64) -> Self {
        let tally = Box::new(Tally::new());
        Self { round, tally, started_ns: now_ns, come: 0, waiting: 0, last_come_ns: now_ns, last_served_ns: now_ns }
    }

    /// Returns how many clients should have come by now, and when the next one after those that came was due.
    fn due(&self, now_ns: u64) -> (usize, u64) {
        match self.round.pace {
            Pace::AfterReply if self.waiting == 0 => (self.come + 1, self.last_served_ns),
            Pace::AfterReply => (self.come, now_ns),
            Pace::Every(interval) => {
                let interval_ns = (interval.as_nanos() as u64).max(1);
                let due = (now_ns - self.started_ns) / interval_ns + 1;
                (due as usize, self.started_ns + self.come as u64 * interval_ns)
            }
        }
    }

    /// Records that a client whose frame was due then has come now.
    fn note_coming(&mut self, due_ns: u64, now_ns: u64) {
        self.round.clients[self.come] = Client(now_ns);
        self.tally.late.record(Duration::from_nanos(now_ns.saturating_sub(due_ns)));
        (self.come, self.waiting, self.last_come_ns) = (self.come + 1, self.waiting + 1, now_ns);
    }

    fn judge(&mut self, template: &mut Template, frame: &[u8], now_ns: u64) {
        let number = Template::client_of(frame).and_then(|client| client.checked_sub(self.round.first));
        let place = number.map_or(usize::MAX, |number| number as usize);
        let Some(client) = self.round.clients.get_mut(place) else {
            return self.tally.note_wrong(|| format!("a frame of no client: {frame:02x?}"));
        };
        let Some(since_ns) = client.waits_since_ns() else {
            return self.tally.note_wrong(|| format!("a reply to client {place}, which waits for none"));
        };
        let expected = template.reply(self.round.first + place as u32, self.round.answer);
        if frame != expected {
            return self.tally.note_wrong(|| format!("client {place} got {frame:02x?} instead of {expected:02x?}"));
        }
        *client = Client::SERVED;
        self.tally.times.record(Duration::from_nanos(now_ns.saturating_sub(since_ns)));
        (self.waiting, self.last_served_ns) = (self.waiting - 1, now_ns);
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let gave_up = now_ns.saturating_sub(self.last_come_ns) > PATIENCE.as_nanos() as u64;
        (self.come == self.round.clients.len() && self.waiting == 0) || (self.waiting > 0 && gave_up)
    }

    fn end(mut self) -> Box<Tally> {
        let since_start = |at_ns: u64| Duration::from_nanos(at_ns - self.started_ns);
        (self.tally.coming, self.tally.serving) = (since_start(self.last_come_ns), since_start(self.last_served_ns));
        self.tally.lost = (self.round.clients.len() - self.come + self.waiting) as u64;
        self.tally
    }
}

/// The port. See the module's documentation.
pub(crate) struct Newcomers {
    pool: HeapPool,
    spare: Vec<Buffer>,
    template: Template,
    stopwatch: Stopwatch,
    orders: Receiver<Box<Round>>,
    tallies: Sender<Box<Tally>>,
    course: Option<Course>,
    counters: Arc<PortCounters>,
}

/// Makes a port that takes its buffers from this pool, and the object that controls it.
pub(crate) fn newcomers(pool: HeapPool) -> (Newcomers, Rounds) {
    let ((orders, ordered), (tallies, told)) = (channel(), channel());
    let port = Newcomers {
        spare: Vec::with_capacity(2 * SPARE_MAX),
        pool,
        template: Template::new(),
        stopwatch: Stopwatch::start(),
        orders: ordered,
        tallies,
        course: None,
        counters: Arc::default(),
    };
    (port, Rounds { orders, tallies: told, next: 0 })
}

impl Port for Newcomers {
    fn name(&self) -> &str {
        PORT
    }

    fn device(&self) -> &str {
        PORT
    }

    fn facts(&self) -> PortFacts {
        PortFacts { mac: NODE_MAC, mtu: MTU, link: LinkState::Up, missed: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let now_ns = self.stopwatch.elapsed_ns();
        let Some(course) = &mut self.course else {
            self.course = self.orders.try_recv().ok().map(|round| Course::new(round, now_ns));
            return 0;
        };
        if course.is_over(now_ns) {
            let tally = self.course.take().map(Course::end);
            // Fails if the receiver is gone.
            let _ = tally.map(|tally| self.tallies.send(tally));
            return 0;
        }
        let due = course.due(now_ns).0.min(course.round.clients.len()) - course.come;
        let before = frames.len();
        for _ in 0..due.min(max) {
            if self.spare.is_empty() {
                self.pool.take(&mut self.spare, max);
            }
            let Some(mut buffer) = self.spare.pop() else { break };
            let client = course.round.first + (course.come + frames.len() - before) as u32;
            buffer.bytes_mut(FRAME_BYTES as u32).copy_from_slice(self.template.request(client));
            frames.push(Frame::new(buffer, FRAME_BYTES as u32));
        }
        let count = frames.len() - before;
        if count > 0 {
            let arrived_ns = self.stopwatch.elapsed_ns();
            for _ in 0..count {
                course.note_coming(course.due(now_ns).1, arrived_ns);
            }
            self.counters.received.frames.add(count as u64);
            self.counters.received.bytes.add((count * FRAME_BYTES) as u64);
        }
        count
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let now_ns = self.stopwatch.elapsed_ns();
        let count = frames.len();
        for frame in frames.drain(..) {
            debug_assert!(frame.len() <= u32::from(MTU) + FRAME_OVERHEAD);
            if let Some(course) = &mut self.course {
                course.judge(&mut self.template, frame.bytes(), now_ns);
            }
            self.counters.sent.frames.add(1);
            self.counters.sent.bytes.add(frame.len().into());
            self.spare.push(frame.into_buffer());
        }
        if self.spare.len() > SPARE_MAX {
            pool.give(&mut self.spare);
        }
        count
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

impl Drop for Newcomers {
    fn drop(&mut self) {
        self.pool.give(&mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a round with a port whose frames come back as `alter` leaves them.
    fn round(clients: usize, pace: Pace, mut alter: impl FnMut(u32, &mut Vec<u8>) -> usize) -> Tally {
        let pool = HeapPool::new(256, 2048);
        let (mut port, mut rounds) = newcomers(pool.clone());
        let stepping = std::thread::spawn(move || rounds.run(clients, pace, Answer::Swapped { times: 0 }).unwrap());
        let (mut frames, mut pool, mut number) = (Vec::with_capacity(64), pool, 0);
        while !stepping.is_finished() {
            port.receive(&mut frames, 64);
            let mut replies = Vec::new();
            for frame in frames.drain(..) {
                let mut bytes = frame.bytes().to_vec();
                let copies = alter(number, &mut bytes);
                number += 1;
                pool.give(&mut vec![frame.into_buffer()]);
                for _ in 0..copies {
                    let mut buffers = Vec::new();
                    pool.take(&mut buffers, 1);
                    let mut buffer = buffers.pop().unwrap();
                    buffer.bytes_mut(bytes.len() as u32).copy_from_slice(&bytes);
                    replies.push(Frame::new(buffer, bytes.len() as u32));
                }
            }
            port.transmit(&mut replies, &mut pool);
        }
        stepping.join().unwrap()
    }

    #[test]
    fn every_client_is_counted_once_at_either_pace() {
        for pace in [Pace::AfterReply, Pace::Every(Duration::from_micros(3))] {
            let tally = round(1000, pace, |_, _| 1);
            tally.check().unwrap();
            assert_eq!((tally.times.count(), tally.late.count()), (1000, 1000));
        }
    }

    #[test]
    fn a_client_without_a_reply_is_lost() {
        let tally = round(20, Pace::Every(Duration::from_micros(10)), |number, _| usize::from(number != 7));
        assert_eq!((tally.lost, tally.times.count()), (1, 19));
        assert!(tally.check().is_err());
    }

    #[test]
    fn an_altered_reply_and_a_second_one_are_wrong() {
        let tally = round(20, Pace::Every(Duration::from_micros(10)), |number, bytes| {
            bytes[59] ^= u8::from(number == 3);
            if number == 5 { 2 } else { 1 }
        });
        assert_eq!((tally.wrong, tally.lost), (2, 1));
    }
}

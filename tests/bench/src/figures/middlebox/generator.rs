//! The generator: sends the frames of many clients by one port, receives them by another, and checks each.
//!
//! It is one thread, which never sleeps. It does not depend on what lies between its two ports, so the same code loads a cable, a node and
//! the kernel. Nothing is allocated during a measurement.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use pinion_gateway::port::{BufferPool, Port};
use pinion_mma::buffer::Frame;

use super::frames::{Clients, FRAME_LEN, Fault, Link};
use crate::measurement::percentiles::Percentiles;

/// The most frames sent, and received, at a time.
const BURST: usize = 32;
/// Frames that have not arrived so long after the last was sent are lost.
const DRAIN: Duration = Duration::from_millis(500);
/// A client with one frame in flight counts it as lost after this time, and sends the next.
const GIVE_UP: Duration = Duration::from_millis(100);
/// A client's first frame may have to wait until its instance is created.
const FIRST_FRAME: Duration = Duration::from_secs(2);
const FIRST_FRAMES_SENT: usize = 5;

/// How clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Each client sends so many frames a second, evenly, whether or not they arrive.
    Open {
        /// How many.
        per_second: u64,
    },
    /// Each client has one frame in flight, and sends the next as soon as that one is back.
    Closed,
}

/// The generator's behaviour when it has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Polls again.
    Never,
    /// Yields its core to other threads first.
    Yield,
}

/// The results of a load.
#[derive(Debug)]
pub(crate) struct Passage {
    /// From right before a burst was written to the sending port until right after a burst was read from the receiving one.
    pub(crate) times: Percentiles,
    /// Frames sent, warm-up included.
    pub(crate) sent: u64,
    /// Frames sent that never arrived.
    pub(crate) lost: u64,
    /// Frames that arrived altered, or that the generator had not sent.
    pub(crate) altered: u64,
    /// Frames that arrived twice, or after a later one of the same client.
    pub(crate) out_of_order: u64,
    /// Frames a second.
    pub(crate) rate: f64,
}

/// The generator. See the module's documentation.
pub(crate) struct Generator<'a> {
    out: &'a mut dyn Port,
    back: &'a mut dyn Port,
    pool: &'a mut dyn BufferPool,
    clients: Clients,
    pause: Pause,
    epoch: Instant,
    buffers: Vec<pinion_mma::buffer::Buffer>,
    outgoing: Vec<Frame>,
    incoming: Vec<Frame>,
    /// In closed loop, the clients that may send next.
    ready: std::collections::VecDeque<usize>,
}

impl<'a> Generator<'a> {
    /// Makes a generator for up to `clients` clients, whose frames leave by `out` and are expected at `back`.
    pub(crate) fn new(
        out: &'a mut dyn Port,
        back: &'a mut dyn Port,
        pool: &'a mut dyn BufferPool,
        (clients, link, pause): (usize, Link, Pause),
    ) -> Self {
        Self {
            out,
            back,
            pool,
            clients: Clients::new(clients, link),
            pause,
            epoch: Instant::now(),
            buffers: Vec::with_capacity(BURST),
            outgoing: Vec::with_capacity(BURST),
            incoming: Vec::with_capacity(BURST),
            ready: std::collections::VecDeque::with_capacity(clients),
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Sends one frame of each of these clients, one after the other, and waits for each.
    ///
    /// # Errors
    /// A frame does not arrive.
    pub(crate) fn introduce(&mut self, clients: std::ops::Range<usize>) -> anyhow::Result<()> {
        clients.into_iter().try_for_each(|client| self.introduce_one(client))?;
        self.clients.settle();
        Ok(())
    }

    fn introduce_one(&mut self, client: usize) -> anyhow::Result<()> {
        for _ in 0..FIRST_FRAMES_SENT {
            ensure!(self.send(std::iter::once(client))? == 1, "the sending port is full at the first frame");
            let sent = Instant::now();
            while sent.elapsed() < FIRST_FRAME {
                self.back.receive(&mut self.incoming, BURST);
                let is_there =
                    |frame: &Frame| self.clients.read(frame.bytes()).is_ok_and(|arrival| arrival.client == client);
                let came = self.incoming.iter().any(is_there);
                self.give_back();
                if came {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        bail!(
            "client {client} gets nothing through: {FIRST_FRAMES_SENT} frames were sent, and {FIRST_FRAME:?} waited for each"
        )
    }

    /// Sends the next frame of each of `clients`, at most [`BURST`] and all different; returns how many of them, from the first on, were
    /// sent.
    fn send(&mut self, clients: impl Iterator<Item = usize> + Clone) -> anyhow::Result<usize> {
        let count = clients.clone().count();
        ensure!(self.pool.take(&mut self.buffers, count) == count, "the generator is out of buffers");
        let now_ns = self.now_ns();
        for (client, mut buffer) in clients.clone().zip(self.buffers.drain(..)) {
            self.clients.write(client, now_ns, buffer.bytes_mut(FRAME_LEN as u32));
            self.outgoing.push(Frame::new(buffer, FRAME_LEN as u32));
        }
        let sent = self.out.transmit(&mut self.outgoing, self.pool);
        clients.take(sent).for_each(|client| self.clients.sent(client, now_ns));
        Ok(sent)
    }

    fn give_back(&mut self) {
        self.buffers.extend(self.incoming.drain(..).map(Frame::into_buffer));
        self.pool.give(&mut self.buffers);
    }

    /// Loads the path with the first `clients` of the clients for `time`, after a warm-up of a tenth of it.
    ///
    /// # Errors
    /// The generator itself fails. Lost and altered frames are no error.
    pub(crate) fn load(&mut self, clients: usize, load: Load, time: Duration) -> anyhow::Result<Passage> {
        debug_assert!(clients <= self.clients.count());
        let start_ns = self.now_ns();
        let mut account = Account::new(start_ns + time.as_nanos() as u64 / 10, time);
        self.ready.clear();
        self.ready.extend(0..clients);
        let mut looked_ns = start_ns;
        loop {
            let now_ns = self.now_ns();
            if now_ns >= account.end_ns {
                break;
            }
            if load == Load::Closed && self.ready.is_empty() && now_ns - looked_ns >= GIVE_UP.as_nanos() as u64 {
                // A client that was ready at the last check is not unanswered, and one that sent before it has waited for that long.
                self.ready.extend(self.clients.unanswered(clients, looked_ns));
                looked_ns = now_ns;
            }
            let sent = match load {
                Load::Open { per_second } => {
                    let due = due(now_ns - start_ns, per_second * clients as u64);
                    self.send_due(due.saturating_sub(account.sent), account.sent, clients)?
                }
                Load::Closed => self.send_ready()?,
            };
            account.sent += sent as u64;
            let received = self.receive(&mut account, load == Load::Closed);
            if sent + received == 0 {
                self.rest();
            }
        }
        let sending_ended = Instant::now();
        while account.received < account.sent && sending_ended.elapsed() < DRAIN {
            if self.receive(&mut account, false) == 0 {
                self.rest();
            }
        }
        self.clients.settle();
        Ok(account.close(start_ns))
    }

    fn rest(&self) {
        match self.pause {
            Pause::Never => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
        }
    }

    /// Sends the frames that are due, one client after the other.
    fn send_due(&mut self, due: u64, sent: u64, clients: usize) -> anyhow::Result<usize> {
        let first = (sent % clients as u64) as usize;
        // A client's frame gets its number when the previous one has been sent, so a burst has one frame of each client at most.
        let burst = (due as usize).min(BURST).min(clients);
        self.send((first..first + burst).map(move |turn| turn % clients))
    }

    fn send_ready(&mut self) -> anyhow::Result<usize> {
        let mut burst = [0; BURST];
        let count = self.ready.len().min(BURST);
        burst[..count].iter_mut().zip(&self.ready).for_each(|(place, client)| *place = *client);
        let sent = self.send(burst[..count].iter().copied())?;
        self.ready.drain(..sent);
        Ok(sent)
    }

    /// Receives a burst; returns how many frames it had.
    fn receive(&mut self, account: &mut Account, again: bool) -> usize {
        let count = self.back.receive(&mut self.incoming, BURST);
        if count == 0 {
            return 0;
        }
        let now_ns = self.now_ns();
        for frame in &self.incoming {
            match self.clients.receive(frame.bytes()) {
                Ok(arrival) => {
                    account.arrived(arrival.sent_ns, now_ns);
                    if again {
                        self.ready.push_back(arrival.client);
                    }
                }
                Err(Fault::Altered) => account.altered += 1,
                Err(Fault::OutOfOrder) => account.out_of_order += 1,
            }
        }
        self.give_back();
        count
    }
}

/// Returns how many frames should be sent this long after the start.
fn due(elapsed_ns: u64, per_second: u64) -> u64 {
    elapsed_ns * per_second / 1_000_000_000 + 1
}

/// The counts during a load.
struct Account {
    counts_from_ns: u64,
    end_ns: u64,
    times: Percentiles,
    sent: u64,
    received: u64,
    altered: u64,
    out_of_order: u64,
}

impl Account {
    fn new(counts_from_ns: u64, time: Duration) -> Self {
        let end_ns = counts_from_ns + time.as_nanos() as u64;
        Self { counts_from_ns, end_ns, times: Percentiles::new(), sent: 0, received: 0, altered: 0, out_of_order: 0 }
    }

    fn arrived(&mut self, sent_ns: u64, now_ns: u64) {
        self.received += 1;
        if sent_ns >= self.counts_from_ns {
            self.times.record(Duration::from_nanos(now_ns - sent_ns));
        }
    }

    fn close(self, start_ns: u64) -> Passage {
        let Self { end_ns, times, sent, received, altered, out_of_order, .. } = self;
        let rate = sent as f64 * 1e9 / (end_ns - start_ns) as f64;
        Passage { times, sent, lost: sent - received, altered, out_of_order, rate }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use pinion_gateway::port::heap::HeapPool;
    use pinion_gateway::port::{LinkState, PortCounters, PortFacts};

    use super::*;

    const LINK: Link = Link { source: [2; 6], destination: [4; 6] };
    const TIME: Duration = Duration::from_millis(20);

    /// What a wire does to the frame of this number, counted from 0, once it has carried 40 frames.
    #[derive(Clone, Copy, PartialEq)]
    enum Harm {
        None,
        Loses,
        Alters,
        SwapsWithTheOneBefore,
    }

    /// Both ends of a wire.
    #[derive(Clone)]
    struct Wire {
        frames: Arc<Mutex<VecDeque<Frame>>>,
        carried: u64,
        harm: Harm,
        /// The most frames that it accepts at a time.
        takes: usize,
        counters: Arc<PortCounters>,
    }

    impl Wire {
        fn new(harm: Harm, takes: usize) -> Self {
            Self { frames: Arc::default(), carried: 0, harm, takes, counters: Arc::default() }
        }

        fn carry(&mut self, mut frame: Frame, pool: &mut dyn BufferPool) {
            self.carried += 1;
            let harm = if self.carried == 41 { self.harm } else { Harm::None };
            if harm == Harm::Loses {
                pool.give(&mut vec![frame.into_buffer()]);
                return;
            }
            if harm == Harm::Alters {
                frame.bytes_mut()[50] ^= 4;
            }
            let mut frames = self.frames.lock().unwrap();
            frames.push_back(frame);
            let last = frames.len() - 1;
            if harm == Harm::SwapsWithTheOneBefore {
                frames.swap(last - 1, last);
            }
        }
    }

    impl Port for Wire {
        fn name(&self) -> &str {
            "wire"
        }

        fn device(&self) -> &str {
            "wire"
        }

        fn facts(&self) -> PortFacts {
            PortFacts { mac: [0; 6], mtu: 1500, link: LinkState::Up, missed: 0 }
        }

        fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
            let mut there = self.frames.lock().unwrap();
            let count = there.len().min(max);
            frames.extend(there.drain(..count));
            count
        }

        fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
            let mut rest = frames.split_off(frames.len().min(self.takes));
            let taken = frames.len();
            frames.drain(..).for_each(|frame| self.carry(frame, pool));
            pool.give(&mut rest.drain(..).map(Frame::into_buffer).collect());
            taken
        }

        fn counters(&self) -> &Arc<PortCounters> {
            &self.counters
        }
    }

    fn load(harm: Harm, takes: usize, clients: usize, load: Load) -> Passage {
        let mut out = Wire::new(harm, takes);
        let mut back = out.clone();
        let mut pool = HeapPool::new(256, 2048);
        let mut generator = Generator::new(&mut out, &mut back, &mut pool, (clients, LINK, Pause::Never));
        generator.introduce(0..clients).unwrap();
        generator.load(clients, load, TIME).unwrap()
    }

    fn faults(passage: &Passage) -> (u64, u64, u64) {
        (passage.lost, passage.altered, passage.out_of_order)
    }

    /// Repeats a load until enough frames were sent and counted, as the machine may take the core for a whole measurement.
    fn full_load(harm: Harm, takes: usize, mode: Load) -> Passage {
        let is_full = |passage: &Passage| passage.sent > 100 && passage.times.count() > 0;
        let mut passages = std::iter::repeat_with(|| load(harm, takes, 7, mode)).take(100);
        passages.find(is_full).expect("frames are sent and counted")
    }

    #[test]
    fn a_wire_loses_nothing_in_either_mode_even_if_it_takes_little_at_a_time() {
        for takes in [usize::MAX, 3] {
            for mode in [Load::Open { per_second: 100_000 }, Load::Closed] {
                let passage = full_load(Harm::None, takes, mode);
                assert_eq!(faults(&passage), (0, 0, 0), "{mode:?}");
                assert!(passage.times.count() <= passage.sent, "{mode:?}: {passage:?}");
            }
        }
    }

    #[test]
    fn an_open_loop_sends_its_frames_evenly_from_the_start_on() {
        assert_eq!([0, 999, 1000, 1_000_000_000].map(|elapsed_ns| due(elapsed_ns, 1_000_000)), [1, 1, 2, 1_000_001]);
    }

    #[test]
    fn every_fault_of_a_frame_is_detected() {
        let open = Load::Open { per_second: 20_000 };
        assert_eq!(faults(&full_load(Harm::Loses, usize::MAX, open)), (1, 0, 0));
        assert_eq!(faults(&full_load(Harm::Alters, usize::MAX, open)), (1, 1, 0));
        assert_eq!(faults(&full_load(Harm::Loses, usize::MAX, Load::Closed)), (1, 0, 0));
    }

    #[test]
    fn a_client_whose_only_frame_is_lost_goes_on_with_the_next() {
        // The first client to send after all were introduced.
        let mut out = Wire { carried: 39, ..Wire::new(Harm::Loses, usize::MAX) };
        let mut back = out.clone();
        let mut pool = HeapPool::new(256, 2048);
        let mut generator = Generator::new(&mut out, &mut back, &mut pool, (1, LINK, Pause::Never));
        generator.introduce(0..1).unwrap();
        let first = generator.load(1, Load::Closed, 3 * GIVE_UP).unwrap();
        assert_eq!(faults(&first), (1, 0, 0));
        let mut more = std::iter::repeat_with(|| generator.load(1, Load::Closed, 3 * GIVE_UP).unwrap().sent).take(100);
        assert!(first.sent > 2 || more.any(|sent| sent > 2), "it does not go on");
    }

    #[test]
    fn reordered_frames_of_one_client_are_detected() {
        // Two frames are in flight at once only if the wire is not read meanwhile, so the test drives it step by step.
        let mut out = Wire::new(Harm::SwapsWithTheOneBefore, usize::MAX);
        let mut back = out.clone();
        let mut pool = HeapPool::new(256, 2048);
        let mut generator = Generator::new(&mut out, &mut back, &mut pool, (1, LINK, Pause::Never));
        for _ in 0..41 {
            assert_eq!(generator.send(std::iter::once(0)).unwrap(), 1);
        }
        let mut account = Account::new(0, TIME);
        while generator.receive(&mut account, false) > 0 {}
        assert_eq!((account.received, account.out_of_order), (40, 1));
    }
}

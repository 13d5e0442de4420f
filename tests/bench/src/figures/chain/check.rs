//! The check: each frame that enters a chain comes out once, unchanged except for its MAC addresses, in order, or is counted as dropped.
//!
//! Node and chain are the same as in the measurement, but frames come out of a pipe and go into a file:
//!
//! ```text
//!   Feed --(pcap through a pipe)--> net_pcap --> node, chain --> net_pcap --> file of frames
//!     |                                                                            |
//!     '---------------------------- judge: every frame ----------------------------'
//! ```
//!
//! The device blocks inside its driver when the pipe is empty, and with it the gateway's core. Before and after the frames, the feed
//! therefore writes fillers slowly, which the node drops as not addressed to it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pinion_control::node::PortStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::frames::{self, FLOWS, Identity};
use super::pinion::ChainNode;
use crate::measurement::run::Run;

/// The number of frames that pass each chain.
pub(super) const FRAMES: u64 = 100_000;
/// The number of fillers at a time, at least the gateway's burst, and the time until the next ones.
const FILLERS: usize = 128;
const FILLER_INTERVAL: Duration = Duration::from_micros(500);
/// The longest time until the node has processed all frames.
const DONE_MAX: Duration = Duration::from_secs(20);

/// What happened to the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// Came out as expected.
    pub(super) arrived: u64,
    /// Did not come out; the node has counted each.
    pub(super) dropped: u64,
}

/// Sends frames through a chain. An error is a sentence about the first fault.
pub(super) fn check(run: &Run, size: u16, length: usize) -> anyhow::Result<Checked> {
    let folder = tempfile::tempdir()?;
    let (pipe, out) = (folder.path().join("in"), folder.path().join("out.pcap"));
    let feed = Feed::start(&pipe, size)?;
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", pipe.display(), out.display());
    let mut chain = ChainNode::start(run, &device, length)?;
    feed.send();
    let account = await_account(&mut chain)?;
    feed.end()?;
    chain.node.stop();
    let mut judge = Judge::new(size, length);
    let file = fs::read(&out).with_context(|| out.display().to_string())?;
    // The node announces its address, too.
    let is_announcement = |frame: &[u8]| frame.get(12..14) == Some(&[0x08, 0x06]);
    let see = |frame: &[u8]| {
        if !is_announcement(frame) {
            judge.see(frame);
        }
    };
    frames::for_each_frame(&file, see).context("the frames that came out")?;
    let arrived = judge.arrived()?;
    ensure!(arrived == account.sent, "{arrived} frames came out, but the node has counted {}", account.sent);
    ensure!(arrived > 0, "not one of {FRAMES} frames came out: {account:?}");
    Ok(Checked { arrived, dropped: FRAMES - arrived })
}

/// The node's counts of the frames, without the fillers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    /// Received by the port.
    received: u64,
    /// Lost by the device, fillers included.
    missed: u64,
    /// Dropped by the gateway, the MMA or a function.
    dropped: u64,
    /// Sent by the port, without what the node made itself.
    sent: u64,
}

impl Account {
    fn new(port: &PortStatus, dropped_by_fwps: u64) -> Self {
        let count = |wanted: &str| -> u64 {
            let drops = port.drops.iter().filter(|drop| drop.reason == wanted);
            drops.map(|drop| drop.count).sum()
        };
        let (fillers, missed) = (count("not-for-us"), count("missed-by-device"));
        let all: u64 = port.drops.iter().map(|drop| drop.count).sum();
        Self {
            received: port.received.saturating_sub(fillers),
            missed,
            dropped: all - fillers - missed + dropped_by_fwps,
            sent: port.sent - port.made_by_node,
        }
    }

    /// Returns whether each of the frames has been sent or counted as dropped.
    fn is_complete(&self) -> bool {
        let lost_by_device = FRAMES.saturating_sub(self.received);
        self.received <= FRAMES && lost_by_device <= self.missed && self.sent + self.dropped == self.received
    }
}

fn await_account(chain: &mut ChainNode) -> anyhow::Result<Account> {
    let deadline = Instant::now() + DONE_MAX;
    loop {
        let dropped_by_fwps = chain.serving()?.iter().map(|fwp| fwp.counters.dropped()).sum();
        let port = chain.port()?;
        let account = Account::new(&port, dropped_by_fwps);
        if account.is_complete() {
            return Ok(account);
        }
        let drops = &port.drops;
        ensure!(Instant::now() < deadline, "{FRAMES} frames were sent, and the node counts {account:?}, {drops:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks all frames that come out of a chain.
struct Judge {
    size: u16,
    length: usize,
    /// By flow: the sequence number of the last frame.
    last: [Option<u64>; FLOWS as usize],
    arrived: u64,
    first_fault: Option<String>,
}

impl Judge {
    fn new(size: u16, length: usize) -> Self {
        Self { size, length, last: [None; FLOWS as usize], arrived: 0, first_fault: None }
    }

    fn see(&mut self, frame: &[u8]) {
        match self.fault_of(frame) {
            Some(fault) => {
                self.first_fault.get_or_insert(fault);
            }
            None => self.arrived += 1,
        }
    }

    /// Returns a fault unless sequence numbers grow within each flow, which means in order and without duplicates.
    fn fault_of(&mut self, frame: &[u8]) -> Option<String> {
        let position = self.arrived;
        let Some(identity) = Identity::of(frame).filter(|identity| identity.sequence < FRAMES) else {
            return Some(format!("frame {position} was never sent: {frame:02x?}"));
        };
        let Identity { flow, sequence } = identity;
        if frame != identity.frame_after(self.size, self.length) {
            return Some(format!("number {sequence} of flow {flow} is altered: {frame:02x?}"));
        }
        let last = self.last[flow as usize].replace(sequence);
        let is_next = last.is_none_or(|last| last < sequence);
        (!is_next).then(|| format!("number {sequence} of flow {flow} came after number {}", last.unwrap_or_default()))
    }

    /// Returns how many came out, if all of them were right.
    fn arrived(self) -> anyhow::Result<u64> {
        match self.first_fault {
            None => Ok(self.arrived),
            Some(fault) => bail!(fault),
        }
    }
}

/// Writes into the pipe: fillers, the frames when told to, then fillers again.
struct Feed {
    orders: Arc<Orders>,
    thread: JoinHandle<anyhow::Result<()>>,
}

#[derive(Default)]
struct Orders {
    send: AtomicBool,
    end: AtomicBool,
}

impl Feed {
    fn start(path: &Path, size: u16) -> anyhow::Result<Self> {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("a pipe")?;
        // With both ends open here, opening and writing never wait for a node that may not come.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = File::from(rustix::fs::open(path, flags, Mode::empty()).context("a pipe")?);
        let orders = Arc::<Orders>::default();
        let heard = Arc::clone(&orders);
        let thread = thread::Builder::new().name("feed".to_owned()).spawn(move || feed(pipe, size, &heard))?;
        Ok(Self { orders, thread })
    }

    /// Makes the frames follow.
    fn send(&self) {
        self.orders.send.store(true, Ordering::Relaxed);
    }

    /// Closes the pipe: the device reaches the end of its file.
    fn end(self) -> anyhow::Result<()> {
        self.orders.end.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(done) => done,
            Err(_) => bail!("the thread that feeds the node has panicked"),
        }
    }
}

fn feed(mut pipe: File, size: u16, orders: &Orders) -> anyhow::Result<()> {
    let mut fillers = Vec::new();
    (0..FILLERS).for_each(|_| frames::add_record(&mut fillers, &frames::filler()));
    let mut records = Vec::new();
    (0..FRAMES).for_each(|number| frames::add_record(&mut records, &Identity::nth(number).frame(size)));
    write(&mut pipe, &frames::pcap_header(), orders)?;
    while !orders.end.load(Ordering::Relaxed) {
        if orders.send.load(Ordering::Relaxed) {
            write(&mut pipe, &std::mem::take(&mut records), orders)?;
        }
        write(&mut pipe, &fillers, orders)?;
        thread::sleep(FILLER_INTERVAL);
    }
    Ok(())
}

/// Writes all bytes, unless told to end.
fn write(pipe: &mut File, mut bytes: &[u8], orders: &Orders) -> anyhow::Result<()> {
    while !bytes.is_empty() && !orders.end.load(Ordering::Relaxed) {
        match pipe.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let ten_ms = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                poll(&mut [PollFd::new(pipe, PollFlags::OUT)], Some(&ten_ms))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinion_control::model::PortName;
    use pinion_control::node::DropCount;

    use super::*;

    fn judged(frames: &[Vec<u8>]) -> anyhow::Result<u64> {
        let mut judge = Judge::new(64, 1);
        frames.iter().for_each(|frame| judge.see(frame));
        judge.arrived()
    }

    fn out(number: u64) -> Vec<u8> {
        Identity::nth(number).frame_after(64, 1)
    }

    fn fault(frames: &[Vec<u8>]) -> String {
        judged(frames).unwrap_err().to_string()
    }

    #[test]
    fn frames_in_order_are_right_with_gaps_too() {
        assert_eq!(judged(&[out(0), out(1), out(16), out(48)]).unwrap(), 4);
    }

    #[test]
    fn flows_may_overtake_each_other() {
        assert_eq!(judged(&[out(16), out(1)]).unwrap(), 2);
    }

    #[test]
    fn a_frame_that_comes_twice_is_a_fault() {
        assert_eq!(fault(&[out(16), out(16)]), "number 1 of flow 0 came after number 1");
    }

    #[test]
    fn a_frame_that_is_overtaken_within_its_flow_is_a_fault() {
        assert_eq!(fault(&[out(32), out(16)]), "number 1 of flow 0 came after number 2");
    }

    #[test]
    fn a_single_altered_byte_is_a_fault() {
        let mut frame = out(0);
        frame[63] ^= 1;
        assert!(fault(&[frame]).starts_with("number 0 of flow 0 is altered"));
    }

    #[test]
    fn a_frame_that_no_function_has_handled_is_a_fault() {
        assert!(fault(&[Identity::nth(0).frame(64)]).starts_with("number 0 of flow 0 is altered"));
    }

    #[test]
    fn a_frame_that_was_never_sent_is_a_fault() {
        assert!(fault(&[vec![0; 64]]).starts_with("number 0 of flow 0 is altered"));
        assert!(fault(&[vec![0; 20]]).starts_with("frame 0 was never sent"));
    }

    fn port(received: u64, sent: u64, drops: &[(&str, u64)]) -> PortStatus {
        let drop = |&(reason, count): &(&str, u64)| DropCount { reason: reason.to_owned(), count };
        PortStatus {
            name: PortName::new("lan").unwrap(),
            device: String::new(),
            mac: String::new(),
            mtu: 1500,
            link_up: true,
            received,
            sent,
            made_by_node: 0,
            drops: drops.iter().map(drop).collect(),
        }
    }

    #[test]
    fn an_account_is_complete_when_each_frame_was_sent_or_counted() {
        let drops = [("not-for-us", 500), ("mma-busy", 7)];
        assert!(Account::new(&port(FRAMES + 500, FRAMES - 10, &drops), 3).is_complete());
        assert!(!Account::new(&port(FRAMES + 500, FRAMES - 10, &drops), 2).is_complete(), "one is missing");
        assert!(!Account::new(&port(FRAMES + 499, FRAMES - 10, &drops), 3).is_complete(), "one has not come");
    }

    #[test]
    fn frames_lost_by_the_device_count_as_lost() {
        let drops = [("not-for-us", 500), ("missed-by-device", 4)];
        assert!(Account::new(&port(FRAMES + 496, FRAMES - 4, &drops), 0).is_complete());
        assert!(!Account::new(&port(FRAMES + 495, FRAMES - 5, &drops), 0).is_complete());
    }
}

//! A cable with [`Weather`] in both directions, for kernels without a network emulator, and a client at its end.
//!
//! ```text
//!   client's namespace      a namespace of the cable's own        switch
//!   eth0 ------------------ near <--> [Lane] [Lane] <--> far ------ port of the bridge
//! ```
//!
//! One thread moves the frames between two packet sockets, and holds those that are late. The client's kernel completes each frame before it
//! sends it, with right checksums and no more than the MTU; so does the node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use smoltcp::phy::{Device, Medium, RawSocket, RxToken, TxToken};
use smoltcp::time::Instant as Timestamp;

use crate::network::bed::{Bed, Client, NODE, NODE_V6};
use crate::network::namespace::Namespace;
use crate::network::weather::{Counts, Lane, Weather};

/// The interfaces at the cable's ends.
const NEAR: &str = "near";
/// See [`NEAR`].
const FAR: &str = "far";
/// How long the thread sleeps if nothing comes.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Most frames of one direction before those of the other have their turn.
const BATCH: usize = 32;

/// The counts of both directions: what the near end's host has sent, and what came for it.
type BothCounts = Arc<Mutex<[Counts; 2]>>;

/// See the module. Ends when dropped.
#[derive(Debug)]
pub struct BadCable {
    is_ending: Arc<AtomicBool>,
    counts: BothCounts,
    thread: Option<JoinHandle<()>>,
}

impl BadCable {
    /// Connects the interface of a host by a cable with this weather to an interface of a switch, both of which are made. `seed` decides what
    /// happens to which segment.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(
        weather: Weather,
        seed: u64,
        (host, interface): (&Namespace, &str),
        (switch, port): (&Namespace, &str),
    ) -> Self {
        let namespace = Namespace::new("cable");
        host.connect(interface, &namespace, NEAR);
        namespace.connect(FAR, switch, port);
        host.finish_frames(interface);
        let (is_ending, counts) = (Arc::new(AtomicBool::new(false)), BothCounts::default());
        let (ready, is_ready) = mpsc::channel();
        let thread = {
            let (is_ending, counts) = (Arc::clone(&is_ending), Arc::clone(&counts));
            // The two directions have different weather.
            let lanes = [seed, !seed].map(|seed| Lane::new(weather, seed));
            thread::spawn(move || namespace.inside(|| carry(lanes, &is_ending, &counts, &ready)))
        };
        is_ready.recv().expect("the cable's ends can be opened");
        Self { is_ending, counts, thread: Some(thread) }
    }

    /// Returns what has happened to the segments that the host at the near end has sent.
    #[must_use]
    pub fn from_host(&self) -> Counts {
        self.both()[0]
    }

    /// Returns what has happened to the segments for the host at the near end.
    #[must_use]
    pub fn to_host(&self) -> Counts {
        self.both()[1]
    }

    fn both(&self) -> [Counts; 2] {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BadCable {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // Its panic has already been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Moves frames between both ends until it is to end.
fn carry(mut lanes: [Lane; 2], is_ending: &AtomicBool, counts: &Mutex<[Counts; 2]>, ready: &mpsc::Sender<()>) {
    let mut ends = [NEAR, FAR].map(|end| RawSocket::new(end, Medium::Ethernet).expect("an interface made before"));
    ready.send(()).expect("it is awaited");
    let start = Instant::now();
    while !is_ending.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for from in [0, 1] {
            for _ in 0..BATCH {
                let Some(frame) = receive(&mut ends[from]) else { break };
                is_idle = false;
                let taken = lanes[from].take(frame, start.elapsed());
                taken.onwards.iter().for_each(|frame| send(&mut ends[1 - from], frame));
                taken.back.iter().for_each(|frame| send(&mut ends[from], frame));
            }
            lanes[from].due(start.elapsed()).iter().for_each(|frame| send(&mut ends[1 - from], frame));
        }
        *counts.lock().unwrap_or_else(PoisonError::into_inner) = [lanes[0].counts(), lanes[1].counts()];
        if is_idle {
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

fn receive(end: &mut RawSocket) -> Option<Vec<u8>> {
    end.receive(Timestamp::now()).map(|(frame, _)| frame.consume(<[u8]>::to_vec))
}

fn send(end: &mut RawSocket, frame: &[u8]) {
    let token = end.transmit(Timestamp::now()).expect("a raw socket always has a token");
    token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
}

/// A client that reaches a bed's node by a bad cable alone.
#[derive(Debug)]
pub struct FarClient {
    /// The cable, which goes before its ends do.
    pub cable: BadCable,
    /// The client.
    pub client: Client,
}

impl FarClient {
    /// Adds a client to a bed, with a number of its own below 100.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(bed: &Bed, number: usize, weather: Weather, seed: u64) -> Self {
        let client = Client {
            namespace: Namespace::new(&format!("far{number}")),
            address: format!("10.77.0.{}", 100 + number),
            address_v6: format!("fd77::{}", 100 + number),
        };
        let port = format!("far{number}");
        let cable = BadCable::new(weather, seed, (&client.namespace, "eth0"), (bed.switch(), &port));
        bed.plug(&port);
        client.namespace.ip(&format!("address add {}/24 dev eth0", client.address));
        client.namespace.ip(&format!("address add {}/64 dev eth0 nodad", client.address_v6));
        Self { cable, client }
    }
}

/// Returns the node's addresses of both versions of IP with this port.
///
/// # Panics
/// Never: they are addresses.
#[must_use]
pub fn both_addresses(port: u16) -> [SocketAddr; 2] {
    [NODE, NODE_V6].map(|address| SocketAddr::new(address.parse().expect("an address"), port))
}

//! Every thread that sleeps is woken when it has work. A node falls asleep between requests, which are made one at a time, after pauses
//! that end in every phase of falling asleep, so that no other event replaces a lost wake-up. Runs for some seconds here, and for a chosen
//! time by `make wakeups TIME=3600`.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::iter::repeat_n;
use std::net::UdpSocket;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::load::CoreWaits;
use pinion_tests::machine::witness::Witness;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::cli::Caller;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::random::Random;
use pinion_tests::traffic::echo::{Asker, rest};
use pinion_tests::until::{SOON, until};

/// Roles on the first two cores, by their index. Each thread sleeps independently, and each doorbell is between two threads in some plan.
struct Plan {
    device: Device,
    gateway: usize,
    mma: usize,
    worker: usize,
}

const PLANS: [Plan; 4] = [
    Plan { device: Device::AfPacket, gateway: 0, mma: 0, worker: 1 },
    Plan { device: Device::AfPacket, gateway: 0, mma: 1, worker: 0 },
    Plan { device: Device::AfXdp, gateway: 0, mma: 1, worker: 1 },
    Plan { device: Device::Tap, gateway: 0, mma: 0, worker: 0 },
];

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, gateway, mma, worker } = self;
        write!(f, "{device:?}, gateway on {gateway}, MMA on {mma}, worker on {worker}")
    }
}

/// A lost wake-up shows as the rest of a sleep of 100 or 200 ms, or of a second, less the pause before. No regular answer takes as long as
/// this, unless the machine stands still.
const STALL: Duration = Duration::from_millis(50);
/// The longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a packet is held by the function that delays it.
const DELAY: Duration = Duration::from_millis(1);
const DELAYED: &str = "10.77.0.60";
const ECHO_PORT: u16 = 7;
/// Processes that are started before they have to call.
const CALLERS: usize = 8;
const FUNCTION: &str = "demo/word-count";
/// Clients that come again and again, each to a new instance, as the former one has ended by then.
const NEWCOMERS: usize = 64;

/// The kinds of request to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through three functions: device, gateway, MMA, worker, and from stage to stage.
    Through,
    /// Through a function that holds the packet until a deadline.
    Delayed,
    /// By the API: with the gateway's doorbell and that of the thread that waits for the answer.
    Called,
    /// As a client that has no instance yet: with the launcher.
    New,
}

/// The weight of each kind among all requests.
const WAYS: [(Way, usize); 4] = [(Way::Through, 8), (Way::Delayed, 4), (Way::Called, 1), (Way::New, 3)];

/// A node and its clients.
struct Clients {
    bed: Bed,
    through: Asker,
    delayed: Asker,
    newcomers: Vec<UdpSocket>,
    next: usize,
    callers: VecDeque<Caller>,
}

impl Clients {
    fn new(plan: &Plan) -> Self {
        let (first, second) = two_cores();
        let [gateway, mma, worker] = [plan.gateway, plan.mma, plan.worker].map(|place| [first, second][place]);
        let cores = format!("[cores]\ngateway = {gateway}\nmmas = [{mma}]\nworkers = [{worker}]\n");
        let bed = Bed::with_settings(plan.device, &[DELAYED], &cores);
        bed.node.apply(manifest().text());
        let client = &bed.clients[0].namespace;
        client.finish_frames("eth0");
        let newcomer = || {
            let socket = UdpSocket::bind((bed.clients[0].address.as_str(), 0)).expect("a port of the client's");
            socket.connect((NODE, ECHO_PORT)).expect("the address is in the client's network");
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
            socket
        };
        let newcomers = client.inside(|| (0..NEWCOMERS).map(|_| newcomer()).collect());
        let [through, delayed] = [NODE, DELAYED].map(|to| Asker::new(client, to));
        let callers = (0..CALLERS).map(|_| bed.node.cli().caller(FUNCTION)).collect();
        let mut clients = Self { through, delayed, newcomers, next: 0, callers, bed };
        for (way, _) in WAYS {
            until(&format!("answer to {way:?}"), SOON, || clients.ask(way));
        }
        clients
    }

    /// Returns how long an answer took, less its intended delay; none if there was no answer.
    fn ask(&mut self, way: Way) -> Option<Duration> {
        match way {
            Way::Through => self.through.ask(),
            Way::Delayed => Some(self.delayed.ask()?.saturating_sub(DELAY)),
            Way::Called => {
                let mut caller = self.callers.pop_front()?;
                let start = Instant::now();
                let is_answered = caller.call(b"two words") == b"0 2 9\n";
                let took = start.elapsed();
                self.callers.push_back(self.bed.node.cli().caller(FUNCTION));
                is_answered.then_some(took)
            }
            Way::New => {
                self.next = (self.next + 1) % NEWCOMERS;
                let (newcomer, start) = (&self.newcomers[self.next], Instant::now());
                newcomer.send(b"first").ok()?;
                newcomer.recv(&mut [0; 16]).ok()?;
                Some(start.elapsed())
            }
        }
    }
}

fn manifest() -> Manifest {
    let mut manifest = Manifest::of(TENANT);
    for module in ["delay", "icmp-echo", "macswap", "udp-echo", "word-count"] {
        manifest = manifest.module(module, &build::sample(module));
    }
    let chains = [
        ("through", "{ module = \"macswap\" }, { module = \"macswap\" }, { module = \"icmp-echo\" }".to_owned()),
        (
            "delayed",
            format!("{{ module = \"delay\", config = \"{}ms\" }}, {{ module = \"icmp-echo\" }}", DELAY.as_millis()),
        ),
        ("new", "{ module = \"udp-echo\", config = \"once\" }".to_owned()),
    ];
    for (name, stages) in chains {
        let cache_min = if name == "new" { 0 } else { 1 };
        manifest =
            manifest.with(format_args!("[[chain]]\nname = {name:?}\ncache_min = {cache_min}\nstage = [{stages}]\n"));
    }
    manifest.ping_rule("through", "through", "shared", NODE).ping_rule("delayed", "delayed", "shared", DELAYED).with(
        format_args!(
            "[[rule]]\nname = \"new\"\npolicy = \"per-flow\"\nchain = \"new\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
        ),
    )
}

/// A pause that ends while the node falls asleep, or any from a microsecond to some milliseconds, or at times the longest sleep of a
/// thread, which then wakes up by itself.
fn pause(random: &mut Random) -> Duration {
    Duration::from_nanos(match random.below(1000) {
        0..4 => (1 + random.below(2)) * 100_000_000 - 1_000_000 + random.below(2_000_000),
        4..500 => 150_000 + random.below(300_000),
        _ => (1 << random.below(12)) * (1_000 + random.below(1_000)),
    })
}

fn choose(random: &mut Random) -> Way {
    let all = || WAYS.into_iter().flat_map(|(way, times)| repeat_n(way, times));
    all().nth(random.below(all().count() as u64) as usize).expect("there are more")
}

/// A request's kind, the pause before it, and how long its answer took.
#[derive(Clone, Copy, Debug)]
struct Answer {
    way: Way,
    pause: Duration,
    took: Duration,
    /// How long the machine stood still meanwhile.
    standstill: Duration,
    /// How long threads that were awake waited for a core meanwhile.
    waited: Duration,
}

impl Answer {
    /// Returns whether a thread slept although it had work, as far as this can be determined. Where threads waited for cores, so did others
    /// whose waits are not known, such as the kernel's.
    fn is_stall(&self) -> bool {
        self.took.saturating_sub(2 * self.waited) >= STALL && self.standstill < self.took / 2
    }
}

/// Sends requests for so long.
fn ask_for(plan: &Plan, time: Duration, random: &mut Random) -> Vec<Answer> {
    let (mut clients, (first, second)) = (Clients::new(plan), two_cores());
    let (witness, waits) = (Witness::on(&[first, second]), CoreWaits::of_all(&clients.bed.node));
    let (start, mut answers) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let (pause, way) = (pause(random), choose(random));
        // Before the pause, so that short ones stay short. The node rests meanwhile.
        let waited = waits.total();
        rest(pause);
        let asked = witness.now();
        let took = clients.ask(way).unwrap_or_else(|| panic!("{plan}: {way:?} after {pause:?} was not answered"));
        let waited = if took < STALL { Duration::ZERO } else { waits.total().saturating_sub(waited) };
        let standstill = if took < STALL { Duration::ZERO } else { witness.standstill(&asked) };
        answers.push(Answer { way, pause, took, standstill, waited });
    }
    answers
}

fn print(plan: &Plan, answers: &[Answer]) {
    println!("{plan}:");
    for (way, _) in WAYS {
        let mut took: Vec<_> = answers.iter().filter(|answer| answer.way == way).map(|answer| answer.took).collect();
        took.sort_unstable();
        let Some(slowest) = took.last() else { continue };
        let [median, most] = [50, 99].map(|percent| took[took.len() * percent / 100]);
        println!("  {way:?}: {} answers, p50 {median:?}, p99 {most:?}, slowest {slowest:?}", took.len());
    }
    for answer @ Answer { way, pause, took, standstill, waited } in answers.iter().filter(|answer| answer.took >= STALL)
    {
        let whose = if answer.is_stall() { "a stall" } else { "the machine's" };
        println!(
            "  {whose}: {way:?} after {pause:?} took {took:?}; the machine stood still for {standstill:?}, threads waited {waited:?}"
        );
    }
}

/// Sends requests in all plans, for so long together.
fn no_wake_up_is_lost(time: Duration, seed: u64) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut stalls = 0;
    for plan in &PLANS {
        let answers = ask_for(plan, time / PLANS.len() as u32, &mut random);
        print(plan, &answers);
        stalls += answers.iter().filter(|answer| answer.is_stall()).count();
    }
    assert_eq!(
        stalls, 0,
        "so many answers took {STALL:?} or longer while the machine did not stand still and cores were free: see above"
    );
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Returns the seed from the environment, which repeats a run's pauses, or else a new one.
fn seed() -> u64 {
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    number("PINION_WAKEUPS_SEED").unwrap_or_else(by_clock)
}

#[test]
fn no_wake_up_is_lost_for_some_seconds() {
    no_wake_up_is_lost(Duration::from_secs(8), seed());
}

#[test]
#[ignore = "takes as long as PINION_WAKEUPS_SECONDS says: `make wakeups`"]
fn no_wake_up_is_lost_for_long() {
    let seconds = number("PINION_WAKEUPS_SECONDS").expect("PINION_WAKEUPS_SECONDS is a number of seconds");
    no_wake_up_is_lost(Duration::from_secs(seconds), seed());
}

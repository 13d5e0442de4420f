//! A hundred honest clients of ten tenants, with contents that each of them knows: what they see beside an attack says whether the node
//! withstands it.
//!
//! ```text
//!   slices:   calm | attack | calm | attack | ...      in each, the neighbours ask: ten at a time, one of each tenant
//! ```
//!
//! A node withstands an attack if every question of all slices is answered with its own bytes, and nothing else comes; if nothing of the
//! neighbours' was dropped, no thread of the node has panicked, and nothing is left of the attack when its chains are deleted. Where the
//! attack is for the cores, the neighbours' FWPs must also have had their turns in time, by what the node counts; other times are only
//! told, as on a machine of a few cores the attack's own senders take a part of them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::holdings::Holdings;
use pinion_tests::machine::load::CoreWaits;
use pinion_tests::network::bed::{Bed, NODE};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

use crate::clients::new_addresses;

/// Settings of a node with room for all neighbours and as many FWPs again for an attack.
pub(crate) const SETTINGS: &str = "[limits]\nfwps_max = 512\n";
/// The FWPs of such a node.
const PLACES: u64 = 512;
/// The tenant that attacks, or whose clients do. The names of others that attack begin with this.
pub(crate) const GREEDY: &str = "mallory";

const TENANTS: usize = 10;
const CLIENTS: usize = 100;
const FIRST_PORT: u16 = 7_000;
/// Slices without the attack; there are as many with it.
const SLICES: usize = 8;
/// How often each neighbour asks in a slice, at least.
const ROUNDS: usize = 2;
/// Waves of the attack that begin and end while the neighbours ask, at least.
const WAVES: u64 = 2;
/// After each such time it is looked whether the kernel or the port had no room for a question. If so, it is asked again.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const QUANTUM_US: u64 = 20;

/// An attack.
pub(crate) struct Attack<'a> {
    /// What it needs on the node, by tenant.
    pub(crate) manifests: &'a [Manifest],
    /// Makes a little of it.
    pub(crate) wave: &'a (dyn Fn() + Sync),
    /// Whether what it has begun is over, so that the next slice is calm.
    pub(crate) is_over: &'a dyn Fn() -> bool,
    /// It keeps the cores busy, so that it is looked at how long FWPs waited for them.
    pub(crate) is_for_the_cores: bool,
}

/// One neighbour.
struct Client {
    socket: UdpSocket,
    number: usize,
    asked: u32,
    /// What was asked again, so that two answers may come.
    asked_again: Vec<u32>,
}

impl Client {
    fn question(&self) -> Vec<u8> {
        contents(self.number, self.asked)
    }

    fn ask(&mut self) {
        self.asked += 1;
        self.socket.send(&self.question()).expect("the interface takes a datagram");
    }

    /// Waits for the answer to the last question.
    ///
    /// # Panics
    /// If it has other bytes than the question, or the question was lost in the node.
    #[track_caller]
    fn hear(&mut self, bed: &Bed, missed: &mut u64) {
        let (mut answer, began) = ([0; 2048], Instant::now());
        loop {
            match self.socket.recv(&mut answer) {
                Ok(len) if answer[..len] == self.question() => return,
                Ok(len) => self.assert_second(&answer[..len]),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    let before = std::mem::replace(missed, self::missed(bed));
                    if *missed > before {
                        self.asked_again.push(self.asked);
                        self.socket.send(&self.question()).expect("the interface takes a datagram");
                    }
                    assert!(began.elapsed() < SOON, "{} had no answer to question {}", self.number, self.asked);
                }
            }
        }
    }

    /// Checks that this is a second answer to what was asked again.
    #[track_caller]
    fn assert_second(&self, answer: &[u8]) {
        let is_second = self.asked_again.iter().any(|asked| answer == contents(self.number, *asked));
        assert!(is_second, "{} got bytes that it did not ask for: {}", self.number, answer.escape_ascii());
    }

    /// Checks that nothing has come but the answers.
    #[track_caller]
    fn assert_quiet(&self) {
        self.socket.set_nonblocking(true).expect("a socket can be so");
        let mut more = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut more) {
            self.assert_second(&more[..len]);
        }
    }
}

/// Returns how many frames found no room before the node had them.
fn missed(bed: &Bed) -> u64 {
    bed.node.cli().drops("missed-by-device") + bed.switch().frames_dropped_on_arrival()
}

/// Returns what a client asks: bytes that no other question has.
fn contents(number: usize, asked: u32) -> Vec<u8> {
    const LEN_MIN: usize = 16;
    const LENS: usize = 1_200;
    let seed = (number as u64) << 32 | u64::from(asked);
    let len = LEN_MIN + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % LENS;
    let byte = |at: usize| (seed.wrapping_add(at as u64).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 56) as u8;
    seed.to_be_bytes().into_iter().chain((0..len).map(byte)).collect()
}

/// All neighbours, those of one tenant after those of another.
struct Neighbours<'a> {
    bed: &'a Bed,
    clients: Vec<Client>,
    /// How many frames had found no room when it was looked last.
    missed: u64,
}

impl<'a> Neighbours<'a> {
    /// Lets them move in: each has an instance.
    #[track_caller]
    fn move_in(bed: &'a Bed) -> Self {
        (0..TENANTS).for_each(|tenant| bed.node.apply(manifest(tenant).text()));
        let (addresses, machine) = (new_addresses(bed, CLIENTS as u64), &bed.clients[1].namespace);
        machine.finish_frames("eth0");
        let open = |(number, address): (usize, &String)| {
            let socket = UdpSocket::bind((address.as_str(), 0)).expect("the client has the address");
            let port = FIRST_PORT + (number / (CLIENTS / TENANTS)) as u16;
            socket.connect((NODE, port)).expect("the node is in the client's network");
            socket.set_read_timeout(Some(LOOK_INTERVAL)).expect("a socket has a timeout");
            Client { socket, number, asked: 0, asked_again: Vec::new() }
        };
        let clients = machine.inside(|| addresses.iter().enumerate().map(open).collect());
        let mut neighbours = Self { bed, clients, missed: missed(bed) };
        neighbours.round(&mut Vec::new());
        neighbours
    }

    /// Lets each neighbour ask once; adds how long the answers took. One of each tenant asks at a time.
    #[track_caller]
    fn round(&mut self, took: &mut Vec<Duration>) {
        const OF_EACH: usize = CLIENTS / TENANTS;
        for turn in 0..OF_EACH {
            let began = Instant::now();
            self.clients.iter_mut().skip(turn).step_by(OF_EACH).for_each(Client::ask);
            for client in self.clients.iter_mut().skip(turn).step_by(OF_EACH) {
                client.hear(self.bed, &mut self.missed);
                took.push(began.elapsed());
            }
        }
    }

    /// Lets them ask beside waves of an attack.
    #[track_caller]
    fn beside(&mut self, wave: &(dyn Fn() + Sync), took: &mut Vec<Duration>) {
        let (is_over, waves) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _ends = SetsWhenDropped(&is_over);
            let attack = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    wave();
                    waves.fetch_add(1, Ordering::Relaxed);
                }
            });
            let made = || waves.load(Ordering::Relaxed);
            until("wave of the attack", SOON, || (made() > 0 || attack.is_finished()).then_some(()));
            let (mut rounds, first) = (0, made());
            while rounds < ROUNDS || (made() < first + WAVES && !attack.is_finished()) {
                self.round(took);
                rounds += 1;
            }
        });
    }
}

/// Sets a flag when it is dropped, also by a panic.
struct SetsWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn tenant_name(tenant: usize) -> String {
    format!("honest-{tenant}")
}

fn manifest(tenant: usize) -> Manifest {
    let port = FIRST_PORT + tenant as u16;
    let matches = format!("{{ destination = \"{NODE}\", protocol = \"udp\", destination_ports = {port} }}");
    let rule = format!("[[rule]]\nname = \"echo\"\npolicy = \"per-client\"\nchain = \"echo\"\nmatch = {matches}\n");
    let manifest = Manifest::of(&tenant_name(tenant)).module("udp-echo", &sample("udp-echo"));
    manifest.chain("echo", "udp-echo", "").with(rule)
}

/// What neighbours' FWPs have had.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    turns: u64,
    waited_us: u64,
}

impl Had {
    fn now(bed: &Bed) -> Self {
        let fwps = bed.node.cli().serving_fwps();
        let honest = fwps.iter().filter(|fwp| fwp["tenant"].as_str().is_some_and(|name| name.starts_with("honest-")));
        honest.fold(Self::default(), |had, fwp| {
            let count = |name: &str| fwp["counters"][name].as_u64().expect("a number");
            Self { turns: had.turns + count("resumes"), waited_us: had.waited_us + count("wait_us") }
        })
    }
}

/// Checks that the neighbours keep what is theirs beside an attack. `happened` checks that it took place.
///
/// # Panics
/// If they do not, or it did not.
#[track_caller]
pub(crate) fn keep_what_is_theirs(bed: &Bed, attack: &Attack<'_>, happened: impl FnOnce()) {
    let mut neighbours = Neighbours::move_in(bed);
    attack.manifests.iter().for_each(|manifest| bed.node.apply(manifest.text()));
    let (mut calm, mut attacked, mut before, mut made) = (Vec::new(), Vec::new(), None::<Holdings>, 0);
    let (mut turns, mut waited_us, mut without_core_us) = (0, 0, 0);
    let core_waits = CoreWaits::on_core(&bed.node, two_cores().1);
    for slice in 0..SLICES {
        (0..ROUNDS).for_each(|_| neighbours.round(&mut calm));
        let (had, without_core) = (Had::now(bed), core_waits.total());
        neighbours.beside(attack.wave, &mut attacked);
        let now = Had::now(bed);
        (turns, waited_us) = (turns + now.turns - had.turns, waited_us + now.waited_us - had.waited_us);
        without_core_us += (core_waits.total() - without_core).as_micros() as u64;
        until("end of what the attack has begun", SOON, || (attack.is_over)().then_some(()));
        if slice < SLICES / 2 {
            let now = Holdings::of(bed.node.process());
            (before, made) = (Some(before.map_or(now, |before| before.max(now))), instances_made(bed));
        }
    }
    let [calm_us, attacked_us] = [calm, attacked].map(percentile_99_us);
    println!(
        "neighbours' p99: {calm_us} us, beside the attack {attacked_us} us; waits of {waited_us} us in {turns} turns, their core's \
         without {without_core_us} us"
    );
    neighbours.clients.iter().for_each(Client::assert_quiet);
    assert_eq!(dropped(bed), BTreeMap::new(), "dropped of neighbours' packets");
    assert!(turns > 0, "the neighbours' FWPs had turns");
    // In the mean, one turn of each tenant that is runnable then, or the rest of one.
    let tenants = TENANTS + attack.manifests.len().max(1);
    let waited_us_max = tenants as u64 * QUANTUM_US * turns + without_core_us;
    assert!(!attack.is_for_the_cores || waited_us <= waited_us_max, "{waited_us} us in {turns} turns: {waited_us_max}");
    happened();
    let made = instances_made(bed).saturating_sub(made).min(PLACES);
    leave(bed);
    Holdings::of(bed.node.process()).assert_not_grown_from(&before.expect("there are slices"), made);
    assert!(!bed.node.log().contains("panicked at"), "{}", bed.node.log());
}

/// Returns how many instances of the chains that there are have had a client.
fn instances_made(bed: &Bed) -> u64 {
    let status = bed.node.cli().status();
    let chains = status["chains"].as_array().expect("a list of chains");
    chains.iter().filter_map(|chain| chain["meter"]["activations"].as_u64()).sum()
}

/// Returns whether this is of a tenant that attacks.
fn is_attackers(object: &Value) -> bool {
    object["tenant"].as_str().is_some_and(|tenant| tenant.starts_with(GREEDY))
}

/// Returns whether the attacking tenants have neither an FWP with a client nor a build under way.
pub(crate) fn is_at_rest(bed: &Bed) -> bool {
    let fwps = bed.node.cli().serving_fwps();
    let status = bed.node.cli().status();
    let builds = status["builds"].as_array().expect("a list of builds");
    !fwps.iter().chain(builds).any(is_attackers)
}

fn percentile_99_us(mut times: Vec<Duration>) -> u64 {
    times.sort_unstable();
    times[times.len() * 99 / 100].as_micros() as u64
}

/// Reasons for which only packets are dropped that others have sent in the neighbours' names: their functions did not want these, and the
/// neighbours send no fragments.
const OF_FORGED: [&str; 2] = ["dropped-by-function", "overlapping-fragment"];

/// Returns how many of the neighbours' packets were dropped, by tenant, place and reason.
fn dropped(bed: &Bed) -> BTreeMap<String, u64> {
    let status = bed.node.cli().status();
    let chains = status["chains"].as_array().expect("a list of chains");
    let honest = chains.iter().filter(|chain| !is_attackers(chain));
    let of_chain = |chain: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&chain["tenant"]);
        let drops = chain["drops"].as_array().cloned().unwrap_or_default();
        let forged = |drop: &Value| OF_FORGED.iter().any(|reason| drop["reason"] == *reason);
        let drops = drops.into_iter().filter(|drop| !forged(drop)).map(move |drop| {
            let reason = format!("{name}, {}: {}", text(&drop["place"]), text(&drop["reason"]));
            (reason, drop["count"].as_u64().expect("a number"))
        });
        drops.collect::<Vec<_>>()
    };
    honest.flat_map(of_chain).collect()
}

/// Deletes all that the attacking tenants have.
fn leave(bed: &Bed) {
    for (kind, list) in [("rule", "rules"), ("chain", "chains"), ("module", "modules")] {
        for object in bed.node.cli().get(list) {
            if is_attackers(&object) {
                let text = |key: &str| object[key].as_str().expect("an object has a name and a tenant");
                bed.node.cli().run(&["delete", kind, text("name"), "--tenant", text("tenant")]);
            }
        }
    }
    until("node without FWPs of the attacker", SOON, || {
        let fwps = bed.node.cli().get("fwps");
        let lives = |fwp: &Value| !matches!(fwp["state"].as_str(), Some("terminated" | "template"));
        (!fwps.iter().any(|fwp| is_attackers(fwp) && lives(fwp))).then_some(())
    });
}

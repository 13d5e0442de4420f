//! FWPs that have handshakes signed and tickets sealed, turn by turn, with jobs that are done when the test says.

mod support;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_abi::Errno;
use pinion_control::model::OverBudget;
use pinion_keys::{PrivateKey, ServerKey};
use pinion_mma::id::FwpId;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::keys::KeyGrants;
use pinion_runtime::offload::{Kind, Limits, Offload, OffloadPort, Wake};
use pinion_runtime::scheduler::{CpuShare, Rate, TenantShare};
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use support::{Bench, ID, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;
const LIMITS: Limits = Limits { jobs_max: 4, per_second: None };

/// The scheme of `ed25519` (RFC 8446, section 4.2.3), whose signatures are the same each time (RFC 8032, section 5.1.6).
const EDDSA: u16 = 0x0807;
const ECDSA: u16 = 0x0403;

fn key(pem: &[u8]) -> Arc<ServerKey> {
    Arc::new(ServerKey::new(PrivateKey::from_pem(pem).unwrap()))
}

/// Returns a key of Ed25519 named `site`, and one of P-256 named `other`.
fn keys() -> Vec<(String, Arc<ServerKey>)> {
    let site = key(include_bytes!("../../control/keys/tests/data/ed25519.pem"));
    let other = key(include_bytes!("../../control/keys/tests/data/p256.pem"));
    vec![("site".to_owned(), site), ("other".to_owned(), other)]
}

/// What a server signs in TLS 1.3 (RFC 8446, section 4.4.3).
fn message() -> Vec<u8> {
    [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[0xab; 32]].concat()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\{byte:02x}").unwrap();
        text
    })
}

/// Returns a guest that runs `init` and `run`, with the message, the signature of it and a table in its memory, and the names of its keys at 64
/// and 80.
fn guest(init: &str, run: &str, table: &[u8]) -> String {
    let expected = keys()[0].1.key.sign(EDDSA, &message()).unwrap();
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "key_open" (func $open (param i32 i32) (result i32)))
            (import "pinion" "key_sign" (func $sign (param i32 i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "ticket_seal" (func $seal (param i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "ticket_open" (func $unseal (param i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 4)
            (global $opened (mut i32) (i32.const 0))
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\40\01\00\04\00\00\00\00\04\00\00\00\10\00\00")
            (data (i32.const 64) "site")
            (data (i32.const 80) "other")
            (data (i32.const 12288) "{message}")
            (data (i32.const 14336) "{expected}")
            (data (i32.const 24576) "{table}")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) {init} (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $first_packet (loop $first (br_if $first (i32.eqz (call $wait)))))
            (func $sign_message (param $key i32) (param $scheme i32) (result i32)
                (call $sign (local.get $key) (local.get $scheme) (i32.const 12288) (i32.const 130) (i32.const 16384) (i32.const 512)))
            (func $same (param $a i32) (param $b i32) (param $len i32) (result i32)
                (loop $next
                    (if (i32.eqz (local.get $len)) (then (return (i32.const 1))))
                    (local.set $len (i32.sub (local.get $len) (i32.const 1)))
                    (br_if $next (i32.eq (i32.load8_u (i32.add (local.get $a) (local.get $len)))
                                         (i32.load8_u (i32.add (local.get $b) (local.get $len))))))
                (i32.const 0))
            (func (export "pinion_run") {run}))"#,
        message = escaped(&message()),
        expected = escaped(&expected),
        table = escaped(table),
    )
}

/// Passes wake-ups to a worker.
struct ToWorker(Sender<WorkerCommand>);

impl Wake for ToWorker {
    fn wake(&self, id: FwpId, share: CpuShare, took_ns: u64) {
        self.0.send(WorkerCommand::Wake { id, share, took_ns }).unwrap();
    }
}

/// A worker with one FWP, and the jobs that wait for a thread.
struct Scene {
    bench: Bench,
    worker: Worker,
    commands: Sender<WorkerCommand>,
    events: Receiver<WorkerEvent>,
    offload: Arc<Offload>,
}

impl Scene {
    /// Launches a guest with these keys and lets a worker adopt it; it gets a packet.
    fn new(wat: &str, keys: Vec<(String, Arc<ServerKey>)>, limits: Limits) -> Self {
        let mut bench = Bench::new();
        let (worker, commands, events) = bench.worker();
        let offload = Arc::new(Offload::new([limits; 2]));
        let wake = Arc::new(ToWorker(commands.clone()));
        bench.offload = Some(OffloadPort { offload: Arc::clone(&offload), wake });
        bench.key_names = keys.iter().map(|(name, _)| name.clone()).collect();
        bench.keys = KeyGrants::new(keys);
        let fwp = bench.launch(wat, MEMORY_BYTES_MAX).unwrap();
        commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        let mut scene = Self { bench, worker, commands, events, offload };
        scene.worker.poll();
        scene.bench.send(buffer(), 60);
        scene
    }

    /// Lets the worker do all that it has to do.
    fn settle(&mut self) {
        while self.worker.poll() > 0 {}
    }

    /// Lets the guest run to its end, and does its jobs when it waits for them. Returns its exit status, and how many jobs there were.
    fn status_and_jobs(mut self) -> (i32, usize) {
        let mut jobs = 0;
        loop {
            self.settle();
            if let Ok(event) = self.events.try_recv() {
                let WorkerEvent::Ended { reason: EndReason::Exited(status), .. } = event else { panic!("it failed") };
                self.release();
                return (status, jobs);
            }
            let done = self.offload.work_off(Kind::Signer);
            assert!(done > 0, "it neither ends nor waits for a job");
            jobs += done;
        }
    }

    /// Releases the FWP and takes it apart.
    fn release(mut self) {
        self.commands.send(WorkerCommand::Release(ID)).unwrap();
        self.settle();
        let released = self.events.try_iter().find_map(|event| match event {
            WorkerEvent::Released(fwp) => Some(fwp),
            _ => None,
        });
        self.bench.dismantle(*released.expect("it was not released"));
    }
}

/// Returns the exit status of a guest with both keys that does this once it has a packet, and how many jobs there were.
fn ran(run: &str) -> (i32, usize) {
    let run = format!("(call $first_packet) (call $exit {run})");
    Scene::new(&guest("", &run, &[]), keys(), LIMITS).status_and_jobs()
}

/// The same, if there was no job.
#[track_caller]
fn status(run: &str) -> i32 {
    let (status, jobs) = ran(run);
    assert_eq!(jobs, 0);
    status
}

#[test]
fn a_handshake_is_signed_as_the_key_signs_it() {
    let run = "(if (result i32) (i32.ne (call $sign_message (i32.const 0) (i32.const 0x0807)) (i32.const 64))
        (then (i32.const 99)) (else (call $same (i32.const 16384) (i32.const 14336) (i32.const 64))))";
    assert_eq!(ran(run), (1, 1));
}

#[test]
fn a_guest_sleeps_until_its_handshake_is_signed_and_packets_wait_meanwhile() {
    let run = "(call $first_packet) (call $exit (call $sign_message (i32.const 0) (i32.const 0x0807)))";
    let mut scene = Scene::new(&guest("", run, &[]), keys(), LIMITS);
    scene.settle();
    (0..2).for_each(|_| scene.bench.send(buffer(), 60));
    scene.settle();
    assert_eq!(scene.worker.time_to_deadline(), None);
    assert!(scene.events.is_empty(), "it has not gone on");
    assert_eq!(scene.status_and_jobs(), (64, 1));
}

#[test]
fn a_guest_that_ends_before_its_handshake_is_signed_costs_nothing() {
    let run = "(call $first_packet) (drop (call $sign_message (i32.const 0) (i32.const 0x0807))) unreachable";
    let mut scene = Scene::new(&guest("", run, &[]), keys(), LIMITS);
    scene.settle();
    let (offload, commands) = (Arc::clone(&scene.offload), scene.commands.clone());
    scene.release();
    assert_eq!(offload.work_off(Kind::Signer), 1, "it was submitted");
    assert!(commands.is_empty(), "and none is told");
}

#[test]
fn a_wake_up_for_an_fwp_that_was_released_is_ignored() {
    let run = "(call $first_packet) (drop (call $sign_message (i32.const 0) (i32.const 0x0807))) unreachable";
    let mut scene = Scene::new(&guest("", run, &[]), keys(), LIMITS);
    scene.settle();
    let share = scene.bench.terms.current_share();
    for id in [FwpId { generation: 1, ..ID }, FwpId { index: 1, ..ID }] {
        scene.commands.send(WorkerCommand::Wake { id, share, took_ns: 1 }).unwrap();
    }
    scene.settle();
    assert!(scene.events.is_empty());
    scene.release();
}

#[test]
fn a_tenant_pays_for_a_job_whose_fwp_ended_meanwhile() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let mut scene = Scene::new(&guest("", "(call $first_packet) (call $exit (i32.const 7))", &[]), keys(), LIMITS);
    let share = scene.bench.terms.current_share();
    let CpuShare { tenant, generation, weight, .. } = share;
    let rate = Rate { per_second_ns: 1_000_000, over_budget: OverBudget::Throttle };
    let limited = TenantShare { tenant, generation, weight, rate: Some(rate) };
    scene.commands.send(WorkerCommand::Regrant(limited)).unwrap();
    let ended = FwpId { generation: 9, ..ID };
    scene.commands.send(WorkerCommand::Wake { id: ended, share, took_ns: HOUR_NS }).unwrap();
    scene.worker.poll();
    // The packet is there, and the tenant has used up what it may have for a long time.
    scene.settle();
    assert!(scene.events.is_empty(), "another FWP of the tenant had a turn");
    assert!(scene.worker.time_to_deadline().is_some_and(|until| until > Duration::from_secs(60)));
    scene.release();
}

#[test]
fn nothing_but_handshakes_by_schemes_of_the_key_is_signed() {
    let (refused, no_key) = (Errno::Refused.negated(), Errno::NoKey.negated());
    let sign = |key: i32, scheme: u32, at: i32, len: i32| {
        status(&format!(
            "(call $sign (i32.const {key}) (i32.const {scheme}) (i32.const {at}) (i32.const {len}) (i32.const 16384) (i32.const 512))"
        ))
    };
    // Without its padding, with a byte more, only the hash, text of its own.
    for (at, len) in [(12288 + 64, 66), (12288, 131), (12288, 129), (12288 + 98, 32), (64, 4), (64, 0)] {
        assert_eq!(sign(0, EDDSA.into(), at, len), refused, "{len} bytes at {at}");
    }
    for scheme in [ECDSA.into(), 0x0804, 0, u32::from(u16::MAX), 0x1_0807, u32::MAX] {
        assert_eq!(sign(0, scheme, 12288, 130), refused, "{scheme:#x}");
    }
    for key in [2, -1, i32::MAX, i32::MIN] {
        assert_eq!(sign(key, EDDSA.into(), 12288, 130), no_key, "{key}");
    }
}

#[test]
fn a_point_that_is_not_on_its_curve_is_refused_by_the_thread_that_signs() {
    let message = [&[0x5a; 64][..], &[3, 0, 23, 65, 4], &[9; 64]].concat();
    let sign = "(call $sign (i32.const 1) (i32.const 0x0403) (i32.const 24576) (i32.const 133) (i32.const 16384) (i32.const 512))";
    let run = format!("(call $first_packet) (call $exit {sign})");
    let scene = Scene::new(&guest("", &run, &message), keys(), LIMITS);
    assert_eq!(scene.status_and_jobs(), (Errno::Refused.negated(), 1));
}

#[test]
fn addresses_outside_of_memory_are_refused_before_anything_is_signed() {
    let fault = Errno::Fault.negated();
    for wild in [-1, 262_143, i32::MIN] {
        let message = format!("(i32.const 0) (i32.const 0x0807) (i32.const {wild}) (i32.const 130)");
        assert_eq!(status(&format!("(call $sign {message} (i32.const 16384) (i32.const 512))")), fault);
        let message = "(i32.const 0) (i32.const 0x0807) (i32.const 12288) (i32.const 130)";
        assert_eq!(status(&format!("(call $sign {message} (i32.const {wild}) (i32.const 512))")), fault);
        assert_eq!(status(&format!("(call $open (i32.const {wild}) (i32.const 4))")), fault);
        for call in ["$seal", "$unseal"] {
            let out = format!("(i32.const 64) (i32.const 40) (i32.const {wild}) (i32.const 4096)");
            assert_eq!(status(&format!("(call {call} (i32.const 0) {out})")), fault, "{call}");
            let from = format!("(i32.const {wild}) (i32.const 40) (i32.const 16384) (i32.const 4096)");
            assert_eq!(status(&format!("(call {call} (i32.const 0) {from})")), fault, "{call}");
        }
    }
    assert_eq!(status("(call $open (i32.const 64) (i32.const 65))"), Errno::TooLong.negated());
}

#[test]
fn a_signature_without_room_is_too_long() {
    let message = "(i32.const 0) (i32.const 0x0807) (i32.const 12288) (i32.const 130)";
    let (status, jobs) = ran(&format!("(call $sign {message} (i32.const 16384) (i32.const 63))"));
    assert_eq!((status, jobs), (Errno::TooLong.negated(), 1));
}

#[test]
fn keys_are_known_by_the_names_of_their_grants_also_while_a_guest_is_initialised() {
    assert_eq!(status("(call $open (i32.const 64) (i32.const 4))"), 0);
    assert_eq!(status("(call $open (i32.const 80) (i32.const 5))"), 1);
    assert_eq!(status("(call $open (i32.const 64) (i32.const 3))"), Errno::NoKey.negated());
    let init = "(global.set $opened (call $open (i32.const 80) (i32.const 5)))";
    let run = "(call $first_packet) (call $exit (global.get $opened))";
    assert_eq!(Scene::new(&guest(init, run, &[]), keys(), LIMITS).status_and_jobs().0, 1);
    let without = Scene::new(&guest(init, run, &[]), Vec::new(), LIMITS);
    assert_eq!(without.status_and_jobs().0, Errno::NoKey.negated());
}

#[test]
fn no_key_is_used_while_a_guest_is_initialised_and_none_signs_before_a_worker_has_it() {
    let not_now = Errno::NotNow.negated();
    let shown = "(call $first_packet) (call $exit (global.get $opened))";
    for call in [
        "(call $sign_message (i32.const 0) (i32.const 0x0807))",
        "(call $seal (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 16384) (i32.const 4096))",
        "(call $unseal (i32.const 0) (i32.const 64) (i32.const 40) (i32.const 16384) (i32.const 4096))",
    ] {
        let init = format!("(global.set $opened {call})");
        // Of the second module no snapshot can be taken, so that each instance initialises itself.
        let wat = guest(&init, shown, &[]);
        let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $first_packet";
        for wat in [wat.clone(), wat.replace("(func $first_packet", table)] {
            assert_eq!(Scene::new(&wat, keys(), LIMITS).status_and_jobs(), (not_now, 0), "{call}");
        }
    }
    let early = "(global.set $opened (call $sign_message (i32.const 0) (i32.const 0x0807)))";
    let wat = guest("", &format!("{early} {shown}"), &[]);
    assert_eq!(Scene::new(&wat, keys(), LIMITS).status_and_jobs(), (not_now, 0));
}

#[test]
fn a_tenant_that_asks_too_much_is_told_so() {
    let none = Limits { jobs_max: 0, ..LIMITS };
    let run = "(call $first_packet) (call $exit (call $sign_message (i32.const 0) (i32.const 0x0807)))";
    assert_eq!(Scene::new(&guest("", run, &[]), keys(), none).status_and_jobs(), (Errno::Busy.negated(), 0));
}

/// Seals the key's name at 64 with key 0 to 16384, and exits with what opening it to 20480 with another key comes to.
fn seal_and_open(with: u32, change: &str) -> i32 {
    let seal = "(call $seal (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 16384) (i32.const 36))";
    let open =
        format!("(call $unseal (i32.const {with}) (i32.const 16384) (i32.const 36) (i32.const 20480) (i32.const 4))");
    status(&format!(
        "(if (result i32) (i32.ne {seal} (i32.const 36)) (then (i32.const 99)) (else
            {change}
            (if (result i32) (i32.eq {open} (i32.const 4))
                (then (i32.sub (i32.const 1) (call $same (i32.const 64) (i32.const 20480) (i32.const 4))))
                (else {open}))))"
    ))
}

#[test]
fn a_ticket_is_opened_with_its_own_key_if_nothing_of_it_was_changed() {
    assert_eq!(seal_and_open(0, ""), 0);
    assert_eq!(seal_and_open(1, ""), Errno::Refused.negated());
    let change = "(i32.store8 (i32.const 16400) (i32.xor (i32.load8_u (i32.const 16400)) (i32.const 1)))";
    assert_eq!(seal_and_open(0, change), Errno::Refused.negated());
}

#[test]
fn all_instances_with_one_key_open_each_others_tickets() {
    let keys = keys();
    let mut ticket = vec![0; 36];
    keys[0].1.tickets.seal(pinion_runtime::clock::now_ns() / 1_000_000_000, b"site", &mut ticket).unwrap();
    let run = "(call $first_packet) (call $exit
        (call $unseal (i32.const 0) (i32.const 24576) (i32.const 36) (i32.const 20480) (i32.const 4)))";
    assert_eq!(Scene::new(&guest("", run, &ticket), keys, LIMITS).status_and_jobs().0, 4);
}

#[test]
fn tickets_of_any_length_and_contents_without_room_are_refused() {
    let open = |len: i32| {
        status(&format!(
            "(call $unseal (i32.const 0) (i32.const 12288) (i32.const {len}) (i32.const 20480) (i32.const 4096))"
        ))
    };
    for len in [0, 1, 31, 32, 36, 4128, 4129, -1, i32::MIN] {
        assert_eq!(open(len), Errno::Refused.negated(), "{len} bytes");
    }
    let seal = |len: i32, capacity: i32| {
        status(&format!(
            "(call $seal (i32.const 0) (i32.const 12288) (i32.const {len}) (i32.const 20480) (i32.const {capacity}))"
        ))
    };
    assert_eq!(seal(4096, 4128), 4128);
    for (len, capacity) in [(4097, 8192), (-1, 8192), (4096, 4127), (0, 31), (4, 0)] {
        assert_eq!(seal(len, capacity), Errno::TooLong.negated(), "{len} bytes, room for {capacity}");
    }
}

/// Numbers that are often wrong.
fn any_number(random: &mut fastrand::Rng) -> i32 {
    match random.u32(..8) {
        0 => random.i32(..),
        1 => random.i32(0..3),
        2 => *random.choice(&[0, 130, 133, 512, 4096, 4128]).unwrap(),
        3 => *random.choice(&[12288, 16384, 24576]).unwrap(),
        4 => 262_144 - random.i32(0..600),
        5 => *random.choice(&[0x0403, 0x0807, 0x0804]).unwrap(),
        6 => -random.i32(0..600),
        _ => random.i32(0..300_000),
    }
}

#[test]
fn whatever_numbers_a_guest_passes_each_call_returns_a_length_or_an_error() {
    const CALLS: usize = 2000;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let numbers: Vec<i32> = (0..CALLS * 6).map(|_| any_number(&mut random)).collect();
    let table: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let number = |at: usize| format!("(i32.load offset={} (local.get $at))", at * 4);
    let five = (0..5).map(number).collect::<String>();
    let run = format!(
        "(local $at i32) (local $left i32) (call $first_packet)
        (local.set $at (i32.const 24576)) (local.set $left (i32.const {CALLS}))
        (loop $next
            (call $check (call $open {two})) (call $check (call $seal {five})) (call $check (call $unseal {five}))
            (call $check (call $sign {five} {sixth}))
            (local.set $at (i32.add (local.get $at) (i32.const 24)))
            (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (call $exit (i32.const 7))",
        two = (0..2).map(number).collect::<String>(),
        sixth = number(5),
    );
    let check = "(func $check (param $result i32)
        (if (i32.or (i32.gt_s (local.get $result) (i32.const 4128)) (i32.lt_s (local.get $result) (i32.const -12)))
            (then (call $exit (i32.const 1)))))
        (func $first_packet";
    let wat = guest("", &run, &table).replace("(func $first_packet", check);
    // Its own results may overwrite its numbers, which makes them others.
    assert_eq!(Scene::new(&wat, keys(), LIMITS).status_and_jobs().0, 7);
}

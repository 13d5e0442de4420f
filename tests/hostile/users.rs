//! What a tenant asks of the control API.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device};
use pinion_tests::product::build::{hostile, sample};
use pinion_tests::product::manifest::Manifest;

use crate::neighbours::{self, Attack, GREEDY, SETTINGS, keep_what_is_theirs};

fn bed() -> Bed {
    Bed::with_settings(Device::AfPacket, &[], SETTINGS)
}

/// Lets a user apply what `manifest` returns for one number after the other. It is refused in these words.
#[track_caller]
fn refusals_are_withstood(bed: &Bed, manifest: impl Fn(u32) -> Manifest + Sync, words: &str) {
    let (number, path) = (AtomicU32::new(0), bed.node.path("refused.toml"));
    let wave = || {
        // What was refused once is not tried again so soon.
        fs::write(&path, manifest(number.fetch_add(1, Ordering::Relaxed)).text()).expect("the folder is writable");
        let refused = bed.node.cli().try_apply(&path);
        assert!(!refused.status.success() && errors(&refused).contains(words), "{}", errors(&refused));
    };
    let attack =
        Attack { manifests: &[], wave: &wave, is_over: &|| neighbours::is_at_rest(bed), is_for_the_cores: false };
    keep_what_is_theirs(bed, &attack, || {});
}

#[test]
#[ignore = "part of `make hostile`"]
fn users_that_apply_modules_whose_initialisation_never_ends() {
    let endless = |number: u32| {
        let module = Manifest::of(GREEDY).module("endless", &hostile("init_looper"));
        module.configured_chain("endless", "endless", &number.to_string())
    };
    refusals_are_withstood(&bed(), endless, "init");
}

#[test]
#[ignore = "part of `make hostile`"]
fn users_that_apply_files_that_are_no_modules() {
    let bed = bed();
    let garbage = |number: u32| {
        let path = bed.node.path("garbage.wasm");
        let bytes = [&b"\0asm\x01\0\0\0"[..], &number.to_le_bytes(), &[0x5a; 1 << 20]].concat();
        fs::write(&path, bytes).expect("the node's folder is writable");
        Manifest::of(GREEDY).module("garbage", &path).chain("garbage", "garbage", "")
    };
    refusals_are_withstood(&bed, garbage, "garbage");
}

/// Returns a module that takes some seconds to compile, and has no pool.
fn heavy() -> Vec<u8> {
    let code = "i32.const 77 i32.add local.tee 0 local.get 0 i32.mul ".repeat(10_000);
    let functions: String = (0..40).map(|_| format!("(func (param i32) (result i32) local.get 0 {code})")).collect();
    let exports = r#"(memory (export "memory") 1) (func (export "pinion_abi_v3")) (func (export "pinion_run"))
        (func (export "pinion_init") (result i32) (i32.const 0)) (func (export "pinion_pool") (result i32) (i32.const 0))"#;
    wat::parse_str(format!("(module {exports} {functions})")).expect("it is a module")
}

#[test]
#[ignore = "part of `make hostile`"]
fn users_that_apply_modules_that_take_long_to_compile() {
    let bed = bed();
    let path = bed.node.path("heavy.wasm");
    fs::write(&path, heavy()).expect("the node's folder is writable");
    let module = |number: u32| {
        let module = Manifest::of(GREEDY).module("heavy", &path);
        module.configured_chain("heavy", "heavy", &number.to_string())
    };
    refusals_are_withstood(&bed, module, "pool");
}

#[test]
#[ignore = "part of `make hostile`"]
fn users_that_connect_and_send_nothing_garbage_or_half_a_call() {
    const CONNECTIONS: usize = 66;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    /// A frame of settings, and the header of a frame of 16 MiB of data.
    const HALF: &[u8] = b"\0\0\0\x04\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\x01";
    let bed = bed();
    let connect = |number: usize| {
        let mut stream = UnixStream::connect(bed.node.socket()).expect("the node accepts connections");
        let sent = match number % 3 {
            0 => Vec::new(),
            1 => vec![0x5a; 64 << 10],
            _ => [PREFACE, HALF].concat(),
        };
        // The node may have closed it before it has all.
        _ = stream.write_all(&sent);
        stream
    };
    let wave = || {
        let open: Vec<UnixStream> = (0..CONNECTIONS).map(connect).collect();
        _ = bed.node.cli().status();
        drop(open);
    };
    let attack = Attack { manifests: &[], wave: &wave, is_over: &|| true, is_for_the_cores: false };
    keep_what_is_theirs(&bed, &attack, || {});
}

#[test]
#[ignore = "part of `make hostile`"]
fn users_that_replace_their_chains_all_the_time() {
    let bed = bed();
    let chains = |kib: u32| {
        let module = Manifest::of(GREEDY).module("echo", &sample("icmp-echo"));
        (0..20).fold(module, |manifest, number| {
            manifest.chain(&format!("c{number}"), "echo", &format!("memory_limit_kib = {kib}"))
        })
    };
    let (first, wave) = (chains(8_192), || {
        [16_384, 8_192].into_iter().for_each(|kib| bed.node.apply(chains(kib).text()));
    });
    let attack =
        Attack { manifests: &[first], wave: &wave, is_over: &|| neighbours::is_at_rest(&bed), is_for_the_cores: false };
    keep_what_is_theirs(&bed, &attack, || {
        let versions = bed.node.log().matches("desired state changed").count();
        assert!(versions > 10 + 16, "{versions} changes");
    });
}

//! The C SDK reads and changes headers as the Rust SDK does, for any bytes.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use pinion_sdk::headers::{Addresses, Headers, Pair, Unreadable};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const FRAMES: usize = 20_000;

/// Returns the Rust SDK's result, in the format of `headers_of.c`.
fn said_by_rust(frame: &[u8]) -> String {
    let headers = match Headers::of(frame) {
        Ok(headers) => headers,
        Err(Unreadable::NotIp) => return "not-ip".to_owned(),
        Err(Unreadable::Malformed) => return "malformed".to_owned(),
        Err(Unreadable::TooManyHeaders) => return "too-many-headers".to_owned(),
        Err(Unreadable::OverlappingFragment) => return "overlapping-fragment".to_owned(),
    };
    let mut text = format!("{} {} ", headers.protocol, headers.vlan_tags);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + " ";
    match headers.addresses {
        Addresses::V4(pair) => text += &(hex(&pair.source.to_be_bytes()) + &hex(&pair.destination.to_be_bytes())),
        Addresses::V6(pair) => text += &(hex(&pair.source.to_be_bytes()) + &hex(&pair.destination.to_be_bytes())),
    }
    if let Some(ports) = headers.ports {
        write!(text, "ports {} {} ", ports.source, ports.destination).unwrap();
    }
    if let Some(flags) = headers.tcp_flags {
        write!(text, "flags {} ", flags.0).unwrap();
    }
    if let Some(icmp) = headers.icmp {
        write!(text, "icmp {} {} {} ", icmp.kind, icmp.code, u8::from(icmp.is_error)).unwrap();
        if let Some(echo) = icmp.echo {
            write!(text, "echo {} ", echo.id).unwrap();
        }
    }
    if let Some(part) = headers.fragment {
        write!(text, "fragment {} {} {} ", part.id, part.offset, u8::from(part.more)).unwrap();
    }
    if let Some(flow) = headers.flow() {
        let keys = [flow, flow.reversed(), flow.both_ways()].map(|key| hex(&key.to_key()));
        write!(text, "flow {}", keys.concat()).unwrap();
    }
    let at = headers.at;
    write!(text, "at {} {} {} {} ", at.network, at.transport, at.payload, at.end).unwrap();
    text + &hex(&changed(frame, headers)) + "\n"
}

/// Returns the frame with other addresses and ports.
fn changed(frame: &[u8], mut headers: Headers) -> Vec<u8> {
    let mut changed = frame.to_vec();
    let addresses = match headers.addresses {
        Addresses::V4(_) => Addresses::V4(Pair { source: 0x0a01_0203, destination: 0xac1f_fffe }),
        Addresses::V6(_) => Addresses::V6(Pair { source: 0x000a_0102_0304 << 88, destination: 0x00ac_1fff_fe01 << 88 }),
    };
    headers.set_addresses(&mut changed, addresses).unwrap();
    // In C an echo's identifier is not a port.
    if headers.ports.is_some() {
        headers.set_ports(&mut changed, Pair { source: 4321, destination: 80 }).unwrap();
    }
    changed
}

/// Returns the frame with checksums that become zero when addresses and ports are changed; by chance that happens once in 65,536 frames.
fn coming_to_zero(mut frame: Vec<u8>) -> Vec<u8> {
    let Ok(headers) = Headers::of(&frame) else { return frame };
    let transport_sum = [(6, 16), (17, 6), (58, 2)].into_iter().find(|(protocol, _)| *protocol == headers.protocol);
    let transport_sum = transport_sum.map(|(_, offset)| headers.at.transport + offset);
    let ip_sum = matches!(headers.addresses, Addresses::V4(_)).then_some(headers.at.network + 10);
    let after = changed(&frame, headers);
    let is_later = headers.fragment.is_some_and(|part| !part.is_first());
    for at in ip_sum.into_iter().chain(transport_sum.filter(|at| !is_later && at + 2 <= headers.at.end)) {
        let [before, after] = [&frame, &after].map(|frame| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]])));
        // A change moves every checksum by the same difference.
        frame[at..at + 2].copy_from_slice(&(((before + 0xffff - after) % 0xffff) as u16).to_be_bytes());
    }
    frame
}

/// Generates frames, most with readable headers and many with errors.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::sample::select(vec![
        vec![],
        vec![0x81, 0, 0, 7],
        vec![0x88, 0xa8, 0, 1, 0x81, 0, 0, 7],
        [0x81, 0, 0, 1].repeat(3),
    ]);
    let protocol = prop::sample::select(vec![1_u8, 6, 17, 58, 47, 0]);
    let fragment = prop::sample::select(vec![0_u16, 0x2000, 0x2001, 1, 3, 0x4000]);
    let extensions = prop::collection::vec(prop::sample::select(vec![0_u8, 43, 44, 60]), 0..10);
    let payload = prop::collection::vec(prop_oneof![2 => any::<u8>(), 1 => Just(0), 1 => Just(0xff)], 0..48);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let parts = (
        any::<bool>(),
        tags,
        protocol,
        fragment,
        extensions,
        payload,
        changes,
        any::<prop::sample::Index>(),
        any::<u8>(),
    );
    parts.prop_map(|(v6, tags, protocol, fragment, extensions, payload, changes, cut, odd)| {
        let mut frame = [[2; 12].as_slice(), &tags].concat();
        let payload = transport(protocol, payload);
        frame.extend(if v6 {
            ipv6(protocol, fragment, &extensions, &payload)
        } else {
            ipv4(protocol, fragment, &payload)
        });
        frame.extend(vec![0xee; usize::from(odd % 8)]);
        for (at, byte) in changes.iter().filter(|_| odd % 3 == 0) {
            let at = at.index(frame.len());
            frame[at] = *byte;
        }
        frame.truncate(if odd % 5 == 0 { cut.index(frame.len() + 1) } else { frame.len() });
        if odd % 4 == 1 { coming_to_zero(frame) } else { frame }
    })
}

/// Makes a payload with length fields that suit a transport header.
fn transport(protocol: u8, mut payload: Vec<u8>) -> Vec<u8> {
    if protocol == 6 && payload.len() > 20 && !payload[0].is_multiple_of(4) {
        payload[12] = 0x50 + (payload[12] & 0x1f);
    }
    if protocol == 17 && payload.len() > 8 && payload[0].is_multiple_of(4) {
        payload[6..8].fill(0);
    }
    if [1, 58].contains(&protocol) && payload.len() > 8 {
        payload[0] = [0, 3, 8, 11, 128, 129, 1, 200][usize::from(payload[0] % 8)];
    }
    payload
}

fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let options = if payload.len().is_multiple_of(3) { 4 } else { 0 };
    let total = (20 + options + payload.len()) as u16;
    let mut packet = vec![0x08, 0x00, 0x45 + (options / 4) as u8, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0xab, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(vec![1; options]);
    packet.extend(payload);
    packet
}

fn ipv6(protocol: u8, fragment: u16, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut behind = Vec::new();
    for (place, kind) in extensions.iter().enumerate() {
        let next = extensions.get(place + 1).copied().unwrap_or(protocol);
        // Sometimes a fragment header of an unfragmented packet.
        let [high, low] = fragment.rotate_left(3).to_be_bytes();
        behind.extend(if *kind == 44 { [next, 0, high, low, 0, 0, 0, 9] } else { [next, 0, 1, 4, 0, 0, 0, 0] });
    }
    behind.extend(payload);
    let mut packet = vec![0x86, 0xdd, 0x60, 0, 0, 0];
    packet.extend((behind.len() as u16).to_be_bytes());
    packet.extend([extensions.first().copied().unwrap_or(protocol), 64]);
    packet.extend([[0xfd; 16], [0xfc; 16]].concat());
    packet.extend(behind);
    packet
}

/// Returns the result of `headers_of.c` for each frame.
fn said_by_c(frames: &[Vec<u8>]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (sdk, here) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), Path::new(env!("CARGO_MANIFEST_DIR")));
    let makefile = format!(
        "NAME := headers_of\nTESTS := {}\ninclude {}/pinion.mk\n",
        here.join("tests/headers_of.c").display(),
        sdk.canonicalize().unwrap().display()
    );
    std::fs::write(folder.path().join("Makefile"), makefile).unwrap();
    let mut make = Command::new("make");
    make.arg("build/test/headers_of").current_dir(folder.path()).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let made = make.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let input: Vec<u8> = frames.iter().flat_map(|it| [&(it.len() as u16).to_be_bytes()[..], it].concat()).collect();
    let mut program = Command::new(folder.path().join("build/test/headers_of"));
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = program.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn c_and_rust_read_and_change_headers_alike() {
    let mut runner = TestRunner::deterministic();
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|_| frame().new_tree(&mut runner).unwrap().current()).collect();
    let said = said_by_c(&frames);
    assert_eq!(said.len(), frames.len());
    let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
    for (frame, by_c) in frames.iter().zip(&said) {
        assert_eq!(by_c.trim_end(), said_by_rust(frame).trim_end(), "{frame:02x?}");
        let kind = if by_c.contains(" at ") { "readable" } else { by_c };
        *kinds.entry(kind).or_default() += 1;
    }
    // A generator that makes only one kind of frame would test nothing.
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    assert!(kinds["readable"] > FRAMES / 4 && kinds.values().all(|count| *count > 20), "{kinds:?}");
}

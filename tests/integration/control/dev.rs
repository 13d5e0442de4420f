//! `pinion dev` runs a function on a node of its own, with packets from a capture or from a kernel's clients. Also tests what it leaves
//! behind.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use pinion_tests::machine::process::{errors, output, run};
use pinion_tests::network::bed::{NODE, TENANT, turn};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build::{program, sample};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::tenant::{change, new_crate, pinion, set_up};
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

/// The port at which the template `responder` answers.
const PORT: u16 = 7777;
const TAP: &str = "tap0";
/// Time limit for cargo to build a crate and for a node to run what was built.
const BUILD_MAX: Duration = Duration::from_secs(240);

/// The header of a pcap file with times in nanoseconds.
const PCAP_HEADER: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 1];

/// A frame and its capture time in nanoseconds.
type Captured = (u64, Vec<u8>);

fn write_pcap(path: &Path, frames: &[Captured]) {
    let mut file: Vec<u8> = PCAP_HEADER.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (time_ns, frame) in frames {
        let (seconds, nanos, len) =
            ((time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32, frame.len() as u32);
        file.extend([seconds, nanos, len, len].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    fs::write(path, file).expect("the folder is writable");
}

fn read_pcap(path: &Path) -> Vec<Captured> {
    let file = fs::read(path).expect("the capture is there");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(20)), (PCAP_HEADER[0], PCAP_HEADER[5]));
    let (mut at, mut frames) = (24, Vec::new());
    while at < file.len() {
        let (time_ns, len) = (u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)), word(at + 8) as usize);
        frames.push((time_ns, file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    frames
}

/// Makes a datagram from a client to the node's address.
fn datagram(client: u8, text: &[u8]) -> Vec<u8> {
    let [source, destination] = [Ipv4Address::new(10, 77, 0, client), NODE.parse().expect("an address")];
    let udp = UdpRepr { src_port: 4096, dst_port: PORT };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + text.len(),
        hop_limit: 64,
    };
    let mut frame = vec![0; EthernetFrame::<&[u8]>::buffer_len(ip.buffer_len() + ip.payload_len)];
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, client]),
        dst_addr: EthernetAddress([2, 0, 0, 0, 0, 0xff]),
        ethertype: EthernetProtocol::Ipv4,
    };
    let mut link = EthernetFrame::new_unchecked(&mut frame);
    ethernet.emit(&mut link);
    let mut packet = Ipv4Packet::new_unchecked(link.payload_mut());
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut packet, &checksums);
    let addresses = (IpAddress::Ipv4(source), IpAddress::Ipv4(destination));
    let mut inner = UdpPacket::new_unchecked(packet.payload_mut());
    udp.emit(&mut inner, &addresses.0, &addresses.1, text.len(), |payload| payload.copy_from_slice(text), &checksums);
    frame
}

/// Adds a VLAN tag to a frame.
fn tagged(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

/// Writes a manifest of macswap to a folder.
fn macswap(folder: &Path) -> PathBuf {
    let manifest = Manifest::of(TENANT).module("macswap", &sample("macswap")).chain("swap", "macswap", "");
    let path = folder.join("pinion.toml");
    fs::write(&path, manifest.ping_rule("ping", "swap", "shared", NODE).text()).expect("the folder is writable");
    path
}

/// Returns what `pinion dev` reports about the frames of a capture, as JSON.
#[track_caller]
fn dev(folder: &Path, words: &[&str]) -> Value {
    let all = [&["dev", "--read", "in.pcap", "--write", "out.pcap", "-o", "json"], words].concat();
    let said = run(&mut pinion(folder, &all));
    // Lines that functions log come first.
    let at = said.find("{\n").unwrap_or_else(|| panic!("no account in {said}"));
    serde_json::from_str(&said[at..]).unwrap_or_else(|error| panic!("no JSON ({error}): {said}"))
}

#[test]
fn each_frame_of_a_capture_goes_through_and_comes_out_with_its_time_or_is_counted() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let mut frames: Vec<Captured> = (0..300_u64)
        .map(|number| {
            let frame = datagram((number % 7) as u8 + 1, &[number as u8; 40]);
            (1_700_000_000_123_456_789 + number * 1_000_003, if number % 3 == 0 { tagged(frame, 100) } else { frame })
        })
        .collect();
    let swapped = |(time_ns, frame): &Captured| {
        let mut frame = frame.clone();
        frame[..12].rotate_left(6);
        (*time_ns, frame)
    };
    let expected: Vec<Captured> = frames.iter().map(swapped).collect();
    // No function receives this frame: its header states a greater length than the frame has.
    let mut cut = datagram(1, b"hello");
    cut.truncate(40);
    frames.insert(150, (1, cut));
    write_pcap(&folder.path().join("in.pcap"), &frames);

    // However late a frame comes out, as the machine may have other work, the next one waits for it.
    let account = dev(folder.path(), &["--burst", "1", "--patience", "60s"]);
    assert_eq!(read_pcap(&folder.path().join("out.pcap")), expected);
    let dropped = json!([{ "place": "port lan", "reason": "truncated", "count": 1 }]);
    let whole = json!({ "received": 301, "sent": 300, "replies": 300, "dropped": dropped, "kept": 0 });
    assert_eq!(account, whole);

    // In bursts, frames come out in the same order, each with the time of a frame of its burst.
    assert_eq!(dev(folder.path(), &[]), whole);
    let came = read_pcap(&folder.path().join("out.pcap"));
    let bytes = |frames: &[Captured]| frames.iter().map(|(_, frame)| frame.clone()).collect::<Vec<_>>();
    assert_eq!(bytes(&came), bytes(&expected));
    expected.iter().zip(&came).for_each(|((own, _), (time_ns, _))| assert!(own <= time_ns, "{own} {time_ns}"));

    // The manifest's rules match pings only.
    let account = dev(folder.path(), &["--by-rules"]);
    assert_eq!((&account["received"], &account["sent"]), (&json!(301), &json!(0)));
    let no_rule = json!({ "place": "port lan", "reason": "no-rule", "count": 300 });
    assert!(account["dropped"].as_array().is_some_and(|all| all.contains(&no_rule)), "{account}");
}

#[test]
fn frames_that_a_function_keeps_are_waited_for_and_then_counted() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = |delay: &str| {
        let manifest = Manifest::of(TENANT).module("delay", &sample("delay"));
        fs::write(folder.path().join("pinion.toml"), manifest.configured_chain("late", "delay", delay).text())
            .expect("the folder is writable");
    };
    let frames: Vec<Captured> = (0..20).map(|number| (number, datagram(1, b"hello"))).collect();
    write_pcap(&folder.path().join("in.pcap"), &frames);
    manifest("300ms");
    let account = dev(folder.path(), &["--linger", "10s"]);
    assert_eq!((&account["sent"], &account["kept"]), (&json!(20), &json!(0)));
    manifest("10s");
    let account = dev(folder.path(), &["--linger", "200ms"]);
    assert_eq!((&account["sent"], &account["kept"]), (&json!(0), &json!(20)));
}

#[test]
fn a_chain_has_the_class_that_its_manifest_asks_for() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = Manifest::of(TENANT).module("macswap", &sample("macswap"));
    let manifest = manifest.chain("swap", "macswap", "class = \"system\"");
    fs::write(folder.path().join("pinion.toml"), manifest.text()).expect("the folder is writable");
    write_pcap(&folder.path().join("in.pcap"), &[(0, datagram(1, b"hello"))]);
    let account = dev(folder.path(), &["--linger", "1s"]);
    assert_eq!(account["sent"], 1, "{account}");
}

#[test]
fn a_crate_just_made_is_built_and_runs_on_a_capture_and_what_it_says_is_shown() {
    let _turn = turn();
    let (_folder, made) = new_crate("responder");
    let mut no_datagram = datagram(1, b"hello");
    let mut packet = Ipv4Packet::new_unchecked(&mut no_datagram[14..]);
    packet.set_next_header(IpProtocol::Unknown(47));
    packet.fill_checksum();
    let frames = [datagram(1, b"one"), datagram(2, b"two"), no_datagram, datagram(1, b"three")];
    write_pcap(&made.join("in.pcap"), &frames.map(|frame| (7, frame)));
    let deep = made.join("src");
    // One frame at a time: the instances of two clients answer a burst in any order.
    let words = ["dev", "--read", "../in.pcap", "--write", "../out.pcap", "--burst", "1"];
    let said = run(&mut pinion(&deep, &words));
    // Each client has its own instance, which logs this once.
    assert_eq!(said.matches("the first datagram is answered").count(), 2, "{said}");
    assert!(said.contains("4 received, 3 sent (3 of them back to where frames came from), 1 dropped\n"), "{said}");
    assert!(said.contains("my-function/0/my-function"), "{said}");
    let texts: Vec<Vec<u8>> = read_pcap(&made.join("out.pcap")).iter().map(|(_, frame)| frame[42..].to_vec()).collect();
    assert_eq!(texts, [&b"ONE"[..], b"TWO", b"THREE"]);
}

/// Makes a block of pcapng from its type, numbers and bytes.
fn block(kind: u32, numbers: &[u32], bytes: &[u8]) -> Vec<u8> {
    let padded = bytes.len().next_multiple_of(4);
    let len = 12 + 4 * numbers.len() as u32 + padded as u32;
    let mut block: Vec<u8> = [&[kind, len], numbers].concat().into_iter().flat_map(u32::to_le_bytes).collect();
    block.extend(bytes);
    block.resize(len as usize - 4, 0);
    block.extend(len.to_le_bytes());
    block
}

#[test]
fn each_record_of_a_capture_that_is_no_whole_frame_of_ethernet_is_accounted_for() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let (whole, long) = (datagram(1, b"hello"), datagram(2, &[7; 1000]));
    let enhanced = |interface: u32, [high, low]: [u32; 2], original: usize, frame: &[u8]| {
        block(6, &[interface, high, low, frame.len() as u32, original as u32], frame)
    };
    let obsolete = block(2, &[1, 0, 6, whole.len() as u32, whole.len() as u32], &whole);
    let mut capture = [
        block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], b""),
        // Another link type first; then Ethernet with times in seconds. Reserved bits are set, and there is no end-of-options option.
        block(1, &[101, 0], b""),
        block(1, &[0xbeef_0001, 0], &[9, 0, 1, 0, 0, 0, 0, 0]),
        enhanced(1, [0, 5], whole.len(), &whole),
        enhanced(0, [0, 5], 3, b"raw"),
        obsolete,
        enhanced(1, [0, 7], long.len(), &long[..96]),
        enhanced(1, [0, 8], 0, b""),
        block(0x7777, &[1], b""),
        enhanced(1, [1, 0], whole.len(), &whole),
    ]
    .concat();
    let counts = json!({
        "received": 4, "sent": 3, "replies": 3, "kept": 0,
        "dropped": [{ "place": "port lan", "reason": "truncated", "count": 1 }],
        "cut": 1, "times_clamped": 1, "unknown_blocks": 1,
        "left_out": [{ "reason": "not-ethernet", "count": 1 }, { "reason": "empty", "count": 1 }],
    });
    fs::write(folder.path().join("in.pcap"), &capture).expect("the folder is writable");
    assert_eq!(dev(folder.path(), &["--burst", "1"]), counts);
    let came = read_pcap(&folder.path().join("out.pcap"));
    let times: Vec<u64> = came.iter().map(|(time_ns, _)| *time_ns).collect();
    assert_eq!(times, [5_000_000_000, 6_000_000_000, (1 << 32) * 1_000_000_000 - 1]);

    // If the file ends within its last block, the frames before that are processed, and the command reports the damage.
    capture.truncate(capture.len() - 1);
    fs::write(folder.path().join("in.pcap"), &capture).expect("the folder is writable");
    let output = output(&mut pinion(folder.path(), &["dev", "--read", "in.pcap", "--write", "out.pcap"]));
    let (said, error) = (String::from_utf8_lossy(&output.stdout), errors(&output));
    assert_eq!(output.status.code(), Some(2), "{said} {error}");
    assert!(said.contains("3 received, 2 sent"), "{said}");
    assert!(said.contains("\n1 of those received are cut"), "{said}");
    assert!(said.contains("\nleft out of the capture: 1 not-ethernet, 1 empty\n"), "{said}");
    let damage = "in.pcap: it is damaged: behind record 5, the file ends within a block";
    assert!(said.contains(&format!("\nthe capture was not read to its end: {damage}\n")), "{said}");
    assert!(error.ends_with(&format!("error: {damage}")), "{error}");
    assert_eq!(read_pcap(&folder.path().join("out.pcap")).len(), 2);
}

#[test]
fn a_capture_that_has_only_a_part_of_each_frame_or_says_that_it_has_checksums_is_read() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let (whole, long) = (datagram(1, b"hello"), datagram(2, &[7; 1000]));
    // As tcpdump writes a capture with a snapshot length of 96 bytes; frame check sequences have 4 bytes.
    let mut capture: Vec<u8> = [PCAP_HEADER[0], PCAP_HEADER[1], 0, 0, 96, 0x2400_0001].map(u32::to_le_bytes).concat();
    for (frame, captured) in [(&whole, whole.len()), (&long, 96)] {
        capture.extend([7, 7, captured as u32, frame.len() as u32].map(u32::to_le_bytes).concat());
        capture.extend(&frame[..captured]);
    }
    fs::write(folder.path().join("in.pcap"), &capture).expect("the folder is writable");
    let account = dev(folder.path(), &[]);
    assert_eq!((&account["received"], &account["sent"], &account["cut"]), (&json!(2), &json!(1), &json!(1)));
}

#[test]
fn a_function_in_c_just_made_is_built_and_runs_on_a_capture_wherever_its_folder_is() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("my own 'functions' #1");
    fs::create_dir(&own).expect("the folder is writable");
    run(&mut pinion(&own, &["new", "my-function", "--template", "c"]));
    let made = own.join("my-function");
    write_pcap(&made.join("in.pcap"), &[(7, datagram(1, b"one"))]);
    let words = ["dev", "--read", "../in.pcap", "--write", "../out.pcap"];
    let said = run(&mut pinion(&made.join("src"), &words));
    assert!(said.contains("1 received, 1 sent (1 of them back to where frames came from), 0 dropped\n"), "{said}");
    assert_eq!(read_pcap(&made.join("out.pcap"))[0].1[42..], *b"ONE");
    // A source that does not compile must not run as its previous build.
    fs::write(made.join("src/function.c"), "int answer(void) { return missing; }").expect("it can be changed");
    let output = output(&mut pinion(&made.join("src"), &words));
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("make has not built the function"), "{}", errors(&output));
}

/// `pinion dev` in a network namespace, with a folder of its own for temporary files. The process is killed when the value is dropped.
struct Dev {
    child: Child,
    said: PathBuf,
}

impl Dev {
    #[track_caller]
    fn start(namespace: &Namespace, folder: &Path, temporary: &Path) -> Self {
        let said = folder.join("said");
        let mut command = namespace.command("env");
        // A shell starts background processes with interrupts ignored, so the default is restored here.
        command.arg("--default-signal=INT").arg(program("pinion")).args(["dev", "--tap", TAP]).current_dir(folder);
        set_up(&mut command);
        command.env("TMPDIR", temporary).stdin(Stdio::null());
        let file = File::create(&said).expect("the folder is writable");
        command.stdout(file.try_clone().expect("it is a file")).stderr(file);
        Self { child: command.spawn().expect("pinion can be run"), said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    #[track_caller]
    fn until_said(&mut self, what: &str) {
        until(&format!("{what:?} of pinion dev's"), BUILD_MAX, || {
            let said = self.said();
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                panic!("pinion dev has ended ({status}): {said}");
            }
            said.contains(what).then_some(())
        });
    }

    fn tell(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("pinion dev has said:\n{}", self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a datagram; returns the answer, if there is one.
fn answer(namespace: &Namespace, text: &[u8]) -> Option<Vec<u8>> {
    namespace.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a client has sockets");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a socket has a timeout");
        socket.send_to(text, (NODE, PORT)).ok()?;
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer).ok()?;
        Some(answer[..len].to_vec())
    })
}

/// Waits until a client gets exactly this answer.
#[track_caller]
fn until_answered(namespace: &Namespace, text: &[u8], expected: &[u8]) {
    until(&format!("answer {:?}", expected.escape_ascii().to_string()), SOON, || {
        answer(namespace, text).filter(|answer| answer == expected)
    });
}

/// Returns the processes whose command line contains the path of a folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let commands = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(&*folder.to_string_lossy())).collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("it is a folder").next().is_none()
}

#[test]
fn a_source_change_is_served_once_it_builds_and_ctrl_c_leaves_nothing() {
    let _turn = turn();
    let namespace = Namespace::new("dev");
    let (folder, made) = new_crate("responder");
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).expect("the folder is writable");
    let mut dev = Dev::start(&namespace, &made, &temporary);
    dev.until_said("rule/my-function created");
    until_answered(&namespace, b"Hello", b"HELLO");

    let source = made.join("src/lib.rs");
    change(&source, "make_ascii_uppercase", "make_ascii_lowercase");
    dev.until_said("module/my-function configured");
    until_answered(&namespace, b"Hello", b"hello");

    change(&source, "make_ascii_lowercase", "make_it_so");
    dev.until_said("has not built the function");
    assert!(dev.said().contains("error[E0599]"), "{}", dev.said());
    until_answered(&namespace, b"Hello", b"hello");

    assert_eq!(namespace.interfaces(), [TAP]);
    assert!(!is_empty(&temporary) && !processes_of(&temporary).is_empty());
    dev.tell(Signal::INT);
    let status = until("end of pinion dev", SOON, || dev.child.try_wait().expect("a child can be waited for"));
    let said = dev.said();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains(" received, ") && said.contains(" sent, "), "{said}");
    assert_eq!(namespace.interfaces(), Vec::<String>::new());
    assert_eq!(processes_of(&temporary), Vec::<String>::new());
    assert!(is_empty(&temporary), "files are left");
}

#[test]
fn a_function_in_c_is_built_again_at_each_change_and_served_once_it_builds() {
    let _turn = turn();
    let namespace = Namespace::new("dev");
    let (folder, made) = new_crate("c");
    let source = made.join("src/function.c");
    change(&source, "toupper(", "make_it_so(");
    let mut dev = Dev::start(&namespace, &made, folder.path());
    dev.until_said("make has not built the function");
    change(&source, "make_it_so(", "toupper(");
    dev.until_said("rule/my-function created");
    until_answered(&namespace, b"Hello", b"HELLO");
    change(&source, "toupper(", "tolower(");
    dev.until_said("module/my-function configured");
    until_answered(&namespace, b"Hello", b"hello");
    // The outputs of make do not count as a change.
    let said = dev.said();
    assert_eq!(said.matches("make has not built the function").count(), 1, "{said}");
    assert_eq!(said.matches("-o build/my-function.wasm").count(), 3, "{said}");
}

#[test]
fn a_node_ends_with_its_pinion_dev_even_if_that_was_killed() {
    let _turn = turn();
    let namespace = Namespace::new("dev");
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).expect("the folder is writable");
    let mut dev = Dev::start(&namespace, folder.path(), &temporary);
    dev.until_said("rule/ping created");
    dev.tell(Signal::KILL);
    until("end of the node", SOON, || processes_of(&temporary).is_empty().then_some(()));
    until("end of its device", SOON, || namespace.interfaces().is_empty().then_some(()));
}

#[test]
fn existing_interfaces_and_routes_are_left_alone_and_named() {
    let _turn = turn();
    let namespace = Namespace::new("dev");
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let refused = || {
        let mut command = namespace.command(&program("pinion").display().to_string());
        let output = output(command.args(["dev", "--tap", TAP]).current_dir(folder.path()));
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        errors(&output)
    };
    namespace.ip(&format!("tuntap add {TAP} mode tap"));
    assert!(refused().contains("there is an interface tap0 already"), "{}", refused());
    namespace.ip(&format!("link del {TAP}"));
    namespace.ip("link add other type bridge");
    namespace.ip("address add 10.77.0.77/24 dev other");
    namespace.ip("link set other up");
    assert!(refused().contains("this machine has a route to 10.77.0.0/24 already"), "{}", refused());
}

#[test]
fn a_node_that_cannot_have_its_device_says_why() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    macswap(folder.path());
    let namespace = Namespace::new("dev");
    // Root without the capability to create devices.
    let mut command = namespace.command("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]).arg(program("pinion"));
    let output = output(command.args(["dev", "--tap", TAP]).current_dir(folder.path()));
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let error = errors(&output);
    assert!(error.contains(TAP) && !error.contains("ip link"), "it is the node that says why: {error}");
}

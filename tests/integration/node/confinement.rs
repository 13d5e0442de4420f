//! What a running node has given up: seen from outside, and by threads that try what they have no use for.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pinion_tests::machine::taken_over::{Outcome, Value, call};
use pinion_tests::network::bed::{Bed, Device, NODE, turn};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::pings;
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal};

const EPERM: Outcome = Outcome::Returned(-1);
const EACCES: Outcome = Outcome::Returned(-13);

/// Returns the value of a line of the kernel's `status` of a thread.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns name and status of all threads of a process, by their numbers.
fn threads(process: Pid) -> BTreeMap<i32, (String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("the node runs");
    let of_thread = |entry: std::io::Result<fs::DirEntry>| {
        let path: PathBuf = entry.ok()?.path();
        let status = fs::read_to_string(path.join("status")).ok()?;
        Some((path.file_name()?.to_str()?.parse().ok()?, (field(&status, "Name"), status)))
    };
    tasks.filter_map(of_thread).collect()
}

#[track_caller]
fn assert_confined(process: Pid) {
    let threads = threads(process);
    assert!(threads.len() > 8, "{}", threads.len());
    for (name, status) in threads.values() {
        let values = ["Seccomp", "NoNewPrivs", "CapEff", "CapPrm", "CapInh", "CapAmb"].map(|key| field(status, key));
        let none = "0000000000000000";
        assert_eq!(values, ["2", "1", none, none, none, none], "thread {name}");
    }
    // Where a core dump is forbidden already, the node cannot forbid one to a program as well.
    let expected = if core_limits("self")[1] == "0" { "0" } else { "1" };
    let limits = core_limits(&process.as_raw_nonzero().to_string());
    assert_eq!(limits, [expected, expected, "bytes"], "no core dump, nor one to a program");
}

/// Returns how long a core dump of a process may be, what the process may set that to, and the unit.
fn core_limits(process: &str) -> Vec<String> {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("the process runs");
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a line of core dumps");
    core.split_whitespace().map(str::to_owned).collect()
}

fn refused_calls(node: &Node) -> Vec<String> {
    let status = node.cli().status();
    let warnings = status["warnings"].as_array().expect("a list").iter().filter_map(|warning| warning.as_str());
    warnings.filter(|warning| warning.contains("was refused the system call")).map(str::to_owned).collect()
}

fn a_node_gives_up_its_rights_and_serves(device: Device) {
    let mut bed = Bed::new(device);
    bed.apply_echo("per-client");
    pings(&bed.clients[0].namespace, 5, &format!("-i 0.2 {NODE}")).assert_all(5);
    assert_confined(bed.node.process());
    // Once more, over what the first one has left.
    bed.node.stop();
    bed.start_node();
    pings(&bed.clients[1].namespace, 5, &format!("-i 0.2 {NODE}")).assert_all(5);
    assert_eq!(refused_calls(&bed.node), Vec::<String>::new());
    bed.node.stop();
    assert!(!bed.node.log().contains("was refused the system call"), "{}", bed.node.log());
}

#[test]
fn on_tap_every_thread_of_a_serving_node_has_given_up_its_rights() {
    a_node_gives_up_its_rights_and_serves(Device::Tap);
}

#[test]
fn on_af_packet_every_thread_of_a_serving_node_has_given_up_its_rights() {
    a_node_gives_up_its_rights_and_serves(Device::AfPacket);
}

#[test]
fn on_af_xdp_every_thread_of_a_serving_node_has_given_up_its_rights() {
    a_node_gives_up_its_rights_and_serves(Device::AfXdp);
}

/// System calls that no thread of a node has a use for, with harmless arguments.
const OF_NO_USE: [(&str, libc::c_long, &[Value]); 11] = [
    ("execve", libc::SYS_execve, &[Value::Text("/bin/true"), Value::Number(0), Value::Number(0)]),
    ("socket", libc::SYS_socket, &[Value::Number(2), Value::Number(1), Value::Number(0)]),
    ("bind", libc::SYS_bind, &[Value::Number(0), Value::Number(0), Value::Number(0)]),
    ("ptrace", libc::SYS_ptrace, &[Value::Number(0)]),
    ("bpf", libc::SYS_bpf, &[Value::Number(0), Value::Number(0), Value::Number(0)]),
    ("mount", libc::SYS_mount, &[Value::Text("/tmp"), Value::Text("/tmp"), Value::Number(0)]),
    ("unshare", libc::SYS_unshare, &[Value::Number(0x2000_0000)]),
    ("process_vm_readv", libc::SYS_process_vm_readv, &[Value::Number(1)]),
    ("kill", libc::SYS_kill, &[Value::Number(1), Value::Number(0)]),
    ("chmod", libc::SYS_chmod, &[Value::Text("/nonexistent"), Value::Number(0)]),
    // A process of its own, as `fork` makes it.
    ("clone", libc::SYS_clone, &[Value::Number(17)]),
];

/// The role that the node gives a thread of this name.
fn role(name: &str) -> &'static str {
    match name {
        "launcher" => "launcher",
        "ticker" => "ticker",
        "log" | "guest-log" | "invocations" | "pressure" => "service",
        "piniond" | "tokio-rt-worker" => "control",
        _ if name.starts_with("core-") => "data path",
        _ if name.starts_with("signer-") || name.starts_with("inference-") => "offload",
        _ => "driver",
    }
}

#[test]
fn a_thread_that_was_taken_over_is_refused_what_it_has_no_use_for_and_the_node_names_its_role_and_serves_on() {
    let mut bed = Bed::new(Device::Tap);
    bed.apply_echo("per-client");
    let process = bed.node.process().as_raw_nonzero().get();
    let mut roles = BTreeMap::new();
    for (thread, (name, _)) in threads(bed.node.process()) {
        roles.insert(role(&name), thread);
        for (what, number, arguments) in OF_NO_USE {
            assert_eq!(call(process, thread, number as usize, arguments), EPERM, "{what} by thread {name}");
        }
        let open = [Value::Number(-100_i64 as u64), Value::Text("/etc/passwd"), Value::Number(0)];
        let opened = call(process, thread, libc::SYS_openat as usize, &open);
        assert!([EPERM, EACCES].contains(&opened), "openat by thread {name}: {opened:?}");
    }
    assert_eq!(roles.len(), 7, "{roles:?}");
    // Signals to others by way of a file, and typing into a terminal, which are denied without more.
    for (call_number, request) in [(libc::SYS_ioctl, 0x8901), (libc::SYS_ioctl, 0x5412), (libc::SYS_fcntl, 8)] {
        let denied = [Value::Number(0), Value::Number(request), Value::Number(1)];
        for (role, thread) in &roles {
            let outcome = call(process, *thread, call_number as usize, &denied);
            assert_eq!(outcome, EACCES, "{call_number} {request} by a thread of the role {role}");
        }
    }
    let limits = [1, 7, 0, 0].map(Value::Number);
    assert_eq!(call(process, roles["control"], libc::SYS_prlimit64 as usize, &limits), EPERM, "of another process");
    // Memory that can be executed, on the data path.
    let map = [0, 4096, 7, 0x22, u64::MAX, 0].map(Value::Number);
    assert_eq!(call(process, roles["data path"], libc::SYS_mmap as usize, &map), EPERM);

    for role in roles.keys() {
        for (what, ..) in OF_NO_USE {
            let line = format!("a thread of the role {role} was refused the system call {what}");
            until("line of the log", SOON, || bed.node.log().contains(&line).then_some(()));
            let warnings = refused_calls(&bed.node);
            assert!(warnings.iter().any(|warning| warning.starts_with(&line)), "{line}: {warnings:?}");
        }
    }
    pings(&bed.clients[0].namespace, 5, &format!("-i 0.2 {NODE}")).assert_all(5);
    bed.node.stop();
}

#[test]
fn a_node_that_crashes_is_started_again_by_its_supervisor_and_serves_its_clients() {
    // On an interface that stays in its bridge while there is no node.
    let mut bed = Bed::new(Device::AfPacket);
    bed.apply_echo("per-client");
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    for (signal, name, pause_s) in [(Signal::ABORT, "SIGABRT", 0), (Signal::KILL, "SIGKILL", 1)] {
        bed.node.crash(signal);
        assert_confined(bed.node.process());
        let line = format!("supervisor: the node was ended by signal {name}; it is started again in {pause_s} s");
        assert!(bed.node.log().contains(&line), "{line}: {}", bed.node.log());
        bed.node.await_instance("demo", "echo");
        pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    }
    bed.node.stop();
}

#[test]
fn a_measure_that_is_off_is_a_warning_and_the_others_hold() {
    let _turn = turn();
    for key in ["supervisor", "drop_capabilities", "system_call_filters", "file_rules"] {
        // Without a supervisor the node starts its builders itself, which the two other measures do not allow.
        let more = if key == "supervisor" { "system_call_filters = false\nfile_rules = false\n" } else { "" };
        let ports = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n";
        let node = Node::started(&format!("[confinement]\n{key} = false\n{more}{ports}"));
        let warnings = node.cli().status()["warnings"].to_string();
        assert!(warnings.contains(&format!("confinement.{key} is false: ")), "{warnings}");
        let process = if key == "supervisor" { node.supervisor() } else { node.process() };
        for (name, status) in threads(process).values() {
            let filtered = if ["system_call_filters", "supervisor"].contains(&key) { "0" } else { "2" };
            assert_eq!(field(status, "Seccomp"), filtered, "{key}: thread {name}");
            let has_capabilities = field(status, "CapEff") != "0000000000000000";
            assert_eq!(has_capabilities, key == "drop_capabilities", "{key}: thread {name}");
        }
        // It builds, too.
        node.apply(Manifest::of("demo").module("echo", &build::sample("icmp-echo")).chain("echo", "echo", "").text());
    }
}

/// A module that takes a compiler a second or more.
fn large_module(folder: &std::path::Path) -> PathBuf {
    let calls = "(call $f0)".repeat(15_000);
    let functions: String = (0..8).map(|number| format!("(func $f{number} {calls})")).collect();
    let text = format!(
        r#"(module {functions} (memory (export "memory") 1)
            (func (export "pinion_abi_v3")) (func (export "pinion_run"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 0)))"#
    );
    let path = folder.join("large.wasm");
    fs::write(&path, wat::parse_str(text).expect("the text is a module")).expect("a folder of the test's own");
    path
}

/// Returns the builders that a supervisor has started.
fn builders(supervisor: Pid) -> Vec<i32> {
    let parent = supervisor.as_raw_nonzero().to_string();
    let of_builder = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let status = fs::read_to_string(path.join("status")).ok()?;
        let is_it = field(&status, "Name") == "pinion-builder" && field(&status, "PPid") == parent;
        is_it.then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
    };
    fs::read_dir("/proc").expect("there is /proc").filter_map(of_builder).collect()
}

#[test]
fn a_builder_is_another_user_in_namespaces_of_its_own_and_is_killed_by_what_it_has_no_use_for() {
    let _turn = turn();
    let node = Node::without_devices();
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = Manifest::of("demo").module("large", &large_module(folder.path())).chain("large", "large", "");
    let path = node.path("large.toml");
    fs::write(&path, manifest.text()).expect("the node's folder is writable");
    std::thread::scope(|scope| {
        let applied = scope.spawn(|| node.cli().try_apply(&path));
        let is_compiling = |builder: &i32| {
            // It has read its input by then.
            let status = fs::read_to_string(format!("/proc/{builder}/status")).unwrap_or_default();
            let resident_kib = field(&status, "VmRSS").trim_end_matches(" kB").parse().unwrap_or(0);
            field(&status, "Seccomp") == "2" && resident_kib > 65_536
        };
        let builder =
            until("builder that compiles", SOON, || builders(node.supervisor()).into_iter().find(is_compiling));
        let read = |name: &str| fs::read_to_string(format!("/proc/{builder}/{name}")).expect("it runs");
        let status = read("status");
        let values = ["NoNewPrivs", "CapEff", "Uid"].map(|key| field(&status, key));
        assert_eq!(values, ["1", "0000000000000000", "65533\t65533\t65533\t65533"], "{status}");
        assert_eq!(read("oom_score_adj").trim(), "1000");
        for kind in ["net", "mnt", "pid", "ipc", "uts", "cgroup"] {
            let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).expect("it runs");
            assert_ne!(namespace(&builder.to_string()), namespace("self"), "{kind}");
        }
        let files = fs::read_dir(format!("/proc/{builder}/fd")).expect("it runs").flatten();
        let files: Vec<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
        let are_its_own = files.iter().all(|file| {
            let file = file.to_string_lossy();
            file.starts_with("pipe:") || file.ends_with("/statm")
        });
        assert!(are_its_own, "{files:?}");

        let open = [Value::Number(-100_i64 as u64), Value::Text("/etc/passwd"), Value::Number(0)];
        assert_eq!(call(builder, builder, libc::SYS_openat as usize, &open), EACCES);
        let state = [Value::Number(-100_i64 as u64), Value::Text("/var/lib"), Value::Number(0)];
        assert_eq!(call(builder, builder, libc::SYS_openat as usize, &state), EACCES);
        let socket = [2, 1, 0].map(Value::Number);
        assert_eq!(
            call(builder, builder, libc::SYS_socket as usize, &socket),
            Outcome::Killed(nix::sys::signal::Signal::SIGSYS)
        );
        let refused = applied.join().expect("it runs to its end");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("killed at a system call that it has no use for"), "{said}");
    });
    let said = "killed at a system call that it has no use for";
    until("line of the log", SOON, || node.log().contains(said).then_some(()));
    // The next build is none the worse.
    node.apply(Manifest::of("demo").module("echo", &build::sample("icmp-echo")).chain("echo", "echo", "").text());
}

#[test]
fn builders_end_with_the_node_that_asked_for_them() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = Manifest::of("demo").module("large", &large_module(folder.path())).chain("large", "large", "");
    let path = node.path("large.toml");
    fs::write(&path, manifest.text()).expect("the node's folder is writable");
    let cli = node.cli();
    std::thread::scope(|scope| {
        scope.spawn(|| cli.try_apply(&path));
        let builder = until("builder", SOON, || builders(node.supervisor()).first().copied());
        node.kill();
        let is_gone = || !std::path::Path::new(&format!("/proc/{builder}")).exists();
        until("end of the builder", SOON, || is_gone().then_some(()));
    });
}

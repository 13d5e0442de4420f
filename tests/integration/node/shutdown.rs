//! A node that is told to stop leaves nothing behind.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use pinion_tests::network::bed::{Bed, Device, NODE, turn};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::{flood, ping, pings, poke};
use pinion_tests::until::{SOON, until};
use rustix::process::Pid;

/// Returns the processes of a group, as the kernel describes each: `PID (NAME) STATE PARENT GROUP ...`.
fn processes_of_group(group: Pid) -> Vec<String> {
    let stats = fs::read_dir("/proc").expect("there is /proc").filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let of_group = stat.rsplit_once(") ")?.1.split(' ').nth(2)? == group.as_raw_nonzero().to_string();
        of_group.then_some(stat)
    });
    stats.collect()
}

fn a_node_told_to_stop_leaves_nothing(device: Device, interfaces_left: &[&str]) {
    let mut bed = Bed::new(device);
    bed.apply_echo("per-client");
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    let (socket, group) = (bed.node.socket(), bed.node.supervisor());
    assert!(socket.exists());
    assert!(!processes_of_group(group).is_empty());

    bed.node.stop();

    assert!(!socket.exists(), "{} is still there", socket.display());
    assert_eq!(processes_of_group(group), Vec::<String>::new());
    let mut interfaces = bed.switch().interfaces();
    interfaces.retain(|name| !name.starts_with("client"));
    interfaces.sort_unstable();
    assert_eq!(interfaces, interfaces_left);
}

#[test]
fn on_tap_it_leaves_no_socket_process_or_device() {
    a_node_told_to_stop_leaves_nothing(Device::Tap, &["bridge0"]);
}

#[test]
fn on_af_packet_it_leaves_no_socket_or_process_and_the_interface_as_it_was() {
    a_node_told_to_stop_leaves_nothing(Device::AfPacket, &["bridge0", "port0", "port0-far"]);
}

#[test]
fn a_function_that_loops_for_ever_does_not_keep_it_from_stopping() {
    let bed = &mut Bed::new(Device::AfPacket);
    let looping = Manifest::of("mallory").module("looper", &build::hostile("looper")).chain("loop", "looper", "");
    bed.node.apply(looping.ping_rule("loop", "loop", "per-client", NODE).text());
    poke(&bed.clients[0].namespace, NODE);
    until("function that loops", SOON, || {
        let fwps = bed.node.cli().serving_fwps();
        fwps.iter().any(|fwp| fwp["counters"]["preemptions"].as_u64() > Some(10)).then_some(())
    });
    bed.node.stop();
}

/// Returns the process in a name like `pinion-PROCESS` or `pinion-test-PROCESS-more`.
fn named_process(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix("pinion-")?;
    name.strip_prefix("test-").unwrap_or(name).split('-').next()?.parse().ok()
}

#[test]
fn it_leaves_nothing_in_the_folders_of_temporary_files() {
    let _turn = turn();
    let mut node = Node::started("[[port]]\nname = \"lan\"\ndevice = \"net_ring0\"\n");
    let (group, process) = (node.supervisor(), node.process());
    // What is named after another process that runs is that process's: other nodes come and go meanwhile.
    let number = |process: Pid| process.as_raw_nonzero().get().cast_unsigned();
    let own = [number(group), number(process), std::process::id()];
    let is_anothers = |process: u32| !own.contains(&process) && Path::new("/proc").join(process.to_string()).exists();
    let list = |folder: &str| -> Vec<_> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let pinions = entries.filter(|path| path.to_string_lossy().contains("pinion"));
        pinions.filter(|path| !named_process(path).is_some_and(is_anothers)).collect()
    };
    let folders = || ["/tmp", "/run", "/var/run/dpdk", "/dev/hugepages"].map(list);
    let before = folders();
    node.stop();
    assert_eq!(processes_of_group(group), Vec::<String>::new());
    for (before, after) in before.into_iter().zip(folders()) {
        assert!(after.iter().all(|path| before.contains(path)), "new: {after:?}, before: {before:?}");
        let dpdk = format!("pinion-{}", process.as_raw_nonzero());
        assert!(!after.iter().any(|path| path.to_string_lossy().contains(&dpdk)), "{after:?}");
    }
    let mut left: Vec<_> = fs::read_dir(node.path("")).expect("its folder").flatten().map(|e| e.file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["log", "piniond.toml", "state"]);
}

#[test]
fn it_can_be_stopped_and_started_under_traffic() {
    let mut bed = Bed::new(Device::AfPacket);
    bed.apply_echo("per-client");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let client = &bed.clients[0].namespace;
            let traffic = scope.spawn(|| ping(client, &format!("-q -f -w 1 {NODE}")));
            flood(&bed.clients[1].namespace, NODE, 500).assert_all(500);
            bed.node.stop();
            traffic.join().expect("ping runs to its end")
        });
        bed.start_node();
    }
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
}

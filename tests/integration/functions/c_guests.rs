//! Functions in C: a fault ends only the function that caused it, and the sample filter in C decides as the one in Rust does.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fs;
use std::time::Duration;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::network::inline::{self, INTERFACE, Inline, LAN_MAC};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::random::Random;
use pinion_tests::traffic::frames::{send, watch};
use pinion_tests::traffic::ping::{flood, ping, poke};
use pinion_tests::until::{SOON, until};
use serde_json::{Value, json};
use smoltcp::wire::Ipv4Packet;

/// The tenant with the misbehaving functions.
const TENANT: &str = "mallory";
const MEMORY_KIB: u64 = 4096;
/// The error for a value that is too long for its field.
const TOO_LONG: &str = "the key is too long, or the value is longer than the state field is declared for";

/// Starts a bed where pings to [`NODE`] are answered for each client. Pings to the address of each word go to a chain of that name; its
/// stage is the C guest that does what the word says.
fn bed_of(words: &[&str]) -> Bed {
    bed_with(words, "")
}

/// As [`bed_of`], with a further key of each stage.
fn bed_with(words: &[&str], key: &str) -> Bed {
    let addresses: Vec<String> = (0..words.len()).map(address).collect();
    let bed = Bed::with_addresses(Device::AfPacket, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    bed.apply_echo("per-client");
    let mut manifest = Manifest::of(TENANT).module("wild", &build::hostile("c_wild"));
    for (word, address) in words.iter().zip(&addresses) {
        let stage = format!("{{ module = \"wild\", config = \"{word}\"{key} }}");
        manifest = manifest
            .with(format_args!("[[chain]]\nname = \"{word}\"\nstage = [{stage}]\nmemory_limit_kib = {MEMORY_KIB}\n"))
            .ping_rule(word, word, "per-client", address);
    }
    bed.node.apply(manifest.text());
    bed
}

fn address(number: usize) -> String {
    format!("10.77.0.{}", 100 + number)
}

fn assert_others_are_served(bed: &Bed) {
    flood(&bed.clients[1].namespace, NODE, 2_000).assert_all(2_000);
}

fn instances(bed: &Bed, chain: &str, state: &str) -> Vec<Value> {
    let mut instances = bed.node.cli().get("instances");
    instances.retain(|it| it["tenant"] == TENANT && it["chain"] == chain && it["state"] == state);
    instances
}

/// Returns what instances of a chain logged, as pairs of level and text.
fn lines(bed: &Bed, chain: &str) -> Vec<(String, String)> {
    let lines = bed.node.cli().run(&["logs", "-o", "json", "--tenant", TENANT, "--chain", chain]);
    let text = |value: &Value| value.as_str().expect("it is text").to_owned();
    let line = |line: &str| serde_json::from_str::<Value>(line).map(|it| (text(&it["level"]), text(&it["text"])));
    lines.lines().map(|it| line(it).expect("each line is JSON")).collect()
}

#[test]
fn where_a_functions_own_stack_begins_is_known_in_c_as_in_rust() {
    for (sample, expected) in [("packet-filter", "1048576"), ("packet-filter-c", "65536")] {
        let node = Node::without_devices();
        let manifest = Manifest::of(TENANT).module("function", &build::sample(sample));
        node.apply(manifest.configured_chain("chain", "function", "default deny").text());
        let templates = fs::read_dir(node.path("state/templates")).expect("a node has a folder of templates");
        let mut files = templates.map(|entry| entry.expect("an entry").path());
        let facts = files.find(|path| path.extension().is_some_and(|extension| extension == "facts"));
        let facts = fs::read(facts.expect("a template has facts")).expect("they can be read");
        let facts: Value = serde_json::from_slice(&facts).expect("they are JSON");
        assert_eq!(facts["stack"].to_string(), expected, "{sample}");
    }
}

#[test]
fn a_fault_in_c_ends_only_its_function_and_is_reported() {
    // The library reports what it detects itself; the node gives the reason for the rest.
    let cases = [
        ("memory", "it trapped: ", ""),
        ("stack", "it trapped: ", ""),
        ("abort", "it trapped: ", ""),
        ("twice", "it panicked: ", "was used after it was sent or dropped"),
        ("after", "it panicked: ", "was used after it was sent or dropped"),
        ("panic", "it panicked: ", "this is not the 2. packet"),
        ("forge", "it was stopped: ", "which it does not own"),
    ];
    let bed = bed_of(&cases.map(|(word, ..)| word));
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| flood(&bed.clients[1].namespace, NODE, 10_000));
        for (number, (word, because, said)) in cases.iter().enumerate() {
            poke(&bed.clients[0].namespace, &address(number));
            let ended = until("end of the instance", SOON, || instances(&bed, word, "terminated").pop());
            let reason = ended["ended_because"].as_str().unwrap_or_default();
            assert!(reason.starts_with(because) && reason.contains(said), "{word}: {reason}");
            until("line that says why", SOON, || {
                let is_it = |(level, text): &(String, String)| level == "error" && text.contains(said);
                lines(&bed, word).iter().any(is_it).then_some(())
            });
        }
        beside.join().expect("ping runs to its end").assert_all(10_000);
    });
}

#[test]
fn a_write_past_a_slot_damages_only_the_functions_own_memory() {
    let bed = bed_of(&["slot"]);
    poke(&bed.clients[0].namespace, &address(0));
    // It continues as far as its remaining memory allows.
    until("second packet that it answers", SOON, || {
        poke(&bed.clients[0].namespace, &address(0));
        let fwps = bed.node.cli().serving_fwps();
        let sent = |fwp: &Value| fwp["tenant"] == TENANT && fwp["counters"]["sent"].as_u64() >= Some(2);
        fwps.iter().any(sent).then_some(())
    });
    assert_others_are_served(&bed);
    assert_eq!(bed.node.cli().chain_status(TENANT, "slot")["failures"], 0);
}

#[test]
fn malloc_gives_null_when_the_chains_memory_is_used_up() {
    let bed = bed_of(&["malloc"]);
    poke(&bed.clients[0].namespace, &address(0));
    let line = until("line on the memory", SOON, || lines(&bed, "malloc").pop());
    let given_kib = line.1.strip_prefix("malloc gave NULL after ").and_then(|rest| rest.strip_suffix(" KiB"));
    let given_kib: u64 = given_kib.and_then(|number| number.parse().ok()).expect("a number of KiB");
    assert!((1024..MEMORY_KIB).contains(&given_kib), "{given_kib} KiB of {MEMORY_KIB}");
    assert_others_are_served(&bed);
    assert_eq!(bed.node.cli().chain_status(TENANT, "malloc")["failures"], 0);
}

#[test]
fn printed_text_reaches_the_tenant_line_by_line() {
    let bed = bed_of(&["print"]);
    poke(&bed.clients[0].namespace, &address(0));
    let said = until("all lines", SOON, || Some(lines(&bed, "print")).filter(|lines| lines.len() >= 6));
    let said = |level: &str| -> Vec<&str> {
        said.iter().filter(|(its, _)| its == level).map(|(_, text)| text.as_str()).collect()
    };
    let printed = said("info");
    assert_eq!(printed[..3], ["one", "two, 2", "three is whole"]);
    assert_eq!(
        said("error"),
        ["what is written to stderr, text and 42 are one line, however long it is and of whatever parts"]
    );
    // A line longer than the maximum is split into pieces; what does not fit into them is lost.
    assert!(
        printed[3..].iter().all(|piece| (1..=1024).contains(&piece.len()) && piece.starts_with("00")),
        "{printed:?}"
    );
    assert!(printed[printed.len() - 1].ends_with('7'), "{printed:?}");
}

#[test]
fn a_function_in_c_reads_the_files_that_are_deployed_with_it() {
    let site = tempfile::tempdir().expect("a folder for files");
    let words = site.path().join("words");
    std::fs::create_dir(&words).expect("the folder is writable");
    std::fs::write(words.join("greeting.txt"), "hello").expect("the folder is writable");
    let bed = bed_with(&["file"], &format!(", files = {:?}", site.path()));
    poke(&bed.clients[0].namespace, &address(0));
    let said = until("line on the file", SOON, || lines(&bed, "file").pop());
    assert_eq!(said, ("info".to_owned(), "the file says hello".to_owned()));
}

#[test]
fn lines_above_a_c_functions_log_level_are_left_out() {
    let bed = bed_of(&["quiet"]);
    poke(&bed.clients[0].namespace, &address(0));
    let said = until("line that is said", SOON, || Some(lines(&bed, "quiet")).filter(|lines| !lines.is_empty()));
    assert_eq!(said, [("warn".to_owned(), "loud enough".to_owned())]);
}

/// Returns how many packets the FWPs of a chain have sent.
fn sent(bed: &Bed, chain: &str) -> u64 {
    let fwps = bed.node.cli().serving_fwps();
    fwps.iter().filter(|fwp| fwp["chain"] == chain).filter_map(|fwp| fwp["counters"]["sent"].as_u64()).sum()
}

#[test]
fn packets_held_or_created_in_c_are_sent_as_often_as_slots_come_back() {
    const POKES: u64 = 20;
    let bed = bed_of(&["hold", "clone"]);
    for (number, word) in ["hold", "clone"].iter().enumerate() {
        for poke_number in 1..=POKES {
            poke(&bed.clients[0].namespace, &address(number));
            let each = if *word == "clone" { 2 } else { 1 };
            until("packet of the function's", SOON, || (sent(&bed, word) == poke_number * each).then_some(()));
        }
        assert_eq!(bed.node.cli().chain_status(TENANT, word)["failures"], 0);
    }
}

#[test]
fn random_bytes_beyond_a_turns_bound_come_in_the_next_turn_in_c() {
    let bed = bed_of(&["flood"]);
    poke(&bed.clients[0].namespace, &address(0));
    let said = until("line on the bytes", SOON, || lines(&bed, "flood").pop());
    assert_eq!(said.1, "1024 KiB, and no byte of them is rare");
    assert_others_are_served(&bed);
    assert_eq!(bed.node.cli().chain_status(TENANT, "flood")["failures"], 0);
}

#[test]
fn each_instance_in_c_draws_random_numbers_of_its_own() {
    let bed = bed_of(&["random"]);
    for client in &bed.clients {
        poke(&client.namespace, &address(0));
    }
    let mut keys =
        until("line of each instance", SOON, || Some(lines(&bed, "random")).filter(|lines| lines.len() == 3));
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "{keys:?}");
}

#[test]
fn a_function_in_c_is_called_by_name() {
    let bed = bed_of(&["call"]);
    for (asked, answered) in [("to be", "TO BE"), ("or not", "OR NOT")] {
        let said = bed.node.cli().run(&["invoke", &format!("{TENANT}/call"), "--data", asked]);
        assert_eq!(said.trim_end(), answered);
    }
}

#[test]
fn a_c_function_with_its_own_loop_waits_for_calls_and_times_and_ends_when_it_returns() {
    let node = Node::without_devices();
    let manifest = Manifest::of(TENANT).module("dialogue", &build::hostile("c_dialogue"));
    node.apply(manifest.configured_chain("talk", "dialogue", "200").text());
    assert_eq!(order(&node, "talk", "one"), "nothing");
    assert_eq!(order(&node, "talk", "two"), "one");
    until("line on the silence", SOON, || {
        node.cli().run(&["logs", "--tenant", TENANT]).contains("no more calls after two").then_some(())
    });
    let id = node.cli().serving_fwps()[0]["id"].clone();
    assert_eq!(order(&node, "talk", "end"), "two");
    until("end of the instance", SOON, || node.cli().serving_fwps().iter().all(|fwp| fwp["id"] != id).then_some(()));
    assert_eq!(order(&node, "talk", "three"), "nothing");
    assert_eq!(node.cli().chain_status(TENANT, "talk")["failures"], 0);
}

/// A chain with the C notebook, with read or write access to a state field.
fn notebook(name: &str, access: &str) -> String {
    let stage = format!("{{ module = \"notebook\", config = \"notes\", state = {{ notes = \"{access}\" }} }}");
    format!("[[chain]]\nname = \"{name}\"\nstage = [{stage}]\ncache_min = 0\n")
}

/// Starts a node without devices on which one chain writes to a state field and another one reads it.
fn node_of_notebooks() -> Node {
    let node = Node::without_devices();
    let manifest = Manifest::of(TENANT)
        .module("notebook", &build::hostile("c_notebook"))
        .with("[state.notes]\nvalue_bytes = 24\nentries = 4\n")
        .with(notebook("writer", "write"))
        .with(notebook("reader", "read"));
    node.apply(manifest.text());
    node
}

/// Sends an order to a notebook; returns its answer.
fn order(node: &Node, chain: &str, order: &str) -> String {
    node.cli().run(&["invoke", &format!("{TENANT}/{chain}"), "--data", order]).trim_end_matches('\n').to_owned()
}

/// Returns the values of the series of this name of the chain `writer`, each with the labels that are not the node's.
fn series(node: &Node, name: &str) -> Vec<(Value, Value)> {
    let all = node.cli().run(&["metrics", "-o", "json", "--tenant", TENANT, "--chain", "writer"]);
    let all: Vec<Value> = serde_json::from_str(&all).expect("it is a list");
    let named = all.into_iter().filter(|metric| metric["name"] == name);
    named.map(|metric| (metric["labels"].clone(), metric["value"].clone())).collect()
}

#[test]
fn the_notebook_in_c_answers_orders_as_the_one_in_rust_does() {
    let node = node_of_notebooks();
    let orders = include_str!("../../../samples/notebook/tests/orders.txt");
    for line in orders.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(" => ") {
            Some((text, answer)) => assert_eq!(order(&node, "writer", text), answer, "{text}"),
            None => {
                let ms =
                    line.strip_prefix("wait ").and_then(|ms| ms.parse().ok()).expect("an order, or a time to wait");
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
    }
}

#[test]
fn state_and_counters_of_a_c_function_outlive_its_instance() {
    let node = node_of_notebooks();
    assert_eq!(order(&node, "writer", "put colour blue"), "ok");
    assert_eq!(order(&node, "writer", "add visits 41"), "41");
    until("name of the latest key", SOON, || {
        let expected = (json!([["key", "visits"]]), json!({ "gauge": 13 }));
        (series(&node, "notebook_latest_order_bytes") == [expected]).then_some(())
    });
    let id = node.cli().serving_fwps()[0]["id"].clone();
    assert_eq!(order(&node, "writer", "finish"), "ok");
    until("end of the instance", SOON, || node.cli().serving_fwps().iter().all(|fwp| fwp["id"] != id).then_some(()));
    assert_eq!(order(&node, "writer", "add visits 1"), "42");
    assert_eq!(order(&node, "reader", "get colour"), "blue");
    assert_eq!(order(&node, "reader", "put colour red"), "the stage is granted this state field to read only");
    assert_eq!(order(&node, "writer", "put colour a-colour-of-25-characters"), TOO_LONG);
    until("counts of both instances", SOON, || {
        let of = |outcome: &str, count: u64| (json!([["outcome", outcome]]), json!({ "counter": count }));
        let counted = series(&node, "notebook_orders");
        (counted.len() == 2 && counted.contains(&of("obeyed", 4)) && counted.contains(&of("refused", 1))).then_some(())
    });
    let text = node.cli().run(&["metrics", "-A"]);
    let labels = format!("tenant=\"{TENANT}\",chain=\"writer\",stage=\"0\",module=\"notebook\"");
    let line = format!("pinion_function_notebook_orders_total{{{labels},outcome=\"obeyed\"}} 4\n");
    assert!(text.contains(&line), "{line} is not in\n{text}");
}

#[test]
fn a_chain_without_a_grant_for_a_field_that_a_c_function_opens_is_refused_with_its_name() {
    let node = Node::without_devices();
    let chain = notebook("writer", "write").replace("config = \"notes\"", "config = \"nots\"");
    let manifest = Manifest::of(TENANT)
        .module("notebook", &build::hostile("c_notebook"))
        .with("[state.notes]\nvalue_bytes = 24\nentries = 4\n")
        .with(chain);
    let path = node.path("manifest.toml");
    std::fs::write(&path, manifest.text()).expect("the node's folder is writable");
    let output = node.cli().try_apply(&path);
    assert_eq!(output.status.code(), Some(2));
    let said = errors(&output);
    assert!(said.contains("state field \"nots\": the stage is granted no state field of this name"), "{said}");
}

/// Makes frames of many kinds from the left host to the right one. The last bytes of each are its number.
fn frames(random: &mut Random, count: u32) -> Vec<Vec<u8>> {
    let addresses = [[10, 78, 0, 1], [10, 66, 1, 2], [192, 0, 2, 9], [10, 78, 0, 2]];
    let mut any = |of: &[u8]| of[random.below(of.len() as u64) as usize];
    let frame = |number: u32| {
        let v6 = any(&[0, 0, 1]) == 1;
        let protocol = any(&[6, 6, 17, 17, if v6 { 58 } else { 1 }, 47]);
        let (source, destination) = (addresses[usize::from(any(&[0, 1, 2]))], addresses[usize::from(any(&[2, 3]))]);
        let (from, to) =
            ([any(&[0, 1]), any(&[53, 80, 187, 255])], [any(&[0, 1, 31]), any(&[22, 53, 64, 80, 81, 187])]);
        let mut payload = match protocol {
            6 => [&from[..], &to, &[0; 8], &[0x50, any(&[0x02, 0x10, 0x12, 0x04, 0x11]), 0, 9, 0, 0, 0, 0]].concat(),
            17 => [&from[..], &to, &[0, 12, 0, 0]].concat(),
            1 => vec![8, 0, 0, 0, 0, 1, 0, 1],
            58 => vec![128, 0, 0, 0, 0, 1, 0, 1],
            _ => vec![0; 8],
        };
        payload.extend(number.to_be_bytes());
        let packet = if v6 {
            ipv6(protocol, source, destination, &payload)
        } else {
            ipv4(protocol, source, destination, &payload)
        };
        [&ethernet()[..], &packet].concat()
    };
    (0..count).map(frame).collect()
}

/// Returns the MAC addresses, destination first, of a frame that the left host's port accepts.
fn ethernet() -> Vec<u8> {
    let mac = LAN_MAC.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    mac.chain([2, 0, 0, 0, 0, 9]).collect()
}

fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x08, 0x00, 0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    packet.extend([source, destination].concat());
    // The node drops frames with a wrong checksum.
    Ipv4Packet::new_unchecked(&mut packet[2..]).fill_checksum();
    [&packet[..], payload].concat()
}

fn ipv6(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x86, 0xdd, 0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([protocol, 64]);
    let address = |tail: [u8; 4]| [&[0xfd, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &tail].concat();
    [&packet[..], &address(source), &address(destination), payload].concat()
}

const POLICY: &str = "# Of everything something.\n\
    deny from 10.66.0.0/16\n\
    allow icmp to 192.0.2.0/24\n\
    allow 58 from fd78::a4e:0/112\n\
    allow tcp 22,80-81,8000-8099 from-ports 53,80\n\
    deny udp 53 to 10.78.0.2\n\
    allow udp 53\n\
    allow tcp established\n\
    allow udp 9 from 10.78.0.1\n\
    allow 47 from fd78::/96\n\
    default deny";

/// A frame that the policy passes, with a number that no other frame has.
fn last_of(number: u32) -> Vec<u8> {
    let payload = [&[0, 9, 0, 9, 0, 12, 0, 0], &number.to_be_bytes()[..]].concat();
    [ethernet(), ipv4(17, [10, 78, 0, 1], [10, 78, 0, 2], &payload)].concat()
}

/// Returns those frames that a sample with this policy passes, in the order in which they come out.
fn passing(inline: &Inline, sample: &str, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    inline.pass_through(sample, POLICY);
    let passed = coming_out(inline, frames);
    let fwps = inline.node.cli().get("fwps");
    let of_it = fwps.iter().filter(|fwp| fwp["module"] == sample);
    let judged: u64 = of_it.filter_map(|fwp| fwp["counters"]["received"].as_u64()).sum();
    assert!(judged >= passed.len() as u64, "{sample} has judged {judged} frames, and {} passed", passed.len());
    passed
}

/// Returns those frames that come out of the node at the other side, in their order there.
fn coming_out(inline: &Inline, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    const AT_ONCE: usize = 32;
    const IN_TIME: Duration = Duration::from_secs(20);
    watch(&inline.right.namespace, INTERFACE, |arrivals| {
        let passed = RefCell::new(Vec::new());
        for (number, some) in frames.chunks(AT_ONCE).enumerate() {
            let last = last_of(1_000_000 + number as u32);
            send(&inline.left.namespace, INTERFACE, &[some, std::slice::from_ref(&last)].concat());
            let is_last = |frame: &[u8]| {
                // A received frame may end in padding.
                passed.borrow_mut().extend(some.iter().find(|sent| frame.starts_with(sent)).cloned());
                frame.starts_with(&last)
            };
            assert_eq!(arrivals.take(1, IN_TIME, is_last).len(), 1, "the last of some frames did not come");
        }
        passed.into_inner()
    })
}

#[test]
fn the_packet_filter_in_c_lets_the_same_frames_pass_as_the_one_in_rust() {
    let inline = Inline::new(Device::AfPacket);
    let frames = frames(&mut Random::new(7), 1_000);
    let by_rust = passing(&inline, "packet-filter", &frames);
    let by_c = passing(&inline, "packet-filter-c", &frames);
    assert!(by_rust == by_c, "of {} frames {} pass in Rust and {} in C", frames.len(), by_rust.len(), by_c.len());
    // Otherwise the two samples would agree without a meaningful test.
    assert!((200..800).contains(&by_rust.len()), "{} frames pass", by_rust.len());
}

/// Returns the metrics of a module that counted in one stage, by name and the module's own labels, in their order.
fn metrics_of(inline: &Inline, module: &str) -> Vec<(String, f64)> {
    let text = inline.node.cli().run(&["metrics", "-A"]);
    let read = |line: &str| {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let (_, own) = labels.split_once(&format!("module=\"{module}\""))?;
        Some((format!("{name}{own}"), value.parse().ok()?))
    };
    text.lines().filter_map(read).collect()
}

#[test]
fn the_monitor_in_c_reports_the_same_metrics_for_the_same_frames_as_the_one_in_rust() {
    const TOP: usize = 8;
    let config = format!("every 3s top {TOP} flows 32");
    let samples = ["monitor", "monitor-c"];
    let stages = samples.map(|sample| format!("{{ module = {sample:?}, config = {config:?} }}")).join(", ");
    let inline = Inline::new(Device::AfPacket);
    let manifest = Manifest::of(inline::TENANT)
        .module(samples[0], &build::sample(samples[0]))
        .module(samples[1], &build::sample(samples[1]));
    let manifest = manifest.with(format_args!(
        "[[chain]]\nname = \"watched\"\nstage = [{stages}]\negress = \"wan\"\n\
         [[rule]]\nname = \"from-lan\"\npolicy = \"shared\"\nchain = \"watched\"\nmatch = {{ port = \"lan\" }}\n"
    ));
    inline.node.apply(manifest.text());
    inline.node.await_instance(inline::TENANT, "watched");
    let frames = frames(&mut Random::new(8), 400);
    assert!(coming_out(&inline, &frames) == frames, "not all frames come out as they were");

    let is_rate = |name: &str| name.contains("top_bits_per_second");
    // Each sample has its own interval, which begins with a frame and ends with a turn. The rates therefore differ a little.
    let agrees = |(one, other): (&(String, f64), &(String, f64))| {
        let margin = if is_rate(&one.0) { 0.02 * one.1 } else { 0.0 };
        one.0 == other.0 && (one.1 - other.1).abs() <= margin
    };
    let both = until("reports of both that agree", SOON, || {
        let [by_rust, by_c] = samples.map(|sample| metrics_of(&inline, sample));
        let reported = by_rust.iter().filter(|(name, _)| is_rate(name)).count() == TOP;
        let agree = by_rust.len() == by_c.len() && by_rust.iter().zip(&by_c).all(agrees);
        (reported && agree).then_some(by_rust)
    });
    let value = |wanted: &str| both.iter().find(|(name, _)| name.ends_with(wanted)).map(|(_, value)| *value);
    assert_eq!(value("monitor_flows"), Some(32.0));
    assert!(value("monitor_flows_forgotten_total") > Some(50.0), "{both:?}");
    assert!(value("monitor_packets_total") >= Some(400.0), "{both:?}");
}

#[test]
fn an_invalid_policy_is_refused_in_the_same_words_in_c_and_in_rust() {
    let refusal = |sample: &str| {
        let module = build::sample(sample);
        let output = std::process::Command::new(build::program("pinion"))
            .arg("check")
            .arg(&module)
            .args(["--config", "allow tcp 80\nallow everything\ndefault deny"])
            .output()
            .expect("pinion can be run");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        error.split_once("pinion_init").expect("its pinion_init refused").1.to_owned()
    };
    let by_c = refusal("packet-filter-c");
    assert!(by_c.contains("policy, line 2: \"everything\" is not known"), "{by_c}");
    assert_eq!(by_c, refusal("packet-filter"));
}

#[test]
fn clients_that_are_not_allowed_reach_nothing_behind_the_packet_filter_in_c() {
    let bed = Bed::new(Device::AfPacket);
    let policy = format!("allow icmp from {}\ndefault deny", bed.clients[0].address);
    let stages = format!("[{{ module = \"filter\", config = {policy:?} }}, {{ module = \"icmp-echo\" }}]");
    let manifest = Manifest::of(TENANT)
        .module("filter", &build::sample("packet-filter-c"))
        .module("icmp-echo", &build::sample("icmp-echo"))
        .with(format_args!("[[chain]]\nname = \"guarded\"\nstage = {stages}\n"))
        .ping_rule("ping", "guarded", "per-client", NODE);
    bed.node.apply(manifest.text());
    let allowed = flood(&bed.clients[0].namespace, NODE, 5_000);
    allowed.assert_all(5_000);
    assert_eq!(ping(&bed.clients[1].namespace, &format!("-c 3 -i 0.1 -W 0.5 {NODE}")).received, 0);
    // The counts of both instances are added up.
    let labels = format!("tenant=\"{TENANT}\",chain=\"guarded\",stage=\"0\",module=\"filter\"");
    let lines = [
        "# TYPE pinion_function_packet_filter_packets_denied_total counter\n".to_owned(),
        format!("pinion_function_packet_filter_packets_allowed_total{{{labels}}} {}\n", allowed.sent),
        format!("pinion_function_packet_filter_packets_denied_total{{{labels},reason=\"policy\"}} 3\n"),
        format!("pinion_function_packet_filter_packets_denied_total{{{labels},reason=\"unreadable\"}} 0\n"),
    ];
    until("counts of all packets", SOON, || {
        let text = bed.node.cli().run(&["metrics", "-A"]);
        lines.iter().all(|line| text.contains(line)).then_some(())
    });
}

//! Chains whose graph branches by headers: the node chooses the stage of each packet of real clients, and the way back is that of the
//! stages that it took.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::time::Duration;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Client, Device, NODE, TENANT};
use pinion_tests::network::border::{Border, INSIDE_NET, OUTSIDE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{ping, pings};
use pinion_tests::traffic::web::curl;
use pinion_tests::until::{SOON, until};
use serde_json::{Value, json};

const PINGS: u64 = 20;

/// A manifest with these modules, a chain of these lines, and a rule for all packets to the node.
#[track_caller]
fn manifest(modules: &[&str], chain: &str) -> Manifest {
    let add = |manifest: Manifest, name: &&str| manifest.module(name, &build::sample(name));
    modules.iter().fold(Manifest::of(TENANT), add).with(format_args!(
        "[[chain]]\nname = \"graph\"\ncache_min = 1\n{chain}\n[[rule]]\nname = \"all\"\npolicy = \"per-client\"\nchain = \"graph\"\n\
         match = {{ destination = \"{NODE}\" }}\n"
    ))
}

/// Sends a datagram to a port of the node; returns the answer, if one comes soon.
fn asked(client: &Client, port: u16) -> Option<Vec<u8>> {
    client.namespace.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket has a timeout");
        socket.send_to(b"are you there?", (NODE, port)).expect("the interface takes a datagram");
        let mut answer = [0; 64];
        let (len, _) = socket.recv_from(&mut answer).ok()?;
        Some(answer[..len].to_vec())
    })
}

/// Returns the number of packets that each stage of the only serving instance has received, by module.
fn received(bed: &Bed) -> Vec<(String, u64)> {
    let of = |fwp: &Value| {
        let module = fwp["module"].as_str().expect("an FWP has a module").to_owned();
        (module, fwp["counters"]["received"].as_u64().expect("an FWP counts packets"))
    };
    let mut all: Vec<_> =
        bed.node.cli().get("fwps").iter().filter(|fwp| fwp["client"] != Value::Null).map(of).collect();
    all.sort();
    all
}

#[test]
fn port_80_goes_to_one_stage_and_the_rest_to_others_of_the_same_instance() {
    let bed = Bed::new(Device::Tap);
    let chain = r#"entry = { default = "ping", branch = [
    { match = { protocol = "tcp", destination_ports = 80 }, to = "web" },
    { match = { protocol = "udp", destination_ports = 7 }, to = "echo" },
    { match = { protocol = "udp" }, to = "drop" },
] }
stage = [
    { name = "web", module = "http-server", config = "page / hello", outputs = ["egress"] },
    { name = "echo", module = "udp-echo", outputs = ["egress"] },
    { name = "ping", module = "icmp-echo" },
]"#;
    bed.node.apply(manifest(&["http-server", "udp-echo", "icmp-echo"], chain).text());
    bed.node.await_instance(TENANT, "graph");
    let client = &bed.clients[0];
    assert_eq!(curl(client, &[&format!("http://{NODE}/")]), "hello\n");
    pings(&client.namespace, PINGS, &format!("-i 0.02 {NODE}")).assert_all(PINGS);
    assert_eq!(asked(client, 7), Some(b"are you there?".to_vec()));
    assert_eq!(asked(client, 9), None);
    let expected = json!([{ "place": "0/http-server", "reason": "dropped-by-graph", "count": 1 }]);
    until("count of what the entry drops", SOON, || {
        let drops = bed.node.cli().chain_status(TENANT, "graph")["drops"].clone();
        let by_graph: Vec<Value> =
            drops.as_array()?.iter().filter(|drop| drop["reason"] == "dropped-by-graph").cloned().collect();
        (Value::from(by_graph) == expected).then_some(())
    });
    let received = received(&bed);
    let of = |module: &str| received.iter().find(|(name, _)| name == module).map(|(_, count)| *count);
    assert_eq!(received.len(), 3, "one instance of three stages: {received:?}");
    assert_eq!(of("udp-echo"), Some(1), "{received:?}");
    assert!(of("icmp-echo") >= Some(PINGS) && of("http-server") >= Some(5), "{received:?}");
    assert_eq!(bed.node.cli().get("instances").iter().filter(|it| it["client"] != Value::Null).count(), 1);
}

#[test]
fn a_branch_behind_a_stage_leads_on_and_replies_come_back_through_that_stage() {
    let bed = Bed::new(Device::Tap);
    let chain = r#"reverse = { from = [] }
stage = [
    { name = "meter", module = "monitor", outputs = [{ default = "drop", branch = [
        { match = { protocol = "tcp", destination_ports = 80 }, to = "web" },
        { match = { protocol = "icmp", icmp_type = 8 }, to = "ping" },
    ] }] },
    { name = "web", module = "http-server", config = "page / hello", outputs = ["egress"] },
    { name = "ping", module = "icmp-echo" },
]"#;
    bed.node.apply(manifest(&["monitor", "http-server", "icmp-echo"], chain).text());
    bed.node.await_instance(TENANT, "graph");
    let client = &bed.clients[0];
    pings(&client.namespace, PINGS, &format!("-i 0.02 {NODE}")).assert_all(PINGS);
    let of = |module: &str| received(&bed).iter().find(|(name, _)| name == module).map(|(_, count)| *count);
    let (requests, both) = (of("icmp-echo").expect("it was asked"), of("monitor").expect("it was passed"));
    assert!(
        requests >= PINGS && both == 2 * requests,
        "of {both} packets {requests} are requests, and the others answers"
    );
    assert_eq!(curl(client, &[&format!("http://{NODE}/")]), "hello\n");
    assert!(of("monitor") > Some(both) && of("icmp-echo") == Some(requests));
    assert_eq!(asked(client, 7), None);
    let drops = bed.node.cli().chain_status(TENANT, "graph")["drops"].clone();
    let is_it = |drop: &Value| drop["place"] == "0/monitor" && drop["reason"] == "dropped-by-graph";
    assert!(drops.as_array().expect("a list").iter().any(is_it), "{drops}");
}

#[test]
fn packets_of_either_port_enter_by_the_stage_that_their_headers_name_and_go_back_through_those_before_it() {
    const MODULES: [&str; 3] = ["meter", "behind", "rest"];
    const PORT: u16 = 7777;
    let border = Border::new();
    let pings_to = |stage| {
        format!("{{ default = \"rest\", branch = [{{ match = {{ protocol = \"icmp\" }}, to = \"{stage}\" }}] }}")
    };
    let stage =
        |name: &str, output: &str| format!("{{ name = \"{name}\", module = \"{name}\", outputs = [\"{output}\"] }}");
    let chain = format!(
        "[[chain]]\nname = \"graph\"\nrouted = true\negress = \"outside\"\nentry = {}\n\
         reverse = {{ from = [\"outside\"], egress = \"inside\", entry = {} }}\nstage = [{}, {}, {}]\n",
        pings_to("meter"),
        pings_to("behind"),
        stage("meter", "behind"),
        stage("behind", "egress"),
        stage("rest", "egress"),
    );
    let rule = |port: &str, side: &str| {
        format!(
            "[[rule]]\nname = \"{port}\"\npolicy = \"shared\"\nchain = \"graph\"\n\
             match = {{ port = \"{port}\", {side} = \"{INSIDE_NET}\" }}\n"
        )
    };
    let add = |manifest: Manifest, name: &&str| manifest.module(name, &build::sample("monitor"));
    let manifest = MODULES.iter().fold(Manifest::of(TENANT), add);
    border.node.apply(manifest.with(chain + &rule("inside", "source") + &rule("outside", "destination")).text());

    // A request enters by the first stage, an answer by the second one.
    pings(&border.inside, PINGS, &format!("-i 0.05 {OUTSIDE}")).assert_all(PINGS);
    // Datagrams pass the third stage both ways, and no other.
    let server = border.outside.inside(|| UdpSocket::bind((OUTSIDE, PORT)).expect("a socket"));
    let client = border.inside.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a socket"));
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket has a timeout");
    }
    let mut bytes = [0; 64];
    client.send_to(b"are you there?", (OUTSIDE, PORT)).expect("there is a route");
    let (len, from) = server.recv_from(&mut bytes).expect("the datagram comes");
    server.send_to(&bytes[..len], from).expect("there is a route");
    let (len, _) = client.recv_from(&mut bytes).expect("the answer comes");
    assert_eq!(&bytes[..len], b"are you there?");

    let serving = border.node.cli().serving_fwps();
    let received = MODULES.map(|name| {
        let of = serving.iter().filter(|fwp| fwp["module"] == name);
        of.map(|fwp| fwp["counters"]["received"].as_u64().expect("an FWP counts packets")).sum::<u64>()
    });
    assert_eq!(received, [2 * PINGS, 2 * PINGS, 2], "{serving:?}");
}

#[test]
fn another_branch_is_another_version_of_the_chain_and_shown_as_it_was_applied() {
    let bed = Bed::new(Device::Tap);
    let chain = |more: &str| {
        format!(
            "drain_timeout_ms = 0\nentry = {{ default = \"ping\", branch = [{{ match = {{ protocol = \"udp\" }}, to = \"echo\" }}{more}] }}\n\
             stage = [{{ name = \"echo\", module = \"udp-echo\", outputs = [\"egress\"] }}, {{ name = \"ping\", module = \"icmp-echo\" }}]\n"
        )
    };
    let modules = ["udp-echo", "icmp-echo"];
    bed.node.apply(manifest(&modules, &chain("")).text());
    bed.node.await_instance(TENANT, "graph");
    let client = &bed.clients[0];
    pings(&client.namespace, 3, &format!("-i 0.02 {NODE}")).assert_all(3);
    let described = bed.node.cli().run(&["describe", "chain", "graph", "--tenant", TENANT]);
    assert!(described.contains("protocol udp: to echo"), "{described}");
    assert!(described.contains("otherwise: to ping"), "{described}");
    let written = bed.node.cli().run(&["get", "chain", "graph", "--tenant", TENANT, "-o", "toml"]);
    assert!(written.contains("default = \"ping\""), "{written}");
    let without_first = ", { match = { source = \"10.77.0.11\" }, to = \"drop\" }";
    bed.node.apply(manifest(&modules, &chain(without_first)).text());
    until("end of the answers to a client that is dropped now", SOON, || {
        (ping(&client.namespace, &format!("-c 1 -W 1 {NODE}")).received == 0).then_some(())
    });
    pings(&bed.clients[1].namespace, 3, &format!("-i 0.02 {NODE}")).assert_all(3);

    let path = bed.node.path("manifest.toml");
    let shadowed = chain(", { match = { protocol = \"udp\", destination_ports = 7 }, to = \"drop\" }");
    std::fs::write(&path, manifest(&modules, &shadowed).text()).expect("the node's folder is writable");
    let error = errors(&bed.node.cli().try_apply(&path));
    assert!(error.contains("entry: match 2 (protocol udp, destination-ports 7) is never taken, as match 1"), "{error}");
}

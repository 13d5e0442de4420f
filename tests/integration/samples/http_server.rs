//! `http-server` with the kernel's TCP and with common HTTP clients.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6};
use pinion_tests::traffic::load::{ab, wrk};
use pinion_tests::traffic::web::{assert_no_connection_is_left, assert_slow_clients_are_closed, curl, filled, serve};
use pinion_tests::until::{SOON, until};

const CONFIG: &str = "page / hello\nfill /big 5242880\nfill /some 10000\n";
const BIG_BYTES: usize = 5 << 20;
const CONNECTIONS: usize = 200;

#[test]
fn the_files_of_a_folder_that_is_deployed_with_it_are_served() {
    let bed = Bed::new(Device::Tap);
    let site = bed.node.path("site");
    let big = filled(300_000);
    fs::create_dir_all(site.join("notes")).expect("the node's folder is writable");
    for (path, text) in [("index.html", "<h1>it works</h1>"), ("notes/index.html", "notes"), ("big.txt", &big)] {
        fs::write(site.join(path), text).expect("the node's folder is writable");
    }
    serve(&bed, "per-client", &format!("config = \"root /\", files = {site:?}"), "");
    let client = &bed.clients[0];
    let url = |path: &str| format!("http://{NODE}{path}");
    assert_eq!(curl(client, &[&url("/")]), "<h1>it works</h1>");
    assert_eq!(curl(client, &["--location", &url("/notes")]), "notes");
    assert!(curl(client, &[&url("/big.txt")]) == big);
    let status = |path: &str| curl(client, &["--output", "/dev/null", "--write-out", "%{http_code}", &url(path)]);
    assert_eq!((status("/none"), status("/big.txt")), ("404".into(), "200".into()));
}

/// Checks that at most a few of all segments were sent twice, by either side, according to this client's kernel.
fn assert_hardly_anything_was_sent_twice(client: &Client) {
    let counters = client.namespace.counters();
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    let (segments, by_client) = (count("TcpInSegs") + count("TcpOutSegs"), count("TcpRetransSegs"));
    let by_server = count("TcpExtTCPDSACKOldSent") + count("TcpExtTCPDSACKOfoSent");
    println!("of {segments} segments the client sent {by_client} again, and the server {by_server}");
    assert!(segments > 1_000 && (by_client + by_server) * 100 <= segments, "{counters:?}");
    assert_eq!(count("TcpInErrs") + count("TcpInCsumErrors"), 0, "{counters:?}");
}

#[test]
fn files_come_whole_over_both_versions_of_ip_by_one_connection_for_several() {
    let bed = Bed::new(Device::Tap);
    serve(&bed, "per-client", &format!("config = {CONFIG:?}"), "");
    let client = &bed.clients[0];
    for host in [NODE.to_owned(), format!("[{NODE_V6}]")] {
        assert_eq!(curl(client, &[&format!("http://{host}/")]), "hello\n");
        assert!(curl(client, &[&format!("http://{host}/big")]) == filled(BIG_BYTES), "over {host}");
        let url = format!("http://{host}/some");
        let report = curl(client, &["--write-out", "\n%{http_code} %{num_connects}\n", &url, &url, &url]);
        let codes: Vec<&str> = report.lines().filter(|line| line.len() == 5).collect();
        assert_eq!(codes, ["200 1", "200 0", "200 0"], "one connection for all");
        for (words, status) in [
            (vec!["--head"], "200"),
            (vec!["--request", "POST", "--data", "x"], "405"),
            (vec!["--path-as-is", "--request-target", "/../x"], "400"),
            (vec!["--request-target", "/none"], "404"),
            (vec!["--http1.0"], "200"),
        ] {
            let mut words = words;
            let url = format!("http://{host}/");
            words.extend(["--output", "/dev/null", "--write-out", "%{http_code}", &url]);
            assert_eq!(curl(client, &words), status, "{words:?}");
        }
        let long = format!("X: {}", "y".repeat(10_000));
        let url = format!("http://{host}/");
        let words = ["--output", "/dev/null", "--write-out", "%{http_code}", "--header", &long, &url];
        assert_eq!(curl(client, &words), "431");
    }
    // No function or program listens on that port.
    let mut command = client.namespace.command("curl");
    let refused = command.args(["--silent", "--max-time", "5", &format!("http://{NODE}:81/")]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "the connection is refused at once");
    assert_hardly_anything_was_sent_twice(client);
}

#[test]
fn curl_gets_parts_of_files_and_asks_for_changed_ones_only() {
    let bed = Bed::new(Device::Tap);
    serve(&bed, "per-client", &format!("config = {CONFIG:?}"), "");
    let client = &bed.clients[0];
    let url = |path: &str| format!("http://{NODE}{path}");
    let some = filled(10_000);
    assert_eq!(curl(client, &["--range", "100-299", &url("/some")]), some[100..300]);
    assert_eq!(curl(client, &["--range", "-64", &url("/some")]), some[10_000 - 64..]);
    let code = ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}"];
    let report = |words: &[&str]| curl(client, &[&code[..], words].concat());
    assert_eq!(report(&["--range", "100-", &url("/big")]), format!("206 {}", BIG_BYTES - 100));
    assert_eq!(report(&["--range", "20000-", &url("/some")]), "416 26");
    assert_eq!(report(&["--range", "0-1,4-5", &url("/some")]), "200 10000", "several ranges get the whole");
    // A download that was cut off goes on where it ended.
    let part = bed.node.path("part");
    fs::write(&part, &some[..6_000]).expect("the node's folder is writable");
    let name = part.to_str().expect("the folder's path is UTF-8");
    curl(client, &["--continue-at", "-", "--output", name, &url("/some")]);
    assert!(fs::read_to_string(&part).expect("it was written") == some);
    // With the tag of the last time nothing is sent.
    let tags = bed.node.path("tags");
    let name = tags.to_str().expect("the folder's path is UTF-8");
    assert_eq!(report(&["--etag-save", name, &url("/some")]), "200 10000");
    assert_eq!(report(&["--etag-compare", name, &url("/some")]), "304 0");
    assert_eq!(report(&["--etag-compare", name, &url("/")]), "200 6");
    assert_eq!(report(&["--header", "If-Match: \"x\"", &url("/some")]), "412 24");
    // There are no times of pages, so that a condition by date changes nothing.
    assert_eq!(report(&["--time-cond", "2030-01-01", &url("/some")]), "200 10000");
    let head = curl(client, &["--head", &url("/none")]);
    assert!(head.starts_with("HTTP/1.1 404 Not Found\r\nDate: ") && head.ends_with("\r\n\r\n"), "{head}");
    // A connection stays in use after requests with content.
    let post = ["--data", "x", "--header", "Transfer-Encoding: chunked"];
    let both = curl(
        client,
        &[&["--write-out", "%{http_code} %{num_connects}\n"], &post[..], &[&url("/"), &url("/")]].concat(),
    );
    let codes: Vec<&str> = both.lines().filter(|line| line.starts_with("405 ") && line.len() == 5).collect();
    assert_eq!(codes, ["405 1", "405 0"], "{both}");
}

#[test]
fn a_client_that_reads_too_slowly_is_reset_and_others_are_served() {
    /// Those of `slowhttptest`, which reads some bytes now and then.
    const SLOW: u32 = 60;
    let bed = Bed::new(Device::Tap);
    serve(&bed, "shared", &format!("config = {:?}", format!("connections 256\n{CONFIG}")), "memory_limit_kib = 32768");
    let [client, reading, quick] = &bed.clients[..] else { panic!("a bed has three clients") };
    let address: SocketAddr = format!("{NODE}:80").parse().unwrap();
    let mut slow = client.namespace.inside(|| TcpStream::connect(address).expect("the server listens"));
    slow.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3).as_slice()).unwrap();
    slow.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        let words = ["-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "512", "-k", "3"];
        scope.spawn(move || assert_slow_clients_are_closed(reading, SLOW, &words));
        // Nothing is read until the server gives up, after a minute, though the kernel has acknowledged what its buffer holds.
        until("end of the slow connection", 3 * SOON, || {
            assert_eq!(curl(quick, &[&format!("http://{NODE}/")]), "hello\n");
            slow.take_error().expect("the socket's state is known")
        });
    });
    let mut taken = Vec::new();
    let _ = slow.read_to_end(&mut taken);
    assert!(taken.len() < 3 * BIG_BYTES, "{} bytes", taken.len());
}

#[test]
fn each_of_many_clients_has_an_instance_of_its_own() {
    const CLIENTS: usize = 40;
    let bed = Bed::new(Device::Tap);
    serve(&bed, "per-client", &format!("config = {CONFIG:?}"), "");
    let client = &bed.clients[0];
    for number in 0..CLIENTS {
        let address = format!("10.77.0.{}", 100 + number);
        client.namespace.ip(&format!("address add {address}/24 dev eth0"));
        let some = curl(client, &["--interface", &address, &format!("http://{NODE}/some")]);
        assert!(some == filled(10_000), "for {address}");
    }
    let fwps = bed.node.cli().get("fwps");
    let served: BTreeSet<_> =
        fwps.iter().filter_map(|fwp| fwp["client"].as_str()).filter(|name| !name.is_empty()).collect();
    assert_eq!(served.len(), CLIENTS, "{served:?}");
}

#[test]
fn two_hundred_connections_at_once_share_an_instance_and_load_loses_no_request() {
    let bed = Bed::new(Device::Tap);
    serve(&bed, "shared", &format!("config = {:?}", format!("connections 256\n{CONFIG}")), "memory_limit_kib = 32768");
    let client = &bed.clients[0];
    let address: SocketAddr = format!("{NODE}:80").parse().unwrap();
    let expected = filled(10_000);
    let mut streams: Vec<TcpStream> = client.namespace.inside(|| {
        (0..CONNECTIONS)
            .map(|number| TcpStream::connect(address).unwrap_or_else(|error| panic!("{number}: {error}")))
            .collect()
    });
    for _ in 0..3 {
        for stream in &mut streams {
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.write_all(b"GET /some HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        }
        for stream in &mut streams {
            let mut answer = String::new();
            let mut part = [0; 4096];
            while answer.split_once("\r\n\r\n").is_none_or(|(_, body)| body.len() < expected.len()) {
                let count = stream.read(&mut part).unwrap();
                assert!(count > 0, "the connection goes on");
                answer.push_str(str::from_utf8(&part[..count]).unwrap());
            }
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body == expected);
        }
    }
    let serving = bed.node.cli().get("fwps").into_iter().filter(|fwp| fwp["chain"] == "web").count();
    println!("{CONNECTIONS} connections, {serving} instances with those in the cache");
    drop(streams);
    // First with connections kept, then with a new one for each request.
    for (requests, words) in [(5_000, &["-k", "-c", "20"][..]), (2_000, &["-c", "20"])] {
        let rate = ab(client, requests, words, &format!("http://{NODE}/"));
        println!("ab {words:?}: {rate} requests per second");
    }
    let url = format!("http://{NODE}/big");
    let words = ["--output", "/dev/null", "--write-out", "%{speed_download} %{size_download}", &url, &url];
    let report = curl(client, &words);
    println!("5 MiB: {report} (bytes per second, bytes)");
    assert!(report.ends_with(&BIG_BYTES.to_string()), "{report}");
    assert_hardly_anything_was_sent_twice(client);
    assert_no_connection_is_left(client);
}

#[test]
fn wrk_is_answered_over_all_its_connections_without_an_error() {
    let bed = Bed::new(Device::Tap);
    serve(
        &bed,
        "per-client",
        &format!("config = {:?}", format!("connections 64\n{CONFIG}")),
        "memory_limit_kib = 32768",
    );
    let client = &bed.clients[0];
    let url = |path: &str| format!("http://{NODE}{path}");
    for (path, body_bytes, connections) in [("/", 6, 20), ("/some", 10_000, 50)] {
        let answers = wrk(&bed, client, connections, &url(path), body_bytes);
        println!("wrk over {connections} connections for {path}: {answers} answers, each of them whole");
    }
    assert_eq!(curl(client, &[&url("/")]), "hello\n");
    assert_no_connection_is_left(client);
}

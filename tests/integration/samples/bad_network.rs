//! TCP between the kernel and functions over networks that lose, double, delay and reorder segments, or take no long ones.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use pinion_tests::network::bad_cable::{FarClient, both_addresses};
use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::network::weather::{Counts, TooLong, Weather};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::random::Random;
use pinion_tests::traffic::web::{assert_no_connection_is_left, curl, filled, serve};
use pinion_tests::until::{SOON, until};

/// The longest that any transfer may take. Only a failing test waits as long.
const PATIENCE: Duration = Duration::from_secs(300);
const SEED: u64 = 0x5eed;
/// memcached's port.
const CACHE_PORT: u16 = 11_211;

/// A network, what is sent through it, and how much of that may be sent in vain.
struct Row {
    name: &'static str,
    weather: Weather,
    bytes: usize,
    /// Most bytes of payloads that a sender sends for each hundred that it has to send.
    sent_percent_max: u64,
}

/// Each sender waits a second at least for some of the lost segments, so the worst networks get the shortest transfers.
const ROWS: [Row; 6] = [
    Row { name: "1 % lost", weather: Weather { lost: 1, ..FAIR }, bytes: 3 << 20, sent_percent_max: 150 },
    Row { name: "5 % lost", weather: Weather { lost: 5, ..FAIR }, bytes: 256 << 10, sent_percent_max: 200 },
    Row { name: "10 % overtaken", weather: Weather { overtaken: 10, ..FAIR }, bytes: 3 << 20, sent_percent_max: 150 },
    Row { name: "10 % doubled", weather: Weather { doubled: 10, ..FAIR }, bytes: 3 << 20, sent_percent_max: 120 },
    Row {
        name: "lost, overtaken, doubled and delayed",
        weather: Weather { lost: 3, doubled: 10, overtaken: 10, delayed: 10, mtu: None },
        bytes: 256 << 10,
        sent_percent_max: 250,
    },
    Row {
        name: "at most 1280 bytes",
        weather: Weather { mtu: Some((1280, TooLong::Reported)), ..FAIR },
        bytes: 3 << 20,
        sent_percent_max: 120,
    },
];
/// Of IPv4 alone.
const NARROWEST: Row = Row {
    name: "at most 576 bytes",
    weather: Weather { mtu: Some((576, TooLong::Reported)), ..FAIR },
    bytes: 1 << 20,
    sent_percent_max: 120,
};
const FAIR: Weather = Weather { lost: 0, doubled: 0, overtaken: 0, delayed: 0, mtu: None };

/// Runs `work` for each network at the same time, with a client at its far end. Returns the clients, whose kernels go on to close what is
/// not closed yet.
fn in_each_weather(bed: &Bed, rows: &[Row], work: impl Fn(&Row, &FarClient) + Sync) -> Vec<FarClient> {
    let clients: Vec<FarClient> = rows
        .iter()
        .enumerate()
        .map(|(number, row)| FarClient::new(bed, number, row.weather, SEED + number as u64))
        .collect();
    thread::scope(|scope| {
        for (row, far) in rows.iter().zip(&clients) {
            let work = &work;
            thread::Builder::new().name(row.name.into()).spawn_scoped(scope, move || work(row, far)).expect("a thread");
        }
    });
    clients
}

/// Checks that a sender of so many bytes has met this weather and has not sent much more.
fn assert_sent_sparingly(row: &Row, bytes: usize, counts: Counts) {
    let Row { name, weather, sent_percent_max, .. } = row;
    println!("{name}: for {bytes} bytes {counts:?}");
    for (chance, count) in [
        (weather.lost, counts.lost),
        (weather.doubled, counts.doubled),
        (weather.overtaken, counts.overtaken),
        (weather.delayed, counts.delayed),
        (u64::from(weather.mtu.is_some()), counts.too_long),
    ] {
        assert_eq!(chance > 0, count > 0, "{name}: {counts:?}");
    }
    assert!(counts.payload_bytes * 100 <= bytes as u64 * sent_percent_max, "{name}: {bytes} bytes, {counts:?}");
    if let Some((mtu, _)) = weather.mtu {
        assert_eq!(counts.longest, mtu, "as much is sent as the path takes");
    }
}

fn narrowest_too() -> Vec<Row> {
    ROWS.into_iter().chain([NARROWEST]).collect()
}

/// Returns the versions of IP that a network has.
fn hosts(row: &Row) -> Vec<String> {
    let has_v6 = row.weather.mtu.is_none_or(|(mtu, _)| mtu >= 1280);
    [NODE.to_owned(), format!("[{NODE_V6}]")].into_iter().take(if has_v6 { 2 } else { 1 }).collect()
}

#[test]
fn downloads_come_whole_through_any_network_and_each_leaves_its_place_to_the_next() {
    let bed = Bed::new(Device::Tap);
    let fills: String = [3 << 20, 1 << 20, 256 << 10].iter().map(|bytes| format!("fill /{bytes} {bytes}\n")).collect();
    serve(&bed, "per-client", &format!("config = {:?}", format!("connections 1\n{fills}page / hello\n")), "");
    in_each_weather(&bed, &narrowest_too(), |row, far| {
        let hosts = hosts(row);
        for host in &hosts {
            let url = format!("http://{host}/{}", row.bytes);
            let got = curl(&far.client, &["--max-time", &PATIENCE.as_secs().to_string(), &url]);
            assert!(got == filled(row.bytes), "{} from {host}: {} bytes", row.name, got.len());
        }
        assert_sent_sparingly(row, hosts.len() * row.bytes, far.cable.to_host());
        for host in &hosts {
            assert_eq!(curl(&far.client, &[&format!("http://{host}/")]), "hello\n", "{}", row.name);
        }
        assert_no_connection_is_left(&far.client);
    });
}

/// Applies a chain of one sample for connections to this port of the node's addresses.
fn apply(bed: &Bed, sample: &str, port: u16, policy: &str, stage: &str, more: &str) {
    let mut manifest = Manifest::of(TENANT)
        .module(sample, &build::sample(sample))
        .with(format_args!("[[chain]]\nname = \"chain\"\nstage = [{{ module = {sample:?}{stage} }}]\n{more}\n"));
    for (name, destination) in [("v4", NODE), ("v6", NODE_V6)] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"{policy}\"\nchain = \"chain\"\n\
             match = {{ destination = \"{destination}\", protocol = \"tcp\", destination_ports = \"{port}\" }}\n"
        ));
    }
    bed.node.apply(manifest.text());
    bed.node.await_instance(TENANT, "chain");
}

/// Connects to a server of the node from behind a bad network.
fn connect(far: &FarClient, server: SocketAddr) -> TcpStream {
    let stream = far.client.namespace.inside(|| TcpStream::connect(server)).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed + 1);
    (0..len).map(|_| random.number() as u8).collect()
}

/// Returns the servers that a network has a way to.
fn servers(row: &Row, port: u16) -> Vec<SocketAddr> {
    both_addresses(port).into_iter().take(hosts(row).len()).collect()
}

/// Sends a request with an answer of one line.
fn ask(stream: &mut BufReader<TcpStream>, request: &[u8]) -> String {
    stream.get_mut().write_all(request).expect("the server takes bytes in time");
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer in time");
    line.trim_end().to_owned()
}

/// Applies a chain in which one `memcached` serves all clients.
fn apply_cache(bed: &Bed) {
    let config = "memory = \"32m\"\nitem_size_max = \"4m\"";
    apply(bed, "memcached", CACHE_PORT, "shared", &format!(", config = {config:?}"), "memory_limit_kib = 65536");
}

fn assert_cache_has_no_connection(bed: &Bed) {
    let server = both_addresses(CACHE_PORT)[0];
    until("end of all connections but that of this question", SOON, || {
        let stream = bed.clients[0].namespace.inside(|| TcpStream::connect(server)).expect("the server listens");
        let mut stream = BufReader::new(stream);
        let mut line = ask(&mut stream, b"stats\r\n");
        while line != "END" {
            if line == "STAT curr_connections 1" {
                return Some(());
            }
            line = ask(&mut stream, b"");
        }
        None
    });
}

#[test]
fn uploads_come_whole_through_any_network_and_back_and_no_connection_is_left() {
    let bed = Bed::new(Device::Tap);
    apply_cache(&bed);
    let clients = in_each_weather(&bed, &narrowest_too(), |row, far| {
        let servers = servers(row, CACHE_PORT);
        let bytes = row.bytes.min(1 << 20);
        for server in &servers {
            let mut stream = BufReader::new(connect(far, *server));
            let value = bytes_of(bytes as u64, bytes);
            let key = row.name.replace([' ', '%', ','], "-");
            let set = [format!("set {key} 0 0 {bytes}\r\n").as_bytes(), &value, b"\r\n"].concat();
            assert_eq!(ask(&mut stream, &set), "STORED", "{} to {server}", row.name);
            assert_eq!(ask(&mut stream, format!("get {key}\r\n").as_bytes()), format!("VALUE {key} 0 {bytes}"));
            let mut got = vec![0; bytes];
            stream.read_exact(&mut got).expect("the value comes in time");
            assert!(got == value, "{} from {server}", row.name);
            assert_eq!(ask(&mut stream, b""), "");
            assert_eq!(ask(&mut stream, b""), "END");
        }
        assert_sent_sparingly(row, servers.len() * bytes, far.cable.from_host());
        assert_sent_sparingly(row, servers.len() * bytes, far.cable.to_host());
    });
    assert_cache_has_no_connection(&bed);
    drop(clients);
}

#[test]
fn bytes_go_both_ways_at_once_through_any_network_and_each_connection_makes_room_for_the_next() {
    const BYTES: usize = 128 << 10;
    let bed = Bed::new(Device::Tap);
    // It serves one connection after the other.
    apply(&bed, "tcp-echo", 7, "per-client", "", "");
    in_each_weather(&bed, &narrowest_too(), |row, far| {
        for server in servers(row, 7).into_iter().flat_map(|server| [server; 2]) {
            let stream = connect(far, server);
            let sent = bytes_of(7, BYTES);
            let mut received = Vec::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    (&stream).write_all(&sent).expect("the server takes bytes in time");
                    stream.shutdown(Shutdown::Write).expect("a connected socket can be shut down");
                });
                (&stream).read_to_end(&mut received).expect("the bytes come in time");
            });
            assert!(received == sent, "{} by {server}: {} bytes came back", row.name, received.len());
        }
    });
}

#[test]
fn handshakes_and_ends_that_lose_a_fifth_of_their_segments_are_completed_whoever_closes_first() {
    const CONNECTIONS: usize = 20;
    let bed = Bed::new(Device::Tap);
    apply_cache(&bed);
    let far = FarClient::new(&bed, 0, Weather { lost: 20, ..FAIR }, SEED);
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let far = &far;
            scope.spawn(move || {
                let mut stream = connect(far, both_addresses(CACHE_PORT)[number % 2]);
                let is_first = number % 4 < 2;
                let request: &[u8] = if is_first { b"get x\r\n" } else { b"get x\r\nquit\r\n" };
                stream.write_all(request).expect("the server takes bytes in time");
                if is_first {
                    stream.shutdown(Shutdown::Write).expect("a connected socket can be shut down");
                }
                let mut received = String::new();
                stream.read_to_string(&mut received).expect("the bytes come in time");
                assert_eq!(received, "END\r\n", "connection {number}");
            });
        }
    });
    let [from, to] = [far.cable.from_host(), far.cable.to_host()];
    println!("{from:?}, {to:?}");
    assert!(from.lost > 0 && to.lost > 0, "{from:?}, {to:?}");
    assert_cache_has_no_connection(&bed);
}

#[test]
fn a_narrow_path_of_which_no_router_tells_is_kept_to_if_the_client_knows_it() {
    const BYTES: usize = 1 << 20;
    let bed = Bed::new(Device::Tap);
    serve(&bed, "per-client", &format!("config = {:?}", format!("fill /some {BYTES}\n")), "");
    for (number, (mtu, host)) in [(576, NODE.to_owned()), (1280, format!("[{NODE_V6}]"))].into_iter().enumerate() {
        let weather = Weather { mtu: Some((mtu, TooLong::Swallowed)), ..FAIR };
        let far = FarClient::new(&bed, number, weather, SEED);
        far.client.namespace.ip(&format!("link set eth0 mtu {mtu}"));
        assert!(curl(&far.client, &[&format!("http://{host}/some")]) == filled(BYTES), "{mtu}");
        let counts = far.cable.to_host();
        assert_eq!((counts.longest, counts.too_long), (mtu, 0), "by the maximum segment size: {counts:?}");
    }
}

#[test]
fn no_segment_is_longer_than_the_client_has_said() {
    const MSS: usize = 600;
    let bed = Bed::new(Device::Tap);
    serve(&bed, "per-client", &format!("config = {:?}", "fill /some 1048576\n"), "");
    let far = FarClient::new(&bed, 0, FAIR, SEED);
    far.client.namespace.ip(&format!("route replace {NODE} dev eth0 advmss {MSS}"));
    assert!(curl(&far.client, &[&format!("http://{NODE}/some")]) == filled(1 << 20));
    assert_eq!(far.cable.to_host().longest, MSS + 40, "{:?}", far.cable.to_host());
}

#[test]
fn a_kernel_learns_from_the_functions_acknowledgements_which_segments_are_lost() {
    const BYTES: usize = 1 << 20;
    let bed = Bed::new(Device::Tap);
    apply_cache(&bed);
    let far = FarClient::new(&bed, 0, Weather { lost: 2, ..FAIR }, SEED);
    let mut stream = BufReader::new(connect(&far, both_addresses(CACHE_PORT)[0]));
    let set = [format!("set k 0 0 {BYTES}\r\n").as_bytes(), &bytes_of(1, BYTES), b"\r\n"].concat();
    assert_eq!(ask(&mut stream, &set), "STORED");
    let counters = far.client.namespace.counters();
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    let (lost, by_sack) = (far.cable.from_host().lost, count("TcpExtTCPSackRecovery"));
    println!("{lost} segments lost, {by_sack} recoveries by selective acknowledgements: {counters:?}");
    assert!(lost >= 5 && by_sack * 2 >= lost, "most are sent again without a timeout");
    assert!(count("TcpRetransSegs") <= 3 * lost, "few others are: {counters:?}");
}

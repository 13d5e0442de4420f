//! `http-server` with clients that few servers like: those that ask for much at once, and those that are slow.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, ScopedJoinHandle};

use pinion_tests::machine::process::run;
use pinion_tests::network::bed::{Bed, Client, Device, NODE};
use pinion_tests::traffic::web::{assert_no_connection_is_left, assert_slow_clients_are_closed, curl, filled, serve};
use pinion_tests::until::SOON;

const CONFIG: &str = "connections 256\npage / hello\nfill /some 10000\n";
const ROOM: &str = "memory_limit_kib = 32768";
/// Connections of each slow client.
const SLOW: u32 = 60;

fn bed() -> Bed {
    let bed = Bed::new(Device::Tap);
    serve(&bed, "shared", &format!("config = {CONFIG:?}"), ROOM);
    bed
}

fn connect(client: &Client) -> BufReader<TcpStream> {
    let address: SocketAddr = format!("{NODE}:80").parse().expect("an address");
    let stream = client.namespace.inside(|| TcpStream::connect(address)).expect("the server listens");
    stream.set_read_timeout(Some(SOON)).expect("a socket has timeouts");
    BufReader::new(stream)
}

/// Reads an answer: its status line and its body.
fn answer(stream: &mut BufReader<TcpStream>, has_body: bool) -> (String, String) {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("an answer in time");
        line.trim_end().to_owned()
    };
    let status = line();
    let fields: Vec<String> = std::iter::repeat_with(line).take_while(|line| !line.is_empty()).collect();
    let len = fields.iter().find_map(|field| field.strip_prefix("Content-Length: ")).expect("each answer has a length");
    let mut body = vec![0; if has_body { len.parse().expect("a number") } else { 0 }];
    stream.read_exact(&mut body).expect("as many bytes as announced");
    (status, String::from_utf8(body).expect("these bodies are text"))
}

#[test]
fn requests_that_are_sent_without_waiting_are_answered_in_their_order() {
    let bed = bed();
    let mut stream = connect(&bed.clients[0]);
    let (some, rounds) = (filled(10_000), 50);
    let three =
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nHEAD /some HTTP/1.1\r\nHost: x\r\n\r\nGET /some HTTP/1.1\r\nHost: x\r\n\r\n";
    let requests = three.repeat(rounds) + "FETCH / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut writer = stream.get_ref().try_clone().expect("a socket has several owners");
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(requests.as_bytes()).expect("the server takes bytes in time"));
        for round in 0..rounds {
            assert_eq!(answer(&mut stream, true), ("HTTP/1.1 200 OK".into(), "hello\n".into()), "{round}");
            assert_eq!(answer(&mut stream, false), ("HTTP/1.1 200 OK".into(), String::new()), "{round}");
            assert!(answer(&mut stream, true) == ("HTTP/1.1 200 OK".into(), some.clone()), "{round}");
        }
        assert_eq!(answer(&mut stream, true).0, "HTTP/1.1 501 Not Implemented");
        assert_eq!(
            stream.read(&mut [0; 1]).expect("the end comes in time"),
            0,
            "the server closes when it is asked to"
        );
    });
}

/// Returns the numbers in a line of `h2load`'s report.
fn numbers(report: &str, line: &str) -> Vec<u64> {
    let line = report.lines().find_map(|it| it.strip_prefix(line)).unwrap_or_else(|| panic!("no {line:?}: {report}"));
    line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn h2load_gets_the_right_status_for_each_request_over_http_1_with_and_without_pipelining() {
    let bed = bed();
    for (streams, path) in [("1", "/"), ("1", "/some"), ("8", "/"), ("8", "/some")] {
        let url = format!("http://{NODE}{path}");
        let words = ["--h1", "--requests", "2000", "--clients", "40", "--max-concurrent-streams", streams, &url];
        let report = run(bed.clients[0].namespace.command("h2load").args(words));
        // Total, started, done, succeeded, failed, errored, timed out; below, statuses by their first digit.
        assert_eq!(numbers(&report, "requests: "), [2_000, 2_000, 2_000, 2_000, 0, 0, 0], "{path}: {report}");
        // Those of 2xx, 3xx, 4xx, 5xx. Of pipelined answers it counts the status of some twice.
        let statuses = numbers(&report, "status codes: ");
        assert_eq!(statuses[1..], [0, 0, 0], "{path}: {report}");
        assert!(statuses[0] == 2_000 || streams != "1" && statuses[0] > 2_000, "{path}: {report}");
    }
    assert_no_connection_is_left(&bed.clients[0]);
}

/// Asks as a quick client, again and again, until these threads have ended.
#[track_caller]
fn serve_beside(quick: &Client, slow: &[ScopedJoinHandle<'_, ()>]) {
    let mut served = 0;
    while served == 0 || !slow.iter().all(ScopedJoinHandle::is_finished) {
        assert_eq!(curl(quick, &[&format!("http://{NODE}/")]), "hello\n");
        served += 1;
    }
    println!("{served} requests were answered beside slow connections");
}

#[test]
fn clients_that_send_heads_or_contents_by_bytes_are_closed_in_time_and_others_served_meanwhile() {
    let bed = bed();
    let [quick, heads, contents] = &bed.clients[..] else { panic!("a bed has three clients") };
    thread::scope(|scope| {
        let slow = [
            scope.spawn(|| assert_slow_clients_are_closed(heads, SLOW, &["-H"])),
            scope.spawn(|| assert_slow_clients_are_closed(contents, SLOW, &["-B", "-s", "8192"])),
        ];
        serve_beside(quick, &slow);
    });
    [heads, contents].into_iter().for_each(assert_no_connection_is_left);
}

#[test]
fn requests_for_hundreds_of_ranges_get_the_whole_file_or_are_refused_and_others_are_served_meanwhile() {
    let bed = bed();
    let [quick, ranges, more_ranges] = &bed.clients[..] else { panic!("a bed has three clients") };
    thread::scope(|scope| {
        let slow = [
            scope.spawn(|| assert_slow_clients_are_closed(ranges, SLOW, &["-R", "-b", "500"])),
            scope.spawn(|| assert_slow_clients_are_closed(more_ranges, SLOW, &["-R", "-b", "3000"])),
        ];
        serve_beside(quick, &slow);
    });
    // The longer one has no room in the 8 KiB of a request's head.
    for (count, answer) in [(500, "200 10000"), (3000, "431 ")] {
        let range = (0..count).fold("0-".to_owned(), |ranges, more| format!("{ranges},5-{}", 5 + more));
        let words = ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}"];
        let url = format!("http://{NODE}/some");
        let report = curl(quick, &[&words[..], &["--range", &range, &url]].concat());
        assert!(report.starts_with(answer), "{count} ranges: {report}");
    }
}

#[test]
fn a_client_that_opens_connections_and_says_nothing_is_closed_after_the_idle_time() {
    let bed = Bed::new(Device::Tap);
    serve(&bed, "shared", &format!("config = {:?}", format!("idle_s 1\n{CONFIG}")), ROOM);
    let mut silent: Vec<_> = (0..SLOW).map(|_| connect(&bed.clients[0])).collect();
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 1]).expect("the end comes in time"), 0);
    }
    assert_eq!(curl(&bed.clients[1], &[&format!("http://{NODE}/")]), "hello\n");
}

/// A client that has ten answers one after the other from a fixed port, each by a connection that the server closes.
const SAME_PORT: &str = "
import errno, socket, sys, time

def connected():
    # The port is not free until the server has acknowledged the FIN of the connection before.
    limit = time.monotonic() + 60
    while True:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.settimeout(60)
        client.bind(('', 40000))
        try:
            client.connect((sys.argv[1], 80))
            return client
        except OSError as error:
            client.close()
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() > limit:
                raise
            time.sleep(0.01)

for _ in range(10):
    client = connected()
    client.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')
    answer = b''
    while part := client.recv(4096):
        answer += part
    print(answer.split(b'\\r\\n\\r\\n')[1].decode(), end='')
    client.close()
";

#[test]
fn a_client_uses_its_port_again_at_once_after_the_server_has_closed() {
    let bed = bed();
    let said = run(bed.clients[0].namespace.command("python3").args(["-c", SAME_PORT, NODE]));
    assert_eq!(said, "hello\n".repeat(10));
}

//! Functions that are programs with blocking reads and writes, as clients with another stack see them.
#![cfg(feature = "net")]

mod segments;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use pinion_sdk::net::testing::play;
use pinion_sdk::net::{Net, Program, Settings};
use pinion_sdk::{InitError, clock};
use segments::{ACK, Fields, IDLE_NS, RST, SYN, answers, at_v4, frame, pattern, read, segment, v4};

/// Answers each line with its length, and ends when a connection ends without a line.
struct Lengths;

impl Program for Lengths {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![9], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        loop {
            let (stream, _) = net.accept()?;
            let mut reader = BufReader::new(stream);
            let mut lines = 0;
            let mut line = String::new();
            while reader.read_line(&mut line)? > 0 {
                let answer = format!("{}\n", line.trim_end().len());
                reader.get_mut().write_all(answer.as_bytes())?;
                line.clear();
                lines += 1;
            }
            if lines == 0 {
                reader.get_mut().write_all(&pattern(200_000))?;
                return Ok(());
            }
        }
    }
}

#[test]
fn a_program_serves_connections_in_turn_and_ends_after_its_data_arrived() {
    let (mut clients, mut heard, mut last, mut end) = (Vec::new(), [Vec::new(), Vec::new()], None, Vec::new());
    let ended = play::<Lengths>(b"", |network| {
        if clients.is_empty() {
            clients = (1..=2).map(|host| network.connect(v4(host), at_v4(9))).collect();
            for client in &clients {
                network.send(*client, b"one\nseven..\n");
                network.close(*client);
            }
        }
        for (heard, client) in heard.iter_mut().zip(&clients) {
            heard.extend(network.received(*client));
        }
        if last.is_none() && clients.iter().all(|client| network.is_ended(*client)) {
            let silent = network.connect(v4(3), at_v4(9));
            network.settle();
            network.close(silent);
            last = Some(silent);
        }
        end.extend(last.map(|last| network.received(last)).unwrap_or_default());
        false
    });
    ended.unwrap().unwrap();
    assert_eq!(heard, [b"3\n7\n", b"3\n7\n"]);
    assert!(end.len() > 100_000, "the program ended when {} bytes were there", end.len());
}

/// Waits one second for a byte, and records how long that took.
struct Impatient;

impl Program for Impatient {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![9], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        let (mut stream, peer) = net.accept()?;
        assert_eq!((peer.ip(), stream.local_addr()), (v4(1), at_v4(9)));
        stream.set_read_timeout(Some(Duration::from_secs(1)));
        let begun_ns = clock::now_ns();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        let waited_ns = clock::now_ns() - begun_ns;
        assert!((1_000_000_000..1_100_000_000).contains(&waited_ns), "{waited_ns} ns");
        Ok(())
    }
}

#[test]
fn a_programs_read_times_out() {
    let mut client = None;
    let ended = play::<Impatient>(b"", |network| {
        client.get_or_insert_with(|| network.connect(v4(1), at_v4(9)));
        false
    });
    ended.unwrap().unwrap();
}

/// Sends without end to each client, and records the error that ended it.
struct Tireless(Vec<ErrorKind>);

impl Program for Tireless {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        let (idle_timeout_ns, send_timeout_ns) = (100 * IDLE_NS, Some(IDLE_NS));
        Ok((Self(Vec::new()), Settings { tcp_ports: vec![9], idle_timeout_ns, send_timeout_ns, ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        while self.0.len() < 2 {
            let (mut stream, _) = net.accept()?;
            let error = stream.write_all(&pattern(1 << 20)).unwrap_err();
            self.0.push(error.kind());
        }
        assert_eq!(self.0, [ErrorKind::TimedOut; 2]);
        Ok(())
    }
}

#[test]
fn a_programs_write_times_out_and_the_next_peer_is_served() {
    let mut clients = None;
    let mut heard = 0;
    let ended = play::<Tireless>(b"", |network| {
        let clients =
            clients.get_or_insert_with(|| [1, 2].map(|host| network.connect_with_window(v4(host), at_v4(9), 5_000)));
        if network.is_closed(clients[0]) && heard < 10_000 {
            heard += network.received(clients[1]).len();
        }
        false
    });
    ended.unwrap().unwrap();
    assert!(heard >= 10_000, "the second got {heard} bytes while it took them");
}

/// Reads from the first connection while there is data, and accepts no other meanwhile.
struct Absorbed;

impl Program for Absorbed {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![9], connections_max: 3, ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        loop {
            let (mut stream, _) = net.accept()?;
            while stream.read(&mut [0; 100])? > 0 {}
        }
    }
}

#[test]
fn peers_that_reset_before_accept_free_their_slot_and_port() {
    let mut rounds = 0;
    let first = SocketAddr::from((v4(1), 4_000));
    let waiting = SocketAddr::from((v4(2), 4_000));
    let ended = play::<Absorbed>(b"", |network| {
        if rounds == 0 {
            let syn_ack = read(&answers(network, &segment(first, at_v4(9), SYN, 0, b""))[0]);
            let fields = Fields {
                flags: ACK,
                seq: 1,
                ack: syn_ack.seq.wrapping_add(1),
                window: 9,
                options: vec![],
                payload: vec![],
            };
            assert!(answers(network, &frame(first, at_v4(9), &fields)).is_empty());
        }
        rounds += 1;
        let syn_ack = read(&answers(network, &segment(waiting, at_v4(9), SYN, 100 * rounds, b""))[0]);
        assert_eq!(syn_ack.flags, SYN | ACK, "in round {rounds}");
        let (seq, ack) = (100 * rounds + 1, syn_ack.seq.wrapping_add(1));
        for (flags, payload) in [(ACK, vec![]), (ACK, b"data".to_vec())] {
            answers(
                network,
                &frame(waiting, at_v4(9), &Fields { flags, seq, ack, window: 9, options: vec![], payload }),
            );
        }
        assert!(answers(network, &segment(waiting, at_v4(9), RST, seq + 4, b"")).is_empty());
        rounds == 20
    });
    assert!(ended.unwrap().is_err());
}

/// Gives up on a first peer after a second, sleeps for one, accepts on the second of two ports, and aborts that connection.
struct Timed;

impl Program for Timed {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![9, 10], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        let second = Duration::from_secs(1);
        assert_eq!(net.accept_timeout(second).unwrap_err().kind(), ErrorKind::TimedOut);
        let slept_ns = clock::now_ns() + 1_000_000_000;
        net.sleep(second)?;
        assert!(clock::now_ns() >= slept_ns);
        assert_eq!(net.accept_on_timeout(10, second).unwrap_err().kind(), ErrorKind::TimedOut);
        let (stream, _) = net.accept_timeout(second)?;
        assert_eq!(stream.local_addr(), at_v4(9));
        stream.abort();
        net.sleep(second)
    }
}

#[test]
fn a_program_accepts_in_limited_time_sleeps_while_its_peers_are_served_and_aborts() {
    let (mut client, mut begun, mut was_connected) = (None, None, false);
    let ended = play::<Timed>(b"", |network| {
        let begun_ns = *begun.get_or_insert_with(clock::now_ns);
        // While the program sleeps.
        if client.is_none() && clock::now_ns() - begun_ns >= 1_000_000_000 {
            client = Some(network.connect(v4(1), at_v4(9)));
            network.settle();
            was_connected = network.is_connected(client.unwrap());
        }
        was_connected && network.is_closed(client.unwrap())
    });
    assert!(ended.unwrap().is_err(), "the client's connection was reset, which ended the test");
    assert!(was_connected);
}

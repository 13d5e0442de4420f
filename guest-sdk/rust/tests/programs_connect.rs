//! Programs that connect, and that use UDP, in blocking style.
#![cfg(feature = "net")]

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use pinion_sdk::net::testing::{Network, Towards, play};
use pinion_sdk::net::{Hosted, Net, Program, Settings};
use pinion_sdk::outbound::{End, Refusal};
use pinion_sdk::{InitError, clock};

const SERVER: &str = "192.0.2.5:80";
const CLIENT: &str = "10.0.0.1:5000";
const SECOND_NS: u64 = 1_000_000_000;

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(text: impl Into<String>) {
    NOTES.with_borrow_mut(|notes| notes.push(text.into()));
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// What a program does in a test.
type Body = fn(&Net<'_>) -> io::Result<()>;

/// A program whose body is a test's, told apart by `N`. It listens on the TCP ports 1 and 2 and on the UDP ports 3 and 4.
struct Does<const N: usize>;

trait Bodies {
    const BODY: Body;
}

impl<const N: usize> Program for Does<N>
where
    Self: Bodies,
{
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![1, 2], udp_ports: vec![3, 4], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
        Self::BODY(net)
    }
}

/// Runs a program until it ends or `script` says so. Returns what it has noted.
fn notes<const N: usize>(mut script: impl FnMut(&mut Network<Hosted<Does<N>>>) -> bool) -> Vec<String>
where
    Does<N>: Bodies,
{
    let mut has_begun = false;
    let ended = play::<Does<N>>(b"", |network| {
        if !has_begun {
            has_begun = true;
            // The first packet, whose way all flows go by.
            network.ask(at(CLIENT), at("10.0.0.2:9"), b"");
        }
        script(network)
    });
    if let Err(error) = ended.unwrap() {
        note(format!("ended: {error}"));
    }
    NOTES.take()
}

impl Bodies for Does<1> {
    const BODY: Body = |net| {
        let mut stream = net.connect(at(SERVER))?;
        note(format!("{} to {}", stream.local_addr().ip(), stream.peer_addr()));
        stream.write_all(b"hello")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        note(text);
        Ok(())
    };
}

#[test]
fn a_program_connects_writes_and_reads_to_the_end() {
    let mut server = None;
    let heard = notes::<1>(|network| {
        let server = *server.get_or_insert_with(|| network.listen(at(SERVER)));
        if network.received(server) == b"hello" {
            network.send(server, b"welcome");
            network.close(server);
        }
        false
    });
    assert_eq!(heard, ["198.51.100.1 to 192.0.2.5:80", "welcome"]);
}

impl Bodies for Does<2> {
    const BODY: Body = |net| {
        for to in ["192.0.2.5:81", SERVER, "192.0.2.5:82"] {
            let error = net.connect(at(to)).unwrap_err();
            note(format!("{:?}: {error}", error.kind()));
        }
        let begun_ns = clock::now_ns();
        let error = net.connect_timeout(at("192.0.2.5:82"), Duration::from_secs(2)).unwrap_err();
        note(format!("{:?} after {} s", error.kind(), (clock::now_ns() - begun_ns) / SECOND_NS));
        Ok(())
    };
}

#[test]
fn a_program_learns_by_the_kind_of_the_error_why_it_cannot_connect() {
    let heard = notes::<2>(|network| {
        network.node.refuse(|_, to| (to.port() == 81).then_some(Refusal::NotGranted));
        // No answer of port 82 arrives.
        network.impair(|towards, frames| {
            let is_lost = |frame: &Vec<u8>| towards == Towards::Clients && frame[36..38] == [0, 82];
            frames.into_iter().filter(|frame| !is_lost(frame)).collect()
        });
        false
    });
    assert_eq!(
        heard,
        [
            "PermissionDenied: the node has refused the flow: NotGranted",
            "ConnectionRefused: the peer has no socket at this port",
            "TimedOut: there was no answer in time",
            "TimedOut after 2 s",
        ]
    );
}

impl Bodies for Does<3> {
    const BODY: Body = |net| {
        let (stream, _) = net.accept_on(2)?;
        note(format!("port {}", stream.local_addr().port()));
        let (stream, _) = net.accept()?;
        note(format!("port {}", stream.local_addr().port()));
        Ok(())
    };
}

#[test]
fn a_program_accepts_on_one_port_while_others_wait() {
    let mut clients = Vec::new();
    let heard = notes::<3>(|network| {
        if clients.is_empty() {
            clients.push(network.connect(at(CLIENT).ip(), at("10.0.0.2:1")));
            network.settle();
            clients.push(network.connect(at(CLIENT).ip(), at("10.0.0.2:2")));
        }
        false
    });
    assert_eq!(heard, ["port 2", "port 1"]);
}

impl Bodies for Does<4> {
    const BODY: Body = |net| {
        assert_eq!(net.udp_socket(5).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        let (three, mut four) = (net.udp_socket(3)?, net.udp_socket(4)?);
        let mut text = [0; 5];
        let (count, peer) = three.recv_from(&mut text)?;
        note(format!("{} from {}", String::from_utf8_lossy(&text[..count]), peer.address()));
        three.send_to(b"short", &peer)?;
        assert_eq!(three.send_to(&[0; 2000], &peer).unwrap_err().kind(), ErrorKind::InvalidInput);
        four.set_read_timeout(Some(Duration::from_secs(1)));
        note(format!("{:?}", four.recv_from(&mut text).unwrap_err().kind()));
        Ok(())
    };
}

#[test]
fn a_programs_udp_ports_receive_apart_and_time_out() {
    let mut has_asked = false;
    let heard = notes::<4>(|network| {
        if !has_asked {
            has_asked = true;
            network.ask(at(CLIENT), at("10.0.0.2:3"), b"datagram");
        }
        false
    });
    assert_eq!(heard, ["datag from 10.0.0.1:5000", "TimedOut"]);
}

impl Bodies for Does<5> {
    const BODY: Body = |net| {
        let mut flow = net.udp_flow(at(SERVER))?;
        flow.set_read_timeout(Some(Duration::from_secs(1)));
        let mut text = [0; 100];
        for question in ["one", "two", "silence"] {
            flow.send(question.as_bytes())?;
            match flow.recv(&mut text) {
                Ok(count) => note(String::from_utf8_lossy(&text[..count])),
                Err(error) => note(format!("{:?}", error.kind())),
            }
        }
        flow.send(b"end")?;
        note(format!("{:?}", flow.recv(&mut text).unwrap_err().kind()));
        note(format!("{:?}", flow.send(b"more").unwrap_err().kind()));
        drop(flow);
        note(format!("{:?}", net.udp_flow(at("192.0.2.5:81")).unwrap_err().kind()));
        net.udp_flow(at(SERVER))?.send(b"again")
    };
}

#[test]
fn a_program_asks_by_a_udp_flow_and_learns_of_its_end() {
    let mut has_server = false;
    let heard = notes::<5>(|network| {
        if !has_server {
            has_server = true;
            network.node.refuse(|_, to| (to.port() == 81).then_some(Refusal::NoRoute));
            network.serve_udp(at(SERVER), |_, question| {
                note(format!("asked {}", String::from_utf8_lossy(question)));
                let answer = question.to_ascii_uppercase();
                if question == b"one" || question == b"two" { vec![answer] } else { Vec::new() }
            });
        }
        let is_at_end = NOTES.with_borrow(|notes| notes.last().is_some_and(|last| last == "asked end"));
        if is_at_end && let [flow] = network.node.open()[..] {
            network.end_flow(flow.number, End::NotGranted);
        }
        false
    });
    assert_eq!(
        heard,
        [
            "asked one",
            "ONE",
            "asked two",
            "TWO",
            "asked silence",
            "TimedOut",
            "asked end",
            "ConnectionAborted",
            "ConnectionAborted",
            "HostUnreachable",
            "asked again"
        ]
    );
}

impl Bodies for Does<6> {
    const BODY: Body = |net| {
        let begun_ns = clock::now_ns();
        let error = net.connect_timeout(at(SERVER), Duration::from_secs(1)).unwrap_err();
        note(format!("{:?} after {} s", error.kind(), (clock::now_ns() - begun_ns) / SECOND_NS));
        net.connect(at(SERVER))?;
        note("connected");
        Ok(())
    };
}

#[test]
fn a_program_that_connects_before_its_first_packet_waits_for_that() {
    let mut server = None;
    let ended = play::<Does<6>>(b"", |network| {
        server.get_or_insert_with(|| network.listen(at(SERVER)));
        if NOTES.with_borrow(|notes| notes.len() == 1) {
            network.ask(at(CLIENT), at("10.0.0.2:9"), b"");
        }
        false
    });
    ended.unwrap().unwrap();
    assert_eq!(NOTES.take(), ["TimedOut after 1 s", "connected"]);
}

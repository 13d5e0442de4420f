//! How programs end, and calls of theirs that have no time to wait.
#![cfg(feature = "net")]

mod segments;

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Duration;

use pinion_sdk::net::testing::{Towards, play};
use pinion_sdk::net::{Net, Program, Settings};
use pinion_sdk::{InitError, clock};
use segments::{RST, at_v4, read, v4};

const SECOND_NS: u64 = 1_000_000_000;

fn settings() -> Settings {
    Settings { tcp_ports: vec![9], udp_ports: vec![9], ..Settings::default() }
}

/// Aborts its first connection, and returns.
struct Rude;

impl Program for Rude {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, settings()))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        net.accept()?.0.abort();
        Ok(())
    }
}

#[test]
fn the_peer_of_a_connection_that_is_aborted_last_is_told() {
    let (mut client, resets) = (None, Rc::new(Cell::new(0)));
    let seen = Rc::clone(&resets);
    let ended = play::<Rude>(b"", |network| {
        client.get_or_insert_with(|| {
            let seen = Rc::clone(&seen);
            network.impair(move |towards, frames| {
                let is_reset = |frame: &&Vec<u8>| towards == Towards::Clients && read(frame).flags & RST != 0;
                seen.set(seen.get() + frames.iter().filter(is_reset).count());
                frames
            });
            network.connect(v4(1), at_v4(9))
        });
        false
    });
    ended.unwrap().unwrap();
    assert_eq!(resets.get(), 1);
}

/// Answers a datagram, and returns.
struct Brief;

impl Program for Brief {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, settings()))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        let (len, peer) = net.udp_socket(9)?.recv_from(&mut [0; 100])?;
        net.send_to(&[b'!'; 5][..len], &peer)
    }
}

#[test]
fn a_program_whose_last_word_is_a_datagram_ends_once_that_was_sent() {
    let (asked_ns, heard) = (Rc::new(Cell::new(None)), Rc::new(RefCell::new(Vec::new())));
    let (asked, said) = (Rc::clone(&asked_ns), Rc::clone(&heard));
    let ended = play::<Brief>(b"", |network| {
        if asked.get().is_none() {
            asked.set(Some(clock::now_ns()));
            let said = Rc::clone(&said);
            network.impair(move |towards, frames| {
                if towards == Towards::Clients {
                    said.borrow_mut().extend(frames.iter().map(|frame| frame[frame.len() - 3..].to_vec()));
                }
                frames
            });
            let answers = network.ask((v4(1), 5000).into(), at_v4(9), b"why");
            assert_eq!(answers, Vec::<Vec<u8>>::new(), "the program has not seen it yet");
        }
        false
    });
    ended.unwrap().unwrap();
    assert_eq!(*heard.borrow(), [b"!!!"]);
    // The network takes steps of a second.
    assert!(clock::now_ns() - asked_ns.get().unwrap() < 3 * SECOND_NS, "there was nothing to wait for");
}

/// Looks again and again whether a client is there and has sent something, and never waits.
struct Restless;

impl Program for Restless {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, settings()))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        let begun_ns = clock::now_ns();
        let mut stream = loop {
            match net.accept_timeout(Duration::ZERO) {
                Err(error) if error.kind() == ErrorKind::TimedOut => net.sleep(Duration::ZERO)?,
                accepted => break accepted?.0,
            }
        };
        stream.set_read_timeout(Some(Duration::ZERO));
        let mut text = [0; 4];
        let len = loop {
            match stream.read(&mut text) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                read => break read?,
            }
        };
        assert!(clock::now_ns() - begun_ns < SECOND_NS);
        stream.write_all(&text[..len])
    }
}

#[test]
fn a_program_that_never_waits_is_served_all_the_same() {
    let (mut client, mut has_asked, mut heard, mut turns) = (None, false, Vec::new(), 0);
    let ended = play::<Restless>(b"", |network| {
        turns += 1;
        assert!(turns < 1_000, "nothing comes to the program");
        let client = *client.get_or_insert_with(|| network.connect(v4(1), at_v4(9)));
        if network.is_connected(client) && !has_asked {
            network.send(client, b"ping");
            has_asked = true;
        }
        heard.extend(network.received(client));
        heard == b"ping"
    });
    assert!(ended.unwrap().is_ok() || heard == b"ping");
    assert_eq!(heard, b"ping");
}

/// Waits for peers at a port of which it has said nothing.
struct Mistaken;

impl Program for Mistaken {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, settings()))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        assert_eq!(net.accept_on(10).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        let refused = net.accept_on_timeout(10, Duration::from_secs(1)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable);
        Ok(())
    }
}

#[test]
fn nobody_is_waited_for_at_a_port_that_is_not_listened_to() {
    play::<Mistaken>(b"", |_| false).unwrap().unwrap();
}

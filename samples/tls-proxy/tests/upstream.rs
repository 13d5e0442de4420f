//! Plain text that is passed on to another server, by TCP or by TLS.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind};
use pinion_sdk::net::testing::Client;
use rustls::ServerConnection;

const UPSTREAM: &str = "192.0.2.5:8080";

fn listen(bed: &mut Bed) -> Client {
    bed.0.listen(UPSTREAM.parse().unwrap())
}

/// The configuration of a proxy whose upstream is spoken to by TLS as `name`.
fn by_tls(authority: &Authority, roots: &Authority, name: &str) -> String {
    let roots = roots.files.path().join("roots.pem");
    let certificate = authority.grant("a.example", Kind::P256);
    format!("{certificate}[upstream]\naddress = \"{UPSTREAM}\"\ntls = {{ name = \"{name}\", roots = {roots:?} }}\n")
}

fn plain(authority: &Authority) -> String {
    format!("{}[upstream]\naddress = \"{UPSTREAM}\"\n", authority.grant("a.example", Kind::P256))
}

#[test]
fn plain_text_goes_to_the_upstream_and_back_until_both_have_ended() {
    let authority = Authority::new();
    let mut bed = Bed::new(&plain(&authority));
    let server = listen(&mut bed);
    let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
    assert_eq!(bed.ask(&mut client, FRONT).unwrap(), "");
    assert_eq!(bed.0.received(server), FRONT.as_bytes());
    bed.0.send(server, b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(bed.ask(&mut client, "").unwrap(), "HTTP/1.1 204 No Content\r\n\r\n");
    bed.0.close(server);
    bed.pump(&mut client).unwrap();
    assert!(client.tls.process_new_packets().unwrap().peer_has_closed());
    assert_eq!(bed.ask(&mut client, "more").unwrap(), "");
    assert_eq!(bed.0.received(server), b"more", "one direction may end before the other");
    client.tls.send_close_notify();
    bed.pump(&mut client).unwrap();
    assert!(bed.0.is_closed(server) && bed.0.is_ended(client.socket));
}

#[test]
fn a_megabyte_each_way_arrives_in_order_and_only_some_of_it_waits_in_the_proxy() {
    let authority = Authority::new();
    let mut bed = Bed::new(&plain(&authority));
    let server = listen(&mut bed);
    let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
    bed.pump(&mut client).unwrap();
    let text: Vec<u8> = (0..900_000_u32).map(|at| (at / 7) as u8).collect();
    bed.0.send(server, &text);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for part in text.chunks(30_000) {
        client.tls.writer().write_all(part).unwrap();
        bed.pump(&mut client).unwrap();
        up.extend(bed.0.received(server));
        down.append(&mut client.received);
    }
    bed.pump(&mut client).unwrap();
    up.extend(bed.0.received(server));
    down.append(&mut client.received);
    assert!(up == text && down == text, "{} and {} of {} bytes", up.len(), down.len(), text.len());
}

#[test]
fn a_client_without_upstream_is_reset_and_the_log_says_why() {
    let authority = Authority::new();
    let mut bed = Bed::new(&plain(&authority));
    let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
    bed.pump(&mut client).unwrap();
    bed.0.let_pass_ns(1_000_000_000);
    assert!(bed.0.is_closed(client.socket));
    let log = pinion_sdk::testing::take_log();
    assert!(log[0].1.starts_with("the upstream cannot be reached: "), "{log:?}");
}

#[test]
fn each_side_is_reset_with_the_other() {
    let authority = Authority::new();
    for is_client in [true, false] {
        let mut bed = Bed::new(&plain(&authority));
        let server = listen(&mut bed);
        let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
        bed.ask(&mut client, FRONT).unwrap();
        let (reset, other) = if is_client { (client.socket, server) } else { (server, client.socket) };
        bed.0.abort(reset);
        bed.0.settle();
        assert!(bed.0.is_closed(other), "the client was reset: {is_client}");
    }
}

#[test]
fn a_pair_without_traffic_is_reset() {
    let authority = Authority::new();
    let mut bed = Bed::new(&plain(&authority));
    let server = listen(&mut bed);
    let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
    bed.ask(&mut client, FRONT).unwrap();
    bed.0.let_pass_ns(14_000_000_000);
    assert!(bed.0.is_connected(server) && bed.0.is_connected(client.socket));
    bed.0.let_pass_ns(2_000_000_000);
    assert!(bed.0.is_closed(server) && bed.0.is_closed(client.socket));
}

/// Answers one request as an upstream with TLS; returns what was asked, or nothing if the handshake fails.
fn answer(bed: &mut Bed, client: &mut common::TlsClient, server: Client, tls: &mut ServerConnection) -> String {
    let mut asked = Vec::new();
    for _ in 0..10 {
        let _ = bed.pump(client);
        let received = bed.0.received(server);
        let mut rest = &received[..];
        while !rest.is_empty() {
            tls.read_tls(&mut rest).unwrap();
            let is_refused = tls.process_new_packets().is_err();
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = tls.reader().read(&mut part) {
                asked.extend_from_slice(&part[..count]);
                tls.writer().write_all(b"here").unwrap();
            }
            if is_refused {
                return String::new();
            }
        }
        let mut sent = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut sent).unwrap();
        }
        if !bed.0.is_closed(server) {
            bed.0.send(server, &sent);
        }
    }
    String::from_utf8(asked).unwrap()
}

#[test]
fn an_upstream_is_spoken_to_by_tls_if_its_certificate_is_valid_for_its_name_and_not_otherwise() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for (roots, name, is_served) in
        [(&authority, "b.example", true), (&authority, "c.example", false), (&stranger, "b.example", false)]
    {
        let mut bed = Bed::new(&by_tls(&authority, roots, name));
        let server = listen(&mut bed);
        let mut tls = ServerConnection::new(authority.server("b.example")).unwrap();
        let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
        client.tls.writer().write_all(FRONT.as_bytes()).unwrap();
        let asked = answer(&mut bed, &mut client, server, &mut tls);
        let log = pinion_sdk::testing::take_log();
        if is_served {
            assert_eq!(asked, FRONT, "{log:?}");
            assert_eq!(client.received, b"here");
        } else {
            assert_eq!(asked, "", "nothing is said to a server that is not the right one");
            assert!(log[0].1.starts_with("no handshake with the upstream: invalid peer certificate"), "{log:?}");
            assert!(bed.0.is_closed(client.socket));
        }
    }
}

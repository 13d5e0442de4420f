//! Plain text that is passed on to the chain's next stage.

mod common;

use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind};
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::Network;
use pinion_sdk::testing::take_log;
use tls_proxy::TlsProxy;

/// The next stage, at the address that clients connect to.
const NEXT_STAGE: &str = "10.0.0.2:80";

fn config(authority: &Authority) -> String {
    format!("{}[upstream]\nnext_stage_port = 80\n", authority.grant("a.example", Kind::P256))
}

#[test]
fn plain_text_goes_to_the_next_stage_and_back_until_both_have_ended() {
    let authority = Authority::new();
    let mut bed = Bed::new(&config(&authority));
    let server = bed.0.listen_at_next_stage(NEXT_STAGE.parse().unwrap());
    let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
    assert_eq!(bed.ask(&mut client, FRONT).unwrap(), "");
    assert_eq!(bed.0.received(server), FRONT.as_bytes());
    bed.0.send(server, b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(bed.ask(&mut client, "").unwrap(), "HTTP/1.1 204 No Content\r\n\r\n");
    bed.0.close(server);
    bed.pump(&mut client).unwrap();
    client.tls.send_close_notify();
    bed.pump(&mut client).unwrap();
    assert!(bed.0.is_closed(server) && bed.0.is_ended(client.socket));
}

#[test]
fn each_side_is_reset_with_the_other() {
    let authority = Authority::new();
    for is_client in [true, false] {
        let mut bed = Bed::new(&config(&authority));
        let server = bed.0.listen_at_next_stage(NEXT_STAGE.parse().unwrap());
        let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
        bed.ask(&mut client, FRONT).unwrap();
        let (reset, other) = if is_client { (client.socket, server) } else { (server, client.socket) };
        bed.0.abort(reset);
        bed.0.settle();
        assert!(bed.0.is_closed(other), "the client was reset: {is_client}");
    }
}

#[test]
fn a_client_is_reset_if_the_next_stage_refuses_or_could_not_answer_and_the_log_says_why() {
    let authority = Authority::new();
    for (has_next_stage, why) in
        [(true, "the peer has no socket at this port"), (false, "the next stage could not answer")]
    {
        let mut bed = Bed::new(&config(&authority));
        if has_next_stage {
            bed.0.add_next_stage(NEXT_STAGE.parse().unwrap());
        }
        let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
        bed.pump(&mut client).unwrap();
        assert!(bed.0.is_closed(client.socket));
        let log = take_log();
        assert!(log[0].1.starts_with(&format!("the upstream cannot be reached: {why}")), "{log:?}");
    }
}

#[test]
fn an_upstream_is_an_address_or_the_next_stage() {
    let authority = Authority::new();
    let certificate = authority.grant("a.example", Kind::P256);
    for (upstream, why) in [
        ("", "upstream: add the `address` of a server, or `next_stage_port` for the chain's next stage"),
        ("address = \"192.0.2.5:80\"\nnext_stage_port = 80\n", "upstream: there are `address` and `next_stage_port`"),
        ("next_stage_port = 0\n", "upstream.next_stage_port is 0, and must be 1 to 65535"),
    ] {
        let config = format!("{certificate}[upstream]\n{upstream}");
        let Err(error) = Network::<Server<TlsProxy>>::new(config.as_bytes()) else { panic!("accepted: {upstream}") };
        assert!(error.to_string().starts_with(why), "{error}");
    }
}

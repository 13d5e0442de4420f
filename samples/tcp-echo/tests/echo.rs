//! The program as clients of another TCP stack see it.

use pinion_sdk::net::Program;
use pinion_sdk::net::testing::play;
use tcp_echo::TcpEcho;

#[test]
fn each_client_gets_its_bytes_back_after_any_earlier_client() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    let (mut clients, mut heard, mut reset, mut counted) = (Vec::new(), vec![Vec::new(); 3], None, [None; 2]);
    let ended = play::<TcpEcho>(b"7000", |network| {
        if clients.is_empty() {
            let mut connect = |host: u8| network.connect([10, 0, 0, host].into(), "10.0.0.2:7000".parse().unwrap());
            reset = Some(connect(100));
            clients = (1..=3).map(connect).collect();
            network.send(reset.unwrap(), b"never to be read");
            network.abort(reset.unwrap());
            for client in &clients {
                network.send(*client, &bytes);
                network.close(*client);
            }
        }
        for (heard, client) in heard.iter_mut().zip(&clients) {
            heard.extend(network.received(*client));
        }
        counted = ["tcp_echo_connections", "tcp_echo_bytes"].map(|name| network.harness.metric(name, &[]));
        clients.iter().all(|client| network.is_ended(*client))
    });
    // The connection that was reset may have been accepted before.
    assert!(matches!(counted, [Some(3 | 4), Some(300_000)]), "{counted:?}");
    assert!(ended.unwrap().is_err(), "it runs until the test is over");
    assert!(heard.iter().all(|heard| *heard == bytes));
}

#[test]
fn a_configuration_that_is_no_port_is_refused() {
    assert!(TcpEcho::init(b"").is_ok());
    assert_eq!(TcpEcho::init(b"x").err().unwrap().to_string(), "tcp-echo takes a port, and was given `x`");
}

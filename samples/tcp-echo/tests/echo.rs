//! The program as clients of another TCP stack see it.

use pinion_sdk::tcp::Program;
use pinion_sdk::tcp::testing::play;
use tcp_echo::TcpEcho;

#[test]
fn what_each_client_sends_comes_back_whoever_went_before_it() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    let (mut clients, mut heard, mut reset) = (Vec::new(), vec![Vec::new(); 3], None);
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
        clients.iter().all(|client| network.is_ended(*client))
    });
    assert!(ended.unwrap().is_err(), "it goes on until the test is over");
    assert!(heard.iter().all(|heard| *heard == bytes));
}

#[test]
fn a_configuration_that_is_no_port_is_refused() {
    assert!(TcpEcho::init(b"").is_ok());
    assert_eq!(TcpEcho::init(b"x").err().unwrap().to_string(), "tcp-echo takes a port, and was given `x`");
}

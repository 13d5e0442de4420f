//! Connects for its client, in blocking style. Each datagram of the client asks for one thing, and has one answer:
//!
//! | datagram | answer |
//! |---|---|
//! | `tcp ADDRESS:PORT TEXT` | what a TCP server there answers to the text until it closes |
//! | `udp ADDRESS:PORT TEXT` | what a UDP server there answers |
//! | `name NAME` | its IPv4 and IPv6 addresses, by the resolver that the configuration names |
//!
//! Instead of an answer there may be the kind of the error.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use pinion_sdk::InitError;
use pinion_sdk::net::{IpVersion, Net, Program, Settings};

const PORT: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(10);

struct Caller;

impl Program for Caller {
    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let text = String::from_utf8_lossy(config);
        let resolver =
            |text: &str| text.parse().map_err(|_| InitError::new(format!("{text:?} is no address and port")));
        let resolvers = text.split_whitespace().map(resolver).collect::<Result<Vec<SocketAddr>, _>>()?;
        Ok((Self, Settings { udp_ports: vec![PORT], resolvers, ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
        let socket = net.udp_socket(PORT)?;
        let mut space = [0; 1400];
        loop {
            let (count, client) = socket.recv_from(&mut space)?;
            let asked = String::from_utf8_lossy(&space[..count]).into_owned();
            let answer = obey(net, &asked).unwrap_or_else(|error| format!("{:?}", error.kind()));
            socket.send_to(answer.as_bytes(), &client)?;
        }
    }
}

fn obey(net: &Net<'_>, asked: &str) -> io::Result<String> {
    let mut words = asked.splitn(3, ' ');
    let (kind, to, text) = (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let address = || to.parse::<SocketAddr>().map_err(|_| io::Error::from(ErrorKind::InvalidInput));
    match kind {
        Some("tcp") => {
            let mut stream = net.connect(address()?)?;
            stream.write_all(text.as_bytes())?;
            stream.shutdown();
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        }
        Some("udp") => {
            let mut flow = net.udp_flow(address()?)?;
            flow.set_read_timeout(Some(PATIENCE));
            flow.send(text.as_bytes())?;
            let mut space = [0; 1400];
            let count = flow.recv(&mut space)?;
            Ok(String::from_utf8_lossy(&space[..count]).into_owned())
        }
        _ => {
            let addresses = [IpVersion::V4, IpVersion::V6].map(|version| net.resolve(to, version));
            let [v4, v6] = addresses;
            Ok(format!("{:?} {:?}", v4?, v6?))
        }
    }
}

pinion_sdk::export_program!(Caller);

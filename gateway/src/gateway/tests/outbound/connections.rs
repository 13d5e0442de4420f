//! TCP connections of flows that functions open: when they end their flow.

use super::*;

/// Segments of a flow to port 80, from the function and from the far end, with their numbers.
struct Connection {
    source: IpAddr,
    to: IpAddr,
    port: u16,
}

impl Connection {
    /// Opens a flow and lets its function ask for a connection, which the far end has not answered.
    fn asked_for(rig: &mut Rig, to: impl Into<IpAddr> + Copy) -> Self {
        let opened = rig.ask(first(), &request(TCP, to, 80));
        let connection = Self { source: opened.source, to: to.into(), port: opened.port };
        rig.leave_from(first(), &connection.here(SYN, [100, 0]));
        connection
    }

    fn opened(rig: &mut Rig, to: impl Into<IpAddr> + Copy) -> Self {
        let connection = Self::asked_for(rig, to);
        rig.send_and_poll(&[connection.there(SYN | ACK, [900, 101])]);
        rig.leave_from(first(), &connection.here(ACK, [101, 901]));
        assert_eq!((rig.targets(), rig.left().len()), (vec![11], 2));
        connection
    }

    fn here(&self, flags: u8, numbers: [u32; 2]) -> Vec<u8> {
        from_station(PEER_STATION, &packet_of(self.source, self.to, &numbered(self.port, 80, flags, numbers)))
    }

    fn there(&self, flags: u8, numbers: [u32; 2]) -> Vec<u8> {
        to_station(&packet_of(self.to, self.source, &numbered(80, self.port, flags, numbers)))
    }
}

fn packet_of(from: IpAddr, to: IpAddr, segment: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, TCP, segment),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, TCP, 64, segment),
        mixed => panic!("{mixed:?}"),
    }
}

fn web() -> MaySend {
    grants(&[(TCP, "192.0.2.0/24", 80), (TCP, "fd77::/64", 80)])
}

#[test]
fn a_flow_whose_connection_is_over_ends_and_its_instance_does_not() {
    for is_refused in [false, true] {
        let mut rig = Rig::outbound(web());
        let connection = if is_refused {
            let connection = Connection::asked_for(&mut rig, RESOLVER);
            rig.send_and_poll(&[connection.there(RST | ACK, [0, 101])]);
            connection
        } else {
            let connection = Connection::opened(&mut rig, RESOLVER);
            rig.send_and_poll(&[connection.there(FIN | ACK, [901, 101])]);
            assert_eq!(rig.pass_with_clients(5), [], "closed by one side, it goes on");
            rig.leave_from(first(), &connection.here(FIN | ACK, [101, 902]));
            connection
        };
        let told = rig.pass_with_clients(3);
        assert_eq!((told.len(), told[0].0, told[0].1.closed()), (1, 11, FlowEnd::ByConnection));
        rig.send_and_poll(&[ping(1, 2), connection.there(ACK, [902, 102])]);
        assert_eq!((rig.targets(), rig.drops(DropReason::FlowClosed)), (vec![11], 1));
    }
}

#[test]
fn a_stranger_that_does_not_see_a_connection_does_not_end_its_flow() {
    for to in [IpAddr::from(RESOLVER), RESOLVER_V6.into()] {
        let mut rig = Rig::outbound(web());
        let connection = Connection::opened(&mut rig, to);
        for flags in [RST, RST | ACK, FIN | ACK] {
            rig.send_and_poll(&[connection.there(flags, [1 << 30, 101])]);
        }
        rig.leave_from(first(), &connection.here(FIN | ACK, [101, 901]));
        assert_eq!(rig.pass_with_clients(5), []);
        // Though a number is guessed, a function that does not believe it goes on.
        rig.send_and_poll(&[connection.there(RST, [2000, 0])]);
        rig.leave_from(first(), &connection.here(ACK, [102, 901]));
        assert_eq!(rig.pass_with_clients(5), []);
        rig.send_and_poll(&[connection.there(RST, [901, 0])]);
        assert_eq!(rig.pass_with_clients(3).len(), 1);
    }
}

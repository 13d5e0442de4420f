//! How graphs are compiled, and that matches mean to the control plane what they mean to the gateway.

use std::net::{Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use pinion_control::model::{Case, Chain, Match, PortRange, Prefix, Protocol, Reverse, Stage};

use super::*;

fn ports() -> NodePorts {
    NodePorts::new(
        ["lan", "wan"].into_iter().zip([0, 1].map(PortIndex)).map(|(name, port)| (name.to_owned(), port)).collect(),
    )
}

/// Returns a chain of so many stages that is entered by a branch.
fn entered(stages: usize, case: (Match, Target), default: Target) -> Chain {
    let stages = (0..stages).map(|_| Stage::new("m".parse().unwrap(), Vec::new())).collect();
    let entry = model::Branch { cases: vec![Case { matcher: case.0, to: case.1 }], default };
    Chain { entry: Some(entry), ..Chain::new("t".parse().unwrap(), "c".parse().unwrap(), stages) }
}

#[test]
fn a_port_that_a_branch_names_and_the_node_lacks_is_named() {
    let port = |name: &str| name.parse::<PortName>().unwrap();
    let by_match = Match { port: Some(port("dmz")), ..Match::default() };
    for case in [(by_match, Target::Egress), (Match::default(), Target::Port(port("dmz")))] {
        let refused = Graph::new(&entered(1, case, Target::Stage(0)), &ports()).err();
        assert_eq!(refused.as_deref(), Some("this node has no port dmz; it has lan, wan"));
    }
    let mut chain = entered(1, (Match::default(), Target::Drop), Target::Stage(0));
    assert!(Graph::new(&chain, &ports()).is_ok());
    chain.stages[0].outputs = vec![Output::To(Target::Port(port("wan"))), Output::Branch(tcp_else(Target::Egress))];
    assert!(Graph::new(&chain, &ports()).is_ok());
    chain.stages[0].outputs = vec![Output::Branch(tcp_else(Target::Port(port("dmz"))))];
    assert!(Graph::new(&chain, &ports()).is_err());
}

/// Returns a branch that drops TCP.
fn tcp_else(default: Target) -> model::Branch {
    let matcher = Match { protocol: Some(Protocol(6)), ..Match::default() };
    model::Branch { cases: vec![Case { matcher, to: Target::Drop }], default }
}

#[test]
fn an_entry_that_leads_out_of_the_chain_is_no_graph() {
    const REFUSED: &str = "entry leads out of the chain: packets pass at least one stage; name a stage or drop";
    for out in [Target::Egress, Target::Port("wan".parse().unwrap())] {
        let chain = entered(1, (Match::default(), out.clone()), Target::Stage(0));
        assert_eq!(Graph::new(&chain, &ports()).err().as_deref(), Some(REFUSED));
        let reverse = Reverse {
            from: vec!["wan".parse().unwrap()],
            entry: Some(tcp_else(out)),
            egress: Some("lan".parse().unwrap()),
        };
        let chain = Chain { entry: None, reverse: Some(reverse), ..chain };
        assert_eq!(Graph::new(&chain, &ports()).err().as_deref(), Some(REFUSED));
    }
}

#[test]
fn frames_may_enter_by_any_stage_if_an_entrance_branches_in_either_direction_and_by_none_if_it_can_drop() {
    let graph = |chain: &Chain| Graph::new(chain, &ports()).unwrap();
    let chain = entered(2, (Match::default(), Target::Stage(0)), Target::Stage(1));
    assert!(graph(&chain).entered_by() == EntryStage::Any && graph(&chain).back().is_none());
    let dropping = Chain { entry: Some(tcp_else(Target::Stage(1))), ..chain.clone() };
    assert_eq!(graph(&dropping).entered_by(), EntryStage::AnyOrNone);
    let reverse = Reverse { from: vec!["wan".parse().unwrap()], entry: None, egress: Some("lan".parse().unwrap()) };
    let line = Chain { entry: None, reverse: Some(reverse.clone()), ..chain.clone() };
    assert_eq!(graph(&line).entered_by(), EntryStage::EitherEnd);
    assert_eq!(graph(&line).back(), PortSet::of([PortIndex(1)]));
    let both = |entry: &Chain, back: &Chain| {
        let reverse = Some(Reverse { entry: back.entry.clone(), ..reverse.clone() });
        graph(&Chain { entry: entry.entry.clone(), reverse, ..line.clone() }).entered_by()
    };
    assert_eq!([both(&line, &chain), both(&chain, &chain)], [EntryStage::Any; 2]);
    assert_eq!([both(&line, &dropping), both(&chain, &dropping)], [EntryStage::AnyOrNone; 2]);
}

/// Returns a chain whose first stage leads to the second and the third, the second to the fourth and out, and the third and
/// the fourth out.
///
/// ```text
///           /--tcp--------> dropped
///   0 --0--+---otherwise--> 1 --0--> 3 --> egress
///     \-1--> 2 --> egress    \-1--> egress
/// ```
fn tree() -> Chain {
    let mut chain =
        Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![Stage::new("m".parse().unwrap(), Vec::new()); 4]);
    let to = |targets: &[Target]| targets.iter().cloned().map(Output::To).collect::<Vec<_>>();
    chain.stages[0].outputs = vec![Output::Branch(tcp_else(Target::Stage(1))), Output::To(Target::Stage(2))];
    chain.stages[1].outputs = to(&[Target::Stage(3), Target::Egress]);
    chain.stages[2].outputs = to(&[Target::Egress]);
    chain.stages[3].outputs = to(&[Target::Egress]);
    chain.egress = Some("wan".parse().unwrap());
    chain
}

/// Returns the FWPs of an instance of so many stages.
fn ids(stages: usize) -> Vec<FwpId> {
    (0..stages as u32).map(|stage| FwpId { index: 10 + stage, generation: 7 }).collect()
}

/// Returns the wiring of each stage of a chain with these FWPs, as text.
fn wirings(chain: &Chain) -> Vec<String> {
    let graph = Graph::new(chain, &ports()).unwrap();
    let ids = ids(chain.stages.len());
    (0..ids.len()).map(|stage| format!("{:?}", graph.wiring(stage, &ids, Backpressure::Drop))).collect()
}

/// Checks that a wiring, as text, has these outputs forth and, if the chain has a way back, back.
#[track_caller]
fn assert_outputs(wiring: &str, forth: &[Edge], back: Option<&[Edge]>) {
    assert!(wiring.starts_with(&format!("Wiring {{ outputs: {forth:?},")), "{forth:?} in {wiring}");
    match back {
        None => assert!(wiring.ends_with("way_back: None }"), "{wiring}"),
        Some(back) => assert!(wiring.contains(&format!("WayBack {{ outputs: {back:?},")), "{back:?} in {wiring}"),
    }
}

#[test]
fn the_stages_of_a_tree_are_wired_along_its_edges_and_back_to_the_stage_before() {
    let (tree, ids) = (tree(), ids(4));
    let [lan, wan] = [0, 1].map(|port| Edge::Egress(PortIndex(port)));
    let to = |stage: usize| Edge::Fwp(ids[stage]);
    let forth = [vec![Edge::Branch(0), to(2)], vec![to(3), wan], vec![wan], vec![wan]];
    for (wiring, forth) in wirings(&tree).iter().zip(&forth) {
        assert_outputs(wiring, forth, None);
    }
    let reverse = Reverse {
        from: vec!["wan".parse().unwrap()],
        entry: Some(tcp_else(Target::Stage(2))),
        egress: Some("lan".parse().unwrap()),
    };
    // Outputs that lead to a stage, and the first ones, lead back; others as forth.
    let back = [vec![lan, lan], vec![to(0), wan], vec![to(0)], vec![to(1)]];
    let both_ways = wirings(&Chain { reverse: Some(reverse), ..tree.clone() });
    for ((wiring, forth), back) in both_ways.iter().zip(&forth).zip(&back) {
        assert_outputs(wiring, forth, Some(back));
    }
    // If replies alone go back, they leave by the port by which their packet came.
    let replies = Reverse { from: Vec::new(), entry: None, egress: None };
    let both_ways = wirings(&Chain { reverse: Some(replies), ..tree });
    assert_outputs(&both_ways[0], &forth[0], Some(&[Edge::EgressWhereItCame; 2]));
    assert_outputs(&both_ways[3], &forth[3], Some(&[to(1)]));
}

#[test]
fn branches_are_those_of_their_stage_and_entrances_those_of_the_first_and_the_last_one() {
    let ids = ids(4);
    let reverse = Reverse {
        from: vec!["wan".parse().unwrap()],
        entry: Some(tcp_else(Target::Stage(2))),
        egress: Some("lan".parse().unwrap()),
    };
    let chain = Chain { entry: Some(tcp_else(Target::Stage(3))), reverse: Some(reverse), ..tree() };
    let branches = |to: usize| format!("cases: [Drop], default: {:?}", Edge::Fwp(ids[to]));
    let wirings = wirings(&chain);
    let counts = |to: usize| wirings.iter().map(|wiring| wiring.matches(&branches(to)).count()).collect::<Vec<_>>();
    assert_eq!(counts(1), [1, 0, 0, 0], "the first stage's branch");
    assert_eq!(counts(3), [1, 0, 0, 0], "the entry");
    assert_eq!(counts(2), [0, 0, 0, 1], "the entry of the way back");
    let has = |stage: usize, text: &str| wirings[stage].contains(text);
    assert!(has(0, "forth: Some(") && has(0, "back: None") && has(3, "forth: None") && has(3, "back: Some("));
    assert!((1..3).all(|stage| has(stage, "Entrance { forth: None, back: None }")));
}

/// Draws conditions from few values, so that they often overlap.
fn matcher(rng: &mut Rng) -> Match {
    let some = |rng: &mut Rng| rng.u8(..3) == 0;
    let prefix = |rng: &mut Rng| -> Prefix {
        let all = ["10.0.0.0/8", "10.1.0.0/16", "10.1.0.1", "0.0.0.0/0", "224.0.0.0/4", "224.0.0.1", "255.255.255.255"];
        let v6 = ["::/0", "fd00::/8", "fd00::1", "ff00::/8", "ff02::1"];
        let text = if rng.bool() { all[rng.usize(..all.len())] } else { v6[rng.usize(..v6.len())] };
        text.parse().unwrap()
    };
    let ports = |rng: &mut Rng| {
        let first = rng.u16(..4);
        PortRange::new(first, rng.u16(first..5)).unwrap()
    };
    let protocol = some(rng).then(|| Protocol([1, 6, 17, 58][rng.usize(..4)]));
    let is_some = |with: fn(Protocol) -> bool| protocol.is_some_and(with);
    Match {
        port: some(rng).then(|| ["lan", "wan"][rng.usize(..2)].parse().unwrap()),
        vlan: (rng.u8(..8) == 0).then(|| "7".parse().unwrap()),
        inner_vlan: None,
        source: some(rng).then(|| prefix(rng)),
        destination: some(rng).then(|| prefix(rng)),
        protocol,
        icmp_type: (is_some(Protocol::has_icmp_types) && some(rng)).then(|| [3, 8, 128][rng.usize(..3)]),
        source_ports: (is_some(Protocol::has_ports) && some(rng)).then(|| ports(rng)),
        destination_ports: (is_some(Protocol::has_ports) && some(rng)).then(|| ports(rng)),
    }
}

/// Draws a frame of a protocol with ports or of ICMP, between addresses that such conditions name.
fn frame(rng: &mut Rng) -> Vec<u8> {
    let v4 = [[10, 1, 0, 1], [10, 2, 0, 1], [192, 0, 2, 1], [224, 0, 0, 1], [255; 4]].map(Ipv4Addr::from);
    let v6 = ["fd00::1", "fd77::2", "2001:db8::1", "ff02::1"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    let is_v4 = rng.bool();
    let protocol = [if is_v4 { 1 } else { 58 }, 6, 17][rng.usize(..3)];
    let mut payload = vec![0; 20];
    match protocol {
        6 | 17 => {
            (payload[1], payload[3]) = (rng.u8(..5), rng.u8(..5));
            // The length of a datagram, and that of a segment's header.
            (payload[5], payload[12]) = (20, if protocol == 6 { 0x50 } else { 0 });
        }
        _ => payload[0] = [3, 8, 128][rng.usize(..3)],
    }
    let mut bytes = [[2; 12].as_slice(), if rng.u8(..8) == 0 { &[0x81, 0, 0, 7] } else { &[] }].concat();
    if is_v4 {
        bytes.extend([8, 0]);
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        header.extend(v4[rng.usize(..v4.len())].octets().into_iter().chain(v4[rng.usize(..v4.len())].octets()));
        let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(header);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
        bytes.extend(v6[rng.usize(..v6.len())].octets().into_iter().chain(v6[rng.usize(..v6.len())].octets()));
    }
    bytes.extend(payload);
    bytes
}

#[test]
fn what_a_match_covers_by_the_control_plane_it_takes_all_of_by_the_gateway() {
    let (mut rng, ports, mut taken) = (Rng::with_seed(7), ports(), 0);
    for _ in 0..20_000 {
        let (one, other) = (matcher(&mut rng), matcher(&mut rng));
        if one.check().is_err() || other.check().is_err() || !one.covers(&other) {
            continue;
        }
        let [one, other] = [&one, &other].map(|it| BranchConditions::new(&[ports.compiled(it).unwrap()]));
        for _ in 0..20 {
            let (frame, port) = (frame(&mut rng), PortIndex(rng.u16(..2)));
            if other.first_met(&frame, port).is_some() {
                assert_eq!(one.first_met(&frame, port), Some(0), "{frame:x?}");
                taken += 1;
            }
        }
    }
    assert!(taken > 1_000, "{taken} frames: the test tests too little");
}

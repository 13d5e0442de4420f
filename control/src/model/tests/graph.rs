//! The graph of a chain: where edges lead, branches, and the reverse direction.

use super::*;

use Target::{Drop, Egress, Stage};

#[test]
fn stages_without_outputs_follow_each_other_and_the_last_leads_out() {
    let chain = chain_of("t", "c", &["m", "m", "m"]);
    let outputs: Vec<_> = chain.stages.iter().map(|stage| stage.outputs.clone()).collect();
    assert_eq!(outputs, [Stage(1), Stage(2), Egress].map(|target| vec![Output::To(target)]));
    assert_eq!(chain.check(), Ok(()));
}

fn port(name: &str) -> Target {
    Target::Port(name.parse().unwrap())
}

/// Returns a chain with one stage for each list, with outputs to these targets.
fn graph(outputs: &[&[Target]]) -> Chain {
    let mut chain = chain_of("t", "c", &vec!["m"; outputs.len()]);
    for (stage, outputs) in chain.stages.iter_mut().zip(outputs) {
        stage.outputs = outputs.iter().cloned().map(Output::from).collect();
    }
    chain
}

fn refused(chain: &Chain) -> String {
    chain.check().unwrap_err().to_string()
}

#[test]
fn a_chain_may_fan_out_and_come_together_again() {
    let wan = || port("wan");
    assert_eq!(graph(&[&[Stage(1), Stage(2), Egress], &[Stage(2), wan()], &[Egress]]).check(), Ok(()));
    assert_eq!(graph(&[&[Stage(2), Stage(1)], &[Egress, Drop], &[wan(), wan()]]).check(), Ok(()));
    let mut widest = vec![Egress; OUTPUTS_MAX];
    assert_eq!(graph(&[&widest]).check(), Ok(()));
    widest.push(Egress);
    assert_eq!(refused(&graph(&[&widest])), "stage 1 has 17 outputs: a stage has 1 to 16");
}

const FORWARD: &str = "it has to lead to a later stage, so that no packet goes round in the chain";

#[test]
fn a_chain_with_an_output_that_does_not_lead_forward_is_refused() {
    let refused = |outputs: &[&[Target]]| refused(&graph(outputs));
    assert_eq!(refused(&[&[Stage(0)]]), format!("output 0 of stage 1 leads to stage 1 of 1: {FORWARD}"));
    assert_eq!(
        refused(&[&[Stage(1)], &[Egress, Stage(0)]]),
        format!("output 1 of stage 2 leads to stage 1 of 2: {FORWARD}")
    );
    assert_eq!(refused(&[&[Stage(1)], &[Stage(2)]]), format!("output 0 of stage 2 leads to stage 3 of 2: {FORWARD}"));
    assert_eq!(
        refused(&[&[Stage(2)], &[Stage(2)], &[Egress]]),
        "nothing leads to stage 2 (m): name it in the outputs of an earlier stage or in entry, or leave it out"
    );
    assert_eq!(refused(&[&[]]), "stage 1 has 0 outputs: a stage has 1 to 16");
}

#[test]
fn a_stage_cannot_have_the_name_of_a_target() {
    for (name, means) in [("egress", "the way out of the chain"), ("drop", "nowhere")] {
        let mut chain = graph(&[&[Egress]]);
        chain.stages[0].name = Some(name.parse().unwrap());
        let expected = format!("stage 1 is named {name}: that is what outputs call {means}, so name it otherwise");
        assert_eq!(refused(&chain), expected);
    }
}

fn to_port(port: u16) -> Match {
    let destination_ports = Some(PortRange::new(port, port).unwrap());
    Match { protocol: Some(Protocol::TCP), destination_ports, ..Match::default() }
}

fn to_udp(port: u16) -> Match {
    Match { protocol: Some(Protocol::UDP), ..to_port(port) }
}

fn tcp() -> Match {
    Match { protocol: Some(Protocol::TCP), ..Match::default() }
}

/// Returns a branch to these targets.
fn branch(cases: &[(Match, Target)], default: Target) -> Branch {
    let case = |(matcher, to): &(Match, Target)| Case { matcher: matcher.clone(), to: to.clone() };
    Branch { cases: cases.iter().map(case).collect(), default }
}

/// Returns a chain that is entered by a branch.
fn entered(entry: Branch, outputs: &[&[Target]]) -> Chain {
    Chain { entry: Some(entry), ..graph(outputs) }
}

#[test]
fn an_entry_branches_to_stages_and_nowhere_and_outputs_to_ports_and_the_egress_as_well() {
    let entry = branch(&[(to_port(80), Stage(0)), (to_port(22), Drop)], Stage(1));
    let mut chain = entered(entry, &[&[Egress], &[Egress]]);
    let cases = [(to_port(443), Stage(1)), (tcp(), port("dmz")), (Match::default(), Drop)];
    chain.stages[0].outputs.push(Output::Branch(branch(&cases, Egress)));
    assert_eq!(chain.check(), Ok(()));
    let sites: Vec<String> = chain.branches().map(|(site, _)| site.to_string()).collect();
    assert_eq!(sites, ["entry", "output 1 of stage 1"]);
    assert_eq!([0, 1].map(|stage| chain.is_entered_by(stage)), [true; 2]);
}

#[test]
fn a_stage_that_neither_the_entry_nor_an_output_leads_to_is_refused() {
    let chain = |entry| entered(entry, &[&[Egress], &[Egress], &[Egress]]);
    assert_eq!(chain(branch(&[(to_port(80), Stage(0)), (tcp(), Stage(1))], Stage(2))).check(), Ok(()));
    let unreached = |entry| refused(&chain(entry));
    let nothing = |stage: usize| format!("nothing leads to stage {stage} (m): name it in the outputs of an earlier");
    assert!(unreached(branch(&[(tcp(), Stage(1))], Stage(2))).starts_with(&nothing(1)));
    assert!(unreached(branch(&[(tcp(), Stage(0))], Stage(2))).starts_with(&nothing(2)));
    assert!(unreached(branch(&[(tcp(), Stage(0))], Drop)).starts_with(&nothing(2)));
    assert_eq!(
        unreached(branch(&[(tcp(), Stage(3))], Stage(0))),
        "entry leads to stage 4 of 3: name one that there is"
    );
}

const OUT: &str = "packets pass at least one stage; name a stage or drop";

#[test]
fn an_entry_that_leads_out_of_the_chain_is_refused() {
    let with = |entry| refused(&entered(entry, &[&[Egress]]));
    assert_eq!(with(branch(&[(tcp(), Stage(0))], Egress)), format!("entry leads to egress: {OUT}"));
    assert_eq!(with(branch(&[(tcp(), port("dmz"))], Stage(0))), format!("entry leads to port:dmz: {OUT}"));
    let mut chain = both_ways(&[&[Egress]]);
    chain.reverse.as_mut().unwrap().entry = Some(branch(&[(tcp(), Stage(0)), (to_udp(53), Egress)], Drop));
    assert_eq!(refused(&chain), format!("reverse.entry leads to egress: {OUT}"));
    chain.reverse.as_mut().unwrap().entry = Some(branch(&[(tcp(), Stage(0))], port("lan")));
    assert_eq!(refused(&chain), format!("reverse.entry leads to port:lan: {OUT}"));
    chain.reverse.as_mut().unwrap().entry = Some(branch(&[(tcp(), Stage(0))], Drop));
    assert_eq!(chain.check(), Ok(()));
}

#[test]
fn flows_that_functions_open_need_an_entry_that_does_not_drop_the_answers_to_their_requests() {
    let to = "192.0.2.0/24".parse().unwrap();
    let outbound = vec![Outbound { protocol: Protocol::TCP, to, ports: None }];
    let with = |default| Chain {
        outbound: outbound.clone(),
        ..entered(branch(&[(tcp(), Stage(0)), (to_udp(53), Drop)], default), &[&[Egress]])
    };
    assert_eq!(with(Stage(0)).check(), Ok(()));
    assert_eq!(
        refused(&with(Drop)),
        "outbound lets its functions open flows, and the default of entry is drop: answers to requests for flows go to the \
         default, so name a stage there, or leave outbound out"
    );
    assert_eq!(Chain { outbound: Vec::new(), ..with(Drop) }.check(), Ok(()));
    assert!(with(Stage(0)).takes_what_is_not_ip() && !with(Drop).takes_what_is_not_ip());
}

#[test]
fn a_branch_that_does_not_lead_forward_is_refused() {
    let with = |branch| {
        let mut chain = graph(&[&[Stage(1)], &[Egress]]);
        chain.stages[1].outputs.push(Output::Branch(branch));
        refused(&chain)
    };
    let place = "output 1 of stage 2 leads to stage";
    assert_eq!(with(branch(&[(tcp(), Stage(0))], Egress)), format!("{place} 1 of 2: {FORWARD}"));
    assert_eq!(with(branch(&[(tcp(), Egress)], Stage(1))), format!("{place} 2 of 2: {FORWARD}"));
    assert_eq!(with(branch(&[(tcp(), Stage(2))], Egress)), format!("{place} 3 of 2: {FORWARD}"));
}

#[test]
fn a_branch_has_one_to_sixteen_matches_and_a_chain_256() {
    let cases = |count: u16, to: Target| (0..count).map(|port| (to_port(port), to.clone())).collect::<Vec<_>>();
    let with = |count| entered(branch(&cases(count, Drop), Stage(0)), &[&[Egress]]);
    assert_eq!(with(16).check(), Ok(()));
    assert_eq!(refused(&with(17)), "entry: it has 17 matches: a branch has 1 to 16");
    assert_eq!(refused(&with(0)), "entry: it has 0 matches: a branch has 1 to 16");
    let mut chain = graph(&[&[Egress]]);
    chain.stages[0].outputs = vec![Output::Branch(branch(&cases(16, Egress), Egress)); 16];
    assert_eq!((chain.check(), chain.case_count()), (Ok(()), 256));
    chain.entry = Some(branch(&cases(1, Drop), Stage(0)));
    assert_eq!(
        refused(&chain),
        "its branches have 257 matches together, and a chain has at most 256: leave some out, or let rules send some of the \
         packets to another chain"
    );
}

#[test]
fn a_match_that_no_packet_meets_or_that_an_earlier_one_leaves_nothing_for_is_refused() {
    let with = |cases: &[Match]| {
        let cases: Vec<_> = cases.iter().map(|matcher| (matcher.clone(), Egress)).collect();
        let mut chain = graph(&[&[Egress]]);
        chain.stages[0].outputs.push(Output::Branch(branch(&cases, Egress)));
        chain.check().map_err(|problem| problem.to_string())
    };
    let portless = Match { protocol: None, ..to_port(80) };
    assert_eq!(
        with(&[tcp(), portless]).unwrap_err(),
        "output 1 of stage 1: match 2: it matches ports of any protocol: ports need protocol tcp or udp"
    );
    assert_eq!(
        with(&[to_port(22), tcp(), to_port(80)]).unwrap_err(),
        "output 1 of stage 1: match 3 (protocol tcp, destination-ports 80) is never taken, as match 2 (protocol tcp) comes \
         before it and applies to all of that: put it before that one, or leave it out"
    );
    assert_eq!(with(&[to_port(80), tcp(), Match::default()]), Ok(()));
    assert!(with(&[tcp(), tcp()]).unwrap_err().contains("match 2 (protocol tcp) is never taken"));
}

#[test]
fn a_match_covers_another_if_each_of_its_conditions_does() {
    let of = |text: &str| {
        let mut it = Match::default();
        for (key, value) in text.split_whitespace().map(|condition| condition.split_once('=').unwrap()) {
            match key {
                "port" => it.port = Some(value.parse().unwrap()),
                "vlan" => it.vlan = Some(value.parse().unwrap()),
                "from" => it.source = Some(value.parse().unwrap()),
                "to" => it.destination = Some(value.parse().unwrap()),
                "protocol" => it.protocol = Some(value.parse().unwrap()),
                "type" => it.icmp_type = Some(value.parse().unwrap()),
                "sport" => it.source_ports = Some(value.parse().unwrap()),
                "dport" => it.destination_ports = Some(value.parse().unwrap()),
                other => panic!("{other}"),
            }
        }
        it
    };
    for (one, other) in [
        ("", ""),
        ("", "port=lan from=10.0.0.0/8 to=10.1.0.0/16 protocol=tcp sport=1-9 dport=80"),
        ("to=10.0.0.0/8", "to=10.1.2.3"),
        ("protocol=tcp", "protocol=tcp dport=80"),
        ("protocol=tcp dport=80-90", "protocol=tcp dport=85"),
        ("protocol=icmp", "protocol=icmp type=8"),
        ("vlan=7", "vlan=7 protocol=udp"),
        ("to=224.0.0.0/4", "to=224.0.0.1"),
        ("from=fd00::/8", "from=fd77::/16"),
    ] {
        assert!(of(one).covers(&of(other)), "{one} covers {other}");
        assert!(one == other || !of(other).covers(&of(one)), "{other} does not cover {one}");
    }
    for (one, other) in [
        ("", "vlan=7"),
        ("", "to=224.0.0.0/4"),
        ("", "to=255.255.255.255"),
        ("to=::/0", "to=ff02::1"),
        ("protocol=icmp", "protocol=icmp type=3"),
        ("protocol=tcp dport=80-90", "protocol=tcp dport=85-95"),
        ("to=10.1.0.0/16", "from=10.1.0.0/16"),
        ("port=lan", "port=wan"),
        ("from=0.0.0.0/0", "from=::/0"),
    ] {
        assert!(!of(one).covers(&of(other)) && !of(other).covers(&of(one)), "{one} and {other}");
    }
}

/// Returns a chain with one stage for each list, with these outputs, and a reverse direction from `wan` to `lan`.
fn both_ways(outputs: &[&[Target]]) -> Chain {
    let (from, egress) = (vec!["wan".parse().unwrap()], Some("lan".parse().unwrap()));
    Chain {
        egress: Some("wan".parse().unwrap()),
        reverse: Some(Reverse { from, entry: None, egress }),
        ..graph(outputs)
    }
}

#[test]
fn a_line_of_stages_may_have_a_reverse_with_further_outputs_out_of_the_node() {
    let lan = || port("lan");
    assert_eq!(both_ways(&[&[Egress]]).check(), Ok(()));
    assert_eq!(both_ways(&[&[Stage(1), lan()], &[Stage(2), Egress], &[lan(), lan()]]).check(), Ok(()));
}

#[test]
fn a_reverse_needs_exactly_one_way_back_from_each_stage() {
    assert_eq!(
        refused(&both_ways(&[&[Stage(1), Stage(2)], &[Stage(2)], &[Egress]])),
        "stage 3 (m) follows stage 1 and stage 2, so packets that pass the chain in reverse could leave it to either: let \
         one of them alone lead to it, or leave reverse out"
    );
    // A stage may lead to another one by several edges.
    assert_eq!(both_ways(&[&[Stage(1), Stage(1)], &[Egress]]).check(), Ok(()));
    let mut chain = both_ways(&[&[Stage(1)], &[Egress]]);
    chain.entry = Some(branch(&[(to_port(80), Stage(0))], Stage(1)));
    assert!(refused(&chain).starts_with("stage 2 (m) follows the entry and stage 1, so packets"));
    chain.stages[0].outputs = vec![Egress.into()];
    chain.reverse.as_mut().unwrap().entry = Some(branch(&[(tcp(), Stage(0))], Stage(1)));
    assert_eq!(chain.check(), Ok(()));
}

#[test]
fn a_reverse_of_a_graph_with_several_ends_says_where_its_packets_enter() {
    let mut chain = both_ways(&[&[Stage(1), Stage(2)], &[Egress], &[Egress]]);
    assert_eq!(
        refused(&chain),
        "packets of the ports in reverse.from could enter by stage 2 (m) or stage 3 (m), which both lead to no other stage: say \
         by reverse.entry which of them enter where"
    );
    let entry = |to| Some(branch(&[(tcp(), to)], Stage(2)));
    chain.reverse.as_mut().unwrap().entry = entry(Stage(1));
    assert_eq!(chain.check(), Ok(()));
    let sites: Vec<String> = chain.branches().map(|(site, _)| site.to_string()).collect();
    assert_eq!(sites, ["reverse.entry"]);
    chain.reverse.as_mut().unwrap().entry = entry(Stage(3));
    assert_eq!(refused(&chain), "reverse.entry leads to stage 4 of 3: name one that there is");
    // Replies alone enter nowhere.
    chain.reverse = Some(Reverse { from: vec![], entry: None, egress: None });
    assert_eq!(chain.check(), Ok(()));
    chain.reverse = Some(Reverse { from: vec![], entry: entry(Stage(1)), egress: None });
    assert_eq!(
        refused(&chain),
        "reverse.entry says where packets of the ports in reverse.from enter, and that names none: leave entry out"
    );
}

#[test]
fn the_stages_before_one_and_the_last_ones_follow_from_the_edges() {
    let chain = graph(&[&[Stage(1), Stage(2)], &[Stage(3)], &[Egress], &[Egress]]);
    let before = |stage| chain.stages_before(stage).collect::<Vec<_>>();
    assert_eq!([0, 1, 2, 3].map(before), [vec![], vec![0], vec![0], vec![1]]);
    assert_eq!(chain.last_stages().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_reverse_without_ends_is_refused() {
    let without_egress = Chain { egress: None, ..both_ways(&[&[Egress]]) };
    assert_eq!(
        refused(&without_egress),
        "there is a reverse and no egress: say by which port packets leave that pass the stages forwards"
    );
    let by_ports = Chain { egress: None, ..both_ways(&[&[port("wan")]]) };
    assert_eq!(by_ports.check(), Ok(()));
    let mut twice = both_ways(&[&[Egress]]);
    twice.reverse.as_mut().unwrap().from = ["wan", "dmz", "wan"].map(|port| port.parse().unwrap()).into();
    assert_eq!(refused(&twice), "reverse.from names wan twice: once is enough");
}

#[test]
fn a_reverse_for_replies_alone_names_no_port_and_one_with_ports_names_where_their_packets_leave() {
    let reverse = |from: &[&str], egress: Option<&str>| {
        let from = from.iter().map(|port| port.parse().unwrap()).collect();
        let reverse = Some(Reverse { from, entry: None, egress: egress.map(|port| port.parse().unwrap()) });
        let chain = Chain { egress: None, reverse, ..both_ways(&[&[Stage(1)], &[Egress]]) };
        chain.check().map_err(|problem| problem.to_string())
    };
    assert_eq!(reverse(&[], None), Ok(()));
    assert_eq!(
        reverse(&[], Some("lan")).unwrap_err(),
        "reverse.egress is lan and reverse.from names no port: replies leave by the port by which their packets came, so leave \
         egress out, or name in from the ports whose packets pass the stages backwards"
    );
    assert_eq!(
        reverse(&["wan"], None).unwrap_err(),
        "reverse.from names a port and there is no reverse.egress: say by which port those packets leave"
    );
}

#[test]
fn a_reverse_through_stages_that_hold_frames_is_refused() {
    assert_eq!(
        refused(&Chain { hold_frames: 8, ..both_ways(&[&[Egress]]) }),
        "hold_frames is 8 and there is a reverse: stages that wait for room both ways could wait for each other for ever, so \
         leave one of the two out"
    );
}

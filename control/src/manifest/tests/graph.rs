//! The graph of a chain: where outputs lead, and the way back.

use super::*;
use crate::model::{Branch, BranchSite, Case, Match, Output, Protocol, Reverse, Target};

const FAN_OUT: &str = r#"version = "pinion.v1"

[[chain]]
name = "sorter"
hold_frames = 32

[[chain.stage]]
name = "sort"
module = "splitter"
outputs = ["fast", "slow", "egress", "port:wan"]

[[chain.stage]]
name = "fast"
module = "macswap"
outputs = ["egress"]

[[chain.stage]]
name = "slow"
module = "macswap"
"#;

#[test]
fn a_chain_defines_where_each_output_leads_and_how_many_frames_it_holds() {
    let chain = &read(FAN_OUT).unwrap().chains[0].chain;
    assert_eq!(chain.hold_frames, 32);
    assert!(!chain.idempotent);
    let idempotent = FAN_OUT.replace("hold_frames = 32", "idempotent = true");
    assert!(read(&idempotent).unwrap().chains[0].chain.idempotent);
    let outputs = |stage: usize| chain.stages[stage].outputs.clone();
    let wan = Target::Port("wan".parse().unwrap());
    assert_eq!(outputs(0), [Target::Stage(1), Target::Stage(2), Target::Egress, wan].map(Output::To));
    assert_eq!([outputs(1), outputs(2)], [(); 2].map(|()| vec![Output::To(Target::Egress)]));
    assert_eq!(chain.stages[2].name.as_ref().unwrap().as_str(), "slow");
    let plain = &read(GOOD).unwrap().chains[0].chain;
    assert_eq!((plain.hold_frames, &plain.stages[0].name), (0, &None));
    let outputs: Vec<_> = plain.stages.iter().flat_map(|stage| stage.outputs.clone()).collect();
    assert_eq!(outputs, [Target::Stage(1), Target::Egress].map(Output::To));
}

const BOTH_WAYS: &str = r#"version = "pinion.v1"

[[chain]]
name = "border"
egress = "outside"
reverse = { from = ["outside"], egress = "inside" }

[[chain.stage]]
module = "firewall"
outputs = ["nat", "port:inside"]

[[chain.stage]]
name = "nat"
module = "nat"
"#;

#[test]
fn a_chain_defines_by_port_which_packets_pass_it_in_reverse() {
    let chain = &read(BOTH_WAYS).unwrap().chains[0].chain;
    let port = |name: &str| name.parse().unwrap();
    assert_eq!(chain.reverse, Some(Reverse { from: vec![port("outside")], entry: None, egress: Some(port("inside")) }));
    let replies = BOTH_WAYS.replace("[\"outside\"], egress = \"inside\"", "[]");
    let reverse = Reverse { from: vec![], entry: None, egress: None };
    assert_eq!(read(&replies).unwrap().chains[0].chain.reverse, Some(reverse));
    assert_eq!(read(GOOD).unwrap().chains[0].chain.reverse, None);
}

#[test]
fn an_invalid_reverse_is_refused_by_line() {
    for (from, to, start) in [
        ("[\"outside\"]", "[]", "demo.toml:6: chain border: reverse.egress is inside and reverse.from names no port"),
        ("from = [\"outside\"], ", "", "demo.toml:6: chain.reverse: missing key `from`"),
        ("\"outside\"]", "\"outside\", \"outside\"]", "demo.toml:6: chain border: reverse.from names outside twice"),
        (
            "egress = \"outside\"",
            "hold_frames = 8",
            "demo.toml:6: chain border: hold_frames is 8 and there is a reverse",
        ),
        ("egress = \"outside\"", "", "demo.toml:6: chain border: there is a reverse and no egress"),
        (
            ", egress = \"inside\"",
            "",
            "demo.toml:6: chain border: reverse.from names a port and there is no reverse.egress",
        ),
        (
            "[\"outside\"]",
            "[\n\"outside\",\n\"out side\"]",
            "demo.toml:8: chain.reverse.from: \"out side\" is not a port name",
        ),
        ("from = ", "form = ", "demo.toml:6: chain.reverse: unknown key `form`"),
    ] {
        assert!(BOTH_WAYS.contains(from), "{from}");
        let message = refused(&BOTH_WAYS.replacen(from, to, 1));
        assert!(message.starts_with(start), "{to}: {message}");
    }
}

#[test]
fn outputs_that_lead_nowhere_or_back_are_refused_by_line() {
    for (from, to, start) in [
        (
            "\"slow\", \"egress\"",
            "\"slwo\", \"egress\"",
            "demo.toml:10: outputs: \"slwo\" is no stage's name: say the name",
        ),
        ("port:wan", "port:WAN", "demo.toml:10: outputs: \"WAN\" is not a port name"),
        ("\"port:wan\"", "\"port:\"", "demo.toml:10: outputs: \"\" is not a port name"),
        ("[\"egress\"]", "[]", "demo.toml:15: outputs is empty: leave the key out"),
        (
            "[\"egress\"]",
            "[\"sort\"]",
            "demo.toml:15: chain sorter: output 0 of stage 2 leads to stage 1 of 3: it has to",
        ),
        (
            "[\"egress\"]",
            "[\"fast\"]",
            "demo.toml:15: chain sorter: output 0 of stage 2 leads to stage 2 of 3: it has to",
        ),
        ("\"slow\", ", "", "demo.toml:18: chain sorter: nothing leads to stage 3 (slow): name it in the outputs"),
        ("name = \"slow\"", "name = \"fast\"", "demo.toml:10: outputs: \"slow\" is no stage's name"),
        ("name = \"sort\"", "name = \"fast\"", "demo.toml:13: chain sorter: stages 1 and 2 are both named fast"),
        ("name = \"sort\"", "name = \"egress\"", "demo.toml:8: chain sorter: stage 1 is named egress: that is what"),
        ("name = \"sort\"", "name = \"Sort\"", "demo.toml:8: chain.stage.name: \"Sort\" is not a stage name"),
        (
            "\"port:wan\"",
            ["\"egress\""; 14].join(", ").as_str(),
            "demo.toml:10: chain sorter: stage 1 has 17 outputs: a stage has 1",
        ),
        (
            "hold_frames = 32",
            "hold_frames = 1025",
            "demo.toml:5: chain sorter: hold_frames is 1025: it must be from 0 to",
        ),
    ] {
        assert!(FAN_OUT.contains(from), "{from}");
        let message = refused(&FAN_OUT.replacen(from, to, 1));
        assert!(message.starts_with(start), "{to}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

const BRANCHES: &str = r#"version = "pinion.v1"

[[chain]]
name = "web"
egress = "outside"
entry = { default = "firewall", branch = [
    { match = { protocol = "tcp", destination_ports = 80 }, to = "cache" },
    { match = { port = "dmz" }, to = "drop" },
] }

[[chain.stage]]
name = "cache"
module = "cache"
outputs = ["egress", { default = "firewall", branch = [
    { match = { source = "10.0.0.0/8" }, to = "port:dmz" },
] }]

[[chain.stage]]
name = "firewall"
module = "firewall"
"#;

#[test]
fn an_entry_and_outputs_may_be_branches_by_the_matches_of_rules() {
    let chain = &read(BRANCHES).unwrap().chains[0].chain;
    let web =
        Match { protocol: Some(Protocol::TCP), destination_ports: Some("80".parse().unwrap()), ..Match::default() };
    let dmz = Match { port: Some("dmz".parse().unwrap()), ..Match::default() };
    let cases = vec![Case { matcher: web, to: Target::Stage(0) }, Case { matcher: dmz, to: Target::Drop }];
    assert_eq!(chain.entry, Some(Branch { cases, default: Target::Stage(1) }));
    let inside = Match { source: Some("10.0.0.0/8".parse().unwrap()), ..Match::default() };
    let cases = vec![Case { matcher: inside, to: Target::Port("dmz".parse().unwrap()) }];
    let branch = Output::Branch(Branch { cases, default: Target::Stage(1) });
    assert_eq!(chain.stages[0].outputs, [Target::Egress.into(), branch]);
    let sites: Vec<_> = chain.branches().map(|(site, _)| site).collect();
    assert_eq!(sites, [BranchSite::Entry, BranchSite::Output { stage: 1, output: 1 }]);
    let tables = BRANCHES.replace(
        &BRANCHES[BRANCHES.find("entry").unwrap()..BRANCHES.find("[[chain.stage]]").unwrap()],
        "[chain.entry]\ndefault = \"firewall\"\n[[chain.entry.branch]]\nmatch = { protocol = \"tcp\", destination_ports = 80 }\n\
         to = \"cache\"\n[[chain.entry.branch]]\nmatch = { port = \"dmz\" }\nto = \"drop\"\n",
    );
    assert_eq!(&read(&tables).unwrap().chains[0].chain, chain, "as tables with headers");
}

#[test]
fn a_chain_with_branches_may_have_a_reverse_that_branches_where_its_packets_enter() {
    let reverse = "reverse = { from = [\"outside\"], egress = \"inside\", entry = { default = \"firewall\", branch = [\n\
                   { match = { protocol = \"tcp\", source_ports = 80 }, to = \"cache\" },\n] } }\n[[chain.stage]]";
    let both = BRANCHES.replacen("[[chain.stage]]", reverse, 1);
    let error = refused(&both);
    assert!(
        error.starts_with("demo.toml:11: chain web: stage 2 (firewall) follows the entry and stage 1, so"),
        "{error}"
    );
    let tree = both.replace("\"egress\", { default = \"firewall\"", "\"egress\", { default = \"egress\"");
    let chain = &read(&tree).unwrap().chains[0].chain;
    let entry = chain.reverse.as_ref().unwrap().entry.as_ref().unwrap();
    assert_eq!((&entry.cases[0].to, &entry.default), (&Target::Stage(0), &Target::Stage(1)));
    let out = tree.replacen("default = \"firewall\", branch = [\n{", "default = \"egress\", branch = [\n{", 1);
    let error = refused(&out);
    assert!(error.starts_with("demo.toml:11: chain web: reverse.entry leads to egress: packets pass"), "{error}");
    let out = tree.replacen("to = \"cache\" },\n] } }", "to = \"port:lan\" },\n] } }", 1);
    let error = refused(&out);
    assert!(error.starts_with("demo.toml:12: chain web: reverse.entry leads to port:lan: packets pass"), "{error}");
}

#[test]
fn flows_that_functions_open_need_a_stage_as_the_default_of_the_entry() {
    let outbound = "egress = \"outside\"\noutbound = [{ protocol = \"tcp\", to = \"192.0.2.0/24\" }]";
    let opens = BRANCHES.replacen("egress = \"outside\"", outbound, 1);
    assert_eq!(read(&opens).unwrap().chains[0].chain.outbound.len(), 1);
    let message = refused(&opens.replacen("default = \"firewall\"", "default = \"drop\"", 1));
    let start =
        "demo.toml:7: chain web: outbound lets its functions open flows, and the default of entry is drop: answers";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn the_branch_with_which_a_chain_has_too_many_matches_is_named_by_line() {
    let case =
        |port: usize| format!("{{ match = {{ protocol = \"udp\", destination_ports = {port} }}, to = \"drop\" }}, ");
    let cases: String = (1..=16).map(case).collect();
    let outputs = format!("    {{ default = \"egress\", branch = [{cases}] }},\n").repeat(16);
    let chain = "version = \"pinion.v1\"\n\n[[chain]]\nname = \"wide\"\n";
    let stage = format!("[[chain.stage]]\nname = \"only\"\nmodule = \"m\"\noutputs = [\n{outputs}]\n");
    assert_eq!(read(&format!("{chain}{stage}")).unwrap().chains[0].chain.case_count(), 256);
    let entry = "entry = { default = \"only\", branch = [{ match = { port = \"dmz\" }, to = \"drop\" }] }\n";
    let message = refused(&format!("{chain}{entry}{stage}"));
    let start =
        "demo.toml:25: chain wide: its branches have 257 matches together, and a chain has at most 256: leave some";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn an_invalid_branch_is_refused_by_line() {
    let many = "{ match = { protocol = \"udp\" }, to = \"cache\" },".repeat(17);
    for (from, to, start) in [
        (
            "to = \"cache\"",
            "to = \"cash\"",
            "demo.toml:7: entry: \"cash\" is no stage's name: say the name of a stage, or drop",
        ),
        (
            "default = \"firewall\", branch = [\n",
            "default = \"wall\", branch = [\n",
            "demo.toml:6: entry: \"wall\" is no",
        ),
        ("to = \"drop\"", "to = \"port:DMZ\"", "demo.toml:8: entry: \"DMZ\" is not a port name"),
        (
            "to = \"drop\"",
            "to = \"port:dmz\"",
            "demo.toml:8: chain web: entry leads to port:dmz: packets pass at least one stage; name a stage or drop",
        ),
        (
            "default = \"firewall\", branch = [\n    { match = { protocol",
            "branch = [\n    { match = { protocol",
            "demo.toml:6: chain.entry: missing key `default`",
        ),
        (
            "to = \"port:dmz\"",
            "to = \"cache\"",
            "demo.toml:15: chain web: output 1 of stage 1 leads to stage 1 of 2: it has to",
        ),
        (
            "{ default = \"firewall\", branch = [\n    { match = { source",
            "{ default = \"cache\", branch = [\n    { match = { source",
            "demo.toml:14: chain web: output 1 of stage 1 leads to stage 1 of 2: it has to",
        ),
        (
            "to = \"port:dmz\"",
            "to = \"lost\"",
            "demo.toml:15: outputs: \"lost\" is no stage's name: say the name of a later stage",
        ),
        (
            "port = \"dmz\" }",
            "protocol = \"tcp\", destination_ports = 80, port = \"dmz\" }",
            "demo.toml:8: chain web: entry: match 2 (port dmz, protocol tcp, destination-ports 80) is never taken, as match 1",
        ),
        (
            "protocol = \"tcp\", d",
            "d",
            "demo.toml:7: chain web: entry: match 1: it matches ports of any protocol: ports need protocol tcp or udp",
        ),
        (
            "protocol = \"tcp\", d",
            "protocol = \"tpc\", d",
            "demo.toml:7: chain.entry.branch.match.protocol: \"tpc\" is not a protocol",
        ),
        ("protocol = \"tcp\", d", "dst_port = 80, d", "demo.toml:7: chain.entry.branch.match: unknown key `dst_port`"),
        ("port = \"dmz\" }, to", "port = \"dmz\" }, too", "demo.toml:8: chain.entry.branch: unknown key `too`"),
        (
            "\"egress\", { default = \"firewall\", branch",
            "\"egress\", { branch",
            "demo.toml:14: chain.stage.outputs: missing key `default`",
        ),
        (
            "    { match = { source = \"10.0.0.0/8\" }, to = \"port:dmz\" },\n",
            "",
            "demo.toml:14: chain web: output 1 of stage 1: it has 0",
        ),
        ("{ match = { port", &format!("{many}{{ match = {{ port"), "demo.toml:6: chain web: entry: it has 19 matches"),
        ("\"drop\" },\n] }", "\"drop\" },\n], or = 1 }", "demo.toml:9: chain.entry: unknown key `or`"),
        (
            "[\"egress\", {",
            "[7, {",
            "demo.toml:14: chain.stage.outputs: invalid type: integer `7`, expected the name of a target",
        ),
    ] {
        assert!(BRANCHES.contains(from), "{from}");
        let message = refused(&BRANCHES.replacen(from, to, 1));
        assert!(message.starts_with(start), "{to}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let egress = BRANCHES.replacen("default = \"firewall\"", "default = \"egress\"", 1);
    let message = refused(&egress);
    assert!(message.starts_with("demo.toml:6: chain web: entry leads to egress: packets pass at least"), "{message}");
    let unreached = BRANCHES.replacen("to = \"cache\"", "to = \"firewall\"", 1);
    assert!(
        refused(&unreached).starts_with("demo.toml:12: chain web: nothing leads to stage 1 (cache): name it in the")
    );
    let named = BRANCHES.replace("\"cache\"", "\"drop\"");
    let message = refused(&named);
    assert!(
        message.starts_with("demo.toml:12: chain web: stage 1 is named drop: that is what outputs call nowhere"),
        "{message}"
    );
}

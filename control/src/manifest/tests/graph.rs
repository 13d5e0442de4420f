//! The graph of a chain: where outputs lead, and the way back.

use super::*;
use crate::model::{Output, Reverse};

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
    let wan = Output::Port("wan".parse().unwrap());
    assert_eq!(chain.stages[0].outputs, [Output::Stage(1), Output::Stage(2), Output::Egress, wan]);
    assert_eq!((&chain.stages[1].outputs, &chain.stages[2].outputs), (&vec![Output::Egress], &vec![Output::Egress]));
    assert_eq!(chain.stages[2].name.as_ref().unwrap().as_str(), "slow");
    let plain = &read(GOOD).unwrap().chains[0].chain;
    assert_eq!((plain.hold_frames, &plain.stages[0].name), (0, &None));
    assert_eq!((&plain.stages[0].outputs, &plain.stages[1].outputs), (&vec![Output::Stage(1)], &vec![Output::Egress]));
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
    assert_eq!(chain.reverse, Some(Reverse { from: vec![port("outside")], egress: Some(port("inside")) }));
    let replies = BOTH_WAYS.replace("[\"outside\"], egress = \"inside\"", "[]");
    assert_eq!(read(&replies).unwrap().chains[0].chain.reverse, Some(Reverse { from: vec![], egress: None }));
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
        (", \"port:inside\"", ", \"nat\"", "demo.toml:10: chain border: output 1 of stage 1 of 2 keeps the chain from"),
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

//! What functions may not send reaches no network.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::UdpSocket;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::hostile;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::frames::watch;
use pinion_tests::until::{SOON, until};

/// Is in each forged frame.
const MARK: &[u8] = b"FORGED";

#[test]
fn no_forged_frame_of_a_function_reaches_the_wire_and_each_is_counted_for_its_reason() {
    let bed = Bed::new(Device::AfPacket);
    let rule = format!(
        "[[rule]]\nname = \"udp\"\npolicy = \"per-client\"\nchain = \"spoofer\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
    );
    let manifest = Manifest::of(TENANT).module("spoofer", &hostile("spoofer")).chain("spoofer", "spoofer", "");
    bed.node.apply(manifest.with(rule).text());
    let client = &bed.clients[0];
    let came = watch(&client.namespace, "eth0", |arrivals| {
        let socket = UdpSocket::bind((client.address.as_str(), 4000)).expect("a socket");
        socket.send_to(b"a question to the node", (NODE, 7)).expect("it is sent");
        // What is forged is sent before the answer, and would come before it.
        let is_answer = |frame: &[u8]| frame.len() > 36 && frame[12..14] == [8, 0] && frame[34..36] == [0, 7];
        let is_forged = |frame: &[u8]| frame.windows(MARK.len()).any(|part| part == MARK);
        arrivals.take(1, SOON, |frame| is_answer(frame) || is_forged(frame))
    });
    assert_eq!(came.len(), 1, "the node answers");
    assert!(came[0].ends_with(b"a question to the node"), "{}", came[0].escape_ascii());
    let counted = |drops: &serde_json::Value| -> BTreeMap<String, u64> {
        let drops = drops.as_array().into_iter().flatten();
        drops.filter_map(|drop| Some((drop["reason"].as_str()?.to_owned(), drop["count"].as_u64()?))).collect()
    };
    let expected = [
        ("foreign-station", 2),
        ("foreign-vlan", 2),
        ("forged-source", 4),
        ("malformed", 3),
        ("node-only", 3),
        ("not-ip", 2),
    ];
    until("count of each", SOON, || {
        let of_chain = counted(&bed.node.cli().chain_status(TENANT, "spoofer")["drops"]);
        expected.iter().all(|(reason, count)| of_chain.get(*reason) == Some(count)).then_some(())
    });
    let of_port = counted(&bed.node.cli().status()["ports"][0]["drops"]);
    assert_eq!([of_port.get("transmit-runt"), of_port.get("transmit-unfit")], [Some(&1); 2], "{of_port:?}");
}

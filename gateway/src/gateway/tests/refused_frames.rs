//! Frames that no instance may get.

use super::*;

#[test]
fn malformed_frames_are_counted_by_reason_and_change_nothing_else() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.ready(0, 10);
    let mut wrong_sum = ping(1, 1);
    wrong_sum[14 + 10] ^= 1;
    let lldp = ethernet([0xff; 6], CLIENT, 0x88cc, &[0; 46]);
    let mut strangers = ping(1, 1);
    strangers[5] = 9;
    let bad = [
        (ping(1, 1)[..30].to_vec(), DropReason::Truncated),
        (vec![7; 5], DropReason::Truncated),
        (wrong_sum, DropReason::BadChecksum),
        (lldp, DropReason::UnknownEthertype),
        (strangers, DropReason::NotForUs),
        (arp_request((CLIENT, client(1)), client(2)), DropReason::NotForUs),
    ];
    for (frame, reason) in bad {
        let before = rig.gateway.observer().ports().map(|port| port.drops.iter().collect()).collect::<Vec<Vec<_>>>();
        rig.send_and_poll(&[frame]);
        let after: Vec<_> = rig.gateway.observer().ports().next().unwrap().drops.iter().collect();
        for ((name, before), (_, after)) in before[0].iter().zip(after) {
            assert_eq!(after - before, u64::from(*name == reason), "{name} after a {reason}");
        }
    }
    let observer = rig.gateway.observer();
    assert_eq!((observer.flows(), observer.instances_bound(), observer.frames_pending()), (0, 0, 0));
    assert_eq!((rig.targets(), rig.events()), (vec![], vec![]));
    assert!(rig.peers[0].receive().is_none());
    rig.assert_no_buffer_leaked();
}

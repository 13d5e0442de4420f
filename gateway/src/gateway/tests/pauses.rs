//! Tests of a gateway that was not polled for a while.

use super::*;
use crate::flows::pending::FRAMES_PER_KEY;

#[test]
fn a_client_waits_from_its_first_frame_on_whether_or_not_an_instance_was_ready() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 1);
    // From here on, time is the gateway's own clock.
    let pause = std::time::Duration::from_millis(5);
    std::thread::sleep(pause);
    let start = std::time::Instant::now();
    [1, 2].iter().for_each(|&client| rig.send(&datagram(client, 1000, 0)));
    rig.gateway.poll();
    std::thread::sleep(pause);
    let late = Command::Ready {
        chain: ChainIndex(0),
        instance: InstanceId(2),
        entrance: entry(2).into(),
        limit: SourceLimit::NONE,
    };
    rig.commands.send(late).unwrap();
    rig.send(&datagram(1, 1000, 0));
    rig.gateway.poll();
    assert_eq!(rig.targets(), [1, 2, 1]);
    let observer = rig.gateway.observer();
    for instance in [1, 2] {
        let waited = std::time::Duration::from_nanos(observer.flow_misses().elapsed_ns(entry(instance)));
        // The clocks may differ by a little.
        assert!(waited >= pause && waited <= start.elapsed() + pause / 5, "the client of {instance}: {waited:?}");
    }
}

#[test]
fn a_burst_finds_the_instance_that_was_made_before_it_whether_or_not_the_gateway_paused() {
    for pause_ns in [0, PAUSE_NS + 1] {
        a_burst_finds_its_instance_after(pause_ns);
    }
}

/// Sends more frames of a client than may wait, after an instance was announced, of which the gateway has not read.
fn a_burst_finds_its_instance_after(pause_ns: u64) {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.now_ns += pause_ns;
    let instance = Command::Ready {
        chain: ChainIndex(0),
        instance: InstanceId(1),
        entrance: entry(1).into(),
        limit: SourceLimit::NONE,
    };
    rig.commands.send(instance).unwrap();
    let burst: Vec<_> = (1..=2 * FRAMES_PER_KEY as u16).map(|seq| ping(1, seq)).collect();
    rig.send_and_poll(&burst);
    assert_eq!(rig.targets(), vec![1; burst.len()]);
    assert_eq!((rig.drops(DropReason::PendingFull), rig.events()), (0, vec![taken(1, address(1))]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_frame_that_ends_a_pause_counts_as_seen() {
    let mut rig = Rig::with_policy(Policy::Shared);
    rig.ready(0, 10);
    rig.send_and_poll(&[datagram(1, 5000, 1)]);
    // Nothing polls meanwhile, so nothing is swept.
    for _ in 0..3 {
        rig.now_ns += IDLE_TIMEOUT_NS - 1_000_000_000;
        rig.send_and_poll(&[datagram(1, 5000, 2)]);
    }
    for _ in 0..300 {
        rig.now_ns += 1_000_000;
        rig.poll();
    }
    assert_eq!(rig.targets(), [10; 4]);
    assert_eq!(rig.events(), [taken(10, ClientLabel::All)]);
}

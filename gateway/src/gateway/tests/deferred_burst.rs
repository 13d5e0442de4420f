//! Bursts with new clients in them.

use super::*;

/// Longer than a round without long work takes, and shorter than any timeout.
const LONG_NS: u64 = 50_000;

/// Makes a gateway with `instances` ready instances, the first of them 10.
fn rig(instances: u64) -> Rig {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.gateway.shares_thread_with_functions();
    (10..10 + instances).rev().for_each(|instance| rig.ready(0, instance));
    rig
}

impl Rig {
    /// Polls until the whole burst is taken in.
    fn poll_all(&mut self) {
        self.poll();
        while self.gateway.ports.iter().any(|state| !state.deferred.is_empty()) {
            self.poll();
        }
    }

    fn send_burst(&mut self, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.send(frame));
        self.poll();
    }
}

#[test]
fn a_burst_of_new_clients_is_taken_in_one_client_a_poll_and_in_order() {
    let mut rig = rig(4);
    rig.send_burst(&[ping(1, 1), ping(1, 2), ping(2, 1), ping(1, 3), ping(3, 1)]);
    assert_eq!(rig.targets(), [10]);
    assert!(rig.gateway.has_work());
    // Frames that arrive now stay behind those that have arrived before.
    rig.send(&ping(4, 1));
    let polls: Vec<_> = std::iter::from_fn(|| Some((rig.poll(), rig.targets()))).take(4).collect();
    assert_eq!(
        polls.iter().map(|(_, targets)| targets.as_slice()).collect::<Vec<_>>(),
        [&[10, 11][..], &[10, 12], &[13], &[]]
    );
    assert!(polls[..3].iter().all(|(done, _)| *done > 0));
    assert_eq!(rig.gateway.observer().ports().next().unwrap().delivered.value(), 6);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_burst_without_new_clients_is_taken_in_at_once() {
    let mut rig = rig(2);
    rig.send_burst(&[ping(1, 1), ping(2, 1)]);
    rig.poll_all();
    assert_eq!(rig.targets(), [10, 11]);
    rig.send_burst(&[ping(1, 2), ping(2, 2), ping(1, 3)]);
    assert_eq!(rig.targets(), [10, 11, 10]);
    // Clients for which there is no instance do not delay others either.
    rig.send_burst(&[ping(3, 1), ping(4, 1), ping(1, 4)]);
    assert_eq!((rig.targets(), rig.gateway.observer().frames_pending()), (vec![10], 2));
}

#[test]
fn a_gateway_without_functions_on_its_thread_takes_a_burst_of_new_clients_in_at_once() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_burst(&[ping(1, 1), ping(2, 1), ping(3, 1)]);
    assert_eq!(rig.targets(), [10, 11, 12]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn if_other_work_holds_the_thread_for_long_the_rest_of_a_burst_is_taken_in_at_once() {
    let mut rig = rig(4);
    rig.send_burst(&[ping(1, 1), ping(2, 1), ping(3, 1), ping(4, 1)]);
    assert_eq!(rig.targets(), [10]);
    // One long round may be by chance.
    rig.now_ns += LONG_NS;
    rig.poll();
    assert_eq!(rig.targets(), [11]);
    rig.now_ns += LONG_NS;
    rig.poll();
    assert_eq!(rig.targets(), [12, 13]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_instance_to_be_unbound_gets_the_rest_of_a_burst_and_nothing_after() {
    let mut rig = rig(3);
    rig.send_burst(&[ping(1, 1), ping(1, 2)]);
    rig.poll_all();
    assert_eq!(rig.targets(), [10, 10]);
    rig.send_burst(&[ping(2, 1), ping(1, 3)]);
    rig.command(Command::Unbind { instance: InstanceId(10) });
    rig.poll_all();
    assert_eq!(rig.targets(), [11, 10]);
    rig.send_burst(&[ping(1, 4)]);
    rig.poll_all();
    assert_eq!(rig.targets(), [12]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_client_behind_another_waits_from_when_the_burst_was_received() {
    let mut rig = rig(2);
    [1, 2].iter().for_each(|&client| rig.send(&ping(client, 1)));
    // By the gateway's own clock.
    rig.gateway.poll();
    let observer = rig.gateway.observer();
    let start_ns = observer.flow_misses().now_ns();
    while observer.flow_misses().now_ns() < start_ns + LONG_NS {
        std::hint::spin_loop();
    }
    rig.gateway.poll();
    assert_eq!(rig.targets(), [10, 11]);
    assert!(observer.flow_misses().elapsed_ns(entry(11)) >= LONG_NS);
}

#[test]
fn a_gateway_that_ends_gives_back_what_is_left_of_a_burst() {
    let mut rig = rig(2);
    rig.send_burst(&[ping(1, 1), ping(2, 1), ping(2, 2)]);
    assert_eq!(rig.targets(), [10]);
    let (pool, held) = (rig.pool.clone(), rig.pool.available());
    drop(rig.gateway);
    assert!(pool.available() >= held + 2);
}

#[test]
fn the_launcher_is_told_of_a_bursts_clients_when_the_last_of_them_is_taken_in() {
    let mut rig = rig(3);
    rig.send_burst(&[ping(1, 1), ping(2, 1), ping(3, 1)]);
    rig.poll();
    assert!(rig.events.is_empty());
    rig.poll_all();
    rig.poll();
    let told: Vec<Event> = rig.events.try_iter().collect();
    assert_eq!(told, [taken(10, address(1)), taken(11, address(2)), taken(12, address(3))]);
}

#[test]
fn commands_wait_until_a_bursts_clients_have_their_instances() {
    let mut rig = rig(3);
    let observer = rig.gateway.observer();
    [1, 2, 3].iter().for_each(|&client| rig.send(&ping(client, 1)));
    // If the command were read at once, the first client would get the youngest instance, and no client the one to be
    // unbound.
    rig.command(Command::Unbind { instance: InstanceId(12) });
    rig.ready(0, 13);
    rig.poll();
    assert_eq!((rig.targets(), observer.instances_bound()), (vec![10, 11, 12], 3));
    rig.poll();
    assert_eq!((observer.instances_bound(), observer.instances_ready()), (2, 1));
}

#[test]
fn clients_without_an_instance_do_not_delay_commands() {
    let mut rig = rig(1);
    [1, 2, 3].iter().for_each(|&client| rig.send(&ping(client, 1)));
    rig.poll_all();
    rig.ready(0, 11);
    rig.ready(0, 12);
    assert_eq!(rig.targets(), [10, 11, 12]);
    rig.assert_no_buffer_leaked();
}

//! Whether a device wakes a sleeping thread: each frame must wake it, and nothing else.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pinion_gateway::port::{Alarm, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dpdk::lab::{Lab, NetworkNamespace, Veth, ip, unique};

const SOON: Duration = Duration::from_secs(10);
/// Long enough for a wrong wake-up to happen.
const A_WHILE: Duration = Duration::from_millis(50);

/// Arms the port and sleeps on its descriptors. Returns whether one became readable within the time.
fn sleep(port: &mut Box<dyn Port>, timeout: Duration) -> bool {
    assert_eq!(port.arm(), Alarm::Set);
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut polled: Vec<_> =
        port.descriptors().iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    assert!(!polled.is_empty());
    let found = poll(&mut polled, Some(&timeout)).unwrap();
    port.disarm();
    found > 0
}

/// Receives until no frame is left.
fn receive_all(lab: &mut Lab, port: &mut Box<dyn Port>) -> usize {
    let mut frames = Vec::new();
    while port.receive(&mut frames, 32) > 0 {}
    lab.contents(frames).len()
}

/// Waits until no frame comes any more: the kernel itself sends some on an interface that has just come up.
fn settle(lab: &mut Lab, port: &mut Box<dyn Port>) {
    let started = Instant::now();
    while sleep(port, A_WHILE) {
        receive_all(lab, port);
        assert!(started.elapsed() < SOON, "the device wakes a sleeper without end");
    }
}

fn a_sleeping_thread_is_woken_by_frames_alone(lab: &mut Lab, port: &mut Box<dyn Port>, namespace: &NetworkNamespace) {
    settle(lab, port);
    for _ in 0..3 {
        // While no thread sleeps: the frame came after the last poll of the device, and before the sleep.
        namespace.ping_once();
        assert!(sleep(port, Duration::ZERO), "a waiting frame must end the sleep at once");
        assert_eq!(receive_all(lab, port), 1);
        assert!(!sleep(port, A_WHILE), "a received frame must not wake the thread");
    }
    let mut pinger = namespace.ping(1, 56);
    assert!(sleep(port, SOON), "a frame wakes a sleeper");
    receive_all(lab, port);
    pinger.kill().unwrap();
    pinger.wait().unwrap();
}

#[test]
fn a_tap_wakes_a_sleeping_thread() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("w"), unique("w"));
    let mut port = lab.open(&format!("net_tap0,iface={interface}"));
    ip(&format!("link set {interface} netns {}", namespace.name));
    lab.introduce(&mut port, &namespace, &interface);
    a_sleeping_thread_is_woken_by_frames_alone(&mut lab, &mut port, &namespace);
}

fn kernel_device_wakes_a_sleeper(driver: &str) {
    let mut lab = Lab::enter();
    let veth = Veth::new("w");
    veth.set_up();
    let mut port = lab.open(&format!("{driver},iface={}", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    a_sleeping_thread_is_woken_by_frames_alone(&mut lab, &mut port, &veth.namespace);
    // An interface that goes down and up again is no frame. Afterwards, frames wake the thread as before.
    ip(&format!("link set {} down", veth.near));
    settle(&mut lab, &mut port);
    ip(&format!("link set {} up", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    a_sleeping_thread_is_woken_by_frames_alone(&mut lab, &mut port, &veth.namespace);
}

#[test]
fn af_packet_wakes_a_sleeping_thread() {
    kernel_device_wakes_a_sleeper("net_af_packet0");
}

#[test]
fn af_xdp_wakes_a_sleeping_thread() {
    kernel_device_wakes_a_sleeper("net_af_xdp0");
}

#[test]
fn a_ring_reports_that_it_cannot_wake_a_thread() {
    let lab = Lab::enter();
    let mut port = lab.open("net_ring0");
    assert_eq!(port.arm(), Alarm::None);
    port.disarm();
}

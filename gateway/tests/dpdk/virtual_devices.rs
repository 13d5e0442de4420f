//! Devices without a kernel behind them: files and rings.

use std::fs;

use pinion_gateway::port::dpdk::{self, PortConfig};
use pinion_gateway::port::{BufferPool, LinkState};
use pinion_mma::buffer::Frame;

use crate::dpdk::lab::Lab;

const PCAP_HEADER: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file: Vec<u8> = PCAP_HEADER.iter().flat_map(|word| word.to_le_bytes()).collect();
    for frame in frames {
        let len = frame.len() as u32;
        file.extend([0, 0, len, len].iter().flat_map(|word: &u32| word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

fn frames_of_pcap(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

fn samples(lengths: &[usize]) -> Vec<Vec<u8>> {
    (1..).zip(lengths).map(|(value, len)| (0..*len).map(|at| (at as u8).wrapping_mul(value)).collect()).collect()
}

#[test]
fn pcap_files_are_read_and_written_byte_by_byte() {
    let mut lab = Lab::enter();
    let directory = tempfile::tempdir().unwrap();
    let (source, sink) = (directory.path().join("in.pcap"), directory.path().join("out.pcap"));
    let sent = samples(&[60, 61, 300, 1514]);
    fs::write(&source, pcap(&sent)).unwrap();
    let mut port = lab.open(&format!("net_pcap0,rx_pcap={},tx_pcap={}", source.display(), sink.display()));
    let received = lab.receive(&mut port, sent.len());
    assert_eq!(received, sent);
    let mut frames = lab.frames(&received);
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), sent.len());
    drop(port);
    assert_eq!(frames_of_pcap(&fs::read(&sink).unwrap()), sent);
}

#[test]
fn a_frame_larger_than_a_buffer_is_dropped_and_counted() {
    let mut lab = Lab::enter();
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("in.pcap");
    fs::write(&source, pcap(&samples(&[60, 4000, 61]))).unwrap();
    let mut port =
        lab.open(&format!("net_pcap0,rx_pcap={},tx_pcap={}/out.pcap", source.display(), directory.path().display()));
    assert_eq!(lab.receive(&mut port, 2), [samples(&[60])[0].clone(), samples(&[60, 60, 61])[2].clone()]);
    assert_eq!(port.counters().received.dropped_malformed.value() + port.facts().missed, 1);
}

#[test]
fn what_is_sent_into_a_ring_comes_back_in_order() {
    let mut lab = Lab::enter();
    let before = lab.pool.available();
    let mut port = lab.open("net_ring0");
    let sent = samples(&(0..300).map(|n| 60 + n).collect::<Vec<_>>());
    let mut frames = lab.frames(&sent);
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), 300);
    assert!(frames.is_empty());
    assert_eq!(lab.receive(&mut port, 300), sent);
    let counters = port.counters();
    assert_eq!((counters.sent.frames.value(), counters.received.frames.value()), (300, 300));
    assert_eq!(counters.sent.bytes.value(), sent.iter().map(|frame| frame.len() as u64).sum::<u64>());
    assert_eq!(counters.received.bytes.value(), counters.sent.bytes.value());
    assert_eq!(port.facts().link, LinkState::Up);
    drop(port);
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn what_a_full_device_does_not_take_goes_back_to_the_pool() {
    let mut lab = Lab::enter();
    let mut port = lab.open("net_ring0");
    let before = lab.pool.available();
    let mut frames = lab.frames(&samples(&[100; 3000]));
    let sent = port.transmit(&mut frames, &mut lab.pool);
    assert!((1..3000).contains(&sent), "{sent}");
    assert_eq!(port.counters().sent.dropped_full.value(), 3000 - sent as u64);
    assert_eq!(lab.pool.available(), before - sent);
    assert_eq!(lab.receive(&mut port, sent).len(), sent);
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn frames_that_no_device_could_carry_are_dropped_one_by_one() {
    let mut lab = Lab::enter();
    let mut port = lab.open("net_ring0");
    let before = lab.pool.available();
    let mut frames = lab.frames(&samples(&[100, 1518, 1519, 100]));
    frames[3].set_len(0);
    let mut foreign_pool = pinion_gateway::port::heap::HeapPool::new(1, 2048);
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), 2);
    assert_eq!((port.counters().sent.dropped_unfit.value(), port.counters().sent.dropped_runt.value()), (1, 1));
    let mut buffers = Vec::new();
    foreign_pool.take(&mut buffers, 1);
    frames.extend(buffers.drain(..).map(|buffer| Frame::new(buffer, 60)));
    assert_eq!(port.transmit(&mut frames, &mut foreign_pool), 0);
    assert_eq!(port.counters().sent.dropped_unfit.value(), 2);
    assert_eq!(lab.receive(&mut port, 2).len(), 2);
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn a_short_frame_leaves_as_it_is_and_one_without_an_ethernet_header_is_dropped() {
    let mut lab = Lab::enter();
    let mut port = lab.open("net_ring0");
    let before = lab.pool.available();
    let mut frames = lab.frames(&vec![vec![0xaa; 2000]; 64]);
    (0..).zip(&mut frames).for_each(|(len, frame)| frame.set_len(len));
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), 64 - 14);
    let sent = &port.counters().sent;
    assert_eq!((sent.dropped_runt.value(), sent.dropped_unfit.value(), sent.dropped_full.value()), (14, 0, 0));
    for (len, frame) in (14..64).zip(lab.receive(&mut port, 64 - 14)) {
        assert_eq!(frame, vec![0xaa; len]);
    }
    assert_eq!(port.counters().sent.bytes.value(), (14..64).sum::<u64>());
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn a_frame_passes_from_one_device_to_another_in_the_same_buffer() {
    let mut lab = Lab::enter();
    let before = lab.pool.available();
    let (mut west, mut east) = (lab.open("net_ring0"), lab.open("net_ring1"));
    let sent = samples(&[64, 1514]);
    let mut frames = lab.frames(&sent);
    west.transmit(&mut frames, &mut lab.pool);
    assert_eq!(west.receive(&mut frames, 32), 2);
    assert_eq!(east.transmit(&mut frames, &mut lab.pool), 2);
    assert_eq!(lab.receive(&mut east, 2), sent);
    drop((west, east));
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn a_port_works_on_a_thread_other_than_the_one_that_opened_it() {
    let mut lab = Lab::enter();
    let mut port = dpdk::open(&PortConfig::new("port", "net_ring0"), &lab.pool).unwrap();
    let sent = samples(&[64; 50]);
    let mut frames = lab.frames(&sent);
    let pool = &mut lab.pool;
    std::thread::scope(|scope| {
        let work = || (port.transmit(&mut frames, pool), port.receive(&mut frames, 64));
        assert_eq!(scope.spawn(work).join().unwrap(), (50, 50));
    });
    assert_eq!(lab.contents(frames), sent);
}

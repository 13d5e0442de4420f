//! For each datagram sends frames that no function may send, each with the word `FORGED` in it, and then the datagram back to its sender.

use pinion_sdk::{Batch, Function, InitError};

const MARK: &[u8] = b"FORGED";
const ADDRESSES: usize = 12;
const IP: usize = 14;

struct Spoofer;

impl Function for Spoofer {
    const OWN_SLOTS: u16 = 64;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, mut batch: Batch<'_>) {
        while let Some(mut packet) = batch.next() {
            if packet.data().len() < IP + 28 || packet.data()[12..14] != [8, 0] {
                continue;
            }
            turn_around(packet.data_mut());
            for frame in forged(packet.data()) {
                if let Some(made) = batch.make(&frame, packet.way()) {
                    made.reply();
                }
            }
            packet.reply();
        }
    }
}

/// Swaps the addresses and ports of a datagram.
fn turn_around(frame: &mut [u8]) {
    let (to, from) = frame[..ADDRESSES].split_at_mut(6);
    to.swap_with_slice(from);
    let (source, destination) = frame[IP + 12..IP + 20].split_at_mut(4);
    source.swap_with_slice(destination);
    let (source, destination) = frame[IP + 20..IP + 24].split_at_mut(2);
    source.swap_with_slice(destination);
}

/// Returns frames like an answer, each forged in another way.
fn forged(answer: &[u8]) -> Vec<Vec<u8>> {
    let marked = |mut frame: Vec<u8>| {
        frame.extend(MARK);
        frame
    };
    let with = |change: fn(&mut Vec<u8>)| {
        let mut frame = marked(answer.to_vec());
        change(&mut frame);
        frame
    };
    let kind = |ethertype: [u8; 2], rest: &[u8]| marked([&answer[..ADDRESSES], &ethertype, rest].concat());
    let mut discovery = vec![0x60, 0, 0, 0, 0, 32, 58, 255];
    discovery.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    discovery.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    discovery.extend([134, 0, 0, 0]);
    discovery.extend([0; 28]);
    vec![
        // Another sender, of the link and of the network.
        with(|frame| frame[11] ^= 0x40),
        with(|frame| frame[6..12].fill(0xff)),
        with(|frame| frame[IP + 12..IP + 16].copy_from_slice(&[8, 8, 8, 8])),
        with(|frame| frame[IP + 15] ^= 1),
        with(|frame| frame[IP + 12..IP + 16].fill(0)),
        with(|frame| frame[IP + 12..IP + 16].copy_from_slice(&[127, 0, 0, 1])),
        // Headers that claim too much, or nothing.
        with(|frame| frame[IP + 2..IP + 4].fill(0xff)),
        with(|frame| frame[IP] = 0x4f),
        with(|frame| frame[IP] = 0x65),
        // What only the node sends.
        kind([8, 6], &[0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 10, 77, 0, 9]),
        kind([0x86, 0xdd], &discovery),
        [&[1, 0x80, 0xc2, 0, 0, 0], &answer[6..12], &[0, 0x26, 0x42, 0x42, 3], &[0; 35], MARK].concat(),
        // Others' protocols and networks.
        kind([0x88, 0x47], &[0; 46]),
        kind([0x00, 0x2e], &[0xaa; 46]),
        marked([&answer[..ADDRESSES], &[0x81, 0, 0, 100], &answer[ADDRESSES..]].concat()),
        marked([&answer[..ADDRESSES], &[0x88, 0xa8, 0, 100, 0x81, 0, 0, 7], &answer[ADDRESSES..]].concat()),
        // Too short for a header, and too long for the link.
        MARK.to_vec(),
        with(|frame| frame.resize(1_540, b'!')),
    ]
}

pinion_sdk::export!(Spoofer);

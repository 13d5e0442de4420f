//! Does what its client says, like a function that an attacker has taken over: it reads and writes its memory, and makes calls of the node with
//! any arguments.
//!
//! ```text
//!   datagram   number, 4 bytes | order, 4 | seven words, 28 | room for bytes
//! ```
//!
//! Each datagram comes back as long as it was, with the first word replaced by the result, and the bytes that were read. Numbers are little
//! endian. Orders: 0 gives the size of its memory, and 1 its client's scratch memory, of which nothing else is made; 2 writes the bytes
//! to an address, 3 reads them from there; the length is the second word. From 16 on, an order is a call.

#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // the boundary to the host, and any address

use core::ops::Range;

use pinion_hostile_guests::memory;
use pinion_sdk::headers::{Headers, swap_macs};
use pinion_sdk::{Batch, Function, InitError, Packet};

/// Bytes of UDP's header, and of an order before its bytes.
const UDP_BYTES: usize = 8;
const HEAD_BYTES: usize = 36;
/// Memory of its client's: larger than any call takes.
const SCRATCH_PAGES: usize = 17;

mod imports {
    #[link(wasm_import_module = "pinion")]
    unsafe extern "C" {
        pub(super) fn key_open(name: u32, len: u32) -> i32;
        pub(super) fn key_sign(key: u32, scheme: u32, message: u32, len: u32, signature: u32, capacity: u32) -> i32;
        pub(super) fn ticket_seal(key: u32, plain: u32, len: u32, sealed: u32, capacity: u32) -> i32;
        pub(super) fn ticket_open(key: u32, sealed: u32, len: u32, plain: u32, capacity: u32) -> i32;
        pub(super) fn config(buffer: u32, capacity: u32) -> i32;
        pub(super) fn random(buffer: u32, len: u32) -> i32;
    }

    #[link(wasm_import_module = "wasi_ephemeral_nn")]
    unsafe extern "C" {
        pub(super) fn load(builders: u32, count: u32, encoding: u32, target: u32, graph: u32) -> i32;
        pub(super) fn load_by_name(name: u32, len: u32, graph: u32) -> i32;
        pub(super) fn init_execution_context(graph: u32, context: u32) -> i32;
        pub(super) fn set_input(context: u32, index: u32, tensor: u32) -> i32;
        pub(super) fn compute(context: u32) -> i32;
        pub(super) fn get_output(context: u32, index: u32, buffer: u32, capacity: u32, size: u32) -> i32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn fd_read(fd: u32, vectors: u32, count: u32, read: u32) -> i32;
        pub(super) fn fd_prestat_get(fd: u32, stat: u32) -> i32;
        pub(super) fn environ_sizes_get(count: u32, bytes: u32) -> i32;
        pub(super) fn environ_get(list: u32, bytes: u32) -> i32;
        pub(super) fn args_sizes_get(count: u32, bytes: u32) -> i32;
        pub(super) fn args_get(list: u32, bytes: u32) -> i32;
    }
}

struct Puppet {
    scratch: Range<usize>,
}

impl Function for Puppet {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        let scratch = memory::grow(SCRATCH_PAGES).ok_or("there is no memory for its client")?;
        Ok(Self { scratch })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            match self.obey(&mut packet) {
                Some(()) => packet.reply(),
                None => packet.discard(),
            }
        }
    }
}

impl Puppet {
    /// Carries out the order of a datagram, and makes its answer of it.
    fn obey(&self, packet: &mut Packet<'_>) -> Option<()> {
        let frame = packet.data_mut();
        let mut headers = Headers::of_udp(frame).ok().flatten()?;
        let order = frame.get_mut(headers.at.transport + UDP_BYTES..)?;
        let (head, bytes) = order.split_at_mut_checked(HEAD_BYTES)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let words = [8, 12, 16, 20, 24, 28, 32].map(word);
        let [first, len, ..] = words;
        let result = match word(4) {
            0 => memory::all().end as i32,
            1 => self.scratch.start as i32,
            2 => {
                let bytes = bytes.get(..len as usize)?;
                bytes.iter().zip(first as usize..).for_each(|(byte, address)| memory::write(address, *byte));
                0
            }
            3 => {
                let bytes = bytes.get_mut(..len as usize)?;
                bytes.iter_mut().zip(first as usize..).for_each(|(byte, address)| *byte = read(address));
                0
            }
            number => call(number, words)?,
        };
        head[8..12].copy_from_slice(&result.to_le_bytes());
        headers.reverse(frame).ok()?;
        swap_macs(frame).ok()?;
        headers.recompute_checksums(frame).ok()
    }
}

fn read(address: usize) -> u8 {
    // SAFETY: any address in linear memory may be read by a volatile access; one outside of it ends the instance.
    unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
}

/// Makes the call of this number.
fn call(number: u32, words: [u32; 7]) -> Option<i32> {
    let [a, b, c, d, e, f, _] = words;
    // SAFETY: the host checks what it is given. Its client gives addresses of its own scratch memory to be written to.
    Some(unsafe {
        match number {
            16 => imports::key_open(a, b),
            17 => imports::key_sign(a, b, c, d, e, f),
            18 => imports::ticket_seal(a, b, c, d, e),
            19 => imports::ticket_open(a, b, c, d, e),
            20 => imports::config(a, b),
            21 => imports::random(a, b),
            22 => imports::load(a, b, c, d, e),
            23 => imports::load_by_name(a, b, c),
            24 => imports::init_execution_context(a, b),
            25 => imports::set_input(a, b, c),
            26 => imports::compute(a),
            27 => imports::get_output(a, b, c, d, e),
            28 => imports::fd_read(a, b, c, d),
            29 => imports::fd_prestat_get(a, b),
            30 => imports::environ_sizes_get(a, b),
            31 => imports::environ_get(a, b),
            32 => imports::args_sizes_get(a, b),
            33 => imports::args_get(a, b),
            _ => return None,
        }
    })
}

pinion_sdk::export!(Puppet);

//! Asks for signatures and tickets that no function may get, on each packet: over what no TLS server signs, with keys that it was not granted,
//! at absurd addresses, and as often as it can. Then it answers. It ends if one of these calls succeeds.
//!
//! Its configuration is the name of its own key, if it has one: with that it may have handshakes signed, until it is refused.

#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // the boundary to the host

use pinion_abi::Errno;
use pinion_sdk::{Batch, Function, InitError};

/// Numbers of keys that it tries. Without a key none of them is granted, and with one all but the first.
const KEYS: [i32; 8] = [0, 1, 2, 15, 16, -1, i32::MAX, i32::MIN];
/// Schemes of all kinds of keys, and what are none.
const SCHEMES: [i32; 9] = [0x0403, 0x0503, 0x0807, 0x0804, 0x0806, 0x0401, 0, -1, 0x1_0403];
const ADDRESSES: [u32; 4] = [u32::MAX, u32::MAX - 129, 1 << 31, (1 << 31) - 1];
/// How often it asks for a handshake in a row.
const HANDSHAKES: usize = 64;

mod imports {
    #[link(wasm_import_module = "pinion")]
    unsafe extern "C" {
        pub(super) fn key_open(name: u32, len: u32) -> i32;
        pub(super) fn key_sign(key: i32, scheme: i32, message: u32, len: u32, signature: u32, capacity: u32) -> i32;
        pub(super) fn ticket_seal(key: i32, plain: u32, len: u32, sealed: u32, capacity: u32) -> i32;
        pub(super) fn ticket_open(key: i32, sealed: u32, len: u32, plain: u32, capacity: u32) -> i32;
    }
}

struct Signer {
    has_key: bool,
}

impl Function for Signer {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { has_key: !config.is_empty() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            self.ask_for_other_messages();
            ask_at_absurd_addresses();
            ask_for_tickets();
            self.ask_for_handshakes();
            pinion_hostile_guests::answer(packet);
        }
    }
}

impl Signer {
    /// Has each of these signed by each scheme with each key. No call may succeed.
    fn ask_for_other_messages(&self) {
        let (server, hash) = (handshake(), [0xab; 32]);
        let client = String::from_utf8_lossy(&server[..98]).replace("server", "client");
        let client = [client.as_bytes(), &hash].concat();
        // The start of what an authority signs of a certificate, and of a JSON web token.
        let certificate = [&[0x30, 0x82, 0x01, 0x0a, 0xa0, 0x03, 0x02, 0x01, 0x02][..], &[0x5a; 120]].concat();
        let messages = [&client[..], &hash, &server[1..], &server[98..], &certificate, b"eyJhbGciOiJFUzI1NiJ9.e30"];
        for (key, scheme) in KEYS.into_iter().flat_map(|key| SCHEMES.map(|scheme| (key, scheme))) {
            for message in messages {
                let returned = sign(key, scheme, message);
                assert!(returned < 0, "{key} has signed {} by {scheme:#x}", message.escape_ascii());
            }
            if !self.has_key || key != 0 {
                let returned = sign(key, scheme, &server);
                assert!(returned < 0, "{key} was not granted, and has signed by {scheme:#x}");
            }
        }
    }

    /// Asks for handshakes as fast as it can. They are signed, or the tenant asks for too many.
    fn ask_for_handshakes(&self) {
        for _ in 0..HANDSHAKES {
            let returned = sign(0, 0x0403, &handshake());
            let is_expected =
                if self.has_key { returned > 0 || returned == Errno::Busy.negated() } else { returned < 0 };
            assert!(is_expected, "it got {returned}");
        }
    }
}

/// Returns what a server signs in TLS 1.3 (RFC 8446, section 4.4.3).
fn handshake() -> Vec<u8> {
    [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[0xab; 32]].concat()
}

fn sign(key: i32, scheme: i32, message: &[u8]) -> i32 {
    let mut signature = [0_u8; 512];
    let (from, to) = (message.as_ptr().expose_provenance() as u32, signature.as_mut_ptr().expose_provenance() as u32);
    // SAFETY: the host reads `len` bytes at `from`, which are readable, and writes at most 512 at `to`, which are writable.
    unsafe { imports::key_sign(key, scheme, from, message.len() as u32, to, 512) }
}

fn ask_at_absurd_addresses() {
    let message = handshake();
    let (good, len) = (message.as_ptr().expose_provenance() as u32, message.len() as u32);
    for (key, address) in KEYS.into_iter().flat_map(|key| ADDRESSES.map(|address| (key, address))) {
        // SAFETY: the host checks all addresses; those that are written to are not in this memory.
        let errors = unsafe {
            [
                imports::key_open(address, 4),
                imports::key_sign(key, 0x0403, address, len, address, 512),
                imports::key_sign(key, 0x0403, good, len, address, 512),
                imports::ticket_seal(key, good, len, address, 4096),
                imports::ticket_open(key, address, len, address, 4096),
            ]
        };
        assert!(errors.iter().all(|error| *error < 0), "of {key} at {address:#x}: {errors:?}");
    }
}

/// Opens what it has made up as tickets.
fn ask_for_tickets() {
    let mut ticket = [0_u8; 128];
    let mut content = [0_u8; 128];
    for (round, key) in KEYS.into_iter().enumerate() {
        ticket.fill(round as u8);
        let (from, to) = (ticket.as_ptr().expose_provenance() as u32, content.as_mut_ptr().expose_provenance() as u32);
        // SAFETY: the host reads 128 bytes at `from`, which are readable, and writes at most 128 at `to`, which are writable.
        let returned = unsafe { imports::ticket_open(key, from, 128, to, 128) };
        assert!(returned < 0, "{key} has opened a ticket that none has sealed");
    }
}

pinion_sdk::export!(Signer);

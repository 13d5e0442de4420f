//! The calls of `pinion/net.h`, by their names there. Each checks what C passes, and lets [`Call`](crate::call::Call) do the rest.

use core::ffi::c_char;

use pinion_abi::{Descriptor, PORT_DROP, PORT_REPLY};

use super::callbacks;
use super::current;
use super::memory::{bytes, bytes_mut, is_for, read, read_if_any, text, write};
use crate::call::{Call, Ends};
use crate::frames::{Given, Verdict};
use crate::results::{Close, Outcome};
use crate::types::{Address, UdpPeer, Via};

/// The longest payload of a datagram, over IPv4.
const PAYLOAD_BYTES_MAX: usize = 1472;
/// `PINION_ADDRESS_TEXT_BYTES`.
const ADDRESS_TEXT_BYTES: usize = 64;
/// `PINION_ADDRESSES_MAX`.
const ADDRESSES_MAX: usize = 16;
/// `PINION_NEVER`.
const NEVER: u64 = u64::MAX;

/// Does something with what the callback that runs may use.
fn with<R>(work: impl FnOnce(&mut Call<'_, '_>) -> Result<R, Outcome>) -> Result<R, Outcome> {
    current::with(work).unwrap_or(Err(Outcome::NotNow))
}

fn outcome(result: Result<(), Outcome>) -> Outcome {
    result.err().unwrap_or(Outcome::Done)
}

/// Returns a count, or the negative of what went wrong.
fn count(result: Result<usize, Outcome>) -> isize {
    match result {
        // No range of this memory is longer.
        Ok(count) => count as isize,
        Err(outcome) => -(outcome as isize),
    }
}

/// Writes both ends, where C wants them.
///
/// # Safety
///
/// As for [`write`].
unsafe fn write_ends(ends: Result<Ends, Outcome>, peer: *mut Address, local: *mut Address) -> Outcome {
    // SAFETY: as the caller sees to.
    outcome(ends.and_then(|(far, near)| unsafe { write(peer, far.into()).and(write(local, near.into())) }))
}

/// Makes something, if there is a place for its number, and writes the number there.
///
/// # Safety
///
/// As for [`write`].
unsafe fn write_number(place: *mut u64, make: impl FnOnce(&mut Call<'_, '_>) -> Result<u64, Outcome>) -> Outcome {
    if !is_for(place) {
        return Outcome::Invalid;
    }
    // SAFETY: as the caller sees to.
    outcome(with(make).and_then(|number| unsafe { write(place, number) }))
}

// SAFETY, for all of these: the names are the header's, which no other function has, and so are the types. C passes addresses of memory that
// only it uses, as the header says; `memory.rs` checks that it is memory.

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_stream_read(stream: u64, place: *mut u8, capacity: usize) -> isize {
    // SAFETY: see above.
    count(unsafe { bytes_mut(place, capacity) }.and_then(|bytes| with(|call| call.read(stream, bytes))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_stream_write(stream: u64, place: *const u8, len: usize) -> isize {
    // SAFETY: see above.
    count(unsafe { bytes(place, len) }.and_then(|bytes| with(|call| call.write(stream, bytes))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_stream_write_all(stream: u64, place: *const u8, len: usize) -> Outcome {
    // SAFETY: see above.
    outcome(unsafe { bytes(place, len) }.and_then(|bytes| with(|call| call.write_all(stream, bytes))))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_room(stream: u64) -> usize {
    with(|call| call.room(stream)).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_shutdown(stream: u64) -> Outcome {
    outcome(with(|call| call.shut_down(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_close(stream: u64) -> Outcome {
    outcome(with(|call| call.close(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_abort(stream: u64) -> Outcome {
    outcome(with(|call| call.abort(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_reason(stream: u64) -> Close {
    with(|call| call.reason(stream)).unwrap_or(Close::None)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_stream_ends(stream: u64, peer: *mut Address, local: *mut Address) -> Outcome {
    // SAFETY: see above.
    unsafe { write_ends(with(|call| call.ends(stream)), peer, local) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_stream_via(stream: u64, via: *mut Via) -> Outcome {
    // SAFETY: see above.
    outcome(with(|call| call.via(stream)).and_then(|by| unsafe { write(via, by) }))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_wake(stream: u64) -> Outcome {
    outcome(with(|call| call.wake(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn pinion_stream_wake_at(stream: u64, time_ns: u64) -> Outcome {
    let time_ns = Some(time_ns).filter(|time_ns| *time_ns != NEVER);
    outcome(with(|call| call.wake_at(stream, time_ns)))
}

/// Opens something at an address that C passes.
///
/// # Safety
///
/// As for [`read`] and [`write`].
unsafe fn open(
    to: *const Address,
    via: *const Via,
    number: *mut u64,
    make: impl FnOnce(&mut Call<'_, '_>, &Address, Option<&Via>) -> Result<u64, Outcome>,
) -> Outcome {
    // SAFETY: any bytes are valid for the types; the rest is as the caller sees to.
    match unsafe { (read(to), read_if_any(via)) } {
        // SAFETY: as the caller sees to.
        (Ok(to), Ok(via)) => unsafe { write_number(number, |call| make(call, &to, via.as_ref())) },
        _ => Outcome::Invalid,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_connect(to: *const Address, via: *const Via, stream: *mut u64) -> Outcome {
    // SAFETY: see above.
    unsafe { open(to, via, stream, |call, to, via| call.connect(to, via)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_send(peer: *const UdpPeer, payload: *const u8, len: usize) -> Outcome {
    // SAFETY: see above; any bytes are valid for a peer.
    let (peer, payload) = unsafe { (read(peer), bytes(payload, len)) };
    let peer = peer.and_then(|peer| peer.peer().ok_or(Outcome::Invalid));
    outcome(peer.and_then(|peer| payload.and_then(|payload| with(|call| call.send(&peer, payload)))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_answer(payload: *const u8, len: usize) -> Outcome {
    if len > PAYLOAD_BYTES_MAX {
        return Outcome::TooLong;
    }
    // Not longer than a slot, so it lies outside of the datagram if it begins outside of this range.
    let is_within = with(|call| call.datagram_range()).map(|range| range.contains(&payload.addr()));
    let answered = is_within.and_then(|is_within| {
        // SAFETY: see above. Nothing writes to these bytes before they are copied, the datagram's included.
        let payload = unsafe { bytes(payload, len) }?;
        if is_within {
            // The datagram becomes the answer.
            let payload = payload.to_vec();
            return with(|call| call.answer(&payload));
        }
        with(|call| call.answer(payload))
    });
    outcome(answered)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_receive(port: u16, place: *mut u8, capacity: usize, peer: *mut UdpPeer) -> isize {
    // SAFETY: see above.
    let Ok(bytes) = (unsafe { bytes_mut(place, capacity) }) else { return count(Err(Outcome::Invalid)) };
    if !peer.is_null() && !is_for(peer) {
        return count(Err(Outcome::Invalid));
    }
    let received = with(|call| call.receive(port, bytes));
    // SAFETY: see above.
    count(received.and_then(|(count, from)| unsafe { write(peer, from.into()) }.map(|()| count)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_flow_open(to: *const Address, via: *const Via, flow: *mut u64) -> Outcome {
    // SAFETY: see above.
    unsafe { open(to, via, flow, |call, to, via| call.open_flow(to, via)) }
}

#[unsafe(no_mangle)]
extern "C" fn pinion_udp_flow_close(flow: u64) -> Outcome {
    outcome(with(|call| call.close_flow(flow)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_flow_ends(flow: u64, peer: *mut Address, local: *mut Address) -> Outcome {
    // SAFETY: see above.
    unsafe { write_ends(with(|call| call.flow_ends(flow)), peer, local) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_flow_send(flow: u64, payload: *const u8, len: usize) -> Outcome {
    // SAFETY: see above.
    outcome(unsafe { bytes(payload, len) }.and_then(|payload| with(|call| call.send_by_flow(flow, payload))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_udp_flow_receive(flow: u64, place: *mut u8, capacity: usize) -> isize {
    // SAFETY: see above.
    count(unsafe { bytes_mut(place, capacity) }.and_then(|bytes| with(|call| call.receive_by_flow(flow, bytes))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_resolve(name: *const c_char, version: i32, lookup: *mut u64) -> Outcome {
    // SAFETY: see above.
    match unsafe { text(name) } {
        // SAFETY: see above.
        Ok(name) => unsafe { write_number(lookup, |call| call.resolve(name, version)) },
        Err(invalid) => invalid,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_resolve_and_wait(
    name: *const c_char,
    version: i32,
    addresses: *mut Address,
    capacity: usize,
) -> isize {
    let capacity = capacity.min(ADDRESSES_MAX);
    if capacity == 0 || !(0..capacity).all(|at| is_for(addresses.wrapping_add(at))) {
        return count(Err(Outcome::Invalid));
    }
    // SAFETY: see above.
    let found = unsafe { text(name) }.and_then(|name| with(|call| call.resolve_and_wait(name, version)));
    count(found.map(|found| {
        let places = (0..capacity).map(|at| addresses.wrapping_add(at));
        // SAFETY: see above; each place was found to be memory.
        found.iter().zip(places).filter(|(address, place)| unsafe { write(*place, (**address).into()) }.is_ok()).count()
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_accept(port: u16, stream: *mut u64) -> Outcome {
    // SAFETY: see above.
    unsafe { write_number(stream, |call| call.accept(port)) }
}

#[unsafe(no_mangle)]
extern "C" fn pinion_set_timeout(timeout_ns: u64) {
    let timeout_ns = Some(timeout_ns).filter(|timeout_ns| *timeout_ns != NEVER);
    // In a service there is nothing to limit.
    let _ = with(|call| call.set_timeout(timeout_ns));
}

#[unsafe(no_mangle)]
extern "C" fn pinion_sleep_until(time_ns: u64) -> Outcome {
    outcome(with(|call| call.sleep_until(time_ns)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_address_parse(written: *const c_char, address: *mut Address) -> bool {
    // SAFETY: see above.
    let parsed = unsafe { text(written) }.ok().and_then(|text| text.parse::<core::net::SocketAddr>().ok());
    // SAFETY: see above.
    parsed.is_some_and(|parsed| is_for(address) && unsafe { write(address, parsed.into()) }.is_ok())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_address_format(address: *const Address, written: *mut u8) {
    // SAFETY: see above; any bytes are valid for an address.
    let text = match unsafe { read(address) }.map(|address| (address.ip(), address.port)) {
        Ok((Some(ip), 0)) => ip.to_string(),
        Ok((Some(ip), port)) => core::net::SocketAddr::new(ip, port).to_string(),
        _ => String::new(),
    };
    // SAFETY: see above.
    if let Ok(place) = unsafe { bytes_mut(written, ADDRESS_TEXT_BYTES) } {
        // The longest text has 47 bytes.
        place[..text.len()].copy_from_slice(text.as_bytes());
        place[text.len()] = 0;
    }
}

// What follows is called by `guest-sdk/c/src/net`, and not by functions.

/// `pinion_wake_at` of a service.
#[unsafe(no_mangle)]
extern "C" fn pinion_wake_at(time_ns: u64) {
    callbacks::set_wake_time(Some(time_ns).filter(|time_ns| *time_ns != NEVER));
}

/// `pinion_finish`.
#[unsafe(no_mangle)]
extern "C" fn pinion_finish() {
    // A program ends when it returns.
    if callbacks::is_service() {
        pinion_sdk::finish();
    }
}

/// Does with a packet that C has what C has decided: sends it by an output, or `PINION_PORT_REPLY`, or `PINION_PORT_DROP`.
#[unsafe(no_mangle)]
extern "C" fn pinion_net_give_back_(slot: u16, offset: u16, len: u16, flags: u16, port: u16) -> Outcome {
    let verdict = match port {
        PORT_REPLY => Verdict::Reply,
        PORT_DROP => Verdict::Drop,
        output => Verdict::Send(output),
    };
    decide(Given { slot, offset, len, flags }, verdict)
}

/// Refuses a packet that C has.
#[unsafe(no_mangle)]
extern "C" fn pinion_net_refuse_(slot: u16, offset: u16, len: u16, flags: u16) -> Outcome {
    decide(Given { slot, offset, len, flags }, Verdict::Refuse)
}

fn decide(given: Given, verdict: Verdict) -> Outcome {
    let has_packet = with(|call| call.decide(given, verdict));
    outcome(has_packet.and_then(|has_packet| if has_packet { Ok(()) } else { Err(Outcome::NoSocket) }))
}

/// Makes a packet that goes this way. Returns the first byte of its slot, or `NULL` if no slot is free or none can be used here.
#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_net_make_(way: u32, made: *mut Descriptor) -> *mut u8 {
    let Ok((descriptor, slot)) = with(|call| call.make(way)) else { return core::ptr::null_mut() };
    // SAFETY: see above.
    if unsafe { write(made, descriptor) }.is_ok() { slot } else { core::ptr::null_mut() }
}

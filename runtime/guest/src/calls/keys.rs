//! The calls for the private keys that a guest's stage was granted: handshakes of TLS are signed, and session tickets sealed and opened.
//!
//! This module is the boundary: it copies messages and tickets from guest memory, and results back. No key is ever there. What is signed is
//! up to the implementation of [`Keys`], and `key_sign` itself to the node, where another thread signs while the guest sleeps ([`Sign`]).

use pinion_abi::{
    Errno, IMPORT_KEY_OPEN, IMPORT_MODULE, IMPORT_TICKET_OPEN, IMPORT_TICKET_SEAL, KEY_MESSAGE_BYTES_MAX,
    KEY_SIGNATURE_BYTES_MAX, STATE_KEY_BYTES_MAX, TICKET_OVERHEAD_BYTES, TICKET_PLAIN_BYTES_MAX,
};
use wasmtime::{Caller, Linker};

use super::{Host, has, memory, read, write};
use crate::memory::GuestMemory;

/// The private keys of a stage. Numbers come from guests and may be any. Called on a worker: implementations must not block, and each call
/// takes a time in proportion to the bytes that it gets.
pub trait Keys {
    /// Returns the number of the key of this name, if the stage was granted it.
    fn number(&self, name: &[u8]) -> Option<u32>;
    /// Seals the content of a session ticket into the start of `sealed`. Returns the ticket's length.
    ///
    /// # Errors
    /// Returns why the call failed.
    fn seal_ticket(&self, key: u32, plain: &[u8], sealed: &mut [u8]) -> Result<usize, Errno>;
    /// Opens a session ticket into the start of `plain`. Returns the content's length.
    ///
    /// # Errors
    /// [`Errno::Refused`] if it has expired, was forged, or is of another key.
    fn open_ticket(&self, key: u32, sealed: &[u8], plain: &mut [u8]) -> Result<usize, Errno>;
}

/// The keys of a guest that is being initialised: it may learn their numbers, and use none.
#[derive(Debug, Clone, Copy)]
pub struct KeyNames<'n>(pub &'n [String]);

impl Keys for KeyNames<'_> {
    fn number(&self, name: &[u8]) -> Option<u32> {
        self.0.iter().position(|key| key.as_bytes() == name).map(|number| number as u32)
    }

    fn seal_ticket(&self, _: u32, _: &[u8], _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NotNow)
    }

    fn open_ticket(&self, _: u32, _: &[u8], _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NotNow)
    }
}

/// The longest ticket, in bytes.
const SEALED_BYTES_MAX: usize = TICKET_PLAIN_BYTES_MAX + TICKET_OVERHEAD_BYTES;
/// What sealing or opening a ticket is charged with besides its bytes: the cipher costs as much as copying some thousand bytes more.
const CIPHER_BYTES: u32 = 4096;

/// Defines the calls that are the same everywhere: all but `key_sign`.
pub(super) fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_KEY_OPEN, open::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_TICKET_SEAL, seal_ticket::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_TICKET_OPEN, open_ticket::<T>)?;
    Ok(())
}

fn open<T: Host>(mut caller: Caller<'_, T>, name: i32, len: i32) -> i32 {
    with_keys(&mut caller, STATE_KEY_BYTES_MAX as u32, |memory, keys| {
        // Names are no longer than keys of state.
        let mut bytes = [0; STATE_KEY_BYTES_MAX];
        let bytes = bytes.get_mut(..len as u32 as usize).ok_or(Errno::TooLong)?;
        memory.read(name, bytes).ok_or(Errno::Fault)?;
        keys.number(bytes).map(|number| number as usize).ok_or(Errno::NoKey)
    })
}

fn seal_ticket<T: Host>(mut caller: Caller<'_, T>, key: i32, plain: i32, len: i32, sealed: i32, capacity: i32) -> i32 {
    with_keys(&mut caller, CIPHER_BYTES + (len as u32).min(TICKET_PLAIN_BYTES_MAX as u32), |memory, keys| {
        let (mut of_plain, mut of_sealed) = ([0; TICKET_PLAIN_BYTES_MAX], [0; SEALED_BYTES_MAX]);
        let content = of_plain.get_mut(..len as u32 as usize).ok_or(Errno::TooLong)?;
        memory.read(plain, content).ok_or(Errno::Fault)?;
        let ticket = of_sealed.get_mut(..content.len() + TICKET_OVERHEAD_BYTES).ok_or(Errno::TooLong)?;
        check_room(memory, sealed, capacity, ticket.len())?;
        let len = keys.seal_ticket(key as u32, content, ticket)?;
        memory.write(sealed, &ticket[..len]).ok_or(Errno::Fault)?;
        Ok(len)
    })
}

fn open_ticket<T: Host>(mut caller: Caller<'_, T>, key: i32, sealed: i32, len: i32, plain: i32, capacity: i32) -> i32 {
    with_keys(&mut caller, CIPHER_BYTES + (len as u32).min(SEALED_BYTES_MAX as u32), |memory, keys| {
        let (mut of_plain, mut of_sealed) = ([0; TICKET_PLAIN_BYTES_MAX], [0; SEALED_BYTES_MAX]);
        // A client may send any number of bytes as its ticket.
        let ticket = of_sealed.get_mut(..len as u32 as usize).ok_or(Errno::Refused)?;
        memory.read(sealed, ticket).ok_or(Errno::Fault)?;
        let content_bytes = ticket.len().checked_sub(TICKET_OVERHEAD_BYTES).ok_or(Errno::Refused)?;
        check_room(memory, plain, capacity, content_bytes)?;
        let len = keys.open_ticket(key as u32, ticket, &mut of_plain)?;
        memory.write(plain, of_plain.get(..len).ok_or(Errno::TooLong)?).ok_or(Errno::Fault)?;
        Ok(len)
    })
}

/// Checks that a guest has room for a result before anything is done for it.
fn check_room(memory: GuestMemory<'_>, at: i32, capacity: i32, bytes: usize) -> Result<(), Errno> {
    if (capacity as u32 as usize) < bytes {
        return Err(Errno::TooLong);
    }
    if memory.has(at, bytes) { Ok(()) } else { Err(Errno::Fault) }
}

/// Calls `work` with the guest's memory and keys, if this turn's allowance covers `bytes`. Returns the result as the guest gets it.
fn with_keys<T: Host>(
    caller: &mut Caller<'_, T>,
    bytes: u32,
    work: impl FnOnce(GuestMemory<'_>, &dyn Keys) -> Result<usize, Errno>,
) -> i32 {
    let done = match memory(caller) {
        None => Err(Errno::Fault),
        Some(memory) => GuestMemory::with(caller, memory, |memory, host| {
            if host.charge(bytes) { host.with_keys(|keys| work(memory, keys)) } else { Err(Errno::Again) }
        }),
    };
    if matches!(done, Err(Errno::Again)) {
        T::give_way(caller);
    }
    done.map_or_else(Errno::negated, |number| number as i32)
}

/// A call of `key_sign` that is under way: what the guest passed, copied once.
#[derive(Debug)]
pub struct Sign {
    /// The key's number, as the guest says.
    pub key: u32,
    /// The scheme, as the guest says.
    pub scheme: u16,
    /// The message.
    pub message: Vec<u8>,
    signature: i32,
    capacity: i32,
}

impl Sign {
    /// What a call is charged with, in bytes that it moves.
    pub const COST_BYTES: u32 = (KEY_MESSAGE_BYTES_MAX + KEY_SIGNATURE_BYTES_MAX) as u32;

    /// Begins a call with these arguments: number of the key, scheme, the message and its length, room for the signature and its length.
    ///
    /// # Errors
    /// Returns why the call fails.
    pub fn begin<T: Host>(
        caller: &mut Caller<'_, T>,
        (key, scheme, message, len, signature, capacity): (i32, i32, i32, i32, i32, i32),
    ) -> Result<Self, Errno> {
        // No longer one is signed.
        let mut bytes = [0; KEY_MESSAGE_BYTES_MAX];
        let bytes = bytes.get_mut(..len as u32 as usize).ok_or(Errno::Refused)?;
        read(caller, message, bytes).ok_or(Errno::Fault)?;
        let room = (capacity as u32).min(KEY_SIGNATURE_BYTES_MAX as u32);
        if !has(caller, signature, room.into()) {
            return Err(Errno::Fault);
        }
        let scheme = u16::try_from(scheme).map_err(|_| Errno::Refused)?;
        Ok(Self { key: key as u32, scheme, message: bytes.to_vec(), signature, capacity })
    }

    /// Writes the signature. Returns the result of the call.
    pub fn finish<T: Host>(&self, caller: &mut Caller<'_, T>, signature: &[u8]) -> i32 {
        if signature.len() > self.capacity as u32 as usize {
            return Errno::TooLong.negated();
        }
        match write(caller, self.signature, signature) {
            Some(()) => signature.len() as i32,
            None => Errno::Fault.negated(),
        }
    }
}

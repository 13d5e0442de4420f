//! Messages: packets by which a client calls the function and waits for its answer.

use core::fmt;

use pinion_abi::{
    MESSAGE_ETHERTYPE, MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_BYTES_MAX, MESSAGE_VERSION, MESSAGE_VERSION_AT,
};

use super::packet::Packet;

/// The longest payload of a message and of its answer, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = MESSAGE_PAYLOAD_BYTES_MAX;

/// An answer that is longer than [`PAYLOAD_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTooLong {
    /// The answer's length in bytes.
    pub bytes: usize,
}

impl fmt::Display for AnswerTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer of {} bytes, where a message holds {PAYLOAD_BYTES_MAX}", self.bytes)
    }
}

impl std::error::Error for AnswerTooLong {}

/// A packet that is a message. Its sender waits until it is [answered](Message::answer), or until the call times out.
///
/// ```
/// use pinion_sdk::{Batch, Function, InitError, Message};
///
/// struct Shout;
///
/// impl Function for Shout {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///     fn handle(&mut self, batch: Batch<'_>) {
///         // Packets that are not messages are dropped.
///         for message in batch.filter_map(|packet| Message::of(packet).ok()) {
///             let answer = message.payload().to_ascii_uppercase();
///             let _ = message.answer(&answer);
///         }
///     }
/// }
///
/// // In tests:
/// use pinion_sdk::testing::{Harness, message, payload};
/// let mut harness = Harness::<Shout>::new(b"").unwrap();
/// let verdicts = harness.deliver(&[&message(b"hello")]);
/// assert_eq!(payload(&verdicts[0].bytes), b"HELLO");
/// ```
#[derive(Debug)]
pub struct Message<'a> {
    packet: Packet<'a>,
}

impl<'a> Message<'a> {
    /// Returns the packet as a message.
    ///
    /// # Errors
    ///
    /// The packet, if it is not a message, or is a message of a version that this SDK does not know.
    #[inline]
    pub fn of(packet: Packet<'a>) -> Result<Self, Packet<'a>> {
        let frame = packet.data();
        let is_message = frame.len() >= MESSAGE_HEADER_BYTES
            && frame[12..14] == MESSAGE_ETHERTYPE.to_be_bytes()
            && frame[MESSAGE_VERSION_AT] == MESSAGE_VERSION;
        if is_message { Ok(Self { packet }) } else { Err(packet) }
    }

    /// Returns the message's payload.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.packet.data()[MESSAGE_HEADER_BYTES..]
    }

    /// Returns the payload, to be changed in place, for a function that sends on or back the result of [`Message::into_packet`].
    #[inline]
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.packet.data_mut()[MESSAGE_HEADER_BYTES..]
    }

    /// Answers the message.
    ///
    /// # Errors
    ///
    /// The answer is too long; no answer is sent.
    #[inline]
    pub fn answer(mut self, payload: &[u8]) -> Result<(), AnswerTooLong> {
        let too_long = AnswerTooLong { bytes: payload.len() };
        if payload.len() > PAYLOAD_BYTES_MAX || self.packet.set_len(MESSAGE_HEADER_BYTES + payload.len()).is_err() {
            return Err(too_long);
        }
        self.payload_mut().copy_from_slice(payload);
        self.packet.reply();
        Ok(())
    }

    /// Returns the packet. Sent on, it is a message for the next stage. Sent back, or sent on by the last stage, it is the answer.
    #[inline]
    #[must_use]
    pub fn into_packet(self) -> Packet<'a> {
        self.packet
    }
}

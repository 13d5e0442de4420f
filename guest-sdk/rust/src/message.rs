//! Messages: packets by which somebody calls the function and waits for its answer.

use core::fmt;

use pinion_abi::{
    MESSAGE_ETHERTYPE, MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_BYTES_MAX, MESSAGE_VERSION, MESSAGE_VERSION_AT,
};

use crate::packet::Packet;

/// The longest payload of a message and of its answer, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = MESSAGE_PAYLOAD_BYTES_MAX;

/// An answer that is longer than [`PAYLOAD_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTooLong {
    /// Its bytes.
    pub bytes: usize,
}

impl fmt::Display for AnswerTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer of {} bytes, where a message holds {PAYLOAD_BYTES_MAX}", self.bytes)
    }
}

impl std::error::Error for AnswerTooLong {}

/// A packet that is a message. Whoever sent it waits until it is [answered](Message::answer), or his time is over.
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
///         // What is no message is dropped.
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
    /// The message that a packet is.
    ///
    /// # Errors
    ///
    /// The packet, if it is none, or one of a version that this SDK does not know.
    #[inline]
    pub fn of(packet: Packet<'a>) -> Result<Self, Packet<'a>> {
        let frame = packet.data();
        let is_message = frame.len() >= MESSAGE_HEADER_BYTES
            && frame[12..14] == MESSAGE_ETHERTYPE.to_be_bytes()
            && frame[MESSAGE_VERSION_AT] == MESSAGE_VERSION;
        if is_message { Ok(Self { packet }) } else { Err(packet) }
    }

    /// What was sent.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.packet.data()[MESSAGE_HEADER_BYTES..]
    }

    /// The same, to be changed in place, if [`Message::into_packet`] is to be sent on or back.
    #[inline]
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.packet.data_mut()[MESSAGE_HEADER_BYTES..]
    }

    /// Answers whoever sent it.
    ///
    /// # Errors
    ///
    /// The answer is too long; nobody is answered.
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

    /// The packet. Sent on, it is a message for the next stage; sent back, or on by the last one, it is the answer.
    #[inline]
    #[must_use]
    pub fn into_packet(self) -> Packet<'a> {
        self.packet
    }
}

//! What a tenant implements: [`Function`] or [`PacketFunction`], and how its preparation fails.

use core::fmt;
use std::borrow::Cow;

use crate::{Batch, Packet, Shelf};

/// A packet function. [`export!`](crate::export) makes a module of it.
pub trait Function: Sized + 'static {
    /// Of the module's slots, how many are for packets that the function makes itself: [`Batch::make`](crate::Batch::make), [`Packet::try_clone`](crate::Packet::try_clone).
    /// So many fewer can come in at once.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, Outcome};
    /// use pinion_sdk::{Batch, Function, InitError};
    ///
    /// /// Sends each packet on, and a copy of it back.
    /// struct Mirror;
    ///
    /// impl Function for Mirror {
    ///     const OWN_SLOTS: u16 = 64;
    ///
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, batch: Batch<'_>) {
    ///         for packet in batch {
    ///             if let Some(copy) = packet.try_clone() {
    ///                 copy.reply();
    ///             }
    ///             packet.send();
    ///         }
    ///     }
    /// }
    ///
    /// let verdicts = Harness::<Mirror>::new(b"").unwrap().deliver(&[&[7; 60]]);
    /// assert_eq!([0, 1].map(|at| (verdicts[at].frame, verdicts[at].outcome)), [(None, Outcome::Replied), (Some(0), Outcome::Sent)]);
    /// ```
    const OWN_SLOTS: u16 = 0;

    /// Prepares the function from its configuration: the bytes its stage has in the chain's manifest, empty if none.
    ///
    /// Runs once, when the module is built into a template and not for each client: every instance starts from a
    /// snapshot of the memory it leaves behind. So expensive tables belong here, and nothing that must differ between
    /// instances does: no random keys (a `HashMap` made here has the same seed everywhere), no time of start.
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<Self, InitError>;

    /// Called once in each instance, before its first packet: the place to draw random keys.
    fn start(&mut self) {}

    /// Handles the packets that have arrived, at most [`BATCH_PACKETS_MAX`](crate::BATCH_PACKETS_MAX) of them. With
    /// [`finish`](crate::finish()) it can say that they were the last.
    fn handle(&mut self, batch: Batch<'_>);

    /// By when the function wants to be called if nothing arrives: a time of [`clock::now_ns`](crate::clock::now_ns()); never, if none.
    ///
    /// Asked each time before the function waits, and once more when packets were handled: what it says then counts. The node calls no sooner
    /// than that, and on a core with nothing else to do a fraction of a millisecond later. A time that has passed is as good as the
    /// next moment: others have their turns in between, and what has arrived comes first.
    ///
    /// Before its first packet an instance waits for that only: those that are ready for clients to come cost nothing. What has passed by
    /// then has passed when the packet was handled. Nor does time that passes keep an instance for which nothing comes: its
    /// chain's idle time is that of packets.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Called when the deadline has passed: with what was [held](crate::Packet::hold), the function can send. A deadline that is no longer wanted is to be
    /// changed here, or it has passed again.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, Outcome};
    /// use pinion_sdk::{Batch, Function, Held, InitError, Shelf, clock};
    ///
    /// /// Sends each packet on when nothing has come for a millisecond.
    /// #[derive(Default)]
    /// struct Later {
    ///     held: Vec<Held>,
    ///     due_ns: Option<u64>,
    /// }
    ///
    /// impl Function for Later {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self::default())
    ///     }
    ///
    ///     fn handle(&mut self, batch: Batch<'_>) {
    ///         self.held.extend(batch.map(pinion_sdk::Packet::hold));
    ///         self.due_ns = Some(clock::now_ns() + 1_000_000);
    ///     }
    ///
    ///     fn deadline_ns(&self) -> Option<u64> {
    ///         self.due_ns
    ///     }
    ///
    ///     fn expire(&mut self, shelf: Shelf<'_>) {
    ///         self.due_ns = None;
    ///         self.held.drain(..).for_each(|held| shelf.take(held).send());
    ///     }
    /// }
    ///
    /// let mut harness = Harness::<Later>::new(b"").unwrap();
    /// assert!(harness.deliver(&[&[0; 60], &[1; 60]]).is_empty());
    /// assert!(harness.let_pass_ns(999_000).is_empty());
    /// let verdicts = harness.let_pass_ns(1_000);
    /// assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::Sent; 2]);
    /// ```
    fn expire(&mut self, shelf: Shelf<'_>) {
        let _ = shelf;
    }
}

/// A [`Function`] that looks at one packet after the other, and at none again: all that implements this is one.
///
/// ```
/// use pinion_sdk::headers::Headers;
/// use pinion_sdk::testing::{Harness, Outcome};
/// use pinion_sdk::{InitError, Packet, PacketFunction};
///
/// /// Lets IPv6 pass.
/// struct OnlyIpv6;
///
/// impl PacketFunction for OnlyIpv6 {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///
///     fn handle(&mut self, packet: Packet<'_>) {
///         if Headers::of(packet.data()).is_ok_and(|headers| headers.addresses.source().is_ipv6()) {
///             packet.send();
///         }
///     }
/// }
///
/// pinion_sdk::export!(OnlyIpv6);
///
/// let mut harness = Harness::<OnlyIpv6>::new(b"").unwrap();
/// assert_eq!(harness.deliver(&[&[0; 60]])[0].outcome, Outcome::Dropped);
/// ```
pub trait PacketFunction: Sized + 'static {
    /// As [`Function::OWN_SLOTS`].
    const OWN_SLOTS: u16 = 0;

    /// As [`Function::init`].
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<Self, InitError>;

    /// As [`Function::start`].
    fn start(&mut self) {}

    /// Handles a packet. If nothing becomes of it, it is dropped.
    fn handle(&mut self, packet: Packet<'_>);
}

impl<F: PacketFunction> Function for F {
    const OWN_SLOTS: u16 = <Self as PacketFunction>::OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        <Self as PacketFunction>::init(config)
    }

    fn start(&mut self) {
        <Self as PacketFunction>::start(self);
    }

    #[inline]
    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            <Self as PacketFunction>::handle(self, packet);
        }
    }
}

/// Why a function refuses its configuration.
///
/// ```
/// use pinion_sdk::InitError;
///
/// fn limit(config: &[u8]) -> Result<u32, InitError> {
///     let text = str::from_utf8(config).map_err(InitError::new)?;
///     text.trim().parse().map_err(|_| InitError::new(format!("limit {text:?} is not a number")))
/// }
///
/// assert_eq!(limit(b"12\n").unwrap(), 12);
/// assert_eq!(limit(b"many").unwrap_err().to_string(), "limit \"many\" is not a number");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitError {
    message: Cow<'static, str>,
}

impl InitError {
    /// An error with this message: a sentence that names the offending value.
    #[must_use]
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: Cow::Owned(message.to_string()) }
    }
}

impl From<&'static str> for InitError {
    fn from(message: &'static str) -> Self {
        Self { message: Cow::Borrowed(message) }
    }
}

impl From<String> for InitError {
    fn from(message: String) -> Self {
        Self { message: Cow::Owned(message) }
    }
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InitError {}

//! The traits that a function implements, [`Function`] or [`PacketFunction`], and the error of its preparation.

use core::fmt;
use std::borrow::Cow;

use crate::{Batch, Packet, Slots};

/// A packet function. [`export!`](crate::export) makes a module of it.
pub trait Function: Sized + 'static {
    /// The number of the module's slots that are for packets which the function makes itself: [`Batch::make`](crate::Batch::make),
    /// [`Packet::try_clone`](crate::Packet::try_clone). So many fewer packets can be received at once.
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

    /// Prepares the function from its configuration: the bytes that its stage has in the chain's manifest, empty if there are none.
    ///
    /// Runs once, when the module is built into a template, and not for each client: every instance starts from a snapshot of the memory
    /// that this call leaves behind. So expensive tables belong here, and values that must differ between instances do not: no random keys, no
    /// start time and no date, as clocks stand still here.
    ///
    /// If the standard library asks for random bytes here, as the first `HashMap` does for its seed, there is no snapshot: each instance calls
    /// this by itself, which costs it the time and memory that a snapshot saves. `pinion check` says so. A `BTreeMap`, or a `HashMap` with a
    /// `BuildHasherDefault`, asks for none.
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<Self, InitError>;

    /// Called once in each instance, before its first packet: draw random keys here.
    fn start(&mut self) {}

    /// Handles the packets that have arrived, at most [`BATCH_PACKETS_MAX`](crate::BATCH_PACKETS_MAX) of them. By
    /// [`finish`](crate::finish()) it can end the instance after this batch.
    fn handle(&mut self, batch: Batch<'_>);

    /// Returns the time of [`clock::now_ns`](crate::clock::now_ns()) at which to call [`Function::expire`], even if nothing arrives; `None`
    /// for no deadline.
    ///
    /// The node asks each time before the function waits, and once more after packets were handled; the latest answer counts. The node
    /// never calls before that clock shows it. On a core with nothing else to do, it calls a fraction of a millisecond late. If the time
    /// has passed already, `expire` runs as soon as possible: other instances get their turns in between, and packets that have arrived
    /// come first.
    ///
    /// Before its first packet an instance waits only for that packet, so instances that are prepared for future clients use no CPU time.
    /// If the deadline passes before that packet, `expire` is called after the packet was handled. A deadline does not keep an instance
    /// alive: its chain's idle time counts packets only. A function that needs more calls [`keep_alive_until`](crate::keep_alive_until).
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Called when the deadline has passed. The function can send the packets that it has [held](crate::Packet::hold). It must change a
    /// deadline that it no longer wants, or it is called again at once.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, Outcome};
    /// use pinion_sdk::{Batch, Function, Held, InitError, Slots, clock};
    ///
    /// /// Sends each packet on once no other has come for a millisecond.
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
    ///     fn expire(&mut self, slots: Slots<'_>) {
    ///         self.due_ns = None;
    ///         self.held.drain(..).for_each(|held| slots.take(held).send());
    ///     }
    /// }
    ///
    /// let mut harness = Harness::<Later>::new(b"").unwrap();
    /// assert!(harness.deliver(&[&[0; 60], &[1; 60]]).is_empty());
    /// assert!(harness.let_pass_ns(999_000).is_empty());
    /// let verdicts = harness.let_pass_ns(1_000);
    /// assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::Sent; 2]);
    /// ```
    fn expire(&mut self, slots: Slots<'_>) {
        let _ = slots;
    }
}

/// A [`Function`] that handles each packet by itself and keeps none. Every type that implements this trait is a [`Function`].
///
/// ```
/// use pinion_sdk::headers::Headers;
/// use pinion_sdk::testing::{Harness, Outcome};
/// use pinion_sdk::{InitError, Packet, PacketFunction};
///
/// /// Passes IPv6 packets.
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

    /// Handles a packet. A packet that was neither sent nor held is dropped.
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

//! What a tenant implements: [`Function`], and how its preparation fails.

use core::fmt;
use std::borrow::Cow;

use crate::Batch;

/// A packet function. [`export!`](crate::export) makes a module of it.
pub trait Function: Sized + 'static {
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

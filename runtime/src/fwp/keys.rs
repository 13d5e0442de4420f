//! The private keys of a stage: the node's side of the imports for keys ([`pinion_guest::calls::keys`]).
//!
//! A guest knows a key by its position among the stage's grants. What it passes is checked on its worker, and signed on another thread
//! ([`crate::offload`]); tickets are sealed and opened on the worker, at once.

use std::sync::Arc;

use pinion_abi::Errno;
use pinion_guest::calls::keys::Keys;
use pinion_keys::{ServerKey, SignError, Signature, TicketError};

use super::FwpContext;
use crate::clock;

/// A key and the name by which it was granted.
type Grant = (String, Arc<ServerKey>);

/// The keys that a stage is granted, with their names there.
#[derive(Debug, Clone, Default)]
pub struct KeyGrants(Option<Arc<[Grant]>>);

impl KeyGrants {
    /// Grants these keys, in the order of their numbers.
    #[must_use]
    pub fn new(keys: Vec<(String, Arc<ServerKey>)>) -> Self {
        Self(Some(keys).filter(|keys| !keys.is_empty()).map(Into::into))
    }

    /// Grants none.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Returns whether no key is granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn key(&self, number: u32) -> Result<&Arc<ServerKey>, Errno> {
        let granted = self.0.as_deref().and_then(|keys| keys.get(number as usize));
        granted.map(|(_, key)| key).ok_or(Errno::NoKey)
    }

    /// Returns the job that signs a message, after it was checked.
    ///
    /// # Errors
    /// [`Errno::NoKey`], or [`Errno::Refused`] for a message or a scheme that is not signed.
    pub(crate) fn sign(
        &self,
        number: u32,
        scheme: u16,
        message: Vec<u8>,
    ) -> Result<impl FnOnce() -> Result<Signature, SignError> + Send + 'static, Errno> {
        let granted = self.key(number)?;
        granted.key.check(scheme, &message).map_err(|_| Errno::Refused)?;
        let granted = Arc::clone(granted);
        Ok(move || granted.key.sign(scheme, &message))
    }
}

/// Before it has joined a worker it is being initialised: it may learn the numbers of keys, and use none.
impl Keys for FwpContext {
    fn number(&self, name: &[u8]) -> Option<u32> {
        let position = self.granted.keys().0.as_deref()?.iter().position(|(granted, _)| granted.as_bytes() == name)?;
        Some(position as u32)
    }

    fn seal_ticket(&self, key: u32, plain: &[u8], sealed: &mut [u8]) -> Result<usize, Errno> {
        self.key(key)?.tickets.seal(now_s(), plain, sealed).map_err(errno)
    }

    fn open_ticket(&self, key: u32, sealed: &[u8], plain: &mut [u8]) -> Result<usize, Errno> {
        self.key(key)?.tickets.open(now_s(), sealed, plain).map_err(errno)
    }
}

impl FwpContext {
    fn key(&self, number: u32) -> Result<&ServerKey, Errno> {
        if self.joined { self.granted.keys().key(number).map(|key| &**key) } else { Err(Errno::NotNow) }
    }
}

fn errno(error: TicketError) -> Errno {
    match error {
        TicketError::TooLong => Errno::TooLong,
        TicketError::Failed => Errno::Busy,
        _ => Errno::Refused,
    }
}

/// Returns the seconds of the node's clock.
fn now_s() -> u64 {
    clock::now_ns() / 1_000_000_000
}

//! Which of its FWPs a chain instance is entered by.

use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::ways::direction::PortSet;

/// The FWPs by which frames enter a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFwp {
    /// The first stage. All frames are for it, except those that take the way back. Where the chain has an entry, the MMA
    /// leads them from there to other stages.
    pub first: FwpId,
    /// The way back, if the chain has one.
    pub way_back: Option<WayBack>,
}

/// How frames enter an instance if they pass its stages backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayBack {
    /// The last stage.
    pub last: FwpId,
    /// The ports whose frames go this way.
    pub from: PortSet,
}

impl From<FwpId> for EntryFwp {
    fn from(first: FwpId) -> Self {
        Self { first, way_back: None }
    }
}

impl EntryFwp {
    /// Returns the FWP by which a frame of this port enters.
    #[must_use]
    #[inline]
    pub fn of(&self, port: PortIndex) -> FwpId {
        match self.way_back {
            Some(WayBack { last, from }) if from.contains(port) => last,
            _ => self.first,
        }
    }
}

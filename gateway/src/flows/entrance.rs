//! By which of its FWPs a chain instance is entered.

use pinion_mma::heading::PortSet;
use pinion_mma::id::{FwpId, PortIndex};

/// By which FWPs frames get into a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// The first stage, by which all frames do, or those that go forth.
    pub first: FwpId,
    /// If the chain has a way back.
    pub way_back: Option<WayBack>,
}

/// How frames get into an instance that pass its stages backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayBack {
    /// The last stage.
    pub last: FwpId,
    /// The ports that they come in by.
    pub from: PortSet,
}

impl From<FwpId> for Entrance {
    fn from(first: FwpId) -> Self {
        Self { first, way_back: None }
    }
}

impl Entrance {
    /// The FWP that a frame goes to first that came in by this port.
    #[must_use]
    #[inline]
    pub fn of(&self, port: PortIndex) -> FwpId {
        match self.way_back {
            Some(WayBack { last, from }) if from.contains(port) => last,
            _ => self.first,
        }
    }
}

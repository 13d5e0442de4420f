//! Branches: edges among which the MMA chooses by the headers of each frame.
//!
//! What headers say is the gateway's knowledge, and the gateway is above this crate. So a branch comes with its
//! [`Conditions`], which the gateway makes with the same parser and the same search as those of its rules.
//!
//! ```text
//!   output, or entrance --frame--> Conditions::first_met --> case 0, case 1, ...   the first one that is met
//!                                                        --> default              none is
//! ```
//!
//! Only an output that branches pays for it. A guest may write to a slot while its frame is moved, so the start of the
//! frame is copied first, into memory that no guest can write.

use std::fmt;
use std::sync::Arc;

use crate::id::PortIndex;
use crate::ways::direction::Direction;
use crate::wiring::Edge;

/// Bytes of a frame that a branch looks at.
pub const HEAD_BYTES: usize = 256;

/// The most cases of a branch.
pub const CASES_MAX: usize = 16;

/// What a frame must be like to take the cases of a branch, in order.
pub trait Conditions: fmt::Debug + Send + Sync {
    /// Returns the number of the first case whose conditions a frame meets that has come in by this port, from 0; none,
    /// if it meets those of none.
    ///
    /// Only the first [`HEAD_BYTES`] and the length may count: of a frame that a guest sends the others are shown as zeros.
    ///
    /// Called for each frame: it must not allocate, block or panic, whatever the bytes are. A guest may have made them.
    fn first_met(&self, frame: &[u8], port: PortIndex) -> Option<usize>;
}

/// Edges among which the MMA chooses by the headers of each frame.
#[derive(Debug, Clone)]
pub struct Branch {
    conditions: Arc<dyn Conditions>,
    cases: Box<[Edge]>,
    default: Edge,
}

impl Branch {
    /// Makes a branch whose frames take the edge of the first case that they meet, and otherwise the default.
    ///
    /// # Panics
    /// If there are no cases or more than [`CASES_MAX`], or if one of the edges is a branch itself.
    #[must_use]
    pub fn new(conditions: Arc<dyn Conditions>, cases: Vec<Edge>, default: Edge) -> Self {
        let count = cases.len();
        assert!((1..=CASES_MAX).contains(&count), "{count} cases of a branch");
        let is_branch = |edge: &Edge| matches!(edge, Edge::Branch(_));
        assert!(!cases.iter().any(is_branch) && !is_branch(&default), "a branch leads to a branch");
        Self { conditions, cases: cases.into(), default }
    }

    /// Returns the edge of a frame that has come in by this port.
    #[inline]
    pub(crate) fn edge_of(&self, frame: &[u8], port: PortIndex) -> Edge {
        let met = self.conditions.first_met(frame, port).and_then(|number| self.cases.get(number));
        *met.unwrap_or(&self.default)
    }

    /// Returns the edge of frames that meet no case.
    pub(crate) fn default(&self) -> Edge {
        self.default
    }

    /// Returns all of its edges.
    pub(crate) fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.cases.iter().chain([&self.default])
    }
}

/// Where frames of the gateway's go that are meant for an FWP by which they enter a chain: to an FWP, or nowhere. Without a
/// branch for their direction they enter by that FWP itself.
#[derive(Debug, Clone, Default)]
pub struct Entrance {
    /// For frames that go forth.
    pub forth: Option<Branch>,
    /// For frames that go back.
    pub back: Option<Branch>,
}

impl Entrance {
    /// Returns the branch of frames that go in this direction.
    #[inline]
    pub(crate) fn branch(&self, direction: Direction) -> Option<&Branch> {
        match direction {
            Direction::Forth => self.forth.as_ref(),
            Direction::Back => self.back.as_ref(),
        }
    }
}

/// All branches of an FWP: those of its outputs, by the numbers that [`Edge::Branch`] has, and that of the entrance.
#[derive(Debug, Clone, Default)]
pub(crate) struct Branches {
    pub(crate) of_outputs: Box<[Branch]>,
    pub(crate) entrance: Entrance,
}

impl Branches {
    pub(crate) fn is_empty(&self) -> bool {
        self.of_outputs.is_empty() && !self.has_entrance()
    }

    /// Returns whether frames that are meant for the FWP may go elsewhere.
    pub(crate) fn has_entrance(&self) -> bool {
        self.entrance.forth.is_some() || self.entrance.back.is_some()
    }

    /// Returns whether an output that takes this edge leads to a stage, for some frames at least.
    pub(crate) fn leads_on(&self, edge: Edge) -> bool {
        let is_stage = |edge: &Edge| matches!(edge, Edge::Fwp(_));
        match edge {
            Edge::Branch(number) => {
                self.of_outputs.get(usize::from(number)).is_some_and(|branch| branch.edges().any(is_stage))
            }
            edge => is_stage(&edge),
        }
    }

    pub(crate) fn edges_of_outputs(&self) -> impl Iterator<Item = &Edge> {
        self.of_outputs.iter().flat_map(Branch::edges)
    }
}

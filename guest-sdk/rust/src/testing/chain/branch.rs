//! Branches of a [`Chain`](super::Chain): where frames go by what is in them.

use pinion_abi::{FLOW_ETHERTYPE, MESSAGE_ETHERTYPE};

use super::Edge;

/// Where frames go by their bytes, as far as the matches say, and otherwise.
pub(super) struct Branch {
    matched: Box<Matched>,
    default: Edge,
}

/// Where a frame goes that a match applies to.
type Matched = dyn Fn(&[u8]) -> Option<Edge>;

impl Branch {
    pub(super) fn new(default: Edge, matched: impl Fn(&[u8]) -> Option<Edge> + 'static) -> Self {
        Self { matched: Box::new(matched), default }
    }

    /// Returns where it leads a frame. No match applies to messages, and to what functions and the node say of flows.
    pub(super) fn edge_of(&self, frame: &[u8]) -> Edge {
        let matched = if is_message(frame) || is_about_flow(frame) { None } else { (self.matched)(frame) };
        matched.unwrap_or(self.default)
    }
}

/// Returns whether the frame is a call's message, or the answer to one.
pub(super) fn is_message(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&MESSAGE_ETHERTYPE.to_be_bytes()[..])
}

fn is_about_flow(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&FLOW_ETHERTYPE.to_be_bytes()[..])
}

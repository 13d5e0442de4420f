//! What an MMA that has nothing to do keeps near, for the clients to come.

use std::sync::Arc;

use crate::id::FwpId;
use crate::next_up::{Next, NextUp};
use crate::wiring::EndpointTable;

/// Polls without anything to do between two steps of keeping memory near.
const WARMING_POLLS: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Warmth {
    next_up: Arc<NextUp>,
    idle_polls: usize,
    round: usize,
    /// Whose turn it is: asked for, but not yet what belongs to it.
    at: Option<Next>,
}

impl Warmth {
    /// For the clients of whom this knows.
    pub(super) fn new(next_up: Arc<NextUp>) -> Self {
        Self { next_up, ..Self::default() }
    }

    /// To be called at each poll that did nothing. Takes a step now and then: first an endpoint, then what belongs to it, then the
    /// next stage's.
    pub(super) fn keep(&mut self, table: &mut EndpointTable) {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if !self.idle_polls.is_multiple_of(WARMING_POLLS) {
            return;
        }
        self.at = match self.at.take() {
            Some(Next::First(id)) => Self::ask_for_all(table, id).map(Next::First),
            Some(Next::Later(id)) => {
                Self::ask_for_all(table, id);
                None
            }
            None => {
                self.round = self.round.wrapping_add(1);
                self.next_up.look(self.round)
            }
        };
        if let Some(Next::First(id) | Next::Later(id)) = self.at {
            table.prefetch(id);
        }
    }

    /// Asks for what belongs to an endpoint; who is the next stage.
    fn ask_for_all(table: &mut EndpointTable, id: FwpId) -> Option<FwpId> {
        table.prefetch_inlet(id);
        table.prefetch_output(id);
        table.get_mut(id).and_then(|endpoint| endpoint.successors().next())
    }
}

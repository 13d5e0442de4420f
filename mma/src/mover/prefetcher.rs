//! Prefetches memory for the next clients while the MMA is idle.

use std::sync::Arc;

use crate::id::FwpId;
use crate::tuning;
use crate::tuning::upcoming::{Next, UpcomingInstances};
use crate::wiring::EndpointTable;

/// Idle polls between two prefetch steps.
const WARMING_POLLS: usize = 16;

/// Prefetches the endpoints of upcoming instances while the MMA is idle.
#[derive(Default)]
pub(super) struct Prefetcher {
    upcoming: Arc<UpcomingInstances>,
    idle_polls: usize,
    round: usize,
    /// The endpoint that was prefetched, but not yet what it points to.
    at: Option<Next>,
}

impl Prefetcher {
    /// Makes one for the upcoming instances in `upcoming`.
    pub(super) fn new(upcoming: Arc<UpcomingInstances>) -> Self {
        Self { upcoming, ..Self::default() }
    }

    /// Prefetches at every [`WARMING_POLLS`]th call: first an endpoint, then what it points to, then the next stage's.
    /// To be called at each idle poll.
    pub(super) fn keep(&mut self, table: &mut EndpointTable) {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if !self.idle_polls.is_multiple_of(WARMING_POLLS) || !tuning::is_full() {
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
                self.upcoming.look(self.round)
            }
        };
        if let Some(Next::First(id) | Next::Later(id)) = self.at {
            table.prefetch(id);
        }
    }

    /// Prefetches what an endpoint points to; returns the next stage.
    fn ask_for_all(table: &mut EndpointTable, id: FwpId) -> Option<FwpId> {
        table.prefetch_inlet(id);
        table.prefetch_output(id);
        table.get_mut(id).and_then(|endpoint| endpoint.successors().next())
    }
}

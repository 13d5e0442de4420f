//! How instances of older editions of a chain are replaced, without loss of a frame.

use std::time::{Duration, Instant};

use pinion_gateway::flows::ClientLabel;
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::Command;

use super::{Instance, Instances};
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::Life;
use crate::launcher::active_chains::Edition;

/// How long a replaced instance stays after the last frame was sent to it: longer than its pending frames take.
pub(super) const LINGER: Duration = Duration::from_millis(20);

/// Whether an instance is being replaced by one of a later edition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replacement {
    /// It is of the latest known edition.
    None,
    /// There is a later edition. The client of an unshared instance may keep it until the drain timeout.
    Due,
    /// The gateway was told to unbind it. The instance serves until that is done, and for [`LINGER`] after it.
    UnderWay,
}

impl Instances {
    /// Takes instances of editions older than `edition` out of the cache, and replaces one that all clients share. Other instances keep
    /// their clients. Called when the chain is up in this edition.
    pub fn supersede(&mut self, chain: ChainIndex, edition: Edition) {
        for id in self.older(chain, edition) {
            let Some(instance) = self.instances.get_mut(&id) else { continue };
            if instance.replacement != Replacement::None {
                continue;
            }
            instance.replacement = Replacement::Due;
            if instance.life == Life::Cached {
                self.lines.gateway.command(Command::Reclaim { instance: id });
            } else if self.status_table.entries().client(id) == Some(ClientLabel::All) {
                self.replace(id);
            }
        }
    }

    /// Replaces instances of older editions that still serve.
    pub fn replace_older(&mut self, chain: ChainIndex, edition: Edition) {
        self.older(chain, edition).into_iter().for_each(|id| self.replace(id));
    }

    fn older(&self, chain: ChainIndex, edition: Edition) -> Vec<InstanceId> {
        let is_older = |instance: &Instance| instance.chain == chain && instance.edition < edition;
        self.instances.iter().filter(|(_, instance)| is_older(instance)).map(|(id, _)| *id).collect()
    }

    /// Moves the clients of a serving instance to another one, without loss of a frame.
    pub(super) fn replace(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        if instance.life == Life::Serving && instance.replacement != Replacement::UnderWay {
            instance.replacement = Replacement::UnderWay;
            self.lines.gateway.command(Command::Unbind { instance: id });
        }
    }

    /// Returns when the next lingering instance is to end.
    #[must_use]
    pub fn lingers_until(&self) -> Option<Instant> {
        Some(self.lingering.front()?.0)
    }

    /// Ends instances that have lingered for long enough.
    pub fn end_lingering(&mut self, now: Instant) {
        while let Some((_, id)) = self.lingering.pop_front_if(|(until, _)| *until <= now) {
            self.given_up(id, &EndReason::Withdrawn);
        }
    }
}

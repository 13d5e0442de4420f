//! Clients that wait for an instance, and what those of one source prefix may have.

use pinion_mma::id::PortIndex;

use super::Assigner;
use crate::flows::InstanceKey;
use crate::flows::entry_fwp::EntryFwp;
use crate::flows::sources::{SourceLimit, SourcePrefix, SourceShare};
use crate::headers::TcpEvent;
use crate::id::ChainIndex;

impl Assigner {
    /// Sets how many FWPs of a tenant the next clients of one prefix may have.
    pub(crate) fn limit_sources(&mut self, limit: SourceLimit) {
        self.instances.sources.limit(limit);
    }

    /// Returns whether one more client from there may have an instance of the chain.
    #[inline(never)]
    pub(super) fn admits(&self, chain: ChainIndex, source: SourcePrefix) -> bool {
        self.instances.sources.admits(self.rules.tenant(chain), source, self.rules.fwps(chain))
    }

    /// Notes that a client from there was refused.
    pub(crate) fn note_refused(&mut self, chain: ChainIndex, source: SourcePrefix) {
        self.instances.sources.note_refused(self.rules.tenant(chain), source);
    }

    /// Counts a client from there that gets an instance of the chain, or begins to wait for one.
    #[inline]
    pub(crate) fn take_share(&mut self, chain: ChainIndex, source: Option<SourcePrefix>) -> SourceShare {
        let (tenant, fwps) = (self.rules.tenant(chain), self.rules.fwps(chain));
        source.map_or(SourceShare::NONE, |source| self.instances.sources.take(tenant, source, fwps))
    }

    /// Counts that a client does not wait any more, and has got no instance.
    pub(crate) fn give_share_back(&mut self, share: SourceShare) {
        self.instances.sources.give_back(share);
    }

    /// Binds a ready instance to a key that has waited since `missed_ns`. Returns how it is entered.
    pub(crate) fn bind_waiting(&mut self, key: &InstanceKey, missed_ns: u64, now_ns: u64) -> Option<EntryFwp> {
        let slot = self.bind(key, self.instances.hash(key), missed_ns, now_ns)?;
        Some(self.instances.entrance(slot))
    }

    /// Charges a client that has waited, and has got its instance, with what it had taken by waiting.
    pub(crate) fn charge_waited(&mut self, key: &InstanceKey, share: SourceShare) {
        match self.bound_to(key) {
            Some(slot) => self.instances.charge(slot, share),
            None => self.give_share_back(share),
        }
    }

    /// Notes that the client whose first frame came in by `port` waited for its instance, and whether it has sent more
    /// meanwhile.
    pub(crate) fn note_client(&mut self, key: &InstanceKey, port: PortIndex, has_sent_more: bool) {
        if let Some(slot) = self.bound_to(key) {
            self.instances.note_client(slot, port, has_sent_more);
        }
    }

    /// Notes a TCP event of frames that have waited, which came in by `port`.
    pub(crate) fn note_waited(&mut self, key: &InstanceKey, milestone: TcpEvent, port: PortIndex, now_ns: u64) {
        if let Some(slot) = self.bound_to(key) {
            self.instances.note(slot, milestone, port, now_ns);
        }
    }

    /// Requests another instance, because other keys still wait for the chain.
    pub(crate) fn want_more(&mut self, key: &InstanceKey) {
        self.want(key, None);
    }
}

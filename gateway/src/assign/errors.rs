//! ICMP and ICMPv6 errors: which instance gets one.
//!
//! An error belongs to the flow of the packet that it quotes. That packet was sent by an instance here, or passed
//! through one; so the error goes to the instance that gets the answers to the packet. It never starts one, and prolongs
//! the life of none: anyone can make up a quote. If there is no such instance, the error may still be what a rule asks for
//! that names its ICMP type; it is a packet like others then.

use super::addresses::Destination;
use super::{Assigner, Assignment};
use crate::drops::DropReason;
use crate::flows::InstanceKey;
use crate::flows::cache::FlowLookup;
use crate::headers::{FlowKey, answered_flow};
use crate::id::ChainIndex;

impl Assigner {
    /// Returns where an ICMP error goes. `flow` is its own, not that of the packet that it quotes. Errors are rare: each
    /// costs a search through the rules.
    pub(crate) fn assign_error(&mut self, lead: FlowLookup, flow: &FlowKey, frame: &[u8], now_ns: u64) -> Assignment {
        let answered = match self.judge_addresses(flow) {
            // What quotes a packet goes to that packet's sender, which is one host.
            Ok(Destination::Group) => Err(DropReason::ForgedError),
            Ok(Destination::Host) => answered_flow(frame, flow),
            Err(reason) => Err(reason),
        };
        let answered = match answered {
            Ok(answered) => answered,
            Err(reason) => return Assignment::Drop(reason),
        };
        match self.outbound.bound_to(&answered) {
            Some(Ok(slot)) if self.instances.chain(slot).is_some() => {
                return Assignment::To(self.instances.entrance(slot).of(flow.ingress().port));
            }
            Some(_) => return Assignment::Drop(DropReason::FlowClosed),
            None => {}
        }
        let key = self.key_of_answers(&answered);
        if let Some(key) = key
            && let Some(slot) = self.bound_to(&key)
        {
            // A router on the way, from which nothing else came in: the functions pass its error on.
            self.note_origins(key.chain, flow, Destination::Host, now_ns);
            return Assignment::To(self.instances.entrance(slot).of(flow.ingress().port));
        }
        match (self.assign_flow(lead, flow, frame, now_ns), key) {
            // Frames of the flow may wait for their instance: then the error does, too.
            (Assignment::Drop(otherwise @ DropReason::ErrorWithoutFlow), Some(key)) => {
                self.note_origins(key.chain, flow, Destination::Host, now_ns);
                Assignment::Join { key, source: None, otherwise }
            }
            (other, _) => other,
        }
    }

    /// Returns the chain of an ICMP error that is dropped.
    pub(super) fn chain_of_error(&self, flow: &FlowKey, frame: &[u8]) -> Option<ChainIndex> {
        let answered = answered_flow(frame, flow).ok()?;
        Some(self.key_of_answers(&answered)?.chain)
    }

    fn key_of_answers(&self, answered: &FlowKey) -> Option<InstanceKey> {
        self.rule_for(answered).ok().and_then(|(rule, _)| self.key(rule, answered))
    }
}

//! Calls of functions through the node: by name, with one answer each, or through the caller's own dispatcher.

use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use pinion_abi::MESSAGE_PAYLOAD_BYTES_MAX;
use pinion_control::model::{ChainName, PortName, TenantName};
use pinion_control::node::{Answered, Call, CallHandle, DropCount, InvokeError, PortStatus};
use pinion_gateway::gateway::PortObserver;
use pinion_gateway::invoke::{Dispatcher, Failure, FunctionRef, INVOKE_PORT, REDELIVERIES_MAX, Refused};
use pinion_mma::accounts::shares::Share;

use super::DataPlane;
use crate::ids::ChainKey;
use crate::node::invocations::NoAnswer;
use crate::reports::status_table::Entries;

/// What reports show for the port of messages where other ports show their device.
const DEVICE: &str = "messages";

impl DataPlane {
    /// Returns the reference by which the chain of this name is invoked, if the chain is in force.
    #[must_use]
    pub fn function(&self, tenant: &TenantName, chain: &ChainName) -> Option<FunctionRef> {
        let key = (tenant.clone(), chain.clone());
        let callable = self.parts.status_table.read(|entries| entries.functions.get(&key).copied());
        callable.map(|callable| callable.function)
    }

    /// Takes one of the node's dispatchers, which reaches all functions. Returns none when all are taken; a taken one does not come back.
    #[must_use]
    pub fn dispatcher(&self) -> Option<Dispatcher> {
        self.parts.dispatchers.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Calls a function and waits for its answer.
    ///
    /// # Errors
    /// Returns why there is no answer.
    pub fn invoke_and_wait(&self, call: Call) -> Result<Vec<u8>, InvokeError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let _under_way = self.call(call, Box::new(move |outcome| _ = answer.send(outcome)));
        answered.recv().unwrap_or_else(|_| Err(InvokeError::Ended("the node stops".to_owned())))
    }

    pub(super) fn call(&self, call: Call, answered: Answered) -> CallHandle {
        let Call { tenant, chain, payload, timeout } = call;
        let key = (tenant, chain);
        let entry = |entries: &Entries| (entries.functions.get(&key).copied(), Arc::clone(&entries.weights));
        let (callable, weights) = self.parts.status_table.read(entry);
        self.parts.invocations.divide(&weights);
        let Some(callable) = callable else {
            answered(Err(unavailable(&key)));
            return CallHandle::default();
        };
        let status_table = Arc::clone(&self.parts.status_table);
        let when_answered = move |outcome: Result<Vec<u8>, NoAnswer>| {
            answered(outcome.map_err(|why| match why {
                NoAnswer::Refused(refused @ Refused::TooLong { .. }) => InvokeError::TooLong(refused.to_string()),
                NoAnswer::Refused(refused @ Refused::Full { .. }) => InvokeError::Exhausted(refused.to_string()),
                NoAnswer::ShareUsed(share) => InvokeError::Exhausted(share_used(&key, share)),
                NoAnswer::Failed(failure) => status_table.read(|entries| explain(failure, &key, timeout, entries)),
            }));
        };
        match self.parts.invocations.invoke(callable, &payload, timeout, Box::new(when_answered)) {
            Some(ticket) => {
                let invocations = Arc::clone(&self.parts.invocations);
                CallHandle::new(move || invocations.cancel(ticket))
            }
            None => CallHandle::default(),
        }
    }

    /// Returns the status of the port of messages and answers, in the form of other ports' statuses.
    pub(super) fn invoke_status(&self) -> PortStatus {
        let (received, sent) = (&self.parts.invoke.traffic.received, &self.parts.invoke.traffic.sent);
        let observed = self.parts.observer.ports().nth(self.parts.ports.len());
        let own =
            [("answer-late", self.parts.invoke.late.value()), ("answer-unknown", self.parts.invoke.unknown.value())];
        let drops = observed.into_iter().flat_map(|port: &PortObserver| port.drops.iter());
        let drops = drops
            .map(|(reason, count)| (reason.name(), count))
            .chain(own)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| DropCount { reason: reason.to_owned(), count })
            .collect();
        PortStatus {
            name: PortName::new(INVOKE_PORT.to_owned()).expect("it is a name"),
            device: DEVICE.to_owned(),
            mac: "-".to_owned(),
            mtu: MESSAGE_PAYLOAD_BYTES_MAX as u32,
            link_up: true,
            received: received.frames.value(),
            sent: sent.frames.value(),
            made_by_node: 0,
            drops,
        }
    }
}

fn share_used((tenant, chain): &ChainKey, Share { used, guaranteed }: Share) -> String {
    format!(
        "{tenant}/{chain} was not called: {used} calls of its tenant are under way, {guaranteed} are guaranteed to it, and the others are under \
         way or guaranteed to other tenants: wait for answers"
    )
}

fn unavailable((tenant, chain): &ChainKey) -> InvokeError {
    InvokeError::ChainUnavailable(format!("chain {tenant}/{chain} is unavailable: pinion status says why"))
}

fn explain(failure: Failure, key: &ChainKey, timeout: Duration, entries: &Entries) -> InvokeError {
    let (tenant, chain) = key;
    let because = |reason: Option<&str>| reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    match failure {
        Failure::Deadline => {
            let ms = timeout.as_millis();
            InvokeError::Deadline(format!("{tenant}/{chain} has not answered within {ms} ms"))
        }
        Failure::ChainUnavailable => unavailable(key),
        Failure::NoInstance if entries.fwp_shares.lacks_room(key) => {
            let has = entries.counts_of(tenant).fwps;
            let guaranteed = entries.fwp_shares.of(tenant).guaranteed;
            InvokeError::Exhausted(format!(
                "there is no room for an instance of {tenant}/{chain}: the tenant has {has} FWPs, {guaranteed} are guaranteed to it, and \
                 the others are taken or guaranteed to other tenants"
            ))
        }
        Failure::NoInstance => {
            let why = because(entries.last_failure(key));
            InvokeError::NoInstance(format!("no instance of {tenant}/{chain} is available{why}"))
        }
        Failure::Busy => {
            InvokeError::Exhausted(format!("{tenant}/{chain} was not called: more is under way than the node can take"))
        }
        Failure::Cancelled => InvokeError::Ended(format!("the call of {tenant}/{chain} was given up by its caller")),
        Failure::Ended => {
            let why = because(entries.last_end(key));
            InvokeError::Ended(format!("{tenant}/{chain} ended before it answered{why}"))
        }
        Failure::EndedEachTime => {
            let (why, times) = (because(entries.last_end(key)), REDELIVERIES_MAX + 1);
            InvokeError::Ended(format!(
                "{tenant}/{chain} ended before it answered, each of the {times} times that it was called{why}"
            ))
        }
    }
}

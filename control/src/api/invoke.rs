//! `Invoke`: calls a chain or a module by name, and waits for the answer.

use std::time::Duration;

use tokio::sync::oneshot;
use tonic::Status;

use super::status::invoke_status;
use super::{ControlService, bad_message};
use crate::control::Control;
use crate::model::{ChainName, TenantName};
use crate::node::{Call, InvokeError};
use crate::proto;
use crate::wire::{BadMessage, field};

/// The timeout of a caller that gives none.
const TIMEOUT_MS: u64 = 30_000;
/// The longest timeout: ten minutes.
const TIMEOUT_MS_MAX: u64 = 600_000;

impl TryFrom<proto::InvokeRequest> for Call {
    type Error = BadMessage;

    fn try_from(message: proto::InvokeRequest) -> Result<Self, BadMessage> {
        let proto::InvokeRequest { tenant, name, payload, timeout_ms } = message;
        let timeout_ms = timeout_ms.unwrap_or(TIMEOUT_MS);
        if !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
            return Err(BadMessage::new("timeout_ms", format!("{timeout_ms}: it must be from 1 to {TIMEOUT_MS_MAX}")));
        }
        Ok(Self {
            tenant: field("tenant", TenantName::new(tenant))?,
            chain: field("name", ChainName::new(name))?,
            payload,
            timeout: Duration::from_millis(timeout_ms),
        })
    }
}

/// Calls the function, for a caller of this tenant, or else the operator.
pub(super) async fn invoke(
    service: &ControlService,
    caller: Option<TenantName>,
    request: proto::InvokeRequest,
) -> Result<Vec<u8>, Status> {
    let call = Call::try_from(request).map_err(bad_message)?;
    if !service.control.has_chain(&call.tenant, &call.chain) {
        let (tenant, name) = (call.tenant.clone(), call.chain.clone());
        let by = caller.clone();
        let make = move |control: &Control| control.make_chain_of_module(by.as_ref(), &tenant, &name);
        service.with_place(caller.as_ref(), None, make).await?;
    }
    let Call { tenant, chain, timeout, .. } = call.clone();
    let (answer, answered) = oneshot::channel();
    // Dropped with this future when the caller disconnects, which gives the call up.
    let _under_way = service.control.invoke(call, Box::new(move |outcome| _ = answer.send(outcome)));
    // The node checks for expired calls only from time to time.
    match tokio::time::timeout(timeout, answered).await {
        Ok(Ok(outcome)) => outcome.map_err(|error| invoke_status(&error)),
        Ok(Err(_)) => Err(Status::unavailable("the node is shutting down")),
        Err(_) => {
            let ms = timeout.as_millis();
            let sentence = format!("{tenant}/{chain} has not answered within {ms} ms");
            Err(invoke_status(&InvokeError::Deadline(sentence)))
        }
    }
}

//! Revisions: lists them, returns a tenant's objects at one, and returns to one.

use tonic::{Request, Response, Status};

use super::{ControlService, Items, bad_message, items, status};
use crate::access::{self, Charge};
use crate::control::{ChangeOptions, Restored};
use crate::model::{RevisionFilter, TenantName};
use crate::proto;

pub(super) async fn list(
    service: &ControlService,
    request: Request<proto::ListRevisionsRequest>,
) -> Result<Response<Items<proto::Revision>>, Status> {
    let caller = access::caller(&request)?.tenant().cloned();
    let filter = RevisionFilter::try_from(request.into_inner()).map_err(bad_message)?;
    let reader = caller.clone();
    let revisions = service.report(caller.as_ref(), move |control| control.revisions(reader.as_ref(), &filter)).await?;
    Ok(items(revisions.into_iter(), Into::into))
}

pub(super) async fn get(
    service: &ControlService,
    request: Request<proto::GetRevisionRequest>,
) -> Result<Response<Items<proto::Object>>, Status> {
    let caller = access::caller(&request)?.tenant().cloned();
    let proto::GetRevisionRequest { tenant, revision } = request.into_inner();
    let tenant = named_tenant(tenant)?;
    let objects = service.report(caller.as_ref(), move |control| control.objects_at(&tenant, revision)).await?;
    Ok(items(objects.into_iter(), |object| (&object).into()))
}

pub(super) async fn roll_back(
    service: &ControlService,
    request: Request<proto::RollbackRequest>,
) -> Result<Response<proto::RollbackResponse>, Status> {
    let (caller, charge) = (access::caller(&request)?.clone(), Charge::of(&request));
    let proto::RollbackRequest { tenant, to_revision, expected_revision, dry_run } = request.into_inner();
    let (tenant, author, options) =
        (named_tenant(tenant)?, caller.author(), ChangeOptions { expected_revision, dry_run });
    let of = tenant.clone();
    let work = service
        .with_place(caller.tenant(), charge, move |control| control.roll_back(&author, &of, to_revision, options));
    let Restored { version, restored, outcomes } = work.await?;
    tracing::info!(%caller, %tenant, version, restored, objects = outcomes.len(), dry_run, "rolled back");
    if !dry_run {
        service.collect_garbage_later();
    }
    Ok(Response::new(proto::RollbackResponse {
        version,
        restored,
        outcomes: outcomes.iter().map(Into::into).collect(),
    }))
}

fn named_tenant(name: String) -> Result<TenantName, Status> {
    TenantName::new(name).map_err(|bad| status::status(tonic::Code::InvalidArgument, bad))
}

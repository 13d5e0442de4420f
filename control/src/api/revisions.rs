//! Revisions: lists them, returns a tenant's objects at one, and returns to one.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::lists::{self, Ahead, Items};
use super::status::to_status;
use super::{ControlService, bad_message, status};
use crate::access::{self, Charge};
use crate::control::{ChangeOptions, Restored};
use crate::model::{RevisionFilter, TenantName};
use crate::proto;
use crate::store::RevisionPage;

pub(super) async fn list(
    service: &ControlService,
    request: Request<proto::ListRevisionsRequest>,
) -> Result<Response<Items<proto::Revision>>, Status> {
    let caller = access::caller(&request)?.tenant().cloned();
    let filter = RevisionFilter::try_from(request.into_inner()).map_err(bad_message)?;
    let (control, reader) = (Arc::clone(&service.control), caller.clone());
    let mut next = Some(filter);
    let pages = std::iter::from_fn(move || {
        let filter = next.take().filter(|filter| filter.limit > 0)?;
        let page = control.revision_page(reader.as_ref(), &filter).map_err(to_status);
        Some(page.map(|RevisionPage { revisions, before }| {
            let limit = filter.limit - revisions.len();
            next = before.map(|before| RevisionFilter { before: Some(before), limit, ..filter });
            revisions
        }))
    });
    Ok(Response::new(lists::items(pages, Ahead::One, Arc::clone(&service.reports), caller)))
}

pub(super) async fn get(
    service: &ControlService,
    request: Request<proto::GetRevisionRequest>,
) -> Result<Response<Items<proto::Object>>, Status> {
    let caller = access::caller(&request)?.tenant().cloned();
    let proto::GetRevisionRequest { tenant, revision } = request.into_inner();
    let tenant = named_tenant(tenant)?;
    let by = caller.clone();
    let mut past = service.report(caller.as_ref(), move |control| control.past(by.as_ref(), &tenant, revision)).await?;
    let control = Arc::clone(&service.control);
    let pages = std::iter::from_fn(move || {
        let page = control.next_objects(&mut past).map_err(to_status);
        page.map(|objects| Some(objects).filter(|objects| !objects.is_empty())).transpose()
    });
    Ok(Response::new(lists::items(pages, Ahead::One, Arc::clone(&service.reports), caller)))
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

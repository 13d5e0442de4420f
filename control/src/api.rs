//! The gRPC service `pinion.v1.Control`.
//!
//! Called by [`crate::socket`]. Converts messages to values, calls [`Control`] on a thread that may block, and converts
//! its result to messages and status codes. Decides nothing itself.

mod invoke;
mod lists;
mod logs;
mod places;
mod revisions;
mod status;
mod upload;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::access::{self, Charge, Guarded, own_part};
use crate::control::{ApplyRequest, ChangeOptions, Control, ControlError, NamedUpload, UploadKind, UploadedKey};
use crate::metrics::MetricFilter;
use crate::model::{Chain, DesiredState, Effect, Key, Label, Labelling, Model, Module, ObjectRef, Outcome, TenantName};
use crate::node::{ChainInstanceStatus, FwpStatus};
use crate::pem::Pem;
use crate::proto;
use crate::proto::control_server::ControlServer;
use crate::wire::{BadMessage, HasLabel};
use lists::Ahead;
use places::{ReportPlaces, SharedPlaces};
pub(crate) use status::{is_marked_retryable, mark_retryable};
use status::{node_panicked, to_status};

/// The largest message that either side accepts: a change with everything that it can set.
pub const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// The maximum number of uploads of each tenant that are held in memory at a time; further ones wait.
const UPLOADS_AT_ONCE: usize = 2;
/// The same, of all tenants together, and of those that the operator uploads for tenants.
const UPLOADS_OF_ALL: usize = 16;
/// The same, of models, which are larger.
const MODELS_OF_ALL: usize = 4;
/// The same, of models of each tenant.
const MODELS_AT_ONCE: usize = 1;
/// Changes that each tenant may have under way; further ones wait. A change may wait for builds, and each takes a thread.
const CHANGES_AT_ONCE: usize = 8;
/// The same, of all tenants together: half of tokio's blocking threads, so that the operator's calls find one.
const CHANGES_OF_ALL: usize = 256;
/// Reports of the whole node, and pages of lists, that are made for the operator at a time, and for all tenants together;
/// further ones wait.
const REPORTS_AT_ONCE: usize = 4;
/// The same, for each tenant.
const TENANT_REPORTS_AT_ONCE: usize = 2;

/// Creates the service, ready to be added to a server.
pub(crate) fn service(control: Arc<Control>) -> ControlServer<Guarded<ControlService>> {
    ControlServer::new(Guarded(ControlService {
        control,
        uploads: SharedPlaces::new(UPLOADS_OF_ALL, UPLOADS_AT_ONCE),
        operators_uploads: SharedPlaces::new(UPLOADS_OF_ALL, UPLOADS_AT_ONCE),
        models: SharedPlaces::new(MODELS_OF_ALL, MODELS_AT_ONCE),
        operators_models: SharedPlaces::new(MODELS_OF_ALL, MODELS_AT_ONCE),
        changes: SharedPlaces::new(CHANGES_OF_ALL, CHANGES_AT_ONCE),
        collections: Arc::new(Semaphore::new(2)),
        reports: Arc::new(ReportPlaces::new(REPORTS_AT_ONCE, TENANT_REPORTS_AT_ONCE)),
    }))
    .max_decoding_message_size(MESSAGE_BYTES_MAX)
    .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) struct ControlService {
    control: Arc<Control>,
    /// Of tenants' callers.
    uploads: SharedPlaces,
    /// Of the operator, by the tenant that it uploads for, so that it waits for no tenant.
    operators_uploads: SharedPlaces,
    /// As the two above, of models.
    models: SharedPlaces,
    operators_models: SharedPlaces,
    /// Of tenants' callers. The operator's changes need no place.
    changes: SharedPlaces,
    /// One collection of garbage may be under way, and one wait, which then does what further ones would do too.
    collections: Arc<Semaphore>,
    reports: Arc<ReportPlaces>,
}

/// A list that was complete when it was requested.
type Items<T> = tokio_stream::Iter<Box<dyn Iterator<Item = Result<T, Status>> + Send>>;

/// Sends values as messages, each of which is made when the client takes it.
fn items<T: Send + 'static, M: 'static>(
    values: impl Iterator<Item = T>,
    message: impl Fn(T) -> M + Send + 'static,
) -> Response<Items<M>> {
    let values: Vec<T> = values.collect();
    let messages: Box<dyn Iterator<Item = _> + Send> =
        Box::new(values.into_iter().map(move |value| Ok(message(value))));
    Response::new(tokio_stream::iter(messages))
}

/// As [`items`], of objects that may have labels.
fn labelled_items<T, M>(desired: &DesiredState, objects: impl Iterator<Item = Arc<T>>) -> Response<Items<M>>
where
    T: Send + Sync + 'static,
    M: HasLabel + for<'o> From<&'o T> + 'static,
    ObjectRef: for<'o> From<&'o T>,
{
    let with_label = |object: Arc<T>| {
        let label = desired.labels().get(&ObjectRef::from(&*object)).cloned();
        (object, label)
    };
    items(objects.map(with_label), |(object, label): (Arc<T>, Option<Label>)| {
        M::from(&*object).with_label(label.as_ref())
    })
}

/// Returns whether a value passes a filter. An absent filter lets every value pass.
fn passes<T: PartialEq<U>, U>(filter: &Option<T>, value: U) -> bool {
    filter.as_ref().is_none_or(|wanted| *wanted == value)
}

fn parse_all<M, T: TryFrom<M, Error = BadMessage>>(messages: Vec<M>) -> Result<Vec<T>, Status> {
    let values: Result<_, BadMessage> = messages.into_iter().map(T::try_from).collect();
    values.map_err(bad_message)
}

fn bad_message(bad: BadMessage) -> Status {
    status::status(Code::InvalidArgument, bad)
}

impl ControlService {
    /// Runs the work on a blocking thread, to its end even if the client disconnects meanwhile.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        match tokio::task::spawn_blocking(move || work(&control)).await {
            Ok(done) => done.map_err(to_status),
            Err(panicked) => Err(node_panicked(panicked)),
        }
    }

    /// As [`Self::blocking`], for reports of the whole node, to a tenant's caller or else the operator.
    async fn report<T: Send + 'static>(
        &self,
        caller: Option<&TenantName>,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        let place = self.reports.take(caller).await;
        self.blocking(move |control| {
            let _place = place;
            work(control)
        })
        .await
    }

    async fn upload(
        &self,
        kind: UploadKind,
        request: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<proto::UploadResponse>, Status> {
        let caller = access::caller(&request)?.clone();
        let mut messages = request.into_inner();
        let announced = upload::announced(kind, &caller, &mut messages).await?;
        caller.tenant().map_or(Ok(()), |tenant| self.control.check_known(tenant)).map_err(to_status)?;
        let places = match (kind, caller.tenant()) {
            (UploadKind::Model, Some(_)) => &self.models,
            (UploadKind::Model, None) => &self.operators_models,
            (UploadKind::Module | UploadKind::Files, Some(_)) => &self.uploads,
            (UploadKind::Module | UploadKind::Files, None) => &self.operators_uploads,
        };
        let place = places.take(&announced.tenant).await;
        let bytes = upload::bytes(&announced, messages).await?;
        let (digest, size_bytes) = (announced.digest, bytes.len() as u64);
        let tenant = announced.tenant.clone();
        let by = caller.tenant().cloned();
        self.blocking(move |control| {
            let _place = place;
            control.upload_as(by.as_ref(), announced.if_full, kind, &announced.tenant, &announced.digest, &bytes)
        })
        .await?;
        tracing::info!(%caller, %tenant, %digest, size_bytes, "uploaded");
        Ok(Response::new(proto::UploadResponse { digest: digest.to_string(), size_bytes }))
    }

    /// As [`Self::blocking`], for changes that may take long. Waits for one of the places of the tenant that asks; the
    /// operator needs none. Keeps it, and what the request takes of its account, to the end of the work.
    async fn with_place<T: Send + 'static>(
        &self,
        tenant: Option<&TenantName>,
        charge: Option<Charge>,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Status> {
        let place = match tenant {
            Some(tenant) => Some(self.changes.take(tenant).await),
            None => None,
        };
        self.blocking(move |control| {
            let _held = (place, charge);
            work(control)
        })
        .await
    }

    /// Collects the garbage that a change may have left, after its answer, so that the answer need not wait.
    fn collect_garbage_later(&self) {
        let Ok(collection) = Arc::clone(&self.collections).try_acquire_owned() else { return };
        let control = self.control.clone();
        tokio::task::spawn_blocking(move || {
            let _collection = collection;
            if let Err(error) = control.collect_garbage() {
                tracing::error!(%error, "unused uploads could not be removed from the store");
            }
        });
    }
}

#[tonic::async_trait]
impl proto::control_server::Control for ControlService {
    type ListModulesStream = Items<proto::Module>;
    type ListUploadsStream = Items<proto::Upload>;
    type ListKeysStream = Items<proto::Key>;
    type ListModelsStream = Items<proto::Model>;
    type ListChainsStream = Items<proto::Chain>;
    type ListRulesStream = Items<proto::Rule>;
    type ListFwpsStream = lists::Items<proto::Fwp>;
    type ListChainInstancesStream = lists::Items<proto::ChainInstance>;
    type GetLogsStream = logs::Lines;
    type GetMetricsStream = Items<proto::Metric>;
    type ListTenantsStream = Items<proto::Tenant>;
    type ListRevisionsStream = lists::Items<proto::Revision>;
    type GetRevisionStream = lists::Items<proto::Object>;

    async fn upload_module(
        &self,
        request: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<proto::UploadResponse>, Status> {
        self.upload(UploadKind::Module, request).await
    }

    async fn upload_files(
        &self,
        request: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<proto::UploadResponse>, Status> {
        self.upload(UploadKind::Files, request).await
    }

    async fn upload_model(
        &self,
        request: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<proto::UploadResponse>, Status> {
        self.upload(UploadKind::Model, request).await
    }

    async fn upload_key(
        &self,
        request: Request<proto::UploadKeyRequest>,
    ) -> Result<Response<proto::UploadKeyResponse>, Status> {
        let (caller, charge) = (access::caller(&request)?.clone(), Charge::of(&request));
        let mut request = request.into_inner();
        let (tenant, pem) = (std::mem::take(&mut request.tenant), Pem::new(std::mem::take(&mut request.pem)));
        let if_full = upload::if_full(request.keep_history);
        let tenant = TenantName::new(tenant).map_err(|bad| status::status(Code::InvalidArgument, bad))?;
        caller.tenant().map_or(Ok(()), |tenant| self.control.check_known(tenant)).map_err(to_status)?;
        let places = if caller.tenant().is_some() { &self.uploads } else { &self.operators_uploads };
        let place = places.take(&tenant).await;
        let (by, of) = (caller.tenant().cloned(), tenant.clone());
        let uploaded = self.blocking(move |control| {
            let _held = (place, charge);
            control.upload_key_as(by.as_ref(), if_full, &of, &pem)
        });
        let UploadedKey { digest, algorithm } = uploaded.await?;
        tracing::info!(%caller, %tenant, %digest, algorithm, "key uploaded");
        Ok(Response::new(proto::UploadKeyResponse { digest: digest.to_string(), algorithm }))
    }

    async fn apply(&self, request: Request<proto::ApplyRequest>) -> Result<Response<proto::ApplyResponse>, Status> {
        let (caller, charge) = (access::caller(&request)?.clone(), Charge::of(&request));
        let request = request.into_inner();
        let modules: Vec<Module> = parse_all(request.modules)?;
        let named = |m: Module| NamedUpload { tenant: m.tenant, name: m.name, digest: m.digest };
        let keys: Vec<Key> = parse_all(request.keys)?;
        let models: Vec<Model> = parse_all(request.models)?;
        let named_key = |key: Key| NamedUpload { tenant: key.tenant, name: key.name, digest: key.digest };
        let named_model = |model: Model| NamedUpload { tenant: model.tenant, name: model.name, digest: model.digest };
        let request = ApplyRequest {
            tenants: parse_all(request.tenants)?,
            modules: modules.into_iter().map(named).collect(),
            keys: keys.into_iter().map(named_key).collect(),
            models: models.into_iter().map(named_model).collect(),
            chains: parse_all(request.chains)?,
            rules: parse_all(request.rules)?,
            deletes: parse_all(request.deletes)?,
            labelling: labelling(request.label, request.take_over, request.prune_tenants)?,
            options: ChangeOptions { expected_revision: request.expected_revision, dry_run: request.dry_run },
        };
        let (author, dry_run) = (caller.author(), request.options.dry_run);
        let changed =
            self.with_place(caller.tenant(), charge, move |control| control.apply_as(&author, request)).await?;
        tracing::info!(%caller, version = changed.version, objects = changed.outcomes.len(), dry_run, "applied");
        let names_upload = |it: &ObjectRef| !matches!(it, ObjectRef::Tenant { .. } | ObjectRef::Rule { .. });
        let ends_one = |it: Effect| matches!(it, Effect::Configured | Effect::Deleted | Effect::Pruned);
        let replaces = |it: &Outcome| ends_one(it.effect) && names_upload(&it.object);
        if !dry_run && changed.outcomes.iter().any(replaces) {
            self.collect_garbage_later();
        }
        let outcomes = changed.outcomes.iter().map(Into::into).collect();
        Ok(Response::new(proto::ApplyResponse { version: changed.version, outcomes }))
    }

    async fn delete(&self, request: Request<proto::DeleteRequest>) -> Result<Response<proto::DeleteResponse>, Status> {
        let (caller, charge) = (access::caller(&request)?.clone(), Charge::of(&request));
        let proto::DeleteRequest { objects, expected_revision, dry_run } = request.into_inner();
        let objects: Vec<ObjectRef> = parse_all(objects)?;
        let (author, options) = (caller.author(), ChangeOptions { expected_revision, dry_run });
        let work = move |control: &Control| control.delete_as(&author, objects, options);
        let changed = self.with_place(caller.tenant(), charge, work).await?;
        tracing::info!(%caller, version = changed.version, objects = changed.outcomes.len(), dry_run, "deleted");
        if !dry_run {
            self.collect_garbage_later();
        }
        let outcomes = changed.outcomes.iter().map(Into::into).collect();
        Ok(Response::new(proto::DeleteResponse { version: changed.version, outcomes }))
    }

    async fn list_revisions(
        &self,
        request: Request<proto::ListRevisionsRequest>,
    ) -> Result<Response<Self::ListRevisionsStream>, Status> {
        revisions::list(self, request).await
    }

    async fn get_revision(
        &self,
        request: Request<proto::GetRevisionRequest>,
    ) -> Result<Response<Self::GetRevisionStream>, Status> {
        revisions::get(self, request).await
    }

    async fn rollback(
        &self,
        request: Request<proto::RollbackRequest>,
    ) -> Result<Response<proto::RollbackResponse>, Status> {
        revisions::roll_back(self, request).await
    }

    async fn invoke(&self, request: Request<proto::InvokeRequest>) -> Result<Response<proto::InvokeResponse>, Status> {
        let by = access::caller(&request)?.tenant().cloned();
        let payload = invoke::invoke(self, by, request.into_inner()).await?;
        Ok(Response::new(proto::InvokeResponse { payload }))
    }

    async fn list_modules(
        &self,
        request: Request<proto::ListModulesRequest>,
    ) -> Result<Response<Self::ListModulesStream>, Status> {
        let proto::ListModulesRequest { tenant, name } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let desired = self.control.desired();
        let modules = desired.modules().values();
        let modules = modules.filter(|m| passes(&tenant, m.tenant.clone()) && passes(&name, m.name.as_str()));
        Ok(labelled_items(&desired, modules.cloned()))
    }

    async fn list_uploads(
        &self,
        request: Request<proto::ListUploadsRequest>,
    ) -> Result<Response<Self::ListUploadsStream>, Status> {
        let caller = access::caller(&request)?.clone();
        let tenant = tenant_filter(request.into_inner().tenant)?;
        let uploads = self.report(caller.tenant(), Control::unnamed_uploads).await?.into_iter();
        let uploads = uploads.filter(|upload| passes(&tenant, upload.tenant.clone()));
        Ok(items(uploads, Into::into))
    }

    async fn list_keys(
        &self,
        request: Request<proto::ListKeysRequest>,
    ) -> Result<Response<Self::ListKeysStream>, Status> {
        let proto::ListKeysRequest { tenant, name } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let desired = self.control.desired();
        let keys = desired.keys().values();
        let keys = keys.filter(|k| passes(&tenant, k.tenant.clone()) && passes(&name, k.name.as_str()));
        Ok(labelled_items(&desired, keys.cloned()))
    }

    async fn list_models(
        &self,
        request: Request<proto::ListModelsRequest>,
    ) -> Result<Response<Self::ListModelsStream>, Status> {
        let proto::ListModelsRequest { tenant, name } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let desired = self.control.desired();
        let models = desired.models().values();
        let models = models.filter(|m| passes(&tenant, m.tenant.clone()) && passes(&name, m.name.as_str()));
        Ok(labelled_items(&desired, models.cloned()))
    }

    async fn list_chains(
        &self,
        request: Request<proto::ListChainsRequest>,
    ) -> Result<Response<Self::ListChainsStream>, Status> {
        let proto::ListChainsRequest { tenant, name } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let is_meant = |c: &Arc<Chain>| passes(&tenant, c.tenant.clone()) && passes(&name, c.name.as_str());
        Ok(lists::chains(&self.control, is_meant))
    }

    async fn list_rules(
        &self,
        request: Request<proto::ListRulesRequest>,
    ) -> Result<Response<Self::ListRulesStream>, Status> {
        let proto::ListRulesRequest { tenant, name } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let desired = self.control.desired();
        let rules = desired.rules().values();
        let rules = rules.filter(|r| passes(&tenant, r.tenant.clone()) && passes(&name, r.name.as_str()));
        Ok(labelled_items(&desired, rules.cloned()))
    }

    async fn list_fwps(
        &self,
        request: Request<proto::ListFwpsRequest>,
    ) -> Result<Response<Self::ListFwpsStream>, Status> {
        let caller = access::caller(&request)?.tenant().cloned();
        let proto::ListFwpsRequest { tenant, chain, id } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let fwps = self.control.fwps(tenant.as_ref());
        let is_meant = move |fwp: &FwpStatus| passes(&chain, fwp.chain.as_str()) && passes(&id, fwp.id.as_str());
        let fwps = fwps.map(move |page| Ok(page.into_iter().filter(&is_meant).collect()));
        Ok(Response::new(lists::items(fwps, Ahead::Many, Arc::clone(&self.reports), caller)))
    }

    async fn list_chain_instances(
        &self,
        request: Request<proto::ListChainInstancesRequest>,
    ) -> Result<Response<Self::ListChainInstancesStream>, Status> {
        let caller = access::caller(&request)?.tenant().cloned();
        let proto::ListChainInstancesRequest { tenant, chain, id } = request.into_inner();
        let tenant = tenant_filter(tenant)?;
        let instances = self.control.chain_instances(tenant.as_ref());
        let is_meant = move |it: &ChainInstanceStatus| passes(&chain, it.chain.as_str()) && passes(&id, it.id);
        let instances = instances.map(move |page| Ok(page.into_iter().filter(&is_meant).collect()));
        Ok(Response::new(lists::items(instances, Ahead::Many, Arc::clone(&self.reports), caller)))
    }

    async fn get_logs(&self, request: Request<proto::GetLogsRequest>) -> Result<Response<Self::GetLogsStream>, Status> {
        logs::lines(self, &request.into_inner()).map(Response::new)
    }

    async fn get_metrics(
        &self,
        request: Request<proto::GetMetricsRequest>,
    ) -> Result<Response<Self::GetMetricsStream>, Status> {
        let caller = access::caller(&request)?.clone();
        let filter = MetricFilter::try_from(request.into_inner()).map_err(bad_message)?;
        let metrics = self.report(caller.tenant(), move |control| Ok(control.metrics(&filter))).await?;
        Ok(items(metrics.into_iter(), Into::into))
    }

    async fn list_tenants(
        &self,
        request: Request<proto::ListTenantsRequest>,
    ) -> Result<Response<Self::ListTenantsStream>, Status> {
        let name = tenant_filter(request.into_inner().name)?;
        let desired = self.control.desired();
        let tenants = desired.tenants().values().filter(|tenant| passes(&name, tenant.name.clone()));
        Ok(items(tenants.cloned(), |tenant| (&*tenant).into()))
    }

    async fn get_tenant(
        &self,
        request: Request<proto::GetTenantRequest>,
    ) -> Result<Response<proto::TenantAccount>, Status> {
        let caller = access::caller(&request)?.clone();
        let tenant =
            TenantName::new(request.into_inner().tenant).map_err(|bad| status::status(Code::InvalidArgument, bad))?;
        let of = tenant.clone();
        let account = self.report(caller.tenant(), move |control| control.account(&of)).await?;
        let nothing = || status::status(Code::NotFound, format!("tenant {tenant} has nothing on this node"));
        Ok(Response::new(account.ok_or_else(nothing)?.into()))
    }

    async fn get_status(&self, request: Request<proto::GetStatusRequest>) -> Result<Response<proto::Status>, Status> {
        let caller = access::caller(&request)?;
        let (desired_version, node) =
            self.report(caller.tenant(), |control| Ok((control.desired().version(), control.status()))).await?;
        let node = match caller.tenant() {
            Some(tenant) => own_part(node, tenant),
            None => node,
        };
        Ok(Response::new(proto::Status::new(desired_version, node)))
    }
}

fn labelling(label: Option<String>, take_over: bool, prune_tenants: Vec<String>) -> Result<Labelling, Status> {
    let bad_name = |bad| status::status(Code::InvalidArgument, bad);
    let prune = prune_tenants.into_iter().map(TenantName::new).collect::<Result<_, _>>().map_err(bad_name)?;
    Ok(Labelling { label: label.map(Label::new).transpose().map_err(bad_name)?, take_over, prune })
}

/// Parses a tenant filter. A misspelt tenant would otherwise look like a tenant that has nothing.
fn tenant_filter(tenant: Option<String>) -> Result<Option<TenantName>, Status> {
    tenant.map(TenantName::new).transpose().map_err(|bad| status::status(Code::InvalidArgument, bad))
}

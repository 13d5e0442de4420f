//! What of a request is a tenant's own: names of tenants in messages, and filters that are absent.
//!
//! Messages are taken apart field by field, so that a new field does not build until it is judged here.

use tonic::Status;

use crate::model::TenantName;
use crate::proto;
use crate::proto::upload_request::{Header, Part};

/// A message that may name tenants.
pub(crate) trait Scoped {
    /// Narrows the message to what a caller of this tenant may ask for, or refuses it. The refusal does not depend on what
    /// there is on the node.
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status>;
}

/// Refuses the name of any other tenant.
fn own(tenant: &TenantName, named: &str) -> Result<(), Status> {
    if named == tenant.as_str() { Ok(()) } else { Err(foreign(tenant)) }
}

/// Refuses what only the operator may do.
fn of_the_operator() -> Status {
    let sentence = "tenants are made, changed and deleted by the operator only: ask the operator";
    Status::permission_denied(sentence)
}

/// Refuses an object of any other tenant, and tenants themselves.
fn own_object(tenant: &TenantName, object: &proto::ObjectRef) -> Result<(), Status> {
    let proto::ObjectRef { kind: _, tenant: named, name: _ } = object;
    match object.kind() {
        proto::Kind::Tenant => Err(of_the_operator()),
        proto::Kind::Unspecified
        | proto::Kind::Module
        | proto::Kind::Key
        | proto::Kind::Model
        | proto::Kind::Chain
        | proto::Kind::Rule => own(tenant, named),
    }
}

fn foreign(tenant: &TenantName) -> Status {
    Status::permission_denied(format!(
        "this identity is of tenant {tenant}, and may name no other: leave the tenant out, or name {tenant}"
    ))
}

/// Gives an absent filter the own tenant, and refuses that of another one.
fn own_filter(tenant: &TenantName, filter: &mut Option<String>) -> Result<(), Status> {
    own(tenant, filter.get_or_insert_with(|| tenant.to_string()))
}

impl Scoped for proto::UploadRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        match &mut self.part {
            Some(Part::Header(header)) => header.scope(tenant),
            Some(Part::Chunk(_)) | None => Ok(()),
        }
    }
}

impl Scoped for Header {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named, digest: _, size_bytes: _, keep_history: _ } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::UploadKeyRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named, pem: _, keep_history: _ } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::ApplyRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self {
            modules,
            chains,
            rules,
            tenants,
            keys,
            models,
            deletes,
            prune_tenants,
            expected_revision: _,
            dry_run: _,
            label: _,
            take_over: _,
        } = self;
        if !tenants.is_empty() {
            return Err(of_the_operator());
        }
        let modules = modules.iter().map(|module| &module.tenant);
        let keys = keys.iter().map(|key| &key.tenant);
        let models = models.iter().map(|model| &model.tenant);
        let chains = chains.iter().map(|chain| &chain.tenant);
        let rules = rules.iter().map(|rule| &rule.tenant);
        modules.chain(keys).chain(models).chain(chains).chain(rules).try_for_each(|named| own(tenant, named))?;
        deletes.iter().try_for_each(|object| own_object(tenant, object))?;
        prune_tenants.iter().try_for_each(|named| own(tenant, named))
    }
}

impl Scoped for proto::DeleteRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { objects, expected_revision: _, dry_run: _ } = self;
        objects.iter().try_for_each(|object| own_object(tenant, object))
    }
}

impl Scoped for proto::RollbackRequest {
    /// That the tenant's terms stay as they are is up to [`crate::control`].
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named, to_revision: _, expected_revision: _, dry_run: _ } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::GetRevisionRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named, revision: _ } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::InvokeRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named, name: _, payload: _, timeout_ms: _ } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::GetTenantRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { tenant: named } = self;
        own(tenant, named)
    }
}

impl Scoped for proto::GetStatusRequest {
    /// The report itself is narrowed, by [`super::own_part`].
    fn scope(&mut self, _: &TenantName) -> Result<(), Status> {
        let Self {} = self;
        Ok(())
    }
}

/// Messages whose filter `tenant` narrows all that they ask for; their other fields narrow it further.
macro_rules! filtered {
    ($($message:ident { $($other:ident),* })+) => {$(
        impl Scoped for proto::$message {
            fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
                let Self { tenant: filter, $($other: _),* } = self;
                own_filter(tenant, filter)
            }
        }
    )+};
}
impl Scoped for proto::ListTenantsRequest {
    fn scope(&mut self, tenant: &TenantName) -> Result<(), Status> {
        let Self { name: filter } = self;
        own_filter(tenant, filter)
    }
}

filtered! {
    ListModulesRequest { name }
    ListKeysRequest { name }
    ListModelsRequest { name }
    ListUploadsRequest {}
    ListRevisionsRequest { kind, name, before, limit }
    ListChainsRequest { name }
    ListRulesRequest { name }
    ListFwpsRequest { chain, id }
    ListChainInstancesRequest { chain, id }
    GetLogsRequest { chain, tail, follow }
    GetMetricsRequest { chain }
}

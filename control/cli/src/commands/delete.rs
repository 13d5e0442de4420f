//! `pinion delete`: converts kinds and names to objects.

use pinion_control::model::{BadName, ObjectRef, TenantName};

use super::BadInput;
use crate::args::{Kind, named};

/// Returns the objects that these words name.
pub(super) fn objects(words: &[String], tenant: &TenantName) -> Result<Vec<ObjectRef>, BadInput> {
    named(words, &Kind::OF_MANIFESTS)?.into_iter().map(|(kind, name)| object(kind, name, tenant)).collect()
}

/// Returns the object. A name that is not valid is reported as one that does not exist.
pub(super) fn object(kind: Kind, name: String, tenant: &TenantName) -> Result<ObjectRef, BadInput> {
    let owner = tenant.clone();
    let object: Result<ObjectRef, BadName> = match kind {
        Kind::Tenant => name.parse().map(|name| ObjectRef::Tenant { name }),
        Kind::Module => name.parse().map(|name| ObjectRef::Module { tenant: owner, name }),
        Kind::Key => name.parse().map(|name| ObjectRef::Key { tenant: owner, name }),
        Kind::Model => name.parse().map(|name| ObjectRef::Model { tenant: owner, name }),
        Kind::Chain => name.parse().map(|name| ObjectRef::Chain { tenant: owner, name }),
        Kind::Rule => name.parse().map(|name| ObjectRef::Rule { tenant: owner, name }),
        Kind::Upload | Kind::Fwp | Kind::Instance | Kind::State => {
            return Err(BadInput::NotInManifests(kind.plural()));
        }
    };
    object.map_err(|_| match kind {
        Kind::Tenant => BadInput::NotFound { kind: kind.singular(), name },
        _ => BadInput::NotFoundOf { kind: kind.singular(), name, tenant: tenant.clone() },
    })
}

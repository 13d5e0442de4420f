//! `pinion delete`: converts a kind and a name to an object.

use pinion_control::model::{ChainName, KeyName, ModelName, ModuleName, ObjectRef, RuleName, TenantName};

use super::BadInput;
use crate::args::Deletable;

/// Returns the object. A name that is not valid is reported as one that does not exist.
pub(super) fn object(kind: Deletable, name: String, tenant: TenantName) -> Result<ObjectRef, BadInput> {
    let not_found = |kind, tenant| BadInput::NotFoundOf { kind, name: name.clone(), tenant };
    match kind {
        Deletable::Tenant => match TenantName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Tenant { name }),
            Err(_) => Err(BadInput::NotFound { kind: "tenant", name }),
        },
        Deletable::Module => match ModuleName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Module { tenant, name }),
            Err(_) => Err(not_found("module", tenant)),
        },
        Deletable::Key => match KeyName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Key { tenant, name }),
            Err(_) => Err(not_found("key", tenant)),
        },
        Deletable::Model => match ModelName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Model { tenant, name }),
            Err(_) => Err(not_found("model", tenant)),
        },
        Deletable::Chain => match ChainName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Chain { tenant, name }),
            Err(_) => Err(not_found("chain", tenant)),
        },
        Deletable::Rule => match RuleName::new(name.as_str()) {
            Ok(name) => Ok(ObjectRef::Rule { tenant, name }),
            Err(_) => Err(not_found("rule", tenant)),
        },
    }
}

//! Conversions of revisions, and of objects of any kind.

use std::sync::Arc;

use super::{BadMessage, field, optional};
use crate::model::{ChangeCounts, Digest, Object, ObjectChange, ObjectRef, Revision, RevisionFilter, TenantName};
use crate::proto;
use crate::proto::object;

impl From<&Object> for proto::Object {
    fn from(object: &Object) -> Self {
        let object = match object {
            Object::Tenant(tenant) => object::Object::Tenant((&**tenant).into()),
            Object::Module(module) => object::Object::Module((&**module).into()),
            Object::Key(key) => object::Object::Key((&**key).into()),
            Object::Model(model) => object::Object::Model((&**model).into()),
            Object::Chain(chain) => object::Object::Chain((&**chain).into()),
            Object::Rule(rule) => object::Object::Rule((&**rule).into()),
        };
        Self { object: Some(object) }
    }
}

impl From<Object> for proto::Object {
    fn from(object: Object) -> Self {
        (&object).into()
    }
}

impl TryFrom<proto::Object> for Object {
    type Error = BadMessage;

    fn try_from(message: proto::Object) -> Result<Self, BadMessage> {
        Ok(match message.object {
            Some(object::Object::Tenant(tenant)) => Object::Tenant(Arc::new(tenant.try_into()?)),
            Some(object::Object::Module(module)) => Object::Module(Arc::new(module.try_into()?)),
            Some(object::Object::Key(key)) => Object::Key(Arc::new(key.try_into()?)),
            Some(object::Object::Model(model)) => Object::Model(Arc::new(model.try_into()?)),
            Some(object::Object::Chain(chain)) => Object::Chain(Arc::new(chain.try_into()?)),
            Some(object::Object::Rule(rule)) => Object::Rule(Arc::new(rule.try_into()?)),
            None => {
                return Err(BadMessage::new("object", "it is missing, or of a kind that this version does not know"));
            }
        })
    }
}

/// Returns the object of a kind by its number, a tenant and a name.
pub(crate) fn object_ref(kind: i32, tenant: &str, name: &str) -> Result<ObjectRef, BadMessage> {
    proto::ObjectRef { kind, tenant: tenant.to_owned(), name: name.to_owned() }.try_into()
}

impl From<&ObjectChange> for proto::ObjectChange {
    fn from(change: &ObjectChange) -> Self {
        let digest = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
        Self { object: Some((&change.object).into()), before: digest(change.before), after: digest(change.after) }
    }
}

impl TryFrom<proto::ObjectChange> for ObjectChange {
    type Error = BadMessage;

    fn try_from(message: proto::ObjectChange) -> Result<Self, BadMessage> {
        let object = message.object.ok_or_else(|| BadMessage::new("change.object", "it is missing"))?;
        Ok(Self {
            object: object.try_into()?,
            before: optional("change.before", message.before, |digest| digest.parse::<Digest>())?,
            after: optional("change.after", message.after, |digest| digest.parse::<Digest>())?,
        })
    }
}

impl From<Revision> for proto::Revision {
    fn from(revision: Revision) -> Self {
        let Revision { number, author, time_unix_ms, counts, changes } = revision;
        let ChangeCounts { created, configured, deleted } = counts;
        let seconds = (time_unix_ms / 1000).try_into().unwrap_or(i64::MAX);
        let time = prost_types::Timestamp { seconds, nanos: (time_unix_ms % 1000) as i32 * 1_000_000 };
        let changes = changes.iter().map(Into::into).collect();
        Self { number, author, time: Some(time), created, configured, deleted, changes }
    }
}

impl TryFrom<proto::Revision> for Revision {
    type Error = BadMessage;

    fn try_from(message: proto::Revision) -> Result<Self, BadMessage> {
        let proto::Revision { number, author, time, created, configured, deleted, changes } = message;
        let time = time.ok_or_else(|| BadMessage::new("revision.time", "it is missing"))?;
        let seconds: u64 = field("revision.time", time.seconds.try_into())?;
        let nanos: u64 = field("revision.time", time.nanos.try_into())?;
        Ok(Self {
            number,
            author,
            time_unix_ms: seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000),
            counts: ChangeCounts { created, configured, deleted },
            changes: changes.into_iter().map(ObjectChange::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl From<RevisionFilter> for proto::ListRevisionsRequest {
    fn from(filter: RevisionFilter) -> Self {
        let RevisionFilter { tenant, kind, name, before, limit } = filter;
        let kind = kind.and_then(|kind| KINDS.into_iter().find(|(_, known)| *known == kind));
        Self {
            tenant: tenant.map(Into::into),
            kind: kind.map(|(kind, _)| kind.into()),
            name,
            before,
            limit: Some(limit.try_into().unwrap_or(u32::MAX)),
        }
    }
}

/// The kinds, with their names in [`ObjectRef::kind`].
const KINDS: [(proto::Kind, &str); 6] = [
    (proto::Kind::Tenant, "tenant"),
    (proto::Kind::Module, "module"),
    (proto::Kind::Key, "key"),
    (proto::Kind::Model, "model"),
    (proto::Kind::Chain, "chain"),
    (proto::Kind::Rule, "rule"),
];

impl TryFrom<proto::ListRevisionsRequest> for RevisionFilter {
    type Error = BadMessage;

    fn try_from(message: proto::ListRevisionsRequest) -> Result<Self, BadMessage> {
        let kind = |number: i32| {
            let kind = proto::Kind::try_from(number).ok();
            let known = KINDS.into_iter().find(|(known, _)| Some(*known) == kind);
            known.map(|(_, name)| name).ok_or("say one of tenant, module, key, model, chain, rule")
        };
        let limit = |limit: u32| match usize::try_from(limit) {
            Ok(limit @ 1..=Self::LIMIT_MAX) => Ok(limit),
            _ => Err(format!("{limit} is no number of revisions: it must be from 1 to {}", Self::LIMIT_MAX)),
        };
        Ok(Self {
            tenant: optional("tenant", message.tenant, TenantName::new)?,
            kind: optional("kind", message.kind, kind)?,
            name: message.name,
            before: message.before,
            limit: optional("limit", message.limit, limit)?.unwrap_or(Self::LIMIT),
        })
    }
}

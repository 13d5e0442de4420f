//! Conversions of revisions, and of objects of any kind.

use std::sync::Arc;

use super::labels::HasLabel;
use super::{BadMessage, field, optional};
use crate::model::{
    ChangeCounts, Digest, Labelled, Object, ObjectChange, ObjectRef, Revision, RevisionFilter, TenantName,
};
use crate::proto;
use crate::proto::object;

impl From<&Labelled<Object>> for proto::Object {
    fn from(Labelled { object, label }: &Labelled<Object>) -> Self {
        let label = label.as_ref();
        let object = match object {
            Object::Tenant(tenant) => object::Object::Tenant((&**tenant).into()),
            Object::Module(module) => object::Object::Module(proto::Module::from(&**module).with_label(label)),
            Object::Key(key) => object::Object::Key(proto::Key::from(&**key).with_label(label)),
            Object::Model(model) => object::Object::Model(proto::Model::from(&**model).with_label(label)),
            Object::Chain(chain) => object::Object::Chain(proto::Chain::from(&**chain).with_label(label)),
            Object::Rule(rule) => object::Object::Rule(proto::Rule::from(&**rule).with_label(label)),
        };
        Self { object: Some(object) }
    }
}

impl From<Labelled<Object>> for proto::Object {
    fn from(object: Labelled<Object>) -> Self {
        (&object).into()
    }
}

impl TryFrom<proto::Object> for Labelled<Object> {
    type Error = BadMessage;

    fn try_from(message: proto::Object) -> Result<Self, BadMessage> {
        Ok(match message.object {
            Some(object::Object::Tenant(tenant)) => {
                Self { object: Object::Tenant(Arc::new(tenant.try_into()?)), label: None }
            }
            Some(object::Object::Module(module)) => Labelled::try_from(module)?.map(|it| Object::Module(Arc::new(it))),
            Some(object::Object::Key(key)) => Labelled::try_from(key)?.map(|it| Object::Key(Arc::new(it))),
            Some(object::Object::Model(model)) => Labelled::try_from(model)?.map(|it| Object::Model(Arc::new(it))),
            Some(object::Object::Chain(chain)) => Labelled::try_from(chain)?.map(|it| Object::Chain(Arc::new(it))),
            Some(object::Object::Rule(rule)) => Labelled::try_from(rule)?.map(|it| Object::Rule(Arc::new(it))),
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

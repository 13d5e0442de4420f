//! Reads the desired state as far as it can stand, and finds what cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use redb::{ReadTransaction, ReadableTable};

use super::contents::{CONTENTS, Damage, OBJECTS, read_object};
use super::{META, Store, StoreError};
use crate::model::{Change, DesiredState, Digest, LeftOut, Object, ObjectRef, TenantName, quoted};
use crate::proto;
use crate::wire::object_ref;

/// The desired state, and the stored objects that are not in it.
pub(super) struct Intact {
    pub(super) state: DesiredState,
    pub(super) unfit: Vec<Unfit>,
}

/// A stored object that cannot stand.
pub(super) struct Unfit {
    pub(super) key: StoredKey,
    pub(super) digest: Digest,
    /// Why, as the end of a sentence.
    pub(super) reason: String,
}

/// The key of an object as it is stored, which may be damaged too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoredKey {
    pub(super) kind: u8,
    pub(super) tenant: String,
    pub(super) name: String,
}

impl StoredKey {
    pub(super) fn new((kind, tenant, name): (u8, &str, &str)) -> Self {
        Self { kind, tenant: tenant.to_owned(), name: name.to_owned() }
    }

    pub(super) fn as_tuple(&self) -> (u8, &str, &str) {
        (self.kind, &self.tenant, &self.name)
    }

    /// Returns the name of the object; none if there can be no such object.
    pub(super) fn object(&self) -> Option<ObjectRef> {
        object_ref(self.kind.into(), &self.tenant, &self.name).ok()
    }
}

impl fmt::Display for StoredKey {
    /// Formats it as `chain demo/echo`, or if that is no name, so that all of it can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object() {
            Some(object) => object.fmt(f),
            None => {
                write!(f, "object {} of tenant {} and kind {}", quoted(&self.name), quoted(&self.tenant), self.kind)
            }
        }
    }
}

impl Intact {
    /// Reads it.
    ///
    /// # Errors
    /// Damage that is not of one object.
    pub(super) fn read(store: &Store, read: &ReadTransaction) -> Result<Self, StoreError> {
        let meta = read.open_table(META).map_err(|e| store.failed(e))?;
        let version = meta.get("version").map_err(|e| store.failed(e))?;
        let version = version.ok_or_else(|| store.damaged("it has no version"))?.value();
        let table = read.open_table(OBJECTS).map_err(|e| store.failed(e))?;
        let contents = read.open_table(CONTENTS).map_err(|e| store.failed(e))?;
        let (mut objects, mut digests) = (Change::default(), BTreeMap::new());
        let (mut unfit, mut unbounded) = (Vec::new(), BTreeSet::new());
        for entry in table.iter().map_err(|e| store.failed(e))? {
            let (key, digest) = entry.map_err(|e| store.failed(e))?;
            let (key, digest) = (StoredKey::new(key.value()), Digest::from_bytes(*digest.value()));
            let reason = match read_object(store, &contents, &digest)? {
                Ok(object) if Some(object.name()) == key.object() => {
                    objects.set(&object);
                    digests.insert(object.name(), (key, digest));
                    continue;
                }
                Ok(object) => {
                    unbounded.extend(tenant_of_terms(&object));
                    format!("its content is that of {}", object.name())
                }
                Err(Damage(reason)) => reason,
            };
            if i32::from(key.kind) == proto::Kind::Tenant as i32 {
                unbounded.extend(TenantName::new(&*key.name).ok());
            }
            unfit.push(Unfit { key, digest, reason });
        }
        let restored = DesiredState::restore_sound(version, &objects, &unbounded);
        let (state, left_out) = restored.map_err(|invalid| store.damaged(invalid))?;
        unfit.extend(left_out.into_iter().filter_map(|LeftOut { object, reason }| {
            let (key, digest) = digests.remove(&object)?;
            Some(Unfit { key, digest, reason })
        }));
        Ok(Self { state, unfit })
    }
}

/// Returns the tenant whose terms this is.
fn tenant_of_terms(object: &Object) -> Option<TenantName> {
    match object {
        Object::Tenant(tenant) => Some(tenant.name.clone()),
        Object::Module(_) | Object::Key(_) | Object::Model(_) | Object::Chain(_) | Object::Rule(_) => None,
    }
}

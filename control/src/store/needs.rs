//! What a stored object needs to have been uploaded. No more of it is understood for that, so that an object which this version takes for
//! invalid keeps what it needs, and can be forgotten.

use std::collections::BTreeMap;

use prost::Message;

use crate::model::Digest;
use crate::proto;
use crate::proto::object::Object;

/// What an object needs. Nothing, if its content is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// The tenant that has uploaded it.
    pub(super) tenant: String,
    /// Uploads that are kept as long as the content is, and their sizes in bytes.
    pub(super) uploads: BTreeMap<Digest, u64>,
    /// A key, which is kept only as long as the desired state has the object: revisions keep no private keys.
    pub(super) key: Option<Digest>,
}

impl Needs {
    /// Returns what the object that is stored as these bytes needs.
    pub(super) fn of_content(digest: &Digest, bytes: &[u8]) -> Self {
        match proto::Object::decode(bytes) {
            Ok(object) if Digest::of(bytes) == *digest => Self::of(&object),
            Ok(_) | Err(_) => Self::default(),
        }
    }

    /// Returns what an object needs.
    pub(super) fn of(object: &proto::Object) -> Self {
        match &object.object {
            Some(Object::Module(module)) => Self::of_uploads(&module.tenant, [(&*module.digest, module.size_bytes)]),
            Some(Object::Model(model)) => Self::of_uploads(&model.tenant, [(&*model.digest, model.size_bytes)]),
            Some(Object::Chain(chain)) => {
                let files = chain.stages.iter().filter_map(|stage| stage.files.as_ref());
                Self::of_uploads(&chain.tenant, files.map(|files| (&*files.digest, files.size_bytes)))
            }
            Some(Object::Key(key)) => {
                Self { tenant: key.tenant.clone(), key: key.digest.parse().ok(), ..Self::default() }
            }
            Some(Object::Tenant(_) | Object::Rule(_)) | None => Self::default(),
        }
    }

    fn of_uploads<'o>(tenant: &str, uploads: impl IntoIterator<Item = (&'o str, u64)>) -> Self {
        let uploads = uploads.into_iter().filter_map(|(digest, size_bytes)| Some((digest.parse().ok()?, size_bytes)));
        Self { tenant: tenant.to_owned(), uploads: uploads.collect(), key: None }
    }
}

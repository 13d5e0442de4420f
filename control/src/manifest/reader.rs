//! What the entries of one manifest share while they are read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::position::{Position, Text};
use super::{ManifestError, NamedFile};
use crate::model::{Field, FieldName, TenantName};

/// What all entries of one manifest share.
pub(super) struct Reader<'a> {
    pub(super) text: Text<'a>,
    pub(super) tenant: TenantName,
    fields: BTreeMap<FieldName, (Position, Field)>,
    granted: RefCell<BTreeSet<FieldName>>,
}

impl<'a> Reader<'a> {
    /// Makes a reader of the entries of a manifest that declares these fields.
    pub(super) fn new(text: Text<'a>, tenant: TenantName, fields: BTreeMap<FieldName, (Position, Field)>) -> Self {
        Self { text, tenant, fields, granted: RefCell::default() }
    }

    /// Returns the declared field of this name, to be granted.
    pub(super) fn field(&self, name: &FieldName) -> Option<Field> {
        let (_, field) = self.fields.get(name)?;
        self.granted.borrow_mut().insert(name.clone());
        Some(field.clone())
    }

    /// Checks that every declared field is granted to a stage. One that is not is a mistake, since it would have no
    /// effect.
    pub(super) fn check_all_granted(&self) -> Result<(), ManifestError> {
        let granted = self.granted.borrow();
        match self.fields.iter().find(|(name, _)| !granted.contains(*name)) {
            Some((name, (place, _))) => {
                let problem = "no stage of this manifest is granted it: grant it to one (state), or leave it out";
                Err(wrong(place.clone(), format!("state.{name}: {problem}")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn place<T>(&self, value: &Spanned<T>) -> Position {
        self.text.place(&value.span())
    }

    /// Resolves a path that is relative to the manifest.
    pub(super) fn file(&self, path: Spanned<PathBuf>) -> NamedFile {
        let named_at = self.place(&path);
        self.file_at(path.into_inner(), named_at)
    }

    /// The same for a path that stands at this position.
    pub(super) fn file_at(&self, path: PathBuf, named_at: Position) -> NamedFile {
        let folder = self.text.path.parent().unwrap_or(Path::new(""));
        NamedFile { path: folder.join(path), named_at }
    }
}

pub(super) fn wrong(place: Position, problem: impl Into<String>) -> ManifestError {
    ManifestError::Wrong { place, problem: problem.into() }
}

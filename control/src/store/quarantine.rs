//! Objects that cannot stand: kept aside, so that one damaged object does not keep a node from starting.
//!
//! ```text
//!   quarantine  (kind, tenant, name) -> digest, when, reason, content
//! ```
//!
//! When a node starts, an object is set aside if its content is missing or damaged, cannot be decoded, or is not valid any more;
//! so is what depends on it. This is a revision of the node's own, which deletes the objects. An object that is applied anew leaves
//! the quarantine.

use std::sync::PoisonError;
use std::time::SystemTime;

use redb::{ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::contents::{Contents, OBJECTS, ObjectKey};
use super::counts::Counts;
use super::history::{History, Signature};
use super::intact::{Intact, StoredKey, Unfit};
use super::{Store, StoreError, seconds};
use crate::model::{Author, DesiredState, Digest, ObjectChange, ObjectRef};

/// The digest of the content, when it was set aside in seconds since 1970, why, and the content.
type SetAside = (&'static [u8; 32], u64, &'static str, &'static [u8]);

pub(super) const QUARANTINE: TableDefinition<ObjectKey, SetAside> = TableDefinition::new("quarantine");

/// The author of the revision.
const AUTHOR: &str = "the node, which set damaged objects aside";

/// An object that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Its kind and name, such as `chain demo/echo`.
    pub object: String,
    /// The digest that its content has to have.
    pub digest: Digest,
    /// Why it was set aside, as the end of a sentence.
    pub reason: String,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// Whether there can be an object of this name, so that it can be applied again.
    pub can_be_applied: bool,
}

impl Quarantined {
    fn new(key: &StoredKey, digest: Digest, reason: &str, since_unix_s: u64) -> Self {
        let can_be_applied = key.object().is_some();
        Self { object: key.to_string(), digest, reason: reason.to_owned(), since_unix_s, can_be_applied }
    }

    /// Returns a sentence for the operator, with what to do.
    #[must_use]
    pub fn warning(&self) -> String {
        let Self { object, reason, .. } = self;
        let remedy = if self.can_be_applied {
            "apply it again (pinion apply), and delete it then if it is not needed"
        } else {
            "no object can have that name; a store made by pinion store export and import is without it"
        };
        format!("{object} was set aside when the node started, and is not in force: {reason}: {remedy}")
    }
}

impl Store {
    /// As [`Store::recover`], of a store that could not tell what is durable: nothing else than that is returned.
    ///
    /// # Errors
    /// As there, and if the file system can't be written yet.
    pub fn settle(&self, now: SystemTime) -> Result<DesiredState, StoreError> {
        self.opened.make_durable()?;
        self.recover(now)
    }

    /// Returns the desired state, once what cannot stand is set aside durably and wrong counts are mended.
    ///
    /// # Errors
    /// Damage that is not of one object; or the file system failed: then [`Store::load`] returns the same objects.
    pub fn recover(&self, now: SystemTime) -> Result<DesiredState, StoreError> {
        let (intact, is_counted) = self.opened.read(|read| {
            let (expected, counted) = (Counts::expected(self, read)?, Counts::stored(self, read)?);
            Ok((Intact::read(self, read)?, expected == counted))
        })?;
        let set_aside = |unfit: &Unfit| Quarantined::new(&unfit.key, unfit.digest, &unfit.reason, seconds(now));
        let not_set_aside: Vec<Quarantined> = intact.unfit.iter().map(set_aside).collect();
        for quarantined in &not_set_aside {
            tracing::error!(digest = %quarantined.digest, "{}", quarantined.warning());
        }
        *self.not_set_aside.lock().unwrap_or_else(PoisonError::into_inner) = not_set_aside;
        if intact.unfit.is_empty() && is_counted {
            return Ok(intact.state);
        }
        if !is_counted {
            tracing::warn!(store = %self.path().display(), "the counts of the store's contents and revisions were wrong: they are mended");
        }
        self.opened.write(0, |write| self.set_aside(write, &intact, now))?;
        self.not_set_aside.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.load()
    }

    fn set_aside(&self, write: &WriteTransaction, intact: &Intact, now: SystemTime) -> Result<(), StoreError> {
        let mut quarantine = write.open_table(QUARANTINE).map_err(|e| self.failed(e))?;
        let mut contents = Contents::open(self, write)?;
        for Unfit { key, digest, reason } in &intact.unfit {
            let bytes = contents.bytes(digest)?;
            let value = (digest.as_bytes(), seconds(now), &**reason, &*bytes);
            quarantine.insert(key.as_tuple(), value).map_err(|e| self.failed(e))?;
        }
        drop(contents);
        let (named, nameless): (Vec<_>, Vec<_>) = intact.unfit.iter().partition(|unfit| unfit.key.object().is_some());
        // No revision can tell of these.
        self.remove_objects(write, &nameless)?;
        Counts::mend(self, write)?;
        self.remove_objects(write, &named)?;
        let change = |unfit: &&Unfit| {
            Some(ObjectChange { object: unfit.key.object()?, before: Some(unfit.digest), after: None })
        };
        let changes: Vec<ObjectChange> = named.iter().filter_map(change).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let signature = Signature { author: Author::operator(AUTHOR), time: now };
        contents = Contents::open(self, write)?;
        for change in changes.iter().filter(|change| matches!(change.object, ObjectRef::Key { .. })) {
            change.before.iter().try_for_each(|digest| contents.release_key(digest))?;
        }
        History::open(self, write)?.add(&mut contents, intact.state.version() + 1, &signature, &changes)
    }

    fn remove_objects(&self, write: &WriteTransaction, unfit: &[&Unfit]) -> Result<(), StoreError> {
        let mut objects = write.open_table(OBJECTS).map_err(|e| self.failed(e))?;
        for Unfit { key, .. } in unfit {
            objects.remove(key.as_tuple()).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Returns the objects that are set aside, by kind, tenant and name.
    pub fn quarantine(&self) -> Result<Vec<Quarantined>, StoreError> {
        let mut all = self.opened.read(|read| {
            let mut all = Vec::new();
            let table = match read.open_table(QUARANTINE) {
                // A store that was made before there was this table.
                Err(TableError::TableDoesNotExist(_)) => return Ok(all),
                table => table.map_err(|e| self.failed(e))?,
            };
            for entry in table.iter().map_err(|e| self.failed(e))? {
                let (key, value) = entry.map_err(|e| self.failed(e))?;
                let (digest, since_unix_s, reason, _) = value.value();
                let (key, digest) = (StoredKey::new(key.value()), Digest::from_bytes(*digest));
                all.push(Quarantined::new(&key, digest, reason, since_unix_s));
            }
            Ok(all)
        })?;
        all.extend(self.not_set_aside.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        Ok(all)
    }
}

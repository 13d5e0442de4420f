//! Lists through entries of an [`Lru`], beside its queues: [`List`]. For all entries of one host, for example.

use core::hash::Hash;

use super::{Id, Lru};

/// The neighbours of an entry in a list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    older: Option<Id>,
    newer: Option<Id>,
}

/// A value of a table with the links of the list that its entry is in.
pub trait Linked {
    /// Returns the links.
    fn links(&mut self) -> &mut Links;
}

/// A list of entries, in the order in which they were added. All operations take constant time. An entry is in one list
/// at most, and is taken off it before it is removed from its table.
///
/// ```
/// use pinion_sdk::lru::{Linked, Links, List, Lru};
///
/// #[derive(Clone, Copy)]
/// struct Flow(Links);
///
/// impl Linked for Flow {
///     fn links(&mut self) -> &mut Links {
///         &mut self.0
///     }
/// }
///
/// let mut table: Lru<u16, Flow> = Lru::with_capacity(3);
/// let mut odd = List::default();
/// for port in [1, 2, 3] {
///     let id = table.insert(port, Flow(Links::default()), 0, 0).unwrap();
///     if port % 2 == 1 {
///         odd.append(&mut table, id);
///     }
/// }
/// let oldest = odd.oldest().unwrap();
/// odd.remove(&mut table, oldest);
/// assert_eq!(table.remove(oldest).0, 1);
/// assert_eq!((odd.len(), table.key(odd.oldest().unwrap())), (1, &3));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    oldest: Option<Id>,
    newest: Option<Id>,
    len: u32,
}

impl List {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the entry that was added first.
    #[must_use]
    pub fn oldest(&self) -> Option<Id> {
        self.oldest
    }

    /// Adds an entry.
    pub fn append<K: Copy + Eq + Hash, V: Copy + Linked, const QUEUES: usize>(
        &mut self,
        table: &mut Lru<K, V, QUEUES>,
        id: Id,
    ) {
        let older = self.newest.replace(id);
        match older {
            Some(older) => table.value_mut(older).links().newer = Some(id),
            None => self.oldest = Some(id),
        }
        *table.value_mut(id).links() = Links { older, newer: None };
        self.len += 1;
    }

    /// Takes an entry off the list.
    pub fn remove<K: Copy + Eq + Hash, V: Copy + Linked, const QUEUES: usize>(
        &mut self,
        table: &mut Lru<K, V, QUEUES>,
        id: Id,
    ) {
        let Links { older, newer } = core::mem::take(table.value_mut(id).links());
        match older {
            Some(older) => table.value_mut(older).links().newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => table.value_mut(newer).links().older = older,
            None => self.newest = older,
        }
        self.len -= 1;
    }
}

//! The files and directories of an instance: the deployed ones, overlaid with what the instance has created, changed and removed.
//!
//! Deployed files are never copied as a whole. A changed directory records which deployed entries are hidden and which entries were added;
//! a changed file has pages of its own ([`super::pages`]). A file keeps its inode when it is renamed. A new one gets a higher inode than
//! all before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bundle::{Bundle, Inode, ROOT};
use super::pages::{Content, Room};
use super::path::Path;
use super::{FileError, Space};

/// The most files and directories that differ from what was deployed.
pub const NODES_MAX: usize = 4096;
/// The longest file that an instance may create, in bytes. It may be sparse.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// The greatest depth of a directory into which another one is moved.
const DEPTH_MAX: usize = 64;

/// The charges for a changed file or directory, for an added name, and for a hidden entry.
const NODE_CHARGE_BYTES: u64 = 256;
const NAME_CHARGE_BYTES: u64 = 128;
const HIDDEN_CHARGE_BYTES: u64 = 64;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// The status of a file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number, from 1. It never changes.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Its length in bytes; 0 for a directory.
    pub bytes: u64,
}

/// The files and directories of an instance; see the module.
#[derive(Debug)]
pub(super) struct Tree {
    bundle: Arc<Bundle>,
    /// Changed and added files and directories.
    changed: BTreeMap<Inode, Changed>,
    next: Inode,
    room: Room,
}

#[derive(Debug)]
enum Changed {
    File(Content),
    Directory(Names),
}

/// How a directory differs from the deployed one.
#[derive(Debug)]
struct Names {
    /// The parent directory.
    parent: Inode,
    /// Deployed entries that are no longer here.
    hidden: BTreeSet<Inode>,
    /// Entries that were not deployed here.
    added: BTreeMap<Box<str>, Inode>,
    /// The added entries in the order in which they are listed.
    listed: BTreeMap<Inode, Box<str>>,
    charged_bytes: u64,
}

impl Names {
    fn new(parent: Inode) -> Self {
        let (hidden, added, listed) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { parent, hidden, added, listed, charged_bytes: 0 }
    }
}

/// What a path leads to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'p> {
    /// The parent directory, whether or not the entry exists.
    pub(super) parent: Inode,
    /// The entry's name there; none if the path ends in dots.
    pub(super) name: Option<&'p str>,
    /// The entry, if it exists.
    pub(super) inode: Option<Inode>,
    /// Whether the path can only mean a directory.
    pub(super) is_of_directory: bool,
}

impl Tree {
    /// Creates a tree of the deployed files.
    pub(super) fn new(bundle: Arc<Bundle>) -> Self {
        let next = bundle.entries() as Inode;
        Self { bundle, changed: BTreeMap::new(), next, room: Room::default() }
    }

    /// Returns the status of a file or directory.
    pub(super) fn stat(&self, inode: Inode) -> Stat {
        let (kind, bytes) = match self.changed.get(&inode) {
            Some(Changed::File(content)) => (FileKind::File, content.len()),
            Some(Changed::Directory(_)) => (FileKind::Directory, 0),
            None if self.bundle.is_directory(inode) => (FileKind::Directory, 0),
            None => (FileKind::File, self.bundle.file(inode).len() as u64),
        };
        Stat { number: inode + 1, kind, bytes }
    }

    fn is_directory(&self, inode: Inode) -> bool {
        self.stat(inode).kind == FileKind::Directory
    }

    fn names(&self, directory: Inode) -> Option<&Names> {
        match self.changed.get(&directory)? {
            Changed::Directory(names) => Some(names),
            Changed::File(_) => None,
        }
    }

    /// Returns a directory's parent. The root is its own parent.
    pub(super) fn parent(&self, directory: Inode) -> Inode {
        self.names(directory).map_or_else(|| self.bundle.parent(directory), |names| names.parent)
    }

    fn find(&self, directory: Inode, name: &str) -> Option<Inode> {
        let Some(names) = self.names(directory) else { return self.bundle.find(directory, name) };
        let deployed = || self.bundle.find(directory, name).filter(|inode| !names.hidden.contains(inode));
        names.added.get(name).copied().or_else(deployed)
    }

    /// Resolves a path from the directory `start`, which it must not leave.
    pub(super) fn resolve<'p>(&self, start: Inode, path: Path<'p>) -> Result<Found<'p>, FileError> {
        let mut way = vec![start];
        let mut names = path.names().peekable();
        let is_of_directory = path.is_of_directory();
        while let Some(name) = names.next() {
            let here = *way.last().unwrap_or(&start);
            match name {
                "." => {}
                ".." => {
                    way.pop();
                    if way.is_empty() {
                        return Err(FileError::Outside);
                    }
                }
                name if names.peek().is_none() => {
                    let inode = self.find(here, name);
                    return Ok(Found { parent: here, name: Some(name), inode, is_of_directory });
                }
                name => {
                    let inode = self.find(here, name).ok_or(FileError::NotFound)?;
                    if !self.is_directory(inode) {
                        return Err(FileError::NotDirectory);
                    }
                    way.push(inode);
                }
            }
        }
        let here = *way.last().unwrap_or(&start);
        Ok(Found { parent: self.parent(here), name: None, inode: Some(here), is_of_directory })
    }

    /// Returns whether a directory is empty.
    pub(super) fn is_empty(&self, directory: Inode) -> bool {
        let deployed = self.bundle.children(directory).count();
        self.names(directory).map_or(deployed == 0, |names| names.listed.is_empty() && names.hidden.len() == deployed)
    }

    /// Returns a directory's entries from the inode `from` on, in the order of inodes.
    pub(super) fn list(&self, directory: Inode, from: Inode) -> impl Iterator<Item = (Inode, &str)> {
        let children = self.bundle.children(directory);
        let names = self.names(directory);
        let mut hidden = names.into_iter().flat_map(move |names| names.hidden.range(from..)).copied().peekable();
        let is_shown = move |inode: &Inode| {
            while hidden.next_if(|other| other < inode).is_some() {}
            hidden.peek() != Some(inode)
        };
        let deployed = (children.start.max(from)..children.end).filter(is_shown);
        let mut deployed = deployed.map(|inode| (inode, self.bundle.name(inode))).peekable();
        let added = names.into_iter().flat_map(move |names| names.listed.range(from..));
        let mut added = added.map(|(inode, name)| (*inode, &**name)).peekable();
        std::iter::from_fn(move || match (deployed.peek(), added.peek()) {
            (Some((first, _)), Some((second, _))) if second < first => added.next(),
            (Some(_), _) => deployed.next(),
            (None, _) => added.next(),
        })
    }

    /// Charges for changing these directories, as far as they are not changed yet, for `nodes` further files or directories, and for `more`
    /// bytes.
    fn charge(&mut self, space: &mut dyn Space, directories: &[Inode], nodes: u64, more: u64) -> Result<(), FileError> {
        let fresh: BTreeSet<&Inode> = directories.iter().filter(|inode| !self.changed.contains_key(inode)).collect();
        let nodes = fresh.len() as u64 + nodes;
        if self.changed.len() as u64 + nodes > NODES_MAX as u64 {
            return Err(FileError::NoSpace);
        }
        self.room.charge(space, nodes * NODE_CHARGE_BYTES + more)
    }

    /// Returns a directory's names for changes. They must have been charged for.
    fn names_mut(&mut self, directory: Inode) -> Option<&mut Names> {
        let parent = self.bundle.parent(directory);
        match self.changed.entry(directory).or_insert_with(|| Changed::Directory(Names::new(parent))) {
            Changed::Directory(names) => Some(names),
            Changed::File(_) => None,
        }
    }

    fn add_name(&mut self, directory: Inode, name: &str, inode: Inode) {
        if let Some(names) = self.names_mut(directory) {
            names.added.insert(name.into(), inode);
            names.listed.insert(inode, name.into());
            names.charged_bytes += name_charge_bytes(name);
        }
    }

    /// Removes a name. [`HIDDEN_CHARGE_BYTES`] must have been charged for it.
    fn take_name(&mut self, directory: Inode, name: &str, inode: Inode) {
        let Some(names) = self.names_mut(directory) else { return };
        if names.added.remove(name).is_some() {
            names.listed.remove(&inode);
            let less = name_charge_bytes(name);
            names.charged_bytes -= less;
            // An added entry is not hidden but removed, so the charge for hiding is given back too.
            self.room.give_back(less + HIDDEN_CHARGE_BYTES);
        } else {
            names.hidden.insert(inode);
            names.charged_bytes += HIDDEN_CHARGE_BYTES;
        }
    }

    /// Creates an empty file or directory. The name must not exist.
    pub(super) fn create(
        &mut self,
        space: &mut dyn Space,
        directory: Inode,
        name: &str,
        kind: FileKind,
    ) -> Result<Inode, FileError> {
        self.charge(space, &[directory], 1, name_charge_bytes(name))?;
        let inode = self.next;
        self.next += 1;
        let made = match kind {
            FileKind::File => Changed::File(Content::default()),
            FileKind::Directory => Changed::Directory(Names::new(directory)),
        };
        self.changed.insert(inode, made);
        self.add_name(directory, name, inode);
        Ok(inode)
    }

    /// Removes a file's or directory's name. If it is not open, the caller must [forget](Self::forget) it.
    pub(super) fn remove(
        &mut self,
        space: &mut dyn Space,
        directory: Inode,
        name: &str,
        inode: Inode,
    ) -> Result<(), FileError> {
        self.charge(space, &[directory], 0, HIDDEN_CHARGE_BYTES)?;
        self.take_name(directory, name, inode);
        Ok(())
    }

    /// Renames a file or directory, and replaces the one that has the new name. If the replaced one is not open, the caller must
    /// [forget](Self::forget) it.
    pub(super) fn rename(
        &mut self,
        space: &mut dyn Space,
        from: (Inode, &str, Inode),
        to: (Inode, &str, Option<Inode>),
    ) -> Result<(), FileError> {
        let ((from_directory, from_name, inode), (to_directory, to_name, replaced)) = (from, to);
        let is_directory = self.is_directory(inode);
        let changing = [from_directory, to_directory, inode];
        let changing = if is_directory { &changing[..] } else { &changing[..2] };
        self.charge(space, changing, 0, name_charge_bytes(to_name) + 2 * HIDDEN_CHARGE_BYTES)?;
        match replaced {
            Some(replaced) => self.take_name(to_directory, to_name, replaced),
            None => self.room.give_back(HIDDEN_CHARGE_BYTES),
        }
        self.take_name(from_directory, from_name, inode);
        self.add_name(to_directory, to_name, inode);
        if let Some(names) = is_directory.then(|| self.names_mut(inode)).flatten() {
            names.parent = to_directory;
        }
        Ok(())
    }

    /// Returns whether a directory lies in another one or equals it; fails if it is deeper than [`DEPTH_MAX`].
    pub(super) fn lies_in(&self, directory: Inode, other: Inode) -> Result<bool, FileError> {
        let mut here = directory;
        for _ in 0..=DEPTH_MAX {
            if here == other {
                return Ok(true);
            }
            if here == ROOT {
                return Ok(false);
            }
            here = self.parent(here);
        }
        Err(FileError::NameTooLong)
    }

    /// Frees a file or directory that has no name any more and is not open.
    pub(super) fn forget(&mut self, inode: Inode) {
        match self.changed.remove(&inode) {
            Some(Changed::File(content)) => {
                self.room.keep(content);
                self.room.give_back(NODE_CHARGE_BYTES);
            }
            Some(Changed::Directory(names)) => self.room.give_back(names.charged_bytes + NODE_CHARGE_BYTES),
            None => {}
        }
    }

    /// Copies a file's bytes from offset `at` on. Returns how many there were.
    pub(super) fn read(&self, inode: Inode, at: u64, out: &mut [u8]) -> usize {
        match self.changed.get(&inode) {
            Some(Changed::File(content)) => content.read(self.bundle.archive(), at, out),
            Some(Changed::Directory(_)) => 0,
            None => Content::of(self.bundle.file(inode)).read(self.bundle.archive(), at, out),
        }
    }

    /// Writes to a file from offset `at` on. Returns how many bytes there was room for, at least one.
    pub(super) fn write(
        &mut self,
        space: &mut dyn Space,
        inode: Inode,
        at: u64,
        bytes: &[u8],
    ) -> Result<usize, FileError> {
        let room_to_end = FILE_BYTES_MAX.saturating_sub(at).min(bytes.len() as u64) as usize;
        if room_to_end == 0 {
            return Err(FileError::TooLarge);
        }
        let (content, archive, room) = self.content_mut(space, inode)?;
        content.write(archive, at, &bytes[..room_to_end], room, space)
    }

    /// Truncates a file, or extends it with zeros.
    pub(super) fn set_len(&mut self, space: &mut dyn Space, inode: Inode, len: u64) -> Result<(), FileError> {
        if len > FILE_BYTES_MAX {
            return Err(FileError::TooLarge);
        }
        if self.stat(inode).bytes == len {
            return Ok(());
        }
        let (content, _, room) = self.content_mut(space, inode)?;
        content.set_len(len, room);
        Ok(())
    }

    /// Returns a file's content for changes, and charges for it.
    fn content_mut(
        &mut self,
        space: &mut dyn Space,
        inode: Inode,
    ) -> Result<(&mut Content, &[u8], &mut Room), FileError> {
        self.charge(space, &[inode], 0, 0)?;
        let base = self.bundle.file(inode);
        match self.changed.entry(inode).or_insert_with(|| Changed::File(Content::of(base))) {
            Changed::File(content) => Ok((content, self.bundle.archive(), &mut self.room)),
            Changed::Directory(_) => Err(FileError::IsDirectory),
        }
    }
}

fn name_charge_bytes(name: &str) -> u64 {
    NAME_CHARGE_BYTES + 2 * name.len() as u64
}

//! The files deployed with a stage: a tar archive, read once and never changed.
//!
//! The archive is not trusted, so the builder reads it first, in its own process. The node reads only archives that the builder accepted,
//! with the same code.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use pinion_text::{SENTENCE_BYTES_MAX, printable};
use tar::{Archive, Entry, EntryType};

use super::path::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_NAMES_MAX};

/// The most files and directories of a bundle, including directories that exist only as parts of paths.
pub const ENTRIES_MAX: usize = 4096;

/// The length of an entry's header.
const HEADER_BYTES: usize = 512;
/// The offset of the type in a header.
const TYPE_AT: usize = 156;
/// The type of the first entry of an archive with a volume label, as GNU tar writes it. It has no bytes and no size; all others must have a
/// size.
const ARCHIVE_NAME: u8 = b'V';
/// The type of a directory with a list of its entries, as in GNU tar's incremental archives.
const LISTED_DIRECTORY: u8 = b'D';

/// Identifies a file or directory of an instance. A bundle's inodes come first, and the entries of one directory have consecutive inodes.
pub(super) type Inode = u64;
/// The root directory.
pub(super) const ROOT: Inode = 0;

/// Why an archive is refused as a bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadBundle {
    /// Not a tar archive, or one that ends too early.
    #[error("the files are not a tar archive that can be read: {0}")]
    Unreadable(String),
    /// A path that is not allowed.
    #[error("the files have a path that cannot be taken, {path}: {reason}")]
    Path {
        /// The path, escaped.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither a file nor a directory.
    #[error("{path} is a {what}: only files and directories are taken{remedy}")]
    Kind {
        /// The path, escaped.
        path: String,
        /// What it is.
        what: &'static str,
        /// How to store it as a file, if that is possible.
        remedy: &'static str,
    },
    /// Two entries have the same name.
    #[error("{0} is there twice")]
    Twice(String),
    /// An entry inside a file.
    #[error("{0} lies in a file")]
    InFile(String),
    /// More than [`ENTRIES_MAX`].
    #[error("there are more than {ENTRIES_MAX} files and directories")]
    TooMany,
}

/// The files deployed with a stage; see the module.
#[derive(Debug)]
pub struct Bundle {
    archive: Box<[u8]>,
    /// By inode.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: Box<str>,
    parent: Inode,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// The file's range in the archive.
    File(Range<usize>),
    /// The directory's entries, in the order of their names.
    Directory(Range<Inode>),
}

/// An entry of the archive, before inodes are assigned.
enum Draft {
    File(Range<usize>),
    Directory(BTreeMap<Box<str>, Draft>),
}

impl Bundle {
    /// Reads an archive. Only names, types and sizes of its headers count.
    ///
    /// # Errors
    /// Returns why the archive is refused.
    pub fn read(archive: Vec<u8>) -> Result<Self, BadBundle> {
        let (mut root, mut count) = (BTreeMap::new(), 1);
        let unreadable =
            |error: std::io::Error| BadBundle::Unreadable(printable(error.to_string(), SENTENCE_BYTES_MAX));
        let begin = if is_name_of_archive(&archive) { HEADER_BYTES } else { 0 };
        for entry in Archive::new(Cursor::new(&archive[begin..])).entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let kind = entry.header().entry_type();
            let draft = match kind {
                // A header of the whole archive, as git writes one.
                EntryType::XGlobalHeader => continue,
                _ if let Some(path) = sparse_name(&mut entry).map_err(unreadable)? => {
                    return Err(not_taken(&path, EntryType::GNUSparse));
                }
                EntryType::Regular if is_directory_of_old(&entry) => Draft::Directory(BTreeMap::new()),
                EntryType::Regular | EntryType::Continuous => {
                    let from = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX).saturating_add(begin);
                    let until = from.saturating_add(usize::try_from(entry.size()).unwrap_or(usize::MAX));
                    if until > archive.len() {
                        return Err(BadBundle::Unreadable(format!("{} ends too early", shown(&entry.path_bytes()))));
                    }
                    Draft::File(from..until)
                }
                EntryType::Directory => Draft::Directory(BTreeMap::new()),
                kind if kind.as_byte() == LISTED_DIRECTORY => Draft::Directory(BTreeMap::new()),
                other => return Err(not_taken(&entry.path_bytes(), other)),
            };
            let path = entry.path_bytes();
            insert(&mut root, &names(&path)?, draft, &mut count).map_err(|problem| problem.at(&path))?;
            if count > ENTRIES_MAX {
                return Err(BadBundle::TooMany);
            }
        }
        Ok(Self { nodes: in_order(root), archive: archive.into() })
    }

    /// Returns the empty bundle, which is shared.
    pub(super) fn empty() -> Arc<Self> {
        static EMPTY: LazyLock<Arc<Bundle>> =
            LazyLock::new(|| Arc::new(Bundle { nodes: in_order(BTreeMap::new()), archive: Box::default() }));
        Arc::clone(&EMPTY)
    }

    /// Returns the number of its files and directories, including the root.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.nodes.len()
    }

    /// Returns its archive.
    pub(super) fn archive(&self) -> &[u8] {
        &self.archive
    }

    /// Returns a file's range in the archive; an empty range if the inode is not a file of the bundle.
    pub(super) fn file(&self, inode: Inode) -> Range<usize> {
        match self.node(inode) {
            Some(Node { content: Content::File(range), .. }) => range.clone(),
            _ => 0..0,
        }
    }

    /// Returns a directory's entries, in the order of their names; none if the inode is not a directory of the bundle.
    pub(super) fn children(&self, inode: Inode) -> Range<Inode> {
        match self.node(inode) {
            Some(Node { content: Content::Directory(children), .. }) => children.clone(),
            _ => 0..0,
        }
    }

    /// Returns whether the inode is a directory of the bundle.
    pub(super) fn is_directory(&self, inode: Inode) -> bool {
        matches!(self.node(inode), Some(Node { content: Content::Directory(_), .. }))
    }

    /// Returns the parent directory. The root is its own parent.
    pub(super) fn parent(&self, inode: Inode) -> Inode {
        self.node(inode).map_or(ROOT, |node| node.parent)
    }

    /// Returns the name of a file or directory.
    pub(super) fn name(&self, inode: Inode) -> &str {
        self.node(inode).map_or("", |node| &*node.name)
    }

    /// Returns the entry of this name in a directory.
    pub(super) fn find(&self, directory: Inode, name: &str) -> Option<Inode> {
        let children = self.children(directory);
        let nodes = self.nodes.get(children.start as usize..children.end as usize)?;
        let at = nodes.binary_search_by(|node| (*node.name).cmp(name)).ok()?;
        Some(children.start + at as Inode)
    }

    fn node(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(usize::try_from(inode).ok()?)
    }
}

/// An entry of an archive in memory.
type ArchiveEntry<'a, 'b> = Entry<'a, Cursor<&'b [u8]>>;

/// Returns whether an archive begins with a volume label of GNU tar.
fn is_name_of_archive(archive: &[u8]) -> bool {
    archive.get(..HEADER_BYTES).is_some_and(|header| header[TYPE_AT] == ARCHIVE_NAME)
}

/// Returns whether an entry is a directory in the format of Unix V7. That has no types, and the name of a directory ends with a slash.
fn is_directory_of_old(entry: &ArchiveEntry<'_, '_>) -> bool {
    let path = entry.path_bytes();
    let says_nothing = entry.header().as_old().linkflag == [0];
    let names_something = path.split(|byte| *byte == b'/').any(|name| !matches!(name, b"" | b"."));
    path.ends_with(b"/") && entry.size() == 0 && (says_nothing || names_something)
}

/// Returns the name of a sparse file in pax format, if the entry is one. The archive has it under another name, with a list of its holes
/// before the bytes.
fn sparse_name(entry: &mut ArchiveEntry<'_, '_>) -> std::io::Result<Option<Vec<u8>>> {
    const PREFIX: &[u8] = b"GNU.sparse.";
    let (mut is_sparse, mut name) = (false, None);
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        if let Some(key) = extension.key_bytes().strip_prefix(PREFIX) {
            is_sparse = true;
            if key == b"name" {
                name = Some(extension.value_bytes().to_vec());
            }
        }
    }
    Ok(is_sparse.then(|| name.unwrap_or_else(|| entry.path_bytes().into_owned())))
}

fn not_taken(path: &[u8], kind: EntryType) -> BadBundle {
    let (what, remedy) = match kind {
        EntryType::Link => ("hard link", " (tar --hard-dereference stores the file itself)"),
        EntryType::Symlink => ("symbolic link", " (tar --dereference stores what it leads to)"),
        EntryType::Char | EntryType::Block => ("device", ""),
        EntryType::Fifo => ("pipe", ""),
        EntryType::GNUSparse => ("sparse file", " (tar without --sparse stores all of it)"),
        _ => ("thing of an unknown kind", ""),
    };
    BadBundle::Kind { path: shown(path), what, remedy }
}

/// Splits a path of the archive into its names, without empty ones and dots.
fn names(path: &[u8]) -> Result<Vec<&str>, BadBundle> {
    let bad = |reason| BadBundle::Path { path: shown(path), reason };
    if path.len() > PATH_BYTES_MAX {
        return Err(bad("it is too long: 1024 bytes are allowed"));
    }
    let text = str::from_utf8(path).map_err(|_| bad("it is not UTF-8"))?;
    if text.contains('\0') {
        return Err(bad("there is a zero byte in it"));
    }
    if text.starts_with('/') {
        return Err(bad("it is absolute"));
    }
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(bad("it has .. in it"));
    }
    if names.len() > PATH_NAMES_MAX {
        return Err(bad("it is too deep: 64 names are allowed"));
    }
    if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
        return Err(bad("a name in it is too long: 255 bytes are allowed"));
    }
    Ok(names)
}

/// Why an entry cannot be inserted.
enum Misplaced {
    Twice,
    InFile,
    Root,
}

impl Misplaced {
    fn at(self, path: &[u8]) -> BadBundle {
        match self {
            Self::Twice => BadBundle::Twice(shown(path)),
            Self::InFile => BadBundle::InFile(shown(path)),
            Self::Root => BadBundle::Path { path: shown(path), reason: "a file needs a name" },
        }
    }
}

/// Inserts an entry, and the missing directories of its path.
fn insert(
    root: &mut BTreeMap<Box<str>, Draft>,
    names: &[&str],
    draft: Draft,
    count: &mut usize,
) -> Result<(), Misplaced> {
    let Some((last, way)) = names.split_last() else {
        return if matches!(draft, Draft::Directory(_)) { Ok(()) } else { Err(Misplaced::Root) };
    };
    let mut directory = root;
    for name in way {
        let there = directory.entry((*name).into()).or_insert_with(|| {
            *count += 1;
            Draft::Directory(BTreeMap::new())
        });
        let Draft::Directory(inner) = there else { return Err(Misplaced::InFile) };
        directory = inner;
    }
    match (directory.get(*last), &draft) {
        (None, _) => {
            *count += 1;
            directory.insert((*last).into(), draft);
            Ok(())
        }
        // A directory may occur more than once, and after its entries.
        (Some(Draft::Directory(_)), Draft::Directory(_)) => Ok(()),
        (Some(_), _) => Err(Misplaced::Twice),
    }
}

/// Assigns inodes to all entries: directory by directory, each in the order of names.
fn in_order(root: BTreeMap<Box<str>, Draft>) -> Vec<Node> {
    let mut nodes = vec![Node { name: "".into(), parent: ROOT, content: Content::Directory(0..0) }];
    let mut inner = vec![Some(root)];
    let mut at = 0;
    while at < nodes.len() {
        if let Some(children) = inner[at].take() {
            let first = nodes.len() as Inode;
            for (name, draft) in children {
                let (content, children) = match draft {
                    Draft::File(range) => (Content::File(range), None),
                    Draft::Directory(children) => (Content::Directory(0..0), Some(children)),
                };
                nodes.push(Node { name, parent: at as Inode, content });
                inner.push(children);
            }
            nodes[at].content = Content::Directory(first..nodes.len() as Inode);
        }
        at += 1;
    }
    nodes
}

/// Returns a path made printable, for messages.
fn shown(path: &[u8]) -> String {
    const BYTES_MAX: usize = 160;
    printable(path, BYTES_MAX)
}

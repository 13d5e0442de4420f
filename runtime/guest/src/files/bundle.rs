//! The files that were deployed with a stage: a tar archive, read once and never changed.
//!
//! Who deploys it is a stranger, so the builder reads it first, in its own process; the node reads what the builder has taken, by the same
//! code.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::Range;

use tar::{Archive, EntryType};

use super::path::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_NAMES_MAX};
use crate::fault::escaped;

/// The most files and directories of a bundle, directories that are there for what is in them included.
pub const ENTRIES_MAX: usize = 4096;

/// Names a file or directory of an instance. Those of a bundle come first, so that what is in a directory lies together.
pub(super) type Inode = u64;
/// The root directory.
pub(super) const ROOT: Inode = 0;

/// Why an archive is no bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadBundle {
    /// Not an archive, or one that ends too early.
    #[error("the files are not a tar archive that can be read: {0}")]
    Unreadable(String),
    /// A path that nothing can have.
    #[error("the files have a path that cannot be taken, {path}: {reason}")]
    Path {
        /// The path, escaped.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither a file nor a directory.
    #[error("{path} is a {what}: only files and directories are taken")]
    Kind {
        /// The path, escaped.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// Two things of one name.
    #[error("{0} is there twice")]
    Twice(String),
    /// Something in what is a file.
    #[error("{0} lies in a file")]
    InFile(String),
    /// More than [`ENTRIES_MAX`].
    #[error("there are more than {ENTRIES_MAX} files and directories")]
    TooMany,
}

/// See the module.
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
    /// Where in the archive.
    File(Range<usize>),
    /// What is in it, by name.
    Directory(Range<Inode>),
}

/// What an archive says, before it has its order.
enum Draft {
    File(Range<usize>),
    Directory(BTreeMap<Box<str>, Draft>),
}

impl Bundle {
    /// The bundle that an archive is. Of its headers, names, kinds and sizes count.
    ///
    /// # Errors
    /// Why it is none.
    pub fn read(archive: Vec<u8>) -> Result<Self, BadBundle> {
        let (mut root, mut count) = (BTreeMap::new(), 1);
        let unreadable = |error: std::io::Error| BadBundle::Unreadable(escaped(error.to_string().as_bytes()));
        for entry in Archive::new(Cursor::new(&archive)).entries().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path_bytes();
            let kind = entry.header().entry_type();
            let draft = match kind {
                // Of an archive as a whole, as git makes it.
                EntryType::XGlobalHeader => continue,
                EntryType::Regular => {
                    let from = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX);
                    let until = from.saturating_add(usize::try_from(entry.size()).unwrap_or(usize::MAX));
                    if until > archive.len() {
                        return Err(BadBundle::Unreadable(format!("{} ends too early", shown(&path))));
                    }
                    Draft::File(from..until)
                }
                EntryType::Directory => Draft::Directory(BTreeMap::new()),
                other => return Err(BadBundle::Kind { path: shown(&path), what: kind_name(other) }),
            };
            insert(&mut root, &names(&path)?, draft, &mut count).map_err(|problem| problem.at(&path))?;
            if count > ENTRIES_MAX {
                return Err(BadBundle::TooMany);
            }
        }
        Ok(Self { nodes: in_order(root), archive: archive.into() })
    }

    /// How many files and directories it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.nodes.len()
    }

    /// All of its archive.
    pub(super) fn archive(&self) -> &[u8] {
        &self.archive
    }

    /// Where in the archive a file's bytes are; nowhere, if it is none of its files.
    pub(super) fn file(&self, inode: Inode) -> Range<usize> {
        match self.node(inode) {
            Some(Node { content: Content::File(range), .. }) => range.clone(),
            _ => 0..0,
        }
    }

    /// What is in a directory, by name; nothing, if it is none of its directories.
    pub(super) fn children(&self, inode: Inode) -> Range<Inode> {
        match self.node(inode) {
            Some(Node { content: Content::Directory(children), .. }) => children.clone(),
            _ => 0..0,
        }
    }

    /// Whether this is one of its directories.
    pub(super) fn is_directory(&self, inode: Inode) -> bool {
        matches!(self.node(inode), Some(Node { content: Content::Directory(_), .. }))
    }

    /// The directory that it lies in. The root lies in itself.
    pub(super) fn parent(&self, inode: Inode) -> Inode {
        self.node(inode).map_or(ROOT, |node| node.parent)
    }

    /// Its name.
    pub(super) fn name(&self, inode: Inode) -> &str {
        self.node(inode).map_or("", |node| &*node.name)
    }

    /// What has this name in a directory.
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

/// The names of a path of the archive.
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

/// Why something has no place in a draft.
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

/// Puts something where it belongs, with the directories on the way that are not there yet.
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
        // Said once more, or late.
        (Some(Draft::Directory(_)), Draft::Directory(_)) => Ok(()),
        (Some(_), _) => Err(Misplaced::Twice),
    }
}

/// All that is in a draft, directory by directory, each by name.
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

fn kind_name(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Link => "hard link",
        EntryType::Symlink => "symbolic link",
        EntryType::Char | EntryType::Block => "device",
        EntryType::Fifo => "pipe",
        EntryType::GNUSparse => "sparse file",
        _ => "thing of an unknown kind",
    }
}

/// A path as it may stand in a sentence.
fn shown(path: &[u8]) -> String {
    const BYTES_MAX: usize = 120;
    match path.get(..BYTES_MAX) {
        Some(start) if path.len() > BYTES_MAX => format!("{}...", escaped(start)),
        _ => escaped(path),
    }
}

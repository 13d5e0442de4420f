//! The open files of an instance, and operations by descriptor and by path.
//!
//! Descriptors are numbered as in POSIX: the standard streams are 0, 1 and 2, the root directory is 3, and a newly opened file gets the
//! lowest free number. Each of them may be closed, and may get another's number ([`Files::renumber`]): a C library reopens a standard
//! stream that way.

use std::sync::Arc;

use super::bundle::{Bundle, Inode, ROOT};
use super::path::Path;
use super::tree::{Found, Tree};
use super::{FileError, FileKind, Space, Stat};

mod names;

/// The descriptor of the root directory, which is open from the start.
pub const ROOT_DESCRIPTOR: u32 = 3;
/// The most files and directories that an instance has open besides the root and the three standard streams.
pub const OPEN_FILES_MAX: usize = 64;

/// The most descriptors at a time.
const DESCRIPTORS_MAX: usize = ROOT_DESCRIPTOR as usize + 1 + OPEN_FILES_MAX;

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard input, which is always at its end.
    Input,
    /// Standard output, which goes to the log.
    Output,
    /// Standard error, which goes to the log as errors.
    Errors,
}

impl Stream {
    /// All streams, by their descriptors at the start.
    pub const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Errors];
}

/// The flags of a descriptor, as `fd_fdstat_get` shows them: some of [`Flags::ALL`]. No operation blocks, and nothing is ever written to a
/// disk, so only [`Flags::APPEND`] has an effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// Each write goes to the end.
    pub const APPEND: Self = Self(1);
    /// All flags: APPEND, DSYNC, NONBLOCK, RSYNC and SYNC.
    pub const ALL: Self = Self(31);
    /// The flags that may be changed while a file is open, as with `F_SETFL`.
    const CHANGEABLE: Self = Self(1 | 4);

    /// Returns whether all of `flags` are set.
    #[must_use]
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// How a file or directory is to be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opening {
    /// Open it for reading.
    pub read: bool,
    /// Open it for writing.
    pub write: bool,
    /// The flags of its descriptor.
    pub flags: Flags,
    /// Create a file if the name does not exist.
    pub create: bool,
    /// With [`Opening::create`]: fail if the name exists.
    pub exclusive: bool,
    /// Truncate the file to no bytes.
    pub truncate: bool,
    /// Fail unless it is a directory.
    pub directory: bool,
}

/// What a seek is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The start of the file.
    Start,
    /// The descriptor's offset.
    Current,
    /// The end of the file.
    End,
}

/// What a descriptor stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// A standard stream.
    Stream(Stream),
    /// A file or a directory.
    Node(FileKind),
}

/// The status of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// What it stands for.
    pub open: Open,
    /// Whether it is open for reading.
    pub read: bool,
    /// Whether it is open for writing.
    pub write: bool,
    /// Its flags.
    pub flags: Flags,
}

impl Status {
    /// Returns the status of a stream at the start.
    #[must_use]
    pub fn of(stream: Stream) -> Self {
        let read = stream == Stream::Input;
        Self { open: Open::Stream(stream), read, write: !read, flags: Flags::default() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descriptor {
    what: What,
    read: bool,
    write: bool,
    flags: Flags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Stream(Stream),
    Node(Node),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    inode: Inode,
    kind: FileKind,
    at: u64,
    /// It is the descriptor of the root that was open from the start.
    preopened: bool,
    /// The file or directory has no name any more, and is freed with its last descriptor.
    nameless: bool,
}

impl Descriptor {
    fn of_stream(stream: Stream) -> Self {
        let Status { read, write, flags, .. } = Status::of(stream);
        Self { what: What::Stream(stream), read, write, flags }
    }

    fn of_root() -> Self {
        let node = Node { inode: ROOT, kind: FileKind::Directory, at: 0, preopened: true, nameless: false };
        Self { what: What::Node(node), read: true, write: false, flags: Flags::default() }
    }

    /// Returns the open file or directory; none for a stream.
    fn node(&self) -> Option<&Node> {
        match &self.what {
            What::Node(node) => Some(node),
            What::Stream(_) => None,
        }
    }

    fn stands_for(&self, inode: Inode) -> bool {
        self.node().is_some_and(|node| node.inode == inode)
    }
}

/// Whether files may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changes {
    Refused,
    Taken,
}

/// The files of one instance; see the module.
#[derive(Debug)]
pub struct Files {
    tree: Tree,
    /// By descriptor.
    open: Vec<Option<Descriptor>>,
    changes: Changes,
}

impl Files {
    /// Creates the files of a new instance: those of the bundle. They are read-only until [`Files::take_changes`].
    #[must_use]
    pub fn new(bundle: Arc<Bundle>) -> Self {
        let mut files = Self::of_streams();
        files.tree = Tree::new(bundle);
        files.open.push(Some(Descriptor::of_root()));
        files
    }

    /// Creates the files of a stage that was deployed without any: only the standard streams are open, and nothing else can be opened.
    #[must_use]
    pub fn of_streams() -> Self {
        let mut open = Vec::with_capacity(Stream::ALL.len() + 1);
        open.extend(Stream::ALL.map(|stream| Some(Descriptor::of_stream(stream))));
        Self { tree: Tree::new(Bundle::empty()), open, changes: Changes::Refused }
    }

    /// Allows changes from now on.
    pub fn take_changes(&mut self) {
        self.changes = Changes::Taken;
    }

    /// Returns how many files and directories are open, without the root.
    #[must_use]
    pub fn open_count(&self) -> usize {
        let nodes = self.open.iter().flatten().filter_map(Descriptor::node);
        nodes.filter(|node| !node.preopened).count()
    }

    /// Returns whether the streams and the root are open as at the start, and nothing else is.
    #[must_use]
    pub fn is_as_at_start(&self) -> bool {
        let start = Stream::ALL.map(Descriptor::of_stream).into_iter().chain([Descriptor::of_root()]).map(Some);
        // For a stage without files the root is not open.
        let is_alike = self.open.iter().copied().zip(start).all(|(open, start)| open == start);
        is_alike && self.open_count() == 0
    }

    /// Returns the stream that a descriptor stands for; none if it stands for a file or directory, or is not open.
    #[inline]
    #[must_use]
    pub fn stream(&self, fd: u32) -> Option<Stream> {
        match self.descriptor(fd).ok()?.what {
            What::Stream(stream) => Some(stream),
            What::Node(_) => None,
        }
    }

    fn descriptor(&self, fd: u32) -> Result<Descriptor, FileError> {
        self.open.get(fd as usize).copied().flatten().ok_or(FileError::BadDescriptor)
    }

    fn descriptor_mut(&mut self, fd: u32) -> Result<&mut Descriptor, FileError> {
        self.open.get_mut(fd as usize).and_then(Option::as_mut).ok_or(FileError::BadDescriptor)
    }

    /// Returns the descriptor and its file; fails if it is not a file.
    fn file(&self, fd: u32) -> Result<(Descriptor, Node), FileError> {
        let descriptor = self.descriptor(fd)?;
        match descriptor.what {
            What::Stream(_) => Err(FileError::NotSeekable),
            What::Node(Node { kind: FileKind::Directory, .. }) => Err(FileError::IsDirectory),
            What::Node(node) => Ok((descriptor, node)),
        }
    }

    /// Sets the offset of an open file.
    fn set_place(&mut self, fd: u32, place: u64) {
        if let Ok(Descriptor { what: What::Node(node), .. }) = self.descriptor_mut(fd) {
            node.at = place;
        }
    }

    fn directory(&self, fd: u32) -> Result<Node, FileError> {
        match self.descriptor(fd)?.node() {
            Some(node) if node.kind == FileKind::Directory => Ok(*node),
            _ => Err(FileError::NotDirectory),
        }
    }

    fn resolve<'p>(&self, fd: u32, path: &'p [u8]) -> Result<Found<'p>, FileError> {
        let directory = self.directory(fd)?;
        // A removed directory is empty and stays so.
        if directory.nameless {
            return Err(FileError::NotFound);
        }
        self.tree.resolve(directory.inode, Path::new(path)?)
    }

    fn may_change(&self) -> Result<(), FileError> {
        match self.changes {
            Changes::Taken => Ok(()),
            Changes::Refused => Err(FileError::ReadOnly),
        }
    }

    /// Opens the file or directory at a path, relative to the directory `fd`. Returns its descriptor, the lowest free one.
    ///
    /// # Errors
    /// Returns why it could not be opened. Nothing was created or truncated then, unless there was no room for an empty file.
    pub fn open(&mut self, space: &mut dyn Space, fd: u32, path: &[u8], how: Opening) -> Result<u32, FileError> {
        let found = self.resolve(fd, path)?;
        let free = self.free_slot()?;
        let inode = match found.inode {
            _ if how.create && found.name.is_some() && found.is_of_directory => return Err(FileError::IsDirectory),
            Some(_) if how.create && how.exclusive => return Err(FileError::Exists),
            Some(inode) => self.open_there(space, inode, &found, how)?,
            None if !how.create => return Err(FileError::NotFound),
            None if how.directory => return Err(FileError::Invalid),
            None => {
                self.may_change()?;
                self.tree.create(space, found.parent, found.name.unwrap_or_default(), FileKind::File)?
            }
        };
        let node = Node { inode, kind: self.tree.stat(inode).kind, at: 0, preopened: false, nameless: false };
        let Opening { read, write, flags, .. } = how;
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some(Descriptor { what: What::Node(node), read, write, flags });
        Ok(free as u32)
    }

    fn open_there(
        &mut self,
        space: &mut dyn Space,
        inode: Inode,
        found: &Found<'_>,
        how: Opening,
    ) -> Result<Inode, FileError> {
        match self.tree.stat(inode).kind {
            FileKind::Directory if how.write || how.truncate || how.create => Err(FileError::IsDirectory),
            FileKind::Directory => Ok(inode),
            FileKind::File if how.directory || found.is_of_directory => Err(FileError::NotDirectory),
            FileKind::File => {
                if how.write || how.truncate {
                    self.may_change()?;
                }
                if how.truncate {
                    self.tree.set_len(space, inode, 0)?;
                }
                Ok(inode)
            }
        }
    }

    fn free_slot(&self) -> Result<usize, FileError> {
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if free < DESCRIPTORS_MAX { Ok(free) } else { Err(FileError::TooManyOpen) }
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// Fails if it is not open.
    pub fn close(&mut self, fd: u32) -> Result<(), FileError> {
        let descriptor = self.descriptor(fd)?;
        self.open[fd as usize] = None;
        if let Some(node) = descriptor.node() {
            let is_last = !self.open.iter().flatten().any(|other| other.stands_for(node.inode));
            if node.nameless && is_last {
                self.tree.forget(node.inode);
            }
        }
        Ok(())
    }

    /// Moves the descriptor `from` to the number `to`. The former descriptor `to` is closed, and `from` becomes free.
    ///
    /// # Errors
    /// Fails if one of them is not open.
    pub fn renumber(&mut self, from: u32, to: u32) -> Result<(), FileError> {
        let descriptor = self.descriptor(from)?;
        self.descriptor(to)?;
        if from != to {
            self.close(to)?;
            self.open[to as usize] = Some(descriptor);
            self.open[from as usize] = None;
        }
        Ok(())
    }

    /// Returns the status of a descriptor.
    ///
    /// # Errors
    /// Fails if it is not open.
    pub fn status(&self, fd: u32) -> Result<Status, FileError> {
        let Descriptor { what, read, write, flags } = self.descriptor(fd)?;
        let open = match what {
            What::Stream(stream) => Open::Stream(stream),
            What::Node(node) => Open::Node(node.kind),
        };
        Ok(Status { open, read, write, flags })
    }

    /// Returns whether a descriptor is that of the root that was open from the start.
    ///
    /// # Errors
    /// Fails if it is not open.
    pub fn is_preopened(&self, fd: u32) -> Result<bool, FileError> {
        Ok(self.descriptor(fd)?.node().is_some_and(|node| node.preopened))
    }

    /// Sets the flags of a descriptor that may be changed, as with `F_SETFL`; the others stay as they are.
    ///
    /// # Errors
    /// Fails if the descriptor is not open, or a flag is unknown.
    pub fn set_flags(&mut self, fd: u32, flags: Flags) -> Result<(), FileError> {
        let descriptor = self.descriptor_mut(fd)?;
        if !Flags::ALL.has(flags) {
            return Err(FileError::Invalid);
        }
        let (kept, changed) = (descriptor.flags.0 & !Flags::CHANGEABLE.0, flags.0 & Flags::CHANGEABLE.0);
        descriptor.flags = Flags(kept | changed);
        Ok(())
    }

    /// Does nothing, since there is no disk to synchronise with.
    ///
    /// # Errors
    /// Fails if the descriptor is not open or is a stream.
    pub fn sync(&self, fd: u32) -> Result<(), FileError> {
        match self.descriptor(fd)?.what {
            What::Stream(_) => Err(FileError::Invalid),
            What::Node(_) => Ok(()),
        }
    }

    /// Ignores advice on how a file will be used.
    ///
    /// # Errors
    /// Fails if the descriptor is not open or is a stream.
    pub fn advise(&self, fd: u32) -> Result<(), FileError> {
        match self.descriptor(fd)?.what {
            What::Stream(_) => Err(FileError::NotSeekable),
            What::Node(_) => Ok(()),
        }
    }

    /// Refuses to preallocate space for a file.
    ///
    /// # Errors
    /// Always fails: with [`FileError::NotSupported`] for a file that is open for writing, otherwise with what is wrong with the
    /// descriptor.
    pub fn allocate(&self, fd: u32) -> Result<(), FileError> {
        let (descriptor, _) = self.file(fd)?;
        Err(if descriptor.write { FileError::NotSupported } else { FileError::BadDescriptor })
    }

    /// Returns the status of an open file or directory; none for a stream.
    ///
    /// # Errors
    /// Fails if the descriptor is not open.
    pub fn stat(&self, fd: u32) -> Result<Option<Stat>, FileError> {
        Ok(self.descriptor(fd)?.node().map(|node| self.tree.stat(node.inode)))
    }

    /// Returns the status of the file or directory at a path.
    ///
    /// # Errors
    /// Fails if the path leads nowhere.
    pub fn stat_at(&self, fd: u32, path: &[u8]) -> Result<Stat, FileError> {
        let found = self.resolve(fd, path)?;
        let stat = self.tree.stat(found.inode.ok_or(FileError::NotFound)?);
        match stat.kind {
            FileKind::File if found.is_of_directory => Err(FileError::NotDirectory),
            _ => Ok(stat),
        }
    }

    /// Reads from offset `at` on, or from the descriptor's offset, which moves on then. Returns how many bytes were read, 0 at the end.
    ///
    /// # Errors
    /// Fails if the descriptor is not a file open for reading.
    pub fn read(&mut self, fd: u32, at: Option<u64>, out: &mut [u8]) -> Result<usize, FileError> {
        let (Descriptor { read, .. }, Node { inode, at: current, .. }) = self.file(fd)?;
        if !read {
            return Err(FileError::BadDescriptor);
        }
        let done = self.tree.read(inode, at.unwrap_or(current), out);
        if at.is_none() {
            self.set_place(fd, current + done as u64);
        }
        Ok(done)
    }

    /// Writes from offset `at` on; without it, from the descriptor's offset, or at the end if it appends. Returns how many bytes there was
    /// room for.
    ///
    /// # Errors
    /// Fails if the descriptor is not a file open for writing, or there is no room at all.
    pub fn write(&mut self, space: &mut dyn Space, fd: u32, at: Option<u64>, bytes: &[u8]) -> Result<usize, FileError> {
        let (Descriptor { write, flags, .. }, Node { inode, at: current, .. }) = self.file(fd)?;
        if !write {
            return Err(FileError::BadDescriptor);
        }
        self.may_change()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let current = if flags.has(Flags::APPEND) { self.tree.stat(inode).bytes } else { current };
        let done = self.tree.write(space, inode, at.unwrap_or(current), bytes)?;
        if at.is_none() {
            self.set_place(fd, current + done as u64);
        }
        Ok(done)
    }

    /// Moves the offset at which a file is read and written. Returns the new offset.
    ///
    /// # Errors
    /// Fails if the descriptor is not an open file, or the offset would be before its start.
    pub fn seek(&mut self, fd: u32, offset: i64, whence: Whence) -> Result<u64, FileError> {
        let (_, Node { inode, at, .. }) = self.file(fd)?;
        let from = match whence {
            Whence::Start => 0,
            Whence::Current => at,
            Whence::End => self.tree.stat(inode).bytes,
        };
        let at = from.checked_add_signed(offset).filter(|at| i64::try_from(*at).is_ok()).ok_or(FileError::Invalid)?;
        self.set_place(fd, at);
        Ok(at)
    }

    /// Truncates a file, or extends it with zeros.
    ///
    /// # Errors
    /// Fails if the descriptor is not a file open for writing, or there is no room.
    pub fn set_len(&mut self, space: &mut dyn Space, fd: u32, len: u64) -> Result<(), FileError> {
        let (inode, write) = match self.file(fd) {
            Ok((descriptor, node)) => (node.inode, descriptor.write),
            // A stream has no length.
            Err(FileError::NotSeekable) => return Err(FileError::Invalid),
            Err(error) => return Err(error),
        };
        if !write {
            return Err(FileError::Invalid);
        }
        self.may_change()?;
        self.tree.set_len(space, inode, len)
    }

    /// Notes that a file or directory has no name any more. It is freed once it is not open.
    fn lose_name(&mut self, inode: Inode) {
        let mut is_open = false;
        for descriptor in self.open.iter_mut().flatten() {
            if let What::Node(node) = &mut descriptor.what
                && node.inode == inode
            {
                (node.nameless, is_open) = (true, true);
            }
        }
        if !is_open {
            self.tree.forget(inode);
        }
    }
}

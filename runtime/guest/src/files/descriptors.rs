//! The open files of an instance, and what is done by them and by paths.

use std::sync::Arc;

use super::bundle::{Bundle, Inode, ROOT};
use super::path::Path;
use super::tree::{Found, Tree};
use super::{FileError, FileKind, Space, Stat, listing};

/// The descriptor of the root directory, which is always open.
pub const ROOT_DESCRIPTOR: u32 = 3;
/// The most files and directories that an instance has open, the root and the three standard streams not counted.
pub const OPEN_FILES_MAX: usize = 64;

/// The first descriptor of those that are opened.
const FIRST: u32 = ROOT_DESCRIPTOR + 1;

/// How something is to be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opening {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// Make a file if there is nothing.
    pub create: bool,
    /// With [`Opening::create`]: only if there is nothing.
    pub exclusive: bool,
    /// Make it empty.
    pub truncate: bool,
    /// Only a directory.
    pub directory: bool,
}

/// What a place in a file is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// Its start.
    Start,
    /// The place of the descriptor.
    Current,
    /// Its end.
    End,
}

/// What is known of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// What is open.
    pub kind: FileKind,
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Each write goes to the end.
    pub append: bool,
}

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    inode: Inode,
    kind: FileKind,
    at: u64,
    read: bool,
    write: bool,
    append: bool,
    /// What it stands for has no name any more, and goes with the last descriptor.
    nameless: bool,
}

/// Whether anything may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changes {
    Refused,
    Taken,
}

/// The files of one instance. See the module.
#[derive(Debug)]
pub struct Files {
    tree: Tree,
    /// By descriptor, from [`FIRST`].
    open: Vec<Option<Descriptor>>,
    changes: Changes,
}

impl Files {
    /// The files of a new instance: those of the bundle. Nothing can be changed yet.
    #[must_use]
    pub fn new(bundle: Arc<Bundle>) -> Self {
        Self { tree: Tree::new(bundle), open: Vec::new(), changes: Changes::Refused }
    }

    /// From now on, what the instance changes is kept for it.
    pub fn take_changes(&mut self) {
        self.changes = Changes::Taken;
    }

    /// How many files and directories are open, the root not counted.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.iter().flatten().count()
    }

    fn descriptor(&self, fd: u32) -> Result<Descriptor, FileError> {
        if fd == ROOT_DESCRIPTOR {
            let kind = FileKind::Directory;
            return Ok(Descriptor {
                inode: ROOT,
                kind,
                at: 0,
                read: true,
                write: false,
                append: false,
                nameless: false,
            });
        }
        self.open.get(slot(fd)?).copied().flatten().ok_or(FileError::BadDescriptor)
    }

    fn file(&mut self, fd: u32) -> Result<&mut Descriptor, FileError> {
        if fd == ROOT_DESCRIPTOR {
            return Err(FileError::IsDirectory);
        }
        let descriptor = self.open.get_mut(slot(fd)?).and_then(Option::as_mut).ok_or(FileError::BadDescriptor)?;
        if descriptor.kind == FileKind::Directory { Err(FileError::IsDirectory) } else { Ok(descriptor) }
    }

    fn directory(&self, fd: u32) -> Result<Descriptor, FileError> {
        let descriptor = self.descriptor(fd)?;
        if descriptor.kind == FileKind::Directory { Ok(descriptor) } else { Err(FileError::NotDirectory) }
    }

    fn resolve<'p>(&self, fd: u32, path: &'p [u8]) -> Result<Found<'p>, FileError> {
        let directory = self.directory(fd)?;
        // What has been removed is empty, and stays so.
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

    /// Opens what a path leads to from a directory; its descriptor is the lowest that is free.
    ///
    /// # Errors
    /// Why it is not open. Nothing was made or emptied then, unless there was no room for an empty file.
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
        let kind = self.tree.stat(inode).kind;
        let Opening { read, write, append, .. } = how;
        let descriptor = Descriptor { inode, kind, at: 0, read, write, append, nameless: false };
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some(descriptor);
        Ok(FIRST + free as u32)
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
        if free < OPEN_FILES_MAX { Ok(free) } else { Err(FileError::TooManyOpen) }
    }

    /// Closes a descriptor. The root's stays open.
    ///
    /// # Errors
    /// If it is not open, or the root's.
    pub fn close(&mut self, fd: u32) -> Result<(), FileError> {
        if fd == ROOT_DESCRIPTOR {
            return Err(FileError::NotSupported);
        }
        let descriptor = self.open.get_mut(slot(fd)?).and_then(Option::take).ok_or(FileError::BadDescriptor)?;
        let is_last = !self.open.iter().flatten().any(|other| other.inode == descriptor.inode);
        if descriptor.nameless && is_last {
            self.tree.forget(descriptor.inode);
        }
        Ok(())
    }

    /// Has a descriptor stand for what another one does, which is free then; what it stood for before is closed.
    ///
    /// # Errors
    /// If one is not open, or the root's.
    pub fn renumber(&mut self, from: u32, to: u32) -> Result<(), FileError> {
        if from == ROOT_DESCRIPTOR || to == ROOT_DESCRIPTOR {
            return Err(FileError::NotSupported);
        }
        let descriptor = self.descriptor(from)?;
        self.descriptor(to)?;
        if from != to {
            self.close(to)?;
            self.open[slot(to)?] = Some(descriptor);
            self.open[slot(from)?] = None;
        }
        Ok(())
    }

    /// How a descriptor was opened.
    ///
    /// # Errors
    /// If it is not open.
    pub fn status(&self, fd: u32) -> Result<Status, FileError> {
        let Descriptor { kind, read, write, append, .. } = self.descriptor(fd)?;
        Ok(Status { kind, read, write, append })
    }

    /// Changes whether each write goes to the end.
    ///
    /// # Errors
    /// If no file is open there.
    pub fn set_append(&mut self, fd: u32, append: bool) -> Result<(), FileError> {
        self.file(fd)?.append = append;
        Ok(())
    }

    /// What is known of what is open.
    ///
    /// # Errors
    /// If nothing is.
    pub fn stat(&self, fd: u32) -> Result<Stat, FileError> {
        Ok(self.tree.stat(self.descriptor(fd)?.inode))
    }

    /// What is known of what a path leads to.
    ///
    /// # Errors
    /// If it leads nowhere.
    pub fn stat_at(&self, fd: u32, path: &[u8]) -> Result<Stat, FileError> {
        let found = self.resolve(fd, path)?;
        let stat = self.tree.stat(found.inode.ok_or(FileError::NotFound)?);
        match stat.kind {
            FileKind::File if found.is_of_directory => Err(FileError::NotDirectory),
            _ => Ok(stat),
        }
    }

    /// Copies what there is from a place on, or from the descriptor's, which moves on then; how much that was, 0 at the end.
    ///
    /// # Errors
    /// If it is not open to be read.
    pub fn read(&mut self, fd: u32, at: Option<u64>, out: &mut [u8]) -> Result<usize, FileError> {
        let Descriptor { inode, at: current, read, .. } = *self.file(fd)?;
        if !read {
            return Err(FileError::BadDescriptor);
        }
        let done = self.tree.read(inode, at.unwrap_or(current), out);
        if at.is_none() {
            self.file(fd)?.at = current + done as u64;
        }
        Ok(done)
    }

    /// Writes from a place on, or from the descriptor's, or the end if it appends; how much there was room for.
    ///
    /// # Errors
    /// If it is not open to be written, or there is no room at all.
    pub fn write(&mut self, space: &mut dyn Space, fd: u32, at: Option<u64>, bytes: &[u8]) -> Result<usize, FileError> {
        let Descriptor { inode, at: current, write, append, .. } = *self.file(fd)?;
        if !write {
            return Err(FileError::BadDescriptor);
        }
        self.may_change()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let current = if append { self.tree.stat(inode).bytes } else { current };
        let done = self.tree.write(space, inode, at.unwrap_or(current), bytes)?;
        if at.is_none() {
            self.file(fd)?.at = current + done as u64;
        }
        Ok(done)
    }

    /// Moves the place at which a file is read and written; where it is then.
    ///
    /// # Errors
    /// If no file is open there, or the place is before its start.
    pub fn seek(&mut self, fd: u32, offset: i64, whence: Whence) -> Result<u64, FileError> {
        let Descriptor { inode, at, .. } = *self.file(fd)?;
        let from = match whence {
            Whence::Start => 0,
            Whence::Current => at,
            Whence::End => self.tree.stat(inode).bytes,
        };
        let at = from.checked_add_signed(offset).filter(|at| i64::try_from(*at).is_ok()).ok_or(FileError::Invalid)?;
        self.file(fd)?.at = at;
        Ok(at)
    }

    /// Cuts a file off, or has zeros follow it.
    ///
    /// # Errors
    /// If it is not open to be written, or there is no room.
    pub fn set_len(&mut self, space: &mut dyn Space, fd: u32, len: u64) -> Result<(), FileError> {
        let Descriptor { inode, write, .. } = *self.file(fd)?;
        if !write {
            return Err(FileError::Invalid);
        }
        self.may_change()?;
        self.tree.set_len(space, inode, len)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Why it was not made.
    pub fn create_directory(&mut self, space: &mut dyn Space, fd: u32, path: &[u8]) -> Result<(), FileError> {
        let found = self.resolve(fd, path)?;
        let (Some(name), None) = (found.name, found.inode) else { return Err(FileError::Exists) };
        self.may_change()?;
        self.tree.create(space, found.parent, name, FileKind::Directory).map(|_| ())
    }

    /// Removes a directory in which there is nothing.
    ///
    /// # Errors
    /// Why it was not removed.
    pub fn remove_directory(&mut self, space: &mut dyn Space, fd: u32, path: &[u8]) -> Result<(), FileError> {
        let found = self.resolve(fd, path)?;
        let name = found.name.ok_or(FileError::Invalid)?;
        let inode = found.inode.ok_or(FileError::NotFound)?;
        match self.tree.stat(inode).kind {
            FileKind::File => return Err(FileError::NotDirectory),
            FileKind::Directory if !self.tree.is_empty(inode) => return Err(FileError::NotEmpty),
            FileKind::Directory => {}
        }
        self.may_change()?;
        self.tree.remove(space, found.parent, name, inode)?;
        self.lose_name(inode);
        Ok(())
    }

    /// Removes a file. Who has it open goes on reading and writing it.
    ///
    /// # Errors
    /// Why it was not removed.
    pub fn unlink(&mut self, space: &mut dyn Space, fd: u32, path: &[u8]) -> Result<(), FileError> {
        let found = self.resolve(fd, path)?;
        let inode = found.inode.ok_or(FileError::NotFound)?;
        let (Some(name), FileKind::File) = (found.name, self.tree.stat(inode).kind) else {
            return Err(FileError::IsDirectory);
        };
        if found.is_of_directory {
            return Err(FileError::NotDirectory);
        }
        self.may_change()?;
        self.tree.remove(space, found.parent, name, inode)?;
        self.lose_name(inode);
        Ok(())
    }

    /// Gives something another name, in place of the file or empty directory that has it.
    ///
    /// # Errors
    /// Why everything has the name that it had.
    pub fn rename(&mut self, space: &mut dyn Space, from: (u32, &[u8]), to: (u32, &[u8])) -> Result<(), FileError> {
        let (old, new) = (self.resolve(from.0, from.1)?, self.resolve(to.0, to.1)?);
        let (Some(old_name), Some(new_name)) = (old.name, new.name) else { return Err(FileError::Busy) };
        let inode = old.inode.ok_or(FileError::NotFound)?;
        let kind = self.tree.stat(inode).kind;
        if kind == FileKind::File && (old.is_of_directory || new.is_of_directory) {
            return Err(FileError::NotDirectory);
        }
        if kind == FileKind::Directory && self.tree.lies_in(new.parent, inode)? {
            return Err(FileError::Invalid);
        }
        if new.inode == Some(inode) {
            return Ok(());
        }
        if let Some(replaced) = new.inode {
            if self.tree.lies_in(old.parent, replaced)? {
                return Err(FileError::NotEmpty);
            }
            match (kind, self.tree.stat(replaced).kind) {
                (FileKind::File, FileKind::Directory) => return Err(FileError::IsDirectory),
                (FileKind::Directory, FileKind::File) => return Err(FileError::NotDirectory),
                (FileKind::Directory, FileKind::Directory) if !self.tree.is_empty(replaced) => {
                    return Err(FileError::NotEmpty);
                }
                _ => {}
            }
        }
        self.may_change()?;
        self.tree.rename(space, (old.parent, old_name, inode), (new.parent, new_name, new.inode))?;
        if let Some(replaced) = new.inode {
            self.lose_name(replaced);
        }
        Ok(())
    }

    /// Fills a buffer with what is in a directory, as WASI preview 1 has it: all whose number is greater than the cookie's, the last one
    /// cut off if the buffer is full. How much of the buffer is filled: all of it, if there is more.
    ///
    /// # Errors
    /// If no directory is open there.
    pub fn read_directory(&self, fd: u32, cookie: u64, out: &mut [u8]) -> Result<usize, FileError> {
        let Descriptor { inode, nameless, .. } = self.directory(fd)?;
        if nameless {
            return Ok(0);
        }
        Ok(listing::fill(&self.tree, inode, cookie, out))
    }

    /// Notes that something has lost its name: it stays until it is open no more.
    fn lose_name(&mut self, inode: Inode) {
        let mut is_open = false;
        for descriptor in self.open.iter_mut().flatten().filter(|descriptor| descriptor.inode == inode) {
            (descriptor.nameless, is_open) = (true, true);
        }
        if !is_open {
            self.tree.forget(inode);
        }
    }
}

fn slot(fd: u32) -> Result<usize, FileError> {
    fd.checked_sub(FIRST).map(|slot| slot as usize).ok_or(FileError::BadDescriptor)
}

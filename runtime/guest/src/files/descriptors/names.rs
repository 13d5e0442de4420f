//! Names in directories: made, removed, changed and listed.

use super::{Files, Node};
use crate::files::{FileError, FileKind, Space, listing};

impl Files {
    /// Creates a directory.
    ///
    /// # Errors
    /// Returns why it was not created.
    pub fn create_directory(&mut self, space: &mut dyn Space, fd: u32, path: &[u8]) -> Result<(), FileError> {
        let found = self.resolve(fd, path)?;
        let (Some(name), None) = (found.name, found.inode) else { return Err(FileError::Exists) };
        self.may_change()?;
        self.tree.create(space, found.parent, name, FileKind::Directory).map(|_| ())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Returns why it was not removed.
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

    /// Removes a file. It can still be read and written through descriptors that are open.
    ///
    /// # Errors
    /// Returns why it was not removed.
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

    /// Renames a file or directory, and replaces the file or empty directory that has the new name.
    ///
    /// # Errors
    /// Returns why nothing was renamed.
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

    /// Fills a buffer with a directory's entries after `cookie`, in the format of WASI preview 1. The last entry is cut off if the buffer
    /// is full. Returns how many bytes were filled: the whole buffer, if there are more entries.
    ///
    /// # Errors
    /// Fails if the descriptor is not an open directory.
    pub fn read_directory(&self, fd: u32, cookie: u64, out: &mut [u8]) -> Result<usize, FileError> {
        let Node { inode, nameless, .. } = self.directory(fd)?;
        if nameless {
            return Ok(0);
        }
        Ok(listing::fill(&self.tree, inode, cookie, out))
    }
}

//! Paths of bounded length: names separated by slashes.

use super::FileError;

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// The most names of a path, dots included.
pub const PATH_NAMES_MAX: usize = 64;
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// A valid path within the bounds, relative to a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path<'p>(&'p str);

impl<'p> Path<'p> {
    /// Checks that these bytes are a valid path.
    pub(super) fn new(bytes: &'p [u8]) -> Result<Self, FileError> {
        if bytes.len() > PATH_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        let text = str::from_utf8(bytes).map_err(|_| FileError::NotText)?;
        if text.contains('\0') {
            return Err(FileError::Invalid);
        }
        if text.is_empty() {
            return Err(FileError::NotFound);
        }
        if text.starts_with('/') {
            return Err(FileError::Outside);
        }
        let path = Self(text);
        if path.names().count() > PATH_NAMES_MAX || path.names().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(FileError::NameTooLong);
        }
        Ok(path)
    }

    /// Returns its names, including `.` and `..`.
    pub(super) fn names(self) -> impl Iterator<Item = &'p str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Returns whether the path can only mean a directory.
    pub(super) fn is_of_directory(self) -> bool {
        self.0.ends_with('/') || self.names().last().is_some_and(|name| matches!(name, "." | ".."))
    }
}

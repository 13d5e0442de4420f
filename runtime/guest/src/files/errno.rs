//! Errors of file operations, with their WASI preview 1 numbers.

/// Why a file operation failed. It had no effect then, unless its documentation says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(i32)]
pub enum FileError {
    /// The descriptor is not open, or not open for this operation.
    #[error("bad file descriptor")]
    BadDescriptor = 8,
    /// The root directory cannot be renamed or removed.
    #[error("resource busy")]
    Busy = 10,
    /// The name exists already.
    #[error("file exists")]
    Exists = 20,
    /// The file would be larger than [`super::FILE_BYTES_MAX`].
    #[error("file too large")]
    TooLarge = 22,
    /// The path is not UTF-8.
    #[error("illegal byte sequence")]
    NotText = 25,
    /// An argument is invalid.
    #[error("invalid argument")]
    Invalid = 28,
    /// It is a directory.
    #[error("is a directory")]
    IsDirectory = 31,
    /// The instance has as many open files as it may have.
    #[error("too many open files")]
    TooManyOpen = 33,
    /// A path or a name in it is too long, or a directory would lie too deep.
    #[error("name too long")]
    NameTooLong = 37,
    /// The name does not exist.
    #[error("no such file or directory")]
    NotFound = 44,
    /// The instance has reached its memory limit, or its limit of files and directories of its own.
    #[error("no space left")]
    NoSpace = 51,
    /// It is not a directory.
    #[error("not a directory")]
    NotDirectory = 54,
    /// The directory is not empty.
    #[error("directory not empty")]
    NotEmpty = 55,
    /// Not supported: links, times, preallocation.
    #[error("not supported")]
    NotSupported = 58,
    /// The function is being initialised: no instance would have what is written then.
    #[error("read-only file system")]
    ReadOnly = 69,
    /// A stream has no offsets.
    #[error("illegal seek")]
    NotSeekable = 70,
    /// The path leads out of the directory in which it begins.
    #[error("outside of the directory")]
    Outside = 76,
}

impl FileError {
    /// Returns its number in WASI preview 1.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }
}

//! Why an operation on files was not done, as WASI preview 1 numbers it.

/// Why an operation was not done. Nothing of it was, unless it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(i32)]
pub enum FileError {
    /// Not an open descriptor, or not opened for this.
    #[error("bad file descriptor")]
    BadDescriptor = 8,
    /// The root directory cannot be given another name or removed.
    #[error("resource busy")]
    Busy = 10,
    /// There is something of this name.
    #[error("file exists")]
    Exists = 20,
    /// The file would be larger than [`super::FILE_BYTES_MAX`].
    #[error("file too large")]
    TooLarge = 22,
    /// A path that is not UTF-8.
    #[error("illegal byte sequence")]
    NotText = 25,
    /// An argument that means nothing here.
    #[error("invalid argument")]
    Invalid = 28,
    /// It is a directory.
    #[error("is a directory")]
    IsDirectory = 31,
    /// More open files than an instance may have.
    #[error("too many open files")]
    TooManyOpen = 33,
    /// A path or a name in it is too long, or a directory would lie too deep.
    #[error("name too long")]
    NameTooLong = 37,
    /// There is nothing of this name.
    #[error("no such file or directory")]
    NotFound = 44,
    /// The instance may have no more memory, or has made as many files and directories as it may.
    #[error("no space left")]
    NoSpace = 51,
    /// It is not a directory.
    #[error("not a directory")]
    NotDirectory = 54,
    /// The directory is not empty.
    #[error("directory not empty")]
    NotEmpty = 55,
    /// There is no such thing here: links, times, allocation ahead.
    #[error("not supported")]
    NotSupported = 58,
    /// It is being initialised: what is written then is in no instance.
    #[error("read-only file system")]
    ReadOnly = 69,
    /// The path leads out of the directory that it begins in.
    #[error("outside of the directory")]
    Outside = 76,
}

impl FileError {
    /// Its number in WASI preview 1.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }
}

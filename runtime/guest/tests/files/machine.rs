//! Compares guests' files with the machine's own file system: the same operations on a temporary folder must have the same results.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pinion_guest::files::{FileError, FileKind, Files, Flags, Opening, ROOT_DESCRIPTOR, Whence};
use proptest::prelude::*;
use tempfile::TempDir;

use super::{Room, archive, contents, files, list};

/// An operation on both. `file` is an index into the open files.
#[derive(Debug, Clone)]
enum Operation {
    Open { path: String, how: Opening },
    Close { file: usize },
    Read { file: usize, len: usize },
    ReadAt { file: usize, at: u64, len: usize },
    Write { file: usize, bytes: Vec<u8> },
    WriteAt { file: usize, at: u64, bytes: Vec<u8> },
    Seek { file: usize, offset: i64, whence: Whence },
    SetLen { file: usize, len: u64 },
    Stat { path: String },
    StatOpen { file: usize },
    List { path: String },
    CreateDirectory { path: String },
    RemoveDirectory { path: String },
    Unlink { path: String },
    Rename { from: String, to: String },
}

impl Operation {
    /// Returns the index of the open file that it uses.
    fn file(&self) -> Option<usize> {
        match self {
            Self::Close { file }
            | Self::Read { file, .. }
            | Self::ReadAt { file, .. }
            | Self::Write { file, .. }
            | Self::WriteAt { file, .. }
            | Self::Seek { file, .. }
            | Self::SetLen { file, .. }
            | Self::StatOpen { file } => Some(*file),
            _ => None,
        }
    }
}

/// The result of an operation, which must be the same on both sides.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Bytes(Vec<u8>),
    Number(u64),
    Stat(FileKind, u64),
    Names(BTreeMap<String, FileKind>),
    Error(i32),
    /// No file is open.
    NoFile,
}

/// A file that is open on both sides.
struct Open {
    descriptor: u32,
    file: File,
    how: Opening,
}

struct Both {
    files: Files,
    room: Room,
    folder: TempDir,
    open: Vec<Open>,
}

impl Both {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        tar::Archive::new(&archive()[..]).unpack(folder.path()).unwrap();
        Self { files: files(), room: Room::default(), folder, open: Vec::new() }
    }

    fn place(&self, path: &str) -> PathBuf {
        // Keeps a trailing slash of the path.
        PathBuf::from(format!("{}/{path}", self.folder.path().display()))
    }

    fn step(&mut self, operation: &Operation) {
        let (ours, theirs) = match operation {
            Operation::Open { path, how } => self.open(path, *how),
            other => (self.ours(other), self.theirs(other)),
        };
        assert_eq!(ours, theirs, "{operation:?}");
    }

    fn open(&mut self, path: &str, how: Opening) -> (Answer, Answer) {
        let ours = self.files.open(&mut self.room, ROOT_DESCRIPTOR, path.as_bytes(), how);
        let theirs = open(&self.place(path), how);
        match (ours, theirs) {
            (Ok(descriptor), Ok(file)) => {
                self.open.push(Open { descriptor, file, how });
                (Answer::Done, Answer::Done)
            }
            (ours, theirs) => (answer(ours, |_| Answer::Done), answer_io(theirs, |_| Answer::Done)),
        }
    }

    fn ours(&mut self, operation: &Operation) -> Answer {
        let Self { files, room, open, .. } = self;
        let opened = match operation.file() {
            Some(_) if open.is_empty() => return Answer::NoFile,
            Some(file) => open[file % open.len()].descriptor,
            None => ROOT_DESCRIPTOR,
        };
        let number = |number: usize| Answer::Number(number as u64);
        let done = |()| Answer::Done;
        let root = ROOT_DESCRIPTOR;
        match operation {
            Operation::Open { .. } => unreachable!("done by both at once"),
            Operation::Close { .. } => answer(files.close(opened), done),
            Operation::Read { len, .. } => read(*len, |out| files.read(opened, None, out)),
            Operation::ReadAt { at, len, .. } => read(*len, |out| files.read(opened, Some(*at), out)),
            Operation::Write { bytes, .. } => answer(files.write(room, opened, None, bytes), number),
            Operation::WriteAt { at, bytes, .. } => answer(files.write(room, opened, Some(*at), bytes), number),
            Operation::Seek { offset, whence, .. } => answer(files.seek(opened, *offset, *whence), Answer::Number),
            Operation::SetLen { len, .. } => answer(files.set_len(room, opened, *len), done),
            Operation::Stat { path } => {
                answer(files.stat_at(root, path.as_bytes()), |stat| Answer::Stat(stat.kind, stat.bytes))
            }
            Operation::StatOpen { .. } => answer(files.stat(opened), |stat| {
                stat.map_or(Answer::NoFile, |stat| Answer::Stat(stat.kind, stat.bytes))
            }),
            Operation::List { path } => answer(list(files, path), Answer::Names),
            Operation::CreateDirectory { path } => answer(files.create_directory(room, root, path.as_bytes()), done),
            Operation::RemoveDirectory { path } => answer(files.remove_directory(room, root, path.as_bytes()), done),
            Operation::Unlink { path } => answer(files.unlink(room, root, path.as_bytes()), done),
            Operation::Rename { from, to } => {
                answer(files.rename(room, (root, from.as_bytes()), (root, to.as_bytes())), done)
            }
        }
    }

    fn theirs(&mut self, operation: &Operation) -> Answer {
        let count = self.open.len();
        match operation.file() {
            Some(_) if count == 0 => Answer::NoFile,
            Some(file) if matches!(operation, Operation::Close { .. }) => {
                self.open.remove(file % count);
                Answer::Done
            }
            Some(file) => by_file(&mut self.open[file % count].file, operation),
            None => self.by_path(operation),
        }
    }

    fn by_path(&self, operation: &Operation) -> Answer {
        let done = |()| Answer::Done;
        match operation {
            Operation::Stat { path } => answer_io(fs::symlink_metadata(self.place(path)), |it| stat(&it)),
            Operation::List { path } => answer_io(names(&self.place(path)), Answer::Names),
            Operation::CreateDirectory { path } => answer_io(fs::create_dir(self.place(path)), done),
            Operation::RemoveDirectory { path } => answer_io(fs::remove_dir(self.place(path)), done),
            Operation::Unlink { path } => answer_io(fs::remove_file(self.place(path)), done),
            Operation::Rename { from, to } => answer_io(fs::rename(self.place(from), self.place(to)), done),
            other => unreachable!("{other:?}"),
        }
    }

    /// Asserts that both have the same files with the same bytes.
    fn compare(&mut self) {
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let at = if folder.is_empty() { "." } else { &folder };
            let (ours, theirs) = (list(&mut self.files, at).unwrap(), names(&self.place(at)).unwrap());
            assert_eq!(ours, theirs, "in {at}");
            for (name, kind) in ours {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                match kind {
                    FileKind::Directory => folders.push(path),
                    FileKind::File => {
                        assert_eq!(contents(&mut self.files, &path), fs::read(self.place(&path)).unwrap(), "{path}")
                    }
                }
            }
        }
    }
}

fn by_file(file: &mut File, operation: &Operation) -> Answer {
    let number = |number: usize| Answer::Number(number as u64);
    let out = |len: usize| vec![0; len];
    match operation {
        Operation::Read { len, .. } => {
            let mut out = out(*len);
            answer_io(file.read(&mut out), |done| Answer::Bytes(out[..done].to_vec()))
        }
        Operation::ReadAt { at, len, .. } => {
            let mut out = out(*len);
            answer_io(file.read_at(&mut out, *at), |done| Answer::Bytes(out[..done].to_vec()))
        }
        Operation::Write { bytes, .. } => answer_io(file.write(bytes), number),
        Operation::WriteAt { at, bytes, .. } => answer_io(file.write_at(bytes, *at), number),
        Operation::Seek { offset, whence: Whence::Start, .. } if *offset < 0 => {
            Answer::Error(FileError::Invalid.number())
        }
        Operation::Seek { offset, whence, .. } => {
            let to = match whence {
                Whence::Start => SeekFrom::Start(*offset as u64),
                Whence::Current => SeekFrom::Current(*offset),
                Whence::End => SeekFrom::End(*offset),
            };
            answer_io(file.seek(to), Answer::Number)
        }
        Operation::SetLen { len, .. } => answer_io(file.set_len(*len), |()| Answer::Done),
        Operation::StatOpen { .. } => answer_io(file.metadata(), |it| stat(&it)),
        other => unreachable!("{other:?}"),
    }
}

fn stat(metadata: &fs::Metadata) -> Answer {
    match metadata.is_dir() {
        true => Answer::Stat(FileKind::Directory, 0),
        false => Answer::Stat(FileKind::File, metadata.len()),
    }
}

fn open(place: &Path, how: Opening) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let Opening { read, write, flags, create, exclusive, truncate, directory } = how;
    let append = flags.has(Flags::APPEND);
    // The raw flags, because std refuses some combinations.
    let mut flags = 0;
    for (flag, is_set) in [
        (libc::O_APPEND, append),
        (libc::O_CREAT, create),
        (libc::O_EXCL, exclusive),
        (libc::O_TRUNC, truncate),
        (libc::O_DIRECTORY, directory),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    OpenOptions::new().read(read).write(write).custom_flags(flags).mode(0o600).open(place)
}

fn read(len: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, FileError>) -> Answer {
    let mut out = vec![0; len];
    answer(read(&mut out), |done| Answer::Bytes(out[..done].to_vec()))
}

fn names(place: &Path) -> io::Result<BTreeMap<String, FileKind>> {
    let kind = |entry: &fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => FileKind::Directory,
        false => FileKind::File,
    };
    let name =
        |entry: io::Result<fs::DirEntry>| entry.map(|entry| (entry.file_name().into_string().unwrap(), kind(&entry)));
    fs::read_dir(place)?.map(name).collect()
}

fn answer<T>(result: Result<T, FileError>, of: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|error| Answer::Error(error.number()), of)
}

fn answer_io<T>(result: io::Result<T>, of: impl FnOnce(T) -> Answer) -> Answer {
    let number = |error: io::Error| match error.raw_os_error() {
        Some(libc::EBADF) => FileError::BadDescriptor,
        Some(libc::EBUSY) => FileError::Busy,
        Some(libc::EEXIST) => FileError::Exists,
        Some(libc::EINVAL) => FileError::Invalid,
        Some(libc::EISDIR) => FileError::IsDirectory,
        Some(libc::ENOENT) => FileError::NotFound,
        Some(libc::ENOTDIR) => FileError::NotDirectory,
        Some(libc::ENOTEMPTY) => FileError::NotEmpty,
        _ => panic!("the machine says {error:?}"),
    };
    result.map_or_else(|error| Answer::Error(number(error).number()), of)
}

fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "c", "d", "one", "two", "deep", "empty", "new", "x"]),
        1 => Just("."),
    ];
    (prop::collection::vec(name, 1..4), prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(
        |(mut names, ends_in_slash, goes_back)| {
            if goes_back && names.len() > 1 && names[0] != "." {
                names.insert(1, "..");
            }
            // Paths that end in dots are tested elsewhere.
            if names.last().is_some_and(|name| *name == "." || *name == "..") {
                names.push("a");
            }
            names.join("/") + if ends_in_slash { "/" } else { "" }
        },
    )
}

fn opening() -> impl Strategy<Value = Opening> {
    let rarely = || prop::bool::weighted(0.15);
    (any::<bool>(), rarely(), any::<bool>(), rarely(), rarely(), rarely()).prop_map(
        |(write, append, create, exclusive, truncate, directory)| Opening {
            read: true,
            write,
            flags: if append { Flags::APPEND } else { Flags::default() },
            create,
            // O_EXCL without O_CREAT and O_TRUNC with O_RDONLY are undefined in POSIX.
            exclusive: exclusive && create,
            truncate: truncate && write,
            directory,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let file = || 0..8_usize;
    let bytes = || prop::collection::vec(any::<u8>(), 0..9000);
    let whence = prop::sample::select(vec![Whence::Start, Whence::Current, Whence::End]);
    prop_oneof![
        6 => (path(), opening()).prop_map(|(path, how)| Operation::Open { path, how }),
        1 => file().prop_map(|file| Operation::Close { file }),
        2 => (file(), 0..9000_usize).prop_map(|(file, len)| Operation::Read { file, len }),
        2 => (file(), 0..20_000_u64, 0..9000_usize).prop_map(|(file, at, len)| Operation::ReadAt { file, at, len }),
        3 => (file(), bytes()).prop_map(|(file, bytes)| Operation::Write { file, bytes }),
        2 => (file(), 0..20_000_u64, bytes()).prop_map(|(file, at, bytes)| Operation::WriteAt { file, at, bytes }),
        2 => (file(), -10_000..20_000_i64, whence)
            .prop_map(|(file, offset, whence)| Operation::Seek { file, offset, whence }),
        2 => (file(), 0..20_000_u64).prop_map(|(file, len)| Operation::SetLen { file, len }),
        2 => path().prop_map(|path| Operation::Stat { path }),
        1 => file().prop_map(|file| Operation::StatOpen { file }),
        2 => path().prop_map(|path| Operation::List { path }),
        3 => path().prop_map(|path| Operation::CreateDirectory { path }),
        3 => path().prop_map(|path| Operation::RemoveDirectory { path }),
        3 => path().prop_map(|path| Operation::Unlink { path }),
        4 => (path(), path()).prop_map(|(from, to)| Operation::Rename { from, to }),
    ]
}

impl Both {
    /// Returns whether the two differ by design in an operation. The machine ignores the offset of a write to a file opened with O_APPEND.
    /// It reports other errors for seeks and writes in directories, which std can open.
    fn differ(&self, operation: &Operation) -> bool {
        let open = |file: &usize| self.open.get(file % self.open.len().max(1));
        match operation {
            Operation::WriteAt { file, .. } if open(file).is_some_and(|open| open.how.flags.has(Flags::APPEND)) => true,
            Operation::Seek { file, .. }
            | Operation::Write { file, .. }
            | Operation::WriteAt { file, .. }
            | Operation::SetLen { file, .. } => open(file).is_some_and(|open| open.file.metadata().unwrap().is_dir()),
            Operation::Open { how, .. } => how.create && how.directory,
            _ => false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_the_machines_own_file_system_does(operations in prop::collection::vec(operation(), 1..60)) {
        let mut both = Both::new();
        for operation in &operations {
            if !both.differ(operation) {
                both.step(operation);
            }
        }
        both.compare();
    }
}

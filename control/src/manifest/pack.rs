//! Packs a folder into the archive format that nodes accept. The same files always give the same bytes, whatever their
//! owners and times.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use crate::model::FILES_BYTES_MAX;

/// The size of each entry's header, and the alignment of its contents.
const BLOCK_BYTES: u64 = 512;
/// The end of an archive: two empty blocks.
const END_BYTES: u64 = 2 * BLOCK_BYTES;

/// Why a folder can't be packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// An entry can't be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The entry.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotFolder(PathBuf),
    /// An entry is neither a file nor a folder.
    #[error("{} is a {what}: only files and folders are taken", path.display())]
    Kind {
        /// The entry.
        path: PathBuf,
        /// What kind of thing.
        what: &'static str,
    },
    /// The name of an entry is not UTF-8.
    #[error("{}: this name is not UTF-8", .0.display())]
    NotText(PathBuf),
    /// The archive would be too large.
    #[error("with {} the files have more than the {FILES_BYTES_MAX} bytes that a stage's files may have", .0.display())]
    TooLarge(PathBuf),
}

/// Packs the contents of a folder into an archive.
///
/// # Errors
/// The first entry that can't be packed, by its path.
pub fn pack(folder: &Path) -> Result<Vec<u8>, PackError> {
    let metadata = fs::metadata(folder).map_err(|source| PackError::Read { path: folder.to_owned(), source })?;
    if !metadata.is_dir() {
        return Err(PackError::NotFolder(folder.to_owned()));
    }
    let mut packing = Packing { archive: Builder::new(Vec::new()), bytes: END_BYTES };
    packing.folder(folder, "")?;
    packing.archive.into_inner().map_err(|source| PackError::Read { path: folder.to_owned(), source })
}

struct Packing {
    archive: Builder<Vec<u8>>,
    bytes: u64,
}

impl Packing {
    /// Adds the contents of a folder, by name. `within` is its path in the archive, with a slash at its end.
    fn folder(&mut self, folder: &Path, within: &str) -> Result<(), PackError> {
        let read_error = |source| PackError::Read { path: folder.to_owned(), source };
        let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(folder).and_then(Iterator::collect);
        let mut entries = entries.map_err(read_error)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.iter().try_for_each(|entry| self.entry(&entry.path(), entry, within))
    }

    fn entry(&mut self, path: &Path, entry: &fs::DirEntry, within: &str) -> Result<(), PackError> {
        let read_error = |source| PackError::Read { path: path.to_owned(), source };
        let name = entry.file_name().into_string().map_err(|_| PackError::NotText(path.to_owned()))?;
        let metadata = fs::symlink_metadata(path).map_err(read_error)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let within = format!("{within}{name}/");
            self.add(path, &within, EntryType::Directory, &[])?;
            return self.folder(path, &within);
        }
        if !kind.is_file() {
            return Err(PackError::Kind { path: path.to_owned(), what: kind_name(kind) });
        }
        // Checked before the file is read, as it may be huge.
        if metadata.len() > FILES_BYTES_MAX {
            return Err(PackError::TooLarge(path.to_owned()));
        }
        let bytes = fs::read(path).map_err(read_error)?;
        self.add(path, &format!("{within}{name}"), EntryType::Regular, &bytes)
    }

    fn add(&mut self, path: &Path, name: &str, kind: EntryType, bytes: &[u8]) -> Result<(), PackError> {
        self.bytes += BLOCK_BYTES + (bytes.len() as u64).next_multiple_of(BLOCK_BYTES);
        if self.bytes > FILES_BYTES_MAX {
            return Err(PackError::TooLarge(path.to_owned()));
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_size(bytes.len() as u64);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        let added = self.archive.append_data(&mut header, name, bytes);
        added.map_err(|source| PackError::Read { path: path.to_owned(), source })
    }
}

fn kind_name(kind: fs::FileType) -> &'static str {
    if kind.is_symlink() {
        "symbolic link"
    } else if kind.is_fifo() {
        "pipe"
    } else if kind.is_socket() {
        "socket"
    } else {
        "device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    /// Creates a folder with these files, in this order.
    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        folder
    }

    #[test]
    fn the_same_files_give_the_same_archive_whatever_their_owners_and_times() {
        let names = ["b/two", "b/one", "a", &"long/".repeat(40)];
        let names = names.map(|name| format!("{name}x"));
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        let first = folder(&names);
        names.reverse();
        let second = folder(&names);
        let file = fs::File::options().write(true).open(second.path().join("ax")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
        let archive = pack(first.path()).unwrap();
        assert_eq!(archive, pack(second.path()).unwrap());

        let mut packed = tar::Archive::new(&archive[..]);
        let paths = packed.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let paths: Vec<String> = paths.collect();
        assert_eq!(paths[..4], ["ax", "b/", "b/onex", "b/twox"]);
        assert_eq!(paths.last().unwrap(), names[0]);
        fs::write(second.path().join("ax"), "other").unwrap();
        assert_ne!(archive, pack(second.path()).unwrap());
    }

    #[test]
    fn entries_that_are_neither_file_nor_folder_or_too_large_are_named() {
        let linked = folder(&["a/b"]);
        symlink("b", linked.path().join("a/link")).unwrap();
        let said = pack(linked.path()).unwrap_err().to_string();
        assert!(said.ends_with("a/link is a symbolic link: only files and folders are taken"), "{said}");
        let large = folder(&["a", "z"]);
        let file = fs::File::create(large.path().join("m")).unwrap();
        file.set_len(FILES_BYTES_MAX).unwrap();
        let said = pack(large.path()).unwrap_err().to_string();
        assert!(said.contains("/m the files have more than the 16777216 bytes"), "{said}");
        // The limit is exact: the header and the end of the archive count.
        fs::remove_file(large.path().join("a")).unwrap();
        fs::remove_file(large.path().join("z")).unwrap();
        file.set_len(FILES_BYTES_MAX - 3 * BLOCK_BYTES).unwrap();
        assert_eq!(pack(large.path()).unwrap().len() as u64, FILES_BYTES_MAX);
        assert!(matches!(pack(&large.path().join("m")), Err(PackError::NotFolder(_))));
    }

    #[test]
    fn a_name_that_is_not_text_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let folder = folder(&["a"]);
        fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
        assert!(matches!(pack(folder.path()), Err(PackError::NotText(_))));
    }
}

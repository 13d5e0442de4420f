//! The file system of guests: compared with the machine's own, at its limits, and the archives that it is read from.

mod bounds;
mod bundles;
mod descriptors;
mod machine;

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_guest::files::{Bundle, FileError, FileKind, Files, Flags, Opening, ROOT_DESCRIPTOR, Space};

/// Grants any charge and records it.
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
}

impl Space for Room {
    fn resize(&mut self, bytes: u64) -> bool {
        self.bytes = bytes;
        true
    }
}

/// The deployed files: paths, and the bytes of files.
pub(crate) const DEPLOYED: [(&str, Option<&[u8]>); 9] = [
    ("a", None),
    ("a/b", None),
    ("a/b/deep", Some(b"deep down")),
    ("a/one", Some(b"1")),
    ("a/two", Some(&[2; 5000])),
    ("b", None),
    ("c", Some(b"")),
    ("d", Some(&[7; 10_000])),
    ("empty", None),
];

pub(crate) fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, bytes) in DEPLOYED {
        let mut header = tar::Header::new_gnu();
        let (kind, bytes) = match bytes {
            Some(bytes) => (tar::EntryType::Regular, bytes),
            None => (tar::EntryType::Directory, &[][..]),
        };
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, path, bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

pub(crate) fn files() -> Files {
    let mut files = Files::new(Arc::new(Bundle::read(archive()).unwrap()));
    files.take_changes();
    files
}

pub(crate) const READ: Opening = Opening {
    read: true,
    write: false,
    flags: Flags(0),
    create: false,
    exclusive: false,
    truncate: false,
    directory: false,
};
pub(crate) const WRITE: Opening = Opening { write: true, create: true, ..READ };

pub(crate) fn contents(files: &mut Files, path: &str) -> Vec<u8> {
    let how = Opening { read: true, ..Opening::default() };
    let file = files.open(&mut Room::default(), ROOT_DESCRIPTOR, path.as_bytes(), how).unwrap();
    let (mut all, mut out) = (Vec::new(), [0; 3000]);
    loop {
        match files.read(file, None, &mut out).unwrap() {
            0 => break,
            done => all.extend_from_slice(&out[..done]),
        }
    }
    files.close(file).unwrap();
    all
}

/// Lists a directory with a buffer that hardly has room for a name.
pub(crate) fn list(files: &mut Files, path: &str) -> Result<BTreeMap<String, FileKind>, FileError> {
    let how = Opening { read: true, directory: true, ..Opening::default() };
    let directory = files.open(&mut Room::default(), ROOT_DESCRIPTOR, path.as_bytes(), how)?;
    let mut names = BTreeMap::new();
    let (mut cookie, mut room) = (0, 70);
    loop {
        let mut out = vec![0; room];
        let filled = files.read_directory(directory, cookie, &mut out)?;
        let mut at = 0;
        while let Some(entry) = Entry::of(&out[at..filled]) {
            at += 24 + entry.name.len();
            cookie = entry.cookie;
            if !matches!(&*entry.name, "." | "..") {
                assert_eq!(names.insert(entry.name, entry.kind), None, "a name is listed once");
            }
        }
        if filled < out.len() {
            break;
        }
        if at == 0 {
            room *= 2;
        }
    }
    files.close(directory)?;
    Ok(names)
}

pub(crate) struct Entry {
    pub(crate) cookie: u64,
    pub(crate) name: String,
    pub(crate) kind: FileKind,
}

impl Entry {
    /// Returns the first entry, if it is complete.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let cookie = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let len = u32::from_le_bytes(bytes.get(16..20)?.try_into().ok()?) as usize;
        let kind = if *bytes.get(20)? == 3 { FileKind::Directory } else { FileKind::File };
        let name = String::from_utf8(bytes.get(24..24 + len)?.to_vec()).unwrap();
        Some(Self { cookie, name, kind })
    }
}

//! The file system of guests: against an independent reference, at its bounds, and what it is made of.

mod bounds;
mod bundles;
mod machine;

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_guest::files::{Bundle, FileError, FileKind, Files, Opening, ROOT_DESCRIPTOR, Space};

/// Takes whatever is charged, and knows how much that is.
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

/// What was deployed: paths, and of files the bytes.
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
    append: false,
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

/// What is in a directory, by a buffer in which hardly a name has room.
pub(crate) fn list(files: &mut Files, path: &str) -> Result<BTreeMap<String, FileKind>, FileError> {
    let how = Opening { read: true, directory: true, ..Opening::default() };
    let directory = files.open(&mut Room::default(), ROOT_DESCRIPTOR, path.as_bytes(), how)?;
    let mut names = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let mut out = [0; 70];
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
        assert!(at > 0, "a name of a few bytes has room");
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
    /// The entry at the start, if all of it is there.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let cookie = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let len = u32::from_le_bytes(bytes.get(16..20)?.try_into().ok()?) as usize;
        let kind = if *bytes.get(20)? == 3 { FileKind::Directory } else { FileKind::File };
        let name = String::from_utf8(bytes.get(24..24 + len)?.to_vec()).unwrap();
        Some(Self { cookie, name, kind })
    }
}

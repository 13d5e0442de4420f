//! The limits of an instance's files, and the errors beyond them.

use std::sync::Arc;

use pinion_guest::files::{Bundle, FileError, Files, Opening, ROOT_DESCRIPTOR, Space};
use proptest::prelude::*;

use super::{Entry, READ, Room, WRITE, archive, contents, files};

/// Grants charges up to this many bytes.
struct Budget(u64);

impl Space for Budget {
    fn resize(&mut self, bytes: u64) -> bool {
        bytes <= self.0
    }
}

#[test]
fn at_the_memory_limit_a_write_is_cut_short_and_the_next_one_fails() {
    let (mut files, mut budget) = (files(), Budget(64 * 1024));
    let file = files.open(&mut budget, ROOT_DESCRIPTOR, b"large", WRITE).unwrap();
    let mut written = 0;
    let error = loop {
        match files.write(&mut budget, file, None, &[1; 10_000]) {
            Ok(done) => written += done,
            Err(error) => break error,
        }
    };
    assert_eq!(error, FileError::NoSpace);
    assert!((48 * 1024..64 * 1024).contains(&written), "{written}");
    let stat = files.stat(file).unwrap().expect("it is no stream");
    assert_eq!(stat.bytes, written as u64, "what was written is there");
    assert_eq!(contents(&mut files, "a/b/deep"), b"deep down", "reading needs no room");
    let mut make = |name: u32| files.create_directory(&mut budget, ROOT_DESCRIPTOR, name.to_string().as_bytes()).err();
    assert_eq!((0..100).find_map(&mut make), Some(FileError::NoSpace));
    // Pages that a file no longer needs are reused.
    files.set_len(&mut budget, file, 0).unwrap();
    assert_eq!(files.write(&mut budget, file, Some(0), &[2; 10_000]), Ok(10_000));
}

#[test]
fn one_page_of_a_large_file_is_copied_when_a_byte_of_it_is_written() {
    let (mut files, mut room) = (files(), Room::default());
    let file = files.open(&mut room, ROOT_DESCRIPTOR, b"d", WRITE).unwrap();
    files.write(&mut room, file, Some(5000), b"x").unwrap();
    assert!(room.bytes < 5000, "{}", room.bytes);
    let mut expected = vec![7; 10_000];
    expected[5000] = b'x';
    assert_eq!(contents(&mut files, "d"), expected);
}

#[test]
fn no_path_leads_out_of_its_directory() {
    let (mut files, mut room) = (files(), Room::default());
    let inner = files.open(&mut room, ROOT_DESCRIPTOR, b"a/b", READ).unwrap();
    for (from, path, error) in [
        (ROOT_DESCRIPTOR, &b"/etc/passwd"[..], FileError::Outside),
        (ROOT_DESCRIPTOR, b"..", FileError::Outside),
        (ROOT_DESCRIPTOR, b"a/../../d", FileError::Outside),
        (inner, b"../one", FileError::Outside),
        (inner, b"deep/../../one", FileError::NotDirectory),
        (ROOT_DESCRIPTOR, b"", FileError::NotFound),
        (ROOT_DESCRIPTOR, b"a\0b", FileError::Invalid),
        (ROOT_DESCRIPTOR, b"\xff", FileError::NotText),
        (ROOT_DESCRIPTOR, &[b'a'; 256], FileError::NameTooLong),
        (ROOT_DESCRIPTOR, &[b'/'; 1025], FileError::NameTooLong),
        (ROOT_DESCRIPTOR, "./".repeat(65).as_bytes(), FileError::NameTooLong),
        (99, b"a", FileError::BadDescriptor),
    ] {
        assert_eq!(files.stat_at(from, path).err(), Some(error), "{}", path.escape_ascii());
    }
    assert_eq!(files.stat_at(inner, b"deep").unwrap().bytes, 9);
    assert_eq!(files.stat_at(ROOT_DESCRIPTOR, b"a/b/..").unwrap(), files.stat_at(ROOT_DESCRIPTOR, b"a").unwrap());
}

#[test]
fn open_files_are_limited_and_the_lowest_free_descriptor_is_next() {
    let (mut files, mut room) = (files(), Room::default());
    let open = |files: &mut Files, room: &mut Room| files.open(room, ROOT_DESCRIPTOR, b"c", READ);
    let all: Vec<u32> = std::iter::from_fn(|| open(&mut files, &mut room).ok()).collect();
    assert_eq!(all, (4..68).collect::<Vec<u32>>());
    assert_eq!(files.open(&mut room, ROOT_DESCRIPTOR, b"made", WRITE), Err(FileError::TooManyOpen));
    assert_eq!(files.stat_at(ROOT_DESCRIPTOR, b"made"), Err(FileError::NotFound), "nothing was made");
    files.close(10).unwrap();
    assert_eq!(open(&mut files, &mut room), Ok(10));
}

#[test]
fn created_files_are_limited_and_each_is_listed_once_while_others_come_and_go() {
    let (mut files, mut room) = (files(), Room::default());
    let mut made = 0;
    let error = loop {
        match files.create_directory(&mut room, ROOT_DESCRIPTOR, format!("n{made}").as_bytes()) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((made, error), (4095, FileError::NoSpace), "the root has changed, too");
    // Some entries are removed during the listing. All remaining ones must be listed.
    let directory = files.open(&mut room, ROOT_DESCRIPTOR, b".", READ).unwrap();
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let mut out = [0; 200];
        let filled = files.read_directory(directory, cookie, &mut out).unwrap();
        let mut at = 0;
        while let Some(entry) = Entry::of(&out[at..filled]) {
            at += 24 + entry.name.len();
            cookie = entry.cookie;
            seen.push(entry.name);
        }
        if filled < out.len() {
            break;
        }
        let last = seen.last().unwrap();
        if last.starts_with('n') {
            files.remove_directory(&mut room, ROOT_DESCRIPTOR, last.as_bytes()).unwrap();
        }
    }
    assert_eq!(seen.len(), 2 + 5 + 4095);
    let before = room.bytes;
    files.create_directory(&mut room, ROOT_DESCRIPTOR, b"again").unwrap();
    assert!(room.bytes < before, "removed directories are no longer charged");
}

#[test]
fn files_are_read_only_until_changes_are_allowed() {
    let mut files = Files::new(Arc::new(Bundle::read(archive()).unwrap()));
    let (mut room, root) = (Room::default(), ROOT_DESCRIPTOR);
    let read_only = Some(FileError::ReadOnly);
    assert_eq!(contents(&mut files, "a/one"), b"1");
    assert_eq!(files.open(&mut room, root, b"new", WRITE).err(), read_only);
    assert_eq!(files.open(&mut room, root, b"d", Opening { write: true, ..READ }).err(), read_only);
    assert_eq!(files.create_directory(&mut room, root, b"new").err(), read_only);
    assert_eq!(files.remove_directory(&mut room, root, b"empty").err(), read_only);
    assert_eq!(files.unlink(&mut room, root, b"c").err(), read_only);
    assert_eq!(files.rename(&mut room, (root, b"c"), (root, b"e")).err(), read_only);
    assert_eq!((files.open_count(), room.bytes), (0, 0));
}

#[test]
fn the_length_of_a_file_is_limited_even_if_it_is_sparse() {
    let (mut files, mut room) = (files(), Room::default());
    let file = files.open(&mut room, ROOT_DESCRIPTOR, b"sparse", WRITE).unwrap();
    assert_eq!(files.set_len(&mut room, file, (64 << 20) + 1), Err(FileError::TooLarge));
    files.set_len(&mut room, file, 64 << 20).unwrap();
    assert!(room.bytes < 2000);
    assert_eq!(files.write(&mut room, file, Some(64 << 20), b"x"), Err(FileError::TooLarge));
    assert_eq!(files.write(&mut room, file, Some((64 << 20) - 1), b"xy"), Ok(1));
    assert_eq!(files.write(&mut room, file, Some(u64::MAX), b"x"), Err(FileError::TooLarge));
    let mut out = [9; 3];
    assert_eq!(files.read(file, Some((64 << 20) - 3), &mut out), Ok(3));
    assert_eq!(&out, b"\0\0x");
    assert_eq!(files.read(file, Some(u64::MAX), &mut out), Ok(0));
}

#[test]
fn a_nested_file_can_be_moved_and_no_directory_can_be_moved_into_itself() {
    let (mut files, mut room, root) = (files(), Room::default(), ROOT_DESCRIPTOR);
    let inner = files.open(&mut room, root, b"a/b", READ).unwrap();
    assert_eq!(files.rename(&mut room, (root, b"a"), (inner, b"x")), Err(FileError::Invalid));
    files.rename(&mut room, (inner, b"deep"), (root, b"moved")).unwrap();
    assert_eq!(contents(&mut files, "moved"), b"deep down");
    files.remove_directory(&mut room, root, b"a/b").unwrap();
    assert_eq!(files.create_directory(&mut room, inner, b"x"), Err(FileError::NotFound), "what is removed stays empty");
    let mut out = [0; 100];
    assert_eq!(files.read_directory(inner, 0, &mut out), Ok(0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// The charge never exceeds what the most files at one time needed.
    #[test]
    fn pages_of_removed_files_are_reused(rounds in 2..20_usize, len in 1..50_000_usize) {
        let mut files = files();
        let mut room = Room::default();
        let how = Opening { write: true, create: true, ..Opening::default() };
        let mut charged = Vec::new();
        for _ in 0..rounds {
            let file = files.open(&mut room, ROOT_DESCRIPTOR, b"made", how).unwrap();
            prop_assert_eq!(files.write(&mut room, file, None, &vec![1; len]), Ok(len));
            files.close(file).unwrap();
            charged.push(room.bytes);
            files.unlink(&mut room, ROOT_DESCRIPTOR, b"made").unwrap();
        }
        prop_assert!(charged.iter().all(|bytes| *bytes <= charged[0]), "{charged:?}");
        prop_assert!(charged[0] >= len as u64);
    }
}

//! What is a bundle, and what is refused.

use std::sync::Arc;

use pinion_guest::files::{Bundle, FileKind, Files};
use proptest::prelude::*;

use super::{archive, contents, list};

/// An archive of one thing, as it would be on a machine where somebody has other things in mind.
fn archive_of(kind: tar::EntryType, path: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.as_mut_bytes()[..path.len()].copy_from_slice(path);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.extend([0; 1024]);
    archive
}

#[test]
fn what_is_no_file_or_has_no_place_is_refused_by_name() {
    use tar::EntryType;
    for (kind, path, sentence) in [
        (EntryType::Symlink, &b"link"[..], "link is a symbolic link: only files and directories are taken"),
        (EntryType::Link, b"link", "link is a hard link"),
        (EntryType::Char, b"null", "null is a device"),
        (EntryType::Fifo, b"pipe", "pipe is a pipe"),
        (EntryType::Regular, b"../up", "the files have a path that cannot be taken, ../up: it has .. in it"),
        (EntryType::Regular, b"a/../../up", "it has .. in it"),
        (EntryType::Regular, b"/etc/passwd", "/etc/passwd: it is absolute"),
        (EntryType::Regular, b"a\xff", "it is not UTF-8"),
        (EntryType::Regular, b"./", "a file needs a name"),
    ] {
        let said = Bundle::read(archive_of(kind, path)).unwrap_err().to_string();
        assert!(said.contains(sentence), "{said:?} does not say {sentence:?}");
    }
    let twice = [&archive_of(EntryType::Regular, b"a")[..512], &archive_of(EntryType::Regular, b"a")].concat();
    assert_eq!(Bundle::read(twice).unwrap_err().to_string(), "a is there twice");
    let in_file = [&archive_of(EntryType::Regular, b"a")[..512], &archive_of(EntryType::Regular, b"a/b")].concat();
    assert_eq!(Bundle::read(in_file).unwrap_err().to_string(), "a/b lies in a file");
    let many: Vec<u8> =
        (0..4096).flat_map(|at| archive_of(EntryType::Regular, format!("f{at}").as_bytes())[..512].to_vec()).collect();
    assert_eq!(Bundle::read(many).unwrap_err().to_string(), "there are more than 4096 files and directories");
    let said = Bundle::read(b"not an archive at all, but long enough to be a header of one".repeat(20)).unwrap_err();
    assert!(said.to_string().starts_with("the files are not a tar archive that can be read"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A bundle is one, or is refused; nothing else happens, whatever the bytes.
    #[test]
    fn no_bytes_do_more_than_be_refused(changes in prop::collection::vec((0..8192_usize, any::<u8>()), 0..8), len in 0..12_000_usize) {
        let mut bytes = archive();
        let size = bytes.len();
        for (at, byte) in changes {
            bytes[at % size] = byte;
        }
        bytes.truncate(len.max(1));
        if let Ok(bundle) = Bundle::read(bytes) {
            let mut files = Files::new(Arc::new(bundle));
            let mut folders = vec![".".to_owned()];
            while let Some(folder) = folders.pop() {
                for (name, kind) in list(&mut files, &folder).unwrap() {
                    let path = format!("{folder}/{name}");
                    match kind {
                        FileKind::Directory => folders.push(path),
                        FileKind::File => drop(contents(&mut files, &path)),
                    }
                }
            }
        }
    }
}

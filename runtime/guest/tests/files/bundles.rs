//! Which archives are accepted as bundles, and which are refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pinion_guest::files::{Bundle, FileKind, Files};
use proptest::prelude::*;

use super::{archive, contents, list};

/// Returns an archive with one entry of any type and path, as an attacker could write it.
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
fn other_types_and_bad_paths_are_refused_by_name() {
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

/// Returns the archive of a folder that a program writes to its standard output.
fn archived(program: &str, words: &[&str], folder: &Path) -> Vec<u8> {
    let output = Command::new(program).args(words).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: `make install-test` installs it"));
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns the contents of a bundle: directories, with a trailing slash, and files with their bytes.
fn everything(archive: Vec<u8>) -> BTreeMap<String, Vec<u8>> {
    let mut files = Files::new(Arc::new(Bundle::read(archive).unwrap()));
    let (mut found, mut folders) = (BTreeMap::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        let path = if folder.is_empty() { "." } else { &*folder };
        for (name, kind) in list(&mut files, path).unwrap() {
            let path = format!("{folder}{name}");
            match kind {
                FileKind::Directory => {
                    found.insert(format!("{path}/"), Vec::new());
                    folders.push(format!("{path}/"));
                }
                FileKind::File => {
                    let bytes = contents(&mut files, &path);
                    found.insert(path, bytes);
                }
            }
        }
    }
    found
}

/// Writes files into a folder, and empty directories for names with a trailing slash.
fn written(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join(name);
        match name.strip_suffix('/') {
            Some(_) => std::fs::create_dir_all(path).unwrap(),
            None => {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, name.repeat(40)).unwrap();
            }
        }
    }
    folder
}

/// A program that writes an archive with Python's tarfile, in the format of its argument.
const PYTHON: &str = "import sys, tarfile
tar = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=getattr(tarfile, sys.argv[1]))
tar.add('.')
tar.close()";

#[test]
fn archives_of_gnu_tar_python_and_busybox_are_read_in_all_of_their_formats() {
    // Names that every format can store, and names that only the later ones can.
    let (deep, long) = (format!("{}end", "folder/".repeat(20)), "l".repeat(120));
    let (names, more_names) = (["a", "dir/b", "dir/inner/c", "empty/", &deep], ["caf\u{e9}/d", &long]);
    let (plain, rich) = (written(&names), written(&[&names[..], &more_names].concat()));
    std::fs::write(rich.path().join("large"), vec![7; 3 << 20]).unwrap();
    let expected = |folder: &Path| {
        let mut found = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(at) = folders.pop() {
            for entry in std::fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                if path.is_dir() {
                    found.insert(format!("{name}/"), Vec::new());
                    folders.push(path);
                } else {
                    found.insert(name, std::fs::read(path).unwrap());
                }
            }
        }
        found
    };
    let gnu = |format: &'static str| ("tar", vec!["-c", format, "."]);
    let python = |format: &'static str| ("python3", vec!["-c", PYTHON, format]);
    // The V7 format has names of up to 99 bytes.
    let flat = written(&["a", "dir/b", "dir/inner/c", "empty/"]);
    for (folder, (program, words)) in [
        (&flat, gnu("--format=v7")),
        (&plain, gnu("--format=ustar")),
        (&rich, gnu("--format=oldgnu")),
        (&rich, gnu("--format=gnu")),
        (&rich, gnu("--format=posix")),
        (&plain, python("USTAR_FORMAT")),
        (&rich, python("GNU_FORMAT")),
        (&rich, python("PAX_FORMAT")),
        (&rich, ("busybox", vec!["tar", "-c", "."])),
    ] {
        let archive = archived(program, &words, folder.path());
        assert_eq!(everything(archive), expected(folder.path()), "{program} {words:?}");
    }
    // Entries in any order, files without their directories, names without ./, and archives with labels, headers or trailing bytes.
    for words in [
        &["-c", "--no-recursion", "dir/inner/c", "dir/b", "dir/inner", "dir", "empty", "a"][..],
        &["-c", "--label=a name", "a", "dir", "empty"],
        &["-c", "--incremental", "a", "dir", "empty"],
        &["-c", "--format=posix", "--pax-option=globexthdr.name=g,comment=hello", "a", "dir", "empty"],
        &["-c", "--format=v7", "--record-size=512", "a", "dir/b", "dir/inner/c", "empty"],
    ] {
        let archive = archived("tar", words, flat.path());
        let whole = everything(archive.clone());
        assert_eq!(whole, expected(flat.path()), "{words:?}");
        assert_eq!(everything([&archive[..], b"something behind the end"].concat()), whole, "{words:?}");
        let content = archive.len() - archive.iter().rev().take_while(|byte| **byte == 0).count();
        assert_eq!(everything(archive[..content.next_multiple_of(512)].to_vec()), whole, "without an end: {words:?}");
    }
}

#[test]
fn links_sparse_files_and_bad_paths_of_gnu_tar_are_refused_by_name_with_what_to_do() {
    let folder = written(&["a", "b/"]);
    std::fs::hard_link(folder.path().join("a"), folder.path().join("b/same")).unwrap();
    std::os::unix::fs::symlink("../a", folder.path().join("b/link")).unwrap();
    let holes = std::fs::File::create(folder.path().join("holes")).unwrap();
    holes.set_len(1 << 20).unwrap();
    for (words, sentence) in [
        (
            &["-c", "a", "b/same"][..],
            "b/same is a hard link: only files and directories are taken (tar --hard-dereference",
        ),
        (&["-c", "b/link"], "b/link is a symbolic link: only files and directories are taken (tar --dereference"),
        (
            &["-c", "--sparse", "--format=gnu", "holes"],
            "holes is a sparse file: only files and directories are taken (tar ",
        ),
        (&["-c", "--sparse", "--format=posix", "holes"], "holes is a sparse file"),
        (&["-c", "--sparse", "--format=posix", "--sparse-version=0.0", "holes"], "holes is a sparse file"),
        (&["-c", "--sparse", "--format=posix", "--sparse-version=0.1", "holes"], "holes is a sparse file"),
        (&["-c", "--absolute-names", "/etc/hostname"], "/etc/hostname: it is absolute"),
        (&["-c", "--absolute-names", "../../etc/hostname"], "it has .. in it"),
        (&["-c", "a", "a", "--hard-dereference"], "a is there twice"),
    ] {
        let at = if words.contains(&"../../etc/hostname") { Path::new("/usr/bin") } else { folder.path() };
        let said = Bundle::read(archived("tar", words, at)).unwrap_err().to_string();
        assert!(said.contains(sentence), "{words:?}: {said:?} does not say {sentence:?}");
    }
    let said = archived("tar", &["-c", "--hard-dereference", "--dereference", "a", "b"], folder.path());
    assert_eq!(everything(said).len(), 4);
}

#[test]
fn a_name_with_a_trailing_slash_is_a_directory_in_the_v7_format() {
    let old = |name: &str, bytes: &[u8], kind: u8| {
        let mut header = tar::Header::new_old();
        header.set_size(bytes.len() as u64);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[156] = kind;
        header.set_cksum();
        let mut entry = header.as_bytes().to_vec();
        entry.extend(bytes);
        entry.resize(entry.len().next_multiple_of(512), 0);
        entry
    };
    for kind in [0, b'0', b'7'] {
        let archive = [old("./", b"", 0), old("dir/", b"", kind % b'7'), old("dir/a", b"text", kind)].concat();
        let expected = [("dir/".to_owned(), Vec::new()), ("dir/a".to_owned(), b"text".to_vec())];
        assert_eq!(everything(archive), BTreeMap::from(expected));
    }
    let file = [old("file", b"text", 0), old("file/a", b"text", 0)].concat();
    assert_eq!(Bundle::read(file).unwrap_err().to_string(), "file/a lies in a file");
    let file = [old("file", b"text", 0), old("file/", b"", 0)].concat();
    assert_eq!(Bundle::read(file).unwrap_err().to_string(), "file/ is there twice");
}

#[test]
fn a_size_in_base_256_is_read() {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[0] = b'a';
    // GNU tar writes sizes of 8 GiB and more in base 256.
    header.as_mut_bytes()[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.extend(b"text");
    archive.resize(1024, 0);
    assert_eq!(everything(archive.clone()), BTreeMap::from([("a".to_owned(), b"text".to_vec())]));
    archive[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&archive[..512]);
    header.set_cksum();
    archive[..512].copy_from_slice(header.as_bytes());
    let said = Bundle::read(archive).unwrap_err().to_string();
    assert!(said.starts_with("the files are not a tar archive that can be read: "), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes are either accepted as a bundle or refused, without a panic.
    #[test]
    fn any_bytes_are_accepted_or_refused_without_a_panic(changes in prop::collection::vec((0..8192_usize, any::<u8>()), 0..8), len in 0..12_000_usize) {
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

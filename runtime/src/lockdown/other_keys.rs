//! Private keys that the node can read and does not need: it can read the whole folder of each file that it reads again when that changes.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// How many files are looked at in a folder and beneath it, at most.
const FILES_MAX: usize = 1000;
/// How much of a file is looked at.
const BYTES_MAX: u64 = 64 << 10;
const MARK: &[u8] = b"PRIVATE KEY-----";

/// Returns a warning for each folder of these files in which there is another private key.
pub(super) fn warnings(files: &[PathBuf]) -> Vec<String> {
    let known: Vec<PathBuf> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
    let mut folders: Vec<(PathBuf, &PathBuf)> = Vec::new();
    for file in files {
        for folder in super::folders(file) {
            if folders.iter().all(|(other, _)| *other != folder) {
                folders.push((folder, file));
            }
        }
    }
    let warning = |(folder, file): (PathBuf, &PathBuf)| {
        let key = other_key(&folder, &known)?;
        let (file, key) = (file.display(), key.display());
        Some(format!(
            "the node can read all that is in the folder of {file}, also {key}, which looks like a private key that it does not need: \
             move one of them to another folder"
        ))
    };
    folders.into_iter().filter_map(warning).collect()
}

/// Returns the first private key in a folder, or beneath it, that is not known.
fn other_key(folder: &Path, known: &[PathBuf]) -> Option<PathBuf> {
    let (mut folders, mut left) = (vec![folder.to_owned()], FILES_MAX);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let (path, kind) = (entry.path(), entry.file_type().ok()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && is_key(&path) && path.canonicalize().is_ok_and(|path| !known.contains(&path)) {
                return Some(path);
            }
        }
    }
    None
}

fn is_key(path: &Path) -> bool {
    let is_pem = path.extension().is_some_and(|kind| kind == "key" || kind == "pem");
    let mut bytes = Vec::new();
    let is_read = is_pem && File::open(path).is_ok_and(|file| file.take(BYTES_MAX).read_to_end(&mut bytes).is_ok());
    is_read && bytes.windows(MARK.len()).any(|part| part == MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_beside_or_beneath_a_file_of_the_node_is_a_warning_unless_it_is_the_nodes_own() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let node = [file("node/node.key", key), file("node/ca.pem", "-----BEGIN CERTIFICATE-----\n")];
        assert_eq!(warnings(&node), Vec::<String>::new());
        let authority = file("node/deep/ca.key", key);
        let [warning] = &warnings(&node)[..] else { panic!("one folder") };
        assert!(
            warning.contains(&format!("also {}, which looks like a private key", authority.display())),
            "{warning}"
        );
    }
}

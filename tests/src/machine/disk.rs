//! A small file system for a folder, which can be filled.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::process::{require_root, run};

/// A file system in memory, mounted on a folder until this is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

/// The file that [`SmallDisk::fill`] writes.
const FILLING: &str = "filling";

impl SmallDisk {
    /// Makes this folder and mounts a file system of so many mebibytes on it.
    ///
    /// # Panics
    /// If it cannot be mounted.
    #[track_caller]
    #[must_use]
    pub fn mounted(folder: &Path, mebibytes: u32) -> Self {
        require_root();
        fs::create_dir_all(folder).expect("a folder to mount on");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m,mode=0700"), "none"])
            .arg(folder));
        Self { folder: folder.to_owned() }
    }

    /// Leaves no byte free.
    ///
    /// # Panics
    /// If it fails for another reason than that the file system is full.
    #[track_caller]
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.folder.join(FILLING)).expect("a file");
        for bytes in [1 << 20, 4096] {
            let bytes = vec![0xa5; bytes];
            let error = std::iter::repeat_with(|| file.write_all(&bytes)).find_map(Result::err);
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::StorageFull));
        }
    }

    /// Frees what [`SmallDisk::fill`] took.
    ///
    /// # Panics
    /// If it was not filled.
    #[track_caller]
    pub fn free(&self) {
        fs::remove_file(self.folder.join(FILLING)).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, as a node that has files open there may not have ended yet.
        if let Err(error) = Command::new("umount").arg("--lazy").arg(&self.folder).status() {
            eprintln!("{} stays mounted: {error}", self.folder.display());
        }
    }
}

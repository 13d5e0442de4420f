//! A read-only view of a store's file: what the database would write stays in memory.
//!
//! Opening a database that was not closed cleanly repairs it, which writes. On a file system without space, or a
//! read-only one, this overlay is the only way to read the durable state. Nothing is written to the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

const BLOCK_BYTES: u64 = 4096;

/// The overlay as a storage backend of the database.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    /// Takes the locks of a database that writes to the file, if it has to be refused while another process does.
    locks: Option<FileBackend>,
    changed: Mutex<Changed>,
}

/// The file as the database sees it, where that differs from the real file.
#[derive(Debug)]
struct Changed {
    len: u64,
    /// The length of the part that is still the file's. Beyond it, bytes are zero until they are written.
    file_len: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES as usize]>>,
}

impl Overlay {
    /// Creates an overlay over a file that is open for reading. It takes no lock, as it does not write.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let changed = Changed { len, file_len: len, blocks: BTreeMap::new() };
        Ok(Self { file, locks: None, changed: Mutex::new(changed) })
    }

    /// The same over a file that no other process may have open as a database meanwhile.
    pub(super) fn locking(file: File) -> io::Result<Self> {
        let locks = FileBackend::new(file.try_clone()?).map_err(io::Error::other)?;
        Ok(Self { locks: Some(locks), ..Self::new(file)? })
    }

    fn locked<T>(&self, lock: impl FnOnce(&FileBackend) -> Result<T, BackendError>) -> Result<T, BackendError> {
        self.locks.as_ref().map_or(Err(BackendError::Unsupported), lock)
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changed {
    /// Reads this range of the file; zeros beyond its end.
    fn read_file(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from_file = self.file_len.saturating_sub(offset).min(out.len() as u64) as usize;
        let (from_file, zero) = out.split_at_mut(from_file);
        zero.fill(0);
        file.read_exact_at(from_file, offset)
    }

    fn read(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, out.len())?;
        self.read_file(file, offset, out)?;
        for Piece { block, within, of_buffer } in pieces(offset, out.len()) {
            if let Some(bytes) = self.blocks.get(&block) {
                out[of_buffer].copy_from_slice(&bytes[within]);
            }
        }
        Ok(())
    }

    fn write(&mut self, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_range(offset, data.len())?;
        for Piece { block, within, of_buffer } in pieces(offset, data.len()) {
            if !self.blocks.contains_key(&block) {
                let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
                self.read_file(file, block * BLOCK_BYTES, &mut *bytes)?;
                self.blocks.insert(block, bytes);
            }
            if let Some(bytes) = self.blocks.get_mut(&block) {
                bytes[within].copy_from_slice(&data[of_buffer]);
            }
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) {
        self.blocks.retain(|block, _| block * BLOCK_BYTES < len);
        if let Some(last) = self.blocks.get_mut(&(len / BLOCK_BYTES)) {
            last[(len % BLOCK_BYTES) as usize..].fill(0);
        }
        (self.len, self.file_len) = (len, self.file_len.min(len));
    }

    fn check_range(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.len) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The part of a buffer that lies in one block.
struct Piece {
    block: u64,
    within: Range<usize>,
    of_buffer: Range<usize>,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let position = offset + at as u64;
        let start = (position % BLOCK_BYTES) as usize;
        let count = (BLOCK_BYTES as usize - start).min(len - at);
        let piece = Piece { block: position / BLOCK_BYTES, within: start..start + count, of_buffer: at..at + count };
        at += count;
        Some(piece)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.changed().read(&self.file, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed().set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changed().write(&self.file, offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.locks.as_ref().map_or(Ok(()), FileBackend::close)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locked(|locks| locks.try_lock_range(start, end))
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locked(|locks| locks.try_lock_shared_range(start, end))
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locked(|locks| locks.lock_range(start, end))
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locked(|locks| locks.lock_shared_range(start, end))
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locked(|locks| locks.unlock_range(start, end))
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locked(|locks| locks.query_lock_range(start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let write = (0..30_000_u64, prop::collection::vec(any::<u8>(), 0..9000));
        prop_oneof![write.prop_map(|(at, bytes)| Step::Write(at, bytes)), (0..40_000_u64).prop_map(Step::SetLen)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_reads_like_a_file_that_was_written_and_leaves_the_file_as_it_is(steps in prop::collection::vec(step(), 0..12)) {
            let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
            let mut file = tempfile::NamedTempFile::new().unwrap();
            io::Write::write_all(&mut file, &bytes).unwrap();
            let overlay = Overlay::new(file.reopen().unwrap()).unwrap();
            let mut model = bytes.clone();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        let end = at as usize + data.len();
                        prop_assert_eq!(overlay.write(at, &data).is_ok(), end <= model.len());
                        if end <= model.len() {
                            model[at as usize..end].copy_from_slice(&data);
                        }
                    }
                    Step::SetLen(len) => {
                        overlay.set_len(len).unwrap();
                        model.resize(len as usize, 0);
                    }
                }
                let mut read = vec![1; model.len()];
                overlay.read(0, &mut read).unwrap();
                prop_assert_eq!(&read, &model);
                prop_assert_eq!(overlay.len().unwrap(), model.len() as u64);
                prop_assert!(overlay.read(model.len() as u64, &mut [0]).is_err());
            }
            prop_assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
        }
    }
}

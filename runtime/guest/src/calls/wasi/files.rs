//! The WASI preview 1 functions for files: from arguments and guest memory to [`crate::files`], and back.
//!
//! A guest whose stage was deployed without files has none open: to all of these it gets "bad file descriptor".
//!
//! What a call may move is bounded by a constant, and none fails as its turn's allowance is used up: it does a small step then, and the
//! guest's turn ends at its next boundary, which lies right behind the call.

use wasmtime::{Caller, Linker};

use super::super::{Host, WASI_MODULE, memory};
use super::{BADF, FAULT, IOVECS_MAX, SUCCESS};
use crate::files::{FileError, FileKind, Files, Opening, PATH_BYTES_MAX, ROOT_DESCRIPTOR, Space, Stat, Status, Whence};

/// The most bytes that a call reads or writes, and what it does of them when the allowance is used up.
const STEP_BYTES_MAX: u32 = 64 * 1024;
const STEP_BYTES_AT_LEAST: u32 = 4096;
/// The longest buffer that is filled with what is in a directory.
const LISTING_BYTES_MAX: u32 = 16 * 1024;
/// What it costs to follow a path, in bytes moved.
const PATH_COST_BYTES: u32 = 4096;

const RIGHT_FD_READ: u64 = 1 << 1;
const RIGHT_FD_WRITE: u64 = 1 << 6;
/// All that there are, and those that make no sense of a directory or of what can't be written.
const RIGHTS: u64 = (1 << 30) - 1;
const RIGHTS_OF_FILES: u64 = 0x0860_01ff;
const RIGHTS_TO_WRITE: u64 = RIGHT_FD_WRITE | 1 | 1 << 8 | 1 << 22;
const RIGHTS_OF_DIRECTORIES: u64 = RIGHTS & !RIGHT_FD_WRITE & !RIGHT_FD_READ;

const FLAG_APPEND: i32 = 1;
const OPEN_CREATE: i32 = 1;
const OPEN_DIRECTORY: i32 = 2;
const OPEN_EXCLUSIVE: i32 = 4;
const OPEN_TRUNCATE: i32 = 8;

const FILETYPE_DIRECTORY: u8 = 3;
const FILETYPE_REGULAR_FILE: u8 = 4;
/// The name under which the root is found.
const ROOT_NAME: &[u8] = b"/";

/// What a call works with.
struct Desk<'a> {
    memory: &'a mut [u8],
    files: &'a mut Files,
    space: &'a mut dyn Space,
}

/// Done, or the number of what is to be said.
type Done = Result<(), i32>;

impl Desk<'_> {
    fn bytes(&mut self, at: i32, len: u32) -> Result<&mut [u8], i32> {
        slice(self.memory, at, len)
    }

    fn put(&mut self, at: i32, bytes: &[u8]) -> Done {
        self.bytes(at, bytes.len() as u32)?.copy_from_slice(bytes);
        Ok(())
    }
}

fn slice(memory: &mut [u8], at: i32, len: u32) -> Result<&mut [u8], i32> {
    let at = at as u32 as usize;
    memory.get_mut(at..at + len as usize).ok_or(FAULT)
}

/// A path in guest memory. Longer ones than may be are not looked at.
fn path(memory: &[u8], at: i32, len: i32) -> Result<&[u8], i32> {
    let (at, len) = (at as u32 as usize, len as u32 as usize);
    if len > PATH_BYTES_MAX {
        return Err(FileError::NameTooLong.number());
    }
    memory.get(at..at + len).ok_or(FAULT)
}

/// Does something with the guest's files, for this much of its allowance.
fn with<T: Host>(caller: &mut Caller<'_, T>, cost_bytes: u32, act: impl FnOnce(&mut Desk<'_>) -> Done) -> i32 {
    let Some(memory) = memory(caller) else { return FAULT };
    if !caller.data_mut().charge(cost_bytes) {
        T::give_way(caller);
    }
    let (memory, host) = memory.data_and_store_mut(&mut *caller);
    let Some((files, space)) = host.files() else { return BADF };
    match act(&mut Desk { memory, files, space }) {
        Ok(()) => SUCCESS,
        Err(number) => number,
    }
}

/// How much a call may move that wants to move so much.
fn granted<T: Host>(caller: &mut Caller<'_, T>, wanted: u32) -> u32 {
    let wanted = wanted.min(STEP_BYTES_MAX);
    if caller.data_mut().charge(wanted) {
        return wanted;
    }
    T::give_way(caller);
    wanted.min(STEP_BYTES_AT_LEAST)
}

fn number<V>(result: Result<V, FileError>) -> Result<V, i32> {
    result.map_err(FileError::number)
}

/// Adds the functions to a linker.
pub(super) fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    define_descriptors(linker)?;
    define_contents(linker)?;
    define_paths(linker)?;
    define_unsupported(linker)
}

/// What is known of open files, but for what the standard streams have, too.
fn define_descriptors<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(WASI_MODULE, "fd_prestat_get", |mut caller: Caller<'_, T>, fd: i32, out: i32| {
            with(&mut caller, 0, |desk| match fd as u32 {
                ROOT_DESCRIPTOR => desk.put(out, &[0, 0, 0, 0, ROOT_NAME.len() as u8, 0, 0, 0]),
                _ => Err(BADF),
            })
        })?
        .func_wrap(WASI_MODULE, "fd_prestat_dir_name", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, 0, |desk| match fd as u32 {
                ROOT_DESCRIPTOR if (len as u32 as usize) < ROOT_NAME.len() => Err(FileError::NameTooLong.number()),
                ROOT_DESCRIPTOR => desk.put(at, ROOT_NAME),
                _ => Err(BADF),
            })
        })?
        .func_wrap(WASI_MODULE, "fd_fdstat_set_flags", |mut caller: Caller<'_, T>, fd: i32, flags: i32| {
            with(&mut caller, 0, |desk| number(desk.files.set_append(fd as u32, flags & FLAG_APPEND != 0)))
        })?
        .func_wrap(WASI_MODULE, "fd_renumber", |mut caller: Caller<'_, T>, from: i32, to: i32| {
            with(&mut caller, 0, |desk| number(desk.files.renumber(from as u32, to as u32)))
        })?
        .func_wrap(WASI_MODULE, "fd_tell", |mut caller: Caller<'_, T>, fd: i32, out: i32| {
            with(&mut caller, 0, |desk| seek(desk, fd, 0, Whence::Current, out))
        })?;
    // Everything is where it will ever be.
    for name in ["fd_sync", "fd_datasync"] {
        linker.func_wrap(WASI_MODULE, name, |mut caller: Caller<'_, T>, fd: i32| {
            with(&mut caller, 0, |desk| number(desk.files.status(fd as u32)).map(|_| ()))
        })?;
    }
    linker.func_wrap(WASI_MODULE, "fd_advise", |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64, _: i32| {
        with(&mut caller, 0, |desk| number(desk.files.status(fd as u32)).map(|_| ()))
    })?;
    Ok(())
}

/// What is in open files and directories.
fn define_contents<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(
            WASI_MODULE,
            "fd_pread",
            |mut caller: Caller<'_, T>, fd: i32, iovecs: i32, count: i32, at: i64, out: i32| {
                fd_read(&mut caller, fd, iovecs, count, Some(at as u64), out)
            },
        )?
        .func_wrap(
            WASI_MODULE,
            "fd_pwrite",
            |mut caller: Caller<'_, T>, fd: i32, iovecs: i32, count: i32, at: i64, out: i32| {
                fd_write(&mut caller, fd, iovecs, count, Some(at as u64), out)
            },
        )?
        .func_wrap(WASI_MODULE, "fd_filestat_set_size", |mut caller: Caller<'_, T>, fd: i32, len: i64| {
            with(&mut caller, PATH_COST_BYTES, |desk| number(desk.files.set_len(desk.space, fd as u32, len as u64)))
        })?
        .func_wrap(
            WASI_MODULE,
            "fd_readdir",
            |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32, cookie: i64, out: i32| {
                let len = len as u32;
                if len > LISTING_BYTES_MAX {
                    return FileError::Invalid.number();
                }
                with(&mut caller, len, |desk| {
                    let buffer = slice(desk.memory, at, len)?;
                    let filled = number(desk.files.read_directory(fd as u32, cookie as u64, buffer))?;
                    desk.put(out, &(filled as u32).to_le_bytes())
                })
            },
        )?;
    Ok(())
}

/// What is done by paths.
fn define_paths<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(WASI_MODULE, "path_open", path_open::<T>)?
        .func_wrap(
            WASI_MODULE,
            "path_filestat_get",
            |mut caller: Caller<'_, T>, fd: i32, _follow: i32, at: i32, len: i32, out: i32| {
                with(&mut caller, PATH_COST_BYTES, |desk| {
                    let stat = number(desk.files.stat_at(fd as u32, path(desk.memory, at, len)?))?;
                    desk.put(out, &filestat(stat))
                })
            },
        )?
        .func_wrap(WASI_MODULE, "path_create_directory", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |desk| {
                let path = path(desk.memory, at, len)?;
                number(desk.files.create_directory(desk.space, fd as u32, path))
            })
        })?
        .func_wrap(WASI_MODULE, "path_remove_directory", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |desk| {
                let path = path(desk.memory, at, len)?;
                number(desk.files.remove_directory(desk.space, fd as u32, path))
            })
        })?
        .func_wrap(WASI_MODULE, "path_unlink_file", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |desk| {
                let path = path(desk.memory, at, len)?;
                number(desk.files.unlink(desk.space, fd as u32, path))
            })
        })?
        .func_wrap(
            WASI_MODULE,
            "path_rename",
            |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32, to_fd: i32, to_at: i32, to_len: i32| {
                with(&mut caller, 2 * PATH_COST_BYTES, |desk| {
                    let (from, to) = (path(desk.memory, at, len)?, path(desk.memory, to_at, to_len)?);
                    number(desk.files.rename(desk.space, (fd as u32, from), (to_fd as u32, to)))
                })
            },
        )?;
    Ok(())
}

/// What there is not: links, times, room taken ahead, rights that are given up.
fn define_unsupported<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    /// As of a descriptor that may be bad, too.
    fn refuse<T: Host>(caller: &mut Caller<'_, T>, fd: i32) -> i32 {
        with(caller, 0, |desk| {
            number(desk.files.status(fd as u32))?;
            Err(FileError::NotSupported.number())
        })
    }
    linker
        .func_wrap(WASI_MODULE, "fd_allocate", |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64| {
            refuse(&mut caller, fd)
        })?
        .func_wrap(WASI_MODULE, "fd_fdstat_set_rights", |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64| {
            refuse(&mut caller, fd)
        })?
        .func_wrap(
            WASI_MODULE,
            "fd_filestat_set_times",
            |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64, _: i32| refuse(&mut caller, fd),
        )?
        .func_wrap(
            WASI_MODULE,
            "path_filestat_set_times",
            |mut caller: Caller<'_, T>, fd: i32, _: i32, _: i32, _: i32, _: i64, _: i64, _: i32| {
                refuse(&mut caller, fd)
            },
        )?
        .func_wrap(
            WASI_MODULE,
            "path_link",
            |mut caller: Caller<'_, T>, fd: i32, _: i32, _: i32, _: i32, _: i32, _: i32, _: i32| {
                refuse(&mut caller, fd)
            },
        )?
        .func_wrap(
            WASI_MODULE,
            "path_symlink",
            |mut caller: Caller<'_, T>, _: i32, _: i32, fd: i32, _: i32, _: i32| refuse(&mut caller, fd),
        )?
        // No file is a symbolic link.
        .func_wrap(
            WASI_MODULE,
            "path_readlink",
            |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32, _: i32, _: i32, _: i32| {
                with(&mut caller, PATH_COST_BYTES, |desk| {
                    number(desk.files.stat_at(fd as u32, path(desk.memory, at, len)?))?;
                    Err(FileError::Invalid.number())
                })
            },
        )?;
    Ok(())
}

/// `rights` say whether it is to be read and written; which others there are follows from that.
#[allow(clippy::too_many_arguments)] // As WASI has them.
fn path_open<T: Host>(
    mut caller: Caller<'_, T>,
    fd: i32,
    _follow: i32,
    at: i32,
    len: i32,
    open_flags: i32,
    rights: i64,
    _inherited: i64,
    flags: i32,
    out: i32,
) -> i32 {
    let how = Opening {
        read: rights as u64 & RIGHT_FD_READ != 0,
        write: rights as u64 & RIGHT_FD_WRITE != 0,
        append: flags & FLAG_APPEND != 0,
        create: open_flags & OPEN_CREATE != 0,
        exclusive: open_flags & OPEN_EXCLUSIVE != 0,
        truncate: open_flags & OPEN_TRUNCATE != 0,
        directory: open_flags & OPEN_DIRECTORY != 0,
    };
    with(&mut caller, PATH_COST_BYTES, |desk| {
        desk.bytes(out, 4)?;
        let path = path(desk.memory, at, len)?;
        let opened = number(desk.files.open(desk.space, fd as u32, path, how))?;
        desk.put(out, &opened.to_le_bytes())
    })
}

/// Where each vector of a call begins and how long it is, as far as they are looked at and within what the call may move. Those that are
/// not there are empty, so that even without any it is said that a descriptor is bad.
fn vectors<T: Host>(caller: &mut Caller<'_, T>, iovecs: i32, count: i32) -> Option<[(i32, u32); IOVECS_MAX]> {
    let mut vectors = [(0, 0); IOVECS_MAX];
    let mut wanted = 0_u32;
    for (i, vector) in (0..count.max(0)).zip(&mut vectors) {
        *vector = super::iovec(caller, iovecs.wrapping_add(i.wrapping_mul(8)))?;
        wanted = wanted.saturating_add(vector.1);
    }
    let mut left = granted(caller, wanted);
    for (_, len) in &mut vectors {
        *len = (*len).min(left);
        left -= *len;
    }
    Some(vectors)
}

/// Reads from a place on, or from where the descriptor is.
pub(super) fn fd_read<T: Host>(
    caller: &mut Caller<'_, T>,
    fd: i32,
    iovecs: i32,
    count: i32,
    mut at: Option<u64>,
    out: i32,
) -> i32 {
    let Some(vectors) = vectors(caller, iovecs, count) else { return FAULT };
    with(caller, 0, |desk| {
        desk.bytes(out, 4)?;
        let mut total = 0;
        for (to, len) in vectors {
            let buffer = slice(desk.memory, to, len)?;
            let done = number(desk.files.read(fd as u32, at, buffer))?;
            total += done as u32;
            at = at.map(|at| at.saturating_add(done as u64));
            if done < len as usize {
                break;
            }
        }
        desk.put(out, &total.to_le_bytes())
    })
}

/// Writes from a place on, or from where the descriptor is.
pub(super) fn fd_write<T: Host>(
    caller: &mut Caller<'_, T>,
    fd: i32,
    iovecs: i32,
    count: i32,
    mut at: Option<u64>,
    out: i32,
) -> i32 {
    let Some(vectors) = vectors(caller, iovecs, count) else { return FAULT };
    with(caller, 0, |desk| {
        desk.bytes(out, 4)?;
        let mut total = 0;
        for (from, len) in vectors {
            let bytes = slice(desk.memory, from, len)?;
            let done = match desk.files.write(desk.space, fd as u32, at, bytes) {
                Ok(done) => done,
                // What was written before counts.
                Err(_) if total > 0 => break,
                Err(error) => return Err(error.number()),
            };
            total += done as u32;
            at = at.map(|at| at.saturating_add(done as u64));
            if done < len as usize {
                break;
            }
        }
        desk.put(out, &total.to_le_bytes())
    })
}

/// Closes a descriptor.
pub(super) fn fd_close<T: Host>(caller: &mut Caller<'_, T>, fd: i32) -> i32 {
    with(caller, 0, |desk| number(desk.files.close(fd as u32)))
}

/// Moves the place of a descriptor.
pub(super) fn fd_seek<T: Host>(caller: &mut Caller<'_, T>, fd: i32, offset: i64, whence: i32, out: i32) -> i32 {
    with(caller, 0, |desk| {
        let whence = match whence {
            0 => Whence::Start,
            1 => Whence::Current,
            2 => Whence::End,
            _ => return Err(FileError::Invalid.number()),
        };
        seek(desk, fd, offset, whence, out)
    })
}

fn seek(desk: &mut Desk<'_>, fd: i32, offset: i64, whence: Whence, out: i32) -> Done {
    desk.bytes(out, 8)?;
    let at = number(desk.files.seek(fd as u32, offset, whence))?;
    desk.put(out, &at.to_le_bytes())
}

/// How a descriptor was opened.
pub(super) fn fd_fdstat_get<T: Host>(caller: &mut Caller<'_, T>, fd: i32, out: i32) -> i32 {
    with(caller, 0, |desk| {
        let Status { kind, read, write, append } = number(desk.files.status(fd as u32))?;
        let (base, inherited) = match kind {
            FileKind::Directory => (RIGHTS_OF_DIRECTORIES, RIGHTS),
            FileKind::File => {
                let unread = if read { 0 } else { RIGHT_FD_READ };
                let unwritten = if write { 0 } else { RIGHTS_TO_WRITE };
                (RIGHTS_OF_FILES & !unread & !unwritten, 0)
            }
        };
        let mut stat = [0; 24];
        stat[0] = filetype(kind);
        stat[2] = u8::from(append);
        stat[8..16].copy_from_slice(&base.to_le_bytes());
        stat[16..].copy_from_slice(&inherited.to_le_bytes());
        desk.put(out, &stat)
    })
}

fn filetype(kind: FileKind) -> u8 {
    match kind {
        FileKind::Directory => FILETYPE_DIRECTORY,
        FileKind::File => FILETYPE_REGULAR_FILE,
    }
}

/// What is known of what is open.
pub(super) fn fd_filestat_get<T: Host>(caller: &mut Caller<'_, T>, fd: i32, out: i32) -> i32 {
    with(caller, 0, |desk| {
        let stat = number(desk.files.stat(fd as u32))?;
        desk.put(out, &filestat(stat))
    })
}

/// Device, number, kind, links, length, and three times, which are zero.
fn filestat(stat: Stat) -> [u8; 64] {
    let mut out = [0; 64];
    out[8..16].copy_from_slice(&stat.number.to_le_bytes());
    out[16] = filetype(stat.kind);
    out[24..32].copy_from_slice(&1_u64.to_le_bytes());
    out[32..40].copy_from_slice(&stat.bytes.to_le_bytes());
    out
}

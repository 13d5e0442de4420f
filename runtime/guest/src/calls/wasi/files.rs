//! The WASI preview 1 functions for files. They copy between guest memory and [`crate::files`].
//!
//! A guest of a stage without files has only the standard streams open. Calls for other descriptors fail with "bad file descriptor".
//!
//! A constant bounds the bytes that a call moves. No call fails because its turn's allowance is used up: it moves a few bytes then, and the
//! guest's turn ends right after the call.

use std::ops::Deref;

use wasmtime::{Caller, Linker};

use super::super::{Host, WASI_MODULE, memory};
use super::{BADF, FAULT, IOVECS_MAX, SUCCESS};
use crate::files::{FileError, FileKind, Files, Flags, Open, Opening, PATH_BYTES_MAX, Space, Stat, Status, Whence};
use crate::memory::GuestMemory;

/// The most bytes that a call reads or writes, and the most when the allowance is used up.
const STEP_BYTES_MAX: u32 = 64 * 1024;
const STEP_BYTES_AT_LEAST: u32 = 4096;
/// What a call copies between the guest's memory and a file at a time.
const BUFFER_BYTES: usize = 4096;
/// The longest buffer for a directory listing.
const LISTING_BYTES_MAX: u32 = 16 * 1024;
/// The charge for resolving a path, in bytes moved.
const PATH_COST_BYTES: u32 = 4096;

const RIGHT_FD_DATASYNC: u64 = 1;
const RIGHT_FD_READ: u64 = 1 << 1;
const RIGHT_FD_SEEK: u64 = 1 << 2;
const RIGHT_FD_FDSTAT_SET_FLAGS: u64 = 1 << 3;
const RIGHT_FD_SYNC: u64 = 1 << 4;
const RIGHT_FD_TELL: u64 = 1 << 5;
const RIGHT_FD_WRITE: u64 = 1 << 6;
const RIGHT_FD_ADVISE: u64 = 1 << 7;
const RIGHT_FD_ALLOCATE: u64 = 1 << 8;
/// The rights to create, open, list, link, rename and stat entries of a directory.
const RIGHTS_OF_PATHS: u64 = 0x7_fe00;
const RIGHT_PATH_FILESTAT_SET_TIMES: u64 = 1 << 20;
const RIGHT_FD_FILESTAT_GET: u64 = 1 << 21;
const RIGHT_FD_FILESTAT_SET_SIZE: u64 = 1 << 22;
const RIGHT_FD_FILESTAT_SET_TIMES: u64 = 1 << 23;
/// The rights to create symbolic links, and to remove directories and files.
const RIGHTS_OF_NAMES: u64 = 7 << 24;
const RIGHT_POLL_FD_READWRITE: u64 = 1 << 27;

/// Rights that apply to files and directories.
const RIGHTS_OF_ALL: u64 =
    RIGHT_FD_DATASYNC | RIGHT_FD_FDSTAT_SET_FLAGS | RIGHT_FD_SYNC | RIGHT_FD_FILESTAT_GET | RIGHT_FD_FILESTAT_SET_TIMES;
/// Rights that apply to files, and those that apply to writable files.
const RIGHTS_OF_FILES: u64 = RIGHTS_OF_ALL
    | RIGHT_FD_READ
    | RIGHT_FD_SEEK
    | RIGHT_FD_TELL
    | RIGHT_FD_ADVISE
    | RIGHTS_TO_WRITE
    | RIGHT_POLL_FD_READWRITE;
const RIGHTS_TO_WRITE: u64 = RIGHT_FD_WRITE | RIGHT_FD_ALLOCATE | RIGHT_FD_FILESTAT_SET_SIZE;
/// Rights that apply to directories, which have neither bytes nor an offset. Setting a file's size by path is not among them.
const RIGHTS_OF_DIRECTORIES: u64 = RIGHTS_OF_ALL | RIGHTS_OF_PATHS | RIGHT_PATH_FILESTAT_SET_TIMES | RIGHTS_OF_NAMES;
/// Rights that apply to streams, which have no offset either.
const RIGHTS_OF_STREAMS: u64 =
    RIGHT_FD_FDSTAT_SET_FLAGS | RIGHT_FD_FILESTAT_GET | RIGHT_POLL_FD_READWRITE | RIGHT_FD_READ | RIGHT_FD_WRITE;

/// The greatest number of an advice.
const ADVICE_MAX: i32 = 5;
const OPEN_CREATE: i32 = 1;
const OPEN_DIRECTORY: i32 = 2;
const OPEN_EXCLUSIVE: i32 = 4;
const OPEN_TRUNCATE: i32 = 8;

const FILETYPE_CHARACTER_DEVICE: u8 = 2;
const FILETYPE_DIRECTORY: u8 = 3;
const FILETYPE_REGULAR_FILE: u8 = 4;
/// The name of the preopened root directory.
const ROOT_NAME: &[u8] = b"/";

/// What a call works on.
struct CallContext<'a> {
    memory: GuestMemory<'a>,
    files: &'a mut Files,
    space: &'a mut dyn Space,
}

/// Success, or the errno for the guest.
type Done = Result<(), i32>;

impl CallContext<'_> {
    /// Succeeds if the guest has these bytes.
    fn has(&self, at: i32, len: u32) -> Done {
        if self.memory.has(at, len as usize) { Ok(()) } else { Err(FAULT) }
    }

    fn put(&self, at: i32, bytes: &[u8]) -> Done {
        self.memory.write(at, bytes).ok_or(FAULT)
    }

    /// Copies a path. One that is too long is refused before it is read.
    fn path(&self, at: i32, len: i32) -> Result<Path, i32> {
        let (mut bytes, len) = ([0; PATH_BYTES_MAX], len as u32 as usize);
        let path = bytes.get_mut(..len).ok_or(FileError::NameTooLong.number())?;
        self.memory.read(at, path).ok_or(FAULT)?;
        Ok(Path { bytes, len })
    }

    /// Reads from a file into the guest's memory, through a buffer. Returns how many bytes there were.
    fn read(&mut self, fd: i32, at: Option<u64>, to: i32, len: u32) -> Result<u32, i32> {
        self.has(to, len)?;
        let (mut buffer, mut done) = ([0; BUFFER_BYTES], 0);
        loop {
            let part = &mut buffer[..BUFFER_BYTES.min((len - done) as usize)];
            let at = at.map(|at| at.saturating_add(done.into()));
            let read = number(self.files.read(fd as u32, at, part))?;
            self.put(to.wrapping_add(done as i32), &part[..read])?;
            done += read as u32;
            if done == len || read < part.len() {
                return Ok(done);
            }
        }
    }

    /// Writes from the guest's memory to a file, through a buffer. Returns how many bytes there was room for; bytes that were written before
    /// an error count.
    fn write(&mut self, fd: i32, at: Option<u64>, from: i32, len: u32) -> Result<u32, i32> {
        self.has(from, len)?;
        let (mut buffer, mut done) = ([0; BUFFER_BYTES], 0);
        loop {
            let part = &mut buffer[..BUFFER_BYTES.min((len - done) as usize)];
            self.memory.read(from.wrapping_add(done as i32), part).ok_or(FAULT)?;
            let at = at.map(|at| at.saturating_add(done.into()));
            let written = match self.files.write(self.space, fd as u32, at, part) {
                Ok(written) => written,
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error.number()),
            };
            done += written as u32;
            if done == len || written < part.len() {
                return Ok(done);
            }
        }
    }
}

/// A path as a guest has passed it.
struct Path {
    bytes: [u8; PATH_BYTES_MAX],
    len: usize,
}

impl Deref for Path {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Calls `act` with the guest's files, for a charge of `cost_bytes`. For a stage without files, the [`Files`] of the standard streams are
/// created at the first such call.
fn with<T: Host>(caller: &mut Caller<'_, T>, cost_bytes: u32, act: impl FnOnce(&mut CallContext<'_>) -> Done) -> i32 {
    let Some(memory) = memory(caller) else { return FAULT };
    if !caller.data_mut().charge(cost_bytes) {
        T::give_way(caller);
    }
    if caller.data_mut().files().is_none() {
        caller.data_mut().keep_streams();
    }
    GuestMemory::with(caller, memory, |memory, host| {
        let Some((files, space)) = host.files() else { return BADF };
        match act(&mut CallContext { memory, files, space }) {
            Ok(()) => SUCCESS,
            Err(number) => number,
        }
    })
}

/// Returns how many bytes a call may move that asks for `wanted`.
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

/// Defines the calls for descriptors.
fn define_descriptors<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(WASI_MODULE, "fd_prestat_get", |mut caller: Caller<'_, T>, fd: i32, out: i32| {
            with(&mut caller, 0, |context| {
                preopened(context, fd)?;
                context.put(out, &[0, 0, 0, 0, ROOT_NAME.len() as u8, 0, 0, 0])
            })
        })?
        .func_wrap(WASI_MODULE, "fd_prestat_dir_name", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, 0, |context| {
                preopened(context, fd)?;
                if (len as u32 as usize) < ROOT_NAME.len() {
                    return Err(FileError::NameTooLong.number());
                }
                context.put(at, ROOT_NAME)
            })
        })?
        .func_wrap(WASI_MODULE, "fd_fdstat_get", fd_fdstat_get::<T>)?
        .func_wrap(WASI_MODULE, "fd_filestat_get", fd_filestat_get::<T>)?
        .func_wrap(WASI_MODULE, "fd_fdstat_set_flags", |mut caller: Caller<'_, T>, fd: i32, flags: i32| {
            with(&mut caller, 0, |context| {
                let flags = u16::try_from(flags).map_err(|_| FileError::Invalid.number())?;
                number(context.files.set_flags(fd as u32, Flags(flags)))
            })
        })?
        .func_wrap(WASI_MODULE, "fd_renumber", |mut caller: Caller<'_, T>, from: i32, to: i32| {
            with(&mut caller, 0, |context| number(context.files.renumber(from as u32, to as u32)))
        })?
        .func_wrap(WASI_MODULE, "fd_close", |mut caller: Caller<'_, T>, fd: i32| {
            with(&mut caller, 0, |context| number(context.files.close(fd as u32)))
        })?
        .func_wrap(WASI_MODULE, "fd_seek", |mut caller: Caller<'_, T>, fd: i32, offset: i64, whence: i32, out: i32| {
            with(&mut caller, 0, |context| {
                let whence = match whence {
                    0 => Whence::Start,
                    1 => Whence::Current,
                    2 => Whence::End,
                    _ => return Err(FileError::Invalid.number()),
                };
                seek(context, fd, offset, whence, out)
            })
        })?
        .func_wrap(WASI_MODULE, "fd_tell", |mut caller: Caller<'_, T>, fd: i32, out: i32| {
            with(&mut caller, 0, |context| seek(context, fd, 0, Whence::Current, out))
        })?;
    for name in ["fd_sync", "fd_datasync"] {
        linker.func_wrap(WASI_MODULE, name, |mut caller: Caller<'_, T>, fd: i32| {
            with(&mut caller, 0, |context| number(context.files.sync(fd as u32)))
        })?;
    }
    linker.func_wrap(WASI_MODULE, "fd_advise", |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64, advice: i32| {
        with(&mut caller, 0, |context| {
            number(context.files.advise(fd as u32))?;
            if (0..=ADVICE_MAX).contains(&advice) { Ok(()) } else { Err(FileError::Invalid.number()) }
        })
    })?;
    Ok(())
}

/// Succeeds if the descriptor is the preopened directory.
fn preopened(context: &CallContext<'_>, fd: i32) -> Done {
    if number(context.files.is_preopened(fd as u32))? { Ok(()) } else { Err(BADF) }
}

/// Defines the calls for the contents of open files and directories.
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
            with(&mut caller, PATH_COST_BYTES, |context| {
                number(context.files.set_len(context.space, fd as u32, len as u64))
            })
        })?
        .func_wrap(
            WASI_MODULE,
            "fd_readdir",
            |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32, cookie: i64, out: i32| {
                let len = len as u32;
                if len > LISTING_BYTES_MAX {
                    return FileError::Invalid.number();
                }
                with(&mut caller, len, |context| {
                    context.has(at, len)?;
                    let mut listing = [0; LISTING_BYTES_MAX as usize];
                    let listing = &mut listing[..len as usize];
                    let filled = number(context.files.read_directory(fd as u32, cookie as u64, listing))?;
                    context.put(at, &listing[..filled])?;
                    context.put(out, &(filled as u32).to_le_bytes())
                })
            },
        )?;
    Ok(())
}

/// Defines the calls that take paths.
fn define_paths<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(WASI_MODULE, "path_open", path_open::<T>)?
        .func_wrap(
            WASI_MODULE,
            "path_filestat_get",
            |mut caller: Caller<'_, T>, fd: i32, _follow: i32, at: i32, len: i32, out: i32| {
                with(&mut caller, PATH_COST_BYTES, |context| {
                    let stat = number(context.files.stat_at(fd as u32, &context.path(at, len)?))?;
                    context.put(out, &filestat(Some(stat)))
                })
            },
        )?
        .func_wrap(WASI_MODULE, "path_create_directory", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |context| {
                let path = context.path(at, len)?;
                number(context.files.create_directory(context.space, fd as u32, &path))
            })
        })?
        .func_wrap(WASI_MODULE, "path_remove_directory", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |context| {
                let path = context.path(at, len)?;
                number(context.files.remove_directory(context.space, fd as u32, &path))
            })
        })?
        .func_wrap(WASI_MODULE, "path_unlink_file", |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32| {
            with(&mut caller, PATH_COST_BYTES, |context| {
                let path = context.path(at, len)?;
                number(context.files.unlink(context.space, fd as u32, &path))
            })
        })?
        .func_wrap(
            WASI_MODULE,
            "path_rename",
            |mut caller: Caller<'_, T>, fd: i32, at: i32, len: i32, to_fd: i32, to_at: i32, to_len: i32| {
                with(&mut caller, 2 * PATH_COST_BYTES, |context| {
                    let (from, to) = (context.path(at, len)?, context.path(to_at, to_len)?);
                    number(context.files.rename(context.space, (fd as u32, &from), (to_fd as u32, &to)))
                })
            },
        )?;
    Ok(())
}

/// Defines the calls that are not supported: links, times, preallocation, and giving up rights.
fn define_unsupported<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    /// Refuses a call; a bad descriptor is reported first.
    fn refuse<T: Host>(caller: &mut Caller<'_, T>, fd: i32) -> i32 {
        with(caller, 0, |context| {
            number(context.files.status(fd as u32))?;
            Err(FileError::NotSupported.number())
        })
    }
    linker
        .func_wrap(WASI_MODULE, "fd_allocate", |mut caller: Caller<'_, T>, fd: i32, _: i64, _: i64| {
            with(&mut caller, 0, |context| number(context.files.allocate(fd as u32)))
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
                with(&mut caller, PATH_COST_BYTES, |context| {
                    number(context.files.stat_at(fd as u32, &context.path(at, len)?))?;
                    Err(FileError::Invalid.number())
                })
            },
        )?;
    Ok(())
}

/// Opens a path. Of `rights`, only those to read and to write count; the others follow from these.
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
        flags: Flags(flags as u16 & Flags::ALL.0),
        create: open_flags & OPEN_CREATE != 0,
        exclusive: open_flags & OPEN_EXCLUSIVE != 0,
        truncate: open_flags & OPEN_TRUNCATE != 0,
        directory: open_flags & OPEN_DIRECTORY != 0,
    };
    with(&mut caller, PATH_COST_BYTES, |context| {
        context.has(out, 4)?;
        let path = context.path(at, len)?;
        let opened = number(context.files.open(context.space, fd as u32, &path, how))?;
        context.put(out, &opened.to_le_bytes())
    })
}

/// Returns address and length of each I/O vector of a call, cut to what the call may move. Missing vectors are empty, so that a bad
/// descriptor is reported even if a call has no vectors.
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

/// Reads from offset `at` on, or from the descriptor's own offset.
pub(super) fn fd_read<T: Host>(
    caller: &mut Caller<'_, T>,
    fd: i32,
    iovecs: i32,
    count: i32,
    mut at: Option<u64>,
    out: i32,
) -> i32 {
    let Some(vectors) = vectors(caller, iovecs, count) else { return FAULT };
    with(caller, 0, |context| {
        context.has(out, 4)?;
        let mut total = 0;
        for (to, len) in vectors {
            let done = context.read(fd, at, to, len)?;
            total += done;
            at = at.map(|at| at.saturating_add(done.into()));
            if done < len {
                break;
            }
        }
        context.put(out, &total.to_le_bytes())
    })
}

/// Writes from offset `at` on, or from the descriptor's own offset.
pub(super) fn fd_write<T: Host>(
    caller: &mut Caller<'_, T>,
    fd: i32,
    iovecs: i32,
    count: i32,
    mut at: Option<u64>,
    out: i32,
) -> i32 {
    let Some(vectors) = vectors(caller, iovecs, count) else { return FAULT };
    with(caller, 0, |context| {
        context.has(out, 4)?;
        let mut total = 0;
        for (from, len) in vectors {
            // Bytes written before an error count, unless the guest does not have what it wants to write.
            let done = match context.write(fd, at, from, len) {
                Err(error) if total > 0 && error != FAULT => break,
                done => done?,
            };
            total += done;
            at = at.map(|at| at.saturating_add(done.into()));
            if done < len {
                break;
            }
        }
        context.put(out, &total.to_le_bytes())
    })
}

fn seek(context: &mut CallContext<'_>, fd: i32, offset: i64, whence: Whence, out: i32) -> Done {
    context.has(out, 8)?;
    let at = number(context.files.seek(fd as u32, offset, whence))?;
    context.put(out, &at.to_le_bytes())
}

/// Reports how a descriptor was opened. A C library asks this about a stream before it first prints to it. For a guest without [`Files`]
/// the answer does not create them.
fn fd_fdstat_get<T: Host>(mut caller: Caller<'_, T>, fd: i32, out: i32) -> i32 {
    if caller.data_mut().files().is_none()
        && let Some(stream) = super::stream(&mut caller, fd)
    {
        return super::errno(super::write(&mut caller, out, &fdstat(Status::of(stream))));
    }
    with(&mut caller, 0, |context| {
        let status = number(context.files.status(fd as u32))?;
        context.put(out, &fdstat(status))
    })
}

/// Encodes kind, flags, the descriptor's rights, and the rights of files opened through it.
fn fdstat(status: Status) -> [u8; 24] {
    let Status { open, read, write, flags } = status;
    let unread = if read { 0 } else { RIGHT_FD_READ };
    let unwritten = if write { 0 } else { RIGHTS_TO_WRITE };
    let (kind, base, inherited) = match open {
        Open::Stream(_) => (FILETYPE_CHARACTER_DEVICE, RIGHTS_OF_STREAMS & !unread & !unwritten, 0),
        Open::Node(FileKind::Directory) => {
            (FILETYPE_DIRECTORY, RIGHTS_OF_DIRECTORIES, RIGHTS_OF_DIRECTORIES | RIGHTS_OF_FILES)
        }
        Open::Node(FileKind::File) => (FILETYPE_REGULAR_FILE, RIGHTS_OF_FILES & !unread & !unwritten, 0),
    };
    let mut stat = [0; 24];
    stat[0] = kind;
    stat[2..4].copy_from_slice(&flags.0.to_le_bytes());
    stat[8..16].copy_from_slice(&base.to_le_bytes());
    stat[16..].copy_from_slice(&inherited.to_le_bytes());
    stat
}

fn filetype(kind: FileKind) -> u8 {
    match kind {
        FileKind::Directory => FILETYPE_DIRECTORY,
        FileKind::File => FILETYPE_REGULAR_FILE,
    }
}

/// Reports the status of an open file, directory or stream.
fn fd_filestat_get<T: Host>(mut caller: Caller<'_, T>, fd: i32, out: i32) -> i32 {
    with(&mut caller, 0, |context| {
        let stat = number(context.files.stat(fd as u32))?;
        context.put(out, &filestat(stat))
    })
}

/// Encodes device, number, kind, links, length, and three times, which are zero. Without `stat` it describes a stream.
fn filestat(stat: Option<Stat>) -> [u8; 64] {
    let mut out = [0; 64];
    out[16] = stat.map_or(FILETYPE_CHARACTER_DEVICE, |stat| filetype(stat.kind));
    out[24..32].copy_from_slice(&1_u64.to_le_bytes());
    if let Some(stat) = stat {
        out[8..16].copy_from_slice(&stat.number.to_le_bytes());
        out[32..40].copy_from_slice(&stat.bytes.to_le_bytes());
    }
    out
}

//! Descriptors, including the standard streams and the root: closed, renumbered, and used for operations that they do not support.

use pinion_guest::files::{FileError, FileKind, Files, Flags, Open, Opening, ROOT_DESCRIPTOR, Status, Stream, Whence};

use super::{READ, Room, WRITE, files};

const STREAMS: [u32; 3] = [0, 1, 2];

#[test]
fn an_instance_begins_with_the_streams_and_the_root() {
    let files = files();
    for (fd, stream) in STREAMS.into_iter().zip(Stream::ALL) {
        assert_eq!(
            (files.stream(fd), files.status(fd), files.stat(fd)),
            (Some(stream), Ok(Status::of(stream)), Ok(None))
        );
        assert_eq!(files.is_preopened(fd), Ok(false));
    }
    assert_eq!(files.status(ROOT_DESCRIPTOR).unwrap().open, Open::Node(FileKind::Directory));
    assert_eq!((files.is_preopened(ROOT_DESCRIPTOR), files.stream(ROOT_DESCRIPTOR)), (Ok(true), None));
    assert_eq!((files.open_count(), files.is_as_at_start()), (0, true));
    for fd in [4, 5, 67, 68, u32::MAX] {
        assert_eq!((files.status(fd), files.stream(fd)), (Err(FileError::BadDescriptor), None), "{fd}");
    }
    let streams = Files::of_streams();
    assert!(streams.is_as_at_start() && streams.stream(1) == Some(Stream::Output));
    assert_eq!(streams.status(ROOT_DESCRIPTOR), Err(FileError::BadDescriptor));
}

#[test]
fn operations_that_a_descriptor_does_not_support_fail() {
    let (mut files, mut room) = (files(), Room::default());
    for fd in STREAMS {
        assert_eq!(files.seek(fd, 0, Whence::Current), Err(FileError::NotSeekable));
        assert_eq!(files.read(fd, Some(0), &mut [0; 4]), Err(FileError::NotSeekable));
        assert_eq!(files.write(&mut room, fd, Some(0), b"x"), Err(FileError::NotSeekable));
        assert_eq!((files.advise(fd), files.allocate(fd)), (Err(FileError::NotSeekable), Err(FileError::NotSeekable)));
        assert_eq!(
            (files.sync(fd), files.set_len(&mut room, fd, 1)),
            (Err(FileError::Invalid), Err(FileError::Invalid))
        );
        assert_eq!(files.stat_at(fd, b"c"), Err(FileError::NotDirectory));
        assert_eq!(files.read_directory(fd, 0, &mut [0; 100]), Err(FileError::NotDirectory));
    }
    let root = ROOT_DESCRIPTOR;
    assert_eq!(files.seek(root, 0, Whence::Start), Err(FileError::IsDirectory));
    assert_eq!((files.sync(root), files.advise(root)), (Ok(()), Ok(())));
    assert_eq!(
        (files.allocate(root), files.set_len(&mut room, root, 0)),
        (Err(FileError::IsDirectory), Err(FileError::IsDirectory))
    );
    let (read, written) =
        (files.open(&mut room, root, b"c", READ).unwrap(), files.open(&mut room, root, b"n", WRITE).unwrap());
    assert_eq!((files.sync(read), files.advise(read)), (Ok(()), Ok(())));
    assert_eq!(
        (files.allocate(read), files.allocate(written)),
        (Err(FileError::BadDescriptor), Err(FileError::NotSupported))
    );
    for nothing in [9, u32::MAX] {
        let bad = Err(FileError::BadDescriptor);
        assert_eq!((files.sync(nothing), files.advise(nothing), files.allocate(nothing)), (bad, bad, bad));
        assert_eq!((files.set_flags(nothing, Flags::APPEND), files.close(nothing)), (bad, bad));
    }
}

#[test]
fn a_stream_is_reopened_by_renumbering_a_file() {
    let (mut files, mut room) = (files(), Room::default());
    let file = files.open(&mut room, ROOT_DESCRIPTOR, b"d", READ).unwrap();
    assert_eq!(file, 4);
    files.renumber(file, 0).unwrap();
    assert_eq!((files.stream(0), files.status(file)), (None, Err(FileError::BadDescriptor)));
    let mut read = [0; 100];
    assert!(files.read(0, None, &mut read).unwrap() > 0);
    assert_eq!(files.seek(0, 0, Whence::Start), Ok(0));
    assert!(!files.is_as_at_start() && files.open_count() == 1);
    // The file's former number is free, and is the next one given out.
    assert_eq!(files.open(&mut room, ROOT_DESCRIPTOR, b"d", READ), Ok(file));
}

#[test]
fn a_renumbered_stream_stays_a_stream() {
    let (mut files, mut room) = (files(), Room::default());
    for (fd, stream) in STREAMS.into_iter().zip(Stream::ALL) {
        let file = files.open(&mut room, ROOT_DESCRIPTOR, b"new", WRITE).unwrap();
        files.renumber(fd, file).unwrap();
        assert_eq!((files.stream(file), files.status(fd)), (Some(stream), Err(FileError::BadDescriptor)));
        // New files, so that the next open does not get the stream's former number.
        files = self::files();
    }
    files.renumber(1, 2).unwrap();
    assert_eq!((files.stream(1), files.stream(2)), (None, Some(Stream::Output)));
    // Renumbering a descriptor to itself changes nothing. A closed descriptor can be neither source nor target.
    assert_eq!((files.renumber(2, 2), files.stream(2)), (Ok(()), Some(Stream::Output)));
    for (from, to) in [(2, 1), (1, 2), (2, 9), (9, 2), (1, 1)] {
        assert_eq!(files.renumber(from, to), Err(FileError::BadDescriptor), "{from} to {to}");
    }
    assert_eq!(files.stream(2), Some(Stream::Output));
}

#[test]
fn streams_and_root_can_be_closed_once_and_their_numbers_are_reused() {
    let (mut files, mut room) = (files(), Room::default());
    let directory = files.open(&mut room, ROOT_DESCRIPTOR, b"a", READ).unwrap();
    for fd in [0, 1, 2, ROOT_DESCRIPTOR] {
        assert_eq!((files.close(fd), files.close(fd)), (Ok(()), Err(FileError::BadDescriptor)), "{fd}");
    }
    assert_eq!(files.stat_at(ROOT_DESCRIPTOR, b"c"), Err(FileError::BadDescriptor));
    for fd in 0..=ROOT_DESCRIPTOR {
        assert_eq!(files.open(&mut room, directory, b"one", READ), Ok(fd));
        assert_eq!(files.is_preopened(fd), Ok(false));
    }
    assert!(!files.is_as_at_start());
}

#[test]
fn another_directory_can_be_renumbered_to_the_root() {
    let (mut files, mut room) = (files(), Room::default());
    let directory = files.open(&mut room, ROOT_DESCRIPTOR, b"a", READ).unwrap();
    let stat = files.stat(directory).unwrap();
    files.renumber(directory, ROOT_DESCRIPTOR).unwrap();
    assert_eq!((files.stat(ROOT_DESCRIPTOR), files.is_preopened(ROOT_DESCRIPTOR)), (Ok(stat), Ok(false)));
    assert_eq!(files.status(directory), Err(FileError::BadDescriptor));
    assert!(files.stat_at(ROOT_DESCRIPTOR, b"one").is_ok());
    assert_eq!(files.stat_at(ROOT_DESCRIPTOR, b"../c"), Err(FileError::Outside));
}

#[test]
fn an_unlinked_file_is_freed_when_its_last_descriptor_is_closed_or_replaced() {
    let (mut files, mut room) = (files(), Room::default());
    let file = files.open(&mut room, ROOT_DESCRIPTOR, b"made", WRITE).unwrap();
    files.write(&mut room, file, None, &[1; 5000]).unwrap();
    files.unlink(&mut room, ROOT_DESCRIPTOR, b"made").unwrap();
    files.renumber(file, 1).unwrap();
    assert_eq!(files.seek(1, 0, Whence::End), Ok(5000));
    let other = files.open(&mut room, ROOT_DESCRIPTOR, b"c", READ).unwrap();
    files.renumber(other, 1).unwrap();
    let before = room.bytes;
    files.create_directory(&mut room, ROOT_DESCRIPTOR, b"again").unwrap();
    assert!(room.bytes < before, "a file without a name that is not open is no longer charged");
}

#[test]
fn flags_are_as_requested_and_only_some_can_be_changed_later() {
    let (mut files, mut room) = (files(), Room::default());
    let [append, sync, nonblocking] = [1, 16, 4].map(Flags);
    let how = Opening { flags: Flags(append.0 | sync.0), ..WRITE };
    let file = files.open(&mut room, ROOT_DESCRIPTOR, b"made", how).unwrap();
    let flags = |files: &Files, fd| files.status(fd).unwrap().flags;
    assert_eq!(flags(&files, file), how.flags);
    files.write(&mut room, file, None, b"one").unwrap();
    files.seek(file, 0, Whence::Start).unwrap();
    files.write(&mut room, file, None, b"two").unwrap();
    assert_eq!(files.seek(file, 0, Whence::Current), Ok(6), "each write goes to the end");
    files.set_flags(file, nonblocking).unwrap();
    assert_eq!(flags(&files, file), Flags(nonblocking.0 | sync.0));
    files.seek(file, 0, Whence::Start).unwrap();
    files.write(&mut room, file, None, b"six").unwrap();
    assert_eq!(files.seek(file, 0, Whence::End), Ok(6), "it does so no more");
    // The same holds for streams and directories.
    for fd in [0, 1, 2, ROOT_DESCRIPTOR] {
        files.set_flags(fd, nonblocking).unwrap();
        assert_eq!(flags(&files, fd), nonblocking);
        assert_eq!(files.set_flags(fd, Flags(32)), Err(FileError::Invalid));
    }
    assert!(!files.is_as_at_start());
}

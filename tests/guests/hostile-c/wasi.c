/* The guarantees of WASI preview 1 for descriptors, files and directories, call by call. */
#include <wasi/api.h>

#include "check.h"

#define ROOT 3
#define READ (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_SEEK | __WASI_RIGHTS_FD_TELL)
#define WRITE (READ | __WASI_RIGHTS_FD_WRITE)

static __wasi_errno_t open_at(__wasi_fd_t fd, const char *path, __wasi_oflags_t how, __wasi_rights_t rights, __wasi_fd_t *opened)
{
    return __wasi_path_open(fd, 0, path, how, rights, 0, 0, opened);
}

static __wasi_errno_t write_to(__wasi_fd_t fd, const char *text, __wasi_size_t *written)
{
    __wasi_ciovec_t vector = {.buf = (const uint8_t *)text, .buf_len = strlen(text)};
    return __wasi_fd_write(fd, &vector, 1, written);
}

static __wasi_errno_t read_from(__wasi_fd_t fd, char *text, size_t len, __wasi_size_t *read)
{
    __wasi_iovec_t vector = {.buf = (uint8_t *)text, .buf_len = len};
    return __wasi_fd_read(fd, &vector, 1, read);
}

static void a_descriptor_takes_the_place_of_another(void)
{
    __wasi_fd_t from, to;
    __wasi_fdstat_t before, after;
    CHECK_IS(open_at(ROOT, "first", __WASI_OFLAGS_CREAT, WRITE, &from), 0);
    CHECK_IS(open_at(ROOT, "second", __WASI_OFLAGS_CREAT, READ, &to), 0);
    CHECK_IS(__wasi_fd_fdstat_get(from, &before), 0);
    CHECK_IS(__wasi_fd_renumber(from, to), 0);
    CHECK_IS(__wasi_fd_fdstat_get(to, &after), 0);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_IS(__wasi_fd_close(from), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_renumber(to, from), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_renumber(from, to), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_renumber(to, to), 0);
    CHECK_IS(__wasi_fd_close(to), 0);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "first"), 0);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "second"), 0);
}

static void streams_take_the_place_of_files_and_files_of_streams(void)
{
    for (__wasi_fd_t stream = 0; stream <= 2; stream++) {
        __wasi_fd_t file;
        __wasi_fdstat_t stat;
        CHECK_IS(open_at(ROOT, "file", __WASI_OFLAGS_CREAT, 0, &file), 0);
        CHECK_IS(__wasi_fd_renumber(stream, file), 0);
        CHECK_IS(__wasi_fd_fdstat_get(file, &stat), 0);
        CHECK_IS(stat.fs_filetype, __WASI_FILETYPE_CHARACTER_DEVICE);
        CHECK_IS(__wasi_fd_fdstat_get(stream, &stat), __WASI_ERRNO_BADF);
        CHECK_IS(__wasi_path_unlink_file(ROOT, "file"), 0);
        /* Otherwise the next file would get the number of the stream. */
        CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), 0);
        CHECK_IS(file, stream);
    }
    char text[4] = "";
    __wasi_size_t count;
    CHECK_IS(read_from(0, text, 3, &count), 0);
    CHECK(count == 3 && strcmp(text, "one") == 0);
    CHECK_IS(write_to(1, "x", &count), __WASI_ERRNO_BADF);
}

static void a_stream_goes_on_by_another_number(void)
{
    __wasi_fd_t file;
    __wasi_size_t count;
    CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), 0);
    CHECK_IS(__wasi_fd_renumber(1, file), 0);
    CHECK_IS(write_to(file, "said by another number\n", &count), 0);
    CHECK_IS(count, 23);
    CHECK_IS(write_to(1, "x", &count), __WASI_ERRNO_BADF);
    CHECK_IS(read_from(file, problem, 0, &count), __WASI_ERRNO_BADF);
}

static void the_root_is_closed(void)
{
    __wasi_fd_t folder, file;
    __wasi_prestat_t prestat;
    __wasi_fdstat_t stat;
    CHECK_IS(__wasi_fd_prestat_get(ROOT, &prestat), 0);
    CHECK_IS(open_at(ROOT, "folder", __WASI_OFLAGS_DIRECTORY, 0, &folder), 0);
    CHECK_IS(__wasi_fd_close(ROOT), 0);
    CHECK_IS(__wasi_fd_close(ROOT), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_fdstat_get(ROOT, &stat), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_prestat_get(ROOT, &prestat), __WASI_ERRNO_BADF);
    CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_fdstat_get(folder, &stat), 0);
    CHECK_IS(stat.fs_filetype, __WASI_FILETYPE_DIRECTORY);
    CHECK_IS(open_at(folder, "a", 0, READ, &file), 0);
    CHECK_IS(file, ROOT);
    CHECK_IS(__wasi_fd_prestat_get(ROOT, &prestat), __WASI_ERRNO_BADF);
}

static void a_directory_takes_the_place_of_the_root(void)
{
    __wasi_fd_t folder, file;
    __wasi_filestat_t before, after;
    __wasi_prestat_t prestat;
    CHECK_IS(open_at(ROOT, "folder", __WASI_OFLAGS_DIRECTORY, 0, &folder), 0);
    CHECK_IS(__wasi_fd_filestat_get(folder, &before), 0);
    CHECK_IS(__wasi_fd_renumber(folder, ROOT), 0);
    CHECK_IS(__wasi_fd_filestat_get(ROOT, &after), 0);
    CHECK(before.ino == after.ino && before.dev == after.dev);
    CHECK_IS(__wasi_fd_filestat_get(folder, &after), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_prestat_get(ROOT, &prestat), __WASI_ERRNO_BADF);
    CHECK_IS(open_at(ROOT, "a", 0, READ, &file), 0);
    CHECK_IS(open_at(ROOT, "../lines", 0, READ, &file), __WASI_ERRNO_NOTCAPABLE);
}

static void streams_have_no_place(void)
{
    for (__wasi_fd_t fd = 0; fd <= 2; fd++) {
        __wasi_filesize_t place;
        __wasi_size_t count;
        __wasi_iovec_t none;
        __wasi_filestat_t stat;
        CHECK_IS(__wasi_fd_tell(fd, &place), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_seek(fd, 0, __WASI_WHENCE_CUR, &place), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_pread(fd, &none, 0, 0, &count), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_pwrite(fd, (__wasi_ciovec_t *)&none, 0, 0, &count), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_advise(fd, 0, 0, __WASI_ADVICE_NORMAL), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_allocate(fd, 0, 1), __WASI_ERRNO_SPIPE);
        CHECK_IS(__wasi_fd_sync(fd), __WASI_ERRNO_INVAL);
        CHECK_IS(__wasi_fd_datasync(fd), __WASI_ERRNO_INVAL);
        CHECK_IS(__wasi_fd_filestat_set_size(fd, 1), __WASI_ERRNO_INVAL);
        CHECK_IS(__wasi_fd_filestat_get(fd, &stat), 0);
        CHECK_IS(stat.filetype, __WASI_FILETYPE_CHARACTER_DEVICE);
        CHECK_IS(__wasi_fd_fdstat_set_flags(fd, __WASI_FDFLAGS_NONBLOCK), 0);
        CHECK_IS(__wasi_fd_fdstat_set_flags(fd, 0x40), __WASI_ERRNO_INVAL);
        CHECK_IS(__wasi_fd_readdir(fd, (uint8_t *)problem, 0, 0, &count), __WASI_ERRNO_NOTDIR);
        __wasi_fd_t opened;
        CHECK_IS(open_at(fd, "lines", 0, READ, &opened), __WASI_ERRNO_NOTDIR);
    }
}

static void directories_have_no_bytes(void)
{
    char text[8];
    __wasi_size_t count;
    __wasi_filesize_t place;
    __wasi_fdstat_t stat;
    __wasi_fd_t folder;
    __wasi_iovec_t vector = {.buf = (uint8_t *)text, .buf_len = sizeof text};
    CHECK_IS(open_at(ROOT, "folder", __WASI_OFLAGS_DIRECTORY, __WASI_RIGHTS_FD_SEEK, &folder), 0);
    CHECK_IS(read_from(folder, text, sizeof text, &count), __WASI_ERRNO_ISDIR);
    CHECK_IS(write_to(folder, "x", &count), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_pread(folder, &vector, 1, 0, &count), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_pwrite(folder, (__wasi_ciovec_t *)&vector, 1, 0, &count), __WASI_ERRNO_ISDIR);
    for (int whence = __WASI_WHENCE_SET; whence <= __WASI_WHENCE_END; whence++)
        CHECK_IS(__wasi_fd_seek(folder, 0, whence, &place), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_tell(folder, &place), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_allocate(folder, 0, 1), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_filestat_set_size(folder, 0), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_fd_sync(folder), 0);
    CHECK_IS(__wasi_fd_datasync(folder), 0);
    CHECK_IS(__wasi_fd_fdstat_get(folder, &stat), 0);
    CHECK_IS(stat.fs_flags, 0);
    CHECK_IS(stat.fs_rights_base & (__WASI_RIGHTS_FD_SEEK | __WASI_RIGHTS_FD_FILESTAT_SET_SIZE), 0);
    /* The rights that programs expect of every directory. */
    __wasi_rights_t all = __WASI_RIGHTS_PATH_CREATE_DIRECTORY | __WASI_RIGHTS_PATH_CREATE_FILE | __WASI_RIGHTS_PATH_LINK_SOURCE |
                          __WASI_RIGHTS_PATH_LINK_TARGET | __WASI_RIGHTS_PATH_OPEN | __WASI_RIGHTS_FD_READDIR |
                          __WASI_RIGHTS_PATH_READLINK | __WASI_RIGHTS_PATH_RENAME_SOURCE | __WASI_RIGHTS_PATH_RENAME_TARGET |
                          __WASI_RIGHTS_PATH_SYMLINK | __WASI_RIGHTS_PATH_REMOVE_DIRECTORY | __WASI_RIGHTS_PATH_UNLINK_FILE |
                          __WASI_RIGHTS_PATH_FILESTAT_GET | __WASI_RIGHTS_PATH_FILESTAT_SET_TIMES | __WASI_RIGHTS_FD_FILESTAT_GET |
                          __WASI_RIGHTS_FD_FILESTAT_SET_TIMES;
    CHECK_IS(stat.fs_rights_base & all, all);
    all |= __WASI_RIGHTS_FD_DATASYNC | WRITE | __WASI_RIGHTS_FD_FDSTAT_SET_FLAGS | __WASI_RIGHTS_FD_SYNC | __WASI_RIGHTS_FD_ADVISE |
           __WASI_RIGHTS_FD_ALLOCATE | __WASI_RIGHTS_FD_FILESTAT_SET_SIZE | __WASI_RIGHTS_POLL_FD_READWRITE;
    CHECK_IS(stat.fs_rights_inheriting & all, all);
    char name[4];
    CHECK_IS(__wasi_fd_prestat_dir_name(ROOT, (uint8_t *)name, 0), __WASI_ERRNO_NAMETOOLONG);
    CHECK_IS(__wasi_fd_prestat_dir_name(ROOT, (uint8_t *)name, 2), 0);
    CHECK(name[0] == '/');
    CHECK_IS(__wasi_fd_prestat_dir_name(folder, (uint8_t *)name, 2), __WASI_ERRNO_BADF);
}

static void directories_are_opened_to_be_read(void)
{
    __wasi_fd_t opened, file;
    __wasi_fdstat_t stat;
    CHECK_IS(__wasi_fd_fdstat_get(ROOT, &stat), 0);
    CHECK_IS(__wasi_path_open(ROOT, 0, ".", 0, stat.fs_rights_base, stat.fs_rights_inheriting, 0, &opened), 0);
    CHECK_IS(open_at(ROOT, ".", 0, 0, &opened), 0);
    CHECK_IS(open_at(ROOT, ".", __WASI_OFLAGS_DIRECTORY, 0, &opened), 0);
    CHECK_IS(open_at(ROOT, ".", __WASI_OFLAGS_DIRECTORY, READ, &opened), 0);
    CHECK_IS(__wasi_path_open(ROOT, 0, ".", 0, 0, 0, __WASI_FDFLAGS_NONBLOCK, &opened), 0);
    CHECK_IS(open_at(ROOT, ".", __WASI_OFLAGS_DIRECTORY, WRITE, &opened), __WASI_ERRNO_ISDIR);
    CHECK_IS(open_at(ROOT, "missing", 0, 0, &opened), __WASI_ERRNO_NOENT);
    CHECK_IS(open_at(ROOT, "lines", __WASI_OFLAGS_DIRECTORY, 0, &opened), __WASI_ERRNO_NOTDIR);
    CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), 0);
    CHECK_IS(open_at(file, "foo", __WASI_OFLAGS_CREAT, 0, &opened), __WASI_ERRNO_NOTDIR);
    CHECK_IS(open_at(9999, "foo", 0, 0, &opened), __WASI_ERRNO_BADF);
}

static void files_are_opened_for_what_is_asked(void)
{
    __wasi_fd_t read, write, both;
    __wasi_fdstat_t stat;
    __wasi_size_t count;
    char text[100];
    CHECK_IS(open_at(ROOT, "file", __WASI_OFLAGS_CREAT, 0, &read), 0);
    CHECK_IS(__wasi_fd_close(read), 0);
    CHECK_IS(open_at(ROOT, "file", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL, 0, &read), __WASI_ERRNO_EXIST);
    CHECK_IS(open_at(ROOT, "file", 0, __WASI_RIGHTS_FD_READ, &read), 0);
    CHECK_IS(open_at(ROOT, "file", 0, __WASI_RIGHTS_FD_WRITE, &write), 0);
    CHECK_IS(open_at(ROOT, "file", 0, WRITE, &both), 0);
    CHECK_IS(__wasi_fd_fdstat_get(read, &stat), 0);
    CHECK_IS(stat.fs_rights_base & (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_WRITE), __WASI_RIGHTS_FD_READ);
    CHECK_IS(__wasi_fd_fdstat_get(write, &stat), 0);
    CHECK_IS(stat.fs_rights_base & (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_WRITE), __WASI_RIGHTS_FD_WRITE);
    CHECK_IS(write_to(read, "x", &count), __WASI_ERRNO_BADF);
    CHECK_IS(read_from(write, text, 1, &count), __WASI_ERRNO_BADF);
    /* Data written by one descriptor is visible to the others at once. */
    CHECK_IS(write_to(write, "forty bytes", &count), 0);
    CHECK_IS(read_from(read, text, sizeof text, &count), 0);
    CHECK(count == 11 && memcmp(text, "forty bytes", 11) == 0);
    CHECK_IS(read_from(both, text, 6, &count), 0);
    CHECK_IS(write_to(both, "words", &count), 0);
    __wasi_filestat_t filestat;
    CHECK_IS(__wasi_fd_filestat_get(both, &filestat), 0);
    CHECK(filestat.size == 11 && filestat.filetype == __WASI_FILETYPE_REGULAR_FILE && filestat.nlink == 1);
    CHECK_IS(__wasi_fd_allocate(write, 0, 100), __WASI_ERRNO_NOTSUP);
    CHECK_IS(__wasi_fd_allocate(read, 0, 100), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_advise(read, 10, 50, __WASI_ADVICE_DONTNEED), 0);
    CHECK_IS(__wasi_fd_advise(read, 10, 50, 99), __WASI_ERRNO_INVAL);
    CHECK_IS(open_at(ROOT, "file", __WASI_OFLAGS_TRUNC, WRITE, &write), 0);
    CHECK_IS(read_from(write, text, sizeof text, &count), 0);
    CHECK_IS(count, 0);
    /* The name is removed, and another file may get it, while the first one is open. */
    CHECK_IS(__wasi_path_unlink_file(ROOT, "file"), 0);
    CHECK_IS(open_at(ROOT, "file", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL, WRITE, &write), 0);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "file/"), __WASI_ERRNO_NOTDIR);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "file"), 0);
}

static void files_have_places_and_flags(void)
{
    __wasi_fd_t file;
    __wasi_fdstat_t stat;
    __wasi_filesize_t place;
    __wasi_size_t count;
    __wasi_fdflags_t flags = __WASI_FDFLAGS_APPEND | __WASI_FDFLAGS_SYNC;
    CHECK_IS(__wasi_path_open(ROOT, 0, "file", __WASI_OFLAGS_CREAT, WRITE, 0, flags, &file), 0);
    CHECK_IS(__wasi_fd_fdstat_get(file, &stat), 0);
    CHECK_IS(stat.fs_flags, flags);
    CHECK_IS(write_to(file, "0123456789", &count), 0);
    CHECK_IS(__wasi_fd_seek(file, 0, __WASI_WHENCE_SET, &place), 0);
    CHECK_IS(write_to(file, "abcdefghij", &count), 0);
    CHECK_IS(__wasi_fd_tell(file, &place), 0);
    CHECK_IS(place, 20);
    CHECK_IS(__wasi_fd_fdstat_set_flags(file, 0), 0);
    CHECK_IS(__wasi_fd_fdstat_get(file, &stat), 0);
    CHECK_IS(stat.fs_flags & __WASI_FDFLAGS_APPEND, 0);
    CHECK_IS(__wasi_fd_seek(file, -15, __WASI_WHENCE_CUR, &place), 0);
    CHECK_IS(place, 5);
    CHECK_IS(write_to(file, "x", &count), 0);
    CHECK_IS(__wasi_fd_tell(file, &place), 0);
    CHECK_IS(place, 6);
    CHECK_IS(__wasi_fd_seek(file, 1000, __WASI_WHENCE_END, &place), 0);
    CHECK_IS(place, 1020);
    CHECK_IS(__wasi_fd_seek(file, -2000, __WASI_WHENCE_CUR, &place), __WASI_ERRNO_INVAL);
    CHECK_IS(__wasi_fd_seek(file, 0, 3, &place), __WASI_ERRNO_INVAL);
    char text[20];
    __wasi_iovec_t pieces[2] = {{.buf = (uint8_t *)text, .buf_len = 3}, {.buf = (uint8_t *)text + 3, .buf_len = 17}};
    CHECK_IS(__wasi_fd_pread(file, pieces, 2, 0, &count), 0);
    CHECK(count == 20 && memcmp(text, "01234x6789abcdefghij", 20) == 0);
    CHECK_IS(__wasi_fd_pread(file, pieces, 2, 18, &count), 0);
    CHECK_IS(count, 2);
    __wasi_ciovec_t more[2] = {{.buf = (const uint8_t *)"AB", .buf_len = 2}, {.buf = (const uint8_t *)"CD", .buf_len = 2}};
    CHECK_IS(__wasi_fd_pwrite(file, more, 2, 1, &count), 0);
    CHECK_IS(count, 4);
    CHECK_IS(__wasi_fd_tell(file, &place), 0);
    CHECK_IS(place, 1020);
    CHECK_IS(__wasi_fd_pread(file, pieces, 1, 1, &count), 0);
    CHECK(count == 3 && memcmp(text, "ABC", 3) == 0);
    CHECK_IS(__wasi_fd_filestat_set_size(file, 100), 0);
    CHECK_IS(__wasi_fd_seek(file, 0, __WASI_WHENCE_END, &place), 0);
    CHECK_IS(place, 100);
}

/* Counts the entries of a directory with a small buffer, and looks for the first two. */
static int listed(__wasi_fd_t fd)
{
    uint8_t buffer[256];
    __wasi_size_t used;
    __wasi_dircookie_t cookie = 0;
    int count = 0;
    for (;;) {
        if (__wasi_fd_readdir(fd, buffer, sizeof buffer, cookie, &used) != 0)
            return -1;
        for (size_t at = 0; at + sizeof(__wasi_dirent_t) <= used;) {
            __wasi_dirent_t entry;
            memcpy(&entry, buffer + at, sizeof entry);
            at += sizeof entry + entry.d_namlen;
            if (at > used)
                break;
            const char *name = (const char *)buffer + at - entry.d_namlen;
            if (count < 2 && (entry.d_namlen != (__wasi_dirnamlen_t)count + 1 || memcmp(name, "..", count + 1) != 0))
                return -2;
            cookie = entry.d_next;
            count++;
        }
        if (used < sizeof buffer)
            return count;
    }
}

static void directories_are_listed_in_pieces(void)
{
    __wasi_fd_t folder, file;
    char name[16];
    CHECK_IS(__wasi_path_create_directory(ROOT, "many"), 0);
    CHECK_IS(open_at(ROOT, "many", __WASI_OFLAGS_DIRECTORY, 0, &folder), 0);
    CHECK_IS(listed(folder), 2);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "file.%d", i);
        CHECK_IS(open_at(folder, name, __WASI_OFLAGS_CREAT, 0, &file), 0);
        CHECK_IS(__wasi_fd_close(file), 0);
    }
    CHECK_IS(listed(folder), 102);
    CHECK_IS(__wasi_path_remove_directory(ROOT, "many"), __WASI_ERRNO_NOTEMPTY);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "file.%d", i);
        CHECK_IS(__wasi_path_unlink_file(folder, name), 0);
    }
    CHECK_IS(listed(folder), 2);
    /* Removed while it is open, and made again. */
    CHECK_IS(__wasi_path_remove_directory(ROOT, "many/"), 0);
    CHECK_IS(open_at(folder, "file", __WASI_OFLAGS_CREAT, 0, &file), __WASI_ERRNO_NOENT);
    CHECK_IS(__wasi_path_create_directory(ROOT, "many"), 0);
}

static void paths_are_followed_as_they_are_written(void)
{
    __wasi_fd_t file;
    CHECK_IS(__wasi_path_create_directory(ROOT, "dir"), 0);
    CHECK_IS(__wasi_path_create_directory(ROOT, "dir/nested"), 0);
    CHECK_IS(open_at(ROOT, "dir/nested/file", __WASI_OFLAGS_CREAT, 0, &file), 0);
    CHECK_IS(open_at(ROOT, "/dir/nested/file", 0, 0, &file), __WASI_ERRNO_NOTCAPABLE);
    CHECK_IS(open_at(ROOT, "dir/.//nested/../../dir/nested/../nested///./file", 0, 0, &file), 0);
    CHECK_IS(open_at(ROOT, "dir/nested/file/", 0, 0, &file), __WASI_ERRNO_NOTDIR);
    CHECK_IS(open_at(ROOT, "dir/nested///", 0, 0, &file), 0);
    CHECK_IS(open_at(ROOT, "dir/nested/../../../dir/nested/file", 0, 0, &file), __WASI_ERRNO_NOTCAPABLE);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "dir"), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_path_unlink_file(ROOT, "dir/"), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_path_remove_directory(ROOT, "dir/nested/file"), __WASI_ERRNO_NOTDIR);
    CHECK_IS(__wasi_path_remove_directory(ROOT, "dir/nested/file/"), __WASI_ERRNO_NOTDIR);
    CHECK_IS(__wasi_path_rename(ROOT, "dir/nested/", ROOT, "target"), 0);
    CHECK_IS(__wasi_path_rename(ROOT, "target", ROOT, "source/"), 0);
    CHECK_IS(__wasi_path_rename(ROOT, "source/", ROOT, "target/"), 0);
    CHECK_IS(__wasi_path_rename(ROOT, "dir", ROOT, "target"), __WASI_ERRNO_NOTEMPTY);
    CHECK_IS(__wasi_path_rename(ROOT, "dir", ROOT, "target/file"), __WASI_ERRNO_NOTDIR);
    CHECK_IS(__wasi_path_rename(ROOT, "target/file", ROOT, "dir"), __WASI_ERRNO_ISDIR);
    CHECK_IS(__wasi_path_rename(ROOT, "target/file", ROOT, "lines"), 0);
    CHECK_IS(__wasi_path_rename(ROOT, "dir", ROOT, "target"), 0);
    CHECK_IS(open_at(ROOT, "dir", __WASI_OFLAGS_DIRECTORY, 0, &file), __WASI_ERRNO_NOENT);
    CHECK_IS(__wasi_path_remove_directory(ROOT, "target"), 0);
    __wasi_filestat_t stat;
    CHECK_IS(__wasi_path_filestat_get(ROOT, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, "lines", &stat), 0);
    CHECK(stat.filetype == __WASI_FILETYPE_REGULAR_FILE && stat.size == 0);
}

static void what_there_is_not_is_not_supported(void)
{
    __wasi_fd_t file;
    CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), 0);
    CHECK_IS(__wasi_fd_fdstat_set_rights(file, 0, 0), __WASI_ERRNO_NOTSUP);
    CHECK_IS(__wasi_fd_fdstat_set_rights(1, 0, 0), __WASI_ERRNO_NOTSUP);
    CHECK_IS(__wasi_fd_fdstat_set_rights(9999, 0, 0), __WASI_ERRNO_BADF);
    CHECK_IS(__wasi_fd_filestat_set_times(file, 0, 0, 0), __WASI_ERRNO_NOTSUP);
    CHECK_IS(__wasi_path_symlink("lines", ROOT, "link"), __WASI_ERRNO_NOTSUP);
    CHECK_IS(__wasi_path_link(ROOT, 0, "lines", ROOT, "link"), __WASI_ERRNO_NOTSUP);
    __wasi_size_t count;
    CHECK_IS(__wasi_path_readlink(ROOT, "lines", (uint8_t *)problem, 0, &count), __WASI_ERRNO_INVAL);
}

/* Far more than the calls of one turn may move. */
static uint8_t bytes[1024 * 1024];

static void others_have_their_turn_and_random_bytes_come(void)
{
    uint8_t any = 0;
    CHECK_IS(__wasi_sched_yield(), 0);
    CHECK_IS(__wasi_random_get(bytes, sizeof bytes), 0);
    for (size_t i = sizeof bytes - 64; i < sizeof bytes; i++)
        any |= bytes[i];
    CHECK(any != 0);
    for (int times = 0; times < 1000; times++)
        CHECK_IS(__wasi_random_get(bytes, 1024), 0);
    CHECK_IS(__wasi_random_get(bytes, 0), 0);
    CHECK_IS(__wasi_random_get((uint8_t *)-16, 17), __WASI_ERRNO_FAULT);
}

static __wasi_subscription_t clock_of(__wasi_userdata_t userdata, uint32_t clock, __wasi_timestamp_t timeout, uint16_t flags)
{
    return (__wasi_subscription_t){
        .userdata = userdata,
        .u = {.tag = __WASI_EVENTTYPE_CLOCK, .u.clock = {.id = (__wasi_clockid_t){clock}, .timeout = timeout, .flags = flags}},
    };
}

static __wasi_subscription_t fd_of(__wasi_userdata_t userdata, uint8_t tag, __wasi_fd_t fd)
{
    return (__wasi_subscription_t){.userdata = userdata, .u = {.tag = tag, .u.fd_read.file_descriptor = fd}};
}

static void clocks_are_waited_for(void)
{
    const __wasi_timestamp_t hour = 3600000000000, ms = 1000000;
    __wasi_timestamp_t before, after, date;
    __wasi_event_t events[4];
    __wasi_size_t count;
    CHECK_IS(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &before), 0);
    __wasi_subscription_t soon[3] = {clock_of(1, 1, hour, 0), clock_of(2, 0, 3 * ms, 0), clock_of(3, 1, before + hour, 1)};
    CHECK_IS(__wasi_poll_oneoff(soon, events, 3, &count), 0);
    CHECK_IS(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &after), 0);
    CHECK(count == 1 && events[0].userdata == 2 && events[0].error == 0 && events[0].type == __WASI_EVENTTYPE_CLOCK);
    CHECK(after - before >= 3 * ms);
    CHECK_IS(__wasi_clock_time_get(__WASI_CLOCKID_REALTIME, 1, &date), 0);
    __wasi_subscription_t dates[3] = {clock_of(4, 0, date + 2 * ms, 1), clock_of(5, 0, date + hour, 1), clock_of(6, 1, before, 1)};
    CHECK_IS(__wasi_poll_oneoff(dates, events, 2, &count), 0);
    CHECK(count == 1 && events[0].userdata == 4);
    CHECK_IS(__wasi_poll_oneoff(dates, events, 3, &count), 0);
    CHECK(count == 2 && events[0].userdata == 4 && events[1].userdata == 6);
    __wasi_subscription_t unknown = clock_of(7, 3, ms, 0);
    CHECK_IS(__wasi_poll_oneoff(&unknown, events, 1, &count), 0);
    CHECK(count == 1 && events[0].error == __WASI_ERRNO_INVAL);
    CHECK_IS(__wasi_poll_oneoff(soon, events, 0, &count), __WASI_ERRNO_INVAL);
    CHECK_IS(__wasi_poll_oneoff((__wasi_subscription_t *)-8, events, 1, &count), __WASI_ERRNO_FAULT);
}

static void files_and_streams_are_always_ready(void)
{
    __wasi_fd_t file, folder;
    __wasi_event_t events[6];
    __wasi_size_t count;
    CHECK_IS(open_at(ROOT, "lines", 0, READ, &file), 0);
    CHECK_IS(open_at(ROOT, "folder", __WASI_OFLAGS_DIRECTORY, 0, &folder), 0);
    __wasi_filesize_t place;
    CHECK_IS(__wasi_fd_seek(file, 3, __WASI_WHENCE_SET, &place), 0);
    __wasi_subscription_t asked[6] = {
        fd_of(1, __WASI_EVENTTYPE_FD_READ, file), fd_of(2, __WASI_EVENTTYPE_FD_WRITE, file),
        fd_of(3, __WASI_EVENTTYPE_FD_READ, 0),    fd_of(4, __WASI_EVENTTYPE_FD_WRITE, 1),
        fd_of(5, __WASI_EVENTTYPE_FD_READ, 9999), fd_of(6, __WASI_EVENTTYPE_FD_READ, folder),
    };
    CHECK_IS(__wasi_poll_oneoff(asked, events, 6, &count), 0);
    CHECK_IS(count, 6);
    uint16_t errors[6] = {0, __WASI_ERRNO_BADF, 0, 0, __WASI_ERRNO_BADF, __WASI_ERRNO_ISDIR};
    for (int i = 0; i < 6; i++) {
        CHECK_IS(events[i].userdata, i + 1);
        CHECK_IS(events[i].type, asked[i].u.tag);
        CHECK_IS(events[i].error, errors[i]);
    }
    CHECK_IS(events[0].fd_readwrite.nbytes, 5);
    CHECK_IS(events[2].fd_readwrite.flags, __WASI_EVENTRWFLAGS_FD_READWRITE_HANGUP);
    CHECK(events[3].fd_readwrite.nbytes > 0);
    /* A clock that is not due is not waited for then. */
    asked[1] = clock_of(7, 1, 3600000000000, 0);
    CHECK_IS(__wasi_poll_oneoff(asked, events, 2, &count), 0);
    CHECK(count == 1 && events[0].userdata == 1);
}

static const struct check_case cases[] = {
    {"a-descriptor-takes-the-place-of-another", a_descriptor_takes_the_place_of_another},
    {"streams-take-the-place-of-files-and-files-of-streams", streams_take_the_place_of_files_and_files_of_streams},
    {"a-stream-goes-on-by-another-number", a_stream_goes_on_by_another_number},
    {"the-root-is-closed", the_root_is_closed},
    {"a-directory-takes-the-place-of-the-root", a_directory_takes_the_place_of_the_root},
    {"streams-have-no-place", streams_have_no_place},
    {"directories-have-no-bytes", directories_have_no_bytes},
    {"directories-are-opened-to-be-read", directories_are_opened_to_be_read},
    {"files-are-opened-for-what-is-asked", files_are_opened_for_what_is_asked},
    {"files-have-places-and-flags", files_have_places_and_flags},
    {"directories-are-listed-in-pieces", directories_are_listed_in_pieces},
    {"paths-are-followed-as-they-are-written", paths_are_followed_as_they_are_written},
    {"what-there-is-not-is-not-supported", what_there_is_not_is_not_supported},
    {"others-have-their-turn-and-random-bytes-come", others_have_their_turn_and_random_bytes_come},
    {"clocks-are-waited-for", clocks_are_waited_for},
    {"files-and-streams-are-always-ready", files_and_streams_are_always_ready},
};

static void answer(pinion_packet *packet)
{
    check_answer(packet, cases, sizeof cases / sizeof *cases);
}

PINION_FUNCTION(.packet = answer);

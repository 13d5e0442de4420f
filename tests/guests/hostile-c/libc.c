/* Streams, files and clocks of a C program with wasi-libc. Each case runs in an instance of its own, like a program of its own. */
#define _GNU_SOURCE

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void streams_have_no_place(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        char byte = 0;
        struct stat stat;
        CHECK_FAILS(lseek(fd, 0, SEEK_CUR), ESPIPE);
        CHECK_FAILS(pread(fd, &byte, 1, 0), ESPIPE);
        CHECK_FAILS(pwrite(fd, &byte, 1, 0), ESPIPE);
        CHECK_FAILS(fsync(fd), EINVAL);
        CHECK_FAILS(fdatasync(fd), EINVAL);
        CHECK_FAILS(ftruncate(fd, 0), EINVAL);
        CHECK_IS(posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL), ESPIPE);
        CHECK_IS(fstat(fd, &stat), 0);
        CHECK(S_ISCHR(stat.st_mode));
        CHECK_IS(isatty(fd), 1);
        CHECK_IS(fcntl(fd, F_GETFL) & O_ACCMODE, fd == 0 ? O_RDONLY : O_WRONLY);
        CHECK_IS(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        CHECK_IS(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        CHECK_IS(fcntl(fd, F_SETFL, 0), 0);
        CHECK_IS(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    }
    char byte = 0;
    CHECK_IS(read(0, &byte, 1), 0);
    CHECK_FAILS(write(0, &byte, 1), EBADF);
    CHECK_FAILS(read(1, &byte, 1), EBADF);
    CHECK_FAILS(read(2, &byte, 1), EBADF);
    CHECK_IS(ftell(stdin), -1);
    CHECK_IS(errno, ESPIPE);
    CHECK_IS(feof(stdin), 0);
    CHECK_IS(getchar(), EOF);
    CHECK(feof(stdin));
}

static void streams_are_closed_once(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        CHECK_IS(close(fd), 0);
        CHECK_FAILS(close(fd), EBADF);
        CHECK_FAILS(fsync(fd), EBADF);
        CHECK_FAILS(fcntl(fd, F_GETFL), EBADF);
        CHECK_FAILS(lseek(fd, 0, SEEK_CUR), EBADF);
    }
    char byte = 'x';
    CHECK_FAILS(read(0, &byte, 1), EBADF);
    CHECK_FAILS(write(1, &byte, 1), EBADF);
}

static void standard_input_is_reopened(void)
{
    char line[20];
    for (int times = 0; times < 100; times++) {
        CHECK(freopen("lines", "r", stdin) == stdin);
        CHECK_IS(fileno(stdin), 0);
        CHECK_IS(isatty(0), 0);
        CHECK(fgets(line, sizeof line, stdin) && strcmp(line, "one\n") == 0);
        CHECK(scanf("%19s", line) == 1 && strcmp(line, "two") == 0);
        CHECK_IS(ftell(stdin), 7);
        CHECK_IS(lseek(0, 0, SEEK_SET), 0);
        CHECK_IS(fsync(0), 0);
    }
    errno = 0;
    CHECK(freopen("missing", "r", stdin) == NULL);
    CHECK_IS(errno, ENOENT);
}

static void standard_output_is_reopened(void)
{
    char text[40];
    printf("to the log\n");
    CHECK(freopen("out", "w", stdout) == stdout);
    printf("to a file, %d\n", 1);
    CHECK_IS(fflush(stdout), 0);
    CHECK(freopen("out", "a", stdout) == stdout);
    printf("and %d more\n", 2);
    CHECK_IS(fclose(stdout), 0);
    FILE *out = fopen("out", "r");
    CHECK(out != NULL);
    CHECK_IS(fread(text, 1, sizeof text, out), 24);
    CHECK(memcmp(text, "to a file, 1\nand 2 more\n", 24) == 0);
    CHECK_IS(fclose(out), 0);
    CHECK(freopen("errors", "w", stderr) == stderr);
    fprintf(stderr, "an error");
    CHECK_IS(fclose(stderr), 0);
    struct stat stat;
    CHECK(lstat("errors", &stat) == 0 && stat.st_size == 8);
}

static void files_have_places(void)
{
    char bytes[8];
    FILE *file = fopen("digits", "r");
    CHECK(file != NULL);
    CHECK_IS(fread(bytes, 1, 4, file), 4);
    fflush(file);
    CHECK_IS(lseek(fileno(file), 0, SEEK_CUR), 4);
    CHECK(fread(bytes, 1, 1, file) == 1 && bytes[0] == '4');
    fflush(file);
    CHECK_IS(lseek(fileno(file), 0, SEEK_CUR), 5);
    CHECK_IS(lseek(fileno(file), 0, SEEK_END), 8);
    CHECK_IS(lseek(fileno(file), -8, SEEK_END), 0);
    CHECK_FAILS(lseek(fileno(file), -1, SEEK_SET), EINVAL);
    CHECK_FAILS(lseek(fileno(file), 0, 9), EINVAL);
    CHECK(pread(fileno(file), bytes, 3, 2) == 3 && memcmp(bytes, "234", 3) == 0);
    CHECK_IS(pread(fileno(file), bytes, 8, 6), 2);
    CHECK_IS(pread(fileno(file), bytes, 8, 100), 0);
    CHECK_IS(lseek(fileno(file), 0, SEEK_CUR), 0);
    CHECK_FAILS(pwrite(fileno(file), bytes, 1, 0), EBADF);
    CHECK_IS(isatty(fileno(file)), 0);
    CHECK_IS(fclose(file), 0);
}

static void files_are_written(void)
{
    char bytes[8] = "abcdefg";
    int fd = open("made", O_CREAT | O_EXCL | O_RDWR, 0666);
    CHECK(fd > 2);
    CHECK_FAILS(open("made", O_CREAT | O_EXCL | O_RDWR, 0666), EEXIST);
    CHECK_IS(pwrite(fd, bytes, 4, 2), 4);
    CHECK_IS(lseek(fd, 0, SEEK_CUR), 0);
    CHECK_IS(lseek(fd, 0, SEEK_END), 6);
    CHECK(pread(fd, bytes, 8, 0) == 6 && memcmp(bytes, "\0\0abcd", 6) == 0);
    CHECK_IS(ftruncate(fd, 3), 0);
    CHECK_IS(lseek(fd, 0, SEEK_END), 3);
    CHECK_IS(ftruncate(fd, 30), 0);
    CHECK_IS(pread(fd, bytes, 8, 25), 5);
    CHECK_IS(fsync(fd), 0);
    CHECK_IS(fdatasync(fd), 0);
    CHECK_IS(posix_fadvise(fd, 0, 10, POSIX_FADV_WILLNEED), 0);
    CHECK_IS(close(fd), 0);
    fd = open("made", O_WRONLY | O_TRUNC | O_APPEND);
    CHECK(fd > 2);
    CHECK_IS(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND), O_WRONLY | O_APPEND);
    CHECK_IS(write(fd, bytes, 2), 2);
    CHECK_IS(lseek(fd, 0, SEEK_SET), 0);
    CHECK_IS(write(fd, bytes, 2), 2);
    CHECK_IS(lseek(fd, 0, SEEK_CUR), 4);
    CHECK_IS(pwrite(fd, bytes, 3, 0), 3);
    CHECK_IS(lseek(fd, 0, SEEK_CUR), 4);
    CHECK_IS(fcntl(fd, F_SETFL, 0), 0);
    CHECK_IS(lseek(fd, 1, SEEK_SET), 1);
    CHECK_IS(write(fd, bytes, 1), 1);
    CHECK_IS(lseek(fd, 0, SEEK_CUR), 2);
    CHECK_FAILS(read(fd, bytes, 1), EBADF);
    /* The file stays usable without a name. */
    CHECK_IS(unlink("made"), 0);
    CHECK_IS(write(fd, bytes, 8), 8);
    CHECK_FAILS(access("made", F_OK), ENOENT);
    CHECK_IS(close(fd), 0);
    CHECK_FAILS(write(fd, bytes, 1), EBADF);
}

static void directories_are_listed(void)
{
    int fd = open("folder", O_RDONLY | O_DIRECTORY);
    CHECK(fd > 2);
    DIR *folder = fdopendir(fd);
    CHECK(folder != NULL);
    ino_t numbers[2] = {0, 0};
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat stat;
        if (entry->d_name[0] == '.')
            continue;
        CHECK(strcmp(entry->d_name, "a") == 0 || strcmp(entry->d_name, "b") == 0);
        CHECK_IS(fstatat(fd, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW), 0);
        CHECK(S_ISREG(stat.st_mode) && stat.st_ino == entry->d_ino && stat.st_nlink == 1);
        numbers[entry->d_name[0] - 'a'] = entry->d_ino;
    }
    CHECK(numbers[0] != 0 && numbers[1] != 0 && numbers[0] != numbers[1]);
    CHECK_IS(closedir(folder), 0);
    CHECK(opendir("folder/a") == NULL);
    CHECK_IS(errno, ENOTDIR);
    CHECK_FAILS(open("folder", O_RDWR), EISDIR);
    char byte;
    fd = open("folder", O_RDONLY);
    CHECK_FAILS(read(fd, &byte, 1), EISDIR);
    CHECK_IS(close(fd), 0);
}

static void names_are_changed(void)
{
    CHECK_IS(mkdir("x", 0777), 0);
    CHECK_FAILS(mkdir("x", 0777), EEXIST);
    CHECK_IS(mkdir("x/y", 0777), 0);
    CHECK_FAILS(rmdir("x"), ENOTEMPTY);
    CHECK_FAILS(unlink("x"), EISDIR);
    CHECK_FAILS(rmdir("digits"), ENOTDIR);
    CHECK_FAILS(rename("x", "x/y/z"), EINVAL);
    CHECK_IS(rename("x/y", "y"), 0);
    CHECK_IS(rename("y", "x"), 0);
    CHECK_FAILS(rename("digits", "x"), EISDIR);
    CHECK_FAILS(rename("x", "digits"), ENOTDIR);
    CHECK_IS(rename("digits", "x/digits"), 0);
    CHECK_FAILS(open("digits", O_RDONLY), ENOENT);
    CHECK_FAILS(open("x/digits/", O_RDONLY), ENOTDIR);
    CHECK_FAILS(open("x/digits/more", O_RDONLY), ENOTDIR);
    CHECK_IS(unlink("x/digits"), 0);
    CHECK_IS(rmdir("x/"), 0);
    errno = 0;
    CHECK(fopen("../secret", "r") == NULL);
    CHECK(errno == ENOTCAPABLE || errno == ENOENT);
}

static void clocks_go_on(void)
{
    clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME};
    for (int i = 0; i < 2; i++) {
        struct timespec step, before, after;
        CHECK_IS(clock_getres(clocks[i], &step), 0);
        CHECK(step.tv_sec > 0 || step.tv_nsec > 0);
        CHECK_IS(clock_gettime(clocks[i], &before), 0);
        CHECK_IS(clock_gettime(clocks[i], &after), 0);
        CHECK(after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec >= before.tv_nsec));
    }
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void the_date_is_todays(void)
{
    /* The date at which this was written. */
    CHECK(time(NULL) > 1760000000);
    CHECK(llabs(now_ns(CLOCK_REALTIME) / 1000000000 - time(NULL)) <= 1);
    time_t now = time(NULL);
    struct tm *date = gmtime(&now);
    CHECK(date && date->tm_year >= 125);
    int64_t before = now_ns(CLOCK_MONOTONIC);
    CHECK(before < now_ns(CLOCK_REALTIME));
}

static void sleeps_take_their_time(void)
{
    int64_t before = now_ns(CLOCK_MONOTONIC);
    struct timespec ms = {.tv_nsec = 2000000};
    CHECK_IS(nanosleep(&ms, NULL), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - before >= 2000000);
    CHECK_IS(usleep(2000), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - before >= 4000000);
    int64_t until = now_ns(CLOCK_REALTIME) + 2000000;
    struct timespec date = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    CHECK_IS(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &date, NULL), 0);
    CHECK(now_ns(CLOCK_REALTIME) >= until);
    CHECK_IS(sleep(0), 0);
    before = now_ns(CLOCK_MONOTONIC);
    CHECK_IS(poll(NULL, 0, 2), 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - before >= 2000000);
}

static void files_are_ready(void)
{
    struct pollfd asked[2] = {{.fd = open("lines", O_RDONLY), .events = POLLIN}, {.fd = 1, .events = POLLOUT}};
    CHECK_IS(poll(asked, 2, 3600000), 2);
    CHECK(asked[0].revents == POLLIN && asked[1].revents == POLLOUT);
}

static void random_bytes_come(void)
{
    unsigned char bytes[256] = {0}, any = 0;
    CHECK_IS(getentropy(bytes, sizeof bytes), 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        any |= bytes[i];
    CHECK(any != 0);
}

/* For a stage that was deployed without files. */
static void without_files_streams_are_all_there_is(void)
{
    struct stat stat;
    char byte = 0;
    CHECK_FAILS(fsync(3), EBADF);
    CHECK_FAILS(fstat(3, &stat), EBADF);
    CHECK_FAILS(read(4, &byte, 1), EBADF);
    CHECK_IS(fstat(2, &stat), 0);
    streams_have_no_place();
}

static const struct check_case cases[] = {
    {"streams-have-no-place", streams_have_no_place},
    {"streams-are-closed-once", streams_are_closed_once},
    {"standard-input-is-reopened", standard_input_is_reopened},
    {"standard-output-is-reopened", standard_output_is_reopened},
    {"files-have-places", files_have_places},
    {"files-are-written", files_are_written},
    {"directories-are-listed", directories_are_listed},
    {"names-are-changed", names_are_changed},
    {"clocks-go-on", clocks_go_on},
    {"the-date-is-todays", the_date_is_todays},
    {"sleeps-take-their-time", sleeps_take_their_time},
    {"files-are-ready", files_are_ready},
    {"random-bytes-come", random_bytes_come},
    {"without-files-streams-are-all-there-is", without_files_streams_are_all_there_is},
};

static int prepare(const uint8_t *config, size_t len)
{
    if (len == 5 && memcmp(config, "close", 5) == 0)
        fclose(stdin);
    return 0;
}

static void answer(pinion_packet *packet)
{
    check_answer(packet, cases, sizeof cases / sizeof *cases);
}

PINION_FUNCTION(.init = prepare, .packet = answer);

/*
 * Measures how long Linux takes until a new process runs.
 *
 *   process-start fork-exec CHILD COUNT CORE CORE    fork and exec of CHILD, until its main runs
 *   process-start spawn     CHILD COUNT CORE CORE    the same by posix_spawn, which does not copy page tables
 *   process-start fork-faults  -  COUNT CORE CORE    fork, until the child has written to 8 pages that it shared with its parent
 *
 * Processes are started one after the other: each when the previous one has ended. The child notes the time and writes it to a pipe. Prints
 * a time in nanoseconds per line, of each process started after a number of them that are not counted.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 50
#define PAGES 8
#define PAGE_BYTES 4096
/* The descriptor that the child writes to. */
#define TOLD 3

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void stay_on(int first, int second)
{
	cpu_set_t cores;
	CPU_ZERO(&cores);
	CPU_SET(first, &cores);
	CPU_SET(second, &cores);
	if (sched_setaffinity(0, sizeof cores, &cores) != 0)
		fail("sched_setaffinity");
}

static pid_t fork_exec(char *child, volatile char *pages)
{
	(void)pages;
	char *arguments[] = { child, NULL }, *environment[] = { NULL };
	pid_t pid = fork();
	if (pid == 0) {
		execve(child, arguments, environment);
		_exit(127);
	}
	return pid;
}

static pid_t spawn(char *child, volatile char *pages)
{
	(void)pages;
	char *arguments[] = { child, NULL }, *environment[] = { NULL };
	pid_t pid;
	return posix_spawn(&pid, child, NULL, NULL, arguments, environment) == 0 ? pid : -1;
}

static pid_t fork_faults(char *child, volatile char *pages)
{
	(void)child;
	pid_t pid = fork();
	if (pid == 0) {
		for (int page = 0; page < PAGES; page++)
			pages[page * PAGE_BYTES] = 2;
		int64_t now = now_ns();
		_exit(write(TOLD, &now, sizeof now) == sizeof now ? 0 : 1);
	}
	return pid;
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "see the head of process_start.c\n");
		return 2;
	}
	pid_t (*start)(char *, volatile char *);
	if (strcmp(argv[1], "fork-exec") == 0)
		start = fork_exec;
	else if (strcmp(argv[1], "spawn") == 0)
		start = spawn;
	else
		start = fork_faults;
	int count = atoi(argv[3]);
	stay_on(atoi(argv[4]), atoi(argv[5]));
	int64_t *took = calloc(count, sizeof *took);
	char *pages = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ends[2];
	if (took == NULL || pages == MAP_FAILED || pipe(ends) != 0)
		fail("memory and a pipe");
	int heard = fcntl(ends[0], F_DUPFD_CLOEXEC, 10);
	if (heard < 0 || dup2(ends[1], TOLD) != TOLD)
		fail("the pipe");
	memset(pages, 1, PAGES * PAGE_BYTES);
	for (int number = -WARM_UP; number < count; number++) {
		int64_t before = now_ns(), ran;
		pid_t pid = start(argv[2], pages);
		if (pid < 0)
			fail(argv[1]);
		if (read(heard, &ran, sizeof ran) != sizeof ran)
			fail("what the child says");
		int status;
		if (waitpid(pid, &status, 0) != pid || status != 0) {
			fprintf(stderr, "a child ended with %d\n", status);
			return 2;
		}
		if (number >= 0)
			took[number] = ran - before;
	}
	for (int number = 0; number < count; number++)
		printf("%lld\n", (long long)took[number]);
	return 0;
}

/*
 * Functions as resident processes: each waits for a datagram on a UDP socket of its own, and answers it in shared memory.
 *
 *   resident-processes COUNT CALLS SECONDS WINDOW CORE CORE
 *
 * The dispatcher is on the first core, and all processes are on the second. First CALLS of them, picked at random, are called one after the
 * other: from before sendto until the dispatcher has read the answer. Each time is printed in nanoseconds, one per line. Then, for so many
 * SECONDS, WINDOW calls are in flight at a time, and `SECONDS-IN-NS COUNT` is printed last. What a process receives is checked.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A process's own data, and the dispatcher's view of it. */
struct function {
	/* The number of the last call that was answered: the answer. */
	_Atomic uint64_t served;
	uint64_t called;
	struct sockaddr_in address;
	char pad[32];
};

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

static void stay_on(int core)
{
	cpu_set_t cores;
	CPU_ZERO(&cores);
	CPU_SET(core, &cores);
	if (sched_setaffinity(0, sizeof cores, &cores) != 0)
		fail("sched_setaffinity");
}

static uint64_t next_random(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void serve(int own, struct function *function)
{
	for (;;) {
		uint64_t call;
		ssize_t len = recv(own, &call, sizeof call, 0);
		uint64_t served = atomic_load_explicit(&function->served, memory_order_relaxed);
		if (len != sizeof call || call != served + 1)
			_exit(1);
		atomic_store_explicit(&function->served, call, memory_order_release);
	}
}

static void start(struct function *function, pid_t parent, int core)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof own;
	int service = socket(AF_INET, SOCK_DGRAM, 0);
	if (service < 0 || bind(service, (struct sockaddr *)&own, len) != 0 || getsockname(service, (struct sockaddr *)&own, &len) != 0)
		fail("a socket");
	function->address = own;
	pid_t pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		stay_on(core);
		serve(service, function);
	}
	close(service);
}

static void call(int from, struct function *function)
{
	uint64_t number = ++function->called;
	if (sendto(from, &number, sizeof number, 0, (struct sockaddr *)&function->address, sizeof function->address) != sizeof number)
		fail("sendto");
}

static int is_served(struct function *function)
{
	return atomic_load_explicit(&function->served, memory_order_acquire) == function->called;
}

static void await(struct function *function)
{
	int64_t start = now_ns();
	while (!is_served(function))
		if (now_ns() - start > 10000000000LL) {
			fprintf(stderr, "a process does not answer\n");
			exit(2);
		}
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "see the head of resident_processes.c\n");
		return 2;
	}
	uint64_t count = strtoul(argv[1], NULL, 10), calls = strtoul(argv[2], NULL, 10), window = strtoul(argv[4], NULL, 10);
	int64_t time_ns = strtoul(argv[3], NULL, 10) * 1000000000LL;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN);
	struct function *functions =
		mmap(NULL, count * sizeof *functions, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct function **under_way = calloc(window, sizeof *under_way);
	int64_t *took = calloc(calls, sizeof *took);
	if (functions == MAP_FAILED || under_way == NULL || took == NULL)
		fail("memory");
	pid_t parent = getpid();
	for (uint64_t at = 0; at < count; at++)
		start(&functions[at], parent, atoi(argv[6]));
	stay_on(atoi(argv[5]));
	int from = socket(AF_INET, SOCK_DGRAM, 0);
	if (from < 0)
		fail("a socket");
	/* All processes run once before, so that their pages are resident. */
	for (uint64_t at = 0; at < count; at++) {
		call(from, &functions[at]);
		await(&functions[at]);
	}
	for (uint64_t at = 0; at < calls; at++) {
		struct function *function = &functions[next_random() % count];
		int64_t called = now_ns();
		call(from, function);
		await(function);
		took[at] = now_ns() - called;
	}
	uint64_t served = 0;
	int64_t begun = now_ns(), now = begun;
	while (now - begun < time_ns) {
		for (uint64_t at = 0; at < window; at++) {
			if (under_way[at] != NULL && !is_served(under_way[at]))
				continue;
			served += under_way[at] != NULL;
			do
				under_way[at] = &functions[next_random() % count];
			while (!is_served(under_way[at]));
			call(from, under_way[at]);
		}
		now = now_ns();
	}
	for (uint64_t at = 0; at < calls; at++)
		printf("%lld\n", (long long)took[at]);
	printf("%lld %llu\n", (long long)(now - begun), (unsigned long long)served);
	return 0;
}

/*
 * A UDP server that starts a process for each client: the child echoes the datagram and ends.
 *
 *   process-per-client COUNT CORE CORE
 *
 * Prints the port it has on the loopback interface. A datagram begins with its client's number, below COUNT, in the machine's byte order.
 * An answer's time runs from the return of recvfrom in the server until the return of sendto in the child. After a datagram without a number it
 * waits for its children and prints, per line, a client's number and its time in nanoseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

static int open_socket(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof own;
	int room = 4 << 20;
	int service = socket(AF_INET, SOCK_DGRAM, 0);
	if (service < 0 || bind(service, (struct sockaddr *)&own, len) != 0 || getsockname(service, (struct sockaddr *)&own, &len) != 0)
		fail("a socket");
	setsockopt(service, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	printf("%u\n", ntohs(own.sin_port));
	fflush(stdout);
	return service;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "see the head of process_per_client.c\n");
		return 2;
	}
	uint32_t count = strtoul(argv[1], NULL, 10);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	stay_on(atoi(argv[2]), atoi(argv[3]));
	/* The kernel reaps the children, so no process waits for them. */
	signal(SIGCHLD, SIG_IGN);
	/* The children write here. Each page is resident before the first child is started. */
	int64_t *took = mmap(NULL, count * sizeof *took, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (took == MAP_FAILED)
		fail("mmap");
	int service = open_socket();
	for (;;) {
		char datagram[2048];
		struct sockaddr_in client;
		socklen_t client_len = sizeof client;
		ssize_t len = recvfrom(service, datagram, sizeof datagram, 0, (struct sockaddr *)&client, &client_len);
		int64_t received = now_ns();
		uint32_t number;
		if (len < 0 && errno == EINTR)
			continue;
		if (len < (ssize_t)sizeof number)
			break;
		memcpy(&number, datagram, sizeof number);
		if (number >= count)
			continue;
		pid_t pid = fork();
		if (pid == 0) {
			ssize_t sent = sendto(service, datagram, len, 0, (struct sockaddr *)&client, client_len);
			took[number] = now_ns() - received;
			_exit(sent == len ? 0 : 1);
		}
		if (pid < 0)
			fail("fork");
	}
	while (wait(NULL) >= 0 || errno == EINTR)
		;
	for (uint32_t number = 0; number < count; number++)
		if (took[number] != 0)
			printf("%u %lld\n", number, (long long)took[number]);
	return 0;
}

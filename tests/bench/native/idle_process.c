/*
 * A service that waits for its client: it has a UDP socket, and sleeps in recv. Before that it writes a byte to its standard output. It
 * ends with its parent.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char datagram[2048];
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		return 2;
	int service = socket(AF_INET, SOCK_DGRAM, 0);
	if (service < 0 || bind(service, (struct sockaddr *)&any, sizeof any) != 0 || write(1, "\n", 1) != 1)
		return 2;
	for (;;)
		recv(service, datagram, sizeof datagram, 0);
}

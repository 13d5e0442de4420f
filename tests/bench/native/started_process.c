/* The smallest program: notes the time as soon as its main runs, and writes it to descriptor 3. */
#include <stdint.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t ns = now.tv_sec * 1000000000LL + now.tv_nsec;
	return write(3, &ns, sizeof ns) == sizeof ns ? 0 : 1;
}

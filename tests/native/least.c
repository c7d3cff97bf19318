// SPDX-License-Identifier: GPL-2.0
/*
 * least [-c] TEST SIZE SECONDS - measure the least work that any software device has to do.
 *
 * TEST is one of rbench's. Of a bandwidth test that is, for each message, a system call that does
 * nothing and two copies of SIZE octets: from a buffer into memory that TCP owns, which stays in
 * the processor's cache, and from there into another buffer. With -c each copy has its CRC32c
 * computed as well, before the octets leave that memory and when they have arrived. The buffers are as long as rbench's
 * with 64 requests. Of a latency test it is a system call that does nothing and, unless the peer
 * takes no part (reads and atomics), the switch to the other process, by sched_yield() as in
 * rbench; an operation is half of a round trip, and SIZE is not used.
 *
 * Prints "MiB/s FIGURE" or "us FIGURE". The clock is read twice a run. Runs become longer until one
 * takes SECONDS.
 */
#define _GNU_SOURCE
#include <isa-l/crc.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RING_MIN (256u << 10) /* of a buffer, in octets */
#define RING_MAX (4u << 20)
#define TCP_MEM (64u << 10) /* memory between the copies, reused at once */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *memory(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	memset(at, 1, len);
	return at;
}

static void call(void)
{
	syscall(SYS_getppid);
}

static char *from, *between, *to;
static int with_crc;
static unsigned int sums;
static size_t ring;

static void messages(uint64_t n, size_t size)
{
	size_t at = 0, done, piece;

	for (; n; n--) {
		call();
		if (at + size > ring)
			at = 0;
		for (done = 0; done < size; done += piece) {
			piece = size - done < TCP_MEM ? size - done : TCP_MEM;
			memcpy(between, from + at + done, piece);
			__asm__ volatile("" : : "r"(between) : "memory");
			if (with_crc) {
				sums += crc32_iscsi((unsigned char *)between, piece, ~0u);
				sums += crc32_iscsi((unsigned char *)between, piece, ~0u);
			}
			memcpy(to + at + done, between, piece);
			__asm__ volatile("" : : "r"(to) : "memory");
		}
		at += size;
	}
}

static void calls(uint64_t n, size_t size)
{
	(void)size;
	for (; n; n--)
		call();
}

/* The last number that each process has sent. */
static volatile uint64_t *sent;

static void ping_pong(uint64_t n, int me, uint64_t base)
{
	uint64_t i;

	for (i = base + 1; i <= base + n; i++) {
		if (me) /* answers */
			while (sent[0] < i)
				sched_yield();
		call();
		sent[me] = i;
		if (!me)
			while (sent[1] < i)
				sched_yield();
	}
}

static void switches(uint64_t n, size_t size)
{
	static uint64_t base;

	(void)size;
	ping_pong(n, 0, base);
	base += n;
}

int main(int argc, char **argv)
{
	const int options = argc > 1 && !strcmp(argv[1], "-c");
	void (*run)(uint64_t, size_t) = calls;
	const int plain = argc == options + 4;
	const char *test = plain ? argv[options + 1] : "";
	const size_t size = plain ? strtoul(argv[options + 2], NULL, 10) : 0;
	const double seconds = plain ? atof(argv[options + 3]) : 0;
	const char *suffix = strrchr(test, '_');
	const int latency = suffix && !strcmp(suffix, "_lat");
	pid_t peer = 0;
	uint64_t n = 16;
	double took;

	if (!plain || !size || size > RING_MAX || seconds <= 0 || !suffix || (!latency && strcmp(suffix, "_bw"))) {
		fprintf(stderr, "usage: least [-c] TEST SIZE SECONDS\n");
		return 2;
	}
	with_crc = options;
	if (!latency) {
		ring = 64 * size;
		if (ring < RING_MIN)
			ring = RING_MIN;
		if (ring > RING_MAX)
			ring = RING_MAX;
		from = memory(ring);
		to = memory(ring);
		between = memory(TCP_MEM);
		run = messages;
	} else if (!strncmp(test, "write_", 6) || !strncmp(test, "send_", 5)) {
		sent = memory(4096);
		sent[0] = sent[1] = 0;
		run = switches;
		peer = fork();
		if (peer < 0) {
			perror("fork");
			return 2;
		}
		if (!peer) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			ping_pong(UINT64_MAX >> 1, 1, 0);
		}
	}
	for (;; n *= 2) {
		took = now();
		run(n, size);
		took = now() - took;
		if (took >= seconds)
			break;
	}
	if (peer) {
		kill(peer, SIGKILL);
		waitpid(peer, NULL, 0);
	}
	if (latency)
		printf("us %.3f\n", took * 1e6 / n / (run == switches ? 2 : 1));
	else
		printf("MiB/s %.3f\n", (double)n * size / took / (1 << 20));
	return 0;
}

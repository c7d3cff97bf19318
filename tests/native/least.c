// SPDX-License-Identifier: GPL-2.0
/*
 * least [-c] TEST SIZE SECONDS - measure the least work that any software device over TCP has to
 * do.
 *
 * TEST is one of rbench's. Of a bandwidth test that is, for each message, a system call that sends
 * SIZE octets through TCP without copying them (sendfile), and two copies: from a buffer into
 * memory that TCP would own, which stays in the processor's cache, and from there into another
 * buffer. TCP's receiver drops the octets, by a system call for many messages. With -c each copy
 * has its CRC32c computed as well, before the octets leave that memory and when they have arrived.
 * The buffers are as long as rbench's with 64 requests.
 *
 * Of a latency test it is a system call that sends SIZE octets through TCP and, unless the peer
 * takes no part (reads and atomics), the switch to the other process, by sched_yield() as in
 * rbench; an operation is half of a round trip. Where the peer takes no part, nothing is sent back.
 *
 * Prints "MiB/s FIGURE" or "us FIGURE". The clock is read twice a run. Runs become longer until one
 * takes SECONDS.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RING_MIN (256u << 10) /* of a buffer, in octets */
#define RING_MAX (4u << 20)
#define TCP_MEM (64u << 10) /* memory between the copies, reused at once */
#define UNREAD_MAX (256u << 10) /* what the receiver lets come together, in octets */
#define UNREAD_MESSAGES 16 /* the same in small messages */

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

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

/* The two ends of a TCP connection over the loopback interface, and a file in memory. */
static int ends[2], file;
static size_t unread;

static void connect_ends(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	check(listener >= 0 && !bind(listener, (void *)&at, len) && !listen(listener, 1), "listen");
	check(!getsockname(listener, (void *)&at, &len), "getsockname");
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	check(ends[0] >= 0 && !connect(ends[0], (void *)&at, len), "connect");
	ends[1] = accept(listener, NULL, NULL);
	check(ends[1] >= 0, "accept");
	close(listener);
	for (int i = 0; i < 2; i++)
		check(!setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "TCP_NODELAY");
}

/* Drops what end `i` has received. */
static void drop_received(int i)
{
	while (recv(ends[i], NULL, 1 << 30, MSG_TRUNC | MSG_DONTWAIT) > 0)
		;
	unread = 0;
}

/* Sends a small message from end `i`. */
static void send_small(int i, size_t size)
{
	static char octets[4096];

	check(send(ends[i], octets, size < sizeof(octets) ? size : sizeof(octets), 0) >= 0, "send");
}

/* Sends a message from end 0 without copying it. */
static void send_file(size_t size)
{
	size_t left = size;

	while (left) {
		off_t start = 0;
		ssize_t n = sendfile(ends[0], file, &start, left);

		check(n > 0 || errno == EAGAIN, "sendfile");
		if (n > 0) {
			left -= n;
			unread += n;
		}
		if (n <= 0 || unread >= UNREAD_MAX)
			drop_received(1);
	}
}

static char *from, *between, *to;
static int with_crc;
static unsigned int sums;
static size_t ring;

static void messages(uint64_t n, size_t size)
{
	size_t at = 0, done, piece;

	for (; n; n--) {
		send_file(size);
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
	for (; n; n--) {
		send_small(0, size);
		if (n % UNREAD_MESSAGES == 0)
			drop_received(1);
	}
}

/* The last number that each process has sent. */
static volatile uint64_t *sent;

static void ping_pong(uint64_t n, int me, uint64_t base, size_t size)
{
	uint64_t i;

	for (i = base + 1; i <= base + n; i++) {
		if (me) /* answers */
			while (sent[0] < i)
				sched_yield();
		send_small(me, size);
		sent[me] = i;
		if (i % UNREAD_MESSAGES == 0)
			drop_received(me);
		if (!me)
			while (sent[1] < i)
				sched_yield();
	}
}

static void switches(uint64_t n, size_t size)
{
	static uint64_t base;

	ping_pong(n, 0, base, size);
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
	connect_ends();
	if (!latency) {
		ring = 64 * size;
		if (ring < RING_MIN)
			ring = RING_MIN;
		if (ring > RING_MAX)
			ring = RING_MAX;
		from = memory(ring);
		to = memory(ring);
		between = memory(TCP_MEM);
		file = memfd_create("octets", 0);
		check(file >= 0 && !posix_fallocate(file, 0, size), "memfd_create");
		check(!fcntl(ends[0], F_SETFL, O_NONBLOCK), "O_NONBLOCK");
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
			ping_pong(UINT64_MAX >> 1, 1, 0, size);
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

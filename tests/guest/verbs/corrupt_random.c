// SPDX-License-Identifier: GPL-2.0
/*
 * A process writes random octets into all queues that it shares with the device, while its requests
 * are under way: it breaks its own queue pairs, and no others. A bystander on the same device moves
 * and compares data all the time.
 *
 * It does so in a child process, started again and again. Its library reads those queues too; once
 * the library has crashed, the child goes on ringing doorbells without it. CORRUPT_SECONDS in the
 * environment is the duration (default 8).
 *
 * A child runs as `corrupt_random ADDRESS SEED`, and counts what it does in memory shared with the
 * bystander.
 */

#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

/*
 * The longest run of one child, and how long it goes on once all of its queue pairs are in error,
 * in milliseconds.
 */
#define SPREE (700 * slow)
#define ENCORE 50
/* The descriptor of the shared memory in a child. */
#define TALLY_FD 200

extern char **environ;

/* The sums of what all children have done. */
struct tally {
	unsigned int pairs;	/* connections made */
	unsigned int octets;	/* written into queues */
	unsigned int doorbells;
	unsigned int posted;
	unsigned int broken;	/* QPs that were seen in error */
};

/* --- the child -------------------------------------------------------------------------------- */

static struct tally *tally;
static struct mapping queues[64];
static size_t queue_count;

/*
 * Overwrites a queue's indexes or flags, a few octets anywhere, or all of it: by turns, since each
 * hides the others.
 */
static void *corrupt_queues(void *seed)
{
	uint32_t state = (uint32_t)(uintptr_t)seed | 1;

	while (queue_count) {
		struct mapping *m = &queues[any_of(&state) % queue_count];
		size_t reach = m->len;
		unsigned int n = 1;

		switch (any_of(&state) % 8) {
		case 0:
			n = 4096;
			break;
		case 1 ... 2:
			n = 64;
			reach = m->len < 512 ? m->len : 512;
			break;
		case 3 ... 5:
			n = 16;
			break;
		}
		for (unsigned int i = 0; i < n; i++)
			((volatile uint8_t *)m->start)[any_of(&state) % reach] = (uint8_t)any_of(&state);
		__atomic_fetch_add(&tally->octets, n, __ATOMIC_RELAXED);
		/* Lets some requests through intact. */
		if (any_of(&state) % 4 == 0)
			sleep_ms(1 + any_of(&state) % 4);
	}
	return NULL;
}

static void ring(struct pair *p)
{
	ring_doorbell(p->a.qp);
	ring_doorbell(p->b.qp);
	__atomic_fetch_add(&tally->doorbells, 2, __ATOMIC_RELAXED);
}

/* Posts one request each way, by the library. */
static void post_some(struct pair *p, const struct region *mine, const struct region *theirs)
{
	struct ibv_sge sge = sge_of(mine, any() % 4096, any() % 4096);
	uint64_t at = (uintptr_t)theirs->buf + any() % 4096;
	enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
				     IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	wr = wr_rdma(ops[any() % (has_extensions() ? 4 : 3)], 1, IBV_SEND_SIGNALED, &sge, 1, at,
		     theirs->mr->rkey);
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		wr.wr.atomic.remote_addr = at & ~7ULL;
		wr.wr.atomic.rkey = theirs->mr->rkey;
	}
	if (!try_send(&p->a, &wr))
		__atomic_fetch_add(&tally->posted, 1, __ATOMIC_RELAXED);
	post_recv(&p->b, 2, theirs, 0, 4096);
	for (int i = 0; i < 4; i++) {
		ibv_poll_cq(p->a.send_cq, 1, &wc);
		ibv_poll_cq(p->b.recv_cq, 1, &wc);
	}
	ibv_req_notify_cq(p->a.send_cq, any() % 2);
}

static sigjmp_buf crashed;

static void on_crash(int signal)
{
	(void)signal;
	siglongjmp(crashed, 1);
}

/* Never returns to the library's cleanup, which would read the queues. */
static void corrupt_and_end(uint32_t seed)
{
	struct pair_opts opts = { .sq_depth = 64, .rq_depth = 64, .depth = 4,
				  .srq = seed % 2 ? srq_make : NULL };
	/* Static, since a crash discards register contents. */
	static struct region mine[2], theirs[2];
	static struct pair pairs[2];
	static bool library = true, broken[4];
	static int broken_count;
	static int64_t end;
	pthread_t thread;

	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED, TALLY_FD, 0);
	if (tally == MAP_FAILED)
		_exit(2);
	for (uint32_t i = 0; i < seed % 1000; i++)
		any();
	for (int i = 0; i < 2; i++) {
		if (!pair_open(&pairs[i], &opts) ||
		    !region_make(&mine[i], pairs[i].a.pd, 8192, IBV_ACCESS_LOCAL_WRITE) ||
		    !region_make(&theirs[i], pairs[i].b.pd, 8192,
				 ALL_RIGHTS | (has_extensions() ? IBV_ACCESS_REMOTE_ATOMIC : 0)))
			_exit(3);
		__atomic_fetch_add(&tally->pairs, 1, __ATOMIC_RELAXED);
	}
	queue_count = device_mappings(queues, ARRAY_SIZE(queues));
	if (!queue_count || pthread_create(&thread, NULL, corrupt_queues, (void *)(uintptr_t)seed))
		_exit(4);
	end = now_ms() + SPREE;
	/* A corrupted queue may keep the library from returning. */
	alarm(2 * SPREE / 1000 + 1);
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	if (sigsetjmp(crashed, 1))
		library = false;
	while (now_ms() < end) {
		int i = any() % 4;
		struct pair *p = &pairs[i / 2];

		if (library)
			post_some(p, &mine[i / 2], &theirs[i / 2]);
		ring(p);
		if (!broken[i] && qp_state((i % 2 ? p->b : p->a).qp) == IBV_QPS_ERR) {
			broken[i] = true;
			if (++broken_count == 4 && now_ms() + ENCORE < end)
				end = now_ms() + ENCORE;
			__atomic_fetch_add(&tally->broken, 1, __ATOMIC_RELAXED);
		}
	}
	_exit(0);
}

/* --- the bystander ---------------------------------------------------------------------------- */

static char *address;

static pid_t start(uint32_t seed)
{
	char text[16], port[24];
	char *argv[] = { "corrupt_random", address, text, NULL };
	pid_t pid;

	snprintf(text, sizeof(text), "%u", seed);
	/* Two ports for each child, which no other process uses. */
	snprintf(port, sizeof(port), "%d", next_port() + 20000 + 2 * (int)(seed % 1000));
	setenv("PORT", port, 1);
	if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
		return -1;
	return pid;
}

/* Does a Write, a Read of the same and a Send, each compared; `n` makes them differ. */
static bool round_trip(struct pair *p, struct region *here, struct region *there, struct region *in,
		       uint32_t n)
{
	struct ibv_sge out = sge_of(here, 0, 4096), back = sge_of(here, 4096, 4096);
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	pattern_fill(here->buf, 4096, n);
	memset(here->buf + 4096, 0, 4096);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, 0, &out, 1, (uintptr_t)there->buf, there->mr->rkey);
	if (!post_send(&p->a, &wr))
		return false;
	wr = wr_rdma(IBV_WR_RDMA_READ, 2, IBV_SEND_SIGNALED, &back, 1, (uintptr_t)there->buf,
		     there->mr->rkey);
	if (!post_send(&p->a, &wr) || !expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS))
		return false;
	wr = wr_make(IBV_WR_SEND, 3, IBV_SEND_SIGNALED, &out, 1);
	if (!post_recv(&p->b, 4, in, 0, 4096) || !post_send(&p->a, &wr) ||
	    !expect_wc(p->a.send_cq, &wc, 3, IBV_WC_SUCCESS) ||
	    !expect_wc(p->b.recv_cq, &wc, 4, IBV_WC_SUCCESS))
		return false;
	if (memcmp(here->buf, here->buf + 4096, 4096) || pattern_differs(there->buf, 4096, n) >= 0 ||
	    pattern_differs(in->buf, 4096, n) >= 0) {
		fail("round %u: what arrived is not what was sent", n);
		return false;
	}
	return true;
}

PAIR_CASE(corrupted_queues_fail_only_own_queue_pairs, .sq_depth = 16, .rq_depth = 16)
{
	const char *wanted = getenv("CORRUPT_SECONDS");
	int64_t end = now_ms() + (wanted ? atoi(wanted) : 8) * 1000LL;
	struct region here, there, in;
	uint32_t rounds = 0, children = 0;
	pid_t child = -1;
	int fd, status;

	fd = memfd_create("tally", 0);
	check(fd >= 0 && !ftruncate(fd, sizeof(*tally)) && dup2(fd, TALLY_FD) == TALLY_FD, "memfd");
	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(tally != MAP_FAILED, "mmap");
	must(region_make(&here, p->a.pd, 8192, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&there, p->b.pd, 4096, ALL_RIGHTS));
	must(region_make(&in, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	while (!test_failed() && (now_ms() < end || child > 0)) {
		if (child < 0) {
			child = start(++children);
			check(child > 0, "starting the child");
		}
		if (!round_trip(p, &here, &there, &in, ++rounds))
			break;
		if (waitpid(child, &status, WNOHANG) == child) {
			child = -1;
			check(!WIFEXITED(status) || WEXITSTATUS(status) <= 1,
			      "child %u could not begin: %d", children, WEXITSTATUS(status));
			/* Its library may hang on corrupted contents; the alarm stops it. */
			check(WIFEXITED(status) || WTERMSIG(status) == SIGALRM,
			      "child %u: signal %d", children, WTERMSIG(status));
		}
	}
	if (child > 0) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
	}
	printf("%u rounds beside %u children: %u octets in the queues of %u connections, "
	       "%u requests, %u doorbells, %u queue pairs in error\n", rounds, children, tally->octets,
	       tally->pairs, tally->posted, tally->doorbells, tally->broken);
	check(tally->pairs >= 2 && tally->octets && tally->posted && tally->doorbells && tally->broken,
	      "nothing was broken");
	check(rounds > children, "%u rounds beside %u children", rounds, children);
	check(qp_state(p->a.qp) == IBV_QPS_RTS && qp_state(p->b.qp) == IBV_QPS_RTS, "QP state");
	close(fd);
	close(TALLY_FD);
}

static void device_works_afterwards(void) { world_is_well(); }

int main(int argc, char **argv)
{
	address = argc > 1 ? argv[1] : "127.0.0.1";
	test_begin(argc, argv);
	if (argc > 2)
		corrupt_and_end((uint32_t)atoi(argv[2]));
	RUN(corrupted_queues_fail_only_own_queue_pairs);
	RUN(device_works_afterwards);
	return test_end();
}

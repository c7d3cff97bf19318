// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions with paging on demand: their pages are faulted in as needed, and the process may
 * change its mappings meanwhile. The program gives the advice itself, since libraries lack the
 * call.
 */

#include "common.h"
#include "modify.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LEN (64 * PAGE)
/* LEN with the longest pages. */
#define MAX_LEN (64 << 16)
#define ODP IBV_ACCESS_ON_DEMAND
#define RIGHTS (ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC | ODP)

static struct region local, remote;

/* Whether regions with paging on demand have all memory of the process (implicit.c). */
#ifndef IMPLICIT
#define IMPLICIT false
#endif

/* As region_make, but an implicit region, if this is the program for that. */
static bool odp_make(struct region *r, struct ibv_pd *pd, size_t len, int access)
{
	if (!IMPLICIT || !(access & ODP))
		return region_make(r, pd, len, access);
	/* The memory comes after the registration. */
	*r = (struct region){ .len = len, .mr = ibv_reg_mr(pd, NULL, SIZE_MAX, access) };
	if (!r->mr) {
		fail("ibv_reg_mr of all memory: %s", strerror(errno));
		return false;
	}
	r->buf = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r->buf == MAP_FAILED)
		fail("mmap of %zu: %s", len, strerror(errno));
	else
		region_keep(r);
	return r->buf != MAP_FAILED;
}

/* End a has ordinary memory, end b has memory that is not pinned and has no pages yet. */
static bool prepare(struct pair *p, size_t len, int access)
{
	return region_make(&local, p->a.pd, len, ALL_RIGHTS) &&
	       odp_make(&remote, p->b.pd, len, access);
}

static bool post(struct end *e, enum ibv_wr_opcode op, uint64_t id, const struct region *r, size_t off,
		 size_t len, const void *raddr, uint32_t rkey)
{
	struct ibv_sge sge = sge_of(r, off, len);
	struct ibv_send_wr wr =
		wr_rdma(op, id, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)raddr, rkey);

	return post_send(e, &wr);
}

/* Does one transfer of end a; returns the status, or -1 if it did not complete. */
static int transfer(struct pair *p, enum ibv_wr_opcode op, size_t off, size_t len, const void *raddr)
{
	struct ibv_wc wc;

	if (!post(&p->a, op, 7, &local, off, len, raddr, remote.mr->rkey) ||
	    !poll_wc(p->a.send_cq, &wc, SOON))
		return -1;
	return wc.status;
}

/* A Read behind a Write returns after the Write was placed. */
static bool settle(struct pair *p)
{
	struct ibv_sge sge = sge_of(&local, 0, 0);
	struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_READ, 8, IBV_SEND_SIGNALED, &sge, 1, 0, 0);
	struct ibv_wc wc;

	return post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 8, IBV_WC_SUCCESS);
}

/* Writes the pattern to the peer and checks that it arrived. */
static void write_arrives(struct pair *p, uint8_t *at, size_t len, uint32_t seed)
{
	int status;

	pattern_fill(local.buf, len, seed);
	status = transfer(p, IBV_WR_RDMA_WRITE, 0, len, at);
	check(status == IBV_WC_SUCCESS, "Write: status %d", status);
	must(settle(p));
	/* Any system call: User-Mode Linux exchanges the pages of a running process only then. */
	sched_yield();
	check(pattern_differs(at, len, seed) < 0, "octet %zd of %zu is another",
	      pattern_differs(at, len, seed), len);
}

/* Reads from the peer and checks for the pattern. */
static void read_finds(struct pair *p, const uint8_t *at, size_t len, uint32_t seed)
{
	int status;

	memset(local.buf, 0x77, len);
	status = transfer(p, IBV_WR_RDMA_READ, 0, len, at);
	check(status == IBV_WC_SUCCESS, "Read: status %d", status);
	check(pattern_differs(local.buf, len, seed) < 0, "octet %zd of %zu is another",
	      pattern_differs(local.buf, len, seed), len);
}

/* Returns the kilobytes of this kind that the process has. */
static long kilobytes(const char *name)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long value = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name));
	if (f)
		fclose(f);
	return value;
}

#define READ IBV_ADVISE_MR_ADVICE_PREFETCH
#define WRITE IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
#define NO_FAULT IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT

/*
 * --- capabilities ------------------------------------------------------------------------------
 */

static void device_reports_odp_capabilities(void)
{
	struct ibv_context *context = test_context();
	struct ibv_device_attr_ex attr;
	uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
		      IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV;

	must(context);
	if (has_extensions())
		/* Flush and Atomic Write, which the library has no names for. */
		rc |= IBV_ODP_SUPPORT_ATOMIC | 1 << 6 | 1 << 7;
	check(!ibv_query_device_ex(context, NULL, &attr), "%s", strerror(errno));
	check(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT),
	      "in general %#lx", attr.odp_caps.general_caps);
	check(attr.odp_caps.per_transport_caps.rc_odp_caps == rc, "connections: %#x",
	      attr.odp_caps.per_transport_caps.rc_odp_caps);
	check(!attr.odp_caps.per_transport_caps.uc_odp_caps &&
		      !attr.odp_caps.per_transport_caps.ud_odp_caps && !attr.xrc_odp_caps,
	      "something that there is not");
}

/* Only from address 0 on, and only without pinning. */
PAIR_CASE(implicit_region_must_cover_all_memory)
{
	struct ibv_mr *mr = ibv_reg_mr(p->a.pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE);

	check(!mr, "all memory is pinned");
	mr = ibv_reg_mr_iova(p->a.pd, NULL, SIZE_MAX, PAGE, IBV_ACCESS_LOCAL_WRITE | ODP);
	check(!mr && errno == EINVAL, "at another address: %s", strerror(errno));
	mr = ibv_reg_mr(p->a.pd, NULL, SIZE_MAX - 1, IBV_ACCESS_LOCAL_WRITE | ODP);
	check(!mr, "a range of nearly all memory");
}

/*
 * --- pages that are absent ----------------------------------------------------------------------
 */

/* Registration neither pins pages nor faults them in. */
PAIR_CASE(registration_pins_no_pages)
{
	const size_t len = 64 << 20;
	long before = kilobytes("VmRSS:"), after;

	must(odp_make(&remote, p->b.pd, len, RIGHTS));
	/* One page comes, not a huge one, which has 32 MiB where a page has 16 KiB. */
	madvise(remote.buf, len, MADV_NOHUGEPAGE);
	must(region_make(&local, p->a.pd, LEN, ALL_RIGHTS));
	check(kilobytes("VmPin:") * 1024 < (long)len, "%ld KiB are pinned", kilobytes("VmPin:"));
	write_arrives(p, remote.buf + len - PAGE - 8, PAGE, 1);
	must(!test_failed());
	after = kilobytes("VmRSS:");
	check(after - before < 8192, "%ld KiB came", after - before);
}

/* Lengths of transfers. */
#define SIZES { 1, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 40000, LEN - 2 * PAGE }

PAIR_CASE(writes_to_untouched_pages)
{
	const size_t sizes[] = SIZES;

	must(prepare(p, LEN, RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		size_t len = sizes[i], off = 3000 + i;

		check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
		write_arrives(p, remote.buf + off, len, i);
		must(!test_failed());
		check(not_all(remote.buf, off, 0) < 0 &&
			      not_all(remote.buf + off + len, LEN - off - len, 0) < 0,
		      "%zu: written beside", len);
	}
	check(device_counter(p->a.id->verbs, "rx_page_waits") > 0, "it has never waited");
}

PAIR_CASE(reads_of_untouched_pages)
{
	const size_t sizes[] = SIZES;
	int status;

	must(prepare(p, LEN, RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
		memset(local.buf, 0x77, LEN);
		status = transfer(p, IBV_WR_RDMA_READ, 0, sizes[i], remote.buf + 3000 + i);
		check(status == IBV_WC_SUCCESS, "status %d", status);
		check(not_all(local.buf, sizes[i], 0) < 0, "%zu: not zero", sizes[i]);
		check(not_all(local.buf + sizes[i], LEN - sizes[i], 0x77) < 0,
		      "%zu: written beside", sizes[i]);
	}
	check(device_counter(p->a.id->verbs, "tx_page_waits") > 0, "it has never waited");
}

/* The sink of a Read, and the source of a Write. */
PAIR_CASE(absent_local_pages_are_faulted_in)
{
	struct region sink, source;
	struct ibv_wc wc;
	int status;

	must(prepare(p, LEN, RIGHTS));
	must(odp_make(&sink, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE | ODP));
	must(odp_make(&source, p->a.pd, LEN, ODP));
	pattern_fill(remote.buf, LEN, 5);
	must(post(&p->a, IBV_WR_RDMA_READ, 1, &sink, 5, LEN - 5, remote.buf + 5, remote.mr->rkey));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(!memcmp(sink.buf + 5, remote.buf + 5, LEN - 5), "the Read brought something else");
	must(post(&p->a, IBV_WR_RDMA_WRITE, 2, &source, 0, LEN, remote.buf, remote.mr->rkey));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	must(settle(p));
	check(not_all(remote.buf, LEN, 0) < 0, "the Write took something else");
	status = transfer(p, IBV_WR_RDMA_READ, 0, 64, remote.buf);
	check(status == IBV_WC_SUCCESS, "status %d", status);
}

/* Sends from and to lists of many pieces, some of them pinned, others absent. */
static void scattered(struct pair *p)
{
	struct region pinned, from;
	struct ibv_sge out[3], in[4];
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	size_t len = 12 * PAGE + 848, at = 0;

	must(prepare(p, LEN, IBV_ACCESS_LOCAL_WRITE | ODP));
	must(region_make(&pinned, p->b.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	must(odp_make(&from, p->a.pd, LEN, ODP));
	for (uint32_t round = 0; round < 10; round++) {
		check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
		check(!madvise(from.buf, LEN, MADV_DONTNEED), "madvise");
		memset(pinned.buf, 0, LEN);
		pattern_fill(local.buf, len, round);
		/* Touches only the middle of what is sent. */
		memcpy(from.buf + 2 * PAGE, local.buf + 2 * PAGE, PAGE);
		memset(local.buf, 0, PAGE);
		out[0] = sge_of(&local, 0, PAGE + 1);
		out[1] = sge_of(&from, PAGE + 1, 6 * PAGE);
		out[2] = sge_of(&local, 7 * PAGE + 1, len - 7 * PAGE - 1);
		in[0] = sge_of(&remote, 100, 2 * PAGE + 1808);
		in[1] = sge_of(&pinned, 0, 5);
		in[2] = sge_of(&remote, 4 * PAGE, 2 * PAGE + 808);
		in[3] = sge_of(&remote, 20 * PAGE, 44 * PAGE);
		wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, out, 3);
		must(post_recv_sges(&p->b, 2, in, 4) && post_send(&p->a, &wr));
		must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
		check(wc.byte_len == len, "%u octets", wc.byte_len);
		memset(local.buf + PAGE + 1, 0, PAGE - 1);
		memset(local.buf + 3 * PAGE, 0, 4 * PAGE + 1);
		at = 0;
		for (size_t i = 0; i < 4; at += in[i++].length) {
			size_t piece = len - at < in[i].length ? len - at : in[i].length;

			check(!memcmp((void *)(uintptr_t)in[i].addr, local.buf + at, piece),
			      "round %u: piece %zu is another", round, i);
		}
	}
}

PAIR_CASE(sends_from_and_into_absent_pages, .recv_sge = 4) { scattered(p); }

static struct ibv_srq *srq_of_four(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = SRQ_DEPTH, .max_sge = 4 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	return srq;
}

PAIR_CASE(sends_into_absent_pages_by_srq, .srq = srq_of_four) { scattered(p); }

static struct ibv_send_wr atomic(enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge,
				 const void *target, uint64_t add_or_compare, uint64_t swap)
{
	struct ibv_send_wr wr = wr_make(op, id, IBV_SEND_SIGNALED, sge, 1);

	wr.wr.atomic.remote_addr = (uintptr_t)target;
	wr.wr.atomic.rkey = remote.mr->rkey;
	wr.wr.atomic.compare_add = add_or_compare;
	wr.wr.atomic.swap = swap;
	return wr;
}

PAIR_CASE(atomics_on_untouched_pages)
{
	struct region sink;
	struct ibv_wc wc;

	if (!has_extensions())
		return test_skip("the library has no atomic operations");
	must(prepare(p, LEN, RIGHTS));
	must(odp_make(&sink, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE | ODP));
	for (size_t i = 0; i < 32; i++) {
		uint64_t *word = (uint64_t *)(remote.buf + 2 * i * PAGE + 8 * i);
		struct ibv_sge sge = sge_of(&sink, i * PAGE, 8);
		struct ibv_send_wr add = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, word, i, 0);
		struct ibv_send_wr swap =
			atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 2, &sge, word, i, i + 1000);

		must(post_send(&p->a, &add) && post_send(&p->a, &swap));
		must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		check(*word == i + 1000, "left %lu", *word);
		check(*(uint64_t *)(sink.buf + i * PAGE) == i, "fetched %lu",
		      *(uint64_t *)(sink.buf + i * PAGE));
	}
}

/*
 * --- pages that are removed ---------------------------------------------------------------------
 */

static volatile bool storm_ends;
static volatile long storm_count;
static struct ibv_pd *advised_pd;
static uint8_t *storm_at;

/* Removes all pages, as often as it can. */
static void *storm(void *unused)
{
	while (!storm_ends) {
		madvise(storm_at, LEN, MADV_DONTNEED);
		storm_count++;
	}
	return unused;
}

static pthread_t storm_thread;
static long storm_enough;
static int64_t storm_limit;

/* Starts a thread that has to remove pages so often in a case. */
static bool storm_begin_by(void *(*thread)(void *), uint8_t *at, long enough)
{
	storm_at = at;
	storm_ends = false;
	storm_count = 0;
	storm_enough = enough;
	storm_limit = now_ms() + 6 * SOON;
	if (pthread_create(&storm_thread, NULL, thread, NULL)) {
		fail("a thread");
		return false;
	}
	return true;
}

static bool storm_begin(uint8_t *at) { return storm_begin_by(storm, at, 10); }

/*
 * Returns whether a case goes on: while it has rounds left, and until the other thread has run
 * often enough, which may get no processor for a while.
 */
static bool storm_lasts(bool has_rounds)
{
	bool enough = storm_count >= storm_enough || now_ms() >= storm_limit;

	return !test_failed() && (has_rounds || !enough);
}

static void storm_end(void)
{
	void *failed;

	storm_ends = true;
	pthread_join(storm_thread, &failed);
	if (failed || storm_count < storm_enough)
		fail("the pages went only %ld times", storm_count);
}

/* Checks that each moved octet is of the pattern, or zero because its page was removed. */
static bool pattern_or_zero(const uint8_t *buf, size_t len, uint32_t seed)
{
	static uint8_t expected[MAX_LEN];

	pattern_fill(expected, len, seed);
	for (size_t i = 0; i < len; i++)
		if (buf[i] && buf[i] != expected[i]) {
			fail("octet %zu is %#x, not %#x", i, buf[i], expected[i]);
			return false;
		}
	return true;
}

PAIR_CASE(writes_while_pages_are_removed)
{
	must(prepare(p, LEN, RIGHTS));
	must(storm_begin(remote.buf));
	for (int i = 0; storm_lasts(i < 50); i++) {
		int status;

		pattern_fill(local.buf, LEN, 1);
		status = transfer(p, IBV_WR_RDMA_WRITE, 0, LEN, remote.buf);
		if (status != IBV_WC_SUCCESS)
			fail("round %d: status %d", i, status);
		else if (settle(p))
			pattern_or_zero(remote.buf, LEN, 1);
	}
	storm_end();
	must(!test_failed());
	write_arrives(p, remote.buf, LEN, 2);
}

PAIR_CASE(reads_while_pages_are_removed)
{
	must(prepare(p, LEN, RIGHTS));
	must(storm_begin(remote.buf));
	for (int i = 0; storm_lasts(i < 50); i++) {
		int status;

		for (size_t page = 0; page < LEN / PAGE; page++)
			remote.buf[page * PAGE] = 0;
		memset(local.buf, 0x77, LEN);
		status = transfer(p, IBV_WR_RDMA_READ, 0, LEN, remote.buf);
		if (status != IBV_WC_SUCCESS)
			fail("round %d: status %d", i, status);
		else if (not_all(local.buf, LEN, 0) >= 0)
			fail("round %d: octet %zd", i, not_all(local.buf, LEN, 0));
	}
	storm_end();
	must(!test_failed());
	pattern_fill(remote.buf, LEN, 2);
	read_finds(p, remote.buf, LEN, 2);
}

PAIR_CASE(sends_while_pages_are_removed)
{
	must(prepare(p, LEN, RIGHTS));
	must(storm_begin(remote.buf));
	pattern_fill(local.buf, LEN, 3);
	for (int i = 0; storm_lasts(i < 50); i++) {
		struct ibv_sge sge = sge_of(&local, 0, LEN);
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
		struct ibv_wc wc;

		if (post_recv(&p->b, 2, &remote, 0, LEN) && post_send(&p->a, &wr) &&
		    expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) &&
		    expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS))
			pattern_or_zero(remote.buf, LEN, 3);
	}
	storm_end();
}

PAIR_CASE(atomics_while_pages_are_removed)
{
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!has_extensions())
		return test_skip("the library has no atomic operations");
	must(prepare(p, LEN, RIGHTS));
	sge = sge_of(&local, 0, 8);
	must(storm_begin(remote.buf));
	for (int i = 0; storm_lasts(i < 200); i++) {
		struct ibv_send_wr wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge,
					       remote.buf + i % 64 * PAGE, 1, 0);

		if (post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS) &&
		    *(uint64_t *)local.buf > (uint64_t)i)
			fail("fetched %#lx", *(uint64_t *)local.buf);
	}
	storm_end();
}

/* What lets others run although a real-time thread would: shares of time that they get anyway. */
#define RT_SHARE "/proc/sys/kernel/sched_rt_runtime_us"
#define FAIR_SHARE "/sys/kernel/debug/sched/fair_server/cpu0/runtime"

/* Writes `none` to a file of the kernel, if there is one, after keeping what it was. */
static bool share_none(const char *path, const char *none, char *before)
{
	if (access(path, F_OK))
		return true;
	snprintf(before, 30, "%ld", file_value(path));
	return file_write(path, none);
}

static void share_again(const char *path, const char *before)
{
	if (before[0])
		file_write(path, before);
}

/*
 * In real time, brings a page of the region's last half in and takes it away again; then the other
 * threads have the processor. Both change the table of the region's pages.
 */
static void *real_time_storm(void *unused)
{
	const struct timespec pause = { .tv_nsec = 50000 };

	while (!storm_ends) {
		uint8_t *page = storm_at + storm_count % 32 * PAGE;

		if (advise(advised_pd, WRITE, IBV_ADVISE_MR_FLAG_FLUSH, page, PAGE,
			   remote.mr->lkey) ||
		    madvise(page, PAGE, MADV_DONTNEED))
			return "";
		storm_count++;
		nanosleep(&pause, NULL);
	}
	return unused;
}

static void writes_under_real_time_storm(struct pair *p)
{
	const struct sched_param prio = { .sched_priority = 50 };

	advised_pd = p->b.pd;
	pattern_fill(local.buf, LEN / 2, 4);
	must(storm_begin_by(real_time_storm, remote.buf + LEN / 2, 300));
	if (pthread_setschedparam(storm_thread, SCHED_FIFO, &prio))
		fail("a real-time thread");
	/* The other thread may be through before this one runs again. */
	do {
		if (transfer(p, IBV_WR_RDMA_WRITE, 0, LEN / 2, remote.buf) != IBV_WC_SUCCESS)
			fail("a Write");
	} while (storm_lasts(false));
	storm_end();
	must(!test_failed() && settle(p));
	check(pattern_differs(remote.buf, LEN / 2, 4) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, LEN / 2, 4));
}

/*
 * A real-time thread that changes which pages are present waits for the copies under way. With
 * PREEMPT_RT it may have preempted one of them, on the one processor that both threads use; so it
 * lets the other proceed, also where the scheduler keeps no share of the time for others.
 */
PAIR_CASE(pages_removed_by_real_time_thread)
{
	char rt_share[30] = "", fair_share[30] = "";
	cpu_set_t all, one;

	must(prepare(p, LEN, RIGHTS));
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	check(!sched_getaffinity(0, sizeof(all), &all) && !sched_setaffinity(0, sizeof(one), &one),
	      "affinity: %s", strerror(errno));
	mount("none", "/sys/kernel/debug", "debugfs", 0, NULL);
	if (share_none(RT_SHARE, "-1", rt_share) && share_none(FAIR_SHARE, "0", fair_share))
		writes_under_real_time_storm(p);
	share_again(RT_SHARE, rt_share);
	share_again(FAIR_SHARE, fair_share);
	sched_setaffinity(0, sizeof(all), &all);
}

/* Other memory mapped at the same addresses becomes the region's memory. */
PAIR_CASE(remapped_memory_becomes_the_regions)
{
	must(prepare(p, LEN, RIGHTS));
	for (uint32_t i = 0; i < 20; i++) {
		void *at;

		write_arrives(p, remote.buf, LEN, i);
		must(!test_failed());
		at = mmap(remote.buf, LEN, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		check(at == remote.buf, "mmap: %s", strerror(errno));
		check(not_all(remote.buf, LEN, 0) < 0, "it is not new");
	}
}

/* After a fork the device writes the parent's memory, and the child keeps the old contents. */
PAIR_CASE(region_after_fork)
{
	int to_child[2], status;
	char octet = 0;
	pid_t child;

	must(prepare(p, LEN, RIGHTS));
	write_arrives(p, remote.buf, LEN, 1);
	must(!test_failed());
	check(!pipe2(to_child, O_CLOEXEC), "a pipe");
	fflush(stdout);
	child = fork();
	if (!child) {
		if (read(to_child[0], &octet, 1) != 1)
			_exit(2);
		_exit(pattern_differs(remote.buf, LEN, 1) < 0 ? 0 : 1);
	}
	write_arrives(p, remote.buf, LEN, 2);
	if (write(to_child[1], &octet, 1) != 1)
		fail("the pipe");
	close(to_child[1]);
	close(to_child[0]);
	check(waitpid(child, &status, 0) == child, "waitpid");
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child sees something else: %#x",
	      status);
	must(!test_failed());
	read_finds(p, remote.buf, LEN, 2);
}

/* A file mapped shared: what the device writes is in the file. */
PAIR_CASE(region_of_mapped_file)
{
	static uint8_t content[MAX_LEN];
	int fd = memfd_create("file", MFD_CLOEXEC), status;
	void *at;

	must(prepare(p, LEN, RIGHTS));
	check(fd >= 0 && !ftruncate(fd, LEN), "a file: %s", strerror(errno));
	at = mmap(remote.buf, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	check(at == remote.buf, "mmap: %s", strerror(errno));
	/* Makes the pages present, clean and writable. */
	check(not_all(remote.buf, LEN, 0) < 0, "it is not empty");
	write_arrives(p, remote.buf, LEN, 1);
	must(!test_failed());
	/* Pages that are not marked dirty would be discarded now. */
	madvise(remote.buf, LEN, MADV_PAGEOUT);
	check(pread(fd, content, LEN, 0) == (ssize_t)LEN, "pread: %s", strerror(errno));
	check(pattern_differs(content, LEN, 1) < 0, "octet %zd of the file is another",
	      pattern_differs(content, LEN, 1));
	/* Truncates the file to half: the first half works, the rest fails. */
	check(!ftruncate(fd, LEN / 2), "ftruncate: %s", strerror(errno));
	write_arrives(p, remote.buf, LEN / 2, 2);
	must(!test_failed());
	status = transfer(p, IBV_WR_RDMA_READ, 0, 64, remote.buf + LEN / 2);
	check(status == IBV_WC_REM_ACCESS_ERR, "behind the end: status %d", status);
	close(fd);
	world_is_well();
}

/*
 * --- pages that cannot be faulted in ------------------------------------------------------------
 */

/* A hole in the middle of the region. */
static bool punch(void)
{
	if (munmap(remote.buf + 8 * PAGE, 8 * PAGE))
		fail("munmap: %s", strerror(errno));
	return !test_failed();
}

/* Fills the hole, for the code that frees it. */
static void mend(void)
{
	mmap(remote.buf + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* Makes the middle of the region secret memory, which not even the kernel can access. */
static bool hide(void)
{
	uint8_t *at = remote.buf + 8 * PAGE;
	int fd = syscall(SYS_memfd_secret, 0);

	if (fd < 0 && errno == ENOSYS) {
		test_skip("no memfd_secret");
		return false;
	}
	if (fd < 0 || ftruncate(fd, 8 * PAGE) ||
	    mmap(at, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != at)
		fail("secret memory: %s", strerror(errno));
	else
		pattern_fill(remote.buf, LEN, 1);
	close(fd);
	return !test_failed();
}

static void write_meets(struct pair *p, bool (*spoil)(void))
{
	must(prepare(p, LEN, RIGHTS));
	write_arrives(p, remote.buf, LEN, 1);
	must(!test_failed());
	must(spoil());
	transfer(p, IBV_WR_RDMA_WRITE, 0, LEN, remote.buf);
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	mend();
	world_is_well();
}

PAIR_CASE(write_to_unmapped_memory)
{
	write_meets(p, punch);
}

static void read_meets(struct pair *p, bool (*spoil)(void))
{
	int status;

	must(prepare(p, LEN, RIGHTS));
	pattern_fill(remote.buf, LEN, 1);
	must(spoil());
	read_finds(p, remote.buf, 8 * PAGE, 1);
	must(!test_failed());
	status = transfer(p, IBV_WR_RDMA_READ, 0, LEN, remote.buf);
	check(status == IBV_WC_REM_ACCESS_ERR, "status %d", status);
	check(async_qp_error(p->b.qp->context, p->b.qp, SOON), "no event at the source");
	mend();
	world_is_well();
}

PAIR_CASE(read_of_unmapped_memory)
{
	read_meets(p, punch);
}

/* Makes the hole for an atomic operation, if the library has these. */
static bool punch_for_atomics(struct pair *p)
{
	if (!has_extensions()) {
		test_skip("the library has no atomic operations");
		return false;
	}
	return prepare(p, LEN, RIGHTS) && punch();
}

PAIR_CASE(atomic_on_unmapped_memory)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(punch_for_atomics(p));
	sge = sge_of(&local, 0, 8);
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, remote.buf + 8 * PAGE, 1, 0);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	check(async_qp_error(p->b.qp->context, p->b.qp, SOON), "no event at the target");
	mend();
	world_is_well();
}

/* End b sends from bad memory or receives into it; its work request fails. */
static void send_meets(struct pair *p, bool (*spoil)(void), bool as_source)
{
	struct end *sender = as_source ? &p->b : &p->a, *receiver = as_source ? &p->a : &p->b;
	struct region *from = as_source ? &remote : &local, *to = as_source ? &local : &remote;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p, LEN, RIGHTS));
	must(spoil());
	must(post_recv(receiver, 1, to, 0, LEN));
	sge = sge_of(from, 0, LEN);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(sender, &wr));
	if (as_source)
		must(expect_wc(p->b.send_cq, &wc, 2, IBV_WC_LOC_PROT_ERR));
	else
		must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_LOC_PROT_ERR));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	mend();
	world_is_well();
}

PAIR_CASE(send_of_unmapped_memory)
{
	send_meets(p, punch, true);
}

PAIR_CASE(receive_into_unmapped_memory)
{
	send_meets(p, punch, false);
}

PAIR_CASE(read_into_unmapped_memory)
{
	struct ibv_wc wc;

	must(prepare(p, LEN, RIGHTS));
	must(punch());
	must(post(&p->b, IBV_WR_RDMA_READ, 1, &remote, 0, LEN, local.buf, local.mr->rkey));
	must(expect_wc(p->b.send_cq, &wc, 1, IBV_WC_LOC_PROT_ERR));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	mend();
	world_is_well();
}

PAIR_CASE(atomic_result_into_unmapped_memory)
{
	struct ibv_mr *target;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(punch_for_atomics(p));
	sge = sge_of(&remote, 8 * PAGE, 8);
	target = ibv_reg_mr(p->a.pd, local.buf, PAGE, ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC);
	check(target, "the target: %s", strerror(errno));
	must(!test_failed());
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, local.buf, 1, 0);
	wr.wr.atomic.rkey = target->rkey;
	must(post_send(&p->b, &wr));
	must(expect_wc(p->b.send_cq, &wc, 1, IBV_WC_LOC_PROT_ERR));
	check(!ibv_dereg_mr(target), "dereg_mr: %s", strerror(errno));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	mend();
	world_is_well();
}

PAIR_CASE(a_write_to_secret_memory)
{
	write_meets(p, hide);
}

PAIR_CASE(a_read_of_secret_memory)
{
	read_meets(p, hide);
}

PAIR_CASE(a_send_of_secret_memory)
{
	send_meets(p, hide, true);
}

PAIR_CASE(a_receive_into_secret_memory)
{
	send_meets(p, hide, false);
}

/* The peer can read the pattern, and cannot overwrite it. */
static void can_be_read_only(struct pair *p)
{
	read_finds(p, remote.buf, LEN, 1);
	must(!test_failed());
	memset(local.buf, 0x33, LEN);
	transfer(p, IBV_WR_RDMA_WRITE, 0, 64, remote.buf);
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(pattern_differs(remote.buf, LEN, 1) < 0, "it was written");
}

/* The device cannot write memory that the process cannot write. */
PAIR_CASE(read_only_memory_is_not_written)
{
	must(prepare(p, LEN, RIGHTS));
	pattern_fill(remote.buf, LEN, 1);
	write_arrives(p, remote.buf, PAGE, 1);
	must(!test_failed());
	check(!mprotect(remote.buf, LEN, PROT_READ), "mprotect: %s", strerror(errno));
	can_be_read_only(p);
}

PAIR_CASE(access_rights_are_enforced)
{
	must(prepare(p, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | ODP));
	pattern_fill(remote.buf, LEN, 1);
	can_be_read_only(p);
}

/* --- advice ------------------------------------------------------------------------------------- */

PAIR_CASE(prefetched_pages_are_not_waited_for)
{
	static const struct {
		uint32_t advice, flags;
		bool touch, write;
	} tries[] = {
		{ WRITE, IBV_ADVISE_MR_FLAG_FLUSH, false, true },
		{ WRITE, 0, false, true },
		{ READ, IBV_ADVISE_MR_FLAG_FLUSH, false, false },
		{ NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH, true, true },
		{ NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH, true, false },
	};
	const char *waits[] = { "tx_page_waits", "rx_page_waits" };

	must(prepare(p, LEN, RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		const char *name = waits[tries[i].write];
		long before;
		int error;

		check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
		if (tries[i].touch)
			memset(remote.buf, 1, LEN);
		error = advise(p->b.pd, tries[i].advice, tries[i].flags, remote.buf, LEN,
			       remote.mr->lkey);
		check(!error, "number %zu: %s", i, strerror(error));
		before = device_counter(p->a.id->verbs, name);
		check(before >= 0, "no counter %s", name);
		if (tries[i].write)
			write_arrives(p, remote.buf, LEN, i);
		else
			transfer(p, IBV_WR_RDMA_READ, 0, LEN, remote.buf);
		must(!test_failed());
		check(device_counter(p->a.id->verbs, name) == before, "number %zu: it has waited", i);
	}
	/* Querying an absent page does not fault it in. */
	check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
	check(!advise(p->b.pd, NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH, remote.buf, LEN,
		      remote.mr->lkey), "advice");
	write_arrives(p, remote.buf, LEN, 77);
}

#define ADVISERS 3
/* The range of one page table. */
#define WIDE (PAGE * (PAGE / 8))

/* Gives advice about parts of the region, at a rate that lets others proceed. */
static void *adviser(void *arg)
{
	static const uint32_t advices[ADVISERS] = { READ, WRITE, NO_FAULT };
	size_t which = (uintptr_t)arg;

	for (size_t i = which; !storm_ends; i++) {
		size_t from = i * 7 % 64, pages = 1 + i * 5 % (64 - from);
		int error = advise(advised_pd, advices[which], IBV_ADVISE_MR_FLAG_FLUSH,
				   remote.buf + from * PAGE, pages * PAGE, remote.mr->lkey);

		/* Pages that keep changing cannot be queried. */
		if (error && error != EBUSY)
			return (void *)(uintptr_t)error;
		sleep_ms(1);
	}
	return NULL;
}

/*
 * Several threads query the same pages while they come and go: none of them uses a stale result of
 * another.
 */
PAIR_CASE(prefetch_while_pages_are_removed)
{
	pthread_t advisers[ADVISERS];
	int64_t end = now_ms() + 2500;

	must(prepare(p, LEN, RIGHTS));
	advised_pd = p->b.pd;
	for (uint32_t round = 0; now_ms() < end && !test_failed(); round++) {
		int64_t enough = now_ms() + 1000 * slow;
		uintptr_t n = 0;

		must(storm_begin(remote.buf));
		while (n < ADVISERS && !pthread_create(&advisers[n], NULL, adviser, (void *)n))
			n++;
		while (storm_lasts(now_ms() < enough)) {
			struct ibv_sge sge = sge_of(&local, 0, LEN);
			struct ibv_send_wr wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
			struct ibv_wc wc;
			int status;

			pattern_fill(local.buf, LEN, round);
			status = transfer(p, IBV_WR_RDMA_WRITE, 0, LEN, remote.buf);
			if (status != IBV_WC_SUCCESS)
				fail("status %d", status);
			else if (post_recv(&p->b, 2, &remote, 0, LEN) && post_send(&p->a, &wr) &&
				 expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) &&
				 expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS))
				pattern_or_zero(remote.buf, LEN, round);
			memset(remote.buf, 0, LEN);
		}
		storm_end();
		while (n--) {
			void *error;

			pthread_join(advisers[n], &error);
			if (error)
				fail("advice: %s", strerror((uintptr_t)error));
		}
		must(!test_failed());
		/* Without further changes, the device sees the pages as they are. */
		write_arrives(p, remote.buf, LEN, round + 1);
		read_finds(p, remote.buf, LEN, round + 1);
	}
}

/* Queries all present pages, or faults in the last one. */
static void *looker(void *arg)
{
	bool bring = arg;
	size_t from = bring ? WIDE - PAGE : 0;

	while (!storm_ends) {
		int error = advise(advised_pd, bring ? WRITE : NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH,
				   storm_at + from, WIDE - from, remote.mr->lkey);

		if (error && error != EBUSY)
			return (void *)(uintptr_t)error;
	}
	return NULL;
}

/* A query that finds no page does not undo another thread's fault. */
PAIR_CASE(query_does_not_undo_fault_of_other_thread)
{
	pthread_t bringer, watcher;
	int64_t end = now_ms() + 2000;
	void *error;

	must(odp_make(&remote, p->b.pd, 2 * WIDE, RIGHTS));
	/* Rejected where huge pages are not supported. */
	madvise(remote.buf, 2 * WIDE, MADV_NOHUGEPAGE);
	advised_pd = p->b.pd;
	storm_ends = false;
	/* Exactly the range of one page table, which is freed with its last page. */
	storm_at = (uint8_t *)(((uintptr_t)remote.buf + WIDE - 1) & -(uintptr_t)WIDE);
	check(!pthread_create(&bringer, NULL, looker, "") &&
		      !pthread_create(&watcher, NULL, looker, NULL), "a thread");
	while (now_ms() < end)
		madvise(storm_at, WIDE, MADV_DONTNEED);
	storm_ends = true;
	pthread_join(bringer, &error);
	check(!error, "bringing in: %s", strerror((uintptr_t)error));
	pthread_join(watcher, &error);
	check(!error, "looking: %s", strerror((uintptr_t)error));
}

PAIR_CASE(invalid_advice_is_refused)
{
	struct region pinned, read_only;
	const uint32_t now = IBV_ADVISE_MR_FLAG_FLUSH;
	int error;

	must(prepare(p, LEN, RIGHTS));
	must(region_make(&pinned, p->b.pd, LEN, ALL_RIGHTS));
	must(odp_make(&read_only, p->b.pd, LEN, IBV_ACCESS_REMOTE_READ | ODP));
	error = advise(p->b.pd, READ, now, remote.buf, LEN, remote.mr->lkey ^ 1);
	check(error == EFAULT, "another key: %s", strerror(error));
	error = advise(p->a.pd, READ, now, remote.buf, LEN, remote.mr->lkey);
	check(error == EFAULT, "another domain: %s", strerror(error));
	error = advise(p->b.pd, READ, now, remote.buf, LEN + 1, remote.mr->lkey);
	check(error == EFAULT, "beyond the end: %s", strerror(error));
	error = advise(p->b.pd, READ, now, remote.buf - 1, 2, remote.mr->lkey);
	check(error == EFAULT, "before the beginning: %s", strerror(error));
	error = advise(p->b.pd, READ, now, pinned.buf, LEN, pinned.mr->lkey);
	check(error == EINVAL, "pinned memory: %s", strerror(error));
	error = advise(p->b.pd, WRITE, now, read_only.buf, LEN, read_only.mr->lkey);
	check(error == EFAULT, "without the right: %s", strerror(error));
	error = advise(p->b.pd, READ, now, read_only.buf, LEN, read_only.mr->lkey);
	check(!error, "to read: %s", strerror(error));
	error = advise(p->b.pd, 7, now, remote.buf, LEN, remote.mr->lkey);
	check(error == EOPNOTSUPP, "another advice: %s", strerror(error));
	must(!mprotect(remote.buf, LEN, PROT_READ));
	error = advise(p->b.pd, WRITE, now, remote.buf, LEN, remote.mr->lkey);
	check(error == EFAULT, "of what the process may not write: %s", strerror(error));
	must(!mprotect(remote.buf, LEN, PROT_READ | PROT_WRITE));
	error = advise(p->b.pd, READ, 2, remote.buf, LEN, remote.mr->lkey);
	check(error == EINVAL, "another flag: %s", strerror(error));
	must(punch());
	error = advise(p->b.pd, READ, now, remote.buf, LEN, remote.mr->lkey);
	check(error == EFAULT, "a hole: %s", strerror(error));
	error = advise(p->b.pd, NO_FAULT, now, remote.buf, LEN, remote.mr->lkey);
	check(!error, "a hole, without faults: %s", strerror(error));
	mend();
	must(hide());
	error = advise(p->b.pd, WRITE, now, remote.buf, LEN, remote.mr->lkey);
	check(error == EFAULT, "secret memory: %s", strerror(error));
	error = advise(p->b.pd, NO_FAULT, now, remote.buf, LEN, remote.mr->lkey);
	check(!error, "secret memory, without faults: %s", strerror(error));
	mend();
	write_arrives(p, remote.buf, LEN, 1);
}

/*
 * --- slow page faults ---------------------------------------------------------------------------
 */

/* While one stream waits others proceed; the waiting stream keeps its order. */
PAIR_CASE(waiting_stream_delays_no_other)
{
	struct pair others;
	struct ibv_send_wr wr;
	struct region mail, answer;
	struct ibv_sge sge;
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	must(region_make(&mail, p->b.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&answer, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	must(pair_open(&others, NULL));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, LEN, 1);
	must(post_recv(&p->b, 3, &mail, 0, 64));
	must(post(&p->a, IBV_WR_RDMA_WRITE, 1, &local, 0, LEN, remote.buf, remote.mr->rkey));
	sge = sge_of(&local, 0, 64);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr));
	must(fault_came(fd));
	/* The Send behind the Write has to wait, other streams do not. */
	for (int i = 0; i < 5; i++)
		must(exchange_works(&others));
	must(expect_no_wc(p->b.recv_cq, QUIET));
	/* The other direction of this stream does not wait either. */
	must(post_recv(&p->a, 4, &answer, 0, 64));
	sge = sge_of(&mail, 0, 64);
	wr = wr_make(IBV_WR_SEND, 5, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->b, &wr) && expect_wc(p->a.recv_cq, &wc, 4, IBV_WC_SUCCESS));
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_SUCCESS));
	check(pattern_differs(remote.buf, LEN, 1) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, LEN, 1));
	pair_close(&others);
}

/*
 * What is placed is not placed again when the wait ends, since the program may have stored there:
 * the first part of a Send's buffer is in memory that is not paged. (Whether it was placed again
 * before the page fault is not seen.)
 */
PAIR_CASE(octets_placed_before_fault_are_not_placed_again)
{
	struct ibv_sge to[2], from;
	struct ibv_send_wr wr;
	struct region mail;
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	must(region_make(&mail, p->b.pd, PAGE, IBV_ACCESS_LOCAL_WRITE));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	memset(local.buf, 0x22, 128);
	to[0] = sge_of(&mail, 0, 64);
	to[1] = sge_of(&remote, 0, 64);
	must(post_recv_sges(&p->b, 1, to, 2));
	from = sge_of(&local, 0, 128);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &from, 1);
	must(post_send(&p->a, &wr));
	must(fault_came(fd));
	check(not_all(mail.buf, 64, 0x22) < 0, "the first part is not there");
	memset(mail.buf, 0x33, 64);
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(not_all(mail.buf, 64, 0x33) < 0, "octet %zd came back", not_all(mail.buf, 64, 0x33));
	check(not_all(remote.buf, 64, 0x22) < 0, "octet %zd is another",
	      not_all(remote.buf, 64, 0x22));
}

/* Of an FPDU for pages of which one is absent, nothing is placed before that one is there. */
PAIR_CASE(fpdu_is_not_placed_in_part_before_fault)
{
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	memset(local.buf, 0x11, LEN);
	must(transfer(p, IBV_WR_RDMA_WRITE, 0, PAGE, remote.buf) == IBV_WC_SUCCESS);
	must(settle(p));
	fd = faults_wait(remote.buf + PAGE, LEN - PAGE);
	must(fd >= 0);
	memset(local.buf, 0x22, LEN);
	must(post(&p->a, IBV_WR_RDMA_WRITE, 1, &local, 0, 128, remote.buf + PAGE - 64,
		  remote.mr->rkey));
	must(fault_came(fd));
	check(not_all(remote.buf, PAGE, 0x11) < 0, "octet %zd is there already",
	      not_all(remote.buf, PAGE, 0x11));
	must(faults_end(fd, remote.buf + PAGE, LEN - PAGE));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(settle(p));
	check(not_all(remote.buf + PAGE - 64, 128, 0x22) < 0, "octet %zd is another",
	      not_all(remote.buf + PAGE - 64, 128, 0x22));
}

/* Sends wait, too; the peer's requests are answered later. */
PAIR_CASE(read_response_waits_for_page_fault)
{
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	memset(local.buf, 0x77, LEN);
	must(post(&p->a, IBV_WR_RDMA_READ, 1, &local, 0, LEN, remote.buf, remote.mr->rkey));
	must(fault_came(fd));
	must(expect_no_wc(p->a.send_cq, QUIET));
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(not_all(local.buf, LEN, 0) < 0, "not zero");
}

/* A round of the receiver handles at most 4096 messages, however many have arrived meanwhile. */
PAIR_CASE(many_small_writes_wait_for_page_fault)
{
	static const char ENDS[] = "rx_budget_ends";
	static const int count = 10000;
	long before;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	before = device_counter(p->b.id->verbs, ENDS);
	must(before >= 0);
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, PAGE, 1);
	must(transfer(p, IBV_WR_RDMA_WRITE, 0, PAGE, remote.buf) == IBV_WC_SUCCESS);
	must(fault_came(fd));
	for (int i = 0; i < count; i++)
		must(transfer(p, IBV_WR_RDMA_WRITE, 0, 0, NULL) == IBV_WC_SUCCESS);
	check(device_counter(p->b.id->verbs, ENDS) == before, "a round has ended while all wait");
	must(faults_end(fd, remote.buf, LEN));
	must(settle(p));
	/* Whether all have arrived at once is up to TCP: what it still has makes rounds of its own. */
	check(device_counter(p->b.id->verbs, ENDS) > before, "no round has ended");
	check(pattern_differs(remote.buf, PAGE, 1) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, PAGE, 1));
}

/*
 * While TCP takes no more, a process posts until the queue is full; the accepted requests are sent
 * later.
 */
PAIR_CASE(full_send_queue_drains_after_page_fault, .sq_depth = 8)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int fd, rc = 0, posted = 0, done = 0, stuck = 0;

	must(prepare(p, LEN, RIGHTS));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	must(transfer(p, IBV_WR_RDMA_WRITE, 0, PAGE, remote.buf) == IBV_WC_SUCCESS);
	must(fault_came(fd));
	/*
	 * TCP is full when a large request stays, though small ones behind it make the transmit
	 * task try again.
	 */
	while (stuck < 6 && posted < 1000) {
		must(post(&p->a, IBV_WR_RDMA_WRITE, posted, &local, 0, posted == done ? LEN : 8,
			  remote.buf, remote.mr->rkey));
		posted++;
		stuck++;
		while (done < posted && poll_wc(p->a.send_cq, &wc, 250 * slow)) {
			check(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)done, "request %d",
			      done);
			done++;
			stuck = 0;
		}
	}
	/*
	 * Then small requests: as many as may be pending leave at once, and as many again wait
	 * behind those.
	 */
	sge = sge_of(&local, 0, 8);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, posted, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)remote.buf,
		     remote.mr->rkey);
	for (int refused = 0; refused < 20 && posted < 2000;) {
		rc = try_send(&p->a, &wr);
		if (rc) {
			refused++;
			sleep_ms(10);
		} else {
			wr.wr_id = ++posted;
		}
	}
	check(rc == ENOMEM && posted > done + 8, "%d posted, %d done: %s", posted, done, strerror(rc));
	must(faults_end(fd, remote.buf, LEN));
	for (; done < posted; done++)
		must(expect_wc(p->a.send_cq, &wc, done, IBV_WC_SUCCESS));
	must(exchange_works(p));
}

/* The peer closes while its messages wait: they arrive, and then the end is seen. */
PAIR_CASE(peer_close_waits_for_page_fault)
{
	int fd;

	must(prepare(p, LEN, RIGHTS));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, PAGE, 1);
	must(transfer(p, IBV_WR_RDMA_WRITE, 0, PAGE, remote.buf) == IBV_WC_SUCCESS);
	must(fault_came(fd));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	sleep_ms(QUIET);
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "state %d before the end has come",
	      qp_state(p->b.qp));
	must(faults_end(fd, remote.buf, LEN));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	check(pattern_differs(remote.buf, PAGE, 1) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, PAGE, 1));
}

/*
 * The first end to close has sent its FIN. What the other end sent before its own FIN arrives, and
 * then that is seen.
 */
PAIR_CASE(close_of_both_ends_waits_for_page_fault)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, PAGE, 1);
	sge = sge_of(&local, 0, PAGE);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
	must(post_recv(&p->b, 2, &remote, 0, PAGE) && post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(fault_came(fd));
	check(!rdma_disconnect(p->b.id), "rdma_disconnect: %s", strerror(errno));
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	/* Longer than the driver waits for a missing end. */
	sleep_ms(3000);
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	check(pattern_differs(remote.buf, PAGE, 1) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, PAGE, 1));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

/* Region and queue pair are destroyed while a page fault is under way. */
PAIR_CASE(region_and_queue_pair_destroyed_during_page_fault)
{
	struct ibv_wc wc;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	must(post(&p->a, IBV_WR_RDMA_WRITE, 1, &local, 0, LEN, remote.buf, remote.mr->rkey));
	must(post(&p->a, IBV_WR_RDMA_READ, 2, &local, 0, 64, remote.buf, remote.mr->rkey));
	must(fault_came(fd));
	must(region_release(&remote));
	rdma_destroy_qp(p->b.id);
	p->b.qp = NULL;
	must(poll_wc(p->a.send_cq, &wc, SOON) && poll_wc(p->a.send_cq, &wc, SOON));
	check(wc.status != IBV_WC_SUCCESS, "the Read succeeded");
	world_is_well();
	must(faults_end(fd, remote.buf, LEN));
	check(not_all(remote.buf, LEN, 0) < 0, "octet %zd was written after the region had gone",
	      not_all(remote.buf, LEN, 0));
	munmap(remote.buf, LEN);
}

/*
 * The queue pair is destroyed while a page fault for the peer's atomic operation is under way, and
 * its region stays: the operation is not carried out. One of another stream waits for the same page
 * behind it, so when that has completed, the page has come for both.
 */
PAIR_CASE(region_of_waiting_atomic_destroyed)
{
	struct pair others;
	struct region answer;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct ibv_mr *same;
	int fd;

	if (!has_extensions())
		return test_skip("the library has no atomic operations");
	must(prepare(p, LEN, RIGHTS) && pair_open(&others, NULL));
	must(region_make(&answer, others.a.pd, PAGE, ALL_RIGHTS));
	same = ibv_reg_mr(others.b.pd, remote.buf, LEN, RIGHTS);
	check(same, "ibv_reg_mr: %s", strerror(errno));
	must(!test_failed());
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	sge = sge_of(&local, 0, 8);
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, remote.buf, 5, 0);
	must(post_send(&p->a, &wr) && fault_came(fd));
	sge = sge_of(&answer, 0, 8);
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &sge, remote.buf, 7, 0);
	wr.wr.atomic.rkey = same->rkey;
	must(post_send(&others.a, &wr) && fault_came(fd));
	rdma_destroy_qp(p->b.id);
	p->b.qp = NULL;
	must(poll_wc(p->a.send_cq, &wc, SOON));
	check(wc.status != IBV_WC_SUCCESS, "the operation succeeded");
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(others.a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	must(exchange_works(&others));
	check(*remote.buf == 7, "left %u", *remote.buf);
	check(!ibv_dereg_mr(same), "ibv_dereg_mr: %s", strerror(errno));
	pair_close(&others);
}

/* Makes a window on memory of end b; NULL if windows are not supported. */
static struct ibv_mw *window_make(struct pair *p, uint8_t *at, size_t len)
{
	struct ibv_mw_bind bind = {
		.wr_id = 9,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = remote.mr,
			       .addr = (uintptr_t)at,
			       .length = len,
			       .mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_mw *mw = ibv_alloc_mw(p->b.pd, IBV_MW_TYPE_1);
	struct ibv_wc wc;

	if (!mw)
		fail("ibv_alloc_mw: %s", strerror(errno));
	else if (ibv_bind_mw(p->b.qp, mw, &bind) || !expect_wc(p->b.send_cq, &wc, 9, IBV_WC_SUCCESS))
		fail("binding: %s", strerror(errno));
	return mw;
}

/*
 * The window is deallocated while the pages for the peer's Read are faulted in. The memory is then
 * present, and the peer gets none of it.
 */
PAIR_CASE(window_deallocated_during_page_fault_of_read)
{
	struct ibv_mw *mw;
	struct ibv_wc wc;
	int fd;

	if (!has_extensions())
		return test_skip("the library has no memory windows");
	must(prepare(p, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | ODP));
	mw = window_make(p, remote.buf, LEN);
	must(!test_failed());
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	memset(local.buf, 0x77, LEN);
	must(post(&p->a, IBV_WR_RDMA_READ, 1, &local, 0, 64, remote.buf, mw->rkey));
	must(fault_came(fd));
	check(!ibv_dealloc_mw(mw), "ibv_dealloc_mw: %s", strerror(errno));
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	check(not_all(local.buf, LEN, 0x77) < 0, "octet %zd came through a window that had gone",
	      not_all(local.buf, LEN, 0x77));
}

static struct region other;

/*
 * Binds the window to the whole region under this key, by a queue pair of end b. One of type 1,
 * whose key the library chooses, is bound until it has come to that key.
 */
static bool bind_under(struct end *e, struct ibv_mw *mw, uint32_t key, const struct region *r)
{
	const unsigned int rights = RIGHTS & ~(IBV_ACCESS_LOCAL_WRITE | ODP);
	struct ibv_mw_bind_info info = { .mr = r->mr,
					 .addr = (uintptr_t)remote.buf,
					 .length = LEN,
					 .mw_access_flags = rights };
	struct ibv_mw_bind bind = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr wr = wr_make(IBV_WR_BIND_MW, 9, IBV_SEND_SIGNALED, NULL, 0);
	struct ibv_wc wc;

	do {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = key;
		wr.bind_mw.bind_info = info;
		if (mw->type == IBV_MW_TYPE_1 ? ibv_bind_mw(e->qp, mw, &bind) : !post_send(e, &wr)) {
			fail("binding: %s", strerror(errno));
			return false;
		}
		if (!expect_wc(e->send_cq, &wc, 9, IBV_WC_SUCCESS))
			return false;
		if (mw->type == IBV_MW_TYPE_2)
			mw->rkey = key;
	} while (mw->rkey != key);
	return true;
}

/*
 * A window is bound to other memory, under the same key and with the same addresses, while the
 * pages for the peer's operation are faulted in, and its first region is deregistered. Nothing is
 * placed in the first memory and nothing read from it: the operation goes to the other, which is
 * not known to be present either.
 */
static void bound_anew(struct pair *p, enum ibv_wr_opcode op)
{
	/* Behind a Response that waits, the queue pair of end b binds nothing. */
	bool by_another = op == IBV_WR_RDMA_READ;
	struct pair_opts beside = { .beside = &p->b };
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | ODP;
	struct ibv_send_wr inv = wr_make(IBV_WR_LOCAL_INV, 8, IBV_SEND_SIGNALED, NULL, 0);
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct pair others;
	struct end *binder;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t key;
	int fd;

	if (!has_extensions())
		return test_skip("the library has no memory windows");
	must(prepare(p, LEN, access) && odp_make(&other, p->b.pd, LEN, access));
	/* The other region has the addresses of the first. */
	must(region_release(&other));
	other.mr = ibv_reg_mr_iova(p->b.pd, other.buf, LEN, (uintptr_t)remote.buf, access);
	check(other.mr, "ibv_reg_mr_iova: %s", strerror(errno));
	region_keep(&other);
	pattern_fill(other.buf, LEN, 1);
	must(pair_open(&others, &beside));
	binder = by_another ? &others.b : &p->b;
	mw = ibv_alloc_mw(p->b.pd, by_another ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	check(mw, "ibv_alloc_mw: %s", strerror(errno));
	key = ibv_inc_rkey(mw->rkey);
	must(bind_under(binder, mw, key, &remote));
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, LEN, 2);
	sge = sge_of(&local, 0, 64);
	wr = wr_rdma(op, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)remote.buf, key);
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		wr = atomic(op, 1, &sge, remote.buf, 5, 0);
		wr.wr.atomic.rkey = key;
		*(uint64_t *)other.buf = 7;
	}
	must(post_send(&p->a, &wr) && fault_came(fd));
	if (!by_another) {
		inv.invalidate_rkey = key;
		must(post_send(&p->b, &inv) && expect_wc(p->b.send_cq, &wc, 8, IBV_WC_SUCCESS));
	}
	must(bind_under(binder, mw, key, &other));
	must(region_release(&remote));
	must(faults_end(fd, remote.buf, LEN));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) && settle(p));
	/* Any system call: User-Mode Linux exchanges the pages of a running process only then. */
	sched_yield();
	check(not_all(remote.buf, LEN, 0) < 0, "octet %zd was written after the region had gone",
	      not_all(remote.buf, LEN, 0));
	if (op == IBV_WR_RDMA_WRITE)
		check(pattern_differs(other.buf, 64, 2) < 0, "octet %zd is another",
		      pattern_differs(other.buf, 64, 2));
	else if (op == IBV_WR_RDMA_READ)
		check(pattern_differs(local.buf, 64, 1) < 0, "octet %zd is another",
		      pattern_differs(local.buf, 64, 1));
	else
		check(*(uint64_t *)other.buf == 12 && *(uint64_t *)local.buf == 7,
		      "left %lu, fetched %lu", *(uint64_t *)other.buf, *(uint64_t *)local.buf);
	check(!ibv_dealloc_mw(mw), "ibv_dealloc_mw: %s", strerror(errno));
	pair_close(&others);
	munmap(remote.buf, LEN);
}

PAIR_CASE(window_rebound_while_write_waits, .srq = srq_make)
{
	bound_anew(p, IBV_WR_RDMA_WRITE);
}

PAIR_CASE(window_rebound_while_read_waits, .srq = srq_make)
{
	bound_anew(p, IBV_WR_RDMA_READ);
}

PAIR_CASE(window_rebound_while_atomic_waits, .srq = srq_make)
{
	bound_anew(p, IBV_WR_ATOMIC_FETCH_AND_ADD);
}

static struct region earlier;

/*
 * An operation of the old stream waits for a page. Neither that it comes nor that it is removed
 * matters to the new stream, whose own operation waits behind it; and nothing is carried out.
 */
static void old_stream_waits(struct side *a, struct side *b, enum ibv_wr_opcode op, bool page_goes)
{
	struct ibv_qp_attr rights = { .qp_access_flags = RIGHTS & ~ODP };
	struct ibv_sge sge = sge_of(&a->memory, 0, 8);
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int fd;

	must(odp_make(&remote, b->pd, LEN, RIGHTS) && odp_make(&earlier, b->pd, LEN, RIGHTS));
	fd = faults_wait(earlier.buf, LEN);
	must(fd >= 0);
	check(!try_modify(b, &rights, IBV_QP_ACCESS_FLAGS), "rights to atomic operations");
	must(sides_join(a, b));
	wr = wr_rdma(op, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)earlier.buf, earlier.mr->rkey);
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr = atomic(op, 1, &sge, earlier.buf, 5, 0);
		wr.wr.atomic.rkey = earlier.mr->rkey;
	}
	must(side_post(a, &wr) && fault_came(fd));
	must(sides_reset(a, b));
	check(!try_modify(b, &rights, IBV_QP_ACCESS_FLAGS), "rights to atomic operations");
	must(sides_join(a, b) && traffic(a, b) && traffic(b, a));
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &sge, remote.buf, 7, 0);
	must(side_post(a, &wr));
	if (page_goes) {
		munmap(earlier.buf, LEN);
		close(fd);
	} else {
		must(faults_end(fd, earlier.buf, LEN));
	}
	must(expect_wc(a->cq, &wc, 2, IBV_WC_SUCCESS));
	check(*remote.buf == 7, "left %u", *remote.buf);
	check(page_goes || !*earlier.buf, "the old stream left %u", *earlier.buf);
	must(traffic(a, b) && traffic(b, a));
	if (page_goes)
		region_release(&earlier);
}

static void new_stream_behind(enum ibv_wr_opcode op)
{
	struct ibv_context *ctx = test_context();

	must(ctx);
	if (!has_extensions())
		return test_skip("the library has no atomic operations");
	for (int goes = 0; goes < 2 && !test_failed(); goes++) {
		struct side a, b;

		if (sides_open(&a, &b, ctx, 0))
			old_stream_waits(&a, &b, op, goes);
		region_free(&remote);
		region_free(&earlier);
		sides_close(&a, &b);
	}
}

static void new_stream_while_write_of_old_one_waits(void) { new_stream_behind(IBV_WR_RDMA_WRITE); }
static void new_stream_while_read_of_old_one_waits(void) { new_stream_behind(IBV_WR_RDMA_READ); }
static void new_stream_while_atomic_of_old_one_waits(void)
{
	new_stream_behind(IBV_WR_ATOMIC_FETCH_AND_ADD);
}

/* Returns whether the command reported its end, which may never happen. */
static bool says_done(FILE *command)
{
	struct pollfd pfd = { .fd = fileno(command), .events = POLLIN };
	char line[200] = "";

	return poll(&pfd, 1, SOON) == 1 && fgets(line, sizeof(line), command) &&
	       !strcmp(line, "done\n");
}

/* An unanswered page fault blocks neither the removal of another device nor that of a namespace. */
PAIR_CASE(page_fault_blocks_no_removal_of_other_devices)
{
	struct ibv_wc wc;
	FILE *command;
	int fd;

	must(prepare(p, LEN, RIGHTS));
	check(!system("ip netns add odp && ip link add odp0 type veth peer name odp1 netns odp"),
	      "a namespace");
	fd = faults_wait(remote.buf, LEN);
	must(fd >= 0);
	pattern_fill(local.buf, LEN, 1);
	must(post(&p->a, IBV_WR_RDMA_WRITE, 1, &local, 0, LEN, remote.buf, remote.mr->rkey));
	must(post(&p->a, IBV_WR_RDMA_READ, 2, &local, 0, 64, remote.buf, remote.mr->rkey));
	must(fault_came(fd));
	command = popen("rdma link add odp_other type riwarp netdev odp0 && "
			"rdma link del odp_other && echo done && "
			"ip netns exec odp rdma link add odp_other type riwarp netdev odp1 && "
			"ip netns del odp && "
			"while ip link show odp0 >/dev/null 2>&1; do sleep 0.1; done; echo done", "r");
	if (!command || !says_done(command))
		fail("a device does not end");
	else if (!says_done(command))
		fail("a namespace does not end");
	faults_end(fd, remote.buf, LEN);
	if (command)
		pclose(command);
	must(!test_failed());
	/* The waiting operation goes on. */
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	check(pattern_differs(remote.buf, LEN, 1) < 0, "octet %zd is another",
	      pattern_differs(remote.buf, LEN, 1));
}

/*
 * --- registration and processes -----------------------------------------------------------------
 */

PAIR_CASE(reregistration_of_on_demand_region)
{
	int error;

	must(prepare(p, LEN, IBV_ACCESS_LOCAL_WRITE | ODP));
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_RIGHTS);
	check(error == EOPNOTSUPP, "pinned from now on: %s", strerror(error));
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_RIGHTS | ODP);
	check(!error, "other rights: %s", strerror(error));
	write_arrives(p, remote.buf, LEN, 1);
	must(!test_failed());
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
		      remote.buf, LEN, ALL_RIGHTS);
	check(!error, "pinned memory: %s", strerror(error));
	read_finds(p, remote.buf, LEN, 1);
	must(!test_failed());
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
		      remote.buf, LEN, ALL_RIGHTS | ODP);
	check(!error, "not pinned again: %s", strerror(error));
	check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise");
	write_arrives(p, remote.buf, LEN, 2);
}

PAIR_CASE(window_of_on_demand_region)
{
	struct ibv_mw *mw;
	uint32_t rkey;

	if (!has_extensions())
		return test_skip("the library has no memory windows");
	must(prepare(p, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | ODP));
	mw = window_make(p, remote.buf + 5 * PAGE + 100, 4 * PAGE);
	must(!test_failed());
	rkey = remote.mr->rkey;
	remote.mr->rkey = mw->rkey;
	write_arrives(p, remote.buf + 5 * PAGE + 100, 4 * PAGE, 1);
	madvise(remote.buf, 8 * PAGE, MADV_DONTNEED);
	transfer(p, IBV_WR_RDMA_READ, 0, 4 * PAGE, remote.buf + 5 * PAGE + 100);
	remote.mr->rkey = rkey;
	ibv_dealloc_mw(mw);
	must(!test_failed());
	check(not_all(local.buf, 2 * PAGE, 0) < 0, "pages that were gone are not empty");
}

PAIR_CASE(deregistered_under_traffic)
{
	struct ibv_wc wc;
	int done = 0, posted = 16;

	must(prepare(p, LEN, RIGHTS));
	for (int i = 0; i < posted; i++)
		must(post(&p->a, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i, &local, 0, LEN,
			  remote.buf, remote.mr->rkey));
	must(region_release(&remote));
	munmap(remote.buf, LEN);
	while (done < posted && poll_wc(p->a.send_cq, &wc, SOON))
		done++;
	check(done == posted, "%d completions", done);
	world_is_well();
}

static void victim(struct pair *p)
{
	if (!prepare(p, LEN, RIGHTS))
		_exit(1);
	for (bool first = true;; first = false) {
		madvise(remote.buf, LEN, MADV_DONTNEED);
		if (transfer(p, IBV_WR_RDMA_WRITE, 0, LEN, remote.buf) != IBV_WC_SUCCESS ||
		    transfer(p, IBV_WR_RDMA_READ, 0, LEN, remote.buf) != IBV_WC_SUCCESS)
			_exit(2);
		if (first)
			victim_ready();
	}
}

static void killed_process_releases_regions(void)
{
	for (int i = 0; i < 3; i++)
		must(killed_in(victim));
	world_is_well();
}

/* Lets a page fault of the device wait, says by which descriptor, and waits to be killed. */
static void leaves_a_fault(int out)
{
	struct pair p;
	int fd;

	if (!pair_open(&p, NULL) || !prepare(&p, LEN, RIGHTS))
		_exit(1);
	fd = faults_wait(remote.buf, LEN);
	if (fd < 0 || !post(&p.a, IBV_WR_RDMA_WRITE, 1, &local, 0, LEN, remote.buf, remote.mr->rkey) ||
	    !fault_came(fd) || write(out, &fd, sizeof(fd)) != sizeof(fd))
		_exit(1);
	pause();
	_exit(1);
}

/*
 * The module is unloaded while a page fault is under way of a process that is gone. Unloading has to
 * wait for it, but nobody else: network namespaces come and go. Run alone, since it takes the module
 * away.
 */
static void unload_during_page_fault_delays_no_namespace(void)
{
	int pipes[2], fd = -1, pidfd;
	struct pollfd pfd;
	FILE *unloads = NULL, *others = NULL;
	pid_t child;

	check(!pipe(pipes), "pipe: %s", strerror(errno));
	child = fork();
	if (!child)
		leaves_a_fault(pipes[1]);
	close(pipes[1]);
	pfd = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	if (poll(&pfd, 1, 3 * SOON) == 1 && read(pipes[0], &fd, sizeof(fd)) == sizeof(fd)) {
		pidfd = syscall(SYS_pidfd_open, child, 0);
		fd = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		close(pidfd);
	}
	close(pipes[0]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	check(fd >= 0, "no page fault that waits: %s", strerror(errno));
	unloads = popen("until modprobe -r riwarp 2>/dev/null; do sleep 0.1; done; echo done", "r");
	/* Unloading waits for the device from then on. */
	others = popen("while [ \"$(ls -A /sys/class/infiniband)\" ]; do sleep 0.1; done; "
		       "unshare -n true && sleep 1 && unshare -n true && "
		       "ls /sys/module | grep -qx riwarp && echo done", "r");
	if (!unloads || !others || !says_done(others))
		fail("no network namespace can be created");
	close(fd);
	if (unloads && !says_done(unloads))
		fail("the module is not unloaded");
	if (others)
		pclose(others);
	if (unloads)
		pclose(unloads);
}

/*
 * --- all memory as one region -------------------------------------------------------------------
 */

/* The length of the parts that the device divides the memory into (rust/rdma/mem/paged/implicit.rs). */
#define PART ((size_t)PAGE * 512)
/* Most parts at a time. */
#define PARTS 2048

static uint8_t *end_of_part(const uint8_t *at)
{
	return (uint8_t *)(((uintptr_t)at / PART + 1) * PART);
}

/* Octets on both sides of the end of a part, at both ends of a transfer, absent or not. */
PAIR_CASE(implicit_transfer_spans_two_parts)
{
	struct region all;
	struct ibv_wc wc;

	must(prepare(p, 3 * PART, RIGHTS));
	must(odp_make(&all, p->a.pd, 3 * PART, IBV_ACCESS_LOCAL_WRITE | ODP));
	for (uint32_t i = 0; i < 40; i++) {
		uint8_t *at = end_of_part(remote.buf + i % 2 * PART) - 700 * (i % 4) - i;
		uint8_t *from = end_of_part(all.buf) - 300 * (i % 10) - 1;
		size_t len = 3000 + i;

		if (i % 3 == 0)
			check(!madvise(remote.buf, 3 * PART, MADV_DONTNEED), "madvise");
		pattern_fill(from, len, i);
		must(post(&p->a, IBV_WR_RDMA_WRITE, i, &all, from - all.buf, len, at,
			  remote.mr->rkey));
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS) && settle(p));
		sched_yield();
		check(pattern_differs(at, len, i) < 0, "Write %u: octet %zd is another", i,
		      pattern_differs(at, len, i));
		memset(from, 0, len);
		must(post(&p->a, IBV_WR_RDMA_READ, i, &all, from - all.buf, len, at,
			  remote.mr->rkey));
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		check(pattern_differs(from, len, i) < 0, "Read %u: octet %zd is another", i,
		      pattern_differs(from, len, i));
	}
	check(device_counter(p->a.id->verbs, "rx_page_waits") > 0, "it has never waited");
}

/* More parts than a region has at a time: the later ones take the places of the earlier ones. */
PAIR_CASE(implicit_parts_beyond_the_limit_replace_others)
{
	size_t n = PARTS + 100, step = PART;
	long before;
	int fd = memfd_create("pages", MFD_CLOEXEC);
	uint8_t *at = mmap(NULL, n * step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(prepare(p, PAGE, RIGHTS));
	check(fd >= 0 && !ftruncate(fd, n * PAGE), "memfd: %s", strerror(errno));
	check(at != MAP_FAILED, "mmap: %s", strerror(errno));
	for (size_t i = 0; i < n; i++)
		check(mmap(at + i * step, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			   i * PAGE) != MAP_FAILED, "mmap: %s", strerror(errno));
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < n; i++) {
			memcpy(local.buf, &i, sizeof(i));
			must(transfer(p, IBV_WR_RDMA_WRITE, 0, 8, at + i * step + 8 * round) ==
			     IBV_WC_SUCCESS);
		}
	must(settle(p));
	for (size_t i = 0; i < n; i++)
		for (int round = 0; round < 2; round++) {
			transfer(p, IBV_WR_RDMA_READ, 0, 8, at + i * step + 8 * round);
			check(!memcmp(local.buf, &i, sizeof(i)), "part %zu is another", i);
		}
	/* Those that are used next stay, also if they are in front of all others. */
	for (size_t i = 200; i--;)
		must(transfer(p, IBV_WR_RDMA_WRITE, 0, 8, at + i * step) == IBV_WC_SUCCESS);
	before = device_counter(p->a.id->verbs, "rx_page_waits");
	for (size_t i = 0; i < 20; i++)
		must(transfer(p, IBV_WR_RDMA_WRITE, 0, 8, at + i % 2 * step) == IBV_WC_SUCCESS);
	must(settle(p));
	check(device_counter(p->a.id->verbs, "rx_page_waits") <= before + 4, "%ld waits",
	      device_counter(p->a.id->verbs, "rx_page_waits") - before);
	check(!munmap(at, n * step), "munmap");
	close(fd);
	world_is_well();
}

/* Addresses at which the process has nothing, and which no process can have. */
static void nothing_there(struct pair *p, const void *at)
{
	must(prepare(p, PAGE, RIGHTS));
	check(transfer(p, IBV_WR_RDMA_READ, 0, 64, at) == IBV_WC_REM_ACCESS_ERR, "%p is there", at);
	world_is_well();
}

PAIR_CASE(implicit_access_to_first_page_fails) { nothing_there(p, NULL); }
PAIR_CASE(implicit_access_to_last_page_fails) { nothing_there(p, (void *)(UINTPTR_MAX - 200)); }
PAIR_CASE(implicit_access_to_kernel_address_fails) { nothing_there(p, (void *)(1ul << 63 | 1ul << 62)); }
PAIR_CASE(implicit_access_that_wraps_fails) { nothing_there(p, (void *)(UINTPTR_MAX - 20)); }

/* The rights that a region has are those of all memory. */
PAIR_CASE(implicit_region_without_write_right_is_not_written)
{
	must(prepare(p, PAGE, IBV_ACCESS_REMOTE_READ | ODP));
	read_finds(p, remote.buf, 0, 1);
	transfer(p, IBV_WR_RDMA_WRITE, 0, 64, remote.buf);
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(remote.buf, PAGE, 0) < 0, "it was written");
	world_is_well();
}

/* Advice about octets of several parts. */
PAIR_CASE(prefetch_spans_several_parts)
{
	long before;

	must(prepare(p, 3 * PART, RIGHTS));
	madvise(remote.buf, 3 * PART, MADV_NOHUGEPAGE);
	/* Not in the order of their addresses. */
	check(!advise(p->b.pd, WRITE, IBV_ADVISE_MR_FLAG_FLUSH, remote.buf + 2 * PART, PART,
		      remote.mr->lkey), "advice");
	check(!advise(p->b.pd, WRITE, IBV_ADVISE_MR_FLAG_FLUSH, remote.buf, 2 * PART,
		      remote.mr->lkey), "advice");
	before = device_counter(p->a.id->verbs, "rx_page_waits");
	for (size_t i = 0; i < 3; i++)
		write_arrives(p, remote.buf + i * PART + PART / 2, LEN, i);
	check(device_counter(p->a.id->verbs, "rx_page_waits") == before, "it has waited");
	check(advise(p->b.pd, WRITE, IBV_ADVISE_MR_FLAG_FLUSH, NULL, PAGE, remote.mr->lkey) == EFAULT,
	      "advice about nothing: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (getenv("UNLOADS")) {
		RUN(unload_during_page_fault_delays_no_namespace);
		return test_end();
	}
	RUN(killed_process_releases_regions);
	RUN(registration_pins_no_pages);
	RUN(writes_to_untouched_pages);
	RUN(reads_of_untouched_pages);
	RUN(absent_local_pages_are_faulted_in);
	RUN(sends_from_and_into_absent_pages);
	RUN(sends_into_absent_pages_by_srq);
	RUN(atomics_on_untouched_pages);
	RUN(writes_while_pages_are_removed);
	RUN(reads_while_pages_are_removed);
	RUN(sends_while_pages_are_removed);
	RUN(atomics_while_pages_are_removed);
	RUN(pages_removed_by_real_time_thread);
	RUN(remapped_memory_becomes_the_regions);
	RUN(region_after_fork);
	RUN(region_of_mapped_file);
	RUN(write_to_unmapped_memory);
	RUN(read_of_unmapped_memory);
	RUN(atomic_on_unmapped_memory);
	RUN(atomic_result_into_unmapped_memory);
	RUN(send_of_unmapped_memory);
	RUN(receive_into_unmapped_memory);
	RUN(read_into_unmapped_memory);
	RUN(a_write_to_secret_memory);
	RUN(a_read_of_secret_memory);
	RUN(a_send_of_secret_memory);
	RUN(a_receive_into_secret_memory);
	RUN(read_only_memory_is_not_written);
	RUN(access_rights_are_enforced);
	RUN(prefetched_pages_are_not_waited_for);
	RUN(prefetch_while_pages_are_removed);
	RUN(query_does_not_undo_fault_of_other_thread);
	RUN(waiting_stream_delays_no_other);
	RUN(octets_placed_before_fault_are_not_placed_again);
	RUN(fpdu_is_not_placed_in_part_before_fault);
	RUN(read_response_waits_for_page_fault);
	RUN(many_small_writes_wait_for_page_fault);
	RUN(full_send_queue_drains_after_page_fault);
	RUN(peer_close_waits_for_page_fault);
	RUN(close_of_both_ends_waits_for_page_fault);
	RUN(region_and_queue_pair_destroyed_during_page_fault);
	RUN(region_of_waiting_atomic_destroyed);
	RUN(window_deallocated_during_page_fault_of_read);
	RUN(window_rebound_while_write_waits);
	RUN(window_rebound_while_read_waits);
	RUN(window_rebound_while_atomic_waits);
	RUN(new_stream_while_write_of_old_one_waits);
	RUN(new_stream_while_read_of_old_one_waits);
	RUN(new_stream_while_atomic_of_old_one_waits);
	RUN(window_of_on_demand_region);
	RUN(deregistered_under_traffic);
	if (!IMPLICIT) {
		RUN(device_reports_odp_capabilities);
		RUN(implicit_region_must_cover_all_memory);
		RUN(invalid_advice_is_refused);
		RUN(reregistration_of_on_demand_region);
		RUN(page_fault_blocks_no_removal_of_other_devices);
		return test_end();
	}
	RUN(implicit_transfer_spans_two_parts);
	RUN(implicit_parts_beyond_the_limit_replace_others);
	RUN(implicit_access_to_first_page_fails);
	RUN(implicit_access_to_last_page_fails);
	RUN(implicit_access_to_kernel_address_fails);
	RUN(implicit_access_that_wraps_fails);
	RUN(implicit_region_without_write_right_is_not_written);
	RUN(prefetch_spans_several_parts);
	return test_end();
}

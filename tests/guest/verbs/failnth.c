// SPDX-License-Identifier: GPL-2.0
/*
 * Each allocation of each operation fails once, in a kernel with fault injection.
 *
 * Allocations count if the module's code is in the call stack: tests/guest/allocations.sh has aimed
 * failslab and fail_page_alloc at it. A sweep repeats an operation: the first allocation fails,
 * then the second, and so on until none is left to fail. There are four kinds of sweep:
 *
 *   nth     of the allocations of this thread (/proc/thread-self/fail-nth)
 *   burst   the same, and the next ones of this thread fail too: what the kernel can allocate in two
 *           ways is not allocated at all
 *   slab    of the slab objects that any thread or softirq allocates
 *   pages   the same of pages
 *
 * After a failure the operation has failed with one of the results that it names, or has succeeded
 * in spite of it. Then it must succeed without a failure. An operation of which no allocation
 * failed fails the case.
 *
 * The file COUNTS gets a line for each operation: its name, how many allocations failed in each
 * kind of sweep, the longest time in ms, and the results. SPARE is an interface without a device.
 */

#include "modify.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <rdma/rdma_netlink.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* --- failing allocations ---------------------------------------------------------------------- */

enum attribute { SLAB, PAGES, ATTRIBUTES };

static const char *const attribute_names[] = { "failslab", "fail_page_alloc" };

enum control { PROBABILITY, INTERVAL, TIMES, FILTER, START, END, CONTROLS };

static const char *const control_names[] = { "probability", "interval",	     "times",
					     "task-filter", "require-start", "require-end" };

static int controls[ATTRIBUTES][CONTROLS];
/* Where the module's code lies. */
static uint64_t module_start, module_end;
static int fail_nth;

/* Such a file is read once after it was opened, which may be what fails. */
static uint64_t control_value(enum attribute a, enum control c)
{
	char path[100], text[32] = "";
	int fd = -1;

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", attribute_names[a], control_names[c]);
	for (int tries = 0; fd < 0 && tries < 3; tries++)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 1)
		fail("%s: %s", path, strerror(errno));
	close(fd);
	return strtoull(text, NULL, 0);
}

static void set_number(int fd, uint64_t value)
{
	char text[32];
	int len = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);

	if (write(fd, text, len) != len)
		fail("setting a number of fault injection to %s: %s", text, strerror(errno));
}

/* Returns how many allocations of this thread are left until one fails. */
static int fail_nth_left(void)
{
	char text[32] = "";

	if (pread(fail_nth, text, sizeof(text) - 1, 0) < 1)
		fail("fail-nth: %s", strerror(errno));
	return atoi(text);
}

static void set(enum attribute a, enum control c, uint64_t value) { set_number(controls[a][c], value); }

static void only_below(enum attribute a, uint64_t start, uint64_t end)
{
	set(a, START, start);
	set(a, END, end);
}

/* The task filter lets this thread pass only. */
static bool failures_prepare(void)
{
	char path[100];

	for (int a = 0; a < ATTRIBUTES; a++)
		for (int c = 0; c < CONTROLS; c++) {
			snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", attribute_names[a],
				 control_names[c]);
			controls[a][c] = open(path, O_WRONLY | O_CLOEXEC);
			if (controls[a][c] < 0) {
				fail("%s: %s", path, strerror(errno));
				return false;
			}
		}
	module_start = control_value(SLAB, START);
	module_end = control_value(SLAB, END);
	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_nth < 0 || !module_start || !file_write("/proc/thread-self/make-it-fail", "1")) {
		fail("no fault injection: %s", strerror(errno));
		return false;
	}
	return !test_failed();
}

struct paused {
	int left, probability[ATTRIBUTES];
};

enum sweep { NTH, BURST, ANY_SLAB, ANY_PAGES, SWEEPS };

static const char *const sweep_names[] = { "nth", "burst", "slab", "pages" };

#define OWN (1 << NTH | 1 << BURST)
#define ANY (1 << ANY_SLAB | 1 << ANY_PAGES)

/* Allocates slab objects and a page. Any of them may fail. */
static void allocate(void)
{
	int ends[2];

	if (pipe(ends))
		return;
	if (write(ends[1], "x", 1) != 1)
		errno = 0;
	close(ends[0]);
	close(ends[1]);
}

/*
 * Lets the nth allocation fail, once. The kernel fails each one at which its count of allocations
 * is a multiple of the interval, and does not reset this count: here it becomes such a multiple.
 */
static void interval_arm(enum attribute a, int n)
{
	if (n > 1) {
		set(a, FILTER, 1);
		only_below(a, 0, UINT64_MAX);
		set(a, INTERVAL, n);
		set(a, TIMES, 1);
		set(a, PROBABILITY, 100);
		for (int i = 0; control_value(a, TIMES) && i < 10 * n + 100; i++)
			allocate();
		set(a, PROBABILITY, 0);
		if (control_value(a, TIMES))
			fail("no allocation of this thread fails");
		only_below(a, module_start, module_end);
		set(a, FILTER, 0);
	}
	set(a, INTERVAL, n);
	set(a, TIMES, 1);
	set(a, PROBABILITY, 100);
}

static void arm(enum sweep sweep, int n)
{
	switch (sweep) {
	case ANY_SLAB:
		return interval_arm(SLAB, n);
	case ANY_PAGES:
		return interval_arm(PAGES, n);
	case BURST:
		for (int a = 0; a < ATTRIBUTES; a++) {
			set(a, FILTER, 1);
			set(a, INTERVAL, 1);
			set(a, TIMES, 2);
			set(a, PROBABILITY, 100);
		}
		break;
	default:
		break;
	}
	set_number(fail_nth, n);
}

/* Ends the failures; returns whether the allocation has failed. */
static bool disarm(enum sweep sweep)
{
	bool failed;

	if (sweep == NTH || sweep == BURST)
		failed = !fail_nth_left();
	else
		failed = !control_value(sweep == ANY_SLAB ? SLAB : PAGES, TIMES);
	set_number(fail_nth, 0);
	for (int a = 0; a < ATTRIBUTES; a++) {
		set(a, PROBABILITY, 0);
		set(a, FILTER, 0);
	}
	return failed;
}

/* Lets no allocation fail between the two, which an operation calls around another one. */
static void pause_failures(struct paused *p)
{
	p->left = fail_nth_left();
	set_number(fail_nth, 0);
	for (int a = 0; a < ATTRIBUTES; a++) {
		p->probability[a] = control_value(a, PROBABILITY);
		set(a, PROBABILITY, 0);
	}
}

static void resume_failures(const struct paused *p)
{
	for (int a = 0; a < ATTRIBUTES; a++)
		set(a, PROBABILITY, p->probability[a]);
	set_number(fail_nth, p->left);
}

/* --- operations ------------------------------------------------------------------------------- */

/*
 * Each function that can fail returns NULL if it was done, otherwise the name of the result: of an
 * errno, an event or a status.
 */
struct operation {
	const char *name;
	unsigned int sweeps;
	/* The results of a failure, beside ENOMEM. */
	const char *results;
	/* Makes what the operation needs, if it is not there. It has failed the case on error. */
	bool (*prepare)(void);
	const char *(*run)(void);
	/* Takes back what was done; must always succeed, so allocations fail in there, too. */
	int (*undo)(void);
	/* After how many failures the operation is tried without one. */
	int again;
};

/* The sweep that runs. */
static enum sweep current;

static const char *of_errno(int error) { return error ? strerrorname_np(error) : NULL; }

/* The results of an operation with their numbers. */
static struct {
	const char *result;
	int times;
} seen[32];

static void count(const char *result)
{
	for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
		if (!seen[i].times)
			seen[i].result = result;
		if (!strcmp(seen[i].result, result)) {
			seen[i].times++;
			return;
		}
	}
}

static bool is_among(const char *results, const char *result)
{
	const char *at = results;
	size_t len = strlen(result);

	for (; at && (at = strstr(at, result)); at += len)
		if ((at == results || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
			return true;
	return false;
}

/* More allocations than any operation makes. */
#define LIMIT 2000
/* Other threads allocate in no fixed order, so a number without a failure does not say enough. */
#define MISSES 3

static int longest;

/* Does the operation without a failure. */
static bool works(const struct operation *o)
{
	const char *result;

	if (!o->prepare())
		return false;
	result = o->run();
	if (result)
		fail("%s without a failure: %s", o->name, result);
	else
		o->undo();
	return !test_failed();
}

/* Runs an operation, of which the nth allocation fails; returns whether one has failed. */
static bool once(const struct operation *o, enum sweep sweep, int n)
{
	const char *result;
	int64_t begin;
	bool failed;
	int took;

	if (!o->prepare())
		return false;
	begin = now_ms();
	arm(sweep, n);
	result = o->run();
	failed = disarm(sweep);
	took = now_ms() - begin;
	if (took > longest)
		longest = took;
	if (failed)
		printf("%s: %s %d: %s in %d ms\n", o->name, sweep_names[sweep], n,
		       result ? result : "done", took);
	if (!result)
		o->undo();
	if (failed)
		count(result ? result : "done");
	else if (result)
		fail("%s without a failure: %s", o->name, result);
	if (failed && result) {
		if (strcmp(result, "ENOMEM") && !is_among(o->results, result))
			fail("%s: %s after allocation %d of %s has failed", o->name, result, n,
			     sweep_names[sweep]);
		works(o);
	}
	if (test_failed())
		printf("%s: that was %s %d\n", o->name, sweep_names[sweep], n);
	return failed;
}

static int sweep_all(const struct operation *o, enum sweep sweep)
{
	int total = 0, misses = 0, most = sweep == NTH || sweep == BURST ? 1 : MISSES;

	current = sweep;
	for (int n = 1; n <= LIMIT && misses < most; n++) {
		bool failed = once(o, sweep, n);

		if (test_failed())
			break;
		total += failed;
		misses = failed ? 0 : misses + 1;
	}
	if (!test_failed() && misses < most)
		fail("%s: %d allocations have failed and more are left", o->name, total);
	return total;
}

/* The same while the operation is taken back, which has to succeed. */
static int sweep_undo(const struct operation *o)
{
	current = NTH;
	for (int n = 1; n <= LIMIT; n++) {
		const char *result;
		int error;
		bool failed;

		if (!o->prepare())
			return n;
		result = o->run();
		if (result) {
			fail("%s without a failure: %s", o->name, result);
			return n;
		}
		arm(NTH, n);
		error = o->undo();
		failed = disarm(NTH);
		if (error)
			fail("taking back %s: %s when allocation %d has failed", o->name,
			     strerror(error), n);
		if (test_failed() || !failed)
			return n - 1;
	}
	fail("taking back %s: more is left", o->name);
	return LIMIT;
}

static void operate(const struct operation *o)
{
	const char *path = getenv("COUNTS");
	FILE *counts = fopen(path ? path : "/dev/null", "a");
	int total = 0;

	memset(seen, 0, sizeof(seen));
	longest = 0;
	fprintf(counts, "%s |", o->name);
	for (int sweep = 0; sweep < SWEEPS && !test_failed(); sweep++) {
		int failures;

		if (!(o->sweeps & 1 << sweep))
			continue;
		failures = sweep_all(o, sweep);
		fprintf(counts, " %s %d", sweep_names[sweep], failures);
		total += failures;
	}
	if (!test_failed() && o->sweeps & OWN)
		fprintf(counts, " back %d", sweep_undo(o));
	fprintf(counts, " | %d |", longest);
	for (size_t i = 0; i < ARRAY_SIZE(seen) && seen[i].times; i++)
		fprintf(counts, " %s %d", seen[i].result, seen[i].times);
	fprintf(counts, "\n");
	fclose(counts);
	if (!test_failed())
		check(total, "no allocation has failed");
}

/* OPERATION(name, sweeps, results, prepare, run, undo) defines a case. */
#define OPERATION(case_name, ...) SLOW_OPERATION(case_name, __VA_ARGS__, 1)
/* The same of one that takes long, and is tried without a failure more seldom. */
#define SLOW_OPERATION(case_name, ...)                                                             \
	static void case_name(void)                                                                \
	{                                                                                          \
		static const struct operation o = { #case_name, __VA_ARGS__ };                     \
                                                                                                   \
		operate(&o);                                                                       \
	}

/* --- objects of a process --------------------------------------------------------------------- */

#define PAGES_OF_MEMORY 64
#define LEN (PAGES_OF_MEMORY * PAGE)

static struct ibv_context *ctx;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *cq;
/* Memory whose pages are there. */
static uint8_t *memory;

static bool world_open(void)
{
	ctx = test_context();
	if (!ctx)
		return false;
	pd = ibv_alloc_pd(ctx);
	other_pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!pd || !other_pd || !cq || memory == MAP_FAILED) {
		fail("objects: %s", strerror(errno));
		return false;
	}
	memset(memory, 0x5a, LEN);
	return true;
}

static void world_close(void)
{
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_dealloc_pd(other_pd);
}

static bool nothing(void) { return true; }

/*
 * The library opens a device by a newer call, after whose failure ib_core keeps the task for ever
 * (UVERBS_METHOD_GET_CONTEXT). This is the older one.
 */
static int opened = -1;

static const char *open_run(void)
{
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_get_context cmd;
		/* What libsiw and librxe add. */
	} req = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_GET_CONTEXT,
			.in_words = sizeof(req) / 4,
		},
	};
	struct {
		struct ib_uverbs_get_context_resp resp;
		uint32_t driver[2];
	} answer = { 0 };
	char path[100];
	int error = 0;

	snprintf(path, sizeof(path), "/dev/infiniband/%s", ctx->device->dev_name);
	opened = open(path, O_RDWR | O_CLOEXEC);
	if (opened < 0)
		return of_errno(errno);
	req.hdr.out_words = sizeof(answer) / 4;
	req.cmd.response = (uintptr_t)&answer;
	if (write(opened, &req, sizeof(req)) != sizeof(req))
		error = errno;
	if (error)
		close(opened);
	else
		close(answer.resp.async_fd);
	return of_errno(error);
}

static int open_undo(void) { return close(opened) ? errno : 0; }

OPERATION(open_device, OWN, NULL, nothing, open_run, open_undo)

static struct ibv_pd *made_pd;

static const char *pd_run(void)
{
	made_pd = ibv_alloc_pd(ctx);
	return made_pd ? NULL : of_errno(errno);
}

static int pd_undo(void) { return ibv_dealloc_pd(made_pd); }

OPERATION(alloc_pd, OWN, NULL, nothing, pd_run, pd_undo)

static struct ibv_cq *made_cq;

static const char *cq_run(void)
{
	made_cq = ibv_create_cq(ctx, 100, NULL, NULL, 0);
	return made_cq ? NULL : of_errno(errno);
}

static int cq_undo(void) { return ibv_destroy_cq(made_cq); }

OPERATION(create_cq, OWN, NULL, nothing, cq_run, cq_undo)

/*
 * The first queue of a context, which ends behind it. When memory for a queue's offset is short,
 * the context's table of offsets must not keep what it had allocated: ib_uverbs would warn.
 */
static struct ibv_context *own_ctx;

static bool own_ctx_open(void)
{
	if (own_ctx)
		ibv_close_device(own_ctx);
	own_ctx = ibv_open_device(ctx->device);
	if (!own_ctx)
		fail("ibv_open_device: %s", strerror(errno));
	return own_ctx;
}

static const char *first_cq_run(void)
{
	made_cq = ibv_create_cq(own_ctx, 100, NULL, NULL, 0);
	return made_cq ? NULL : of_errno(errno);
}

OPERATION(create_first_cq, OWN, NULL, own_ctx_open, first_cq_run, cq_undo)

static bool resize_prepare(void)
{
	if (!made_cq) {
		made_cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
		if (!made_cq)
			fail("ibv_create_cq: %s", strerror(errno));
	}
	return made_cq;
}

static const char *resize_run(void)
{
	int rc = ibv_resize_cq(made_cq, 100);

	return of_errno(rc < 0 ? errno : rc);
}

static int destroy_cq(void)
{
	int rc = made_cq ? ibv_destroy_cq(made_cq) : 0;

	made_cq = NULL;
	return rc;
}

OPERATION(resize_cq, OWN, NULL, resize_prepare, resize_run, destroy_cq)

static struct ibv_srq *made_srq;

static const char *srq_run(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 50, .max_sge = 2 } };

	made_srq = ibv_create_srq(pd, &attr);
	return made_srq ? NULL : of_errno(errno);
}

static int srq_undo(void)
{
	int rc = made_srq ? ibv_destroy_srq(made_srq) : 0;

	made_srq = NULL;
	return rc;
}

OPERATION(create_srq, OWN, NULL, nothing, srq_run, srq_undo)

static bool srq_prepare(void)
{
	if (!made_srq && srq_run())
		fail("ibv_create_srq: %s", strerror(errno));
	return made_srq;
}

static const char *srq_resize(void)
{
	struct ibv_srq_attr attr = { .max_wr = 100 };
	int rc = ibv_modify_srq(made_srq, &attr, IBV_SRQ_MAX_WR);

	return of_errno(rc < 0 ? -rc : rc);
}

OPERATION(resize_srq, OWN, NULL, srq_prepare, srq_resize, srq_undo)

static struct ibv_qp *made_qp;

static struct ibv_qp *qp_make(uint32_t depth, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = {
			.max_send_wr = depth,
			.max_recv_wr = srq ? 0 : depth,
			.max_send_sge = 2,
			.max_recv_sge = 2,
		},
	};

	return ibv_create_qp(pd, &attr);
}

static const char *qp_run(void)
{
	made_qp = qp_make(16, NULL);
	return made_qp ? NULL : of_errno(errno);
}

static int qp_undo(void) { return ibv_destroy_qp(made_qp); }

OPERATION(create_qp, OWN, NULL, nothing, qp_run, qp_undo)

static const char *qp_srq_run(void)
{
	made_qp = qp_make(10, made_srq);
	return made_qp ? NULL : of_errno(errno);
}

OPERATION(create_qp_with_srq, OWN, NULL, srq_prepare, qp_srq_run, qp_undo)

/* Long arrays are allocated in another way. */
static const char *deep_run(void)
{
	made_qp = qp_make(400, NULL);
	return made_qp ? NULL : of_errno(errno);
}

OPERATION(create_deep_qp, OWN, NULL, nothing, deep_run, qp_undo)

/* --- memory ----------------------------------------------------------------------------------- */

static struct ibv_mr *made_mr;

static const char *mr_of(void *at, size_t len, int access)
{
	made_mr = ibv_reg_mr(pd, at, len, access);
	return made_mr ? NULL : of_errno(errno);
}

static int mr_undo(void)
{
	int rc = made_mr ? ibv_dereg_mr(made_mr) : 0;

	made_mr = NULL;
	return rc;
}

static const char *mr_run(void) { return mr_of(memory, LEN, ALL_RIGHTS); }

OPERATION(reg_mr, OWN, NULL, nothing, mr_run, mr_undo)

/* The pages are not there yet. */
static uint8_t *absent;

static bool absent_prepare(void)
{
	if (absent)
		munmap(absent, 4 * PAGE);
	absent = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (absent == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return !test_failed();
}

static const char *absent_run(void) { return mr_of(absent, 4 * PAGE, ALL_RIGHTS); }

OPERATION(reg_mr_of_absent_pages, OWN, "EFAULT", absent_prepare, absent_run, mr_undo)

static const char *paged_run(void) { return mr_of(memory, LEN, ALL_RIGHTS | IBV_ACCESS_ON_DEMAND); }

OPERATION(reg_mr_on_demand, OWN, NULL, nothing, paged_run, mr_undo)

static bool prefetch_prepare(void)
{
	const char *result;

	if (!made_mr) {
		if (!absent_prepare())
			return false;
		result = mr_of(absent, 4 * PAGE, ALL_RIGHTS | IBV_ACCESS_ON_DEMAND);
		if (result)
			fail("a region: %s", result);
	}
	return !test_failed();
}

static const char *prefetch_run(void)
{
	struct {
		uint64_t addr;
		uint32_t length, lkey;
	} sge = { (uintptr_t)absent, 4 * PAGE, made_mr->lkey };
	struct ib_uverbs_attr attrs[] = {
		given(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd->handle, 0),
		given(UVERBS_ATTR_ADVISE_MR_ADVICE, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 8),
		given(UVERBS_ATTR_ADVISE_MR_FLAGS, IBV_ADVISE_MR_FLAG_FLUSH, 4),
		given(UVERBS_ATTR_ADVISE_MR_SGE_LIST, (uintptr_t)&sge, sizeof(sge)),
	};

	return of_errno(method(ctx, UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, attrs, ARRAY_SIZE(attrs)));
}

OPERATION(prefetch, OWN, "EFAULT", prefetch_prepare, prefetch_run, mr_undo)

static struct dmabuf buffer = { .fd = -1 };

static bool dmabuf_prepare(void) { return buffer.fd >= 0 || dmabuf_make(&buffer, 16 * PAGE); }

static const char *dmabuf_run(void)
{
	return of_errno(dmabuf_reg(&made_mr, pd, buffer.fd, 0, buffer.len, 0, ALL_RIGHTS));
}

/* Without memory udmabuf's vmap fails with EINVAL. */
OPERATION(reg_dmabuf, OWN, "EINVAL", dmabuf_prepare, dmabuf_run, mr_undo)

static bool rereg_prepare(void)
{
	if (!made_mr && mr_run())
		fail("ibv_reg_mr: %s", strerror(errno));
	return !test_failed();
}

static const char *rereg_run(void)
{
	return of_errno(rereg(made_mr,
			      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD |
				      IBV_REREG_MR_CHANGE_ACCESS,
			      other_pd, memory + PAGE, LEN - PAGE, ALL_RIGHTS));
}

OPERATION(rereg_mr, OWN, NULL, rereg_prepare, rereg_run, mr_undo)

static const char *rights_run(void)
{
	return of_errno(rereg(made_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
}

OPERATION(rereg_mr_with_other_rights, OWN, NULL, rereg_prepare, rights_run, mr_undo)

static struct ibv_mw *made_mw;

static const char *mw_run(void)
{
	made_mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	return made_mw ? NULL : of_errno(errno);
}

static int mw_undo(void) { return ibv_dealloc_mw(made_mw); }

OPERATION(alloc_mw, OWN, NULL, nothing, mw_run, mw_undo)

/* Without memory for an inode a socket fails with ENFILE, and TCP has no free port. */
#define NO_SOCKET "ENFILE ENOBUFS EADDRINUSE"

/* --- out-of-band connections ------------------------------------------------------------------ */

static struct side here, there;

static int sides_undo(void)
{
	sides_close(&here, &there);
	return 0;
}

static bool init_prepare(void)
{
	if (!here.qp && sides_open(&here, &there, ctx, 0))
		/* A peer that is absent is not searched for long. */
		here.timeout = there.timeout = 14;
	return !test_failed();
}

static const char *to_rtr(struct side *s, const struct side *peer)
{
	struct ibv_qp_attr attr;
	int mask = rtr_attr(s, peer, &attr);

	return of_errno(try_modify(s, &attr, mask));
}

static const char *to_rts(struct side *s)
{
	struct ibv_qp_attr attr;
	int mask = rts_attr(s, &attr);

	return of_errno(try_modify(s, &attr, mask));
}

static const char *rtr_run(void) { return to_rtr(&here, &there); }

OPERATION(modify_to_rtr, OWN, NO_SOCKET, init_prepare, rtr_run, sides_undo)

static const char *set_port(const char *text)
{
	char path[300];
	int fd, error = 0;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/oob_port",
		 ibv_get_device_name(ctx->device));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return "no such file";
	if (write(fd, text, strlen(text)) < 0)
		error = errno;
	close(fd);
	return of_errno(error);
}

static const char *port_run(void) { return set_port("24792"); }

/* The other port is an operation like the first, and may fail like it. */
static int port_undo(void)
{
	struct paused p;
	const char *result;

	pause_failures(&p);
	result = set_port("24791");
	resume_failures(&p);
	return result ? EIO : 0;
}

OPERATION(set_oob_port, OWN, NO_SOCKET, nothing, port_run, port_undo)

static const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"success",     "LOC_LEN_ERR",	 "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR",   "LOC_PROT_ERR",
		"WR_FLUSH_ERR", "MW_BIND_ERR",	 "BAD_RESP_ERR",  "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",
		"REM_ACCESS_ERR", "REM_OP_ERR",	 "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",
		"REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR",
		"RESP_TIMEOUT_ERR", "GENERAL_ERR",
	};

	return status < ARRAY_SIZE(names) ? names[status] : "another status";
}

/* Waits for a completion; returns the name of its status unless that is success. */
static const char *completed(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;

	if (!poll_wc(cq, &wc, 3 * SOON)) {
		fail("no completion of %s", what);
		return "no completion";
	}
	return wc.status ? status_name(wc.status) : NULL;
}

/* Both sides connect, and one sends. */
static const char *oob_run(void)
{
	const char *result = to_rtr(&there, &here);

	if (!result)
		result = to_rtr(&here, &there);
	if (!result)
		result = to_rts(&there);
	if (!result)
		result = to_rts(&here);
	if (result)
		return result;
	if (!side_recv(&there, 1, 100) || !side_send(&here, 2, 100))
		return "not posted";
	result = completed(here.cq, "the Send");
	if (result)
		return result;
	result = completed(there.cq, "the receive");
	if (!result && pattern_differs(there.memory.buf + 16 * 1024, 100, here.psn) >= 0)
		fail("other octets");
	return result;
}

static bool oob_prepare(void)
{
	/* What an attempt has left is of no use. */
	if (here.qp)
		sides_undo();
	return init_prepare();
}

SLOW_OPERATION(oob_connect, ANY, NO_SOCKET " RETRY_EXC_ERR GENERAL_ERR WR_FLUSH_ERR", oob_prepare, oob_run,
	       sides_undo, 4)

/* --- connections ------------------------------------------------------------------------------ */

/* A listener, and the two ends of a connection, whose events come from one channel. */
static struct {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listen, *a, *b;
	int port;
	bool rejects;
} cm;

static struct rdma_cm_id *made_id;

static bool channel_open(void)
{
	if (!cm.ch)
		cm.ch = rdma_create_event_channel();
	if (!cm.ch)
		fail("rdma_create_event_channel: %s", strerror(errno));
	return cm.ch;
}

static int listen_undo(void)
{
	int rc = made_id ? rdma_destroy_id(made_id) : 0;

	made_id = NULL;
	return rc ? errno : 0;
}

/* Binds an id to an address on a new port. */
static bool bind_id(struct sockaddr *addr)
{
	if (!channel_open())
		return false;
	listen_undo();
	if (rdma_create_id(cm.ch, &made_id, NULL, RDMA_PS_TCP) || rdma_bind_addr(made_id, addr))
		fail("rdma_bind_addr: %s", strerror(errno));
	return !test_failed();
}

static bool bind_own(void)
{
	struct sockaddr_storage addr;

	addr_with_port(&addr, next_port());
	return bind_id((void *)&addr);
}

static bool bind_any(void)
{
	struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_port = htons(next_port()) };

	return bind_id((void *)&addr);
}

static const char *listen_run(void) { return of_errno(rdma_listen(made_id, 8) ? errno : 0); }

OPERATION(listen_on_address, OWN, NO_SOCKET, bind_own, listen_run, listen_undo)
OPERATION(listen_on_any_address, OWN, NO_SOCKET, bind_any, listen_run, listen_undo)

static void id_close(struct rdma_cm_id **id)
{
	if (!*id)
		return;
	if ((*id)->qp)
		rdma_destroy_qp(*id);
	if (rdma_destroy_id(*id))
		fail("rdma_destroy_id: %s", strerror(errno));
	*id = NULL;
}

static int ends_undo(void)
{
	struct rdma_cm_event *ev;
	struct ibv_wc wc;

	while ((ev = cm_event(cm.ch, 0))) {
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_cm_id *id = ev->id;

			rdma_ack_cm_event(ev);
			id_close(&id);
			continue;
		}
		rdma_ack_cm_event(ev);
	}
	id_close(&cm.a);
	id_close(&cm.b);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	return 0;
}

static int id_make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 10, .max_recv_wr = 10, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return rdma_create_qp(id, pd, &attr) ? errno : 0;
}

static bool connect_prepare(void)
{
	if (!channel_open())
		return false;
	if (!cm.listen) {
		cm.port = next_port();
		cm.listen = cm_listening_id(cm.ch, cm.port, 8);
		if (!cm.listen)
			return false;
	}
	ends_undo();
	cm.a = cm_resolved_id(cm.ch, cm.port);
	if (cm.a && id_make_qp(cm.a))
		fail("rdma_create_qp: %s", strerror(errno));
	return !test_failed();
}

static const struct rdma_conn_param param = { .initiator_depth = 4, .responder_resources = 4 };

/* Answers a request. */
static const char *answer(void)
{
	struct paused paused;
	int error;

	if (cm.rejects)
		return of_errno(rdma_reject(cm.b, "no", 2) ? errno : 0);
	/* Allocations of create_qp have failed before. */
	pause_failures(&paused);
	error = id_make_qp(cm.b);
	resume_failures(&paused);
	if (error)
		fail("rdma_create_qp: %s", strerror(error));
	return of_errno(rdma_accept(cm.b, (void *)&param) ? errno : 0);
}

/* Start-up of a connection, at either end, gives up after 20 seconds. */
#define GIVE_UP 25000

/* Connects, or is rejected. */
static const char *connect_run(void)
{
	int64_t end = now_ms() + GIVE_UP + SOON;
	bool a = false, b = false;

	if (rdma_connect(cm.a, (void *)&param))
		return of_errno(errno);
	while (!a || !b) {
		struct rdma_cm_event *ev = cm_event(cm.ch, end - now_ms());
		enum rdma_cm_event_type type;
		const char *result = NULL;
		bool of_a;

		if (!ev) {
			fail("neither a connection nor an error: a %d, b %d", a, b);
			return "no event";
		}
		type = ev->event;
		of_a = ev->id == cm.a;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
			cm.b = ev->id;
		rdma_ack_cm_event(ev);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
			result = answer();
		else if (type == RDMA_CM_EVENT_ESTABLISHED && of_a)
			a = true;
		else if (type == RDMA_CM_EVENT_ESTABLISHED)
			b = true;
		else if (type == RDMA_CM_EVENT_REJECTED && cm.rejects && of_a && cm.b)
			return NULL;
		else
			result = rdma_event_str(type) + strlen("RDMA_CM_EVENT_");
		if (result)
			return result;
	}
	return NULL;
}

#define NO_CONNECTION NO_SOCKET " ECONNRESET REJECTED UNREACHABLE CONNECT_ERROR DISCONNECTED"

static bool accept_prepare(void)
{
	cm.rejects = false;
	return connect_prepare();
}

static bool reject_prepare(void)
{
	cm.rejects = true;
	return connect_prepare();
}

SLOW_OPERATION(connect_and_accept, OWN | ANY, NO_CONNECTION, accept_prepare, connect_run, ends_undo, 4)
SLOW_OPERATION(connect_and_reject, ANY, NO_CONNECTION, reject_prepare, connect_run, ends_undo, 4)

static bool disconnect_prepare(void)
{
	const char *result;

	if (!accept_prepare())
		return false;
	result = connect_run();
	if (result)
		fail("a connection: %s", result);
	return !test_failed();
}

/*
 * A FIN for which there is no memory is made up for at once: not only when the driver gives up a
 * peer that acknowledges nothing, after 20 seconds.
 */
static const char *disconnect_run(void)
{
	int64_t end = now_ms() + 15000;

	if (rdma_disconnect(cm.a))
		return of_errno(errno);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *ev = cm_event(cm.ch, end - now_ms());
		enum rdma_cm_event_type type;

		if (!ev) {
			fail("%d ends are disconnected", i);
			return "no event";
		}
		type = ev->event;
		rdma_ack_cm_event(ev);
		if (type != RDMA_CM_EVENT_DISCONNECTED)
			return rdma_event_str(type) + strlen("RDMA_CM_EVENT_");
	}
	if (!qp_reaches(cm.a->qp, IBV_QPS_ERR, SOON) || !qp_reaches(cm.b->qp, IBV_QPS_ERR, SOON))
		return "no error";
	return NULL;
}

OPERATION(disconnect, OWN | ANY, NULL, disconnect_prepare, disconnect_run, ends_undo)

/* --- transfers -------------------------------------------------------------------------------- */

/*
 * A pair that stays connected until a transfer has failed. A stream keeps pages for a second, so
 * that each transfer of a sweep of pages has a new one.
 */
static struct pair pair;
static struct region from, to;
static bool broken = true;

#define LONG 100000

static bool transfer_open(int access)
{
	static const struct pair_opts opts = { .inline_data = 64 };

	if (!broken && current != BURST && current != ANY_PAGES)
		return true;
	pair_close(&pair);
	broken = !pair_open(&pair, &opts) ||
		 !region_make(&from, pair.a.pd, LONG, ALL_RIGHTS | access) ||
		 !region_make(&to, pair.b.pd, LONG,
			      ALL_RIGHTS | access | (has_extensions() ? IBV_ACCESS_REMOTE_ATOMIC : 0));
	return !broken;
}

static bool transfer_prepare(void)
{
	if (!transfer_open(0))
		return false;
	memset(from.buf, 0, LONG);
	memset(to.buf, 0, LONG);
	return true;
}

/* The pages of both regions are fetched during the transfer, the first ones of the sink too. */
static bool paged_prepare(void)
{
	if (!transfer_open(IBV_ACCESS_ON_DEMAND))
		return false;
	madvise(from.buf, LONG, MADV_DONTNEED);
	madvise(to.buf, LONG, MADV_DONTNEED);
	return true;
}

static int transfer_undo(void)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(pair.a.send_cq, 1, &wc) > 0 || ibv_poll_cq(pair.b.recv_cq, 1, &wc) > 0)
		;
	return 0;
}

static void transfers_close(void)
{
	pair_close(&pair);
	broken = true;
}

/* After a failure both ends must be in error, within bounded time. */
static const char *ended(const char *result)
{
	if (result && !test_failed()) {
		broken = true;
		/* What failed when it was posted ends no stream. */
		if (!is_among("ENOMEM EAGAIN ENOBUFS", result)) {
			qp_reaches(pair.a.qp, IBV_QPS_ERR, SOON);
			qp_reaches(pair.b.qp, IBV_QPS_ERR, SOON);
		}
	}
	return result;
}

static const char *posted(struct ibv_send_wr *wr) { return of_errno(try_send(&pair.a, wr)); }

/* Sends `len` octets by a list of `pieces`, into zeroes. */
static const char *send_pieces(size_t len, int pieces, int flags)
{
	struct ibv_sge sge[4], at = sge_of(&to, 0, len);
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &at, .num_sge = 1 }, *bad;
	struct ibv_send_wr wr;
	const char *result;
	int rc;

	pattern_fill(from.buf, len, 5);
	for (int i = 0; i < pieces; i++)
		sge[i] = sge_of(&from, len / pieces * i, len / pieces);
	rc = ibv_post_recv(pair.b.qp, &recv, &bad);
	if (rc)
		return ended(of_errno(rc < 0 ? -rc : rc));
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED | flags, sge, pieces);
	result = posted(&wr);
	if (!result)
		result = completed(pair.a.send_cq, "the Send");
	if (!result)
		result = completed(pair.b.recv_cq, "the receive");
	if (!result && pattern_differs(to.buf, len / pieces * pieces, 5) >= 0)
		fail("octet %zd is another", pattern_differs(to.buf, len, 5));
	return ended(result);
}

static const char *send_inline_run(void) { return send_pieces(48, 1, IBV_SEND_INLINE); }
static const char *send_list_run(void) { return send_pieces(40000, 4, 0); }

/* A Write or Read into zeroes; a Read behind a Write shows that its octets are placed. */
static const char *reach(enum ibv_wr_opcode op)
{
	bool writes = op == IBV_WR_RDMA_WRITE;
	struct region *source = writes ? &from : &to, *sink = writes ? &to : &from;
	struct ibv_sge sge = sge_of(&from, 0, LONG), none = sge_of(&from, 0, 0);
	struct ibv_send_wr settle = wr_rdma(IBV_WR_RDMA_READ, 4, IBV_SEND_SIGNALED, &none, 1, 0, 0);
	struct ibv_send_wr wr = wr_rdma(op, 3, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)to.buf,
					to.mr->rkey);
	const char *result;

	pattern_fill(source->buf, LONG, 6);
	wr.next = writes ? &settle : NULL;
	result = posted(&wr);
	if (!result)
		result = completed(pair.a.send_cq, writes ? "the Write" : "the Read");
	if (!result && writes)
		result = completed(pair.a.send_cq, "the Read behind");
	if (!result && pattern_differs(sink->buf, LONG, 6) >= 0)
		fail("octet %zd is another", pattern_differs(sink->buf, LONG, 6));
	return ended(result);
}

static const char *write_run(void) { return reach(IBV_WR_RDMA_WRITE); }
static const char *read_run(void) { return reach(IBV_WR_RDMA_READ); }

static const char *atomic_run(void)
{
	struct ibv_sge sge = sge_of(&from, 0, 8);
	struct ibv_send_wr wr = wr_make(IBV_WR_ATOMIC_FETCH_AND_ADD, 7, IBV_SEND_SIGNALED, &sge, 1);
	uint64_t before = 40;
	const char *result;

	*(uint64_t *)to.buf = before;
	wr.wr.atomic.remote_addr = (uintptr_t)to.buf;
	wr.wr.atomic.rkey = to.mr->rkey;
	wr.wr.atomic.compare_add = 3;
	result = posted(&wr);
	if (!result)
		result = completed(pair.a.send_cq, "the atomic operation");
	if (!result && (*(uint64_t *)from.buf != before || *(uint64_t *)to.buf != before + 3))
		fail("another value");
	return ended(result);
}

static const char *bind_run(void)
{
	struct ibv_mw_bind bind = {
		.wr_id = 9,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .addr = (uintptr_t)from.buf,
			       .length = 64,
			       .mw_access_flags = IBV_ACCESS_REMOTE_READ },
	};
	const char *result = NULL;
	struct paused paused;
	struct ibv_mw *mw;
	struct ibv_mr *mr;

	pause_failures(&paused);
	mr = ibv_reg_mr(pair.a.pd, from.buf, PAGE, ALL_RIGHTS | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pair.a.pd, IBV_MW_TYPE_1);
	resume_failures(&paused);
	if (!mr || !mw) {
		fail("a window: %s", strerror(errno));
		return "no window";
	}
	bind.bind_info.mr = mr;
	result = of_errno(ibv_bind_mw(pair.a.qp, mw, &bind));
	if (!result)
		result = ended(completed(pair.a.send_cq, "the bind"));
	if (ibv_dealloc_mw(mw) || ibv_dereg_mr(mr))
		fail("taking the window away: %s", strerror(errno));
	return result;
}

OPERATION(send_inline, OWN | ANY, NULL, transfer_prepare, send_inline_run, transfer_undo)
OPERATION(send_list, OWN | ANY, NULL, transfer_prepare, send_list_run, transfer_undo)
OPERATION(write_long, OWN | ANY, NULL, transfer_prepare, write_run, transfer_undo)
OPERATION(read_long, OWN | ANY, NULL, transfer_prepare, read_run, transfer_undo)
OPERATION(atomic, OWN | ANY, NULL, transfer_prepare, atomic_run, transfer_undo)
OPERATION(bind_mw, OWN | ANY, NULL, transfer_prepare, bind_run, transfer_undo)

/* A shortage that passes ends no stream. */
OPERATION(send_on_demand, OWN | ANY, NULL, paged_prepare, send_list_run, transfer_undo)
OPERATION(write_on_demand, OWN | ANY, NULL, paged_prepare, write_run, transfer_undo)
OPERATION(read_on_demand, OWN | ANY, NULL, paged_prepare, read_run, transfer_undo)

/*
 * A shortage that stays ends the stream after half a second, whichever allocation fails: all below
 * the function of the module whose addresses are in the environment variable `below`.
 */
static void lasting_shortage(const char *below, const char *(*run)(void), const char *expected)
{
	const char *range = getenv(below), *result;
	uint64_t start, end;
	int64_t begin;

	if (!range || sscanf(range, "%" SCNx64 " %" SCNx64, &start, &end) != 2) {
		fail("no addresses of %s", below);
		return;
	}
	if (!paged_prepare())
		return;
	only_below(SLAB, start, end);
	set(SLAB, INTERVAL, 1);
	set(SLAB, TIMES, 1000000);
	set(SLAB, PROBABILITY, 100);
	begin = now_ms();
	result = run();
	set(SLAB, PROBABILITY, 0);
	only_below(SLAB, module_start, module_end);
	check(result && !strcmp(result, expected), "without memory below %s: %s, not %s", below,
	      result ? result : "done", expected);
	check(now_ms() - begin >= 400, "only %d ms of attempts", (int)(now_ms() - begin));
	transfer_undo();
}

/* FETCH allocates the buffer of a copy, PIN what its pages need. */
static void lasting_shortage_ends_sends(void)
{
	lasting_shortage("FETCH", send_list_run, "LOC_QP_OP_ERR");
	lasting_shortage("PIN", send_list_run, "LOC_QP_OP_ERR");
}

/* riwarp_siw's library has no status for a fault of the peer. */
static void lasting_shortage_ends_reads(void)
{
	const char *expected = has_extensions() ? "REM_OP_ERR" : "GENERAL_ERR";

	lasting_shortage("FETCH", read_run, expected);
	lasting_shortage("PIN", read_run, expected);
}

/* --- what administrators do ------------------------------------------------------------------- */

/* A message of nldev, which is answered at once. Returns an errno. */
struct message {
	struct nlmsghdr hdr;
	char attrs[200];
};

static void add_attr(struct message *m, int type, const void *value, size_t len)
{
	struct nlattr *attr = (void *)((char *)m + NLMSG_ALIGN(m->hdr.nlmsg_len));

	attr->nla_type = type;
	attr->nla_len = NLA_HDRLEN + len;
	memcpy((char *)attr + NLA_HDRLEN, value, len);
	m->hdr.nlmsg_len = NLMSG_ALIGN(m->hdr.nlmsg_len) + NLA_ALIGN(attr->nla_len);
}

static int nldev(struct message *m)
{
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct {
		struct nlmsghdr hdr;
		struct nlmsgerr error;
		char rest[300];
	} answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA), error = EIO;

	m->hdr.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	if (sendto(fd, m, m->hdr.nlmsg_len, 0, (void *)&kernel, sizeof(kernel)) < 0)
		error = errno;
	else if (recv(fd, &answer, sizeof(answer), 0) >= (ssize_t)(NLMSG_HDRLEN + sizeof(int)) &&
		 answer.hdr.nlmsg_type == NLMSG_ERROR)
		error = -answer.error.error;
	close(fd);
	return error;
}

static struct message message(int command)
{
	return (struct message){ .hdr = { .nlmsg_len = NLMSG_HDRLEN,
					  .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command) } };
}

#define SPARE_DEVICE "spare_device"

static const char *link_run(void)
{
	struct message m = message(RDMA_NLDEV_CMD_NEWLINK);
	const char *type = has_extensions() ? "riwarp" : "riwarp_siw", *netdev = getenv("SPARE");

	add_attr(&m, RDMA_NLDEV_ATTR_DEV_NAME, SPARE_DEVICE, sizeof(SPARE_DEVICE));
	add_attr(&m, RDMA_NLDEV_ATTR_LINK_TYPE, type, strlen(type) + 1);
	add_attr(&m, RDMA_NLDEV_ATTR_NDEV_NAME, netdev, strlen(netdev) + 1);
	return of_errno(nldev(&m));
}

static int link_undo(void)
{
	struct message m = message(RDMA_NLDEV_CMD_DELLINK);
	uint32_t index = 0;
	FILE *list = popen("rdma link show " SPARE_DEVICE "/1 -j 2>/dev/null", "r");
	char text[300] = "", *at;

	if (list) {
		if (!fgets(text, sizeof(text), list))
			text[0] = 0;
		/* A JSON list on several lines. */
		while (!strstr(text, "ifindex") && fgets(text, sizeof(text), list))
			;
		pclose(list);
	}
	at = strstr(text, "\"ifindex\":");
	if (!at)
		return ENODEV;
	index = atoi(at + strlen("\"ifindex\":"));
	add_attr(&m, RDMA_NLDEV_ATTR_DEV_INDEX, &index, sizeof(index));
	return nldev(&m);
}

static bool link_prepare(void)
{
	if (!getenv("SPARE"))
		fail("no interface for a device");
	return !test_failed();
}

SLOW_OPERATION(add_device, 1 << NTH, NULL, link_prepare, link_run, link_undo, 20)

/* --- the program ------------------------------------------------------------------------------ */

/* With NAMES in the environment, the program prints the names of its operations only. */
static bool names;

#define OPERATE(case_fn) (names ? (void)puts(#case_fn) : RUN(case_fn))

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	names = getenv("NAMES");
	if (!names && (!failures_prepare() || !world_open()))
		return test_cannot_start();
	OPERATE(open_device);
	OPERATE(alloc_pd);
	OPERATE(create_cq);
	OPERATE(create_first_cq);
	if (own_ctx)
		ibv_close_device(own_ctx);
	made_cq = NULL;
	if (has_extensions())
		OPERATE(resize_cq);
	OPERATE(create_srq);
	if (has_extensions())
		OPERATE(resize_srq);
	OPERATE(create_qp);
	OPERATE(create_qp_with_srq);
	srq_undo();
	OPERATE(create_deep_qp);
	OPERATE(reg_mr);
	OPERATE(reg_mr_of_absent_pages);
	OPERATE(reg_mr_on_demand);
	OPERATE(prefetch);
	OPERATE(reg_dmabuf);
	if (buffer.fd >= 0)
		dmabuf_free(&buffer);
	OPERATE(rereg_mr);
	OPERATE(rereg_mr_with_other_rights);
	if (has_extensions())
		OPERATE(alloc_mw);
	OPERATE(modify_to_rtr);
	OPERATE(set_oob_port);
	OPERATE(oob_connect);
	OPERATE(listen_on_address);
	OPERATE(listen_on_any_address);
	OPERATE(connect_and_accept);
	OPERATE(connect_and_reject);
	OPERATE(disconnect);
	if (cm.listen)
		rdma_destroy_id(cm.listen);
	OPERATE(send_inline);
	OPERATE(send_list);
	OPERATE(write_long);
	OPERATE(read_long);
	if (has_extensions()) {
		OPERATE(atomic);
		OPERATE(bind_mw);
	}
	transfers_close();
	OPERATE(send_on_demand);
	OPERATE(write_on_demand);
	OPERATE(read_on_demand);
	OPERATE(lasting_shortage_ends_sends);
	OPERATE(lasting_shortage_ends_reads);
	transfers_close();
	OPERATE(add_device);
	if (!names)
		world_close();
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Flush to persistent memory: the character device of device DAX that DAX names. TRACE is the
 * directory of an instance of tracefs with a probe of arch_wb_cache_pmem(), which shows what the
 * kernel writes back: in an emulated machine nothing else would.
 */

#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#define OPS (IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE)
#define RIGHTS (ALL_RIGHTS | IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT)
/* The alignment of the device. */
#define HUGE (2UL << 20)
#define LEN (4 * HUGE)

static uint8_t *dax;
static struct region local, remote;

static char *trace_path(const char *file)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", getenv("TRACE"), file);
	return path;
}

static bool register_at(struct ibv_pd *pd, void *start, size_t len, int access)
{
	remote = (struct region){ .buf = start, .len = len };
	remote.mr = ibv_reg_mr(pd, start, len, access);
	return remote.mr;
}

static bool prepare(struct pair *p, int access)
{
	if (!region_make(&local, p->a.pd, PAGE, IBV_ACCESS_LOCAL_WRITE))
		return false;
	if (!register_at(p->b.pd, dax, LEN, access)) {
		fail("ibv_reg_mr: %s", strerror(errno));
		return false;
	}
	memset(dax, 0x11, LEN);
	return file_write(trace_path("trace"), "\n");
}

static bool flush(struct pair *p, uint64_t id, size_t off, size_t len, int type, int level)
{
	struct ibv_qp_ex *qp = wr_begin(p, id);

	ibv_wr_flush(qp, remote.mr->rkey, (uintptr_t)dax + off, len, (uint8_t)type, (uint8_t)level);
	return !ibv_wr_complete(qp);
}

static bool write_at(struct pair *p, uint64_t id, size_t off)
{
	struct ibv_qp_ex *qp = wr_begin(p, id);

	ibv_wr_rdma_write(qp, remote.mr->rkey, (uintptr_t)dax + off);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf, PAGE);
	return !ibv_wr_complete(qp);
}

/*
 * Returns how many octets were written back since the last call, if each piece began where the one
 * before ended, else -1; and the address of the first one in the kernel.
 */
static ssize_t written_back(uintptr_t *first)
{
	FILE *file = fopen(trace_path("trace"), "r");
	size_t total = 0;
	char line[512];

	*first = 0;
	while (file && fgets(line, sizeof(line), file)) {
		char *at = strstr(line, " start=");
		uintptr_t start;
		size_t len;

		if (!at || sscanf(at, " start=0x%lx len=0x%lx", &start, &len) != 2)
			continue;
		if (!total)
			*first = start;
		else if (start != *first + total)
			return -1;
		total += len;
	}
	if (!file || fclose(file) || !file_write(trace_path("trace"), "\n"))
		return -1;
	return (ssize_t)total;
}

PAIR_CASE(persistent_right_needs_persistent_memory)
{
	uint8_t *both = mmap(NULL, 2 * HUGE + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open(getenv("DAX"), O_RDWR), error;
	uint8_t *end;

	check(both != MAP_FAILED && fd >= 0, "%s", strerror(errno));
	/* The last page of the persistent memory and an ordinary one behind it. */
	end = (uint8_t *)(((uintptr_t)both + HUGE - 1) / HUGE * HUGE) + HUGE;
	check(mmap(end - HUGE, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
	      MAP_FAILED, "%s", strerror(errno));
	check(mmap(end, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	      end, "%s", strerror(errno));
	close(fd);
	check(!register_at(p->b.pd, end, PAGE, RIGHTS) && errno == EOPNOTSUPP,
	      "ordinary memory: %s", strerror(errno));
	check(!register_at(p->b.pd, end - PAGE, 2 * PAGE, RIGHTS) && errno == EOPNOTSUPP,
	      "both kinds: %s", strerror(errno));
	check(!register_at(p->b.pd, end - PAGE, PAGE, RIGHTS | IBV_ACCESS_ON_DEMAND) &&
	      errno == EOPNOTSUPP, "paged on demand: %s", strerror(errno));
	check(register_at(p->b.pd, end - PAGE, 2 * PAGE, ALL_RIGHTS), "%s", strerror(errno));
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, RIGHTS);
	check(error == EOPNOTSUPP, "re-registration of both kinds: %s", strerror(error));
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
	check(register_at(p->b.pd, end - PAGE, PAGE, RIGHTS | IBV_ACCESS_MW_BIND),
	      "persistent memory: %s", strerror(errno));
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
	check(register_at(p->b.pd, end - PAGE, PAGE, ALL_RIGHTS), "%s", strerror(errno));
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, RIGHTS);
	check(!error, "re-registration of persistent memory: %s", strerror(error));
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
	munmap(both, 2 * HUGE + PAGE);
}

PAIR_CASE(device_reports_flush_to_persistent_memory)
{
	struct ibv_device_attr_ex attr;

	check(!ibv_query_device_ex(p->a.pd->context, NULL, &attr), "ibv_query_device_ex");
	check(attr.device_cap_flags_ex & IB_UVERBS_DEVICE_FLUSH_PERSISTENT, "it does not");
}

PAIR_CASE(flush_writes_its_range_back, .send_ops = OPS)
{
	/* Neither in one step nor at the beginning of a cache line. */
	const size_t off = HUGE - 5000, len = 3 * 65536 + 100;
	uintptr_t base, first;
	struct ibv_wc wc;

	must(prepare(p, RIGHTS));
	must(flush(p, 1, 0, 0, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR) &&
	     expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_FLUSH, "opcode %d", wc.opcode);
	check(written_back(&base) == LEN, "not all of the region was written back");
	for (int type = IBV_FLUSH_PERSISTENT; type <= (IBV_FLUSH_PERSISTENT | IBV_FLUSH_GLOBAL); type++) {
		must(flush(p, 2, off, len, type, IBV_FLUSH_RANGE) &&
		     expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		check(written_back(&first) == (ssize_t)len && first == base + off,
		      "another range was written back, from %zd on", (ssize_t)(first - base));
	}
	must(flush(p, 3, 8, 0, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE) &&
	     expect_wc(p->a.send_cq, &wc, 3, IBV_WC_SUCCESS));
	must(flush(p, 4, 0, LEN, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE) &&
	     expect_wc(p->a.send_cq, &wc, 4, IBV_WC_SUCCESS));
	check(!written_back(&first), "a range without octets, or GLOBAL, wrote something back");
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
}

PAIR_CASE(flush_without_the_persistent_right, .send_ops = OPS)
{
	uintptr_t first;
	struct ibv_wc wc;

	must(prepare(p, RIGHTS & ~IBV_ACCESS_FLUSH_PERSISTENT));
	must(flush(p, 1, 0, 8, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE) &&
	     expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	check(!written_back(&first), "something was written back");
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
}

/* A log: each record is persistent before the word that says so changes. */
PAIR_CASE(records_become_persistent_in_order, .send_ops = OPS, .sq_depth = 256)
{
	uintptr_t first;
	struct ibv_wc wc;

	must(prepare(p, RIGHTS));
	for (uint64_t i = 1; i <= 60; i++) {
		struct ibv_qp_ex *qp;

		pattern_fill(local.buf, PAGE, (uint32_t)i);
		must(write_at(p, i, i * PAGE) && flush(p, i, i * PAGE, PAGE, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE));
		qp = wr_begin(p, i);
		ibv_wr_atomic_write(qp, remote.mr->rkey, (uintptr_t)dax, &i);
		check(!ibv_wr_complete(qp), "ibv_wr_complete");
		/* The next record has the same buffer. */
		for (int n = 0; n < 3; n++)
			must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		check(*(volatile uint64_t *)dax == i, "the word is %lu", *(volatile uint64_t *)dax);
		check(pattern_differs(dax + i * PAGE, PAGE, (uint32_t)i) < 0, "record %lu differs", i);
		check(written_back(&first) == (ssize_t)PAGE, "record %lu is not written back", i);
	}
	check(!ibv_dereg_mr(remote.mr), "%s", strerror(errno));
}

static void *deregister(void *result)
{
	sleep_ms(20);
	*(int *)result = ibv_dereg_mr(remote.mr);
	return NULL;
}

/* The end of a region waits for no Flush, and the next one is refused. */
PAIR_CASE(region_ends_while_it_is_flushed, .send_ops = OPS)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int64_t end = now_ms() + SOON;
	int failed = -1;
	pthread_t thread;

	must(prepare(p, RIGHTS));
	check(!pthread_create(&thread, NULL, deregister, &failed), "pthread_create");
	while (wc.status == IBV_WC_SUCCESS && now_ms() < end) {
		if (!flush(p, 1, 0, 0, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR) ||
		    !poll_wc(p->a.send_cq, &wc, SOON))
			break;
	}
	pthread_join(thread, NULL);
	check(!failed, "ibv_dereg_mr: %s", strerror(failed));
	check(wc.status == IBV_WC_REM_ACCESS_ERR, "the last one was %s", ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	int fd = open(getenv("DAX") ?: "", O_RDWR);

	test_begin(argc, argv);
	dax = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || dax == MAP_FAILED || !getenv("TRACE")) {
		fail("DAX or TRACE: %s", strerror(errno));
		return test_cannot_start();
	}
	RUN(device_reports_flush_to_persistent_memory);
	RUN(flush_writes_its_range_back);
	RUN(flush_without_the_persistent_right);
	RUN(records_become_persistent_in_order);
	RUN(region_ends_while_it_is_flushed);
	/* Last: its attempt to page on demand prepares the context for what the others need. */
	RUN(persistent_right_needs_persistent_memory);
	return test_end();
}

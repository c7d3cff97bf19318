// SPDX-License-Identifier: GPL-2.0
/*
 * The device stores each octet of a message once, since a program may poll one, and store there as
 * soon as it has changed. A breakpoint of the processor counts the stores at the kernel's address
 * of an octet.
 */

#include "common.h"

#include <fcntl.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>

/* Where the kernel has all memory, without KASLR and with four levels of page tables. */
#define LINEAR 0xffff888000000000

#define MAX_CPUS 8

static struct region src, dst;
static int watches[MAX_CPUS];

/* Begins to count the kernel's stores to an octet of pinned memory. Skips the case if it cannot. */
static bool watch(const uint8_t *at)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_BREAKPOINT, .size = sizeof(attr),
					.bp_type = HW_BREAKPOINT_W, .bp_len = 1 };
	uint64_t entry = 0;
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	bool found = pread(pagemap, &entry, 8, (uintptr_t)at / PAGE * 8) == 8;

	close(pagemap);
	entry &= (1ull << 55) - 1;
	if (!found || !entry) {
		test_skip("no address of the page");
		return false;
	}
	attr.bp_addr = LINEAR + entry * PAGE + (uintptr_t)at % PAGE;
	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		watches[cpu] = -1;
		if (cpu >= sysconf(_SC_NPROCESSORS_ONLN))
			continue;
		watches[cpu] = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0);
		if (watches[cpu] < 0) {
			test_skip("no breakpoint: %s", strerror(errno));
			return false;
		}
	}
	return true;
}

/* Ends the count and returns it. */
static uint64_t stores(void)
{
	uint64_t sum = 0;

	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		uint64_t count = 0;

		if (watches[cpu] < 0)
			continue;
		if (read(watches[cpu], &count, sizeof(count)) == sizeof(count))
			sum += count;
		close(watches[cpu]);
	}
	return sum;
}

/* Writes `len` octets that end `end` octets behind the start of the second page. */
static bool last_octet_stored_once(struct pair *p, size_t len, size_t end)
{
	uint8_t *to = dst.buf + PAGE + end - len;
	struct ibv_sge sge = sge_of(&src, 0, len);
	struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, len, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)to, dst.mr->rkey);
	struct ibv_wc wc;
	uint64_t count;

	if (!watch(to + len - 1))
		return false;
	if (!post_send(&p->a, &wr) || !expect_wc(p->a.send_cq, &wc, len, IBV_WC_SUCCESS) ||
	    !exchange_works(p))
		return false;
	count = stores();
	if (count == 0)
		test_skip("the kernel has the page elsewhere");
	else if (count != 1)
		fail("%zu octets up to %zu: %lu stores", len, end, (unsigned long)count);
	return count == 1;
}

PAIR_CASE(last_octet_is_stored_once)
{
	static const size_t lens[] = { 1, 2, 4, 8, 16, 24, 48, 620, 1024, 1428, 4000 };

	must(region_make(&src, p->a.pd, 2 * PAGE, ALL_RIGHTS));
	must(region_make(&dst, p->b.pd, 2 * PAGE, ALL_RIGHTS));
	for (unsigned int i = 0; i < ARRAY_SIZE(lens); i++) {
		must(last_octet_stored_once(p, lens[i], 0));
		must(last_octet_stored_once(p, lens[i], 16));
		must(last_octet_stored_once(p, lens[i], 3));
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(last_octet_is_stored_once);
	return test_end();
}

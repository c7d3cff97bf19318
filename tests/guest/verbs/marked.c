// SPDX-License-Identifier: GPL-2.0
/*
 * Flush and Atomic Write: what riwarp devices that have agreed on it can ask of each other, by
 * messages that a reserved bit marks. Only librxe can post them.
 */

#include "common.h"

#include <pthread.h>
#include <sys/mman.h>

#define OPS (IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE | \
	     IBV_QP_EX_WITH_RDMA_READ)
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		IBV_ACCESS_FLUSH_GLOBAL)
#define LEN 65536

static struct region local, remote;

static bool prepare_with(struct pair *p, int access)
{
	if (!region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, p->b.pd, LEN, access))
		return false;
	pattern_fill(local.buf, LEN, 1);
	memset(remote.buf, 0x11, LEN);
	return true;
}

static bool prepare(struct pair *p) { return prepare_with(p, RIGHTS); }

static bool flush_at(struct pair *p, uint64_t id, uint64_t addr, size_t len, int type, int level)
{
	struct ibv_qp_ex *qp = wr_begin(p, id);

	ibv_wr_flush(qp, remote.mr->rkey, addr, len, (uint8_t)type, (uint8_t)level);
	return !ibv_wr_complete(qp);
}

static bool flush(struct pair *p, uint64_t id, size_t off, size_t len, int type, int level)
{
	return flush_at(p, id, (uintptr_t)remote.buf + off, len, type, level);
}

static bool atomic_write(struct pair *p, uint64_t id, size_t off, uint64_t value)
{
	struct ibv_qp_ex *qp = wr_begin(p, id);

	ibv_wr_atomic_write(qp, remote.mr->rkey, (uintptr_t)remote.buf + off, &value);
	return !ibv_wr_complete(qp);
}

static bool write_all(struct pair *p, uint64_t id, int flags)
{
	struct ibv_qp_ex *qp = wr_begin(p, id);

	qp->wr_flags = (unsigned int)flags;
	ibv_wr_rdma_write(qp, remote.mr->rkey, (uintptr_t)remote.buf);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf, LEN);
	return !ibv_wr_complete(qp);
}

/* Both ends are in the error state, and nothing was written. */
static void ended(struct pair *p)
{
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(remote.buf, LEN, 0x11) < 0, "the peer's memory was written");
}

/* --- Flush ------------------------------------------------------------------------------------ */

static void flushed(struct pair *p, int access)
{
	struct ibv_wc wc;

	must(prepare_with(p, access));
	for (int level = IBV_FLUSH_RANGE; level <= IBV_FLUSH_MR; level++) {
		pattern_fill(local.buf, LEN, 2 + (uint32_t)level);
		must(write_all(p, 1, 0));
		must(flush(p, 2, 8, LEN - 8, IBV_FLUSH_GLOBAL, level));
		must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_FLUSH, "opcode %d", wc.opcode);
		check(!wc.byte_len, "%u octets", wc.byte_len);
		check(pattern_differs(remote.buf, LEN, 2 + (uint32_t)level) < 0,
		      "what was written before is not there");
	}
	/* Empty ranges, and those of a region that name no range. */
	must(flush(p, 3, 0, 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE) &&
	     expect_wc(p->a.send_cq, &wc, 3, IBV_WC_SUCCESS));
	must(flush_at(p, 4, 0, 1 << 30, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR) &&
	     expect_wc(p->a.send_cq, &wc, 4, IBV_WC_SUCCESS));
}

PAIR_CASE(flush_completes_after_earlier_writes, .send_ops = OPS) { flushed(p, RIGHTS); }
PAIR_CASE(flush_of_paged_memory, .send_ops = OPS) { flushed(p, RIGHTS | IBV_ACCESS_ON_DEMAND); }

static void flush_refused(struct pair *p, int access, size_t off, size_t len, int type, int level)
{
	struct ibv_wc wc;

	must(prepare_with(p, access));
	must(flush(p, 1, off, len, type, level) &&
	     expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	check(wc.opcode == IBV_WC_FLUSH || !wc.opcode, "opcode %d", wc.opcode);
	ended(p);
}

PAIR_CASE(flush_without_the_right, .send_ops = OPS)
{
	flush_refused(p, ALL_RIGHTS, 0, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
}

PAIR_CASE(flush_of_a_region_without_the_right, .send_ops = OPS)
{
	flush_refused(p, ALL_RIGHTS, 0, 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR);
}

PAIR_CASE(flush_across_the_end, .send_ops = OPS)
{
	flush_refused(p, RIGHTS, 8, LEN - 7, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
}

PAIR_CASE(flush_to_persistent_memory, .send_ops = OPS)
{
	flush_refused(p, RIGHTS, 0, 8, IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE);
}

PAIR_CASE(ordinary_memory_has_no_persistent_right)
{
	must(prepare(p));
	check(!ibv_reg_mr(p->b.pd, remote.buf, LEN, RIGHTS | IBV_ACCESS_FLUSH_PERSISTENT), "registered");
	check(errno == EOPNOTSUPP, "%s", strerror(errno));
}

PAIR_CASE(flush_of_deregistered_region, .send_ops = OPS)
{
	struct ibv_qp_ex *qp;
	struct ibv_wc wc;
	uint32_t key;

	must(prepare(p));
	key = remote.mr->rkey;
	must(region_release(&remote));
	qp = wr_begin(p, 1);
	ibv_wr_flush(qp, key, (uintptr_t)remote.buf, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR);
	check(!ibv_wr_complete(qp), "ibv_wr_complete");
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	ended(p);
}

static void flush_of_kind(struct pair *p, int type, int level)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(flush(p, 1, 0, 8, type, level) &&
	     expect_wc(p->a.send_cq, &wc, 1, IBV_WC_LOC_QP_OP_ERR));
	ended(p);
}

PAIR_CASE(flush_without_placement_type, .send_ops = OPS) { flush_of_kind(p, 0, IBV_FLUSH_RANGE); }
PAIR_CASE(flush_of_unknown_placement_type, .send_ops = OPS) { flush_of_kind(p, 4, IBV_FLUSH_RANGE); }
PAIR_CASE(flush_of_unknown_selectivity_level, .send_ops = OPS) { flush_of_kind(p, IBV_FLUSH_GLOBAL, 2); }

/* More than the depth allows, among Reads, complete in order. */
PAIR_CASE(flushes_beyond_the_depth, .send_ops = OPS, .depth = 2)
{
	struct ibv_wc wc;

	must(prepare(p));
	for (uint64_t i = 0; i < 30; i++) {
		if (i % 3) {
			must(flush(p, i, 0, LEN, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE));
		} else {
			struct ibv_qp_ex *qp = wr_begin(p, i);

			ibv_wr_rdma_read(qp, remote.mr->rkey, (uintptr_t)remote.buf);
			ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf, 3000);
			check(!ibv_wr_complete(qp), "ibv_wr_complete");
		}
	}
	for (uint64_t i = 0; i < 30; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	check(not_all(local.buf, 3000, 0x11) < 0, "the Reads differ");
}

/* --- Atomic Write ----------------------------------------------------------------------------- */

PAIR_CASE(atomic_write_stores_eight_octets, .send_ops = OPS)
{
	uint64_t *words;
	struct ibv_wc wc;

	must(prepare(p));
	words = (uint64_t *)remote.buf;
	for (uint64_t i = 0; i < 64; i++) {
		uint64_t value = 0x0102030405060708 * (i + 1);

		must(atomic_write(p, i, 16, value) &&
		     expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_ATOMIC_WRITE, "opcode %d", wc.opcode);
		check(words[2] == value, "%#lx instead of %#lx", words[2], value);
	}
	check(not_all(remote.buf, 16, 0x11) < 0 && not_all(remote.buf + 24, LEN - 24, 0x11) < 0,
	      "something beside was written");
}

/* It comes after all that was written before. */
PAIR_CASE(atomic_write_is_placed_after_earlier_writes, .send_ops = OPS)
{
	volatile uint64_t *flag;
	struct ibv_wc wc;

	must(prepare(p));
	flag = (volatile uint64_t *)(remote.buf + LEN - 8);
	for (uint64_t i = 1; i <= 50; i++) {
		int64_t until = now_ms() + SOON;

		pattern_fill(local.buf, LEN - 8, (uint32_t)i);
		*(uint64_t *)(local.buf + LEN - 8) = i - 1;
		*flag = 0;
		must(write_all(p, 1000 + i, 0));
		must(atomic_write(p, i, LEN - 8, i));
		while (*flag != i && now_ms() < until)
			;
		check(*flag == i, "the flag is %lu", *flag);
		check(pattern_differs(remote.buf, LEN - 8, (uint32_t)i) < 0, "the Write is not there");
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	}
}

static bool torn, done;
static long seen[2];

/* Looks at the word all the time. */
static void *look(void *word)
{
	while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
		uint64_t value = *(volatile uint64_t *)word;

		if (!value || value == ~0ULL)
			seen[value != 0]++;
		else
			torn = true;
	}
	return NULL;
}

/* Nobody sees a part of it, also where a page ends behind it. */
static void whole(struct pair *p, size_t off)
{
	pthread_t thread;
	struct ibv_wc wc;

	must(prepare(p));
	*(uint64_t *)(remote.buf + off) = 0;
	torn = done = false;
	seen[0] = seen[1] = 0;
	check(!pthread_create(&thread, NULL, look, remote.buf + off), "no thread");
	for (uint64_t i = 0; i < 2000; i++) {
		uint64_t value = i % 2 ? 0 : ~0ULL;

		if (!atomic_write(p, i, off, value) ||
		    !expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS))
			break;
	}
	__atomic_store_n(&done, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	check(!torn, "a part of it was seen");
	check(seen[0] && seen[1], "seen %ld and %ld times", seen[0], seen[1]);
}

PAIR_CASE(atomic_write_is_never_seen_in_part, .send_ops = OPS) { whole(p, PAGE - 8); }

static void atomic_write_ends(struct pair *p, int access, size_t off, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	must(prepare_with(p, access));
	must(atomic_write(p, 1, off, 5) && expect_wc(p->a.send_cq, &wc, 1, status));
	ended(p);
}

PAIR_CASE(atomic_write_to_an_odd_address, .send_ops = OPS)
{
	atomic_write_ends(p, RIGHTS, 4, IBV_WC_LOC_QP_OP_ERR);
}

PAIR_CASE(atomic_write_without_the_right, .send_ops = OPS)
{
	atomic_write_ends(p, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0,
			  IBV_WC_REM_ACCESS_ERR);
}

PAIR_CASE(atomic_write_beyond_the_region, .send_ops = OPS)
{
	atomic_write_ends(p, RIGHTS, LEN, IBV_WC_REM_ACCESS_ERR);
}

/* Pages that are not there. */
PAIR_CASE(atomic_write_to_paged_memory, .send_ops = OPS)
{
	struct ibv_wc wc;

	must(prepare_with(p, RIGHTS | IBV_ACCESS_ON_DEMAND));
	check(!madvise(remote.buf, LEN, MADV_DONTNEED), "madvise: %s", strerror(errno));
	must(atomic_write(p, 1, PAGE + 8, 77) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(*(uint64_t *)(remote.buf + PAGE + 8) == 77, "it is not there");
	check(not_all(remote.buf, PAGE + 8, 0) < 0 &&
		      not_all(remote.buf + PAGE + 16, LEN - PAGE - 16, 0) < 0,
	      "something beside was written");
}

/* --- without agreement ------------------------------------------------------------------------ */

static char setting[128];

static void without_agreement(void (*body)(struct pair *p))
{
	struct pair_opts opts = { .send_ops = OPS };
	struct ibv_context *ctx = test_context();
	char before[16];
	long was;

	check(ctx, "no device");
	snprintf(setting, sizeof(setting), "/sys/class/infiniband/%s/ulpdu_limit",
		 ibv_get_device_name(ctx->device));
	was = file_value(setting);
	snprintf(before, sizeof(before), "%ld", was);
	must(file_write(setting, "0"));
	with_pair(&opts, body);
	must(file_write(setting, before));
}

/* It is a Read of no octets then, for which the peer needs no right. */
static void flush_as_a_read(struct pair *p)
{
	struct ibv_wc wc;

	must(prepare_with(p, ALL_RIGHTS));
	must(write_all(p, 1, 0));
	must(flush(p, 2, 0, LEN, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_FLUSH, "opcode %d", wc.opcode);
	check(pattern_differs(remote.buf, LEN, 1) < 0, "what was written before is not there");
}

static void persistent_alone(struct pair *p) { flush_of_kind(p, IBV_FLUSH_PERSISTENT, 0); }

static void atomic_write_alone(struct pair *p)
{
	atomic_write_ends(p, RIGHTS, 0, IBV_WC_LOC_QP_OP_ERR);
}

static void flush_without_agreement(void) { without_agreement(flush_as_a_read); }
static void persistent_without_agreement(void) { without_agreement(persistent_alone); }
static void atomic_write_without_agreement(void) { without_agreement(atomic_write_alone); }

/* What the device says of itself. */
static void device_reports_flush_and_atomic_write(void)
{
	struct ibv_context *ctx = test_context();
	struct ibv_device_attr_ex attr;

	check(ctx, "no device");
	check(!ibv_query_device_ex(ctx, NULL, &attr), "ibv_query_device_ex");
	check(attr.device_cap_flags_ex & (1ULL << 38), "no Flush to all of the host");
	check(attr.device_cap_flags_ex & (1ULL << 40), "no Atomic Write");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(device_reports_flush_and_atomic_write);
	RUN(flush_completes_after_earlier_writes);
	RUN(flush_of_paged_memory);
	RUN(flush_without_the_right);
	RUN(flush_of_a_region_without_the_right);
	RUN(flush_across_the_end);
	RUN(flush_to_persistent_memory);
	RUN(ordinary_memory_has_no_persistent_right);
	RUN(flush_of_deregistered_region);
	RUN(flush_without_placement_type);
	RUN(flush_of_unknown_placement_type);
	RUN(flush_of_unknown_selectivity_level);
	RUN(flushes_beyond_the_depth);
	RUN(atomic_write_stores_eight_octets);
	RUN(atomic_write_is_placed_after_earlier_writes);
	RUN(atomic_write_is_never_seen_in_part);
	RUN(atomic_write_to_an_odd_address);
	RUN(atomic_write_without_the_right);
	RUN(atomic_write_beyond_the_region);
	RUN(atomic_write_to_paged_memory);
	RUN(flush_without_agreement);
	RUN(persistent_without_agreement);
	RUN(atomic_write_without_agreement);
	return test_end();
}

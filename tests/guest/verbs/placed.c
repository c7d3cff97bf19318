// SPDX-License-Identifier: GPL-2.0
/*
 * Link type riwarp_ib: when a Write is complete, the peer has its data. The path has to be slow, so
 * that a completion which TCP gives comes before the data.
 */

#include "modify.h"

static struct ibv_context *ctx;

/* Whether the peer has `len` octets of the pattern `seed`. */
static bool has(const struct side *s, size_t at, size_t len, uint32_t seed)
{
	ssize_t differs = pattern_differs(s->memory.buf + at, len, seed);

	if (differs >= 0)
		fail("octet %zd of %zu has not arrived when the Write is complete", differs, len);
	return differs < 0;
}

SIDES_CASE(completed_write_is_placed)
{
	static const size_t lens[] = { 1, 64, 4096, 65536 };
	struct ibv_wc wc;

	must(sides_join(a, b));
	must(traffic(a, b));
	for (unsigned int i = 0; i < ARRAY_SIZE(lens); i++) {
		pattern_fill(a->memory.buf, lens[i], i + 1);
		memset(b->memory.buf, 0, lens[i]);
		must(side_rdma(a, IBV_WR_RDMA_WRITE, i, 0, b, 0, lens[i]));
		must(expect_wc(a->cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_RDMA_WRITE, "opcode %d", wc.opcode);
		must(has(b, 0, lens[i], i + 1));
	}
	must(traffic(b, a));
}

/* UCX ends a row of Writes without completions by an empty one that has one. */
SIDES_CASE(empty_write_completes_earlier_writes)
{
	struct ibv_sge sge = sge_of(&a->memory, 0, 30000);
	struct ibv_send_wr write = wr_rdma(IBV_WR_RDMA_WRITE, 1, 0, &sge, 1,
					   (uintptr_t)b->memory.buf, b->memory.mr->rkey);
	struct ibv_send_wr empty = wr_rdma(IBV_WR_RDMA_WRITE, 2,
					   IBV_SEND_SIGNALED | IBV_SEND_INLINE, NULL, 0, 0, 0);
	struct ibv_wc wc;

	must(sides_join(a, b));
	must(traffic(a, b));
	pattern_fill(a->memory.buf, 30000, 9);
	memset(b->memory.buf, 0, 30000);
	must(side_post(a, &write) && side_post(a, &empty));
	must(expect_wc(a->cq, &wc, 2, IBV_WC_SUCCESS));
	must(has(b, 0, 30000, 9));
}

/* The Read that completes a Write needs an entry of the ORD, of which there is a limited number. */
static void writes_beyond_the_limit(struct side *a, struct side *b)
{
	struct ibv_wc wc;

	must(sides_join(a, b));
	for (unsigned int i = 0; i < SIDE_DEPTH / 2; i++) {
		pattern_fill(a->memory.buf + i * 100, 100, i);
		must(side_rdma(a, IBV_WR_RDMA_WRITE, i, i * 100, b, i * 100, 100));
	}
	for (unsigned int i = 0; i < SIDE_DEPTH / 2; i++) {
		must(expect_wc(a->cq, &wc, i, IBV_WC_SUCCESS));
		must(has(b, i * 100, 100, i));
	}
}

SIDES_CASE(writes_beyond_read_depth_complete)
{
	/* The fewest with which the sides' attributes are taken. */
	must(set_device_value(ctx, "ord_limit", 4));
	writes_beyond_the_limit(a, b);
	must(set_device_value(ctx, "ord_limit", 128));
}

/* A program that forbids Reads of its memory gets completions, too. */
SIDES_CASE(writes_complete_if_peer_allows_no_reads)
{
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	int mask;

	for (int i = 0; i < 2; i++) {
		struct side *s = i ? b : a;

		mask = rtr_attr(s, i ? a : b, &attr);
		attr.max_dest_rd_atomic = 0;
		check(try_modify(s, &attr, mask) == 0, "RTR");
		mask = rts_attr(s, &attr);
		attr.max_rd_atomic = 0;
		check(try_modify(s, &attr, mask) == 0, "RTS");
	}
	pattern_fill(a->memory.buf, 5000, 3);
	must(side_rdma(a, IBV_WR_RDMA_WRITE, 1, 0, b, 0, 5000));
	must(expect_wc(a->cq, &wc, 1, IBV_WC_SUCCESS));
	must(has(b, 0, 5000, 3));
}

/* What the peer refuses is not complete. */
SIDES_CASE(refused_write_fails)
{
	struct ibv_sge sge = sge_of(&a->memory, 0, 100);
	struct ibv_send_wr write = wr_rdma(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1,
					   (uintptr_t)b->memory.buf, b->memory.mr->rkey + 0x100);
	struct ibv_wc wc;

	must(sides_join(a, b));
	must(traffic(a, b));
	must(side_post(a, &write));
	check(poll_wc(a->cq, &wc, SOON), "no completion");
	check(wc.wr_id == 1 && wc.status != IBV_WC_SUCCESS, "status %d", wc.status);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	RUN(completed_write_is_placed);
	RUN(empty_write_completes_earlier_writes);
	RUN(writes_beyond_read_depth_complete);
	RUN(writes_complete_if_peer_allows_no_reads);
	RUN(refused_write_fails);
	return test_end();
}

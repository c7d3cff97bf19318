// SPDX-License-Identifier: GPL-2.0
/* RDMA Write and Read: what is moved, what is refused, and what both ends report. */

#include "common.h"

static struct region local, remote;

static bool prepare(struct pair *p, size_t len, int remote_access)
{
	return region_make(&local, p->a.pd, len, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, len, remote_access);
}

/* Posts one transfer of the first `len` octets of `local` and returns its completion. */
static bool transfer(struct pair *p, enum ibv_wr_opcode op, size_t len, uint64_t raddr,
		     uint32_t rkey, struct ibv_wc *wc)
{
	struct ibv_sge sge = sge_of(&local, 0, len);
	struct ibv_send_wr wr =
		wr_rdma(op, 42, IBV_SEND_SIGNALED, &sge, len ? 1 : 0, raddr, rkey);

	if (op == IBV_WR_RDMA_READ) /* a Read always names its sink */
		wr.num_sge = 1;
	if (!post_send(&p->a, &wr))
		return false;
	if (!poll_wc(p->a.send_cq, wc, SOON)) {
		fail("no completion");
		return false;
	}
	return true;
}

/* A zero-length Read behind a Write returns after the Write was placed. */
static bool settle(struct pair *p)
{
	struct ibv_wc wc;

	if (!transfer(p, IBV_WR_RDMA_READ, 0, 0, 0, &wc))
		return false;
	if (wc.status != IBV_WC_SUCCESS) {
		fail("Read of nothing: %s", ibv_wc_status_str(wc.status));
		return false;
	}
	return true;
}

static const size_t sizes[] = { 1,    2,     3,	    4,	   5,	  64,	  1453,	 1454,
				1455, 4095,  4096,  4097,  8942,  65535,  65536, 65537,
				70001, 262144, 1048577 };

PAIR_CASE(write_sizes)
{
	struct ibv_wc wc;

	must(prepare(p, 1 << 21, ALL_RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		size_t len = sizes[i], off = 1000 + i;

		pattern_fill(local.buf, len, i);
		memset(remote.buf, 0xee, remote.len);
		must(transfer(p, IBV_WR_RDMA_WRITE, len, (uintptr_t)remote.buf + off,
			      remote.mr->rkey, &wc));
		check(wc.status == IBV_WC_SUCCESS, "%zu: %s", len, ibv_wc_status_str(wc.status));
		check(wc.opcode == IBV_WC_RDMA_WRITE, "opcode %d", wc.opcode);
		must(settle(p));
		check(pattern_differs(remote.buf + off, len, i) < 0, "%zu: data differs at %zd",
		      len, pattern_differs(remote.buf + off, len, i));
		check(not_all(remote.buf, off, 0xee) < 0, "%zu: written before the target", len);
		check(not_all(remote.buf + off + len, remote.len - off - len, 0xee) < 0,
		      "%zu: written behind the target", len);
	}
}

PAIR_CASE(read_sizes)
{
	struct ibv_wc wc;

	must(prepare(p, 1 << 21, ALL_RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		size_t len = sizes[i], off = 1000 + i;

		pattern_fill(remote.buf + off, len, i);
		memset(local.buf, 0xee, local.len);
		must(transfer(p, IBV_WR_RDMA_READ, len, (uintptr_t)remote.buf + off,
			      remote.mr->rkey, &wc));
		check(wc.status == IBV_WC_SUCCESS, "%zu: %s", len, ibv_wc_status_str(wc.status));
		check(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == len, "opcode %d, len %u",
		      wc.opcode, wc.byte_len);
		check(pattern_differs(local.buf, len, i) < 0, "%zu: data differs at %zd", len,
		      pattern_differs(local.buf, len, i));
		check(not_all(local.buf + len, local.len - len, 0xee) < 0,
		      "%zu: written behind the sink", len);
	}
	/* The other side has no completion. */
	must(expect_no_wc(p->b.recv_cq, QUIET));
	must(expect_no_wc(p->b.send_cq, 0));
}

/* A transfer of no octets needs neither a valid key nor address (RFC 5041, section 5.2). */
PAIR_CASE(empty_transfer_needs_no_key)
{
	struct ibv_wc wc;

	must(prepare(p, 4096, 0));
	must(transfer(p, IBV_WR_RDMA_WRITE, 0, 0x123456789abcdefULL, 0xffffffff, &wc));
	check(wc.status == IBV_WC_SUCCESS, "Write: %s", ibv_wc_status_str(wc.status));
	must(transfer(p, IBV_WR_RDMA_READ, 0, ~0ULL, 0xffffffff, &wc));
	check(wc.status == IBV_WC_SUCCESS, "Read: %s", ibv_wc_status_str(wc.status));
	must(exchange_works(p));
}

PAIR_CASE(write_gathers, .send_sge = 4)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	static const uint32_t lens[4] = { 3, 9000, 1, 4444 };
	size_t at = 0;

	must(prepare(p, 1 << 16, ALL_RIGHTS));
	pattern_fill(local.buf, local.len, 8);
	for (int i = 0; i < 4; i++)
		sge[i] = sge_of(&local, i * 12345, lens[i]);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, sge, 4, (uintptr_t)remote.buf + 1,
		     remote.mr->rkey);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(settle(p));
	for (int i = 0; i < 4; i++) {
		check(!memcmp(remote.buf + 1 + at, local.buf + i * 12345, lens[i]),
		      "piece %d differs", i);
		at += lens[i];
	}
}

/* The receiver of a Write has no completion; a Send behind it notifies. */
PAIR_CASE(send_behind_write_notifies)
{
	struct ibv_send_wr wr[2];
	struct ibv_sge sge[2];
	struct region mail = { 0 };
	struct ibv_wc wc;

	must(prepare(p, 300000, ALL_RIGHTS));
	must(region_make(&mail, p->b.pd, 64, IBV_ACCESS_LOCAL_WRITE));
	for (int round = 0; round < 10; round++) {
		pattern_fill(local.buf, local.len, 100 + round);
		must(post_recv(&p->b, 9, &mail, 0, 64));
		sge[0] = sge_of(&local, 0, local.len);
		sge[1] = sge_of(&local, 0, 8);
		wr[0] = wr_rdma(IBV_WR_RDMA_WRITE, 1, 0, &sge[0], 1, (uintptr_t)remote.buf,
				remote.mr->rkey);
		wr[1] = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge[1], 1);
		wr[0].next = &wr[1];
		must(post_send(&p->a, wr));
		must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_SUCCESS));
		check(pattern_differs(remote.buf, remote.len, 100 + round) < 0,
		      "the Send overtook the Write");
		must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		must(expect_no_wc(p->b.recv_cq, 0));
	}
}

/* More Reads at once than ORD allows: they wait, and all succeed, in order. */
PAIR_CASE(many_reads, .depth = 4)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 64 * 4096, ALL_RIGHTS));
	pattern_fill(remote.buf, remote.len, 1);
	for (int i = 0; i < 60; i++) {
		sge = sge_of(&local, i * 4096, 4096);
		wr = wr_rdma(IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED, &sge, 1,
			     (uintptr_t)remote.buf + i * 4096, remote.mr->rkey);
		must(post_send(&p->a, &wr));
	}
	for (int i = 0; i < 60; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	check(pattern_differs(local.buf, 60 * 4096, 1) < 0, "data differs");
}

/* --- refusals --------------------------------------------------------------------------------- */

/*
 * A refused Read: the reader's request completes with an access error, requests behind it are
 * flushed, the other end gets an event, nothing is moved, and both QPs are in error.
 */
static void refused_read(struct pair *p, size_t len, uint64_t raddr, uint32_t rkey)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct region mail = { 0 };
	struct ibv_wc wc;

	memset(local.buf, 0x77, local.len);
	pattern_fill(remote.buf, remote.len, 6);
	must(region_make(&mail, p->b.pd, 64, IBV_ACCESS_LOCAL_WRITE));
	must(post_recv(&p->b, 1, &mail, 0, 64));
	must(transfer(p, IBV_WR_RDMA_READ, len, raddr, rkey, &wc));
	check(wc.wr_id == 42 && wc.status == IBV_WC_REM_ACCESS_ERR, "Read completed with '%s'",
	      ibv_wc_status_str(wc.status));
	/* Layer 0, error type 1 of the Terminate; libsiw's completions have no field for them. */
	check(wc.vendor_err >> 8 == (has_extensions() ? 0x101 : 0), "vendor_err is %#x", wc.vendor_err);
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(ctx, p->b.qp, SOON), "no event at the responder; seen: %s",
	      async_list(ctx));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	check(!wc.vendor_err, "vendor_err is %#x where no Terminate came", wc.vendor_err);
	check(not_all(local.buf, local.len, 0x77) < 0, "octets were read");
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

/*
 * A refused Write: it may have completed at its sender before, but both QPs end in error, the
 * target gets an event, and no octet is written.
 */
static void refused_write(struct pair *p, size_t len, uint64_t raddr, uint32_t rkey)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct region mail = { 0 };
	struct ibv_wc wc;

	memset(local.buf, 0x77, local.len);
	memset(remote.buf, 0x11, remote.len);
	must(region_make(&mail, p->b.pd, 64, IBV_ACCESS_LOCAL_WRITE));
	must(post_recv(&p->b, 1, &mail, 0, 64));
	must(transfer(p, IBV_WR_RDMA_WRITE, len, raddr, rkey, &wc));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(ctx, p->b.qp, SOON), "no event at the target; seen: %s",
	      async_list(ctx));
	check(async_qp_error(ctx, p->a.qp, SOON), "no event at the sender; seen: %s",
	      async_list(ctx));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	check(not_all(remote.buf, remote.len, 0x11) < 0, "octets were written");
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

#define REFUSED(name, kind, access, len, raddr, rkey)                                              \
	PAIR_CASE(name)                                                                            \
	{                                                                                          \
		must(prepare(p, 8192, access));                                                    \
		kind(p, len, raddr, rkey);                                                         \
	}

#define AT ((uintptr_t)remote.buf)
#define KEY (remote.mr->rkey)

REFUSED(read_without_right, refused_read, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, 100,
	AT, KEY)
REFUSED(read_of_unknown_region, refused_read, ALL_RIGHTS, 100, AT, KEY ^ 0x5a5a5a00)
REFUSED(read_with_wrong_key_octet, refused_read, ALL_RIGHTS, 100, AT, KEY ^ 0x01)
REFUSED(read_below_the_region, refused_read, ALL_RIGHTS, 100, AT - 1, KEY)
REFUSED(read_past_the_end, refused_read, ALL_RIGHTS, 8192, AT + 1, KEY)
REFUSED(read_at_the_end, refused_read, ALL_RIGHTS, 1, AT + 8192, KEY)
REFUSED(read_that_wraps, refused_read, ALL_RIGHTS, 16, ~0ULL - 7, KEY)
REFUSED(write_without_right, refused_write, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 100,
	AT, KEY)
REFUSED(write_to_unknown_region, refused_write, ALL_RIGHTS, 100, AT, KEY ^ 0x5a5a5a00)
REFUSED(write_with_wrong_key_octet, refused_write, ALL_RIGHTS, 100, AT, KEY ^ 0x80)
REFUSED(write_below_the_region, refused_write, ALL_RIGHTS, 100, AT - 1, KEY)
REFUSED(write_past_the_end, refused_write, ALL_RIGHTS, 100, AT + 8093, KEY)
REFUSED(write_at_the_end, refused_write, ALL_RIGHTS, 1, AT + 8192, KEY)
REFUSED(write_that_wraps, refused_write, ALL_RIGHTS, 16, ~0ULL - 7, KEY)

/* Uses a region of another protection domain of the same process. */
static void other_pd(struct pair *p, void (*kind)(struct pair *, size_t, uint64_t, uint32_t))
{
	must(region_make(&local, p->a.pd, 8192, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&remote, p->a.pd, 8192, ALL_RIGHTS)); /* a's PD, not b's */
	kind(p, 100, AT, KEY);
}

PAIR_CASE(read_of_another_pd) { other_pd(p, refused_read); }
PAIR_CASE(write_to_another_pd) { other_pd(p, refused_write); }

PAIR_CASE(read_of_a_released_region)
{
	uint64_t at;
	uint32_t key;
	struct region gone = { 0 };

	must(prepare(p, 8192, ALL_RIGHTS));
	must(region_make(&gone, p->b.pd, 8192, ALL_RIGHTS));
	at = (uintptr_t)gone.buf;
	key = gone.mr->rkey;
	region_free(&gone);
	refused_read(p, 100, at, key);
}

/*
 * A long Write that leaves its region in the middle: the part before the region's end may be
 * placed.
 */
PAIR_CASE(long_write_past_the_end)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct region guard = { 0 };
	struct ibv_wc wc;

	must(region_make(&local, p->a.pd, 1 << 20, 0));
	must(region_make(&guard, p->b.pd, 1 << 20, 0));
	remote = guard;
	remote.mr = ibv_reg_mr(p->b.pd, guard.buf, 1 << 19, ALL_RIGHTS);
	check(remote.mr, "ibv_reg_mr: %s", strerror(errno));
	memset(guard.buf, 0x11, guard.len);
	pattern_fill(local.buf, local.len, 2);
	must(transfer(p, IBV_WR_RDMA_WRITE, 1 << 20, AT, KEY, &wc));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(ctx, p->b.qp, SOON), "no event at the target");
	check(not_all(guard.buf + (1 << 19), 1 << 19, 0x11) < 0, "written past the region");
	ibv_dereg_mr(remote.mr);
}

/* After an error no data is moved, and posted requests are flushed. */
PAIR_CASE(posts_after_an_error_are_flushed)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 8192, ALL_RIGHTS));
	must(transfer(p, IBV_WR_RDMA_READ, 16, AT, KEY ^ 0xff, &wc));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	sge = sge_of(&local, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 7, IBV_SEND_SIGNALED, &sge, 1, AT, KEY);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 7, IBV_WC_WR_FLUSH_ERR));
	must(post_recv(&p->a, 8, &local, 0, 64));
	must(expect_wc(p->a.recv_cq, &wc, 8, IBV_WC_WR_FLUSH_ERR));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(write_sizes);
	RUN(read_sizes);
	RUN(empty_transfer_needs_no_key);
	RUN(write_gathers);
	RUN(send_behind_write_notifies);
	RUN(many_reads);
	RUN(read_without_right);
	RUN(read_of_unknown_region);
	RUN(read_with_wrong_key_octet);
	RUN(read_below_the_region);
	RUN(read_past_the_end);
	RUN(read_at_the_end);
	RUN(read_that_wraps);
	RUN(write_without_right);
	RUN(write_to_unknown_region);
	RUN(write_with_wrong_key_octet);
	RUN(write_below_the_region);
	RUN(write_past_the_end);
	RUN(write_at_the_end);
	RUN(write_that_wraps);
	RUN(read_of_another_pd);
	RUN(write_to_another_pd);
	RUN(read_of_a_released_region);
	RUN(long_write_past_the_end);
	RUN(posts_after_an_error_are_flushed);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/* Scatter/gather elements that are not valid. */

#include "common.h"

static struct region src, dst;

static bool prepare(struct pair *p)
{
	return region_make(&src, p->a.pd, 8192, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&dst, p->b.pd, 8192, ALL_RIGHTS);
}

/* --- at the sender ---------------------------------------------------------------------------- */

/*
 * The request completes with a protection error, the requests behind it are flushed, no octet
 * reaches the peer, and the peer's QP goes into error too.
 */
static void bad_source(struct pair *p, enum ibv_wr_opcode op, struct ibv_sge bad)
{
	struct ibv_send_wr wr[2];
	struct ibv_sge sge[2];
	struct ibv_wc wc;

	memset(dst.buf, 0x11, dst.len);
	must(post_recv(&p->b, 1, &dst, 0, 8192));
	sge[0] = bad;
	sge[1] = sge_of(&src, 0, 16);
	wr[0] = wr_rdma(op, 5, IBV_SEND_SIGNALED, &sge[0], 1, (uintptr_t)dst.buf, dst.mr->rkey);
	wr[1] = wr_rdma(op, 6, IBV_SEND_SIGNALED, &sge[1], 1, (uintptr_t)dst.buf, dst.mr->rkey);
	wr[0].next = &wr[1];
	must(post_send(&p->a, wr));
	must(expect_wc(p->a.send_cq, &wc, 5, IBV_WC_LOC_PROT_ERR));
	must(expect_wc(p->a.send_cq, &wc, 6, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	check(not_all(dst.buf, dst.len, 0x11) < 0, "octets reached the peer");
}

#define SGE(a, l, k) ((struct ibv_sge){ .addr = (a), .length = (l), .lkey = (k) })
#define SRC ((uintptr_t)src.buf)

#define BAD_SOURCE(name, op, bad)                                                                  \
	PAIR_CASE(name)                                                                            \
	{                                                                                          \
		must(prepare(p));                                                                  \
		bad_source(p, op, bad);                                                            \
	}

BAD_SOURCE(send_past_the_end, IBV_WR_SEND, SGE(SRC + 1, 8192, src.mr->lkey))
BAD_SOURCE(send_from_below, IBV_WR_SEND, SGE(SRC - 1, 16, src.mr->lkey))
BAD_SOURCE(send_that_wraps, IBV_WR_SEND, SGE(~0ULL - 7, 16, src.mr->lkey))
BAD_SOURCE(send_with_unknown_key, IBV_WR_SEND, SGE(SRC, 16, src.mr->lkey ^ 0x33333300))
BAD_SOURCE(send_with_wrong_key_octet, IBV_WR_SEND, SGE(SRC, 16, src.mr->lkey ^ 0x01))
BAD_SOURCE(send_with_key_zero, IBV_WR_SEND, SGE(SRC, 16, 0))
BAD_SOURCE(send_of_another_pd, IBV_WR_SEND, SGE((uintptr_t)dst.buf, 16, dst.mr->lkey))
BAD_SOURCE(write_past_the_end, IBV_WR_RDMA_WRITE, SGE(SRC + 8000, 193, src.mr->lkey))
BAD_SOURCE(write_with_unknown_key, IBV_WR_RDMA_WRITE, SGE(SRC, 16, 0xfffffff0))
BAD_SOURCE(a_huge_length, IBV_WR_RDMA_WRITE, SGE(SRC, 0xfffffff0u, src.mr->lkey))

/*
 * The length of a message has 32 bits (RFC 5041, section 5.1); each of its elements may be as long.
 */
PAIR_CASE(a_message_of_4_gib, .send_sge = 2)
{
	struct ibv_sge sge[2] = { SGE(0, 0x80000000u, 0), SGE(0, 0x80000000u, 0) };
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	memset(dst.buf, 0x11, dst.len);
	sge[0].lkey = sge[1].lkey = src.mr->lkey;
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 5, IBV_SEND_SIGNALED, sge, 2, (uintptr_t)dst.buf,
		     dst.mr->rkey);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 5, IBV_WC_LOC_LEN_ERR));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(dst.buf, dst.len, 0x11) < 0, "octets reached the peer");
}

PAIR_CASE(second_element_bad, .send_sge = 3)
{
	struct ibv_sge sge[3];
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	memset(dst.buf, 0x11, dst.len);
	must(post_recv(&p->b, 1, &dst, 0, 8192));
	sge[0] = sge_of(&src, 0, 3000);
	sge[1] = SGE(SRC + 8192, 1, src.mr->lkey);
	sge[2] = sge_of(&src, 0, 10);
	wr = wr_make(IBV_WR_SEND, 5, IBV_SEND_SIGNALED, sge, 3);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 5, IBV_WC_LOC_PROT_ERR));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
}

/* The sink of a Read: outside its region, or in one that may not be written. */
static void bad_sink(struct pair *p, struct ibv_sge bad, int access)
{
	struct region narrow = { 0 };
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(region_make(&narrow, p->a.pd, 4096, access));
	memset(narrow.buf, 0x22, 4096);
	if (!bad.lkey)
		bad = sge_of(&narrow, bad.addr, bad.length);
	wr = wr_rdma(IBV_WR_RDMA_READ, 5, IBV_SEND_SIGNALED, &bad, 1, (uintptr_t)dst.buf,
		     dst.mr->rkey);
	must(post_send(&p->a, &wr));
	check(poll_wc(p->a.send_cq, &wc, SOON), "no completion");
	check(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_ACCESS_ERR, "'%s'",
	      ibv_wc_status_str(wc.status));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(narrow.buf, 4096, 0x22) < 0, "the sink was written");
}

PAIR_CASE(read_into_read_only_region)
{
	must(prepare(p));
	bad_sink(p, SGE(0, 64, 0), 0);
}

PAIR_CASE(read_past_the_sink)
{
	must(prepare(p));
	bad_sink(p, SGE(4000, 97, 0), IBV_ACCESS_LOCAL_WRITE);
}

PAIR_CASE(read_with_unknown_sink)
{
	must(prepare(p));
	bad_sink(p, SGE(SRC, 64, src.mr->lkey ^ 0x12300), IBV_ACCESS_LOCAL_WRITE);
}

/* --- at the receiver -------------------------------------------------------------------------- */

static void bad_receive(struct pair *p, struct ibv_sge bad, size_t len, bool length_error)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	memset(dst.buf, 0x11, dst.len);
	must(post_recv_sges(&p->b, 1, &bad, 1));
	must(post_recv(&p->b, 2, &dst, 0, 64));
	sge = sge_of(&src, 0, len);
	wr = wr_make(IBV_WR_SEND, 5, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr));
	check(poll_wc(p->b.recv_cq, &wc, SOON), "the receive never completed");
	if (length_error)
		check(wc.wr_id == 1 && wc.status == IBV_WC_LOC_LEN_ERR, "%llu: '%s'",
		      (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	else
		check(wc.wr_id == 1 && (wc.status == IBV_WC_LOC_PROT_ERR ||
					wc.status == IBV_WC_LOC_ACCESS_ERR),
		      "%llu: '%s'", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(ctx, p->a.qp, SOON), "no event at the sender; seen: %s",
	      async_list(ctx));
}

PAIR_CASE(receive_too_short)
{
	must(prepare(p));
	bad_receive(p, sge_of(&dst, 0, 99), 100, true);
	check(not_all(dst.buf + 99, dst.len - 99, 0x11) < 0, "written past the buffer");
}

PAIR_CASE(receive_of_nothing_too_short)
{
	must(prepare(p));
	bad_receive(p, sge_of(&dst, 0, 0), 1, true);
	check(not_all(dst.buf, dst.len, 0x11) < 0, "written");
}

PAIR_CASE(receive_much_too_short)
{
	must(prepare(p));
	bad_receive(p, sge_of(&dst, 4, 4000), 8192, true);
	check(not_all(dst.buf + 4004, dst.len - 4004, 0x11) < 0, "written past the buffer");
}

PAIR_CASE(receive_outside_its_region)
{
	must(prepare(p));
	bad_receive(p, SGE((uintptr_t)dst.buf + 8190, 100, dst.mr->lkey), 100, false);
}

PAIR_CASE(receive_with_unknown_key)
{
	must(prepare(p));
	bad_receive(p, SGE((uintptr_t)dst.buf, 100, dst.mr->lkey ^ 0x100), 100, false);
}

PAIR_CASE(receive_into_read_only_region)
{
	struct region ro = { 0 };

	must(prepare(p));
	must(region_make(&ro, p->b.pd, 4096, IBV_ACCESS_REMOTE_READ));
	memset(ro.buf, 0x44, 4096);
	bad_receive(p, sge_of(&ro, 0, 100), 100, false);
	check(not_all(ro.buf, 4096, 0x44) < 0, "written");
}

/* --- refused at once -------------------------------------------------------------------------- */

PAIR_CASE(too_many_elements_are_refused, .send_sge = 2, .recv_sge = 2)
{
	struct ibv_sge sge[64];
	struct ibv_send_wr wr;
	struct ibv_recv_wr rwr = { .sg_list = sge, .num_sge = 64 }, *bad;

	must(prepare(p));
	for (int i = 0; i < 64; i++)
		sge[i] = sge_of(&src, 0, 1);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, sge, 64);
	check(try_send(&p->a, &wr) != 0, "a Send with 64 elements was taken");
	check(ibv_post_recv(p->a.qp, &rwr, &bad) != 0, "a receive with 64 elements was taken");
	must(exchange_works(p));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(send_past_the_end);
	RUN(send_from_below);
	RUN(send_that_wraps);
	RUN(send_with_unknown_key);
	RUN(send_with_wrong_key_octet);
	RUN(send_with_key_zero);
	RUN(send_of_another_pd);
	RUN(write_past_the_end);
	RUN(write_with_unknown_key);
	RUN(a_huge_length);
	RUN(a_message_of_4_gib);
	RUN(second_element_bad);
	RUN(read_into_read_only_region);
	RUN(read_past_the_sink);
	RUN(read_with_unknown_sink);
	RUN(receive_too_short);
	RUN(receive_of_nothing_too_short);
	RUN(receive_much_too_short);
	RUN(receive_outside_its_region);
	RUN(receive_with_unknown_key);
	RUN(receive_into_read_only_region);
	RUN(too_many_elements_are_refused);
	return test_end();
}

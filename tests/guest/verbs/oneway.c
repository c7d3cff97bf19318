// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs with one empty queue: a QP that only receives needs no send queue entries, and a QP
 * that only sends needs no receive queue entries. Nothing can be posted there, and all else works.
 */

#include "common.h"

static struct region local, remote;

static bool prepare(struct pair *p)
{
	int atomic = has_extensions() ? IBV_ACCESS_REMOTE_ATOMIC : 0;

	return region_make(&local, p->a.pd, 1 << 16, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, 1 << 16, ALL_RIGHTS | atomic);
}

/* Checks that posting a request to this end, or a receive, fails with ENOMEM each time. */
static bool has_no_places(struct end *e, bool requests)
{
	struct ibv_sge sge = sge_of(&local, 0, 8);
	struct ibv_send_wr swr = wr_make(IBV_WR_SEND, 66, IBV_SEND_SIGNALED, &sge, 1);
	struct ibv_recv_wr rwr = { .wr_id = 67, .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int i = 0; i < 3; i++) {
		int error = requests ? try_send(e, &swr) : abs(ibv_post_recv(e->qp, &rwr, &bad));

		if (error != ENOMEM) {
			fail("posting to a queue without places: %s", strerror(error));
			return false;
		}
	}
	return true;
}

static bool done(struct pair *p, struct ibv_send_wr wr)
{
	struct ibv_wc wc;

	return post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, wr.wr_id, IBV_WC_SUCCESS);
}

/* Does each operation of end `a` on end `b`. */
static bool all_works(struct pair *p)
{
	struct ibv_sge sge = sge_of(&local, 0, 40000);
	uint64_t at = (uintptr_t)remote.buf;
	uint32_t key = remote.mr->rkey;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	if (!exchange_works(p))
		return false;
	pattern_fill(local.buf, 40000, 1);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED, &sge, 1, at, key);
	if (!done(p, wr))
		return false;
	memset(local.buf, 0, 40000);
	/* Its answer comes behind the Write. */
	wr = wr_rdma(IBV_WR_RDMA_READ, 3, IBV_SEND_SIGNALED, &sge, 1, at, key);
	if (!done(p, wr))
		return false;
	if (pattern_differs(local.buf, 40000, 1) >= 0) {
		fail("what was written and read back differs");
		return false;
	}
	if (!has_extensions())
		return true;
	memset(remote.buf, 0, 8);
	sge.length = 8;
	for (uint64_t i = 0; i < 5; i++) {
		wr = wr_make(IBV_WR_ATOMIC_FETCH_AND_ADD, 4, IBV_SEND_SIGNALED, &sge, 1);
		wr.wr.atomic.remote_addr = at;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = 7;
		if (!done(p, wr))
			return false;
		if (*(uint64_t *)local.buf != 7 * i) {
			fail("addition %lu found %lu", i, *(uint64_t *)local.buf);
			return false;
		}
	}
	wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 5, IBV_SEND_SIGNALED, &sge, 1, at, key);
	wr.imm_data = htobe32(0x01020304);
	if (!post_recv(&p->b, 6, &remote, 0, 8) || !done(p, wr) ||
	    !expect_wc(p->b.recv_cq, &wc, 6, IBV_WC_SUCCESS))
		return false;
	if (wc.imm_data != wr.imm_data) {
		fail("other Immediate Data came");
		return false;
	}
	return true;
}

PAIR_CASE(receives_only, .receives_only = true)
{
	must(prepare(p));
	must(has_no_places(&p->b, true));
	must(all_works(p));
	must(has_no_places(&p->b, true));
	/* A doorbell without a purpose. */
	check(!ring_doorbell(p->b.qp), "doorbell: %s", strerror(errno));
	must(all_works(p));
	must(expect_no_wc(p->b.send_cq, QUIET));
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "state %d", qp_state(p->b.qp));
}

PAIR_CASE(sends_only, .sends_only = true)
{
	must(prepare(p));
	must(has_no_places(&p->a, false));
	must(all_works(p));
	must(has_no_places(&p->a, false));
	must(expect_no_wc(p->a.recv_cq, QUIET));
	check(qp_state(p->a.qp) == IBV_QPS_RTS, "state %d", qp_state(p->a.qp));
}

/* The setting of qperf. */
PAIR_CASE(one_way, .sends_only = true, .receives_only = true, .depth = 1)
{
	must(prepare(p));
	for (int i = 0; i < 20; i++)
		must(all_works(p));
	must(has_no_places(&p->a, false));
	must(has_no_places(&p->b, true));
}

/*
 * A Send to an end without a receive queue ends the stream, as one without a posted receive does.
 */
PAIR_CASE(send_to_end_without_receive_queue_ends_the_stream, .sends_only = true)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&remote, 0, 8);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->b, &wr));
	must(poll_wc(p->b.send_cq, &wc, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(expect_no_wc(p->a.recv_cq, QUIET));
}

/* Posted receives are flushed, once; the empty queue has no completions. */
PAIR_CASE(end_of_a_receiver, .receives_only = true)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	must(prepare(p));
	for (int i = 0; i < 3; i++)
		must(post_recv(&p->b, i, &remote, 0, 8));
	check(!ibv_modify_qp(p->b.qp, &attr, IBV_QP_STATE), "to ERR: %s", strerror(errno));
	for (int i = 0; i < 3; i++)
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_WR_FLUSH_ERR));
	must(has_no_places(&p->b, true));
	must(expect_no_wc(p->b.send_cq, QUIET));
	must(expect_no_wc(p->b.recv_cq, QUIET));
}

/* --- not connected ---------------------------------------------------------------------------- */

/* The owner may write anything to the memory of an empty queue. */
static void random_octets_in_empty_queue_do_no_harm(void)
{
	struct ibv_context *ctx = test_context();
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR }, is;
	struct mapping before[64], after[64];
	size_t n, m, new = 0;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	check(ctx, "no device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	check(pd && cq, "preparation: %s", strerror(errno));
	init.send_cq = cq;
	init.recv_cq = cq;
	n = device_mappings(before, ARRAY_SIZE(before));
	qp = ibv_create_qp(pd, &init);
	check(qp, "ibv_create_qp: %s", strerror(errno));
	check(!init.cap.max_send_wr && !init.cap.max_recv_wr, "%u and %u places were made",
	      init.cap.max_send_wr, init.cap.max_recv_wr);
	check(!ibv_query_qp(qp, &is, IBV_QP_STATE, &init), "ibv_query_qp");
	check(!init.cap.max_send_wr && !init.cap.max_recv_wr, "%u and %u places are told",
	      init.cap.max_send_wr, init.cap.max_recv_wr);
	m = device_mappings(after, ARRAY_SIZE(after));
	for (int round = 0; round < 100; round++) {
		for (size_t i = 0; i < m; i++) {
			bool old = false;

			for (size_t k = 0; k < n; k++)
				old |= before[k].start == after[i].start;
			if (!old) {
				fill_any(after[i].start, after[i].len);
				new++;
			}
		}
		check(new, "no memory is shared");
		check(!ring_doorbell(qp), "doorbell: %s", strerror(errno));
		if (round == 50)
			check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to ERR: %s", strerror(errno));
	}
	must(expect_no_wc(cq, QUIET));
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	world_is_well();
}

/* The sizes of a receive queue are ignored beside a shared one. */
static void recv_queue_size_is_ignored_with_srq(void)
{
	struct ibv_context *ctx = test_context();
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_recv_wr = 0x80000000u, .max_recv_sge = 0xffffffffu },
	};
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	check(ctx, "no device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	check(pd && cq, "preparation: %s", strerror(errno));
	srq = srq_make(pd);
	must(srq);
	init.send_cq = cq;
	init.recv_cq = cq;
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	check(qp, "ibv_create_qp: %s", strerror(errno));
	check(!init.cap.max_recv_wr && !init.cap.max_recv_sge, "a receive queue of %u, %u",
	      init.cap.max_recv_wr, init.cap.max_recv_sge);
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

/* The limit is ignored when a shared receive queue is made (ibv_create_srq(3)). */
static void limit_of_a_new_shared_queue(void)
{
	struct ibv_context *ctx = test_context();
	struct ibv_srq_init_attr init = {
		.attr = { .max_wr = 4, .max_sge = 1, .srq_limit = 0xdeadbeef },
	};
	struct ibv_srq *srq;
	struct ibv_pd *pd;

	check(ctx, "no device");
	pd = ibv_alloc_pd(ctx);
	check(pd, "preparation: %s", strerror(errno));
	srq = ibv_create_srq(pd, &init);
	check(srq, "ibv_create_srq: %s", strerror(errno));
	check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(receives_only);
	RUN(sends_only);
	RUN(one_way);
	RUN(send_to_end_without_receive_queue_ends_the_stream);
	RUN(end_of_a_receiver);
	RUN(random_octets_in_empty_queue_do_no_harm);
	RUN(recv_queue_size_is_ignored_with_srq);
	RUN(limit_of_a_new_shared_queue);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * A completion queue that overflows: its owner gets the event. A QP that has lost the completion of
 * a receive ends; one that has lost that of a request goes on. Nothing else changes.
 */

#include "common.h"

#define AGAIN 1000000

static struct region src, dst;

/* Polls a queue empty, then posts requests until one of them is reported. */
static bool reports_again(struct end *e)
{
	struct ibv_sge sge = sge_of(&src, 0, 8);
	struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, AGAIN, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)dst.buf, dst.mr->rkey);
	struct ibv_wc wc;

	for (int64_t end = now_ms() + SOON; now_ms() < end;) {
		while (poll_wc(e->send_cq, &wc, 10))
			if (wc.wr_id == AGAIN && wc.status == IBV_WC_SUCCESS)
				return true;
		try_send(e, &wr);
	}
	fail("nothing completes any more");
	return false;
}

static void overflow(struct pair *p, struct pair *bystander)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	int room = p->a.send_cq->cqe, rc = 0;

	must(region_make(&src, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&dst, p->b.pd, 4096, ALL_RIGHTS));
	/* Fills the queue with completions beyond its size, and polls none. */
	for (int i = 0; i < 4 * room + 16 && !rc; i++) {
		sge = sge_of(&src, 0, 8);
		wr = wr_rdma(IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, &sge, 1,
			     (uintptr_t)dst.buf, dst.mr->rkey);
		for (int64_t end = now_ms() + 1000; now_ms() < end;) {
			rc = try_send(&p->a, &wr);
			if (rc != ENOMEM) /* the queue may be busy for a moment */
				break;
			sleep_ms(1);
		}
	}
	check(async_seen(ctx, IBV_EVENT_CQ_ERR, p->a.send_cq, SOON), "seen only: %s",
	      async_list(ctx));
	must(exchange_works(bystander));
	/* What completes once there is room is reported. */
	check(qp_state(p->a.qp) == IBV_QPS_RTS, "the QP is in state %d", qp_state(p->a.qp));
	must(reports_again(&p->a));
}

static void cq_overflow_is_reported(void)
{
	struct pair_opts small = { .cq_depth = 4, .sq_depth = 64 };
	struct pair p = { 0 }, bystander = { 0 };

	if (pair_open(&bystander, NULL) && pair_open(&p, &small))
		overflow(&p, &bystander);
	pair_close(&p);
	pair_close(&bystander);
}

/* The message is lost, so the stream ends, and the peer hears of that. */
PAIR_CASE(receive_with_full_cq_ends_the_stream, .cq_depth = 4)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int room = p->b.recv_cq->cqe;

	must(region_make(&src, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&dst, p->b.pd, 4096, ALL_RIGHTS));
	for (int i = 0; i < room + 4; i++)
		must(post_recv(&p->b, i, &dst, 0, 64));
	for (int i = 0; i < room; i++) {
		sge = sge_of(&src, 0, 64);
		wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	}
	sleep_ms(QUIET);
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "a full queue ends the QP");
	wr = wr_make(IBV_WR_SEND, room, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr));
	check(async_seen(p->b.id->verbs, IBV_EVENT_CQ_ERR, p->b.recv_cq, SOON), "seen only: %s",
	      async_list(p->b.id->verbs));
	check(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON), "the QP is in state %d", qp_state(p->b.qp));
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	for (int i = 0; i < room; i++)
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
	world_is_well();
}

/* The queue holds as many completions as it reports. */
PAIR_CASE(cq_holds_its_reported_size, .cq_depth = 64)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	int room = p->a.send_cq->cqe;

	check(room >= 64, "asked for 64, made %d", room);
	must(region_make(&src, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&dst, p->b.pd, 4096, ALL_RIGHTS));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < room; i++) {
			sge = sge_of(&src, 0, 8);
			wr = wr_rdma(IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, &sge, 1,
				     (uintptr_t)dst.buf, dst.mr->rkey);
			must(post_send(&p->a, &wr));
			sleep_ms(0);
		}
		sleep_ms(50);
		for (int i = 0; i < room; i++)
			must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	}
	check(!async_seen(ctx, IBV_EVENT_CQ_ERR, p->a.send_cq, 0), "a CQ error");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(cq_overflow_is_reported);
	RUN(receive_with_full_cq_ends_the_stream);
	RUN(cq_holds_its_reported_size);
	return test_end();
}

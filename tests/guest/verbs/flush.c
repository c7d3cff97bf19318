// SPDX-License-Identifier: GPL-2.0
/*
 * The end of a connection: every posted request completes exactly once, and both sides get the
 * event.
 */

#include "common.h"

static struct region src, dst;

static bool prepare(struct pair *p)
{
	return region_make(&src, p->a.pd, 1 << 20, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&dst, p->b.pd, 1 << 20, ALL_RIGHTS);
}

static bool post_receives(struct end *e, const struct region *r, int n)
{
	for (int i = 0; i < n; i++)
		if (!post_recv(e, i, r, 0, 64))
			return false;
	return true;
}

/* Checks that exactly the receives 0 .. n-1 are flushed, in order. */
static bool flushed(struct ibv_cq *cq, int n)
{
	struct ibv_wc wc;

	for (int i = 0; i < n; i++)
		if (!expect_wc(cq, &wc, i, IBV_WC_WR_FLUSH_ERR))
			return false;
	return expect_no_wc(cq, 20);
}

static void ends_well(struct pair *p)
{
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(flushed(p->a.recv_cq, 20));
	must(flushed(p->b.recv_cq, 20));
	check(qp_state(p->a.qp) != IBV_QPS_RTS, "the active side's QP is still in RTS");
	check(qp_state(p->b.qp) != IBV_QPS_RTS, "the passive side's QP is still in RTS");
}

/* Nothing but the modify makes the driver look at this queue pair. */
static void error_state_flushes_without_a_connection(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
	struct attempt t = { 0 };
	struct ibv_wc wc;

	must(attempt_prepare(&t, next_port()));
	check(!ibv_post_recv(t.id->qp, &wr, &bad), "ibv_post_recv: %s", strerror(errno));
	check(!ibv_modify_qp(t.id->qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	must(expect_wc(t.cq, &wc, 7, IBV_WC_WR_FLUSH_ERR));
	attempt_end(&t);
}

PAIR_CASE(active_side_disconnects)
{
	must(prepare(p));
	must(post_receives(&p->a, &src, 20));
	must(post_receives(&p->b, &dst, 20));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	ends_well(p);
}

PAIR_CASE(passive_side_disconnects)
{
	must(prepare(p));
	must(post_receives(&p->a, &src, 20));
	must(post_receives(&p->b, &dst, 20));
	check(!rdma_disconnect(p->b.id), "rdma_disconnect: %s", strerror(errno));
	ends_well(p);
}

PAIR_CASE(both_disconnect)
{
	must(prepare(p));
	must(post_receives(&p->a, &src, 20));
	must(post_receives(&p->b, &dst, 20));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	rdma_disconnect(p->b.id); /* may find the connection gone */
	ends_well(p);
}

PAIR_CASE(modify_to_error)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	must(prepare(p));
	must(post_receives(&p->a, &src, 20));
	must(post_receives(&p->b, &dst, 20));
	check(!ibv_modify_qp(p->a.qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	ends_well(p);
}

/* Destroying the QP of a live connection ends it for the peer. */
PAIR_CASE(destroy_while_connected)
{
	must(prepare(p));
	must(post_receives(&p->b, &dst, 20));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(flushed(p->b.recv_cq, 20));
}

/* Destroying a QP discards the completions of its requests: their memory may be freed already. */
PAIR_CASE(destroy_discards_completions)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(post_receives(&p->a, &src, 20));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	check(!ibv_poll_cq(p->a.recv_cq, 1, &wc), "completion %llu", (unsigned long long)wc.wr_id);
}

PAIR_CASE(destroy_id_while_connected)
{
	must(prepare(p));
	must(post_receives(&p->b, &dst, 20));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	rdma_destroy_id(p->a.id);
	p->a.id = NULL;
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(flushed(p->b.recv_cq, 20));
}

/* What was posted before a graceful end arrives before it. */
PAIR_CASE(sends_before_a_disconnect_arrive)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p));
	pattern_fill(src.buf, 20 * 16384, 4);
	for (int i = 0; i < 20; i++)
		must(post_recv(&p->b, i, &dst, i * 16384, 16384));
	for (int i = 0; i < 20; i++) {
		sge = sge_of(&src, i * 16384, 16384);
		wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);
		must(post_send(&p->a, &wr));
	}
	for (int i = 0; i < 20; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	for (int i = 0; i < 20; i++)
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
	check(pattern_differs(dst.buf, 20 * 16384, 4) < 0, "data differs");
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

/*
 * Disconnects in the middle of work: each posted request completes once, in order, first some with
 * success and then the rest flushed.
 */
static void in_the_middle(struct pair *p, enum ibv_wr_opcode op, struct end *who)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	int posted = 0, flushes = 0;

	must(prepare(p));
	while (posted < 60) {
		sge = sge_of(&src, 0, 1 << 20);
		wr = wr_rdma(op, posted, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)dst.buf,
			     dst.mr->rkey);
		if (posted == 5)
			check(!rdma_disconnect(who->id), "rdma_disconnect: %s", strerror(errno));
		must(post_send(&p->a, &wr));
		posted++;
	}
	for (int i = 0; i < posted; i++) {
		check(poll_wc(p->a.send_cq, &wc, SOON), "request %d never completed", i);
		check(wc.wr_id == (uint64_t)i, "completion of %d instead of %d", (int)wc.wr_id, i);
		if (wc.status != IBV_WC_SUCCESS)
			flushes++;
		else
			check(!flushes, "success of %d behind a flushed request", i);
	}
	/*
	 * If the peer ended the stream this side can still send; if this side disconnected, it
	 * cannot.
	 */
	if (who == &p->a)
		check(flushes, "nothing was flushed though posted behind the disconnect");
	must(expect_no_wc(p->a.send_cq, 20));
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	if (who == &p->b)
		rdma_disconnect(p->a.id);
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

PAIR_CASE(writer_disconnects_in_the_middle) { in_the_middle(p, IBV_WR_RDMA_WRITE, &p->a); }
PAIR_CASE(target_disconnects_in_the_middle) { in_the_middle(p, IBV_WR_RDMA_WRITE, &p->b); }
PAIR_CASE(reader_disconnects_in_the_middle) { in_the_middle(p, IBV_WR_RDMA_READ, &p->a); }
PAIR_CASE(source_disconnects_in_the_middle) { in_the_middle(p, IBV_WR_RDMA_READ, &p->b); }

/* A region can be deregistered while a peer writes to it; the writer is then refused. */
PAIR_CASE(release_a_region_under_load)
{
	struct region victim = { 0 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint8_t *spare;
	uint64_t at;
	uint32_t key;
	const size_t len = 1 << 18;

	must(prepare(p));
	must(region_make(&victim, p->b.pd, len, ALL_RIGHTS));
	spare = victim.buf;
	at = (uintptr_t)victim.buf;
	key = victim.mr->rkey;
	memset(src.buf, 0x99, len);
	for (int i = 0; i < 40; i++) {
		sge = sge_of(&src, 0, len);
		wr = wr_rdma(IBV_WR_RDMA_WRITE, i, 0, &sge, 1, at, key);
		if (try_send(&p->a, &wr))
			break;
		if (i == 20) {
			must(region_release(&victim));
			memset(spare, 0x12, len); /* ours alone from here on */
		}
	}
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(spare, len, 0x12) < 0, "written at %zd after its release",
	      not_all(spare, len, 0x12));
	while (poll_wc(p->a.send_cq, &wc, 0))
		;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(error_state_flushes_without_a_connection);
	RUN(active_side_disconnects);
	RUN(passive_side_disconnects);
	RUN(both_disconnect);
	RUN(modify_to_error);
	RUN(destroy_while_connected);
	RUN(destroy_discards_completions);
	RUN(destroy_id_while_connected);
	RUN(sends_before_a_disconnect_arrive);
	RUN(writer_disconnects_in_the_middle);
	RUN(target_disconnects_in_the_middle);
	RUN(reader_disconnects_in_the_middle);
	RUN(source_disconnects_in_the_middle);
	RUN(release_a_region_under_load);
	return test_end();
}

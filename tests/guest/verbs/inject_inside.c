// SPDX-License-Identifier: GPL-2.0
/*
 * Rules that act inside a message, as docs/inject.md has them: the peer gets so many octets of it,
 * then what the rule says, and nobody else sees anything.
 */

#include "modify.h"
#include "rules.h"

/* Of several FPDUs, and not a multiple of their payload. */
#define LEN 200000
#define HELD 200

static struct region local, remote;
static bool rxe;
/* How many octets of a message the peer gets. */
static size_t after;

static const size_t inside[] = { 1, 63, 32768, 70001, LEN - 1 };

static bool prepare(struct pair *p)
{
	if (!region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, p->b.pd, LEN, ALL_RIGHTS))
		return false;
	pattern_fill(local.buf, LEN, 1);
	memset(remote.buf, 0, LEN);
	return true;
}

static bool post(struct pair *p, enum ibv_wr_opcode op, uint64_t id, size_t len)
{
	return post_rdma(&p->a, op, id, &local, &remote, len);
}

/* Returns whether the peer has the first octets, and none behind them. */
static bool peer_has(size_t len)
{
	return pattern_differs(remote.buf, len, 1) < 0 &&
	       not_all(remote.buf + len, LEN - len, 0) < 0;
}

static const struct action {
	const char *name;
	/* What the peer's flushed receive says. */
	uint32_t vendor;
	/*
	 * How many ends of the connection a reset has ended: both, or the peer's own, which takes a
	 * FIN inside a message for a lost connection (row MPA-30 of docs/conformance.md).
	 */
	long resets;
} actions[] = {
	{ "terminate=0x11203", 0x11203, 0 },
	{ "reset", 0, 2 },
	{ "fin", 0, 1 },
};

static const struct action *action;
static enum ibv_wr_opcode op;

/* The second of three messages stops inside. */
static void ends_inside(struct pair *p)
{
	long before = resets();
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, LEN));
	must(rules("qp=%u nth=2 after=%zu do=%s", p->a.qp->qp_num, after, action->name));
	must(post(p, IBV_WR_RDMA_WRITE, 1, LEN) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	/* It is placed, too. */
	must(post(p, IBV_WR_RDMA_READ, 2, 64) && expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	memset(remote.buf, 0, LEN);
	for (uint64_t id = 3; id <= 4; id++)
		must(post(p, op, id, LEN));
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->a.send_cq, &wc, 4, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == action->vendor, "the peer's vendor_err is %#x", wc.vendor_err);
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(peer_has(after), "%s after %zu: octets differ at %zd", action->name, after,
	      pattern_differs(remote.buf, LEN, 1));
	for (int64_t limit = now_ms() + SOON; resets() - before < action->resets;) {
		check(now_ms() < limit, "%s after %zu: %ld ends were reset", action->name, after,
		      resets() - before);
		sleep_ms(1);
	}
	check(resets() - before == action->resets, "%s after %zu: %ld ends were reset",
	      action->name, after, resets() - before);
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	world_is_well();
	must(rules(""));
}

static void each_end_inside(enum ibv_wr_opcode of)
{
	struct pair_opts opts = { 0 };

	op = of;
	for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
		for (size_t j = 0; j < ARRAY_SIZE(inside) && !test_failed(); j++) {
			action = &actions[i];
			after = inside[j];
			with_pair(&opts, ends_inside);
		}
}

static void write_ends_inside(void) { each_end_inside(IBV_WR_RDMA_WRITE); }
static void send_ends_inside(void) { each_end_inside(IBV_WR_SEND); }

/* The rest comes when the rule goes; meanwhile no Read of the peer is answered. */
PAIR_CASE(silent_queue_pair_stops_inside_message, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct region here;
	struct ibv_wc wc;

	after = 70001;
	must(prepare(p) && region_make(&here, p->a.pd, 64, ALL_RIGHTS));
	must(post_recv(&p->b, 1, &remote, 0, LEN));
	sge = sge_of(&remote, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_READ, 9, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)here.buf,
		     here.mr->rkey);
	must(rules("qp=%u after=%zu do=silent", p->a.qp->qp_num, after));
	must(post(p, IBV_WR_SEND, 1, LEN) && post(p, IBV_WR_RDMA_WRITE, 2, 64));
	must(expect_no_wc(p->a.send_cq, QUIET) && expect_no_wc(p->b.recv_cq, 0));
	check(peer_has(after), "octets differ at %zd", pattern_differs(remote.buf, LEN, 1));
	must(post_send(&p->b, &wr) && expect_no_wc(p->b.send_cq, QUIET));
	/* There are others still. */
	must(rules("qp=1 do=fin"));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	must(expect_wc(p->b.send_cq, &wc, 9, IBV_WC_SUCCESS));
	world_is_well();
	must(rules(""));
}

PAIR_CASE(delayed_rest_of_message_is_late, 0)
{
	int64_t begun;
	struct ibv_wc wc;

	after = 70001;
	must(prepare(p) && post_recv(&p->b, 1, &remote, 0, LEN));
	must(rules("qp=%u after=%zu do=delay=%dms", p->a.qp->qp_num, after, HELD));
	begun = now_ms();
	must(post(p, IBV_WR_SEND, 1, LEN) && expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	check(wc.byte_len == LEN && peer_has(LEN), "octets differ at %zd",
	      pattern_differs(remote.buf, LEN, 1));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(rules(""));
}

/* No longer ones are sent: nothing is counted. Reads bring no payload. */
PAIR_CASE(messages_shorter_than_offset_do_not_stop, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u after=4096 do=reset", p->a.qp->qp_num));
	must(post(p, IBV_WR_RDMA_WRITE, 1, 4096) && post(p, IBV_WR_RDMA_WRITE, 2, 64));
	must(post(p, IBV_WR_RDMA_READ, 3, LEN));
	for (uint64_t id = 1; id <= 3; id++)
		must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	check(strstr(shown_rules(), "hits=0\n"), "%s", shown_rules());
	must(post(p, IBV_WR_RDMA_WRITE, 4, 4097) && expect_wc(p->a.send_cq, &wc, 4, IBV_WC_WR_FLUSH_ERR));
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	must(rules(""));
}

/* A queue pair goes although its message has stopped. */
PAIR_CASE(queue_pair_that_stops_inside_is_destroyed, 0)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 1, &remote, 0, LEN));
	must(rules("qp=%u after=100 do=silent", p->a.qp->qp_num));
	must(post(p, IBV_WR_SEND, 1, LEN) && expect_no_wc(p->b.recv_cq, QUIET));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	world_is_well();
	must(rules(""));
}

/*
 * A request that waits for the Read before it, by its fence: as posted it fails at once, and the
 * Read with it.
 */
PAIR_CASE(posted_request_fails_before_its_fence, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u on=recv op=read do=silent\nqp=%u on=post op=write nth=2 "
		   "do=status=LOC_QP_OP_ERR", p->b.qp->qp_num, p->a.qp->qp_num));
	must(post(p, IBV_WR_RDMA_WRITE, 1, 64) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(post(p, IBV_WR_RDMA_READ, 2, 64));
	sge = sge_of(&local, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 3, IBV_SEND_SIGNALED | IBV_SEND_FENCE, &sge, 1,
		     (uintptr_t)remote.buf, remote.mr->rkey);
	must(post_send(&p->a, &wr) && post(p, IBV_WR_RDMA_WRITE, 4, 64));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_LOC_QP_OP_ERR));
	must(expect_wc(p->a.send_cq, &wc, 4, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(strstr(shown_rules(), "LOC_QP_OP_ERR hits=1\n"), "%s", shown_rules());
	must(rules(""));
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	world_is_well();
}

/*
 * Each of six requests is counted once as posted and once as sent, although one is held at each
 * point, and the fourth waits for the Read before it, which is answered late.
 */
PAIR_CASE(posted_request_is_counted_once_per_point, 0)
{
	uint32_t a = p->a.qp->qp_num;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	int64_t begun;
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u on=post nth=2 do=delay=%dms\nqp=%u on=post nth=5 do=event=SQ_DRAINED\n"
		   "qp=%u on=post nth=7 do=fin\nqp=%u on=send nth=3 do=delay=%dms\n"
		   "qp=%u on=send nth=5 do=event=COMM_EST\nqp=%u on=send nth=7 do=fin\n"
		   "qp=%u on=recv op=read do=delay=%dms", a, HELD, a, a, a, HELD, a, a,
		   p->b.qp->qp_num, HELD));
	begun = now_ms();
	sge = sge_of(&local, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 4, IBV_SEND_SIGNALED | IBV_SEND_FENCE, &sge, 1,
		     (uintptr_t)remote.buf, remote.mr->rkey);
	must(post(p, IBV_WR_RDMA_WRITE, 1, 64) && post(p, IBV_WR_RDMA_WRITE, 2, 64));
	must(post(p, IBV_WR_RDMA_READ, 3, 64) && post_send(&p->a, &wr));
	must(post(p, IBV_WR_RDMA_WRITE, 5, 64) && post(p, IBV_WR_RDMA_WRITE, 6, 64));
	for (uint64_t id = 1; id <= 6; id++)
		must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	check(now_ms() - begun >= 3 * HELD, "it took %d ms", (int)(now_ms() - begun));
	must(async_seen(p->a.id->verbs, IBV_EVENT_SQ_DRAINED, p->a.qp, SOON));
	must(async_seen(p->a.id->verbs, IBV_EVENT_COMM_EST, p->a.qp, SOON));
	check(strstr(shown_rules(), "on=post nth=7 do=fin hits=0\n") &&
		      strstr(shown_rules(), "on=send nth=7 do=fin hits=0\n"), "%s", shown_rules());
	world_is_well();
	must(rules(""));
}

/* The stream ends before what has been posted is sent. */
PAIR_CASE(posted_request_ends_the_stream, 0)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u on=post nth=2 do=terminate=0x11203", p->a.qp->qp_num));
	for (uint64_t id = 1; id <= 3; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id, 64));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == 0x11203, "the peer's vendor_err is %#x", wc.vendor_err);
	world_is_well();
	must(rules(""));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	rxe = has_extensions();
	RUN(write_ends_inside);
	RUN(send_ends_inside);
	RUN(silent_queue_pair_stops_inside_message);
	RUN(delayed_rest_of_message_is_late);
	RUN(messages_shorter_than_offset_do_not_stop);
	RUN(queue_pair_that_stops_inside_is_destroyed);
	RUN(posted_request_fails_before_its_fence);
	RUN(posted_request_is_counted_once_per_point);
	RUN(posted_request_ends_the_stream);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that queue pairs make without rdma_cm: either side first, absent peers, reconnection,
 * and the completions and events.
 */

#include <pthread.h>

#include "modify.h"

static struct ibv_context *ctx;
static int port;

static bool nobody_listens(void)
{
	for (int64_t end = now_ms() + SOON; somebody_listens(port); sleep_ms(10))
		if (now_ms() > end) {
			fail("somebody listens");
			return false;
		}
	return true;
}

/* siw's user ABI has no status for an absent peer. */
static bool is_retry_exceeded(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_GENERAL_ERR;
}

SIDES_CASE(both_ready_then_both_send)
{
	must(sides_join(a, b));
	must(traffic(a, b));
	must(nobody_listens());
}

SIDES_CASE(first_end_in_rts_before_second_begins)
{
	must(side_rtr(a, b) && side_rts(a));
	sleep_ms(100);
	must(side_rtr(b, a) && side_rts(b));
	must(traffic(a, b));
}

SIDES_CASE(second_end_in_rts_before_first_begins)
{
	must(side_rtr(b, a) && side_rts(b));
	sleep_ms(100);
	must(side_rtr(a, b) && side_rts(a));
	must(traffic(a, b));
}

SIDES_CASE(end_in_rtr_is_connected_by_peer)
{
	struct ibv_wc wc;

	must(side_rtr(b, a));
	must(side_rtr(a, b) && side_rts(a));
	pattern_fill(a->memory.buf, 100, 1);
	must(side_rdma(a, IBV_WR_RDMA_WRITE, 7, 0, b, 1000, 100));
	must(expect_wc(a->cq, &wc, 7, IBV_WC_SUCCESS));
	must(side_rdma(a, IBV_WR_RDMA_READ, 8, 2000, b, 1000, 100));
	must(expect_wc(a->cq, &wc, 8, IBV_WC_SUCCESS));
	check(pattern_differs(b->memory.buf + 1000, 100, 1) < 0, "not what was written");
	check(pattern_differs(a->memory.buf + 2000, 100, 1) < 0, "not what was read");
	check(qp_state(b->qp) == IBV_QPS_RTR, "state %d of who waited", qp_state(b->qp));
	must(side_rts(b));
	check(qp_state(b->qp) == IBV_QPS_RTS, "state %d afterwards", qp_state(b->qp));
	must(traffic(b, a));
}

/* iWARP has no state in which a stream carries one direction only. */
SIDES_CASE(end_in_rtr_may_send_once_connected)
{
	struct ibv_wc wc;

	must(side_rtr(b, a) && side_send(b, 1, 100));
	must(side_recv(a, 2, 100) && side_rtr(a, b) && side_rts(a));
	must(expect_wc(b->cq, &wc, 1, IBV_WC_SUCCESS) && expect_wc(a->cq, &wc, 2, IBV_WC_SUCCESS));
	check(qp_state(b->qp) == IBV_QPS_RTR, "state %d", qp_state(b->qp));
}

SIDES_CASE(requests_posted_before_connect_are_sent)
{
	struct ibv_wc wc;

	must(side_rtr(a, b) && side_rts(a));
	for (int i = 0; i < 8; i++)
		must(side_send(a, i, 200));
	must(expect_no_wc(a->cq, QUIET));
	for (int i = 0; i < 8; i++)
		must(side_recv(b, 100 + i, 200));
	must(side_rtr(b, a));
	for (int i = 0; i < 8; i++)
		must(expect_wc(a->cq, &wc, i, IBV_WC_SUCCESS) &&
		     expect_wc(b->cq, &wc, 100 + i, IBV_WC_SUCCESS));
	must(side_rts(b));
	must(traffic(a, b));
}

struct starter {
	struct side *self, *peer;
	pthread_barrier_t *barrier;
	int rc;
};

static void *start_side(void *arg)
{
	struct starter *s = arg;
	struct ibv_qp_attr attr;
	int mask = rtr_attr(s->self, s->peer, &attr);

	pthread_barrier_wait(s->barrier);
	s->rc = try_modify(s->self, &attr, mask);
	mask = rts_attr(s->self, &attr);
	if (!s->rc)
		s->rc = try_modify(s->self, &attr, mask);
	return NULL;
}

static bool start_both(struct side *a, struct side *b)
{
	pthread_barrier_t barrier;
	struct starter starters[2] = { { a, b, &barrier, 0 }, { b, a, &barrier, 0 } };
	pthread_t threads[2];

	pthread_barrier_init(&barrier, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, start_side, &starters[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&barrier);
	for (int i = 0; i < 2; i++)
		if (starters[i].rc) {
			fail("side %d: %s", i, strerror(starters[i].rc));
			return false;
		}
	return true;
}

static void simultaneous_connects_leave_one_connection(void)
{
	long before = device_counter(ctx, "established");

	for (int round = 0; round < 30 && !test_failed(); round++) {
		struct side a, b;

		if (sides_open(&a, &b, ctx, 0) && start_both(&a, &b))
			traffic(&a, &b);
		sides_close(&a, &b);
	}
	if (!test_failed()) {
		long streams = device_counter(ctx, "established") - before;

		check(streams == 60, "%ld ends of streams for 30 connections", streams);
	}
}

static void many_pairs_connect_at_once(void)
{
	enum { PAIRS = 24 };
	static struct side sides[PAIRS][2];
	bool good = true;

	memset(sides, 0, sizeof(sides));
	for (int i = 0; good && i < PAIRS; i++)
		good = sides_open(&sides[i][0], &sides[i][1], ctx, 0);
	/* All of one half first, in reverse; then the other half. */
	for (int i = PAIRS - 1; good && i >= 0; i--)
		good = side_rtr(&sides[i][0], &sides[i][1]) && side_rts(&sides[i][0]);
	for (int i = 0; good && i < PAIRS; i++)
		good = side_rtr(&sides[i][1], &sides[i][0]) && side_rts(&sides[i][1]);
	for (int i = 0; good && i < PAIRS; i++)
		good = traffic(&sides[i][0], &sides[i][1]);
	for (int i = 0; i < PAIRS; i++)
		sides_close(&sides[i][0], &sides[i][1]);
	must(good);
	must(nobody_listens());
}

/* A port has the default P_Key and no other one. */
static void pkeys(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	__be16 pkey = 0;

	check(!ibv_query_device(ctx, &device), "ibv_query_device: %s", strerror(errno));
	check(!ibv_query_port(ctx, 1, &port), "ibv_query_port: %s", strerror(errno));
	check(device.max_pkeys == 1, "max_pkeys %d", device.max_pkeys);
	check(port.pkey_tbl_len == 1, "pkey_tbl_len %d", port.pkey_tbl_len);
	check(!ibv_query_pkey(ctx, 1, 0, &pkey) && pkey == 0xffff, "P_Key 0: %#x", pkey);
	check(ibv_query_pkey(ctx, 1, port.pkey_tbl_len, &pkey), "a P_Key behind the table");
}

/* Its state is what programs expect of such a device: an RNIC reports INIT. */
static void new_queue_pair_starts_in_its_initial_state(void)
{
	bool ib = ctx->device->node_type == IBV_NODE_CA;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	init.recv_cq = init.send_cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	init.cap.max_send_wr = init.cap.max_recv_wr = 1;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	check(qp, "ibv_create_qp: %s", strerror(errno));
	check(qp_state(qp) == (ib ? IBV_QPS_RESET : IBV_QPS_INIT), "state %d", qp_state(qp));
	ibv_destroy_qp(qp);
	ibv_destroy_cq(init.send_cq);
	ibv_dealloc_pd(pd);
}

static void every_gid(void)
{
	struct ibv_port_attr attr;
	int found = 0, families = 0;

	check(!ibv_query_port(ctx, 1, &attr), "ibv_query_port: %s", strerror(errno));
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		struct side a, b;
		union ibv_gid gid;

		check(!ibv_query_gid(ctx, 1, i, &gid), "ibv_query_gid: %s", strerror(errno));
		if (!gid.global.subnet_prefix && !gid.global.interface_id)
			continue;
		found++;
		families |= !gid.global.subnet_prefix ? 1 : gid.raw[0] == 0xfe ? 2 : 4;
		if (sides_open(&a, &b, ctx, i) && sides_join(&a, &b))
			traffic(&a, &b);
		sides_close(&a, &b);
		if (test_failed())
			return;
	}
	check(families == 7, "not all kinds of GID among %d: %d", found, families);
}

/* The first of three Sends fails with the retry status; the others and the receive are flushed. */
static bool expect_giving_up(struct side *s, int64_t begin, int64_t least)
{
	struct ibv_wc wc;
	int64_t took;
	bool seen[4] = { false };

	if (!poll_wc(s->cq, &wc, SOON)) {
		fail("no completion");
		return false;
	}
	took = now_ms() - begin;
	if (wc.wr_id != 0 || !is_retry_exceeded(wc.status)) {
		fail("%s for request %llu", ibv_wc_status_str(wc.status),
		     (unsigned long long)wc.wr_id);
		return false;
	}
	if (took < least) {
		fail("after %lld ms", (long long)took);
		return false;
	}
	for (int i = 0; i < 3; i++) {
		if (!poll_wc(s->cq, &wc, SOON) || wc.status != IBV_WC_WR_FLUSH_ERR || wc.wr_id > 3 ||
		    seen[wc.wr_id]) {
			fail("request %d is not flushed", i);
			return false;
		}
		seen[wc.wr_id] = true;
	}
	return qp_reaches(s->qp, IBV_QPS_ERR, SOON);
}

/* Connects to an absent peer with posted work, and gives up, not before this time (ms). */
static bool gives_up(struct side *s, const struct side *peer, int64_t least)
{
	int64_t begin;

	if (!side_rtr(s, peer) || !side_rts(s))
		return false;
	begin = now_ms();
	return side_recv(s, 3, 100) && side_send(s, 0, 100) && side_send(s, 1, 100) &&
	       side_send(s, 2, 100) && expect_giving_up(s, begin, least);
}

SIDES_CASE(absent_peer_times_out)
{
	long before = device_counter(ctx, "oob_timeouts");

	/* The minimum: a second. */
	a->timeout = 1;
	a->retry_cnt = 0;
	must(gives_up(a, b, 990));
	check(device_counter(ctx, "oob_timeouts") == before + 1, "not counted");
	must(nobody_listens());
}

SIDES_CASE(connect_timeout_follows_timeout_and_retry_cnt)
{
	/* 4.096 us * 2^16 = 268 ms, four times as long, three tries: 3.2 s. */
	a->timeout = 16;
	a->retry_cnt = 2;
	must(gives_up(a, b, 3200));
}

SIDES_CASE(send_without_timeout_waits_for_peer)
{
	struct ibv_wc wc;

	a->timeout = 0;
	must(side_rtr(a, b) && side_rts(a));
	must(side_send(a, 1, 10));
	must(expect_no_wc(a->cq, 2000));
	must(side_recv(b, 2, 10) && side_rtr(b, a));
	must(expect_wc(a->cq, &wc, 1, IBV_WC_SUCCESS) && expect_wc(b->cq, &wc, 2, IBV_WC_SUCCESS));
}

SIDES_CASE(end_without_requests_does_not_time_out)
{
	a->timeout = 1;
	a->retry_cnt = 0;
	must(side_rtr(a, b) && side_rts(a));
	sleep_ms(2000);
	check(qp_state(a->qp) == IBV_QPS_RTS, "state %d", qp_state(a->qp));
	must(side_rtr(b, a) && side_rts(b));
	must(traffic(a, b));
}

static bool same_attributes(const struct side *s, const struct side *peer, bool rts)
{
	struct ibv_qp_attr rtr, to_rts, is;
	struct ibv_qp_init_attr init;
	int mask = rtr_attr(s, peer, &rtr) | rts_attr(s, &to_rts) | IBV_QP_ACCESS_FLAGS |
		   IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_CAP;

	if (ibv_query_qp(s->qp, &is, mask, &init)) {
		fail("ibv_query_qp: %s", strerror(errno));
		return false;
	}
#define SAME(field, expected)                                                                      \
	if (is.field != (expected)) {                                                              \
		fail(#field " is %lld and not %lld", (long long)is.field, (long long)(expected));  \
		return false;                                                                      \
	}
	SAME(qp_state, rts ? IBV_QPS_RTS : IBV_QPS_RTR);
	SAME(path_mtu, rtr.path_mtu);
	SAME(dest_qp_num, rtr.dest_qp_num);
	SAME(rq_psn, rtr.rq_psn);
	SAME(max_dest_rd_atomic, rtr.max_dest_rd_atomic);
	SAME(min_rnr_timer, rtr.min_rnr_timer);
	SAME(ah_attr.is_global, 1);
	SAME(ah_attr.port_num, 1);
	SAME(ah_attr.grh.sgid_index, rtr.ah_attr.grh.sgid_index);
	SAME(ah_attr.grh.hop_limit, rtr.ah_attr.grh.hop_limit);
	SAME(port_num, 1);
	SAME(qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (memcmp(&is.ah_attr.grh.dgid, &peer->gid, sizeof(peer->gid))) {
		fail("another destination");
		return false;
	}
	if (!rts)
		return true;
	SAME(sq_psn, to_rts.sq_psn);
	SAME(timeout, to_rts.timeout);
	SAME(retry_cnt, to_rts.retry_cnt);
	SAME(rnr_retry, to_rts.rnr_retry);
	SAME(max_rd_atomic, to_rts.max_rd_atomic);
	return true;
}

SIDES_CASE(query_reports_set_attributes)
{
	must(side_rtr(a, b));
	must(same_attributes(a, b, false));
	must(side_rts(a));
	must(same_attributes(a, b, true));
	must(side_rtr(b, a) && side_rts(b));
	must(traffic(a, b));
	must(same_attributes(a, b, true));
	must(same_attributes(b, a, true));
}

SIDES_CASE(queue_pair_is_reused_after_reset)
{
	for (int round = 0; round < 3; round++) {
		must(sides_join(a, b));
		must(traffic(a, b));
		must(sides_reset(a, b));
	}
}

/* Resets while requests are executed, in whatever context: the next stream sees none of them. */
SIDES_CASE(reset_amid_work)
{
	struct ibv_wc wc;

	for (int round = 0; round < 30; round++) {
		struct timespec pause = { .tv_nsec = round % 10 * 100000 };

		must(sides_join(a, b) && traffic(a, b));
		for (int i = 0; i < 8; i++)
			must(side_rdma(a, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 10 + i, 0, b, 0,
				       60000));
		nanosleep(&pause, NULL);
		must(side_to(a, IBV_QPS_RESET));
		for (int i = 0; i < 8; i++) {
			must(poll_wc(a->cq, &wc, SOON));
			check(wc.wr_id == 10u + i, "request %d is %d", i, (int)wc.wr_id);
		}
		must(sides_reset(a, b));
	}
	must(sides_join(a, b) && traffic(a, b) && traffic(b, a));
}

SIDES_CASE(reset_while_waiting)
{
	must(side_rtr(a, b));
	must(side_to(a, IBV_QPS_RESET));
	must(nobody_listens());
	must(side_init(a) && side_rtr(a, b) && side_rts(a));
	sleep_ms(50);
	must(side_to(a, IBV_QPS_RESET));
	must(nobody_listens());
	must(side_init(a) && sides_join(a, b));
	must(traffic(a, b));
}

/* Requests posted for an absent peer are not sent to the next one. */
SIDES_CASE(reset_drops_waiting_requests)
{
	struct ibv_wc wc;

	for (int late = 0; late < 2; late++) {
		must(side_recv(a, 1, 10));
		if (late) {
			must(side_rtr(a, b) && side_rts(a) && side_send(a, 2, 10));
			sleep_ms(50);
		}
		must(side_to(a, IBV_QPS_RESET));
		for (int i = 0; i <= late; i++)
			check(poll_wc(a->cq, &wc, SOON) && wc.status == IBV_WC_WR_FLUSH_ERR,
			      "request %d is not flushed", i);
		must(expect_no_wc(a->cq, QUIET) && nobody_listens());
		must(side_init(a));
	}
	must(sides_join(a, b));
	must(traffic(a, b) && traffic(b, a));
}

SIDES_CASE(modify_to_error_flushes_waiting_requests)
{
	struct ibv_wc wc;

	must(side_recv(a, 1, 10));
	must(side_rtr(a, b) && side_rts(a));
	must(side_send(a, 2, 10));
	must(side_to(a, IBV_QPS_ERR));
	for (int i = 0; i < 2; i++)
		check(poll_wc(a->cq, &wc, SOON) && wc.status == IBV_WC_WR_FLUSH_ERR,
		      "request %d is not flushed", i);
	must(nobody_listens());
}

/* A queue pair is destroyed, or reset, at any point of a start-up. */
static void leaves_while_connecting(bool by_reset)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	for (int round = 0; round < 40 && !test_failed(); round++) {
		struct side a, b;

		if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b) && side_rtr(&b, &a) &&
		    side_rts(&a) && side_rts(&b) && side_send(&a, 1, 100)) {
			struct timespec pause = { .tv_nsec = round % 20 * 1000000 };
			struct side *s = round & 1 ? &a : &b;

			nanosleep(&pause, NULL);
			if (by_reset) {
				if (try_modify(s, &attr, IBV_QP_STATE))
					fail("round %d: no reset", round);
			} else {
				ibv_destroy_qp(s->qp);
				s->qp = NULL;
			}
		}
		sides_close(&a, &b);
	}
	must(!test_failed());
	must(nobody_listens());
}

static void destroyed_while_connecting(void) { leaves_while_connecting(false); }
static void reset_while_connecting(void) { leaves_while_connecting(true); }

SIDES_CASE(wrong_psn_does_not_connect)
{
	struct side liar = *a;
	struct ibv_wc wc;

	/* b expects another PSN than a sends. */
	liar.psn ^= 1;
	a->timeout = 1;
	/* b calls last: the next case has a caller that comes before a's PSN is set. */
	must(side_rtr(b, &liar) && side_rtr(a, b) && side_rts(a) && side_rts(b));
	must(side_send(a, 1, 10));
	check(poll_wc(a->cq, &wc, SOON) && is_retry_exceeded(wc.status), "status %d", wc.status);
	check(qp_state(b->qp) == IBV_QPS_RTS, "state %d", qp_state(b->qp));
}

SIDES_CASE(modify_to_rts_with_unexpected_psn_fails)
{
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	int mask, rc;

	must(side_rtr(a, b) && side_rtr(b, a) && side_recv(b, 2, 10) && side_rts(a));
	must(side_send(a, 1, 10));
	must(expect_wc(b->cq, &wc, 2, IBV_WC_SUCCESS));
	b->psn ^= 1;
	mask = rts_attr(b, &attr);
	rc = try_modify(b, &attr, mask);
	check(rc == EINVAL, "%d", rc);
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON) && qp_reaches(a->qp, IBV_QPS_ERR, SOON));
}

/* The right peer connects even if a wrong one calls. */
SIDES_CASE(wrong_peer_does_not_block_right_one)
{
	struct side c;

	memset(&c, 0, sizeof(c));
	if (side_open(&c, ctx, 0)) {
		/* c takes a for its peer; a waits for b. */
		if (side_rtr(a, b) && side_rts(a) && side_rtr(&c, a) && side_rts(&c)) {
			sleep_ms(200);
			if (side_rtr(b, a) && side_rts(b) && traffic(a, b) &&
			    qp_state(c.qp) != IBV_QPS_RTS)
				fail("state %d of who is not meant", qp_state(c.qp));
		}
	}
	side_close(&c);
}

#define REFUSED(change, error)                                                                     \
	do {                                                                                       \
		struct ibv_qp_attr attr;                                                           \
		int mask = rtr_attr(a, b, &attr), rc;                                              \
                                                                                                   \
		change;                                                                            \
		rc = try_modify(a, &attr, mask);                                                   \
		check(rc == (error), #change ": %d", rc);                                          \
		check(qp_state(a->qp) == IBV_QPS_INIT, "state %d after " #change,                  \
		      qp_state(a->qp));                                                            \
	} while (0)

SIDES_CASE(invalid_attributes_are_refused_at_once)
{
	struct ibv_qp_attr attr;
	int mask = rts_attr(a, &attr);

	check(try_modify(a, &attr, mask) == EINVAL, "from INIT to RTS");
	REFUSED(attr.ah_attr.is_global = 0, EINVAL);
	REFUSED(attr.ah_attr.grh.dgid.raw[0] = 0xff, EINVAL);
	REFUSED(memset(&attr.ah_attr.grh.dgid, 0, 16), EINVAL);
	REFUSED(attr.ah_attr.grh.dgid.raw[0] = 0x20, EINVAL); /* IPv6 from an IPv4 address */
	REFUSED(mask &= ~IBV_QP_DEST_QPN, EINVAL);
	REFUSED(mask &= ~IBV_QP_RQ_PSN, EINVAL);
	REFUSED(mask &= ~IBV_QP_MIN_RNR_TIMER, EINVAL);
	check(!somebody_listens(port), "somebody listens");
	must(side_rtr(a, b));
	check(somebody_listens(port), "nobody listens");
	mask = rts_attr(a, &attr) & ~IBV_QP_SQ_PSN;
	check(try_modify(a, &attr, mask) == EINVAL, "RTS without PSN");
	mask = rtr_attr(a, b, &attr);
	check(try_modify(a, &attr, mask) == EINVAL, "RTR twice");
	must(side_rts(a) && side_rtr(b, a) && side_rts(b));
	must(traffic(a, b));
}

/* Whether the two next completions are those of a Send and of its receive, in either order. */
static bool sent_to_itself(struct side *s)
{
	struct ibv_wc wc;
	uint64_t seen = 0;

	for (int i = 0; i < 2; i++) {
		if (!poll_wc(s->cq, &wc, SOON) || wc.status != IBV_WC_SUCCESS) {
			fail("completion %d: status %d", i, wc.status);
			return false;
		}
		seen |= wc.wr_id;
	}
	if (seen != 3)
		fail("completions %d", (int)seen);
	return seen == 3;
}

/* UCX and NCCL connect queue pairs to themselves. */
SIDES_CASE(queue_pair_connects_to_itself)
{
	struct ibv_wc wc;

	for (int round = 0; round < 3; round++) {
		must(side_rtr(a, a) && side_rts(a));
		must(side_recv(a, 1, 5000) && side_send(a, 2, 5000));
		must(sent_to_itself(a));
		pattern_fill(a->memory.buf, 30000, round);
		must(side_rdma(a, IBV_WR_RDMA_WRITE, 3, 0, a, 30000, 30000));
		must(expect_wc(a->cq, &wc, 3, IBV_WC_SUCCESS));
		memset(a->memory.buf, 0, 30000);
		/* Behind the Write. */
		must(side_rdma(a, IBV_WR_RDMA_READ, 4, 0, a, 30000, 30000));
		must(expect_wc(a->cq, &wc, 4, IBV_WC_SUCCESS));
		check(pattern_differs(a->memory.buf, 30000, round) < 0, "not what was written");
		must(side_to(a, IBV_QPS_RESET) && side_init(a));
	}
	check(!somebody_listens(port), "somebody listens");
	/* The other one is not disturbed. */
	must(sides_join(a, b));
	must(traffic(a, b));
}

/* As with any peer, it has to know where the other begins. */
SIDES_CASE(queue_pair_with_other_psn_does_not_connect_to_itself)
{
	struct ibv_qp_attr attr;
	int mask = rtr_attr(a, a, &attr);
	int64_t begin;

	a->timeout = 1;
	a->retry_cnt = 0;
	attr.rq_psn ^= 1;
	check(try_modify(a, &attr, mask) == 0, "RTR");
	must(side_rts(a) && side_recv(a, 3, 100));
	begin = now_ms();
	must(side_send(a, 0, 100) && side_send(a, 1, 100) && side_send(a, 2, 100));
	must(expect_giving_up(a, begin, 990));
	check(qp_state(b->qp) == IBV_QPS_INIT, "state %d of another", qp_state(b->qp));
}

/* As many Reads and atomics as the device supports, and not one more. */
SIDES_CASE(depths_up_to_the_limits_of_the_device)
{
	struct ibv_device_attr dev;
	struct ibv_qp_attr attr;
	int mask;

	check(!ibv_query_device(ctx, &dev), "ibv_query_device: %s", strerror(errno));
	check(dev.max_qp_rd_atom == 128 && dev.max_qp_init_rd_atom == 128, "limits %d and %d",
	      dev.max_qp_rd_atom, dev.max_qp_init_rd_atom);
	REFUSED(attr.max_dest_rd_atomic = 129, EINVAL);
	REFUSED(attr.max_dest_rd_atomic = 255, EINVAL);
	mask = rtr_attr(a, b, &attr);
	attr.max_dest_rd_atomic = 128;
	check(try_modify(a, &attr, mask) == 0, "RTR with IRD 128");
	mask = rts_attr(a, &attr);
	attr.max_rd_atomic = 129;
	check(try_modify(a, &attr, mask) == EINVAL, "RTS with ORD 129");
	check(qp_state(a->qp) == IBV_QPS_RTR, "state %d", qp_state(a->qp));
	attr.max_rd_atomic = 128;
	check(try_modify(a, &attr, mask) == 0, "RTS with ORD 128");
	must(side_rtr(b, a) && side_rts(b));
	must(traffic(a, b));
}

/* A Send that completed arrives, even if the sender destroys the queue pair right after. */
static void completed_send_arrives_after_sender_is_destroyed(void)
{
	for (int round = 0; round < 20 && !test_failed(); round++) {
		struct side a, b;
		struct ibv_wc wc;
		size_t len = 16 * 1024;

		if (sides_open(&a, &b, ctx, 0) && side_recv(&b, 1, len) && sides_join(&a, &b) &&
		    side_send(&a, 2, len) && expect_wc(a.cq, &wc, 2, IBV_WC_SUCCESS)) {
			ibv_destroy_qp(a.qp);
			a.qp = NULL;
			expect_wc(b.cq, &wc, 1, IBV_WC_SUCCESS);
		}
		sides_close(&a, &b);
	}
}

/*
 * Programs exit when they are done, and leave receives posted at their peers. A Send to them waits
 * as long as one to an absent peer, since other messages may be under way meanwhile.
 */
SIDES_CASE(gone_peer_is_noticed_by_next_send_only)
{
	struct ibv_wc wc;
	int64_t begin;

	a->timeout = 1;
	a->retry_cnt = 0;
	must(sides_join(a, b));
	must(traffic(a, b));
	must(side_recv(a, 3, 100));
	ibv_destroy_qp(b->qp);
	b->qp = NULL;
	must(expect_no_wc(a->cq, 300));
	check(qp_state(a->qp) == IBV_QPS_RTS, "state %d", qp_state(a->qp));
	begin = now_ms();
	must(side_send(a, 0, 100));
	check(poll_wc(a->cq, &wc, SOON) && wc.wr_id == 0 && is_retry_exceeded(wc.status),
	      "%s for request %llu", ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id);
	check(now_ms() >= begin + 990, "after %lld ms", (long long)(now_ms() - begin));
	must(expect_wc(a->cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(a->qp, IBV_QPS_ERR, SOON));
}

/* A Send without a configured timeout does not wait, not even for the shortest one, a second. */
SIDES_CASE(send_to_gone_peer_without_timeout_fails_at_once)
{
	struct ibv_wc wc;

	must(side_rtr(b, a) && side_recv(b, 1, 10) && side_rtr(a, b) && side_rts(a));
	must(side_send(a, 2, 10) && expect_wc(b->cq, &wc, 1, IBV_WC_SUCCESS));
	ibv_destroy_qp(a->qp);
	a->qp = NULL;
	must(expect_no_wc(b->cq, 300));
	must(side_send(b, 3, 10));
	check(poll_wc(b->cq, &wc, 900 * slow) && wc.wr_id == 3 && is_retry_exceeded(wc.status),
	      "status %d", wc.status);
}

/*
 * How many of the Reads are answered varies; each of them completes, and none succeeds after one
 * that fails.
 */
SIDES_CASE(reads_of_destroyed_peer_fail)
{
	struct ibv_wc wc;
	bool failed = false;

	must(sides_join(a, b));
	must(traffic(a, b));
	for (int i = 0; i < 20; i++) {
		must(side_rdma(a, IBV_WR_RDMA_READ, i, 0, b, 0, 32 * 1024));
		if (i == 10) {
			ibv_destroy_qp(b->qp);
			b->qp = NULL;
		}
	}
	for (int i = 0; i < 20; i++) {
		check(poll_wc(a->cq, &wc, SOON) && wc.wr_id == (uint64_t)i, "no completion of %d", i);
		check(!failed || wc.status != IBV_WC_SUCCESS, "%d succeeds behind one that failed", i);
		failed |= wc.status != IBV_WC_SUCCESS;
	}
	check(failed, "the last one succeeds");
	must(qp_reaches(a->qp, IBV_QPS_ERR, SOON));
}

/* The access flags of the queue pair apply besides those of the region. */
SIDES_CASE(qp_access_flags_limit_the_peer)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	struct ibv_wc wc;

	memset(b->memory.buf, 7, 100);
	check(!try_modify(b, &attr, IBV_QP_ACCESS_FLAGS), "access flags");
	must(sides_join(a, b));
	must(side_rdma(a, IBV_WR_RDMA_READ, 1, 0, b, 0, 100));
	must(expect_wc(a->cq, &wc, 1, IBV_WC_SUCCESS));
	memset(a->memory.buf, 9, 100);
	must(side_rdma(a, IBV_WR_RDMA_WRITE, 2, 0, b, 0, 100));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON) && qp_reaches(a->qp, IBV_QPS_ERR, SOON));
	check(b->memory.buf[0] == 7 && b->memory.buf[99] == 7, "it has written");
}

SIDES_CASE(connect_is_refused_with_port_0)
{
	struct ibv_qp_attr attr;
	int mask = rtr_attr(a, b, &attr), rc;

	must(set_device_value(ctx, "oob_port", 0));
	check(device_value(ctx, "oob_port") == 0, "not what was set");
	rc = try_modify(a, &attr, mask);
	must(set_device_value(ctx, "oob_port", port));
	check(rc == EOPNOTSUPP, "%d", rc);
	must(sides_join(a, b));
	must(traffic(a, b));
}

SIDES_CASE(connect_on_other_port)
{
	must(set_device_value(ctx, "oob_port", 24999));
	if (side_rtr(a, b) && !somebody_listens(24999))
		fail("nobody listens at port 24999");
	set_device_value(ctx, "oob_port", port);
	must(!test_failed());
	check(!somebody_listens(port), "somebody listens at the other port");
	check(device_value(ctx, "oob_port") == port, "not what was set");
	/* b gets its peer after the setting is back, and finds it at the port of now. */
	must(side_rtr(b, a) && side_rts(a) && side_rts(b));
	must(traffic(a, b));
}

/*
 * InfiniBand repeats a Send that finds no receive `rnr_retry` times, after `min_rnr_timer` each;
 * here it waits that long.
 */
static void waits_for(struct side *a, struct side *b, uint8_t timer, uint8_t retry, int ms)
{
	long before = device_counter(ctx, "rx_receive_waits");
	int64_t begin;

	b->min_rnr_timer = timer;
	a->rnr_retry = b->rnr_retry = retry;
	must(sides_join(a, b));
	begin = now_ms();
	must(side_send(a, 1, 100));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON));
	check(now_ms() - begin >= ms, "%d after %d ms", retry, (int)(now_ms() - begin));
	check(ms || device_counter(ctx, "rx_receive_waits") == before, "it has waited");
	must(qp_reaches(a->qp, IBV_QPS_ERR, SOON));
	must(sides_reset(a, b));
}

SIDES_CASE(send_waits_as_rnr_attributes_say)
{
	waits_for(a, b, 31, 0, 0);
	waits_for(a, b, 31, 1, 491);
	waits_for(a, b, 31, 2, 983);
	waits_for(a, b, 0, 1, 655);
}

static void without_limit(struct side *a, struct side *b)
{
	struct ibv_wc wc;

	must(sides_join(a, b) && side_send(a, 1, 20000));
	sleep_ms(1500);
	check(qp_state(b->qp) == IBV_QPS_RTS, "state %d", qp_state(b->qp));
	must(side_recv(b, 2, 20000));
	must(expect_wc(b->cq, &wc, 2, IBV_WC_SUCCESS));
	must(expect_wc(a->cq, &wc, 1, IBV_WC_SUCCESS));
	must(traffic(a, b));
	/* A peer that has closed its half: its Send is still delivered, */
	must(side_send(a, 3, 100));
	must(expect_wc(a->cq, &wc, 3, IBV_WC_SUCCESS));
	must(side_to(a, IBV_QPS_RESET));
	must(expect_no_wc(b->cq, QUIET));
	must(side_recv(b, 4, 100));
	must(expect_wc(b->cq, &wc, 4, IBV_WC_SUCCESS));
	/* but waits for a second only. */
	must(sides_reset(a, b) && sides_join(a, b));
	must(side_send(a, 5, 100));
	must(expect_wc(a->cq, &wc, 5, IBV_WC_SUCCESS));
	must(side_to(a, IBV_QPS_RESET));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON));
}

/* The sender's number counts, which it tells when it connects; else the receiver's own. */
SIDES_CASE(rnr_retry_of_sender_applies)
{
	a->rnr_retry = 0;
	b->rnr_retry = 7;
	must(side_rtr(b, a));
	must(side_rtr(a, b) && side_rts(a) && side_send(a, 1, 100));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON));
	must(sides_reset(a, b));
	/* The sender waits in RTR, so it has told nothing. */
	a->rnr_retry = 7;
	b->rnr_retry = 0;
	must(side_rtr(a, b));
	must(side_rtr(b, a) && side_rts(b));
	must(side_recv(a, 2, 100) && side_send(b, 3, 100));
	must(poll_wc(a->cq, &(struct ibv_wc){ 0 }, SOON));
	must(side_send(a, 4, 100));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON));
}

/* With `rnr_retry` 7, and whatever the setting says. */
SIDES_CASE(send_with_rnr_retry_7_waits_without_limit)
{
	long old = device_value(ctx, "receive_wait");

	must(set_device_value(ctx, "receive_wait", 100));
	b->min_rnr_timer = 1;
	without_limit(a, b);
	set_device_value(ctx, "receive_wait", old);
}

/* A Send is complete once the peer has taken it; of one that never is, the sender hears. */
static void confirmed(struct side *a, struct side *b)
{
	bool ib = ctx->device->transport_type == IBV_TRANSPORT_IB;
	struct ibv_wc wc;

	a->rnr_retry = 7;
	must(sides_join(a, b) && side_send(a, 1, 100));
	must(expect_no_wc(a->cq, QUIET));
	must(side_recv(b, 2, 100));
	must(expect_wc(b->cq, &wc, 2, IBV_WC_SUCCESS) && expect_wc(a->cq, &wc, 1, IBV_WC_SUCCESS));
	must(traffic(a, b) && sides_reset(a, b));
	a->rnr_retry = 1;
	b->min_rnr_timer = 1;
	must(sides_join(a, b) && side_send(a, 3, 100) && side_send(a, 4, 100));
	must(expect_wc(a->cq, &wc, 3, ib ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_REM_INV_REQ_ERR));
	must(expect_wc(a->cq, &wc, 4, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(b->qp, IBV_QPS_ERR, SOON));
}

SIDES_CASE(confirmed_send_completes_with_its_receive)
{
	must(set_device_value(ctx, "confirm_sends", 1));
	confirmed(a, b);
	set_device_value(ctx, "confirm_sends", 0);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	srand(getpid());
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	port = device_value(ctx, "oob_port");
	RUN(both_ready_then_both_send);
	RUN(first_end_in_rts_before_second_begins);
	RUN(second_end_in_rts_before_first_begins);
	RUN(end_in_rtr_is_connected_by_peer);
	RUN(end_in_rtr_may_send_once_connected);
	RUN(requests_posted_before_connect_are_sent);
	RUN(simultaneous_connects_leave_one_connection);
	RUN(many_pairs_connect_at_once);
	RUN(pkeys);
	RUN(new_queue_pair_starts_in_its_initial_state);
	RUN(every_gid);
	RUN(absent_peer_times_out);
	RUN(connect_timeout_follows_timeout_and_retry_cnt);
	RUN(send_without_timeout_waits_for_peer);
	RUN(end_without_requests_does_not_time_out);
	RUN(query_reports_set_attributes);
	RUN(queue_pair_is_reused_after_reset);
	RUN(reset_amid_work);
	RUN(reset_while_waiting);
	RUN(reset_drops_waiting_requests);
	RUN(modify_to_error_flushes_waiting_requests);
	RUN(destroyed_while_connecting);
	RUN(reset_while_connecting);
	RUN(wrong_psn_does_not_connect);
	RUN(modify_to_rts_with_unexpected_psn_fails);
	RUN(wrong_peer_does_not_block_right_one);
	RUN(invalid_attributes_are_refused_at_once);
	RUN(queue_pair_connects_to_itself);
	RUN(queue_pair_with_other_psn_does_not_connect_to_itself);
	RUN(depths_up_to_the_limits_of_the_device);
	RUN(completed_send_arrives_after_sender_is_destroyed);
	RUN(gone_peer_is_noticed_by_next_send_only);
	RUN(send_to_gone_peer_without_timeout_fails_at_once);
	RUN(reads_of_destroyed_peer_fail);
	RUN(qp_access_flags_limit_the_peer);
	RUN(send_waits_as_rnr_attributes_say);
	RUN(rnr_retry_of_sender_applies);
	RUN(send_with_rnr_retry_7_waits_without_limit);
	RUN(confirmed_send_completes_with_its_receive);
	RUN(connect_is_refused_with_port_0);
	RUN(connect_on_other_port);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Shared receive queues: receives, their domain, the limit event, the last request of a queue
 * pair.
 */

#include "common.h"

#include <sched.h>

static struct region src, dst;

static bool prepare(struct pair *p)
{
	return region_make(&src, p->a.pd, 65536, 0) &&
	       region_make(&dst, p->b.pd, 65536, ALL_RIGHTS);
}

static bool send_signed(struct end *from, int i)
{
	struct ibv_sge sge = sge_of(&src, i * 16, 16);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);
	struct ibv_wc wc;

	return post_send(from, &wr) && expect_wc(from->send_cq, &wc, i, IBV_WC_SUCCESS);
}

PAIR_CASE(receives, .srq = srq_make)
{
	struct ibv_wc wc;

	must(prepare(p));
	pattern_fill(src.buf, src.len, 1);
	for (int round = 0; round < 4; round++) {
		memset(dst.buf, 0, dst.len);
		for (int i = 0; i < SRQ_DEPTH; i++)
			must(post_recv(&p->b, i, &dst, i * 16, 16));
		for (int i = 0; i < SRQ_DEPTH; i++)
			must(send_signed(&p->a, i));
		for (int i = 0; i < SRQ_DEPTH; i++) {
			must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
			check(wc.byte_len == 16 && wc.qp_num == p->b.qp->qp_num,
			      "byte_len %u, qp_num %u", wc.byte_len, wc.qp_num);
		}
		check(pattern_differs(dst.buf, SRQ_DEPTH * 16, 1) < 0, "data differs");
	}
}

/* The queue pair in each completion identifies the consumer of a shared receive. */
PAIR_CASE(completion_names_the_queue_pair, .srq = srq_make)
{
	struct pair_opts opts = { .beside = &p->b };
	struct region from_other;
	int used = 0, used_by_other = 0;
	struct pair other;
	struct ibv_wc wc;

	must(prepare(p));
	if (!pair_open(&other, &opts) ||
	    !region_make(&from_other, other.a.pd, 65536, 0))
		goto out;
	memset(src.buf, 1, src.len);
	memset(from_other.buf, 2, from_other.len);
	for (int i = 0; i < SRQ_DEPTH; i++)
		if (!post_recv(&p->b, i, &dst, i * 16, 16))
			goto out;
	for (int i = 0; i < SRQ_DEPTH; i++) {
		/* The other QP uses three of four. */
		bool greedy = i % 4;
		struct end *from = greedy ? &other.a : &p->a;
		struct ibv_sge sge = sge_of(greedy ? &from_other : &src, 0, 16);
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);

		if (!post_send(from, &wr) || !expect_wc(from->send_cq, &wc, i, IBV_WC_SUCCESS))
			goto out;
	}
	for (int i = 0; i < SRQ_DEPTH; i++) {
		uint8_t sender;

		if (!poll_wc(p->b.recv_cq, &wc, SOON) || wc.status != IBV_WC_SUCCESS) {
			fail("receive %d: %s", i, ibv_wc_status_str(wc.status));
			goto out;
		}
		sender = dst.buf[wc.wr_id * 16];
		if (wc.qp_num == p->b.qp->qp_num && sender == 1)
			used++;
		else if (wc.qp_num == other.b.qp->qp_num && sender == 2)
			used_by_other++;
		else
			fail("octets of sender %d with qp_num %u", sender, wc.qp_num);
	}
	if (used != SRQ_DEPTH / 4 || used_by_other != SRQ_DEPTH / 4 * 3)
		fail("%d and %d receives used", used, used_by_other);
out:
	pair_close(&other);
}

static bool arm(struct ibv_srq *srq, int limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };
	int rc = ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT);

	if (rc)
		fail("ibv_modify_srq with limit %d: %s", limit, strerror(rc));
	return !rc;
}

/* The event comes once, when fewer than `limit` receives are left; then it must be armed again. */
PAIR_CASE(limit_event, .srq = srq_make)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_wc wc;

	must(prepare(p));
	for (int i = 0; i < 16; i++)
		must(post_recv(&p->b, i, &dst, i * 16, 16));
	must(arm(p->b.srq, 10));
	check(!async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, QUIET), "event while full");
	for (int i = 0; i < 6; i++) { /* 10 are left: not fewer than the limit */
		must(send_signed(&p->a, i));
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
	}
	check(!async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, QUIET),
	      "event with 10 receives left and a limit of 10");
	must(send_signed(&p->a, 6));
	check(async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, SOON), "no event below");
	async_forget(ctx);
	for (int i = 7; i < 10; i++)
		must(send_signed(&p->a, i));
	check(!async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, QUIET),
	      "a second event without arming");
	for (int i = 0; i < 10; i++)
		must(post_recv(&p->b, 100 + i, &dst, i * 16, 16));
	must(arm(p->b.srq, 16));
	must(send_signed(&p->a, 10));
	check(async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, SOON),
	      "no event after arming anew");
}

/* If armed above the fill, the event comes at once (or with the next receive at the latest). */
PAIR_CASE(limit_above_the_fill, .srq = srq_make)
{
	struct ibv_context *ctx = p->a.id->verbs;
	bool soon;

	must(prepare(p));
	for (int i = 0; i < 4; i++)
		must(post_recv(&p->b, i, &dst, i * 16, 16));
	must(arm(p->b.srq, 8));
	soon = async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, QUIET);
	must(send_signed(&p->a, 0));
	check(soon || async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, SOON), "no event");
}

/*
 * Who arms again and again gets one event, and the next one when a receive was used: the kernel
 * keeps each event until it is read.
 */
PAIR_CASE(limit_event_without_receives_comes_once, .srq = srq_make)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_wc wc;

	must(prepare(p));
	must(arm(p->b.srq, 1));
	check(async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, SOON), "no event while empty");
	async_forget(ctx);
	for (int i = 0; i < 100; i++)
		must(arm(p->b.srq, 1));
	check(!async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, QUIET),
	      "another event without a receive used");
	must(post_recv(&p->b, 1, &dst, 0, 16));
	must(send_signed(&p->a, 0));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(async_seen(ctx, IBV_EVENT_SRQ_LIMIT_REACHED, p->b.srq, SOON),
	      "no event when the receive was used");
}

/* This event tells the consumer of an SRQ that a broken QP takes no more receives from it. */
PAIR_CASE(last_wqe_after_disconnect, .srq = srq_make)
{
	struct ibv_context *ctx = p->a.id->verbs;

	must(prepare(p));
	for (int i = 0; i < 4; i++)
		must(post_recv(&p->b, i, &dst, i * 16, 16));
	must(send_signed(&p->a, 0));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	check(async_seen(ctx, IBV_EVENT_QP_LAST_WQE_REACHED, p->b.qp, SOON), "seen only: %s",
	      async_list(ctx));
}

PAIR_CASE(last_wqe_after_modify, .srq = srq_make)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_context *ctx = p->a.id->verbs;

	must(prepare(p));
	must(post_recv(&p->b, 0, &dst, 0, 16));
	check(!ibv_modify_qp(p->b.qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	check(async_seen(ctx, IBV_EVENT_QP_LAST_WQE_REACHED, p->b.qp, SOON), "seen only: %s",
	      async_list(ctx));
}

/*
 * It comes once, however many requests are flushed afterwards; and again after a reset and a new
 * error.
 */
PAIR_CASE(last_wqe_event_comes_once, .srq = srq_make)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	enum ibv_event_type told = IBV_EVENT_QP_LAST_WQE_REACHED;
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_qp *qp = p->b.qp;
	struct ibv_wc wc;

	must(prepare(p));
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	check(async_seen(ctx, told, qp, SOON), "seen only: %s", async_list(ctx));
	for (int i = 0; i < 8; i++) {
		struct ibv_sge sge = sge_of(&dst, 0, 16);
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);

		must(post_send(&p->b, &wr));
		must(expect_wc(p->b.send_cq, &wc, i, IBV_WC_WR_FLUSH_ERR));
	}
	check(async_count(ctx, told, qp) == 1, "seen: %s", async_list(ctx));
	attr.qp_state = IBV_QPS_RESET;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to RESET: %s", strerror(errno));
	async_forget(ctx);
	attr.qp_state = IBV_QPS_ERR;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to ERR: %s", strerror(errno));
	check(async_seen(ctx, told, qp, SOON), "seen after a reset: %s", async_list(ctx));
}

/* A QP in error does not flush the receives of an SRQ; other QPs use them. */
PAIR_CASE(receives_outlive_a_queue_pair, .srq = srq_make)
{
	must(prepare(p));
	must(post_recv(&p->b, 1, &dst, 0, 16));
	must(post_recv(&p->b, 2, &dst, 16, 16));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(expect_no_wc(p->b.recv_cq, QUIET));
}

PAIR_CASE(post_to_full_srq_is_refused, .srq = srq_make)
{
	int rc = 0, n = 0;

	must(prepare(p));
	while (!rc && n < 10 * SRQ_DEPTH) {
		struct ibv_sge sge = sge_of(&dst, 0, 16);
		struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

		rc = ibv_post_srq_recv(p->b.srq, &wr, &bad);
		n += !rc;
	}
	check(n >= SRQ_DEPTH, "only %d receives fit", n);
	check(rc == ENOMEM || rc == -ENOMEM, "%d receives taken, then %d", n, rc);
}

PAIR_CASE(a_limit_above_the_size_is_refused, .srq = srq_make)
{
	struct ibv_srq_attr attr = { .srq_limit = 1000000 };

	check(ibv_modify_srq(p->b.srq, &attr, IBV_SRQ_LIMIT) == EINVAL, "taken");
}

PAIR_CASE(an_unknown_attribute_is_refused, .srq = srq_make)
{
	struct ibv_srq_attr attr = { .srq_limit = 1 };

	check(ibv_modify_srq(p->b.srq, &attr, 1 << 2) == EINVAL, "taken");
	check(ibv_modify_srq(p->b.srq, &attr, IBV_SRQ_LIMIT | 1 << 2) == EINVAL, "taken");
	check(!ibv_modify_srq(p->b.srq, &attr, IBV_SRQ_LIMIT), "refused");
}

static int resize(struct ibv_srq *srq, int max_wr)
{
	struct ibv_srq_attr attr = { .max_wr = max_wr };

	return ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR);
}

static bool post_some(struct pair *p, int from, int to)
{
	for (int i = from; i < to; i++)
		if (!post_recv(&p->b, i, &dst, i % 1024 * 16, 16))
			return false;
	return true;
}

/* Each QP takes the next receive. */
static bool use_some(struct pair *p, int from, int to)
{
	struct ibv_wc wc;

	for (int i = from; i < to; i++)
		if (!send_signed(&p->a, i % 1024) ||
		    !expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS))
			return false;
	return true;
}

/* Posted receives stay posted, in order, also if the old ring and the new one have wrapped. */
PAIR_CASE(resized_with_receives_in_it, .srq = srq_make)
{
	struct ibv_device_attr device;
	struct ibv_srq_attr attr;

	must(prepare(p));
	check(!ibv_query_device(p->b.id->verbs, &device), "ibv_query_device");
	if (!(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE)) {
		check(resize(p->b.srq, 4 * SRQ_DEPTH), "resized without that capability");
		return;
	}
	must(post_some(p, 0, SRQ_DEPTH) && use_some(p, 0, SRQ_DEPTH - 3));
	must(post_some(p, SRQ_DEPTH, 2 * SRQ_DEPTH - 3));
	check(!resize(p->b.srq, 4 * SRQ_DEPTH), "larger: %s", strerror(errno));
	check(!ibv_query_srq(p->b.srq, &attr) && attr.max_wr >= 4 * SRQ_DEPTH, "max_wr %u",
	      attr.max_wr);
	must(post_some(p, 2 * SRQ_DEPTH - 3, 5 * SRQ_DEPTH - 3));
	check(resize(p->b.srq, SRQ_DEPTH) == EINVAL, "smaller than what is in it");
	check(resize(p->b.srq, 0) == EINVAL, "to nothing");
	check(resize(p->b.srq, device.max_srq_wr + 1) == EINVAL, "beyond the device");
	must(use_some(p, SRQ_DEPTH - 3, 5 * SRQ_DEPTH - 10));
	check(!resize(p->b.srq, SRQ_DEPTH), "smaller: %s", strerror(errno));
	must(post_some(p, 5 * SRQ_DEPTH - 3, 6 * SRQ_DEPTH - 10));
	must(use_some(p, 5 * SRQ_DEPTH - 10, 6 * SRQ_DEPTH - 10));
}

/*
 * --- a queue in another domain than the queue pair ----------------------------------------------
 *
 * Whoever posts to the queue does not know which queue pair will take the receive, so what it may
 * use is in the domain of the queue.
 */

static struct ibv_pd *srq_pd;

static struct ibv_srq *srq_make_apart(struct ibv_pd *pd)
{
	srq_pd = ibv_alloc_pd(pd->context);
	if (!srq_pd) {
		fail("ibv_alloc_pd: %s", strerror(errno));
		return NULL;
	}
	return srq_make(srq_pd);
}

static void with_srq_apart(void (*body)(struct pair *p))
{
	struct pair_opts opts = { .srq = srq_make_apart };

	with_pair(&opts, body);
	if (srq_pd && ibv_dealloc_pd(srq_pd))
		fail("ibv_dealloc_pd: %s", strerror(errno));
	srq_pd = NULL;
}

/* The lengths of a Send in one FPDU, and in many. */
#define SHORT 16
#define LONG (1 << 20)

static bool post_recv_and_send(struct pair *p, struct ibv_pd *pd, size_t len, int access)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	if (!region_make(&src, p->a.pd, len, 0) || !region_make(&dst, pd, len, access))
		return false;
	pattern_fill(src.buf, len, 5);
	sge = sge_of(&src, 0, len);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
	return post_recv(&p->b, 2, &dst, 0, len) && post_send(&p->a, &wr);
}

static void receives_in_the_queues_domain(struct pair *p, int access)
{
	static const size_t lengths[] = { SHORT, LONG };
	struct ibv_wc wc;

	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		must(post_recv_and_send(p, srq_pd, lengths[i], access));
		must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
		must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		/* A system call: in User-Mode Linux a process sees its new pages only then. */
		sched_yield();
		check(pattern_differs(dst.buf, lengths[i], 5) < 0, "octet %zd of %zu is another",
		      pattern_differs(dst.buf, lengths[i], 5), lengths[i]);
	}
}

static void pinned_body(struct pair *p)
{
	receives_in_the_queues_domain(p, IBV_ACCESS_LOCAL_WRITE);
}

static void receive_is_checked_in_domain_of_srq(void) { with_srq_apart(pinned_body); }

static void paged_body(struct pair *p)
{
	struct ibv_device_attr_ex attr;

	check(!ibv_query_device_ex(p->b.id->verbs, NULL, &attr), "%s", strerror(errno));
	if (!(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_SRQ_RECV))
		return test_skip("the device does not page on demand");
	receives_in_the_queues_domain(p, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
}

static void on_demand_receive_is_checked_in_domain_of_srq(void) { with_srq_apart(paged_body); }

static void a_receive_is_refused(struct pair *p, size_t len)
{
	struct ibv_wc wc;

	must(post_recv_and_send(p, p->b.pd, len, IBV_ACCESS_LOCAL_WRITE));
	check(poll_wc(p->b.recv_cq, &wc, SOON), "no completion");
	/* siw says GENERAL_ERR, riwarp never. */
	check(wc.wr_id == 2 &&
		      (wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_GENERAL_ERR),
	      "%llu with '%s'", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(not_all(dst.buf, len, 0) < 0, "octets were placed");
}

static void short_body(struct pair *p) { a_receive_is_refused(p, SHORT); }

static void receive_in_domain_of_queue_pair_is_refused(void) { with_srq_apart(short_body); }

static void long_body(struct pair *p) { a_receive_is_refused(p, LONG); }

static void long_receive_in_domain_of_queue_pair_is_refused(void) { with_srq_apart(long_body); }

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(receives);
	RUN(completion_names_the_queue_pair);
	RUN(limit_event);
	RUN(limit_above_the_fill);
	RUN(limit_event_without_receives_comes_once);
	RUN(last_wqe_after_disconnect);
	RUN(last_wqe_after_modify);
	RUN(last_wqe_event_comes_once);
	RUN(receives_outlive_a_queue_pair);
	RUN(post_to_full_srq_is_refused);
	RUN(a_limit_above_the_size_is_refused);
	RUN(an_unknown_attribute_is_refused);
	RUN(resized_with_receives_in_it);
	RUN(receive_is_checked_in_domain_of_srq);
	RUN(on_demand_receive_is_checked_in_domain_of_srq);
	RUN(receive_in_domain_of_queue_pair_is_refused);
	RUN(long_receive_in_domain_of_queue_pair_is_refused);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Asynchronous events that rules raise, as docs/inject.md has them: each once, for the object that
 * it is about, and nothing else changes.
 */

#include "modify.h"
#include "rules.h"

#include <errno.h>

#define LEN 4096

static struct region local, remote;

static bool prepare(struct pair *p)
{
	async_forget(p->a.id->verbs);
	return region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, LEN, ALL_RIGHTS);
}

static bool post(struct pair *p, enum ibv_wr_opcode op, uint64_t id)
{
	return post_rdma(&p->a, op, id, &local, &remote, 64);
}

/* Sends of end a that end b has receives for. */
static bool exchange(struct pair *p, uint64_t sends)
{
	struct ibv_sge sge = sge_of(&local, 0, 64);
	struct ibv_wc wc;

	for (uint64_t id = 1; id <= sends; id++) {
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sge, 1);

		if (!post_recv(&p->b, id, &remote, 0, LEN) || !post_send(&p->a, &wr) ||
		    !expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS) ||
		    !expect_wc(p->b.recv_cq, &wc, id, IBV_WC_SUCCESS))
			return false;
	}
	return true;
}

enum source { PORT, QP, CQ, SRQ };

static const struct event {
	const char *name;
	enum ibv_event_type type;
	enum source of;
} events[] = {
	{ "CQ_ERR", IBV_EVENT_CQ_ERR, CQ },
	{ "QP_FATAL", IBV_EVENT_QP_FATAL, QP },
	{ "QP_REQ_ERR", IBV_EVENT_QP_REQ_ERR, QP },
	{ "QP_ACCESS_ERR", IBV_EVENT_QP_ACCESS_ERR, QP },
	{ "COMM_EST", IBV_EVENT_COMM_EST, QP },
	{ "SQ_DRAINED", IBV_EVENT_SQ_DRAINED, QP },
	{ "DEVICE_FATAL", IBV_EVENT_DEVICE_FATAL, PORT },
	{ "PORT_ACTIVE", IBV_EVENT_PORT_ACTIVE, PORT },
	{ "PORT_ERR", IBV_EVENT_PORT_ERR, PORT },
	{ "LID_CHANGE", IBV_EVENT_LID_CHANGE, PORT },
	{ "SRQ_ERR", IBV_EVENT_SRQ_ERR, SRQ },
	{ "SRQ_LIMIT_REACHED", IBV_EVENT_SRQ_LIMIT_REACHED, SRQ },
	{ "QP_LAST_WQE_REACHED", IBV_EVENT_QP_LAST_WQE_REACHED, QP },
};

static const struct event *event;
static const char *point;

/* What the event is of, as ibv_get_async_event(3) has it. */
static const void *element(struct pair *p)
{
	bool recv = !strcmp(point, "recv");
	struct end *end = recv ? &p->b : &p->a;

	switch (event->of) {
	case QP:
		return end->qp;
	case CQ:
		return recv ? end->recv_cq : end->send_cq;
	case SRQ:
		return end->srq;
	case PORT:
		break;
	}
	/* The number of the port, in place of a pointer. */
	return (void *)1;
}

static bool port_is_active(struct ibv_context *ctx)
{
	struct ibv_port_attr attr;

	return !ibv_query_port(ctx, 1, &attr) && attr.state == IBV_PORT_ACTIVE;
}

static void is_raised(struct pair *p)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_qp *qp = strcmp(point, "recv") ? p->a.qp : p->b.qp;
	long hits = device_counter(ctx, "injected");

	must(prepare(p));
	must(rules("qp=%u on=%s nth=2 do=event=%s", qp->qp_num, point, event->name));
	must(exchange(p, 3));
	if (event->of == SRQ && strcmp(point, "recv")) {
		/* The end that sends has none. */
		sleep_ms(QUIET);
		check(!async_count(ctx, event->type, NULL), "%s", async_list(ctx));
	} else {
		check(async_seen(ctx, event->type, element(p), SOON), "%s at %s: %s", event->name, point,
		      async_list(ctx));
		check(!strcmp(async_list(ctx), ibv_event_type_str(event->type)), "%s at %s: %s",
		      event->name, point, async_list(ctx));
	}
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	hits = device_counter(ctx, "injected") - hits;
	check(hits == 1, "the counter has grown by %ld", hits);
	/* It stands for nothing. */
	check(port_is_active(ctx), "the port is not active");
	check(qp_state(p->a.qp) == IBV_QPS_RTS && qp_state(p->b.qp) == IBV_QPS_RTS, "states");
	must(exchange(p, 3));
	must(rules(""));
}

static void each_event_at(const char *where)
{
	struct pair_opts opts = { .srq = srq_make };

	point = where;
	for (event = events; event < events + ARRAY_SIZE(events) && !test_failed(); event++)
		with_pair(&opts, is_raised);
	world_is_well();
}

static void each_event_at_a_post(void) { each_event_at("post"); }
static void each_event_at_a_request(void) { each_event_at("send"); }
static void each_event_at_a_completion(void) { each_event_at("complete"); }
static void each_event_at_a_message(void) { each_event_at("recv"); }

PAIR_CASE(event_of_completion_follows_it, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u on=complete do=event=COMM_EST\nqp=%u on=recv do=delay=200ms", p->a.qp->qp_num,
		   p->b.qp->qp_num));
	must(post(p, IBV_WR_RDMA_READ, 1));
	must(async_seen(p->a.id->verbs, IBV_EVENT_COMM_EST, p->a.qp, SOON));
	check(poll_wc(p->a.send_cq, &wc, 0) && wc.wr_id == 1, "the event is earlier");
	must(rules(""));
}

/* None is lost, and they keep their order. */
PAIR_CASE(each_hit_of_rule_raises_an_event, 0)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u every=2 do=event=SQ_DRAINED\nqp=%u do=event=COMM_EST\n"
		   "qp=%u on=complete do=event=QP_ACCESS_ERR", p->a.qp->qp_num, p->a.qp->qp_num,
		   p->a.qp->qp_num));
	for (uint64_t id = 1; id <= 40; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	for (uint64_t id = 1; id <= 40; id++)
		must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	for (int64_t end = now_ms() + SOON; now_ms() < end; sleep_ms(1))
		if (async_count(ctx, IBV_EVENT_QP_ACCESS_ERR, p->a.qp) == 40)
			break;
	check(async_count(ctx, IBV_EVENT_QP_ACCESS_ERR, p->a.qp) == 40 &&
	      async_count(ctx, IBV_EVENT_SQ_DRAINED, p->a.qp) == 20 &&
	      async_count(ctx, IBV_EVENT_COMM_EST, p->a.qp) == 20,
	      "%zu, %zu, %zu", async_count(ctx, IBV_EVENT_QP_ACCESS_ERR, p->a.qp),
	      async_count(ctx, IBV_EVENT_SQ_DRAINED, p->a.qp),
	      async_count(ctx, IBV_EVENT_COMM_EST, p->a.qp));
	must(rules(""));
	world_is_well();
}

/* As the scenario flapping-port has it. */
PAIR_CASE(port_fails_and_comes_back, 0)
{
	struct ibv_context *ctx = p->a.id->verbs;
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("scope=device every=20 do=event=PORT_ACTIVE\n"
		   "scope=device every=10 do=event=PORT_ERR"));
	for (uint64_t id = 1; id <= 40; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id) &&
		     expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	for (int64_t end = now_ms() + SOON; now_ms() < end; sleep_ms(1))
		if (async_count(ctx, IBV_EVENT_PORT_ACTIVE, (void *)1) == 2)
			break;
	check(!strcmp(async_list(ctx), "port error, port active, port error, port active"), "%s",
	      async_list(ctx));
	must(rules(""));
	world_is_well();
}

/* The queue pair goes with what it has not raised yet. */
PAIR_CASE(queue_pair_with_events_is_destroyed, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u do=event=COMM_EST\nqp=%u on=complete do=event=SQ_DRAINED", p->a.qp->qp_num,
		   p->a.qp->qp_num));
	for (uint64_t id = 1; id <= 40; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	async_forget(p->a.id->verbs);
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(rules(""));
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	RUN(each_event_at_a_post);
	RUN(each_event_at_a_request);
	RUN(each_event_at_a_completion);
	RUN(each_event_at_a_message);
	RUN(event_of_completion_follows_it);
	RUN(each_hit_of_rule_raises_an_event);
	RUN(port_fails_and_comes_back);
	RUN(queue_pair_with_events_is_destroyed);
	return test_end();
}

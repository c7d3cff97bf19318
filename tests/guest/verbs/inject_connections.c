// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that rules change, as docs/inject.md has them: the events of both ends, and that the
 * next connection is like any other.
 */

#include "modify.h"
#include "rules.h"

#include <arpa/inet.h>
#include <errno.h>

/* A start-up gives up after 10 s, whatever the machine. */
#define GIVE_UP (10000 + SOON)

/* The end that listens, with one connection. */
static struct server {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listener, *id;
	struct ibv_cq *cq;
	int port;
} server;
/* The end that connects. */
static struct attempt t;

static bool opened(void)
{
	memset(&server, 0, sizeof(server));
	memset(&t, 0, sizeof(t));
	server.port = next_port();
	server.ch = rdma_create_event_channel();
	server.listener = cm_listening_id(server.ch, server.port, 4);
	if (server.listener)
		server.cq = ibv_create_cq(server.listener->verbs, 8, NULL, NULL, 0);
	return server.cq;
}

/* Returns whether this is the next event of a channel; keeps the id of a request. */
static bool next_is(struct rdma_event_channel *ch, enum rdma_cm_event_type type, int ms)
{
	struct rdma_cm_event *event = cm_event(ch, ms);
	bool is = event && event->event == type;

	if (!is)
		fail("%s, not %s", event ? rdma_event_str(event->event) : "nothing",
		     rdma_event_str(type));
	if (is && type == RDMA_CM_EVENT_CONNECT_REQUEST)
		server.id = event->id;
	if (event)
		rdma_ack_cm_event(event);
	return is;
}

static bool silent(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *event = cm_event(ch, QUIET);

	if (event)
		fail("%s", rdma_event_str(event->event));
	return !event;
}

static bool accepted(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = server.cq,
		.recv_cq = server.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };

	if (!next_is(server.ch, RDMA_CM_EVENT_CONNECT_REQUEST, SOON))
		return false;
	if (rdma_create_qp(server.id, NULL, &attr) || rdma_accept(server.id, &param)) {
		fail("accepting: %s", strerror(errno));
		return false;
	}
	return true;
}

static void close_connection(void)
{
	attempt_end(&t);
	memset(&t, 0, sizeof(t));
	if (server.id) {
		struct rdma_cm_event *event;

		rdma_destroy_qp(server.id);
		while ((event = cm_event(server.ch, 0)))
			rdma_ack_cm_event(event);
		rdma_destroy_id(server.id);
		server.id = NULL;
	}
}

static void closed(void)
{
	close_connection();
	if (server.listener)
		rdma_destroy_id(server.listener);
	if (server.cq)
		ibv_destroy_cq(server.cq);
	rdma_destroy_event_channel(server.ch);
}

/* Both ends hear that the connection is established. */
static bool is_established(void)
{
	return next_is(t.ch, RDMA_CM_EVENT_ESTABLISHED, SOON) &&
	       next_is(server.ch, RDMA_CM_EVENT_ESTABLISHED, SOON);
}

/* Another connection of the same listener, which the rules leave alone. */
static bool another_works(void)
{
	close_connection();
	return attempt_start(&t, server.port) && accepted() && is_established();
}

static bool hit_once(void)
{
	if (strstr(shown_rules(), "hits=1\n"))
		return true;
	fail("%s", shown_rules());
	return false;
}

/* Defines a case with a listener. */
#define SERVER_CASE(name)                                                                          \
	static void name##_body(void);                                                             \
	static void name(void)                                                                     \
	{                                                                                          \
		if (opened())                                                                      \
			name##_body();                                                             \
		closed();                                                                          \
		takes_rules("clear");                                                              \
	}                                                                                          \
	static void name##_body(void)

/* The end that connects is rejected, with these octets at the front of the private data. */
static bool is_rejected(const char *data)
{
	struct rdma_cm_event *event = cm_event(t.ch, SOON);
	bool is = event && event->event == RDMA_CM_EVENT_REJECTED &&
		  event->status == -ECONNREFUSED && event->param.conn.private_data_len >= 4 &&
		  !memcmp(event->param.conn.private_data, data, 4);

	if (!is)
		fail("%s, status %d", event ? rdma_event_str(event->event) : "nothing",
		     event ? event->status : 0);
	if (event)
		rdma_ack_cm_event(event);
	return is;
}

SERVER_CASE(request_is_rejected_with_data)
{
	must(rules("on=request port=%d nth=1 do=reject=0x01020304", server.port));
	must(attempt_start(&t, server.port) && is_rejected("\1\2\3\4"));
	/* Nobody was asked. */
	must(silent(server.ch) && hit_once() && another_works());
}

SERVER_CASE(accepted_connection_is_rejected_with_data)
{
	must(rules("on=connect port=%d nth=1 do=reject=5", server.port));
	must(attempt_start(&t, server.port) && accepted() && is_rejected("\0\0\0\5"));
	/* The other end has accepted, so that it has a connection, which is lost. */
	must(next_is(server.ch, RDMA_CM_EVENT_ESTABLISHED, SOON));
	must(next_is(server.ch, RDMA_CM_EVENT_DISCONNECTED, SOON));
	must(hit_once() && another_works());
}

static void fails_with(const char *action, enum rdma_cm_event_type type, int status)
{
	must(rules("on=connect port=%d nth=1 do=%s", server.port, action));
	must(attempt_start(&t, server.port) && accepted() && attempt_result(&t, SOON));
	check(t.event == type && t.status == status, "%s, %d", rdma_event_str(t.event), t.status);
	must(next_is(server.ch, RDMA_CM_EVENT_ESTABLISHED, SOON));
	must(next_is(server.ch, RDMA_CM_EVENT_DISCONNECTED, SOON));
	must(hit_once() && another_works());
}

SERVER_CASE(peer_is_unreachable)
{
	fails_with("unreachable", RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

SERVER_CASE(connection_fails)
{
	fails_with("connect-error", RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO);
}

/* A rule for another program, queue pair or peer leaves it alone. */
SERVER_CASE(connect_rule_fails_only_matching_connections)
{
	/* A queue pair that is gone when the other connection is made. */
	must(attempt_prepare(&t, server.port));
	must(rules("on=connect qp=%u do=unreachable\non=connect comm=%.14sx do=unreachable\n"
		   "on=request peer=203.0.113.1 do=drop-reply\non=request port=%d do=drop-reply",
		   t.id->qp->qp_num, program_invocation_short_name, server.port + 1));
	must(another_works());
	check(!strstr(shown_rules(), "hits=1"), "%s", shown_rules());
}

/* Until the rule goes. Another listener is asked meanwhile. */
SERVER_CASE(dropped_request_is_reported_when_rule_is_removed)
{
	must(rules("on=request port=%d nth=1 do=drop-reply", server.port));
	must(attempt_start(&t, server.port) && silent(server.ch) && silent(t.ch) && hit_once());
	world_is_well();
	must(rules("") && accepted() && is_established());
}

/* A request that is held holds up none behind it. */
SERVER_CASE(dropped_request_delays_no_later_ones)
{
	struct attempt first;

	must(rules("on=request port=%d nth=1 do=drop-reply", server.port));
	must(attempt_start(&first, server.port) && silent(server.ch));
	must(attempt_start(&t, server.port) && accepted() && is_established());
	attempt_end(&first);
}

SERVER_CASE(dropped_reply_is_sent_when_rule_is_removed)
{
	must(rules("on=connect port=%d nth=1 do=drop-reply", server.port));
	must(attempt_start(&t, server.port) && accepted() && silent(t.ch) && hit_once());
	must(rules("") && next_is(t.ch, RDMA_CM_EVENT_ESTABLISHED, SOON));
}

/* As if it had been lost. */
SERVER_CASE(dropped_reply_makes_the_peer_unreachable)
{
	must(rules("on=connect port=%d nth=1 do=drop-reply", server.port));
	must(attempt_start(&t, server.port) && accepted() && attempt_result(&t, GIVE_UP));
	check(t.event == RDMA_CM_EVENT_UNREACHABLE && t.status == -ETIMEDOUT, "%s, %d",
	      rdma_event_str(t.event), t.status);
	must(another_works());
}

#define HELD 200

static void is_slow(const char *point)
{
	int64_t begun = now_ms();

	must(rules("on=%s port=%d nth=1 do=slow=%dms", point, server.port, HELD));
	must(attempt_start(&t, server.port) && accepted() && is_established() && hit_once());
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	must(another_works());
}

SERVER_CASE(request_is_slow) { is_slow("request"); }
SERVER_CASE(reply_is_slow) { is_slow("connect"); }

SERVER_CASE(connection_ends_once_it_is_established)
{
	must(rules("on=connect port=%d nth=1 do=disconnect", server.port));
	must(attempt_start(&t, server.port) && accepted() && is_established());
	must(next_is(t.ch, RDMA_CM_EVENT_DISCONNECTED, SOON));
	must(next_is(server.ch, RDMA_CM_EVENT_DISCONNECTED, SOON));
	must(qp_reaches(t.id->qp, IBV_QPS_ERR, SOON) && qp_reaches(server.id->qp, IBV_QPS_ERR, SOON));
	must(hit_once() && another_works());
}

/* Waits for this event behind any others. */
static bool comes(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	bool is = false;

	while (!is && (event = cm_event(ch, SOON))) {
		is = event->event == type;
		rdma_ack_cm_event(event);
	}
	if (!is)
		fail("no %s", rdma_event_str(type));
	return is;
}

/* Both ends are of another device than that under test. */
static void device_is_removed(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel(),
				  *far = rdma_create_event_channel();
	struct sockaddr_in addr = { .sin_family = AF_INET };
	struct rdma_conn_param param = { .initiator_depth = 1 };
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *listener, *id;
	char name[64], path[128];

	check(getenv("OTHER") && inet_pton(AF_INET, getenv("OTHER"), &addr.sin_addr) == 1, "no OTHER");
	addr.sin_port = htons(next_port());
	check(!rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP) &&
		      !rdma_bind_addr(listener, (void *)&addr) && !rdma_listen(listener, 1),
	      "listening: %s", strerror(errno));
	snprintf(name, sizeof(name), "%s", ibv_get_device_name(listener->verbs->device));
	check(strcmp(name, ibv_get_device_name(test_context()->device)), "it is the device under test");
	must(device_takes(listener->verbs, "inject", "on=request do=remove"));
	check(!rdma_create_id(far, &id, NULL, RDMA_PS_TCP) &&
		      !rdma_resolve_addr(id, NULL, (void *)&addr, 2000),
	      "resolving: %s", strerror(errno));
	must(next_is(far, RDMA_CM_EVENT_ADDR_RESOLVED, SOON) && !rdma_resolve_route(id, 2000) &&
	     next_is(far, RDMA_CM_EVENT_ROUTE_RESOLVED, SOON));
	check(!rdma_create_qp(id, NULL, &attr) && !rdma_connect(id, &param), "%s", strerror(errno));
	must(comes(ch, RDMA_CM_EVENT_DEVICE_REMOVAL) && comes(far, RDMA_CM_EVENT_DEVICE_REMOVAL));
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(far);
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s", name);
	for (int64_t end = now_ms() + SOON; now_ms() < end && !access(path, F_OK); sleep_ms(1))
		;
	check(access(path, F_OK), "%s is still there", name);
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	RUN(request_is_rejected_with_data);
	RUN(accepted_connection_is_rejected_with_data);
	RUN(peer_is_unreachable);
	RUN(connection_fails);
	RUN(connect_rule_fails_only_matching_connections);
	RUN(dropped_request_is_reported_when_rule_is_removed);
	RUN(dropped_request_delays_no_later_ones);
	RUN(dropped_reply_is_sent_when_rule_is_removed);
	RUN(dropped_reply_makes_the_peer_unreachable);
	RUN(request_is_slow);
	RUN(reply_is_slow);
	RUN(connection_ends_once_it_is_established);
	RUN(device_is_removed);
	return test_end();
}

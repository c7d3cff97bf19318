// SPDX-License-Identifier: GPL-2.0
/* Connections that are not established: the right event, with the right status, in bounded time. */

#include "common.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>

/* The longest time until start-up gives up. */
#define GIVE_UP 20000

#define EXPECT_EVENT(t, ev)                                                                        \
	check((t)->event == (ev), "%s (status %d)", rdma_event_str((t)->event), (t)->status)

/* --- a plain TCP peer that sends any octets --------------------------------------------------- */

struct tcp_peer {
	int listener;
	const void *say;
	size_t len;
	bool close_after;
	pthread_t thread;
};

static void *tcp_peer_run(void *arg)
{
	struct tcp_peer *peer = arg;
	uint8_t sink[4096];
	int fd = accept(peer->listener, NULL, NULL);
	struct timeval tv = { .tv_sec = 30 };

	if (fd < 0)
		return NULL;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (recv(fd, sink, sizeof(sink), 0) > 0 && peer->len)
		if (send(fd, peer->say, peer->len, MSG_NOSIGNAL) < 0)
			perror("send");
	if (!peer->close_after)
		while (recv(fd, sink, sizeof(sink), 0) > 0)
			;
	close(fd);
	return NULL;
}

static bool tcp_peer_start(struct tcp_peer *peer, int port, const void *say, size_t len)
{
	struct sockaddr_storage addr;
	int one = 1;

	addr_with_port(&addr, port);
	memset(peer, 0, sizeof(*peer));
	peer->say = say;
	peer->len = len;
	peer->listener = socket(addr.ss_family, SOCK_STREAM, 0);
	setsockopt(peer->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (peer->listener < 0 || bind(peer->listener, (void *)&addr, sizeof(addr)) ||
	    listen(peer->listener, 4) ||
	    pthread_create(&peer->thread, NULL, tcp_peer_run, peer)) {
		fail("TCP listener: %s", strerror(errno));
		return false;
	}
	return true;
}

static void tcp_peer_end(struct tcp_peer *peer)
{
	shutdown(peer->listener, SHUT_RDWR);
	pthread_join(peer->thread, NULL);
	close(peer->listener);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void refused_body(struct attempt *t)
{
	int64_t start = now_ms();

	must(attempt_start(t, next_port()));
	must(attempt_result(t, SOON));
	check(t->event == RDMA_CM_EVENT_REJECTED || t->event == RDMA_CM_EVENT_UNREACHABLE ||
		      t->event == RDMA_CM_EVENT_CONNECT_ERROR,
	      "%s", rdma_event_str(t->event));
	check(t->status, "with status 0");
	check(now_ms() - start < 5000 * slow, "only after %lld ms", (long long)(now_ms() - start));
}

static void connect_without_listener_is_refused(void)
{
	struct attempt t = { 0 };

	refused_body(&t);
	attempt_end(&t);
}

/* Connects to a TCP peer with these octets and returns the event. */
static bool answered_with(struct attempt *t, const void *say, size_t len, bool close_after, int ms)
{
	struct tcp_peer peer;
	int port = next_port();
	bool good;

	if (!tcp_peer_start(&peer, port, say, len))
		return false;
	peer.close_after = close_after;
	good = attempt_start(t, port) && attempt_result(t, ms);
	attempt_end(t);
	tcp_peer_end(&peer);
	return good;
}

static bool is_failure(enum rdma_cm_event_type ev)
{
	return ev == RDMA_CM_EVENT_REJECTED || ev == RDMA_CM_EVENT_UNREACHABLE ||
	       ev == RDMA_CM_EVENT_CONNECT_ERROR;
}

static void silent_peer_times_out(void)
{
	struct attempt t;

	must(answered_with(&t, NULL, 0, false, GIVE_UP));
	EXPECT_EVENT(&t, RDMA_CM_EVENT_UNREACHABLE);
	check(t.status == -ETIMEDOUT, "status %d", t.status);
}

/* A queue pair in error wants no connection: its start-up ends at once. */
static void modify_to_error_ends_the_start_up(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct attempt t = { 0 };
	struct tcp_peer peer;
	int port = next_port();
	int64_t start;

	must(tcp_peer_start(&peer, port, NULL, 0));
	must(attempt_start(&t, port));
	start = now_ms();
	check(!ibv_modify_qp(t.id->qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	must(attempt_result(&t, GIVE_UP));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
	check(now_ms() - start < 1500 * slow, "only after %lld ms", (long long)(now_ms() - start));
	attempt_end(&t);
	tcp_peer_end(&peer);
}

static void incomplete_reply_times_out(void)
{
	struct attempt t;

	must(answered_with(&t, "MPA ID Re", 9, false, GIVE_UP));
	EXPECT_EVENT(&t, RDMA_CM_EVENT_UNREACHABLE);
	check(t.status == -ETIMEDOUT, "status %d", t.status);
}

static void malformed_reply_fails(void)
{
	static const char text[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
	struct attempt t;

	must(answered_with(&t, text, sizeof(text) - 1, false, SOON));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
	check(t.status && t.status != -ECONNREFUSED, "status %d", t.status);
}

static void close_instead_of_reply_fails(void)
{
	struct attempt t;

	must(answered_with(&t, NULL, 0, true, SOON));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
	check(t.status, "status 0");
}

static void close_inside_reply_fails(void)
{
	struct attempt t;

	must(answered_with(&t, "MPA ID Rep Frame\x40", 17, true, SOON));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
	check(t.status, "status 0");
}

/* A Request as an answer: both sides are initiators. */
static void request_instead_of_reply_fails(void)
{
	struct attempt t;

	must(answered_with(&t, "MPA ID Req Frame\x40\x01\0\0", 20, false, SOON));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
}

/* Announces more private data than the maximum. */
static void reply_with_too_much_private_data_fails(void)
{
	struct attempt t;

	must(answered_with(&t, "MPA ID Rep Frame\x40\x01\x02\x01", 20, false, SOON));
	check(is_failure(t.event), "%s", rdma_event_str(t.event));
}

/* A rejection by MPA, with private data, reported as a rejection. */
static void rejection_by_peer_is_reported(void)
{
	struct attempt t;

	must(answered_with(&t, "MPA ID Rep Frame\x60\x01\0\x04nope", 24, false, SOON));
	EXPECT_EVENT(&t, RDMA_CM_EVENT_REJECTED);
	check(t.status == -ECONNREFUSED, "status %d", t.status);
}

/* A peer that never answers does not delay another connection. */
static void silent_peer_delays_no_other_connect(void)
{
	struct tcp_peer peer;
	struct attempt t = { 0 };
	struct pair p;
	int port = next_port();
	int64_t start;

	must(tcp_peer_start(&peer, port, NULL, 0));
	if (attempt_start(&t, port)) {
		start = now_ms();
		if (pair_open(&p, NULL) && exchange_works(&p) && now_ms() - start > 3000 * slow)
			fail("%lld ms for another connection", (long long)(now_ms() - start));
		pair_close(&p);
	}
	attempt_end(&t); /* gives up the attempt in the middle */
	tcp_peer_end(&peer);
}

/* Two listeners on one address and port: the second fails. */
static void second_listener_on_one_address_is_refused(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage addr;
	struct rdma_cm_id *one, *two;
	int rc;

	addr_with_port(&addr, next_port());
	check(!rdma_create_id(ch, &one, NULL, RDMA_PS_TCP) &&
		      !rdma_create_id(ch, &two, NULL, RDMA_PS_TCP),
	      "rdma_create_id");
	check(!rdma_bind_addr(one, (void *)&addr) && !rdma_listen(one, 1), "first: %s",
	      strerror(errno));
	rc = rdma_bind_addr(two, (void *)&addr);
	if (!rc)
		rc = rdma_listen(two, 1);
	check(rc && errno == EADDRINUSE, "second listener: %d, %s", rc, strerror(errno));
	rdma_destroy_id(two);
	rdma_destroy_id(one);
	rdma_destroy_event_channel(ch);
}

/* A plain TCP listener has the port: the RDMA listener fails. */
static void listen_on_port_used_by_tcp_is_refused(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;
	int fd, rc;

	addr_with_port(&addr, next_port());
	fd = socket(addr.ss_family, SOCK_STREAM, 0);
	check(!bind(fd, (void *)&addr, sizeof(addr)) && !listen(fd, 1), "TCP: %s",
	      strerror(errno));
	check(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	rc = rdma_bind_addr(id, (void *)&addr);
	if (!rc)
		rc = rdma_listen(id, 1);
	check(rc && errno == EADDRINUSE, "%d, %s", rc, strerror(errno));
	rdma_destroy_id(id);
	close(fd);
	rdma_destroy_event_channel(ch);
}

/* A port is free for another listener as soon as its listener is destroyed, repeatedly. */
static void port_is_free_after_listener_is_destroyed(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;

	addr_with_port(&addr, next_port());
	for (int i = 0; i < 50; i++) {
		check(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
		check(!rdma_bind_addr(id, (void *)&addr), "bind %d: %s", i, strerror(errno));
		check(!rdma_listen(id, 4), "listen %d: %s", i, strerror(errno));
		rdma_destroy_id(id);
	}
	rdma_destroy_event_channel(ch);
}

/* Unaccepted requests end with their listener. */
static void pending_requests_end_with_their_listener(void)
{
	struct rdma_event_channel *lch = rdma_create_event_channel();
	struct rdma_cm_id *lid;
	struct rdma_cm_event *ev;
	struct attempt t[4];
	int port = next_port();

	memset(t, 0, sizeof(t));
	lid = cm_listening_id(lch, port, 8);
	must(lid);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		must(attempt_start(&t[i], port));
	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		ev = cm_event(lch, SOON);
		check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "request %zu", i);
		rdma_ack_cm_event(ev);
	}
	rdma_destroy_id(lid);
	rdma_destroy_event_channel(lch);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		/* The waiting requests may be rejected at once or time out. */
		must(attempt_result(&t[i], GIVE_UP));
		check(is_failure(t[i].event), "%s", rdma_event_str(t[i].event));
		attempt_end(&t[i]);
	}
}

/* A slow acceptor does not lose the connection. */
static void slow_accept_keeps_the_connection(void)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_event_channel *lch = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *lid, *child;
	struct rdma_cm_event *ev;
	struct attempt t;
	int port = next_port();

	lid = cm_listening_id(lch, port, 8);
	must(lid);
	must(attempt_start(&t, port));
	ev = cm_event(lch, SOON);
	check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "no request");
	child = ev->id;
	rdma_ack_cm_event(ev);
	sleep_ms(3000);
	attr.send_cq = attr.recv_cq = t.cq;
	check(!rdma_create_qp(child, t.pd, &attr), "rdma_create_qp: %s", strerror(errno));
	check(!rdma_accept(child, &param), "rdma_accept: %s", strerror(errno));
	must(attempt_result(&t, SOON));
	EXPECT_EVENT(&t, RDMA_CM_EVENT_ESTABLISHED);
	must(cm_expect(lch, RDMA_CM_EVENT_ESTABLISHED));
	rdma_destroy_qp(child);
	rdma_destroy_id(child);
	attempt_end(&t);
	rdma_destroy_id(lid);
	rdma_destroy_event_channel(lch);
}

/* Makes a queue pair that librdmacm does not know, in the state INIT. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int mask;

	if (!qp || rdma_init_qp_attr(id, &attr, &mask) || ibv_modify_qp(qp, &attr, mask))
		fail("a queue pair: %s", strerror(errno));
	return qp;
}

/*
 * Accepts a request; then accepts it again, with the same queue pair or another one, or rejects it.
 * The peer promises a ready-to-receive message and withholds it, so the connection is not up yet.
 */
static void accepted_and(bool rejected, int second)
{
	/* Revision 2, with enhanced data: peer to peer, by a Send or a Write; IRD and ORD are 1. */
	static const char request[] = "MPA ID Req Frame\x50\x02\0\x04\xc0\x01\x80\x01";
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	int port = next_port(), fd;
	struct rdma_cm_id *listener = cm_listening_id(ch, port, 1), *id;
	struct sockaddr_storage addr;
	struct rdma_cm_event *ev;
	struct ibv_qp *qp[2];
	struct ibv_pd *pd;
	struct ibv_cq *cq;

	must(listener);
	addr_with_port(&addr, port);
	fd = socket(addr.ss_family, SOCK_STREAM, 0);
	check(!connect(fd, (void *)&addr, sizeof(addr)) &&
		      send(fd, request, sizeof(request) - 1, 0) == sizeof(request) - 1,
	      "the peer: %s", strerror(errno));
	ev = cm_event(ch, SOON);
	check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "no request");
	id = ev->id;
	rdma_ack_cm_event(ev);
	pd = ibv_alloc_pd(id->verbs);
	cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	check(pd && cq, "preparation: %s", strerror(errno));
	qp[0] = own_qp(id, pd, cq);
	qp[1] = own_qp(id, pd, cq);
	must(!test_failed());
	param.qp_num = qp[0]->qp_num;
	check(!rdma_accept(id, &param), "rdma_accept: %s", strerror(errno));
	param.qp_num = qp[second]->qp_num;
	if (rejected)
		rdma_reject(id, NULL, 0);
	else
		rdma_accept(id, &param);
	close(fd);
	/* Whatever events come. */
	while ((ev = cm_event(ch, 500)))
		rdma_ack_cm_event(ev);
	ibv_destroy_qp(qp[0]);
	ibv_destroy_qp(qp[1]);
	rdma_destroy_id(id);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(ch);
}

static void second_accept_does_no_harm(void) { accepted_and(false, 0); }
static void second_accept_with_other_queue_pair_does_no_harm(void) { accepted_and(false, 1); }
static void reject_after_accept_does_no_harm(void) { accepted_and(true, 0); }

static bool prepare_all(struct attempt *t, uint8_t count, int port)
{
	for (uint8_t i = 0; i < count; i++)
		if (!attempt_prepare(&t[i], port))
			return false;
	return true;
}

/* Starts connections from `first` on, in order, each with its number as private data. */
static bool connect_numbered(struct attempt *t, uint8_t first, uint8_t end)
{
	for (uint8_t i = first; i < end; i++) {
		struct rdma_conn_param param = { .private_data = &i, .private_data_len = 1 };

		if (rdma_connect(t[i].id, &param)) {
			fail("rdma_connect %d: %s", i, strerror(errno));
			return false;
		}
	}
	return true;
}

/*
 * Returns the id of the next request, which must carry this number; NULL (and the case has failed)
 * if not.
 */
static struct rdma_cm_id *request_with(struct rdma_event_channel *ch, uint8_t number)
{
	struct rdma_cm_event *ev = cm_event(ch, SOON);
	struct rdma_cm_id *id;
	uint8_t said;

	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		fail("no request %d", number);
		return NULL;
	}
	id = ev->id;
	said = *(const uint8_t *)ev->param.conn.private_data;
	rdma_ack_cm_event(ev);
	if (said != number) {
		fail("request %d came as number %d", said, number);
		return NULL;
	}
	return id;
}

/* Programs with many queue pairs match the n-th request with the peer's n-th queue pair. */
static void requests_are_reported_in_order(void)
{
	struct rdma_event_channel *lch = rdma_create_event_channel();
	struct rdma_cm_id *lid;
	struct attempt t[24] = { 0 };
	int port = next_port();

	lid = cm_listening_id(lch, port, ARRAY_SIZE(t));
	must(lid);
	must(prepare_all(t, ARRAY_SIZE(t), port));
	must(connect_numbered(t, 0, ARRAY_SIZE(t)));
	for (uint8_t i = 0; i < ARRAY_SIZE(t); i++)
		must(request_with(lch, i));
	rdma_destroy_id(lid);
	rdma_destroy_event_channel(lch);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		attempt_end(&t[i]);
}

#define BACKLOG 6

/*
 * Requests beyond the backlog wait, are not rejected, and come in order. First come as many as the
 * backlog, which are collected and left without an answer, then one more than rdma_ucm keeps. They
 * would arrive even without progress after BACKLOG + 1 times 200 ms (listen.rs: ANSWER_WAIT_MS).
 */
static void requests_beyond_backlog_are_reported_later(void)
{
	struct rdma_event_channel *lch = rdma_create_event_channel();
	struct rdma_cm_id *lid, *child[2 * BACKLOG + 1];
	struct attempt t[ARRAY_SIZE(child)] = { 0 };
	int port = next_port();

	lid = cm_listening_id(lch, port, BACKLOG);
	must(lid);
	must(prepare_all(t, ARRAY_SIZE(t), port));
	must(connect_numbered(t, 0, BACKLOG));
	for (uint8_t i = 0; i < BACKLOG; i++)
		must(child[i] = request_with(lch, i));
	must(connect_numbered(t, BACKLOG, ARRAY_SIZE(t)));
	sleep_ms(100);
	for (uint8_t i = 0; i < ARRAY_SIZE(t); i++) {
		struct rdma_cm_event *ev;

		check(!rdma_reject(child[i], &i, 1), "rdma_reject: %s", strerror(errno));
		rdma_destroy_id(child[i]);
		if (i + BACKLOG < (int)ARRAY_SIZE(t))
			must(child[i + BACKLOG] = request_with(lch, i + BACKLOG));
		ev = cm_event(t[i].ch, SOON);
		check(ev && ev->event == RDMA_CM_EVENT_REJECTED, "refusal %d", i);
		check(ev->param.conn.private_data_len && *(const uint8_t *)ev->param.conn.private_data == i,
		      "refusal %d is not the consumer's", i);
		rdma_ack_cm_event(ev);
	}
	rdma_destroy_id(lid);
	rdma_destroy_event_channel(lch);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		attempt_end(&t[i]);
}

/* Runs a command. */
__attribute__((format(printf, 1, 2))) static bool shell(const char *format, ...)
{
	char command[200];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (system(command))
		fail("%s", command);
	return !test_failed();
}

/*
 * The route to the peer exists when it is resolved, and is gone when TCP needs it: the event says
 * so.
 */
static void connect_without_route_is_reported(void)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	const char *netdev = getenv("NETDEV");
	struct attempt t;
	char peer[64];

	if (test_addr.ss_family != AF_INET || !netdev) {
		test_skip("needs IPv4, and the netdev's name");
		return;
	}
	inet_ntop(AF_INET, &((struct sockaddr_in *)&test_addr)->sin_addr, peer, sizeof(peer));
	strcpy(strrchr(peer, '.'), ".77");
	must(shell("ip neigh replace %s lladdr 02:71:00:00:00:77 dev %s nud permanent", peer, netdev));
	must(attempt_prepare_to(&t, peer, next_port()));
	must(shell("ip route add unreachable %s/32", peer));
	if (rdma_connect(t.id, &param))
		fail("rdma_connect: %s", strerror(errno));
	else if (attempt_result(&t, SOON) &&
		 (t.event != RDMA_CM_EVENT_CONNECT_ERROR || t.status != -EHOSTUNREACH))
		fail("%s (status %d)", rdma_event_str(t.event), t.status);
	shell("ip route del unreachable %s/32", peer);
	shell("ip neigh del %s dev %s", peer, netdev);
	attempt_end(&t);
	world_is_well();
}

/* --- the client's port ------------------------------------------------------------------------ */

static struct rdma_event_channel *requests;

/* Returns the next event of either channel; NULL if none comes in time. */
static struct rdma_cm_event *event_of_either(struct rdma_event_channel *one,
					     struct rdma_event_channel *two, int ms)
{
	struct pollfd ready[] = { { .fd = one->fd, .events = POLLIN },
				  { .fd = two->fd, .events = POLLIN } };

	if (poll(ready, ARRAY_SIZE(ready), ms) <= 0)
		return NULL;
	return cm_event(ready[0].revents ? one : two, 0);
}

/*
 * Asks for a connection, and returns the server's id of it. From a port that it has chosen itself, a
 * program has to wait until its last connection to that server has closed.
 */
static struct rdma_cm_id *request_from(struct attempt *t, int port)
{
	int64_t end = now_ms() + SOON;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id = NULL;

	for (;;) {
		if (!attempt_start(t, port))
			return NULL;
		ev = event_of_either(requests, t->ch, SOON);
		if (!ev || ev->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			break;
		if (ev->status != -EADDRNOTAVAIL || now_ms() > end)
			break;
		rdma_ack_cm_event(ev);
		attempt_end(t);
		sleep_ms(10);
	}
	if (ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		id = ev->id;
	else
		fail("no request from port %d: %s, status %d", source_port,
		     ev ? rdma_event_str(ev->event) : "no event", ev ? ev->status : 0);
	if (ev)
		rdma_ack_cm_event(ev);
	return id;
}

static int port_of_client(struct rdma_cm_id *id) { return ntohs(rdma_get_dst_port(id)); }

/* Another port each time: the server sees the one that the client's id names. */
static void ports_that_rdma_cm_chooses(int port)
{
	for (int i = 0; i < 4; i++) {
		struct attempt t = { 0 };
		struct rdma_cm_id *id = request_from(&t, port);

		must(id);
		check(port_of_client(id) == ntohs(rdma_get_src_port(t.id)),
		      "the id names port %d, the server sees %d", ntohs(rdma_get_src_port(t.id)),
		      port_of_client(id));
		rdma_destroy_id(id);
		attempt_end(&t);
	}
}

/* The same port again and again, whichever end has closed the connection before. */
static void port_that_the_program_chooses(int port)
{
	for (int i = 0; i < 6; i++) {
		struct attempt t = { 0 };
		struct rdma_cm_id *id = request_from(&t, port);

		must(id);
		check(port_of_client(id) == source_port, "bound to port %d, the server sees %d",
		      source_port, port_of_client(id));
		if (i % 2)
			attempt_end(&t);
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		if (!(i % 2)) {
			must(attempt_result(&t, SOON));
			attempt_end(&t);
		}
	}
}

/* One port for connections to two servers, at the same time. */
static void two_servers_from_one_port(int port, int other)
{
	struct attempt t[2] = { 0 };
	struct rdma_cm_id *id[2];

	for (int i = 0; i < 2; i++) {
		id[i] = request_from(&t[i], i ? other : port);
		must(id[i]);
		check(port_of_client(id[i]) == source_port, "connection %d from port %d", i,
		      port_of_client(id[i]));
	}
	for (int i = 0; i < 2; i++) {
		rdma_destroy_id(id[i]);
		attempt_end(&t[i]);
	}
}

/* Runs a case with servers on two ports. */
static void with_servers(void (*body)(int port, int other))
{
	struct rdma_cm_id *ids[2];
	int ports[2] = { next_port(), next_port() };

	requests = rdma_create_event_channel();
	for (int i = 0; i < 2; i++) {
		ids[i] = cm_listening_id(requests, ports[i], 8);
		must(ids[i]);
	}
	body(ports[0], ports[1]);
	source_port = 0;
	for (int i = 0; i < 2; i++)
		rdma_destroy_id(ids[i]);
	rdma_destroy_event_channel(requests);
}

static void source_ports(int port, int other)
{
	ports_that_rdma_cm_chooses(port);
	must(!test_failed());
	source_port = next_port();
	port_that_the_program_chooses(port);
	must(!test_failed());
	two_servers_from_one_port(port, other);
}
static void source_port_is_the_one_bound(void) { with_servers(source_ports); }

/* Listens by TCP on the device's address. */
static int tcp_listener(int port)
{
	struct sockaddr_storage addr;
	int fd;

	addr_with_port(&addr, port);
	fd = socket(addr.ss_family, SOCK_STREAM, 0);
	if (bind(fd, (void *)&addr, sizeof(addr)) || listen(fd, 1))
		fail("TCP port %d: %s", port, strerror(errno));
	return fd;
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file || fputs(text, file) == EOF || fclose(file))
		fail("%s: %s", path, strerror(errno));
}

/*
 * A port that a TCP program has: an error if only the program can have chosen it. rdma_cm may have
 * chosen one of those that TCP chooses itself, so the connection gets another one. One of these that
 * is reserved is the program's.
 */
static void taken_source_ports(int port, int other)
{
	static const char reserved[] = "/proc/sys/net/ipv4/ip_local_reserved_ports";
	struct attempt t = { 0 };
	struct rdma_cm_id *id;
	int fd;

	source_port = next_port();
	fd = tcp_listener(source_port);
	must(attempt_start(&t, port));
	must(attempt_result(&t, SOON));
	check(t.event == RDMA_CM_EVENT_CONNECT_ERROR && t.status == -EADDRINUSE,
	      "port %d: %s, status %d", source_port, rdma_event_str(t.event), t.status);
	attempt_end(&t);
	close(fd);
	source_port = 45678;
	fd = tcp_listener(source_port);
	id = request_from(&t, other);
	must(id);
	check(port_of_client(id) != source_port, "the port of a TCP program");
	rdma_destroy_id(id);
	attempt_end(&t);
	write_text(reserved, "45678");
	id = request_from(&t, other);
	if (id) {
		check(port_of_client(id) != source_port, "the reserved port of a TCP program");
		rdma_destroy_id(id);
	}
	attempt_end(&t);
	close(fd);
	id = request_from(&t, other);
	if (id) {
		check(port_of_client(id) == source_port, "not the reserved port, but %d",
		      port_of_client(id));
		rdma_destroy_id(id);
	}
	attempt_end(&t);
	write_text(reserved, "\n");
}
static void source_port_used_by_tcp_is_refused(void) { with_servers(taken_source_ports); }

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(connect_without_listener_is_refused);
	RUN(connect_without_route_is_reported);
	RUN(silent_peer_times_out);
	RUN(modify_to_error_ends_the_start_up);
	RUN(incomplete_reply_times_out);
	RUN(malformed_reply_fails);
	RUN(close_instead_of_reply_fails);
	RUN(close_inside_reply_fails);
	RUN(request_instead_of_reply_fails);
	RUN(reply_with_too_much_private_data_fails);
	RUN(rejection_by_peer_is_reported);
	RUN(silent_peer_delays_no_other_connect);
	RUN(second_listener_on_one_address_is_refused);
	RUN(listen_on_port_used_by_tcp_is_refused);
	RUN(port_is_free_after_listener_is_destroyed);
	RUN(pending_requests_end_with_their_listener);
	RUN(slow_accept_keeps_the_connection);
	RUN(second_accept_does_no_harm);
	RUN(second_accept_with_other_queue_pair_does_no_harm);
	RUN(reject_after_accept_does_no_harm);
	RUN(requests_are_reported_in_order);
	RUN(requests_beyond_backlog_are_reported_later);
	RUN(source_port_is_the_one_bound);
	RUN(source_port_used_by_tcp_is_refused);
	return test_end();
}

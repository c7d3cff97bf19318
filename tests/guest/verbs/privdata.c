// SPDX-License-Identifier: GPL-2.0
/* Private data of connect, accept and reject, from none to the limit of the interface. */

#include "common.h"

#define LONGEST 255 /* rdma_conn_param.private_data_len has 8 bits */

static uint8_t octets[LONGEST];

static struct rdma_event_channel *lch, *cch;
static struct rdma_cm_id *lid;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static int port;

static bool make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (rdma_create_qp(id, pd, &attr)) {
		fail("rdma_create_qp: %s", strerror(errno));
		return false;
	}
	return true;
}

/* Checks that an event carries the given octets first, and zeros behind them. */
static bool carries(struct rdma_cm_event *ev, size_t len, uint8_t salt, bool exact)
{
	const uint8_t *got = ev->param.conn.private_data;
	size_t n = ev->param.conn.private_data_len;

	if (n < len || (exact && n != len)) {
		fail("%zu octets arrived instead of %zu", n, len);
		return false;
	}
	for (size_t i = 0; i < n; i++)
		if (got[i] != (i < len ? (uint8_t)(octets[i] ^ salt) : 0)) {
			fail("octet %zu of %zu is %#x", i, n, got[i]);
			return false;
		}
	return true;
}

static void salted(uint8_t *out, uint8_t salt)
{
	for (size_t i = 0; i < LONGEST; i++)
		out[i] = octets[i] ^ salt;
}

enum answer { ACCEPT, REJECT };

/* Makes one connection with `ask` octets in the request and `reply` octets in the answer. */
static void round_trip(size_t ask, size_t reply, enum answer answer)
{
	uint8_t data[LONGEST];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = (uint8_t)ask,
					 .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_cm_id *id, *child = NULL;
	struct rdma_cm_event *ev;

	salted(data, 0x10);
	id = cm_resolved_id(cch, port);
	if (!id)
		return;
	if (!make_qp(id))
		goto out;
	if (rdma_connect(id, &param)) {
		fail("rdma_connect with %zu: %s", ask, strerror(errno));
		goto out;
	}
	ev = cm_event(lch, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		fail("no request with %zu octets", ask);
		goto out;
	}
	child = ev->id;
	if (!carries(ev, ask, 0x10, true)) {
		rdma_ack_cm_event(ev);
		goto out;
	}
	rdma_ack_cm_event(ev);
	salted(data, 0x77);
	if (answer == REJECT) {
		if (rdma_reject(child, data, (uint8_t)reply)) {
			fail("rdma_reject with %zu: %s", reply, strerror(errno));
			goto out;
		}
		ev = cm_event(cch, SOON);
		if (!ev || ev->event != RDMA_CM_EVENT_REJECTED)
			fail("%s instead of a rejection", ev ? rdma_event_str(ev->event) : "nothing");
		else if (ev->status != -ECONNREFUSED && ev->status != ECONNREFUSED)
			fail("rejected with status %d", ev->status);
		else
			carries(ev, reply, 0x77, true);
		if (ev)
			rdma_ack_cm_event(ev);
		goto out;
	}
	param.private_data_len = (uint8_t)reply;
	if (!make_qp(child))
		goto out;
	if (rdma_accept(child, &param)) {
		fail("rdma_accept with %zu: %s", reply, strerror(errno));
		goto out;
	}
	ev = cm_event(cch, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_ESTABLISHED)
		fail("%s (%d) instead of a connection", ev ? rdma_event_str(ev->event) : "nothing",
		     ev ? ev->status : 0);
	else
		carries(ev, reply, 0x77, true);
	if (ev)
		rdma_ack_cm_event(ev);
	ev = cm_event(lch, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_ESTABLISHED)
		fail("the acceptor was not told");
	if (ev)
		rdma_ack_cm_event(ev);
out:
	if (child) {
		if (child->qp)
			rdma_destroy_qp(child);
		rdma_destroy_id(child);
	}
	if (id->qp)
		rdma_destroy_qp(id);
	rdma_destroy_id(id);
	while ((ev = cm_event(lch, 0)))
		rdma_ack_cm_event(ev);
	while ((ev = cm_event(cch, 0)))
		rdma_ack_cm_event(ev);
}

static const size_t lens[] = { 0, 1, 2, 3, 4, 5, 56, 127, 128, 192, 196, 200, 248, 251, 252, 253,
			       254, 255 };

static void private_data_of_connect(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(lens) && !test_failed(); i++)
		round_trip(lens[i], 0, ACCEPT);
}

static void private_data_of_accept(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(lens) && !test_failed(); i++)
		round_trip(7, lens[i], ACCEPT);
}

static void private_data_of_reject(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(lens) && !test_failed(); i++)
		round_trip(lens[i], lens[i], REJECT);
}

int main(int argc, char **argv)
{
	struct sockaddr_storage addr;
	struct ibv_context *ctx;

	test_begin(argc, argv);
	for (size_t i = 0; i < LONGEST; i++)
		octets[i] = (uint8_t)(i * 37 + 5);
	ctx = test_context();
	port = next_port();
	addr_with_port(&addr, port);
	lch = rdma_create_event_channel();
	cch = rdma_create_event_channel();
	if (!ctx || !lch || !cch || !(pd = ibv_alloc_pd(ctx)) ||
	    !(cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)) ||
	    rdma_create_id(lch, &lid, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(lid, (struct sockaddr *)&addr) || rdma_listen(lid, 8))
		return test_cannot_start();
	RUN(private_data_of_connect);
	RUN(private_data_of_accept);
	RUN(private_data_of_reject);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/* The attributes of a device, its port and its queue pairs must be consistent. */

#include "common.h"

static struct ibv_context *ctx;

#define QUERY                                                                                      \
	(IBV_QP_STATE | IBV_QP_CAP | IBV_QP_ACCESS_FLAGS | IBV_QP_MAX_QP_RD_ATOMIC |               \
	 IBV_QP_MAX_DEST_RD_ATOMIC)

static void device(void)
{
	struct ibv_device_attr a;

	check(!ibv_query_device(ctx, &a), "ibv_query_device: %s", strerror(errno));
	check(ctx->device->node_type == IBV_NODE_RNIC, "node type %d", ctx->device->node_type);
	check(ctx->device->transport_type == IBV_TRANSPORT_IWARP, "transport %d",
	      ctx->device->transport_type);
	check(a.phys_port_cnt == 1, "%u ports", a.phys_port_cnt);
	check(a.node_guid, "no node GUID");
	check(a.sys_image_guid, "no system image GUID");
	check(a.max_qp > 0 && a.max_cq > 0 && a.max_mr > 0 && a.max_pd > 0 && a.max_srq > 0,
	      "a count of objects is zero");
	check(a.max_qp_wr >= 1024 && a.max_cqe >= 2 * a.max_qp_wr && a.max_srq_wr >= 1024,
	      "max_qp_wr %d, max_cqe %d, max_srq_wr %d", a.max_qp_wr, a.max_cqe, a.max_srq_wr);
	check(a.max_sge >= 2 && a.max_srq_sge >= 1 && a.max_sge_rd >= 1 &&
		      a.max_sge_rd <= a.max_sge,
	      "max_sge %d, max_sge_rd %d, max_srq_sge %d", a.max_sge, a.max_sge_rd,
	      a.max_srq_sge);
	check(a.max_mr_size >= 1ULL << 32, "max_mr_size %llu", (unsigned long long)a.max_mr_size);
	check(a.page_size_cap & 4096, "page_size_cap %#llx", (unsigned long long)a.page_size_cap);
	check(a.max_qp_rd_atom > 0 && a.max_qp_rd_atom <= 255 && a.max_qp_init_rd_atom > 0 &&
		      a.max_qp_init_rd_atom <= 255,
	      "IRD %d, ORD %d", a.max_qp_rd_atom, a.max_qp_init_rd_atom);
	check(a.max_res_rd_atom >= a.max_qp_rd_atom, "max_res_rd_atom %d", a.max_res_rd_atom);
	check(a.atomic_cap == (has_extensions() ? IBV_ATOMIC_GLOB : IBV_ATOMIC_NONE),
	      "atomic_cap %d", a.atomic_cap);
	check(has_extensions() ? a.max_mw > 0 : a.max_mw == 0, "max_mw %d", a.max_mw);
	check(!(a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) == !a.max_mw,
	      "%#x with max_mw %d", a.device_cap_flags, a.max_mw);
}

static void port(void)
{
	struct ibv_port_attr a;

	check(!ibv_query_port(ctx, 1, &a), "ibv_query_port: %s", strerror(errno));
	check(a.state == IBV_PORT_ACTIVE, "state %s", ibv_port_state_str(a.state));
	check(a.phys_state == 5, "physical state %d", a.phys_state);
	check(a.link_layer == IBV_LINK_LAYER_ETHERNET, "link layer %d", a.link_layer);
	check(a.active_mtu >= IBV_MTU_256 && a.active_mtu <= IBV_MTU_4096 &&
		      a.active_mtu <= a.max_mtu,
	      "MTU %d of %d", a.active_mtu, a.max_mtu);
	check(a.max_msg_sz >= 1u << 30, "max_msg_sz %u", a.max_msg_sz);
	check(a.gid_tbl_len >= 1, "gid_tbl_len %d", a.gid_tbl_len);
	check(a.active_speed && a.active_width, "speed %d, width %d", a.active_speed,
	      a.active_width);
	check(ibv_query_port(ctx, 2, &a), "there is a second port");
	check(ibv_query_port(ctx, 0, &a), "there is a port 0");
}

static void gid(void)
{
	struct ibv_port_attr a;
	union ibv_gid gid;

	check(!ibv_query_port(ctx, 1, &a), "ibv_query_port: %s", strerror(errno));
	check(!ibv_query_gid(ctx, 1, 0, &gid), "ibv_query_gid: %s", strerror(errno));
	check(gid.global.subnet_prefix || gid.global.interface_id, "GID 0 is all zero");
	check(ibv_query_gid(ctx, 1, a.gid_tbl_len, &gid), "a GID behind the table");
}

PAIR_CASE(a_connected_queue_pair, .sq_depth = 33, .rq_depth = 47, .depth = 5)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct end *ends[2] = { &p->a, &p->b };

	for (int i = 0; i < 2; i++) {
		struct end *e = ends[i];

		check(!ibv_query_qp(e->qp, &attr, QUERY, &init), "ibv_query_qp: %s", strerror(errno));
		check(attr.qp_state == IBV_QPS_RTS, "state %d", attr.qp_state);
		check(init.cap.max_send_wr >= 33 && init.cap.max_recv_wr >= 47 &&
			      init.cap.max_send_sge >= 4 && init.cap.max_recv_sge >= 4,
		      "%u, %u requests, %u, %u elements", init.cap.max_send_wr,
		      init.cap.max_recv_wr, init.cap.max_send_sge, init.cap.max_recv_sge);
		check(init.qp_type == IBV_QPT_RC, "type %d", init.qp_type);
		check(attr.max_rd_atomic >= 5 && attr.max_dest_rd_atomic >= 5, "ORD %d, IRD %d",
		      attr.max_rd_atomic, attr.max_dest_rd_atomic);
		check(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE, "access flags %#x",
		      attr.qp_access_flags);
		check(e->qp->qp_num, "QP number 0");
	}
	check(p->a.qp->qp_num != p->b.qp->qp_num, "the same QP number twice");
}

/* A refused attribute changes neither itself nor what else the call names. */
PAIR_CASE(unsupported_attributes_are_refused)
{
	static const struct {
		int mask, error;
	} tries[] = {
		{ IBV_QP_CAP, EOPNOTSUPP },
		{ IBV_QP_PATH_MIG_STATE, EOPNOTSUPP },
		/* The RDMA core answers first. */
		{ IBV_QP_ALT_PATH, EINVAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		for (int and = 0; and <= IBV_QP_ACCESS_FLAGS; and += IBV_QP_ACCESS_FLAGS) {
			struct ibv_qp_attr before = { 0 }, after = { 0 }, attr;
			struct ibv_qp_init_attr init;
			int rc;

			check(!ibv_query_qp(p->a.qp, &before, QUERY, &init), "ibv_query_qp");
			attr = before;
			attr.qp_access_flags = 0;
			attr.cap.max_send_wr *= 2;
			attr.cap.max_recv_wr *= 2;
			attr.path_mig_state = IBV_MIG_ARMED;
			attr.alt_port_num = attr.alt_ah_attr.port_num = 1;
			rc = ibv_modify_qp(p->a.qp, &attr, tries[i].mask | and);
			check(rc == tries[i].error, "mask %#x: %s", tries[i].mask | and,
			      strerror(rc));
			check(!ibv_query_qp(p->a.qp, &after, QUERY, &init), "ibv_query_qp");
			check(!memcmp(&before, &after, sizeof(after)), "mask %#x: changed",
			      tries[i].mask | and);
		}
	}
	must(exchange_works(p));
}

PAIR_CASE(modify_checks_current_state)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR, .cur_qp_state = IBV_QPS_SQE };
	int mask = IBV_QP_STATE | IBV_QP_CUR_STATE;
	int rc = ibv_modify_qp(p->a.qp, &attr, mask);

	check(rc == EINVAL, "of another state: %s", strerror(rc));
	must(exchange_works(p));
	attr.cur_qp_state = IBV_QPS_RTS;
	rc = ibv_modify_qp(p->a.qp, &attr, mask);
	check(!rc, "of its own: %s", strerror(rc));
}

/* Waits for the event of a connection, which promises no more than the queue pair takes. */
static bool established_with(struct rdma_event_channel *ch, int ord, int ird)
{
	struct rdma_cm_event *ev = cm_event(ch, SOON);
	struct rdma_conn_param *conn;

	if (!ev || ev->event != RDMA_CM_EVENT_ESTABLISHED) {
		fail("not established");
		return false;
	}
	conn = &ev->param.conn;
	if (conn->initiator_depth != ord || conn->responder_resources != ird)
		fail("established with ORD %d and IRD %d, told as %d and %d", ord, ird,
		     conn->initiator_depth, conn->responder_resources);
	rdma_ack_cm_event(ev);
	return !test_failed();
}

/* The peer's IRD limits the ORD, and its ORD the IRD. */
static void depths(int a_ord, int a_ird, int b_ord, int b_ird)
{
	struct rdma_event_channel *lch = rdma_create_event_channel();
	struct rdma_event_channel *cch = rdma_create_event_channel();
	struct rdma_conn_param param = { .initiator_depth = a_ord, .responder_resources = a_ird };
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *lid, *cid, *sid;
	struct rdma_cm_event *ev;
	struct sockaddr_storage addr;
	struct ibv_qp_attr attr;
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	int p = next_port(), a_reads, b_reads;

	init.send_cq = init.recv_cq = cq;
	addr_with_port(&addr, p);
	check(lch && cch && pd && cq && !rdma_create_id(lch, &lid, NULL, RDMA_PS_TCP) &&
		      !rdma_bind_addr(lid, (void *)&addr) && !rdma_listen(lid, 4),
	      "listening: %s", strerror(errno));
	cid = cm_resolved_id(cch, p);
	check(cid && !rdma_create_qp(cid, pd, &init) && !rdma_connect(cid, &param),
	      "connecting: %s", strerror(errno));
	ev = cm_event(lch, SOON);
	check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "no request");
	/* The event reports what the peer requests of this side. */
	check(ev->param.conn.responder_resources == a_ord && ev->param.conn.initiator_depth == a_ird,
	      "request with ORD %d and IRD %d told as %d and %d", a_ord, a_ird,
	      ev->param.conn.responder_resources, ev->param.conn.initiator_depth);
	sid = ev->id;
	rdma_ack_cm_event(ev);
	param.initiator_depth = b_ord;
	param.responder_resources = b_ird;
	check(!rdma_create_qp(sid, pd, &init) && !rdma_accept(sid, &param), "accepting: %s",
	      strerror(errno));
	a_reads = a_ord < b_ird ? a_ord : b_ird;
	b_reads = b_ord < a_ird ? b_ord : a_ird;
	must(established_with(cch, a_reads, b_reads));
	/* The message with which the initiator starts the stream might be a Read. */
	must(established_with(lch, b_reads, a_reads ? a_reads : 1));
	check(!ibv_query_qp(cid->qp, &attr, QUERY, &init), "ibv_query_qp");
	check(attr.max_rd_atomic <= b_ird, "the initiator's ORD is %d, the responder's IRD %d",
	      attr.max_rd_atomic, b_ird);
	check(!ibv_query_qp(sid->qp, &attr, QUERY, &init), "ibv_query_qp");
	check(attr.max_rd_atomic <= a_ird, "the responder's ORD is %d, the initiator's IRD %d",
	      attr.max_rd_atomic, a_ird);
	rdma_destroy_qp(cid);
	rdma_destroy_id(cid);
	rdma_destroy_qp(sid);
	rdma_destroy_id(sid);
	rdma_destroy_id(lid);
	rdma_destroy_event_channel(lch);
	rdma_destroy_event_channel(cch);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

static void depths_are_negotiated(void)
{
	static const int table[][4] = { { 1, 1, 1, 1 },	  { 8, 4, 16, 2 }, { 2, 16, 3, 16 },
					{ 16, 3, 3, 16 }, { 5, 7, 7, 5 },  { 0, 16, 16, 16 },
					{ 16, 0, 16, 16 }, { 0, 0, 0, 0 } };

	for (size_t i = 0; i < ARRAY_SIZE(table) && !test_failed(); i++)
		depths(table[i][0], table[i][1], table[i][2], table[i][3]);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	RUN(device);
	RUN(port);
	RUN(gid);
	RUN(a_connected_queue_pair);
	RUN(unsupported_attributes_are_refused);
	RUN(modify_checks_current_state);
	RUN(depths_are_negotiated);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * What Mooncake's transfer engine does (mooncake-transfer-engine/src/transport/rdma_transport),
 * step by step; both ends are in this process.
 *
 * It takes any device whose port is active, chooses a GID by ibv_query_gid_ex, and moves all queue
 * pairs of an endpoint through RESET, INIT, RTR and RTS by ibv_modify_qp, with PSN 0 and depth 16.
 * Then it posts lists of Writes and Reads, each with a completion, over all of them, and polls. An
 * endpoint that fails is moved to ERR, drained, and connected anew.
 */

#include <netinet/in.h>

#include "common.h"

#define QPS 2
#define DEPTH 256
#define SLICE 65536
#define SLICES 64

struct endpoint {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qps[QPS];
	struct region memory;
};

static struct ibv_context *ctx;
static struct ibv_port_attr port;
static struct ibv_gid_entry gid;

/* selectBestAutoGidCandidate: RoCE v2 or InfiniBand's type, no null GID; IPv4 first. */
static bool has_device(void)
{
	bool found = false;

	if (ibv_query_port(ctx, 1, &port) || port.state != IBV_PORT_ACTIVE) {
		fail("port: state %d", port.state);
		return false;
	}
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;
		const struct in6_addr *addr = (const struct in6_addr *)entry.gid.raw;

		if (ibv_query_gid_ex(ctx, 1, i, &entry, 0))
			continue;
		if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 && entry.gid_type != IBV_GID_TYPE_IB)
			continue;
		if (!found || IN6_IS_ADDR_V4MAPPED(addr))
			gid = entry;
		found = true;
		if (IN6_IS_ADDR_V4MAPPED(addr))
			break;
	}
	if (!found)
		fail("no GID of a type that it takes");
	return found;
}

static bool endpoint_open(struct endpoint *e, size_t len)
{
	memset(e, 0, sizeof(*e));
	e->pd = ibv_alloc_pd(ctx);
	e->channel = ibv_create_comp_channel(ctx);
	e->cq = ibv_create_cq(ctx, 4096, e, e->channel, 0);
	if (!e->pd || !e->cq) {
		fail("PD or CQ: %m");
		return false;
	}
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = e->cq,
			.recv_cq = e->cq,
			.qp_type = IBV_QPT_RC,
			.qp_context = e,
			.cap = { DEPTH, DEPTH, 4, 4, 64 },
		};

		e->qps[i] = ibv_create_qp(e->pd, &init);
		if (!e->qps[i]) {
			fail("ibv_create_qp: %m");
			return false;
		}
	}
	return region_make(&e->memory, e->pd, len, ALL_RIGHTS | IBV_ACCESS_RELAXED_ORDERING);
}

static void endpoint_close(struct endpoint *e)
{
	for (int i = 0; i < QPS; i++)
		if (e->qps[i])
			ibv_destroy_qp(e->qps[i]);
	if (e->memory.mr)
		region_free(&e->memory);
	if (e->cq)
		ibv_destroy_cq(e->cq);
	if (e->channel)
		ibv_destroy_comp_channel(e->channel);
	if (e->pd)
		ibv_dealloc_pd(e->pd);
}

/* doSetupConnection */
static bool endpoint_connect(struct endpoint *e, const struct endpoint *peer)
{
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

		if (ibv_modify_qp(e->qps[i], &attr, IBV_QP_STATE)) {
			fail("RESET: %m");
			return false;
		}
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_INIT,
			.port_num = 1,
			.qp_access_flags = ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC,
		};
		if (ibv_modify_qp(e->qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				  IBV_QP_ACCESS_FLAGS)) {
			fail("INIT: %m");
			return false;
		}
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTR,
			.path_mtu = port.active_mtu < IBV_MTU_4096 ? port.active_mtu : IBV_MTU_4096,
			.dest_qp_num = peer->qps[i]->qp_num,
			.max_dest_rd_atomic = 16,
			.min_rnr_timer = 12,
			.ah_attr = {
				.is_global = 1,
				.dlid = port.lid,
				.grh = { .dgid = gid.gid, .sgid_index = gid.gid_index, .hop_limit = 16 },
				.port_num = 1,
			},
		};
		if (ibv_modify_qp(e->qps[i], &attr, IBV_QP_STATE | IBV_QP_PATH_MTU |
				  IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_MAX_DEST_RD_ATOMIC |
				  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)) {
			fail("RTR: %m");
			return false;
		}
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTS,
			.timeout = slow > 1 ? 16 : 14,
			.retry_cnt = 7,
			.rnr_retry = 7,
			.max_rd_atomic = 16,
		};
		if (ibv_modify_qp(e->qps[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				  IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) {
			fail("RTS: %m");
			return false;
		}
	}
	return true;
}

/* submitPostSend: all slices in one list for each queue pair; then one completion of each. */
static bool transfer(struct endpoint *e, const struct endpoint *peer, enum ibv_wr_opcode op)
{
	static struct ibv_send_wr wrs[SLICES];
	static struct ibv_sge sges[SLICES];
	bool seen[SLICES] = { false };
	int each = SLICES / QPS;

	for (int i = 0; i < SLICES; i++) {
		size_t off = (size_t)i * SLICE;

		sges[i] = sge_of(&e->memory, off, SLICE);
		wrs[i] = wr_rdma(op, i, IBV_SEND_SIGNALED, &sges[i], 1, (uintptr_t)peer->memory.buf + off,
				 peer->memory.mr->rkey);
		wrs[i].next = (i + 1) % each ? &wrs[i + 1] : NULL;
	}
	for (int q = 0; q < QPS; q++) {
		struct ibv_send_wr *bad;
		int rc = ibv_post_send(e->qps[q], &wrs[q * each], &bad);

		if (rc) {
			fail("ibv_post_send: %s", strerror(rc));
			return false;
		}
	}
	for (int i = 0; i < SLICES; i++) {
		struct ibv_wc wc;

		if (!poll_wc(e->cq, &wc, SOON) || wc.status || wc.wr_id >= SLICES || seen[wc.wr_id]) {
			fail("slice %d of %d: id %d, status %d", i, SLICES, (int)wc.wr_id, wc.status);
			return false;
		}
		seen[wc.wr_id] = true;
	}
	return true;
}

static bool both_ways(struct endpoint *a, struct endpoint *b, uint32_t seed)
{
	pattern_fill(a->memory.buf, a->memory.len, seed);
	memset(b->memory.buf, 0, b->memory.len);
	if (!transfer(a, b, IBV_WR_RDMA_WRITE))
		return false;
	/* A Write completes when TCP has it; a Read of the same queue pair comes behind it. */
	memset(a->memory.buf, 0, a->memory.len);
	if (!transfer(a, b, IBV_WR_RDMA_READ))
		return false;
	if (pattern_differs(b->memory.buf, b->memory.len, seed) >= 0) {
		fail("not what was written");
		return false;
	}
	if (pattern_differs(a->memory.buf, a->memory.len, seed) >= 0) {
		fail("not what was read");
		return false;
	}
	return true;
}

static bool endpoints_open(struct endpoint *a, struct endpoint *b)
{
	size_t len = (size_t)SLICES * SLICE;

	memset(b, 0, sizeof(*b));
	return has_device() && endpoint_open(a, len) && endpoint_open(b, len) &&
	       endpoint_connect(b, a) && endpoint_connect(a, b);
}

static void transfer_slices_are_written_and_read(void)
{
	struct endpoint a = { 0 }, b = { 0 };

	if (endpoints_open(&a, &b))
		for (int i = 0; i < 10 && both_ways(&a, &b, i); i++)
			;
	endpoint_close(&a);
	endpoint_close(&b);
}

/* The engine resets an endpoint that failed, and connects it to the same peer again. */
static void failed_endpoint_reconnects_after_reset(void)
{
	struct endpoint a = { 0 }, b = { 0 };
	bool good = endpoints_open(&a, &b) && both_ways(&a, &b, 1);

	for (int round = 0; good && round < 10; round++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		for (int i = 0; i < QPS; i++)
			if (ibv_modify_qp(a.qps[i], &attr, IBV_QP_STATE))
				fail("ERR: %m");
		good = endpoint_connect(&a, &b) && endpoint_connect(&b, &a) && both_ways(&a, &b, round);
	}
	endpoint_close(&a);
	endpoint_close(&b);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	RUN(transfer_slices_are_written_and_read);
	RUN(failed_endpoint_reconnects_after_reset);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * What NCCL's transport for verbs does (src/transport/net_ib of NCCL 2.30), step by step, without a
 * graphics card; both ends are in this process.
 *
 * The ends agree on queue pairs over a channel of their own and move them to INIT, RTR and RTS by
 * ibv_modify_qp, all PSNs 0. The receiver posts a receive without memory, and says by a Write into
 * the sender's FIFO (inline or not, mostly without a completion) where it wants the data. The
 * sender watches its FIFO, writes the data, and ends each request with a Write with Immediate. A
 * message may be split over several queue pairs; several messages may be one request, whose sizes
 * are then written too.
 */

#include <endian.h>
#include <fcntl.h>
#include <netinet/in.h>

#include "common.h"

#define MAX_RECVS 8
#define MAX_REQUESTS 256
#define MAX_QPS 4
#define SPLIT_ALIGN 128
#define MESSAGE (1 << 20)

/* ncclIbSendFifo, for one device */
struct fifo {
	uint64_t addr, size;
	uint32_t rkeys[4], nreqs, tag;
	uint64_t idx;
};

/* One end of a connection (ncclIbSendComm or ncclIbRecvComm). */
struct comm {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qps[MAX_QPS];
	int nqps;
	uint64_t head;
	struct region fifo, sizes, data;
	int fifo_flags;
};

struct conn {
	struct comm send, recv;
	/* The sender writes data and then an empty Write with Immediate (adaptive routing). */
	bool apart;
};

static struct ibv_context *ctx;
static struct ibv_port_attr port;
static int gid_index;
static union ibv_gid gid;

static struct fifo *fifo_slot(const struct comm *c, int slot)
{
	return (struct fifo *)c->fifo.buf + slot * MAX_RECVS;
}

static int *sizes_slot(const struct comm *c, int slot)
{
	return (int *)c->sizes.buf + slot * MAX_RECVS;
}

static bool is_ipv4(const union ibv_gid *g)
{
	const uint32_t *word = (const uint32_t *)g->raw;

	return !word[0] && !word[1] && word[2] == htonl(0xffff);
}

/* ncclIbRoceGetVersionNum: a GID without a type is passed over, no other error is allowed. */
static bool gid_type_is_readable(int index)
{
	char path[256], text[16] = "";
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
		 ibv_get_device_name(ctx->device), index);
	fd = open(path, O_RDONLY);
	if (fd < 0) {
		fail("%s: %m", path);
		return false;
	}
	n = read(fd, text, 15);
	if (n < 0 && errno != EINVAL) {
		fail("%s: %m", path);
		close(fd);
		return false;
	}
	close(fd);
	return true;
}

static bool has_device(void)
{
	struct ibv_device_attr attr;

	if (ibv_query_device(ctx, &attr) || ibv_query_port(ctx, 1, &port)) {
		fail("query: %m");
		return false;
	}
	if (port.state != IBV_PORT_ACTIVE || port.link_layer != IBV_LINK_LAYER_ETHERNET) {
		fail("state %d, link layer %d", port.state, port.link_layer);
		return false;
	}
	/* ncclIbGetGidIndex: the first of IPv4. */
	for (gid_index = 0; gid_index < port.gid_tbl_len; gid_index++) {
		if (ibv_query_gid(ctx, 1, gid_index, &gid)) {
			fail("ibv_query_gid %d: %m", gid_index);
			return false;
		}
		if (is_ipv4(&gid))
			return gid_type_is_readable(gid_index);
	}
	fail("no GID for IPv4");
	return false;
}

/* A region with the access flags of NCCL; with relaxed ordering it is ibv_reg_mr_iova2's. */
static bool reg(struct region *r, struct ibv_pd *pd, size_t len)
{
	int access = ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC;

	r->len = len;
	r->buf = aligned_alloc(4096, (len + 4095) & ~4095ul);
	memset(r->buf, 0, len);
	r->mr = ibv_reg_mr_iova2(pd, r->buf, len, (uintptr_t)r->buf, access | IBV_ACCESS_RELAXED_ORDERING);
	if (!r->mr) {
		fail("ibv_reg_mr_iova2: %m");
		return false;
	}
	return true;
}

static void unreg(struct region *r)
{
	if (r->mr)
		ibv_dereg_mr(r->mr);
	free(r->buf);
}

static bool comm_open(struct comm *c, int nqps, int max_send, int max_recv, int inline_data, int access)
{
	c->nqps = nqps;
	c->pd = ibv_alloc_pd(ctx);
	c->cq = c->pd ? ibv_create_cq(ctx, 2 * MAX_REQUESTS * nqps, NULL, NULL, 0) : NULL;
	if (!c->cq) {
		fail("PD or CQ: %m");
		return false;
	}
	for (int i = 0; i < nqps; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = c->cq,
			.recv_cq = c->cq,
			.qp_type = IBV_QPT_RC,
			.cap = { max_send, max_recv, 1, 1, inline_data },
		};
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };

		c->qps[i] = ibv_create_qp(c->pd, &init);
		if (!c->qps[i] || ibv_modify_qp(c->qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) {
			fail("queue pair: %m");
			return false;
		}
	}
	return reg(&c->fifo, c->pd, MAX_REQUESTS * MAX_RECVS * sizeof(struct fifo)) &&
	       reg(&c->sizes, c->pd, MAX_REQUESTS * MAX_RECVS * sizeof(int)) &&
	       reg(&c->data, c->pd, (size_t)MAX_RECVS * MESSAGE);
}

static void comm_close(struct comm *c)
{
	for (int i = 0; i < c->nqps; i++)
		if (c->qps[i])
			ibv_destroy_qp(c->qps[i]);
	unreg(&c->fifo);
	unreg(&c->sizes);
	unreg(&c->data);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->pd)
		ibv_dealloc_pd(c->pd);
}

/* ncclIbQpRtr and ncclIbQpRts */
static bool comm_connect(struct comm *c, const struct comm *peer)
{
	for (int i = 0; i < c->nqps; i++) {
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = port.active_mtu,
			.dest_qp_num = peer->qps[i]->qp_num,
			.max_dest_rd_atomic = 1,
			.min_rnr_timer = 12,
			.ah_attr = {
				.is_global = 1,
				.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 255 },
				.port_num = 1,
			},
		};

		if (ibv_modify_qp(c->qps[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				  IBV_QP_MIN_RNR_TIMER)) {
			fail("RTR: %m");
			return false;
		}
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTS,
			.timeout = slow > 1 ? 22 : 20,
			.retry_cnt = 7,
			.rnr_retry = 7,
			.max_rd_atomic = 1,
		};
		if (ibv_modify_qp(c->qps[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
				  IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)) {
			fail("RTS: %m");
			return false;
		}
	}
	return true;
}

static bool conn_open(struct conn *n, int nqps, bool inline_fifo)
{
	int inline_data = inline_fifo ? sizeof(struct fifo) : 0;

	memset(n, 0, sizeof(*n));
	if (!has_device() ||
	    !comm_open(&n->send, nqps, 2 * MAX_REQUESTS, 0, inline_data, IBV_ACCESS_REMOTE_WRITE) ||
	    !comm_open(&n->recv, nqps, MAX_REQUESTS, MAX_REQUESTS, inline_data,
		       IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ))
		return false;
	n->recv.fifo_flags = inline_fifo ? IBV_SEND_INLINE : 0;
	return comm_connect(&n->recv, &n->send) && comm_connect(&n->send, &n->recv);
}

static void conn_close(struct conn *n)
{
	comm_close(&n->send);
	comm_close(&n->recv);
}

/* ncclIbIrecv: receives without memory, then the request into the sender's FIFO. */
static bool irecv(struct conn *n, int nreqs, const size_t *sizes)
{
	struct comm *c = &n->recv;
	int slot = c->head % MAX_REQUESTS;
	struct fifo *elem = fifo_slot(c, slot);
	struct ibv_sge sge = { (uintptr_t)elem, nreqs * sizeof(struct fifo), c->fifo.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = nreqs == 1 ? c->fifo_flags : 0,
		.wr.rdma = { (uintptr_t)fifo_slot(&n->send, slot), n->send.fifo.mr->rkey },
	}, *bad;

	for (int i = 0; i < c->nqps; i++) {
		struct ibv_recv_wr recv = { .wr_id = slot }, *bad_recv;
		int rc = ibv_post_recv(c->qps[i], &recv, &bad_recv);

		if (rc) {
			fail("ibv_post_recv: %s", strerror(rc));
			return false;
		}
	}
	memset(sizes_slot(c, slot), 0, MAX_RECVS * sizeof(int));
	for (int r = 0; r < nreqs; r++)
		elem[r] = (struct fifo){
			.addr = (uintptr_t)c->data.buf + (size_t)r * MESSAGE,
			.size = sizes[r],
			.rkeys = { c->data.mr->rkey },
			.nreqs = nreqs,
			.tag = r,
			.idx = c->head + 1,
		};
	if (slot == 0)
		wr.send_flags |= IBV_SEND_SIGNALED;
	wr.wr_id = 1000 + slot;
	if (ibv_post_send(c->qps[c->head % c->nqps], &wr, &bad)) {
		fail("request: %m");
		return false;
	}
	c->head++;
	return true;
}

/* ncclIbIsend: waits for the request, then ncclIbMultiSend. */
static bool isend(struct conn *n, int nreqs, const size_t *sizes)
{
	struct comm *c = &n->send;
	int slot = c->head % MAX_REQUESTS;
	volatile struct fifo *elem = fifo_slot(c, slot);
	struct ibv_send_wr wrs[MAX_RECVS + 1], *last, *bad;
	struct ibv_sge sges[MAX_RECVS + 1];
	size_t sent[MAX_RECVS] = { 0 };

	for (int64_t end = now_ms() + SOON; elem[nreqs - 1].idx != c->head + 1;)
		if (now_ms() > end) {
			fail("request %d does not come", slot);
			return false;
		}
	for (int r = 0; r < nreqs; r++)
		sizes_slot(c, slot)[r] = sizes[r];
	for (int q = 0; q < c->nqps; q++) {
		memset(wrs, 0, sizeof(wrs));
		for (int r = 0; r < nreqs; r++) {
			size_t part = (sizes[r] + c->nqps - 1) / c->nqps;

			part = (part + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN;
			if (part > sizes[r] - sent[r])
				part = sizes[r] - sent[r];
			sges[r] = (struct ibv_sge){ (uintptr_t)c->data.buf + (size_t)r * MESSAGE + sent[r], part,
						    c->data.mr->lkey };
			wrs[r] = (struct ibv_send_wr){
				.wr_id = slot,
				.next = &wrs[r + 1],
				.sg_list = &sges[r],
				.num_sge = part > 0,
				.opcode = IBV_WR_RDMA_WRITE,
				.wr.rdma = { elem[r].addr + sent[r], elem[r].rkeys[0] },
			};
			sent[r] += part;
		}
		last = &wrs[nreqs - 1];
		if (nreqs > 1 || n->apart)
			last++;
		if (nreqs > 1) {
			sges[nreqs] = (struct ibv_sge){ (uintptr_t)sizes_slot(c, slot), nreqs * sizeof(int),
							c->sizes.mr->lkey };
			last->sg_list = &sges[nreqs];
			last->num_sge = 1;
			last->wr.rdma.remote_addr = (uintptr_t)sizes_slot(&n->recv, slot);
			last->wr.rdma.rkey = n->recv.sizes.mr->rkey;
		}
		last->wr_id = slot;
		last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		last->imm_data = htobe32(sizes[0]);
		last->next = NULL;
		last->send_flags = IBV_SEND_SIGNALED;
		if (ibv_post_send(c->qps[q], wrs, &bad)) {
			fail("ibv_post_send: %m");
			return false;
		}
	}
	c->head++;
	return true;
}

/* ncclIbTest of both ends: one completion for each queue pair of a request, in any order. */
static bool complete(struct conn *n, int slots_from, int count)
{
	int sends[MAX_REQUESTS] = { 0 }, recvs[MAX_REQUESTS] = { 0 };
	struct ibv_wc wc;

	for (int left = count * n->send.nqps; left; left--) {
		if (!poll_wc(n->send.cq, &wc, SOON) || wc.status || wc.opcode != IBV_WC_RDMA_WRITE) {
			fail("send: status %d, opcode %d, %d left", wc.status, wc.opcode, left);
			return false;
		}
		sends[wc.wr_id % MAX_REQUESTS]++;
	}
	for (int left = count * n->recv.nqps; left;) {
		if (!poll_wc(n->recv.cq, &wc, SOON) || wc.status) {
			fail("receive: status %d, opcode %d, %d left", wc.status, wc.opcode, left);
			return false;
		}
		if (wc.opcode == IBV_WC_RDMA_WRITE)
			continue; /* the one signalled write of a request */
		if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc.wc_flags & IBV_WC_WITH_IMM)) {
			fail("receive: opcode %d, flags %d", wc.opcode, wc.wc_flags);
			return false;
		}
		recvs[wc.wr_id % MAX_REQUESTS]++;
		left--;
	}
	for (int i = 0; i < count; i++) {
		int slot = (slots_from + i) % MAX_REQUESTS;

		if (sends[slot] != n->send.nqps || recvs[slot] != n->recv.nqps) {
			fail("request %d: %d sends, %d receives", slot, sends[slot], recvs[slot]);
			return false;
		}
	}
	return true;
}

/* How much of the receiver's memory is compared, behind the message too. */
static size_t with_margin(size_t size)
{
	return size + 4096 < MESSAGE ? size + 4096 : MESSAGE;
}

/* One request from beginning to end, with its data. */
static bool request(struct conn *n, int nreqs, const size_t *sizes, uint32_t seed)
{
	int slot = n->recv.head % MAX_REQUESTS;

	for (int r = 0; r < nreqs; r++) {
		memset(n->recv.data.buf + (size_t)r * MESSAGE, 0xee, with_margin(sizes[r]));
		pattern_fill(n->send.data.buf + (size_t)r * MESSAGE, sizes[r], seed + r);
	}
	if (!irecv(n, nreqs, sizes) || !isend(n, nreqs, sizes) || !complete(n, slot, 1))
		return false;
	for (int r = 0; r < nreqs; r++) {
		const uint8_t *at = n->recv.data.buf + (size_t)r * MESSAGE;

		if (pattern_differs(at, sizes[r], seed + r) >= 0 ||
		    not_all(at + sizes[r], with_margin(sizes[r]) - sizes[r], 0xee) >= 0) {
			fail("message %d of %zu octets: wrong data", r, sizes[r]);
			return false;
		}
		if (nreqs > 1 && sizes_slot(&n->recv, slot)[r] != (int)sizes[r]) {
			fail("message %d: size %d instead of %zu", r, sizes_slot(&n->recv, slot)[r], sizes[r]);
			return false;
		}
	}
	return true;
}

static const size_t all_sizes[] = { 0, 1, 127, 128, 129, 4096, 8192, 65537, 1000003, MESSAGE };

static bool all_of(int nqps, bool inline_fifo, bool apart)
{
	struct conn n;
	bool good = conn_open(&n, nqps, inline_fifo);

	n.apart = apart;
	for (size_t i = 0; good && i < ARRAY_SIZE(all_sizes); i++)
		good = request(&n, 1, &all_sizes[i], i);
	/* The requests go round their ring. */
	for (int i = 0; good && i < 2 * MAX_REQUESTS; i++) {
		size_t size = 1 + i * 7;

		good = request(&n, 1, &size, i);
	}
	conn_close(&n);
	return good;
}

static void one_queue_pair(void)
{
	must(all_of(1, false, false));
}

static void requests_are_written_inline(void)
{
	must(all_of(1, true, false));
}

static void messages_are_split_over_four_queue_pairs(void)
{
	must(all_of(4, false, false));
}

static void data_and_immediate_in_separate_requests(void)
{
	must(all_of(1, false, true));
}

static void several_messages_in_one_request(void)
{
	struct conn n;
	bool good = conn_open(&n, 2, false);

	for (int nreqs = 2; good && nreqs <= MAX_RECVS; nreqs++) {
		size_t sizes[MAX_RECVS];

		for (int r = 0; r < nreqs; r++)
			sizes[r] = r * 10007 + nreqs;
		good = request(&n, nreqs, sizes, nreqs * 100);
	}
	conn_close(&n);
}

/* As many requests as NCCL has outstanding at most, before the sender begins. */
static void many_requests_are_outstanding(void)
{
	struct conn n;
	bool good = conn_open(&n, 1, false);
	size_t size = 5000;

	for (int round = 0; good && round < 20; round++) {
		int first = n.recv.head % MAX_REQUESTS;

		pattern_fill(n.send.data.buf, size, round);
		memset(n.recv.data.buf, 0xee, size);
		for (int i = 0; good && i < 32; i++)
			good = irecv(&n, 1, &size);
		for (int i = 0; good && i < 32; i++)
			good = isend(&n, 1, &size);
		good = good && complete(&n, first, 32);
		if (good && pattern_differs(n.recv.data.buf, size, round) >= 0) {
			fail("wrong data");
			good = false;
		}
	}
	conn_close(&n);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	RUN(one_queue_pair);
	RUN(requests_are_written_inline);
	RUN(messages_are_split_over_four_queue_pairs);
	RUN(data_and_immediate_in_separate_requests);
	RUN(several_messages_in_one_request);
	RUN(many_requests_are_outstanding);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/* Sends with Immediate, negotiated by queue pairs that connect without rdma_cm. */

#include <arpa/inet.h>

#include "modify.h"

#define LONG 20000

static struct ibv_context *ctx;

static bool send_immediate(struct side *s, uint64_t id, size_t len, int flags)
{
	struct ibv_sge sge = sge_of(&s->memory, 0, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND_WITH_IMM, id, IBV_SEND_SIGNALED | flags, &sge, len != 0);

	pattern_fill(s->memory.buf, len, (uint32_t)id);
	wr.imm_data = htonl(0xfeed0000 + (uint32_t)id);
	return side_post(s, &wr);
}

/* Checks that a Send of the pattern `id` arrived, with its number or without. */
static void came(struct side *s, uint64_t id, size_t len, bool with_number)
{
	uint8_t *in = s->memory.buf + 16 * 1024;
	struct ibv_wc wc;

	must(expect_wc(s->cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RECV && wc.byte_len == len, "opcode %d, %u octets", wc.opcode,
	      wc.byte_len);
	check(wc.wc_flags == (with_number ? IBV_WC_WITH_IMM : 0), "flags %#x", wc.wc_flags);
	check(!with_number || ntohl(wc.imm_data) == 0xfeed0000 + (uint32_t)id, "number %#x",
	      ntohl(wc.imm_data));
	if (with_number)
		check(pattern_differs(in, len, (uint32_t)id) < 0, "%zu octets differ", len);
}

static void exchange(struct side *from, struct side *to, uint64_t id, size_t len, int flags)
{
	struct ibv_wc wc;

	must(side_recv(to, id, len) && send_immediate(from, id, len, flags));
	must(expect_wc(from->cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_SEND, "opcode %d", wc.opcode);
	came(to, id, len, true);
}

SIDES_CASE(numbers_of_all_lengths_both_ways)
{
	static const size_t lengths[] = { 0, 1, 64, 1442, 1443, LONG };

	must(sides_join(a, b));
	for (size_t i = 0; i < ARRAY_SIZE(lengths) && !test_failed(); i++) {
		exchange(a, b, 2 * i, lengths[i], 0);
		exchange(b, a, 2 * i + 1, lengths[i], 0);
	}
}

SIDES_CASE(among_other_sends)
{
	struct ibv_wc wc;

	must(sides_join(a, b));
	for (int i = 0; i < 6; i++)
		must(side_recv(b, i, 500));
	for (int i = 0; i < 6; i++)
		must(i % 2 ? send_immediate(a, i, 100, 0) : side_send(a, i, 300));
	for (int i = 0; i < 6; i++)
		must(expect_wc(a->cq, &wc, i, IBV_WC_SUCCESS));
	for (int i = 0; i < 6; i++) {
		must(expect_wc(b->cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.byte_len == (i % 2 ? 100 : 300), "%d: %u octets", i, wc.byte_len);
		check(wc.wc_flags == (i % 2 ? IBV_WC_WITH_IMM : 0), "%d: flags %#x", i, wc.wc_flags);
		check(!(i % 2) || ntohl(wc.imm_data) == 0xfeed0000u + i, "%d: number %#x", i,
		      ntohl(wc.imm_data));
	}
	must(traffic(b, a));
}

/* A side with a channel, inline data and a shared receive queue. */
struct rich {
	struct side side;
	struct ibv_comp_channel *channel;
	struct ibv_srq *srq;
};

static bool rich_open(struct rich *r)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1, .max_inline_data = 256 },
	};
	struct side *s = &r->side;

	if (!side_open(s, ctx, 0))
		return false;
	ibv_destroy_qp(s->qp);
	ibv_destroy_cq(s->cq);
	s->qp = NULL;
	r->channel = ibv_create_comp_channel(ctx);
	s->cq = ibv_create_cq(ctx, 64, NULL, r->channel, 0);
	r->srq = s->cq ? srq_make(s->pd) : NULL;
	if (!r->srq) {
		fail("no completion queue or shared receive queue");
		return false;
	}
	init.send_cq = s->cq;
	init.recv_cq = s->cq;
	init.srq = r->srq;
	s->qp = ibv_create_qp(s->pd, &init);
	if (!s->qp)
		fail("ibv_create_qp: %s", strerror(errno));
	return s->qp && side_init(s);
}

static void rich_close(struct rich *r)
{
	if (r->side.qp)
		ibv_destroy_qp(r->side.qp);
	r->side.qp = NULL;
	if (r->srq)
		ibv_destroy_srq(r->srq);
	side_close(&r->side);
	if (r->channel)
		ibv_destroy_comp_channel(r->channel);
}

static bool rich_recv(struct rich *r, uint64_t id, size_t len)
{
	struct ibv_sge sge = sge_of(&r->side.memory, 16 * 1024, len);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int rc = ibv_post_srq_recv(r->srq, &wr, &bad);

	if (rc)
		fail("ibv_post_srq_recv: %s", strerror(rc));
	return !rc;
}

static void inline_shared_and_solicited(void)
{
	struct rich r = {};
	struct side a = {};
	struct ibv_wc wc;

	if (!side_open(&a, ctx, 0) || !rich_open(&r) || !sides_join(&a, &r.side))
		goto out;
	if (!rich_recv(&r, 1, 200) || !rich_recv(&r, 2, 200))
		goto out;
	if (ibv_req_notify_cq(r.side.cq, 1))
		fail("ibv_req_notify_cq");
	if (!send_immediate(&a, 1, 200, 0) || !expect_wc(a.cq, &wc, 1, IBV_WC_SUCCESS))
		goto out;
	if (channel_fires(r.channel, QUIET))
		fail("an event though none was asked for");
	came(&r.side, 1, 200, true);
	if (!send_immediate(&a, 2, 100, IBV_SEND_SOLICITED))
		goto out;
	if (!channel_fires(r.channel, SOON))
		fail("no event");
	came(&r.side, 2, 100, true);
	if (expect_wc(a.cq, &wc, 2, IBV_WC_SUCCESS) && side_recv(&a, 3, 256) &&
	    send_immediate(&r.side, 3, 256, IBV_SEND_INLINE) &&
	    expect_wc(r.side.cq, &wc, 3, IBV_WC_SUCCESS))
		came(&a, 3, 256, true);
out:
	rich_close(&r);
	side_close(&a);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	srand(getpid());
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	RUN(numbers_of_all_lengths_both_ways);
	RUN(among_other_sends);
	RUN(inline_shared_and_solicited);
	return test_end();
}

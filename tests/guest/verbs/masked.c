// SPDX-License-Identifier: GPL-2.0
/*
 * The operations of RFC 7306 for which libibverbs has no call, as utils/riwarp.h posts them.
 */

#include "common.h"

#include "../../../utils/riwarp.h"

#define RIGHTS (ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC)

static struct region local, remote;
static struct ibv_sge sge[8];
static struct ibv_send_wr wr;

static bool prepare_with(struct pair *p, int access)
{
	if (!region_make(&local, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, p->b.pd, 4096, access))
		return false;
	memset(remote.buf, 0x11, 4096);
	memset(local.buf, 0x22, 4096);
	sge[0] = sge_of(&local, 8, 8);
	wr = (struct ibv_send_wr){ .wr_id = 1, .send_flags = IBV_SEND_SIGNALED };
	return true;
}

static bool prepare(struct pair *p) { return prepare_with(p, RIGHTS); }

static uint64_t *word(struct region *r, size_t i) { return (uint64_t *)r->buf + i; }
static uint64_t there(void) { return (uintptr_t)word(&remote, 3); }

/* Does the request on a word that is `before`, and checks what it leaves. */
static void leaves(struct pair *p, enum ibv_wc_opcode opcode, uint64_t before, uint64_t after)
{
	struct ibv_wc wc;

	*word(&remote, 3) = before;
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(wc.opcode == opcode && wc.byte_len == 8, "opcode %d, %u octets", wc.opcode, wc.byte_len);
	check(*word(&local, 1) == before, "brought %#lx", *word(&local, 1));
	check(*word(&remote, 3) == after, "left %#lx", *word(&remote, 3));
	check(*word(&remote, 2) == 0x1111111111111111 && *word(&remote, 4) == 0x1111111111111111 &&
		      *word(&local, 0) == 0x2222222222222222 &&
		      *word(&local, 2) == 0x2222222222222222,
	      "something beside was written");
}

static void adds(struct pair *p, uint64_t before, uint64_t add, uint64_t boundary, uint64_t after)
{
	riwarp_masked_fetch_add(&wr, sge, there(), remote.mr->rkey, add, boundary);
	leaves(p, IBV_WC_FETCH_ADD, before, after);
}

PAIR_CASE(masked_fetch_add_carries_stop_at_field_boundaries, .send_sge = 3)
{
	must(prepare(p));
	adds(p, 40, 2, 0, 42);
	adds(p, ~0ULL, 1, 0, 0);
	adds(p, 0xffffffff, 1, 1ULL << 31, 0);
	adds(p, 0x00ff00ff00ff00ff, 0x0001000100010001, 0x0080008000800080, 0);
}

PAIR_CASE(masked_cmp_swap_uses_both_masks, .send_sge = 5)
{
	must(prepare(p));
	riwarp_masked_cmp_swp(&wr, sge, there(), remote.mr->rkey, 0x100, 0xff00, 7, 0xff);
	leaves(p, IBV_WC_COMP_SWAP, 0xabc0143, 0xabc0107);
	leaves(p, IBV_WC_COMP_SWAP, 0xabc0243, 0xabc0243);
	riwarp_masked_cmp_swp(&wr, sge, there(), remote.mr->rkey, 5, ~0ULL, 9, ~0ULL);
	leaves(p, IBV_WC_COMP_SWAP, 5, 9);
	leaves(p, IBV_WC_COMP_SWAP, 6, 6);
}

PAIR_CASE(swap_returns_the_original_value, .send_sge = 5)
{
	must(prepare(p));
	riwarp_swap(&wr, sge, there(), remote.mr->rkey, 0x0123456789abcdef);
	leaves(p, IBV_WC_COMP_SWAP, 77, 0x0123456789abcdef);
	leaves(p, IBV_WC_COMP_SWAP, ~0ULL, 0x0123456789abcdef);
}

/* Those that the rings of a thousand requests wrap, in order, beyond the depth. */
PAIR_CASE(many_masked_atomics_complete_in_order, .send_sge = 5, .depth = 4)
{
	struct ibv_wc wc;

	must(prepare(p));
	*word(&remote, 3) = 0;
	for (uint64_t i = 0; i < 400; i++) {
		sge[0] = sge_of(&local, 8 * (i % 400), 8);
		wr.wr_id = i;
		if (i % 2)
			riwarp_masked_fetch_add(&wr, sge, there(), remote.mr->rkey, 1, 0);
		else
			riwarp_swap(&wr, sge, there(), remote.mr->rkey, 10 * i);
		must(post_send(&p->a, &wr));
		if (i >= 40)
			must(expect_wc(p->a.send_cq, &wc, i - 40, IBV_WC_SUCCESS));
	}
	for (uint64_t i = 360; i < 400; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	for (uint64_t i = 2; i < 400; i++) {
		uint64_t old = i % 2 ? 10 * (i - 1) : 10 * (i - 2) + 1;

		check(*word(&local, i) == old, "number %lu brought %lu", i, *word(&local, i));
	}
}

static void refused(struct pair *p, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, status));
	check(not_all(remote.buf, 4096, 0x11) < 0, "the peer's memory was written");
	check(not_all(local.buf, 4096, 0x22) < 0, "the local buffer was written");
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
}

PAIR_CASE(swap_without_the_right, .send_sge = 5)
{
	must(prepare_with(p, ALL_RIGHTS));
	riwarp_swap(&wr, sge, there(), remote.mr->rkey, 5);
	refused(p, IBV_WC_REM_ACCESS_ERR);
}

PAIR_CASE(swap_at_an_odd_address, .send_sge = 5)
{
	must(prepare(p));
	riwarp_swap(&wr, sge, there() + 4, remote.mr->rkey, 5);
	refused(p, IBV_WC_REM_INV_REQ_ERR);
}

PAIR_CASE(masked_fetch_add_with_wrong_sge_list, .send_sge = 5)
{
	must(prepare(p));
	riwarp_masked_fetch_add(&wr, sge, there(), remote.mr->rkey, 5, 0);
	wr.num_sge = 2;
	refused(p, IBV_WC_LOC_LEN_ERR);
}

PAIR_CASE(swap_with_memory_for_operands, .send_sge = 5)
{
	must(prepare(p));
	riwarp_swap(&wr, sge, there(), remote.mr->rkey, 5);
	sge[4] = sge_of(&local, 64, 8);
	refused(p, IBV_WC_LOC_LEN_ERR);
}

PAIR_CASE(swap_into_seven_octets, .send_sge = 5)
{
	must(prepare(p));
	riwarp_swap(&wr, sge, there(), remote.mr->rkey, 5);
	sge[0].length = 7;
	refused(p, IBV_WC_LOC_LEN_ERR);
}

/* Checks the completion of a receive of Immediate Data, behind a Write of so many octets. */
static void brought(struct pair *p, const char *data, uint32_t written)
{
	char octets[8];
	struct ibv_wc wc;

	must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == written &&
		      wc.wc_flags & IBV_WC_WITH_IMM,
	      "opcode %d, %u octets, flags %#x", wc.opcode, wc.byte_len, wc.wc_flags);
	check(riwarp_wc_immediate_data(&wc, octets) && !memcmp(octets, data, 8),
	      "%.8s came, flags %#x", octets, wc.wc_flags);
	check(!memcmp(&wc.imm_data, memcmp(data, "\0\0\0\0", 4) ? data : data + 4, 4),
	      "imm_data is %#x", wc.imm_data);
}

static const char *const eights[] = {
	"abcdefgh", "abcd\0\0\0\0", "\0\0\0\0efgh", "\0\0\0\0\0\0\0\0", "abcdabcd", "\0\0\0x\0\0\0y",
};

PAIR_CASE(immediate_data_of_eight_octets)
{
	struct ibv_wc wc;

	must(prepare(p));
	for (size_t i = 0; i < ARRAY_SIZE(eights) && !test_failed(); i++) {
		must(post_recv_sges(&p->b, 3, NULL, 0));
		riwarp_immediate_data(&wr, sge, eights[i]);
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_SEND, "opcode %d", wc.opcode);
		check(!wc.wc_flags, "flags %#x", wc.wc_flags);
		brought(p, eights[i], 0);
	}
	check(not_all(remote.buf, 4096, 0x11) < 0, "the peer's memory was written");
}

PAIR_CASE(immediate_data_of_eight_octets_behind_a_write, .send_sge = 3)
{
	struct ibv_wc wc;

	must(prepare(p));
	for (int count = 0; count <= 2 && !test_failed(); count++) {
		must(post_recv_sges(&p->b, 3, NULL, 0));
		sge[0] = sge_of(&local, 0, 24);
		sge[1] = sge_of(&local, 40, 1600);
		riwarp_write_immediate_data(&wr, sge, count, there(), remote.mr->rkey, eights[0]);
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_RDMA_WRITE, "opcode %d", wc.opcode);
		brought(p, eights[0], (uint32_t[]){ 0, 24, 1624 }[count]);
	}
	check(not_all((uint8_t *)word(&remote, 3), 1624, 0x22) < 0, "an octet was not written");
	check(not_all(remote.buf, 24, 0x11) < 0 && *(word(&remote, 3) + 1624 / 8) == 0x1111111111111111,
	      "something beside was written");
}

PAIR_CASE(immediate_data_of_the_verbs_has_eight_octets)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv_sges(&p->b, 3, NULL, 0));
	wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, IBV_SEND_SIGNALED, sge, 1, there(), remote.mr->rkey);
	memcpy(&wr.imm_data, "abcd", 4);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	brought(p, "abcd\0\0\0\0", 8);
}

PAIR_CASE(immediate_data_of_eight_octets_solicited, .channels = true)
{
	must(prepare(p) && post_recv_sges(&p->b, 3, NULL, 0) && post_recv_sges(&p->b, 3, NULL, 0));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming");
	riwarp_immediate_data(&wr, sge, eights[0]);
	must(post_send(&p->a, &wr));
	check(!channel_fires(p->b.recv_channel, QUIET), "an event though none was asked for");
	wr.send_flags |= IBV_SEND_SOLICITED;
	must(post_send(&p->a, &wr));
	check(channel_fires(p->b.recv_channel, SOON), "no event");
	brought(p, eights[0], 0);
	brought(p, eights[0], 0);
}

PAIR_CASE(immediate_data_inline, .inline_data = 64, .send_sge = 2)
{
	must(prepare(p) && post_recv_sges(&p->b, 3, NULL, 0));
	riwarp_write_immediate_data(&wr, sge, 1, there(), remote.mr->rkey, eights[0]);
	wr.send_flags |= IBV_SEND_INLINE;
	refused(p, IBV_WC_LOC_LEN_ERR);
}

PAIR_CASE(immediate_data_without_its_sge)
{
	must(prepare(p) && post_recv_sges(&p->b, 3, NULL, 0));
	riwarp_immediate_data(&wr, sge, eights[0]);
	wr.num_sge = 0;
	refused(p, IBV_WC_LOC_LEN_ERR);
}

PAIR_CASE(immediate_data_alone_has_no_memory, .send_sge = 2)
{
	must(prepare(p) && post_recv_sges(&p->b, 3, NULL, 0));
	riwarp_write_immediate_data(&wr, sge, 1, there(), remote.mr->rkey, eights[0]);
	sge[1].lkey = 0;
	refused(p, IBV_WC_LOC_LEN_ERR);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(masked_fetch_add_carries_stop_at_field_boundaries);
	RUN(masked_cmp_swap_uses_both_masks);
	RUN(swap_returns_the_original_value);
	RUN(many_masked_atomics_complete_in_order);
	RUN(swap_without_the_right);
	RUN(swap_at_an_odd_address);
	RUN(masked_fetch_add_with_wrong_sge_list);
	RUN(swap_with_memory_for_operands);
	RUN(swap_into_seven_octets);
	RUN(immediate_data_of_eight_octets);
	RUN(immediate_data_of_eight_octets_behind_a_write);
	RUN(immediate_data_of_the_verbs_has_eight_octets);
	RUN(immediate_data_of_eight_octets_solicited);
	RUN(immediate_data_inline);
	RUN(immediate_data_without_its_sge);
	RUN(immediate_data_alone_has_no_memory);
	return test_end();
}

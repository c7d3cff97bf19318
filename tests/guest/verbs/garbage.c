// SPDX-License-Identifier: GPL-2.0
/*
 * Random contents of the memory that a process shares with the device: its send, receive and
 * completion queues. The owner may break its own queue pair with it, and nothing else.
 *
 * The queues are those of the siw user interface (rdma/siw-abi.h); the program finds them as the
 * mappings of the character device that appear while a queue pair is made.
 */

#include "common.h"

#include <rdma/siw-abi.h>

/* Their sizes differ also in pages of 64 KiB. */
#define SQ_DEPTH 1024
#define RQ_DEPTH 4096

static struct region src, dst;

/* --- finding the queues ----------------------------------------------------------------------- */

static size_t whole_pages(size_t len) { return (len + PAGE - 1) / PAGE * PAGE; }

/* Finds the mapping of `len` octets (rounded up to pages) that is in `now` and not in `before`. */
static uint8_t *new_mapping(const struct mapping *before, size_t nb, const struct mapping *now,
			    size_t nn, size_t len)
{
	len = whole_pages(len);
	for (size_t i = 0; i < nn; i++) {
		bool old = false;

		for (size_t k = 0; k < nb; k++)
			old |= before[k].start <= now[i].start &&
			       before[k].start + before[k].len >= now[i].start + now[i].len;
		if (old)
			continue;
		/* Adjacent mappings may appear as one. */
		if (now[i].len == len)
			return now[i].start;
	}
	return NULL;
}

struct queues {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct siw_sqe *sq;
	struct siw_rqe *rq;
};

static bool queues_make(struct queues *q, struct ibv_context *ctx)
{
	struct mapping before[64], now[64];
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = SQ_DEPTH,
			 .max_recv_wr = RQ_DEPTH,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	size_t nb, nn;

	q->pd = ibv_alloc_pd(ctx);
	q->cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = q->cq;
	nb = device_mappings(before, ARRAY_SIZE(before));
	q->qp = q->pd && q->cq ? ibv_create_qp(q->pd, &attr) : NULL;
	if (!q->qp) {
		fail("making a QP: %s", strerror(errno));
		return false;
	}
	nn = device_mappings(now, ARRAY_SIZE(now));
	q->sq = (void *)new_mapping(before, nb, now, nn, SQ_DEPTH * sizeof(struct siw_sqe));
	q->rq = (void *)new_mapping(before, nb, now, nn, RQ_DEPTH * sizeof(struct siw_rqe));
	if (!q->sq || !q->rq) {
		fail("queues not found among %zu mappings (%zu before)", nn, nb);
		return false;
	}
	return true;
}

static void queues_free(struct queues *q)
{
	if (q->qp)
		ibv_destroy_qp(q->qp);
	if (q->cq)
		ibv_destroy_cq(q->cq);
	if (q->pd)
		ibv_dealloc_pd(q->pd);
}

/* --- the connection under attack -------------------------------------------------------------- */

/* A connected pair with the queues of its end `a`. */
struct target {
	struct pair p;
	struct siw_sqe *sq;
	struct siw_rqe *rq;
};

static bool target_open(struct target *t)
{
	struct pair_opts opts = { .sq_depth = SQ_DEPTH, .rq_depth = RQ_DEPTH, .depth = 4 };
	struct mapping now[64];
	size_t nn, want_sq, want_rq, sqs = 0, rqs = 0;
	static struct queues probe;

	/* A test without a connection shows whether queues can be found at all. */
	memset(&probe, 0, sizeof(probe));
	if (!queues_make(&probe, test_context())) {
		queues_free(&probe);
		return false;
	}
	queues_free(&probe);
	if (!pair_open(&t->p, &opts))
		return false;
	/*
	 * Both ends have queues of these sizes; a's were made first, so find out which one moves.
	 */
	nn = device_mappings(now, ARRAY_SIZE(now));
	want_sq = whole_pages(SQ_DEPTH * sizeof(struct siw_sqe));
	want_rq = whole_pages(RQ_DEPTH * sizeof(struct siw_rqe));
	if (!region_make(&src, t->p.a.pd, 8192, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&dst, t->p.b.pd, 8192, ALL_RIGHTS))
		return false;
	t->sq = NULL;
	t->rq = NULL;
	for (size_t i = 0; i < nn; i++) {
		sqs += now[i].len == want_sq;
		rqs += now[i].len == want_rq;
	}
	if (sqs != 2 || rqs != 2) {
		fail("%zu send queues and %zu receive queues found", sqs, rqs);
		return false;
	}
	/* A marked receive, never used, identifies a's receive queue; likewise a Send. */
	if (!post_recv(&t->p.a, 0xfeedf00dULL, &src, 0, 64) || !post_recv(&t->p.b, 1, &dst, 0, 64))
		return false;
	for (size_t i = 0; i < nn; i++)
		if (now[i].len == want_rq && ((struct siw_rqe *)now[i].start)->id == 0xfeedf00dULL)
			t->rq = (void *)now[i].start;
	{
		struct ibv_sge sge = sge_of(&src, 0, 8);
		struct ibv_send_wr wr =
			wr_make(IBV_WR_SEND, 0xabad1deaULL, IBV_SEND_SIGNALED, &sge, 1);
		struct ibv_wc wc;

		if (!post_send(&t->p.a, &wr) ||
		    !expect_wc(t->p.a.send_cq, &wc, 0xabad1deaULL, IBV_WC_SUCCESS) ||
		    !expect_wc(t->p.b.recv_cq, &wc, 1, IBV_WC_SUCCESS))
			return false;
	}
	for (size_t i = 0; i < nn; i++)
		if (now[i].len == want_sq && ((struct siw_sqe *)now[i].start)->id == 0xabad1deaULL)
			t->sq = (void *)now[i].start;
	if (!t->sq || !t->rq) {
		fail("the active side's queues were not recognised");
		return false;
	}
	return true;
}

/* A good entry for the next slot (the first was used by target_open). */
static struct siw_sqe good_sqe(void)
{
	struct siw_sqe sqe;

	memset(&sqe, 0, sizeof(sqe));
	sqe.id = 5;
	sqe.flags = SIW_WQE_SIGNALLED;
	sqe.num_sge = 1;
	sqe.opcode = SIW_OP_WRITE;
	sqe.rkey = dst.mr->rkey;
	sqe.raddr = (uintptr_t)dst.buf;
	sqe.sge[0].laddr = (uintptr_t)src.buf;
	sqe.sge[0].length = 64;
	sqe.sge[0].lkey = src.mr->lkey;
	return sqe;
}

/* Puts an entry into the slot behind the last one used and rings the doorbell. */
static void place(struct target *t, unsigned int slot, struct siw_sqe sqe)
{
	uint16_t flags = sqe.flags | SIW_WQE_VALID;

	sqe.flags = 0;
	t->sq[slot] = sqe;
	__atomic_store_n(&t->sq[slot].flags, flags, __ATOMIC_RELEASE);
	ring_doorbell(t->p.a.qp);
}

/* Checks that the device refuses an entry. */
static void refused(struct siw_sqe (*make)(void))
{
	struct target t = { 0 };

	if (target_open(&t)) {
		regions_mark(&src, &dst);
		place(&t, 1, make());
		request_is_refused(&t.p, &src, &dst);
	}
	pair_close(&t.p);
	world_is_well();
}

#define REFUSED(name, change)                                                                      \
	static struct siw_sqe name##_sqe(void)                                                     \
	{                                                                                          \
		struct siw_sqe s = good_sqe();                                                     \
											       \
		change;                                                                            \
		return s;                                                                          \
	}                                                                                          \
	static void name(void) { refused(name##_sqe); }

/* Only the kernel may post this. */
REFUSED(opcode_reg_mr, s.opcode = SIW_OP_REG_MR; s.base_mr = 0xffff888000000000ULL)
REFUSED(opcode_local_inv, s.opcode = SIW_OP_INVAL_STAG; s.rkey = src.mr->rkey)
REFUSED(opcode_read_response, s.opcode = SIW_OP_READ_RESPONSE)
REFUSED(opcode_receive, s.opcode = SIW_OP_RECEIVE)
REFUSED(opcode_fetch_add, s.opcode = SIW_OP_FETCH_AND_ADD)
REFUSED(opcode_comp_swap, s.opcode = SIW_OP_COMP_AND_SWAP)
REFUSED(opcode_send_imm, s.opcode = SIW_OP_SEND_WITH_IMM)
REFUSED(opcode_unknown, s.opcode = SIW_NUM_OPCODES)
REFUSED(opcode_255, s.opcode = 255)
REFUSED(elements_7, s.num_sge = 7)
REFUSED(elements_255, s.num_sge = 255)
REFUSED(inline_81, s.flags |= SIW_WQE_INLINE; s.sge[0].length = 81)
REFUSED(inline_2_gib, s.flags |= SIW_WQE_INLINE; s.sge[0].length = 0x80000000u)
REFUSED(inline_all_ones, s.flags |= SIW_WQE_INLINE; s.sge[0].length = 0xffffffffu)
REFUSED(inline_read, s.flags |= SIW_WQE_INLINE; s.opcode = SIW_OP_READ)
REFUSED(length_all_ones, s.sge[0].length = 0xffffffffu)
REFUSED(address_wraps, s.sge[0].laddr = ~0ULL - 3)
REFUSED(address_of_the_kernel, s.sge[0].laddr = 0xffff888000001000ULL)
REFUSED(key_zero, s.sge[0].lkey = 0)
REFUSED(key_of_the_peer, s.sge[0].lkey = dst.mr->lkey; s.sge[0].laddr = (uintptr_t)dst.buf)
REFUSED(read_of_two_elements, s.opcode = SIW_OP_READ; s.num_sge = 2; s.sge[1] = s.sge[0])

/*
 * Checks an entry that may be refused or executed, but always completes; an error ends the stream.
 */
static void completes(struct siw_sqe (*make)(void))
{
	struct target t = { 0 };
	struct ibv_wc wc;

	if (target_open(&t)) {
		place(&t, 1, make());
		if (!poll_wc(t.p.a.send_cq, &wc, SOON))
			fail("no completion");
		else if (wc.status != IBV_WC_SUCCESS)
			qp_reaches(t.p.a.qp, IBV_QPS_ERR, SOON);
	}
	pair_close(&t.p);
	world_is_well();
}

static struct siw_sqe all_flags_sqe(void)
{
	struct siw_sqe s = good_sqe();

	s.flags = 0xffff;
	return s;
}

static struct siw_sqe read_with_local_invalidate_sqe(void)
{
	struct siw_sqe s = good_sqe();

	s.opcode = SIW_OP_READ_LOCAL_INV;
	return s;
}

static void all_flags(void) { completes(all_flags_sqe); }
static void read_with_local_invalidate(void) { completes(read_with_local_invalidate_sqe); }

/* An entry of a QP that was never connected. */
static void doorbell_of_idle_queue_pair(void)
{
	struct queues q = { 0 };
	struct ibv_context *ctx = test_context();

	if (ctx && queues_make(&q, ctx)) {
		fill_any(q.sq, SQ_DEPTH * sizeof(struct siw_sqe));
		for (int i = 0; i < 20; i++)
			ring_doorbell(q.qp);
	}
	queues_free(&q);
	world_is_well();
}

/* Random octets all over the send queue of a connected QP, repeatedly while the doorbell rings. */
static void random_send_queue(void)
{
	for (int round = 0; round < 30 && !test_failed(); round++) {
		struct target t = { 0 };

		if (target_open(&t)) {
			for (int n = 0; n < 20; n++) {
				for (int i = 0; i < SQ_DEPTH; i++) {
					uint8_t *e = (uint8_t *)&t.sq[i];

					if (round % 3 == 0)
						t.sq[i] = good_sqe();
					for (int k = 0; k < (round % 3 ? 120 : 4); k++)
						e[any() % sizeof(struct siw_sqe)] = (uint8_t)any();
					if (round % 2)
						t.sq[i].flags |= SIW_WQE_VALID;
				}
				ring_doorbell(t.p.a.qp);
			}
		}
		pair_close(&t.p);
	}
	world_is_well();
}

/* Random octets in the receive queue while Sends come in. */
static void random_receive_queue(void)
{
	for (int round = 0; round < 20 && !test_failed(); round++) {
		struct target t = { 0 };

		if (target_open(&t)) {
			regions_mark(&src, &dst);
			fill_any(t.rq, RQ_DEPTH * sizeof(struct siw_rqe));
			for (int i = 0; i < RQ_DEPTH; i++) {
				if (round % 2)
					t.rq[i].num_sge = 1 + round % 6;
				t.rq[i].flags |= SIW_WQE_VALID;
			}
			send_breaks_receiver(&t.p, &src, &dst);
		}
		pair_close(&t.p);
	}
	world_is_well();
}

/* The consumer can write the completion queue too: overwrites entries and the arming word. */
static void random_completion_queue(void)
{
	struct mapping now[64];
	struct target t = { 0 };
	size_t nn;

	if (target_open(&t)) {
		nn = device_mappings(now, ARRAY_SIZE(now));
		for (size_t i = 0; i < nn; i++) {
			if (now[i].start == (uint8_t *)t.sq || now[i].start == (uint8_t *)t.rq)
				continue;
			fill_any(now[i].start, now[i].len);
		}
		for (int i = 0; i < 40; i++) {
			struct ibv_sge sge = sge_of(&src, 0, 64);
			struct ibv_send_wr wr =
				wr_rdma(IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)dst.buf, dst.mr->rkey);

			if (try_send(&t.p.a, &wr))
				break;
		}
		sleep_ms(20);
		for (size_t i = 0; i < nn; i++)
			memset(now[i].start, 0xff, now[i].len);
		ring_doorbell(t.p.a.qp);
		ring_doorbell(t.p.b.qp);
	}
	/* The provider library reads these queues during its cleanup: make them harmless. */
	if (t.sq) {
		nn = device_mappings(now, ARRAY_SIZE(now));
		for (size_t i = 0; i < nn; i++)
			memset(now[i].start, 0, now[i].len);
	}
	pair_close(&t.p);
	world_is_well();
}

/* Doorbells with foreign handles, and truncated commands. */
static void wrong_doorbells(void)
{
	struct target t = { 0 };
	struct ibv_qp fake;

	if (target_open(&t)) {
		fake = *t.p.a.qp;
		for (uint32_t h = 0; h < 200; h++) {
			fake.handle = h * 7919;
			if (fake.handle != t.p.a.qp->handle && fake.handle != t.p.b.qp->handle)
				ring_doorbell(&fake);
		}
		exchange_works(&t.p);
	}
	pair_close(&t.p);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(opcode_reg_mr);
	RUN(opcode_local_inv);
	RUN(opcode_read_response);
	RUN(read_with_local_invalidate);
	RUN(opcode_receive);
	RUN(opcode_fetch_add);
	RUN(opcode_comp_swap);
	RUN(opcode_send_imm);
	RUN(opcode_unknown);
	RUN(opcode_255);
	RUN(elements_7);
	RUN(elements_255);
	RUN(inline_81);
	RUN(inline_2_gib);
	RUN(inline_all_ones);
	RUN(inline_read);
	RUN(length_all_ones);
	RUN(address_wraps);
	RUN(address_of_the_kernel);
	RUN(key_zero);
	RUN(key_of_the_peer);
	RUN(read_of_two_elements);
	RUN(all_flags);
	RUN(doorbell_of_idle_queue_pair);
	RUN(random_send_queue);
	RUN(random_receive_queue);
	RUN(random_completion_queue);
	RUN(wrong_doorbells);
	return test_end();
}

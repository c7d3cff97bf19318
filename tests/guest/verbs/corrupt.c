// SPDX-License-Identifier: GPL-2.0
/*
 * Like garbage.c, for the memory that librxe shares with the device (rdma/rdma_user_rxe.h): queues
 * whose header holds two indexes. The owner may break its own queue pair with it, and nothing else.
 */

#include "common.h"

#include <pthread.h>
#include <rdma/rdma_user_rxe.h>

#define SQ_DEPTH 63
#define RQ_DEPTH 1023
#define MARK_SEND 0xabad1deaULL
#define MARK_RECV 0xfeedf00dULL

static struct region src, dst;

/* --- finding the queues ----------------------------------------------------------------------- */

/* A connected pair with the queues of its end `a`. */
struct target {
	struct pair p;
	struct rxe_queue_buf *sq, *rq;
	size_t sq_len, rq_len;
};

static void *element(struct rxe_queue_buf *q, uint32_t index)
{
	return q->data + ((size_t)(index & q->index_mask) << q->log2_elem_size);
}

/*
 * Finds the queue whose first element begins with this cookie; elements of completion queues have
 * 64 octets.
 */
static struct rxe_queue_buf *queue_of(uint64_t cookie, size_t *len)
{
	struct mapping now[64];
	size_t n = device_mappings(now, ARRAY_SIZE(now));

	for (size_t i = 0; i < n; i++) {
		struct rxe_queue_buf *q = (void *)now[i].start;

		if (q->log2_elem_size > 6 && *(uint64_t *)element(q, 0) == cookie) {
			*len = now[i].len;
			return q;
		}
	}
	return NULL;
}

static bool target_open_deep(struct target *t, uint32_t sq_depth)
{
	struct pair_opts opts = { .sq_depth = sq_depth, .rq_depth = RQ_DEPTH, .depth = 4 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!pair_open(&t->p, &opts) ||
	    !region_make(&src, t->p.a.pd, 8192, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&dst, t->p.b.pd, 8192, ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC))
		return false;
	sge = sge_of(&src, 0, 8);
	wr = wr_make(IBV_WR_SEND, MARK_SEND, IBV_SEND_SIGNALED, &sge, 1);
	if (!post_recv(&t->p.a, MARK_RECV, &src, 0, 64) || !post_recv(&t->p.b, 1, &dst, 0, 64) ||
	    !post_send(&t->p.a, &wr) || !expect_wc(t->p.a.send_cq, &wc, MARK_SEND, IBV_WC_SUCCESS) ||
	    !expect_wc(t->p.b.recv_cq, &wc, 1, IBV_WC_SUCCESS))
		return false;
	t->sq = queue_of(MARK_SEND, &t->sq_len);
	t->rq = queue_of(MARK_RECV, &t->rq_len);
	if (!t->sq || !t->rq)
		fail("the queues were not recognised");
	return t->sq && t->rq;
}

static bool target_open(struct target *t)
{
	return target_open_deep(t, SQ_DEPTH);
}

/* --- single requests -------------------------------------------------------------------------- */

/* Returns a valid request. */
static struct rxe_send_wqe *good(struct target *t)
{
	struct rxe_send_wqe *e = element(t->sq, t->sq->producer_index);

	memset(e, 0, sizeof(*e));
	e->wr.wr_id = 5;
	e->wr.opcode = IBV_WR_RDMA_WRITE;
	e->wr.send_flags = IBV_SEND_SIGNALED;
	e->wr.wr.rdma.remote_addr = (uintptr_t)dst.buf;
	e->wr.wr.rdma.rkey = dst.mr->rkey;
	e->dma.length = 64;
	e->dma.num_sge = 1;
	e->dma.sge[0].addr = (uintptr_t)src.buf;
	e->dma.sge[0].length = 64;
	e->dma.sge[0].lkey = src.mr->lkey;
	return e;
}

static void add(struct target *t)
{
	uint32_t next = (t->sq->producer_index + 1) & t->sq->index_mask;

	__atomic_store_n(&t->sq->producer_index, next, __ATOMIC_RELEASE);
	ring_doorbell(t->p.a.qp);
}

/* Checks that the device refuses a request. */
static void refused(void (*spoil)(struct rxe_send_wqe *))
{
	struct target t = { 0 };

	if (target_open(&t)) {
		regions_mark(&src, &dst);
		spoil(good(&t));
		add(&t);
		request_is_refused(&t.p, &src, &dst);
	}
	pair_close(&t.p);
	world_is_well();
}

#define REFUSED(name, change)                                                                      \
	static void name##_spoil(struct rxe_send_wqe *e) { change; }                               \
	static void corrupted_##name(void) { refused(name##_spoil); }

#define ATOMIC(e, op)                                                                              \
	e->wr.opcode = op;                                                                         \
	e->wr.wr.atomic.rkey = dst.mr->rkey

REFUSED(opcode_send_imm, e->wr.opcode = IBV_WR_SEND_WITH_IMM)
REFUSED(opcode_tso, e->wr.opcode = IBV_WR_TSO)
REFUSED(opcode_reg_mr, e->wr.opcode = 0x20)
REFUSED(opcode_flush, e->wr.opcode = IBV_WR_FLUSH)
REFUSED(opcode_atomic_write, e->wr.opcode = IBV_WR_ATOMIC_WRITE)
REFUSED(opcode_masked_atomic, e->wr.opcode = 0xf0)
REFUSED(opcode_all_ones, e->wr.opcode = ~0u)
REFUSED(elements_33, e->dma.num_sge = 33)
/* An entry has 512 octets, of which 304 are for the list. */
REFUSED(elements_beyond_the_entry, e->dma.num_sge = 20)
REFUSED(elements_all_ones, e->dma.num_sge = ~0u)
REFUSED(inline_513, e->wr.send_flags |= IBV_SEND_INLINE; e->dma.length = 513)
REFUSED(inline_beyond_the_entry, e->wr.send_flags |= IBV_SEND_INLINE; e->dma.length = 305)
REFUSED(inline_2_gib, e->wr.send_flags |= IBV_SEND_INLINE; e->dma.length = 0x80000000u)
REFUSED(inline_all_ones, e->wr.send_flags |= IBV_SEND_INLINE; e->dma.length = ~0u)
REFUSED(inline_without_flag, e->dma.num_sge = 0; e->dma.length = ~0u)
REFUSED(inline_read, e->wr.send_flags |= IBV_SEND_INLINE; e->wr.opcode = IBV_WR_RDMA_READ)
REFUSED(inline_atomic, e->wr.send_flags |= IBV_SEND_INLINE;
	ATOMIC(e, IBV_WR_ATOMIC_FETCH_AND_ADD))
REFUSED(length_all_ones, e->dma.sge[0].length = ~0u)
REFUSED(address_wraps, e->dma.sge[0].addr = ~0ULL - 3)
REFUSED(address_of_the_kernel, e->dma.sge[0].addr = 0xffff888000001000ULL)
REFUSED(key_zero, e->dma.sge[0].lkey = 0)
REFUSED(key_of_the_peer, e->dma.sge[0].lkey = dst.mr->lkey;
	e->dma.sge[0].addr = (uintptr_t)dst.buf)
REFUSED(read_of_two_elements, e->wr.opcode = IBV_WR_RDMA_READ; e->dma.num_sge = 2;
	e->dma.sge[1] = e->dma.sge[0])
REFUSED(atomic_without_elements, ATOMIC(e, IBV_WR_ATOMIC_CMP_AND_SWP); e->dma.num_sge = 0;
	e->dma.length = 0)
REFUSED(atomic_of_two_elements, ATOMIC(e, IBV_WR_ATOMIC_CMP_AND_SWP); e->dma.num_sge = 2;
	e->dma.sge[1] = e->dma.sge[0])
REFUSED(atomic_of_seven_octets, ATOMIC(e, IBV_WR_ATOMIC_FETCH_AND_ADD);
	e->dma.sge[0].length = 7)
REFUSED(atomic_of_no_region, ATOMIC(e, IBV_WR_ATOMIC_FETCH_AND_ADD); e->dma.sge[0].lkey = 0)
REFUSED(bind_of_no_window, e->wr.opcode = IBV_WR_BIND_MW; e->dma.num_sge = 0;
	e->wr.wr.mw.mw_rkey = 0x1234500; e->wr.wr.mw.rkey = 0x1234501;
	e->wr.wr.mw.mr_lkey = src.mr->lkey; e->wr.wr.mw.length = 8)
REFUSED(bind_of_a_region, e->wr.opcode = IBV_WR_BIND_MW; e->dma.num_sge = 0;
	e->wr.wr.mw.mw_rkey = src.mr->lkey; e->wr.wr.mw.rkey = src.mr->lkey;
	e->wr.wr.mw.mr_lkey = src.mr->lkey; e->wr.wr.mw.length = ~0ULL;
	e->wr.wr.mw.access = ~0u)
REFUSED(invalidate_of_user_memory, e->wr.opcode = IBV_WR_LOCAL_INV;
	e->wr.ex.invalidate_rkey = src.mr->lkey)

/* --- whole queues ----------------------------------------------------------------------------- */

/* The header holds the size and number of the elements for the library only. */
static void wrong_ring_header_is_ignored(void)
{
	struct target t = { 0 };
	struct ibv_wc wc;

	if (target_open(&t)) {
		uint32_t next = (t.sq->producer_index + 1) & t.sq->index_mask;

		good(&t);
		t.sq->log2_elem_size = 31;
		t.sq->index_mask = 0xffffffff;
		t.rq->log2_elem_size = 0;
		t.rq->index_mask = 0;
		t.sq->consumer_index = 0x12345678;
		/* Only the low bits count. */
		__atomic_store_n(&t.sq->producer_index, next | 0xffffff00u, __ATOMIC_RELEASE);
		ring_doorbell(t.p.a.qp);
		expect_wc(t.p.a.send_cq, &wc, 5, IBV_WC_SUCCESS);
	}
	pair_close(&t.p);
	world_is_well();
}

/* Random octets all over the send queue of a connected QP, repeatedly while the doorbell rings. */
static void random_send_queue(void)
{
	for (int round = 0; round < 30 && !test_failed(); round++) {
		struct target t = { 0 };

		if (target_open(&t)) {
			struct rxe_send_wqe model = *good(&t);
			uint32_t mask = t.sq->index_mask;
			size_t size = (size_t)1 << t.sq->log2_elem_size;

			for (int n = 0; n < 20; n++) {
				for (uint32_t i = 0; i <= mask; i++) {
					uint8_t *e = t.sq->data + i * size;

					if (round % 3 == 0)
						memcpy(e, &model, sizeof(model));
					for (int k = 0; k < (round % 3 ? 256 : 3); k++)
						e[any() % size] = (uint8_t)any();
				}
				t.sq->producer_index = round % 2 ? any() : any() << 8;
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
			uint32_t mask = t.rq->index_mask;
			size_t size = (size_t)1 << t.rq->log2_elem_size;

			regions_mark(&src, &dst);
			fill_any(t.rq->data, (mask + 1) * size);
			for (uint32_t i = 0; round % 2 && i <= mask; i++) {
				struct rxe_recv_wqe *e = (void *)(t.rq->data + i * size);

				e->dma.num_sge = 1 + round % 4;
			}
			t.rq->producer_index = any();
			send_breaks_receiver(&t.p, &src, &dst);
		}
		pair_close(&t.p);
	}
	world_is_well();
}

/* All queues, the completion queues too, while requests go both ways. */
static void random_octets_in_all_queues(void)
{
	struct mapping now[64];
	size_t n;

	for (int round = 0; round < 10 && !test_failed(); round++) {
		struct target t = { 0 };

		if (target_open(&t)) {
			struct ibv_sge sge = sge_of(&dst, 0, 64);
			struct ibv_send_wr wr =
				wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);

			try_send(&t.p.b, &wr);
			n = device_mappings(now, ARRAY_SIZE(now));
			for (int turn = 0; turn < 20; turn++) {
				for (size_t i = 0; i < n; i++)
					for (int k = 0; k < 2000; k++)
						now[i].start[any() % (turn % 2 ? now[i].len : 384)] =
							(uint8_t)any();
				ring_doorbell(t.p.a.qp);
				ring_doorbell(t.p.b.qp);
			}
			/* The library reads these queues during its cleanup: make them harmless. */
			for (size_t i = 0; i < n; i++)
				memset(now[i].start, 0, now[i].len);
		}
		pair_close(&t.p);
	}
	world_is_well();
}

/* --- requests without end --------------------------------------------------------------------- */

/* Enough for the processors to work in parallel. */
#define DEEP 8191
/*
 * How long the device gets more and more requests, in milliseconds, and how long a call may take
 * meanwhile. A call that waits for their end takes the former; one on a busy machine, seconds.
 */
#define ENDLESS (30000 * slow)
#define IN_TIME (10000 * slow)

static volatile bool enough;

/* One store turns the whole contents of the queue into new requests. */
static void *refill(void *arg)
{
	struct rxe_queue_buf *q = arg;
	int64_t end = now_ms() + ENDLESS;

	while (!enough && now_ms() < end) {
		for (int i = 0; i < 1000; i++) {
			uint32_t taken = __atomic_load_n(&q->consumer_index, __ATOMIC_ACQUIRE);

			__atomic_store_n(&q->producer_index, (taken - 1) & q->index_mask, __ATOMIC_RELEASE);
		}
	}
	return NULL;
}

/* The send queue holds only requests that invalidate `rkey`, and never runs empty. */
static bool refill_begin(struct target *t, uint32_t rkey, pthread_t *thread)
{
	for (uint32_t i = 0; i <= t->sq->index_mask; i++) {
		struct rxe_send_wqe *e = element(t->sq, i);

		memset(e, 0, sizeof(*e));
		e->wr.opcode = IBV_WR_LOCAL_INV;
		e->wr.ex.invalidate_rkey = rkey;
	}
	enough = false;
	if (pthread_create(thread, NULL, refill, t->sq)) {
		fail("pthread_create");
		return false;
	}
	return true;
}

static void refill_end(pthread_t thread)
{
	enough = true;
	pthread_join(thread, NULL);
}

static void was_in_time(const char *what, int64_t since)
{
	int64_t took = now_ms() - since;

	check(took < IN_TIME, "%s took %lld ms", what, (long long)took);
}

/*
 * Requests that complete at once, without a message, block neither the doorbell's caller nor other
 * streams.
 */
static void endless_requests_without_message(void)
{
	struct target t = { 0 };
	struct ibv_mw *window = NULL;
	struct region readable;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	pthread_t thread;
	struct ibv_wc wc;
	int64_t begin;

	if (target_open_deep(&t, DEEP) && region_make(&readable, t.p.a.pd, 4096, ALL_RIGHTS)) {
		window = ibv_alloc_mw(t.p.a.pd, IBV_MW_TYPE_2);
		if (!window)
			fail("ibv_alloc_mw: %s", strerror(errno));
	}
	if (window && refill_begin(&t, window->rkey, &thread)) {
		for (int64_t end = now_ms() + 2000; now_ms() < end && !test_failed();) {
			begin = now_ms();
			ring_doorbell(t.p.a.qp);
			was_in_time("the doorbell", begin);
		}
		begin = now_ms();
		sge = sge_of(&dst, 0, 64);
		wr = wr_rdma(IBV_WR_RDMA_READ, 7, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)readable.buf,
			     readable.mr->rkey);
		if (post_send(&t.p.b, &wr))
			expect_wc(t.p.b.send_cq, &wc, 7, IBV_WC_SUCCESS);
		was_in_time("a Read of the peer", begin);
		refill_end(thread);
	}
	if (window)
		ibv_dealloc_mw(window);
	pair_close(&t.p);
	world_is_well();
}

/* Flushed requests do not block a reset of the queue pair either. */
static void endless_requests_after_the_end(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct target t = { 0 };
	pthread_t thread;
	int64_t begin;

	if (target_open_deep(&t, DEEP) && refill_begin(&t, 0, &thread)) {
		if (ibv_modify_qp(t.p.a.qp, &attr, IBV_QP_STATE))
			fail("to ERR: %s", strerror(errno));
		sleep_ms(50);
		begin = now_ms();
		attr.qp_state = IBV_QPS_RESET;
		if (ibv_modify_qp(t.p.a.qp, &attr, IBV_QP_STATE))
			fail("to RESET: %s", strerror(errno));
		was_in_time("a reset", begin);
		refill_end(thread);
	}
	pair_close(&t.p);
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(corrupted_opcode_send_imm);
	RUN(corrupted_opcode_tso);
	RUN(corrupted_opcode_reg_mr);
	RUN(corrupted_opcode_flush);
	RUN(corrupted_opcode_atomic_write);
	RUN(corrupted_opcode_masked_atomic);
	RUN(corrupted_opcode_all_ones);
	RUN(corrupted_elements_33);
	RUN(corrupted_elements_beyond_the_entry);
	RUN(corrupted_elements_all_ones);
	RUN(corrupted_inline_513);
	RUN(corrupted_inline_beyond_the_entry);
	RUN(corrupted_inline_2_gib);
	RUN(corrupted_inline_all_ones);
	RUN(corrupted_inline_without_flag);
	RUN(corrupted_inline_read);
	RUN(corrupted_inline_atomic);
	RUN(corrupted_length_all_ones);
	RUN(corrupted_address_wraps);
	RUN(corrupted_address_of_the_kernel);
	RUN(corrupted_key_zero);
	RUN(corrupted_key_of_the_peer);
	RUN(corrupted_read_of_two_elements);
	RUN(corrupted_atomic_without_elements);
	RUN(corrupted_atomic_of_two_elements);
	RUN(corrupted_atomic_of_seven_octets);
	RUN(corrupted_atomic_of_no_region);
	RUN(corrupted_bind_of_no_window);
	RUN(corrupted_bind_of_a_region);
	RUN(corrupted_invalidate_of_user_memory);
	RUN(wrong_ring_header_is_ignored);
	RUN(random_send_queue);
	RUN(random_receive_queue);
	RUN(random_octets_in_all_queues);
	RUN(endless_requests_without_message);
	RUN(endless_requests_after_the_end);
	return test_end();
}

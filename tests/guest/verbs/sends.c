// SPDX-License-Identifier: GPL-2.0
/* Sends: sizes, gathering and scattering, inline data, signalling, fences, invalidation. */

#include <pthread.h>

#include "common.h"

static struct region src, dst;

/* Sends `len` octets; checks that they arrive and that nothing behind them changed. */
static bool send_len(struct pair *p, size_t len, int flags)
{
	struct ibv_sge sge = sge_of(&src, 0, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, len, flags | IBV_SEND_SIGNALED, &sge, 1);
	struct ibv_wc wc;
	ssize_t at;

	pattern_fill(src.buf, len, (uint32_t)len);
	memset(dst.buf, 0xa5, dst.len);
	if (!post_recv(&p->b, ~len, &dst, 0, dst.len) || !post_send(&p->a, &wr) ||
	    !expect_wc(p->a.send_cq, &wc, len, IBV_WC_SUCCESS))
		return false;
	if (flags & IBV_SEND_INLINE)
		memset(src.buf, 0, len); /* the buffer is ours again since the post */
	if (wc.opcode != IBV_WC_SEND || wc.qp_num != p->a.qp->qp_num) {
		fail("send completion with opcode %d, qp_num %u", wc.opcode, wc.qp_num);
		return false;
	}
	if (!expect_wc(p->b.recv_cq, &wc, ~len, IBV_WC_SUCCESS))
		return false;
	if (wc.opcode != IBV_WC_RECV || wc.byte_len != len || wc.qp_num != p->b.qp->qp_num) {
		fail("receive completion with opcode %d, byte_len %u, qp_num %u", wc.opcode,
		     wc.byte_len, wc.qp_num);
		return false;
	}
	at = pattern_differs(dst.buf, len, (uint32_t)len);
	if (at >= 0) {
		fail("octet %zd of %zu differs", at, len);
		return false;
	}
	at = not_all(dst.buf + len, dst.len - len, 0xa5);
	if (at >= 0) {
		fail("octet %zd behind a message of %zu was written", at, len);
		return false;
	}
	return true;
}

static bool prepare(struct pair *p, size_t len)
{
	return region_make(&src, p->a.pd, len, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&dst, p->b.pd, len + 64, ALL_RIGHTS);
}

PAIR_CASE(sizes)
{
	static const size_t at[] = { 1448, 1454, 4096, 8192, 8948, 16384, 32768, 65483, 65536 };

	must(prepare(p, 70000));
	for (size_t len = 0; len <= 40; len++)
		must(send_len(p, len, 0));
	for (size_t i = 0; i < ARRAY_SIZE(at); i++)
		for (size_t len = at[i] - 19; len <= at[i] + 3; len += 2)
			must(send_len(p, len, 0));
}

PAIR_CASE(large_message)
{
	must(prepare(p, (8 << 20) + 3));
	must(send_len(p, (8 << 20) + 3, 0));
}

PAIR_CASE(gather_and_scatter, .send_sge = 6, .recv_sge = 6)
{
	static const uint32_t out[6] = { 1, 4095, 0, 7, 5000, 3000 };
	static const uint32_t in[6] = { 3000, 2, 4097, 0, 1, 5003 };
	struct ibv_sge so[6], si[6];
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	size_t total = 0, at;
	uint8_t flat[12103];

	must(region_make(&src, p->a.pd, 65536, 0));
	must(region_make(&dst, p->b.pd, 65536, IBV_ACCESS_LOCAL_WRITE));
	pattern_fill(flat, sizeof(flat), 5);
	memset(dst.buf, 0x5a, dst.len);
	at = 0;
	for (int i = 0; i < 6; i++) { /* pieces from high to low addresses, odd starts */
		size_t off = (5 - i) * 10001 + 3;

		memcpy(src.buf + off, flat + at, out[i]);
		so[i] = sge_of(&src, off, out[i]);
		at += out[i];
		si[i] = sge_of(&dst, off + 11, in[i]);
		total += in[i];
	}
	check(at == total && at == sizeof(flat), "the test's own arithmetic");
	must(post_recv_sges(&p->b, 1, si, 6));
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, so, 6);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(wc.byte_len == sizeof(flat), "byte_len %u", wc.byte_len);
	at = 0;
	for (int i = 0; i < 6; i++) {
		uint8_t *piece = dst.buf + (5 - i) * 10001 + 14;

		check(!memcmp(piece, flat + at, in[i]), "piece %d differs", i);
		check(piece[-1] == 0x5a && piece[in[i]] == 0x5a, "beside piece %d", i);
		at += in[i];
	}
}

PAIR_CASE(inline_data, .inline_data = 64)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint32_t max;

	must(prepare(p, 4096));
	check(!ibv_query_qp(p->a.qp, &attr, IBV_QP_CAP, &init), "ibv_query_qp");
	max = init.cap.max_inline_data;
	check(max >= 64, "max_inline_data %u although 64 was asked for", max);
	for (size_t len = 0; len <= max; len++)
		must(send_len(p, len, IBV_SEND_INLINE));
}

/* Inline data needs no memory region; several pieces are gathered. */
PAIR_CASE(inline_without_region, .inline_data = 64)
{
	char text[] = "inline pieces";
	struct ibv_sge sge[2] = {
		{ .addr = (uintptr_t)text, .length = 7, .lkey = 0xdeadbeef },
		{ .addr = (uintptr_t)text + 7, .length = 6, .lkey = 0 },
	};
	struct ibv_send_wr wr =
		wr_make(IBV_WR_SEND, 1, IBV_SEND_INLINE | IBV_SEND_SIGNALED, sge, 2);
	struct ibv_wc wc;

	must(region_make(&dst, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(post_recv(&p->b, 2, &dst, 0, 100));
	must(post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	check(wc.byte_len == 13 && !memcmp(dst.buf, "inline pieces", 13), "got %u: %.13s",
	      wc.byte_len, dst.buf);
}

PAIR_CASE(inline_too_long_is_refused, .inline_data = 64)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	must(prepare(p, 4096));
	sge = sge_of(&src, 0, 4096);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_INLINE | IBV_SEND_SIGNALED, &sge, 1);
	check(try_send(&p->a, &wr) != 0, "4096 octets of inline data were taken");
	must(exchange_works(p));
}

PAIR_CASE(unsignalled)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 50; i++)
			must(post_recv(&p->b, i, &dst, 0, 64));
		for (int i = 0; i < 50; i++) {
			sge = sge_of(&src, i, 16);
			wr = wr_make(IBV_WR_SEND, i, i == 49 ? IBV_SEND_SIGNALED : 0, &sge, 1);
			must(post_send(&p->a, &wr));
		}
		for (int i = 0; i < 50; i++)
			must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
		must(expect_wc(p->a.send_cq, &wc, 49, IBV_WC_SUCCESS));
		must(expect_no_wc(p->a.send_cq, 0));
	}
}

PAIR_CASE(signal_all, .sig_all = true)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	for (int i = 0; i < 20; i++) {
		must(post_recv(&p->b, i, &dst, 0, 64));
		sge = sge_of(&src, 0, 16);
		wr = wr_make(IBV_WR_SEND, i, 0, &sge, 1);
		must(post_send(&p->a, &wr));
	}
	for (int i = 0; i < 20; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
}

/* A list of work requests in one post, filling the whole queue. */
PAIR_CASE(full_send_queue_completes_in_order, .sq_depth = 64, .rq_depth = 64)
{
	struct ibv_send_wr wr[64];
	struct ibv_sge sge[64];
	struct ibv_wc wc;

	must(prepare(p, 65536));
	pattern_fill(src.buf, 65536, 3);
	for (int i = 0; i < 64; i++)
		must(post_recv(&p->b, i, &dst, i * 1024, 1024));
	for (int i = 0; i < 64; i++) {
		sge[i] = sge_of(&src, i * 1024, 1024);
		wr[i] = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge[i], 1);
		wr[i].next = i < 63 ? &wr[i + 1] : NULL;
	}
	must(post_send(&p->a, wr));
	for (int i = 0; i < 64; i++) {
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
	}
	check(pattern_differs(dst.buf, 65536, 3) < 0, "data differs");
}

PAIR_CASE(post_to_full_send_queue_is_refused, .sq_depth = 16)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int max, posted = 0, rc = 0;

	must(prepare(p, 1 << 20));
	check(!ibv_query_qp(p->a.qp, &attr, IBV_QP_CAP, &init), "ibv_query_qp");
	max = (int)init.cap.max_send_wr;
	check(max >= 16, "max_send_wr %d", max);
	/* Unanswered Reads cannot be made here; large Writes keep the queue busy. */
	for (int i = 0; i < 4 * max && !rc; i++) {
		sge = sge_of(&src, 0, 1 << 20);
		wr = wr_rdma(IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, &sge, 1,
			     (uintptr_t)dst.buf, dst.mr->rkey);
		rc = try_send(&p->a, &wr);
		posted += !rc;
	}
	check(!rc || rc == ENOMEM, "refused with %s", strerror(rc));
	for (int i = 0; i < posted; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	must(expect_no_wc(p->a.send_cq, QUIET));
	must(exchange_works(p));
}

/*
 * The device frees a process's send queue entries when it takes the requests, so the process can
 * post more requests than are pending at a time. The accepted requests complete, also when a Read
 * at the head of the queue blocked it, or TCP took no more.
 */
static void all_that_was_accepted(struct pair *p, enum ibv_wr_opcode first)
{
	static const size_t len = 16 << 20;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	int posted, rc;

	must(prepare(p, len));
	for (int round = 0; round < 4; round++) {
		sge = sge_of(&src, 0, len);
		wr = wr_rdma(first, 0, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)dst.buf, dst.mr->rkey);
		must(post_send(&p->a, &wr));
		for (posted = 1, rc = 0; posted < 200 && !rc; posted += !rc) {
			sge = sge_of(&src, 0, 8);
			wr = wr_rdma(IBV_WR_RDMA_WRITE, posted, IBV_SEND_SIGNALED, &sge, 1,
				     (uintptr_t)dst.buf, dst.mr->rkey);
			rc = try_send(&p->a, &wr);
		}
		check(!rc || rc == ENOMEM, "refused with %s", strerror(rc));
		for (int i = 0; i < posted; i++)
			must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		must(expect_no_wc(p->a.send_cq, QUIET));
	}
	must(exchange_works(p));
}

PAIR_CASE(send_queue_full_behind_read, .sq_depth = 8, .cq_depth = 256)
{
	all_that_was_accepted(p, IBV_WR_RDMA_READ);
}

PAIR_CASE(send_queue_full_behind_write, .sq_depth = 8, .cq_depth = 256)
{
	all_that_was_accepted(p, IBV_WR_RDMA_WRITE);
}

static void *overwrite(void *stop)
{
	for (uint8_t value = 0; !__atomic_load_n((bool *)stop, __ATOMIC_RELAXED); value++)
		memset(src.buf, value, src.len);
	return NULL;
}

/*
 * A process that changes a buffer while it is sent may send any contents; but each FPDU has the CRC
 * of what it carries, so the stream goes on.
 */
PAIR_CASE(buffer_changed_during_send_keeps_crc_valid, .sq_depth = 32, .rq_depth = 32)
{
	enum { ROUNDS = 20, SENDS = 16 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	pthread_t thread;
	bool stop = false, good = true;

	must(prepare(p, 1 << 18));
	check(!pthread_create(&thread, NULL, overwrite, &stop), "pthread_create");
	for (int round = 0; good && round < ROUNDS; round++) {
		for (int i = 0; good && i < SENDS; i++) {
			sge = sge_of(&src, 0, src.len);
			wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);
			good = post_recv(&p->b, i, &dst, 0, src.len) && post_send(&p->a, &wr);
		}
		for (int i = 0; good && i < SENDS; i++)
			good = expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS) &&
			       expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	if (good)
		must(exchange_works(p));
}

/* A fenced Send may carry what an earlier Read has just fetched. */
PAIR_CASE(fence_waits_for_read)
{
	struct region remote = { 0 };
	struct ibv_send_wr wr[2];
	struct ibv_sge sge[2];
	struct ibv_wc wc;
	const size_t len = 200000;

	must(prepare(p, len));
	must(region_make(&remote, p->b.pd, len, IBV_ACCESS_REMOTE_READ));
	for (int round = 0; round < 10; round++) {
		pattern_fill(remote.buf, len, round + 1);
		memset(src.buf, 0, len);
		must(post_recv(&p->b, 3, &dst, 0, len));
		sge[0] = sge_of(&src, 0, len);
		sge[1] = sge[0];
		wr[0] = wr_rdma(IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, &sge[0], 1,
				(uintptr_t)remote.buf, remote.mr->rkey);
		wr[1] = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE, &sge[1], 1);
		wr[0].next = &wr[1];
		must(post_send(&p->a, wr));
		must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
		must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_SUCCESS));
		check(pattern_differs(dst.buf, len, round + 1) < 0,
		      "the fenced Send carried old data from octet %zd on",
		      pattern_differs(dst.buf, len, round + 1));
	}
}

PAIR_CASE(fenced_read)
{
	struct region remote = { 0 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	must(region_make(&remote, p->b.pd, 4096, IBV_ACCESS_REMOTE_READ));
	pattern_fill(remote.buf, 4096, 4);
	for (int i = 0; i < 10; i++) {
		sge = sge_of(&src, 0, 4096);
		wr = wr_rdma(IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED | IBV_SEND_FENCE, &sge, 1,
			     (uintptr_t)remote.buf, remote.mr->rkey);
		must(post_send(&p->a, &wr));
	}
	for (int i = 0; i < 10; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	check(pattern_differs(src.buf, 4096, 4) < 0, "data differs");
}

/*
 * Every stream of a PD shares a user's region, so a peer may not invalidate it (RFC 5040, section
 * 5.3): the stream ends. (tests/hostile checks the region afterwards.)
 */
PAIR_CASE(invalidate_of_a_shared_region_ends_the_stream)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	must(post_recv(&p->b, 1, &dst, 0, 64));
	must(post_recv(&p->b, 2, &dst, 0, 64));
	sge = sge_of(&src, 0, 16);
	wr = wr_make(IBV_WR_SEND_WITH_INV, 3, IBV_SEND_SIGNALED, &sge, 1);
	wr.invalidate_rkey = dst.mr->rkey;
	wr.wr.rdma.rkey = dst.mr->rkey; /* libsiw takes it from there */
	must(post_send(&p->a, &wr));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(p->b.id->verbs, p->b.qp, SOON), "no event at the receiver, only %s",
	      async_list(p->b.id->verbs));
	check(poll_wc(p->b.recv_cq, &wc, SOON), "the receive never completed");
	check(wc.status != IBV_WC_SUCCESS, "the receive completed with success");
	check(poll_wc(p->b.recv_cq, &wc, SOON) && wc.status == IBV_WC_WR_FLUSH_ERR,
	      "the other receive was not flushed");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(sizes);
	RUN(large_message);
	RUN(gather_and_scatter);
	RUN(inline_data);
	RUN(inline_without_region);
	RUN(inline_too_long_is_refused);
	RUN(unsignalled);
	RUN(signal_all);
	RUN(full_send_queue_completes_in_order);
	RUN(post_to_full_send_queue_is_refused);
	RUN(send_queue_full_behind_read);
	RUN(send_queue_full_behind_write);
	RUN(buffer_changed_during_send_keeps_crc_valid);
	RUN(fence_waits_for_read);
	RUN(fenced_read);
	RUN(invalidate_of_a_shared_region_ends_the_stream);
	return test_end();
}

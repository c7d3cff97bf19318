// SPDX-License-Identifier: GPL-2.0
/* Local completions come in the order of posting, whatever the kinds (RFC 5040, section 5.5). */

#include "common.h"

static struct region local, remote;

static bool prepare(struct pair *p, size_t len)
{
	return region_make(&local, p->a.pd, len, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, len, ALL_RIGHTS);
}

static bool post_kind(struct pair *p, char kind, int i, size_t read_len, int flags)
{
	struct ibv_sge sge = sge_of(&local, 0, kind == 'r' ? read_len : 64);
	struct ibv_send_wr wr = wr_rdma(kind == 'r' ? IBV_WR_RDMA_READ :
					kind == 'w' ? IBV_WR_RDMA_WRITE :
						      IBV_WR_SEND,
					i, flags, &sge, 1, (uintptr_t)remote.buf,
					remote.mr->rkey);

	if (kind == 's' && !post_recv(&p->b, i, &remote, 0, 64))
		return false;
	return post_send(&p->a, &wr);
}

static void sequence(struct pair *p, const char *kinds)
{
	struct ibv_wc wc;
	int n = (int)strlen(kinds);

	must(prepare(p, 1 << 20));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < n; i++)
			must(post_kind(p, kinds[i], i, 1 << 20, IBV_SEND_SIGNALED));
		for (int i = 0; i < n; i++) {
			must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
			check(wc.opcode == (kinds[i] == 'r' ? IBV_WC_RDMA_READ :
					    kinds[i] == 'w' ? IBV_WC_RDMA_WRITE :
							      IBV_WC_SEND),
			      "completion %d has opcode %d", i, wc.opcode);
		}
		while (poll_wc(p->b.recv_cq, &wc, 0))
			;
	}
}

PAIR_CASE(send_behind_read) { sequence(p, "rs"); }
PAIR_CASE(write_behind_read) { sequence(p, "rw"); }
PAIR_CASE(write_between_reads) { sequence(p, "rwrwrsrr"); }
PAIR_CASE(many_requests_behind_one_read) { sequence(p, "rssswwwssswwws"); }
PAIR_CASE(reads_beyond_the_depth, .depth = 2) { sequence(p, "rrrrrwssrrr"); }

/* An unsignalled Read delays the completions behind it just the same. */
PAIR_CASE(send_behind_unsignalled_read)
{
	struct ibv_wc wc;

	must(prepare(p, 1 << 20));
	for (int round = 0; round < 5; round++) {
		pattern_fill(remote.buf + 64, (1 << 20) - 64, round);
		memset(local.buf, 0, 1 << 20);
		must(post_kind(p, 'r', 1, 1 << 20, 0));
		must(post_kind(p, 's', 2, 0, IBV_SEND_SIGNALED));
		must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
		check(!memcmp(local.buf + 64, remote.buf + 64, (1 << 20) - 64),
		      "the Send completed before the Read's data was there");
		must(expect_no_wc(p->a.send_cq, 0));
		must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	}
}

/* Each Write overlaps the ones before it: the final contents show their order. */
PAIR_CASE(writes_land_in_order)
{
	enum { WRITES = 60, STEP = 8, LEN = 64 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, WRITES * LEN));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < WRITES; i++) {
			memset(local.buf + i * LEN, round * WRITES + i, LEN);
			sge = sge_of(&local, i * LEN, LEN);
			wr = wr_rdma(IBV_WR_RDMA_WRITE, i, 0, &sge, 1,
				     (uintptr_t)remote.buf + i * STEP, remote.mr->rkey);
			must(post_send(&p->a, &wr));
		}
		must(post_kind(p, 'r', WRITES, 0, IBV_SEND_SIGNALED));
		must(expect_wc(p->a.send_cq, &wc, WRITES, IBV_WC_SUCCESS));
		for (int i = 0; i < WRITES; i++)
			check(not_all(remote.buf + i * STEP, STEP, round * WRITES + i) < 0,
			      "Write %d was overwritten by one before it", i);
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(send_behind_read);
	RUN(write_behind_read);
	RUN(write_between_reads);
	RUN(many_requests_behind_one_read);
	RUN(reads_beyond_the_depth);
	RUN(send_behind_unsignalled_read);
	RUN(writes_land_in_order);
	return test_end();
}

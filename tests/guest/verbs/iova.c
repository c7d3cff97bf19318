// SPDX-License-Identifier: GPL-2.0
/* A region is accessed by its iova, not by its address in the process. */

#include "common.h"

static struct region local, backing;

struct window {
	struct ibv_mr *mr;
	uint64_t iova;
	uint8_t *start;
};

/*
 * Registers 3 * PAGE octets of the backing memory under `iova`. The kernel requires the same page
 * offset of both addresses.
 */
static bool window_make(struct window *w, struct ibv_pd *pd, uint64_t iova)
{
	w->iova = iova;
	w->start = backing.buf + PAGE + iova % PAGE;
	w->mr = ibv_reg_mr_iova(pd, w->start, 3 * PAGE, iova, ALL_RIGHTS);
	if (!w->mr)
		fail("ibv_reg_mr_iova at %#llx: %s", (unsigned long long)iova, strerror(errno));
	return w->mr != NULL;
}

static bool prepare(struct pair *p)
{
	return region_make(&local, p->a.pd, 1 << 16, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&backing, p->b.pd, 6 * PAGE, 0);
}

static bool transfer(struct end *e, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t raddr,
		     uint32_t rkey, enum ibv_wc_status status)
{
	struct ibv_send_wr wr = wr_rdma(op, 1, IBV_SEND_SIGNALED, &sge, 1, raddr, rkey);
	struct ibv_wc wc;

	return post_send(e, &wr) && expect_wc(e->send_cq, &wc, 1, status);
}

static void remote_use(struct pair *p, uint64_t iova)
{
	struct window w;
	uint8_t *at;

	must(prepare(p));
	must(window_make(&w, p->b.pd, iova));
	pattern_fill(local.buf, 9000, 1);
	memset(backing.buf, 0x33, backing.len);
	must(transfer(&p->a, IBV_WR_RDMA_WRITE, sge_of(&local, 0, 9000), iova + 100, w.mr->rkey,
		      IBV_WC_SUCCESS));
	must(transfer(&p->a, IBV_WR_RDMA_READ, sge_of(&local, 20000, 9000), iova + 100, w.mr->rkey,
		      IBV_WC_SUCCESS));
	at = w.start + 100;
	check(pattern_differs(at, 9000, 1) < 0, "written at the wrong place");
	check(not_all(backing.buf, at - backing.buf, 0x33) < 0, "written before the target");
	check(not_all(at + 9000, backing.buf + backing.len - at - 9000, 0x33) < 0,
	      "written behind the target");
	check(pattern_differs(local.buf + 20000, 9000, 1) < 0, "read from the wrong place");
	/* First and last octet. */
	must(transfer(&p->a, IBV_WR_RDMA_WRITE, sge_of(&local, 0, 1), iova, w.mr->rkey,
		      IBV_WC_SUCCESS));
	must(transfer(&p->a, IBV_WR_RDMA_WRITE, sge_of(&local, 1, 1), iova + 3 * PAGE - 1,
		      w.mr->rkey, IBV_WC_SUCCESS));
	must(transfer(&p->a, IBV_WR_RDMA_READ, sge_of(&local, 0, 0), 0, 0, IBV_WC_SUCCESS));
	check(w.start[0] == local.buf[0] && w.start[3 * PAGE - 1] == local.buf[1],
	      "first or last octet went astray");
	/* The process's own address is not the region's. */
	must(transfer(&p->a, IBV_WR_RDMA_READ, sge_of(&local, 0, 16), (uintptr_t)w.start,
		      w.mr->rkey, IBV_WC_REM_ACCESS_ERR));
	ibv_dereg_mr(w.mr);
}

PAIR_CASE(zero_based) { remote_use(p, 0); }
PAIR_CASE(low_iova) { remote_use(p, 0x10000018); }
PAIR_CASE(odd_iova) { remote_use(p, 0x12345679); }
PAIR_CASE(high_iova) { remote_use(p, 0xfffffffff0000018ULL); }
PAIR_CASE(iova_near_the_end_of_address_space) { remote_use(p, 0ULL - 4 * PAGE); }

PAIR_CASE(iova_in_local_requests)
{
	struct ibv_sge in = { .addr = 7 * PAGE, .length = 5000 };
	struct window w;
	struct ibv_send_wr wr;
	struct ibv_sge out;
	struct ibv_wc wc;

	must(prepare(p));
	must(window_make(&w, p->b.pd, 7 * PAGE - 10));
	in.lkey = w.mr->lkey;
	memset(backing.buf, 0x33, backing.len);
	pattern_fill(local.buf, 5000, 2);
	must(post_recv_sges(&p->b, 5, &in, 1));
	out = sge_of(&local, 0, 5000);
	wr = wr_make(IBV_WR_SEND, 6, IBV_SEND_SIGNALED, &out, 1);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 5, IBV_WC_SUCCESS));
	check(pattern_differs(w.start + 10, 5000, 2) < 0, "received at the wrong place");
	check(not_all(backing.buf, w.start + 10 - backing.buf, 0x33) < 0,
	      "written before the target");
	must(expect_wc(p->a.send_cq, &wc, 6, IBV_WC_SUCCESS));
	/* The source of a Send is at the iova too. */
	must(post_recv(&p->a, 7, &local, 30000, 5000));
	wr = wr_make(IBV_WR_SEND, 8, IBV_SEND_SIGNALED, &in, 1);
	must(post_send(&p->b, &wr));
	must(expect_wc(p->b.send_cq, &wc, 8, IBV_WC_SUCCESS));
	must(expect_wc(p->a.recv_cq, &wc, 7, IBV_WC_SUCCESS));
	check(pattern_differs(local.buf + 30000, 5000, 2) < 0, "sent from the wrong place");
	ibv_dereg_mr(w.mr);
}

/* A range that wraps past the end of the 64-bit address space cannot be registered. */
PAIR_CASE(wrapping_iova_range_is_refused)
{
	struct ibv_mr *mr;

	must(prepare(p));
	mr = ibv_reg_mr_iova(p->b.pd, backing.buf, 2 * PAGE, 0ULL - PAGE, ALL_RIGHTS);
	check(!mr, "two pages at the last one were registered");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(zero_based);
	RUN(low_iova);
	RUN(odd_iova);
	RUN(high_iova);
	RUN(iova_near_the_end_of_address_space);
	RUN(iova_in_local_requests);
	RUN(wrapping_iova_range_is_refused);
	return test_end();
}

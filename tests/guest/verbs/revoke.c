// SPDX-License-Identifier: GPL-2.0
/*
 * Once a region is deregistered or reregistered, the network no longer changes or reads its memory
 * (RFC 5040, section 8.1.1; RDMAP-165), however busy the peer is with it at that moment.
 */

#include <pthread.h>

#include "common.h"

#define TARGET (1 << 20)
#define PIECE (1 << 16)
#define DEPTH 16
#define POISON 0xaa

static struct region local, target;

struct traffic {
	struct end *end;
	enum ibv_wr_opcode op;
	uint64_t raddr;
	uint32_t rkey;
	unsigned long done;
	enum ibv_wc_status status;
};

/*
 * Keeps DEPTH operations outstanding all over the target until one fails. Rejected posts and a
 * timeout end it as well, with the status of success.
 */
static void *traffic_run(void *arg)
{
	struct traffic *t = arg;
	int64_t end = now_ms() + 2 * SOON;
	unsigned long posted = 0;
	struct ibv_wc wc;

	while (t->status == IBV_WC_SUCCESS && now_ms() < end) {
		while (posted - t->done < DEPTH) {
			struct ibv_sge sge = sge_of(&local, posted % DEPTH * PIECE, PIECE);
			struct ibv_send_wr wr = wr_rdma(t->op, posted, IBV_SEND_SIGNALED, &sge, 1,
							t->raddr + posted * PIECE % TARGET, t->rkey);

			if (try_send(t->end, &wr))
				return NULL;
			posted++;
		}
		if (!poll_wc(t->end->send_cq, &wc, SOON))
			return NULL;
		t->status = wc.status;
		__atomic_fetch_add(&t->done, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Reregisters the target with other memory, which the case does not use. */
static bool register_anew(struct region *r)
{
	static uint8_t other[TARGET] __attribute__((aligned(4096)));
	int error = rereg(r->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, TARGET, 0);

	if (error)
		fail("reregistration: %s", strerror(error));
	return !error;
}

/*
 * Starts traffic from end a to a fresh region of end b, revokes it after `after` operations, and
 * poisons its memory at once.
 */
static bool revoke_under(struct pair *p, struct traffic *t, enum ibv_wr_opcode op,
			 unsigned long after, bool (*revoke)(struct region *))
{
	int64_t end = now_ms() + SOON;
	pthread_t thread;

	if (!region_make(&local, p->a.pd, DEPTH * PIECE, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&target, p->b.pd, TARGET, ALL_RIGHTS))
		return false;
	memset(local.buf, 0x11, local.len);
	memset(target.buf, 0x22, target.len);
	*t = (struct traffic){
		.end = &p->a,
		.op = op,
		.raddr = (uintptr_t)target.buf,
		.rkey = target.mr->rkey,
	};
	if (pthread_create(&thread, NULL, traffic_run, t)) {
		fail("pthread_create: %s", strerror(errno));
		return false;
	}
	while (__atomic_load_n(&t->done, __ATOMIC_RELAXED) < after && now_ms() < end)
		;
	if (!revoke(&target)) {
		pthread_join(thread, NULL);
		return false;
	}
	memset(target.buf, POISON, target.len);
	pthread_join(thread, NULL);
	if (t->done < after) {
		fail("only %lu of %lu operations came through", t->done, after);
		return false;
	}
	if (t->status == IBV_WC_SUCCESS) {
		fail("nothing told the peer that the region is gone");
		return false;
	}
	return true;
}

static void writes(struct pair *p, unsigned long after, bool (*revoke)(struct region *))
{
	struct traffic t;
	ssize_t at;

	must(revoke_under(p, &t, IBV_WR_RDMA_WRITE, after, revoke));
	sleep_ms(20);
	at = not_all(target.buf, target.len, POISON);
	check(at < 0, "octet %zd was written afterwards", at);
}

/* Octets read before are 0x22, octets never read 0x11; no others may appear. */
static void reads(struct pair *p, unsigned long after, bool (*revoke)(struct region *))
{
	struct traffic t;
	size_t i;

	must(revoke_under(p, &t, IBV_WR_RDMA_READ, after, revoke));
	for (i = 0; i < local.len; i++)
		check(local.buf[i] == 0x11 || local.buf[i] == 0x22,
		      "octet %zu (0x%02x) was read afterwards", i, local.buf[i]);
}

PAIR_CASE(first_write) { writes(p, 0, region_release); }
PAIR_CASE(early_write) { writes(p, 1, region_release); }
PAIR_CASE(later_write) { writes(p, 30, region_release); }
PAIR_CASE(late_write) { writes(p, 100, region_release); }
PAIR_CASE(first_read) { reads(p, 0, region_release); }
PAIR_CASE(early_read) { reads(p, 1, region_release); }
PAIR_CASE(later_read) { reads(p, 30, region_release); }
PAIR_CASE(late_read) { reads(p, 100, region_release); }
PAIR_CASE(write_at_reregistration) { writes(p, 30, register_anew); }
PAIR_CASE(read_at_reregistration) { reads(p, 30, register_anew); }

/* The same STag index with another key is another region: an old rkey never reaches a new one. */
PAIR_CASE(old_rkey_does_not_reach_new_region)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint32_t rkey;

	must(region_make(&local, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&target, p->b.pd, 4096, ALL_RIGHTS));
	rkey = target.mr->rkey;
	memset(target.buf, POISON, target.len);
	must(region_release(&target));
	target.mr = ibv_reg_mr(p->b.pd, target.buf, target.len, ALL_RIGHTS);
	check(target.mr, "registered again: %s", strerror(errno));
	check(target.mr->rkey != rkey, "the key came back at once");
	sge = sge_of(&local, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)target.buf, rkey);
	must(post_send(&p->a, &wr));
	/* A Write completes when it is sent; a Terminate comes back. */
	check(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON), "the queue pair lives on");
	check(poll_wc(p->a.send_cq, &wc, SOON), "no completion");
	check(not_all(target.buf, target.len, POISON) < 0, "the old key reached the new region");
	must(region_release(&target));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(first_write);
	RUN(early_write);
	RUN(later_write);
	RUN(late_write);
	RUN(first_read);
	RUN(early_read);
	RUN(later_read);
	RUN(late_read);
	RUN(write_at_reregistration);
	RUN(read_at_reregistration);
	RUN(old_rkey_does_not_reach_new_region);
	return test_end();
}

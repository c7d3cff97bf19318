// SPDX-License-Identifier: GPL-2.0
/*
 * What only librxe offers: atomic operations, Immediate Data, long lists, much inline data, and the
 * newer ways to post and to poll.
 */

#include "modify.h"

#include "../../../utils/riwarp.h"

#include <arpa/inet.h>
#include <pthread.h>

#define RIGHTS (ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC)
/* Of a completion of Immediate Data; a Send with Immediate and payload has only the first. */
#define IMMEDIATE_FLAGS (IBV_WC_WITH_IMM | RIWARP_WC_IMMEDIATE_DATA)

static struct region local, remote;

static bool prepare(struct pair *p, size_t len)
{
	if (!region_make(&local, p->a.pd, len, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, p->b.pd, len, RIGHTS))
		return false;
	memset(local.buf, 0x22, len);
	memset(remote.buf, 0x11, len);
	return true;
}

static uint64_t *word(struct region *r, size_t index) { return (uint64_t *)r->buf + index; }

/* --- atomic operations ------------------------------------------------------------------------ */

static struct ibv_send_wr atomic(enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge, size_t index,
				 uint64_t add_or_compare, uint64_t swap)
{
	struct ibv_send_wr wr = wr_make(op, id, IBV_SEND_SIGNALED, sge, 1);

	wr.wr.atomic.remote_addr = (uintptr_t)word(&remote, index);
	wr.wr.atomic.rkey = remote.mr->rkey;
	wr.wr.atomic.compare_add = add_or_compare;
	wr.wr.atomic.swap = swap;
	return wr;
}

/* Does one operation on the peer's word, which is `before`, and checks the result. */
static void operation(struct pair *p, enum ibv_wr_opcode op, uint64_t before, uint64_t add_or_compare,
		      uint64_t swap, uint64_t after)
{
	struct ibv_sge sge = sge_of(&local, 16, 8);
	struct ibv_send_wr wr = atomic(op, before, &sge, 3, add_or_compare, swap);
	struct ibv_wc wc;

	*word(&remote, 3) = before;
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, before, IBV_WC_SUCCESS));
	check(wc.opcode == (op == IBV_WR_ATOMIC_FETCH_AND_ADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP),
	      "opcode %d", wc.opcode);
	check(wc.byte_len == 8, "%u octets", wc.byte_len);
	check(*word(&local, 2) == before, "fetched %#lx", *word(&local, 2));
	check(*word(&remote, 3) == after, "left %#lx", *word(&remote, 3));
	check(*word(&remote, 2) == 0x1111111111111111 && *word(&remote, 4) == 0x1111111111111111 &&
		      *word(&local, 1) == 0x2222222222222222 &&
		      *word(&local, 3) == 0x2222222222222222,
	      "something beside was written");
}

PAIR_CASE(fetch_and_add)
{
	must(prepare(p, 4096));
	operation(p, IBV_WR_ATOMIC_FETCH_AND_ADD, 40, 2, 99, 42);
	operation(p, IBV_WR_ATOMIC_FETCH_AND_ADD, ~0ULL, 1, 0, 0);
	operation(p, IBV_WR_ATOMIC_FETCH_AND_ADD, 0xffffffff, 1, 0, 0x100000000);
	operation(p, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, ~0ULL, 0, 4);
}

PAIR_CASE(compare_and_swap)
{
	must(prepare(p, 4096));
	operation(p, IBV_WR_ATOMIC_CMP_AND_SWP, 7, 7, 9, 9);
	operation(p, IBV_WR_ATOMIC_CMP_AND_SWP, 7, 8, 9, 7);
	operation(p, IBV_WR_ATOMIC_CMP_AND_SWP, ~0ULL, ~0ULL, 0, 0);
}

/*
 * More operations than the depth allows, among Reads, complete in order, each with its own value.
 */
PAIR_CASE(atomics_beyond_the_depth, .depth = 2)
{
	struct ibv_wc wc;

	must(prepare(p, 4096));
	*word(&remote, 0) = 100;
	for (int i = 0; i < 20; i++) {
		struct ibv_sge sge = sge_of(&local, 8 * i, 8);
		struct ibv_send_wr wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge, 0, 1, 0);

		if (i % 5 == 4)
			wr = wr_rdma(IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED, &sge, 1,
				     (uintptr_t)remote.buf, remote.mr->rkey);
		must(post_send(&p->a, &wr));
	}
	for (int i = 0; i < 20; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	for (int i = 0; i < 20; i++)
		check(*word(&local, i) == 100 + (uint64_t)i - i / 5, "number %d fetched %lu", i,
		      *word(&local, i));
	check(*word(&remote, 0) == 116, "left %lu", *word(&remote, 0));
}

/* An atomic operation that the peer's memory does not allow. */
static void refused_atomic(struct pair *p, int access, size_t offset)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(region_make(&local, p->a.pd, 4096, IBV_ACCESS_LOCAL_WRITE) &&
	     region_make(&remote, p->b.pd, 4096, access));
	memset(remote.buf, 0x11, 4096);
	memset(local.buf, 0x22, 4096);
	sge = sge_of(&local, 0, 8);
	wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge, offset / 8, 1, 0);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_REM_ACCESS_ERR));
	check(not_all(remote.buf, 4096, 0x11) < 0, "the peer's memory was written");
	check(not_all(local.buf, 4096, 0x22) < 0, "the local buffer was written");
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
}

PAIR_CASE(atomic_without_the_right) { refused_atomic(p, ALL_RIGHTS, 0); }
PAIR_CASE(atomic_behind_the_region) { refused_atomic(p, RIGHTS, 4096); }

#define ADDERS 16
#define ADDITIONS 300

/* Pins the caller to a processor, modulo their number. */
static void keep_to(long processor)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)(processor % sysconf(_SC_NPROCESSORS_ONLN)), &one);
	if (pthread_setaffinity_np(pthread_self(), sizeof(one), &one))
		fail("no such processor");
}

static struct {
	uint64_t *counter;
	bool off;
	uint64_t done;
} adding;

/* Adds all the time, on another processor than the connections. */
static void *add_here(void *unused)
{
	uint64_t done = 0;

	(void)unused;
	keep_to(1);
	for (; !__atomic_load_n(&adding.off, __ATOMIC_RELAXED); done++)
		__atomic_fetch_add(adding.counter, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&adding.done, done, __ATOMIC_RELAXED);
	return NULL;
}

/*
 * One counter, incremented over connections of two devices and by threads here: no addition is
 * lost.
 */
static void counters_add_up(void)
{
	struct sockaddr_in *device = (struct sockaddr_in *)&test_addr;
	struct in_addr addrs[2] = { device->sin_addr };
	static struct pair p[ADDERS];
	struct region counter, fetched[ADDERS];
	pthread_t threads[2];
	struct ibv_wc wc;

	memset(p, 0, sizeof(p));
	memset(&counter, 0, sizeof(counter));
	check(getenv("OTHER") && inet_pton(AF_INET, getenv("OTHER"), &addrs[1]) == 1,
	      "no address of another device");
	for (int i = 0; i < ADDERS; i++) {
		device->sin_addr = addrs[i & 1];
		if (!pair_open(&p[i], NULL) ||
		    !region_make(&fetched[i], p[i].a.pd, 4096, IBV_ACCESS_LOCAL_WRITE))
			goto out;
	}
	if (p[0].b.id->verbs->device == p[1].b.id->verbs->device)
		fail("one device is both");
	/* Each connection has a protection domain of its own, so the same memory is registered for each. */
	if (!region_make(&counter, p[0].b.pd, 4096, RIGHTS))
		goto out;
	{
		struct ibv_mr *mrs[ADDERS];

		for (int i = 0; i < ADDERS; i++)
			mrs[i] = ibv_reg_mr(p[i].b.pd, counter.buf, 4096, RIGHTS);
		adding.counter = (uint64_t *)counter.buf;
		keep_to(0);
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, add_here, NULL);
		for (int n = 0; n < ADDITIONS && !test_failed(); n++) {
			for (int i = 0; i < ADDERS; i++) {
				struct ibv_sge sge = sge_of(&fetched[i], 0, 8);
				struct ibv_send_wr wr = wr_make(IBV_WR_ATOMIC_FETCH_AND_ADD, n,
								IBV_SEND_SIGNALED, &sge, 1);

				wr.wr.atomic.remote_addr = (uintptr_t)counter.buf;
				wr.wr.atomic.rkey = mrs[i]->rkey;
				wr.wr.atomic.compare_add = 1;
				post_send(&p[i].a, &wr);
			}
			for (int i = 0; i < ADDERS; i++)
				expect_wc(p[i].a.send_cq, &wc, n, IBV_WC_SUCCESS);
		}
		__atomic_store_n(&adding.off, true, __ATOMIC_RELAXED);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		for (int i = 0; i < ADDERS; i++)
			ibv_dereg_mr(mrs[i]);
	}
	if (*(uint64_t *)counter.buf != ADDERS * ADDITIONS + adding.done)
		fail("%lu instead of %d and %lu", *(uint64_t *)counter.buf, ADDERS * ADDITIONS, adding.done);
out:
	device->sin_addr = addrs[0];
	for (int i = 0; i < ADDERS; i++)
		pair_close(&p[i]);
}

/* --- Immediate Data --------------------------------------------------------------------------- */

static bool post_immediate(struct pair *p, uint64_t id, size_t len, int flags, uint32_t value)
{
	struct ibv_sge sge = sge_of(&local, 0, len);
	struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, id, IBV_SEND_SIGNALED | flags, &sge,
					len ? 1 : 0, (uintptr_t)remote.buf, remote.mr->rkey);

	wr.imm_data = htonl(value);
	return post_send(&p->a, &wr);
}

static void immediate(struct pair *p, uint64_t id, size_t len, int flags)
{
	struct ibv_wc wc;

	memset(remote.buf, 0x11, remote.len);
	pattern_fill(local.buf, len, (uint32_t)id);
	must(post_immediate(p, id, len, flags, 0xfeed0000 + (uint32_t)id));
	must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RDMA_WRITE, "opcode %d", wc.opcode);
	must(poll_wc(p->b.recv_cq, &wc, SOON));
	check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
	      "status %d, opcode %d", wc.status, wc.opcode);
	check(wc.wc_flags == IMMEDIATE_FLAGS && ntohl(wc.imm_data) == 0xfeed0000 + (uint32_t)id,
	      "flags %#x, value %#x", wc.wc_flags, ntohl(wc.imm_data));
	check(wc.byte_len == len, "%u octets instead of %zu", wc.byte_len, len);
	check(pattern_differs(remote.buf, len, (uint32_t)id) < 0, "the data differs");
	check(not_all(remote.buf + len, remote.len - len, 0x11) < 0, "something behind was written");
}

static void immediates(struct pair *p)
{
	static const size_t sizes[] = { 0, 1, 64, 1442, 5000, 100000 };

	must(prepare(p, 1 << 17));
	for (size_t i = 0; i < ARRAY_SIZE(sizes) && !test_failed(); i++) {
		if (p->b.srq) {
			struct ibv_recv_wr wr = { .wr_id = i }, *bad;

			check(!ibv_post_srq_recv(p->b.srq, &wr, &bad), "posting to the SRQ");
		} else {
			must(post_recv_sges(&p->b, i, NULL, 0));
		}
		immediate(p, i, sizes[i], 0);
	}
}

PAIR_CASE(write_with_immediate_data) { immediates(p); }
PAIR_CASE(write_with_immediate_data_to_a_shared_queue, .srq = srq_make) { immediates(p); }

PAIR_CASE(inline_write_with_immediate_data, .inline_data = 512)
{
	must(prepare(p, 4096));
	for (int len = 0; len <= 512 && !test_failed(); len += 128) {
		must(post_recv_sges(&p->b, len, NULL, 0));
		immediate(p, len, len, len ? IBV_SEND_INLINE : 0);
	}
}

PAIR_CASE(immediate_data_between_sends)
{
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	sge = sge_of(&local, 0, 8);
	for (int i = 0; i < 6; i++)
		must(post_recv(&p->b, i, &remote, 2048, 64));
	for (int i = 0; i < 6; i++) {
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);

		must(i % 2 ? post_immediate(p, i, 8, 0, i) : post_send(&p->a, &wr));
	}
	for (int i = 0; i < 6; i++) {
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.opcode == (i % 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "%d: opcode %d",
		      i, wc.opcode);
	}
}

PAIR_CASE(solicited_immediate_data, .channels = true)
{
	must(prepare(p, 4096));
	for (int i = 0; i < 2; i++)
		must(post_recv_sges(&p->b, i, NULL, 0));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming");
	must(post_immediate(p, 1, 8, 0, 1));
	check(!channel_fires(p->b.recv_channel, QUIET), "an event though none was asked for");
	must(post_immediate(p, 2, 8, IBV_SEND_SOLICITED, 2));
	check(channel_fires(p->b.recv_channel, SOON), "no event");
}

static void immediate_data_without_a_receive_body(struct pair *p)
{
	struct ibv_wc wc;

	must(prepare(p, 4096));
	must(post_immediate(p, 1, 8, 0, 1));
	/* The Write completed when TCP had it; events report the end of the stream. */
	must(poll_wc(p->a.send_cq, &wc, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(p->b.qp->context, p->b.qp, SOON), "no event at the sink");
	check(async_qp_error(p->a.qp->context, p->a.qp, SOON), "no event at the source");
}

static void immediate_data_without_a_receive(void)
{
	with_pair_set("receive_wait", 0, immediate_data_without_a_receive_body);
}

static bool post_send_immediate(struct pair *p, uint64_t id, size_t len, int flags)
{
	struct ibv_sge sge = sge_of(&local, 0, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND_WITH_IMM, id, IBV_SEND_SIGNALED | flags, &sge, 1);

	wr.imm_data = htonl(0xfeed0000 + (uint32_t)id);
	return post_send(&p->a, &wr);
}

/* Immediate Data alone, which is what a Send with Immediate without payload becomes. */
static void empty_send(struct pair *p, uint64_t id, int flags)
{
	struct ibv_wc wc;

	must(post_send_immediate(p, id, 0, flags));
	must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_SEND && !wc.wc_flags, "opcode %d, flags %#x", wc.opcode, wc.wc_flags);
	must(expect_wc(p->b.recv_cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 0, "opcode %d, %u octets",
	      wc.opcode, wc.byte_len);
	check(wc.wc_flags == IMMEDIATE_FLAGS && ntohl(wc.imm_data) == 0xfeed0000 + (uint32_t)id,
	      "flags %#x, value %#x", wc.wc_flags, ntohl(wc.imm_data));
}

PAIR_CASE(empty_sends_with_immediate_data, .inline_data = 64)
{
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	sge = sge_of(&local, 0, 8);
	for (uint64_t i = 0; i < 8; i += 2) {
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, i + 1, IBV_SEND_SIGNALED, &sge, 1);

		must(post_recv(&p->b, i, &remote, 2048, 64) && post_recv(&p->b, i + 1, &remote, 0, 64));
		empty_send(p, i, i & 2 ? IBV_SEND_INLINE : 0);
		check(not_all(remote.buf + 2048, 64, 0x11) < 0, "the buffer was written");
		must(post_send(&p->a, &wr));
		must(expect_wc(p->a.send_cq, &wc, i + 1, IBV_WC_SUCCESS) &&
		     expect_wc(p->b.recv_cq, &wc, i + 1, IBV_WC_SUCCESS));
		check(wc.opcode == IBV_WC_RECV && !wc.wc_flags, "opcode %d, flags %#x", wc.opcode,
		      wc.wc_flags);
	}
}

PAIR_CASE(solicited_empty_send_with_immediate_data, .channels = true)
{
	must(prepare(p, 4096));
	for (int i = 1; i < 3; i++)
		must(post_recv_sges(&p->b, i, NULL, 0));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming");
	must(post_send_immediate(p, 1, 0, 0));
	check(!channel_fires(p->b.recv_channel, QUIET), "an event though none was asked for");
	must(post_send_immediate(p, 2, 0, IBV_SEND_SOLICITED));
	check(channel_fires(p->b.recv_channel, SOON), "no event");
}

static void empty_send_with_immediate_data_without_a_receive_body(struct pair *p)
{
	struct ibv_wc wc;

	must(prepare(p, 4096) && post_send_immediate(p, 1, 0, 0));
	must(poll_wc(p->a.send_cq, &wc, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(p->b.qp->context, p->b.qp, SOON), "no event at the sink");
}

static void empty_send_with_immediate_data_without_a_receive(void)
{
	with_pair_set("receive_wait", 0, empty_send_with_immediate_data_without_a_receive_body);
}

PAIR_CASE(send_with_immediate_data_is_refused)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	sge = sge_of(&local, 0, 8);
	wr = wr_make(IBV_WR_SEND_WITH_IMM, 1, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_LOC_QP_OP_ERR));
}

/* Sets whether devices offer the Send with Immediate in new connections. */
static void set_extensions(const char *device, const char *value)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/extensions", device);
	file = fopen(path, "w");
	if (!file || fputs(value, file) < 0 || fclose(file))
		fail("%s: %s", path, strerror(errno));
}

/* Sends `len` octets that arrive as a Send with Immediate. */
static void send_immediate(struct pair *p, uint64_t id, size_t len, int flags)
{
	struct ibv_wc wc;

	memset(remote.buf, 0x11, remote.len);
	pattern_fill(local.buf, len, (uint32_t)id);
	must(post_recv(&p->b, id, &remote, 0, 1 << 16) && post_send_immediate(p, id, len, flags));
	must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_SEND && !wc.wc_flags, "opcode %d, flags %#x", wc.opcode, wc.wc_flags);
	must(expect_wc(p->b.recv_cq, &wc, id, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RECV && wc.byte_len == len, "opcode %d, %u octets", wc.opcode,
	      wc.byte_len);
	check(wc.wc_flags == IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0xfeed0000 + (uint32_t)id,
	      "flags %#x, value %#x", wc.wc_flags, ntohl(wc.imm_data));
	check(pattern_differs(remote.buf, len, (uint32_t)id) < 0, "%zu octets differ", len);
}

static void send_immediates(struct pair *p)
{
	static const size_t lengths[] = { 0, 1, 64, 1442, 1443, 50000 };

	must(prepare(p, 1 << 16));
	for (size_t i = 0; i < ARRAY_SIZE(lengths) && !test_failed(); i++)
		send_immediate(p, i, lengths[i], i & 1 ? IBV_SEND_SOLICITED : 0);
}

/*
 * Both ends belong to a device with the setting on; once it is off, the Send is refused as before.
 */
static void send_with_immediate_data_by_setting(void)
{
	static struct pair p;
	char device[64];

	memset(&p, 0, sizeof(p));
	if (!pair_open(&p, NULL))
		goto out;
	snprintf(device, sizeof(device), "%s", ibv_get_device_name(p.b.id->verbs->device));
	set_extensions(device, "1");
	pair_close(&p);
	memset(&p, 0, sizeof(p));
	if (pair_open(&p, NULL))
		send_immediates(&p);
	set_extensions(device, "0");
	pair_close(&p);
	memset(&p, 0, sizeof(p));
	if (pair_open(&p, NULL)) {
		struct ibv_wc wc;

		if (prepare(&p, 4096) && post_send_immediate(&p, 1, 8, 0))
			expect_wc(p.a.send_cq, &wc, 1, IBV_WC_LOC_QP_OP_ERR);
	}
out:
	pair_close(&p);
}

/* --- sizes ------------------------------------------------------------------------------------ */

PAIR_CASE(sge_lists_of_32_elements, .send_sge = 32, .recv_sge = 32)
{
	struct ibv_sge from[32], to[32];
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p, 1 << 16));
	pattern_fill(local.buf, 1 << 16, 5);
	for (int i = 0; i < 32; i++) {
		/* The same octets, cut differently at both ends. */
		from[i] = sge_of(&local, 100 * i, 100);
		to[i] = sge_of(&remote, 200 * i, i == 31 ? 3200 - 31 * 80 : 80);
	}
	must(post_recv_sges(&p->b, 1, to, 32));
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, from, 32);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) &&
	     expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(wc.byte_len == 3200, "%u octets", wc.byte_len);
	for (int i = 0; i < 32; i++)
		check(!memcmp(remote.buf + 200 * i, local.buf + 80 * i, to[i].length),
		      "element %d differs", i);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED, from, 32, (uintptr_t)remote.buf,
		     remote.mr->rkey);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	/* A Write is complete when TCP has it; the Response of a Read comes behind it. */
	wr = wr_rdma(IBV_WR_RDMA_READ, 3, IBV_SEND_SIGNALED, NULL, 0, (uintptr_t)remote.buf,
		     remote.mr->rkey);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 3, IBV_WC_SUCCESS));
	check(!memcmp(remote.buf, local.buf, 3200), "the Write differs");
}

PAIR_CASE(inline_sends, .inline_data = 512, .send_sge = 3)
{
	struct ibv_sge sge[3];
	struct ibv_wc wc;

	must(prepare(p, 4096));
	for (int len = 0; len <= 512; len += 32) {
		struct ibv_send_wr wr =
			wr_make(IBV_WR_SEND, len, IBV_SEND_SIGNALED | IBV_SEND_INLINE, sge, 3);

		pattern_fill(local.buf, 512, (uint32_t)len);
		must(post_recv(&p->b, len, &remote, 0, 512));
		for (int i = 0, at = 0; i < 3; i++) {
			int part = i == 2 ? len - at : len / 3;

			sge[i] = sge_of(&local, at, part);
			/* Needs no region. */
			sge[i].lkey = 0;
			at += part;
		}
		must(post_send(&p->a, &wr));
		memset(local.buf, 0, 512);
		must(expect_wc(p->a.send_cq, &wc, len, IBV_WC_SUCCESS) &&
		     expect_wc(p->b.recv_cq, &wc, len, IBV_WC_SUCCESS));
		check((int)wc.byte_len == len && pattern_differs(remote.buf, len, (uint32_t)len) < 0,
		      "%d octets differ", len);
	}
}

/* --- completion queues of another size -------------------------------------------------------- */

/* Unpolled completions stay, in order, whatever size the queue gets. */
PAIR_CASE(resized_completion_queue, .cq_depth = 63, .sq_depth = 200)
{
	static const int sizes[] = { 1000, 50, 40, 4000 };
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint64_t posted = 0, polled = 0;

	must(prepare(p, 4096));
	sge = sge_of(&local, 0, 8);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int cqe = sizes[i];

		for (int n = 0; n < 30; n++, posted++) {
			struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, posted, IBV_SEND_SIGNALED,
							&sge, 1, (uintptr_t)remote.buf,
							remote.mr->rkey);

			must(post_send(&p->a, &wr));
		}
		must(expect_wc(p->a.send_cq, &wc, polled, IBV_WC_SUCCESS));
		polled++;
		/* Completions arrive meanwhile. */
		check(!ibv_resize_cq(p->a.send_cq, cqe), "to %d: %s", cqe, strerror(errno));
		check(p->a.send_cq->cqe >= cqe, "%d instead of %d", p->a.send_cq->cqe, cqe);
		while (polled + (i ? 0 : 5) < posted) {
			must(expect_wc(p->a.send_cq, &wc, polled, IBV_WC_SUCCESS));
			polled++;
		}
	}
	must(expect_no_wc(p->a.send_cq, 20));
}

PAIR_CASE(resize_cq_below_its_completions_is_refused, .cq_depth = 255, .sq_depth = 200)
{
	struct ibv_device_attr device;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, 4096));
	sge = sge_of(&local, 0, 8);
	for (int n = 0; n < 100; n++) {
		struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, n, IBV_SEND_SIGNALED, &sge, 1,
						(uintptr_t)remote.buf, remote.mr->rkey);

		must(post_send(&p->a, &wr));
	}
	/* Once this one completes, all of them are in the queue. */
	must(post_recv(&p->b, 1, &remote, 0, 64));
	{
		struct ibv_send_wr wr = wr_make(IBV_WR_SEND, 100, 0, &sge, 1);

		must(post_send(&p->a, &wr) && expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	}
	sleep_ms(500);
	check(ibv_resize_cq(p->a.send_cq, 60) == EINVAL, "what it holds does not fit");
	check(ibv_resize_cq(p->a.send_cq, 0) == EINVAL, "to 0");
	check(!ibv_query_device(p->a.id->verbs, &device), "ibv_query_device");
	check(ibv_resize_cq(p->a.send_cq, device.max_cqe + 1) == EINVAL, "beyond the device's");
	check(ibv_resize_cq(p->a.send_cq, 0x7fffffff) == EINVAL, "far beyond the device's");
	for (int n = 0; n < 100; n++)
		must(expect_wc(p->a.send_cq, &wc, n, IBV_WC_SUCCESS));
	check(!ibv_resize_cq(p->a.send_cq, 60), "%s", strerror(errno));
}

/* --- ibv_wr_* and ibv_start_poll -------------------------------------------------------------- */

#define SEND_OPS                                                                                   \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |              \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |                \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)

static bool finished(struct ibv_cq *cq, uint64_t id, enum ibv_wc_opcode opcode, uint32_t len,
		     uint32_t value)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	int64_t end = now_ms() + SOON;
	bool good;

	while (ibv_start_poll(ex, &attr)) {
		if (now_ms() > end) {
			fail("request %lu: no completion", id);
			return false;
		}
		sleep_ms(1);
	}
	good = ex->status == IBV_WC_SUCCESS && ex->wr_id == id && ibv_wc_read_opcode(ex) == opcode &&
	       ibv_wc_read_byte_len(ex) == len &&
	       (!value || (ibv_wc_read_wc_flags(ex) == IMMEDIATE_FLAGS &&
			   ntohl(ibv_wc_read_imm_data(ex)) == value));
	if (!good)
		fail("request %lu: id %lu, status %d, opcode %d, %u octets", id, ex->wr_id, ex->status,
		     ibv_wc_read_opcode(ex), ibv_wc_read_byte_len(ex));
	ibv_end_poll(ex);
	return good;
}

PAIR_CASE(extended_post_and_poll_calls, .send_ops = SEND_OPS, .cq_ex = true, .inline_data = 128)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p->a.qp);
	uint64_t at;
	uint32_t key;

	must(prepare(p, 4096));
	check(qp, "no extended QP");
	at = (uintptr_t)remote.buf;
	key = remote.mr->rkey;
	pattern_fill(local.buf, 1024, 1);
	*word(&remote, 200) = 10;
	for (int i = 0; i < 3; i++)
		must(post_recv(&p->b, i, &remote, 2048, 1024));

	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf, 100);
	qp->wr_id = 2;
	ibv_wr_rdma_write(qp, key, at);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf, 200);
	qp->wr_id = 3;
	ibv_wr_rdma_write_imm(qp, key, at + 200, htonl(77));
	ibv_wr_set_inline_data(qp, local.buf + 200, 100);
	qp->wr_id = 4;
	ibv_wr_rdma_read(qp, key, at);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)local.buf + 1024, 300);
	qp->wr_id = 5;
	ibv_wr_atomic_fetch_add(qp, key, at + 1600, 5);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)word(&local, 300), 8);
	qp->wr_id = 6;
	ibv_wr_atomic_cmp_swp(qp, key, at + 1600, 15, 20);
	ibv_wr_set_sge(qp, local.mr->lkey, (uintptr_t)word(&local, 301), 8);
	check(!ibv_wr_complete(qp), "ibv_wr_complete");

	must(finished(p->a.send_cq, 1, IBV_WC_SEND, 100, 0) &&
	     finished(p->a.send_cq, 2, IBV_WC_RDMA_WRITE, 200, 0) &&
	     finished(p->a.send_cq, 3, IBV_WC_RDMA_WRITE, 100, 0) &&
	     finished(p->a.send_cq, 4, IBV_WC_RDMA_READ, 300, 0) &&
	     finished(p->a.send_cq, 5, IBV_WC_FETCH_ADD, 8, 0) &&
	     finished(p->a.send_cq, 6, IBV_WC_COMP_SWAP, 8, 0));
	must(finished(p->b.recv_cq, 0, IBV_WC_RECV, 100, 0) &&
	     finished(p->b.recv_cq, 1, IBV_WC_RECV_RDMA_WITH_IMM, 100, 77));
	check(!memcmp(remote.buf, local.buf, 300), "the Writes differ");
	check(!memcmp(local.buf + 1024, local.buf, 300), "the Read differs");
	check(*word(&local, 300) == 10 && *word(&local, 301) == 15 && *word(&remote, 200) == 20,
	      "the words are %lu, %lu, %lu", *word(&local, 300), *word(&local, 301),
	      *word(&remote, 200));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(fetch_and_add);
	RUN(compare_and_swap);
	RUN(atomics_beyond_the_depth);
	RUN(atomic_without_the_right);
	RUN(atomic_behind_the_region);
	RUN(counters_add_up);
	RUN(write_with_immediate_data);
	RUN(write_with_immediate_data_to_a_shared_queue);
	RUN(inline_write_with_immediate_data);
	RUN(immediate_data_between_sends);
	RUN(solicited_immediate_data);
	RUN(immediate_data_without_a_receive);
	RUN(empty_sends_with_immediate_data);
	RUN(solicited_empty_send_with_immediate_data);
	RUN(empty_send_with_immediate_data_without_a_receive);
	RUN(send_with_immediate_data_is_refused);
	RUN(send_with_immediate_data_by_setting);
	RUN(sge_lists_of_32_elements);
	RUN(inline_sends);
	RUN(resized_completion_queue);
	RUN(resize_cq_below_its_completions_is_refused);
	RUN(extended_post_and_poll_calls);
	return test_end();
}

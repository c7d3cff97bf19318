// SPDX-License-Identifier: GPL-2.0
/*
 * The strict mode, as docs/strict.md has it: one broken program for each rule is found, and correct
 * ones that look like it are not.
 */

#include "common.h"
#include "modify.h"
#include "rules.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 4096

static struct region local, remote;
static char file[128];

static const char *const counters[] = { "strict_cq_size", "strict_late_receives",
					"strict_ended_keys", "strict_unfenced" };
enum rule { CQ_SIZE, LATE_RECEIVES, ENDED_KEYS, UNFENCED };
static long before[ARRAY_SIZE(counters)];

static void begin(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
		before[i] = device_counter(test_context(), counters[i]);
}

/* Since then this rule was broken so often, and no other one. */
static bool found(enum rule rule, long times)
{
	for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
		long now = device_counter(test_context(), counters[i]) - before[i];
		long expected = i == rule ? times : 0;

		if (now == expected)
			continue;
		test_fail(__FILE__, __LINE__, counters[i], "%ld, not %ld", now, expected);
		return false;
	}
	return true;
}

static bool nothing_found(void)
{
	return found(CQ_SIZE, 0);
}

static bool prepare(struct pair *p)
{
	begin();
	return region_make(&local, p->a.pd, LEN, ALL_RIGHTS) &&
	       region_make(&remote, p->b.pd, LEN, ALL_RIGHTS);
}

static struct ibv_send_wr to_remote(enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge)
{
	return wr_rdma(op, id, IBV_SEND_SIGNALED, sge, 1, (uintptr_t)remote.buf, remote.mr->rkey);
}

/* The usual: all that a program may do, and its regions are gone only afterwards. */
PAIR_CASE(correct_program_gives_no_finding, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p) && exchange_works(p));
	sge = sge_of(&local, 0, 64);
	for (uint64_t id = 1; id <= 3; id++) {
		wr = to_remote(id % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, id, &sge);
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	}
	region_release(&local);
	region_release(&remote);
	world_is_well();
	must(nothing_found());
}

/* A full queue is not too full: what it holds and what may come are together its size. */
PAIR_CASE(full_cq_gives_no_finding, .cq_depth = 4, .depth = 4)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	uint64_t room = p->a.send_cq->cqe;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	for (uint64_t round = 1; round <= 2; round++) {
		for (uint64_t id = 1; id <= room; id++) {
			wr = to_remote(IBV_WR_RDMA_WRITE, id, &sge);
			must(post_send(&p->a, &wr));
		}
		for (uint64_t id = 1; id <= room; id++)
			must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	}
	must(nothing_found());
}

/* One request more than the queue has room for, although it is polled before it overflows. */
PAIR_CASE(overcommitted_cq_is_found, .cq_depth = 4, .depth = 4)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	uint64_t room = p->a.recv_cq->cqe;

	must(prepare(p));
	for (uint64_t id = 1; id <= room + 1; id++)
		must(post_recv(&p->a, id, &local, 0, 64));
	/* The next call of the process. */
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 1, &sge);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(found(CQ_SIZE, 1));
	/* Once for each queue. */
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(found(CQ_SIZE, 1));
}

PAIR_CASE(message_that_waits_for_its_receive_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
	must(post_recv(&p->b, 1, &remote, 0, 64) && post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS) && nothing_found());
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) && post_send(&p->a, &wr));
	must(expect_no_wc(p->b.recv_cq, QUIET) && found(LATE_RECEIVES, 1));
	must(post_recv(&p->b, 2, &remote, 0, 64) && expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	must(found(LATE_RECEIVES, 1));
}

/* The peer writes to, or reads from, what is deregistered. */
static void peer_uses_ended_key(struct pair *p, enum ibv_wr_opcode op, long times)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	wr = to_remote(op, 1, &sge);
	must(region_release(&remote));
	must(post_send(&p->a, &wr) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(poll_wc(p->a.send_cq, &wc, SOON) && found(ENDED_KEYS, times));
	world_is_well();
}

PAIR_CASE(write_to_a_deregistered_region_is_found, 0) { peer_uses_ended_key(p, IBV_WR_RDMA_WRITE, 1); }
PAIR_CASE(read_of_a_deregistered_region_is_found, 0) { peer_uses_ended_key(p, IBV_WR_RDMA_READ, 1); }

PAIR_CASE(request_with_a_deregistered_key_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 1, &sge);
	must(region_release(&local) && post_send(&p->a, &wr));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_LOC_PROT_ERR) && found(ENDED_KEYS, 1));
}

PAIR_CASE(receive_with_a_deregistered_key_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 1, &remote, 0, 64) && region_release(&remote));
	sge = sge_of(&local, 0, 64);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_LOC_PROT_ERR) && found(ENDED_KEYS, 1));
}

/* What is refused for another reason: a key that never was, and a right that is not there. */
PAIR_CASE(other_refusals_give_no_finding, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 1, &sge);
	wr.wr.rdma.rkey ^= 0xff;
	must(post_send(&p->a, &wr) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(nothing_found());
}

/*
 * A Read of the first 64 octets into the first 64, number 1, and behind it, posted with it, number
 * 2: they begin together.
 */
static bool behind_a_read(struct pair *p, struct ibv_send_wr *second)
{
	static struct ibv_send_wr first;
	static struct ibv_sge sge;
	struct ibv_wc wc;

	sge = sge_of(&local, 0, 64);
	first = to_remote(IBV_WR_RDMA_READ, 1, &sge);
	first.next = second;
	return post_recv(&p->b, 1, &remote, 1024, 64) && post_send(&p->a, &first) &&
	       expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) &&
	       expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS);
}

PAIR_CASE(send_from_pending_read_sink_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	must(prepare(p));
	sge = sge_of(&local, 63, 64);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(behind_a_read(p, &wr) && found(UNFENCED, 1));
}

PAIR_CASE(write_to_pending_read_source_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	must(prepare(p));
	sge = sge_of(&local, 64, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 2, &sge);
	wr.wr.rdma.remote_addr += 63;
	must(behind_a_read(p, &wr) && found(UNFENCED, 1));
}

PAIR_CASE(fenced_request_gives_no_finding, 0)
{
	struct ibv_sge sges[2];
	struct ibv_send_wr wr, last;
	struct ibv_wc wc;

	must(prepare(p));
	sges[0] = sge_of(&local, 0, 64);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE, &sges[0], 1);
	must(behind_a_read(p, &wr));
	/* Nor one behind such a request, although the Read is not complete by then. */
	must(device_takes(test_context(), "inject", "on=complete op=read do=delay=100ms"));
	sges[1] = sge_of(&local, 64, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 2, &sges[1]);
	wr.send_flags |= IBV_SEND_FENCE;
	last = to_remote(IBV_WR_RDMA_WRITE, 3, &sges[0]);
	wr.next = &last;
	must(behind_a_read(p, &wr) && expect_wc(p->a.send_cq, &wc, 3, IBV_WC_SUCCESS));
	must(device_takes(test_context(), "inject", "clear") && nothing_found());
}

/* What a Read has brought belongs to the program with the completion, not before. */
PAIR_CASE(send_of_data_without_completion_is_found, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p) && device_takes(test_context(), "inject", "on=complete op=read do=silent"));
	memset(remote.buf, 7, 64);
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_READ, 1, &sge);
	must(post_recv(&p->b, 1, &remote, 1024, 64) && post_send(&p->a, &wr));
	for (int64_t end = now_ms() + SOON; now_ms() < end;)
		if (((volatile uint8_t *)local.buf)[63] == 7)
			break;
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(post_send(&p->a, &wr) && expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	must(found(UNFENCED, 1) && device_takes(test_context(), "inject", "clear"));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS) &&
	     expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
}

PAIR_CASE(request_for_other_octets_gives_no_finding, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	must(prepare(p));
	sge = sge_of(&local, 64, 64);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(behind_a_read(p, &wr));
	wr = to_remote(IBV_WR_RDMA_WRITE, 2, &sge);
	wr.wr.rdma.remote_addr += 64;
	must(behind_a_read(p, &wr));
	/* A Read may follow a Read. */
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_READ, 2, &sge);
	must(behind_a_read(p, &wr) && nothing_found());
}

/* The completion of a request says that those before it are done, signalled or not. */
PAIR_CASE(request_after_completion_gives_no_finding, 0)
{
	struct ibv_sge sges[2];
	struct ibv_send_wr wr, last;
	struct ibv_wc wc;

	must(prepare(p));
	sges[0] = sge_of(&local, 0, 64);
	sges[1] = sge_of(&local, 64, 64);
	for (uint64_t id = 1; id <= 100; id++) {
		wr = to_remote(IBV_WR_RDMA_READ, id, &sges[0]);
		if (id % 2) {
			wr.send_flags = 0;
			last = to_remote(IBV_WR_RDMA_WRITE, id, &sges[1]);
			last.wr.rdma.remote_addr += 64;
			wr.next = &last;
		}
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
		wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sges[0], 1);
		must(post_recv(&p->b, id, &remote, 1024, 64) && post_send(&p->a, &wr));
		must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	}
	must(nothing_found());
}

/* Atomic operations are carried out in order, and may bring their results to one place. */
PAIR_CASE(consecutive_atomics_give_no_finding, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wrs[4];
	struct ibv_wc wc;

	if (!has_extensions()) {
		test_skip("the library posts no atomic operations");
		return;
	}
	begin();
	must(region_make(&local, p->a.pd, LEN, ALL_RIGHTS) &&
	     region_make(&remote, p->b.pd, LEN, ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC));
	sge = sge_of(&local, 0, 8);
	for (size_t i = 0; i < ARRAY_SIZE(wrs); i++) {
		wrs[i] = wr_make(IBV_WR_ATOMIC_FETCH_AND_ADD, i, IBV_SEND_SIGNALED, &sge, 1);
		wrs[i].wr.atomic.remote_addr = (uintptr_t)remote.buf;
		wrs[i].wr.atomic.rkey = remote.mr->rkey;
		wrs[i].wr.atomic.compare_add = 1;
		wrs[i].next = i ? &wrs[i - 1] : NULL;
	}
	must(post_send(&p->a, &wrs[ARRAY_SIZE(wrs) - 1]));
	for (size_t i = ARRAY_SIZE(wrs); i-- > 0;)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	must(nothing_found());
}

/* Completions are late now and then, and come in their order. */
PAIR_CASE(completions_are_delayed, .sq_depth = 8)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	long late = device_counter(test_context(), "chosen_late_completions");
	int64_t end = now_ms() + SOON;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	for (uint64_t id = 0; device_counter(test_context(), "chosen_late_completions") == late;) {
		check(now_ms() < end, "none is late");
		/* As many as the queue holds. */
		for (uint64_t i = 0; i < 8; i++) {
			wr = to_remote(i % 4 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, id + i, &sge);
			wr.send_flags |= IBV_SEND_FENCE;
			must(post_send(&p->a, &wr));
		}
		for (uint64_t i = 0; i < 8; i++)
			must(expect_wc(p->a.send_cq, &wc, id++, IBV_WC_SUCCESS));
	}
	must(nothing_found());
}

/*
 * Messages of `len` octets until one has been seen that was placed late: in front of its last octet
 * there is neither what was there nor what is to come. Nothing but its octets is touched, and they
 * are all there with the completion.
 */
static void messages_are_placed_late(struct pair *p, enum ibv_wr_opcode op, size_t len)
{
	const struct region *from = op == IBV_WR_RDMA_READ ? &remote : &local;
	const struct region *to = op == IBV_WR_RDMA_READ ? &local : &remote;
	struct ibv_cq *told = op == IBV_WR_SEND ? p->b.recv_cq : p->a.send_cq;
	volatile uint8_t *sink = to->buf + 64;
	long late = device_counter(test_context(), "chosen_late_placements");
	int64_t end = now_ms() + SOON;
	bool seen = false;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	for (uint64_t id = 1; !seen; id++) {
		check(now_ms() < end, "none is late");
		memset(from->buf, 2, LEN);
		memset(to->buf, 1, LEN);
		sge = sge_of(&local, 64, len);
		wr = wr_make(op, id, op == IBV_WR_RDMA_WRITE ? 0 : IBV_SEND_SIGNALED, &sge, 1);
		wr.wr.rdma.remote_addr = (uintptr_t)remote.buf + 64;
		wr.wr.rdma.rkey = remote.mr->rkey;
		if (op == IBV_WR_SEND)
			must(post_recv(&p->b, id, &remote, 64, len + 64));
		must(post_send(&p->a, &wr));
		/* A Write is there when a Read behind it is. */
		if (op == IBV_WR_RDMA_WRITE) {
			sge = sge_of(&local, 0, 1);
			wr = to_remote(IBV_WR_RDMA_READ, id, &sge);
			must(post_send(&p->a, &wr));
		}
		do {
			/* The last one comes first. */
			if (sink[len - 1] == 2 && sink[0] != 1 && sink[0] != 2)
				seen = true;
			check(now_ms() < end, "no completion");
		} while (!poll_wc(told, &wc, 0));
		check(wc.status == IBV_WC_SUCCESS && wc.wr_id == id, "%s",
		      ibv_wc_status_str(wc.status));
		if (op == IBV_WR_SEND)
			must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
		check(not_all((uint8_t *)sink, len, 2) < 0, "it is not there");
		check(not_all(to->buf, 64, 1) < 0 &&
			      not_all(to->buf + 64 + len, LEN - 64 - len, 1) < 0,
		      "other octets are touched");
	}
	check(device_counter(test_context(), "chosen_late_placements") > late,
	      "it was not counted");
	must(nothing_found());
}

PAIR_CASE(sends_are_placed_late, 0)
{
	must(prepare(p));
	messages_are_placed_late(p, IBV_WR_SEND, 1000);
}

PAIR_CASE(writes_are_placed_late, 0)
{
	must(prepare(p));
	messages_are_placed_late(p, IBV_WR_RDMA_WRITE, 1000);
}

PAIR_CASE(read_responses_are_placed_late, 0)
{
	must(prepare(p));
	messages_are_placed_late(p, IBV_WR_RDMA_READ, 1000);
}

static void peer_ends_behind_its_sends(struct pair *p)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&local, 0, 64);
	for (uint64_t id = 1; id <= 5; id++)
		must(post_recv(&p->b, id, &remote, 64 * id, 64));
	for (uint64_t id = 1; id <= 5; id++) {
		wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sge, 1);
		must(post_send(&p->a, &wr));
	}
	for (uint64_t id = 1; id <= 5; id++)
		must(expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	for (uint64_t id = 1; id <= 5; id++)
		must(expect_wc(p->b.recv_cq, &wc, id, IBV_WC_SUCCESS));
}

/* What has arrived is taken, late or not, before the end of the stream. */
static void delayed_messages_come_before_the_end(void)
{
	struct pair_opts opts = { 0 };

	for (int round = 0; round < 30 && !test_failed(); round++)
		with_pair(&opts, peer_ends_behind_its_sends);
}

/* Now and then there is an event without a completion; the next one is not lost. */
PAIR_CASE(spurious_cq_events_are_raised, .channels = true)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	long events = device_counter(test_context(), "chosen_events");
	int64_t end = now_ms() + SOON;

	must(prepare(p));
	check(!ibv_req_notify_cq(p->a.recv_cq, 0), "arming failed");
	sge = sge_of(&local, 0, 64);
	wr = to_remote(IBV_WR_RDMA_WRITE, 1, &sge);
	while (!channel_fires(p->a.recv_channel, 0)) {
		check(now_ms() < end, "no event");
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	}
	must(expect_no_wc(p->a.recv_cq, 0));
	check(device_counter(test_context(), "chosen_events") > events, "it was not counted");
	check(!ibv_req_notify_cq(p->a.recv_cq, 0), "arming failed");
	sge = sge_of(&remote, 0, 64);
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 1);
	must(post_recv(&p->a, 2, &local, 0, 64) && post_send(&p->b, &wr));
	while (!poll_wc(p->a.recv_cq, &wc, 0)) {
		check(channel_fires(p->a.recv_channel, SOON), "no event for a completion");
		check(!ibv_req_notify_cq(p->a.recv_cq, 0), "arming failed");
	}
	check(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	must(nothing_found());
}

static long changed_sources(void)
{
	return device_counter(test_context(), "hint_changed_sources");
}

/* A Write of so many octets of a region is held until they have changed; so often it is a hint. */
static bool source_changes(struct pair *p, const struct region *from, size_t len, long expected)
{
	long hints = changed_sources();
	struct ibv_sge sge = sge_of(from, 0, len);
	struct ibv_send_wr wr = to_remote(IBV_WR_RDMA_WRITE, 1, &sge);
	struct ibv_wc wc;

	if (!rules("qp=%u do=silent", p->a.qp->qp_num) || !post_send(&p->a, &wr))
		return false;
	for (int64_t limit = now_ms() + SOON; !strstr(shown_rules(), "hits=1");) {
		if (now_ms() >= limit) {
			fail("the Write is not held: %s", shown_rules());
			return false;
		}
		sleep_ms(1);
	}
	from->buf[len / 2]++;
	sleep_ms(QUIET);
	if (!rules("") || !expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS))
		return false;
	hints = changed_sources() - hints;
	if (hints != expected) {
		fail("%ld hints of %zu octets", hints, len);
		return false;
	}
	return true;
}

PAIR_CASE(source_that_changes_is_a_hint, 0)
{
	struct region mine;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	long hints;

	must(prepare(p) && region_make(&mine, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	must(source_changes(p, &mine, 64, 1) && source_changes(p, &mine, LEN, 1));
	must(source_changes(p, &mine, 9, 1) && source_changes(p, &mine, 8, 0));
	/* The peer may write there. */
	must(source_changes(p, &local, 64, 0));
	/* Once it has completed, it may change. */
	hints = changed_sources();
	sge = sge_of(&mine, 0, LEN);
	for (uint64_t id = 1; id <= 20; id++) {
		wr = to_remote(IBV_WR_RDMA_WRITE, id, &sge);
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS));
		mine.buf[id]++;
	}
	hints = changed_sources() - hints;
	check(!hints, "%ld hints", hints);
	must(nothing_found());
}

/* A process with a queue pair and a region ends, and leaves them or not. */
static bool process_ends(bool leaves)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		static uint8_t octets[LEN];
		struct ibv_context *ctx = ibv_open_device(test_context()->device);
		struct ibv_pd *pd = ibv_alloc_pd(ctx);
		struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
		struct ibv_qp_init_attr attr = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct ibv_mr *mr = ibv_reg_mr(pd, octets, LEN, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);

		if (!mr || !qp)
			_exit(1);
		if (!leaves && (ibv_destroy_qp(qp) || ibv_dereg_mr(mr)))
			_exit(1);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) == pid && !status)
		return true;
	fail("the other process has failed: %#x", status);
	return false;
}

static void objects_left_at_the_end_are_a_hint(void)
{
	long hints = device_counter(test_context(), "hint_left_objects");

	begin();
	must(process_ends(false));
	check(device_counter(test_context(), "hint_left_objects") == hints, "none was left");
	must(process_ends(true));
	hints = device_counter(test_context(), "hint_left_objects") - hints;
	check(hints == 2, "%ld were left", hints);
	must(nothing_found());
	must(file_write(file, "0"));
	hints = device_counter(test_context(), "hint_left_objects");
	must(process_ends(true) && file_write(file, "1"));
	check(device_counter(test_context(), "hint_left_objects") == hints, "counted without the mode");
}

static long unused_rights(void)
{
	return device_counter(test_context(), "hint_unused_rights");
}

/* A region of b with these rights, which is deregistered after requests of a: so often it is a hint. */
static bool region_ends(struct pair *p, int rights, const enum ibv_wr_opcode *ops, long expected)
{
	struct ibv_sge sge = sge_of(&local, 0, 8);
	long hints = unused_rights();
	struct ibv_send_wr wr;
	struct region theirs;
	struct ibv_wc wc;

	if (!region_make(&theirs, p->b.pd, LEN, IBV_ACCESS_LOCAL_WRITE | rights))
		return false;
	for (uint64_t id = 1; *ops != IBV_WR_SEND; ops++, id++) {
		wr = wr_rdma(*ops, id, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)theirs.buf, theirs.mr->rkey);
		if (!post_send(&p->a, &wr) || !expect_wc(p->a.send_cq, &wc, id, IBV_WC_SUCCESS))
			return false;
	}
	/* A completed Write may not have arrived. */
	if (!exchange_works(p))
		return false;
	region_release(&theirs);
	hints = unused_rights() - hints;
	if (hints != expected) {
		fail("%ld hints, rights %#x", hints, (unsigned int)rights);
		return false;
	}
	return true;
}

#define OPS(...) ((const enum ibv_wr_opcode[]){ __VA_ARGS__, IBV_WR_SEND })
PAIR_CASE(rights_that_no_peer_uses_are_a_hint, 0)
{
	const enum ibv_wr_opcode *none = OPS(IBV_WR_SEND), *a_write = OPS(IBV_WR_RDMA_WRITE);
	const enum ibv_wr_opcode *both = OPS(IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE);
	const int write = IBV_ACCESS_REMOTE_WRITE, read = IBV_ACCESS_REMOTE_READ;
	struct region sink, early;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	long hints;

	must(prepare(p));
	must(region_ends(p, 0, none, 0) && region_ends(p, write, none, 1));
	must(region_ends(p, write, a_write, 0) && region_ends(p, read | write, a_write, 1));
	must(region_ends(p, read | write, both, 0));

	/* The sink of a Read needs the right to write on iWARP. */
	must(region_make(&sink, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE | write));
	sge = sge_of(&sink, 0, 64);
	wr = to_remote(IBV_WR_RDMA_READ, 1, &sge);
	must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	hints = unused_rights();
	region_release(&sink);
	check(unused_rights() == hints, "the sink of a Read is a hint");

	/* Without the mode, and as it was switched on too late to see all. */
	must(file_write(file, "0") && region_ends(p, write, none, 0));
	must(region_make(&early, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE | write));
	must(file_write(file, "1"));
	region_release(&early);
	check(unused_rights() == hints, "a region from before the mode is a hint");
	must(nothing_found());
}

static void strict_setting_needs_the_capability(void)
{
	must(needs_net_admin(test_context(), "strict", "0"));
	check(file_value(file) == 1, "it is off");
	check(!device_takes(test_context(), "strict", "2") && errno == EINVAL && file_value(file) == 1,
	      "2: %s", strerror(errno));
}

/* Off, it finds nothing. */
PAIR_CASE(strict_mode_off_gives_no_finding, 0)
{
	must(file_write(file, "0"));
	peer_uses_ended_key(p, IBV_WR_RDMA_WRITE, 0);
	must(file_write(file, "1"));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	snprintf(file, sizeof(file), "/sys/class/infiniband/%s/strict",
		 ibv_get_device_name(test_context()->device));
	file_write(file, "1");
	RUN(correct_program_gives_no_finding);
	RUN(full_cq_gives_no_finding);
	RUN(overcommitted_cq_is_found);
	RUN(message_that_waits_for_its_receive_is_found);
	RUN(write_to_a_deregistered_region_is_found);
	RUN(read_of_a_deregistered_region_is_found);
	RUN(request_with_a_deregistered_key_is_found);
	RUN(receive_with_a_deregistered_key_is_found);
	RUN(other_refusals_give_no_finding);
	RUN(send_from_pending_read_sink_is_found);
	RUN(write_to_pending_read_source_is_found);
	RUN(send_of_data_without_completion_is_found);
	RUN(fenced_request_gives_no_finding);
	RUN(request_for_other_octets_gives_no_finding);
	RUN(request_after_completion_gives_no_finding);
	RUN(consecutive_atomics_give_no_finding);
	RUN(completions_are_delayed);
	RUN(sends_are_placed_late);
	RUN(writes_are_placed_late);
	RUN(read_responses_are_placed_late);
	RUN(delayed_messages_come_before_the_end);
	RUN(spurious_cq_events_are_raised);
	RUN(source_that_changes_is_a_hint);
	RUN(objects_left_at_the_end_are_a_hint);
	RUN(rights_that_no_peer_uses_are_a_hint);
	RUN(strict_setting_needs_the_capability);
	RUN(strict_mode_off_gives_no_finding);
	file_write(file, "0");
	device_takes(test_context(), "inject", "clear");
	return test_end();
}

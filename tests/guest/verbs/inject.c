// SPDX-License-Identifier: GPL-2.0
/*
 * Rules by which requests and messages fail on purpose, as docs/inject.md has them: what the
 * program sees, what its peer sees, and that nobody else sees anything.
 */

#include "common.h"
#include "modify.h"
#include "rules.h"

#include <errno.h>

#define LEN 4096

static struct region local, remote;
static bool rxe;

static bool prepare(struct pair *p)
{
	return region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, LEN, ALL_RIGHTS);
}

static bool post(struct pair *p, enum ibv_wr_opcode op, uint64_t id)
{
	return post_rdma(&p->a, op, id, &local, &remote, 64);
}

/* Another pair of the same device works, with requests that no rule is about. */
static void others_work(struct pair *p)
{
	(void)p;
	world_is_well();
}

/* The second of three Writes ends with the status, the third is flushed. */
static void ends_second_write(struct pair *p, enum ibv_wc_status status, uint32_t vendor)
{
	struct ibv_wc wc;

	for (uint64_t id = 1; id <= 3; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, status));
	check(wc.vendor_err == vendor, "vendor_err is %#x", wc.vendor_err);
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
}

static const struct status {
	const char *name;
	enum ibv_wc_status number;
	bool siw;
	/* What the peer's flushed receive says, if the stream ends by a Terminate of this end. */
	uint32_t peer;
} statuses[] = {
	{ "LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR, true, 0x100ff },
	{ "LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR, true, 0x100ff },
	{ "LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR, true, 0x100ff },
	{ "MW_BIND_ERR", IBV_WC_MW_BIND_ERR, false, 0x100ff },
	{ "BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR, true, 0x100ff },
	{ "LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR, true, 0x100ff },
	{ "REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR, true, 0 },
	{ "REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR, true, 0 },
	{ "REM_OP_ERR", IBV_WC_REM_OP_ERR, false, 0 },
	{ "RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR, false, 0 },
	{ "RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR, false, 0 },
	{ "REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR, false, 0 },
	{ "GENERAL_ERR", IBV_WC_GENERAL_ERR, true, 0x100ff },
};

static const struct status *status;

static void each_status_of_pair(struct pair *p)
{
	uint32_t vendor = rxe && !status->peer ? 0x11201 : 0;
	long hits = device_counter(p->a.id->verbs, "injected");
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=status=%s vendor=%u", p->a.qp->qp_num, status->name, vendor));
	ends_second_write(p, status->number, vendor);
	/* The peer. */
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == status->peer, "%s: the peer's vendor_err is %#x", status->name,
		      wc.vendor_err);
	check(strstr(shown_rules(), "hits=1"), "%s", shown_rules());
	hits = device_counter(p->a.id->verbs, "injected") - hits;
	check(hits == 1, "the counter has grown by %ld", hits);
	others_work(p);
	must(rules(""));
}

static void status_of_request_is_that_of_the_rule(void)
{
	struct pair_opts opts = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(statuses) && !test_failed(); i++) {
		status = &statuses[i];
		if (rxe || status->siw)
			with_pair(&opts, each_status_of_pair);
		else
			check(!rules("do=status=%s", status->name) && errno == EINVAL,
			      "%s for libsiw", status->name);
	}
}

PAIR_CASE(quiet_status_leaves_the_peer_in_rts, 0)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=status=LOC_PROT_ERR quiet", p->a.qp->qp_num));
	ends_second_write(p, IBV_WC_LOC_PROT_ERR, 0);
	must(expect_no_wc(p->b.recv_cq, QUIET));
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "the peer's queue pair is not RTS");
	/* Until the queue pair goes. */
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	must(rules(""));
}

/* The stream ends before the second Write; nothing of it or the third is sent. */
static void ends_stream(struct pair *p, const char *action, uint32_t peer, bool by_reset)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	long before = resets();
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=%s", p->a.qp->qp_num, action));
	ends_second_write(p, IBV_WC_WR_FLUSH_ERR, 0);
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == peer, "the peer's vendor_err is %#x", wc.vendor_err);
	must(event = cm_event(p->b.events, SOON));
	type = event->event;
	rdma_ack_cm_event(event);
	check(type == RDMA_CM_EVENT_DISCONNECTED, "%s", rdma_event_str(type));
	check((resets() > before) == by_reset, "%ld connections were reset", resets() - before);
	others_work(p);
	must(rules(""));
}

PAIR_CASE(terminate_has_the_code_of_the_rule, 0) { ends_stream(p, "terminate=0x11203", 0x11203, false); }
PAIR_CASE(reset_action_resets_the_connection, 0) { ends_stream(p, "reset", 0, true); }
PAIR_CASE(fin_action_sends_fin, 0) { ends_stream(p, "fin", 0, false); }

PAIR_CASE(rule_counts_only_matching_requests, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u op=read nth=3 do=status=REM_ACCESS_ERR\nqp=%u op=write do=reset",
		   p->a.qp->qp_num, p->b.qp->qp_num));
	for (uint64_t id = 1; id <= 5; id++) {
		must(post(p, id % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, id));
		must(expect_wc(p->a.send_cq, &wc, id, id == 5 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
	}
	check(strstr(shown_rules(), "op=read nth=3 do=status=REM_ACCESS_ERR hits=1\n") &&
		      strstr(shown_rules(), "op=write do=reset hits=0\n"),
	      "%s", shown_rules());
	must(rules(""));
}

/* By port: every hundredth of this stream, twice as many on it as in it. */
PAIR_CASE(rule_counts_per_stream, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("every=100 times=1 do=status=GENERAL_ERR"));
	for (uint64_t id = 1; id <= 100; id++) {
		must(post(p, IBV_WR_RDMA_WRITE, id));
		must(expect_wc(p->a.send_cq, &wc, id, id == 100 ? IBV_WC_GENERAL_ERR : IBV_WC_SUCCESS));
	}
	/* Of another stream fewer have been counted. */
	others_work(p);
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	must(rules(""));
}

static bool post_msg(struct pair *p, uint64_t id, size_t len)
{
	struct ibv_sge sge = sge_of(&local, 0, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sge, 1);

	return post_send(&p->a, &wr);
}

/* Sends that the peer has receives for, from 1 on; its completions have the same numbers. */
static bool send_all(struct pair *p, uint64_t sends)
{
	for (uint64_t id = 1; id <= sends; id++)
		if (!post_recv(&p->b, id, &remote, 0, LEN))
			return false;
	for (uint64_t id = 1; id <= sends; id++)
		if (!post_msg(p, id, 64))
			return false;
	return true;
}

static bool all_done(struct ibv_cq *cq, uint64_t from, uint64_t to)
{
	struct ibv_wc wc;

	for (uint64_t id = from; id <= to; id++)
		if (!expect_wc(cq, &wc, id, IBV_WC_SUCCESS))
			return false;
	return true;
}

#define HELD 200

PAIR_CASE(delayed_request_delays_later_ones, 0)
{
	int64_t begun;

	must(prepare(p));
	must(rules("qp=%u nth=2 do=delay=%dms", p->a.qp->qp_num, HELD));
	begun = now_ms();
	for (uint64_t id = 1; id <= 3; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	must(all_done(p->a.send_cq, 1, 3));
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	/* Once. */
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	must(post(p, IBV_WR_RDMA_READ, 4) && all_done(p->a.send_cq, 4, 4));
	others_work(p);
	must(rules(""));
}

/* Neither requests nor answers are sent, until the rule goes. */
PAIR_CASE(silent_queue_pair_sends_nothing, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct region here;
	struct ibv_wc wc;

	must(prepare(p) && region_make(&here, p->a.pd, LEN, ALL_RIGHTS));
	sge = sge_of(&remote, 0, 64);
	wr = wr_rdma(IBV_WR_RDMA_READ, 9, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)here.buf,
		     here.mr->rkey);
	must(rules("qp=%u nth=2 do=silent", p->a.qp->qp_num));
	for (uint64_t id = 1; id <= 3; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	must(all_done(p->a.send_cq, 1, 1));
	must(expect_no_wc(p->a.send_cq, QUIET) && post_send(&p->b, &wr));
	must(expect_no_wc(p->b.send_cq, QUIET) && expect_no_wc(p->a.send_cq, 0));
	must(rules(""));
	must(all_done(p->a.send_cq, 2, 3) && expect_wc(p->b.send_cq, &wc, 9, IBV_WC_SUCCESS));
	others_work(p);
}

/* A queue pair that a rule holds goes like any other. */
PAIR_CASE(silent_queue_pairs_can_be_destroyed, 0)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 1, &remote, 0, LEN));
	must(rules("qp=%u do=silent\nqp=%u on=recv do=silent", p->a.qp->qp_num, p->b.qp->qp_num));
	must(post_msg(p, 1, 64) && expect_no_wc(p->b.recv_cq, QUIET));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	must(rules(""));
}

#define SLOW_LEN (4 << 20)

/* The octets of half a second take at least a fifth: TCP sends the first ten segments at once. */
PAIR_CASE(slow_stream_keeps_its_rate, 0)
{
	struct region from, to;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	int64_t begun;

	must(region_make(&from, p->a.pd, SLOW_LEN, IBV_ACCESS_LOCAL_WRITE) && prepare(p) &&
	     region_make(&to, p->b.pd, SLOW_LEN, ALL_RIGHTS));
	must(rules("qp=%u nth=1 do=rate=8M", p->a.qp->qp_num));
	begun = now_ms();
	sge = sge_of(&from, 0, SLOW_LEN);
	wr = wr_rdma(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)to.buf,
		     to.mr->rkey);
	must(post_send(&p->a, &wr) && post(p, IBV_WR_RDMA_READ, 2));
	must(all_done(p->a.send_cq, 1, 2));
	check(now_ms() - begun >= 200, "it took %d ms", (int)(now_ms() - begun));
	/* At this rate it would take an hour, and TCP waits minutes behind the first octets. */
	must(rules("qp=%u nth=1 do=rate=1k", p->a.qp->qp_num));
	wr.wr_id = 3;
	must(post_send(&p->a, &wr) && post(p, IBV_WR_RDMA_READ, 4));
	must(expect_no_wc(p->a.send_cq, QUIET));
	must(rules("") && all_done(p->a.send_cq, 3, 4));
}

/* The last octet of the first FPDU is another one, and the program hears of no error. */
PAIR_CASE(corrupted_payload_is_delivered, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	pattern_fill(local.buf, LEN, 1);
	memset(remote.buf, 0, LEN);
	must(rules("qp=%u nth=1 do=corrupt", p->a.qp->qp_num));
	must(post(p, IBV_WR_RDMA_WRITE, 1) && post(p, IBV_WR_RDMA_READ, 2));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_SUCCESS));
	check(pattern_differs(remote.buf, 64, 1) == 63, "another octet is changed, or none");
	/* The Read has brought it back. */
	check(pattern_differs(local.buf, 64, 1) == 63, "the Read has brought something else");
	pattern_fill(local.buf, LEN, 2);
	must(post(p, IBV_WR_RDMA_WRITE, 3) && post(p, IBV_WR_RDMA_READ, 4));
	must(all_done(p->a.send_cq, 3, 4));
	check(pattern_differs(remote.buf, 64, 2) < 0, "the second Write is changed too");
	must(rules(""));
}

/* A peer that checks the CRC ends the stream. */
static void corrupted_crc_is_noticed(struct pair *p)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	pattern_fill(local.buf, LEN, 1);
	memset(remote.buf, 0, LEN);
	must(rules("qp=%u nth=1 do=corrupt=crc", p->a.qp->qp_num));
	must(post(p, IBV_WR_RDMA_READ, 1));
	check(poll_wc(p->a.send_cq, &wc, SOON) && wc.status != IBV_WC_SUCCESS, "%s",
	      ibv_wc_status_str(wc.status));
	if (rxe)
		check(wc.vendor_err == 0x12002, "vendor_err is %#x", wc.vendor_err);
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	others_work(p);
	must(rules(""));
}

static void corrupted_crc(void) { with_pair_set("crc", 1, corrupted_crc_is_noticed); }

/* The peer has got it, but its completion is late, and so are those behind it. */
PAIR_CASE(delayed_completion_delays_later_ones, 0)
{
	int64_t begun;

	must(prepare(p));
	must(rules("qp=%u on=complete nth=2 do=delay=%dms", p->a.qp->qp_num, HELD));
	begun = now_ms();
	must(send_all(p, 3) && all_done(p->b.recv_cq, 1, 3) && all_done(p->a.send_cq, 1, 3));
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	/* A Read as well. */
	must(rules("qp=%u on=complete op=read do=delay=%dms", p->a.qp->qp_num, HELD));
	begun = now_ms();
	must(post(p, IBV_WR_RDMA_READ, 4) && all_done(p->a.send_cq, 4, 4));
	check(now_ms() - begun >= HELD, "the Read took %d ms", (int)(now_ms() - begun));
	others_work(p);
	must(rules(""));
}

PAIR_CASE(held_completion_comes_when_rule_is_removed, 0)
{
	must(prepare(p));
	must(rules("qp=%u on=complete nth=2 do=silent", p->a.qp->qp_num));
	must(send_all(p, 3) && all_done(p->b.recv_cq, 1, 3) && all_done(p->a.send_cq, 1, 1));
	must(expect_no_wc(p->a.send_cq, QUIET));
	/* One of other rules goes likewise. */
	must(rules("qp=%u on=complete op=read do=silent", p->a.qp->qp_num));
	must(all_done(p->a.send_cq, 2, 3));
	must(post(p, IBV_WR_RDMA_READ, 4) && expect_no_wc(p->a.send_cq, QUIET));
	must(rules("") && all_done(p->a.send_cq, 4, 4));
	others_work(p);
}

/* The peer has got what has failed. */
PAIR_CASE(sent_request_completes_with_injected_error, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u on=complete nth=2 do=status=GENERAL_ERR%s", p->a.qp->qp_num,
		   rxe ? " vendor=9" : ""));
	must(send_all(p, 3));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_GENERAL_ERR));
	check(!rxe || wc.vendor_err == 9, "vendor_err is %#x", wc.vendor_err);
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(all_done(p->b.recv_cq, 1, 2));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	others_work(p);
	must(rules(""));
}

PAIR_CASE(answered_read_completes_with_injected_error, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	pattern_fill(remote.buf, LEN, 3);
	must(rules("qp=%u on=complete op=read do=status=LOC_PROT_ERR quiet", p->a.qp->qp_num));
	must(post(p, IBV_WR_RDMA_READ, 1) && post(p, IBV_WR_RDMA_WRITE, 2));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_LOC_PROT_ERR));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_WR_FLUSH_ERR));
	check(pattern_differs(local.buf, 64, 3) < 0, "the Read has brought nothing");
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "the peer's queue pair is not RTS");
	must(rules(""));
}

/* The Read before it is done later than the Write is sent. */
PAIR_CASE(injected_completion_error_leaves_earlier_read, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u on=complete op=write do=status=GENERAL_ERR\nqp=%u on=recv op=read "
		   "do=delay=%dms", p->a.qp->qp_num, p->b.qp->qp_num, HELD));
	must(post(p, IBV_WR_RDMA_READ, 1) && post(p, IBV_WR_RDMA_WRITE, 2));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, IBV_WC_GENERAL_ERR));
	must(rules(""));
}

/* A queue pair goes, although a completion is held. */
PAIR_CASE(queue_pair_with_a_held_completion_is_destroyed, 0)
{
	must(prepare(p));
	must(rules("qp=%u on=complete do=silent", p->a.qp->qp_num));
	must(send_all(p, 2) && all_done(p->b.recv_cq, 1, 2));
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	others_work(p);
	must(rules(""));
}

PAIR_CASE(delayed_message_delays_later_ones, 0)
{
	int64_t begun;

	must(prepare(p));
	must(rules("qp=%u on=recv op=send nth=2 do=delay=%dms", p->b.qp->qp_num, HELD));
	begun = now_ms();
	must(send_all(p, 3) && all_done(p->b.recv_cq, 1, 3) && all_done(p->a.send_cq, 1, 3));
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
	others_work(p);
	must(rules(""));
}

/* A Read of the peer is one of its messages. */
PAIR_CASE(delayed_inbound_read_is_answered_late, 0)
{
	int64_t begun;

	must(prepare(p));
	must(rules("qp=%u on=recv op=read do=delay=%dms", p->b.qp->qp_num, HELD));
	begun = now_ms();
	must(post(p, IBV_WR_RDMA_READ, 1) && all_done(p->a.send_cq, 1, 1));
	check(now_ms() - begun >= HELD, "it took %d ms", (int)(now_ms() - begun));
	must(rules(""));
}

PAIR_CASE(silent_receiver_takes_no_message, 0)
{
	must(prepare(p));
	must(rules("qp=%u on=recv nth=2 do=silent", p->b.qp->qp_num));
	must(send_all(p, 3) && all_done(p->b.recv_cq, 1, 1) && expect_no_wc(p->b.recv_cq, QUIET));
	must(rules("") && all_done(p->b.recv_cq, 2, 3) && all_done(p->a.send_cq, 1, 3));
	others_work(p);
}

PAIR_CASE(receive_completes_with_injected_status, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u on=recv nth=2 do=status=LOC_PROT_ERR", p->b.qp->qp_num));
	must(send_all(p, 3));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_LOC_PROT_ERR));
	must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON) && qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	others_work(p);
	must(rules(""));
}

/* The stream ends before the second Send of the peer is taken; nothing of it is delivered. */
static void ends_before_message(struct pair *p, const char *action, uint32_t vendor)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->a, 9, &local, 0, 64));
	must(rules("qp=%u on=recv nth=2 do=%s", p->b.qp->qp_num, action));
	must(send_all(p, 2));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->a.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == vendor, "the peer's vendor_err is %#x", wc.vendor_err);
	others_work(p);
	must(rules(""));
}

PAIR_CASE(terminate_before_a_message, 0) { ends_before_message(p, "terminate=0x10206", 0x10206); }
PAIR_CASE(reset_before_a_message, 0) { ends_before_message(p, "reset", 0); }
PAIR_CASE(fin_before_a_message, 0) { ends_before_message(p, "fin", 0); }

/* Its receive is posted, and is found when the message looks again. */
PAIR_CASE(no_receive_action_makes_message_wait, 0)
{
	long waits = device_counter(p->b.id->verbs, "rx_receive_waits");

	must(prepare(p));
	must(rules("qp=%u on=recv nth=2 do=no-receive", p->b.qp->qp_num));
	must(send_all(p, 3) && all_done(p->b.recv_cq, 1, 3) && all_done(p->a.send_cq, 1, 3));
	waits = device_counter(p->b.id->verbs, "rx_receive_waits") - waits;
	check(waits == 1, "%ld waits", waits);
	must(rules(""));
}

/* If messages do not wait, it ends the stream. */
static void message_that_may_not_wait_finds_no_receive(struct pair *p)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->a, 9, &local, 0, 64));
	must(rules("qp=%u on=recv do=no-receive", p->b.qp->qp_num));
	must(send_all(p, 1));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_WR_FLUSH_ERR));
	must(expect_wc(p->a.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == 0x11202, "the peer's vendor_err is %#x", wc.vendor_err);
	must(rules(""));
}

static void no_receive_action_without_receive_wait_ends_the_stream(void)
{
	with_pair_set("receive_wait", 0, message_that_may_not_wait_finds_no_receive);
}

/* By the name of the process that made the queue pair, and counted on all streams together. */
PAIR_CASE(rules_written_by_process_apply_to_device, 0)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	must(prepare(p));
	sge = sge_of(&remote, 0, 64);
	wr = wr_make(IBV_WR_SEND, 7, IBV_SEND_SIGNALED, &sge, 1);
	must(rules("comm=%.14sx do=reset\ncomm=%.15s scope=device nth=3 do=status=GENERAL_ERR",
		   program_invocation_short_name, program_invocation_short_name));
	must(post_recv(&p->a, 9, &local, 0, LEN) && post_send(&p->b, &wr));
	must(expect_wc(p->b.send_cq, &wc, 7, IBV_WC_SUCCESS));
	must(post(p, IBV_WR_RDMA_WRITE, 1) && expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(post(p, IBV_WR_RDMA_WRITE, 2) && expect_wc(p->a.send_cq, &wc, 2, IBV_WC_GENERAL_ERR));
	check(strstr(shown_rules(), "do=reset hits=0\n") && strstr(shown_rules(), "GENERAL_ERR hits=1\n"), "%s",
	      shown_rules());
	must(rules(""));
}

static void invalid_rules_are_refused(void)
{
	static const char *const bad[] = {
		"do=explode", "nth=0 do=reset", "qp=1", "qp=1 qp=2 do=fin", "nth=1 do=fin\nx do=fin",
		"do=status=WR_FLUSH_ERR", "do=delay=5", "do=no-receive", "on=recv do=corrupt",
		"do=errno=EIO", "on=create_qp do=reset", "on=post_send do=errno=EIO",
	};
	char many[15 * 8 + 1] = "";

	must(rules("qp=1 do=reset\nport=4420 p=0.5 seed=7 do=fin"));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		check(!takes_rules(bad[i]) && errno == EINVAL, "%s", bad[i]);
	/* Beside the two. */
	for (int i = 0; i < 15; i++)
		strcat(many, "do=fin\n");
	check(!takes_rules(many) && errno == ENOSPC, "17 rules: %s", strerror(errno));
	check(!strcmp(shown_rules(), "qp=1 do=reset hits=0\nport=4420 p=0.5 seed=7 do=fin hits=0\n"), "%s",
	      shown_rules());
	/* Lines are added, and comments are none. */
	must(takes_rules("# another one\n\npeer=::1 do=fin"));
	check(!strcmp(shown_rules(), "qp=1 do=reset hits=0\nport=4420 p=0.5 seed=7 do=fin hits=0\n"
			       "peer=::1 do=fin hits=0\n"),
	      "%s", shown_rules());
	must(rules(""));
	check(!strcmp(shown_rules(), "\n"), "%s", shown_rules());
}

/* The file's mode would permit it. */
static void rules_need_the_capability(void)
{
	must(needs_net_admin(test_context(), "inject", "do=reset"));
	check(!strcmp(shown_rules(), "\n"), "%s", shown_rules());
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	rxe = has_extensions();
	RUN(status_of_request_is_that_of_the_rule);
	RUN(quiet_status_leaves_the_peer_in_rts);
	RUN(terminate_has_the_code_of_the_rule);
	RUN(reset_action_resets_the_connection);
	RUN(fin_action_sends_fin);
	RUN(rule_counts_only_matching_requests);
	RUN(rule_counts_per_stream);
	RUN(delayed_request_delays_later_ones);
	RUN(silent_queue_pair_sends_nothing);
	RUN(silent_queue_pairs_can_be_destroyed);
	RUN(slow_stream_keeps_its_rate);
	RUN(corrupted_payload_is_delivered);
	RUN(corrupted_crc);
	RUN(delayed_completion_delays_later_ones);
	RUN(held_completion_comes_when_rule_is_removed);
	RUN(sent_request_completes_with_injected_error);
	RUN(answered_read_completes_with_injected_error);
	RUN(injected_completion_error_leaves_earlier_read);
	RUN(queue_pair_with_a_held_completion_is_destroyed);
	RUN(delayed_message_delays_later_ones);
	RUN(delayed_inbound_read_is_answered_late);
	RUN(silent_receiver_takes_no_message);
	RUN(receive_completes_with_injected_status);
	RUN(terminate_before_a_message);
	RUN(reset_before_a_message);
	RUN(fin_before_a_message);
	RUN(no_receive_action_makes_message_wait);
	RUN(no_receive_action_without_receive_wait_ends_the_stream);
	RUN(rules_written_by_process_apply_to_device);
	RUN(invalid_rules_are_refused);
	RUN(rules_need_the_capability);
	return test_end();
}

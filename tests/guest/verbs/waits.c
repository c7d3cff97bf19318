// SPDX-License-Identifier: GPL-2.0
/*
 * Messages that arrive before their receive is posted: they wait for it (RFC 5041, section 7.1).
 */

#include "modify.h"

#include <arpa/inet.h>

#define LONG 40000

static struct region src, dst;

static bool prepare(struct pair *p)
{
	return region_make(&src, p->a.pd, 65536, ALL_RIGHTS) &&
	       region_make(&dst, p->b.pd, 65536, ALL_RIGHTS);
}

static bool send_len(struct end *from, uint64_t id, size_t len)
{
	struct ibv_sge sge = sge_of(&src, 0, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sge, 1);

	return post_send(from, &wr);
}

/* Posts a Write or Read between `here` and `there`, from this offset on. */
static bool post_rdma(struct end *e, enum ibv_wr_opcode op, uint64_t id, const struct region *here,
		      size_t len, const struct region *there, size_t offset)
{
	struct ibv_sge sge = sge_of(here, 0, len);
	struct ibv_send_wr wr = wr_rdma(op, id, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)there->buf + offset, there->mr->rkey);

	return post_send(e, &wr);
}

static long waits(struct pair *p) { return device_counter(p->b.id->verbs, "rx_receive_waits"); }

/* Waits until so many messages have begun to wait, from `before` on. */
static bool begun(struct pair *p, long before, long count)
{
	int64_t end = now_ms() + SOON;

	while (waits(p) - before < count)
		if (now_ms() >= end) {
			fail("%ld messages wait, not %ld", waits(p) - before, count);
			return false;
		}
	return true;
}

/* The receive comes later than its Send, of one FPDU or many. */
PAIR_CASE(send_waits_for_its_receive)
{
	static const struct {
		size_t len;
		int ms;
	} cases[] = { { 16, 1 }, { 16, 50 }, { LONG, 1 }, { LONG, 50 }, { 0, 20 }, { LONG, 500 } };
	struct ibv_wc wc;

	must(prepare(p));
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		long before = waits(p);

		pattern_fill(src.buf, src.len, (uint32_t)i);
		memset(dst.buf, 0, dst.len);
		must(send_len(&p->a, i, cases[i].len));
		must(begun(p, before, 1));
		must(expect_no_wc(p->b.recv_cq, cases[i].ms));
		check(not_all(dst.buf, dst.len, 0) < 0, "something of it was placed");
		must(post_recv(&p->b, 100 + i, &dst, 0, LONG));
		must(expect_wc(p->b.recv_cq, &wc, 100 + i, IBV_WC_SUCCESS));
		check(wc.byte_len == cases[i].len, "%u octets", wc.byte_len);
		check(pattern_differs(dst.buf, cases[i].len, (uint32_t)i) < 0, "data differs");
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
		check(waits(p) == before + 1, "%ld waits", waits(p) - before);
	}
	must(exchange_works(p));
}

/* Many wait one behind the other, in their order, and so does what follows them. */
PAIR_CASE(later_messages_wait_in_order, .depth = 4)
{
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	before = waits(p);
	pattern_fill(src.buf, src.len, 7);
	for (int i = 0; i < 8; i++)
		must(send_len(&p->a, i, 100 + i));
	must(post_rdma(&p->a, IBV_WR_RDMA_WRITE, 8, &src, 64, &dst, 4096));
	must(begun(p, before, 1));
	check(!dst.buf[4096], "the Write overtook the Sends");
	for (int i = 0; i < 8; i++) {
		must(post_recv(&p->b, i, &dst, 0, 256));
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.byte_len == 100u + i, "%d: %u octets", i, wc.byte_len);
	}
	for (int i = 0; i <= 8; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	must(exchange_works(p));
	check(pattern_differs(dst.buf + 4096, 64, 7) < 0, "the Write differs");
}

/* Of a Write with Immediate Data the Write is placed; the Immediate Data waits. */
PAIR_CASE(immediate_data_waits_behind_its_write)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	long before;

	if (!has_extensions()) {
		test_skip("the library has no Immediate Data");
		return;
	}
	must(prepare(p));
	before = waits(p);
	pattern_fill(src.buf, src.len, 3);
	sge = sge_of(&src, 0, LONG);
	wr = wr_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)dst.buf,
		     dst.mr->rkey);
	wr.imm_data = htonl(0x12345678);
	must(post_send(&p->a, &wr));
	must(begun(p, before, 1));
	check(pattern_differs(dst.buf, LONG, 3) < 0, "the Write is not placed");
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_no_wc(p->b.recv_cq, 50));
	must(post_recv(&p->b, 2, &dst, LONG, 16));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == LONG &&
		      ntohl(wc.imm_data) == 0x12345678,
	      "opcode %d, %u octets, %#x", wc.opcode, wc.byte_len, ntohl(wc.imm_data));
	must(exchange_works(p));
}

/*
 * Queue pairs that wait on one shared queue get its receives in the order in which they began to
 * wait, before one that comes later.
 */
PAIR_CASE(srq_serves_longest_waiting_queue_pair, .srq = srq_make)
{
	enum { N = 5 };
	struct pair_opts opts = { .beside = &p->b };
	struct pair others[N] = { 0 };
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	for (int i = 0; i < N; i++)
		if (!pair_open(&others[i], &opts))
			goto out;
	for (int i = 0; i < N; i++) {
		struct region own;
		struct ibv_sge sge;
		struct ibv_send_wr wr;

		before = waits(p);
		if (!region_make(&own, others[i].a.pd, 4096, 0))
			goto out;
		memset(own.buf, i + 1, own.len);
		sge = sge_of(&own, 0, 16);
		wr = wr_make(IBV_WR_SEND, i, IBV_SEND_SIGNALED, &sge, 1);
		if (!post_send(&others[i].a, &wr) || !begun(p, before, 1))
			goto out;
	}
	for (int i = 0; i < N; i++) {
		/* The last one comes while the others wait, and there is a receive. */
		if (!post_recv(&p->b, i, &dst, i * 16, 16) || (i == 0 && !send_len(&p->a, 9, 16)) ||
		    !expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS))
			goto out;
		if (wc.qp_num != others[i].b.qp->qp_num || dst.buf[i * 16] != i + 1)
			fail("receive %d is of %u", i, dst.buf[i * 16]);
	}
	if (post_recv(&p->b, N, &dst, N * 16, 16) && expect_wc(p->b.recv_cq, &wc, N, IBV_WC_SUCCESS) &&
	    wc.qp_num != p->b.qp->qp_num)
		fail("the last receive is another's");
out:
	for (int i = 0; i < N; i++)
		pair_close(&others[i]);
}

static void ends_the_stream(struct pair *p)
{
	long millis = device_value(p->b.id->verbs, "receive_wait");
	long timeouts = device_counter(p->b.id->verbs, "rx_receive_timeouts");
	int64_t begin;

	must(prepare(p));
	begin = now_ms();
	must(send_len(&p->a, 3, 16));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(now_ms() - begin >= millis, "after %d ms", (int)(now_ms() - begin));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(async_qp_error(p->b.id->verbs, p->b.qp, SOON), "no event at the receiver");
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	timeouts = device_counter(p->b.id->verbs, "rx_receive_timeouts") - timeouts;
	check(timeouts == (millis ? 1 : 0), "%ld time-outs", timeouts);
}

static void wait_beyond_receive_wait_ends_the_stream(void) { with_pair_set("receive_wait", 300, ends_the_stream); }

static void receive_wait_0_ends_the_stream(void) { with_pair_set("receive_wait", 0, ends_the_stream); }

/* The peer's FIN does not end a wait: the message is delivered, then the end. */
PAIR_CASE(message_of_disconnected_peer_arrives)
{
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	before = waits(p);
	pattern_fill(src.buf, src.len, 5);
	must(send_len(&p->a, 1, LONG));
	must(begun(p, before, 1));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	must(expect_no_wc(p->b.recv_cq, 100));
	must(post_recv(&p->b, 2, &dst, 0, LONG));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	check(wc.byte_len == LONG && pattern_differs(dst.buf, LONG, 5) < 0, "data differs");
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
}

/* Waits of half a minute: longer than any other limit of a stream (src/cm/conn/stream.rs). */
static void long_wait(struct pair *p, bool disconnects)
{
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	before = waits(p);
	pattern_fill(src.buf, src.len, 6);
	for (int i = 0; i < 2; i++)
		must(send_len(&p->a, i, LONG));
	must(begun(p, before, 1));
	if (disconnects)
		check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	must(expect_no_wc(p->b.recv_cq, 30000));
	for (int i = 0; i < 2; i++) {
		memset(dst.buf, 0, LONG);
		must(post_recv(&p->b, i, &dst, 0, LONG));
		must(expect_wc(p->b.recv_cq, &wc, i, IBV_WC_SUCCESS));
		check(wc.byte_len == LONG && pattern_differs(dst.buf, LONG, 6) < 0, "data differs");
	}
	for (int i = 0; i < 2; i++)
		must(expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	if (!disconnects)
		must(exchange_works(p));
	else
		must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

static void connected_half_a_minute(struct pair *p) { long_wait(p, false); }
static void disconnected_half_a_minute(struct pair *p) { long_wait(p, true); }

static void message_waits_half_a_minute(void)
{
	with_pair_set("receive_wait", 90000, connected_half_a_minute);
}

static void message_waits_half_a_minute_after_disconnect(void)
{
	with_pair_set("receive_wait", 90000, disconnected_half_a_minute);
}

/* Ends of the queue pair and of the stream end a wait at once. */
PAIR_CASE(modify_to_error_ends_wait)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int64_t begin;
	long before;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	begin = now_ms();
	check(!ibv_modify_qp(p->b.qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	check(now_ms() - begin < 5000 * slow, "after %d ms", (int)(now_ms() - begin));
}

PAIR_CASE(modify_to_reset_ends_wait)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	long before;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	/* The peer's error resets the connection, or ends it after its Terminate. */
	check(!ibv_modify_qp(p->a.qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
}

/* Destroyed, or its process killed: world_is_well() and the end of the program see the rest. */
PAIR_CASE(waiting_queue_pair_can_be_destroyed)
{
	int64_t begin;
	long before;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	begin = now_ms();
	rdma_destroy_qp(p->b.id);
	p->b.qp = NULL;
	check(now_ms() - begin < 5000 * slow, "after %d ms", (int)(now_ms() - begin));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
}

static void victim(struct pair *p)
{
	long before;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	victim_ready();
	pause();
}

static void a_process_that_waits_is_killed(void)
{
	check(killed_in(victim), "not killed");
	world_is_well();
}

/* Another queue pair of the device goes on meanwhile; so do this one's own requests. */
PAIR_CASE(waiting_message_delays_no_other_queue_pair)
{
	struct pair other;
	struct ibv_wc wc;
	long before;
	bool works;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	works = pair_open(&other, &(struct pair_opts){ 0 }) && exchange_works(&other);
	pair_close(&other);
	must(works);
	/* That has freed the memory. */
	must(prepare(p));
	/* A program polls for its own Write before it posts its receive. */
	pattern_fill(dst.buf, 4096, 8);
	must(post_rdma(&p->b, IBV_WR_RDMA_WRITE, 2, &dst, 4096, &src, 8192));
	must(expect_wc(p->b.send_cq, &wc, 2, IBV_WC_SUCCESS));
	for (int64_t end = now_ms() + SOON; pattern_differs(src.buf + 8192, 4096, 8) >= 0;)
		check(now_ms() < end, "the Write does not arrive");
	must(post_recv(&p->b, 3, &dst, 8192, 64));
	must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(exchange_works(p));
}

/* The answer to a Read stands behind the message that waits, until its receive is posted. */
PAIR_CASE(a_read_waits_behind_the_message)
{
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	before = waits(p);
	pattern_fill(src.buf, src.len, 6);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	must(post_rdma(&p->b, IBV_WR_RDMA_READ, 2, &dst, 4096, &src, 0));
	must(expect_no_wc(p->b.send_cq, 100));
	must(post_recv(&p->b, 3, &dst, 8192, 64));
	must(expect_wc(p->b.recv_cq, &wc, 3, IBV_WC_SUCCESS));
	must(expect_wc(p->b.send_cq, &wc, 2, IBV_WC_SUCCESS));
	check(pattern_differs(dst.buf, 4096, 6) < 0, "data differs");
}

/* A wait is served by a program that sleeps on its completion channel, too. */
PAIR_CASE(armed_cq_channel_fires_after_wait, .channels = true)
{
	struct ibv_wc wc;
	long before;

	must(prepare(p));
	before = waits(p);
	must(send_len(&p->a, 1, 16));
	must(begun(p, before, 1));
	must(post_recv(&p->b, 2, &dst, 0, 64));
	check(!ibv_req_notify_cq(p->b.recv_cq, 0), "ibv_req_notify_cq");
	/* The message may have arrived before. */
	if (!poll_wc(p->b.recv_cq, &wc, 0)) {
		check(channel_fires(p->b.recv_channel, SOON), "no event");
		must(poll_wc(p->b.recv_cq, &wc, SOON));
	}
	check(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
}

/* Reads how long the processors have worked, and how long there are, in ticks. */
static bool processor_time(long *busy, long *all)
{
	long user, nice, system, idle, iowait, irq, softirq;
	FILE *file = fopen("/proc/stat", "r");
	int n = 0;

	if (file) {
		n = fscanf(file, "cpu %ld %ld %ld %ld %ld %ld %ld", &user, &nice, &system, &idle, &iowait,
			   &irq, &softirq);
		fclose(file);
	}
	*busy = user + nice + system + irq + softirq;
	*all = *busy + idle + iowait;
	return n == 7;
}

/*
 * How much of a processor it takes to look after many that wait. For a kernel that runs at the speed
 * of the machine: WAITERS says how many.
 */
static void many_waiting_queue_pairs_use_little_cpu(void)
{
	const char *text = getenv("WAITERS");
	int n = text ? atoi(text) : 0, opened = 0;
	struct ibv_context *ctx = test_context();
	struct side *sides = calloc(2 * n, sizeof(*sides));
	long before, begin[2], end[2];

	check(n > 0 && ctx && sides, "WAITERS is no number, or there is no device");
	before = device_counter(ctx, "rx_receive_waits");
	for (; opened < n; opened++) {
		struct side *a = &sides[2 * opened], *b = a + 1;

		if (!sides_open(a, b, ctx, 0) || !sides_join(a, b) || !side_send(a, 1, 16))
			break;
	}
	for (int64_t limit = now_ms() + SOON; device_counter(ctx, "rx_receive_waits") - before < n;)
		if (now_ms() > limit)
			break;
	before = device_counter(ctx, "rx_receive_waits") - before;
	sleep_ms(1000);
	if (before == n && processor_time(&begin[0], &begin[1]) && !usleep(5000000) &&
	    processor_time(&end[0], &end[1])) {
		long busy = end[0] - begin[0], all = end[1] - begin[1];

		printf("# %d that wait take %ld ticks of %ld\n", n, busy, all);
		if (busy * 50 >= all)
			fail("%ld ticks of %ld", busy, all);
	} else {
		fail("%ld wait, not %d", before, n);
	}
	for (int i = 0; i <= opened && i < n; i++)
		sides_close(&sides[2 * i], &sides[2 * i + 1]);
	free(sides);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (getenv("LONG_WAITS")) {
		RUN(message_waits_half_a_minute);
		RUN(message_waits_half_a_minute_after_disconnect);
		return test_end();
	}
	RUN(a_process_that_waits_is_killed);
	RUN(send_waits_for_its_receive);
	RUN(later_messages_wait_in_order);
	RUN(immediate_data_waits_behind_its_write);
	RUN(srq_serves_longest_waiting_queue_pair);
	RUN(wait_beyond_receive_wait_ends_the_stream);
	RUN(receive_wait_0_ends_the_stream);
	RUN(message_of_disconnected_peer_arrives);
	RUN(modify_to_error_ends_wait);
	RUN(modify_to_reset_ends_wait);
	RUN(waiting_queue_pair_can_be_destroyed);
	RUN(waiting_message_delays_no_other_queue_pair);
	RUN(a_read_waits_behind_the_message);
	RUN(armed_cq_channel_fires_after_wait);
	if (getenv("WAITERS"))
		RUN(many_waiting_queue_pairs_use_little_cpu);
	return test_end();
}

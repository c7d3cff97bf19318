// SPDX-License-Identifier: GPL-2.0
/* Completion notification: arming for any and for solicited completions only. */

#include "common.h"

static struct region src, dst;

static bool prepare(struct pair *p)
{
	return region_make(&src, p->a.pd, 4096, 0) &&
	       region_make(&dst, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
}

static bool send_one(struct pair *p, int flags)
{
	struct ibv_sge sge = sge_of(&src, 0, 100);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, 1, flags | IBV_SEND_SIGNALED, &sge, 1);
	struct ibv_wc wc;

	return post_recv(&p->b, 2, &dst, 0, 4096) && post_send(&p->a, &wr) &&
	       expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS);
}

static bool take_receive(struct pair *p)
{
	struct ibv_wc wc;

	return expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS);
}

PAIR_CASE(unarmed_cq_raises_no_event, .channels = true)
{
	must(prepare(p));
	must(send_one(p, IBV_SEND_SOLICITED));
	must(take_receive(p));
	check(!channel_fires(p->b.recv_channel, QUIET), "an event although never armed");
	check(!channel_fires(p->a.send_channel, 0), "an event although never armed");
}

PAIR_CASE(armed_cq_raises_event_on_send, .channels = true)
{
	must(prepare(p));
	check(!ibv_req_notify_cq(p->b.recv_cq, 0), "arming failed");
	must(send_one(p, 0));
	check(channel_fires(p->b.recv_channel, SOON), "no event");
	must(take_receive(p));
}

PAIR_CASE(armed_cq_raises_event_on_send_completion, .channels = true)
{
	must(prepare(p));
	check(!ibv_req_notify_cq(p->a.send_cq, 0), "arming failed");
	must(send_one(p, 0));
	check(channel_fires(p->a.send_channel, SOON), "no event");
	must(take_receive(p));
}

PAIR_CASE(solicited_arming_ignores_plain_send, .channels = true)
{
	must(prepare(p));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming failed");
	must(send_one(p, 0));
	must(take_receive(p));
	check(!channel_fires(p->b.recv_channel, QUIET), "an event for an unsolicited Send");
}

PAIR_CASE(solicited_arming_raises_event_on_solicited_send, .channels = true)
{
	must(prepare(p));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming failed");
	must(send_one(p, 0));
	must(send_one(p, IBV_SEND_SOLICITED));
	check(channel_fires(p->b.recv_channel, SOON), "no event for a solicited Send");
	must(take_receive(p));
	must(take_receive(p));
}

PAIR_CASE(solicited_arming_raises_event_on_flush, .channels = true)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(post_recv(&p->b, 5, &dst, 0, 4096));
	check(!ibv_req_notify_cq(p->b.recv_cq, 1), "arming failed");
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	check(channel_fires(p->b.recv_channel, SOON), "no event for a flushed receive");
	must(expect_wc(p->b.recv_cq, &wc, 5, IBV_WC_WR_FLUSH_ERR));
}

PAIR_CASE(armed_cq_raises_one_event, .channels = true)
{
	must(prepare(p));
	check(!ibv_req_notify_cq(p->b.recv_cq, 0), "arming failed");
	for (int i = 0; i < 5; i++)
		must(send_one(p, IBV_SEND_SOLICITED));
	for (int i = 0; i < 5; i++)
		must(take_receive(p));
	check(channel_fires(p->b.recv_channel, SOON), "no event");
	check(!channel_fires(p->b.recv_channel, QUIET), "a second event from one arming");
}

/* The usual loop of an event-driven consumer: arm, drain, sleep. It must never miss a wake-up. */
PAIR_CASE(no_cq_event_is_lost, .channels = true)
{
	const int rounds = 300;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int got = 0;

	must(prepare(p));
	for (int i = 0; i < 32; i++)
		must(post_recv(&p->b, i, &dst, 0, 128));
	for (int sent = 0; sent < rounds;) {
		sge = sge_of(&src, 0, 64);
		wr = wr_make(IBV_WR_SEND, sent, IBV_SEND_SIGNALED, &sge, 1);
		must(post_send(&p->a, &wr));
		sent++;
		must(expect_wc(p->a.send_cq, &wc, sent - 1, IBV_WC_SUCCESS));
		while (got < sent) {
			check(!ibv_req_notify_cq(p->b.recv_cq, 0), "arming failed");
			while (poll_wc(p->b.recv_cq, &wc, 0)) {
				check(wc.status == IBV_WC_SUCCESS, "%s",
				      ibv_wc_status_str(wc.status));
				got++;
				must(post_recv(&p->b, got, &dst, 0, 128));
			}
			if (got < sent)
				check(channel_fires(p->b.recv_channel, SOON),
				      "slept through message %d", got);
		}
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(unarmed_cq_raises_no_event);
	RUN(armed_cq_raises_event_on_send);
	RUN(armed_cq_raises_event_on_send_completion);
	RUN(solicited_arming_ignores_plain_send);
	RUN(solicited_arming_raises_event_on_solicited_send);
	RUN(solicited_arming_raises_event_on_flush);
	RUN(armed_cq_raises_one_event);
	RUN(no_cq_event_is_lost);
	return test_end();
}

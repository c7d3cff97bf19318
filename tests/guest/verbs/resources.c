// SPDX-License-Identifier: GPL-2.0
/* What `rdma -dd resource show` says of the objects of this process. */

#include "common.h"

static struct region mail;

/* Whether one of this process's objects of that kind, chosen by `filter`, is shown with these words. */
static bool shown(const char *kind, const char *filter, const char *words)
{
	char command[200], text[10000];
	size_t len = 0;
	FILE *list;

	snprintf(command, sizeof(command),
		 "rdma -dd resource show %s pid %d %s | tr -s '\\n\\t ' ' '", kind, getpid(), filter);
	list = popen(command, "r");
	if (list) {
		len = fread(text, 1, sizeof(text) - 1, list);
		pclose(list);
	}
	text[len] = 0;
	printf("%s\n", text);
	return strstr(text, words) != NULL;
}

/* The same of a queue pair. */
static bool qp_shown(struct ibv_qp *qp, const char *words)
{
	char filter[40];

	snprintf(filter, sizeof(filter), "lqpn %u", qp->qp_num);
	return shown("qp", filter, words);
}

PAIR_CASE(queue_pair, .depth = 5)
{
	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < 3; i++)
		must(post_recv(&p->b, i, &mail, 0, 64));
	check(qp_shown(p->b.qp, " drv_phase rts drv_sq_posted 0 drv_sq_pending 0 "), "not running");
	check(qp_shown(p->b.qp, " drv_reads 0 drv_ord 5 drv_inbound_reads 0 drv_ird 5 "), "other depths");
	/* libsiw keeps no count. */
	check(qp_shown(p->b.qp, " drv_rq_posted 3 ") == has_extensions(), "receives");
	check(!rdma_disconnect(p->a.id), "disconnecting: %s", strerror(errno));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(qp_shown(p->b.qp, " drv_phase error "), "not in error");
}

PAIR_CASE(completion_queue)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	check(!shown("cq", "", " drv_waiting 1 "), "a completion");
	must(post_recv(&p->b, 1, &mail, 0, 64));
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 0);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(shown("cq", "", " drv_overrun 0 "), "nothing");
	if (!has_extensions())
		return;
	check(shown("cq", "", " drv_waiting 1 drv_armed no "), "no completion");
	check(!ibv_req_notify_cq(p->a.send_cq, 1), "arming: %s", strerror(errno));
	check(shown("cq", "", " drv_waiting 1 drv_armed solicited "), "not armed");
	check(!ibv_req_notify_cq(p->a.send_cq, 0), "arming: %s", strerror(errno));
	check(shown("cq", "", " drv_waiting 1 drv_armed next "), "not armed");
}

PAIR_CASE(memory_region)
{
	must(region_make(&mail, p->b.pd, 5 * 4096, ALL_RIGHTS));
	check(shown("mr", "mrlen 20480", " drv_kind user drv_valid 1 drv_access 0x7 drv_windows 0 "), "none");
}

PAIR_CASE(shared_receive_queue, .srq = srq_make)
{
	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(post_recv(&p->b, 1, &mail, 0, 64));
	check(shown("srq", "", has_extensions() ? " drv_waiting 1 drv_limit 0 " : " drv_limit 0 "), "none");
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(queue_pair);
	RUN(completion_queue);
	RUN(memory_region);
	RUN(shared_receive_queue);
	return test_end();
}

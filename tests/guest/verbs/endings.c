// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that end in each possible way, COUNT (environment, 16) of them in each: a load for
 * leak detection. Other programs check the completions of posted requests.
 */

#include "common.h"

#include <signal.h>
#include <sys/wait.h>

#define LEN 16384

static int count = 16;
static struct region local, remote;

static struct ibv_send_wr wr_from(enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge)
{
	*sge = sge_of(&local, 0, LEN);
	return wr_rdma(op, id, IBV_SEND_SIGNALED, sge, 1, (uintptr_t)remote.buf, remote.mr->rkey);
}

/* Does a Send, a Write and a Read, with two receives posted, of which the Send uses one. */
static bool has_worked(struct pair *p)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, p->b.pd, LEN, ALL_RIGHTS) ||
	    !post_recv(&p->b, 0, &remote, 0, LEN) || !post_recv(&p->b, 1, &remote, 0, LEN))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		wr = wr_from(ops[i], i, &sge);
		if (!post_send(&p->a, &wr) || !expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS))
			return false;
	}
	return true;
}

static void both_are_told(struct pair *p)
{
	must(cm_expect(p->a.events, RDMA_CM_EVENT_DISCONNECTED));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

/* A case whose body gets one connected pair after the other. */
#define MANY_PAIRS(name, ...)                                                  \
	static void name##_body(struct pair *p);                               \
	static void name(void)                                                 \
	{                                                                      \
		struct pair_opts opts = { __VA_ARGS__ };                       \
									       \
		for (int i = 0; i < count && !test_failed(); i++)              \
			with_pair(&opts, name##_body);                         \
	}                                                                      \
	static void name##_body(struct pair *p)

MANY_PAIRS(disconnect)
{
	must(has_worked(p));
	check(!rdma_disconnect(p->a.id), "rdma_disconnect: %s", strerror(errno));
	both_are_told(p);
}

MANY_PAIRS(disconnect_by_the_passive_side, .srq = srq_make, .channels = true)
{
	must(has_worked(p));
	check(!rdma_disconnect(p->b.id), "rdma_disconnect: %s", strerror(errno));
	both_are_told(p);
}

MANY_PAIRS(modify_to_error)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	must(has_worked(p));
	check(!ibv_modify_qp(p->a.qp, &attr, IBV_QP_STATE), "ibv_modify_qp: %s", strerror(errno));
	both_are_told(p);
}

/* Ended by a Terminate. */
MANY_PAIRS(refused_write)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	must(has_worked(p));
	wr = wr_from(IBV_WR_RDMA_WRITE, 9, &sge);
	wr.wr.rdma.remote_addr += 1;
	must(post_send(&p->a, &wr));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	both_are_told(p);
}

/* The QP is destroyed while Reads are under way. */
MANY_PAIRS(destroy_queue_pair)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	must(has_worked(p));
	for (int i = 0; i < 8; i++) {
		wr = wr_from(IBV_WR_RDMA_READ, i, &sge);
		must(post_send(&p->a, &wr));
	}
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
}

/* Attempts a connection that fails: the port has no listener, or the listener rejects. */
static void come_to_nothing(struct attempt *t, struct rdma_event_channel *listen_ch)
{
	struct rdma_cm_id *listener = NULL, *request;
	struct rdma_cm_event *ev;
	int port = next_port();

	if (listen_ch)
		must(listener = cm_listening_id(listen_ch, port, 1));
	must(attempt_start(t, port));
	if (listener) {
		ev = cm_event(listen_ch, SOON);
		check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "no connect request");
		request = ev->id;
		rdma_ack_cm_event(ev);
		check(!rdma_reject(request, "no", 2), "rdma_reject: %s", strerror(errno));
		rdma_destroy_id(request);
	}
	must(cm_expect(t->ch, RDMA_CM_EVENT_REJECTED));
	if (listener)
		rdma_destroy_id(listener);
}

static void connect_without_listener(void)
{
	for (int i = 0; i < count && !test_failed(); i++) {
		struct attempt t = { 0 };

		come_to_nothing(&t, NULL);
		attempt_end(&t);
	}
}

static void rejected(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();

	for (int i = 0; i < count && !test_failed(); i++) {
		struct attempt t = { 0 };

		come_to_nothing(&t, ch);
		attempt_end(&t);
	}
	rdma_destroy_event_channel(ch);
}

/* Keeps all connections open, with Reads under way on each, until the process is killed. */
static void open_until_killed(void)
{
	static struct pair pairs[64];
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	for (int i = 0; i < count; i++) {
		must(pair_open(&pairs[i], NULL));
		must(has_worked(&pairs[i]));
		for (int k = 0; k < 4; k++) {
			wr = wr_from(IBV_WR_RDMA_READ, k, &sge);
			must(post_send(&pairs[i].a, &wr));
		}
	}
	raise(SIGKILL);
}

static void killed(void)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		test_run("killed", open_until_killed);
		_exit(1);
	}
	check(pid > 0 && waitpid(pid, &status, 0) == pid, "fork: %s", strerror(errno));
	check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "it was not killed");
}

int main(int argc, char **argv)
{
	const char *number = getenv("COUNT");

	test_begin(argc, argv);
	if (number)
		count = atoi(number);
	if (count < 1 || count > 64)
		return test_cannot_start();
	RUN(killed); /* before this process has anything open itself */
	RUN(disconnect);
	RUN(disconnect_by_the_passive_side);
	RUN(modify_to_error);
	RUN(refused_write);
	RUN(destroy_queue_pair);
	RUN(connect_without_listener);
	RUN(rejected);
	return test_end();
}

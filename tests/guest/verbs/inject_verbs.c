// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs that fail by a rule, as docs/inject.md has them: with the error of the rule, at the call
 * that it names, and no other verb.
 */

#include "modify.h"
#include "rules.h"

#include <errno.h>

#define LEN 4096
/* No verb of this driver fails with it otherwise. */
#define CHOSEN ENXIO

/* The objects that the verbs work on. */
static struct {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct region memory, paged;
} on;
static bool rxe;

static int error_of(int rc) { return rc < 0 ? errno : rc; }

static int alloc_ucontext(void)
{
	struct ibv_context *made = ibv_open_device(on.ctx->device);

	return made ? error_of(ibv_close_device(made)) : errno;
}

static int alloc_pd(void)
{
	struct ibv_pd *made = ibv_alloc_pd(on.ctx);

	return made ? ibv_dealloc_pd(made) : errno;
}

static int create_cq(void)
{
	struct ibv_cq *made = ibv_create_cq(on.ctx, 8, NULL, NULL, 0);

	return made ? ibv_destroy_cq(made) : errno;
}

static int resize_user_cq(void) { return ibv_resize_cq(on.cq, 8); }

static struct ibv_qp *new_qp(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = on.cq,
		.recv_cq = on.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(on.pd, &attr);
}

static int create_qp(void)
{
	struct ibv_qp *made = new_qp();

	return made ? ibv_destroy_qp(made) : errno;
}

static int modify_qp(void)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };

	return ibv_modify_qp(on.qp, &attr, IBV_QP_ACCESS_FLAGS);
}

static int create_srq(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *made = ibv_create_srq(on.pd, &attr);

	return made ? ibv_destroy_srq(made) : errno;
}

static int modify_srq(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 1 };

	return ibv_modify_srq(on.srq, &attr, IBV_SRQ_LIMIT);
}

static int reg_user_mr(void)
{
	struct ibv_mr *made = ibv_reg_mr(on.pd, on.memory.buf, LEN, IBV_ACCESS_LOCAL_WRITE);

	return made ? ibv_dereg_mr(made) : errno;
}

static int rereg_user_mr(void)
{
	return rereg(on.memory.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
		     IBV_ACCESS_LOCAL_WRITE);
}

static int advise_mr(void)
{
	return advise(on.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, on.paged.buf,
		      LEN, on.paged.mr->lkey);
}

static int alloc_mw(void)
{
	struct ibv_mw *made = ibv_alloc_mw(on.pd, IBV_MW_TYPE_2);

	return made ? ibv_dealloc_mw(made) : errno;
}

static int iw_create_listen(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;
	int error;

	addr_with_port(&addr, next_port());
	if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP))
		return errno;
	error = rdma_bind_addr(id, (void *)&addr) || rdma_listen(id, 1) ? errno : 0;
	rdma_destroy_id(id);
	rdma_destroy_event_channel(ch);
	return error;
}

static const struct verb {
	const char *name;
	int (*call)(void);
	/* libsiw has none. */
	bool only_rxe;
} verbs[] = {
	{ "alloc_ucontext", alloc_ucontext, false },
	{ "alloc_pd", alloc_pd, false },
	{ "create_cq", create_cq, false },
	{ "resize_user_cq", resize_user_cq, true },
	{ "create_qp", create_qp, false },
	{ "modify_qp", modify_qp, false },
	{ "create_srq", create_srq, false },
	{ "modify_srq", modify_srq, false },
	{ "reg_user_mr", reg_user_mr, false },
	{ "rereg_user_mr", rereg_user_mr, false },
	{ "advise_mr", advise_mr, false },
	{ "alloc_mw", alloc_mw, true },
	{ "iw_create_listen", iw_create_listen, false },
};

static bool exists(const struct verb *verb) { return rxe || !verb->only_rxe; }

static bool prepare(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };

	on.ctx = test_context();
	on.pd = ibv_alloc_pd(on.ctx);
	on.cq = ibv_create_cq(on.ctx, 8, NULL, NULL, 0);
	on.srq = ibv_create_srq(on.pd, &attr);
	on.qp = new_qp();
	return on.qp && on.srq &&
	       region_make(&on.memory, on.pd, LEN, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&on.paged, on.pd, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
}

/* Each verb fails at its second call, and at no other; no other verb fails. */
static void each_verb_fails_with_the_error(void)
{
	for (const struct verb *verb = verbs; verb < verbs + ARRAY_SIZE(verbs); verb++) {
		long hits = device_counter(on.ctx, "injected");

		if (!exists(verb))
			continue;
		must(rules("on=%s nth=2 do=errno=ENXIO", verb->name));
		for (int call = 1; call <= 3; call++) {
			int error = verb->call();

			check(error == (call == 2 ? CHOSEN : 0), "%s, call %d: %s", verb->name, call,
			      strerror(error));
		}
		for (const struct verb *other = verbs; other < verbs + ARRAY_SIZE(verbs); other++)
			if (other != verb && exists(other))
				for (int call = 1; call <= 2; call++) {
					int error = other->call();

					check(!error, "%s with a rule for %s: %s", other->name,
					      verb->name, strerror(error));
				}
		check(strstr(shown_rules(), "hits=1\n"), "%s", shown_rules());
		hits = device_counter(on.ctx, "injected") - hits;
		check(hits == 1, "the counter has grown by %ld", hits);
	}
	must(rules(""));
}

static void verb_fails_with_each_error_of_a_rule(void)
{
	static const struct {
		const char *name;
		int number;
	} errors[] = {
		{ "EPERM", EPERM }, { "ENOENT", ENOENT }, { "EINTR", EINTR }, { "EIO", EIO },
		{ "ENXIO", ENXIO }, { "EAGAIN", EAGAIN }, { "ENOMEM", ENOMEM }, { "EACCES", EACCES },
		{ "EFAULT", EFAULT }, { "EBUSY", EBUSY }, { "EEXIST", EEXIST }, { "ENODEV", ENODEV },
		{ "EINVAL", EINVAL }, { "ENFILE", ENFILE }, { "EMFILE", EMFILE },
		{ "ENOSPC", ENOSPC }, { "EOPNOTSUPP", EOPNOTSUPP }, { "EADDRINUSE", EADDRINUSE },
		{ "EADDRNOTAVAIL", EADDRNOTAVAIL }, { "ENETDOWN", ENETDOWN },
		{ "ENETUNREACH", ENETUNREACH }, { "ECONNABORTED", ECONNABORTED },
		{ "ECONNRESET", ECONNRESET }, { "ENOBUFS", ENOBUFS }, { "ETIMEDOUT", ETIMEDOUT },
		{ "ECONNREFUSED", ECONNREFUSED }, { "EHOSTUNREACH", EHOSTUNREACH },
	};

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		int error;

		must(rules("on=create_qp do=errno=%s", errors[i].name));
		error = create_qp();
		check(error == errors[i].number, "%s: %s", errors[i].name, strerror(error));
	}
	must(rules(""));
}

/* By the name of the process, and by the queue pair if the verb names one. */
static void verb_rule_fails_only_matching_calls(void)
{
	const char *name = program_invocation_short_name;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR }, reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp *other = new_qp();

	must(other);
	must(rules("on=create_cq comm=%.14sx do=errno=ENXIO", name));
	check(!create_cq(), "with a rule for another process");
	must(rules("on=create_cq comm=%.15s do=errno=ENXIO", name));
	check(create_cq() == CHOSEN, "with a rule for this process");
	must(rules("on=modify_qp qp=%u comm=%.15s do=errno=ENXIO", other->qp_num, name));
	check(!modify_qp(), "with a rule for another queue pair");
	must(rules("on=modify_qp qp=%u comm=%.15s do=errno=ENXIO", on.qp->qp_num, name));
	check(modify_qp() == CHOSEN, "with a rule for the queue pair");
	/* What ends a connection never fails. */
	check(!ibv_modify_qp(on.qp, &error, IBV_QP_STATE), "to ERR");
	check(!ibv_modify_qp(on.qp, &reset, IBV_QP_STATE), "to RESET");
	must(rules(""));
	ibv_destroy_qp(other);
}

/* An error of the consumer is returned, any other one is an event. */
PAIR_CASE(connect_fails_with_the_error, 0)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	static const struct {
		const char *name;
		int number, status;
		enum rdma_cm_event_type event;
	} errors[] = {
		{ "EINVAL", EINVAL, 0, 0 },
		{ "ECONNREFUSED", 0, -ECONNREFUSED, RDMA_CM_EVENT_REJECTED },
		{ "ECONNRESET", 0, -ECONNRESET, RDMA_CM_EVENT_REJECTED },
		{ "ETIMEDOUT", 0, -ETIMEDOUT, RDMA_CM_EVENT_UNREACHABLE },
		{ "EHOSTUNREACH", 0, -EHOSTUNREACH, RDMA_CM_EVENT_CONNECT_ERROR },
	};

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		struct attempt t;
		int error;

		must(attempt_prepare(&t, next_port()));
		must(rules("on=iw_connect qp=%u do=errno=%s", t.id->qp->qp_num, errors[i].name));
		error = rdma_connect(t.id, &param) ? errno : 0;
		check(error == errors[i].number, "%s: %s", errors[i].name, strerror(error));
		if (!error) {
			must(attempt_result(&t, SOON));
			check(t.event == errors[i].event && t.status == errors[i].status,
			      "%s: %s, %d", errors[i].name, rdma_event_str(t.event), t.status);
		}
		attempt_end(&t);
	}
	must(rules(""));
	check(exchange_works(p), "another pair");
}

/* The peer is rejected. */
static void accept_fails_with_the_error(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = {
		.send_cq = on.cq,
		.recv_cq = on.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	int port = next_port(), error;
	struct rdma_cm_id *listener = cm_listening_id(ch, port, 1), *id;
	struct rdma_cm_event *event;
	struct attempt t;

	must(listener && attempt_start(&t, port));
	must(event = cm_event(ch, SOON));
	id = event->id;
	rdma_ack_cm_event(event);
	check(!rdma_create_qp(id, NULL, &attr), "%s", strerror(errno));
	must(rules("on=iw_accept qp=%u do=errno=ENXIO", id->qp->qp_num));
	error = rdma_accept(id, &param) ? errno : 0;
	check(error == CHOSEN, "rdma_accept: %s", strerror(error));
	must(attempt_result(&t, SOON));
	check(t.event == RDMA_CM_EVENT_REJECTED, "%s", rdma_event_str(t.event));
	must(rules(""));
	attempt_end(&t);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(ch);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	rxe = has_extensions();
	if (!test_context() || !prepare())
		return test_cannot_start();
	RUN(each_verb_fails_with_the_error);
	RUN(verb_fails_with_each_error_of_a_rule);
	RUN(verb_rule_fails_only_matching_calls);
	RUN(connect_fails_with_the_error);
	RUN(accept_fails_with_the_error);
	RUN(world_is_well);
	return test_end();
}

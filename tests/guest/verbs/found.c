// SPDX-License-Identifier: GPL-2.0
/*
 * The connection manager finds queue pairs by a number that any process can name. The program
 * issues the creation command itself, since no library lets the answer wait.
 */

#include "common.h"

#include <rdma/ib_user_verbs.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* More than the distance between the numbers of two successive queue pairs. */
#define NUMBERS 64

/* --- queue pairs made by hand ----------------------------------------------------------------- */

/* The device's answer; both libraries' parts have this length. */
struct answer {
	struct ib_uverbs_create_qp_resp core;
	uint8_t driver[32];
};

struct creation {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct answer *answer;
	int error;
	pthread_t thread;
};

static void *create(void *arg)
{
	struct creation *c = arg;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_create_qp cmd;
	} req = {
		.hdr = { .command = IB_USER_VERBS_CMD_CREATE_QP,
			 .in_words = sizeof(req) / 4,
			 .out_words = sizeof(*c->answer) / 4 },
		.cmd = { .response = (uintptr_t)c->answer,
			 .pd_handle = c->pd->handle,
			 .send_cq_handle = c->cq->handle,
			 .recv_cq_handle = c->cq->handle,
			 .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .qp_type = IBV_QPT_RC },
	};

	c->error = write(c->pd->context->cmd_fd, &req, sizeof(req)) == sizeof(req) ? 0 : errno;
	return NULL;
}

static void destroy(const struct creation *c)
{
	struct ib_uverbs_destroy_qp_resp resp;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_destroy_qp cmd;
	} req = {
		.hdr = { .command = IB_USER_VERBS_CMD_DESTROY_QP,
			 .in_words = sizeof(req) / 4,
			 .out_words = sizeof(resp) / 4 },
		.cmd = { .response = (uintptr_t)&resp, .qp_handle = c->answer->core.qp_handle },
	};

	check(write(c->pd->context->cmd_fd, &req, sizeof(req)) == sizeof(req), "%s", strerror(errno));
}

/* --- who looks for them ------------------------------------------------------------------------ */

/* Returns the errno of connecting that queue pair, 0 if it begins. */
static int connect_by_number(struct rdma_cm_id *id, uint32_t number)
{
	struct rdma_conn_param param = {
		.initiator_depth = 1, .responder_resources = 1, .qp_num = number
	};

	return rdma_connect(id, &param) ? errno : 0;
}

/* Checks that no number behind this one names a queue pair. */
static bool nobody_after(uint32_t last)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = cm_resolved_id(ch, next_port());

	for (uint32_t n = last + 1; id && n <= last + NUMBERS && !test_failed(); n++) {
		int error = connect_by_number(id, n);

		if (error != EINVAL)
			fail("number %u behind the last one: %s", n - last, strerror(error));
	}
	if (id)
		rdma_destroy_id(id);
	rdma_destroy_event_channel(ch);
	return !test_failed();
}

/*
 * Checks that this number names a queue pair: it can start a connection, which is never accepted.
 */
static void somebody_at(uint32_t number)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = cm_resolved_id(ch, next_port());
	int error;

	must(id);
	error = connect_by_number(id, number);
	if (error)
		fail("%s", strerror(error));
	else
		cm_expect(ch, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(ch);
}

/* --- processes that look for them ---------------------------------------------------------------- */

#define NOBODY 65534

/* A process that takes a number and reports its result. */
struct other {
	pid_t pid;
	int numbers, errors;
};

/*
 * Returns the errno of connecting that queue pair to a port without a listener; -1 if it could not
 * try.
 */
static int connecting(uint32_t number)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = cm_resolved_id(ch, next_port());

	return id ? connect_by_number(id, number) : -1;
}

/*
 * Returns the errno of accepting, for that queue pair, a connection from another queue pair of the
 * process.
 */
static int accepting(uint32_t number)
{
	struct rdma_conn_param param = {
		.initiator_depth = 1, .responder_resources = 1, .qp_num = number
	};
	struct rdma_event_channel *ch = rdma_create_event_channel();
	int port = next_port();
	struct rdma_cm_event *ev;
	struct attempt own;

	if (!cm_listening_id(ch, port, 1) || !attempt_start(&own, port))
		return -1;
	ev = cm_event(ch, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return -1;
	return rdma_accept(ev->id, &param) ? errno : 0;
}

/* Starts a process of this user. */
static bool other_start(struct other *o, uid_t uid, int (*what)(uint32_t number))
{
	int down[2], up[2];

	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) {
		fail("pipes: %s", strerror(errno));
		return false;
	}
	o->pid = fork();
	if (!o->pid) {
		uint32_t number;
		int error = -1;

		close(down[1]);
		if ((uid == getuid() || (!setgid(uid) && !setuid(uid))) &&
		    read(down[0], &number, sizeof(number)) == sizeof(number))
			error = what(number);
		if (error < 0)
			test_cannot_start();
		_exit(write(up[1], &error, sizeof(error)) != sizeof(error));
	}
	close(down[0]);
	close(up[1]);
	o->numbers = down[1];
	o->errors = up[0];
	return true;
}

/* Returns the result of its attempt, and ends it; -1 if it could not try. */
static int other_tries(struct other *o, uint32_t number)
{
	int error = -1;

	if (write(o->numbers, &number, sizeof(number)) != sizeof(number) ||
	    read(o->errors, &error, sizeof(error)) != sizeof(error))
		error = -1;
	close(o->numbers);
	close(o->errors);
	waitpid(o->pid, NULL, 0);
	return error;
}

/* --- cases -------------------------------------------------------------------------------------- */

/* Connects a queue pair to a new one. */
static void it_connects(struct attempt *t)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = t->cq,
		.recv_cq = t->cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *listen, *id = NULL;
	struct rdma_cm_event *ev;

	listen = cm_listening_id(ch, ntohs(rdma_get_dst_port(t->id)), 1);
	must(listen);
	check(!rdma_connect(t->id, &param), "%s", strerror(errno));
	ev = cm_event(ch, SOON);
	if (ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		id = ev->id;
		if (rdma_create_qp(id, t->pd, &attr) || rdma_accept(id, &param))
			fail("accepting: %s", strerror(errno));
	} else {
		fail("no request");
	}
	if (ev)
		rdma_ack_cm_event(ev);
	if (!test_failed() && cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED))
		cm_expect(t->ch, RDMA_CM_EVENT_ESTABLISHED);
	if (id && id->qp)
		rdma_destroy_qp(id);
	if (id)
		rdma_destroy_id(id);
	rdma_destroy_id(listen);
	rdma_destroy_event_channel(ch);
}

static void not_by_another_user_body(struct attempt *t, struct other *connects, struct other *accepts)
{
	int error;

	must(attempt_prepare(t, next_port()));
	error = other_tries(connects, t->id->qp->qp_num);
	check(error == EINVAL, "connecting: %d", error);
	error = other_tries(accepts, t->id->qp->qp_num);
	check(error == EINVAL, "accepting: %d", error);
	it_connects(t);
}

/*
 * Another user's process does not get the queue pair for its own connection, and does not disturb
 * it. The first case, since these processes must not inherit a device that the library has opened.
 */
static void queue_pair_is_not_found_by_another_user(void)
{
	struct other connects, accepts;
	struct attempt t = { 0 };

	must(other_start(&connects, NOBODY, connecting));
	must(other_start(&accepts, NOBODY, accepting));
	/* These ports are in use by the processes. */
	for (int i = 0; i < 2; i++)
		next_port();
	not_by_another_user_body(&t, &connects, &accepts);
	attempt_end(&t);
	world_is_well();
}

/*
 * A child that a process forks after it has made the queue pair, as a daemon does, can use it all
 * the same.
 */
static void queue_pair_is_found_by_forked_child(void)
{
	struct attempt t = { 0 };
	struct other child;
	int error;

	if (attempt_prepare(&t, next_port()) && other_start(&child, getuid(), connecting)) {
		error = other_tries(&child, t.id->qp->qp_num);
		if (error)
			fail("connecting: %d", error);
	}
	attempt_end(&t);
	world_is_well();
}

static void while_the_answer_waits(struct creation *c, uint32_t last, int fd)
{
	check(!pthread_create(&c->thread, NULL, create, c), "a thread");
	if (fault_came(fd))
		nobody_after(last);
	faults_end(fd, c->answer, PAGE);
	pthread_join(c->thread, NULL);
}

/*
 * A queue pair cannot be found while it is being made, however long its answer waits in the
 * process's memory.
 */
static void queue_pair_is_not_found_during_creation(void)
{
	struct creation c = { 0 };
	struct attempt t = { 0 };
	uint32_t last, number;
	int fd;

	if (!attempt_prepare(&t, next_port()))
		goto out;
	c.pd = t.pd;
	c.cq = t.cq;
	c.answer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = faults_wait(c.answer, PAGE);
	if (fd < 0)
		goto out;
	last = t.id->qp->qp_num;
	while_the_answer_waits(&c, last, fd);
	number = c.answer->core.qpn;
	if (c.error) {
		fail("creation: %s", strerror(c.error));
	} else {
		if (number <= last || number > last + NUMBERS)
			fail("number %u was not among those after %u", number, last);
		if (!test_failed())
			somebody_at(number);
		destroy(&c);
	}
out:
	attempt_end(&t);
	world_is_well();
}

/*
 * A queue pair whose creation failed cannot be found either; a leftover reference would block the
 * removal of the device.
 */
static void queue_pair_is_not_found_after_failed_creation(void)
{
	struct creation c = { 0 };
	struct attempt t = { 0 };

	if (attempt_prepare(&t, next_port())) {
		c.pd = t.pd;
		c.cq = t.cq;
		c.answer = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		create(&c);
		if (c.error != EFAULT)
			fail("an answer to where nothing can be written: %s", strerror(c.error));
		else
			nobody_after(t.id->qp->qp_num);
	}
	attempt_end(&t);
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(queue_pair_is_not_found_by_another_user);
	RUN(queue_pair_is_found_by_forked_child);
	RUN(queue_pair_is_not_found_during_creation);
	RUN(queue_pair_is_not_found_after_failed_creation);
	return test_end();
}

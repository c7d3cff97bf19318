// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs as the connection manager finds them, by a number that any process can name. Creation is written to
 * the device by hand, since no library lets the answer wait.
 */

#include "common.h"

#include <rdma/ib_user_verbs.h>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096
/* How far the next queue pair's number can be from that of the last one, and more. */
#define NUMBERS 64

/* --- queue pairs made by hand ----------------------------------------------------------------- */

/* What the device answers; both libraries' parts have this length. */
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

/* The errno of connecting that queue pair, 0 if it begins. */
static int connect_by_number(struct rdma_cm_id *id, uint32_t number)
{
	struct rdma_conn_param param = {
		.initiator_depth = 1, .responder_resources = 1, .qp_num = number
	};

	return rdma_connect(id, &param) ? errno : 0;
}

/* None of the numbers behind this one is a queue pair's. */
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

/* This number is a queue pair's: it asks for a connection, which nobody grants. */
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

/* --- cases -------------------------------------------------------------------------------------- */

static int faults_wait(void *page)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uintptr_t)page, PAGE },
				       .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		test_skip("no userfaultfd: %s", strerror(errno));
		return -1;
	}
	if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg)) {
		fail("userfaultfd: %s", strerror(errno));
		close(fd);
		return -1;
	}
	return fd;
}

static void while_the_answer_waits(struct creation *c, uint32_t last, int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	struct uffdio_range range = { (uintptr_t)c->answer, PAGE };
	bool came, ended;

	check(!pthread_create(&c->thread, NULL, create, c), "a thread");
	came = poll(&pfd, 1, SOON) == 1;
	if (came)
		nobody_after(last);
	ended = !ioctl(fd, UFFDIO_UNREGISTER, &range);
	pthread_join(c->thread, NULL);
	check(came, "no page fault");
	check(ended, "userfaultfd");
}

/* What is still being made is not there, however long its answer waits in the process's memory. */
static void not_before_it_is_made(void)
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
	fd = faults_wait(c.answer);
	if (fd < 0)
		goto out;
	last = t.id->qp->qp_num;
	while_the_answer_waits(&c, last, fd);
	close(fd);
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

/* What could not be made is not there either, and is not kept. */
static void not_if_it_was_not_made(void)
{
	struct creation c = { 0 };
	struct attempt t = { 0 };

	if (!attempt_prepare(&t, next_port()))
		goto out;
	c.pd = t.pd;
	c.cq = t.cq;
	c.answer = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	create(&c);
	if (c.error != EFAULT)
		fail("an answer to where nothing can be written: %s", strerror(c.error));
	else
		nobody_after(t.id->qp->qp_num);
out:
	/* Says that the domain is in use, if it is. */
	if (t.id && t.id->qp)
		rdma_destroy_qp(t.id);
	if (t.cq && ibv_destroy_cq(t.cq))
		fail("the completion queue is in use: %s", strerror(errno));
	t.cq = NULL;
	if (t.pd && ibv_dealloc_pd(t.pd))
		fail("the domain is in use: %s", strerror(errno));
	t.pd = NULL;
	attempt_end(&t);
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(not_before_it_is_made);
	RUN(not_if_it_was_not_made);
	return test_end();
}

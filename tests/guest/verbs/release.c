// SPDX-License-Identifier: GPL-2.0
/*
 * A queue pair goes although the connection manager keeps what it has got for it: as long as a
 * consumer keeps an id that it has rejected, or as long as its one queue for the whole host waits.
 * Processes end, and calls return, in bounded time.
 */

#include "common.h"

#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* --- processes -------------------------------------------------------------------------------- */

/* Waits for the end of a process. */
static bool ends(pid_t child, int ms)
{
	int64_t until = now_ms() + ms;
	int status;

	while (waitpid(child, &status, WNOHANG) != child) {
		if (now_ms() > until) {
			fail("the process has not ended");
			return false;
		}
		sleep_ms(10);
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail("the process ended with %#x", status);
	return !test_failed();
}

/*
 * Runs this program again, for the case of this name only: a process of its own, with its own files
 * of the device. Those that it has left open at its end are closed by the kernel.
 */
static pid_t run_alone(const char *name)
{
	char port[16], host[64];
	pid_t child;

	snprintf(port, sizeof(port), "%d", next_port());
	getnameinfo((void *)&test_addr, sizeof(test_addr), host, sizeof(host), NULL, 0,
		    NI_NUMERICHOST);
	fflush(stdout);
	child = fork();
	if (!child) {
		setenv("ROLE", name, 1);
		setenv("PORT", port, 1);
		execl("/proc/self/exe", "release", host, NULL);
		_exit(9);
	}
	return child;
}

/* --- the connection manager's queue ----------------------------------------------------------- */

/* Holds it until the descriptor is closed; -1 (and the case is skipped) without the module. */
static int hold_queue(void)
{
	int fd = open("/dev/iw_cm_queue", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		test_skip("needs the module cmqueue");
	return fd;
}

/* --- a request, and a peer that withholds what makes the connection --------------------------- */

struct request {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listener, *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	int peer;
};

/* Makes a queue pair that librdmacm does not know. */
static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		fail("a queue pair: %s", strerror(errno));
	return qp;
}

static bool request_make(struct request *r)
{
	/* Revision 2, with enhanced data: peer to peer, by a Send or a Write; IRD and ORD are 1. */
	static const char octets[] = "MPA ID Req Frame\x50\x02\0\x04\xc0\x01\x80\x01";
	int port = next_port();
	struct sockaddr_storage addr;
	struct rdma_cm_event *ev;

	r->ch = rdma_create_event_channel();
	r->listener = cm_listening_id(r->ch, port, 1);
	if (!r->listener)
		return false;
	addr_with_port(&addr, port);
	r->peer = socket(addr.ss_family, SOCK_STREAM, 0);
	if (connect(r->peer, (void *)&addr, sizeof(addr)) ||
	    send(r->peer, octets, sizeof(octets) - 1, 0) != sizeof(octets) - 1) {
		fail("the peer: %s", strerror(errno));
		return false;
	}
	ev = cm_event(r->ch, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		fail("no request");
		return false;
	}
	r->id = ev->id;
	rdma_ack_cm_event(ev);
	r->pd = ibv_alloc_pd(r->id->verbs);
	r->cq = ibv_create_cq(r->id->verbs, 16, NULL, NULL, 0);
	if (!r->pd || !r->cq) {
		fail("preparation: %s", strerror(errno));
		return false;
	}
	r->qp[0] = make_qp(r->pd, r->cq);
	r->qp[1] = make_qp(r->pd, r->cq);
	return !test_failed();
}

static int request_accept(struct request *r, uint32_t number)
{
	struct rdma_conn_param param = {
		.initiator_depth = 1, .responder_resources = 1, .qp_num = number
	};

	return rdma_accept(r->id, &param);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void rejects_what_it_has_accepted(void)
{
	struct request r;

	must(request_make(&r));
	check(!request_accept(&r, r.qp[0]->qp_num), "rdma_accept: %s", strerror(errno));
	rdma_reject(r.id, NULL, 0);
}

static void process_exits_after_rejecting_accepted_request(void)
{
	ends(run_alone("rejects_what_it_has_accepted"), 2 * SOON);
}

/* rdma_accept itself rejects then. */
static void accepts_once_more_with_a_wrong_number(void)
{
	struct request r;

	must(request_make(&r));
	check(!request_accept(&r, r.qp[0]->qp_num), "rdma_accept: %s", strerror(errno));
	check(request_accept(&r, 1), "accepted with a wrong number");
}

static void process_exits_after_accept_with_wrong_qpn(void)
{
	ends(run_alone("accepts_once_more_with_a_wrong_number"), 2 * SOON);
}

static uint32_t crc32c(const uint8_t *octets, size_t len)
{
	uint32_t crc = ~0u;

	while (len--) {
		crc ^= *octets++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/*
 * The peer sends its ready-to-receive message after the consumer has rejected: the connection does
 * not come up, but is reset.
 */
static void accepted_then_rejected_connection_is_reset(void)
{
	/* An FPDU with an RDMA Write of no octets. */
	uint8_t octets[20] = { 0, 14, 0xc1, 0x40 }, sink[256];
	struct timeval tv = { .tv_sec = SOON / 1000 };
	struct request r;
	uint32_t crc;
	bool reset;
	ssize_t got;

	must(request_make(&r));
	check(!request_accept(&r, r.qp[0]->qp_num), "rdma_accept: %s", strerror(errno));
	rdma_reject(r.id, NULL, 0);
	crc = crc32c(octets, 16);
	memcpy(octets + 16, &crc, 4);
	/* If the connection is reset already, TCP says so here and not once more below. */
	reset = send(r.peer, octets, sizeof(octets), MSG_NOSIGNAL) < 0 &&
		(errno == ECONNRESET || errno == EPIPE);
	setsockopt(r.peer, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	do
		got = recv(r.peer, sink, sizeof(sink), 0);
	while (got > 0);
	check(!got || errno != EAGAIN, "the connection goes on");
	check(reset || (got < 0 && errno == ECONNRESET), "recv: %zd, %s", got, strerror(errno));
	must(qp_reaches(r.qp[0], IBV_QPS_ERR, SOON));
	ibv_destroy_qp(r.qp[0]);
	ibv_destroy_qp(r.qp[1]);
	rdma_destroy_id(r.id);
	ibv_destroy_cq(r.cq);
	ibv_dealloc_pd(r.pd);
	rdma_destroy_id(r.listener);
	rdma_destroy_event_channel(r.ch);
	close(r.peer);
}

static void *destroy_qp(void *qp)
{
	ibv_destroy_qp(qp);
	return NULL;
}

/*
 * The events of the first connection wait in the queue, so the connection manager lets its consumer
 * accept once more, and forgets the first queue pair.
 */
static void accepts_once_more_when_the_queue_pair_is_gone(void)
{
	struct timespec soon;
	pthread_t thread;
	struct request r;
	int held;

	must(request_make(&r));
	check(!request_accept(&r, r.qp[0]->qp_num), "rdma_accept: %s", strerror(errno));
	held = hold_queue();
	must(held >= 0);
	check(!pthread_create(&thread, NULL, destroy_qp, r.qp[0]), "a thread");
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_sec += SOON / 1000;
	if (pthread_timedjoin_np(thread, NULL, &soon))
		fail("the queue pair waits for the queue");
	if (request_accept(&r, r.qp[1]->qp_num))
		fail("the second rdma_accept: %s", strerror(errno));
	close(held);
}

static void second_accept_after_queue_pair_is_destroyed(void)
{
	int held = hold_queue();

	must(held >= 0);
	close(held);
	ends(run_alone("accepts_once_more_when_the_queue_pair_is_gone"), 4 * SOON);
}

/* Makes two queue pairs, writes their numbers, and ends when the other side closes the pipe. */
static void owner(int numbers, int until)
{
	struct ibv_context *context = ibv_open_device(test_context()->device);
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = context ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
	struct ibv_qp *qp[2] = { 0 };
	uint32_t number[2];
	char octet;

	if (!pd || !cq)
		_exit(3);
	for (int i = 0; i < 2; i++) {
		qp[i] = make_qp(pd, cq);
		if (!qp[i])
			_exit(4);
		number[i] = qp[i]->qp_num;
	}
	if (write(numbers, number, sizeof(number)) != sizeof(number))
		_exit(5);
	_exit(read(until, &octet, 1) ? 6 : 0);
}

/*
 * One process has the ids of a connection, another one the queue pairs, and ends. Nothing of it
 * waits for the queue.
 */
static void process_exits_while_iw_cm_queue_is_blocked(void)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_event_channel *lch = rdma_create_event_channel(), *ch;
	int port = next_port(), numbers[2], until[2], held;
	struct rdma_cm_id *listener, *id, *child;
	struct rdma_cm_event *ev;
	uint32_t number[2];
	pid_t process;

	must(test_context());
	check(!pipe(numbers) && !pipe(until), "pipes");
	fflush(stdout);
	process = fork();
	if (!process) {
		close(until[1]);
		owner(numbers[1], until[0]);
	}
	close(numbers[1]);
	close(until[0]);
	check(read(numbers[0], number, sizeof(number)) == sizeof(number), "no queue pairs");
	listener = cm_listening_id(lch, port, 1);
	must(listener);
	ch = rdma_create_event_channel();
	id = cm_resolved_id(ch, port);
	must(id);
	param.qp_num = number[0];
	check(!rdma_connect(id, &param), "rdma_connect: %s", strerror(errno));
	ev = cm_event(lch, SOON);
	check(ev && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST, "no request");
	child = ev->id;
	rdma_ack_cm_event(ev);
	param.qp_num = number[1];
	check(!rdma_accept(child, &param), "rdma_accept: %s", strerror(errno));
	must(cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED));
	must(cm_expect(lch, RDMA_CM_EVENT_ESTABLISHED));
	held = hold_queue();
	close(until[1]);
	if (held >= 0)
		ends(process, 2 * SOON);
	close(held);
	if (!test_failed() && held >= 0) {
		/* The events come when the queue goes on. */
		cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		cm_expect(lch, RDMA_CM_EVENT_DISCONNECTED);
	}
	rdma_destroy_id(id);
	rdma_destroy_id(child);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(lch);
	close(numbers[0]);
	world_is_well();
}

/* Keeps an id that it has rejected, until it is killed. */
static void stays_with_a_rejected_id(void)
{
	rejects_what_it_has_accepted();
	if (!test_failed()) {
		puts("rejected");
		pause();
	}
}

/* What other processes run. */
static const struct {
	const char *name;
	void (*fn)(void);
} roles[] = {
	{ "accepts_once_more_when_the_queue_pair_is_gone",
	  accepts_once_more_when_the_queue_pair_is_gone },
	{ "accepts_once_more_with_a_wrong_number", accepts_once_more_with_a_wrong_number },
	{ "rejects_what_it_has_accepted", rejects_what_it_has_accepted },
	{ "stays_with_a_rejected_id", stays_with_a_rejected_id },
};

int main(int argc, char **argv)
{
	const char *role = getenv("ROLE");

	test_begin(argc, argv);
	for (size_t i = 0; role && i < ARRAY_SIZE(roles); i++) {
		if (strcmp(roles[i].name, role))
			continue;
		roles[i].fn();
		/* Leaves all files to the kernel. */
		_exit(test_failed() ? test_cannot_start() : 0);
	}
	RUN(process_exits_after_rejecting_accepted_request);
	RUN(process_exits_after_accept_with_wrong_qpn);
	RUN(accepted_then_rejected_connection_is_reset);
	RUN(second_accept_after_queue_pair_is_destroyed);
	RUN(process_exits_while_iw_cm_queue_is_blocked);
	return test_end();
}

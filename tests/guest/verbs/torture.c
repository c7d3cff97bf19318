// SPDX-License-Identifier: GPL-2.0
/*
 * Random operations between two processes, whose data are checked at the other end; for
 * tests/guest/torture.sh, which kills the processes and takes devices, memory and packets away
 * meanwhile.
 *
 *   torture serve ADDRESS SEED           accepts connections, until the device is removed
 *   torture call ADDRESS SEED SECONDS    THREADS threads make connections, one after the other
 *   torture tally                        prints the sums of all runs
 *
 * PORT is the port. TALLY is a file in which all runs count. EXTENSIONS is set if the link type has
 * atomic operations.
 *
 * The ends of a connection do the same. Each has a region that only the peer writes to, and knows
 * by a copy what it has written into the peer's:
 *
 *   Send      says which pattern it carries. The receiver compares, and acknowledges it.
 *   Write     goes into a slot of the peer's region. A Send behind it says which pattern lies where;
 *             the receiver compares the memory. Until this Send is acknowledged, the slot stays.
 *   Read      is compared with the copy.
 *   atomics   must return what the last one has left.
 *
 * Any connection may end at any time. An octet that differs, or a status that nobody may get, ends
 * the process with status 3.
 */

#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define SLOTS 8
#define SLOT_LEN 32768
/* Behind the slots is a word for atomic operations. */
#define REGION_LEN (SLOTS * SLOT_LEN + 4096)
#define REQUESTS 16
#define RECVS 64
#define MESSAGE_LEN 8192
/* Sends that are not acknowledged. Acknowledgements take no more receives than the peer's Sends. */
#define CREDITS 24
#define MAX_SGE 4
#define MAX_SERVED 24
#define READS 4

enum kind { DATA, WRITTEN, ACK };

struct header {
	uint32_t kind;
	uint32_t seq;	 /* of DATA and WRITTEN; of ACK: how many were received */
	uint32_t length; /* of the message */
	uint32_t seed;	 /* of the pattern behind the header, or in the region */
	uint32_t at;	 /* WRITTEN: where */
	uint32_t count;	 /* WRITTEN: how many octets */
};

/* What an end tells the other in the private data. */
struct target {
	uint64_t addr;
	uint32_t rkey;
	uint32_t extensions;
};

/* --- counting --------------------------------------------------------------------------------- */

enum what {
	CONNECTIONS, REFUSED, SENDS, WRITES, READS_DONE, ATOMICS, COMPARED, LOST, ORDERLY, DESTROYED, BAD_KEY,
	DEREGISTERED, UNMAPPED, IN_ERROR, FORKS, NOISE, COMPLETE, WHATS,
};

static const char *const what_names[] = {
	"connections", "attempts-refused", "sends", "writes", "reads", "atomics", "octets-compared", "connections-lost",
	"ended-in-order", "destroyed", "bad-keys", "deregistered", "unmapped", "put-into-error", "forks",
	"objects-made", "all-complete",
};

static uint64_t *tally;

static bool tally_open(void)
{
	int fd = open(getenv("TALLY"), O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, 4096))
		return false;
	tally = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return tally != MAP_FAILED;
}

static void count(enum what what, uint64_t n)
{
	__atomic_fetch_add(&tally[what], n, __ATOMIC_RELAXED);
}

static void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void wrong(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	printf("WRONG: ");
	vprintf(fmt, ap);
	printf("\n");
	fflush(stdout);
	_exit(3);
}

/* --- a side of a connection -------------------------------------------------------------------- */

struct request {
	bool busy;
	bool must_fail;
	enum ibv_wr_opcode op;
	uint32_t slot, at, length; /* of a Read */
	uint64_t expected;	   /* of an atomic operation */
};

struct slot {
	uint32_t reads; /* under way */
	bool told;	/* what was written is not acknowledged yet */
	uint32_t seq;	/* by which Send it was told */
};

struct side {
	uint32_t random;
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	bool extensions;
	struct target peer;
	/* Mine: the region for the peer, the receives, the buffers of requests. */
	uint8_t *region, *recvs, *buffers;
	struct ibv_mr *region_mr, *recvs_mr, *buffers_mr;
	/* What the slots of the peer's region hold. */
	uint8_t *copy;
	uint64_t word;
	struct slot slots[SLOTS];
	struct request requests[REQUESTS];
	unsigned int reads;
	uint32_t sent, acked, received, told; /* Sends, in both directions */
	unsigned int receives; /* that are posted */
	bool own_region_gone;
	bool dead;
	bool gone; /* the device, so that nothing more need complete */
};

static void *memory(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static bool post_one_recv(struct side *e, uint64_t n)
{
	struct ibv_sge sge = { (uintptr_t)e->recvs + n * MESSAGE_LEN, MESSAGE_LEN, e->recvs_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(e->id->qp, &wr, &bad)) {
		e->gone = true;
		return false;
	}
	e->receives++;
	return true;
}

/* Makes everything but the connection. */
static bool end_make(struct side *e)
{
	struct ibv_qp_init_attr init = {
		.cap = { REQUESTS + 8, RECVS, MAX_SGE, MAX_SGE, any_of(&e->random) % 2 ? 64 : 0 },
		.qp_type = IBV_QPT_RC,
	};
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (e->extensions)
		rights |= IBV_ACCESS_REMOTE_ATOMIC;
	e->pd = ibv_alloc_pd(e->id->verbs);
	e->channel = ibv_create_comp_channel(e->id->verbs);
	if (!e->pd || !e->channel)
		return false;
	e->cq = ibv_create_cq(e->id->verbs, REQUESTS + 8 + RECVS, NULL, e->channel, 0);
	e->region = memory(REGION_LEN);
	e->recvs = memory(RECVS * MESSAGE_LEN);
	e->buffers = memory(REQUESTS * SLOT_LEN);
	e->copy = memory(SLOTS * SLOT_LEN);
	if (!e->cq || !e->region || !e->recvs || !e->buffers || !e->copy)
		return false;
	e->region_mr = ibv_reg_mr(e->pd, e->region, REGION_LEN, rights);
	e->recvs_mr = ibv_reg_mr(e->pd, e->recvs, RECVS * MESSAGE_LEN, IBV_ACCESS_LOCAL_WRITE);
	e->buffers_mr = ibv_reg_mr(e->pd, e->buffers, REQUESTS * SLOT_LEN, IBV_ACCESS_LOCAL_WRITE);
	if (!e->region_mr || !e->recvs_mr || !e->buffers_mr)
		return false;
	init.send_cq = init.recv_cq = e->cq;
	if (rdma_create_qp(e->id, e->pd, &init))
		return false;
	for (uint64_t i = 0; i < RECVS; i++)
		if (!post_one_recv(e, i))
			return false;
	return !ibv_req_notify_cq(e->cq, 0);
}

static void unmap(void *at, size_t len)
{
	if (at)
		munmap(at, len);
}

/* Destroys everything; in an order that leaves nothing, but the id last. */
static void end_free(struct side *e)
{
	if (e->id && e->id->qp)
		rdma_destroy_qp(e->id);
	if (e->region_mr)
		ibv_dereg_mr(e->region_mr);
	if (e->recvs_mr)
		ibv_dereg_mr(e->recvs_mr);
	if (e->buffers_mr)
		ibv_dereg_mr(e->buffers_mr);
	if (e->cq)
		ibv_destroy_cq(e->cq);
	if (e->channel)
		ibv_destroy_comp_channel(e->channel);
	if (e->pd)
		ibv_dealloc_pd(e->pd);
	unmap(e->region, REGION_LEN);
	unmap(e->recvs, RECVS * MESSAGE_LEN);
	unmap(e->buffers, REQUESTS * SLOT_LEN);
	unmap(e->copy, SLOTS * SLOT_LEN);
	if (e->id)
		rdma_destroy_id(e->id);
	if (e->events)
		rdma_destroy_event_channel(e->events);
}

static struct target target_of(const struct side *e)
{
	return (struct target){ (uintptr_t)e->region, e->region_mr->rkey, e->extensions };
}

/* --- what an end does ------------------------------------------------------------------------- */

static uint8_t *buffer(struct side *e, size_t n)
{
	return e->buffers + n * SLOT_LEN;
}

/* Posts the request n with a list of random pieces of its buffer. */
static void post(struct side *e, size_t n, struct ibv_send_wr *wr, uint32_t length)
{
	struct request *r = &e->requests[n];
	struct ibv_sge list[MAX_SGE];
	struct ibv_send_wr *bad;
	uint32_t at = 0;
	int pieces = 1;

	if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_RDMA_WRITE)
		pieces = 1 + (int)(any_of(&e->random) % MAX_SGE);
	for (int i = 0; i < pieces; i++) {
		uint32_t rest = length - at, some = rest;

		if (i + 1 < pieces)
			some = rest ? any_of(&e->random) % (rest + 1) : 0;
		list[i] = (struct ibv_sge){ (uintptr_t)buffer(e, n) + at, some, e->buffers_mr->lkey };
		at += some;
	}
	wr->wr_id = n | 1ULL << 32;
	wr->sg_list = list;
	wr->num_sge = pieces;
	wr->send_flags |= IBV_SEND_SIGNALED;
	r->op = wr->opcode;
	r->length = length;
	r->busy = true;
	/*
	 * The queue has room for all requests, so only the end of the connection can be why this
	 * fails. A request whose doorbell has failed, since the device has gone, is in the queue and
	 * may yet be completed, or not.
	 */
	if (ibv_post_send(e->id->qp, wr, &bad))
		e->dead = e->gone = true;
}

static ssize_t free_request(const struct side *e)
{
	for (size_t n = 0; n < REQUESTS; n++)
		if (!e->requests[n].busy)
			return (ssize_t)n;
	return -1;
}

static void send_message(struct side *e, size_t n, struct header header)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct header *at = (void *)buffer(e, n);

	if (header.kind == ACK) {
		header.seq = e->received;
		e->told = e->received;
	} else {
		header.seq = e->sent++;
	}
	*at = header;
	if (header.kind == DATA)
		pattern_fill((uint8_t *)(at + 1), header.length - sizeof(header), header.seed);
	if (any_of(&e->random) % 4 == 0)
		wr.send_flags = IBV_SEND_SOLICITED;
	post(e, n, &wr, header.length);
	count(SENDS, 1);
}

/* Whether the peer may still look at the slot, or a Read of it is under way. */
static bool slot_is_free(struct side *e, const struct slot *s)
{
	return !s->reads && !(s->told && (int32_t)(e->acked - s->seq) <= 0);
}

static void do_send(struct side *e, size_t n)
{
	struct header header = { .kind = DATA, .seed = any_of(&e->random), .length = sizeof(header) };

	header.length += any_of(&e->random) % (any_of(&e->random) % 2 ? 64 : MESSAGE_LEN - sizeof(header));
	send_message(e, n, header);
}

static void do_write(struct side *e, size_t n)
{
	struct header told = { .kind = WRITTEN, .seed = any_of(&e->random), .length = sizeof(told) };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	uint32_t slot = any_of(&e->random) % SLOTS, at = any_of(&e->random) % SLOT_LEN;
	uint32_t length = any_of(&e->random) % (SLOT_LEN - at + 1);

	if (any_of(&e->random) % 2)
		length = length % 128;
	if (!slot_is_free(e, &e->slots[slot]))
		return;
	at += slot * SLOT_LEN;
	pattern_fill(buffer(e, n), length, told.seed);
	memcpy(e->copy + at, buffer(e, n), length);
	wr.wr.rdma.remote_addr = e->peer.addr + at;
	wr.wr.rdma.rkey = e->peer.rkey;
	post(e, n, &wr, length);
	count(WRITES, 1);
	/* Not each Write is told of; Reads find the others. */
	if (e->dead || any_of(&e->random) % 2 || e->sent - e->acked >= CREDITS)
		return;
	if (free_request(e) < 0)
		return;
	told.at = at;
	told.count = length;
	e->slots[slot].told = true;
	e->slots[slot].seq = e->sent;
	send_message(e, (size_t)free_request(e), told);
}

static void do_read(struct side *e, size_t n)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ };
	struct request *r = &e->requests[n];
	uint32_t length;

	if (e->reads >= READS)
		return;
	r->slot = any_of(&e->random) % SLOTS;
	r->at = any_of(&e->random) % SLOT_LEN;
	length = any_of(&e->random) % (SLOT_LEN - r->at + 1);
	memset(buffer(e, n), 0xa5, length);
	wr.wr.rdma.remote_addr = e->peer.addr + r->slot * SLOT_LEN + r->at;
	wr.wr.rdma.rkey = e->peer.rkey;
	e->slots[r->slot].reads++;
	e->reads++;
	post(e, n, &wr, length);
}

static void do_atomic(struct side *e, size_t n)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct request *r = &e->requests[n];
	uint64_t operand = (uint64_t)any_of(&e->random) << 32 | any_of(&e->random);

	if (!e->extensions || e->reads >= READS)
		return;
	wr.wr.atomic.remote_addr = e->peer.addr + SLOTS * SLOT_LEN;
	wr.wr.atomic.rkey = e->peer.rkey;
	r->expected = e->word;
	if (any_of(&e->random) % 2) {
		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = any_of(&e->random) % 2 ? e->word : ~e->word;
		wr.wr.atomic.swap = operand;
		if (wr.wr.atomic.compare_add == e->word)
			e->word = operand;
	} else {
		wr.wr.atomic.compare_add = operand;
		e->word += operand;
	}
	e->reads++;
	post(e, n, &wr, 8);
}

/* Objects that have nothing to do with the connection come and go. */
static void do_noise(struct side *e)
{
	size_t len = 1 + any_of(&e->random) % 100000;
	struct ibv_cq *cq = NULL;
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr = NULL;
	struct ibv_mw *mw = NULL;
	struct ibv_qp *qp = NULL;
	void *at = memory(len);

	if (!at)
		return;
	pd = ibv_alloc_pd(e->id->verbs);
	cq = ibv_create_cq(e->id->verbs, 1 + (int)(any_of(&e->random) % 100), NULL, NULL, 0);
	if (pd) {
		mr = ibv_reg_mr(pd, at, len, ALL_RIGHTS);
		mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	}
	if (pd && cq) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC,
		};

		qp = ibv_create_qp(pd, &init);
	}
	count(NOISE, !!pd + !!cq + !!mr + !!mw + !!qp);
	/* The memory goes before its region, or behind it. */
	if (any_of(&e->random) % 2) {
		munmap(at, len);
		at = NULL;
	}
	if (qp)
		ibv_destroy_qp(qp);
	if (mw)
		ibv_dealloc_mw(mw);
	if (mr)
		ibv_dereg_mr(mr);
	if (cq)
		ibv_destroy_cq(cq);
	if (pd)
		ibv_dealloc_pd(pd);
	unmap(at, len);
}

/* A child has copies of the pages, and must not take those that the device uses. */
static void do_fork(struct side *e)
{
	uint32_t stays = any_of(&e->random) % 20;
	pid_t child = fork();

	if (child == 0) {
		sleep_ms((int)stays);
		_exit(0);
	}
	count(FORKS, child > 0);
}

/* --- what has happened ------------------------------------------------------------------------ */

static void message_came(struct side *e, const struct ibv_wc *wc)
{
	const struct header *header = (void *)(e->recvs + wc->wr_id * MESSAGE_LEN);
	ssize_t at;

	if (wc->wr_id >= RECVS)
		wrong("a message in receive %llu", (unsigned long long)wc->wr_id);
	if (wc->byte_len < sizeof(*header) || header->length != wc->byte_len)
		wrong("a message of %u octets says that it has %u", wc->byte_len, header->length);
	switch (header->kind) {
	case ACK:
		if (e->sent - header->seq > e->sent - e->acked)
			wrong("%u acknowledged of %u to %u", header->seq, e->acked, e->sent);
		e->acked = header->seq;
		break;
	case DATA:
	case WRITTEN:
		if (header->seq != e->received)
			wrong("message %u in the place of %u", header->seq, e->received);
		e->received++;
		if (header->kind == DATA) {
			at = pattern_differs((uint8_t *)(header + 1), header->length - sizeof(*header),
					     header->seed);
			if (at >= 0)
				wrong("octet %zd of the %u of message %u", at, header->length, header->seq);
			count(COMPARED, header->length);
		} else if (!e->own_region_gone) {
			if (header->at > SLOTS * SLOT_LEN || header->count > SLOT_LEN)
				wrong("%u octets at %u told", header->count, header->at);
			at = pattern_differs(e->region + header->at, header->count, header->seed);
			if (at >= 0)
				wrong("octet %zd of the %u that were written at %u before message %u", at,
				      header->count, header->at, header->seq);
			count(COMPARED, header->count);
		}
		break;
	default:
		wrong("message of kind %u", header->kind);
	}
	if (!post_one_recv(e, wc->wr_id))
		e->dead = true;
}

static void request_done(struct side *e, const struct ibv_wc *wc)
{
	uint32_t n = (uint32_t)wc->wr_id;
	struct request *r = &e->requests[n];

	if (n >= REQUESTS || !r->busy)
		wrong("request %#llx is complete, but was not under way", (unsigned long long)wc->wr_id);
	r->busy = false;
	if (r->must_fail && !wc->status)
		wrong("a Read with a wrong key has succeeded");
	if (r->op == IBV_WR_RDMA_READ) {
		uint32_t at = r->slot * SLOT_LEN + r->at;

		e->reads--;
		e->slots[r->slot].reads--;
		if (wc->status)
			return;
		for (uint32_t i = 0; i < r->length; i++)
			if (buffer(e, n)[i] != e->copy[at + i])
				wrong("octet %u of the %u that were read at %u", i, r->length, at);
		count(COMPARED, r->length);
		count(READS_DONE, 1);
	} else if (r->op == IBV_WR_ATOMIC_FETCH_AND_ADD || r->op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		uint64_t before;

		e->reads--;
		if (wc->status)
			return;
		memcpy(&before, buffer(e, n), 8);
		if (before != r->expected)
			wrong("an atomic operation found %#llx instead of %#llx", (unsigned long long)before,
			      (unsigned long long)r->expected);
		count(ATOMICS, 1);
	}
}

/* Takes the completions that there are. */
static void completions(struct side *e)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(e->cq, 1, &wc)) > 0) {
		switch (wc.status) {
		case IBV_WC_SUCCESS:
			break;
		case IBV_WC_WR_FLUSH_ERR:
		case IBV_WC_REM_ACCESS_ERR:
		case IBV_WC_REM_OP_ERR:
		case IBV_WC_REM_INV_REQ_ERR:
		case IBV_WC_FATAL_ERR:
		case IBV_WC_GENERAL_ERR:
			e->dead = true;
			break;
		default:
			wrong("status %s of %#llx", ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id);
		}
		if (wc.wr_id >> 32) {
			request_done(e, &wc);
			continue;
		}
		if (!e->receives--)
			wrong("receive %#llx is complete, but was not posted", (unsigned long long)wc.wr_id);
		if (!wc.status)
			message_came(e, &wc);
	}
	if (n < 0)
		e->dead = e->gone = true;
}

/* Looks at events of the connection. */
static void connection_events(struct side *e)
{
	struct rdma_cm_event *event;

	while ((event = cm_event(e->events, 0))) {
		switch (event->event) {
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			e->dead = e->gone = true;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			e->dead = true;
			break;
		default:
			break;
		}
		rdma_ack_cm_event(event);
	}
}

static void wait_for_something(struct side *e, int ms)
{
	struct pollfd fds[] = { { .fd = e->channel->fd, .events = POLLIN }, { .fd = e->events->fd, .events = POLLIN } };
	struct ibv_cq *cq;
	void *context;

	if (poll(fds, 2, ms) <= 0)
		return;
	if (fds[0].revents & POLLIN && !ibv_get_cq_event(e->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(e->cq, any_of(&e->random) % 8 == 0))
			e->dead = e->gone = true;
	} else if (fds[0].revents) {
		e->dead = e->gone = true;
	}
	if (fds[1].revents)
		connection_events(e);
}

/* Acknowledges Sends: now and then, and if there is nothing else to do. */
static void acknowledge(struct side *e, bool now)
{
	ssize_t n = free_request(e);

	if (n >= 0 && e->received != e->told && (now || e->received - e->told > CREDITS / 4))
		send_message(e, (size_t)n, (struct header){ .kind = ACK, .length = sizeof(struct header) });
}

static bool all_done(const struct side *e)
{
	for (size_t n = 0; n < REQUESTS; n++)
		if (e->requests[n].busy)
			return false;
	return e->sent == e->acked;
}

static bool nothing_is_posted(const struct side *e)
{
	for (size_t n = 0; n < REQUESTS; n++)
		if (e->requests[n].busy)
			return false;
	return !e->receives;
}

/*
 * Of a queue pair in error each request and each receive completes. Returns whether they have; they
 * need not if the device goes.
 */
static bool all_complete(struct side *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	int64_t until = now_ms() + 30000 * slow;

	if (e->gone || ibv_modify_qp(e->id->qp, &attr, IBV_QP_STATE))
		return false;
	for (;;) {
		completions(e);
		connection_events(e);
		if (nothing_is_posted(e))
			return true;
		if (e->gone || ibv_query_qp(e->id->qp, &attr, IBV_QP_STATE, &init))
			return false;
		if (now_ms() > until)
			wrong("requests, or %u receives, do not complete", e->receives);
		sleep_ms(5);
	}
}

/* Ends the connection as programs do, in one of the ways; returns whether the queue pair stays. */
static bool end_somehow(struct side *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int64_t until = now_ms() + 2000 * slow;
	ssize_t n = free_request(e);

	switch (any_of(&e->random) % 8) {
	case 0 ... 1:
		while (!e->dead && !all_done(e) && now_ms() < until) {
			completions(e);
			acknowledge(e, true);
			wait_for_something(e, 10);
		}
		rdma_disconnect(e->id);
		count(ORDERLY, 1);
		break;
	case 2:
		/* With work under way. */
		count(DESTROYED, 1);
		return false;
	case 3:
		if (n >= 0) {
			struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ };

			wr.wr.rdma.remote_addr = e->peer.addr;
			wr.wr.rdma.rkey = e->peer.rkey ^ 0x55;
			e->requests[n].slot = 0;
			e->requests[n].at = 0;
			e->reads++;
			e->slots[0].reads++;
			e->requests[n].must_fail = true;
			post(e, (size_t)n, &wr, 16);
			count(BAD_KEY, 1);
		}
		break;
	case 4:
		/* Under the peer's requests. */
		ibv_dereg_mr(e->region_mr);
		e->region_mr = NULL;
		count(DEREGISTERED, 1);
		break;
	case 5:
		munmap(e->region, REGION_LEN);
		e->region = NULL;
		e->own_region_gone = true;
		count(UNMAPPED, 1);
		break;
	case 6:
		ibv_modify_qp(e->id->qp, &attr, IBV_QP_STATE);
		count(IN_ERROR, 1);
		break;
	case 7:
		rdma_disconnect(e->id);
		count(ORDERLY, 1);
		break;
	}
	/* What comes now must still be right. */
	until = now_ms() + any_of(&e->random) % 200;
	do {
		completions(e);
		wait_for_something(e, 5);
	} while (now_ms() < until);
	return true;
}

/* Works on an established connection until it ends, or this end ends it. */
static void work(struct side *e, int64_t until)
{
	unsigned int steps = any_of(&e->random) % 2000;
	bool stays = true;

	count(CONNECTIONS, 1);
	while (!e->dead && steps-- && now_ms() < until) {
		ssize_t n = free_request(e);
		uint32_t chance = any_of(&e->random) % 1000;
		bool waits = n < 0;

		if (n >= 0) {
			if (chance < 300 && e->sent - e->acked < CREDITS)
				do_send(e, (size_t)n);
			else if (chance < 600)
				do_write(e, (size_t)n);
			else if (chance < 750)
				do_read(e, (size_t)n);
			else if (chance < 850)
				do_atomic(e, (size_t)n);
			else
				waits = true;
		}
		completions(e);
		acknowledge(e, waits);
		if (waits)
			wait_for_something(e, (int)(any_of(&e->random) % 20));
		if (chance == 999)
			sleep_ms((int)(any_of(&e->random) % 100));
		else if (chance >= 996)
			do_noise(e);
		else if (chance == 995 && any_of(&e->random) % 4 == 0)
			do_fork(e);
	}
	if (e->dead)
		count(LOST, 1);
	else
		stays = end_somehow(e);
	if (stays && any_of(&e->random) % 2)
		count(COMPLETE, all_complete(e));
}

/* --- both ends -------------------------------------------------------------------------------- */

/* Waits for an event of this type; on any other the connection has failed. */
static bool expect(struct side *e, enum rdma_cm_event_type type, struct target *told)
{
	struct rdma_cm_event *event = cm_event(e->events, 30000 * slow);
	bool good = event && event->event == type;

	if (!event)
		return false;
	if (good && told) {
		good = event->param.conn.private_data_len >= sizeof(*told);
		if (good)
			memcpy(told, event->param.conn.private_data, sizeof(*told));
	}
	rdma_ack_cm_event(event);
	return good;
}

static struct rdma_conn_param params_with(const struct target *mine)
{
	return (struct rdma_conn_param){
		.private_data = mine,
		.private_data_len = sizeof(*mine),
		.responder_resources = READS,
		.initiator_depth = READS,
	};
}

struct caller {
	uint32_t seed;
	int64_t life;  /* in ms, from the first connection on */
	int64_t until; /* 0 before that */
	int port;
};

static bool call_once(struct side *e, struct caller *c)
{
	struct sockaddr_storage to;
	struct rdma_conn_param params;
	struct target mine;

	e->events = rdma_create_event_channel();
	if (!e->events || rdma_create_id(e->events, &e->id, NULL, RDMA_PS_TCP))
		return false;
	addr_with_port(&to, c->port);
	if (rdma_resolve_addr(e->id, NULL, (struct sockaddr *)&to, 2000 * slow) ||
	    !expect(e, RDMA_CM_EVENT_ADDR_RESOLVED, NULL))
		return false;
	if (rdma_resolve_route(e->id, 2000 * slow) || !expect(e, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL))
		return false;
	if (!end_make(e))
		return false;
	mine = target_of(e);
	params = params_with(&mine);
	if (rdma_connect(e->id, &params) || !expect(e, RDMA_CM_EVENT_ESTABLISHED, &e->peer))
		return false;
	if (!c->until)
		c->until = now_ms() + c->life;
	work(e, c->until);
	return true;
}

/* Ends without a connection only if many attempts have failed: the device may have gone. */
#define ATTEMPTS 20

static void *caller(void *arg)
{
	struct caller *c = arg;
	uint32_t seed = c->seed;
	int failed = 0;

	while (c->until ? now_ms() < c->until : failed < ATTEMPTS) {
		struct side e = { .random = seed += 0x9e3779b9, .extensions = has_extensions() };

		e.random |= !e.random;
		if (!call_once(&e, c)) {
			count(REFUSED, 1);
			failed++;
			sleep_ms(50);
		}
		end_free(&e);
	}
	return NULL;
}

static int served;

static void *serve_one(void *arg)
{
	struct side *e = arg;
	struct rdma_conn_param params;
	struct target mine;

	if (end_make(e)) {
		mine = target_of(e);
		params = params_with(&mine);
		if (!rdma_accept(e->id, &params) && expect(e, RDMA_CM_EVENT_ESTABLISHED, NULL))
			work(e, INT64_MAX);
	}
	end_free(e);
	free(e);
	__atomic_fetch_sub(&served, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void request_came(struct rdma_cm_event *event, uint32_t seed)
{
	struct side *e = calloc(1, sizeof(*e));
	pthread_attr_t attr;
	pthread_t thread;

	e->random = seed | !seed;
	e->extensions = has_extensions();
	e->id = event->id;
	e->events = rdma_create_event_channel();
	if (event->param.conn.private_data_len < sizeof(e->peer))
		wrong("a request with %u octets of private data", event->param.conn.private_data_len);
	memcpy(&e->peer, event->param.conn.private_data, sizeof(e->peer));
	rdma_ack_cm_event(event);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (__atomic_add_fetch(&served, 1, __ATOMIC_RELAXED) > MAX_SERVED || !e->events ||
	    rdma_migrate_id(e->id, e->events) || pthread_create(&thread, &attr, serve_one, e)) {
		rdma_reject(e->id, NULL, 0);
		end_free(e);
		free(e);
		__atomic_fetch_sub(&served, 1, __ATOMIC_RELAXED);
	}
	pthread_attr_destroy(&attr);
}

static int serve(int port, uint32_t seed)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_storage at;

	addr_with_port(&at, port);
	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(id, (struct sockaddr *)&at) || !id->verbs || rdma_listen(id, 64))
		return 1;
	for (;;) {
		struct rdma_cm_event *event = cm_event(events, 3600000);

		if (!event)
			return 1;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			request_came(event, seed += 0x9e3779b9);
		} else {
			bool removed = event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id;

			rdma_ack_cm_event(event);
			/* What the threads have goes with the process. */
			if (removed)
				_exit(0);
		}
	}
}

int main(int argc, char **argv)
{
	struct caller all[16];
	pthread_t threads[16];
	const char *many = getenv("THREADS");
	int n = many ? atoi(many) : 2;
	int port = getenv("PORT") ? atoi(getenv("PORT")) : 7000;
	uint32_t seed;

	if (!getenv("TALLY") || !tally_open())
		return 1;
	if (argc > 1 && !strcmp(argv[1], "tally")) {
		for (size_t i = 0; i < WHATS; i++)
			printf("%s %llu\n", what_names[i], (unsigned long long)tally[i]);
		return 0;
	}
	if (argc < 4)
		return 1;
	test_begin(2, argv + 1);
	/* Children are of no interest. */
	signal(SIGCHLD, SIG_IGN);
	seed = (uint32_t)strtoul(argv[3], NULL, 0);
	if (!strcmp(argv[1], "serve"))
		return serve(port, seed);
	for (int i = 0; i < n && i < 16; i++) {
		all[i] = (struct caller){ seed ^ (uint32_t)i << 20, 1000 * atoi(argv[4]), 0, port };
		if (pthread_create(&threads[i], NULL, caller, &all[i]))
			return 1;
	}
	for (int i = 0; i < n && i < 16; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

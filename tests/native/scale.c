// SPDX-License-Identifier: GPL-2.0
/*
 * scale - measure how the figures of one RDMA device change with numbers: connections, queue pairs,
 * regions, registered octets.
 *
 * Each process has both ends of all its connections, all on the device of one address, and one
 * thread. It prints one figure a line:
 *
 *     WHAT <tab> PARAMETER <tab> FIGURE <tab> UNIT
 *
 * A figure of throughput is printed only if the peer's memory holds what was written, and if each
 * queue pair has received the Send that follows its last Write.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define DEPTH	 16	    /* Writes that a queue pair has in flight */
#define RING	 (1u << 20) /* octets of the source, and of the sink: the same for any number */
#define EMPTY	 0xee
#define RESOLVE_MS 5000
/* The queue is so long for any number of queue pairs that libsiw's own queue covers a page which
 * libsiw refuses as the place of another one: the 145th that a process maps. */
#define CQ_MIN	 20000

struct pair {
	struct rdma_cm_id *client, *server;
	unsigned up; /* ends that are established */
	double begun, took;
	uint64_t left, flying; /* Writes to post, and posted */
	uint64_t last; /* what the final Send carries, */
	uint64_t got; /* and where it arrives */
};

static struct {
	const char *address;
	unsigned port, pairs, processes, regions;
	uint64_t size, total;
	const char *kind;
	bool wait;
} opt = { .port = 18600, .pairs = 1, .processes = 1, .regions = 1, .size = 65536, .total = 256u << 20 };

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static struct pair *pairs;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_mr *ring_mr, *pairs_mr;
static struct ibv_mr **from, **to; /* the regions of source and sink that Writes use in turn */
static uint8_t *ring;
static unsigned begun, established, failed;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "scale: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	exit(2);
}

#define CHECK(what) ((what) ? (void)0 : die("line %d: %s: %s", __LINE__, #what, strerror(errno)))

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void print(const char *what, const char *parameter, double figure, const char *unit)
{
	printf("%s\t%s\t%.6g\t%s\n", what, parameter, figure, unit);
	fflush(stdout);
}

static const char *number(uint64_t n)
{
	static char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
	return text;
}

/* ---- connections ---- */

static void make_objects(struct ibv_context *verbs)
{
	const unsigned cqes = opt.pairs * (DEPTH + 1);

	if (pd)
		return;
	CHECK(pd = ibv_alloc_pd(verbs));
	CHECK(send_cq = ibv_create_cq(verbs, cqes < CQ_MIN ? CQ_MIN : cqes, NULL, NULL, 0));
	CHECK(recv_cq = ibv_create_cq(verbs, opt.pairs + 1, NULL, NULL, 0));
	CHECK(ring_mr = ibv_reg_mr(pd, ring, 2 * RING, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(pairs_mr = ibv_reg_mr(pd, pairs, opt.pairs * sizeof(*pairs), IBV_ACCESS_LOCAL_WRITE));
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH + 1, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	CHECK(!rdma_create_qp(id, pd, &attr));
}

static void begin(uint32_t i)
{
	struct sockaddr_in to_addr = { .sin_family = AF_INET, .sin_port = htons(opt.port) };

	CHECK(inet_pton(AF_INET, opt.address, &to_addr.sin_addr) == 1);
	pairs[i].begun = now();
	CHECK(!rdma_create_id(events, &pairs[i].client, &pairs[i], RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(pairs[i].client, NULL, (struct sockaddr *)&to_addr, RESOLVE_MS));
	begun++;
}

/* Handles one event; returns the pair that it completes or ends, if any. */
static struct pair *handle(void)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1, .retry_count = 7 };
	struct rdma_cm_event *event, copy;
	struct rdma_cm_id *id;
	struct pair *pair;
	uint32_t i;

	CHECK(!rdma_get_cm_event(events, &event));
	copy = *event;
	id = event->id;
	pair = id->context;
	if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		CHECK(copy.param.conn.private_data_len >= sizeof(i));
		memcpy(&i, copy.param.conn.private_data, sizeof(i));
		CHECK(i < opt.pairs && !pairs[i].server);
		pair = id->context = &pairs[i];
		pair->server = id;
	}
	rdma_ack_cm_event(event);
	switch (copy.event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK(!rdma_resolve_route(id, RESOLVE_MS));
		return NULL;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		make_objects(id->verbs);
		make_qp(id);
		i = pair - pairs;
		param.private_data = &i;
		param.private_data_len = sizeof(i);
		CHECK(!rdma_connect(id, &param));
		return NULL;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		make_qp(id);
		if (rdma_accept(id, &param)) {
			/* The client has given up, and hears of that. */
			rdma_destroy_qp(id);
			rdma_destroy_id(id);
			pair->server = NULL;
		}
		return NULL;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (++pair->up < 2)
			return NULL;
		pair->took = now() - pair->begun;
		established++;
		return pair;
	case RDMA_CM_EVENT_DISCONNECTED:
		return --pair->up ? NULL : pair;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return NULL;
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		if (id != pair->client)
			return NULL; /* the client hears of it too */
		failed++;
		return pair;
	default:
		die("%s: status %d", rdma_event_str(copy.event), copy.status);
	}
}

/* Makes all connections, at most `window` of them at a time. */
static void connect_all(unsigned window)
{
	while (begun < opt.pairs && begun < window)
		begin(begun);
	while (established + failed < opt.pairs)
		if (handle() && begun < opt.pairs)
			begin(begun);
}

static void must_be_up(void)
{
	if (failed)
		die("%u of %u connections failed", failed, opt.pairs);
}

/* Ends all connections that are up. */
static void disconnect_all(void)
{
	unsigned i, closed = 0;

	for (i = 0; i < opt.pairs; i++)
		if (pairs[i].up == 2) {
			rdma_disconnect(pairs[i].client);
			rdma_disconnect(pairs[i].server);
		}
	while (closed < established)
		closed += !!handle();
	for (i = 0; i < opt.pairs; i++) {
		struct rdma_cm_id *ids[] = { pairs[i].client, pairs[i].server };
		int side;

		for (side = 0; side < 2; side++)
			if (ids[side]) {
				if (ids[side]->qp)
					rdma_destroy_qp(ids[side]);
				rdma_destroy_id(ids[side]);
			}
	}
}

static void set_up(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(opt.port) };
	uint32_t i;

	CHECK(pairs = calloc(opt.pairs, sizeof(*pairs)));
	for (i = 0; i < opt.pairs; i++)
		pairs[i].last = ((uint64_t)getpid() << 32) + i;
	ring = mmap(NULL, 2 * RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(ring != MAP_FAILED);
	for (i = 0; i < RING; i += sizeof(i))
		memcpy(ring + i, &(uint32_t){ i * 2654435761u }, sizeof(i));
	CHECK(events = rdma_create_event_channel());
	CHECK(!rdma_create_id(events, &listener, NULL, RDMA_PS_TCP));
	CHECK(inet_pton(AF_INET, opt.address, &addr.sin_addr) == 1);
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&addr));
	CHECK(!rdma_listen(listener, opt.pairs));
	make_objects(listener->verbs);
}

/* ---- throughput ---- */

static void take_regions(struct ibv_mr **mr, uint8_t *base)
{
	const uint64_t slots = RING / opt.size;
	unsigned i;

	for (i = 0; i < opt.regions; i++)
		CHECK(mr[i] = ibv_reg_mr(pd, base + i % slots * opt.size, opt.size,
					 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}

/* With -r, Writes use that many regions in turn, each of one slot of the ring; else one of all. */
static void make_regions(void)
{
	CHECK(from = calloc(opt.regions, sizeof(*from)));
	CHECK(to = calloc(opt.regions, sizeof(*to)));
	if (opt.regions == 1) {
		from[0] = to[0] = ring_mr;
		return;
	}
	take_regions(from, ring);
	take_regions(to, ring + RING);
}

/* The slot of the ring that a Write uses: that of its region, or one after the other. */
static uint64_t slot(uint64_t turn)
{
	return (opt.regions > 1 ? turn % opt.regions : turn) % (RING / opt.size);
}

static void post_write(struct pair *pair, uint64_t turn)
{
	const uint64_t at = slot(turn) * opt.size;
	struct ibv_sge sge = { (uintptr_t)ring + at, opt.size, from[turn % opt.regions]->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = pair - pairs, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)ring + RING + at, to[turn % opt.regions]->rkey },
	};
	int error = ibv_post_send(pair->client->qp, &wr, &bad);

	if (error)
		die("ibv_post_send: %s", strerror(error));
	pair->left--;
	pair->flying++;
}

static void post_last(struct pair *pair)
{
	struct ibv_sge sge = { (uintptr_t)&pair->last, sizeof(pair->last), pairs_mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = pair - pairs, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	int error = ibv_post_send(pair->client->qp, &wr, &bad);

	if (error)
		die("ibv_post_send: %s", strerror(error));
	pair->flying++;
}

static void post_recv(struct pair *pair)
{
	struct ibv_sge sge = { (uintptr_t)&pair->got, sizeof(pair->got), pairs_mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = pair - pairs, .sg_list = &sge, .num_sge = 1 };
	int error = ibv_post_recv(pair->server->qp, &wr, &bad);

	if (error)
		die("ibv_post_recv: %s", strerror(error));
}

/* Polls a queue, and leaves the processor to the driver's threads while it is empty. */
static unsigned poll_cq(struct ibv_cq *cq, struct ibv_wc *wc, unsigned most)
{
	int i, n = ibv_poll_cq(cq, most, wc);

	CHECK(n >= 0);
	for (i = 0; i < n; i++)
		if (wc[i].status != IBV_WC_SUCCESS)
			die("queue pair %llu: %s", (unsigned long long)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
	if (!n)
		sched_yield();
	return n;
}

/* Writes `writes` messages on each pair, and then its Send; returns when all Sends have arrived. */
static void transfer(uint64_t writes)
{
	struct ibv_wc wc[32];
	uint64_t turn = 0;
	unsigned i, n, sent = 0, arrived = 0;

	for (i = 0; i < opt.pairs; i++) {
		pairs[i].left = writes;
		pairs[i].got = 0;
		post_recv(&pairs[i]);
	}
	for (n = 0; n < DEPTH; n++)
		for (i = 0; i < opt.pairs; i++)
			if (pairs[i].left)
				post_write(&pairs[i], turn++);
	while (sent < opt.pairs) {
		n = poll_cq(send_cq, wc, 32);
		for (i = 0; i < n; i++) {
			struct pair *pair = &pairs[wc[i].wr_id];

			pair->flying--;
			if (wc[i].opcode == IBV_WC_SEND)
				sent++;
			else if (pair->left)
				post_write(pair, turn++);
			else if (!pair->flying)
				post_last(pair);
		}
	}
	while (arrived < opt.pairs)
		arrived += poll_cq(recv_cq, wc, 32);
}

static uint64_t writes_of_each(void)
{
	const uint64_t writes = opt.total / opt.size / opt.pairs / opt.processes;

	return writes ? writes : 1;
}

static void verify(uint64_t writes)
{
	const uint64_t slots = RING / opt.size, all = writes * opt.pairs;
	const uint64_t first = opt.regions > 1 && opt.regions < slots ? opt.regions : slots;
	const uint64_t used = (all < first ? all : first) * opt.size;
	uint64_t i;

	if (memcmp(ring, ring + RING, used))
		die("the sink differs from the source");
	for (i = used; i < RING; i++)
		if (ring[RING + i] != EMPTY)
			die("octet %llu behind the sink was written", (unsigned long long)(i - used));
	for (i = 0; i < opt.pairs; i++)
		if (pairs[i].got != pairs[i].last)
			die("queue pair %llu: the Send is wrong", (unsigned long long)i);
}

/* ---- processes that begin at the same time ---- */

struct result {
	double begun, ended;
	unsigned established, failed;
};

/* Runs `prepare`, then, in all processes at once, `work`. */
static struct result at_once(void (*prepare)(void), void (*work)(void), void (*after)(void))
{
	struct result all = { 0 }, one;
	int ready[2], go[2], results[2], status;
	unsigned i;
	char c = 0;

	CHECK(!pipe(ready) && !pipe(go) && !pipe(results));
	for (i = 0; i < opt.processes; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid)
			continue;
		close(go[1]);
		opt.port += i;
		set_up();
		prepare();
		CHECK(write(ready[1], &c, 1) == 1);
		CHECK(read(go[0], &c, 1) == 0);
		one.begun = now();
		work();
		one.ended = now();
		after();
		one.established = established;
		one.failed = failed;
		CHECK(write(results[1], &one, sizeof(one)) == sizeof(one));
		disconnect_all();
		exit(0);
	}
	close(ready[1]);
	close(results[1]);
	for (i = 0; i < opt.processes; i++)
		if (read(ready[0], &c, 1) != 1)
			exit(2); /* the child has said why */
	close(go[1]);
	for (i = 0; i < opt.processes; i++) {
		if (read(results[0], &one, sizeof(one)) != sizeof(one))
			exit(2);
		if (!i || one.begun < all.begun)
			all.begun = one.begun;
		if (!i || one.ended > all.ended)
			all.ended = one.ended;
		all.established += one.established;
		all.failed += one.failed;
	}
	for (i = 0; i < opt.processes; i++) {
		CHECK(wait(&status) > 0);
		if (status)
			exit(2);
	}
	return all;
}

/* ---- the measurements ---- */

static void nothing(void)
{
}

static void connect_at_once(void)
{
	connect_all(opt.pairs);
}

/* Connections that all begin at the same time. */
static void measure_at_once(void)
{
	struct result all = at_once(nothing, connect_at_once, nothing);
	char parameter[48];

	snprintf(parameter, sizeof(parameter), "%u of %u processes", opt.pairs * opt.processes, opt.processes);
	print("connect_at_once", parameter, all.established / (all.ended - all.begun), "1/s");
	if (all.failed)
		print("connect_failed", parameter, all.failed, "");
}

static double mean(unsigned first, unsigned end)
{
	double sum = 0;
	unsigned i;

	for (i = first; i < end; i++)
		sum += pairs[i].took;
	return sum / (end - first);
}

/* One connection after the other, all of which stay. */
static void measure_connects(void)
{
	const unsigned tenth = opt.pairs < 10 ? 1 : opt.pairs / 10;
	double t0, t1, t2;

	set_up();
	t0 = now();
	connect_all(1);
	must_be_up();
	t1 = now();
	print("connect", number(opt.pairs), opt.pairs / (t1 - t0), "1/s");
	print("connect_first", number(opt.pairs), mean(0, tenth) * 1e6, "us");
	print("connect_last", number(opt.pairs), mean(opt.pairs - tenth, opt.pairs) * 1e6, "us");
	disconnect_all();
	t2 = now();
	print("disconnect", number(opt.pairs), opt.pairs / (t2 - t1), "1/s");
}

static void prepare_transfer(void)
{
	connect_all(1);
	must_be_up();
	make_regions();
	/* Each queue pair and each region has been used before. */
	transfer(1 + opt.regions / opt.pairs);
	memset(ring + RING, EMPTY, RING);
}

/* With -w, again and again. */
static void transfer_all(void)
{
	do
		transfer(writes_of_each());
	while (opt.wait);
}

static void verify_all(void)
{
	verify(writes_of_each());
}

static void measure_throughput(void)
{
	struct result all = at_once(prepare_transfer, transfer_all, verify_all);
	const double octets = (double)writes_of_each() * opt.pairs * opt.processes * opt.size;
	char parameter[96];

	snprintf(parameter, sizeof(parameter), "%u x %llu", opt.regions > 1 ? opt.regions : opt.pairs * opt.processes,
		 (unsigned long long)opt.size);
	print(opt.regions > 1 ? "write_regions" : "write_qps", parameter, octets / (all.ended - all.begun) / 1048576, "MiB/s");
}

/* A number from a file of "NAME VALUE" pairs. */
static double field(const char *file, const char *name)
{
	char text[16384], *at;
	FILE *f = fopen(file, "r");
	size_t n;

	CHECK(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	at = strstr(text, name);
	if (!at)
		die("%s has no %s", file, name);
	return strtod(at + strlen(name), NULL);
}

/* The kernel's own memory, as soon as it has not changed for some tenths of a second. */
static double kernel_memory(int tenths)
{
	static const char *const others[] = { "MemFree:", "Buffers:", "\nCached:", "AnonPages:" };
	double used, first = 0;
	unsigned i;
	int same = 0;

	while (same < tenths) {
		used = field("/proc/meminfo", "MemTotal:");
		for (i = 0; i < sizeof(others) / sizeof(*others); i++)
			used -= field("/proc/meminfo", others[i]);
		if (used < first - 64 || used > first + 64) {
			first = used;
			same = 0;
		}
		usleep(100000);
		same++;
	}
	return 1024 * used;
}

/* TCP's own count of what lies in its queues. */
static double queued(void)
{
	return 4096 * field("/proc/net/sockstat", " mem ");
}

static void print_memory(const char *what, double before, unsigned ends, int tenths)
{
	print(what, number(ends), (kernel_memory(tenths) - before) / ends, "octets");
}

static void *make_one_qp(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH + 1, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(pd, &attr);
}

static void *make_one_srq(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };

	return ibv_create_srq(pd, &attr);
}

static void *make_one_pd(void)
{
	return ibv_alloc_pd(pd->context);
}

static void *make_one_cq(void)
{
	return ibv_create_cq(pd->context, DEPTH, NULL, NULL, 0);
}

static void *make_one_mr(void)
{
	return ibv_reg_mr(pd, ring, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static void *make_one_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_2);
}

static const struct {
	const char *name;
	void *(*make)(void);
	int (*destroy)(void *);
} kinds[] = {
	{ "qp", make_one_qp, (int (*)(void *))ibv_destroy_qp },
	{ "srq", make_one_srq, (int (*)(void *))ibv_destroy_srq },
	{ "pd", make_one_pd, (int (*)(void *))ibv_dealloc_pd },
	{ "cq", make_one_cq, (int (*)(void *))ibv_destroy_cq },
	{ "mr", make_one_mr, (int (*)(void *))ibv_dereg_mr },
	{ "mw", make_one_mw, (int (*)(void *))ibv_dealloc_mw },
};

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Prints the medians of the first and the last tenth: what a single one takes varies. */
static void print_tenths(const char *what, double *took, unsigned n)
{
	const unsigned tenth = n < 10 ? 1 : n / 10;
	double *const last = took + n - tenth;
	char name[48];

	qsort(took, tenth, sizeof(*took), compare);
	qsort(last, tenth, sizeof(*last), compare);
	snprintf(name, sizeof(name), "%s_%s_first", what, opt.kind);
	print(name, number(n), took[tenth / 2] * 1e6, "us");
	snprintf(name, sizeof(name), "%s_%s_last", what, opt.kind);
	print(name, number(n), last[tenth / 2] * 1e6, "us");
}

/* The time and memory of each object of a kind; with -w they stay. */
static void measure_objects(void)
{
	const unsigned n = opt.pairs;
	double before, begin, *took;
	void **objects;
	char name[48];
	unsigned i, k;

	for (k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
		if (opt.kind && !strcmp(kinds[k].name, opt.kind))
			break;
	if (k == sizeof(kinds) / sizeof(*kinds))
		die("-k is one of qp, srq, pd, cq, mr, mw");
	CHECK(objects = calloc(n, sizeof(*objects)));
	CHECK(took = calloc(n, sizeof(*took)));
	opt.pairs = 1;
	set_up();
	/* With -w others run, so that memory never stops changing. */
	before = opt.wait ? 0 : kernel_memory(10);
	for (i = 0; i < n; i++) {
		begin = now();
		CHECK(objects[i] = kinds[k].make());
		took[i] = now() - begin;
	}
	print_tenths("make", took, n);
	if (opt.wait)
		pause();
	snprintf(name, sizeof(name), "memory_%s", opt.kind);
	print_memory(name, before, n, 5);
	for (i = 0; i < n; i++) {
		begin = now();
		CHECK(!kinds[k].destroy(objects[i]));
		took[i] = now() - begin;
	}
	print_tenths("destroy", took, n);
	print_memory("memory_left", before, n, 5);
}

/* The memory of each end of a connection: before it transfers data, directly after, and later. */
static void measure_memory(void)
{
	const unsigned ends = 2 * opt.pairs;
	double before;

	set_up();
	before = kernel_memory(10);
	connect_all(1);
	must_be_up();
	print_memory("memory_idle", before, ends, 5);
	make_regions();
	memset(ring + RING, EMPTY, RING);
	transfer(writes_of_each());
	verify(writes_of_each());
	print_memory("memory_active", before, ends, 5);
	print("memory_tcp_queues", number(ends), queued() / ends, "octets");
	print_memory("memory_rested", before, ends, 30);
	disconnect_all();
}

/* The same for TCP connections alone. */
static void measure_tcp_memory(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(opt.port) };
	const unsigned ends = 2 * opt.pairs;
	struct rlimit files = { ends + 64, ends + 64 };
	double before;
	uint64_t left;
	char *octets;
	unsigned i;
	int *fd, l;

	CHECK(!setrlimit(RLIMIT_NOFILE, &files));
	CHECK(fd = malloc(ends * sizeof(*fd)));
	memset(fd, 0, ends * sizeof(*fd));
	CHECK(octets = malloc(opt.size));
	memset(octets, 1, opt.size);
	CHECK((l = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(inet_pton(AF_INET, opt.address, &addr.sin_addr) == 1);
	CHECK(!bind(l, (struct sockaddr *)&addr, sizeof(addr)) && !listen(l, 16));
	before = kernel_memory(10);
	for (i = 0; i < ends; i += 2) {
		CHECK((fd[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		CHECK(!connect(fd[i], (struct sockaddr *)&addr, sizeof(addr)));
		CHECK((fd[i + 1] = accept(l, NULL, NULL)) >= 0);
	}
	print_memory("memory_idle", before, ends, 5);
	for (i = 0; i < ends; i += 2)
		for (left = writes_of_each() * opt.size; left;) {
			ssize_t n = send(fd[i], octets, left < opt.size ? left : opt.size, 0);

			CHECK(n > 0 && recv(fd[i + 1], octets, n, MSG_WAITALL) == n);
			left -= n;
		}
	print_memory("memory_active", before, ends, 5);
	print("memory_tcp_queues", number(ends), queued() / ends, "octets");
}

/* Registration of pages that do not adjoin. */
static void measure_registration(void)
{
	const uint64_t pages = opt.total / 4096;
	const double gib = opt.total / 1073741824.0;
	uint8_t *memory;
	struct ibv_mr *mr;
	uint64_t i, step;
	double t0, t1, t2;

	set_up();
	memory = mmap(NULL, opt.total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	madvise(memory, opt.total, MADV_NOHUGEPAGE);
	/* An odd step visits each page once, if their number is a power of 2. */
	CHECK(pages && !(pages & (pages - 1)));
	for (i = step = 0; i < pages; i++, step = (step + 40503) & (pages - 1))
		memory[step * 4096] = 1;
	t0 = now();
	CHECK(mr = ibv_reg_mr(pd, memory, opt.total, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	t1 = now();
	CHECK(!ibv_dereg_mr(mr));
	t2 = now();
	print("register", number(opt.total >> 20), (t1 - t0) / gib, "s/GiB");
	print("deregister", number(opt.total >> 20), (t2 - t1) / gib, "s/GiB");
}

static const struct {
	const char *name;
	void (*measure)(void);
} measurements[] = {
	{ "connect", measure_connects },
	{ "at_once", measure_at_once },
	{ "write", measure_throughput },
	{ "memory", measure_memory },
	{ "objects", measure_objects },
	{ "tcp_memory", measure_tcp_memory },
	{ "register", measure_registration },
};

int main(int argc, char **argv)
{
	unsigned i;
	int c;

	while ((c = getopt(argc, argv, "a:p:n:P:r:s:t:k:w")) != -1)
		switch (c) {
		case 'a': opt.address = optarg; break;
		case 'p': opt.port = atoi(optarg); break;
		case 'n': opt.pairs = atoi(optarg); break;
		case 'P': opt.processes = atoi(optarg); break;
		case 'r': opt.regions = atoi(optarg); break;
		case 's': opt.size = strtoull(optarg, NULL, 0); break;
		case 't': opt.total = strtoull(optarg, NULL, 0); break;
		case 'k': opt.kind = optarg; break;
		case 'w': opt.wait = true; break;
		default: argc = 0;
		}
	if (opt.address && argc == optind + 1 && opt.pairs && opt.processes && opt.regions && opt.size && opt.size <= RING &&
	    opt.pairs * opt.processes <= 100000)
		for (i = 0; i < sizeof(measurements) / sizeof(*measurements); i++)
			if (!strcmp(argv[optind], measurements[i].name)) {
				measurements[i].measure();
				return 0;
			}
	fprintf(stderr, "scale -a ADDRESS [-p PORT] [-n PAIRS] [-P PROCESSES] [-r REGIONS] [-s SIZE] [-t OCTETS]\n"
			"      [-k KIND] [-w] WHAT\n"
			"WHAT: connect, at_once, write, memory, objects (PAIRS of KIND), tcp_memory, register\n");
	return 2;
}

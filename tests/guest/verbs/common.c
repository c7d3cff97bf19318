// SPDX-License-Identifier: GPL-2.0
/* See common.h. */

#include "common.h"

#include <rdma/ib_user_verbs.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <linux/userfaultfd.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

struct sockaddr_storage test_addr;
int slow = 1;

static const char *program;
static char reason[512];
static bool failed, skipped;
static int failures;
static int port_base = 7000;

/* --- cases ------------------------------------------------------------------------------------ */

size_t page_size;

void test_begin(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : "127.0.0.1";
	const char *port = getenv("PORT");
	const char *factor = getenv("SLOW");
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *res;
	const char *slash = strrchr(argv[0], '/');

	program = slash ? slash + 1 : argv[0];
	setvbuf(stdout, NULL, _IOLBF, 0);
	page_size = sysconf(_SC_PAGESIZE);
	if (port)
		port_base = atoi(port);
	if (factor)
		slow = atoi(factor);
	if (getaddrinfo(host, NULL, &hints, &res)) {
		printf("not ok %s: bad address %s\n", program, host);
		exit(1);
	}
	memcpy(&test_addr, res->ai_addr, res->ai_addrlen);
	freeaddrinfo(res);
}

int test_end(void)
{
	return failures ? 1 : 0;
}

void test_run(const char *name, void (*fn)(void))
{
	const char *only = getenv("CASE");

	if (only && strcmp(only, name))
		return;
	failed = skipped = false;
	reason[0] = 0;
	fn();
	if (failed) {
		printf("not ok %s/%s: %s\n", program, name, reason);
		failures++;
	} else if (skipped) {
		printf("skip %s/%s: %s\n", program, name, reason);
	} else {
		printf("ok %s/%s\n", program, name);
	}
}

void test_fail(const char *file, int line, const char *what, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (failed) /* the first reason counts */
		return;
	failed = true;
	n = snprintf(reason, sizeof(reason), "%s:%d: ", file, line);
	va_start(ap, fmt);
	n += vsnprintf(reason + n, sizeof(reason) - n, fmt, ap);
	va_end(ap);
	if (what[0] && n < (int)sizeof(reason))
		snprintf(reason + n, sizeof(reason) - n, " [%s]", what);
}

void test_must(const char *file, int line, const char *what)
{
	if (!skipped)
		test_fail(file, line, what, "false");
}

void test_skip(const char *fmt, ...)
{
	va_list ap;

	skipped = true;
	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
}

bool test_failed(void)
{
	return failed;
}

int test_cannot_start(void)
{
	printf("not ok %s: %s\n", program, reason[0] ? reason : strerror(errno));
	return 1;
}

/* --- addresses and time ----------------------------------------------------------------------- */

void addr_with_port(struct sockaddr_storage *out, int port)
{
	*out = test_addr;
	if (out->ss_family == AF_INET6)
		((struct sockaddr_in6 *)out)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)out)->sin_port = htons(port);
}

int next_port(void)
{
	static int used;

	return port_base + used++;
}

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000LL + ts.tv_nsec / 1000000;
}

void sleep_ms(int ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	nanosleep(&ts, NULL);
}

/* --- files of the kernel ---------------------------------------------------------------------- */

long file_value(const char *path)
{
	FILE *file = fopen(path, "r");
	long value = -1;

	if (file && fscanf(file, "%ld", &value) != 1)
		value = -1;
	if (file)
		fclose(file);
	return value;
}

bool file_write(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	bool done = file && fprintf(file, "%s", text) > 0;

	/* The file is written when it is closed. */
	if (file && fclose(file))
		done = false;
	if (!done)
		fail("%s does not take %s: %s", path, text, strerror(errno));
	return done;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Regions that are not freed yet. */
static struct region kept[4096];

void region_keep(const struct region *r)
{
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		if (!kept[i].mr) {
			kept[i] = *r;
			break;
		}
}

bool region_make(struct region *r, struct ibv_pd *pd, size_t len, int access)
{
	r->mr = NULL;
	r->len = len;
	r->buf = mmap(NULL, len ? len : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (r->buf == MAP_FAILED) {
		fail("mmap of %zu: %s", len, strerror(errno));
		return false;
	}
	r->mr = ibv_reg_mr(pd, r->buf, len, access);
	if (!r->mr) {
		fail("ibv_reg_mr of %zu, access %#x: %s", len, access, strerror(errno));
		munmap(r->buf, len ? len : 1);
		return false;
	}
	region_keep(r);
	return true;
}

int faults_wait(void *pages, size_t len)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uintptr_t)pages, len },
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

bool fault_came(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	struct uffd_msg msg;

	if (poll(&pfd, 1, SOON) == 1 && read(fd, &msg, sizeof(msg)) == sizeof(msg))
		return true;
	fail("no page fault");
	return false;
}

bool faults_end(int fd, void *pages, size_t len)
{
	struct uffdio_range range = { (uintptr_t)pages, len };
	bool good = !ioctl(fd, UFFDIO_UNREGISTER, &range);

	close(fd);
	if (!good)
		fail("userfaultfd: %s", strerror(errno));
	return good;
}

bool region_release(struct region *r)
{
	struct ibv_mr *mr = r->mr;
	int rc;

	r->mr = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		if (kept[i].mr == mr)
			memset(&kept[i], 0, sizeof(kept[i]));
	rc = ibv_dereg_mr(mr);
	if (rc)
		fail("ibv_dereg_mr: %s", strerror(rc));
	return !rc;
}

void region_free(struct region *r)
{
	struct region gone = *r;

	memset(r, 0, sizeof(*r));
	if (!gone.mr)
		return;
	region_release(&gone);
	munmap(gone.buf, gone.len ? gone.len : 1);
}

static uint8_t pattern_at(size_t i, uint32_t seed)
{
	uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;

	return (uint8_t)(x >> 24 ^ x >> 13 ^ x);
}

void pattern_fill(uint8_t *buf, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = pattern_at(i, seed);
}

ssize_t pattern_differs(const uint8_t *buf, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != pattern_at(i, seed))
			return (ssize_t)i;
	return -1;
}

ssize_t not_all(const uint8_t *buf, size_t len, uint8_t value)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			return (ssize_t)i;
	return -1;
}

struct ibv_sge sge_of(const struct region *r, size_t off, size_t len)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)r->buf + off,
		.length = (uint32_t)len,
		.lkey = r->mr->lkey,
	};
}

/* --- connections ------------------------------------------------------------------------------ */

static bool readable(int fd, int ms)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t end = now_ms() + ms;
	int rc;

	do {
		int64_t left = end - now_ms();

		rc = poll(&pfd, 1, left > 0 ? (int)left : 0);
	} while (rc < 0 && errno == EINTR);
	return rc > 0;
}

struct rdma_cm_event *cm_event(struct rdma_event_channel *ch, int ms)
{
	struct rdma_cm_event *ev;

	if (!readable(ch->fd, ms) || rdma_get_cm_event(ch, &ev))
		return NULL;
	return ev;
}

bool cm_expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev = cm_event(ch, SOON);
	enum rdma_cm_event_type got;
	int status;

	if (!ev) {
		fail("no %s within %d ms", rdma_event_str(type), SOON);
		return false;
	}
	got = ev->event;
	status = ev->status;
	rdma_ack_cm_event(ev);
	if (got != type) {
		fail("%s (status %d) instead of %s", rdma_event_str(got), status,
		     rdma_event_str(type));
		return false;
	}
	return true;
}

struct rdma_cm_id *cm_listening_id(struct rdma_event_channel *ch, int port, int backlog)
{
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;

	addr_with_port(&addr, port);
	if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP)) {
		fail("rdma_create_id: %s", strerror(errno));
		return NULL;
	}
	if (rdma_bind_addr(id, (void *)&addr) || rdma_listen(id, backlog)) {
		fail("listening on port %d: %s", port, strerror(errno));
		rdma_destroy_id(id);
		return NULL;
	}
	return id;
}

struct rdma_cm_id *cm_resolved_id(struct rdma_event_channel *ch, int port)
{
	return cm_resolved_id_to(ch, NULL, port);
}

int source_port;

struct rdma_cm_id *cm_resolved_id_to(struct rdma_event_channel *ch, const char *host, int port)
{
	struct sockaddr_storage dst, src = test_addr;
	struct rdma_cm_id *id;

	if (source_port)
		addr_with_port(&src, source_port);
	addr_with_port(&dst, port);
	if (host && inet_pton(AF_INET, host, &((struct sockaddr_in *)&dst)->sin_addr) != 1 &&
	    inet_pton(AF_INET6, host, &((struct sockaddr_in6 *)&dst)->sin6_addr) != 1) {
		fail("bad address %s", host);
		return NULL;
	}
	if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP)) {
		fail("rdma_create_id: %s", strerror(errno));
		return NULL;
	}
	/* Ids may share the source port, and differ in the destination. */
	if (source_port && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &(int){ 1 },
					   sizeof(int)))
		fail("rdma_set_option: %s", strerror(errno));
	if (rdma_resolve_addr(id, (void *)&src, (void *)&dst, 2000)) {
		fail("rdma_resolve_addr from port %d: %s", source_port, strerror(errno));
	} else if (cm_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED)) {
		if (rdma_resolve_route(id, 2000))
			fail("rdma_resolve_route: %s", strerror(errno));
		else if (cm_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED))
			return id;
	}
	rdma_destroy_id(id);
	return NULL;
}

static struct ibv_context *named_context(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (!ctx)
		fail("no device %s", name);
	if (list)
		ibv_free_device_list(list);
	return ctx;
}

struct ibv_context *test_context(void)
{
	static struct rdma_event_channel *ch;
	static struct rdma_cm_id *id;
	const char *name = getenv("DEVICE");

	if (name)
		return named_context(name);
	if (!ch)
		ch = rdma_create_event_channel();
	if (!ch) {
		fail("rdma_create_event_channel: %s", strerror(errno));
		return NULL;
	}
	if (!id)
		id = cm_resolved_id(ch, 1);
	return id ? id->verbs : NULL;
}

static int or_default(int value, int otherwise)
{
	return value ? value : otherwise;
}

static struct ibv_cq *cq_make(struct ibv_context *ctx, int depth, struct ibv_comp_channel *channel,
			      bool extended)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = (uint32_t)depth,
		.channel = channel,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM,
	};
	struct ibv_cq_ex *cq;

	if (!extended)
		return ibv_create_cq(ctx, depth, NULL, channel, 0);
	cq = ibv_create_cq_ex(ctx, &attr);
	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

static int qp_make(struct end *e, const struct ibv_qp_init_attr *attr, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = e->pd,
		.send_ops_flags = send_ops,
	};
	struct ibv_qp_init_attr plain = *attr;

	return send_ops ? rdma_create_qp_ex(e->id, &ex) : rdma_create_qp(e->id, e->pd, &plain);
}

static bool end_make_qp(struct end *e, const struct pair_opts *o)
{
	struct ibv_context *ctx = e->id->verbs;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = o->sig_all,
		.cap = {
			.max_send_wr = o->receives_only ? 0 : or_default(o->sq_depth, 64),
			.max_recv_wr = o->sends_only ? 0 : or_default(o->rq_depth, 64),
			.max_send_sge = or_default(o->send_sge, 4),
			.max_recv_sge = or_default(o->recv_sge, 4),
			.max_inline_data = o->inline_data,
		},
	};
	int depth = or_default(o->cq_depth, 256);

	e->is_guest = o->beside;
	e->pd = o->beside ? o->beside->pd : ibv_alloc_pd(ctx);
	if (!e->pd) {
		fail("ibv_alloc_pd: %s", strerror(errno));
		return false;
	}
	if (o->channels) {
		e->send_channel = ibv_create_comp_channel(ctx);
		e->recv_channel = ibv_create_comp_channel(ctx);
		if (!e->send_channel || !e->recv_channel) {
			fail("ibv_create_comp_channel: %s", strerror(errno));
			return false;
		}
	}
	e->send_cq = cq_make(ctx, depth, e->send_channel, o->cq_ex);
	e->recv_cq = o->beside ? o->beside->recv_cq :
				 cq_make(ctx, depth, e->recv_channel, o->cq_ex);
	if (!e->send_cq || !e->recv_cq) {
		fail("ibv_create_cq of %d: %s", depth, strerror(errno));
		return false;
	}
	if (o->srq || o->beside) {
		e->srq = o->beside ? o->beside->srq : o->srq(e->pd);
		if (!e->srq)
			return false;
		attr.srq = e->srq;
		attr.cap.max_recv_wr = 0;
		attr.cap.max_recv_sge = 0;
	}
	attr.send_cq = e->send_cq;
	attr.recv_cq = e->recv_cq;
	if (qp_make(e, &attr, o->send_ops)) {
		fail("making a QP: %s", strerror(errno));
		return false;
	}
	e->qp = e->id->qp;
	return true;
}

bool pair_open(struct pair *p, const struct pair_opts *opts)
{
	static const struct pair_opts defaults;
	struct pair_opts o = opts ? *opts : defaults, oa;
	struct rdma_conn_param param = {
		.initiator_depth = or_default(o.depth, 16),
		.responder_resources = or_default(o.depth, 16),
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	struct rdma_cm_event *ev;
	int port = next_port();

	memset(p, 0, sizeof(*p));
	oa = o;
	oa.srq = NULL;
	oa.beside = NULL;
	oa.receives_only = false;
	o.sends_only = false;
	p->listen_events = rdma_create_event_channel();
	p->a.events = rdma_create_event_channel();
	p->b.events = rdma_create_event_channel();
	if (!p->listen_events || !p->a.events || !p->b.events) {
		fail("rdma_create_event_channel: %s", strerror(errno));
		return false;
	}
	p->listen = cm_listening_id(p->listen_events, port, 8);
	if (!p->listen)
		return false;
	p->a.id = cm_resolved_id(p->a.events, port);
	if (!p->a.id || !end_make_qp(&p->a, &oa))
		return false;
	if (rdma_connect(p->a.id, &param)) {
		fail("rdma_connect: %s", strerror(errno));
		return false;
	}
	ev = cm_event(p->listen_events, SOON);
	if (!ev || ev->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		fail("no connect request but %s", ev ? rdma_event_str(ev->event) : "nothing");
		if (ev)
			rdma_ack_cm_event(ev);
		return false;
	}
	p->b.id = ev->id;
	rdma_ack_cm_event(ev);
	if (rdma_migrate_id(p->b.id, p->b.events)) {
		fail("rdma_migrate_id: %s", strerror(errno));
		return false;
	}
	if (!end_make_qp(&p->b, &o))
		return false;
	if (rdma_accept(p->b.id, &param)) {
		fail("rdma_accept: %s", strerror(errno));
		return false;
	}
	return cm_expect(p->a.events, RDMA_CM_EVENT_ESTABLISHED) &&
	       cm_expect(p->b.events, RDMA_CM_EVENT_ESTABLISHED);
}

static void drain_events(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *ev;

	while (ch && (ev = cm_event(ch, 0)))
		rdma_ack_cm_event(ev);
}

static void end_close(struct end *e)
{
	drain_events(e->events);
	if (e->id && e->qp)
		rdma_destroy_qp(e->id);
	if (e->id)
		rdma_destroy_id(e->id);
	if (e->is_guest) {
		e->srq = NULL;
		e->recv_cq = NULL;
		e->pd = NULL;
	}
	if (e->srq && ibv_destroy_srq(e->srq))
		fail("ibv_destroy_srq: %s", strerror(errno));
	if (e->send_cq && ibv_destroy_cq(e->send_cq))
		fail("ibv_destroy_cq: %s", strerror(errno));
	if (e->recv_cq && ibv_destroy_cq(e->recv_cq))
		fail("ibv_destroy_cq: %s", strerror(errno));
	if (e->send_channel)
		ibv_destroy_comp_channel(e->send_channel);
	if (e->recv_channel)
		ibv_destroy_comp_channel(e->recv_channel);
	if (e->pd && ibv_dealloc_pd(e->pd))
		fail("ibv_dealloc_pd: %s", strerror(errno));
	if (e->events)
		rdma_destroy_event_channel(e->events);
	memset(e, 0, sizeof(*e));
}

void pair_close(struct pair *p)
{
	struct ibv_context *ctx = p->a.id ? p->a.id->verbs : NULL;

	if (ctx)
		async_forget(ctx);
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		region_free(&kept[i]);
	end_close(&p->a);
	end_close(&p->b);
	drain_events(p->listen_events);
	if (p->listen)
		rdma_destroy_id(p->listen);
	if (p->listen_events)
		rdma_destroy_event_channel(p->listen_events);
	memset(p, 0, sizeof(*p));
}

void with_pair(const struct pair_opts *opts, void (*body)(struct pair *p))
{
	struct pair p;

	if (pair_open(&p, opts))
		body(&p);
	pair_close(&p);
}

enum ibv_qp_state qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init))
		return IBV_QPS_UNKNOWN;
	return attr.qp_state;
}

bool qp_reaches(struct ibv_qp *qp, enum ibv_qp_state state, int ms)
{
	int64_t end = now_ms() + ms;

	while (qp_state(qp) != state) {
		if (now_ms() >= end) {
			fail("QP in state %d, not %d, after %d ms", qp_state(qp), state, ms);
			return false;
		}
		sleep_ms(2);
	}
	return true;
}

/* --- one end alone --------------------------------------------------------------------------- */

bool attempt_prepare(struct attempt *t, int port) { return attempt_prepare_to(t, NULL, port); }

bool attempt_prepare_to(struct attempt *t, const char *host, int port)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	memset(t, 0, sizeof(*t));
	t->ch = rdma_create_event_channel();
	t->id = cm_resolved_id_to(t->ch, host, port);
	if (!t->id)
		return false;
	t->pd = ibv_alloc_pd(t->id->verbs);
	t->cq = ibv_create_cq(t->id->verbs, 8, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = t->cq;
	if (!t->pd || !t->cq || rdma_create_qp(t->id, t->pd, &attr)) {
		fail("preparing a QP: %s", strerror(errno));
		return false;
	}
	return true;
}

bool attempt_start(struct attempt *t, int port)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };

	if (!attempt_prepare(t, port))
		return false;
	if (rdma_connect(t->id, &param)) {
		fail("rdma_connect: %s", strerror(errno));
		return false;
	}
	return true;
}

bool attempt_result(struct attempt *t, int ms)
{
	struct rdma_cm_event *ev = cm_event(t->ch, ms);

	if (!ev) {
		fail("no result after %d ms", ms);
		return false;
	}
	t->event = ev->event;
	t->status = ev->status;
	rdma_ack_cm_event(ev);
	return true;
}

void attempt_end(struct attempt *t)
{
	if (t->id && t->id->qp)
		rdma_destroy_qp(t->id);
	if (t->id)
		rdma_destroy_id(t->id);
	if (t->cq)
		ibv_destroy_cq(t->cq);
	if (t->pd)
		ibv_dealloc_pd(t->pd);
	if (t->ch)
		rdma_destroy_event_channel(t->ch);
}

struct ibv_srq *srq_make(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = SRQ_DEPTH, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	return srq;
}

/* --- work ------------------------------------------------------------------------------------- */

static int positive(int rc)
{
	return rc < 0 ? (rc == -1 ? errno : -rc) : rc;
}

bool post_recv_sges(struct end *e, uint64_t wr_id, struct ibv_sge *sge, int n)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sge, .num_sge = n }, *bad;
	int rc = e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);

	if (rc)
		fail("posting receive %llu: %s", (unsigned long long)wr_id, strerror(positive(rc)));
	return !rc;
}

bool post_recv(struct end *e, uint64_t wr_id, const struct region *r, size_t off, size_t len)
{
	struct ibv_sge sge = sge_of(r, off, len);

	return post_recv_sges(e, wr_id, &sge, 1);
}

int try_send(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return positive(ibv_post_send(e->qp, wr, &bad));
}

bool post_send(struct end *e, struct ibv_send_wr *wr)
{
	int rc = try_send(e, wr);

	if (rc)
		fail("posting send %llu: %s", (unsigned long long)wr->wr_id, strerror(rc));
	return !rc;
}

struct ibv_send_wr wr_make(enum ibv_wr_opcode op, uint64_t wr_id, int flags, struct ibv_sge *sge,
			   int num_sge)
{
	return (struct ibv_send_wr){
		.wr_id = wr_id,
		.opcode = op,
		.send_flags = flags,
		.sg_list = sge,
		.num_sge = num_sge,
	};
}

struct ibv_send_wr wr_rdma(enum ibv_wr_opcode op, uint64_t wr_id, int flags, struct ibv_sge *sge,
			   int num_sge, uint64_t raddr, uint32_t rkey)
{
	struct ibv_send_wr wr = wr_make(op, wr_id, flags, sge, num_sge);

	wr.wr.rdma.remote_addr = raddr;
	wr.wr.rdma.rkey = rkey;
	return wr;
}

struct ibv_qp_ex *wr_begin(struct pair *p, uint64_t id)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p->a.qp);

	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	return qp;
}

bool poll_wc(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	int64_t end = now_ms() + ms;
	int n;

	for (int spins = 0;; spins++) {
		n = ibv_poll_cq(cq, 1, wc);
		if (n)
			return n > 0;
		if (now_ms() >= end)
			return false;
		if (spins > 100)
			sleep_ms(1);
	}
}

bool expect_wc(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t wr_id, enum ibv_wc_status status)
{
	if (!poll_wc(cq, wc, SOON)) {
		fail("no completion of work request %llu", (unsigned long long)wr_id);
		return false;
	}
	if (wc->wr_id != wr_id || wc->status != status) {
		fail("completion of %llu with '%s' instead of %llu with '%s'",
		     (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status),
		     (unsigned long long)wr_id, ibv_wc_status_str(status));
		return false;
	}
	return true;
}

bool expect_no_wc(struct ibv_cq *cq, int ms)
{
	struct ibv_wc wc;

	if (poll_wc(cq, &wc, ms)) {
		fail("unexpected completion of %llu with '%s'", (unsigned long long)wc.wr_id,
		     ibv_wc_status_str(wc.status));
		return false;
	}
	return true;
}

bool channel_fires(struct ibv_comp_channel *ch, int ms)
{
	struct ibv_cq *cq;
	void *ctx;

	if (!readable(ch->fd, ms) || ibv_get_cq_event(ch, &cq, &ctx))
		return false;
	ibv_ack_cq_events(cq, 1);
	return true;
}

bool exchange_works(struct pair *p)
{
	struct region src = { 0 }, dst = { 0 };
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	bool good = false;
	const size_t len = 5000;

	if (!region_make(&src, p->a.pd, len, 0) ||
	    !region_make(&dst, p->b.pd, len, IBV_ACCESS_LOCAL_WRITE))
		goto out;
	pattern_fill(src.buf, len, 99);
	if (!post_recv(&p->b, 77, &dst, 0, len))
		goto out;
	sge = sge_of(&src, 0, len);
	wr = wr_make(IBV_WR_SEND, 78, IBV_SEND_SIGNALED, &sge, 1);
	if (!post_send(&p->a, &wr) || !expect_wc(p->a.send_cq, &wc, 78, IBV_WC_SUCCESS) ||
	    !expect_wc(p->b.recv_cq, &wc, 77, IBV_WC_SUCCESS))
		goto out;
	if (wc.byte_len != len || pattern_differs(dst.buf, len, 99) >= 0) {
		fail("a plain Send of %zu octets did not arrive intact", len);
		goto out;
	}
	good = true;
out:
	region_free(&src);
	region_free(&dst);
	return good;
}

void world_is_well(void)
{
	struct pair p;

	if (test_failed())
		return;
	if (pair_open(&p, NULL))
		exchange_works(&p);
	pair_close(&p);
}

bool has_extensions(void) { return getenv("EXTENSIONS") != NULL; }

/* --- queues shared with the device ------------------------------------------------------------ */

size_t device_mappings(struct mapping *out, size_t max)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	size_t n = 0;

	while (f && fgets(line, sizeof(line), f)) {
		unsigned long a, b, offset;

		if (strstr(line, "/dev/infiniband/uverbs") && n < max &&
		    sscanf(line, "%lx-%lx %*s %lx", &a, &b, &offset) == 3) {
			out[n].start = (uint8_t *)a;
			out[n].len = b - a;
			out[n].offset = (off_t)offset;
			n++;
		}
	}
	if (f)
		fclose(f);
	return n;
}

/*
 * Issues a command, which begins with its header, and takes its answer, without the library;
 * returns an errno or 0.
 */
static int command(struct ibv_context *context, uint32_t number, void *request, size_t len,
		   size_t answer_len)
{
	struct ib_uverbs_cmd_hdr *hdr = request;

	hdr->command = number;
	hdr->in_words = len / 4;
	hdr->out_words = answer_len / 4;
	return write(context->cmd_fd, request, len) == (ssize_t)len ? 0 : errno;
}

int ring_doorbell(struct ibv_qp *qp)
{
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_post_send cmd;
	} req = { 0 };
	struct ib_uverbs_post_send_resp resp = { 0 };

	req.cmd.response = (uintptr_t)&resp;
	req.cmd.qp_handle = qp->handle;
	req.cmd.wqe_size = sizeof(struct ibv_send_wr);
	return command(qp->context, IB_USER_VERBS_CMD_POST_SEND, &req, sizeof(req), sizeof(resp));
}

int rereg(struct ibv_mr *mr, uint32_t flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_rereg_mr cmd;
	} req = { 0 };
	struct ib_uverbs_rereg_mr_resp resp = { 0 };
	int error;

	req.cmd.response = (uintptr_t)&resp;
	req.cmd.mr_handle = mr->handle;
	req.cmd.flags = flags;
	req.cmd.start = req.cmd.hca_va = (uintptr_t)addr;
	req.cmd.length = len;
	req.cmd.pd_handle = pd ? pd->handle : 0;
	req.cmd.access_flags = access;
	error = command(mr->context, IB_USER_VERBS_CMD_REREG_MR, &req, sizeof(req), sizeof(resp));
	if (error)
		return error;
	mr->lkey = resp.lkey;
	mr->rkey = resp.rkey;
	return 0;
}

struct ib_uverbs_attr given(uint16_t id, uint64_t value, uint16_t len)
{
	return (struct ib_uverbs_attr){
		.attr_id = id, .len = len, .flags = UVERBS_ATTR_F_MANDATORY, .data = value
	};
}

int method(struct ibv_context *context, uint16_t object, uint16_t number,
	   struct ib_uverbs_attr *attrs, size_t count)
{
	struct {
		struct ib_uverbs_ioctl_hdr hdr;
		struct ib_uverbs_attr attrs[16];
	} req = { 0 };
	size_t len = sizeof(req.hdr) + count * sizeof(*attrs);
	int error;

	req.hdr.length = len;
	req.hdr.object_id = object;
	req.hdr.method_id = number;
	req.hdr.num_attrs = count;
	req.hdr.driver_id = has_extensions() ? RDMA_DRIVER_RXE : RDMA_DRIVER_SIW;
	memcpy(req.attrs, attrs, count * sizeof(*attrs));
	error = ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &req) ? errno : 0;
	memcpy(attrs, req.attrs, count * sizeof(*attrs));
	return error;
}

bool killed_in(void (*victim)(struct pair *p))
{
	int ready[2], got;
	char octet;
	pid_t child;

	if (pipe2(ready, O_CLOEXEC)) {
		fail("a pipe: %s", strerror(errno));
		return false;
	}
	fflush(stdout);
	child = fork();
	if (!child) {
		dup2(ready[1], STDOUT_FILENO);
		with_pair(NULL, victim);
		_exit(4);
	}
	close(ready[1]);
	got = read(ready[0], &octet, 1);
	close(ready[0]);
	sleep_ms(5);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	next_port();
	if (got != 1)
		fail("the child did not get so far");
	return got == 1;
}

void victim_ready(void)
{
	if (write(STDOUT_FILENO, "x", 1) != 1)
		_exit(3);
}

uint32_t any(void)
{
	static uint32_t seed = 99;

	seed = seed * 1664525 + 1013904223;
	return seed >> 8;
}

uint32_t any_of(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

void fill_any(volatile void *at, size_t len)
{
	volatile uint8_t *octets = at;

	for (size_t i = 0; i < len; i++)
		octets[i] = (uint8_t)any();
}

#define MARK_SRC 0x22
#define MARK_DST 0x11

void regions_mark(const struct region *src, const struct region *dst)
{
	memset(src->buf, MARK_SRC, src->len);
	memset(dst->buf, MARK_DST, dst->len);
}

static void nothing_moved(const struct region *src, const struct region *dst)
{
	if (not_all(dst->buf, dst->len, MARK_DST) >= 0)
		fail("octets reached the peer");
	else if (not_all(src->buf, src->len, MARK_SRC) >= 0)
		fail("the local buffer was written");
}

void request_is_refused(struct pair *p, const struct region *src, const struct region *dst)
{
	struct ibv_wc wc;

	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(poll_wc(p->a.send_cq, &wc, SOON), "no completion of the bad request");
	check(wc.status != IBV_WC_SUCCESS, "the bad request completed with success");
	nothing_moved(src, dst);
}

void send_breaks_receiver(struct pair *p, const struct region *src, const struct region *dst)
{
	struct ibv_sge sge = sge_of(dst, 0, 4096);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, &sge, 1);

	try_send(&p->b, &wr);
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	nothing_moved(src, dst);
}

/* --- dma-bufs -------------------------------------------------------------------------------- */

bool dmabuf_make(struct dmabuf *b, size_t len)
{
	int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int file = memfd_create("behind", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	struct udmabuf_create create = { .memfd = file, .flags = UDMABUF_FLAGS_CLOEXEC, .size = len };

	b->fd = -1;
	b->len = len;
	if (maker < 0) {
		test_skip("no udmabuf: %s", strerror(errno));
		close(file);
		return false;
	}
	if (file < 0 || ftruncate(file, len) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)) {
		fail("a file in memory: %s", strerror(errno));
	} else {
		b->fd = ioctl(maker, UDMABUF_CREATE, &create);
		if (b->fd < 0)
			fail("a dma-buf: %s", strerror(errno));
		b->buf = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (b->buf == MAP_FAILED)
			fail("mmap: %s", strerror(errno));
	}
	close(file);
	close(maker);
	return !test_failed();
}

void dmabuf_free(struct dmabuf *b)
{
	if (b->fd >= 0)
		close(b->fd);
	munmap(b->buf, b->len);
}

int advise(struct ibv_pd *pd, uint32_t advice, uint32_t flags, const void *addr, uint32_t len,
	   uint32_t lkey)
{
	/* Longer than what fits into the attribute itself, in the kernel's layout. */
	struct {
		uint64_t addr;
		uint32_t length, lkey;
	} sge = { (uintptr_t)addr, len, lkey };
	struct ib_uverbs_attr attrs[] = {
		given(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd->handle, 0),
		given(UVERBS_ATTR_ADVISE_MR_ADVICE, advice, 8),
		given(UVERBS_ATTR_ADVISE_MR_FLAGS, flags, 4),
		given(UVERBS_ATTR_ADVISE_MR_SGE_LIST, (uintptr_t)&sge, sizeof(sge)),
	};

	return method(pd->context, UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, attrs,
		      ARRAY_SIZE(attrs));
}

int dmabuf_reg(struct ibv_mr **out, struct ibv_pd *pd, int fd, uint64_t offset, uint64_t len,
	       uint64_t iova, uint32_t access)
{
	uint32_t lkey = 0, rkey = 0;
	struct ib_uverbs_attr attrs[] = {
		given(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0, 0),
		given(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd->handle, 0),
		given(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset, 8),
		given(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, len, 8),
		given(UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova, 8),
		given(UVERBS_ATTR_REG_DMABUF_MR_FD, (uint32_t)fd, 4),
		given(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, access, 4),
		given(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, (uintptr_t)&lkey, 4),
		given(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, (uintptr_t)&rkey, 4),
	};
	int error = method(pd->context, UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, attrs,
			   ARRAY_SIZE(attrs));

	if (error)
		return error;
	/* The library frees it as its own object, whose public part comes first. */
	*out = calloc(1, 512);
	(*out)->context = pd->context;
	(*out)->pd = pd;
	(*out)->handle = attrs[0].data;
	(*out)->lkey = lkey;
	(*out)->rkey = rkey;
	return 0;
}

/* --- asynchronous events ---------------------------------------------------------------------- */

static struct {
	enum ibv_event_type type;
	const void *element;
} seen[256];
static size_t num_seen;

static void async_collect(struct ibv_context *ctx, int ms)
{
	while (readable(ctx->async_fd, ms)) {
		/* A port is a number, shorter than the pointer that is kept. */
		struct ibv_async_event ev = { 0 };

		if (ibv_get_async_event(ctx, &ev))
			return;
		if (num_seen < ARRAY_SIZE(seen)) {
			seen[num_seen].type = ev.event_type;
			seen[num_seen].element = ev.element.qp;
			num_seen++;
		}
		ibv_ack_async_event(&ev);
		ms = 0;
	}
}

bool async_seen(struct ibv_context *ctx, enum ibv_event_type type, const void *element, int ms)
{
	int64_t end = now_ms() + ms;

	for (;;) {
		int64_t left = end - now_ms();

		async_collect(ctx, 0);
		for (size_t i = 0; i < num_seen; i++)
			if (seen[i].type == type && seen[i].element == element)
				return true;
		if (left <= 0)
			return false;
		async_collect(ctx, (int)left);
	}
}

size_t async_count(struct ibv_context *ctx, enum ibv_event_type type, const void *element)
{
	size_t n = 0;

	async_collect(ctx, 0);
	for (size_t i = 0; i < num_seen; i++)
		n += seen[i].type == type && seen[i].element == element;
	return n;
}

bool async_qp_error(struct ibv_context *ctx, const struct ibv_qp *qp, int ms)
{
	int64_t end = now_ms() + ms;

	for (;;) {
		int64_t left = end - now_ms();

		async_collect(ctx, 0);
		for (size_t i = 0; i < num_seen; i++)
			if (seen[i].element == qp && (seen[i].type == IBV_EVENT_QP_FATAL ||
						      seen[i].type == IBV_EVENT_QP_REQ_ERR ||
						      seen[i].type == IBV_EVENT_QP_ACCESS_ERR))
				return true;
		if (left <= 0)
			return false;
		async_collect(ctx, (int)left);
	}
}

void async_forget(struct ibv_context *ctx)
{
	async_collect(ctx, 0);
	num_seen = 0;
}

const char *async_list(struct ibv_context *ctx)
{
	static char text[512];
	size_t n = 0;

	async_collect(ctx, 0);
	text[0] = 0;
	for (size_t i = 0; i < num_seen && n < sizeof(text); i++)
		n += snprintf(text + n, sizeof(text) - n, "%s%s", i ? ", " : "",
			      ibv_event_type_str(seen[i].type));
	return text[0] ? text : "none";
}

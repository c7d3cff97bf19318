// SPDX-License-Identifier: GPL-2.0
/*
 * A verbs program with a text interface: reads commands from standard input and reports results
 * and events on standard output. tests/hostile drives it.
 *
 * Each command is one line; its answer is one line that starts with `= ` (or `- ` with a reason).
 * Events are lines that start with `! `.
 *
 *	set KEY VALUE			for new connections: recvs, recv_len, ird, ord,
 *					pd (0 or 1), auto (0 nothing, 1 accept, 2 reject)
 *	data HEX|-			private data for the next accepts, rejects and connects
 *	listen PORT			= ok
 *	connect ADDR PORT		= C
 *	prepare C			makes the queue pair of a request before its accept
 *	accept C / reject C
 *	mr LEN ACCESS PD		= M ADDR KEY; guard zones lie around the memory. ACCESS is a sum of
 *					IBV_ACCESS_*; 31 allows writes, reads,
 *					atomic operations and windows
 *	dereg M
 *	away M				takes the pages of a region that is paged on demand
 *					(ACCESS 64 and whole pages): who needs them waits, until
 *	back M
 *	mw TYPE PD			= W KEY
 *	unmw W
 *	bind C W M OFF LEN ACCESS	= the window's new KEY
 *	inv C KEY			a local invalidation
 *	fill M BYTE
 *	poke M OFF HEX / peek M OFF LEN
 *	odd M BYTE			= the offset of the first octet that is not BYTE, or -1
 *	recv C N			post N more receives of recv_len
 *	poll C				reports the completions so far, before the answer
 *	send C LEN FLAGS		flags: - or letters: s solicited, f fence, u unsignalled
 *	recvodd C ID			= the offset of the first octet of this receive's buffer that
 *					was ever written to, or -1
 *	sendinv C LEN KEY FLAGS
 *	sendimm C LEN VALUE FLAGS	a Send with Immediate
 *	overwrite M|-|off		writes all the time to the region, or to the buffer of Sends
 *	count M P			a thread on processor P adds 1 to the first 64 bits of the region all the time,
 *					atomically; = ok
 *	count off			= how often they did
 *	badsend C			a Send with a key that does not exist
 *	write C M OFF LEN ADDR KEY FLAGS
 *	read C M OFF LEN ADDR KEY FLAGS
 *	imm C M OFF LEN ADDR KEY FLAGS VALUE	a Write with Immediate Data
 *	add C M OFF LEN ADDR KEY FLAGS VALUE	FetchAdd; LEN octets at OFF get the original value
 *	swap C M OFF LEN ADDR KEY FLAGS SWAP COMPARE
 *	exchange C M OFF LEN ADDR KEY FLAGS VALUE	a Swap that compares nothing
 *	badadd C			a FetchAdd with a local key that does not exist
 *	state C				= the number of the QP's state
 *	draining C			= 1 in SQD until the send queue has drained, else 0
 *	guards				= ok, if no octet around any memory has changed
 *	clear C M			destroys all but connections below C, regions below M
 *	disconnect C
 *	quit
 *
 * A command that posts a request is answered by its ID.
 *
 * Events: request C HEX IRD ORD, established C, disconnected C, rejected C STATUS HEX,
 * unreachable C STATUS, error C STATUS, wc C KIND ID STATUS LEN HEX (what was received),
 * event C NAME. KIND is send, recv, recv+VALUE for a Send with Immediate, or imm for Immediate
 * Data, whose value is HEX then.
 */

#include "common.h"

#include "../../../utils/riwarp.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>

#define MAX_CONNS 512
#define MAX_MRS 64
#define SEND_LEN (4 << 20)
#define SPARE_RECV_SLOTS 4
/* Octets on either side of a writable region, and their contents. */
#define GUARD_LEN 4096
#define RECV_GUARD_LEN 64
#define GUARD_OCTET 0xa5

struct conn {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *recv_mr;
	uint8_t *recv_buf; /* so many times guard and buffer, and a last guard */
	size_t recv_len;
	int recv_slots;
	int recv_next;
};

struct memory {
	struct ibv_mr *mr;
	uint8_t *all; /* with the guards */
	size_t all_len;
	int faults; /* the descriptor that holds back its pages */
};

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static struct ibv_context *ctx;
static struct ibv_comp_channel *completions;
static struct ibv_pd *pds[2];
static struct memory mrs[MAX_MRS];
static size_t num_mrs;
static struct conn conns[MAX_CONNS];
static size_t num_conns;
static uint8_t *send_buf;
static struct ibv_mr *send_mrs[2];
static uint8_t private_data[255];
static size_t private_len;

static struct {
	int recvs, recv_len, ird, ord, pd, automatic;
} set = { .recvs = 4, .recv_len = 4096, .ird = 4, .ord = 4, .automatic = 1 };

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static const char *hex(const void *data, size_t len)
{
	static char text[2 * 4096 + 1];
	const uint8_t *p = data;

	if (len > 4096)
		len = 4096;
	for (size_t i = 0; i < len; i++)
		sprintf(text + 2 * i, "%02x", p[i]);
	text[2 * len] = 0;
	return len ? text : "-";
}

static size_t unhex(const char *text, uint8_t *out, size_t max)
{
	size_t n = 0;
	unsigned int x;

	while (n < max && sscanf(text + 2 * n, "%2x", &x) == 1)
		out[n++] = x;
	return n;
}

static bool context_ready(struct ibv_context *verbs)
{
	if (ctx)
		return true;
	ctx = verbs;
	completions = ibv_create_comp_channel(ctx);
	if (!completions)
		return false;
	send_buf = aligned_alloc(4096, SEND_LEN);
	pattern_fill(send_buf, SEND_LEN, 1);
	for (int i = 0; i < 2; i++) {
		pds[i] = ibv_alloc_pd(ctx);
		send_mrs[i] = pds[i] ? ibv_reg_mr(pds[i], send_buf, SEND_LEN,
						  IBV_ACCESS_LOCAL_WRITE) :
				       NULL;
		if (!send_mrs[i])
			return false;
	}
	return true;
}

/* --- connections ------------------------------------------------------------------------------ */

static struct conn *conn_at(long i)
{
	return i >= 0 && (size_t)i < num_conns && conns[i].id ? &conns[i] : NULL;
}

static long conn_of(const struct rdma_cm_id *id)
{
	for (size_t i = 0; i < num_conns; i++)
		if (conns[i].id == id)
			return (long)i;
	return -1;
}

static long conn_add(struct rdma_cm_id *id)
{
	size_t i = 0;

	while (i < num_conns && conns[i].id)
		i++;
	if (i == MAX_CONNS)
		return -1;
	if (i == num_conns)
		num_conns++;
	conns[i].id = id;
	return (long)i;
}

static size_t recv_stride(const struct conn *c)
{
	return RECV_GUARD_LEN + c->recv_len;
}

static uint8_t *recv_slot(const struct conn *c, uint64_t slot)
{
	return c->recv_buf + slot * recv_stride(c) + RECV_GUARD_LEN;
}

static int post_recvs(struct conn *c, int n)
{
	int rc = 0;

	while (n-- > 0 && !rc) {
		int slot = c->recv_next++ % c->recv_slots;
		struct ibv_sge sge = {
			.addr = (uintptr_t)recv_slot(c, slot),
			.length = (uint32_t)c->recv_len,
			.lkey = c->recv_mr->lkey,
		};
		struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

		rc = ibv_post_recv(c->id->qp, &wr, &bad);
	}
	return rc;
}

static bool conn_qp(struct conn *c)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 32,
			 .max_recv_wr = 64,
			 .max_send_sge = 5,
			 .max_recv_sge = 1 },
	};
	size_t len;

	c->cq = ibv_create_cq(ctx, 128, NULL, completions, 0);
	attr.send_cq = attr.recv_cq = c->cq;
	if (!c->cq || ibv_req_notify_cq(c->cq, 0) || rdma_create_qp(c->id, pds[set.pd], &attr))
		return false;
	c->recv_len = (size_t)set.recv_len;
	c->recv_slots = set.recvs + SPARE_RECV_SLOTS;
	len = (size_t)c->recv_slots * recv_stride(c) + RECV_GUARD_LEN;
	c->recv_buf = malloc(len);
	memset(c->recv_buf, GUARD_OCTET, len);
	c->recv_mr = ibv_reg_mr(pds[set.pd], c->recv_buf, len, IBV_ACCESS_LOCAL_WRITE);
	return c->recv_mr && !post_recvs(c, set.recvs);
}

static struct rdma_conn_param conn_param(void)
{
	return (struct rdma_conn_param){
		.private_data = private_data,
		.private_data_len = (uint8_t)private_len,
		.initiator_depth = set.ord,
		.responder_resources = set.ird,
	};
}

static int do_accept(struct conn *c)
{
	struct rdma_conn_param param = conn_param();

	if (!c->id->qp && !conn_qp(c))
		return errno ? errno : EIO;
	return rdma_accept(c->id, &param) ? errno : 0;
}

static int do_reject(struct conn *c)
{
	return rdma_reject(c->id, private_data, (uint8_t)private_len) ? errno : 0;
}

static void conn_destroy(struct conn *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	rdma_destroy_id(c->id);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->recv_mr)
		ibv_dereg_mr(c->recv_mr);
	free(c->recv_buf);
	memset(c, 0, sizeof(*c));
}

/* --- memory ------------------------------------------------------------------------------------ */

static bool memory_make(struct memory *m, size_t len, int access, struct ibv_pd *pd)
{
	m->all_len = (len + 2 * GUARD_LEN + 4095) & ~4095UL;
	m->all = aligned_alloc(4096, m->all_len);
	if (!m->all)
		return false;
	memset(m->all, GUARD_OCTET, m->all_len);
	memset(m->all + GUARD_LEN, 0, len);
	m->mr = ibv_reg_mr(pd, m->all + GUARD_LEN, len, access);
	return m->mr;
}

static void memory_free(struct memory *m)
{
	if (m->mr)
		ibv_dereg_mr(m->mr);
	free(m->all);
	memset(m, 0, sizeof(*m));
}

static struct ibv_mr *mr_at(long i)
{
	return i >= 0 && (size_t)i < num_mrs ? mrs[i].mr : NULL;
}

static bool is_guard(const uint8_t *from, const uint8_t *to)
{
	return not_all(from, (size_t)(to - from), GUARD_OCTET) < 0;
}

static bool guards_stand(void)
{
	bool stand = true;

	for (size_t i = 0; i < num_mrs; i++) {
		const struct memory *m = &mrs[i];

		if (m->mr)
			stand &= is_guard(m->all, m->all + GUARD_LEN) &&
				 is_guard((uint8_t *)m->mr->addr + m->mr->length,
					  m->all + m->all_len);
	}
	for (size_t i = 0; i < num_conns; i++) {
		const struct conn *c = &conns[i];

		for (int slot = 0; c->recv_buf && slot <= c->recv_slots; slot++) {
			const uint8_t *end = recv_slot(c, (uint64_t)slot);

			stand &= is_guard(end - RECV_GUARD_LEN, end);
		}
	}
	return stand;
}

static void clear(size_t first_conn, size_t first_mr)
{
	while (num_conns > first_conn)
		if (conns[--num_conns].id)
			conn_destroy(&conns[num_conns]);
	while (num_mrs > first_mr)
		memory_free(&mrs[--num_mrs]);
}

/* --- what happens by itself ------------------------------------------------------------------- */

static void on_cm_event(void)
{
	struct rdma_cm_event *ev;
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	uint8_t data[256];
	enum rdma_cm_event_type type;
	int status, rc;
	long c;

	if (rdma_get_cm_event(events, &ev))
		return;
	type = ev->event;
	status = ev->status;
	id = ev->id;
	param = ev->param.conn;
	memcpy(data, param.private_data, param.private_data ? param.private_data_len : 0);
	rdma_ack_cm_event(ev);
	c = conn_of(id);
	switch (type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		c = conn_add(id);
		if (c < 0 || !context_ready(id->verbs)) {
			say("! full");
			break;
		}
		say("! request %ld %s %u %u", c, hex(data, param.private_data_len),
		    param.responder_resources, param.initiator_depth);
		if (set.automatic == 1 && (rc = do_accept(&conns[c])))
			say("! error %ld %d", c, rc);
		if (set.automatic == 2 && (rc = do_reject(&conns[c])))
			say("! error %ld %d", c, rc);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		say("! established %ld %s", c, hex(data, param.private_data_len));
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		say("! disconnected %ld", c);
		break;
	case RDMA_CM_EVENT_REJECTED:
		say("! rejected %ld %d %s", c, status, hex(data, param.private_data_len));
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		say("! unreachable %ld %d", c, status);
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		say("! error %ld %d", c, status);
		break;
	default:
		say("! cm %ld %s", c, rdma_event_str(type));
	}
}

static void on_async_event(void)
{
	struct ibv_async_event ev;
	long c = -1;

	if (ibv_get_async_event(ctx, &ev))
		return;
	for (size_t i = 0; i < num_conns; i++)
		if (conns[i].id && (ev.element.qp == conns[i].id->qp ||
				    (void *)ev.element.cq == conns[i].cq))
			c = (long)i;
	ibv_ack_async_event(&ev);
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL: say("! event %ld QP_FATAL", c); break;
	case IBV_EVENT_QP_REQ_ERR: say("! event %ld QP_REQ_ERR", c); break;
	case IBV_EVENT_QP_ACCESS_ERR: say("! event %ld QP_ACCESS_ERR", c); break;
	default: say("! event %ld other %s", c, ibv_event_type_str(ev.event_type));
	}
}

static void tell_completions(size_t i)
{
	struct conn *c = &conns[i];
	struct ibv_wc wc;

	while (ibv_poll_cq(c->cq, 1, &wc) > 0) {
		bool imm = wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
		bool recv = wc.status == IBV_WC_SUCCESS ? wc.opcode == IBV_WC_RECV :
							  wc.wr_id < 1000;
		uint32_t value = wc.imm_data;
		char with[16] = "recv";

		if (recv && wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_IMM)
			snprintf(with, sizeof(with), "recv+%08x", ntohl(value));
		say("! wc %zu %s %llu %s %u %s", i, imm ? "imm" : recv ? with : "send",
		    (unsigned long long)wc.wr_id,
		    wc.status == IBV_WC_SUCCESS	     ? "success" :
		    wc.status == IBV_WC_WR_FLUSH_ERR ? "flushed" :
		    wc.status == IBV_WC_LOC_LEN_ERR  ? "loc_len" :
		    wc.status == IBV_WC_LOC_PROT_ERR ? "loc_prot" :
		    wc.status == IBV_WC_REM_ACCESS_ERR ? "rem_access" :
		    wc.status == IBV_WC_REM_INV_REQ_ERR ? "rem_inv_req" :
		    wc.status == IBV_WC_REM_OP_ERR ? "rem_op" :
		    wc.status == IBV_WC_MW_BIND_ERR ? "mw_bind" :
		    wc.status == IBV_WC_LOC_QP_OP_ERR ? "loc_qp_op" :
							  "other",
		    wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0,
		    imm && wc.wc_flags & IBV_WC_WITH_IMM ? hex((uint8_t *)&value, 4) :
		    recv && wc.status == IBV_WC_SUCCESS ?
			    hex(recv_slot(c, wc.wr_id), wc.byte_len) :
			    "-");
	}
}

static void on_completions(void)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(completions, &cq, &context))
		return;
	ibv_ack_cq_events(cq, 1);
	ibv_req_notify_cq(cq, 0);
	for (size_t i = 0; i < num_conns; i++)
		if (conns[i].id && conns[i].cq == cq)
			tell_completions(i);
}

/* --- commands --------------------------------------------------------------------------------- */

static int flags_of(const char *letters)
{
	int flags = strchr(letters, 'u') ? 0 : IBV_SEND_SIGNALED;

	if (strchr(letters, 's'))
		flags |= IBV_SEND_SOLICITED;
	if (strchr(letters, 'f'))
		flags |= IBV_SEND_FENCE;
	return flags;
}

static uint64_t next_id = 1000;

static int post(struct conn *c, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int rc;

	wr->wr_id = next_id++;
	rc = ibv_post_send(c->id->qp, wr, &bad);
	return rc < 0 ? -rc : rc;
}

static int do_listen(int port)
{
	struct sockaddr_storage addr;

	addr_with_port(&addr, port);
	if (rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (void *)&addr) || rdma_listen(listener, 128))
		return errno;
	return context_ready(listener->verbs) ? 0 : EIO;
}

static long do_connect(const char *host, int port)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = ch ? cm_resolved_id_to(ch, host, port) : NULL;
	struct rdma_conn_param param = conn_param();
	long c;

	if (!id || !context_ready(id->verbs) || (c = conn_add(id)) < 0 || !conn_qp(&conns[c]) ||
	    rdma_migrate_id(id, events) || rdma_connect(id, &param))
		return -1;
	rdma_destroy_event_channel(ch);
	return c;
}

static void result(int rc)
{
	if (rc)
		say("- %s", strerror(rc));
	else
		say("= ok");
}

/* --- memory that changes all the time --------------------------------------------------------- */

/* Short enough to fit a few FPDUs, so that each octet changes often. */
#define OVERWRITE_LEN 8192

static struct {
	pthread_t thread;
	uint8_t *at;
	bool on;
} overwriter;

static void *overwrite(void *unused)
{
	(void)unused;
	for (uint8_t value = 0; __atomic_load_n(&overwriter.on, __ATOMIC_RELAXED); value++)
		memset(overwriter.at, value, OVERWRITE_LEN);
	return NULL;
}

static void overwrite_stop(void)
{
	if (!overwriter.on)
		return;
	__atomic_store_n(&overwriter.on, false, __ATOMIC_RELAXED);
	pthread_join(overwriter.thread, NULL);
}

static int overwrite_start(struct ibv_mr *mr)
{
	int rc;

	if (mr->length < OVERWRITE_LEN)
		return EINVAL;
	overwriter.at = mr->addr;
	overwriter.on = true;
	rc = pthread_create(&overwriter.thread, NULL, overwrite, NULL);
	overwriter.on = !rc;
	return rc;
}

/* --- memory that is counted up all the time --------------------------------------------------- */

static struct {
	pthread_t thread;
	uint64_t *at;
	bool on;
	uint64_t total;
} counter;

#ifdef __x86_64__
/*
 * Executes an instruction in the word's page. QEMU searches its translations of a page before each
 * store to it, but not before a load, so much can happen between the two. Otherwise a processor
 * hardly ever loses the word to another one so soon, and a load and a store instead of an atomic
 * operation go undetected.
 */
static bool slow_down(bool on)
{
	void *page = (void *)((uintptr_t)counter.at & ~4095UL);
	union {
		uint64_t *at;
		void (*call)(void);
	} code = { .at = counter.at + 8 };

	if (mprotect(page, 4096, PROT_READ | PROT_WRITE | (on ? PROT_EXEC : 0)))
		return false;
	if (on) {
		*(volatile uint8_t *)code.at = 0xc3; /* ret */
		code.call();
	}
	return true;
}
#else
static bool slow_down(bool on)
{
	(void)on;
	return true;
}
#endif

static void *count_up(void *unused)
{
	uint64_t done = 0;

	(void)unused;
	for (; __atomic_load_n(&counter.on, __ATOMIC_RELAXED); done++)
		__atomic_fetch_add(counter.at, 1, __ATOMIC_SEQ_CST);
	counter.total = done;
	return NULL;
}

static void count_stop(void)
{
	if (!counter.on)
		return;
	__atomic_store_n(&counter.on, false, __ATOMIC_RELAXED);
	pthread_join(counter.thread, NULL);
	slow_down(false);
}

static int count_start(struct ibv_mr *mr, int processor)
{
	pthread_attr_t attr;
	cpu_set_t one;
	int rc;

	CPU_ZERO(&one);
	CPU_SET((size_t)processor, &one);
	counter.at = mr->addr;
	if (!slow_down(true))
		return errno;
	counter.on = true;
	pthread_attr_init(&attr);
	pthread_attr_setaffinity_np(&attr, sizeof(one), &one);
	rc = pthread_create(&counter.thread, &attr, count_up, NULL);
	pthread_attr_destroy(&attr);
	if (rc)
		counter.on = false;
	return rc;
}

/* --- the rest of the commands ----------------------------------------------------------------- */

/* Answers a command that posted a request by post(). */
static void posted(int rc)
{
	if (rc)
		say("- %s", strerror(rc));
	else
		say("= %llu", (unsigned long long)next_id - 1);
}

static int is_draining(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	return qp && !ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) ? attr.sq_draining : -1;
}

#define MAX_MWS 16
static struct ibv_mw *mws[MAX_MWS];

static long mw_make(int type, int pd)
{
	for (long i = 0; i < MAX_MWS; i++) {
		if (mws[i])
			continue;
		mws[i] = ibv_alloc_mw(pds[pd ? 1 : 0], type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		return mws[i] ? i : -1;
	}
	errno = ENOMEM;
	return -1;
}

static int mw_bind(struct conn *c, struct ibv_mw *mw, struct ibv_mr *mr, size_t off, size_t len,
		   int access, uint32_t *key)
{
	struct ibv_mw_bind_info info = { .mr = mr,
					 .addr = (uintptr_t)mr->addr + off,
					 .length = len,
					 .mw_access_flags = (unsigned int)access };
	struct ibv_mw_bind bind = { .wr_id = next_id++,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = info };
	struct ibv_send_wr wr = wr_make(IBV_WR_BIND_MW, 0, IBV_SEND_SIGNALED, NULL, 0);
	int rc;

	if (mw->type == IBV_MW_TYPE_1) {
		rc = ibv_bind_mw(c->id->qp, mw, &bind);
	} else {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = info;
		rc = post(c, &wr);
		if (!rc)
			mw->rkey = wr.bind_mw.rkey;
	}
	*key = mw->rkey;
	return rc;
}

static bool command(char *line)
{
	char word[32] = "", text[1100] = "", flags[16] = "-", more[16] = "-";
	unsigned long long a = 0, b = 0, d = 0, e = 0;
	unsigned int key;
	long i = 0, m = 0;
	struct conn *c;

	sscanf(line, "%31s", word);
	line += strlen(word);
	if (!strcmp(word, "quit"))
		return false;
	if (!strcmp(word, "set")) {
		sscanf(line, "%31s %ld", text, &i);
		if (!strcmp(text, "recvs"))
			set.recvs = (int)i;
		else if (!strcmp(text, "recv_len"))
			set.recv_len = (int)i;
		else if (!strcmp(text, "ird"))
			set.ird = (int)i;
		else if (!strcmp(text, "ord"))
			set.ord = (int)i;
		else if (!strcmp(text, "pd"))
			set.pd = i ? 1 : 0;
		else if (!strcmp(text, "auto"))
			set.automatic = (int)i;
		else
			return say("- no such setting"), true;
		say("= ok");
	} else if (!strcmp(word, "data")) {
		sscanf(line, "%1099s", text);
		private_len = text[0] == '-' ? 0 : unhex(text, private_data, sizeof(private_data));
		say("= %zu", private_len);
	} else if (!strcmp(word, "overwrite")) {
		struct ibv_mr *mr = NULL;

		overwrite_stop();
		sscanf(line, "%1099s", text);
		if (!strcmp(text, "-"))
			mr = send_mrs[0];
		else if (strcmp(text, "off"))
			mr = mr_at(atol(text));
		result(mr ? overwrite_start(mr) : strcmp(text, "off") ? ENOENT : 0);
	} else if (!strcmp(word, "count")) {
		struct ibv_mr *mr;

		count_stop();
		sscanf(line, "%1099s %ld", text, &i);
		if (!strcmp(text, "off"))
			return say("= %llu", (unsigned long long)counter.total), true;
		mr = mr_at(atol(text));
		result(mr ? count_start(mr, (int)i) : ENOENT);
	} else if (!strcmp(word, "guards")) {
		say(guards_stand() ? "= ok" : "- a guard zone was written to");
	} else if (!strcmp(word, "clear")) {
		sscanf(line, "%llu %llu", &a, &b);
		overwrite_stop();
		count_stop();
		clear(a, b);
		say("= ok");
	} else if (!strcmp(word, "listen")) {
		result(do_listen(atoi(line)));
	} else if (!strcmp(word, "connect")) {
		sscanf(line, "%1099s %ld", text, &i);
		i = do_connect(text, (int)i);
		if (i < 0)
			say("- %s", strerror(errno));
		else
			say("= %ld", i);
	} else if (!strcmp(word, "mr")) {
		struct ibv_mr *mr;

		sscanf(line, "%llu %lld %ld", &a, (long long *)&b, &m);
		if (num_mrs == MAX_MRS ||
		    !memory_make(&mrs[num_mrs], a, (int)b, pds[m ? 1 : 0]))
			return say("- %s", strerror(errno)), true;
		mr = mrs[num_mrs].mr;
		say("= %zu %llu %u", num_mrs, (unsigned long long)(uintptr_t)mr->addr, mr->rkey);
		num_mrs++;
	} else if (!strcmp(word, "mw")) {
		sscanf(line, "%llu %ld", &a, &m);
		i = mw_make((int)a, (int)m);
		if (i < 0)
			say("- %s", strerror(errno));
		else
			say("= %ld %u", i, mws[i]->rkey);
	} else if (!strcmp(word, "unmw")) {
		sscanf(line, "%ld", &i);
		if (i < 0 || i >= MAX_MWS || !mws[i])
			return say("- no such window"), true;
		result(ibv_dealloc_mw(mws[i]));
		mws[i] = NULL;
	} else if (!strcmp(word, "away") || !strcmp(word, "back")) {
		struct ibv_mr *mr;

		sscanf(line, "%ld", &m);
		mr = mr_at(m);
		if (!mr)
			return say("- no such region"), true;
		if (!strcmp(word, "back")) {
			say(faults_end(mrs[m].faults, mr->addr, mr->length) ? "= ok" : "- no");
		} else {
			madvise(mr->addr, mr->length, MADV_DONTNEED);
			mrs[m].faults = faults_wait(mr->addr, mr->length);
			say(mrs[m].faults < 0 ? "- no" : "= ok");
		}
	} else if (!strcmp(word, "dereg") || !strcmp(word, "fill") || !strcmp(word, "poke") ||
		   !strcmp(word, "peek") || !strcmp(word, "odd")) {
		struct ibv_mr *mr;

		sscanf(line, "%ld", &m);
		mr = mr_at(m);
		if (!mr)
			return say("- no such region"), true;
		if (!strcmp(word, "dereg")) {
			int rc = ibv_dereg_mr(mr);

			result(rc);
			if (!rc)
				mrs[m].mr = NULL;
		} else if (!strcmp(word, "fill")) {
			sscanf(line, "%*d %lld", (long long *)&a);
			memset(mr->addr, (int)a, mr->length);
			say("= ok");
		} else if (!strcmp(word, "odd")) {
			sscanf(line, "%*d %lld", (long long *)&a);
			say("= %zd", not_all(mr->addr, mr->length, (uint8_t)a));
		} else if (!strcmp(word, "poke")) {
			sscanf(line, "%*d %llu %1099s", &a, text);
			if (a < mr->length)
				unhex(text, (uint8_t *)mr->addr + a, mr->length - a);
			say("= ok");
		} else {
			sscanf(line, "%*d %llu %llu", &a, &b);
			say("= %s", a + b <= mr->length ?
					    hex((uint8_t *)mr->addr + a, b) :
					    "out of range");
		}
	} else {
		sscanf(line, "%ld", &i);
		c = conn_at(i);
		if (!c)
			return say("- no such connection or command"), true;
		if (!strcmp(word, "prepare")) {
			result(conn_qp(c) ? 0 : errno);
		} else if (!strcmp(word, "accept")) {
			result(do_accept(c));
		} else if (!strcmp(word, "reject")) {
			result(do_reject(c));
		} else if (!strcmp(word, "recv")) {
			sscanf(line, "%*d %ld", &m);
			result(post_recvs(c, (int)m));
		} else if (!strcmp(word, "recvodd")) {
			sscanf(line, "%*d %llu", &a);
			say("= %zd", a < (unsigned long long)c->recv_slots ?
					     not_all(recv_slot(c, a), c->recv_len, GUARD_OCTET) :
					     0);
		} else if (!strcmp(word, "poll")) {
			if (c->cq)
				tell_completions((size_t)i);
			say("= ok");
		} else if (!strcmp(word, "send") || !strcmp(word, "sendinv") ||
			   !strcmp(word, "sendimm") || !strcmp(word, "badsend")) {
			struct ibv_sge sge = { .addr = (uintptr_t)send_buf,
					       .lkey = send_mrs[c->id->qp->pd == pds[1]]->lkey };
			struct ibv_send_wr wr;

			sscanf(line, "%*d %llu %15s %15s", &a, flags, more);
			sge.length = (uint32_t)a;
			wr = wr_make(IBV_WR_SEND, 0, flags_of(flags), &sge, a ? 1 : 0);
			if (word[0] == 'b') {
				sge.length = 16;
				sge.lkey ^= 0x5a5a00;
				wr.num_sge = 1;
			}
			if (!strcmp(word, "sendimm")) {
				wr.opcode = IBV_WR_SEND_WITH_IMM;
				wr.send_flags = flags_of(more);
				wr.imm_data = htonl((uint32_t)strtoul(flags, NULL, 0));
			}
			if (!strcmp(word, "sendinv")) {
				wr.opcode = IBV_WR_SEND_WITH_INV;
				wr.send_flags = flags_of(more);
				wr.invalidate_rkey = (uint32_t)strtoul(flags, NULL, 0);
				/* libsiw takes the key from there. */
				wr.wr.rdma.rkey = wr.invalidate_rkey;
			}
			posted(post(c, &wr));
		} else if (!strcmp(word, "bind")) {
			struct ibv_mr *mr;
			int rc;

			sscanf(line, "%*d %llu %ld %llu %llu %llu", &a, &m, &d, &e, &b);
			mr = mr_at(m);
			if (!mr || a >= MAX_MWS || !mws[a])
				return say("- no such region or window"), true;
			rc = mw_bind(c, mws[a], mr, d, e, (int)b, &key);
			if (rc)
				result(rc);
			else
				say("= %u", key);
		} else if (!strcmp(word, "inv")) {
			struct ibv_send_wr wr = wr_make(IBV_WR_LOCAL_INV, 0, IBV_SEND_SIGNALED, NULL, 0);

			sscanf(line, "%*d %u", &wr.invalidate_rkey);
			posted(post(c, &wr));
		} else if (!strcmp(word, "badadd")) {
			struct ibv_sge sge = { .addr = (uintptr_t)send_buf,
					       .length = 8,
					       .lkey = send_mrs[0]->lkey ^ 0x5a5a00 };
			struct ibv_send_wr wr = wr_make(IBV_WR_ATOMIC_FETCH_AND_ADD, 0,
							IBV_SEND_SIGNALED, &sge, 1);

			posted(post(c, &wr));
		} else if (!strcmp(word, "write") || !strcmp(word, "read") || !strcmp(word, "imm") ||
			   !strcmp(word, "add") || !strcmp(word, "swap") ||
			   !strcmp(word, "exchange")) {
			unsigned long long first = 0, second = 0;
			struct ibv_sge list[5], *sge = list;
			struct ibv_send_wr wr;
			struct ibv_mr *mr;

			sscanf(line, "%*d %ld %llu %llu %llu %u %15s %llu %llu", &m, &d, &e, &b, &key,
			       flags, &first, &second);
			mr = mr_at(m);
			if (!mr)
				return say("- no such region"), true;
			*sge = (struct ibv_sge){ .addr = (uintptr_t)mr->addr + d,
						 .length = (uint32_t)e,
						 .lkey = mr->lkey };
			wr = wr_rdma(word[0] == 'w' ? IBV_WR_RDMA_WRITE :
				     word[0] == 'i' ? IBV_WR_RDMA_WRITE_WITH_IMM :
						      IBV_WR_RDMA_READ,
				     0, flags_of(flags), sge, 1, b, key);
			wr.imm_data = htonl((uint32_t)first);
			if (word[0] == 'a' || word[0] == 's') {
				wr.opcode = word[0] == 'a' ? IBV_WR_ATOMIC_FETCH_AND_ADD :
							     IBV_WR_ATOMIC_CMP_AND_SWP;
				wr.wr.atomic.remote_addr = b;
				wr.wr.atomic.rkey = key;
				wr.wr.atomic.compare_add = word[0] == 'a' ? first : second;
				wr.wr.atomic.swap = word[0] == 'a' ? 0 : first;
			}
			if (word[0] == 'e')
				riwarp_swap(&wr, list, b, key, first);
			posted(post(c, &wr));
		} else if (!strcmp(word, "state")) {
			say("= %d", c->id->qp ? (int)qp_state(c->id->qp) : -1);
		} else if (!strcmp(word, "draining")) {
			say("= %d", is_draining(c->id->qp));
		} else if (!strcmp(word, "disconnect")) {
			result(rdma_disconnect(c->id) ? errno : 0);
		} else {
			say("- no such command");
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	static char input[65536];
	size_t have = 0;

	test_begin(argc, argv);
	events = rdma_create_event_channel();
	if (!events) {
		say("- no event channel: %s", strerror(errno));
		return 1;
	}
	say("= ready");
	for (;;) {
		struct pollfd fds[4] = {
			{ .fd = 0, .events = POLLIN },
			{ .fd = events->fd, .events = POLLIN },
			{ .fd = ctx ? ctx->async_fd : -1, .events = POLLIN },
			{ .fd = completions ? completions->fd : -1, .events = POLLIN },
		};
		char *end;
		ssize_t n;

		poll(fds, 4, -1);
		if (fds[1].revents)
			on_cm_event();
		if (fds[2].revents)
			on_async_event();
		if (fds[3].revents)
			on_completions();
		if (!fds[0].revents)
			continue;
		n = read(0, input + have, sizeof(input) - 1 - have);
		if (n <= 0)
			return 0;
		have += (size_t)n;
		input[have] = 0;
		while ((end = strchr(input, '\n'))) {
			*end = 0;
			if (!command(input))
				return 0;
			have -= (size_t)(end + 1 - input);
			memmove(input, end + 1, have + 1);
		}
	}
}

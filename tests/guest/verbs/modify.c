// SPDX-License-Identifier: GPL-2.0
/* See modify.h. */

#include "modify.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY (64 * 1024)
/* The part of a side's memory with the octets that it sends, and the part that the peer writes. */
#define OUT 0
#define IN (16 * 1024)
#define WRITTEN (32 * 1024)
#define READ (48 * 1024)

static bool failed_with(const char *what)
{
	fail("%s: %s", what, strerror(errno));
	return false;
}

bool side_open(struct side *s, struct ibv_context *ctx, int gid_index)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = SIDE_DEPTH,
			.max_recv_wr = SIDE_DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	memset(s, 0, sizeof(*s));
	s->ctx = ctx;
	s->gid_index = gid_index;
	s->psn = rand() & 0xffffff;
	/* Half a second on the stock kernel. */
	s->timeout = slow > 1 ? 16 : 14;
	s->retry_cnt = 7;
	s->min_rnr_timer = 12;
	s->rnr_retry = 7;
	if (ibv_query_gid(ctx, 1, gid_index, &s->gid))
		return failed_with("ibv_query_gid");
	s->pd = ibv_alloc_pd(ctx);
	if (!s->pd)
		return failed_with("ibv_alloc_pd");
	s->cq = ibv_create_cq(ctx, 4 * SIDE_DEPTH, NULL, NULL, 0);
	if (!s->cq)
		return failed_with("ibv_create_cq");
	init.send_cq = s->cq;
	init.recv_cq = s->cq;
	s->qp = ibv_create_qp(s->pd, &init);
	if (!s->qp)
		return failed_with("ibv_create_qp");
	return region_make(&s->memory, s->pd, MEMORY, ALL_RIGHTS) && side_init(s);
}

void side_close(struct side *s)
{
	if (s->qp)
		ibv_destroy_qp(s->qp);
	if (s->memory.mr)
		region_free(&s->memory);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	memset(s, 0, sizeof(*s));
}

int rtr_attr(const struct side *s, const struct side *peer, struct ibv_qp_attr *attr)
{
	*attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = s->min_rnr_timer,
		.ah_attr = {
			.is_global = 1,
			.grh = {
				.dgid = peer->gid,
				.sgid_index = s->gid_index,
				.hop_limit = 64,
			},
			.port_num = 1,
		},
	};
	return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

int rts_attr(const struct side *s, struct ibv_qp_attr *attr)
{
	*attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = s->timeout,
		.retry_cnt = s->retry_cnt,
		.rnr_retry = s->rnr_retry,
		.sq_psn = s->psn,
		.max_rd_atomic = 4,
	};
	return IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	       IBV_QP_MAX_QP_RD_ATOMIC;
}

int try_modify(struct side *s, struct ibv_qp_attr *attr, int mask)
{
	int rc = ibv_modify_qp(s->qp, attr, mask);

	return rc < 0 ? -rc : rc;
}

static bool must_modify(struct side *s, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int rc = try_modify(s, attr, mask);

	if (rc)
		fail("to %s: %s", what, strerror(rc));
	return !rc;
}

bool side_to(struct side *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int rc = try_modify(s, &attr, IBV_QP_STATE);

	if (rc)
		fail("to state %d: %s", state, strerror(rc));
	return !rc;
}

bool side_init(struct side *s)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	return must_modify(s, &attr,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
			   "INIT");
}

bool side_rtr(struct side *s, const struct side *peer)
{
	struct ibv_qp_attr attr;
	int mask = rtr_attr(s, peer, &attr);

	return must_modify(s, &attr, mask, "RTR");
}

bool side_rts(struct side *s)
{
	struct ibv_qp_attr attr;
	int mask = rts_attr(s, &attr);

	return must_modify(s, &attr, mask, "RTS");
}

bool sides_open(struct side *a, struct side *b, struct ibv_context *ctx, int gid_index)
{
	memset(b, 0, sizeof(*b));
	return side_open(a, ctx, gid_index) && side_open(b, ctx, gid_index);
}

bool sides_join(struct side *a, struct side *b)
{
	return side_rtr(a, b) && side_rtr(b, a) && side_rts(a) && side_rts(b);
}

static bool side_reset(struct side *s, uint32_t step)
{
	struct ibv_wc wc;

	if (!side_to(s, IBV_QPS_RESET))
		return false;
	if (qp_state(s->qp) != IBV_QPS_RESET) {
		fail("state %d", qp_state(s->qp));
		return false;
	}
	while (poll_wc(s->cq, &wc, QUIET))
		;
	s->psn = (s->psn + step) & 0xffffff;
	return true;
}

bool sides_reset(struct side *a, struct side *b)
{
	return side_reset(a, 1) && side_reset(b, 7) && side_init(a) && side_init(b);
}

void sides_close(struct side *a, struct side *b)
{
	side_close(a);
	side_close(b);
}

bool side_post(struct side *s, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(s->qp, wr, &bad))
		return failed_with("ibv_post_send");
	return true;
}

bool side_send(struct side *s, uint64_t id, size_t len)
{
	struct ibv_sge sge = sge_of(&s->memory, OUT, len);
	struct ibv_send_wr wr = wr_make(IBV_WR_SEND, id, IBV_SEND_SIGNALED, &sge, 1);

	pattern_fill(s->memory.buf + OUT, len, s->psn);
	return side_post(s, &wr);
}

bool side_rdma(struct side *s, enum ibv_wr_opcode op, uint64_t id, size_t here,
	       const struct side *peer, size_t there, size_t len)
{
	struct ibv_sge sge = sge_of(&s->memory, here, len);
	struct ibv_send_wr wr = wr_rdma(op, id, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)peer->memory.buf + there, peer->memory.mr->rkey);

	return side_post(s, &wr);
}

bool side_recv(struct side *s, uint64_t id, size_t len)
{
	struct ibv_sge sge = sge_of(&s->memory, IN, len);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(s->memory.buf + IN, 0, len);
	if (ibv_post_recv(s->qp, &wr, &bad))
		return failed_with("ibv_post_recv");
	return true;
}

static bool send_one(struct side *from, struct side *to, size_t len)
{
	struct ibv_wc wc;
	ssize_t at;

	if (!side_recv(to, 1, len) || !side_send(from, 2, len) ||
	    !expect_wc(from->cq, &wc, 2, IBV_WC_SUCCESS) ||
	    !expect_wc(to->cq, &wc, 1, IBV_WC_SUCCESS))
		return false;
	at = pattern_differs(to->memory.buf + IN, len, from->psn);
	if (at >= 0)
		fail("octet %zd of a Send is wrong", at);
	return at < 0;
}

static bool reach_over(struct side *from, struct side *to, enum ibv_wr_opcode op)
{
	bool writes = op == IBV_WR_RDMA_WRITE;
	size_t here = writes ? OUT : READ, there = writes ? WRITTEN : OUT, len = 5000;
	struct ibv_wc wc;
	ssize_t at;

	pattern_fill((writes ? from : to)->memory.buf + OUT, len, 99);
	if (!side_rdma(from, op, 3, here, to, there, len) ||
	    !expect_wc(from->cq, &wc, 3, IBV_WC_SUCCESS))
		return false;
	/* Written octets are placed when a later Send completes. */
	if (writes && !send_one(from, to, 1))
		return false;
	at = pattern_differs((writes ? to : from)->memory.buf + (writes ? WRITTEN : READ), len, 99);
	if (at >= 0)
		fail("octet %zd of a %s is wrong", at, writes ? "Write" : "Read");
	return at < 0;
}

bool traffic(struct side *a, struct side *b)
{
	return send_one(a, b, 1000) && send_one(b, a, 9000) &&
	       reach_over(a, b, IBV_WR_RDMA_WRITE) && reach_over(b, a, IBV_WR_RDMA_READ);
}

bool somebody_listens(int port)
{
	static const char *const tables[] = { "/proc/net/tcp", "/proc/net/tcp6" };
	char line[512];
	bool found = false;

	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		FILE *file = fopen(tables[i], "r");
		unsigned int local, state;

		while (file && fgets(line, sizeof(line), file))
			if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &local, &state) == 2)
				found |= (int)local == port && state == 10;
		if (file)
			fclose(file);
	}
	return found;
}

static void device_path(char path[PATH_MAX], struct ibv_context *ctx, const char *name)
{
	snprintf(path, PATH_MAX, "/sys/class/infiniband/%s/%s", ibv_get_device_name(ctx->device),
		 name);
}

long device_value(struct ibv_context *ctx, const char *name)
{
	char path[PATH_MAX];

	device_path(path, ctx, name);
	return file_value(path);
}

/* Returns the time in milliseconds of the kernel's last tick. */
static int64_t tick_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

long device_counter(struct ibv_context *ctx, const char *name)
{
	int64_t begun = tick_ms();
	char path[100];

	/*
	 * ib_core returns a cached value if it was read within the last 10 ms. It counts jiffies,
	 * which come late on a busy machine, and are some ahead of this clock.
	 */
	while (tick_ms() - begun < 50)
		sleep_ms(10);
	snprintf(path, sizeof(path), "ports/1/hw_counters/%s", name);
	return device_value(ctx, path);
}

bool device_takes(struct ibv_context *ctx, const char *name, const char *text)
{
	char path[PATH_MAX];
	int fd, error;
	bool done;

	device_path(path, ctx, name);
	fd = open(path, O_WRONLY);
	done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	error = errno;
	close(fd);
	errno = error;
	return done;
}

bool needs_net_admin(struct ibv_context *ctx, const char *name, const char *text)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { 0 };
	pid_t pid = fork();
	int ended;

	if (!pid) {
		syscall(SYS_capset, &header, caps);
		_exit(device_takes(ctx, name, text) ? 1 : errno == EPERM ? 0 : 2);
	}
	return pid > 0 && waitpid(pid, &ended, 0) == pid && !ended;
}

bool set_device_value(struct ibv_context *ctx, const char *name, long value)
{
	char path[PATH_MAX], text[24];

	device_path(path, ctx, name);
	snprintf(text, sizeof(text), "%ld", value);
	return file_write(path, text);
}

void with_pair_set(const char *name, long value, void (*body)(struct pair *p))
{
	struct ibv_context *context = test_context();
	struct pair_opts opts = { 0 };
	long old;

	if (!context)
		return;
	old = device_value(context, name);
	if (set_device_value(context, name, value))
		with_pair(&opts, body);
	set_device_value(context, name, old);
}

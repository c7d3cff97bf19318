// SPDX-License-Identifier: GPL-2.0
/*
 * The output of `rdma -dd resource show` for the objects of this process, and access to their
 * queues.
 */

#include "common.h"

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct region mail;

/*
 * Returns whether one of this process's objects of that kind, chosen by `filter`, is shown with
 * these words.
 */
static bool shown(const char *kind, const char *filter, const char *words)
{
	char command[200], text[10000];
	size_t len = 0;
	FILE *list;

	snprintf(command, sizeof(command),
		 "rdma -dd resource show %s pid %d %s | tr -s '\\n\\t ' ' '", kind, getpid(), filter);
	list = popen(command, "r");
	if (list) {
		len = fread(text, 1, sizeof(text) - 1, list);
		pclose(list);
	}
	text[len] = 0;
	printf("%s\n", text);
	return strstr(text, words) != NULL;
}

/* Returns the same of a queue pair. */
static bool qp_shown(struct ibv_qp *qp, const char *words)
{
	char filter[40];

	snprintf(filter, sizeof(filter), "lqpn %u", qp->qp_num);
	return shown("qp", filter, words);
}

PAIR_CASE(queue_pair, .depth = 5)
{
	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < 3; i++)
		must(post_recv(&p->b, i, &mail, 0, 64));
	check(qp_shown(p->b.qp, " drv_phase rts drv_sq_posted 0 drv_sq_pending 0 "), "not running");
	check(qp_shown(p->b.qp, " drv_reads 0 drv_ord 5 drv_inbound_reads 0 drv_ird 5 "), "other depths");
	/* libsiw keeps no count. */
	check(qp_shown(p->b.qp, " drv_rq_posted 3 ") == has_extensions(), "receives");
	check(!rdma_disconnect(p->a.id), "disconnecting: %s", strerror(errno));
	must(cm_expect(p->b.events, RDMA_CM_EVENT_DISCONNECTED));
	must(qp_reaches(p->b.qp, IBV_QPS_ERR, SOON));
	check(qp_shown(p->b.qp, " drv_phase error "), "not in error");
}

PAIR_CASE(completion_queue)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	check(!shown("cq", "", " drv_waiting 1 "), "a completion");
	must(post_recv(&p->b, 1, &mail, 0, 64));
	wr = wr_make(IBV_WR_SEND, 2, IBV_SEND_SIGNALED, &sge, 0);
	must(post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 1, IBV_WC_SUCCESS));
	check(shown("cq", "", " drv_overrun 0 "), "nothing");
	if (!has_extensions())
		return;
	check(shown("cq", "", " drv_waiting 1 drv_armed no "), "no completion");
	check(!ibv_req_notify_cq(p->a.send_cq, 1), "arming: %s", strerror(errno));
	check(shown("cq", "", " drv_waiting 1 drv_armed solicited "), "not armed");
	check(!ibv_req_notify_cq(p->a.send_cq, 0), "arming: %s", strerror(errno));
	check(shown("cq", "", " drv_waiting 1 drv_armed next "), "not armed");
}

PAIR_CASE(memory_region)
{
	must(region_make(&mail, p->b.pd, 5 * 4096, ALL_RIGHTS));
	check(shown("mr", "mrlen 20480", " drv_kind user drv_valid 1 drv_access 0x7 drv_windows 0 "), "none");
}

PAIR_CASE(shared_receive_queue, .srq = srq_make)
{
	must(region_make(&mail, p->b.pd, 4096, IBV_ACCESS_LOCAL_WRITE));
	must(post_recv(&p->b, 1, &mail, 0, 64));
	check(shown("srq", "", has_extensions() ? " drv_waiting 1 drv_limit 0 " : " drv_limit 0 "), "none");
}

/* Returns how many of these queues this context of the device can map. */
static int mappable(struct ibv_context *context, const struct mapping *queues, size_t count)
{
	int mapped = 0;

	for (size_t i = 0; i < count; i++) {
		void *at = mmap(NULL, queues[i].len, PROT_READ | PROT_WRITE, MAP_SHARED,
				context->cmd_fd, queues[i].offset);

		if (at == MAP_FAILED)
			continue;
		mapped++;
		munmap(at, queues[i].len);
	}
	return mapped;
}

/* Returns the same for a context that another process opens. */
static int mappable_elsewhere(struct ibv_device *device, const struct mapping *queues, size_t count)
{
	pid_t child = fork();
	int status;

	if (!child) {
		struct ibv_context *context = ibv_open_device(device);

		_exit(context ? mappable(context, queues, count) : 255);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ?
		       WEXITSTATUS(status) :
		       -1;
}

/* Only the context that made a queue can map it (RFC 5040, section 8.1.1). */
PAIR_CASE(queues_cannot_be_mapped_by_other_contexts, .srq = srq_make)
{
	struct ibv_context *context = p->b.id->verbs, *second;
	struct mapping queues[16];
	size_t count = device_mappings(queues, ARRAY_SIZE(queues));
	int own, others;

	check(count >= 5, "only %zu queues are mapped", count);
	own = mappable(context, queues, count);
	check(own == (int)count, "%d of %zu queues can be mapped by their owner", own, count);
	others = mappable_elsewhere(context->device, queues, count);
	check(!others, "%d queues can be mapped by another process", others);
	second = ibv_open_device(context->device);
	check(second, "ibv_open_device: %s", strerror(errno));
	others = mappable(second, queues, count);
	ibv_close_device(second);
	check(!others, "%d queues can be mapped by another context", others);
}

/*
 * --- memory accounting --------------------------------------------------------------------------
 */

#define CGROUPS "/tmp/cgroups"

#define CHARGED CGROUPS "/charged"

#define DEFER_MAX "/proc/sys/net/core/skb_defer_max"

/* Returns the octets that the cgroup of this process is charged with. */
static long charged(void) { return file_value(CHARGED "/memory.current"); }

/* Returns the octets that this process shares with the device. */
static long shared(void)
{
	struct mapping found[64];
	size_t count = device_mappings(found, ARRAY_SIZE(found));
	long octets = 0;

	for (size_t i = 0; i < count && i < ARRAY_SIZE(found); i++)
		octets += found[i].len;
	return octets;
}

/* Waits until the charge is nearer to `low` than to `high`. */
static void charge_falls(long high, long low)
{
	for (int64_t end = now_ms() + SOON; charged() > (low + high) / 2; sleep_ms(10))
		check(now_ms() < end, "%ld octets are still charged, expected %ld instead of %ld",
		      charged(), low, high);
}

static void charges(void)
{
	struct ibv_context *context = test_context();
	long before = charged(), shared_before = shared(), now;
	/* Each processor charges 64 pages ahead, which may be part of `before`. */
	long ahead = 64 * sysconf(_SC_NPROCESSORS_ONLN) * PAGE;
	struct ibv_device_attr attr;
	struct ibv_cq *cq;

	must(context);
	check(before >= 0, "not charged at all");
	check(!ibv_query_device(context, &attr), "ibv_query_device: %s", strerror(errno));
	cq = ibv_create_cq(context, attr.max_cqe, NULL, NULL, 0);
	check(cq, "ibv_create_cq: %s", strerror(errno));
	now = charged();
	if (shared() - shared_before < 32 * attr.max_cqe)
		fail("%d completions in %ld octets", attr.max_cqe, shared() - shared_before);
	else if (now - before + ahead < shared() - shared_before)
		fail("%ld octets are shared, %ld charged", shared() - shared_before, now - before);
	ibv_destroy_cq(cq);
	charge_falls(now, before);
}

/* A queue that becomes smaller gives its memory back, not only when it is destroyed. */
static void smaller_charges(void)
{
	struct ibv_context *context = test_context();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr init = { .attr = { .max_sge = 1 } };
	struct ibv_srq_attr few = { .max_wr = 63 };
	struct ibv_device_attr attr;
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	long before;

	must(pd);
	check(!ibv_query_device(context, &attr), "ibv_query_device: %s", strerror(errno));
	cq = ibv_create_cq(context, attr.max_cqe, NULL, NULL, 0);
	check(cq, "ibv_create_cq: %s", strerror(errno));
	before = charged();
	check(!ibv_resize_cq(cq, 63), "ibv_resize_cq: %s", strerror(errno));
	charge_falls(before, before - 32L * attr.max_cqe);
	init.attr.max_wr = attr.max_srq_wr;
	srq = ibv_create_srq(pd, &init);
	check(srq, "ibv_create_srq: %s", strerror(errno));
	before = charged();
	check(!ibv_modify_srq(srq, &few, IBV_SRQ_MAX_WR), "ibv_modify_srq: %s", strerror(errno));
	charge_falls(before, before - 32L * attr.max_srq_wr);
	ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

static bool cgroups_know_memory(void)
{
	FILE *file = fopen(CGROUPS "/cgroup.controllers", "r");
	char line[200] = "";
	bool known = file && fgets(line, sizeof(line), file) && strstr(line, "memory");

	if (file)
		fclose(file);
	return known;
}

/* Runs a case in a cgroup of its own. */
static void in_cgroup(void (*body)(void))
{
	char pid[20];

	snprintf(pid, sizeof(pid), "%d", getpid());
	mkdir(CGROUPS, 0700);
	check(!mount("none", CGROUPS, "cgroup2", 0, NULL), "mount: %s", strerror(errno));
	if (!cgroups_know_memory()) {
		umount(CGROUPS);
		return test_skip("the kernel does not charge cgroups with memory");
	}
	if (file_write(CGROUPS "/cgroup.subtree_control", "+memory") && !mkdir(CHARGED, 0700) &&
	    file_write(CHARGED "/cgroup.procs", pid))
		body();
	else
		fail("a cgroup: %s", strerror(errno));
	if (!file_write(CGROUPS "/cgroup.procs", pid) || rmdir(CHARGED) || umount(CGROUPS))
		fail("the cgroup stays: %s", strerror(errno));
}

/* The process that makes a queue is charged for its memory. */
static void queues_are_charged(void) { in_cgroup(charges); }

static void shrunk_queues_are_uncharged(void)
{
	if (!has_extensions())
		return test_skip("the library resizes no queues");
	in_cgroup(smaller_charges);
}

/* Returns the number behind a word in a file of the kernel, or -1. */
static long number_behind(const char *path, const char *word)
{
	FILE *file = fopen(path, "r");
	char line[300], *found;
	long number = -1;

	while (file && number < 0 && fgets(line, sizeof(line), file)) {
		found = strstr(line, word);
		if (found)
			number = strtol(found + strlen(word), NULL, 10);
	}
	if (file)
		fclose(file);
	return number;
}

/* Memory used by this cgroup and the machine, in octets. */
struct spent {
	long charged; /* the cgroup, for all */
	long kernel; /* ... for what the kernel keeps for it */
	long sockets; /* ... for what sockets keep */
	long tcp; /* the machine, for what TCP keeps */
	long used; /* ... for all */
};

static struct spent spent(void)
{
	struct spent now = {
		.charged = charged(),
		.kernel = number_behind(CHARGED "/memory.stat", "kernel "),
		.sockets = number_behind(CHARGED "/memory.stat", "sock "),
		.tcp = number_behind("/proc/net/sockstat", " mem ") * sysconf(_SC_PAGESIZE),
		.used = -1024 * number_behind("/proc/meminfo", "MemFree:"),
	};

	return now;
}

static struct spent since(const struct spent *before)
{
	struct spent now = spent();

	now.charged -= before->charged;
	now.kernel -= before->kernel;
	now.sockets -= before->sockets;
	now.tcp -= before->tcp;
	now.used -= before->used;
	return now;
}

static void tell(const char *when, struct spent spent, int streams)
{
	printf("%s, a stream: %ld charged, of that %ld by the kernel and %ld in sockets; TCP has %ld, %ld are used\n",
	       when, spent.charged / streams, spent.kernel / streams, spent.sockets / streams,
	       spent.tcp / streams, spent.used / streams);
}

#define PAIRS 4
#define BURST (256 * 1024)

/* The unit in which a stream allocates memory to send from. */
#define CHUNK (32 * 1024)

/*
 * Connections that carry much which the peer does not take, and then idle. The process is charged
 * for both ends, also for the accepted one, which sends.
 */
static void streams_charge(void)
{
	/* TCP accounts in steps of 1 MiB for each processor, and the machine is not idle. */
	const long slack = 4 << 20;
	static struct region from[PAIRS], to[PAIRS];
	struct pair pairs[PAIRS] = {};
	struct spent before, begin, busy, idle;
	int fds[PAIRS], open = 0, tapped = 0;
	struct ibv_wc wc;

	before = spent();
	for (; open < PAIRS && pair_open(&pairs[open], NULL); open++)
		if (!region_make(&from[open], pairs[open].b.pd, BURST, ALL_RIGHTS) ||
		    !region_make(&to[open], pairs[open].a.pd, BURST, ALL_RIGHTS | IBV_ACCESS_ON_DEMAND))
			break;
	for (int i = 0; i < open && !test_failed(); i++)
		pattern_fill(from[i].buf, BURST, i);
	tell("connected", since(&before), 2 * PAIRS);
	begin = spent();
	/* Of each connection the first octet is not read, and TCP fills up behind it. */
	for (; tapped < open && !test_failed(); tapped++) {
		struct pair *p = &pairs[tapped];
		struct ibv_sge sge = sge_of(&from[tapped], 0, BURST);
		struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED, &sge, 1,
						(uintptr_t)to[tapped].buf, to[tapped].mr->rkey);

		fds[tapped] = faults_wait(to[tapped].buf, BURST);
		if (fds[tapped] < 0)
			break;
		for (int n = 0; n < 32 && post_send(&p->b, &wr); n++)
			;
	}
	/* Sends until TCP takes no more. */
	for (long last = -1, now; !test_failed() && (now = since(&begin).tcp) != last; last = now)
		sleep_ms(500);
	busy = since(&begin);
	tell("busy", busy, 2 * PAIRS);
	for (int64_t end = now_ms() + SOON; now_ms() < end; sleep_ms(100)) {
		busy = since(&begin);
		if (busy.sockets + slack >= busy.tcp && busy.charged + slack >= busy.used &&
		    busy.kernel >= busy.tcp / 2)
			break;
	}
	if (busy.tcp < 2 * slack)
		fail("TCP keeps no more than %ld octets", busy.tcp);
	if (busy.sockets + slack < busy.tcp)
		fail("TCP keeps %ld octets, %ld are charged", busy.tcp, busy.sockets);
	/* The sent octets lie in pages of the sender. */
	if (busy.kernel < busy.tcp / 2)
		fail("TCP keeps %ld octets, the pages of %ld are charged", busy.tcp, busy.kernel);
	if (busy.charged + slack < busy.used)
		fail("%ld octets are used, %ld are charged", busy.used, busy.charged);

	for (int i = 0; i < tapped; i++)
		faults_end(fds[i], to[i].buf, BURST);
	for (int i = 0; i < tapped && !test_failed(); i++)
		for (int n = 0; n < 32; n++)
			if (!expect_wc(pairs[i].b.send_cq, &wc, 0, IBV_WC_SUCCESS))
				break;
	tell("after it", since(&begin), 2 * PAIRS);
	/*
	 * An idle stream keeps nothing to send from. A Write is complete when TCP has it, so the
	 * streams become idle only when TCP has sent what it has.
	 */
	idle = since(&begin);
	for (int64_t least = idle.kernel, end = now_ms() + SOON; !test_failed(); sleep_ms(50)) {
		idle = since(&begin);
		if (idle.kernel < CHUNK)
			break;
		if (idle.kernel < least) {
			least = idle.kernel;
			end = now_ms() + SOON;
		}
		if (now_ms() >= end)
			fail("%d idle streams keep %ld octets, TCP %ld", PAIRS, idle.kernel, idle.tcp);
	}
	tell("idle", idle, 2 * PAIRS);
	while (open--)
		pair_close(&pairs[open]);
}

static void streams_are_charged(void)
{
	char before[20];

	/*
	 * A processor that has read a packet leaves it to the processor that allocated it, which
	 * frees it when it next receives. Until then the sent data stays. With 0 each processor
	 * frees at once.
	 */
	snprintf(before, sizeof(before), "%ld", file_value(DEFER_MAX));
	must(file_write(DEFER_MAX, "0"));
	in_cgroup(streams_charge);
	file_write(DEFER_MAX, before);
}

/* Returns what the cgroup is charged with for the kernel's own memory. */
static long kernel_charged(void) { return number_behind(CHARGED "/memory.stat", "kernel "); }

/* Returns the same, once it is at least so much or SOON has passed: it may be seconds old. */
static long kernel_charged_at_least(long octets)
{
	long now = kernel_charged();

	for (int64_t end = now_ms() + SOON; now < octets && now_ms() < end; now = kernel_charged())
		sleep_ms(100);
	return now;
}

#define WINDOWS 4096

/* Windows have scattered numbers: almost each has a node of the device's table for itself. */
static void windows_charge(void)
{
	static struct ibv_mw *windows[WINDOWS];
	struct ibv_pd *pd = ibv_alloc_pd(test_context());
	long before, slab, now;
	int made = 0;

	must(pd);
	before = kernel_charged();
	slab = 1024 * number_behind("/proc/meminfo", "Slab:");
	for (; made < WINDOWS; made++) {
		windows[made] = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		if (!windows[made])
			break;
	}
	slab = 1024 * number_behind("/proc/meminfo", "Slab:") - slab;
	/* The RDMA core's part, about 160 octets of a window, is not charged. */
	now = kernel_charged_at_least(before + slab / 4 * 3) - before;
	if (!made && errno == EOPNOTSUPP)
		test_skip("the library has no windows");
	else if (made < WINDOWS)
		fail("window %d: %s", made, strerror(errno));
	else if (now < slab / 4 * 3)
		fail("%d windows take %ld octets, %ld are charged", WINDOWS, slab, now);
	while (made--)
		ibv_dealloc_mw(windows[made]);
	ibv_dealloc_pd(pd);
}

static void windows_are_charged(void) { in_cgroup(windows_charge); }

#define LISTENERS 64

/* A backlog of 0 is the longest: the kernel's rdma_ucm makes 1024 of it. */
static void listeners_charge(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *ids[LISTENERS];
	/* Each has to know 1024 connections that have not started up, by a pointer or more. */
	const long least = LISTENERS * 1024 * (long)sizeof(void *);
	long before, now;
	int made = 0;

	must(events);
	before = kernel_charged();
	while (made < LISTENERS && (ids[made] = cm_listening_id(events, next_port(), 0)))
		made++;
	now = kernel_charged_at_least(before + least) - before;
	if (made == LISTENERS && now < least)
		fail("%d listeners are charged with %ld octets", LISTENERS, now);
	while (made--)
		rdma_destroy_id(ids[made]);
	rdma_destroy_event_channel(events);
}

static void listeners_are_charged(void) { in_cgroup(listeners_charge); }

/*
 * Opens connections with such IRD and ORD; returns what the cgroup is charged with for them, at
 * least so much if that is ever so.
 */
static long pairs_charge(struct pair *pairs, int depth, long least)
{
	struct pair_opts opts = { .depth = depth };
	long before = kernel_charged();

	for (int i = 0; i < PAIRS && !test_failed(); i++)
		pair_open(&pairs[i], &opts);
	if (!least)
		/* For the figure to be of now. */
		sleep_ms(3000);
	return kernel_charged_at_least(before + least) - before;
}

/*
 * What is outstanding has a place each, at both ends; it takes 32 octets at least. The first
 * connections are not counted: they make what all share.
 */
static void depths_charge(void)
{
	struct pair first[PAIRS] = {}, few[PAIRS] = {}, many[PAIRS] = {};
	const long more = 2 * PAIRS * 2 * 127 * 32;
	long with_few, with_many;

	pairs_charge(first, 1, 0);
	with_few = pairs_charge(few, 1, 0);
	with_many = pairs_charge(many, 128, with_few + more);
	if (!test_failed() && with_many - with_few < more)
		fail("%d connections: %ld octets are charged with a depth of 1, %ld with 128", PAIRS,
		     with_few, with_many);
	for (int i = 0; i < PAIRS; i++) {
		pair_close(&many[i]);
		pair_close(&few[i]);
		pair_close(&first[i]);
	}
}

static void depths_are_charged(void) { in_cgroup(depths_charge); }

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(queue_pair);
	RUN(completion_queue);
	RUN(memory_region);
	RUN(shared_receive_queue);
	RUN(queues_cannot_be_mapped_by_other_contexts);
	RUN(queues_are_charged);
	RUN(shrunk_queues_are_uncharged);
	RUN(streams_are_charged);
	RUN(windows_are_charged);
	RUN(listeners_are_charged);
	RUN(depths_are_charged);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Rules that let requests fail on purpose, as docs/inject.md has them: what the program that
 * posted the request sees, what its peer sees, and that nobody else sees anything.
 */

#include "common.h"
#include "modify.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LEN 4096

static struct region local, remote;
static char file[128];
static bool rxe;

/* Returns whether the file takes the text; errno says why not. */
static bool takes(const char *text)
{
	int fd = open(file, O_WRONLY);
	bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	int error = errno;

	close(fd);
	errno = error;
	return done;
}

/* Writes rules in place of those there were. */
static bool rules(const char *format, ...)
{
	char text[1024] = "clear\n";
	va_list args;

	va_start(args, format);
	vsnprintf(text + 6, sizeof(text) - 6, format, args);
	va_end(args);
	return takes(text);
}

static const char *shown(void)
{
	static char text[4096];
	int fd = open(file, O_RDONLY);
	ssize_t len = read(fd, text, sizeof(text) - 1);

	close(fd);
	text[len > 0 ? len : 0] = 0;
	return text;
}

static bool prepare(struct pair *p)
{
	return region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) &&
	       region_make(&remote, p->b.pd, LEN, ALL_RIGHTS);
}

static bool post(struct pair *p, enum ibv_wr_opcode op, uint64_t id)
{
	struct ibv_sge sge = sge_of(&local, 0, 64);
	struct ibv_send_wr wr = wr_rdma(op, id, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)remote.buf,
					remote.mr->rkey);

	return post_send(&p->a, &wr);
}

/* Another pair of the same device works, with requests that no rule is about. */
static void others_work(struct pair *p)
{
	(void)p;
	world_is_well();
}

/* The second of three Writes ends with the status, the third is flushed. */
static void ends_second_write(struct pair *p, enum ibv_wc_status status, uint32_t vendor)
{
	struct ibv_wc wc;

	for (uint64_t id = 1; id <= 3; id++)
		must(post(p, IBV_WR_RDMA_WRITE, id));
	must(expect_wc(p->a.send_cq, &wc, 1, IBV_WC_SUCCESS));
	must(expect_wc(p->a.send_cq, &wc, 2, status));
	check(wc.vendor_err == vendor, "vendor_err is %#x", wc.vendor_err);
	must(expect_wc(p->a.send_cq, &wc, 3, IBV_WC_WR_FLUSH_ERR));
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
}

static const struct status {
	const char *name;
	enum ibv_wc_status number;
	bool siw;
	/* What the peer's flushed receive says, if the stream ends by a Terminate of this end. */
	uint32_t peer;
} statuses[] = {
	{ "LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR, true, 0x100ff },
	{ "LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR, true, 0x100ff },
	{ "LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR, true, 0x100ff },
	{ "MW_BIND_ERR", IBV_WC_MW_BIND_ERR, false, 0x100ff },
	{ "BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR, true, 0x100ff },
	{ "LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR, true, 0x100ff },
	{ "REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR, true, 0 },
	{ "REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR, true, 0 },
	{ "REM_OP_ERR", IBV_WC_REM_OP_ERR, false, 0 },
	{ "RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR, false, 0 },
	{ "RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR, false, 0 },
	{ "REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR, false, 0 },
	{ "GENERAL_ERR", IBV_WC_GENERAL_ERR, true, 0x100ff },
};

static const struct status *status;

static void each_status_of_pair(struct pair *p)
{
	uint32_t vendor = rxe && !status->peer ? 0x11201 : 0;
	long hits = device_counter(p->a.id->verbs, "injected");
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=status=%s vendor=%u", p->a.qp->qp_num, status->name, vendor));
	ends_second_write(p, status->number, vendor);
	/* The peer. */
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == status->peer, "%s: the peer's vendor_err is %#x", status->name,
		      wc.vendor_err);
	check(strstr(shown(), "hits=1"), "%s", shown());
	hits = device_counter(p->a.id->verbs, "injected") - hits;
	check(hits == 1, "the counter has grown by %ld", hits);
	others_work(p);
	must(rules(""));
}

static void each_status(void)
{
	struct pair_opts opts = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(statuses) && !test_failed(); i++) {
		status = &statuses[i];
		if (rxe || status->siw)
			with_pair(&opts, each_status_of_pair);
		else
			check(!rules("do=status=%s", status->name) && errno == EINVAL,
			      "%s for libsiw", status->name);
	}
}

PAIR_CASE(quiet_status_is_not_seen_by_the_peer, 0)
{
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=status=LOC_PROT_ERR quiet", p->a.qp->qp_num));
	ends_second_write(p, IBV_WC_LOC_PROT_ERR, 0);
	must(expect_no_wc(p->b.recv_cq, QUIET));
	check(qp_state(p->b.qp) == IBV_QPS_RTS, "the peer's queue pair is not RTS");
	/* Until the queue pair goes. */
	rdma_destroy_qp(p->a.id);
	p->a.qp = NULL;
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	must(rules(""));
}

/* The connections of this namespace that a reset has ended (EstabResets of RFC 4022). */
static long resets(void)
{
	FILE *snmp = fopen("/proc/net/snmp", "r");
	char line[1024];
	long number = -1;

	while (fgets(line, sizeof(line), snmp))
		sscanf(line, "Tcp: %*d %*d %*d %*d %*d %*d %*d %ld", &number);
	fclose(snmp);
	return number;
}

/* The stream ends before the second Write; nothing of it or the third is sent. */
static void ends_stream(struct pair *p, const char *action, uint32_t peer, bool by_reset)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	long before = resets();
	struct ibv_wc wc;

	must(prepare(p) && post_recv(&p->b, 9, &remote, 0, 64));
	must(rules("qp=%u nth=2 do=%s", p->a.qp->qp_num, action));
	ends_second_write(p, IBV_WC_WR_FLUSH_ERR, 0);
	must(expect_wc(p->b.recv_cq, &wc, 9, IBV_WC_WR_FLUSH_ERR));
	if (rxe)
		check(wc.vendor_err == peer, "the peer's vendor_err is %#x", wc.vendor_err);
	must(event = cm_event(p->b.events, SOON));
	type = event->event;
	rdma_ack_cm_event(event);
	check(type == RDMA_CM_EVENT_DISCONNECTED, "%s", rdma_event_str(type));
	check((resets() > before) == by_reset, "%ld connections were reset", resets() - before);
	others_work(p);
	must(rules(""));
}

PAIR_CASE(terminate_is_the_one_of_the_rule, 0) { ends_stream(p, "terminate=0x11203", 0x11203, false); }
PAIR_CASE(reset_is_one, 0) { ends_stream(p, "reset", 0, true); }
PAIR_CASE(fin_is_one, 0) { ends_stream(p, "fin", 0, false); }

PAIR_CASE(only_what_a_rule_is_about_counts, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("qp=%u op=read nth=3 do=status=REM_ACCESS_ERR\nqp=%u op=write do=reset",
		   p->a.qp->qp_num, p->b.qp->qp_num));
	for (uint64_t id = 1; id <= 5; id++) {
		must(post(p, id % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, id));
		must(expect_wc(p->a.send_cq, &wc, id, id == 5 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
	}
	check(strstr(shown(), "op=read nth=3 do=status=REM_ACCESS_ERR hits=1\n") &&
		      strstr(shown(), "op=write do=reset hits=0\n"),
	      "%s", shown());
	must(rules(""));
}

/* By port: every hundredth of this stream, twice as many on it as in it. */
PAIR_CASE(each_stream_counts_by_itself, 0)
{
	struct ibv_wc wc;

	must(prepare(p));
	must(rules("every=100 times=1 do=status=GENERAL_ERR"));
	for (uint64_t id = 1; id <= 100; id++) {
		must(post(p, IBV_WR_RDMA_WRITE, id));
		must(expect_wc(p->a.send_cq, &wc, id, id == 100 ? IBV_WC_GENERAL_ERR : IBV_WC_SUCCESS));
	}
	/* Of another stream fewer have been counted. */
	others_work(p);
	check(strstr(shown(), "hits=1\n"), "%s", shown());
	must(rules(""));
}

static void bad_rules_change_nothing(void)
{
	static const char *const bad[] = {
		"do=explode", "nth=0 do=reset", "qp=1", "qp=1 qp=2 do=fin", "nth=1 do=fin\nx do=fin",
		"do=status=WR_FLUSH_ERR",
	};
	char many[17 * 8 + 1] = "";

	must(rules("qp=1 do=reset\nport=4420 p=0.5 seed=7 do=fin"));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		check(!takes(bad[i]) && errno == EINVAL, "%s", bad[i]);
	for (int i = 0; i < 17; i++)
		strcat(many, "do=fin\n");
	check(!takes(many) && errno == ENOSPC, "17 rules: %s", strerror(errno));
	check(!strcmp(shown(), "qp=1 do=reset hits=0\nport=4420 p=0.5 seed=7 do=fin hits=0\n"), "%s",
	      shown());
	/* Lines are added. */
	must(takes("peer=::1 do=fin"));
	check(!strcmp(shown(), "qp=1 do=reset hits=0\nport=4420 p=0.5 seed=7 do=fin hits=0\n"
			       "peer=::1 do=fin hits=0\n"),
	      "%s", shown());
	must(rules(""));
	check(!strcmp(shown(), "\n"), "%s", shown());
}

/* The file's mode would permit it. */
static void without_capability_no_rules(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { 0 };
	pid_t pid = fork();
	int ended;

	if (!pid) {
		syscall(SYS_capset, &header, caps);
		_exit(takes("do=reset") ? 1 : errno == EPERM ? 0 : 2);
	}
	must(pid > 0 && waitpid(pid, &ended, 0) == pid);
	check(!ended, "ended with %#x", ended);
	check(!strcmp(shown(), "\n"), "%s", shown());
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	if (!test_context())
		return test_cannot_start();
	snprintf(file, sizeof(file), "/sys/class/infiniband/%s/inject",
		 ibv_get_device_name(test_context()->device));
	rxe = has_extensions();
	RUN(each_status);
	RUN(quiet_status_is_not_seen_by_the_peer);
	RUN(terminate_is_the_one_of_the_rule);
	RUN(reset_is_one);
	RUN(fin_is_one);
	RUN(only_what_a_rule_is_about_counts);
	RUN(each_stream_counts_by_itself);
	RUN(bad_rules_change_nothing);
	RUN(without_capability_no_rules);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * librpma over riwarp: ADDRESS PORT MEMORY, where MEMORY is a character device of device DAX. A
 * client, a process of its own, appends records to a log in the server's persistent memory, each by
 * a Write, a flush, an atomic write of how many there are, and another flush, and demands that the
 * library uses the device's own operations for that. The server compares what is there.
 */

#include <fcntl.h>
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (2UL << 20)
#define RECORDS 100
#define RECORD 4000
#define USAGE (RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT | \
	       RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY)

/* What a peer has to know of the server's memory. */
struct descriptors {
	uint8_t config[8], region[64];
	uint8_t config_len, region_len;
};

static void demand(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %s\n", what, result < 0 ? rpma_err_2str(result) : "no");
	exit(1);
}
#define DO(call) demand((call), #call)

static struct rpma_peer *peer_of(const char *addr, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;
	struct rpma_peer *peer;

	DO(rpma_utils_get_ibv_context(addr, type, &context));
	DO(rpma_peer_new(context, &peer));
	return peer;
}

static void expect(struct rpma_conn *conn, enum rpma_conn_event event)
{
	enum rpma_conn_event got;

	DO(rpma_conn_next_event(conn, &got));
	demand(got != event, rpma_utils_conn_event_2str(got));
}

static uint8_t octet(int record, size_t at) { return (uint8_t)(record * 7 + (int)(at % 251)); }

static void complete(struct rpma_conn *conn, enum ibv_wc_opcode opcode)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	int result;

	DO(rpma_conn_get_cq(conn, &cq));
	while ((result = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		DO(rpma_cq_wait(cq));
	demand(result, "rpma_cq_get_wc");
	demand(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	demand(wc.opcode != opcode, "the device's own operation is used");
}

static void flush(struct rpma_conn *conn, struct rpma_mr_remote *to, size_t at, size_t len)
{
	DO(rpma_flush(conn, to, at, len, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, NULL));
	complete(conn, IBV_WC_FLUSH);
}

static int client(const char *addr, const char *port)
{
	struct rpma_peer *peer = peer_of(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	static uint8_t record[RECORD] __attribute__((aligned(4096)));
	struct rpma_conn_private_data data;
	struct descriptors *theirs;
	struct rpma_mr_remote *log;
	struct rpma_mr_local *from;
	struct rpma_peer_cfg *config;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;

	DO(rpma_conn_req_new(peer, addr, port, NULL, &request));
	DO(rpma_conn_req_connect(&request, NULL, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);
	DO(rpma_conn_get_private_data(conn, &data));
	theirs = data.ptr;
	DO(rpma_peer_cfg_from_descriptor(theirs->config, theirs->config_len, &config));
	DO(rpma_conn_apply_remote_peer_cfg(conn, config));
	DO(rpma_mr_remote_from_descriptor(theirs->region, theirs->region_len, &log));
	DO(rpma_mr_reg(peer, record, RECORD, RPMA_MR_USAGE_WRITE_SRC, &from));
	for (uint64_t n = 1; n <= RECORDS; n++) {
		char word[8];

		for (size_t at = 0; at < RECORD; at++)
			record[at] = octet((int)n, at);
		DO(rpma_write(conn, log, n * RECORD, from, 0, RECORD, RPMA_F_COMPLETION_ON_ERROR, NULL));
		flush(conn, log, n * RECORD, RECORD);
		memcpy(word, &n, sizeof(word));
		DO(rpma_atomic_write(conn, log, 0, word, RPMA_F_COMPLETION_ON_ERROR, NULL));
		flush(conn, log, 0, sizeof(word));
	}
	DO(rpma_conn_disconnect(conn));
	expect(conn, RPMA_CONN_CLOSED);
	return 0;
}

int main(int argc, char **argv)
{
	int fd, status;
	uint8_t *log;
	struct descriptors ours = { 0 };
	struct rpma_conn_private_data data = { .ptr = &ours, .len = sizeof(ours) };
	struct rpma_conn_req *request;
	struct rpma_peer_cfg *config;
	struct rpma_mr_local *region;
	struct rpma_peer *peer;
	struct rpma_conn *conn;
	struct rpma_ep *ep;
	size_t len;
	pid_t pid;

	if (argc == 5)
		return client(argv[1], argv[2]);
	demand(argc != 4, "ADDRESS PORT MEMORY");
	fd = open(argv[3], O_RDWR);
	log = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	demand(fd < 0 || log == MAP_FAILED, "persistent memory");
	memset(log, 0, LEN);
	peer = peer_of(argv[1], RPMA_UTIL_IBV_CONTEXT_LOCAL);
	DO(rpma_mr_reg(peer, log, LEN, USAGE, &region));
	DO(rpma_mr_get_descriptor_size(region, &len));
	demand(len > sizeof(ours.region), "room for the descriptor");
	ours.region_len = (uint8_t)len;
	DO(rpma_mr_get_descriptor(region, ours.region));
	DO(rpma_peer_cfg_new(&config));
	DO(rpma_peer_cfg_set_direct_write_to_pmem(config, true));
	DO(rpma_peer_cfg_get_descriptor_size(config, &len));
	demand(len > sizeof(ours.config), "room for the configuration");
	ours.config_len = (uint8_t)len;
	DO(rpma_peer_cfg_get_descriptor(config, ours.config));
	DO(rpma_ep_listen(peer, argv[1], argv[2], &ep));
	fflush(NULL);
	pid = fork();
	if (!pid) {
		execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], "client", NULL);
		_exit(1);
	}
	DO(rpma_ep_next_conn_req(ep, NULL, &request));
	DO(rpma_conn_req_connect(&request, &data, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);
	expect(conn, RPMA_CONN_CLOSED);
	demand(waitpid(pid, &status, 0) != pid || status, "the client succeeds");
	demand(*(uint64_t *)log != RECORDS, "the number of records is there");
	for (int n = 1; n <= RECORDS; n++)
		for (size_t at = 0; at < RECORD; at++)
			demand(log[(size_t)n * RECORD + at] != octet(n, at), "the records are there");
	printf("%d records\n", RECORDS);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Unauthorised peers at the out-of-band port: none connects, none blocks the right peer, and they
 * leave no state.
 */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "modify.h"

/* docs/connections.md: the MPA Request of revision 2 with enhanced data, and the announcement. */
#define MPA_LEN 20
#define ENHANCED_LEN 4
#define ANNOUNCEMENT_LEN 24
#define ANNOUNCEMENT_AT (MPA_LEN + ENHANCED_LEN)
#define REQUEST_LEN (ANNOUNCEMENT_AT + ANNOUNCEMENT_LEN)

static struct ibv_context *ctx;
static int port;

static void put32(uint8_t *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, 4);
}

/* Makes the Request with which `from` calls `to`. */
static void make_request(uint8_t *frame, const struct side *from, const struct side *to)
{
	uint8_t *announcement = frame + ANNOUNCEMENT_AT;

	memset(frame, 0, REQUEST_LEN);
	memcpy(frame, "MPA ID Req Frame", 16);
	frame[16] = 0x50; /* CRC, enhanced data */
	frame[17] = 2;
	frame[19] = ENHANCED_LEN + ANNOUNCEMENT_LEN;
	frame[20] = 0x80; /* peer to peer */
	frame[22] = 0x80; /* ready to receive by a Write */
	frame[21] = frame[23] = 4; /* depths */
	memcpy(announcement, "riwP\1\x80", 6);
	put32(announcement + 8, from->qp->qp_num);
	put32(announcement + 12, to->qp->qp_num);
	put32(announcement + 16, from->psn);
	put32(announcement + 20, to->psn);
}

/* Connects to the port of the device; returns -1 (without failing) if refused. */
static int open_connection(const char *from)
{
	struct sockaddr_storage to;
	int fd = socket(test_addr.ss_family, SOCK_STREAM, 0);

	addr_with_port(&to, port);
	if (from) {
		struct sockaddr_in source = { .sin_family = AF_INET };

		inet_pton(AF_INET, from, &source.sin_addr);
		if (bind(fd, (struct sockaddr *)&source, sizeof(source))) {
			close(fd);
			return -1;
		}
	}
	if (connect(fd, (struct sockaddr *)&to, sizeof(struct sockaddr_in))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Returns what arrives within a time: octets, 0 for the end, -1 for nothing. */
static ssize_t answer(int fd, int ms)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	uint8_t octets[600];
	ssize_t len;

	if (poll(&wait, 1, ms) != 1)
		return -1;
	len = recv(fd, octets, sizeof(octets), 0);
	return len < 0 ? 0 : len;
}

/* Checks that the frame is not answered but ends the connection. */
static bool is_closed(const char *from, const uint8_t *frame, size_t len, const char *what)
{
	int fd = open_connection(from);
	ssize_t came;

	if (fd < 0) {
		fail("%s: cannot connect: %s", what, strerror(errno));
		return false;
	}
	if (len)
		send(fd, frame, len, MSG_NOSIGNAL);
	came = answer(fd, SOON);
	close(fd);
	if (came)
		fail("%s: %zd octets come back", what, came);
	return !came;
}

static long refusals(void)
{
	return device_counter(ctx, "oob_refusals");
}

/* Runs a body while a waits for b to call; b calls in the end, and must be served. */
#define WAITING_CASE(name)                                                                         \
	static void name##_body(struct side *a, struct side *b);                                   \
	static void name(void)                                                                     \
	{                                                                                          \
		struct side a, b;                                                                  \
                                                                                                   \
		if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b)) {                              \
			name##_body(&a, &b);                                                       \
			if (!test_failed() && qp_state(a.qp) != IBV_QPS_RTR)                       \
				fail("state %d of who waits", qp_state(a.qp));                     \
			if (!test_failed() && side_rtr(&b, &a) && side_rts(&b) && side_rts(&a))    \
				traffic(&a, &b);                                                   \
		}                                                                                  \
		sides_close(&a, &b);                                                               \
	}                                                                                          \
	static void name##_body(struct side *a, struct side *b)

/* If this case fails, the others prove nothing. */
static void right_request_is_answered(void)
{
	struct side a, b;
	uint8_t frame[REQUEST_LEN];
	int fd = -1;

	if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b)) {
		make_request(frame, &b, &a);
		fd = open_connection(NULL);
		send(fd, frame, sizeof(frame), MSG_NOSIGNAL);
		if (answer(fd, SOON) != REQUEST_LEN)
			fail("no Reply");
		/* A connection that is closed is forgotten. */
		close(fd);
		sleep_ms(50);
		if (qp_state(a.qp) != IBV_QPS_RTR)
			fail("state %d", qp_state(a.qp));
		if (side_rtr(&b, &a) && side_rts(&b) && side_rts(&a))
			traffic(&a, &b);
	}
	sides_close(&a, &b);
}

/*
 * Changes each octet of an announcement up to `end`, except those that may have any value: features
 * and reserved flags.
 */
static bool wrong_octets(const struct side *from, const struct side *to, int end)
{
	uint8_t right[REQUEST_LEN], frame[REQUEST_LEN];

	make_request(right, from, to);
	for (int i = 0; i < end; i++) {
		char what[20];

		if (i == 6 || i == 7)
			continue;
		memcpy(frame, right, sizeof(frame));
		/* The flag says that the PSN is present. */
		frame[ANNOUNCEMENT_AT + i] ^= i == 5 ? 0x80 : 1;
		snprintf(what, sizeof(what), "octet %d", i);
		if (!is_closed(NULL, frame, sizeof(frame), what))
			return false;
	}
	return true;
}

WAITING_CASE(request_with_any_wrong_octet_is_refused)
{
	/* The waiting end does not know the initial PSN yet: the last four octets. */
	int known = ANNOUNCEMENT_LEN - 4;
	long before = refusals();

	must(wrong_octets(b, a, known));
	check(refusals() - before == known - 2, "%ld refusals", refusals() - before);
}

static void request_with_any_wrong_octet_is_refused_by_connecting_end(void)
{
	struct side a, b;

	if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b) && side_rts(&a) &&
	    wrong_octets(&b, &a, ANNOUNCEMENT_LEN) && side_rtr(&b, &a) && side_rts(&b))
		traffic(&a, &b);
	sides_close(&a, &b);
}

WAITING_CASE(request_without_peer_to_peer_start_is_refused)
{
	uint8_t frame[REQUEST_LEN];

	make_request(frame, b, a);
	frame[20] = 0;
	must(is_closed(NULL, frame, sizeof(frame), "not peer to peer"));
	make_request(frame, b, a);
	frame[17] = 1;
	must(is_closed(NULL, frame, sizeof(frame), "revision 1"));
	make_request(frame, b, a);
	frame[15] ^= 1;
	must(is_closed(NULL, frame, sizeof(frame), "no MPA"));
}

WAITING_CASE(request_of_wrong_length_is_refused)
{
	uint8_t frame[REQUEST_LEN + 8] = { 0 };

	make_request(frame, b, a);
	frame[19] = ENHANCED_LEN + ANNOUNCEMENT_LEN - 1;
	must(is_closed(NULL, frame, REQUEST_LEN - 1, "an octet less"));
	frame[19] = ENHANCED_LEN + ANNOUNCEMENT_LEN + 1;
	must(is_closed(NULL, frame, REQUEST_LEN + 1, "an octet more"));
	frame[19] = ENHANCED_LEN;
	must(is_closed(NULL, frame, ANNOUNCEMENT_AT, "no announcement"));
	frame[19] = ENHANCED_LEN + ANNOUNCEMENT_LEN;
	must(is_closed(NULL, frame, REQUEST_LEN + 1, "an octet behind it"));
}

/* A valid frame from a wrong address: the connection is refused before an octet arrives. */
WAITING_CASE(request_from_wrong_address_is_refused)
{
	uint8_t frame[REQUEST_LEN];
	long before = refusals();

	make_request(frame, b, a);
	must(is_closed("127.0.0.1", frame, 0, "silent"));
	must(is_closed("127.0.0.1", frame, sizeof(frame), "all right but the address"));
	check(refusals() - before == 2, "%ld refusals", refusals() - before);
}

/* Half a frame waits for its other half, for a limited time, and blocks no other connection. */
WAITING_CASE(incomplete_request_times_out_and_blocks_no_other)
{
	uint8_t frame[REQUEST_LEN];
	int64_t begin = now_ms();
	int fd = open_connection(NULL);

	check(fd >= 0, "cannot connect: %s", strerror(errno));
	make_request(frame, b, a);
	send(fd, frame, REQUEST_LEN / 2, MSG_NOSIGNAL);
	check(answer(fd, SOON) == 0, "no end");
	close(fd);
	check(now_ms() - begin < 7000, "after %lld ms", (long long)(now_ms() - begin));
}

/*
 * A replayed frame: once its queue pairs have connected it connects nothing, neither now nor after
 * a reset.
 */
static void replayed_request_is_refused(void)
{
	struct side a, b;
	uint8_t frame[REQUEST_LEN];

	if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b) && side_rtr(&b, &a)) {
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
		struct side other;

		make_request(frame, &b, &a);
		if (side_rts(&a) && side_rts(&b) && traffic(&a, &b)) {
			/* Another QP waits, so that the port is listened on. */
			if (side_open(&other, ctx, 0) && side_rtr(&other, &b))
				is_closed(NULL, frame, sizeof(frame), "while it is up");
			side_close(&other);
			if (!test_failed() && traffic(&a, &b) &&
			    !try_modify(&a, &reset, IBV_QP_STATE) && side_init(&a)) {
				a.psn = (a.psn + 1) & 0xffffff;
				if (side_rtr(&a, &b) && side_rts(&a))
					is_closed(NULL, frame, sizeof(frame), "after a reset");
			}
		}
	}
	sides_close(&a, &b);
}

/* Silent connections use up places, but not all of them for long. */
static void silent_connections_block_no_request_for_long(void)
{
	enum { STRANGERS = 400 };
	static int fds[STRANGERS];
	struct sockaddr_storage to;
	struct side a, b;
	int64_t begin;

	addr_with_port(&to, port);
	if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b)) {
		for (int i = 0; i < STRANGERS; i++) {
			/* TCP decides which connections wait. */
			fds[i] = socket(test_addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
			connect(fds[i], (struct sockaddr *)&to, sizeof(struct sockaddr_in));
		}
		begin = now_ms();
		a.timeout = b.timeout = 0;
		if (side_rtr(&b, &a) && side_rts(&b)) {
			for (int64_t end = begin + 5000; somebody_listens(port); sleep_ms(10))
				if (now_ms() > end) {
					fail("still kept out after 5 s");
					break;
				}
			if (!test_failed() && side_rts(&a))
				traffic(&a, &b);
			printf("# in after %lld ms\n", (long long)(now_ms() - begin));
		}
		for (int i = 0; i < STRANGERS; i++)
			close(fds[i]);
	}
	sides_close(&a, &b);
}

static long limited(void)
{
	return device_counter(ctx, "oob_limited");
}

/*
 * Calls at once with many wrong PSNs, and then with the right one; returns whether that is
 * answered.
 */
static bool guess(const struct side *from, const struct side *to, bool *answered)
{
	enum { GUESSES = 16 };
	uint8_t frame[REQUEST_LEN];
	int fds[GUESSES + 1];
	ssize_t came = 0;

	make_request(frame, from, to);
	for (int i = 0; i <= GUESSES; i++)
		fds[i] = open_connection(NULL);
	for (int i = 0; i <= GUESSES; i++) {
		put32(frame + ANNOUNCEMENT_AT + 16, from->psn ^ (i < GUESSES ? 1 + i : 0));
		send(fds[i], frame, sizeof(frame), MSG_NOSIGNAL);
	}
	for (int i = 0; i <= GUESSES; i++) {
		came = answer(fds[i], SOON);
		close(fds[i]);
		if (came < 0 || (came && i < GUESSES)) {
			fail("%zd octets come back to guess %d", came, i);
			return false;
		}
	}
	*answered = came;
	return true;
}

/*
 * During guessing even a right PSN is rejected; once the guessing stops, the right peer connects.
 */
WAITING_CASE(right_psn_is_refused_during_wrong_guesses)
{
	int64_t end = now_ms() + 6 * SOON;
	bool answered = true;

	/*
	 * A slow machine may compare all of them, since its work outlasts the interval of the
	 * limit.
	 */
	for (long before = limited(); answered || limited() == before;) {
		must(guess(b, a, &answered));
		check(now_ms() < end, "all are compared");
	}
}

/* A peer that knows both numbers of a QP which may itself call connects despite others' guesses. */
static void peer_with_both_psns_connects_despite_wrong_guesses(void)
{
	int64_t end = now_ms() + 6 * SOON;
	long before = limited();
	bool answered = false;
	struct side a, b;

	if (sides_open(&a, &b, ctx, 0) && side_rtr(&a, &b) && side_rts(&a)) {
		/* It calls too, and its own call may win. */
		while (!answered && guess(&b, &a, &answered))
			if (now_ms() > end) {
				fail("kept out");
				break;
			}
		if (!test_failed() && limited() != before)
			fail("%ld are not compared", limited() - before);
		if (!test_failed() && side_rtr(&b, &a) && side_rts(&b))
			traffic(&a, &b);
	}
	sides_close(&a, &b);
}

static long free_kb(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];
	long kb = 0, value;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %ld", &value) == 1)
			kb = value;
	if (file)
		fclose(file);
	return kb;
}

/* Ten thousand guessing connections; counts what remains of them. */
WAITING_CASE(ten_thousand_guesses_leave_no_state)
{
	int count = getenv("STRANGERS") ? atoi(getenv("STRANGERS")) : 10000;
	uint8_t frame[REQUEST_LEN];
	long before = refusals(), memory = free_kb(), deadline = now_ms() + 240000 * slow;
	struct linger abort = { .l_onoff = 1 };

	make_request(frame, b, a);
	for (int i = 0; i < count; i++) {
		int fd = open_connection(i % 4 == 3 ? "127.0.0.1" : NULL);

		check(fd >= 0, "connection %d: %s", i, strerror(errno));
		/* A wrong PSN. */
		put32(frame + ANNOUNCEMENT_AT + 16, (b->psn ^ (1 + i)) & 0xffffff);
		if (i % 4 < 2)
			send(fd, frame, sizeof(frame), MSG_NOSIGNAL);
		/* Some wait for an answer, the others are closed before they are handled. */
		if (i % 64 == 0)
			check(answer(fd, SOON) <= 0, "an answer");
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
		close(fd);
		check(now_ms() < deadline, "only %d in time", i);
	}
	check(refusals() > before, "none is counted");
	check(memory - free_kb() < 32 * 1024, "%ld KiB are gone", memory - free_kb());
}

int main(int argc, char **argv)
{
	struct rlimit files = { 4096, 4096 };

	test_begin(argc, argv);
	setrlimit(RLIMIT_NOFILE, &files);
	srand(getpid());
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	port = device_value(ctx, "oob_port");
	RUN(right_request_is_answered);
	RUN(request_with_any_wrong_octet_is_refused);
	RUN(request_with_any_wrong_octet_is_refused_by_connecting_end);
	RUN(request_without_peer_to_peer_start_is_refused);
	RUN(request_of_wrong_length_is_refused);
	RUN(request_from_wrong_address_is_refused);
	RUN(incomplete_request_times_out_and_blocks_no_other);
	RUN(replayed_request_is_refused);
	RUN(silent_connections_block_no_request_for_long);
	RUN(right_psn_is_refused_during_wrong_guesses);
	RUN(peer_with_both_psns_connects_despite_wrong_guesses);
	RUN(ten_thousand_guesses_leave_no_state);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Operations that the Rust standard library lacks, on the TCP socket that is standard input:
 *
 *	socket reset		makes a close reset the connection from now on
 *	socket window OCTETS	sets the receive buffer
 *	socket keepalive MS	gives the connection up if the peer's TCP does not answer for so
 *				long while nothing is sent, two seconds at least
 *	socket patience MS	gives it up if the peer's TCP takes nothing for so long
 *	socket urgent HEX	sends octets, the last one urgent
 *	socket extra HEX	sends octets in a segment that the socket does not count: to the
 *				peer its next octets, with the same numbers, repeat these
 */
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int set(int option, const void *value, socklen_t len)
{
	return setsockopt(0, SOL_SOCKET, option, value, len);
}

static size_t octets_of(const char *hex, unsigned char *octets, size_t room)
{
	unsigned int octet;
	size_t n = 0;

	while (n < room && sscanf(hex + 2 * n, "%2x", &octet) == 1)
		octets[n++] = (unsigned char)octet;
	return n;
}

static int urgent(const char *hex)
{
	unsigned char octets[4096];
	size_t n = octets_of(hex, octets, sizeof(octets));

	return send(0, octets, n, MSG_OOB) == (ssize_t)n ? 0 : -1;
}

/* Asks the peer's TCP once a second. */
static int keepalive(int ms)
{
	int second = 1, on = 1, count = ms / 1000 - 1;

	if (set(SO_KEEPALIVE, &on, sizeof(on)) ||
	    setsockopt(0, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second)) ||
	    setsockopt(0, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof(second)))
		return -1;
	return setsockopt(0, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

/* Returns the number of the next octet of a direction. */
static bool number_of(int queue, uint32_t *number)
{
	socklen_t len = sizeof(*number);

	return !setsockopt(0, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)) &&
	       !getsockopt(0, IPPROTO_TCP, TCP_QUEUE_SEQ, number, &len);
}

/* Returns the sum of RFC 1071 of an even number of octets. */
static uint32_t sum(const void *octets, size_t len, uint32_t start)
{
	const uint8_t *at = octets;

	for (size_t i = 0; i < len; i += 2)
		start += (uint32_t)(at[i] << 8 | at[i + 1]);
	return start;
}

static int extra(const char *hex)
{
	struct {
		struct tcphdr tcp;
		unsigned char octets[4096];
	} segment = { 0 };
	size_t len = sizeof(segment.tcp) + octets_of(hex, segment.octets, sizeof(segment.octets));
	int on = TCP_REPAIR_ON, off = TCP_REPAIR_OFF_NO_WP, raw;
	struct sockaddr_in here, there;
	socklen_t room = sizeof(here);
	uint32_t sent, taken, check;
	bool known;

	if (getsockname(0, (struct sockaddr *)&here, &room) ||
	    getpeername(0, (struct sockaddr *)&there, &room) ||
	    setsockopt(0, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)))
		return -1;
	known = number_of(TCP_SEND_QUEUE, &sent) && number_of(TCP_RECV_QUEUE, &taken);
	if (setsockopt(0, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)) || !known)
		return -1;

	segment.tcp.source = here.sin_port;
	segment.tcp.dest = there.sin_port;
	segment.tcp.seq = htonl(sent);
	segment.tcp.ack_seq = htonl(taken);
	segment.tcp.doff = sizeof(segment.tcp) / 4;
	segment.tcp.ack = segment.tcp.psh = 1;
	segment.tcp.window = 0xffff;
	/* With the pseudo header of RFC 9293, section 3.1; a zero pads an odd octet at the end. */
	check = sum(&here.sin_addr, 4, IPPROTO_TCP + (uint32_t)len);
	check = sum(&there.sin_addr, 4, check);
	check = sum(&segment, len + len % 2, check);
	check = (check & 0xffff) + (check >> 16);
	check += check >> 16;
	segment.tcp.check = htons((uint16_t)~check);

	raw = socket(AF_INET, SOCK_RAW, IPPROTO_TCP);
	return sendto(raw, &segment, len, 0, (struct sockaddr *)&there, sizeof(there)) ==
			       (ssize_t)len
		       ? 0
		       : -1;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	int rc = -1;

	if (!strcmp(word, "reset")) {
		struct linger at_once = { .l_onoff = 1 };

		rc = set(SO_LINGER, &at_once, sizeof(at_once));
	} else if (!strcmp(word, "window") && argc > 2) {
		int octets = atoi(argv[2]);

		rc = set(SO_RCVBUF, &octets, sizeof(octets));
	} else if (!strcmp(word, "keepalive") && argc > 2) {
		rc = keepalive(atoi(argv[2]));
	} else if (!strcmp(word, "patience") && argc > 2) {
		unsigned int ms = (unsigned int)atoi(argv[2]);

		rc = setsockopt(0, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
	} else if (!strcmp(word, "urgent") && argc > 2) {
		rc = urgent(argv[2]);
	} else if (!strcmp(word, "extra") && argc > 2) {
		rc = extra(argv[2]);
	}
	if (rc)
		perror(word);
	return rc ? 1 : 0;
}

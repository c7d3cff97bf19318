// SPDX-License-Identifier: GPL-2.0
/*
 * What Rust's standard library cannot do to a TCP socket, done to the one that is standard input:
 *
 *	socket reset		a close resets the connection from now on
 *	socket window OCTETS	the receive buffer
 *	socket urgent HEX	sends octets, the last one urgent
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int set(int option, const void *value, socklen_t len)
{
	return setsockopt(0, SOL_SOCKET, option, value, len);
}

static int urgent(const char *hex)
{
	unsigned char octets[4096];
	unsigned int octet;
	size_t n = 0;

	while (n < sizeof(octets) && sscanf(hex + 2 * n, "%2x", &octet) == 1)
		octets[n++] = (unsigned char)octet;
	return send(0, octets, n, MSG_OOB) == (ssize_t)n ? 0 : -1;
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
	} else if (!strcmp(word, "urgent") && argc > 2) {
		rc = urgent(argv[2]);
	}
	if (rc)
		perror(word);
	return rc ? 1 : 0;
}

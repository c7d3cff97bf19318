// SPDX-License-Identifier: GPL-2.0
/*
 * The pairing port belongs to the device: no program can bind it, whether or not a queue pair waits
 * there, and so none can impersonate one.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "modify.h"

#define OTHER_PORT 24995
/* No program serves it here. */
#define PRIVILEGED_PORT 619
#define NOBODY 65534

static struct ibv_context *ctx;
static int port;

/* The ways in which a program can ask for a port in use. */
enum way { PLAIN, REUSE_ADDRESS, REUSE_PORT, ON_LOOPBACK, WAYS };

/*
 * Tries to bind a port as a program does, and to listen there; returns the errno, negative that of
 * listen(), 0 on success.
 */
static int try_bind(const struct sockaddr_storage *addr, enum way way)
{
	int one = 1, rc, fd = socket(addr->ss_family, SOCK_STREAM, 0);

	/* Also an address that the host does not have yet. */
	setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof(one));
	if (way >= REUSE_ADDRESS)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (way == REUSE_PORT)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (way == ON_LOOPBACK)
		setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3);
	if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)))
		rc = errno;
	else
		rc = listen(fd, 1) ? -errno : 0;
	close(fd);
	return rc;
}

/*
 * The addresses that a program can bind: all of them, those of this host, and one that it does not
 * have.
 */
static const char *const addresses[] = { "0.0.0.0", "127.0.0.1", "192.0.2.77", "::", "::1" };

static void address(struct sockaddr_storage *out, const char *text, int number)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(number);
	} else {
		inet_pton(AF_INET6, text, &v6->sin6_addr);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(number);
	}
}

/*
 * Checks that binding a port ends so, whatever the address and the way. A free port may have
 * lingering connections, which only SO_REUSEADDR ignores.
 */
static bool binding_gives(int number, int expected)
{
	struct sockaddr_storage addr;

	for (size_t i = 0; i <= ARRAY_SIZE(addresses); i++)
		for (enum way way = expected ? PLAIN : REUSE_ADDRESS; way < WAYS; way++) {
			const char *text = i < ARRAY_SIZE(addresses) ? addresses[i] : "its own";
			int rc;

			if (i < ARRAY_SIZE(addresses))
				address(&addr, text, number);
			else
				addr_with_port(&addr, number);
			rc = try_bind(&addr, way);
			if (rc != expected) {
				fail("port %d at %s, way %d: %d", number, text, way, rc);
				return false;
			}
		}
	return true;
}

/* Sets the port; returns the errno. */
static int try_set_port(int number)
{
	char path[PATH_MAX], text[16];
	int fd, rc;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/oob_port",
		 ibv_get_device_name(ctx->device));
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return errno;
	rc = write(fd, text, snprintf(text, sizeof(text), "%d", number)) < 0 ? errno : 0;
	close(fd);
	return rc;
}

static void held_port_cannot_be_bound_while_idle(void)
{
	must(binding_gives(port, EADDRINUSE));
	/* A connection to it is refused. */
	check(!somebody_listens(port), "somebody listens");
	must(binding_gives(OTHER_PORT, 0));
}

SIDES_CASE(held_port_cannot_be_bound_while_queue_pair_waits)
{
	must(side_rtr(a, b));
	check(somebody_listens(port), "nobody listens");
	must(binding_gives(port, EADDRINUSE));
	must(side_rtr(b, a) && side_rts(b) && side_rts(a) && traffic(a, b));
	must(binding_gives(port, EADDRINUSE));
}

static void held_port_follows_the_setting(void)
{
	check(!try_set_port(0), "cannot be switched off");
	must(binding_gives(port, 0));
	check(!try_set_port(OTHER_PORT), "cannot be changed");
	must(binding_gives(OTHER_PORT, EADDRINUSE) && binding_gives(port, 0));
	check(!try_set_port(port), "cannot be changed back");
	must(binding_gives(port, EADDRINUSE) && binding_gives(OTHER_PORT, 0));
}

/*
 * A waiting queue pair keeps the port that was set when it began, and no program can bind that
 * port.
 */
SIDES_CASE(waiting_queue_pair_keeps_its_port)
{
	check(!try_set_port(OTHER_PORT), "cannot be changed");
	must(side_rtr(a, b) && side_rtr(b, a));
	check(!try_set_port(port), "cannot be changed back");
	must(binding_gives(OTHER_PORT, EADDRINUSE) && binding_gives(port, EADDRINUSE));
	must(side_rts(a) && side_rts(b) && traffic(a, b));
	must(side_to(a, IBV_QPS_RESET) && side_to(b, IBV_QPS_RESET));
	must(binding_gives(OTHER_PORT, 0));
}

SIDES_CASE(port_bound_by_program_is_refused)
{
	struct sockaddr_storage addr;
	int fd = socket(AF_INET, SOCK_STREAM, 0), rc;

	/* Any local address will do, and it need not listen. */
	address(&addr, "127.0.0.1", OTHER_PORT);
	check(!bind(fd, (struct sockaddr *)&addr, sizeof(addr)), "bind: %s", strerror(errno));
	rc = try_set_port(OTHER_PORT);
	close(fd);
	check(rc == EADDRINUSE, "%s", strerror(rc));
	/* The setting is unchanged. */
	check(device_value(ctx, "oob_port") == port, "another port");
	must(binding_gives(port, EADDRINUSE) && binding_gives(OTHER_PORT, 0));
	must(sides_join(a, b) && traffic(a, b));
}

/* Lingering connections do not prevent the port from being held again. */
SIDES_CASE(port_is_held_again_alongside_connections)
{
	must(sides_join(a, b) && traffic(a, b));
	check(!try_set_port(0) && !try_set_port(port), "while they are up");
	must(binding_gives(port, EADDRINUSE));
	must(side_to(a, IBV_QPS_RESET) && side_to(b, IBV_QPS_RESET));
	check(!try_set_port(0) && !try_set_port(port), "after their end");
	must(binding_gives(port, EADDRINUSE));
}

/* What an unprivileged user does, who cannot bind such a port. */
static void as_nobody(void)
{
	struct sockaddr_storage addr;
	struct ibv_context *own;
	struct side a, b;
	int rc;

	check(!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY), "setresuid: %s",
	      strerror(errno));
	address(&addr, "127.0.0.1", PRIVILEGED_PORT + 1);
	rc = try_bind(&addr, PLAIN);
	check(rc == EACCES, "may bind such a port: %d", rc);
	own = ibv_open_device(ctx->device);
	check(own, "ibv_open_device: %s", strerror(errno));
	if (sides_open(&a, &b, own, 0) && sides_join(&a, &b))
		traffic(&a, &b);
	sides_close(&a, &b);
	ibv_close_device(own);
}

static void privileged_port_serves_unprivileged_process(void)
{
	int status = -1;
	pid_t child;

	check(!try_set_port(PRIVILEGED_PORT), "cannot be set");
	fflush(stdout);
	child = fork();
	if (!child) {
		as_nobody();
		_exit(test_failed() ? test_cannot_start() : 0);
	}
	waitpid(child, &status, 0);
	binding_gives(PRIVILEGED_PORT, EADDRINUSE);
	check(!try_set_port(port), "cannot be changed back");
	check(!status, "the child's status is %d", status);
	must(binding_gives(PRIVILEGED_PORT, 0));
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	srand(getpid());
	ctx = test_context();
	if (!ctx)
		return test_cannot_start();
	port = device_value(ctx, "oob_port");
	RUN(held_port_cannot_be_bound_while_idle);
	RUN(held_port_cannot_be_bound_while_queue_pair_waits);
	RUN(held_port_follows_the_setting);
	RUN(waiting_queue_pair_keeps_its_port);
	RUN(port_bound_by_program_is_refused);
	RUN(port_is_held_again_alongside_connections);
	RUN(privileged_port_serves_unprivileged_process);
	return test_end();
}

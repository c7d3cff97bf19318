// SPDX-License-Identifier: GPL-2.0

#include "rules.h"
#include "modify.h"

#include <fcntl.h>
#include <stdarg.h>

bool takes_rules(const char *text)
{
	return device_takes(test_context(), "inject", text);
}

bool rules(const char *format, ...)
{
	char text[1024] = "clear\n";
	va_list args;

	va_start(args, format);
	vsnprintf(text + 6, sizeof(text) - 6, format, args);
	va_end(args);
	return takes_rules(text);
}

const char *shown_rules(void)
{
	static char text[4096];
	char file[128];
	ssize_t len;
	int fd;

	snprintf(file, sizeof(file), "/sys/class/infiniband/%s/inject",
		 ibv_get_device_name(test_context()->device));
	fd = open(file, O_RDONLY);
	len = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[len > 0 ? len : 0] = 0;
	return text;
}

bool post_rdma(struct end *end, enum ibv_wr_opcode op, uint64_t id, const struct region *local,
	       const struct region *remote, size_t len)
{
	struct ibv_sge sge = sge_of(local, 0, len);
	struct ibv_send_wr wr = wr_rdma(op, id, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)remote->buf,
					remote->mr->rkey);

	return post_send(end, &wr);
}

long resets(void)
{
	FILE *snmp = fopen("/proc/net/snmp", "r");
	char line[1024];
	long number = -1;

	while (fgets(line, sizeof(line), snmp))
		sscanf(line, "Tcp: %*d %*d %*d %*d %*d %*d %*d %ld", &number);
	fclose(snmp);
	return number;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Uses an RDMA device without any library but C's: creates an id of rdma_cm, binds it to the address
 * of riw0 and listens, and opens the device's file.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_user_cm.h>

static int call(int fd, unsigned int cmd, const void *in, unsigned short len, unsigned short out)
{
	char message[512];
	struct rdma_ucm_cmd_hdr header = { .cmd = cmd, .in = len, .out = out };

	memcpy(message, &header, sizeof(header));
	memcpy(message + sizeof(header), in, len);
	if (write(fd, message, sizeof(header) + len) != (ssize_t)(sizeof(header) + len)) {
		perror("rdma_cm");
		return 1;
	}
	return 0;
}

int main(void)
{
	struct rdma_ucm_create_id_resp id = { 0 };
	struct rdma_ucm_create_id create = {
		.response = (unsigned long)&id, .ps = RDMA_PS_TCP, .qp_type = 2, /* IB_QPT_RC */
	};
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_ucm_bind bind = { .addr_size = sizeof(address) };
	struct rdma_ucm_listen listen = { .backlog = 1 };
	int cm = open("/dev/infiniband/rdma_cm", O_RDWR);
	int verbs = open("/dev/infiniband/uverbs0", O_RDWR);

	if (cm < 0 || verbs < 0) {
		perror("/dev/infiniband");
		return 1;
	}
	inet_pton(AF_INET, "10.77.0.1", &address.sin_addr);
	if (call(cm, RDMA_USER_CM_CMD_CREATE_ID, &create, sizeof(create), sizeof(id)))
		return 1;
	memcpy(&bind.addr, &address, sizeof(address));
	bind.id = listen.id = id.id;
	if (call(cm, RDMA_USER_CM_CMD_BIND, &bind, sizeof(bind), 0) ||
	    call(cm, RDMA_USER_CM_CMD_LISTEN, &listen, sizeof(listen), 0))
		return 1;
	printf("listens at 10.77.0.1\n");
	return 0;
}

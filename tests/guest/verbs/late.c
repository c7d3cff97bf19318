// SPDX-License-Identifier: GPL-2.0
/*
 * One message that finds no receive: `late ADDRESS PORT SECONDS` accepts a connection, posts its
 * only receive so many seconds later, and prints how it completes; with a fourth word it connects,
 * sends, and closes as soon as the Send has completed.
 */

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEN 3000

static uint8_t buffer[LEN];

static void demand(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *to;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	bool connects = argc > 4;
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	demand(argc < 4, "ADDRESS PORT SECONDS");
	hints.ai_flags = connects ? 0 : RAI_PASSIVE;
	demand(rdma_getaddrinfo(argv[1], argv[2], &hints, &to), "rdma_getaddrinfo");
	if (connects) {
		demand(rdma_create_ep(&id, to, NULL, &attr), "rdma_create_ep");
	} else {
		demand(rdma_create_ep(&listener, to, NULL, &attr) || rdma_listen(listener, 1), "rdma_listen");
		demand(rdma_get_request(listener, &id), "rdma_get_request");
	}
	mr = rdma_reg_msgs(id, buffer, LEN);
	demand(!mr, "rdma_reg_msgs");
	if (connects) {
		memset(buffer, 0x5a, LEN);
		demand(rdma_connect(id, NULL), "rdma_connect");
		demand(rdma_post_send(id, NULL, buffer, LEN, mr, 0), "rdma_post_send");
		demand(rdma_get_send_comp(id, &wc) < 0, "rdma_get_send_comp");
	} else {
		demand(rdma_accept(id, NULL), "rdma_accept");
		sleep((unsigned int)atoi(argv[3]));
		demand(rdma_post_recv(id, NULL, buffer, LEN, mr), "rdma_post_recv");
		demand(rdma_get_recv_comp(id, &wc) < 0, "rdma_get_recv_comp");
	}
	if (wc.status == IBV_WC_SUCCESS && !connects && buffer[LEN - 1] != 0x5a)
		wc.status = IBV_WC_GENERAL_ERR;
	printf("%s\n", ibv_wc_status_str(wc.status));
	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return 0;
}

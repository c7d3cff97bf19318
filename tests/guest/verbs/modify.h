/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Queue pairs that connect by ibv_modify_qp, without rdma_cm. Both sides are in one process. As in
 * common.h, a function that returns false has failed the case.
 */
#ifndef RIWARP_TESTS_MODIFY_H
#define RIWARP_TESTS_MODIFY_H

#include "common.h"

#define SIDE_DEPTH 64

struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct region memory;
	int gid_index;
	union ibv_gid gid;
	uint32_t psn;
	/* How long a Send waits for its peer: as in ibv_qp_attr, 14 and 7. */
	uint8_t timeout, retry_cnt;
	/* How long the peer's Sends wait for a receive: as in ibv_qp_attr, 12 and 7. */
	uint8_t min_rnr_timer, rnr_retry;
};

/* Makes a queue pair in INIT and memory for it. */
bool side_open(struct side *s, struct ibv_context *ctx, int gid_index);
void side_close(struct side *s);

/* Returns the attributes for RTR and RTS towards a peer, with the mask. */
int rtr_attr(const struct side *s, const struct side *peer, struct ibv_qp_attr *attr);
int rts_attr(const struct side *s, struct ibv_qp_attr *attr);

bool side_init(struct side *s);
bool side_rtr(struct side *s, const struct side *peer);
bool side_rts(struct side *s);
/* Returns the errno of a change of state, 0 if it was done. */
int try_modify(struct side *s, struct ibv_qp_attr *attr, int mask);

bool side_to(struct side *s, enum ibv_qp_state state);

/* Two sides on the same index of the GID table; both in INIT. */
bool sides_open(struct side *a, struct side *b, struct ibv_context *ctx, int gid_index);
void sides_close(struct side *a, struct side *b);
/* Both to RTR, both to RTS, so that they connect. */
bool sides_join(struct side *a, struct side *b);
/* Moves both to RESET, which discards all state, and to INIT, for another connection. */
bool sides_reset(struct side *a, struct side *b);

/* Defines a case with two sides in INIT on the device `ctx`. */
#define SIDES_CASE(name)                                                                           \
	static void name##_body(struct side *a, struct side *b);                                   \
	static void name(void)                                                                     \
	{                                                                                          \
		struct side a, b;                                                                  \
                                                                                                   \
		if (sides_open(&a, &b, ctx, 0))                                                    \
			name##_body(&a, &b);                                                       \
		sides_close(&a, &b);                                                               \
	}                                                                                          \
	static void name##_body(struct side *a, struct side *b)

/* Posts a Send of `len` octets of a pattern, and a receive for one. */
bool side_send(struct side *s, uint64_t id, size_t len);
bool side_recv(struct side *s, uint64_t id, size_t len);
bool side_post(struct side *s, struct ibv_send_wr *wr);
/* Posts a Write or Read between `here` in its own memory and `there` in the peer's. */
bool side_rdma(struct side *s, enum ibv_wr_opcode op, uint64_t id, size_t here,
	       const struct side *peer, size_t there, size_t len);
/* Sends both ways, writes and reads, and checks what arrives. */
bool traffic(struct side *a, struct side *b);

/* Returns whether a socket listens on the out-of-band port. */
bool somebody_listens(int port);
/* Returns a value of the device in sysfs; -1 if it does not exist. */
long device_value(struct ibv_context *ctx, const char *name);
/* Returns one of its counters. */
long device_counter(struct ibv_context *ctx, const char *name);
/* Returns whether a file of the device takes a text; errno says why not. */
bool device_takes(struct ibv_context *ctx, const char *name, const char *text);
/* Whether it refuses the text for want of CAP_NET_ADMIN, although the file's mode permits it. */
bool needs_net_admin(struct ibv_context *ctx, const char *name, const char *text);
bool set_device_value(struct ibv_context *ctx, const char *name, long value);
/* As with_pair, while a setting of the device has this value. */
void with_pair_set(const char *name, long value, void (*body)(struct pair *p));

#endif

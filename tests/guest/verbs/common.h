/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the verbs test programs: cases with a verdict, connections between two ends in one
 * process, and bounded waits.
 *
 * A program takes the address of its device as its argument (default 127.0.0.1) and its port from
 * the environment variable PORT. It prints `ok PROGRAM/CASE`, `not ok PROGRAM/CASE: why` or `skip
 * PROGRAM/CASE: why` for each case.
 */
#ifndef RIWARP_TESTS_COMMON_H
#define RIWARP_TESTS_COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/*
 * How long to wait for an expected event, and to be sure that none comes, in milliseconds. SLOW in
 * the environment is the factor by which this kernel is slower than the stock kernel.
 */
#define SOON (10000 * slow)
#define QUIET 150

extern int slow;

/* The length of a page here; programs for arm64 run on kernels with pages of 4 and of 16 KiB. */
extern size_t page_size;
#define PAGE page_size

/* --- cases ------------------------------------------------------------------------------------ */

void test_begin(int argc, char **argv);
int test_end(void);

/* Runs a case: a function that returns early after the first failed check. */
#define RUN(case_fn) test_run(#case_fn, case_fn)
void test_run(const char *name, void (*fn)(void));

void test_fail(const char *file, int line, const char *what, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void test_must(const char *file, int line, const char *what);
void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool test_failed(void);
/* Reports that the program cannot start, with the last failure's reason. */
int test_cannot_start(void);

/* check(condition, "format", ...): leaves the case with a reason unless the condition holds. */
#define check(cond, ...)                                                       \
	do {                                                                   \
		if (!(cond)) {                                                 \
			test_fail(__FILE__, __LINE__, #cond, __VA_ARGS__);     \
			return;                                                \
		}                                                              \
	} while (0)

/* For helpers that return false if they fail or skip the case; it fails if they do neither. */
#define must(call)                                                             \
	do {                                                                   \
		if (!(call)) {                                                 \
			test_must(__FILE__, __LINE__, #call);                  \
			return;                                                \
		}                                                              \
	} while (0)

#define fail(...) test_fail(__FILE__, __LINE__, "", __VA_ARGS__)

/* --- addresses and time ----------------------------------------------------------------------- */

extern struct sockaddr_storage test_addr; /* the device's address, port 0 */
void addr_with_port(struct sockaddr_storage *out, int port);
int next_port(void);
int64_t now_ms(void);
void sleep_ms(int ms);

/* --- files of the kernel ---------------------------------------------------------------------- */

/* Returns the number that such a file begins with; -1 if there is none. */
long file_value(const char *path);
/* Returns false (and the case has failed) if the file rejects the text. */
bool file_write(const char *path, const char *text);

/* --- memory ----------------------------------------------------------------------------------- */

struct region {
	uint8_t *buf;
	size_t len;
	struct ibv_mr *mr;
};

#define ALL_RIGHTS                                                             \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/*
 * Makes page-aligned memory and registers it. Returns false (and the case has failed) on error.
 * pair_close frees what region_free did not.
 */
bool region_make(struct region *r, struct ibv_pd *pd, size_t len, int access);
void region_free(struct region *r);
/* The same for a region that something else has made. */
void region_keep(const struct region *r);
/*
 * Blocks page faults in these pages, none of which is present. Returns the descriptor for the two
 * functions below, or -1, and the case is skipped or has failed.
 */
int faults_wait(void *pages, size_t len);
/* Waits for the first page fault. Returns false (and the case has failed) if none comes. */
bool fault_came(int fd);
/* Resolves all of the page faults with empty pages; closes the descriptor. */
bool faults_end(int fd, void *pages, size_t len);
/* Ends the registration but keeps the memory mapped. */
bool region_release(struct region *r);
/* Fills with a pattern that differs at every offset and for every seed. */
void pattern_fill(uint8_t *buf, size_t len, uint32_t seed);
/* Returns the offset of the first octet that differs from the pattern, or -1. */
ssize_t pattern_differs(const uint8_t *buf, size_t len, uint32_t seed);
/* Returns the offset of the first octet that is not `value`, or -1. */
ssize_t not_all(const uint8_t *buf, size_t len, uint8_t value);
struct ibv_sge sge_of(const struct region *r, size_t off, size_t len);

/* --- connections ------------------------------------------------------------------------------ */

/* Options of a pair; zero means the default given behind each field. */
struct pair_opts {
	int sq_depth;	/* 64 */
	int rq_depth;	/* 64 */
	int send_sge;	/* 4 */
	int recv_sge;	/* 4 */
	int inline_data; /* 0 */
	int cq_depth;	/* 256 */
	int depth;	/* IRD and ORD asked for, 16 */
	bool sends_only;    /* end a has no place for a receive */
	bool receives_only; /* end b has no place for a request */
	bool sig_all;
	bool channels; /* CQs get completion channels */
	uint64_t send_ops; /* what ibv_wr_* is to be used for, if at all */
	bool cq_ex; /* CQs are made to be read by ibv_start_poll */
	struct ibv_srq *(*srq)(struct ibv_pd *pd); /* makes an SRQ for end b, as srq_make */
	struct end *beside; /* end b takes its PD, receive CQ and SRQ; it is closed later */
};

struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *send_channel;
	struct ibv_comp_channel *recv_channel;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	bool is_guest; /* PD, receive CQ and SRQ are another end's */
};

/* Two connected ends: `a` has connected, `b` has accepted. Each has its own PD and CQs. */
struct pair {
	struct rdma_event_channel *listen_events;
	struct rdma_cm_id *listen;
	struct end a;
	struct end b;
};

/* Makes an SRQ with this many receives; NULL (and the case has failed) on error. */
#define SRQ_DEPTH 64
struct ibv_srq *srq_make(struct ibv_pd *pd);

bool pair_open(struct pair *p, const struct pair_opts *opts);
void pair_close(struct pair *p);

/*
 * PAIR_CASE(name, .field = value, ...) { ... } defines a case whose body gets a connected pair as
 * `p`, made with these options and closed behind it.
 */
#define PAIR_CASE(name, ...)                                                   \
	static void name##_body(struct pair *p);                               \
	static void name(void)                                                 \
	{                                                                      \
		struct pair_opts opts = { __VA_ARGS__ };                       \
									       \
		with_pair(&opts, name##_body);                                 \
	}                                                                      \
	static void name##_body(struct pair *p)
void with_pair(const struct pair_opts *opts, void (*body)(struct pair *p));

/* Waits for the next event of a channel; the caller acknowledges it. NULL after `ms`. */
struct rdma_cm_event *cm_event(struct rdma_event_channel *ch, int ms);
/* Waits for an event of this type and acknowledges it. */
bool cm_expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type);

/* Makes an id that listens on the device's address; NULL (and the case has failed) on error. */
struct rdma_cm_id *cm_listening_id(struct rdma_event_channel *ch, int port, int backlog);
/* Makes an id whose route to the device is resolved; NULL (and the case has failed) on error. */
struct rdma_cm_id *cm_resolved_id(struct rdma_event_channel *ch, int port);
/* The port to which these bind their ids; 0: rdma_cm chooses it. */
extern int source_port;
/* The same towards another address (NULL: the device's own). */
struct rdma_cm_id *cm_resolved_id_to(struct rdma_event_channel *ch, const char *host, int port);
/*
 * Returns the context of the device that the environment variable DEVICE names, else of the one
 * that has the test address, which rdma_cm has to know.
 */
struct ibv_context *test_context(void);

enum ibv_qp_state qp_state(struct ibv_qp *qp);
bool qp_reaches(struct ibv_qp *qp, enum ibv_qp_state state, int ms);

/* --- one end alone --------------------------------------------------------------------------- */

/* A connection attempt, which may fail. Zeroed, or made by attempt_prepare. */
struct attempt {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	enum rdma_cm_event_type event;
	int status;
};

/*
 * Makes an id with a QP towards this port; false (and the case has failed) on error, as all of
 * these.
 */
bool attempt_prepare(struct attempt *t, int port);
/* The same towards another address (NULL: the device's own). */
bool attempt_prepare_to(struct attempt *t, const char *host, int port);
/* Does the same, and asks for the connection. */
bool attempt_start(struct attempt *t, int port);
/* Waits for the outcome. */
bool attempt_result(struct attempt *t, int ms);
void attempt_end(struct attempt *t);

/* --- work ------------------------------------------------------------------------------------- */

bool post_recv(struct end *e, uint64_t wr_id, const struct region *r, size_t off, size_t len);
bool post_recv_sges(struct end *e, uint64_t wr_id, struct ibv_sge *sge, int n);
/*
 * Returns the errno of posting, 0 if it was accepted. Negative errnos of a provider are made
 * positive.
 */
int try_send(struct end *e, struct ibv_send_wr *wr);
bool post_send(struct end *e, struct ibv_send_wr *wr);
/* Returns a work request with one SGE. */
struct ibv_send_wr wr_make(enum ibv_wr_opcode op, uint64_t wr_id, int flags, struct ibv_sge *sge,
			   int num_sge);
struct ibv_send_wr wr_rdma(enum ibv_wr_opcode op, uint64_t wr_id, int flags, struct ibv_sge *sge,
			   int num_sge, uint64_t raddr, uint32_t rkey);

/* Begins a signaled request of end a, to be posted by ibv_wr_*. */
struct ibv_qp_ex *wr_begin(struct pair *p, uint64_t id);

/* Takes one completion; false after `ms` without failing the case. */
bool poll_wc(struct ibv_cq *cq, struct ibv_wc *wc, int ms);
/* Takes one completion, which must have this id and status. */
bool expect_wc(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t wr_id, enum ibv_wc_status status);
bool expect_no_wc(struct ibv_cq *cq, int ms);
/* Waits on a completion channel; acknowledges the event. */
bool channel_fires(struct ibv_comp_channel *ch, int ms);

/* Sends `len` octets a -> b through fresh work requests and checks what arrives. */
bool exchange_works(struct pair *p);

/* Checks that another connection works. Does nothing in a case that has failed. */
void world_is_well(void);

/* Returns whether the library posts atomic operations and Immediate Data, by the environment. */
bool has_extensions(void);

/* --- queues shared with the device ------------------------------------------------------------ */

struct mapping {
	uint8_t *start;
	size_t len;
	off_t offset; /* what stands for it in mmap */
};

/* Returns where the device's memory is mapped into this process. */
size_t device_mappings(struct mapping *out, size_t max);
/* Rings the doorbell: POST_SEND without a work request. Returns an errno. */
int ring_doorbell(struct ibv_qp *qp);
/*
 * Reregisters a region, as ibv_rereg_mr would if the library had it; `flags`
 * (IBV_REREG_MR_CHANGE_*) say which other arguments count. Returns an errno; the keys are then
 * those of the region.
 */
int rereg(struct ibv_mr *mr, uint32_t flags, struct ibv_pd *pd, void *addr, size_t len, int access);
/* As ibv_advise_mr for a range of one region; neither library has it. Returns an errno. */
int advise(struct ibv_pd *pd, uint32_t advice, uint32_t flags, const void *addr, uint32_t len,
	   uint32_t lkey);
/*
 * Calls a method of the device's newer interface, without the library; returns an errno. `attrs`
 * are sent as they are and hold the answer afterwards; at most 16.
 */
int method(struct ibv_context *context, uint16_t object, uint16_t number,
	   struct ib_uverbs_attr *attrs, size_t count);
/* Returns an attribute that the method must understand. */
struct ib_uverbs_attr given(uint16_t id, uint64_t value, uint16_t len);
/*
 * Lets another process work with a pair, and kills it a little after it has called victim_ready().
 */
bool killed_in(void (*victim)(struct pair *p));
void victim_ready(void);
/* Returns 24 random bits, the same in each run; and random octets. */
uint32_t any(void);
/* Returns 32 random bits from a state of the caller's, which is not 0: for threads. */
uint32_t any_of(uint32_t *state);
void fill_any(volatile void *at, size_t len);

/*
 * Marks two regions with octets that show which request moved them: `src` is for requests of end
 * `a`, `dst` lies at the other end.
 */
void regions_mark(const struct region *src, const struct region *dst);
/* Checks that a bad request of end `a` fails, moves nothing, and puts the QP into error. */
void request_is_refused(struct pair *p, const struct region *src, const struct region *dst);
/* Checks that a Send of `dst` breaks the bad receive queue of end `a`, and moves nothing. */
void send_breaks_receiver(struct pair *p, const struct region *src, const struct region *dst);

/* --- dma-bufs --------------------------------------------------------------------------------- */

/* A dma-buf, and its memory as mapped by the process. */
struct dmabuf {
	int fd;
	uint8_t *buf;
	size_t len;
};

/*
 * Makes one of a file in memory. Returns false if the case has failed, or dma-bufs are not
 * available here.
 */
bool dmabuf_make(struct dmabuf *b, size_t len);
void dmabuf_free(struct dmabuf *b);
/* Registers a dma-buf; returns an errno. The libraries of the device lack the call. */
int dmabuf_reg(struct ibv_mr **out, struct ibv_pd *pd, int fd, uint64_t offset, uint64_t len,
	       uint64_t iova, uint32_t access);

/* --- asynchronous events ---------------------------------------------------------------------- */

/* Waits until an event of this type for this object was seen (events are kept). */
bool async_seen(struct ibv_context *ctx, enum ibv_event_type type, const void *element, int ms);
/* Returns how many of them have come so far. */
size_t async_count(struct ibv_context *ctx, enum ibv_event_type type, const void *element);
/* Returns true if any error event of this QP was seen. */
bool async_qp_error(struct ibv_context *ctx, const struct ibv_qp *qp, int ms);
void async_forget(struct ibv_context *ctx);
/* Returns the names of the events seen, for messages. */
const char *async_list(struct ibv_context *ctx);

#endif

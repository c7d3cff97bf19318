// SPDX-License-Identifier: GPL-2.0
/* Impossible queue sizes and registrations get an errno; the reported limits can be reached. */

#include "common.h"

#include <sys/mman.h>

static struct ibv_context *ctx;
static struct ibv_device_attr dev;

static struct ibv_qp_init_attr qp_attr(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16,
			 .max_recv_wr = 16,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
}

/*
 * Checks that creating a QP with these attributes fails with EINVAL or ENOMEM, or EOPNOTSUPP if
 * allowed.
 */
static void refused_qp(struct ibv_pd *pd, struct ibv_qp_init_attr attr, const char *what)
{
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_create_qp(pd, &attr);
	if (qp) {
		ibv_destroy_qp(qp);
		fail("%s: a QP was made", what);
		return;
	}
	if (errno != EINVAL && errno != ENOMEM && errno != EOPNOTSUPP && errno != ENOSYS)
		fail("%s: %s", what, strerror(errno));
}

static void queue_pair_sizes_beyond_limits_are_refused(void)
{
	static const uint32_t absurd[] = { 0x80000000u, 0xffffffffu, 0x7fffffffu, 100000000u };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr;

	check(pd && cq, "preparation: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(absurd); i++) {
		attr = qp_attr(cq);
		attr.cap.max_send_wr = absurd[i];
		refused_qp(pd, attr, "max_send_wr");
		attr = qp_attr(cq);
		attr.cap.max_recv_wr = absurd[i];
		refused_qp(pd, attr, "max_recv_wr");
		attr = qp_attr(cq);
		attr.cap.max_send_sge = absurd[i];
		refused_qp(pd, attr, "max_send_sge");
		attr = qp_attr(cq);
		attr.cap.max_recv_sge = absurd[i];
		refused_qp(pd, attr, "max_recv_sge");
		attr = qp_attr(cq);
		attr.cap.max_inline_data = absurd[i];
		refused_qp(pd, attr, "max_inline_data");
	}
	attr = qp_attr(cq);
	attr.cap.max_send_wr = dev.max_qp_wr + 1;
	refused_qp(pd, attr, "max_qp_wr + 1");
	attr = qp_attr(cq);
	attr.cap.max_send_sge = dev.max_sge + 1;
	refused_qp(pd, attr, "max_sge + 1");
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

static void unsupported_qp_types_are_refused(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);

	check(pd && cq, "preparation: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct ibv_qp_init_attr attr = qp_attr(cq);

		attr.qp_type = types[i];
		refused_qp(pd, attr, "QP type");
	}
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

static void cq_sizes_beyond_limits_are_refused(void)
{
	static const int absurd[] = { 0, -1, 0x7fffffff, 0x40000000 };
	struct ibv_cq *cq;

	for (size_t i = 0; i < ARRAY_SIZE(absurd) + 1; i++) {
		int cqe = i < ARRAY_SIZE(absurd) ? absurd[i] : dev.max_cqe + 1;

		errno = 0;
		cq = ibv_create_cq(ctx, cqe, NULL, NULL, 0);
		check(!cq, "a CQ of %d was made", cqe);
		check(errno == EINVAL || errno == ENOMEM, "%d: %s", cqe, strerror(errno));
	}
}

static void srq_sizes_beyond_limits_are_refused(void)
{
	static const uint32_t absurd[] = { 0, 0xffffffffu, 0x80000000u, 0x7fffffffu };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_srq_init_attr attr;

	check(pd, "preparation: %s", strerror(errno));
	for (size_t i = 0; i < 2 * ARRAY_SIZE(absurd); i++) {
		memset(&attr, 0, sizeof(attr));
		attr.attr.max_wr = i % 2 ? 16 : absurd[i / 2];
		attr.attr.max_sge = i % 2 ? absurd[i / 2] : 1;
		if (i % 2 && !absurd[i / 2])
			continue; /* no elements: of no use, but not absurd */
		errno = 0;
		check(!ibv_create_srq(pd, &attr), "max_wr %u, max_sge %u was made",
		      attr.attr.max_wr, attr.attr.max_sge);
		check(errno == EINVAL || errno == ENOMEM, "max_wr %u, max_sge %u: %s",
		      attr.attr.max_wr, attr.attr.max_sge, strerror(errno));
	}
	ibv_dealloc_pd(pd);
}

static void objects_of_reported_maximum_sizes_can_be_created(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr sattr = { 0 };
	struct ibv_qp_init_attr attr;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_cq *big;

	check(pd && cq, "preparation: %s", strerror(errno));
	attr = qp_attr(cq);
	attr.cap.max_send_wr = dev.max_qp_wr;
	attr.cap.max_recv_wr = dev.max_qp_wr;
	attr.cap.max_send_sge = dev.max_sge;
	attr.cap.max_recv_sge = dev.max_sge;
	qp = ibv_create_qp(pd, &attr);
	check(qp, "a QP of max_qp_wr %d and max_sge %d: %s", dev.max_qp_wr, dev.max_sge,
	      strerror(errno));
	check(attr.cap.max_send_wr >= (uint32_t)dev.max_qp_wr &&
		      attr.cap.max_send_sge >= (uint32_t)dev.max_sge,
	      "the QP made is smaller: %u, %u", attr.cap.max_send_wr, attr.cap.max_send_sge);
	ibv_destroy_qp(qp);
	big = ibv_create_cq(ctx, dev.max_cqe > 1000000 ? 1000000 : dev.max_cqe, NULL, NULL, 0);
	check(big, "a CQ of %d: %s", dev.max_cqe, strerror(errno));
	ibv_destroy_cq(big);
	sattr.attr.max_wr = dev.max_srq_wr > 100000 ? 100000 : dev.max_srq_wr;
	sattr.attr.max_sge = dev.max_srq_sge;
	srq = ibv_create_srq(pd, &sattr);
	check(srq, "an SRQ of %u: %s", sattr.attr.max_wr, strerror(errno));
	ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

/* --- registrations ---------------------------------------------------------------------------- */

static void refused_mr(struct ibv_pd *pd, void *addr, size_t len, int access, const char *what)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, addr, len, access);

	if (mr) {
		ibv_dereg_mr(mr);
		fail("%s was registered", what);
	}
}

/* A program makes its next object with the attributes that it got back for the last one. */
static void objects_can_be_created_with_returned_sizes(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr sattr = { .attr = { .max_wr = dev.max_srq_wr, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = qp_attr(cq);
	int cqe = dev.max_cqe;

	check(pd && cq, "preparation: %s", strerror(errno));
	attr.cap.max_send_wr = attr.cap.max_recv_wr = dev.max_qp_wr;
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *big = ibv_create_cq(ctx, cqe, NULL, NULL, 0);
		struct ibv_srq *srq = ibv_create_srq(pd, &sattr);
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);

		check(big && srq && qp, "%d. CQ of %d, SRQ of %u, QP of %u and %u: %s", i, cqe,
		      sattr.attr.max_wr, attr.cap.max_send_wr, attr.cap.max_recv_wr,
		      strerror(errno));
		cqe = big->cqe;
		ibv_destroy_qp(qp);
		ibv_destroy_srq(srq);
		ibv_destroy_cq(big);
		check(cqe == dev.max_cqe && sattr.attr.max_wr == (uint32_t)dev.max_srq_wr &&
			      attr.cap.max_send_wr == (uint32_t)dev.max_qp_wr &&
			      attr.cap.max_recv_wr == (uint32_t)dev.max_qp_wr,
		      "a CQ of %d, an SRQ of %u, a QP of %u and %u", cqe, sattr.attr.max_wr,
		      attr.cap.max_send_wr, attr.cap.max_recv_wr);
	}
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

static void invalid_registrations_are_refused(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	uint8_t *page = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			     -1, 0);

	check(pd && page != MAP_FAILED, "preparation: %s", strerror(errno));
	munmap(page + PAGE, PAGE);
	refused_mr(pd, page, 3 * PAGE, ALL_RIGHTS, "a range with a hole");
	refused_mr(pd, page + PAGE, PAGE, ALL_RIGHTS, "unmapped memory");
	refused_mr(pd, NULL, PAGE, ALL_RIGHTS, "address zero");
	refused_mr(pd, (void *)0xffff800000000000UL, PAGE, ALL_RIGHTS, "kernel memory");
	refused_mr(pd, (void *)-PAGE, 2 * PAGE, ALL_RIGHTS, "a range that wraps");
	refused_mr(pd, page, PAGE, IBV_ACCESS_REMOTE_WRITE, "remote without local write");
	mprotect(page, PAGE, PROT_READ);
	refused_mr(pd, page, PAGE, ALL_RIGHTS, "read-only memory for writing");
	munmap(page, PAGE);
	munmap(page + 2 * PAGE, PAGE);
	ibv_dealloc_pd(pd);
}

/* --- memory paged on demand, which no limit of pinned memory counts ---------------------------- */

#define ODP (ALL_RIGHTS | IBV_ACCESS_ON_DEMAND)
/* The limits of one context (docs/admin.md). */
#define ODP_REGIONS 4096
#define ODP_PAGES (1UL << 26)

/* Registers so many pages at an address where nothing is mapped. */
static struct ibv_mr *reg_nothing(struct ibv_pd *pd, size_t pages)
{
	errno = 0;
	return ibv_reg_mr(pd, (void *)0x10000000UL, pages * PAGE, ODP);
}

/* Address space costs the process nothing, and the kernel's tables for it what memory costs. */
static void on_demand_pages_are_limited(void)
{
	enum { N = 4 };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mr *mr[N];

	check(pd, "preparation: %s", strerror(errno));
	for (size_t pages = ODP_PAGES + 1; pages * PAGE < 1UL << 46; pages *= 2) {
		check(!reg_nothing(pd, pages), "%zu pages were registered", pages);
		check(errno == ENOMEM, "%zu pages: %s", pages, strerror(errno));
	}
	/* Many small ones are as good as a large one: what is left is too little for one more. */
	for (int i = 0; i < N; i++) {
		mr[i] = reg_nothing(pd, 1 << 18);
		check(mr[i], "region %d of 2^18 pages: %s", i, strerror(errno));
	}
	check(!reg_nothing(pd, ODP_PAGES - (N << 18) + 1), "more than the limit together");
	check(errno == ENOMEM, "%s", strerror(errno));
	for (int i = 0; i < N; i++)
		check(!ibv_dereg_mr(mr[i]), "ibv_dereg_mr");
	mr[0] = reg_nothing(pd, N << 18);
	check(mr[0], "once the others are gone: %s", strerror(errno));
	check(!ibv_dereg_mr(mr[0]), "ibv_dereg_mr");
	ibv_dealloc_pd(pd);
}

/* The kernel calls each region that a page is in when it takes the page from the process. */
static void on_demand_regions_are_limited(void)
{
	static struct ibv_mr *mr[ODP_REGIONS];
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	check(pd, "preparation: %s", strerror(errno));
	for (int i = 0; i < ODP_REGIONS; i++) {
		mr[i] = reg_nothing(pd, 1);
		check(mr[i], "region %d: %s", i, strerror(errno));
	}
	check(!reg_nothing(pd, 1), "one region too many was registered");
	check(errno == ENOMEM, "%s", strerror(errno));
	errno = 0;
	mr[0] = mr[0] && !ibv_dereg_mr(mr[0]) ? reg_nothing(pd, 1) : NULL;
	check(mr[0], "after one was deregistered: %s", strerror(errno));
	for (int i = 0; i < ODP_REGIONS; i++)
		check(!mr[i] || !ibv_dereg_mr(mr[i]), "ibv_dereg_mr");
	ibv_dealloc_pd(pd);
}

/* Keys are neither in a row nor repeated soon (RFC 5040, section 8.1.1). */
static void rkeys_are_not_predictable(void)
{
	enum { N = 256 };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	static uint8_t page[4096] __attribute__((aligned(4096)));
	struct ibv_mr *mr[N] = { 0 };
	int near = 0, same_octet = 0;

	check(pd, "preparation: %s", strerror(errno));
	for (int i = 0; i < N; i++) {
		mr[i] = ibv_reg_mr(pd, page, sizeof(page), ALL_RIGHTS);
		check(mr[i], "ibv_reg_mr %d: %s", i, strerror(errno));
		for (int k = 0; k < i; k++)
			check(mr[k]->rkey != mr[i]->rkey, "%d and %d have the same key", k, i);
		if (i && (mr[i]->rkey & 0xff) == (mr[i - 1]->rkey & 0xff))
			same_octet++;
		if (i && labs((long)(mr[i]->rkey >> 8) - (long)(mr[i - 1]->rkey >> 8)) < 1 << 16)
			near++;
	}
	/* Allows two of either kind by chance. */
	check(near < N / 8, "%d of %d indices near the one before", near, N);
	check(same_octet < N / 8, "%d of %d key octets repeated", same_octet, N);
	for (int i = 0; i < N; i++)
		check(!ibv_dereg_mr(mr[i]), "ibv_dereg_mr");
	ibv_dealloc_pd(pd);
}

/* Destroying an object in use is refused; the other order works. */
static void objects_in_use_are_not_destroyed(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(cq);
	struct ibv_qp *qp;

	check(pd && cq, "preparation: %s", strerror(errno));
	qp = ibv_create_qp(pd, &attr);
	check(qp, "ibv_create_qp: %s", strerror(errno));
	check(ibv_destroy_cq(cq) == EBUSY, "a CQ in use was destroyed");
	check(ibv_dealloc_pd(pd) == EBUSY, "a PD in use was freed");
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

static void many_objects(void)
{
	enum { N = 500 };
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr;
	static struct ibv_qp *qp[N];

	check(pd && cq, "preparation: %s", strerror(errno));
	for (int i = 0; i < N; i++) {
		attr = qp_attr(cq);
		qp[i] = ibv_create_qp(pd, &attr);
		check(qp[i], "QP %d: %s", i, strerror(errno));
		check(!i || qp[i]->qp_num != qp[i - 1]->qp_num, "QP number repeated");
	}
	for (int i = 0; i < N; i++)
		check(!ibv_destroy_qp(qp[i]), "ibv_destroy_qp");
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	ctx = test_context();
	if (!ctx || ibv_query_device(ctx, &dev))
		return test_cannot_start();
	RUN(queue_pair_sizes_beyond_limits_are_refused);
	RUN(unsupported_qp_types_are_refused);
	RUN(cq_sizes_beyond_limits_are_refused);
	RUN(srq_sizes_beyond_limits_are_refused);
	RUN(objects_of_reported_maximum_sizes_can_be_created);
	RUN(objects_can_be_created_with_returned_sizes);
	RUN(invalid_registrations_are_refused);
	RUN(on_demand_pages_are_limited);
	RUN(on_demand_regions_are_limited);
	RUN(rkeys_are_not_predictable);
	RUN(objects_in_use_are_not_destroyed);
	RUN(many_objects);
	return test_end();
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Reregistration of memory regions: other memory, other rights, another domain. The distribution's
 * libraries lack the call, so the program issues it itself.
 */

#include "common.h"

#include <sys/mman.h>

#define LEN 8192
#define TRANSLATION IBV_REREG_MR_CHANGE_TRANSLATION
#define PD IBV_REREG_MR_CHANGE_PD
#define ACCESS IBV_REREG_MR_CHANGE_ACCESS

static struct region local, remote;
static uint8_t other[LEN] __attribute__((aligned(4096)));

/* Makes a region of end b with this pattern, and a sink for it at end a. */
static bool prepare(struct pair *p, struct ibv_pd *pd, int access)
{
	if (!region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE) ||
	    !region_make(&remote, pd, LEN, access))
		return false;
	pattern_fill(remote.buf, LEN, 1);
	pattern_fill(other, LEN, 2);
	return true;
}

/* Reads `len` octets of end b; returns the status, or -1 if it did not complete. */
static int read_of(struct pair *p, const void *addr, size_t len, uint32_t rkey)
{
	struct ibv_sge sge = sge_of(&local, 0, len);
	struct ibv_send_wr wr = wr_rdma(IBV_WR_RDMA_READ, 7, IBV_SEND_SIGNALED, &sge, 1,
					(uintptr_t)addr, rkey);
	struct ibv_wc wc;

	memset(local.buf, 0x77, LEN);
	if (!post_send(&p->a, &wr) || !poll_wc(p->a.send_cq, &wc, SOON))
		return -1;
	return wc.status;
}

/* Checks that end a can read all of end b's memory at `addr`, which has the pattern of `seed`. */
static void reads(struct pair *p, const void *addr, uint32_t seed)
{
	int status = read_of(p, addr, LEN, remote.mr->rkey);

	check(status == IBV_WC_SUCCESS, "status %d", status);
	check(pattern_differs(local.buf, LEN, seed) < 0, "other octets than those");
}

/* Checks that end a cannot read there, which ends the stream. */
static void does_not_read(struct pair *p, const void *addr, uint32_t rkey)
{
	int status = read_of(p, addr, 64, rkey);

	check(status == IBV_WC_REM_ACCESS_ERR, "status %d", status);
	check(not_all(local.buf, LEN, 0x77) < 0, "octets were read");
}

/* Reregisters the region, which must give it new keys. */
static bool anew(uint32_t flags, struct ibv_pd *pd, void *addr, int access)
{
	uint32_t rkey = remote.mr->rkey;
	int error = rereg(remote.mr, flags, pd, addr, LEN, access);

	if (error)
		fail("reregistration: %s", strerror(error));
	else if (remote.mr->rkey == rkey)
		fail("the key is the same");
	return !test_failed();
}

PAIR_CASE(reregistration_with_other_memory)
{
	uint32_t old;

	must(prepare(p, p->b.pd, ALL_RIGHTS));
	old = remote.mr->rkey;
	must(anew(TRANSLATION, NULL, other, 0));
	reads(p, other, 2);
	must(!test_failed());
	does_not_read(p, remote.buf, old);
}

PAIR_CASE(reregistration_releases_old_memory)
{
	must(prepare(p, p->b.pd, ALL_RIGHTS));
	must(anew(TRANSLATION, NULL, other, 0));
	does_not_read(p, remote.buf, remote.mr->rkey);
}

PAIR_CASE(reregistration_with_more_rights)
{
	must(prepare(p, p->b.pd, IBV_ACCESS_LOCAL_WRITE));
	must(anew(ACCESS, NULL, NULL, ALL_RIGHTS));
	reads(p, remote.buf, 1);
}

PAIR_CASE(reregistration_with_fewer_rights)
{
	must(prepare(p, p->b.pd, ALL_RIGHTS));
	must(anew(ACCESS, NULL, NULL, IBV_ACCESS_LOCAL_WRITE));
	does_not_read(p, remote.buf, remote.mr->rkey);
}

PAIR_CASE(reregistration_in_other_domain)
{
	struct ibv_pd *pd = ibv_alloc_pd(p->b.pd->context);
	bool left;

	check(pd, "a domain: %s", strerror(errno));
	must(prepare(p, pd, ALL_RIGHTS));
	left = anew(PD, p->b.pd, NULL, 0);
	/* The region holds no reference to the first domain. */
	check(!ibv_dealloc_pd(pd), "the domain is in use");
	must(left);
	reads(p, remote.buf, 1);
}

PAIR_CASE(reregistration_takes_region_out_of_domain)
{
	struct ibv_pd *pd = ibv_alloc_pd(p->b.pd->context);

	check(pd, "a domain: %s", strerror(errno));
	must(prepare(p, p->b.pd, ALL_RIGHTS));
	must(anew(PD, pd, NULL, 0));
	does_not_read(p, remote.buf, remote.mr->rkey);
	must(region_release(&remote));
	check(!ibv_dealloc_pd(pd), "the domain is in use");
}

PAIR_CASE(reregistration_of_memory_domain_and_rights)
{
	struct ibv_pd *pd = ibv_alloc_pd(p->b.pd->context);

	check(pd, "a domain: %s", strerror(errno));
	must(prepare(p, pd, 0));
	must(anew(TRANSLATION | PD | ACCESS, p->b.pd, other, ALL_RIGHTS));
	check(!ibv_dealloc_pd(pd), "the domain is in use");
	reads(p, other, 2);
}

PAIR_CASE(repeated_reregistration)
{
	must(prepare(p, p->b.pd, ALL_RIGHTS));
	for (int i = 0; i < 100; i++) {
		bool to_other = i % 2 == 0;

		must(anew(TRANSLATION, NULL, to_other ? other : remote.buf, 0));
		must(anew(ACCESS, NULL, NULL, ALL_RIGHTS));
		reads(p, to_other ? other : remote.buf, to_other ? 2 : 1);
		must(!test_failed());
	}
}

/* A rejected change leaves the region as it was. */
PAIR_CASE(invalid_reregistration_changes_nothing)
{
	static const struct {
		uint32_t flags;
		uintptr_t addr;
		size_t len;
		int access;
		int error;
	} tries[] = {
		{ 0, 0, 0, 0, EINVAL },
		{ 1 << 3, 0, 0, 0, EOPNOTSUPP },
		{ TRANSLATION, 0, LEN, 0, EFAULT },
		{ TRANSLATION, 4096, 0, 0, EINVAL },
		{ TRANSLATION, (uintptr_t)-4096, LEN, 0, EINVAL },
		{ ACCESS, 0, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL },
		{ ACCESS, 0, 0, IBV_ACCESS_ON_DEMAND, EOPNOTSUPP },
		{ ACCESS, 0, 0, IBV_ACCESS_ZERO_BASED, EOPNOTSUPP },
	};
	uint32_t rkey;

	must(prepare(p, p->b.pd, ALL_RIGHTS));
	rkey = remote.mr->rkey;
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		int error = rereg(remote.mr, tries[i].flags, NULL, (void *)tries[i].addr,
				  tries[i].len, tries[i].access);

		check(error == tries[i].error, "number %zu: %s", i, strerror(error));
	}
	check(remote.mr->rkey == rkey, "the key has changed");
	reads(p, remote.buf, 1);
}

/* Memory that the process cannot write cannot get the right to write. */
PAIR_CASE(reregistration_of_read_only_memory)
{
	FILE *file = tmpfile();
	void *at;
	int error;

	must(prepare(p, p->b.pd, ALL_RIGHTS));
	check(file && fwrite(remote.buf, LEN, 1, file) == 1 && !fflush(file), "a file");
	at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fileno(file), 0);
	check(at != MAP_FAILED, "mmap: %s", strerror(errno));
	must(anew(TRANSLATION | ACCESS, NULL, at, IBV_ACCESS_REMOTE_READ));
	error = rereg(remote.mr, ACCESS, NULL, NULL, 0, ALL_RIGHTS);
	check(error == EACCES, "%s", strerror(error));
	reads(p, at, 1);
	fclose(file);
}

static struct ibv_mw *bound(struct pair *p, int *status)
{
	struct ibv_mw *mw = ibv_alloc_mw(p->b.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.wr_id = 9,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = remote.mr,
			       .addr = (uintptr_t)remote.buf,
			       .length = 64,
			       .mw_access_flags = IBV_ACCESS_REMOTE_READ },
	};
	struct ibv_wc wc;

	if (!mw || ibv_bind_mw(p->b.qp, mw, &bind) || !poll_wc(p->b.send_cq, &wc, SOON)) {
		fail("a window: %s", strerror(errno));
		return mw;
	}
	*status = wc.status;
	return mw;
}

PAIR_CASE(reregistration_adds_right_to_bind_windows)
{
	struct ibv_mw *mw;
	int status = -1, error;
	uint32_t rkey;

	if (!has_extensions())
		return test_skip("the library has no memory windows");
	must(prepare(p, p->b.pd, ALL_RIGHTS));
	must(anew(ACCESS, NULL, NULL, ALL_RIGHTS | IBV_ACCESS_MW_BIND));
	rkey = remote.mr->rkey;
	mw = bound(p, &status);
	must(mw && !test_failed());
	error = rereg(remote.mr, ACCESS, NULL, NULL, 0, ALL_RIGHTS);
	ibv_dealloc_mw(mw);
	check(status == IBV_WC_SUCCESS, "status %d", status);
	check(error == EBUSY, "with a window bound: %s", strerror(error));
	check(remote.mr->rkey == rkey, "the key has changed");
	reads(p, remote.buf, 1);
}

PAIR_CASE(reregistration_removes_right_to_bind_windows)
{
	struct ibv_mw *mw;
	int status = -1;

	if (!has_extensions())
		return test_skip("the library has no memory windows");
	must(prepare(p, p->b.pd, ALL_RIGHTS | IBV_ACCESS_MW_BIND));
	must(anew(ACCESS, NULL, NULL, ALL_RIGHTS));
	reads(p, remote.buf, 1);
	must(!test_failed());
	mw = bound(p, &status);
	if (mw)
		ibv_dealloc_mw(mw);
	must(!test_failed());
	check(status == IBV_WC_MW_BIND_ERR, "status %d", status);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(reregistration_with_other_memory);
	RUN(reregistration_releases_old_memory);
	RUN(reregistration_with_more_rights);
	RUN(reregistration_with_fewer_rights);
	RUN(reregistration_in_other_domain);
	RUN(reregistration_takes_region_out_of_domain);
	RUN(reregistration_of_memory_domain_and_rights);
	RUN(repeated_reregistration);
	RUN(invalid_reregistration_changes_nothing);
	RUN(reregistration_of_read_only_memory);
	RUN(reregistration_adds_right_to_bind_windows);
	RUN(reregistration_removes_right_to_bind_windows);
	return test_end();
}

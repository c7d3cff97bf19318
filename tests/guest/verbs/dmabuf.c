// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions on dma-bufs. Most come from udmabuf, which makes them of files in memory, so the
 * file shows what the device does to the region. Others come from ../exporter, whose memory moves.
 * The device's libraries lack the call, so the program issues it itself.
 */

#include "../exporter/exporter.h"
#include "common.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define LEN (64 * PAGE)
#define RIGHTS (ALL_RIGHTS | IBV_ACCESS_REMOTE_ATOMIC)

static struct region local, remote;
static struct dmabuf buffer;

/* Returns how many references the dma-buf has; 0 if unknown. */
static long holders(const struct dmabuf *b)
{
	char path[64], line[128];
	long count = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", b->fd);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "count: %ld", &count) == 1)
			break;
	if (f)
		fclose(f);
	return count;
}

/* The last close of a file takes effect a moment later. */
static bool held_by(const struct dmabuf *b, long count)
{
	int64_t end = now_ms() + SOON;

	while (holders(b) != count && now_ms() < end)
		sleep_ms(2);
	if (holders(b) != count)
		fail("the dma-buf has %ld holders, not %ld", holders(b), count);
	return !test_failed();
}

/* Makes a region of all of a new dma-buf, at the addresses of the process's mapping. */
static bool region_of(struct region *r, struct dmabuf *b, struct ibv_pd *pd, size_t len, int access)
{
	int error;

	if (!dmabuf_make(b, len))
		return false;
	r->buf = b->buf;
	r->len = len;
	error = dmabuf_reg(&r->mr, pd, b->fd, 0, len, (uintptr_t)b->buf, access);
	if (error) {
		fail("registering a dma-buf: %s", strerror(error));
		dmabuf_free(b);
		return false;
	}
	region_keep(r);
	return true;
}

/* End b has a dma-buf, end a ordinary memory. */
static bool prepare(struct pair *p, int access)
{
	if (!region_of(&remote, &buffer, p->b.pd, LEN, access))
		return false;
	return region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE);
}

/* Does one transfer between the ends; returns the status, or -1 if it did not complete. */
static int transfer(struct pair *p, enum ibv_wr_opcode op, size_t off, size_t len, uint64_t raddr)
{
	struct ibv_sge sge = sge_of(&local, off, len);
	struct ibv_send_wr wr = wr_rdma(op, 7, IBV_SEND_SIGNALED, &sge, 1, raddr, remote.mr->rkey);
	struct ibv_wc wc;

	if (!post_send(&p->a, &wr) || !poll_wc(p->a.send_cq, &wc, SOON))
		return -1;
	return wc.status;
}

/* End a reads `len` octets and gets the pattern. */
static void reads(struct pair *p, uint64_t raddr, size_t len, uint32_t seed)
{
	int status;

	memset(local.buf, 0x77, LEN);
	status = transfer(p, IBV_WR_RDMA_READ, 0, len, raddr);
	check(status == IBV_WC_SUCCESS, "status %d", status);
	check(pattern_differs(local.buf, len, seed) < 0, "octet %zd is another",
	      pattern_differs(local.buf, len, seed));
}

PAIR_CASE(write_and_read)
{
	const size_t sizes[] = { 1,	   63,	  1460,		 PAGE - 1, PAGE,
				 PAGE + 1, 65537, LEN - 3 * PAGE };

	must(prepare(p, ALL_RIGHTS));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		size_t len = sizes[i], off = 999 + i;
		uint64_t to = (uintptr_t)remote.buf + off;
		int status;

		memset(remote.buf, 0xee, LEN);
		pattern_fill(local.buf, len, i);
		status = transfer(p, IBV_WR_RDMA_WRITE, 0, len, to);
		check(status == IBV_WC_SUCCESS, "status %d", status);
		reads(p, to, len, i);
		must(!test_failed());
		check(pattern_differs(remote.buf + off, len, i) < 0, "%zu: not in the file", len);
		check(not_all(remote.buf, off, 0xee) < 0 &&
			      not_all(remote.buf + off + len, LEN - off - len, 0xee) < 0,
		      "%zu: written beside", len);
	}
}

/* Sends from one dma-buf into another, scattered over both. */
PAIR_CASE(send_and_receive)
{
	struct ibv_sge out[3], in[2];
	struct ibv_send_wr wr;
	struct dmabuf source;
	struct region from;
	struct ibv_wc wc;
	size_t len = 40000;

	must(prepare(p, IBV_ACCESS_LOCAL_WRITE));
	must(region_of(&from, &source, p->a.pd, LEN, 0));
	pattern_fill(from.buf, len, 3);
	memset(remote.buf, 0xee, LEN);
	out[0] = sge_of(&from, 0, 5000);
	out[1] = sge_of(&from, 5000, 1);
	out[2] = sge_of(&from, 5001, len - 5001);
	in[0] = sge_of(&remote, 100, 10000);
	in[1] = sge_of(&remote, 10100, LEN - 10100);
	wr = wr_make(IBV_WR_SEND, 1, IBV_SEND_SIGNALED, out, 3);
	must(post_recv_sges(&p->b, 2, in, 2) && post_send(&p->a, &wr));
	must(expect_wc(p->b.recv_cq, &wc, 2, IBV_WC_SUCCESS));
	check(wc.byte_len == len, "%u octets", wc.byte_len);
	check(pattern_differs(remote.buf + 100, len, 3) < 0, "other octets arrived");
	check(not_all(remote.buf, 100, 0xee) < 0 &&
		      not_all(remote.buf + 100 + len, LEN - 100 - len, 0xee) < 0,
	      "written beside");
	close(source.fd);
}

/* The sink of a Read of ordinary memory. */
PAIR_CASE(dma_buf_is_sink_of_read)
{
	struct region from;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;

	must(prepare(p, IBV_ACCESS_LOCAL_WRITE));
	must(region_make(&from, p->a.pd, LEN, ALL_RIGHTS));
	pattern_fill(from.buf, LEN, 4);
	sge = sge_of(&remote, 0, LEN);
	wr = wr_rdma(IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)from.buf,
		     from.mr->rkey);
	must(post_send(&p->b, &wr) && expect_wc(p->b.send_cq, &wc, 1, IBV_WC_SUCCESS));
	check(pattern_differs(remote.buf, LEN, 4) < 0, "other octets arrived");
}

PAIR_CASE(atomics)
{
	uint64_t *word;

	if (!has_extensions())
		return test_skip("the library has no atomic operations");
#ifndef __x86_64__
	/* The memory may be mapped without the caches. */
	{
		int now, later;

		must(prepare(p, ALL_RIGHTS));
		now = dmabuf_reg(&remote.mr, p->b.pd, buffer.fd, 0, LEN, 0, RIGHTS);
		later = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, RIGHTS);
		check(now == EOPNOTSUPP && later == EOPNOTSUPP, "%d, %d", now, later);
		return;
	}
#endif
	must(prepare(p, RIGHTS));
	word = (uint64_t *)(remote.buf + 2 * PAGE - 8);
	*word = 40;
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = sge_of(&local, 8 * i, 8);
		struct ibv_send_wr wr = wr_make(i ? IBV_WR_ATOMIC_CMP_AND_SWP :
						    IBV_WR_ATOMIC_FETCH_AND_ADD,
						i, IBV_SEND_SIGNALED, &sge, 1);
		struct ibv_wc wc;

		wr.wr.atomic.remote_addr = (uintptr_t)word;
		wr.wr.atomic.rkey = remote.mr->rkey;
		wr.wr.atomic.compare_add = i ? 42 : 2;
		wr.wr.atomic.swap = 7;
		must(post_send(&p->a, &wr) && expect_wc(p->a.send_cq, &wc, i, IBV_WC_SUCCESS));
	}
	check(((uint64_t *)local.buf)[0] == 40 && ((uint64_t *)local.buf)[1] == 42 && *word == 7,
	      "%lu, %lu, %lu", ((uint64_t *)local.buf)[0], ((uint64_t *)local.buf)[1], *word);
}

/* A part of the dma-buf, at another iova. */
PAIR_CASE(part_of_dma_buf_at_other_iova)
{
	const size_t offset = 5 * PAGE + 40, len = 3 * PAGE;
	const uint64_t iova = 0x7000000000ULL + 40;
	struct dmabuf b;
	int error, status;

	must(dmabuf_make(&b, LEN));
	must(region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	remote = (struct region){ .buf = b.buf, .len = LEN };
	error = dmabuf_reg(&remote.mr, p->b.pd, b.fd, offset, len, iova, ALL_RIGHTS);
	check(!error, "%s", strerror(error));
	region_keep(&remote);
	memset(b.buf, 0xee, LEN);
	pattern_fill(local.buf, len, 5);
	status = transfer(p, IBV_WR_RDMA_WRITE, 0, len, iova);
	check(status == IBV_WC_SUCCESS, "status %d", status);
	reads(p, iova, len, 5);
	must(!test_failed());
	check(pattern_differs(b.buf + offset, len, 5) < 0, "not where it belongs");
	check(not_all(b.buf, offset, 0xee) < 0 &&
		      not_all(b.buf + offset + len, LEN - offset - len, 0xee) < 0,
	      "written beside");
	/* The region ends at its length, not at the end of the dma-buf. */
	status = transfer(p, IBV_WR_RDMA_READ, 0, 64, iova + len - 63);
	check(status == IBV_WC_REM_ACCESS_ERR, "beyond the end: status %d", status);
	close(b.fd);
}

PAIR_CASE(invalid_dma_buf_registrations_are_refused)
{
	int file = memfd_create("no dma-buf", MFD_CLOEXEC);
	const struct {
		int fd;
		uint64_t offset, len, iova;
		uint32_t access;
		int error;
	} tries[] = {
		{ 12345, 0, LEN, 0, RIGHTS, EBADF },
		{ -1, 0, LEN, 0, RIGHTS, EBADF },
		{ file, 0, LEN, 0, RIGHTS, EINVAL },
		{ -2, 0, 0, 0, RIGHTS, EINVAL },
		{ -2, 0, LEN + 1, 0, RIGHTS, EINVAL },
		{ -2, PAGE, LEN, 0, RIGHTS, EINVAL },
		{ -2, LEN, 1, 0, RIGHTS, EINVAL },
		{ -2, -(uint64_t)PAGE, 2 * PAGE, 0, RIGHTS, EINVAL },
		{ -2, 0, ~0ULL, 0, RIGHTS, EINVAL },
		{ -2, 0, 2 * PAGE, -(uint64_t)PAGE, RIGHTS, EINVAL },
		/* The offset in the page must be the same. */
		{ -2, 8, PAGE, 0, RIGHTS, EINVAL },
		{ -2, 0, LEN, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL },
		{ -2, 0, LEN, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, EINVAL },
		{ -2, 0, LEN, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED, EINVAL },
	};
	struct dmabuf b;
	struct ibv_mr *mr;

	must(dmabuf_make(&b, LEN));
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		int error = dmabuf_reg(&mr, p->b.pd, tries[i].fd == -2 ? b.fd : tries[i].fd,
				tries[i].offset, tries[i].len, tries[i].iova, tries[i].access);

		check(error == tries[i].error, "number %zu: %s", i, strerror(error));
	}
	/* The failed attempts leave no references. */
	must(held_by(&b, 1));
	dmabuf_free(&b);
	close(file);
	must(exchange_works(p));
}

/* A peer does not get a missing right, whatever the dma-buf allows. */
PAIR_CASE(access_rights_of_dma_buf_region_are_enforced)
{
	int status;

	must(prepare(p, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	pattern_fill(remote.buf, LEN, 6);
	reads(p, (uintptr_t)remote.buf, LEN, 6);
	must(!test_failed());
	memset(local.buf, 0x33, LEN);
	status = transfer(p, IBV_WR_RDMA_WRITE, 0, 64, (uintptr_t)remote.buf);
	/* The Write itself completes when TCP has it; the end of the stream shows the refusal. */
	check(status != -1, "no completion");
	must(qp_reaches(p->a.qp, IBV_QPS_ERR, SOON));
	check(pattern_differs(remote.buf, LEN, 6) < 0, "it was written");
}

/* Registering a read-only descriptor does not give the right to write. */
PAIR_CASE(read_only_descriptor_allows_no_writes)
{
	struct dma_heap_allocation_data data = { .len = LEN, .fd_flags = O_RDONLY | O_CLOEXEC };
	int heap = open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC), error;

	if (heap < 0)
		return test_skip("no heap: %s", strerror(errno));
	check(!ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data), "a dma-buf: %s", strerror(errno));
	close(heap);
	error = dmabuf_reg(&remote.mr, p->b.pd, data.fd, 0, LEN, 0, ALL_RIGHTS);
	check(error == EACCES, "for writing: %s", strerror(error));
	error = dmabuf_reg(&remote.mr, p->b.pd, data.fd, 0, LEN, 0, IBV_ACCESS_REMOTE_READ);
	check(!error, "for reading: %s", strerror(error));
	must(region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	memset(local.buf, 0x77, LEN);
	error = transfer(p, IBV_WR_RDMA_READ, 0, LEN, 0);
	if (error != IBV_WC_SUCCESS || not_all(local.buf, LEN, 0) >= 0)
		fail("a Read: status %d", error);
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_RIGHTS);
	if (error != EACCES)
		fail("the right to write, later: %s", strerror(error));
	ibv_dereg_mr(remote.mr);
	close(data.fd);
}

/* The region needs neither the descriptor nor a mapping. */
PAIR_CASE(region_works_after_descriptor_is_closed)
{
	must(prepare(p, ALL_RIGHTS));
	pattern_fill(remote.buf, LEN, 8);
	check(!close(buffer.fd), "close: %s", strerror(errno));
	check(!munmap(remote.buf, LEN), "munmap: %s", strerror(errno));
	for (int i = 0; i < 20; i++) {
		reads(p, (uintptr_t)remote.buf, LEN, 8);
		must(!test_failed());
	}
}

PAIR_CASE(a_region_holds_the_dma_buf)
{
	struct ibv_mr *mrs[8];
	int error;

	must(prepare(p, ALL_RIGHTS));
	must(held_by(&buffer, 2));
	pattern_fill(remote.buf, LEN, 9);
	/* Several regions of one dma-buf, released in another order than made. */
	for (size_t i = 0; i < ARRAY_SIZE(mrs); i++) {
		error = dmabuf_reg(&mrs[i], p->b.pd, buffer.fd, i * PAGE, PAGE, i * PAGE, ALL_RIGHTS);
		check(!error, "region %zu: %s", i, strerror(error));
	}
	must(held_by(&buffer, 2 + ARRAY_SIZE(mrs)));
	for (size_t i = 0; i < ARRAY_SIZE(mrs); i++)
		check(!ibv_dereg_mr(mrs[i]), "deregistering %zu", i);
	must(held_by(&buffer, 2));
	reads(p, (uintptr_t)remote.buf, LEN, 9);
	must(!test_failed());
	must(region_release(&remote));
	must(held_by(&buffer, 1));
	dmabuf_free(&buffer);
}

/* Without its key a peer cannot access the region, nor the device the memory. */
PAIR_CASE(deregistered_under_traffic)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	uint32_t rkey;
	int done = 0, posted = 32;

	must(prepare(p, ALL_RIGHTS));
	rkey = remote.mr->rkey;
	sge = sge_of(&local, 0, LEN);
	wr = wr_rdma(IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, &sge, 1, (uintptr_t)remote.buf, rkey);
	for (int i = 0; i < posted; i++)
		must(post_send(&p->a, &wr));
	must(region_release(&remote));
	/* In case all of them were faster. */
	posted += try_send(&p->a, &wr) == 0;
	must(held_by(&buffer, 1));
	dmabuf_free(&buffer);
	while (done < posted && poll_wc(p->a.send_cq, &wc, SOON))
		done++;
	check(done == posted, "%d completions", done);
	check(wc.status != IBV_WC_SUCCESS, "the last Read succeeded");
	world_is_well();
}

PAIR_CASE(reregistration_of_dma_buf_region)
{
	struct region other;
	uint32_t old;
	int error, status;

	must(prepare(p, IBV_ACCESS_LOCAL_WRITE));
	pattern_fill(remote.buf, LEN, 10);
	old = remote.mr->rkey;
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_RIGHTS);
	check(!error && remote.mr->rkey != old, "other rights: %s", strerror(error));
	reads(p, (uintptr_t)remote.buf, LEN, 10);
	must(!test_failed());
	/* Reregistration with other memory releases the dma-buf. */
	must(held_by(&buffer, 2));
	must(region_make(&other, p->b.pd, LEN, ALL_RIGHTS));
	pattern_fill(other.buf, LEN, 11);
	error = rereg(remote.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other.buf, LEN, 0);
	check(!error, "other memory: %s", strerror(error));
	must(held_by(&buffer, 1));
	reads(p, (uintptr_t)other.buf, LEN, 11);
	must(!test_failed());
	status = transfer(p, IBV_WR_RDMA_READ, 0, 64, (uintptr_t)remote.buf);
	check(status == IBV_WC_REM_ACCESS_ERR, "the memory before: status %d", status);
	close(buffer.fd);
}

/* Calls the exporter whose memory moves; returns an errno. */
static int exporter(unsigned long request, void *argument)
{
	int file = open("/dev/dmabuf_exporter", O_RDWR | O_CLOEXEC);
	int error = file < 0 || ioctl(file, request, argument) < 0 ? errno : 0;

	close(file);
	return error;
}

/* Makes a dma-buf of that exporter, of so many octets with a pattern. */
static bool moving_make(struct dmabuf *b, enum exporter_kind kind, uint32_t seed)
{
	struct exporter_make how = { .len = LEN, .kind = kind };
	int file = open("/dev/dmabuf_exporter", O_RDWR | O_CLOEXEC);

	b->len = LEN;
	b->fd = ioctl(file, EXPORTER_MAKE, &how);
	if (b->fd < 0) {
		fail("a dma-buf of the exporter: %s", strerror(errno));
		close(file);
		return false;
	}
	close(file);
	b->buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
	if (b->buf == MAP_FAILED) {
		fail("mmap: %s", strerror(errno));
		return false;
	}
	pattern_fill(b->buf, LEN, seed);
	return true;
}

static int evict(const struct dmabuf *b)
{
	return exporter(EXPORTER_EVICT, (void *)(uintptr_t)b->fd);
}

/* Checks who holds the memory; a release takes effect a moment later at most. */
static bool held_as(const struct dmabuf *b, uint32_t attached, uint32_t pinned, uint32_t mapped)
{
	struct exporter_state state = { .fd = b->fd };
	int64_t end = now_ms() + SOON;
	int error;

	while (!(error = exporter(EXPORTER_LOOK, &state))) {
		if (state.attached == attached && state.pinned == pinned && state.mapped == mapped)
			return true;
		if (now_ms() >= end)
			break;
		sleep_ms(2);
	}
	fail("%s; attached %u of %u, pinned %u of %u, mapped %u of %u", strerror(error),
	     state.attached, attached, state.pinned, pinned, state.mapped, mapped);
	return false;
}

/* While a region exists, peers access the memory of the dma-buf. */
static void the_memory_does_not_move(struct pair *p, enum exporter_kind kind)
{
	const uint32_t pins = kind == EXPORTER_PINS_IN_PIN;
	struct ibv_mr *second;
	int error, status;

	must(moving_make(&buffer, kind, 20));
	must(region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE));
	remote = (struct region){ .buf = buffer.buf, .len = LEN };
	must(held_as(&buffer, 0, 0, 0));
	error = dmabuf_reg(&remote.mr, p->b.pd, buffer.fd, 0, LEN, (uintptr_t)remote.buf, ALL_RIGHTS);
	check(!error, "registering: %s", strerror(error));
	must(held_as(&buffer, 1, pins, 1));
	error = evict(&buffer);
	check(error == EBUSY, "evicting under a region: %s", strerror(error));
	reads(p, (uintptr_t)remote.buf, LEN, 20);
	must(!test_failed());
	pattern_fill(local.buf, LEN, 21);
	status = transfer(p, IBV_WR_RDMA_WRITE, 0, LEN, (uintptr_t)remote.buf);
	check(status == IBV_WC_SUCCESS, "a Write: status %d", status);
	reads(p, (uintptr_t)remote.buf, LEN, 21);
	must(!test_failed());
	check(pattern_differs(buffer.buf, LEN, 21) < 0, "the process sees other octets");

	error = dmabuf_reg(&second, p->b.pd, buffer.fd, PAGE, PAGE, 0, ALL_RIGHTS);
	check(!error, "a second region: %s", strerror(error));
	must(held_as(&buffer, 2, 2 * pins, 1));
	must(region_release(&remote));
	must(held_as(&buffer, 1, pins, 1));
	error = evict(&buffer);
	check(error == EBUSY, "evicting under the second region: %s", strerror(error));
	check(!ibv_dereg_mr(second), "deregistering the second");
	must(held_as(&buffer, 0, 0, 0));

	/* Without a region the memory moves, and the next region finds it. */
	error = evict(&buffer);
	check(!error, "evicting: %s", strerror(error));
	check(not_all(buffer.buf, LEN, EXPORTER_POISON) < 0, "it has not moved");
	error = dmabuf_reg(&remote.mr, p->b.pd, buffer.fd, 0, LEN, (uintptr_t)remote.buf, ALL_RIGHTS);
	check(!error, "registering again: %s", strerror(error));
	reads(p, (uintptr_t)remote.buf, LEN, 21);
	must(!test_failed());
	must(region_release(&remote));
	must(held_as(&buffer, 0, 0, 0));
	dmabuf_free(&buffer);
}

PAIR_CASE(exporter_that_pins_in_attach)
{
	the_memory_does_not_move(p, EXPORTER_PINS_IN_ATTACH);
}

PAIR_CASE(exporter_that_pins_in_pin)
{
	the_memory_does_not_move(p, EXPORTER_PINS_IN_PIN);
}

/*
 * An error of the exporter is returned, without a message in the kernel's log; no reference stays.
 */
PAIR_CASE(exporter_errors_are_returned)
{
	const struct {
		enum exporter_kind kind;
		int error;
	} tries[] = {
		{ EXPORTER_ATTACH_FAILS, ENOTUNIQ },
		{ EXPORTER_PIN_FAILS, ENOTUNIQ },
		{ EXPORTER_VMAP_FAILS, ENOTUNIQ },
		{ EXPORTER_VMAP_IS_NULL, ENOMEM },
	};
	struct ibv_mr *mr;

	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		must(moving_make(&buffer, tries[i].kind, 22));
		for (int again = 0; again < 2; again++) {
			int error = dmabuf_reg(&mr, p->b.pd, buffer.fd, 0, LEN, 0, ALL_RIGHTS);

			check(error == tries[i].error, "number %zu: %s", i, strerror(error));
			must(held_as(&buffer, 0, 0, 0));
		}
		/* The remaining references are the descriptor and the process's own mapping. */
		must(held_by(&buffer, 2));
		dmabuf_free(&buffer);
	}
	must(exchange_works(p));
}

/* Run by the child that is killed: reports that it is ready, and reads for ever. */
static void victim(struct pair *p)
{
	int error;

	remote = (struct region){ .buf = buffer.buf, .len = LEN };
	error = dmabuf_reg(&remote.mr, p->b.pd, buffer.fd, 0, LEN, (uintptr_t)buffer.buf, ALL_RIGHTS);
	if (error || !region_make(&local, p->a.pd, LEN, IBV_ACCESS_LOCAL_WRITE))
		_exit(1);
	for (bool first = true;; first = false) {
		if (transfer(p, IBV_WR_RDMA_READ, 0, LEN, (uintptr_t)remote.buf) != IBV_WC_SUCCESS)
			_exit(2);
		if (first)
			victim_ready();
	}
}

static void killed_process_releases_dma_buf(void)
{
	must(dmabuf_make(&buffer, LEN));
	must(killed_in(victim));
	must(held_by(&buffer, 1));
	dmabuf_free(&buffer);
	world_is_well();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv);
	RUN(killed_process_releases_dma_buf);
	RUN(write_and_read);
	RUN(send_and_receive);
	RUN(dma_buf_is_sink_of_read);
	RUN(atomics);
	RUN(part_of_dma_buf_at_other_iova);
	RUN(invalid_dma_buf_registrations_are_refused);
	RUN(access_rights_of_dma_buf_region_are_enforced);
	RUN(read_only_descriptor_allows_no_writes);
	RUN(region_works_after_descriptor_is_closed);
	RUN(a_region_holds_the_dma_buf);
	RUN(deregistered_under_traffic);
	RUN(reregistration_of_dma_buf_region);
	RUN(exporter_that_pins_in_attach);
	RUN(exporter_that_pins_in_pin);
	RUN(exporter_errors_are_returned);
	return test_end();
}

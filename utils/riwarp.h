/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Operations of RFC 7306 for which libibverbs has no call, on devices of link type riwarp and
 * riwarp_ib, whose library (librxe) passes on what it does not know. Other devices refuse the
 * requests, or complete them with an error. Each function fills in a work request for
 * ibv_post_send(), and its list. The requests cannot be inline.
 *
 * Atomic operations: the first element of the list is where the old value of the 64 bits goes; the
 * caller sets it, with a length of 8. The others have no memory; they carry operands in the place of
 * addresses. The queue pair needs max_send_sge of 3 for an addition, 5 for the others. The completion
 * is IBV_WC_FETCH_ADD or IBV_WC_COMP_SWAP. The region needs IBV_ACCESS_REMOTE_ATOMIC, the address a
 * multiple of 8. The peer may be any device with the atomic operations of RFC 7306.
 *
 *	struct ibv_sge sge[5] = { { (uintptr_t)&old, sizeof(old), mr->lkey } };
 *	struct ibv_send_wr wr = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
 *
 *	riwarp_masked_cmp_swp(&wr, sge, addr, rkey, 0x100, 0xff00, 7, 0xff);
 *	ibv_post_send(qp, &wr, &bad);
 *
 * The same from pyverbs:
 *
 *	sge = [SGE(mr.buf, 8, mr.lkey)] + [SGE(x, 0, 0) for x in (0x100, 0xff00, 7, 0xff)]
 *	wr = SendWR(wr_id=1, opcode=12, num_sge=5, sg=sge, imm_data=rkey)
 *	wr.set_wr_rdma(rkey, addr)
 *	qp.post_send(wr)
 */
#ifndef RIWARP_H
#define RIWARP_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP, IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD */
#define RIWARP_WR_MASKED_CMP_AND_SWP 12
#define RIWARP_WR_MASKED_FETCH_AND_ADD 13

static inline void riwarp_atomic(struct ibv_send_wr *wr, int opcode, struct ibv_sge *sge,
				 const uint64_t *operands, int count, uint64_t remote_addr,
				 uint32_t rkey)
{
	for (int i = 0; i < count; i++) {
		sge[1 + i].addr = operands[i];
		sge[1 + i].length = 0;
		sge[1 + i].lkey = 0;
	}
	wr->opcode = (enum ibv_wr_opcode)opcode;
	wr->sg_list = sge;
	wr->num_sge = 1 + count;
	wr->wr.rdma.remote_addr = remote_addr;
	/* As it is: librxe passes on this field whatever the opcode. */
	wr->imm_data = rkey;
}

/* Adds; no carry leaves a bit that is set in `boundary`. sge: 3 elements. */
static inline void riwarp_masked_fetch_add(struct ibv_send_wr *wr, struct ibv_sge *sge,
					   uint64_t remote_addr, uint32_t rkey, uint64_t add,
					   uint64_t boundary)
{
	const uint64_t operands[] = { add, boundary };

	riwarp_atomic(wr, RIWARP_WR_MASKED_FETCH_AND_ADD, sge, operands, 2, remote_addr, rkey);
}

/*
 * Stores the bits of `swap` that `swap_mask` has, if the bits that `compare_mask` has are those of
 * `compare`. sge: 5 elements.
 */
static inline void riwarp_masked_cmp_swp(struct ibv_send_wr *wr, struct ibv_sge *sge,
					 uint64_t remote_addr, uint32_t rkey, uint64_t compare,
					 uint64_t compare_mask, uint64_t swap, uint64_t swap_mask)
{
	const uint64_t operands[] = { compare, compare_mask, swap, swap_mask };

	riwarp_atomic(wr, RIWARP_WR_MASKED_CMP_AND_SWP, sge, operands, 4, remote_addr, rkey);
}

/* Stores `swap`, whatever was there. sge: 5 elements. */
static inline void riwarp_swap(struct ibv_send_wr *wr, struct ibv_sge *sge, uint64_t remote_addr,
			       uint32_t rkey, uint64_t swap)
{
	riwarp_masked_cmp_swp(wr, sge, remote_addr, rkey, 0, 0, swap, ~0ULL);
}

/*
 * Immediate Data: RFC 7306 has eight octets, libibverbs four, which are the first of them. The
 * completion at the peer is IBV_WC_RECV_RDMA_WITH_IMM, with the octets of the Write before as its
 * byte_len, or 0. IBV_SEND_SOLICITED has its usual meaning. IBV_WR_DRIVER1.
 */
#define RIWARP_WR_IMMEDIATE_DATA 11

/*
 * Flags of a completion of Immediate Data, however it was sent: src_qp has its last four octets, as
 * they are. With the second one imm_data has them too, and the first four are zero.
 */
#define RIWARP_WC_IMMEDIATE_DATA (1U << 24)
#define RIWARP_WC_IMMEDIATE_DATA_LAST (1U << 25)

/* Sends these eight octets alone; their completion is IBV_WC_SEND. sge: 1 element. */
static inline void riwarp_immediate_data(struct ibv_send_wr *wr, struct ibv_sge *sge,
					 const void *data)
{
	memcpy(&sge[0].addr, data, 8);
	sge[0].length = 0;
	sge[0].lkey = 0;
	wr->opcode = (enum ibv_wr_opcode)RIWARP_WR_IMMEDIATE_DATA;
	wr->sg_list = sge;
	wr->num_sge = 1;
}

/*
 * Writes the first `count` elements of the list, which may be 0, and sends these eight octets behind
 * them; one completion, IBV_WC_RDMA_WRITE. sge: 1 element more, max_send_sge too.
 */
static inline void riwarp_write_immediate_data(struct ibv_send_wr *wr, struct ibv_sge *sge,
					       int count, uint64_t remote_addr, uint32_t rkey,
					       const void *data)
{
	riwarp_immediate_data(wr, sge + count, data);
	sge[count].lkey = 1;
	wr->sg_list = sge;
	wr->num_sge = count + 1;
	wr->wr.rdma.remote_addr = remote_addr;
	wr->imm_data = rkey;
}

/* Copies the eight octets of Immediate Data. False, without effect, if the completion has none. */
static inline bool riwarp_wc_immediate_data(const struct ibv_wc *wc, void *data)
{
	if (wc->status != IBV_WC_SUCCESS || !(wc->wc_flags & RIWARP_WC_IMMEDIATE_DATA))
		return false;
	memset(data, 0, 4);
	if (!(wc->wc_flags & RIWARP_WC_IMMEDIATE_DATA_LAST))
		memcpy(data, &wc->imm_data, 4);
	memcpy((char *)data + 4, &wc->src_qp, 4);
	return true;
}

#endif

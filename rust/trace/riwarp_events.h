/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The trace events of riwarp, as the kernel's macros want them: the only C here that is more than a
 * one-line helper. docs/debugging.md says what each event means; rust/trace.rs calls them.
 *
 * Fields stay as they are: scripts of users name them. New ones go to the end.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM riwarp

#if !defined(_RIWARP_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RIWARP_EVENTS_H

#include <linux/tracepoint.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>
#include <trace/misc/rdma.h>

/* The opcodes of RDMAP; from 0x10 on with the reserved bits that mark messages of riwarp. */
#define riwarp_show_opcode(x)				\
	__print_symbolic(x,				\
		{ 0x0, "WRITE" },			\
		{ 0x1, "READ_REQUEST" },		\
		{ 0x2, "READ_RESPONSE" },		\
		{ 0x3, "SEND" },			\
		{ 0x4, "SEND_INVALIDATE" },		\
		{ 0x5, "SEND_SOLICITED" },		\
		{ 0x6, "SEND_SOLICITED_INVALIDATE" },	\
		{ 0x7, "TERMINATE" },			\
		{ 0x8, "IMMEDIATE" },			\
		{ 0x9, "IMMEDIATE_SOLICITED" },		\
		{ 0xa, "ATOMIC_REQUEST" },		\
		{ 0xb, "ATOMIC_RESPONSE" },		\
		{ 0xf, "SEND_IMMEDIATE" },		\
		{ 0x10, "ATOMIC_WRITE" },		\
		{ 0x11, "FLUSH" },			\
		{ 0x1f, "SEND_SOLICITED_IMMEDIATE" },	\
		{ 0x2f, "FEATURES" })

/* enum ib_wc_opcode, which trace/misc/rdma.h lacks. */
#define RIWARP_WR_OPCODES		\
	riwarp_wr(SEND)			\
	riwarp_wr(RDMA_WRITE)		\
	riwarp_wr(RDMA_READ)		\
	riwarp_wr(COMP_SWAP)		\
	riwarp_wr(FETCH_ADD)		\
	riwarp_wr(BIND_MW)		\
	riwarp_wr(LOCAL_INV)		\
	riwarp_wr(REG_MR)		\
	riwarp_wr(MASKED_COMP_SWAP)	\
	riwarp_wr(MASKED_FETCH_ADD)	\
	riwarp_wr(FLUSH)		\
	riwarp_wr(ATOMIC_WRITE)		\
	riwarp_wr(RECV)			\
	riwarp_wr_end(RECV_RDMA_WITH_IMM)

#undef riwarp_wr
#undef riwarp_wr_end
#define riwarp_wr(x)		TRACE_DEFINE_ENUM(IB_WC_##x);
#define riwarp_wr_end(x)	TRACE_DEFINE_ENUM(IB_WC_##x);
RIWARP_WR_OPCODES

#undef riwarp_wr
#undef riwarp_wr_end
#define riwarp_wr(x)		{ IB_WC_##x, #x },
#define riwarp_wr_end(x)	{ IB_WC_##x, #x }
#define riwarp_show_wr_opcode(x)	__print_symbolic(x, RIWARP_WR_OPCODES)

TRACE_EVENT(riwarp_conn_phase,
	TP_PROTO(const char *dev, u64 conn, u32 qpn, const char *phase),
	TP_ARGS(dev, conn, qpn, phase),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u64, conn)
		__field(u32, qpn)
		__string(phase, phase)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->conn = conn;
		__entry->qpn = qpn;
		__assign_str(phase);
	),
	TP_printk("dev=%s conn=%llu qpn=%u phase=%s",
		__get_str(dev), __entry->conn, __entry->qpn, __get_str(phase))
);

TRACE_EVENT(riwarp_conn_refused,
	TP_PROTO(const char *dev, u64 conn, const char *local, const char *peer,
		 const char *reason),
	TP_ARGS(dev, conn, local, peer, reason),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u64, conn)
		__string(local, local)
		__string(peer, peer)
		__string(reason, reason)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->conn = conn;
		__assign_str(local);
		__assign_str(peer);
		__assign_str(reason);
	),
	TP_printk("dev=%s conn=%llu local=%s peer=%s reason=\"%s\"",
		__get_str(dev), __entry->conn, __get_str(local), __get_str(peer),
		__get_str(reason))
);

TRACE_EVENT(riwarp_conn_established,
	TP_PROTO(const char *dev, u64 conn, u32 qpn, const char *local, const char *peer,
		 u8 mpa_rev, bool crc, bool markers, u32 ird, u32 ord),
	TP_ARGS(dev, conn, qpn, local, peer, mpa_rev, crc, markers, ird, ord),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u64, conn)
		__field(u32, qpn)
		__string(local, local)
		__string(peer, peer)
		__field(u8, mpa_rev)
		__field(bool, crc)
		__field(bool, markers)
		__field(u32, ird)
		__field(u32, ord)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->conn = conn;
		__entry->qpn = qpn;
		__assign_str(local);
		__assign_str(peer);
		__entry->mpa_rev = mpa_rev;
		__entry->crc = crc;
		__entry->markers = markers;
		__entry->ird = ird;
		__entry->ord = ord;
	),
	TP_printk("dev=%s conn=%llu qpn=%u local=%s peer=%s mpa_rev=%u crc=%d markers=%d ird=%u ord=%u",
		__get_str(dev), __entry->conn, __entry->qpn, __get_str(local),
		__get_str(peer), __entry->mpa_rev, __entry->crc, __entry->markers,
		__entry->ird, __entry->ord)
);

TRACE_EVENT(riwarp_conn_closed,
	TP_PROTO(const char *dev, u64 conn, u32 qpn, const char *reason),
	TP_ARGS(dev, conn, qpn, reason),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u64, conn)
		__field(u32, qpn)
		__string(reason, reason)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->conn = conn;
		__entry->qpn = qpn;
		__assign_str(reason);
	),
	TP_printk("dev=%s conn=%llu qpn=%u reason=\"%s\"",
		__get_str(dev), __entry->conn, __entry->qpn, __get_str(reason))
);

TRACE_EVENT(riwarp_post_send,
	TP_PROTO(const char *dev, u32 qpn, u32 posted),
	TP_ARGS(dev, qpn, posted),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(u32, posted)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->posted = posted;
	),
	TP_printk("dev=%s qpn=%u posted=%u", __get_str(dev), __entry->qpn, __entry->posted)
);

TRACE_EVENT(riwarp_wr_start,
	TP_PROTO(const char *dev, u32 qpn, s64 seq, u64 wr_id, u32 opcode, u32 len),
	TP_ARGS(dev, qpn, seq, wr_id, opcode, len),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(s64, seq)
		__field(u64, wr_id)
		__field(u32, opcode)
		__field(u32, len)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->seq = seq;
		__entry->wr_id = wr_id;
		__entry->opcode = opcode;
		__entry->len = len;
	),
	TP_printk("dev=%s qpn=%u seq=%lld wr_id=0x%llx opcode=%s len=%u",
		__get_str(dev), __entry->qpn, __entry->seq, __entry->wr_id,
		riwarp_show_wr_opcode(__entry->opcode), __entry->len)
);

TRACE_EVENT(riwarp_message_out,
	TP_PROTO(const char *dev, u32 qpn, s64 seq, u8 opcode, u32 len),
	TP_ARGS(dev, qpn, seq, opcode, len),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(s64, seq)
		__field(u8, opcode)
		__field(u32, len)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->seq = seq;
		__entry->opcode = opcode;
		__entry->len = len;
	),
	TP_printk("dev=%s qpn=%u seq=%lld opcode=%s len=%u",
		__get_str(dev), __entry->qpn, __entry->seq,
		riwarp_show_opcode(__entry->opcode), __entry->len)
);

TRACE_EVENT(riwarp_wr_complete,
	TP_PROTO(const char *dev, u32 qpn, s64 seq, u64 wr_id, u32 opcode, u32 status, u32 len),
	TP_ARGS(dev, qpn, seq, wr_id, opcode, status, len),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(s64, seq)
		__field(u64, wr_id)
		__field(u32, opcode)
		__field(u32, status)
		__field(u32, len)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->seq = seq;
		__entry->wr_id = wr_id;
		__entry->opcode = opcode;
		__entry->status = status;
		__entry->len = len;
	),
	TP_printk("dev=%s qpn=%u seq=%lld wr_id=0x%llx opcode=%s status=%s len=%u",
		__get_str(dev), __entry->qpn, __entry->seq, __entry->wr_id,
		riwarp_show_wr_opcode(__entry->opcode), rdma_show_wc_status(__entry->status),
		__entry->len)
);

TRACE_EVENT(riwarp_fpdu_in,
	TP_PROTO(const char *dev, u32 qpn, u8 opcode, u16 len, bool last),
	TP_ARGS(dev, qpn, opcode, len, last),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(u8, opcode)
		__field(u16, len)
		__field(bool, last)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->opcode = opcode;
		__entry->len = len;
		__entry->last = last;
	),
	TP_printk("dev=%s qpn=%u opcode=%s len=%u last=%d",
		__get_str(dev), __entry->qpn, riwarp_show_opcode(__entry->opcode),
		__entry->len, __entry->last)
);

TRACE_EVENT(riwarp_receive_wait,
	TP_PROTO(const char *dev, u32 qpn, bool begins),
	TP_ARGS(dev, qpn, begins),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(bool, begins)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->begins = begins;
	),
	TP_printk("dev=%s qpn=%u begins=%d", __get_str(dev), __entry->qpn, __entry->begins)
);

TRACE_EVENT(riwarp_injected,
	TP_PROTO(const char *dev, u32 qpn, u64 wr_id, u32 rule),
	TP_ARGS(dev, qpn, wr_id, rule),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(u64, wr_id)
		__field(u32, rule)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->wr_id = wr_id;
		__entry->rule = rule;
	),
	TP_printk("dev=%s qpn=%u wr_id=0x%llx rule=%u", __get_str(dev), __entry->qpn,
		  __entry->wr_id, __entry->rule)
);

TRACE_EVENT(riwarp_strict,
	TP_PROTO(const char *dev, u32 qpn, u64 wr_id, u32 rule),
	TP_ARGS(dev, qpn, wr_id, rule),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(u64, wr_id)
		__field(u32, rule)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->wr_id = wr_id;
		__entry->rule = rule;
	),
	TP_printk("dev=%s qpn=%u wr_id=0x%llx rule=%u", __get_str(dev), __entry->qpn,
		  __entry->wr_id, __entry->rule)
);

TRACE_EVENT(riwarp_fault,
	TP_PROTO(const char *dev, u32 qpn, u32 code, const char *reason),
	TP_ARGS(dev, qpn, code, reason),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(u32, code)
		__string(reason, reason)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->code = code;
		__assign_str(reason);
	),
	TP_printk("dev=%s qpn=%u code=0x%x reason=\"%s\"",
		__get_str(dev), __entry->qpn, __entry->code, __get_str(reason))
);

TRACE_EVENT(riwarp_terminate,
	TP_PROTO(const char *dev, u32 qpn, bool sent, u32 code),
	TP_ARGS(dev, qpn, sent, code),
	TP_STRUCT__entry(
		__string(dev, dev)
		__field(u32, qpn)
		__field(bool, sent)
		__field(u32, code)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->qpn = qpn;
		__entry->sent = sent;
		__entry->code = code;
	),
	TP_printk("dev=%s qpn=%u sent=%d code=0x%x",
		__get_str(dev), __entry->qpn, __entry->sent, __entry->code)
);

#endif /* _RIWARP_EVENTS_H */

/* Found by the include path that Kbuild gives rust/trace/events.c. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE riwarp_events
#include <trace/define_trace.h>

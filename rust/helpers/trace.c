// SPDX-License-Identifier: GPL-2.0
/*
 * Helpers of rust/trace.rs: for each event, whether somebody wants it, which is a static branch,
 * and the call.
 */
#include "../trace/riwarp_events.h"

#define EVENT(name, params, args)				\
	bool riwarp_helper_trace_##name##_enabled(void);	\
	bool riwarp_helper_trace_##name##_enabled(void)		\
	{							\
		return trace_riwarp_##name##_enabled();		\
	}							\
	void riwarp_helper_trace_##name params;			\
	void riwarp_helper_trace_##name params			\
	{							\
		trace_riwarp_##name args;			\
	}

EVENT(conn_phase, (const char *dev, u64 conn, u32 qpn, const char *phase),
	(dev, conn, qpn, phase))
EVENT(conn_refused,
	(const char *dev, u64 conn, const char *local, const char *peer, const char *reason),
	(dev, conn, local, peer, reason))
EVENT(conn_established,
	(const char *dev, u64 conn, u32 qpn, const char *local, const char *peer, u8 mpa_rev,
	bool crc, bool markers, u32 ird, u32 ord),
	(dev, conn, qpn, local, peer, mpa_rev, crc, markers, ird, ord))
EVENT(conn_closed, (const char *dev, u64 conn, u32 qpn, const char *reason),
	(dev, conn, qpn, reason))
EVENT(post_send, (const char *dev, u32 qpn, u32 posted), (dev, qpn, posted))
EVENT(wr_start, (const char *dev, u32 qpn, s64 seq, u64 wr_id, u32 opcode, u32 len),
	(dev, qpn, seq, wr_id, opcode, len))
EVENT(message_out, (const char *dev, u32 qpn, s64 seq, u8 opcode, u32 len),
	(dev, qpn, seq, opcode, len))
EVENT(wr_complete,
	(const char *dev, u32 qpn, s64 seq, u64 wr_id, u32 opcode, u32 status, u32 len),
	(dev, qpn, seq, wr_id, opcode, status, len))
EVENT(fpdu_in, (const char *dev, u32 qpn, u8 opcode, u16 len, bool last),
	(dev, qpn, opcode, len, last))
EVENT(receive_wait, (const char *dev, u32 qpn, bool begins), (dev, qpn, begins))
EVENT(injected, (const char *dev, u32 qpn, u64 wr_id, u32 rule), (dev, qpn, wr_id, rule))
EVENT(strict, (const char *dev, u32 qpn, u64 wr_id, u32 rule), (dev, qpn, wr_id, rule))
EVENT(fault, (const char *dev, u32 qpn, u32 code, const char *reason),
	(dev, qpn, code, reason))
EVENT(terminate, (const char *dev, u32 qpn, bool sent, u32 code), (dev, qpn, sent, code))

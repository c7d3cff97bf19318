#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""masked.py DEVICE: posts the operations of utils/riwarp.h from pyverbs, on a queue pair that is its
own peer."""

import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ALL = (1 << 64) - 1
CMP_AND_SWP, FETCH_AND_ADD = 12, 13


def connect(context, qp):
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    attr.dest_qp_num = qp.qp_num
    attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 1, 1
    attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer, attr.timeout = 7, 7, 12, 14
    qp.to_rts(attr)


def main():
    context = Context(name=sys.argv[1])
    pd, cq = PD(context), CQ(context, 10)
    cap = QPCap(max_send_wr=4, max_recv_wr=1, max_send_sge=5, max_recv_sge=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
    mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC |
            e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
    connect(context, qp)
    for opcode, operands, before, after in [
            (FETCH_AND_ADD, (1, 1 << 31), 0xffffffff, 0),
            (CMP_AND_SWP, (0x100, 0xff00, 7, 0xff), 0x143, 0x107),
            (CMP_AND_SWP, (0x100, 0xff00, 7, 0xff), 0x243, 0x243),
            (CMP_AND_SWP, (0, 0, 0x123456789abcdef0, ALL), 77, 0x123456789abcdef0)]:
        mr.write(before.to_bytes(8, sys.byteorder), 8, 64)
        sge = [SGE(mr.buf, 8, mr.lkey)] + [SGE(x, 0, 0) for x in operands]
        wr = SendWR(wr_id=1, opcode=opcode, num_sge=len(sge), sg=sge, imm_data=mr.rkey)
        wr.set_wr_rdma(mr.rkey, mr.buf + 64)
        qp.post_send(wr)
        until, wcs = time.monotonic() + 20, []
        while not wcs:
            assert time.monotonic() < until, "no completion"
            wcs = cq.poll()[1]
        assert wcs[0].status == e.IBV_WC_SUCCESS, wcs[0]
        brought = int.from_bytes(mr.read(8, 0), sys.byteorder)
        left = int.from_bytes(mr.read(8, 64), sys.byteorder)
        assert (brought, left) == (before, after), (hex(brought), hex(left))


main()

# SPDX-License-Identifier: GPL-2.0
"""Tests of the fixture `rdma_inject` and of the files in utils/inject."""

import errno
import time
from pathlib import Path

import pytest
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

DEVICES = Path("/sys/class/infiniband")
SCENARIOS = Path(__file__).parent / "inject"


def shown(device="riw0"):
    """The lines of the device's file."""
    return (DEVICES / device / "inject").read_text(encoding="ascii").strip().split("\n")


class Loop:
    """A queue pair that is connected to itself, and writes to its own memory."""

    def __init__(self):
        self.context = Context(name="riw0")
        self.pd, self.cq = PD(self.context), CQ(self.context, 200)
        cap = QPCap(max_send_wr=100, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.mr = MR(self.pd, 4096, access)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        route = GlobalRoute(dgid=self.context.query_gid(1, 0), sgid_index=0)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.dest_qp_num = self.qp.qp_num
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 1, 1
        attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer, attr.timeout = 7, 7, 12, 14
        self.qp.to_rts(attr)

    def post(self, opcode=e.IBV_WR_RDMA_WRITE):
        sge = SGE(self.mr.buf, 64, self.mr.lkey)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge])
        wr.set_wr_rdma(self.mr.rkey, self.mr.buf + 64)
        self.qp.post_send(wr)

    def statuses(self, number, seconds=20):
        """The statuses of the next completions; fewer when the time is up."""
        until, found = time.monotonic() + seconds, []
        while len(found) < number and time.monotonic() < until:
            found += [wc.status for wc in self.cq.poll(number - len(found))[1]]
        return found

    def run(self, number, opcode=e.IBV_WR_RDMA_READ):
        """The statuses of requests, one at a time, up to the first failure."""
        found = []
        while len(found) < number and found[-1:] in ([], [e.IBV_WC_SUCCESS]):
            self.post(opcode)
            found += self.statuses(1)
        return found


def test_second_request_fails_and_the_third_is_flushed(rdma_inject):
    rules = rdma_inject("op=write nth=2 do=status=RETRY_EXC_ERR", "op=read do=fin")
    loop = Loop()
    for _ in range(3):
        loop.post()
    assert loop.statuses(3) == [e.IBV_WC_SUCCESS, e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_WR_FLUSH_ERR]
    assert rules.hits() == [1, 0]


def test_rules_are_gone_after_a_test():
    assert shown() == [""]


def test_rules_take_the_place_of_earlier_ones(rdma_inject):
    rules = rdma_inject("nth=1 do=fin", "nth=2 do=fin")
    assert rules.hits() == [0, 0]
    assert rdma_inject("# one\n\n  nth=3 do=fin\n", device="riw0").hits() == [0]
    assert shown() == ["nth=3 do=fin hits=0"]
    assert rdma_inject("do=reset", device="riw_lo").hits() == [0]
    assert shown() == ["nth=3 do=fin hits=0"]


def test_rules_of_all_devices_are_gone():
    assert shown("riw0") == shown("riw_lo") == [""]


@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
def test_that_fails(rdma_inject):
    rdma_inject("nth=1 do=fin")
    1 / 0


def test_rules_are_gone_after_a_test_that_fails():
    assert shown() == [""]


@pytest.mark.parametrize(
    "rules, number, text",
    [
        (["do=fin", "do=explode"], errno.EINVAL, "line 3: do=explode"),
        ([f"nth={number} do=fin" for number in range(1, 18)], errno.ENOSPC, "line 18: nth=17 do=fin"),
    ],
)
def test_wrong_rules_are_refused(rdma_inject, rules, number, text):
    rdma_inject("do=reset")
    with pytest.raises(OSError) as refused:
        rdma_inject(*rules)
    assert refused.value.errno == number
    assert text in str(refused.value).split("\n")[-1]
    assert shown() == ["do=reset hits=0"]


def test_other_device_is_refused(rdma_inject):
    with pytest.raises(FileNotFoundError, match="no riwarp device of this name"):
        rdma_inject("do=fin", device="mlx5_0")


def scenario(name):
    return (SCENARIOS / name).read_text(encoding="ascii")


@pytest.mark.parametrize("name", ["failover", "flapping-port", "lossy-completions", "silent-peer", "slow-peer"])
def test_scenario_is_taken(rdma_inject, name):
    assert set(rdma_inject(scenario(name)).hits()) == {0}


def test_failover_ends_each_connection(rdma_inject):
    rules = rdma_inject(scenario("failover"))
    for hits in 1, 2:
        assert Loop().run(200) == [e.IBV_WC_SUCCESS] * 99 + [e.IBV_WC_WR_FLUSH_ERR]
        assert rules.hits() == [hits]


def test_slow_peer_is_late(rdma_inject):
    rules = rdma_inject(scenario("slow-peer"))
    loop, begin = Loop(), time.monotonic()
    assert loop.run(100) == [e.IBV_WC_SUCCESS] * 100
    assert time.monotonic() - begin >= 5 * 0.02
    assert rules.hits() == [1, 5]


def test_lossy_completions_fail_by_chance(rdma_inject):
    rules = rdma_inject(scenario("lossy-completions"))
    first = Loop().run(20000, e.IBV_WR_RDMA_WRITE)
    assert len(first) < 20000 and first[-1] == e.IBV_WC_GENERAL_ERR
    # The next connection fails elsewhere. The same rules, written again, hit the same request.
    other = Loop().run(20000, e.IBV_WR_RDMA_WRITE)
    assert len(other) != len(first) and rules.hits() == [2]
    rdma_inject(scenario("lossy-completions"))
    assert Loop().run(20000, e.IBV_WR_RDMA_WRITE) == first


def test_flapping_port_is_reported_in_turns(rdma_inject):
    rules = rdma_inject(scenario("flapping-port"))
    assert Loop().run(400) == [e.IBV_WC_SUCCESS] * 400
    assert rules.hits() == [2, 2]


def test_verb_fails_with_the_error(rdma_inject):
    rules = rdma_inject("on=create_qp nth=2 do=errno=ENOMEM")
    loops = [Loop()]
    with pytest.raises(PyverbsRDMAError) as failure:
        loops.append(Loop())
    assert failure.value.error_code == errno.ENOMEM and rules.hits() == [1]
    assert Loop().run(10) == loops[0].run(10) == [e.IBV_WC_SUCCESS] * 10


def test_silent_peer_takes_nothing_until_the_rules_go(rdma_inject):
    rules = rdma_inject(scenario("silent-peer"))
    loop = Loop()
    assert loop.run(49) == [e.IBV_WC_SUCCESS] * 49
    loop.post(e.IBV_WR_RDMA_READ)
    assert loop.statuses(1, seconds=0.5) == []
    assert rules.hits() == [1]
    rdma_inject()
    assert loop.statuses(1) == [e.IBV_WC_SUCCESS]

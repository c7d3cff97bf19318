# SPDX-License-Identifier: GPL-2.0
"""Tests that need RDMA devices, as docs/ci.md runs them."""

import subprocess
import time

from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
import pyverbs.enums as e


def test_a_region_is_registered():
    with Context(name="riw0") as context, PD(context) as pd:
        with MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE) as mr:
            mr.write("hello", 5)
            assert mr.read(5, 0) == b"hello"


def test_a_pair_of_processes_talks():
    server = subprocess.Popen(["rping", "-s", "-a", "10.77.0.1", "-C", "5"])
    client = ["rping", "-c", "-a", "10.77.0.1", "-C", "5", "-V"]
    # Until the server listens.
    while subprocess.run(client, capture_output=True).returncode:
        assert server.poll() is None
        time.sleep(0.1)
    assert server.wait() == 0

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


def listens(port):
    """Whether TCP has a listener at the port, as those of rdma_cm are on iWARP."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        return any(f":{port:04X} " in line and " 0A " in line for line in file)


def test_a_pair_of_processes_talks():
    server = subprocess.Popen(["rping", "-s", "-a", "10.77.0.1", "-C", "5"])
    while not listens(7174):
        assert server.poll() is None
        time.sleep(0.05)
    client = subprocess.run(["rping", "-c", "-a", "10.77.0.1", "-C", "5", "-V"], check=False)
    assert (client.returncode, server.wait()) == (0, 0)

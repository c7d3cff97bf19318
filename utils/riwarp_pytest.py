# SPDX-License-Identifier: GPL-2.0
"""A plugin for pytest: the fixture `rdma_inject` lets RDMA requests, connections and verbs fail.

    riwarp-run --root pytest -p riwarp_pytest

    def test_lost_path_is_reported(rdma_inject):
        rules = rdma_inject("op=send nth=2 do=status=RETRY_EXC_ERR")
        ...
        assert rules.hits() == [1]

riwarp-inject(5) describes the rules.
"""

import contextlib
import errno
import os
from pathlib import Path

import pytest

DEVICES = Path("/sys/class/infiniband")
WHY = {
    errno.EACCES: "only root may write the rules (riwarp-run --root)",
    errno.EINVAL: "the device does not take a rule, and the kernel's log says which",
    errno.ENOENT: "no riwarp device of this name",
    errno.ENOSPC: "more rules than a device has",
    errno.EPERM: "writing rules takes CAP_NET_ADMIN in the initial user namespace",
}


class Rules:
    """The rules of a device."""

    def __init__(self, device):
        self.path = DEVICES / device / "inject"

    def replace(self, rules):
        """Writes rules in place of those that the device has. It takes all or none."""
        lines = ["clear", *rules]
        try:
            with open(self.path, "r+b", buffering=0) as file:
                file.write("\n".join(lines).encode())
        except OSError as error:
            why = WHY.get(error.errno, os.strerror(error.errno))
            # With the numbers that the kernel's log has.
            shown = "".join(f"\n  line {number}: {line}" for number, line in enumerate(lines, 1))
            raise OSError(error.errno, f"{self.path}: {why}{shown}") from None

    def clear(self):
        """Removes the rules, if the device still exists."""
        with contextlib.suppress(FileNotFoundError):
            self.replace([])

    def hits(self):
        """Returns how often each rule has hit, in their order."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [int(line.rpartition("hits=")[2]) for line in lines if line]


@pytest.fixture
def rdma_inject():
    """A function that gives a device rules until the test ends.

    inject(*rules, device=None) takes from each argument a rule, or several as the text of a file has
    them. They replace those of the device, by default the first one of riwarp. Returns its `Rules`.
    """
    devices = sorted(path.parent.name for path in DEVICES.glob("*/inject"))
    if not devices:
        pytest.skip(f"no riwarp device: there is no {DEVICES}/*/inject")
    changed = set()
    with contextlib.ExitStack() as at_end:

        def inject(*rules, device=devices[0]):
            lines = [line.strip() for text in rules for line in text.splitlines()]
            written = Rules(device)
            written.replace(line for line in lines if line and not line.startswith("#"))
            if device not in changed:
                changed.add(device)
                at_end.callback(written.clear)
            return written

        yield inject

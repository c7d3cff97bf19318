# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: the tests of the newest rdma-core (qemu/root-stacks), with its own libraries
# and its own Python binding. pyverbs.sh runs those of Debian's rdma-core.

# shellcheck source=tests/guest/pyverbs_tests.sh
. "$GUEST_DIR/pyverbs_tests.sh"

version pyverbs rdma-core-newest
prefix=/usr/lib/rdma-core
name=$TYPE/pyverbs
if [ -d "$prefix" ]; then
	ends_up self
	SCRIPT=$SCRIPT/$name PYTHONPATH=$prefix/python pyverbs_tests "$prefix/tests"
	try "$name/nothing_left" 30 nothing_left 10 qp cq mr pd
	ends_down
else
	not_ok "$SCRIPT/$name" 'the newest rdma-core could not be built; the log of root-stacks says why'
fi

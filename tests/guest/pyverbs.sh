#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The tests that Debian's rdma-core ships, which use its Python binding, on one device. They connect
# their queue pairs without rdma_cm, except those about rdma_cm. The suite `stacks` runs those of
# the newest rdma-core.
#
# TESTS: the tests to run (pyverbs_tests.sh); default all.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/guest/pyverbs_tests.sh
. "$GUEST_DIR/pyverbs_tests.sh"

ends_up self
pyverbs_tests "${SHIPPED:-/usr/share/doc/rdma-core/tests}" "$GUEST_DIR/pyverbs_before_59.skips"
# What utils/riwarp.h does, from pyverbs; its library is librxe.
[ -n "${TESTS:-}" ] || [ "$TYPE" = riwarp_siw ] ||
	try masked_operations 60 python3 "$GUEST_DIR/masked.py" "$DEV_A"
try nothing_left 30 nothing_left 10 qp cq mr pd
finish

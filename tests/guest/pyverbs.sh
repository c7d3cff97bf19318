#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The tests that Debian's rdma-core ships, which use its Python binding, on one device. They connect
# their queue pairs without rdma_cm, except those about rdma_cm. pyverbs.skips and pyverbs.without
# list what is skipped, and why; pyverbs_siw.* list what libsiw lacks besides.
#
# TESTS: the tests to run, as unittest names them (tests.test_qp.QPTest ...); default all.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

SHIPPED=${SHIPPED:-/usr/share/doc/rdma-core/tests}
mkdir "$TMP/tests"
cp "$SHIPPED"/*.py* "$TMP/tests"
find "$TMP/tests" -name '*.gz' -exec gunzip {} +
lists=("$GUEST_DIR/pyverbs.skips" "$GUEST_DIR/pyverbs.without")
# Some tests need large pages, which the debug kernel does not have.
if [ -e /proc/sys/vm/nr_hugepages ]; then
	echo 16 >/proc/sys/vm/nr_hugepages
else
	lists[0]+=,$TMP/no_large_pages
	echo ': Huge pages of size 2M is not supported in this platform' >"$TMP/no_large_pages"
fi
if [ "$TYPE" = riwarp_siw ]; then
	lists[0]+=,$GUEST_DIR/pyverbs_siw.skips
	lists[1]+=,$GUEST_DIR/pyverbs_siw.without
fi
export TEST_LIMIT=$((60 * SLOW))

ends_up self
# shellcheck disable=SC2086
RELAY_NAME=all relay "${LIMIT:-800}" python3 "$GUEST_DIR/pyverbs_lines.py" "$TMP/tests" \
	"${lists[@]}" --dev "$DEV_A" ${TESTS:-}
try nothing_left 30 nothing_left 10 qp cq mr pd
finish

# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Shared by pyverbs.sh and stacks/pyverbs.sh: runs the tests of an rdma-core.

# pyverbs_tests DIRECTORY [LIST]: runs the tests in DIRECTORY on DEV_A, each in a process of its
# own. pyverbs.skips and pyverbs.without list what is skipped, and why; pyverbs_siw.* what libsiw
# lacks besides; LIST, in the form of pyverbs.skips, what this version's libraries lack. TESTS says
# which tests to run, as unittest names them (tests.test_qp.QPTest ...); default all.
pyverbs_tests() {
	local tests=$TMP/tests chosen skips=$GUEST_DIR/pyverbs.skips${2:+,$2} without=$GUEST_DIR/pyverbs.without
	rm -rf "$tests"
	mkdir "$tests"
	cp "$1"/*.py* "$tests"
	find "$tests" -name '*.gz' -exec gunzip {} +
	# Some tests need large pages, which the debug kernel does not have.
	if [ -e /proc/sys/vm/nr_hugepages ]; then
		echo 16 >/proc/sys/vm/nr_hugepages
	else
		skips+=,$TMP/no_large_pages
		echo ': Huge pages of size 2M is not supported in this platform' >"$TMP/no_large_pages"
	fi
	if [ "$TYPE" = riwarp_siw ]; then
		skips+=,$GUEST_DIR/pyverbs_siw.skips
		without+=,$GUEST_DIR/pyverbs_siw.without
	fi
	read -r -a chosen <<<"${TESTS:-}"
	RELAY_NAME=all TEST_LIMIT=$((60 * SLOW)) relay "${LIMIT:-800}" python3 "$GUEST_DIR/pyverbs_lines.py" \
		"$tests" "$skips" "$without" --dev "$DEV_A" "${chosen[@]}"
}

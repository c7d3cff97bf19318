# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: all of qperf's tests of reliable connections, one after the other with the same
# server. Its ver_ tests verify atomic operations.

qperf_tests=(rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_poll_lat)
# These write with Immediate Data.
qperf_immediate=(rc_rdma_write_bw rc_rdma_write_lat)
qperf_atomics=(rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add)

qperf_all() {
	local test
	start "$NS_B" "$TMP/qperf.log" within 150 qperf -lp "$PORT"
	wait_listen "$PORT"
	for test; do
		in_ns "$NS_A" within 20 qperf -lp "$PORT" -t 1 -cm1 "$IP4_B" "$test" || die "$test"
	done
	kill "$STARTED"
}

version qperf qperf
ends_up netns
name=$TYPE/qperf
try "$name/rc" 200 qperf_all "${qperf_tests[@]}"
if [ "$TYPE" = riwarp ]; then
	try "$name/immediate" 100 qperf_all "${qperf_immediate[@]}"
	try "$name/atomics" 100 qperf_all "${qperf_atomics[@]}"
	try "$name/all_with_one_server" 200 qperf_all "${qperf_tests[@]}" "${qperf_immediate[@]}" "${qperf_atomics[@]}"
else
	try "$name/immediate" 60 skip_case 'libsiw has no Immediate Data; use the link type riwarp'
	try "$name/atomics" 60 skip_case 'libsiw has no atomic operations; use the link type riwarp'
fi
ends_down

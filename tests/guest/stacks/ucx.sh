# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: UCX, which refuses devices whose transport is iWARP (uct_ib_device_is_supported
# in its ib_md.c) and takes those of the link type riwarp_ib; and Open MPI over UCX. UCX exchanges
# the numbers of its queue pairs over TCP.

ucx_lists_nothing() {
	UCX_LOG_LEVEL=debug within 60 ucx_info -d >"$TMP/ucx" 2>&1
	if grep "Device: $DEV_A" "$TMP/ucx"; then die 'it is listed'; fi
	grep 'unsupported transport type' "$TMP/ucx" || grep -i "$DEV_A" "$TMP/ucx" || true
	skip_case 'UCX refuses transport iWARP (uct_ib_device_is_supported)'
}

ucx_lists() {
	within 60 ucx_info -d >"$TMP/ucx" 2>&1
	grep -B 1 "Device: $DEV_A:1" "$TMP/ucx"
	grep -B 1 "Device: $DEV_A:1" "$TMP/ucx" | grep -q 'Transport: rc_verbs' || die 'rc_verbs is not listed'
}

# ucx COMMAND...: runs it with the transports of UCX that are under test.
ucx() {
	UCX_TLS=rc_verbs,tcp:aux,self UCX_NET_DEVICES=$DEV_A:1,$NET_A "$@"
}

# ucx_perftest_of SIZE TEST...: runs it; it does not compare what it receives, which mpi.py does.
# Without -P 0 it waits for MPI.
ucx_perftest_of() {
	local test size=$1
	shift
	for test; do
		over_rdma 1000 ucx pair 60 ucx_perftest -P 0 -p "$PORT" -- \
			ucx_perftest -P 0 "$IP4_B" -p "$PORT" -t "$test" -n 200 -w 20 -s "$size"
		grep -A 20 'Final:' "$CLIENT_OUT" || grep . "$CLIENT_OUT"
		PORT=$((PORT + 1))
	done
}

# ucx_mpi RANKS: all data is compared. A Put reaches its target before the MPI_Win_fence of any rank
# ends, since a Write is complete when the peer has it.
ucx_mpi() {
	over_rdma 10000 within 150 mpirun.openmpi --allow-run-as-root --oversubscribe -n "$1" \
		--mca pml ucx --mca osc ucx --mca btl ^ofi,openib --mca coll ^ucc,hcoll \
		--mca opal_common_ucx_tls any --mca opal_common_ucx_devices any \
		-x UCX_TLS=rc_verbs,tcp:aux,self -x "UCX_NET_DEVICES=$DEV_A:1,$NET_A" -x UCX_FENCE_MODE=weak \
		python3 "$GUEST_DIR/stacks/mpi.py" all
}

version ucx libucx0
ends_up self
name=$TYPE/ucx
if [ "$TYPE" = riwarp_ib ]; then
	try "$name/listed" 80 ucx_lists
	try "$name/tag" 200 ucx_perftest_of 4096 tag_lat tag_bw
	try "$name/put" 200 ucx_perftest_of 4096 ucp_put_lat ucp_put_bw
	try "$name/get" 200 ucx_perftest_of 4096 ucp_get
	try "$name/am" 200 ucx_perftest_of 4096 ucp_am_lat ucp_am_bw
	try "$name/stream" 200 ucx_perftest_of 4096 stream_lat
	try "$name/atomic" 200 ucx_perftest_of 8 ucp_fadd ucp_swap ucp_cswap
	try "$name/mpi_two_ranks" 200 ucx_mpi 2
	try "$name/mpi_four_ranks" 200 ucx_mpi 4
else
	try "$name/not_listed" 80 ucx_lists_nothing
fi
ends_down

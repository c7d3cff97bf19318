#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# riwarp and siw, in both roles. riwarp asks for CRC, so these connections have it.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

figures() {
	perftest_pair "$@"
	perftest_rows | grep -q . || die 'no figures'
}

sizes() {
	local size
	for size in 23 64 4096 65000; do
		rping_pair 4 5 -V -S "$size"
		PORT=$((PORT + 1))
	done
}

export PERFTEST_LIMIT=110
for topology in siw-server siw-client; do
	ends_up "$topology"
	try "$topology/rping_ipv4" 60 rping_pair 4 20 -V
	try "$topology/rping_ipv6" 60 rping_pair 6 20 -V
	try "$topology/rping_sizes" 90 sizes
	for tool in write read send; do
		try "$topology/ib_${tool}_bw" 120 figures "ib_${tool}_bw" -s 65536 -n 50
		try "$topology/ib_${tool}_bw_2_mib" 120 figures "ib_${tool}_bw" -s 2097152 -n 5
		try "$topology/ib_${tool}_lat" 60 figures "ib_${tool}_lat" -s 64 -n 100
	done
	try "$topology/ib_send_bw_bidirectional" 90 figures ib_send_bw -b -s 4096 -n 100
	try "$topology/ib_write_bw_queue_pairs" 90 figures ib_write_bw -q 4 -s 4096 -n 100
	try "$topology/rdma_client_server" 60 client_server
	ends_down
done
finish

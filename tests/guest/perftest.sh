#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# perftest over rdma_cm: all operations, all sizes, many queue pairs, a shared receive queue, both
# directions.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ends_up "${TOPOLOGY:-netns}" "${MTU:-1500}"
export PERFTEST_LIMIT=170

# 2 octets to 8 MiB.
for tool in write read send; do
	try "ib_${tool}_bw_all_sizes" 180 perftest_checked 23 "ib_${tool}_bw" -a -n "${ITERATIONS:-10}"
done
for tool in write read send; do
	try "ib_${tool}_lat" 60 perftest_checked 1 "ib_${tool}_lat" -s 64 -n 200
	try "ib_${tool}_bw_bidirectional" 90 perftest_checked 1 "ib_${tool}_bw" -b -s 65536 -n 100
done
try ib_write_bw_16_queue_pairs 90 perftest_checked 1 ib_write_bw -q 16 -s 65536 -n 50
try ib_send_bw_16_queue_pairs 90 perftest_checked 1 ib_send_bw -q 16 -s 4096 -n 50
try ib_read_bw_16_queue_pairs 90 perftest_checked 1 ib_read_bw -q 16 -s 4096 -n 50
try ib_send_bw_srq 90 perftest_checked 1 ib_send_bw --use-srq -s 4096 -n 500
try ib_send_bw_events 90 perftest_checked 1 ib_send_bw -e -s 4096 -n 500
try ib_send_lat_events 90 perftest_checked 1 ib_send_lat -e -s 64 -n 200
try ib_write_bw_inline 60 perftest_checked 1 ib_write_bw -I 64 -s 64 -n 500
try ib_send_bw_inline 60 perftest_checked 1 ib_send_bw -I 64 -s 64 -n 500
try ib_write_bw_single_depth 60 perftest_checked 1 ib_write_bw -t 1 -s 4096 -n 200
try ib_write_bw_post_list 60 perftest_checked 1 ib_write_bw -l 16 -Q 16 -s 4096 -n 480
# Its figure counts what completes between the first and the last second.
try ib_write_bw_timed 60 perftest_checked 1 ib_write_bw -D $((2 * SLOW)) -s 65536 -t 16 -Q 4
try ib_send_bw_bidirectional_all_sizes 180 perftest_checked 23 ib_send_bw -b -a -n 5
finish

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Operations that only librxe offers: atomic operations, Immediate Data.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
TYPE=riwarp

ends_up self
relay 60 "$VERBS_DIR/immediate" "$IP4_B"
ends_down

ends_up "${TOPOLOGY:-netns}" "${MTU:-1500}"
try rping 60 rping_pair 4 10 -v
for type in FETCH_AND_ADD CMP_AND_SWAP; do
	try "ib_atomic_bw_$type" 60 perftest_checked 1 ib_atomic_bw -A $type -n 500
	try "ib_atomic_lat_$type" 60 perftest_checked 1 ib_atomic_lat -A $type -n 200
done
try ib_write_bw_with_imm 60 perftest_checked 1 ib_write_bw --write_with_imm -s 4096 -n 500
finish

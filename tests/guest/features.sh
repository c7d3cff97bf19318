#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# FPDUs longer than a TCP segment, which only devices send that have agreed on them: by rdma_cm and
# without it, in each role, with each setting that takes part in the start-up. What a stream sends
# is judged by the number of FPDUs at B.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
TYPE=riwarp

# Messages of a run, and their length.
COUNT=20
SIZE=1048576

# fpdus TOOL OPTIONS: runs a perftest program; sets FPDUS to how many FPDUs a message has at B.
fpdus() {
	local tool=$1 way=rx_fpdus before after
	shift
	# The peer answers Reads.
	[[ $tool != ib_read_* ]] || way=tx_fpdus
	before=$(counter "$DEV_B" $way)
	"$@" || return 1
	after=$(counter "$DEV_B" $way)
	FPDUS=$(((after - before) / COUNT))
}

# by_rdma_cm TOOL, by_itself TOOL: a run with rdma_cm and without.
by_rdma_cm() { perftest_pair "$1" -s $SIZE -n $COUNT -t 8; }
by_itself() {
	serve 60 "$1" -x 0 -d "$DEV_B" -p "$PORT" -s $SIZE -n $COUNT -t 8
	call 60 "$1" -x 0 -d "$DEV_A" -p "$PORT" -s $SIZE -n $COUNT -t 8 "$IP4_B"
	PORT=$((PORT + 1))
}

# has LEAST MOST TOOL HOW: checks how many FPDUs a message has.
has() {
	fpdus "$3" "$4" "$3"
	echo "$3 $4: $FPDUS"
	[ "$FPDUS" -ge "$1" ] && [ "$FPDUS" -le "$2" ] || die "$FPDUS FPDUs in a message"
	PORT=$((PORT + 1))
}

# per_message LEAST MOST: checks it in each direction, with rdma_cm and without.
per_message() {
	has "$@" ib_write_bw by_rdma_cm
	has "$@" ib_read_bw by_itself
}

# with_each_program LEAST MOST: checks it for each kind of message both ways.
with_each_program() {
	local tool
	for tool in ib_write_bw ib_read_bw ib_send_bw; do
		has "$@" $tool by_rdma_cm
		has "$@" $tool by_itself
	done
}

# limits A B: the longest ULPDU of each end.
limits() {
	setting "$NS_A" "$DEV_A" ulpdu_limit "$1"
	setting - "$DEV_B" ulpdu_limit "$2"
}

# each NAME A [B]: a setting of both ends.
each() {
	setting "$NS_A" "$DEV_A" "$1" "$2"
	setting - "$DEV_B" "$1" "${3:-$2}"
}

# A message of 1 MiB has 32 payloads of 32 KiB in Writes, or 33 FPDUs of which a Send has a little
# less; in segments of 1448 octets, at least 725.
long_fpdus_by_default() { with_each_program 32 34; }
long_fpdus_with_and_without_crc() {
	each crc 0
	per_message 32 34
	each crc 1
}
in_revision_1() {
	each mpa_rev 1
	per_message 32 34
	each mpa_rev 2
}
without_peer_to_peer() {
	each peer_to_peer 0
	per_message 32 34
	each peer_to_peer 1
}
with_extensions() {
	each extensions 1 0
	per_message 32 34
	each extensions 1
	per_message 32 34
	each extensions 0
}
# The shorter limit counts, in both directions.
shorter_fpdu_limit_applies() {
	limits 9002 40000
	per_message 117 118
	limits 40000 9002
	per_message 117 118
}
# 24 segments at most, whatever the ends take; at first TCP makes shorter ones.
no_more_than_24_segments() {
	limits 65535 65535
	per_message 31 33
}
long_fpdus_need_both_ends() {
	limits 0 32782
	per_message 725 760
	limits 32782 0
	per_message 725 760
	limits 0 0
	with_each_program 725 760
	limits 32782 32782
}
long_fpdus_at_other_mtus() {
	ends_mtu 1450
	per_message 32 34
	ends_mtu 9000
	per_message 32 34
	ends_mtu 1500
}

# segments_are LENGTH: succeeds if TCP makes segments of this length for the device at A.
segments_are() { in_ns "$NS_A" ss -Htin 'sport = :24791 or dport = :24791' | grep -q "[[:space:]]mss:$1 "; }

# during LENGTH: checks it while a transfer runs.
during() {
	serve 60 ib_write_bw -x 0 -d "$DEV_B" -p "$PORT" -D 60
	wait_listen "$PORT"
	start "$NS_A" "$TMP/writer" ib_write_bw -x 0 -d "$DEV_A" -p "$PORT" -D 60 "$IP4_B"
	eventually 20 segments_are "$1" ||
		die "not $1: $(in_ns "$NS_A" ss -Htin 'sport = :24791 or dport = :24791')"
	kill "$STARTED"
	wait "$STARTED" || true
	PORT=$((PORT + 1))
}

# FPDUs that fit into a segment need one of a multiple of 4 octets, which 1398 is not. Others leave
# TCP's length as it is.
segments_keep_their_length() {
	ends_mtu 1450
	limits 0 0
	during 1396
	limits 32782 32782
	during 1398
	ends_mtu 1500
}

ends_up outside
try long_fpdus_by_default 120 long_fpdus_by_default
try long_fpdus_with_and_without_crc 120 long_fpdus_with_and_without_crc
try in_revision_1 120 in_revision_1
try without_peer_to_peer 120 without_peer_to_peer
try with_extensions 200 with_extensions
try shorter_fpdu_limit_applies 200 shorter_fpdu_limit_applies
try no_more_than_24_segments 120 no_more_than_24_segments
try long_fpdus_need_both_ends 300 long_fpdus_need_both_ends
try long_fpdus_at_other_mtus 200 long_fpdus_at_other_mtus
try segments_keep_their_length 100 segments_keep_their_length
finish

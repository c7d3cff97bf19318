#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Wireshark's reading of what goes over the wire: every segment decoded, every CRC right, no complaint.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# capture NETNS NETDEV FILE PORTS COMMAND...: what these TCP ports carry while a command runs.
capture() {
	local ns=$1 netdev=$2 file=$3 filter=$4 pid
	shift 4
	# The segments as they would be on a real wire.
	in_ns "$ns" ethtool -K "$netdev" tso off gso off gro off >/dev/null
	start "$ns" "$TMP/tcpdump" tcpdump -i "$netdev" -B 32768 -s 0 -U -w "$file" "tcp portrange $filter"
	pid=$STARTED
	eventually 10 grep -q 'listening on' "$TMP/tcpdump" || die "tcpdump: $(cat "$TMP/tcpdump")"
	"$@"
	sleep 0.3
	kill "$pid"
	wait "$pid" || true
	grep -q '^0 packets dropped by kernel' "$TMP/tcpdump" || die "lost packets: $(cat "$TMP/tcpdump")"
}

# decode FILE: one line per frame with TCP payload, into FILE.txt: payload length, MPA start-up, FPDUs,
# RDMAP opcodes, CRC states, Terminate layer/type/code, expert messages.
decode() {
	tshark -r "$1" -o tcp.try_heuristic_first:TRUE -Y 'tcp.len > 0' -T fields -E separator='|' \
		-e frame.number -e tcp.len -e iwarp_mpa.key.req -e iwarp_mpa.key.rep -e iwarp_mpa.ulpdulength \
		-e iwarp_rdma.opcode -e iwarp_mpa.crc_check -e iwarp_rdma.term_layer \
		-e iwarp_rdma.term_errcode_rdma -e iwarp_mpa.crc_flag -e _ws.malformed \
		-e _ws.expert.severity -e _ws.expert.message -e tcp.analysis.retransmission >"$1.txt" 2>"$1.err" ||
		die "tshark: $(tail -n 1 "$1.err")"
	# The field has the CRC itself; what tshark thinks of it is only in the text.
	tshark -r "$1" -o tcp.try_heuristic_first:TRUE -V 2>/dev/null |
		grep -o -E '(Good|Bad) CRC32' | sort | uniq -c >"$1.crcs" || true
}

# checked FILE: what must hold for every capture. Revision 2 is news to the dissector, which says so.
checked() {
	awk -F'|' '
	function say(what) { if (bad++ < 10) print "frame " $1 ": " what ": " $0 }
	$11 != "" { say("malformed") }
	$14 != "" { next }	# a segment TCP has sent again is shown apart
	$3 == "" && $4 == "" && $5 == "" { loose++; if (loose < 5) print "frame " $1 ": not decoded: " $0 }
	$3 != "" { requests++ }
	$4 != "" { replies++ }
	{ fpdus += split($6, ops, ",") }
	($12 + 0) >= 6291456 && $13 !~ /^Rev field/ { say("complaint") }
	END { print NR " frames, " requests + 0 " requests, " replies + 0 " replies, " fpdus + 0 " FPDUs"
	      exit bad > 0 || fpdus == 0 || requests == 0 || replies == 0 || loose > NR / 50 }' "$1.txt" ||
		{ echo 'the capture has faults'; return 1; }
	cat "$1.crcs"
	grep -q 'Good CRC32' "$1.crcs" || { echo 'no CRC was judged'; return 1; }
	! grep -q 'Bad CRC32' "$1.crcs" || { echo 'bad CRCs'; return 1; }
}

# has FILE OPCODE...: each of these opcodes was seen.
has() {
	local file=$1 op
	shift
	for op; do
		awk -F'|' '{ n = split($6, o, ","); for (i = 1; i <= n; i++) print o[i] }' "$file.txt" |
			grep -q -i -E "^(0x0*)?$op\$" || die "no opcode $op"
	done
}

transfers() {
	rping_pair 4 5 -V -S 3000
	PORT=$((PORT + 1))
	rping_pair 6 5 -V -S 200
	PORT=$((PORT + 1))
	perftest_pair ib_write_bw -s 65536 -n 10
	PORT=$((PORT + 1))
	perftest_pair ib_read_bw -s 65536 -n 10
	PORT=$((PORT + 1))
	perftest_pair ib_send_bw -s 5001 -n 20
}

traffic_is_decoded() {
	local file=$TMP/traffic
	capture "$NS_A" "$NET_A" "$file" "$PORT-$((PORT + 9))" transfers
	decode "$file"
	checked "$file"
	has "$file" 0 1 2 3
}

refused() {
	CASE=read_without_right PORT=$PORT timeout --foreground 30 "$VERBS_DIR/rdma" "$IP4_B"
	CASE=write_past_the_end PORT=$((PORT + 1)) timeout --foreground 30 "$VERBS_DIR/rdma" "$IP4_B"
	CASE=no_receive_buffer_ends_the_stream PORT=$((PORT + 2)) timeout --foreground 30 "$VERBS_DIR/sends" "$IP4_B"
}

terminates_are_decoded() {
	local file=$TMP/refused
	capture - lo "$file" "$PORT-$((PORT + 9))" refused
	decode "$file"
	checked "$file"
	has "$file" 7
	# Read without the right: RDMAP, Remote Protection, access rights violation.
	awk -F'|' '$8 != "" { print $8 + 0, $9 }' "$file.txt"
	[ "$(awk -F'|' '$8 != ""' "$file.txt" | wc -l)" = 3 ] || die 'not three Terminates'
	awk -F'|' '$8 != "" && $8 + 0 == 0 && $9 ~ /^(0x0*)?2$/ { found = 1 } END { exit !found }' \
		"$file.txt" || die 'no Terminate for the Read'
	awk -F'|' '$8 != "" && $8 + 0 == 1 { n++ } END { exit n != 2 }' "$file.txt" ||
		die 'no Terminates for the Write and the Send'
}

ends_up netns
try traffic_is_decoded 120 traffic_is_decoded
ends_down
ends_up self 1500
try terminates_are_decoded 90 terminates_are_decoded
in_ns - ethtool -K lo tso on gso on gro on >/dev/null
finish

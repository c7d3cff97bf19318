#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Wireshark decodes the captured traffic: every octet, every CRC right, no complaint; each Terminate
# has the codes that RFC 5040 and RFC 5041 require for the error.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=wireshark.sh
. "$(dirname "$0")/wireshark.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"
# shellcheck source=raw_peer.sh
. "$(dirname "$0")/raw_peer.sh"

transfers() {
	rping_pair 4 2 -V -S 20000
	PORT=$((PORT + 1))
	rping_pair 6 2 -V -S 201
	PORT=$((PORT + 1))
	EARLY=
	perftest_serve ib_send_bw -s 5001 -n 10
	perftest_call ib_send_bw -s 5001 -n 10 || EARLY=1
	PORT=$((PORT + 1))
}

# Captures at end A. If perftest's client was faster than its server (perftest_pair), a Request has
# no Reply, and the capture is made again.
traffic_is_decoded() {
	local file=$TMP/traffic op
	for _ in 1 2 3; do
		capture "$NS_A" "$NET_A" "$file" transfers
		[ "$EARLY" ] || break
		too_early || return 1
		echo 'the client was too early for the server'
	done
	decode "$file"
	for op in 0x0 0x1 0x2 0x3; do
		grep -q "^opcode $op " "$file.seen" || die "no opcode $op"
	done
}

# An FPDU has a TCP segment for itself unless another FPDU follows that could share it (RFC 5044,
# section 5.1).
segments_carry_whole_fpdus() {
	local file=$TMP/aligned whole frames
	capture "$NS_A" "$NET_A" "$file" rping_pair 4 3 -V -S 20000
	decode "$file"
	read -r whole _ frames _ < <(grep 'carry whole FPDUs$' "$file.seen")
	[ "$frames" -gt 90 ] && [ "$whole" = "$frames" ]
}

# The same with an MTU whose segment size no FPDU matches.
segments_carry_whole_fpdus_at_odd_mtu() {
	ends_mtu 1450
	segments_carry_whole_fpdus
	ends_mtu 1500
}

# offload on|off: whether TCP may hand the device packets that are longer than the MTU, for the
# device to segment.
offload() {
	in_ns "$NS_A" ethtool -K "$NET_A" tso "$1" gso "$1" gro off >/dev/null
	in_ns "$NS_B" ethtool -K "$NET_B" tso "$1" gso "$1" gro off >/dev/null
}

# take_apart add|del: has tbf, at both ends, segment packets that are longer than its burst, before
# the device gets them.
take_apart() {
	in_ns "$NS_A" tc qdisc "$1" dev "$NET_A" root tbf rate 1gbit burst 1600 limit 10mb
	in_ns "$NS_B" tc qdisc "$1" dev "$NET_B" root tbf rate 1gbit burst 1600 limit 10mb
}

# FPDUs stay whole if TCP sends long packets and something below TCP segments them.
segments_made_below_tcp_carry_whole_fpdus() {
	local file=$TMP/long longest
	modprobe -q sch_tbf || skip_case 'this kernel has no tbf'
	offload on
	capture "$NS_A" "$NET_A" "$file" rping_pair 4 3 -V -S 20000
	decode "$file"
	read -r longest _ < <(grep 'in the longest segment$' "$file.seen")
	[ "$longest" -gt 1448 ] || die 'TCP segmented the data itself'
	PORT=$((PORT + 1))
	take_apart add
	segments_carry_whole_fpdus
	read -r longest _ < <(grep 'in the longest segment$' "$TMP/aligned.seen")
	[ "$longest" = 1448 ] || die "a segment of $longest octets"
	take_apart del
	offload off
}

# verbs_case PROGRAM CASE: runs one case of a verbs program at end B.
verbs_case() {
	CASE=$2 PORT=$PORT in_ns "$NS_B" within 30 "$VERBS_DIR/$1" "$IP4_B"
	PORT=$((PORT + 1))
}

refused() {
	EXTENSIONS=1 verbs_case rdma read_without_right
	verbs_case rdma write_past_the_end
	verbs_case waits receive_wait_0_ends_the_stream
	verbs_case sge send_with_unknown_key
	verbs_case sge receive_with_unknown_key
}

# Checks layer, error type and code (RFC 5040, section 4.8; RFC 5041, section 7.2), the M, D and R
# bits, the quote of the refused segment (its length, the first octets of its header), and the
# length of the whole Terminate.
terminates_are_decoded() {
	local file=$TMP/refused
	# Both ends are on one device, so the traffic goes through lo.
	capture "$NS_B" lo "$file" refused
	decode "$file"
	# RDMAP, Remote Protection Error, Access rights violation: a Read Request of 18 + 28 octets.
	# DDP, Tagged Buffer Error, Base or bounds violation: a Write of 14 + 100 octets.
	# DDP, Untagged Buffer Error, Invalid MSN - no buffer available: a Send of 18 + 16 octets.
	# RDMAP, Local Catastrophic Error: a Send that cannot be sent.
	# DDP, Local Catastrophic Error: a Send that cannot be placed.
	diff - <(sed -n 's/^[0-9]* terminate/terminate/p' "$file.seen") <<-'END' || die 'the Terminates are not as expected'
		terminate layer 0x0 etype 0x1 code 0x02 bits MDR length 002e header 4141 ulpdu 70
		terminate layer 0x1 etype 0x1 code 0x01 bits MD length 0072 header c140 ulpdu 38
		terminate layer 0x1 etype 0x2 code 0x02 bits MD length 0022 header 4143 ulpdu 42
		terminate layer 0x0 etype 0x0 code 0xff bits  ulpdu 22
		terminate layer 0x1 etype 0x0 code 0x00 bits  ulpdu 22
	END
}

atomics() {
	EXTENSIONS=1 verbs_case extensions fetch_and_add
	EXTENSIONS=1 verbs_case extensions compare_and_swap
}

# Compares the atomic operations of two cases, field by field (RFC 7306, section 5.2): each request,
# and its response after it. tshark repeats the name of the previous field for the value in a
# response.
atomics_are_decoded() {
	local file=$TMP/atomics
	capture "$NS_B" lo "$file" atomics
	decode "$file"
	sed -nE 's/^ +((Original )?Request Identifier|(Add|Swap|Compare) (Data|Mask)): /\1 /p' "$file.txt" |
		sed 's/0xffffffffffffffff/all/; s/0x0000000000000000/none/; s/18446744073709551615/-1/' |
		paste -d , - - - - - - - >"$file.fields"
	diff - "$file.fields" <<-'END' || die 'the operations are not as expected'
		Request Identifier 1,Add Data 2,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 1,Original Request Identifier 40
		Request Identifier 2,Add Data 1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 2,Original Request Identifier -1
		Request Identifier 3,Add Data 1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 3,Original Request Identifier 4294967295
		Request Identifier 4,Add Data -1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 4,Original Request Identifier 5
		Request Identifier 1,Swap Data 9,Swap Mask all,Compare Data 7,Compare Mask all,Original Request Identifier 1,Original Request Identifier 7
		Request Identifier 2,Swap Data 9,Swap Mask all,Compare Data 8,Compare Mask all,Original Request Identifier 2,Original Request Identifier 7
		Request Identifier 3,Swap Data 0,Swap Mask all,Compare Data -1,Compare Mask all,Original Request Identifier 3,Original Request Identifier -1
	END
	[ "$(grep -cE '^ +Remote (STag|Tagged Offset): [1-9]' "$file.txt")" = 14 ] || die 'no targets'
}

# --- the fields of each kind of message -----------------------------------------------------------

# connected: connects agent `a` to agent `b`, which listens on PORT; A and B are the connection's
# numbers there.
connected() {
	ask a connect "$IP4_B" "$PORT"
	A=$ANSWER
	await a "established $A"
	await b 'established *'
	read -r _ B _ <<<"$EVENT"
}

# two_agents: starts both, with different depths and private data.
two_agents() {
	agent a "$NS_A" "$IP4_A"
	agent b "$NS_B" "$IP4_B"
	ask a data 6f6e65
	ask a set ird 3
	ask a set ord 5
	ask b data 74776f21
	ask b set ird 7
	ask b set ord 9
	ask b listen "$PORT"
}

# did COMMAND...: has agent `a` post a request, and waits for its successful completion.
did() {
	ask a "$@"
	await a "wc $A send * success"
}

# Sends one message of each kind; each completes before the next one is posted. Keys and addresses
# stay in the variables of the case.
one_of_each() {
	two_agents
	connected
	ask a mr 8192 31 0
	read -r ours our_at our_key <<<"$ANSWER"
	ask b mr 8192 31 0
	read -r theirs their_at their_key <<<"$ANSWER"
	ask b recv "$B" 4
	ask b mw 2 0
	read -r window _ <<<"$ANSWER"
	ask b bind "$B" "$window" "$theirs" 0 64 2
	window_key=$ANSWER
	await b "wc $B send * success"
	ask b mw 2 0
	read -r window _ <<<"$ANSWER"
	ask b bind "$B" "$window" "$theirs" 64 64 2
	other_window_key=$ANSWER
	await b "wc $B send * success"
	ask a poke "$ours" 0 0123456789abcdef
	ask b poke "$theirs" 304 0800000000000000

	did send "$A" 0 -
	did send "$A" 5 -
	did send "$A" 4000 -
	did send "$A" 6 s
	did sendinv "$A" 7 "$window_key" -
	did sendinv "$A" 8 "$other_window_key" s
	did write "$A" "$ours" 0 8 $((their_at + 100)) "$their_key" -
	did write "$A" "$ours" 0 3000 $((their_at + 1000)) "$their_key" -
	did write "$A" "$ours" 0 0 0 0 -
	did read "$A" "$ours" 10 8 $((their_at + 100)) "$their_key" -
	did read "$A" "$ours" 4000 3000 $((their_at + 1000)) "$their_key" -
	did read "$A" "$ours" 0 0 0 0 -
	did imm "$A" "$ours" 0 8 $((their_at + 200)) "$their_key" - $((0x12345678))
	did imm "$A" "$ours" 0 8 $((their_at + 200)) "$their_key" s $((0x9abcdef0))
	did add "$A" "$ours" 0 8 $((their_at + 304)) "$their_key" - 7
	did swap "$A" "$ours" 0 8 $((their_at + 304)) "$their_key" - 20 15
	ask a write "$A" "$ours" 0 8 $((their_at + 8190)) "$their_key" -
	await a "disconnected $A"
	connected
	ask a read "$A" "$ours" 0 16 $((their_at + 8190)) "$their_key" -
	await a "disconnected $A"
}

# The next functions print the lines that `fields` must print. RFC 5044, section 7.1; RFC 6581,
# section 6; RFC 5041, section 4; RFC 5040, section 4; RFC 7306, sections 5.2 and 6.

# start_up req|rep CRC REJECTED REVISION DATA: a Request of end a, or a Reply of end b.
start_up() {
	local end=a
	[ "$1" = req ] || end=b
	printf '%s %s marker_flag=0 crc_flag=%d rej_flag=%d res=0x%02x rev=%d pdlength=%d privatedata=%s\n' \
		$end "$1" "$2" "$3" $(($4 == 2 ? 0x10 : 0)) "$4" $((${#5} / 2)) "$5"
}

# tagged END OPCODE STAG TO LENGTH [DATA]: a tagged message, in segments of at most 1428 octets,
# which fill a TCP segment here. TAIL follows the length of each.
tagged() {
	local end=$1 opcode=$2 stag=$3 to=$4 left=$5 data=${6:-} now
	while :; do
		now=$((left > 1428 ? 1428 : left))
		left=$((left - now))
		printf '%s fpdu ulpdulength=%d%s tagged_flag=1 last_flag=%d stag=%08x tagged_offset=%016x opcode=0x%02x%s\n' \
			"$end" $((14 + now)) "${TAIL:-}" $((left == 0)) "$stag" "$to" "$opcode" "${data:+ $data}"
		to=$((to + now))
		[ "$left" != 0 ] || break
	done
}

# untagged END OPCODE QUEUE NUMBER LENGTH [REST]: an untagged message, in segments of at most 1424
# octets.
untagged() {
	local end=$1 opcode=$2 queue=$3 number=$4 offset=0 left=$5 rest=${6:-} now
	while :; do
		now=$((left > 1424 ? 1424 : left))
		left=$((left - now))
		printf '%s fpdu ulpdulength=%d%s tagged_flag=0 last_flag=%d qn=%d msn=%d mo=%d opcode=0x%02x%s\n' \
			"$end" $((18 + now)) "${TAIL:-}" $((left == 0)) "$queue" "$number" "$offset" "$opcode" \
			"${rest:+ $rest}"
		offset=$((offset + now))
		[ "$left" != 0 ] || break
	done
}

# read_request NUMBER SINK_STAG SINK_TO SIZE SOURCE_STAG SOURCE_TO: a Read Request. read_of takes
# the same and DATA, and prints the Read Response too.
read_request() {
	untagged a 1 1 "$1" 28 "$(printf 'sinkstag=%08x sinkto=%016x rdmardsz=%d srcstag=%08x srcto=%016x' \
		"$2" "$3" "$4" "$5" "$6")"
}
read_of() {
	read_request "${@:1:6}"
	tagged b 2 "$2" "$3" "$4" "${7:-}"
}

# atomic NUMBER OPERATION NAMES_AND_VALUES BEFORE: an Atomic Request for the octets at 304, and the
# response with their previous value.
atomic() {
	untagged a 10 1 "$1" 52 "$(printf 'atomic.opcode=%d atomic.request_identifier=%d %s=%08x %s=%016x %s' \
		"$2" "$1" atomic.remote_stag "$their_key" atomic.remote_tagged_offset $((their_at + 304)) "$3")"
	untagged b 11 3 $(($1 - 3)) 12 \
		"atomic.original_request_identifier=$1 atomic.original_remote_data_value=$4"
}

# The private data begins with RFC 6581's enhanced data: the peer-to-peer flag, IRD, the RTR flags
# for Write and Read, ORD.
expected_of_each() {
	local first=33a71ac960fac695 ones=ffffffffffffffff
	local begin='start_up req 1 0 2 8003c0056f6e65'
	$begin
	start_up rep 1 0 2 8005c00374776f21
	# The RTR message.
	tagged a 0 0 0 0
	untagged a 3 0 1 0
	untagged a 3 0 2 5 "data=${first::10}"
	untagged a 3 0 3 4000
	untagged a 5 0 4 6 "data=${first::12}"
	untagged a 4 0 5 7 "$(printf 'inval_stag=%08x data=%s' "$window_key" "${first::14}")"
	untagged a 6 0 6 8 "$(printf 'inval_stag=%08x data=%s' "$other_window_key" "$first")"
	tagged a 0 "$their_key" $((their_at + 100)) 8 data=0123456789abcdef
	tagged a 0 "$their_key" $((their_at + 1000)) 3000
	tagged a 0 0 0 0
	read_of 1 "$our_key" $((our_at + 10)) 8 "$their_key" $((their_at + 100)) data=0123456789abcdef
	read_of 2 "$our_key" $((our_at + 4000)) 3000 "$their_key" $((their_at + 1000))
	read_of 3 0 0 0 0 0
	tagged a 0 "$their_key" $((their_at + 200)) 8 data=0123456789abcdef
	untagged a 8 0 7 8 data=1234567800000000
	tagged a 0 "$their_key" $((their_at + 200)) 8 data=0123456789abcdef
	untagged a 9 0 8 8 data=9abcdef000000000
	atomic 4 0 "atomic.add_data=7 atomic.add_mask=${ones//f/0} atomic.compare_data=0 atomic.compare_mask=$ones" 8
	atomic 5 2 "atomic.swap_data=20 atomic.swap_mask=$ones atomic.compare_data=15 atomic.compare_mask=$ones" 15
	# The result of the last atomic operation.
	tagged a 0 "$their_key" $((their_at + 8190)) 8 data=0f00000000000000
	# Base or bounds violation: of a tagged buffer, then of the source of a Read.
	untagged b 7 2 1 20 "term_layer=0x01 term_etype_ddp=0x01 term_errcode_ddp_tagged=01 \
term_hdrct_m=1 hdrct_d=1 hdrct_r=0 term_ddp_seg_len=0016 \
$(printf 'term_ddp_h=c140%08x%016x' "$their_key" $((their_at + 8190)))"
	$begin
	start_up rep 1 0 2 8005c00374776f21
	tagged a 0 0 0 0
	read_request 1 "$our_key" "$our_at" 16 "$their_key" $((their_at + 8190))
	untagged b 7 2 1 52 "term_layer=0x00 term_etype_rdma=0x01 term_errcode_rdma=01 \
term_hdrct_m=1 hdrct_d=1 hdrct_r=1 term_ddp_seg_len=002e \
$(printf 'term_ddp_h=414100000000000000010000000100000000%08x%016x%08x%08x%016x' "$our_key" "$our_at" 16 "$their_key" $((their_at + 8190)))"
}

fields_of_each_message() {
	local file=$TMP/each
	capture "$NS_A" "$NET_A" "$file" one_of_each
	decode "$file"
	diff <(expected_of_each) <(fields "$file") || die 'the fields are not as expected'
}

# --- start-up: revisions, enhanced data, CRC or not, refusals -------------------------------------

# settings_are CRC_OF_A CRC_OF_B REVISION PEER_TO_PEER: sets the devices of both ends.
settings_are() {
	setting "$NS_A" "$DEV_A" crc "$1"
	setting "$NS_B" "$DEV_B" crc "$2"
	setting "$NS_A" "$DEV_A" mpa_rev "$3"
	setting "$NS_A" "$DEV_A" peer_to_peer "$4"
}

one_send() {
	connected
	did send "$A" 5 -
}

start_ups() {
	local of
	two_agents
	for of in '1 0 2 1' '0 1 2 1' '0 0 2 1' '1 1 2 0' '1 1 1 1' '0 0 1 1'; do
		# shellcheck disable=SC2086
		settings_are $of
		one_send
	done
	ask b set auto 2
	for of in '1 1 2 1' '1 1 1 1'; do
		# shellcheck disable=SC2086
		settings_are $of
		ask a connect "$IP4_B" "$PORT"
		await a "rejected $ANSWER -111 74776f21"
	done
	settings_are 1 1 2 1
}

expected_of_start_ups() {
	local TAIL='' rtr='tagged a 0 0 0 0' a_send='untagged a 3 0 1 5 data=33a71ac960'
	start_up req 1 0 2 8003c0056f6e65; start_up rep 1 0 2 8005c00374776f21; $rtr; $a_send
	start_up req 0 0 2 8003c0056f6e65; start_up rep 1 0 2 8005c00374776f21; $rtr; $a_send
	# Without CRC the field is 0.
	TAIL=' crc=00000000'
	start_up req 0 0 2 8003c0056f6e65; start_up rep 0 0 2 8005c00374776f21; $rtr; $a_send
	TAIL=
	start_up req 1 0 2 000300056f6e65; start_up rep 1 0 2 0005000374776f21; $a_send
	start_up req 1 0 1 6f6e65; start_up rep 1 0 1 74776f21; $a_send
	TAIL=' crc=00000000'
	start_up req 0 0 1 6f6e65; start_up rep 0 0 1 74776f21; $a_send
	# No RFC defines the depths in a rejecting Reply.
	start_up req 1 0 2 8003c0056f6e65; start_up rep 1 1 2 xxxxxxxx74776f21
	start_up req 1 0 1 6f6e65; start_up rep 1 1 1 74776f21
}

fields_of_start_ups() {
	local file=$TMP/start_ups
	capture "$NS_A" "$NET_A" "$file" start_ups
	BARE=3 decode "$file"
	diff <(expected_of_start_ups) \
		<(fields "$file" | sed '/rej_flag=1.*rev=2/s/privatedata=......../privatedata=xxxxxxxx/') ||
		die 'the fields are not as expected'
}

# --- what the hostile peer gets to see ------------------------------------------------------------

# raw_cases FILE CASE...: runs cases of the hostile peer and captures them. FILE.expected gets the
# Terminates that it expects. If a connection reused the ports of an earlier one, tshark takes both
# for one; the cases are then run again.
raw_cases() {
	local file=$1 name try
	shift
	raw_peer
	for try in 1 2 3; do
		rm -f "$file.expected"
		CAPTURED=tcp TERMINATES=$file.expected capture "$NS_A" "$NET_A" "$file" play "$file.log" "$@"
		[ -n "$(tshark -r "$file" -Y tcp.analysis.reused_ports 2>/dev/null)" ] || break
		echo "capture $try: a port was used again"
	done
	cat "$file.log"
	for name; do grep -qx "ok $name" "$file.log" || die "$name has failed"; done
	# Only what the device sends: the hostile peer breaks the rules on purpose.
	decode "$file" "ip.src == $IP4_B"
}

play() {
	local log=$1
	shift
	in_ns "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 "$@" >"$log" || true
}

# Each error code that the driver sends for a peer's fault, with the case that provokes it. RFC
# 5040, section 4.8; RFC 5041, section 7.2; RFC 5044, section 8; RFC 6581, section 8. The hostile
# peer says which quotes it expects. tshark decodes each quote in an RDMAP error as an untagged
# header; no case here has another.
all_terminates() {
	local file=$TMP/all cases=() codes
	cat >"$file.codes" <<-'END'
		0x0 0x1 0x00 read_of_an_unknown_stag
		0x0 0x1 0x01 read_past_the_end
		0x0 0x1 0x02 read_without_the_right
		0x0 0x1 0x03 read_of_another_pd
		0x0 0x1 0x04 read_that_wraps
		0x0 0x1 0x09 invalidate_of_a_shared_region
		0x0 0x2 0x05 send_with_rdmap_version_2
		0x0 0x2 0x06 untagged_opcode_12
		0x0 0x2 0x07 read_request_one_octet_long
		0x0 0x2 0x09 invalidate_of_an_unknown_stag
		0x1 0x1 0x00 write_to_an_unknown_stag
		0x1 0x1 0x01 write_across_the_end
		0x1 0x1 0x02 write_to_another_pd
		0x1 0x1 0x03 write_that_wraps
		0x1 0x1 0x04 write_with_ddp_version_2
		0x1 0x2 0x01 send_to_queue_4
		0x1 0x2 0x02 no_receive_buffer
		0x1 0x2 0x03 msn_left_out
		0x1 0x2 0x04 message_with_a_gap
		0x1 0x2 0x05 send_longer_than_its_buffer
		0x1 0x2 0x06 send_with_ddp_version_2
		0x2 0x0 0x02 crc_of_zeros
		0x2 0x0 0x03 write_shorter_than_its_header
		0x2 0x0 0x06 reply_asks_for_more_than_the_initiator_serves
		0x2 0x0 0x07 reply_takes_rtr_kinds_1_0_0
	END
	mapfile -t cases < <(cut -d ' ' -f 4 "$file.codes")
	raw_cases "$file" "${cases[@]}"
	grep ' terminate ' "$file.seen" | sort >"$file.terminates"
	diff <(sort "$file.expected") "$file.terminates" || die 'the Terminates are not as expected'
	codes=$(awk '{ print $4, $6, $8 }' "$file.terminates" | sort -u)
	diff <(cut -d ' ' -f 1-3 "$file.codes") - <<<"$codes" || die 'the codes are not as expected'
}

# In each stream with Markers, compares the back pointers with RFC 5044, section 4.3: a Marker
# stands before each 512th octet of the stream, which begins behind the Reply, and says how far back
# its FPDU begins. tshark decodes Markers if each FPDU has a segment for itself.
markers_are_decoded() {
	local file=$TMP/markers
	raw_cases "$file" markers_in_messages_of_one_segment markers_around_a_terminate
	awk -v ends="$file" '
	function value(of) { match($0, of ": [0-9]+"); return substr($0, RSTART + length(of) + 2) + 0 }
	# Walks over the octets of an FPDU and the Markers between them.
	function walk(octets,    begin) {
		begin = at[way] % 512 ? at[way] : at[way] + 4
		while (octets) {
			if (at[way] % 512 == 0) {
				print way, (at[way] > begin ? at[way] - begin : 0) >(ends ".want")
				at[way] += 4
			}
			step = 512 - at[way] % 512
			if (step > octets) step = octets
			at[way] += step
			octets -= step
		}
	}
	/^Transmission Control Protocol/ { way = value("Src Port") "-" value("Dst Port") }
	/ULPDU length:/ { lengths[way] = lengths[way] " " int((2 + value("length") + 3) / 4) * 4 + 4 }
	/FPDU back pointer:/ { marks[way] = marks[way] way " " value("pointer") "\n" }
	END {
		for (way in marks) {
			printf "%s", marks[way] >(ends ".got")
			count = split(lengths[way], octets, " ")
			for (i = 1; i <= count; i++) walk(octets[i])
			streams++
		}
		exit streams != 2
	}' "$file.txt" || die 'there are not two streams with Markers'
	diff "$file.want" "$file.got" || die 'the Markers are not as expected'
	[ "$(wc -l <"$file.got")" -gt 40 ] || die 'too few Markers'
}

ends_up netns
# Segments as on a physical wire.
offload off
# Two riwarp devices agree on FPDUs that are longer than a segment; from here on on nothing.
try traffic_between_riwarp_devices_is_decoded 180 traffic_is_decoded
setting "$NS_A" "$DEV_A" ulpdu_limit 0
setting "$NS_B" "$DEV_B" ulpdu_limit 0
try traffic_is_decoded 180 traffic_is_decoded
try segments_carry_whole_fpdus 60 segments_carry_whole_fpdus
try segments_carry_whole_fpdus_at_odd_mtu 60 segments_carry_whole_fpdus_at_odd_mtu
try segments_made_below_tcp_carry_whole_fpdus 60 segments_made_below_tcp_carry_whole_fpdus
try terminates_are_decoded 60 terminates_are_decoded
try atomics_are_decoded 60 atomics_are_decoded
try fields_of_each_message 60 fields_of_each_message
try fields_of_start_ups 60 fields_of_start_ups
try all_terminates 90 all_terminates
try markers_are_decoded 60 markers_are_decoded
finish
